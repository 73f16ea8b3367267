"""What a switch says of a packet, in our words: tables, verdict, reason; and the way from Node to Node."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from flows.pipeline.declaration import COOKIES, DROP_ISOLATED, DROP_POLICY, DROP_SPOOFED, MISS, PIPELINE
from mcagent.api.trace import Committed, TracedRule, TraceOutcome
from mcagent.model.config import Config
from mcagent.model.net import PodPrefix
from mcagent.model.node_state import NodeState, PolicyRuleName
from mcagent.model.plan import Desired
from mcagent.model.policies import Direction
from mcagent.trace.drops import CAUSES
from mcagent.trace.names import with_names
from mcagent.trace.ofproto import read
from mcagent.trace.pages import TracePage
from mcagent.trace.probe import read_query
from tests.worlds.traced_packets import GOOD, NOWHERE, PROBE

# As ovs-vswitchd 3.1 said it on a worker: through conntrack, to a gateway, by a bridge of the underlay.
TO_GATEWAY = """\
Flow: tcp,in_port=1,dl_src=0a:6d:63:00:00:01,dl_dst=aa:bb:cc:dd:ee:f0,nw_src=10.1.3.2,nw_dst=10.102.0.80,tp_src=40000,tp_dst=80

bridge("br-mc")
---------------
 0. ip,in_port=1,dl_dst=aa:bb:cc:dd:ee:f0, priority 100, cookie 0x6d63010000000000
    set_field:0->pkt_mark
    goto_table:10
10. ip,reg0=0x1/0xf,nw_src=10.1.3.0/24, priority 224, cookie 0x6d63030000113a0c
    ct(table=30,zone=28003)
    drop
     -> A clone of the packet is forked to recirculate. The forked pipeline will be resumed at table 30.

Final flow: tcp,reg0=0x1
Datapath actions: ct(zone=28003),recirc(0x2)

===============================================================================
recirc(0x2) - resume conntrack with default ct_state=trk|new (use --ct-next to customize)
===============================================================================

Flow: recirc_id=0x2,ct_state=new|trk,eth,tcp,in_port=1,nw_src=10.1.3.2,nw_dst=10.102.0.80,tp_src=40000,tp_dst=80

bridge("br-mc")
---------------
    thaw
        Resuming from table 30
30. ct_state=+new-rpl+trk,ip, priority 100, cookie 0x6d63010000000000
    goto_table:40
40. ip,reg0=0x1/0xf,nw_dst=10.102.0.0/16, priority 216, cookie 0x6d63020000080ed0
    group:67108864
     -> using bucket 43287
    bucket 43287
            output:43287
             -> output to native tunnel

        bridge("br-phy")
        ----------------
         0. priority 0
            output:7
"""  # noqa: E501 (recorded)
# As it said of a packet that is measured: both outcomes, one in the other.
MEASURED = TO_GATEWAY.replace(
    "    goto_table:10\n10.",
    """\
    check_pkt_larger(1464)->NXM_NX_REG0[9]
    goto_table:5
     5. ip,reg0=0x200/0x200, priority 400, cookie 0x6d63070000000000
            set_field:aa:bb:cc:dd:ee:f0->eth_src
            set_field:0a:6d:63:00:00:01->eth_dst
            IN_PORT
    goto_table:5
 5. priority 10, cookie 0x6d63010000000000
    goto_table:10
10.""",
    1,
)


def test_a_measured_packet_is_one_that_fits() -> None:
    """The other outcome, that the packet returns to the kernel, is no part of the way."""
    tables = ("Classify", "Unmap", "Source", "Departure", "Route")
    assert read(MEASURED, "br-mc", PROBE) == structs.replace(read(TO_GATEWAY, "br-mc", PROBE), tables=tables)
    spoofed = f"10. reg0=0x1/0xf, priority 10, cookie {COOKIES.cookie(DROP_SPOOFED, 1):#x}\n"
    trace = read(MEASURED[: MEASURED.index("10. ip,reg0")] + spoofed, "br-mc", PROBE)
    assert (trace.outcome, trace.reason) == (TraceOutcome.DROPPED, "spoofed")


@given(st.sampled_from(("tcp", "udp", "sctp", "icmp")), st.booleans(), st.booleans())
def test_a_traced_packet_is_not_sent(protocol: str, reply: bool, remote: bool) -> None:
    """Of ofproto/trace's options only the states of connections are used, not -generate, which sends."""
    _, *options = replace(PROBE, protocol=protocol, reply=reply, in_port=9 if remote else 1).arguments()
    assert {option for option in options if option.startswith("-")} <= {"--ct-next"}


def dropped(cookie: int, table: int) -> str:
    """Return what a switch says of a packet that a flow drops."""
    return f'bridge("br-mc")\n---\n{table:2}. priority 0, cookie {cookie:#x}\n    drop\n'


def test_a_recorded_trace_is_read() -> None:
    """Tables in order over conntrack, and the tunnel; other bridges do not count."""
    trace = read(TO_GATEWAY, "br-mc", PROBE)
    assert trace.tables == ("Classify", "Source", "Departure", "Route")
    assert (trace.outcome, trace.out_port) == (TraceOutcome.TUNNEL, 43287)
    assert (trace.source, trace.destination, trace.port) == ("10.1.3.2", "10.102.0.80", 80)


def test_a_port_from_a_register_is_an_output() -> None:
    """Table Output sends to the port that a register holds; the switch says which."""
    text = TO_GATEWAY.replace("output:43287", "output:NXM_NX_REG3[0..15]\n             -> output port is 33544")
    trace = read(text, "br-mc", PROBE)
    assert (trace.outcome, trace.out_port) == (TraceOutcome.TUNNEL, 33544)


def test_translation_is_seen() -> None:
    """What conntrack will make of addresses and ports goes on to the next Node."""
    more = TO_GATEWAY.replace(
        "    thaw",
        "    Replacing src/dst IP/ports to simulate NAT:\n"
        "     Initial flow: nw_src=10.1.3.2,nw_dst=10.102.0.80,tp_src=40000,tp_dst=80\n"
        "     Modified flow: nw_src=10.1.3.2,nw_dst=10.2.3.2,tp_src=40000,tp_dst=8080\n    thaw",
    ).replace("    group:6", "    set_field:aa:bb:cc:dd:ee:f1->eth_dst\n    group:6")
    trace = read(more, "br-mc", PROBE)
    assert (trace.destination, trace.port, trace.mac) == ("10.2.3.2", 8080, "translated")


# As ovs-vswitchd 3.1 said it on the Node of an endpoint, from a gateway: what it keeps of the connection.
AT_ENDPOINT = """\
bridge("br-mc")
---------------
72. ct_state=+new-rpl+trk,ip,reg0=0x10/0x10, priority 100, cookie 0x6d63010000000000
    ct(commit,zone=28003,exec(move:NXM_NX_REG2[0..15]->NXM_NX_CT_MARK[0..15]))
    set_field:0a:6d:63:00:00:01->eth_dst
    output:1

Final flow: recirc_id=0x1,eth,tcp,tun_id=0x2a,in_port=28418,dl_src=0a:6d:00:b1:12:15,dl_dst=0a:6d:63:00:00:01
Megaflow: recirc_id=0x1,ct_state=+new-est-rpl+trk,ct_mark=0/0x1ffff,eth,tcp,in_port=28418
Datapath actions: meter(0),ct(commit,zone=28003,mark=0x16f02/0x1ffff,label=0xb1121500000000/0xffffffff00000000),3
"""


def test_what_conntrack_keeps_is_seen() -> None:
    """Mark and label of the zone that was committed to last; and what the tunnel says of Service and sender."""
    trace = read(AT_ENDPOINT, "br-mc", PROBE)
    assert trace.committed == (Committed(zone=28003, mark=0x16F02, label=0xB1121500000000),)
    assert (trace.outcome, trace.service, trace.identity) == (TraceOutcome.HOST, 0xB11215, 42)
    again = (
        "Datapath actions: ct(commit,zone=28004,label=0xb112155ba00000/0xffffffffffff0000,nat(dst=10.2.1.2:8080)),"
    )
    again += "recirc(0x2)\nDatapath actions: ct(commit,zone=28004,label=0/0xffff0000),3\n"
    commit = read(AT_ENDPOINT + again, "br-mc", PROBE).committed
    assert [(one.zone, one.label) for one in commit] == [(28003, 0xB1121500000000), (28004, 0xB1121500000000)]


def test_an_answer_is_asked_with_what_conntrack_keeps() -> None:
    """Its connection is known in every zone, and the switch reads nothing but numbers and known words."""
    answer = replace(PROBE, reply=True, mark=0x16F02, label=1 << 100)
    flow, *other_arguments = answer.arguments()
    assert "ct_mark=0x16f02,ct_label=0x10000000000000000000000000," in flow
    assert flow.endswith("tcp_flags=syn|ack")
    assert other_arguments == ["--ct-next", "trk,est,rpl"] * 4
    assert "udp_src=40000,udp_dst=80" in replace(PROBE, protocol="udp").arguments()[0]


@pytest.mark.parametrize("category", [one for one in PIPELINE.categories if one.drops], ids=lambda one: one.name)
def test_every_drop_has_its_reason_a_cause_and_a_next_command(category: Any) -> None:
    """Whatever drops a packet is named, and says what to look at."""
    table = next((number for number, one in MISS.items() if one is category), 0)
    trace = read(dropped(COOKIES.cookie(category, 7), table), "br-mc", PROBE)
    assert (trace.outcome, trace.reason, trace.number) == (TraceOutcome.DROPPED, category.name, 7)
    cause, command = CAUSES[category.name]
    assert cause
    assert command.startswith(("mcagent ", "kubectl "))


def test_the_rule_and_who_isolates_are_named() -> None:
    """The cookie's number becomes the policy's name on the Node that has it; so do Services and the MTU."""
    rule = PolicyRuleName(policy="ClusterNetworkPolicy/no-web", rule="r1", direction="ingress", verdict="drop")
    pod = PROBE.destination
    state = NodeState(policy_rules={7: rule}, isolating={(Direction.INGRESS, pod): ("NetworkPolicy shop/deny",)})
    desired = Desired(fragments={}, problems=(), state=replace(state, mtu=1450))
    config = Config(node_name="n")
    trace = with_names(read(dropped(COOKIES.cookie(DROP_POLICY, 7), 62), "br-mc", PROBE), PROBE, desired, config)
    assert trace.policies == (
        TracedRule(policy="ClusterNetworkPolicy/no-web", rule="r1", direction="ingress", verdict="drop"),
    )
    assert (trace.node, trace.mtu) == ("n", 1450)
    trace = with_names(read(dropped(COOKIES.cookie(DROP_ISOLATED), 64), "br-mc", PROBE), PROBE, desired, config)
    assert trace.isolated_by == ("NetworkPolicy shop/deny",)


def test_who_isolates_a_pod_with_a_virtual_address_is_named() -> None:
    """A packet of another cluster has the Pod's virtual address, policies of the Pod's cluster the real one."""
    policy = ("NetworkPolicy shop/deny",)
    virtual = ip_network(f"{PROBE.destination}/32")
    state = NodeState(
        prefixes=(PodPrefix(real=ip_network("10.244.7.9/32"), virtual=virtual),),
        isolating={(Direction.INGRESS, ip_address("10.244.7.9")): policy},
    )
    desired = Desired(fragments={}, problems=(), state=state)
    trace = read(dropped(COOKIES.cookie(DROP_ISOLATED), 64), "br-mc", PROBE)
    assert with_names(trace, PROBE, desired, Config(node_name="n")).isolated_by == policy


_PIECES = st.sampled_from(
    [*TO_GATEWAY.splitlines(), *(dropped(COOKIES.cookie(one), 40) for one in PIPELINE.categories), "output:9"]
)


@given(st.one_of(st.text(), st.lists(_PIECES).map("\n".join)))
def test_any_text_has_a_verdict(said: str) -> None:
    """Reading never fails, and a drop is never without a reason."""
    trace = read(said, "br-mc", PROBE)
    assert trace.outcome in set(TraceOutcome)
    assert bool(trace.reason) is (trace.outcome in (TraceOutcome.DROPPED, TraceOutcome.REJECTED))
    assert (trace.out_port is not None) or trace.outcome not in (TraceOutcome.HOST, TraceOutcome.TUNNEL)


def test_a_query_is_read_strictly() -> None:
    """Each key once, numbers and addresses only: nothing else gets into the text that the switch reads."""
    assert read_query(GOOD) == PROBE
    query = "&service=5&identity=42&reply=1&mark=3&label=340282366920938463463374607431768211455"
    assert read_query(GOOD + query) == replace(PROBE, service=5, identity=42, reply=True, mark=3, label=2**128 - 1)
    for change in (
        ("source=10.1.3.2", "source=10.1.3.2,actions=drop"),
        ("tcp", "tcp,tcp_dst=1"),
        ("port=80", "port=80%0a"),
        ("port=80", "port=65536"),
        ("port=80", "port=\u0668"),
        ("mac=plain", "mac=aa:bb"),
        ("mac=plain", "mac=plain&mac=plain"),
        ("mac=plain", "mac=plain&x=1"),
        ("&mac=plain", ""),
        ("mac=plain", "mac=plain&reply=2"),
        ("mac=plain", "mac=plain&label=340282366920938463463374607431768211456"),
        (GOOD, ""),
    ):
        with pytest.raises(ValueError, match=r"must|one of|Expected|permitted|not"):
            read_query(GOOD.replace(*change))


@given(st.text(max_size=300))
def test_no_query_breaks_the_page(query: str) -> None:
    """Whatever is asked is refused in words."""
    assert TracePage(NOWHERE, lambda: None)(query).status == 400


def test_traces_are_bounded_in_rate() -> None:
    """More than the burst is refused until time has passed."""
    now = [0.0]
    page = TracePage(NOWHERE, lambda: None, clock=lambda: now[0])
    statuses = [page(GOOD).status for _ in range(21)]
    assert statuses == [503] * 20 + [429]
    now[0] = 1.0
    assert page(GOOD).status == 503
