"""Rules and dashboards as a real Prometheus sees them: promtool, and one that scrapes agent and controllers."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from devtools.ports import free_port
from mcagent.controller.config import ControllerRole
from mcagent.controller.settings import MemberSettings
from mcagent.http.server import HttpServer, Page
from mcagent.model.objects import Kind
from mcagent.observe.standard import metrics_text
from tests.embedded.processes import COMMON_AREA, Cluster
from tests.prometheus.server import RULES, TESTS, Prometheus, expressions, find_programs, names
from tests.waiting import until
from tests.worlds.metrics_world import Size, agent_metrics


def test_rules_are_right_and_alerts_fire_when_they_should(tmp_path: Path) -> None:
    """`promtool check rules` and `test rules`: quiet when all is well, and each alert for its own reason."""
    promtool = str(find_programs() / "promtool")
    for file in (RULES, TESTS / "prometheus/rules_test.yaml"):
        shutil.copy(file, tmp_path)
    for what, name in (("check", "rules.yaml"), ("test", "rules_test.yaml")):
        command = [promtool, what, "rules", name]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Prometheus with an agent's metrics, and a leader and a member that joined it."""
    find_programs()
    leader = Cluster(ControllerRole.LEADER, tmp_path_factory.mktemp("leader"))
    member = Cluster(ControllerRole.MEMBER, tmp_path_factory.mktemp("member"))
    settings = {"clusterID": "north", "leaders": [{"clusterID": "north"}]}
    leader.objects.put(Kind.CLUSTER_SET, "blue", COMMON_AREA, spec=settings)
    metrics = agent_metrics(Size(clusters=3, nodes=2, services=2))
    kind = "text/plain; version=0.0.4"
    pages = {"/metrics": lambda: Page(body=metrics_text(metrics.registry), content_type=kind)}
    agent = HttpServer(("127.0.0.1", 0), pages)
    running = {"leader": leader.start(), "member": member.start(MemberSettings(service_cidr="10.96.0.0/16"))}
    member.join(leader, "east", leader.bind_member("east"))
    ports = {"agent": agent.port, **{name: process.port for name, process in running.items()}}
    targets = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
    server = Prometheus(tmp_path_factory.mktemp("prometheus"), targets, port=free_port())
    try:
        yield server
    finally:
        server.close()
        agent.close()
        for cluster in (leader, member):
            cluster.close()


def test_a_real_prometheus_finds_every_series_that_is_named(prometheus: Prometheus) -> None:
    """All three targets are scraped; every query can be parsed, and every metric in it is there."""
    until(lambda: len(prometheus.query("up == 1")) == 3, timeout=60)
    for expression in expressions():
        prometheus.get("query", query=expression)
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    expected = names() | {rule["record"] for group in groups for rule in group["rules"] if "record" in rule}

    until(lambda: prometheus.missing(expected) == [], timeout=30)


def test_alerts_are_quiet_where_all_is_well(prometheus: Prometheus) -> None:
    """No rule fails, and no alert is even pending but of the agent, which does not run, that it is not ready."""
    until(lambda: bool(prometheus.query("mcagent:remote_live_gateways:min")), timeout=60)
    groups = prometheus.get("rules")["groups"]
    bad = [rule["name"] for group in groups for rule in group["rules"] if rule["health"] != "ok"]
    assert bad == []
    # A rule that was evaluated before the first scrape was done says so until it is evaluated again.
    until(lambda: prometheus.alerts() <= {"McagentNotReady"}, timeout=60)
