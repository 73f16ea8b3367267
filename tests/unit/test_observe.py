"""Pages, metrics and log lines."""

from __future__ import annotations

import http.client
import json
import logging
import os
import re
import socket
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from mcagent.agent.lock import BusyError, node_lock
from mcagent.agent.reports.counters import rule_counts, service_counts
from mcagent.api.codec import from_json
from mcagent.api.status import BackendStatus, GatewayGroup, GatewayStatus, PassStatus, Status, TunnelStatus
from mcagent.cli.inspect.status import text
from mcagent.controller.machinery.reconciler import Ref, Side
from mcagent.core.causes import remedy
from mcagent.http.server import HttpServer, Page
from mcagent.model.config import EncryptionFallback
from mcagent.model.dataplane.resources import PeerKind, PortStatistics, TunnelPort, TunnelType
from mcagent.model.errors import BackendError
from mcagent.model.informer_state import InformerState
from mcagent.model.node_state import EncryptionState, ExportedPort, NodeRole, NodeState, PolicyRuleName
from mcagent.model.objects import Kind
from mcagent.model.plan import Desired, Fragment
from mcagent.model.problem import Problem
from mcagent.observe.exports import export_metrics
from mcagent.observe.logs import JsonFormatter, TextFormatter
from mcagent.observe.metrics.agent import Metrics, Sources
from mcagent.observe.metrics.policies import MOST_RULES, policy_metrics
from mcagent.observe.pages import Identity, checks, make_pages
from mcagent.observe.report import Report
from mcagent.observe.systemd import Notifier
from tests.worlds.agentworld import World, gateway

TUNNEL = TunnelPort(
    bridge="br-mc",
    name="mcr-0123456789a",
    type=TunnelType.GENEVE,
    remote_ip=ip_address("192.0.2.1"),
    dst_port=0,
    ofport=7,
    peer_kind=PeerKind.REMOTE,
    peer="east",
)
RULE = PolicyRuleName(policy="P/p", rule="r", direction="ingress", verdict="Drop")
DESIRED = Desired(
    fragments={"cluster/east": Fragment(owner="cluster/east", resources=(TUNNEL,))},
    problems=(Problem(subject="Gateway a/b", path="gatewayIP", reason="NotUnicast", message="no"),),
    state=NodeState(role=NodeRole.GATEWAY, policy_rules={7: RULE}),
)
GOOD = Report(
    desired=DESIRED,
    converged=True,
    passes=3,
    backends=(BackendStatus(name="ovsdb", synced=True),),
    last_pass=PassStatus(at="1970-01-01T00:00:01Z", trigger="input", result="changed", phases={"diff": 0.1}),
)
PORT = PortStatistics(counters={"rx_bytes": 12, "tx_packets": 3}, link_up=True)
INFORMERS: tuple[InformerState, ...] = (InformerState(kind=Kind.GATEWAY, synced=True, connected=True, objects=1),)


def get(port: int, path: str, method: str = "GET") -> tuple[int, str, str]:
    """Ask; return status, content type and body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, answer.headers.get("Content-Type", ""), body


class Agent:
    """The parts of an agent that pages read, to be set by tests."""

    def __init__(self) -> None:
        self.reset()
        self.metrics = Metrics()
        sources = Sources(
            report=lambda: self.report,
            informers=lambda: self.informers,
            ready=lambda: all(c.good for c in checks(self.report, self.informers, pending=self.pending)),
            ports=lambda: self.ports,
            drops=lambda: {"NoRoute": 5},
            nft_drops=lambda: {"to-tunnel": 7, "forged-tunnel": 0},
            rules=lambda: {7: 4, 8: 1},
            services=lambda: {4: 2, 5: 7, 6: 1},
        )
        self.metrics.watch(sources)
        identity = Identity(node="n1", cluster_id="west", source="kube", started_at=0.0)
        pages = make_pages(
            identity=lambda: identity,
            metrics=self.metrics,
            sources=sources,
            alive=lambda: self.alive,
            pending=lambda: self.pending,
        )
        self.server = HttpServer(("127.0.0.1", 0), pages)
        self.port = self.server.port

    def reset(self) -> None:
        """All is well."""
        self.report = GOOD
        self.informers = INFORMERS
        self.pending = False
        self.alive = True
        self.ports: dict[str, PortStatistics] | None = {TUNNEL.name: PORT}


@pytest.fixture(scope="module")
def served() -> Iterator[Agent]:
    """An agent's pages on a free port."""
    agent = Agent()
    yield agent
    agent.server.close()


@pytest.fixture
def agent(served: Agent) -> Agent:
    """An agent that is well."""
    served.reset()
    return served


def test_ready_when_all_is_well(agent: Agent) -> None:
    """The dataplane equals the desired state, and changes would be noticed."""
    assert get(agent.port, "/readyz")[0] == 200
    assert get(agent.port, "/healthz")[0] == 200


@pytest.mark.parametrize(
    ("report", "informers", "pending", "text"),
    [
        (Report(), INFORMERS, False, "nothing was computed yet"),
        (Report(waiting_for=("Node",)), INFORMERS, False, "not listed yet: Node"),
        (GOOD, (InformerState(kind=Kind.NODE),), False, "not listed yet: Node"),
        (
            GOOD,
            (InformerState(kind=Kind.NODE, synced=True, error="connection refused"),),
            False,
            "connection refused",
        ),
        (GOOD, INFORMERS, True, "input is not processed yet"),
        (Report(desired=DESIRED), INFORMERS, False, "does not equal"),
        (
            Report(desired=DESIRED, backends=(BackendStatus(name="nft", failures=1, errors=("nft: add x: no",)),)),
            INFORMERS,
            False,
            "nft: add x: no",
        ),
        (Report(error="ZeroDivisionError: a bug"), INFORMERS, False, "a bug"),
    ],
)
def test_not_ready_says_why(
    agent: Agent, report: Report, informers: tuple[InformerState, ...], pending: bool, text: str
) -> None:
    """Each condition that fails is named in the answer; being alive is another question."""
    agent.report, agent.informers, agent.pending = report, informers, pending
    status, _, body = get(agent.port, "/readyz")
    assert status == 503
    assert text in body
    assert body.endswith("not ready\n")
    assert get(agent.port, "/healthz")[0] == 200


def test_a_loop_that_hangs_is_not_healthy(agent: Agent) -> None:
    """Only that makes a supervisor restart the agent."""
    agent.alive = False
    assert get(agent.port, "/healthz")[0] == 503


def test_status_is_json_with_tunnels_and_problems(agent: Agent) -> None:
    """A program can read everything that matters."""
    status, content_type, body = get(agent.port, "/status")
    shown = json.loads(body)
    assert (status, content_type) == (200, "application/json")
    assert shown["ready"] is True
    assert shown["summary"]["role"] == "gateway"
    assert shown["tunnels"][0]["peer"] == "east"
    assert shown["tunnels"][0]["statistics"]["rx_bytes"] == 12
    assert shown["problems"][0]["reason"] == "NotUnicast"
    assert shown["lastPass"]["phases"] == {"diff": 0.1}


def test_tunnels_that_could_not_be_read_are_neither_missing_nor_down(agent: Agent) -> None:
    """They forward without ovsdb-server. Those of a missing bridge, and one among others, are missing."""
    shown = {}
    readings: dict[str, dict[str, PortStatistics] | None]
    readings = {"unread": None, "no bridge": {}, "missing": {"mc-gw0": PORT}, "up": {TUNNEL.name: PORT}}
    for name, ports in readings.items():
        agent.ports = ports
        document = json.loads(get(agent.port, "/status")[2]) | {"encryption": {"mode": "none"}}
        status = from_json(Status, document, "the agent")
        (tunnel,) = status.tunnels
        samples = re.findall(r"^mcagent_tunnel_up\{.*\} (\S+)$", get(agent.port, "/metrics")[2], re.MULTILINE)
        shown[name] = (tunnel.exists, tunnel.up, samples, "unknown" in text(status), "missing" in text(status))
    assert shown == {
        "unread": (True, None, [], True, False),
        "no bridge": (False, None, ["0.0"], False, True),
        "missing": (False, None, ["0.0"], False, True),
        "up": (True, True, ["1.0"], False, False),
    }


def test_what_nft_dropped_is_in_the_status_and_shown_if_there_is_any(agent: Agent) -> None:
    """Zeros are for programs; people see what happened."""
    document = json.loads(get(agent.port, "/status")[2])
    assert document["nftDrops"] == {"to-tunnel": 7, "forged-tunnel": 0}
    document["encryption"] = {"mode": "none"}
    shown = text(from_json(Status, document, "the agent"))
    assert re.search(r"^  to-tunnel +7$", shown, re.MULTILINE)
    assert "forged-tunnel" not in shown
    assert "dropped by nft" not in text(from_json(Status, {**document, "nftDrops": {"to-tunnel": 0}}, "the agent"))


def test_gateways_that_know_other_endpoints_can_be_told_apart(agent: Agent) -> None:
    """Metrics, /status and `mcagent status` have a hash of each Service's endpoints, which Nodes do not change."""

    def shown(*ends: str, nodes: tuple[str, ...] = (), role: NodeRole = NodeRole.GATEWAY) -> tuple[set[str], str]:
        port = ExportedPort(
            name="shop/web:80/tcp",
            address=ip_address("10.96.0.7"),
            protocol="tcp",
            port=80,
            client_ip_affinity=False,
            endpoints=tuple((ip_address(end), 8080) for end in ends),
            nodes=nodes,
        )
        services = {port.name: port, "shop/web:81/tcp": replace(port, name="shop/web:81/tcp", port=81)}
        state = NodeState(
            role=role, services=services, service_ids={name: n for n, name in enumerate(services, 4)}
        )
        agent.report = replace(GOOD, desired=replace(DESIRED, state=state))
        lines = get(agent.port, "/metrics")[2].splitlines()
        status_text = text(from_json(Status, json.loads(get(agent.port, "/status")[2]), "the agent"))
        exports_line = [line for line in status_text.splitlines() if line.startswith("  exports")]
        return {line for line in lines if line.startswith("mcagent_exported")}, "".join(exports_line)

    metrics, exports_line = shown("10.1.0.1", "10.1.0.2", nodes=("a", "b"))
    assert 'mcagent_exported_connections_total{export="shop/web"} 9.0' in metrics
    assert 'mcagent_exported_endpoints{export="shop/web"} 4.0' in metrics
    assert "Services: 1, endpoints: 4, hash: " in exports_line
    assert shown("10.1.0.1", "10.1.0.2", nodes=("a", "c")) == (metrics, exports_line)
    gateways = [shown("10.1.0.1"), shown("10.1.0.1", "10.1.0.3"), shown()]
    assert len({exports_line, *(text for _, text in gateways)}) == 4
    hashes = {line for entry_texts, _ in gateways for line in entry_texts if "_hash{" in line}
    assert len(hashes | {line for line in metrics if "_hash{" in line}) == 4
    assert shown("10.1.0.1", role=NodeRole.WORKER) == (set(), "")


def test_status_shows_a_tunnel_to_a_dead_gateway_as_not_live() -> None:
    """The port of the tunnel is up whether its peer answers or not; what is no gateway has its port's state."""
    tunnels = tuple(TunnelStatus(name=name, exists=True, up=True) for name in ("mcr-dead", "mcr-live", "mcn-node"))
    gateways = tuple(GatewayStatus(tunnel=name, live=name == "mcr-live") for name in ("mcr-dead", "mcr-live"))
    shown = text(Status(tunnels=tunnels, gateways=(GatewayGroup(cluster="west", gateways=gateways),)))
    rows = {line.split()[0]: line for line in shown.splitlines() if line.startswith("mc")}
    assert ["NOT LIVE" in rows[name] for name in ("mcr-dead", "mcr-live", "mcn-node")] == [True, False, False]


def test_status_works_before_anything_is_known(agent: Agent) -> None:
    """The page answers from the first moment on."""
    agent.report, agent.informers = Report(), ()
    assert json.loads(get(agent.port, "/status")[2])["ready"] is False


def test_metrics_have_the_promised_names(agent: Agent) -> None:
    """Counters of passes, state and tunnels are there, with bounded labels and no creation times."""
    agent.metrics.passed("changed", {"diff": 0.1}, 1.0)
    agent.metrics.changed("FlowEntry", "add", 4)
    agent.metrics.failed("nft", unreachable=True, count=1)
    agent.metrics.corrected("Route", 2)
    body = get(agent.port, "/metrics")[2]
    for line in (
        'mcagent_reconciles_total{result="changed"} 1.0',
        'mcagent_reconcile_duration_seconds_count{phase="diff"} 1.0',
        'mcagent_changes_total{kind="FlowEntry",op="add"} 4.0',
        'mcagent_changes_total{kind="Route",op="delete"} 0.0',
        'mcagent_apply_errors_total{backend="nft",reason="unreachable"} 1.0',
        'mcagent_drift_corrections_total{backend="netlink",kind="Route"} 2.0',
        'mcagent_informer_synced{resource="Gateway"} 1.0',
        'mcagent_problems{reason="NotUnicast",severity="error"} 1.0',
        "mcagent_gateway_active 1.0",
        'mcagent_objects{kind="TunnelPort"} 1.0',
        'mcagent_tunnel_up{peer="east",peer_kind="remote",tunnel="mcr-0123456789a"} 1.0',
        'mcagent_tunnel_receive_bytes_total{peer="east",peer_kind="remote",tunnel="mcr-0123456789a"} 12.0',
        'mcagent_tunnel_transmit_packets_total{peer="east",peer_kind="remote",tunnel="mcr-0123456789a"} 3.0',
        'mcagent_dropped_packets_total{reason="NoRoute"} 5.0',
        'mcagent_nft_dropped_packets_total{reason="to-tunnel"} 7.0',
        'mcagent_policy_rule_packets_total{direction="ingress",policy="P/p",rule="r",verdict="Drop"} 4.0',
        "mcagent_ready 1.0",
        'mcagent_backend_synced{backend="ovsdb"} 1.0',
    ):
        assert line in body.splitlines()
    assert "_created" not in body
    names = re.findall(r"^# TYPE (\S+) (\S+)", body, re.MULTILINE)
    assert len({name for name, _ in names}) == len(names)
    assert all(name.startswith("mcagent_") for name, _ in names)


def test_counters_that_could_not_be_read_are_absent(agent: Agent) -> None:
    """A 0 would be a reset of the counter: rates count all packets again at the next reading."""

    class NoSwitch:
        def flow_stats(self, cookies: str) -> dict[int, int]:
            raise BackendError("openflow", "run", cookies, "ovs-ofctl did not end in 10 s")

    switch: Any = NoSwitch()
    rules, connections = rule_counts(switch), service_counts(switch)
    names = [metric.name for metric in policy_metrics({7: RULE}, rules)]
    names += [metric.name for metric in export_metrics(NodeState(role=NodeRole.GATEWAY), connections)]
    assert names == ["mcagent_exported_endpoints", "mcagent_exported_endpoints_hash"]


def test_connections_that_could_not_be_read_stay_in_the_status() -> None:
    """With a 0 in between, `mcagent top` would show all connections since the start as new ones."""
    name = "shop/web:80/tcp"
    port = ExportedPort(
        name=name,
        address=ip_address("10.96.0.8"),
        protocol="tcp",
        port=80,
        client_ip_affinity=False,
        endpoints=((ip_address("10.1.1.9"), 8080),),
    )
    state = NodeState(role=NodeRole.GATEWAY, services={name: port}, service_ids={name: 4})
    report = replace(GOOD, desired=replace(DESIRED, state=state))
    opened: dict[int, int] | None = None
    sources = Sources(
        report=lambda: report, informers=tuple, ready=lambda: True, ports=dict, drops=dict, services=lambda: opened
    )
    pages = make_pages(
        identity=lambda: Identity(node="n1", cluster_id="west", source="kube", started_at=0.0),
        metrics=Metrics(),
        sources=sources,
        alive=lambda: True,
        pending=lambda: False,
    )
    shown = []
    for count in (None, 7, None, 9, 0):
        opened = None if count is None else {4: count}
        shown.append(json.loads(pages["/status"]().body)["exports"]["shop/web"]["connections"])
    assert shown == [0, 7, 7, 9, 0]


def test_sums_of_counters_do_not_fall_when_a_part_of_them_is_gone() -> None:
    """A lower value would be a reset: rates would count all packets of the other flows again."""
    drops: dict[str, int] = {}
    rules: dict[int, int] | None = None
    metrics = Metrics()
    metrics.watch(
        Sources(
            report=lambda: GOOD,
            informers=tuple,
            ready=lambda: True,
            ports=dict,
            drops=lambda: drops,
            rules=lambda: rules,
        )
    )

    def scraped(name: str) -> float | None:
        text = generate_latest(metrics.registry).decode()
        values = [line.rpartition(" ")[2] for line in text.splitlines() if line.startswith(name + "_total{")]
        return float(values[0]) if values else None

    shown: list[float | None] = []
    for packets in (100, 40, 45, None, 50, 0, 3):
        drops = {} if packets is None else {"policy": packets}
        rules = None if packets is None else {7: packets}
        shown.append(scraped("mcagent_dropped_packets"))
        if packets is not None:
            assert scraped("mcagent_policy_rule_packets") == shown[-1]
    assert shown == [100, 100, 105, None, 110, 110, 113]


def test_rules_beyond_the_first_have_one_time_series_for_each_verdict() -> None:
    """However many rules there are, scrapes stay small, and no packet is left out."""
    rules = {n: replace(RULE, rule=f"r{n:05}", verdict=("Drop", "Allow")[n % 2]) for n in range(3 * MOST_RULES)}
    (family,) = policy_metrics(rules, dict.fromkeys(rules, 2))
    assert len(family.samples) == MOST_RULES + 2
    assert sum(sample.value for sample in family.samples) == 2 * len(rules)


def test_unknown_paths_and_methods_are_refused(agent: Agent) -> None:
    """Nothing but reading the pages."""
    assert get(agent.port, "/etc/passwd")[0] == 404
    assert get(agent.port, "/status", "POST")[0] == 405
    assert get(agent.port, "/status", "PUT")[0] == 501
    assert get(agent.port, "/healthz", "HEAD") == (200, "text/plain; charset=utf-8", "")


def test_clients_that_say_nothing_do_not_stop_the_server(agent: Agent) -> None:
    """With a few idle connections open the pages still answer."""
    idle = [socket.create_connection(("127.0.0.1", agent.port), timeout=10) for _ in range(6)]
    assert get(agent.port, "/healthz")[0] == 200
    for connection in idle:
        connection.close()


def test_a_page_that_breaks_costs_only_that_request() -> None:
    """The next request is answered."""

    def broken() -> Page:
        raise ZeroDivisionError

    server = HttpServer(("127.0.0.1", 0), {"/broken": broken, "/": lambda: Page(body="ok")})
    assert get(server.port, "/broken")[0] == 500
    assert get(server.port, "/")[2] == "ok"
    server.close()


def record(message: str) -> logging.LogRecord:
    """Return a log record."""
    return logging.LogRecord("mcagent.agent.control_loop.loop", logging.WARNING, "f", 1, message, None, None)


def test_text_logs_cannot_be_forged() -> None:
    """A line feed or an escape sequence in an object's name does not make a line or colour of its own."""
    line = TextFormatter(times=False).format(record("cluster x\n2026 error: all lost\x1b[31m"))
    assert line == "warning agent.control_loop.loop: cluster x\\n2026 error: all lost\\x1b[31m"


def test_json_logs_are_one_object_a_line() -> None:
    """Each line parses and has level, logger and message."""
    line = JsonFormatter().format(record('a "quoted"\nthing'))
    assert "\n" not in line
    shown = json.loads(line)
    assert (shown["level"], shown["message"]) == ("warning", 'a "quoted"\nthing')


@pytest.mark.parametrize(
    ("argument", "fields"),
    [
        (
            Problem(subject="Gateway mc/n1", path="gatewayIP", reason="NotUnicast", message="no"),
            {
                "object": {"kind": "Gateway", "namespace": "mc", "name": "n1"},
                "reason": "NotUnicast",
                "field": "gatewayIP",
            },
        ),
        (
            Problem(subject="Node n1", path="", reason="NoUsableAddress", message="no"),
            {"object": {"kind": "Node", "name": "n1"}, "reason": "NoUsableAddress"},
        ),
        (
            Problem(subject="/etc/a b.yaml", path="", reason="UnreadableManifest", message="no"),
            {"reason": "UnreadableManifest"},
        ),
        (
            Ref(side=Side.LEADER, kind=Kind.RESOURCE_EXPORT, namespace="mcs", name="east-web"),
            {"object": {"kind": "ResourceExport", "namespace": "mcs", "name": "east-web"}, "side": "leader"},
        ),
        ("Gateway mc/n1", {}),
    ],
)
def test_json_logs_carry_the_object(argument: object, fields: dict[str, object]) -> None:
    """What a line is about can be searched by kind, namespace and name; the message stays as people read it."""
    about = record("")
    about.msg, about.args = "service-export: %s: %s", (argument, 3)
    shown = json.loads(JsonFormatter().format(about))
    assert {key: shown[key] for key in shown if key not in ("time", "level", "logger", "message")} == fields
    assert shown["message"] == f"service-export: {argument}: 3"


def test_json_logs_of_the_agent_carry_the_object_of_each_problem(caplog: pytest.LogCaptureFixture) -> None:
    """A ClusterInfoImport that the loop refuses: the line of the log names it."""
    world = World()
    world.list_all(gateways=[gateway(number=1), {**gateway("b2", 2), "gatewayIP": "224.0.0.1"}])
    world.start()
    try:
        world.wait(world.settled)
    finally:
        world.stop()
    lines = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    named = [line["object"] for line in lines if line.get("reason") and line["level"] == "warning"]
    assert {"kind": "Gateway", "namespace": "kube-system", "name": "b2"} in named


def test_systemd_is_told_ready_once_and_the_watchdog_each_turn(tmp_path: Path) -> None:
    """READY only when ready, WATCHDOG with every turn, STATUS when it changes."""
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(path)
        server.settimeout(10)
        notifier = Notifier({"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "1000000"})
        notifier.turn(ready=False, status="starting")
        assert server.recv(999) == b"WATCHDOG=1\nSTATUS=starting"
        notifier.turn(ready=True, status="well")
        assert server.recv(999) == b"WATCHDOG=1\nREADY=1\nSTATUS=well"
        notifier.turn(ready=True, status="well")
        assert server.recv(999) == b"WATCHDOG=1"
        notifier.stopping()
        assert server.recv(999) == b"STOPPING=1"


def test_without_systemd_nothing_is_told() -> None:
    """No socket, no error."""
    Notifier({}).turn(ready=True, status="well")
    Notifier({"NOTIFY_SOCKET": "/nonexistent/socket"}).turn(ready=True, status="well")


def test_one_agent_per_node(tmp_path: Path) -> None:
    """A second one is refused with the first one's process number; after its end there is room again."""
    path = tmp_path / "run"
    for _ in range(2):
        with node_lock(path):
            with pytest.raises(BusyError, match=rf"another agent \(process {os.getpid()}\) holds") as caught:
                node_lock(path).__enter__()
            assert caught.value.exit_code == 3


def test_a_node_that_cannot_encrypt_as_configured_is_not_ready() -> None:
    """So a roll-out stops there. One that may send in the clear is ready: its configuration says so."""
    message = "load the kernel module openvswitch"
    problem = Problem("configuration", "trafficEncryptionMode", "EncryptionUnavailable", message)
    for fallback, texts in ((EncryptionFallback.DENY, [message]), (EncryptionFallback.ALLOW_CLEAR, [])):
        state = replace(DESIRED.state, encryption=EncryptionState(fallback=fallback))
        report = replace(GOOD, desired=replace(DESIRED, state=state, problems=(problem,)))
        assert [check.text for check in checks(report, INFORMERS, pending=False) if not check.good] == texts
    assert "modprobe wireguard" not in remedy("EncryptionUnavailable")


def test_kinds_with_one_error_are_one_check() -> None:
    """An API server that is away has one text, with the kinds that are not read."""
    away = [InformerState(kind=kind, synced=True, error="connection refused") for kind in (Kind.NODE, Kind.POD)]
    texts = [check.text for check in checks(GOOD, away, pending=False) if not check.good]
    assert len(texts) == 1
    assert texts[0].count("connection refused") == 1
    assert "Node, Pod: connection refused" in texts[0]
