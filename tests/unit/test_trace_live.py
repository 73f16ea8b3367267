"""Real probes: what Open vSwitch says of them, what that means, and which are not sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from mcagent.api.codec import from_json
from mcagent.api.status import TunnelStatus
from mcagent.api.trace import NodeTrace, TraceOutcome
from mcagent.http.server import Page
from mcagent.model.errors import BackendError
from mcagent.trace.datapath import datapath_of, in_use, marked_flows, tracked
from mcagent.trace.live_pages import LivePage, SeenPage
from mcagent.trace.pages import RateLimit, answer
from mcagent.trace.path import Hop
from mcagent.trace.probing import ProbeReport, Sighting, report, send
from tests.worlds.traced_packets import GOOD, NOWHERE, PROBE

# As ovs-vswitchd 3.1 said it: on the userspace datapath, on the kernel's, and of what is no probe.
FLOWS = """\
tunnel(tun_id=0xffffff,src=192.168.1.13,dst=192.168.1.12,geneve(),flags(-df-csum+key)),skb_mark(0),recirc_id(0),\
in_port(5),packet_type(ns=0,id=0),eth(dst=aa:bb:cc:dd:ee:f0),eth_type(0x0800),ipv4(src=10.1.3.2,dst=10.102.0.80,\
proto=6,tos=0xbc,ttl=63,frag=no),tcp(src=40000,dst=80), packets:2, bytes:196, used:6.183s, \
actions:set(ipv4(ttl=62)),tnl_push(tnl_port(5),header(size=50)),1
recirc_id(0),in_port(3),eth(dst=aa:bb:cc:dd:ee:f0),eth_type(0x0800),ipv4(src=10.1.3.0/255.255.255.0,proto=6,\
tos=0xbc/0xfc,frag=no), packets:0, bytes:0, used:never, actions:drop
recirc_id(0),in_port(3),eth(dst=aa:bb:cc:dd:ee:f0),eth_type(0x0800),ipv4(src=10.1.3.0/255.255.255.0,proto=6,\
tos=0xbc/0xfc,frag=no), packets:3, bytes:0, used:never, actions:check_pkt_len(size=1464,gt(1),le(drop))
recirc_id(0),in_port(3),eth(dst=aa:bb:cc:dd:ee:f0),eth_type(0x0800),ipv4(src=10.1.3.2/255.255.255.15,\
dst=10.102.0.0/255.255.0.15,proto=6,tos=0xbc,frag=no),tcp(src=64/0x7e), packets:4, bytes:0, used:1.0s, actions:1
recirc_id(0),in_port(3),eth(dst=aa:bb:cc:dd:ee:f0),eth_type(0x0800),ipv4(src=10.1.3.3/255.255.255.15,\
dst=10.102.0.0/255.255.0.15,proto=6,tos=0xbc,frag=no),tcp(src=64/0x7e), packets:9, bytes:0, used:1.0s, actions:1
recirc_id(0x2),in_port(3),eth_type(0x0800),ipv4(src=10.1.3.2,dst=10.102.0.80,proto=6,tos=0xbc/0x3,frag=no), \
packets:1, bytes:98, used:1.109s, flags:S, actions:1
recirc_id(0),in_port(3),eth_type(0x0800),ipv4(src=10.1.0.0/255.255.0.0,proto=6,tos=0/0xfc,frag=no), \
packets:9, bytes:98, used:1.109s, actions:1
recirc_id(0),in_port(3),eth_type(0x0800),ipv4(src=10.9.0.0/255.255.0.0,proto=6,tos=0xbc/0xfc,frag=no), \
packets:9, bytes:98, used:1.109s, actions:1
recirc_id(0),in_port(3),eth_type(0x0800),ipv4(src=10.1.3.2,proto=1,tos=0xbc/0xfc,frag=no), \
packets:9, bytes:98, used:1.109s, actions:1
"""
ENDS = "orig=(src=10.1.3.2,dst=10.102.0.80,sport=40000,dport=80),"
ENDS += "reply=(src=10.102.0.80,dst=10.1.3.2,sport=80,dport=40000)"
ECHO = "icmp,orig=(src=10.1.3.2,dst=10.102.0.80,id=40000,type=8,code=0),"
ECHO += "reply=(src=10.102.0.80,dst=10.1.3.2,id=40000,type=0,code=0)"


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
    assert not datapath_of(shown, "br")


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
