"""What a switch says of a packet, in our words: tables, verdict, reason; and the way from Node to Node."""

from __future__ import annotations

import re
from dataclasses import replace
from ipaddress import IPv4Address, ip_address, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from flows.declare import PipelineTable
from flows.pipeline.declaration import (
    COOKIES,
    DROP_ISOLATED,
    DROP_POLICY,
    DROP_SPOOFED,
    FOR_BASE,
    FOR_POLICY,
    FOR_SERVICE,
    MISS,
    PIPELINE,
)
from flows.pipeline.tables import EGRESS_REJECT, REJECT_STATE
from mcagent.api.trace import Committed, NodeTrace, TracedRule, TraceOutcome
from mcagent.core.compile import compile_desired
from mcagent.core.fragments.imported import SLOTS, PortShares, ServiceShares, service_rules
from mcagent.core.fragments.imported import fragment as rules_of_services
from mcagent.model.config import Config
from mcagent.model.dataplane.facts import Facts
from mcagent.model.net import Address, PodPrefix
from mcagent.model.node_state import NodeState, PolicyRuleName
from mcagent.model.plan import Desired, Fragment
from mcagent.model.policies import Direction
from mcagent.trace.drops import CAUSES
from mcagent.trace.names import with_names
from mcagent.trace.ofproto import read
from mcagent.trace.pages import TracePage
from mcagent.trace.probe import Probe, read_query
from tests.worlds.core_inputs import HOME, config, namespace, snapshot
from tests.worlds.own_endpoints import CLIENTS, OWN, rule
from tests.worlds.traced_packets import GOOD, NOWHERE, PROBE, TO_GATEWAY

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


def matched(table: int, cookie: int, *actions: str, match: str = "") -> str:
    """Return what a switch says of a packet that a flow matches."""
    text = f"{table:2}. {match}{', ' if match else ''}priority 100, cookie {cookie:#x}\n"
    return text + "".join(f"    {action}\n" for action in actions)


def read_on_bridge(*parts: str, probe: Probe = PROBE) -> NodeTrace:
    """Return the trace of these parts on the agent's bridge."""
    return read('bridge("br-mc")\n' + "".join(parts), "br-mc", probe)


BASE = COOKIES.cookie(FOR_BASE)


def test_the_deciding_flow_is_the_last_one() -> None:
    """With its table and match; a table of another pipeline has its number, a flow without a match none."""
    trace = read(TO_GATEWAY, "br-mc", PROBE)
    assert (trace.table, trace.rule) == ("Route", "ip,reg0=0x1/0xf,nw_dst=10.102.0.0/16")
    trace = read_on_bridge(matched(0, BASE, match="ip"), matched(251, BASE))
    assert (trace.tables, trace.table, trace.rule) == (("Classify", "251"), "251", "")
    assert (trace.outcome, trace.out_port, trace.reason, trace.number) == (TraceOutcome.UNKNOWN, None, "", 0)
    empty = read("", "br-mc", PROBE)
    assert (empty.tables, empty.table, empty.rule, empty.outcome) == ((), "", "", TraceOutcome.UNKNOWN)
    without_cookie = read_on_bridge(matched(0, BASE), " 9. ip, priority 0\n    output:9\n")
    assert (without_cookie.out_port, without_cookie.rule, len(without_cookie.tables)) == (9, "ip", 2)


def test_what_the_trace_does_not_change_is_the_probes() -> None:
    """Addresses, ports, and what the tunnel says of Service and sender."""
    probe = replace(PROBE, mac="translated", service=5, identity=42)
    trace = read("", "br-mc", probe)
    assert (trace.source, trace.destination) == ("10.1.3.2", "10.102.0.80")
    assert (trace.source_port, trace.port) == (40000, 80)
    assert (trace.mac, trace.service, trace.identity) == ("translated", 5, 42)


@pytest.mark.parametrize(
    ("text", "port"),
    [("tp_dst=8080", 8080), ("tp_dst=65535", 65535), ("tp_dst=100000", 80), ("tp_dst=x", 80), ("tp_dst=", 80)],
)
def test_a_port_that_cannot_be_read_is_the_probes(text: str, port: int) -> None:
    """A trace is text of another program."""
    trace = read(f"Flow: tcp,{text},tp_src=1024\n", "br-mc", PROBE)
    assert (trace.port, trace.source_port) == (port, 1024)


def test_what_flows_write_is_in_the_final_flow() -> None:
    """Addresses, ports, MACs and VNI; nothing else of it counts as written."""
    final = (
        "Final flow: tcp,dl_src=0a:6d:00:00:00:07,nw_src=10.9.9.9,nw_dst=10.8.8.8,tp_src=1,tp_dst=2,tun_id=0x2a\n"
    )
    trace = read_on_bridge(matched(0, BASE), final)
    assert (trace.source, trace.source_port) == ("10.9.9.9", 1)
    assert (trace.destination, trace.port) == ("10.8.8.8", 2)
    assert (trace.service, trace.identity) == (7, 42)
    unreadable = read("Final flow: tun_id=x,dl_src=y\n", "br-mc", replace(PROBE, service=5, identity=42))
    assert (unreadable.service, unreadable.identity) == (0, 42)


@pytest.mark.parametrize(
    ("mac", "service"),
    [
        ("0a:6d:00:00:00:00", 0),
        ("0a:6d:00:00:00:01", 1),
        ("0a:6d:00:ff:ff:ff", 2**24 - 1),
        ("0a:6d:01:00:00:00", 0),
        ("0a:6c:00:00:00:01", 0),
    ],
)
def test_a_service_in_a_sender_mac_has_24_bits(mac: str, service: int) -> None:
    """MACs beyond have other meanings."""
    assert read(f"Final flow: dl_src={mac}\n", "br-mc", PROBE).service == service


def test_the_last_mac_and_the_last_port_are_those_of_the_packet() -> None:
    """A MAC without a meaning in tunnels changes nothing; the agent's port leads to the kernel."""
    mac = "set_field:aa:bb:cc:dd:ee:f2->eth_dst"
    trace = read_on_bridge(matched(0, BASE, mac, "set_field:00:00:00:00:00:01->eth_dst", "output:9", "output:1"))
    assert (trace.mac, trace.outcome, trace.out_port) == ("reply", TraceOutcome.HOST, 1)
    assert read_on_bridge(matched(0, BASE, "output:1", "output:9")).outcome == TraceOutcome.TUNNEL


def test_a_group_without_a_live_bucket_has_no_gateway() -> None:
    """Unless the flow that decides drops the packet for another reason."""
    dead = matched(40, BASE, "group:67108864", " -> no live bucket")
    trace = read_on_bridge(dead)
    assert (trace.outcome, trace.reason, trace.number) == (TraceOutcome.DROPPED, "no-gateway", 0)
    later = read_on_bridge(dead, matched(62, COOKIES.cookie(DROP_POLICY, 7), "drop"))
    assert (later.reason, later.number) == ("policy", 7)
    other_bridge = read(f'bridge("br-phy")\n{dead}', "br-mc", PROBE)
    assert other_bridge.outcome == TraceOutcome.UNKNOWN


@pytest.mark.parametrize("table", [EGRESS_REJECT, REJECT_STATE], ids=lambda table: table.name)
def test_a_packet_that_is_answered_with_a_reset_is_rejected(table: PipelineTable) -> None:
    """By the last rule, if it is known; although the answer is sent out."""
    rules = [matched(61, COOKIES.cookie(FOR_POLICY, number)) for number in (8, 9)]
    answer = matched(table.number, BASE, "output:1")
    trace = read_on_bridge(*rules, answer)
    assert (trace.outcome, trace.reason, trace.number) == (TraceOutcome.REJECTED, "policy", 9)
    assert (trace.rules, trace.tables[-1]) == ((8, 9), table.name)
    trace = read_on_bridge(answer)
    assert (trace.outcome, trace.number) == (TraceOutcome.REJECTED, 0)


def test_rules_and_services_are_numbered_in_the_cookies_of_their_flows() -> None:
    """Clauses of rules have the number 0; cookies of other owners have no meaning."""
    cookies = [COOKIES.cookie(category, n) for category, n in ((FOR_POLICY, 3), (FOR_POLICY, 0), (FOR_SERVICE, 4))]
    cookies += [0x1234060000000005, COOKIES.cookie(FOR_BASE, 6), COOKIES.cookie(DROP_POLICY, 7)]
    trace = read_on_bridge(*(matched(61, cookie) for cookie in cookies))
    assert (trace.rules, trace.services) == ((3, 7), (4,))


def test_a_later_commit_replaces_what_its_masks_cover() -> None:
    """Without a mark, a mark stays; zones are in the order of their last commits."""
    first = "Datapath actions: ct(commit,zone=1,mark=0xff/0xff,label=0xf0/0xff),ct(force_commit,zone=2)\n"
    second = "Datapath actions: ct(commit,zone=1,mark=0x1/0xf,label=0x3/0x3)\n"
    assert read(first, "br-mc", PROBE).committed == (
        Committed(zone=1, mark=0xFF, label=0xF0),
        Committed(zone=2),
    )
    assert read(first + second, "br-mc", PROBE).committed == (
        Committed(zone=2),
        Committed(zone=1, mark=0xF1, label=0xF3),
    )


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


def named(trace: NodeTrace, state: NodeState, *fragments: Fragment, probe: Probe = PROBE) -> NodeTrace:
    """Return a trace with the names of a desired state."""
    desired = Desired(fragments={fragment.owner: fragment for fragment in fragments}, problems=(), state=state)
    return with_names(trace, probe, desired, Config(node_name="n"))


def test_names_are_those_that_the_node_knows() -> None:
    """Each Service and rule once, in the order of the packet; a flow may be older than the desired state."""
    rules = {
        number: PolicyRuleName(policy=f"p{number}", rule="r", direction="egress", verdict="allow")
        for number in (1, 2)
    }
    state = NodeState(policy_rules=rules, service_ids={"shop/web:80/tcp": 4, "shop/db:5432/tcp": 5})
    trace = named(NodeTrace(rules=(2, 9, 1, 2), services=(5, 9, 4, 5)), state)
    assert [rule.policy for rule in trace.policies] == ["p2", "p1"]
    assert trace.policies[0] == TracedRule(policy="p2", rule="r", direction="egress", verdict="allow")
    assert trace.exports == ("shop/db:5432/tcp", "shop/web:80/tcp")
    assert (trace.shares, trace.isolated_by) == ((), ())


def test_the_policies_that_isolate_a_pod_depend_on_the_direction() -> None:
    """The number of the drop is 1 for egress: then they are the sender's."""
    isolating: dict[tuple[Direction, Address], tuple[str, ...]] = {
        (Direction.EGRESS, PROBE.source): ("egress",),
        (Direction.INGRESS, PROBE.source): ("wrong",),
        (Direction.INGRESS, PROBE.destination): ("ingress",),
    }
    state = NodeState(isolating=isolating)
    trace = NodeTrace(reason="isolated", destination="10.102.0.80")
    assert named(structs.replace(trace, number=1), state).isolated_by == ("egress",)
    assert named(trace, state).isolated_by == ("ingress",)
    assert named(structs.replace(trace, reason="policy"), state).isolated_by == ()
    assert named(structs.replace(trace, destination="10.102.0.81"), state).isolated_by == ()


def test_the_shares_of_an_imported_service_are_those_of_the_nodes_rules() -> None:
    """Only of the traced address, protocol and port."""
    ends: tuple[tuple[int, tuple[IPv4Address, int]], ...] = tuple(
        (SLOTS // 4 * end, (IPv4Address(address), 8080)) for end, address in ((3, "10.2.1.2"), (4, "10.3.1.2"))
    )
    address = IPv4Address("10.96.0.7")
    port = PortShares(address=address, protocol="tcp", port=80, by_client=False, shares=ends)
    config = Config(node_name="n")
    imported = rules_of_services({"shop/web": service_rules(ServiceShares(ports=(port,)), config)}, config)
    probe = replace(PROBE, destination=address)
    trace = named(NodeTrace(), NodeState(), imported, probe=probe)
    assert {(share.address, share.port, share.share) for share in trace.shares} == {
        ("10.2.1.2", 8080, 0.75),
        ("10.3.1.2", 8080, 0.25),
    }
    for other in (replace(probe, port=81), replace(probe, protocol="udp"), PROBE):
        assert named(NodeTrace(), NodeState(), imported, probe=other).shares == ()


@pytest.mark.parametrize(
    ("action", "change", "closed"),
    [
        ("Drop", {}, True),
        ("Reject", {}, True),
        ("Allow", {}, False),
        ("Drop", {"source": IPv4Address("10.10.1.7")}, False),
        ("Drop", {"destination": IPv4Address("10.10.2.9")}, False),
        ("Drop", {"port": 81}, False),
        ("Drop", {"protocol": "udp"}, False),
    ],
)
def test_policies_that_close_an_endpoint_of_the_own_cluster_are_seen(
    action: str, change: dict[str, Any], closed: bool
) -> None:
    """By the rules of the chain, of which the first that fits decides."""
    policies = rule("stay", 5, action), rule("later", 6, "Drop")
    objects = snapshot(*HOME, namespace("default"), *CLIENTS, OWN, *policies)
    settings = config("g1", stretched_network_policy=True, cluster_id="home")
    desired = compile_desired(objects, Facts(), settings).desired
    ends = {"source": CLIENTS[0].ips[0], "destination": IPv4Address("10.10.2.7"), "port": 80}
    probe = replace(PROBE, **{**ends, **change})
    assert with_names(NodeTrace(), probe, desired, settings).own_endpoint_closed is closed


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


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ((GOOD, "x"), "the query must be destination=…&in_port=…&mac=…&port=…&protocol=…&source=…&source_port=…"),
        (
            ("&mac=plain", ""),
            "the query must have each of destination, in_port, mac, port, protocol, source, source_port once",
        ),
        (("tcp", "gre"), "protocol is one of tcp, udp, sctp, icmp, mac one of plain, translated, reply"),
        (("plain", "other"), "protocol is one of tcp, udp, sctp, icmp, mac one of plain, translated, reply"),
        (("port=80", "port=65536"), "port must be a number from 0 to 65535"),
        (("in_port=1", "in_port=-1"), "in_port must be a number from 0 to 65535"),
        (("port=80", "port=" + "0" * 40), "port must be a number from 0 to 65535"),
        (("port=80", "port=80&service=16777216"), "service must be a number from 0 to 16777215"),
        (("port=80", "port=80&identity=16777216"), "identity must be a number from 0 to 16777215"),
        (("port=80", "port=80&mark=4294967296"), "mark must be a number from 0 to 4294967295"),
    ],
)
def test_a_query_is_refused_with_what_is_allowed(change: tuple[str, str], reason: str) -> None:
    """The client shows this text."""
    with pytest.raises(ValueError, match=f"^{re.escape(reason)}$"):
        read_query(GOOD.replace(*change))


def test_a_query_has_at_most_the_known_keys() -> None:
    """More is refused before it is read; the largest values are accepted."""
    with pytest.raises(ValueError, match=r"^the query must be "):
        read_query("&".join([GOOD, *(f"k{number}=1" for number in range(10))]))
    largest = "&service=16777215&identity=16777215&mark=4294967295&reply=0"
    probe = read_query(
        GOOD.replace("port=80", "port=65535").replace("source_port=40000", "source_port=0") + largest
    )
    assert (probe.port, probe.source_port, probe.reply) == (65535, 0, False)
    assert (probe.service, probe.identity, probe.mark) == (16777215, 16777215, 4294967295)
    assert read_query(GOOD.replace("port=80", "port=" + "0" * 37 + "80")).port == 80


@given(
    st.sampled_from(("tcp", "udp", "sctp", "icmp")),
    st.sampled_from(("plain", "translated", "reply")),
    st.integers(0, 2**24 - 1),
    st.integers(0, 2**128 - 1),
    st.booleans(),
)
def test_a_query_that_was_made_of_a_packet_is_read_as_it(
    protocol: str, mac: str, number: int, label: int, reply: bool
) -> None:
    """Numbers that are 0 are left out."""
    probe = replace(
        PROBE, protocol=protocol, mac=mac, service=number, identity=number, mark=number, label=label, reply=reply
    )
    assert read_query(probe.query()) == probe
    assert ("service=" in probe.query()) is (number > 0)


def test_a_switch_reads_a_packet_as_arguments() -> None:
    """Ports by protocol, flags of TCP, the type of ICMP, and what a tunnel says of Service and sender."""
    ends = "nw_src=10.1.3.2,nw_dst=10.102.0.80,nw_ttl=64"
    macs = "dl_src=0a:6d:63:00:00:01,dl_dst=aa:bb:cc:dd:ee:f0"
    ports = {protocol: f"{protocol}_src=40000,{protocol}_dst=80" for protocol in ("tcp", "udp", "sctp")}
    assert PROBE.arguments() == (f"in_port=1,tcp,{macs},{ends},{ports['tcp']},tcp_flags=syn",)
    for protocol in ("udp", "sctp"):
        packet = f"in_port=1,{protocol},{macs},{ends},{ports[protocol]}"
        assert replace(PROBE, protocol=protocol).arguments() == (packet,)
    icmp = replace(PROBE, protocol="icmp")
    assert icmp.arguments() == (f"in_port=1,icmp,{macs},{ends},icmp_type=8,icmp_code=0",)
    answer = replace(icmp, reply=True).arguments()
    assert answer[0].endswith(",nw_ttl=64,ct_mark=0x0,ct_label=0x0,icmp_type=0,icmp_code=0")
    assert answer[1:] == ("--ct-next", "trk,est,rpl") * 4
    tunnelled = replace(PROBE, service=7, identity=42, mac="reply").arguments()[0]
    assert "dl_src=0a:6d:00:00:00:07,dl_dst=aa:bb:cc:dd:ee:f2," in tunnelled
    assert ",nw_ttl=64,tun_id=0x2a,tcp_src=40000," in tunnelled


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
