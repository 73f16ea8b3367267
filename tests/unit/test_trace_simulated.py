"""Nodes that cannot be asked: computed from objects they say what they would have said, and that they are not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from ipaddress import IPv4Address, ip_network
from typing import Any

import pytest
from msgspec import structs

from mcagent.api.status import Status
from mcagent.api.trace import NodeTrace
from mcagent.core.plan.render import node_summary
from mcagent.model.config import TrafficEncryption, UnverifiedLabels
from mcagent.model.dataplane.facts import Facts
from mcagent.model.errors import McagentError, SourceError
from mcagent.model.net import PodPrefix
from mcagent.model.objects import ApiObject, Gateway, Snapshot, WireGuardInfo
from mcagent.trace.path import HopTracer, Origin, PathTracer, answered
from mcagent.trace.probing import send
from mcagent.trace.report import WIDTH, PathReport
from mcagent.trace.simulated_tracer import make_tracer
from mcagent.trace.simulator import simulate
from mcagent.trace.targets import TraceTarget
from mcagent.trace.topology import lost_tunnels
from tests.worlds.core_inputs import (
    HOME,
    cluster,
    config,
    endpoint,
    endpoint_slice,
    networks,
    snapshot,
)
from tests.worlds.encrypted_clusters import key, keyed
from tests.worlds.simulated_nodes import (
    EVERYWHERE,
    FAR,
    PROBE,
    SNAPSHOTS,
    WHO,
    Asked,
    every,
    page_of,
    stand_in,
    traced,
    with_gateways,
)


@pytest.fixture(params=[False, True], ids=["clear", "encrypted"])
def encrypted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Give every gateway a key that both clusters know, or none."""
    if not request.param:
        return False
    known = {address: WireGuardInfo(public_key=key(number)) for number, address in enumerate(WHO, 1)}
    for name, source in SNAPSHOTS.items():
        gateways = {end: replace(g, wireguard=known[str(g.gateway_ip)]) for end, g in source.gateways.items()}
        infos = {end: keyed(i, *(known[str(a)] for a in i.gateway_ips)) for end, i in source.cluster_infos.items()}
        monkeypatch.setitem(SNAPSHOTS, name, replace(source, gateways=gateways, cluster_infos=infos))
    monkeypatch.setitem(EVERYWHERE, "encryption", TrafficEncryption.WIREGUARD)
    return True


def test_the_way_is_the_same_whoever_is_silent(encrypted: bool) -> None:
    """Where the trace begins, on the way, at its end, all of them: each hop says what is simulated."""
    usual_way = traced(frozenset())
    assert answered(*usual_way)
    assert usual_way[0][-1].node == "r2"
    assert [hop.encrypted for hop in usual_way[0]] == [None, encrypted, None, None]
    on_way = [hop.node for hop in usual_way[0]]
    for silent in (*(frozenset({name}) for name in on_way), frozenset(on_way)):
        silent_way = traced(silent)
        for ways in zip(usual_way, silent_way, strict=True):
            for answer, hop in zip(*ways, strict=True):
                assert (hop.node, hop.trace, hop.tunnel) == (answer.node, answer.trace, answer.tunnel)
                assert hop.origin is (Origin.SIMULATOR if hop.node in silent else Origin.SWITCH)
                assert hop.why.startswith(
                    "simulated: it did not answer within 10 s; what its flows should be"
                ) is (hop.node in silent)


@pytest.mark.parametrize(("server", "address"), [("r1", "10.20.1.5"), ("r2", "10.20.2.5")])
def test_the_answer_has_the_services_address_with_virtual_pod_cidrs(
    monkeypatch: pytest.MonkeyPatch, server: str, address: str
) -> None:
    """Also if the endpoint is on the gateway, which translates both the Service and the prefix."""
    pods = {"home": ("10.10.0.0/16", "100.72.0.0/16"), "east": ("10.20.0.0/16", "100.73.0.0/16")}
    ends = endpoint_slice("web-1", "web", [endpoint(address)], ("", 8080))
    objects: dict[str, tuple[ApiObject, ...]] = {
        "home": (*HOME, cluster("east", "10.97.0.0/16", pods["east"][1], gateways=("203.0.113.1",))),
        "east": (*FAR[:-1], ends, cluster("home", "10.96.0.0/16", pods["home"][1], gateways=tuple(WHO)[1:])),
    }
    for name, (real, virtual) in pods.items():
        prefix = PodPrefix(real=ip_network(real), virtual=ip_network(virtual))
        with_prefix = [replace(o, prefixes=(prefix,)) if isinstance(o, Gateway) else o for o in objects[name]]
        monkeypatch.setitem(SNAPSHOTS, name, snapshot(*with_prefix))
    monkeypatch.setitem(EVERYWHERE, "enable_pod_to_pod", True)
    monkeypatch.setitem(EVERYWHERE, "pod_cidrs", networks(*(real for real, _ in pods.values())))
    forward, back = traced(frozenset())
    assert answered(forward, back)
    assert (forward[-1].node, forward[-1].trace and forward[-1].trace.destination) == (server, address)
    leaving = next(hop.trace for hop in back if hop.node == "r1")
    last = back[-1].trace
    assert leaving is not None
    assert last is not None
    assert (leaving.source, leaving.source_port) == ("10.97.0.10", 80)
    assert (last.source, last.source_port, last.destination) == ("10.97.0.10", 80, "10.10.3.5")


def test_a_simulated_hop_is_told_as_such() -> None:
    """In text with what is assumed, once; in JSON by where it is from; and nobody looks for probes there."""
    hops, back = traced(frozenset({"r1"}))
    report = PathReport(
        target=TraceTarget(address=PROBE.destination, port=80), status=every()["w1"].status, hops=hops, back=back
    )
    text = report.as_text()
    assert max(map(len, text.splitlines())) <= WIDTH
    assert " ".join(text.split()).count("Assumed: the configuration of a test;") == 1
    assert "   simulated   as above" in text
    assert "if flows are as simulated: r1" in text
    assert [(hop["node"], hop["from"], hop["asked"]) for hop in report.as_json()["hops"]] == [
        (hop.node, "simulator" if hop.node == "r1" else "switch", hop.node != "r1") for hop in hops
    ]
    nodes_asked: list[str] = []

    def seen(pages: Mapping[str, str]) -> dict[str, Any]:
        nodes_asked.extend(pages)
        return {node: {"flows": [], "tracked": []} for node in pages}

    live = send(hops, 3, seen, lambda *_: {"sent": 3, "answered": True})
    assert "r1" not in nodes_asked
    sight = next(sighting for sighting in live.sights if sighting.node == "r1")
    assert (sight.seen, sight.why) == (None, "it did not answer within 10 s")


def test_who_can_neither_be_asked_nor_simulated_ends_the_way() -> None:
    """With both reasons if something is wrong with reading, with the one there is if nothing can be read."""

    def refuse(*_: object) -> HopTracer:
        raise SourceError("GET /api/v1/nodes: not allowed")

    hops, back = traced(frozenset({"r1"}), refuse)
    assert (hops[-1].trace, hops[-1].origin, back) == (None, Origin.SWITCH, [])
    assert hops[-1].why.endswith("nor can it be simulated: GET /api/v1/nodes: not allowed")
    hops, _ = traced(frozenset({"r1", "r2"}), lambda *_: None)
    assert hops[-1].why == "not asked: give --remote-context NAME, or list its agent in --agents FILE"
    with pytest.raises(McagentError, match=r"did not answer.*not allowed"):
        traced(frozenset({"w1"}), refuse)


def test_a_node_of_the_same_name_elsewhere_is_not_taken_for_it() -> None:
    """Names are all that tells Nodes apart: then the way ends, and says so."""
    nodes = every()
    statuses = {
        "w1": nodes["w1"].status,
        "g1": nodes["g1"].status,
        "g2": nodes["g2"].status,
        "r1": nodes["g1"].status,
    }
    tracer = PathTracer(statuses=statuses, ask=lambda name, page: page_of(nodes[name], page), simulate=stand_in)
    hops = list(tracer.forward("w1", PROBE))
    assert len(hops) == 3
    assert hops[-1].why.endswith("cluster home has a Node r1, too")


def test_antreas_gateways_are_not_simulated() -> None:
    """Their flows are not ours; and what a gateway here sends them is translated, as the other one has it."""
    (unanswered,) = (tunnel.name for tunnel in stand_in("home", "g2", {}).status.tunnels if tunnel.peer == "east")
    facts = Facts(bfd_unanswered=frozenset({unanswered}))
    g2 = simulate(SNAPSHOTS["home"], facts, config("g2"))
    g2_status = structs.replace(stand_in("home", "g2", {}).status, summary=node_summary(g2.desired.state))
    tracer_of_g1 = stand_in("home", "g1", {"g2": g2_status})
    assert tracer_of_g1.status.summary.clusters == g2_status.summary.clusters
    nodes = every()
    tracer = PathTracer(
        statuses={"w1": nodes["w1"].status, "g1": tracer_of_g1.status, "g2": g2_status},
        ask=lambda name, page: page_of(nodes[name], page),
        simulate=stand_in,
    )
    assert (
        list(tracer.forward("w1", PROBE))[-1].why
        == "not asked: cluster east runs Antrea, whose flows are not known"
    )


def test_an_agent_that_tells_its_status_alone_is_believed() -> None:
    """Its own port numbers and liveness count for what is simulated of its flows."""
    nodes = every()
    own = with_gateways(nodes["w1"].status, "BFD is down", {"g1": False, "g2": True})
    tunnels = (structs.replace(tunnel, ofport=number) for number, tunnel in enumerate(own.tunnels, 7))
    own = structs.replace(own, tunnels=tuple(tunnels))
    node_tracer = stand_in("home", "w1", {"w1": own})
    trace = node_tracer.trace(PROBE)
    assert node_tracer.status is own
    assert next(tunnel.peer for tunnel in own.tunnels if tunnel.ofport == trace.out_port) == "g2"
    assert "port numbers" not in " ".join(node_tracer.assumed)


@pytest.mark.parametrize("withheld", [False, True])
def test_label_identities_that_a_node_may_withhold_are_an_assumption(withheld: bool) -> None:
    """By the devices of its Pods, which are not known: the other cluster may drop what the trace delivers."""
    choice = UnverifiedLabels.WITHHOLD if withheld else UnverifiedLabels.SEND
    settings = config("g1", stretched_network_policy=True, unverified_labels=choice)
    assumed = make_tracer(snapshot(*HOME), settings, {}, {}, "").assumed
    assert any("label identities" in text for text in assumed) is withheld


@pytest.mark.usefixtures("encrypted")
def test_tunnels_are_lost_where_somebody_says_so() -> None:
    """The other end is believed before others, all others together, and the Gateway where nobody was asked."""

    def says(of: str, node_name: str, *, live: bool) -> Status:
        return with_gateways(stand_in(of, node_name, {}).status, f"{node_name}: BFD is down", live)

    def lost(asked: Asked, links: Mapping[str, str] | None = None) -> set[tuple[str, str]]:
        status = stand_in("home", "g1", {}).status
        peers = {tunnel.name: tunnel.peer for tunnel in status.tunnels}
        lost_gateways = lost_tunnels("g1", status, asked, links or {})
        return {(peers[name], gateway.why) for name, gateway in lost_gateways.items()}

    assert not lost({})
    assert lost({"r1": says("east", "r1", live=False)}) == {("east", "r1: BFD is down")}
    assert lost({"g2": says("home", "g2", live=False)}) == {("east", "g2: BFD is down"), ("g2", "g2: BFD is down")}
    both = {"g2": says("home", "g2", live=False), "r1": says("east", "r1", live=True)}
    assert lost(both) == {("g2", "g2: BFD is down")}
    assert lost({"w1": says("home", "w1", live=False)}) == {("w1", "w1: BFD is down"), ("g2", "w1: BFD is down")}
    assert lost({}, {"east": "its Gateway says: down"}) == {("east", "its Gateway says: down")}
    assert not lost({"r1": both["r1"]}, {"east": "its Gateway says: down"})
    dead = stand_in("home", "g1", {}, {"east": "its Gateway says: down"})
    on_way = dead.trace(replace(PROBE, in_port=next(t.ofport for t in dead.status.tunnels if t.peer == "w1")))
    assert next(t.peer for t in dead.status.tunnels if t.ofport == on_way.out_port) == "g2"


def test_encryption_is_assumed_to_work_where_the_gateway_has_a_key() -> None:
    """A gateway that has published none encrypts to nobody, and drops what would be sent in clear."""

    def at_gateway(objects: Snapshot) -> NodeTrace:
        settings = config("g1", encryption=TrafficEncryption.WIREGUARD)
        own = replace(PROBE, source=IPv4Address("10.10.1.5"))
        return make_tracer(objects, settings, {}, {}, "").trace(own)

    info = replace(
        cluster("east", "10.97.0.0/16", gateways=("203.0.113.1",)), wireguard=WireGuardInfo(public_key=key(9))
    )
    home = snapshot(*HOME, info)
    assert at_gateway(home).reason == "no-gateway"
    keys = {
        name: replace(gateway, wireguard=WireGuardInfo(public_key=key(number)))
        for number, (name, gateway) in enumerate(home.gateways.items())
    }
    assert at_gateway(replace(home, gateways=keys)).outcome == "to a tunnel"
