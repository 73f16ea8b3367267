"""A real Prometheus with the shipped rules, for tests: it scrapes every second. Programs: `find-prometheus`."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from devtools.dashboards import DASHBOARDS
from devtools.nodes import netns

TESTS = Path(__file__).parents[1]
RULES = TESTS.parent / "deploy/helm/mcagent/files/monitoring/rules.yaml"
_VARIABLES = {"cluster": ".*", "gateway": ".*", "peer": ".*", "__rate_interval": "4s"}


def find_programs() -> Path:
    """Return the directory of prometheus and promtool; without them the test is left out, and says so."""
    search = subprocess.run([TESTS / "prometheus/find-prometheus"], capture_output=True, text=True, check=False)
    if search.returncode:
        pytest.skip(search.stderr.strip())
    return Path(search.stdout.strip())


def expressions() -> list[str]:
    """Return what dashboards and rules ask, with all variables at "all"."""
    queries = [query for dashboard in DASHBOARDS for panel in dashboard.panels for query, _ in panel.queries]
    for name, value in _VARIABLES.items():
        queries = [one.replace(f"${name}", value) for one in queries]
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return queries + [rule["expr"] for group in groups for rule in group["rules"]]


def names() -> set[str]:
    """Return the metrics, and recorded series, that they name."""
    return {name for expression in expressions() for name in re.findall(r"\bmcagent_\w+", expression)}


class Prometheus:
    """A running server; `targets` are host:port by the name of their job. In this namespace, if any."""

    def __init__(self, directory: Path, targets: Mapping[str, str], *, port: int, namespace: str = "") -> None:
        self.port, self._namespace = port, namespace
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(RULES)],
            "scrape_configs": [
                {"job_name": name, "static_configs": [{"targets": [where]}]} for name, where in targets.items()
            ],
        }
        (directory / "prometheus.yaml").write_text(yaml.safe_dump(config))
        argv = [
            str(find_programs() / "prometheus"),
            f"--config.file={directory / 'prometheus.yaml'}",
            f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        with (directory / "log").open("w") as log:
            command = netns.command(namespace, argv) if namespace else argv
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def get(self, path: str, **parameters: str) -> Any:
        """Ask its API; None while it does not answer. Raises AssertionError for a wrong query."""
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"

        def ask() -> Any:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return json.load(answer)["data"]

        try:
            return netns.call(self._namespace, ask) if self._namespace else ask()
        except urllib.error.HTTPError as error:
            with error:  # it holds the connection
                if error.code == 503:  # it is starting
                    return None
                raise AssertionError(f"{parameters}: {error.read().decode()}") from error
        except OSError:
            return None

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the samples now."""
        answer = self.get("query", query=expression)
        return answer["result"] if answer else []

    def missing(self, expected: set[str]) -> list[str]:
        """Return those metrics that have no series."""
        return sorted(name for name in expected if not self.query(f"count({name})"))

    def alerts(self) -> set[str]:
        """Return the alerts whose condition holds now, firing or about to."""
        return {alert["metric"]["alertname"] for alert in self.query("ALERTS")}

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(20)
