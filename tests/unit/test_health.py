"""The health of a ClusterSet: each fault on each surface, from the objects that it leaves (docs/operations.md)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from devtools.doctor_page import all_checks
from mcagent.api.doctor import FindingLevel
from mcagent.api.status import HealthProblem, Status
from mcagent.cli.inspect import status as status_command
from mcagent.controller.admin import listing, overview
from mcagent.controller.contract.health import HEALTH_ANNOTATION, HEALTHY, unhealthy_by_reason
from mcagent.controller.leader.topology import topologies
from mcagent.controller.member.announce import Announce
from mcagent.controller.member.cluster_set import MemberClusterSet
from mcagent.core.failover.liveness import Damping, Observation, advance
from mcagent.core.health import (
    LINK_REASONS,
    SETTLED,
    HealthReason,
    SeenCluster,
    SeenGateway,
    cluster_health,
    read_finding,
)
from mcagent.core.tunnel_probes import ProbeState
from mcagent.doctor.checks.cluster import cluster_ids
from mcagent.doctor.checks.cluster import health as health_check
from mcagent.doctor.checks.cluster import leader as leader_check
from mcagent.doctor.examined import ExaminedCluster
from mcagent.model.api.base import condition_of
from mcagent.model.api.multicluster import ClusterSet
from mcagent.model.config import Config, EncryptionFallback
from mcagent.model.dataplane.resources import PeerKind
from mcagent.model.net import cluster_fingerprint
from mcagent.model.node_state import AcceptedCluster, EncryptionState, LocalGateway, NodeRole, NodeState
from mcagent.model.objects import Kind
from mcagent.model.parsing.links import ANNOTATION, ClusterLink, as_text, read
from mcagent.model.problem import Problem
from mcagent.observe.gateways import LiveReport
from mcagent.observe.health import node_health
from mcagent.observe.topology import node_topology
from tests.worlds.alert_rules import LABELS, RULES
from tests.worlds.control_view import Controller
from tests.worlds.core_inputs import tunnel_port
from tests.worlds.leader_world import AREA as LEADERS_AREA
from tests.worlds.leader_world import SET as LEADERS_SET
from tests.worlds.leader_world import Leader, announce
from tests.worlds.member_world import HOME, SET, member, node, north_of, settings
from tests.worlds.member_world import leader as leader_of
from tests.worlds.memory_objects import START, timestamp, typed

NOW = 1_900_000_000.0
PAGE = (Path(__file__).parents[2] / "docs/operations.md").read_text(encoding="utf-8")
WAYS = {"clusterID": "west", "live": 4, "tunnels": 4}
DOWN = {**WAYS, "live": 0, "why": "BFD is down"}


@dataclass(frozen=True)
class Fault:
    """What a fault leaves in a member's objects. `gateway`: fields of the status of its Gateway g1."""

    reason: HealthReason
    gateway: dict[str, Any] = field(default_factory=dict)
    gateways: bool = True
    ready: bool = True
    away: str = ""


FAULTS = {
    "another cluster ID in the agents' configuration": Fault(HealthReason.CLUSTER_ID, {"clusterID": "west"}),
    "another cluster answers at the gateways of west": Fault(
        HealthReason.CLUSTER_ID, {"links": [{**WAYS, "answers": {"10.0.1.1": "0123456789ab"}}]}
    ),
    "all Gateways are gone": Fault(HealthReason.NO_GATEWAY, gateways=False),
    "the Nodes of all Gateways are down": Fault(HealthReason.NO_GATEWAY, ready=False),
    "encryption is not possible": Fault(
        HealthReason.NOT_ENCRYPTED, {"encryptionError": "load the kernel module openvswitch"}
    ),
    "the token is deleted": Fault(HealthReason.AWAY, away="HTTP 401: Unauthorized"),
    "the leader's API is away": Fault(HealthReason.AWAY, away="connection refused"),
    "all UDP paths are blocked": Fault(HealthReason.UNREACHABLE, {"links": [DOWN]}),
    "no tunnel exists": Fault(HealthReason.UNREACHABLE, {"links": []}),
    "UDP is blocked in one direction": Fault(HealthReason.ONE_WAY, {"links": [{**DOWN, "oneWay": 4}]}),
    "UDP was never open": Fault(HealthReason.SILENT, {"links": [{**WAYS, "silent": 4}]}),
}


class World:
    """A member's objects after a fault, and what controllers made of them."""

    def __init__(self, fault: Fault | None) -> None:
        self.fault = fault
        self.view = member("east")
        self.view.local.put(node("g1", "10.0.0.1", ready=fault is None or fault.ready))
        self.view.local.put(
            {
                "kind": "ClusterInfoImport",
                "metadata": {"name": "west-clusterinfo", "namespace": HOME},
                "spec": {"clusterID": "west", "gatewayInfos": [{"gatewayIP": "10.0.1.1"}]},
            }
        )
        if fault is None or fault.gateways:
            status = {"clusterID": "east", "links": [WAYS], **(fault.gateway if fault is not None else {})}
            body = {"gatewayIP": "10.0.0.1", "internalIP": "10.0.0.1", "status": status}
            self.view.local.put({"kind": "Gateway", "metadata": {"name": "g1", "namespace": HOME}, **body})
        self.controller = Controller(self.view, [MemberClusterSet(), Announce(settings())])
        self.controller.settle()
        if fault is not None and fault.away:
            self.view.leader = leader_of(connected=False, synced=False, error=fault.away)
        self.view.local.clock.forward(2 * SETTLED)
        self.controller.settle()

    @property
    def cluster_set(self) -> ClusterSet:
        """The member's ClusterSet."""
        raw = self.view.local.get(Kind.CLUSTER_SET, HOME, SET)
        assert raw is not None
        return typed(raw)  # type: ignore[no-any-return]

    def conditions(self) -> dict[str, tuple[str, str]]:
        """Return status and reason of the ClusterSet's conditions, by type."""
        return {item.type: (item.status, item.reason) for item in self.cluster_set.status.conditions}

    def announcement(self) -> str:
        """Return what the leader gets to know."""
        raw = north_of(self.view).list(Kind.MEMBER_CLUSTER_ANNOUNCE)[0]
        return str(raw["metadata"]["annotations"].get(HEALTH_ANNOTATION, ""))


def condition_shows(world: World) -> str:
    """Return the reason of the condition, if it is False."""
    status, reason = world.conditions()["Healthy"]
    return reason if status == "False" else ""


def event_shows(world: World) -> str:
    """Return the reasons of Events."""
    return " ".join(event.reason for event in world.controller.all_events())


def get_shows(world: World) -> str:
    """Return the row of `mcagent get clusterset`, if it is not True."""
    raw = world.view.local.get(Kind.CLUSTER_SET, HOME, SET)
    assert raw is not None
    row = listing.rows("clusterset", [raw], NOW)[0]
    return row[-1] if row[5] == "False" else ""


def metric_shows(world: World) -> str:
    """Return the labels of `mcagent_controller_unhealthy_clusters`."""
    return " ".join(unhealthy_by_reason([world.cluster_set]))


def status_shows(world: World) -> str:
    """Return the errors of `mcagent status --context`."""
    local = world.view.local
    objects = overview.OverviewInput(
        cluster_sets=[world.cluster_set],
        gateways=[typed(raw) for raw in local.list(Kind.GATEWAY)],
        nodes=[typed(raw) for raw in local.list(Kind.NODE)],
    )
    errors = [problem.message for problem in overview.overview(objects).problems if problem.error]
    return " ".join(errors)


def doctored(world: World) -> ExaminedCluster:
    """Return the cluster as the doctor reads it."""
    readings: dict[Any, Any] = {
        leader_check.cluster_sets: [world.cluster_set],
        leader_check.imports: [],
        leader_check.leader_servers: [],
        cluster_ids.duplicates: [],
    }
    client: Any = None
    return ExaminedCluster(client, Config(node_name="n1"), (), readings=readings, clock=0.0, now=NOW)


def doctor_shows(world: World) -> str:
    """Return what the doctor's checks of the cluster report as faults."""
    doctored_world = doctored(world)
    faults = [
        finding
        for examine in (health_check.examine, cluster_ids.examine, leader_check.examine)
        for finding in examine(doctored_world)
        if finding.level == FindingLevel.FAILED
    ]
    return " ".join(f"{finding.reason} {finding.seen}" for finding in faults)


def test_the_doctor_has_a_warning_for_a_lost_tunnel() -> None:
    """`ClusterDegraded`; what is an error is `ClusterUnhealthy`, with the reason."""
    for link, level, reason in (
        ({**WAYS, "live": 3}, FindingLevel.WARNING, "ClusterDegraded"),
        (DOWN, FindingLevel.FAILED, "ClusterUnhealthy"),
    ):
        (finding,) = health_check.examine(doctored(World(Fault(HealthReason.DEGRADED, {"links": [link]}))))
        assert (finding.level, finding.reason) == (level, reason)


def leader_after(world: World) -> Leader:
    """Return the leader of two members, after the fault in one of them."""
    north = Leader("east", "west")
    text = world.announcement()
    if world.view.leader is not None and not world.view.leader.connected:
        north.forward(600.0, "west")
        return north
    raw = announce("east", START + 1)
    raw["metadata"]["annotations"][HEALTH_ANNOTATION] = text
    north.put(raw)
    return north


def leader_condition_shows(world: World) -> str:
    """Return the reason of the condition of the leader's ClusterSet and of the member, if they are False."""
    raw = leader_after(world).api.get(Kind.CLUSTER_SET, LEADERS_AREA, LEADERS_SET)
    assert raw is not None
    own = condition_of(typed(raw).status.conditions, HEALTHY)
    of_member = condition_of(typed(raw).conditions_of("east"), HEALTHY)
    assert own.reason == of_member.reason
    return own.reason if own.is_false and of_member.is_false else ""


def leader_event_shows(world: World) -> str:
    """Return the reasons of the leader's Events."""
    reasons = {event.reason for event in leader_after(world).controller.all_events()}
    return " ".join(reasons & set(HealthReason))


def leader_metric_shows(world: World) -> str:
    """Return the labels of `mcagent_controller_unhealthy_clusters` on the leader."""
    north = leader_after(world)
    return " ".join(unhealthy_by_reason(north.view.list(ClusterSet)))


def leader_page_shows(world: World) -> str:
    """Return the problems of the leader's page."""
    north = leader_after(world)
    if world.fault is not None and world.fault.reason in LINK_REASONS:  # which the page judges by the links
        raw = announce("east", START + 2)
        reported = read(world.fault.gateway["links"]) or (ClusterLink(cluster="west", live=0, tunnels=1),)
        raw["metadata"]["annotations"][ANNOTATION] = as_text(reported)
        north.put(raw)
    (topology,) = topologies(north.view, LEADERS_AREA)
    assert [link.target for link in topology.links if link.lost] == [link.target for link in topology.links]
    return " ".join(problem.reason for problem in topology.problems if problem.reason in set(HealthReason))


SURFACES: dict[str, Callable[[World], str]] = {
    "condition": condition_shows,
    "Event": event_shows,
    "get": get_shows,
    "metric": metric_shows,
    "status": status_shows,
    "doctor": doctor_shows,
    "condition on the leader": leader_condition_shows,
    "Event on the leader": leader_event_shows,
    "metric on the leader": leader_metric_shows,
    "page of the leader": leader_page_shows,
}
ELSEWHERE = {("doctor", HealthReason.AWAY): "Leader"}  # LeaderAway or LeaderRefusesToken


@pytest.mark.parametrize("surface", SURFACES)
@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_seen_on_each_surface(name: str, surface: str) -> None:
    """It names the reason."""
    fault = FAULTS[name]
    expected = ELSEWHERE.get((surface, fault.reason), fault.reason)
    assert expected in SURFACES[surface](World(fault))


@pytest.mark.parametrize("surface", SURFACES)
def test_a_healthy_cluster_shows_nothing(surface: str) -> None:
    """No surface reports anything while every cluster is reached."""
    assert not SURFACES[surface](World(None))


# --- a Node: its status and its page

LIVE = Observation(port="mc-3", group="cluster/west", bfd=True, state="up", forwarding=True)
NODE_FAULTS = {
    HealthReason.UNREACHABLE: replace(LIVE, state="down", forwarding=False),
    HealthReason.ONE_WAY: replace(LIVE, state="init", forwarding=False),
    HealthReason.SILENT: replace(LIVE, state="down", forwarding=False, silent=True),
}
CANNOT = Problem("configuration", "trafficEncryptionMode", "EncryptionUnavailable", "no WireGuard")
OWN = LocalGateway(
    node="g1",
    gateway_ip=ip_address("10.0.0.1"),
    internal_ip=ip_address("10.0.0.1"),
    source=ip_address("10.0.0.1"),
    service_cidr=None,
)
WEST = AcceptedCluster(cluster_id="west", cidrs=(), gateways=(ip_address("10.0.1.1"),), snat=False)
GATEWAY = NodeState(role=NodeRole.GATEWAY, gateways=(OWN,), clusters={"west": WEST})


def live_report(observation: Observation) -> LiveReport:
    """Return what is known of a tunnel to west. It was up before, unless it is silent."""
    earlier = () if observation.silent else (LIVE,)
    peers = advance({}, earlier, 10.0, Damping()).peers
    return LiveReport(
        peers=advance(peers, (observation,), 12.0, Damping()).peers,
        ports={"mc-3": tunnel_port(3, "west", PeerKind.REMOTE)},
        epoch=NOW - 1000.0,
    )


def reasons_of_node(state: NodeState, live: LiveReport, *problems: Problem) -> list[str]:
    """Return what a Node's page and its status report."""
    health = node_health("g1", state, live, problems, NOW)
    topology = node_topology("east", state, live, {}, (), probed={}, findings=health)
    shown = [problem.reason for problem in topology.problems if problem.error]
    status = Status(
        node="g1", ready=True, health=tuple(HealthProblem(reason=f.reason, message=f.message) for f in health)
    )
    text = status_command.text(status)
    assert ("NOT HEALTHY" in text.splitlines()[0]) == bool(shown)
    assert all(reason in text for reason in shown)
    return shown


@pytest.mark.parametrize("reason", NODE_FAULTS)
def test_a_gateway_shows_what_its_tunnels_observe(reason: HealthReason) -> None:
    """In the first line of `mcagent status`, and on its page."""
    assert reasons_of_node(GATEWAY, live_report(NODE_FAULTS[reason])) == [reason]


def test_a_gateway_shows_missing_tunnels_and_encryption_that_is_not_possible() -> None:
    """Without encryption there is no tunnel; a gateway that may send in the clear is healthy."""
    assert reasons_of_node(GATEWAY, LiveReport(epoch=NOW), CANNOT) == [
        HealthReason.NOT_ENCRYPTED,
        HealthReason.UNREACHABLE,
    ]
    clear = replace(GATEWAY, encryption=EncryptionState(fallback=EncryptionFallback.ALLOW_CLEAR))
    assert reasons_of_node(clear, live_report(LIVE), CANNOT) == []


def test_a_gateway_shows_that_another_cluster_answers() -> None:
    """By the fingerprint in the answers of probes; the right one is no fault."""
    for answering, reasons in (("west", []), ("south", [HealthReason.CLUSTER_ID])):
        state = ProbeState(answers=True, answered_by=cluster_fingerprint(answering))
        health = node_health("g1", GATEWAY, live_report(LIVE), (), NOW, probed={"mc-3": state})
        assert [finding.reason for finding in health] == reasons


def test_a_worker_shows_which_clusters_no_gateway_reaches() -> None:
    """It has no tunnels to them."""
    worker = NodeState(role=NodeRole.WORKER, unreachable=("west",), clusters={"west": WEST})
    assert reasons_of_node(worker, LiveReport()) == [HealthReason.UNREACHABLE]
    assert reasons_of_node(replace(worker, unreachable=()), LiveReport()) == []


# --- the function


def test_a_state_counts_once_it_has_lasted() -> None:
    """A failover, or a tunnel of a new gateway, is no fault; `wake` says when it would be."""
    link = ClusterLink(cluster="west", live=0, tunnels=1, since=timestamp(NOW))
    cluster = SeenCluster(cluster_id="east", gateways=(SeenGateway(name="g1", cluster_id="east", links=(link,)),))
    early, late = cluster_health(cluster, NOW + 1), cluster_health(cluster, NOW + SETTLED)
    assert (early.findings, early.wake) == ((), SETTLED - 1)
    assert [finding.reason for finding in late.findings] == [HealthReason.UNREACHABLE]
    ahead = cluster_health(cluster, NOW - 60)  # the Node's clock is
    assert ahead.findings == late.findings


def test_a_lost_tunnel_is_a_warning_and_the_most_serious_reason_is_first() -> None:
    """The summary has its reason, and all messages."""
    links = (
        ClusterLink(cluster="south", live=1, tunnels=2, why="BFD is down"),
        ClusterLink(cluster="west", live=0, tunnels=2),
    )
    cluster = SeenCluster(cluster_id="east", gateways=(SeenGateway(name="g1", cluster_id="north", links=links),))
    health = cluster_health(cluster, NOW)
    assert [(finding.reason, finding.error) for finding in health.findings] == [
        (HealthReason.CLUSTER_ID, True),
        (HealthReason.UNREACHABLE, True),
        (HealthReason.DEGRADED, False),
    ]
    assert health.summary is not None
    assert health.summary.reason is HealthReason.CLUSTER_ID
    assert "1 of 2 tunnels from east to south are live: BFD is down" in health.summary.message


def test_an_announced_finding_is_not_trusted() -> None:
    """Unknown reasons are none, control characters are escaped, and the text is bounded."""
    assert read_finding("") is None
    assert read_finding("Nonsense: text") is None
    finding = read_finding("PeerSilent: a\n" + "x" * 10_000)
    assert finding is not None
    assert finding.message.startswith("a\\nx")
    assert len(finding.message) < 1100


def table_of_the_page() -> tuple[list[str], list[list[str]]]:
    """Return head and rows of the table of faults in docs/operations.md."""
    section = PAGE.partition("## Health")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| ")]
    return rows[0], rows[2:]


def test_the_table_of_the_page_is_whole() -> None:
    """docs/operations.md has a row for each reason in their order, and no empty cell."""
    head, body = table_of_the_page()
    assert [re.findall("`([A-Za-z]+)`", row[0])[0] for row in body] == list(HealthReason)
    assert all(len(row) == len(head) and all(cell.strip() for cell in row) for row in body)


def test_what_the_table_names_exists() -> None:
    """Metrics, alerts, and the doctor's reasons, by column."""
    _, body = table_of_the_page()
    words = [[set(re.findall(r"`(\w+)`", cell)) for cell in row] for row in body]
    alerts = {rule["alert"] for rule in RULES if "alert" in rule}
    assert set().union(*(row[4] for row in words)) <= {*alerts, *LABELS, *HealthReason}  # "as `NoGateway`"
    causes = {reason for check in all_checks() for reason in check.causes}
    assert set().union(*(row[5] for row in words)) <= causes


@pytest.mark.parametrize("reason", HealthReason)
def test_each_reason_has_an_alert(reason: HealthReason) -> None:
    """McagentClusterUnhealthy, or for the two that it leaves out the alert of their row."""
    (rule,) = (rule for rule in RULES if rule.get("alert") == "McagentClusterUnhealthy")
    (left_out,) = re.findall(r'reason!~"([^"]*)"', rule["expr"])
    own = {HealthReason.AWAY: "McagentControllerLeaderAway", HealthReason.DEGRADED: "McagentGatewayDead"}
    assert (re.fullmatch(left_out, reason) is not None) == (reason in own)
    _, body = table_of_the_page()
    if reason in own:
        assert f"`{own[reason]}`" in body[list(HealthReason).index(reason)][4]


def test_a_degraded_link_is_shown_and_is_no_error() -> None:
    """The row `LinkDegraded`: traffic uses the other tunnels."""
    world = World(Fault(HealthReason.DEGRADED, {"links": [{**WAYS, "live": 3, "why": "BFD is down"}]}))
    assert world.conditions()["Healthy"] == ("True", "LinkDegraded")
    assert "LinkDegraded" not in event_shows(world)
    assert (get_shows(world), status_shows(world)) == ("", "")
    assert leader_event_shows(world) == ""
    raw = leader_after(world).api.get(Kind.CLUSTER_SET, LEADERS_AREA, LEADERS_SET)
    assert raw is not None
    of_member = condition_of(typed(raw).conditions_of("east"), HEALTHY)
    assert (of_member.status, of_member.reason) == ("True", "LinkDegraded")
