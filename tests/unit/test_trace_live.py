"""Real probes: what Open vSwitch says of them, what that means, and which are not sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from mcagent.api.codec import from_json
from mcagent.api.status import TunnelStatus
from mcagent.api.trace import MarkedFlow, NodeTrace, TraceOutcome, Tracked
from mcagent.http.server import Page
from mcagent.model.errors import BackendError, McagentError
from mcagent.trace.datapath import datapath_of, in_use, marked_flows, tracked
from mcagent.trace.live_pages import LivePage, SeenPage
from mcagent.trace.pages import RateLimit, answer
from mcagent.trace.path import Hop, Origin
from mcagent.trace.probing import ProbeReport, Sighting, report, send
from tests.worlds.live_probes import ECHO, ENDS, FLOWS
from tests.worlds.traced_packets import GOOD, NOWHERE, PROBE


def test_flows_of_probes_are_told_from_others() -> None:
    """By type of service, addresses (also where a select group hashed bits of them) and protocol."""
    flows = marked_flows(FLOWS, PROBE)
    assert [(flow.packets, flow.age, flow.dropped) for flow in flows] == [
        (2, 6.183, False),
        (0, None, True),
        (3, None, True),
        (4, 1.0, False),
    ]
    assert (
        marked_flows("eth_type(0x0800),ipv4(src=x,tos=0xbc), packets:1, bytes:1, used:1s, actions:1", PROBE) == ()
    )


def test_the_bridges_datapath_is_found() -> None:
    """One ovs-vswitchd may have two kinds, with bridges of others on either."""
    shown = "netdev@ovs-netdev: hit:1 missed:2\n  br-int:\n    p 1/2: (tap)\nsystem@ovs-system: hit:1\n  br-mc:\n"
    assert datapath_of(shown, "br-mc") == "system@ovs-system"
    assert datapath_of(shown, "br-int") == "netdev@ovs-netdev"
    assert datapath_of(shown, "br") == datapath_of("", "br-mc") == ""


@pytest.mark.parametrize(
    ("protocol", "entry", "answered"),
    [
        ("tcp", f"tcp,{ENDS},id=7,zone=28003,status=SEEN_REPLY|CONFIRMED,protoinfo=(state=SYN_RECV)", True),
        ("tcp", f"tcp,{ENDS},id=7,zone=28003,status=CONFIRMED,timeout=20,protoinfo=(state=SYN_SENT)", False),
        ("tcp", f"tcp,{ENDS},zone=28003,status=0,protoinfo=(state_orig=ESTABLISHED,state_reply=SYN_SENT)", True),
        ("tcp", f"tcp,{ENDS},zone=28003,status=0,protoinfo=(state_orig=SYN_SENT,state_reply=CLOSED)", False),
        ("udp", f"udp,{ENDS},id=0,zone=28003,status=0,timeout=29,mark=131072", True),
        ("udp", f"udp,{ENDS},id=0,zone=28003,status=0,timeout=59,mark=131072", False),
        ("icmp", f"{ECHO},id=0,zone=28003,status=SEEN_REPLY|CONFIRMED", True),
    ],
)
def test_conntrack_says_whether_there_was_an_answer(protocol: str, entry: str, answered: bool) -> None:
    """The kernel by a flag, the userspace datapath by the server's state or by what is left of the time."""
    probe = replace(PROBE, protocol=protocol)
    (tracked_entry,) = tracked(f"other,orig=(src=1.2.3.4)\n{entry}\n", probe)
    assert (tracked_entry.zone, tracked_entry.answered) == (28003, answered)
    assert in_use(entry, probe)
    assert not in_use(entry, replace(probe, source_port=40001))
    assert tracked(entry, replace(probe, source_port=40001)) == ()


def marked(packet: str, counts: str = "packets:1, bytes:1, used:1s, actions:1") -> int:
    """Return how many flows of probes a datapath flow with this IPv4 match is."""
    return len(marked_flows(f"recirc_id(0),eth_type(0x0800),ipv4({packet},frag=no), {counts}\n", PROBE))


@pytest.mark.parametrize(
    ("packet", "count"),
    [
        ("tos=0xbc", 1),
        ("src=10.1.3.2,dst=10.102.0.80,tos=0xbc", 1),
        ("src=10.1.3.2,dst=10.102.0.81,tos=0xbc", 0),
        ("src=10.1.3.3,dst=10.102.0.80,tos=0xbc", 0),
        ("src=10.1.3.1/255.255.255.252,tos=0xbc", 1),
        ("src=10.1.3.4/255.255.255.252,tos=0xbc", 0),
        ("proto=17,tos=0xbc", 0),
        ("proto=6,tos=0xbd", 1),
        ("proto=6,tos=0xb8", 0),
        ("proto=6,tos=0xbc/0xf8", 0),
        ("proto=6,tos=0xbc/0xff", 1),
        ("proto=6,tos=x", 0),
        ("proto=6", 0),
        ("src=10.1.3,tos=0xbc", 0),
        ("dst=10.102.0.80/x,tos=0xbc", 0),
    ],
)
def test_a_flow_of_probes_matches_their_type_of_service_and_what_else_it_matches(packet: str, count: int) -> None:
    """Addresses and protocol may be left out or masked; the two last bits are of congestion (RFC 3168)."""
    assert marked(packet) == count


def test_a_flow_that_cannot_be_read_hides_no_other() -> None:
    """Lines without counts, and of other protocols, are left out."""
    assert marked("tos=0xbc", "packets:x") == 0
    arp = "recirc_id(0),eth_type(0x0806),arp(sip=10.1.3.2), packets:1, bytes:1, used:1s, actions:1"
    other = "recirc_id(0),eth_type(0x0800),ipv4(tos=0xbc), packets:x"
    flow = "recirc_id(0),eth_type(0x0800),ipv4(proto=6,tos=0xbc,frag=no),tcp(src=40000)"
    lines = (arp, other, f"{flow}, packets:7, bytes:1, used:0.5s, flags:S, actions:drop")
    (marked_flow,) = marked_flows("\n".join(lines), PROBE)
    assert marked_flow == MarkedFlow(match=flow, packets=7, age=0.5, dropped=True)


def test_a_connection_of_probes_has_both_ends_and_the_protocol() -> None:
    """An entry without a zone is of the first one."""
    udp = replace(PROBE, protocol="udp")
    assert tracked(f"  tcp,{ENDS},status=SEEN_REPLY", PROBE) == (Tracked(zone=0, answered=True),)
    for entry, probe in (
        (f"tcp,{ENDS}", udp),
        (f"tcp,{ENDS}", replace(PROBE, port=81)),
        (f"tcp,{ENDS}", replace(PROBE, destination=PROBE.source)),
        (f"tcp,{ENDS}", replace(PROBE, source=PROBE.destination)),
        (ECHO, replace(PROBE, protocol="icmp", source_port=1)),
        (ECHO, replace(PROBE, protocol="icmp", destination=PROBE.source)),
    ):
        assert tracked(entry, probe) == ()
    assert tracked(ECHO, replace(PROBE, protocol="icmp", port=7)) == (Tracked(zone=0, answered=False),)


@pytest.mark.parametrize(
    ("entry", "answered"),
    [
        (f"udp,{ENDS},timeout=30", True),
        (f"udp,{ENDS},timeout=31", False),
        (f"udp,{ENDS}", False),
        (f"udp,{ENDS},status=CONFIRMED,timeout=5", False),
        (f"tcp,{ENDS},timeout=5", False),
        (f"tcp,{ENDS},status=ASSURED|SEEN_REPLY", True),
    ],
)
def test_an_entry_without_a_sign_of_an_answer_has_none(entry: str, answered: bool) -> None:
    """An answered entry of UDP lives for 30 seconds at most; that of a TCP connection has the server's state."""
    (connection,) = tracked(entry, replace(PROBE, protocol=entry[:3]))
    assert connection.answered is answered


def test_a_port_is_in_use_in_either_direction() -> None:
    """Also by a connection to another destination, but not by one of another Pod or protocol."""
    elsewhere = f"tcp,{ENDS}".replace("10.102.0.80", "10.9.9.9")
    backward = "tcp,orig=(src=10.9.9.9,dst=10.1.3.2,sport=1,dport=40000),"
    backward += "reply=(src=10.1.3.2,dst=10.9.9.9,sport=40000,dport=1)"
    udp = replace(PROBE, protocol="udp")
    assert in_use(elsewhere, PROBE)
    assert in_use(f"{elsewhere.replace('40000', '1')}\n  {backward}", PROBE)
    assert not in_use(backward, replace(PROBE, source_port=1))
    assert not in_use(elsewhere, replace(PROBE, source=PROBE.destination))
    assert not in_use(f"{elsewhere}\n{backward}", udp)
    assert not in_use("", PROBE)
    assert in_use(ECHO, replace(PROBE, protocol="icmp"))
    assert not in_use(ECHO, replace(PROBE, protocol="icmp", source_port=1))


def test_only_a_pods_first_packets_are_sent() -> None:
    """Nothing from other ports, no answers, no other protocols, no more than a few, and not all the time."""

    def send_frames(*_: object) -> None:
        pytest.fail("was sent")

    live = LivePage(NOWHERE, lambda _: True, send_frames)
    for wrong in ("in_port=2", "mac=reply", "protocol=sctp", "count=6", "reply=1", "mark=1"):
        key = wrong.split("=")[0]
        parts = [part for part in GOOD.split("&") if not part.startswith(f"{key}=")]
        assert live("&".join([*parts, wrong])).status == 400
    assert [live(GOOD).status for _ in range(4)] == [503, 503, 503, 429]
    page = SeenPage(NOWHERE)
    assert page(GOOD.replace("tcp", "sctp")).status == 400
    assert page(f"{GOOD}&count=1").status == 400


# --- what it means ----------------------------------------------------------------------------------------


def hops_to(outcome: TraceOutcome, **last: object) -> list[Hop]:
    """Return a way over w, g and r, of which the last does that."""
    sent = {"outcome": TraceOutcome.TUNNEL, "reason": "", "destination": "10.2.1.2", "committed": []}
    tunnel = TunnelStatus(name="mc-7", peer_kind="remote", type="geneve")

    def hop(node: str, walk: Mapping[str, Any]) -> Hop:
        trace = from_json(NodeTrace, walk, node)
        return Hop(node=node, cluster="c", role="", probe=PROBE, trace=trace, tunnel=tunnel)

    return [hop("w", sent), hop("g", sent), hop("r", {**sent, "outcome": outcome, **last})]


def judge(
    hops: list[Hop], *is_seen: bool | None, answered: bool = False, last: Mapping[str, Any] | None = None
) -> ProbeReport:
    """Return what it means that these Nodes have seen probes."""
    sights = [Sighting(node=hop.node, seen=sighted) for hop, sighted in zip(hops, is_seen, strict=True)]
    sights[-1] = replace(sights[-1], **(last or {}))
    return report(hops, tuple(sights), sent=3, answered=answered)


def test_where_probes_were_last_seen_says_what_is_wrong() -> None:
    """Lost between Nodes, dropped, not let into conntrack, given to a Pod that is silent, lost on the way back."""
    way = hops_to(TraceOutcome.HOST, committed=[{"zone": 1, "mark": 0, "label": 0}])
    assert judge(way, True, True, True, answered=True).verdict.startswith("an answer came back")
    last_seen = judge(way, True, True, False)
    assert last_seen.last_seen == "g"
    assert "sent them to r by tunnel mc-7: they never arrived. Is UDP 6081 open" in last_seen.verdict
    assert "that one was not asked" in judge(way, True, True, None).verdict
    assert "conntrack did not take them" in judge(way, True, True, True).verdict
    assert "no answer came" in judge(way, True, True, True, last={"tracked": True}).verdict
    assert "did not come back" in judge(way, True, True, True, last={"tracked": True, "answered": True}).verdict
    dropped = judge(hops_to(TraceOutcome.DROPPED, reason="policy"), True, True, True)
    assert "last seen on r, which drops them: policy" in dropped.verdict
    assert dropped.command.startswith("mcagent policy")


DROPPED = {"tracked": True, "dropped": True}


@pytest.mark.parametrize(
    ("path", "sighted", "verdict", "command"),
    [
        (
            TraceOutcome.HOST,
            (True, True, True),
            "handed to the kernel of r, and no answer came",
            "on Node r: ip route",
        ),
        (
            TraceOutcome.TUNNEL,
            (True, True, True),
            "last seen on r, which sent them to the next Node",
            "mcagent doctor",
        ),
        (
            TraceOutcome.REJECTED,
            (True, True, True),
            "last seen on r, which drops them: unknown (by a flow",
            "mcagent",
        ),
        (
            TraceOutcome.HOST,
            (True, False, None),
            "last seen on w, which sent them to g by tunnel mc-7:",
            "mcagent doc",
        ),
        (
            TraceOutcome.HOST,
            (True, None, False),
            "last seen on w, which sent them to g; that one was not asked",
            "",
        ),
        (
            TraceOutcome.HOST,
            (True, False, True),
            "handed to the kernel of r, and no answer came",
            "on Node r: ip route",
        ),
    ],
)
def test_the_last_node_that_saw_probes_decides(
    path: TraceOutcome, sighted: tuple[bool | None, ...], verdict: str, command: str
) -> None:
    """With the next command, if there is one."""
    probe_report = judge(hops_to(path), *sighted)
    assert probe_report.verdict.startswith(verdict)
    assert probe_report.command.startswith(command)
    assert bool(probe_report.command) is bool(command)
    assert (probe_report.sent, probe_report.answered) == (3, False)


def test_a_drop_that_the_trace_did_not_show_is_named_as_such() -> None:
    """Flows of probes that all drop them; and the cause of a reason, with the command for it."""
    unexpected = judge(hops_to(TraceOutcome.HOST), True, True, True, last=DROPPED)
    assert unexpected.verdict == (
        "last seen on r, which drops them: unknown (by a flow that the trace did not hit)"
    )
    assert unexpected.command == "mcagent status"
    expected = judge(hops_to(TraceOutcome.DROPPED, reason="no-route"), True, True, True)
    assert expected.verdict == "last seen on r, which drops them: no-route (no other cluster has this address)"
    assert expected.command == "kubectl get clusterinfoimports -A -o yaml"


@pytest.mark.parametrize(
    ("kind", "end", "port"),
    [
        ("vxlan", "192.168.2.11", "4789"),
        ("geneve", "192.168.2.11", "6081"),
        ("geneve", "240.0.0.9", "51821 (WireGuard)"),
    ],
)
def test_a_tunnel_that_delivers_nothing_names_its_udp_port(kind: str, end: str, port: str) -> None:
    """Between Nodes of a cluster it is WireGuard's if the tunnel ends in WireGuard's network."""
    tunnel = TunnelStatus(name="mc-7", peer_kind="node", peer="g", type=kind, remote_ip=end)
    path = [replace(hop, tunnel=tunnel) for hop in hops_to(TraceOutcome.HOST)]
    undelivered = judge(path, True, False, False)
    assert undelivered.verdict == (
        "last seen on w, which sent them to g by tunnel mc-7: they never arrived."
        f" Is UDP {port} open between the two?"
    )
    assert undelivered.command == "mcagent doctor --all"


def test_what_conntrack_did_not_take_is_searched_on_that_node() -> None:
    """Only where the trace commits a connection."""
    path = hops_to(TraceOutcome.HOST, committed=[{"zone": 1, "mark": 0, "label": 0}])
    full = judge(path, True, True, True)
    assert full.verdict == "last seen on r, whose conntrack did not take them: newConnections, or a full table"
    assert full.command == "mcagent status, and on Node r: conntrack -S"
    silent = judge(path, True, True, True, last={"tracked": True})
    assert silent.verdict.endswith("the Pod does not listen, or its CNI drops it")
    assert silent.command == "on Node r: ip route get 10.2.1.2; kubectl get networkpolicies -A"
    back = judge(path, True, True, True, last={"tracked": True, "answered": True})
    assert back.verdict == "the Pod's answer reached r, but did not come back: see the path of the answer"
    assert back.command == "mcagent doctor --all"
    came = judge(path, True, True, True, answered=True)
    assert (came.verdict, came.command, came.answered) == ("an answer came back to the Pod's Node", "", True)
    assert (came.last_seen, judge(path, None, False, False, answered=True).last_seen) == ("r", "")


def sights_of(before: Any, after: Any, path: list[Hop] | None = None) -> tuple[Sighting, ...]:
    """Return what is seen on a path whose last Node answers this, before and after the probes."""
    pages = [before, after]

    def ask(nodes: Mapping[str, str]) -> dict[str, Any]:
        page = pages.pop(0)
        empty: Any = {"flows": [], "tracked": []}
        return {node: page if node == "r" else empty for node in nodes}

    path = hops_to(TraceOutcome.HOST) if path is None else path
    return send(path, 1, ask, lambda *_: {"sent": 1, "answered": True}).sights


def flows_of(*flows: tuple[str, int, float | None, bool], tracked: Any = ()) -> dict[str, Any]:
    """Return a page /trace/seen. Flows: match, packets, age, whether it drops."""
    keys = ("match", "packets", "age", "dropped")
    return {"flows": [dict(zip(keys, flow, strict=True)) for flow in flows], "tracked": list(tracked)}


def test_probes_are_dropped_where_all_their_flows_drop_them() -> None:
    """A Node without flows of these probes has not seen them, and drops nothing."""
    drop, forward = ("a", 1, 0.0, True), ("b", 1, 0.0, False)
    assert sights_of(flows_of(), flows_of(drop))[-1] == Sighting(node="r", seen=True, dropped=True)
    assert sights_of(flows_of(), flows_of(drop, forward))[-1] == Sighting(node="r", seen=True)
    assert sights_of(flows_of(), flows_of())[-1] == Sighting(node="r", seen=False)
    # A flow of the same match that was used since, and one that was used by others before.
    assert sights_of(flows_of(("a", 1, 9.0, True)), flows_of(("a", 1, 0.0, True)))[-1].seen
    assert not sights_of(flows_of(("a", 1, 9.0, True)), flows_of(("a", 1, 99.0, True)))[-1].seen
    assert sights_of(flows_of(("a", 1, 9.0, True)), flows_of(("a", 2, 99.0, True)))[-1].seen


def test_connections_of_probes_are_tracked_and_answered_after_them() -> None:
    """One zone with an answer is enough; what there was before does not count."""
    entries = [{"zone": 1, "answered": False}, {"zone": 2, "answered": True}]
    sight = sights_of(flows_of(), flows_of(tracked=entries))[-1]
    assert (sight.tracked, sight.answered) == (True, True)
    sight = sights_of(flows_of(), flows_of(tracked=entries[:1]))[-1]
    assert (sight.tracked, sight.answered) == (True, False)
    sight = sights_of(flows_of(tracked=entries), flows_of())[-1]
    assert (sight.tracked, sight.answered) == (False, False)


def test_a_node_that_does_not_answer_has_seen_nothing_for_a_reason() -> None:
    """Before or after the probes; the first Node has sent them, whatever its flows count."""
    page = flows_of()
    assert sights_of("it is gone", page)[-1] == Sighting(node="r", seen=None, why="it is gone")
    assert sights_of(page, "it was stopped")[-1] == Sighting(node="r", seen=None, why="it was stopped")
    assert sights_of("it is gone", "it was stopped")[-1].why == "it is gone"
    assert [sight.seen for sight in sights_of(page, page)] == [True, False, False]
    path = hops_to(TraceOutcome.HOST)
    unknown = [*path[:2], replace(path[2], trace=None, why="not asked: no agent of it is known")]
    assert sights_of(page, page, unknown)[-1] == Sighting(node="r", seen=None, why="no agent of it is known")
    simulated = [*path[:2], replace(path[2], origin=Origin.SIMULATOR, unasked="it failed", why="simulated: x")]
    assert sights_of(page, page, simulated)[-1] == Sighting(node="r", seen=None, why="it failed")


def test_agents_are_asked_for_the_packet_as_it_comes_to_their_node() -> None:
    """The first one sends probes as often as it is told; its answer counts, and faults name it."""
    path = hops_to(TraceOutcome.HOST)
    path[1] = replace(path[1], probe=replace(PROBE, in_port=6))
    pages: list[Mapping[str, str]] = []

    def ask(nodes: Mapping[str, str]) -> dict[str, Any]:
        pages.append(nodes)
        return {node: flows_of() for node in nodes}

    requests: list[tuple[str, str]] = []

    def send_probes(node: str, page: str) -> dict[str, Any]:
        requests.append((node, page))
        return {"sent": 4, "answered": True}

    live = send(path, 4, ask, send_probes)
    assert (live.sent, live.answered) == (4, True)
    assert requests == [("w", f"/trace/live?{PROBE.query()}&count=4")]
    assert (
        pages[0]
        == pages[1]
        == {
            node: f"/trace/seen?{probe.query()}"
            for node, probe in (("w", PROBE), ("g", replace(PROBE, in_port=6)), ("r", PROBE))
        }
    )
    with pytest.raises(McagentError, match=r"^the agent of w: "):
        send(path, 4, ask, lambda *_: {"sent": "x"})
    with pytest.raises(McagentError, match=r"^the agent of r: "):
        sights_of(flows_of(), {"flows": 1})


def test_a_flow_that_was_there_before_is_no_sight() -> None:
    """Probes of a minute ago have left flows: only those used since, or new ones, count."""
    way = hops_to(TraceOutcome.HOST)
    old = {"match": "a", "packets": 2, "age": 300.0, "dropped": False}
    bare = {"match": "b", "packets": 0, "age": None, "dropped": False}
    aged = {**old, "age": 0.0}
    rounds = [
        {"w": [], "g": [old, bare], "r": [old]},
        {"w": [], "g": [old, bare], "r": [aged]},
    ]
    requests: list[str] = []

    def ask(pages: Mapping[str, str]) -> dict[str, Any]:
        flows = rounds.pop(0)
        return {node: {"flows": flows[node], "tracked": []} for node in pages}

    def send_one(node: str, page: str) -> dict[str, Any]:
        requests.append(f"{node} {parse_qs(urlsplit(page).query)['count']}")
        return {"sent": 2, "answered": False}

    live = send(way, 2, ask, send_one)
    assert requests == ["w ['2']"]
    assert [sight.seen for sight in live.sights] == [True, False, True]
    assert live.sent == 2


def test_why_a_page_does_not_answer() -> None:
    """A senseless query, too many of them, or a facility that refuses: each has its status and words."""
    now = [0.0]
    limit = RateLimit(per_second=0.5, burst=2, clock=lambda: now[0])

    def refuse(_request: object) -> Page:
        raise BackendError("OVSDB", "read", "bridge br-mc", "it does not exist")

    def answered(read: Any, respond: Any = lambda text: Page(body=text)) -> tuple[int, str]:
        page = answer(read, respond, limit, "too often")
        return page.status, str(page.body)

    assert answered(lambda: int("x"))[0] == 400
    assert "invalid literal" in answered(lambda: int("x"))[1]
    assert answered(lambda: "fine") == (200, "fine")
    status, text = answered(lambda: "fine", refuse)
    assert status == 503
    assert "bridge br-mc" in text
    assert "it does not exist" in text
    assert answered(lambda: "fine") == (429, "too often\n")
    now[0] = 2.0
    assert answered(lambda: "fine") == (200, "fine")
    assert answered(lambda: "fine") == (429, "too often\n")
