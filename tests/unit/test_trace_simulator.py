"""Nodes that are simulated: what becomes of packets of each kind, what is assumed, which cluster is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from ipaddress import IPv4Address
from typing import Any, cast

import pytest
from msgspec import structs

from flows.actions import Goto, Output, ToGroup
from flows.fields import PORT_CONTROLLER
from flows.flow import Bucket, Flow, Group, GroupType, Match
from flows.parse import parse_match
from flows.simulator import ConnectionTable, Packet, SimulatedSwitch
from mcagent.api.status import Status
from mcagent.api.trace import NodeTrace, TraceOutcome
from mcagent.kube.client import Client
from mcagent.model.config import Config, DatapathChoice, GatewayMode, TrafficEncryption
from mcagent.model.dataplane.facts import DatapathType, Facts
from mcagent.model.dataplane.wireguard import WireGuardImplementation
from mcagent.model.errors import McagentError
from mcagent.model.objects import WireGuardInfo
from mcagent.trace.path import HopTracer, PathTracer, answered
from mcagent.trace.probe import Probe
from mcagent.trace.simulated_tracer import ClusterObjects, Clusters, make_tracer
from mcagent.trace.simulator import SimulatedNode, read, simulate, with_assumed_wireguard, with_live_tunnels
from mcagent.trace.topology import Statuses
from tests.worlds.core_inputs import HOME, cluster, config, snapshot
from tests.worlds.encrypted_clusters import key
from tests.worlds.simulated_nodes import (
    EVERYWHERE,
    PROBE,
    SNAPSHOTS,
    every,
    page_of,
    stand_in,
    traced,
    with_gateways,
)

TABLES = {
    "w1": ("Classify", "Unmap", "Source", "Departure", "Route"),
    "g1": ("Classify", "Source", "Untranslate", "Route", "Relay", "Snat", "SnatState", "Exit"),
}


def simulated(name: str, **values: Any) -> SimulatedNode:
    """Return a simulated Node of cluster home."""
    return simulate(SNAPSHOTS["home"], Facts(), config(name, **values))


def test_a_trace_has_what_the_node_makes_of_the_packet() -> None:
    """On each Node: the deciding table, and the packet as it leaves; the Service's ID goes on in the tunnel."""
    forward, back = traced(frozenset())
    traces = [hop.trace for hop in (*forward, *back) if hop.trace is not None]
    assert [(trace.node, trace.table, trace.outcome) for trace in traces] == [
        ("w1", "Route", TraceOutcome.TUNNEL),
        ("g1", "Exit", TraceOutcome.TUNNEL),
        ("r1", "Output", TraceOutcome.TUNNEL),
        ("r2", "Map", TraceOutcome.HOST),
        ("r2", "Departure", TraceOutcome.TUNNEL),
        ("r1", "Route", TraceOutcome.TUNNEL),
        ("g1", "Output", TraceOutcome.TUNNEL),
        ("w1", "ArriveState", TraceOutcome.HOST),
    ]
    assert {name: traces[number].tables for number, name in enumerate(TABLES)} == TABLES
    at_gateway, at_endpoint = traces[2:4]
    assert (at_gateway.source, at_gateway.source_port) == ("192.0.2.1", 40000)
    assert (at_gateway.destination, at_gateway.port, at_gateway.mac) == ("10.20.2.5", 8080, "translated")
    assert at_gateway.services == (at_gateway.service,)
    assert (at_gateway.exports, at_endpoint.service) == (("default/web:80/tcp",), at_gateway.service)
    assert [trace.identity for trace in traces[:4]] == [0xFFFFFF] * 4
    assert [[entry.zone for entry in trace.committed] for trace in traces[:4]] == [
        [28003],
        [28005],
        [28004],
        [28003],
    ]
    assert traces[1].committed[0].label
    assert all(not trace.committed for trace in traces[4:])
    assert "nw_dst=10.97.0.0/16" in traces[0].rule


@pytest.mark.parametrize("protocol", ["sctp", "icmp"])
def test_an_answer_comes_back_by_every_protocol(monkeypatch: pytest.MonkeyPatch, protocol: str) -> None:
    """From Pod to Pod, without translation: ports stay, also those that an echo request does not have."""
    objects = {
        "home": snapshot(*HOME, cluster("east", "10.97.0.0/16", "10.20.0.0/16", gateways=("203.0.113.1",))),
        "east": replace(
            SNAPSHOTS["east"],
            cluster_infos=snapshot(
                cluster("home", "10.96.0.0/16", "10.10.0.0/16", gateways=("192.0.2.1", "192.0.2.2"))
            ).cluster_infos,
        ),
    }
    for name, value in objects.items():
        monkeypatch.setitem(SNAPSHOTS, name, value)
    monkeypatch.setitem(EVERYWHERE, "enable_pod_to_pod", True)
    nodes = every()
    tracer = PathTracer(
        statuses={name: node.status for name, node in nodes.items()},
        ask=lambda name, page: page_of(nodes[name], page),
    )
    probe = replace(PROBE, protocol=protocol, destination=IPv4Address("10.20.2.5"), port=81)
    forward = list(tracer.forward("w1", probe))
    back = list(tracer.reverse(forward))
    assert answered(forward, back), [hop.trace for hop in (*forward, *back)]
    delivered, returned = forward[-1].trace, back[-1].trace
    assert delivered is not None
    assert returned is not None
    assert (delivered.source_port, delivered.port) == (40000, 81)
    assert (returned.source, returned.destination) == ("10.20.2.5", "10.10.3.5")
    assert (returned.source_port, returned.port) == (81, 40000)


def test_a_drop_has_its_reason_and_number() -> None:
    """By the simulated flow that decides; tunnels that are lost are not used while another one is live."""
    node = simulated("w1")
    spoofed = node.trace(replace(PROBE, source=IPv4Address("10.9.9.9")))
    assert (spoofed.outcome, spoofed.reason, spoofed.table) == (TraceOutcome.DROPPED, "spoofed", "Source")
    assert (spoofed.out_port, spoofed.rule) == (None, "reg0=0x1/0xf")
    first, second = node.tunnels.values()
    for live, dead in ((first, second), (second, first)):
        assert node.trace(PROBE, [dead.name]).out_port == live.ofport
    assert list(node.tunnels) == sorted(node.tunnels)


def test_a_group_without_a_live_bucket_has_no_gateway() -> None:
    """A packet to the controller alone, or of no flow of its table, has an unknown end."""
    group = Group(7, GroupType.SELECT, (Bucket(0, (Output(9),), watch_port=9, weight=1),))
    to_route = Flow(0, 1, Match(), (Goto(40),))
    to_group = Flow(40, 1, parse_match("ip,nw_dst=10.97.0.10"), (ToGroup(7),))
    to_controller = Flow(0, 2, parse_match("udp"), (Output(PORT_CONTROLLER),))
    switch = SimulatedSwitch.of([to_route, to_group, to_controller], [group])

    def trace(probe: Probe, *live: int) -> NodeTrace:
        packet = Packet(
            in_port=probe.in_port,
            src=probe.source,
            dst=probe.destination,
            proto=17 if probe.protocol == "udp" else 6,
            src_port=probe.source_port,
            dst_port=probe.port,
        )
        before = ConnectionTable()
        return read(switch.walk(packet, before, frozenset(live)), probe, before)

    dead = trace(PROBE)
    assert (dead.outcome, dead.reason, dead.out_port, dead.table) == (
        *(TraceOutcome.DROPPED, "no-gateway", None),
        "Route",
    )
    assert (dead.rule, dead.tables) == (to_group.match_text, ("Classify", "Route"))
    assert (dead.source, dead.source_port, dead.destination, dead.port) == ("10.10.3.5", 40000, "10.97.0.10", 80)
    live = trace(PROBE, 9)
    assert (live.outcome, live.out_port, live.table) == (TraceOutcome.TUNNEL, 9, "Route")
    for probe, flow in (
        (replace(PROBE, protocol="udp"), to_controller),
        (replace(PROBE, destination=IPv4Address("10.9.9.9")), to_route),
    ):
        unknown = trace(probe, 9)
        assert (unknown.outcome, unknown.out_port, unknown.reason) == (TraceOutcome.UNKNOWN, None, "")
        assert (unknown.table, unknown.rule) == ("Classify", flow.match_text)


def test_the_mtu_is_known_only_from_the_configuration() -> None:
    """The uplink of a Node that was not asked is not known."""
    assert stand_in("home", "w1", {}).trace(PROBE).mtu == 0
    configured = make_tracer(SNAPSHOTS["home"], config("w1", mtu=1400), {}, {}, "").trace(PROBE)
    assert configured.mtu == 1400


# --- assumptions

CONNTRACK = "a conntrack that knows the connection when its answer comes, and not before"
UNOBSERVED = (
    "tunnels that are up, unless its Gateway or an agent that was asked says otherwise",
    "the port numbers that follow from the tunnels' names",
)


@pytest.mark.parametrize(
    ("values", "assumptions"),
    [
        ({}, ("Open vSwitch in the kernel", CONNTRACK)),
        ({"datapath": DatapathChoice.SYSTEM}, (CONNTRACK,)),
        ({"datapath": DatapathChoice.NETDEV}, (CONNTRACK, "one of many ports for a translated source")),
        (
            {"encryption": TrafficEncryption.WIREGUARD},
            ("Open vSwitch in the kernel", "a WireGuard that works, with the key that its Gateway has", CONNTRACK),
        ),
        (
            {"gateways": GatewayMode.ACTIVE_STANDBY, "failback": False},
            ("Open vSwitch in the kernel", "the API's order of gateways", CONNTRACK),
        ),
        (
            {"gateways": GatewayMode.ACTIVE_STANDBY, "failback": True},
            ("Open vSwitch in the kernel", CONNTRACK),
        ),
        ({"gateways": GatewayMode.ACTIVE_ACTIVE, "failback": False}, ("Open vSwitch in the kernel", CONNTRACK)),
    ],
)
def test_what_is_assumed_follows_from_the_configuration(
    values: dict[str, Any], assumptions: tuple[str, ...]
) -> None:
    """After the origin of the configuration; of tunnels nothing is assumed if the agent has shown its /status."""
    settings = config("w1", **values)
    tracer = make_tracer(SNAPSHOTS["home"], settings, {}, {}, "ConfigMap x")
    assert tracer.assumed == ("ConfigMap x", *UNOBSERVED, *assumptions)
    with_status = make_tracer(SNAPSHOTS["home"], settings, {"w1": tracer.status}, {}, "ConfigMap x")
    assert with_status.assumed == ("ConfigMap x", *assumptions)
    assert with_status.status is tracer.status


def test_the_status_of_a_node_of_the_same_name_elsewhere_does_not_count() -> None:
    """It is of another cluster."""
    elsewhere = structs.replace(stand_in("home", "w1", {}).status, cluster_id="east", tunnels=())
    tracer = stand_in("home", "w1", {"w1": elsewhere})
    assert tracer.status is not elsewhere
    assert tracer.assumed[1:3] == UNOBSERVED
    assert tracer.trace(PROBE).outcome == TraceOutcome.TUNNEL


def test_a_simulated_status_has_what_a_path_needs() -> None:
    """Cluster and role, tunnels with their ports, gateways with what is assumed or reported of them."""
    status = stand_in("home", "g1", {}).status
    assert (status.node, status.cluster_id, status.summary.role) == ("g1", "home", "gateway")
    assert [(tunnel.peer, tunnel.peer_kind) for tunnel in status.tunnels] == [
        ("w1", "node"),
        ("g2", "gateway"),
        ("east", "remote"),
    ]
    own, east = status.gateways
    assert [(gateway.name, gateway.tunnel, gateway.live) for gateway in own.gateways] == [
        ("g1", "", True),
        ("g2", status.tunnels[1].name, True),
    ]
    assert (own.cluster, east.cluster) == ("", "east")
    assert [(gateway.address, gateway.why, gateway.since) for gateway in east.gateways] == [
        ("203.0.113.1", "assumed to be up", "")
    ]
    worker = stand_in("home", "w1", {}).status
    assert (worker.summary.role, len(worker.gateways)) == ("worker", 1)
    assert [gateway.tunnel == "" for gateway in worker.gateways[0].gateways] == [False, False]


def test_what_other_nodes_report_of_a_gateway_is_shown_of_a_simulated_node() -> None:
    """With their reason and time; what is not reported is assumed to be up."""
    g2 = with_gateways(
        stand_in("home", "g2", {}).status, "BFD is down", {"203.0.113.1": False, "g1": True, "g2": True}
    )
    groups = (
        structs.replace(group, gateways=tuple(structs.replace(g, since="12:04") for g in group.gateways))
        for group in g2.gateways
    )
    tracer = stand_in("home", "g1", {"g2": structs.replace(g2, gateways=tuple(groups))})
    own, east = tracer.status.gateways
    assert [(g.live, g.why, g.since) for g in east.gateways] == [(False, "BFD is down", "12:04")]
    assert [(g.live, g.why) for g in own.gateways] == [(True, "this Node"), (True, "assumed to be up")]
    by_link = stand_in("home", "g1", {}, {"east": "its Gateway says: x"}).status.gateways[1]
    assert [(g.live, g.why, g.since) for g in by_link.gateways] == [(False, "its Gateway says: x", "")]


def test_peers_of_new_tunnels_are_assumed_to_answer_bfd() -> None:
    """Not those of tunnels that the agent has, which it has observed."""
    objects, settings = SNAPSHOTS["home"], config("g1")
    names = frozenset(simulated("g1").tunnels)
    assert with_live_tunnels(objects, Facts(), settings).bfd_seen == names
    observed = {min(names): 7}
    facts = with_live_tunnels(objects, Facts(ofports=observed, bfd_seen=frozenset({"x"})), settings)
    assert facts.bfd_seen == (names - observed.keys()) | {"x"}
    assert facts.ofports == observed


def test_a_simulated_node_tracks_connections_as_its_datapath() -> None:
    """By the configuration; the kernel's where it is not configured."""
    settings = config("w1", datapath=DatapathChoice.NETDEV)
    assert (
        simulate(SNAPSHOTS["home"], Facts(datapath=DatapathType.NETDEV), settings).datapath is DatapathType.NETDEV
    )
    assert simulated("w1").datapath is DatapathType.SYSTEM


def test_wireguard_is_assumed_with_the_key_of_the_gateway() -> None:
    """Only with encryption, and if its Gateway has published a key."""
    objects, encrypted = SNAPSHOTS["home"], config("g1", encryption=TrafficEncryption.WIREGUARD)
    gateways = {
        name: replace(gateway, wireguard=WireGuardInfo(public_key=key(number)))
        for number, (name, gateway) in enumerate(objects.gateways.items(), 1)
    }
    with_keys = replace(objects, gateways=gateways)
    facts = Facts(ofports={"x": 1})
    assert with_assumed_wireguard(with_keys, facts, config("g1")) is facts
    assert with_assumed_wireguard(objects, facts, encrypted) is facts
    assert with_assumed_wireguard(with_keys, facts, replace(encrypted, node_name="w1")) is facts
    assumed = with_assumed_wireguard(with_keys, facts, encrypted)
    assert assumed == replace(
        facts, wireguard=WireGuardImplementation.KERNEL, wireguard_public_key=assumed.wireguard_public_key
    )
    published = {str(gateway.meta.name): gateway.wireguard for gateway in gateways.values()}["g1"]
    assert published is not None
    assert assumed.wireguard_public_key == published.public_key


# --- the cluster that is read


class RecordedCluster(ClusterObjects):
    """A cluster whose configuration has this ID; keeps what is simulated."""

    def __init__(self, cluster_id: str) -> None:
        super().__init__(cast("Client", None), lambda: (Config(node_name="", cluster_id=cluster_id), "a file"))
        self.requests: list[tuple[str, str, Statuses]] = []

    def simulate(self, cluster: str, peer: str, statuses: Statuses) -> HopTracer:
        """Return a Node of this name."""
        self.requests.append((cluster, peer, statuses))
        return HopTracer(node=peer, status=Status(cluster_id=cluster), trace=lambda _: NodeTrace())


STATUSES: Mapping[str, Status] = {"w1": Status()}


def test_a_node_is_simulated_by_the_api_server_of_its_cluster() -> None:
    """The first Node's cluster is "", or has the ID that an agent or the configuration tells."""
    own, other = RecordedCluster("home"), RecordedCluster("east")
    clusters = Clusters(own, other)
    for asked_for in ("", "home"):
        assert clusters.simulate(asked_for, "w1", STATUSES) is not None
    assert clusters.simulate("east", "203.0.113.1", STATUSES) is not None
    assert own.requests == [("home", "w1", STATUSES)] * 2
    assert other.requests == [("east", "203.0.113.1", STATUSES)]
    told_by_agent = Clusters(own, other, "south")
    told_by_agent.simulate("", "w1", STATUSES)
    assert own.requests[-1][0] == "south"


def test_a_remote_context_without_an_id_is_of_any_other_cluster() -> None:
    """With an ID it must be the one that the path leads to."""
    anonymous, east = RecordedCluster(""), RecordedCluster("east")
    assert Clusters(None, anonymous, "home").simulate("west", "r1", STATUSES) is not None
    assert anonymous.requests == [("west", "r1", STATUSES)]
    with pytest.raises(McagentError, match=r"^the remote context leads to cluster east, not to west$"):
        Clusters(None, east, "home").simulate("west", "r1", STATUSES)


def test_a_cluster_that_is_not_given_is_not_simulated() -> None:
    """That is no error; an ID that is not known is one."""
    assert Clusters(None, RecordedCluster("east"), "home").simulate("home", "w1", STATUSES) is None
    assert Clusters(None, None, "home").simulate("", "w1", STATUSES) is None
    assert Clusters(RecordedCluster("home"), None).simulate("east", "r1", STATUSES) is None
    text = "the ID of its cluster is not known: give --agents, --config, or the right to ConfigMaps"
    with pytest.raises(McagentError, match=f"^{text}$"):
        Clusters(RecordedCluster(""), None).simulate("", "w1", STATUSES)


def test_the_probe_of_a_simulated_node_is_the_packet_of_a_tunnel() -> None:
    """A packet that comes in by no tunnel of the Node is dropped; with a Service's MAC its ID goes on."""
    gateway = simulated("g1")
    port = next(tunnel.ofport for tunnel in gateway.tunnels.values() if tunnel.peer == "w1")
    by_tunnel: Probe = replace(PROBE, in_port=port)
    assert gateway.trace(by_tunnel).outcome == TraceOutcome.TUNNEL
    assert gateway.trace(replace(PROBE, in_port=port + 1)).outcome == TraceOutcome.DROPPED
    assert gateway.trace(replace(by_tunnel, service=7)).service in {0, 7}
