"""Rules and dashboards as a real Prometheus sees them: promtool, and one that scrapes agent and controllers."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from devtools.dashboards import DASHBOARDS
from devtools.errors import LabError
from mcagent.controller.config import Role
from mcagent.http.server import HttpServer, Page
from mcagent.model.objects import Kind
from mcagent.observe.standard import metrics_text
from tests.embedded.test_controller_process import COMMON_AREA, Cluster, free_port
from tests.unit.metrics_world import Size, agent_metrics
from tests.waiting import until

TESTS = Path(__file__).parents[1]
RULES = TESTS.parent / "deploy/helm/mcagent/files/monitoring/rules.yaml"
VARIABLES = {"cluster": ".*", "gateway": ".*", "peer": ".*", "__rate_interval": "4s"}


@pytest.fixture(scope="module")
def programs() -> Path:
    """The directory of prometheus and promtool; without them these tests are left out, and say so."""
    found = subprocess.run([TESTS / "prometheus/find-prometheus"], capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip(found.stderr.strip())
    return Path(found.stdout.strip())


def test_rules_are_right_and_alerts_fire_when_they_should(programs: Path, tmp_path: Path) -> None:
    """`promtool check rules` and `test rules`: quiet when all is well, and each alert for its own reason."""
    for file in (RULES, TESTS / "prometheus/rules_test.yaml"):
        shutil.copy(file, tmp_path)
    for what, name in (("check", "rules.yaml"), ("test", "rules_test.yaml")):
        command = [str(programs / "promtool"), what, "rules", name]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=15)
        assert done.returncode == 0, done.stdout + done.stderr


class Prometheus:
    """A server that scrapes targets every second."""

    def __init__(self, programs: Path, directory: Path, targets: dict[str, int]) -> None:
        self.port = free_port()
        jobs = [
            {"job_name": name, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
            for name, port in targets.items()
        ]
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(RULES)],
            "scrape_configs": jobs,
        }
        (directory / "prometheus.yaml").write_text(yaml.safe_dump(config))
        self.log = directory / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [
                    programs / "prometheus",
                    f"--config.file={directory / 'prometheus.yaml'}",
                    f"--storage.tsdb.path={directory / 'data'}",
                    f"--web.listen-address=127.0.0.1:{self.port}",
                ],
                stdout=log,
                stderr=log,
            )

    def get(self, path: str, **parameters: str) -> Any:
        """Ask its API; None while it does not answer. Raises AssertionError for a wrong query."""
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            if error.code == 503:  # it is starting
                return None
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error
        except OSError:
            return None

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the samples now."""
        found = self.get("query", query=expression)
        return found["result"] if found else []

    def close(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait(20)


@pytest.fixture(scope="module")
def prometheus(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Prometheus with the shipped rules, an agent's metrics, and a leader and a member that joined it."""
    leader = Cluster(Role.LEADER, tmp_path_factory.mktemp("leader"))
    member = Cluster(Role.MEMBER, tmp_path_factory.mktemp("member"))
    here = {"clusterID": "north", "leaders": [{"clusterID": "north"}]}
    leader.objects.put(Kind.CLUSTER_SET, "blue", COMMON_AREA, spec=here)
    metrics = agent_metrics(Size(clusters=3, nodes=2, services=2))
    pages = {
        "/metrics": lambda: Page(body=metrics_text(metrics.registry), content_type="text/plain; version=0.0.4")
    }
    agent = HttpServer(("127.0.0.1", 0), pages)
    running = [leader.start(), member.start(service_cidr="10.96.0.0/16")]
    member.join(leader, "east", leader.bind_member("east"))
    targets = {"agent": agent.port, "leader": running[0].port, "member": running[1].port}
    server = Prometheus(programs, tmp_path_factory.mktemp("prometheus"), targets)
    try:
        yield server
    finally:
        server.close()
        agent.close()
        for cluster in (leader, member):
            cluster.close()


def test_a_real_prometheus_finds_every_series_that_is_named(prometheus: Prometheus) -> None:
    """All three targets are scraped without an error, and every query of a dashboard and a rule gets an answer."""
    until(lambda: len(prometheus.query("up == 1")) == 3, timeout=15)
    expressions = [query for dashboard in DASHBOARDS for panel in dashboard.panels for query, _ in panel.queries]
    for name, value in VARIABLES.items():
        expressions = [one.replace(f"${name}", value) for one in expressions]
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    expressions += [rule["expr"] for rule in rules]
    for expression in expressions:
        prometheus.get("query", query=expression)  # it can be parsed
    names = {name for one in expressions for name in re.findall(r"\bmcagent_\w+", one)}
    names |= {rule["record"] for rule in rules if "record" in rule}
    missing: set[str] = set()

    def all_there() -> bool:
        missing.clear()
        missing.update(name for name in names if not prometheus.query(f"count({name})"))
        return not missing

    try:
        until(all_there, timeout=15)
    except LabError as error:
        raise AssertionError(f"no series of {sorted(missing)}") from error


def test_a_shipped_alert_is_quiet_until_there_is_a_reason(prometheus: Prometheus) -> None:
    """No rule fails, and no alert is even pending but of the agent, which does not run, that it is not ready."""
    until(lambda: bool(prometheus.query("mcagent:remote_live_gateways:min")), timeout=15)
    groups = prometheus.get("rules")["groups"]
    bad = [rule["name"] for group in groups for rule in group["rules"] if rule["health"] != "ok"]
    assert bad == []
    alerts = {one["metric"]["alertname"] for one in prometheus.query('ALERTS{alertname!="McagentNotReady"}')}
    assert alerts == set()
