"""The simulator's walk through one switch: look-ups, actions, groups, what it reports."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows import actions as act
from flows.fields import (
    CONJ_ID,
    CT_MARK,
    ETH_DST,
    IN_PORT,
    IP_TTL,
    IP_UDP,
    IPV4_DST,
    IPV4_ONLY,
    IPV4_SRC,
    REGISTERS,
    TCP_SRC,
    Bits,
    HashField,
    Term,
    ct_state,
    destination_in,
    exact,
    source_in,
)
from flows.flow import Bucket, Flow, Group, GroupType, Match
from flows.pipeline.groups import CONNECTION, SOME_BITS, bucket_ids, select_group
from flows.simulator import Packet, SimulatedSwitch
from flows.simulator.hashing import basis_of, hash_add, hash_bytes, hash_finish
from tests.worlds.contradictions import contradictions

PACKET = Packet(in_port=3, src=ip_address("10.1.0.5"), dst=ip_address("10.2.0.9"), src_port=4000, dst_port=80)
LOW = Bits("low", REGISTERS[3], 0, 15)


def flow(table: int, priority: int, actions: act.Actions, *terms: Term) -> Flow:
    """Return a flow; the actions are given as a tuple."""
    return Flow(table, priority, Match.of(*terms), actions)


def to(text: str) -> tuple[Term, ...]:
    """Return the terms for a destination network."""
    return destination_in(ip_network(text))


def test_the_highest_priority_wins() -> None:
    """Of all flows that match, the one with the highest priority acts."""
    switch = SimulatedSwitch.of(
        [
            flow(0, 1, (act.Output(1),)),
            flow(0, 30, (act.Output(2),), *to("10.2.0.0/16")),
            flow(0, 20, (act.Output(4),), *to("10.2.0.0/24")),
            flow(0, 40, (act.Output(5),), *to("10.3.0.0/16")),
        ]
    )
    walk = switch.walk(PACKET)
    assert [port for port, _ in walk.outputs] == [2]
    assert not walk.problems


def test_a_miss_drops() -> None:
    """Where no flow matches the packet ends, and the walk says in which table."""
    walk = SimulatedSwitch.of([flow(0, 1, (act.Goto(5),))]).walk(PACKET)
    assert walk.outputs == ()
    assert walk.drops == ("table 5: no flow",)
    assert [step.table for step in walk.steps] == [0, 5]


def test_ambiguity_is_reported() -> None:
    """Two flows of equal priority that both match and act differently are found by walk and by search."""
    flows = [flow(0, 5, (act.Output(1),), *to("10.2.0.0/16")), flow(0, 5, (act.Output(2),), exact(IN_PORT, 3))]
    assert "equal priority" in SimulatedSwitch.of(flows).walk(PACKET).problems[0]
    assert list(contradictions(flows)) == [(flows[0], flows[1])]
    assert not list(contradictions([flows[0], replace(flows[1], priority=6)]))
    assert not list(contradictions([flows[0], flow(0, 5, (), *to("10.3.0.0/16"))]))


def test_a_loop_ends() -> None:
    """A packet that never leaves is stopped and reported."""
    walk = SimulatedSwitch.of([flow(0, 1, (act.Resubmit(0),))]).walk(PACKET)
    assert "loop" in walk.problems[0]


def test_a_group_that_does_not_exist_is_reported() -> None:
    """The walk says which one."""
    walk = SimulatedSwitch.of([flow(0, 1, (act.ToGroup(9),))]).walk(PACKET)
    assert walk.problems == ("group 9 does not exist",)
    assert walk.outputs == ()


def test_groups_that_lead_to_each_other_end() -> None:
    """A loop of groups is stopped and reported."""
    groups = [Group(number, GroupType.INDIRECT, (Bucket(0, (act.ToGroup(3 - number),)),)) for number in (1, 2)]
    walk = SimulatedSwitch.of([flow(0, 1, (act.ToGroup(1),))], groups).walk(PACKET)
    assert len(walk.problems) == 1
    assert walk.problems[0].endswith("is in a loop")


def test_the_ethernet_type_follows_from_the_addresses() -> None:
    """IPv4, IPv6, and ARP for a packet without addresses; addresses of two families are refused."""
    six = ip_address("2001:db8::1")
    assert [packet.eth_type for packet in (PACKET, Packet(in_port=1, src=six, dst=six), Packet(in_port=1))] == [
        0x0800,
        0x86DD,
        0x0806,
    ]
    for source, destination in ((six, PACKET.dst), (None, PACKET.dst)):
        with pytest.raises(ValueError, match="two addresses of one family"):
            Packet(in_port=1, src=source, dst=destination)


def test_the_basis_of_a_selection_takes_both_halves_of_the_parameter() -> None:
    """As Open vSwitch does: hash_uint64 of the parameter (lib/hash.h), then each field."""
    basis = hash_finish(hash_add(hash_add(0, 2), 1), 8)
    assert basis_of(1 << 32 | 2, []) == basis
    assert basis_of(1 << 32 | 2, [b"\x0a\x01\x00\x05", b"\x06"]) == hash_bytes(
        b"\x06", hash_bytes(b"\x0a\x01\x00\x05", basis)
    )


def test_the_hash_of_bytes_is_that_of_open_vswitch() -> None:
    """For whole words it is MurmurHash3 (x86, 32 bits), whose value for "test" is published."""
    assert hash_bytes(b"test", 0) == 0xBA6BD213


def test_registers_fields_and_ttl() -> None:
    """Actions write fields and registers, in order, and the output has the result."""
    mac = 0xAABBCCDDEEF1
    actions = (
        act.SetField(REGISTERS[3], 9, 0xFFFF),
        act.SetField(ETH_DST, mac, ETH_DST.full_mask),
        act.DecTtl(),
        act.Resubmit(1),
        act.Output(3),
    )
    switch = SimulatedSwitch.of([flow(0, 1, actions), flow(1, 1, (act.OutputBits(LOW),))])
    walk = switch.walk(PACKET)
    assert [port for port, _ in walk.outputs] == [9]
    assert walk.outputs[0][1] == replace(PACKET, ttl=63, eth_dst="aa:bb:cc:dd:ee:f1")
    assert walk.drops == ("output to port 3, by which it came in",)
    assert walk.steps[0].state[IP_TTL] == 63
    assert switch.walk(replace(PACKET, ttl=1)).outputs == ()


def test_a_register_that_nothing_has_set_is_0() -> None:
    """Its bits are copied as zeros; others of the destination stay."""
    high = Bits("high", REGISTERS[3], 8, 15)
    actions = (act.SetField(REGISTERS[3], 0xFF05, 0xFFFF), act.Move(Bits("", REGISTERS[5], 0, 7), high))
    walk = SimulatedSwitch.of([flow(0, 1, (*actions, act.OutputBits(LOW)))]).walk(PACKET)
    assert [port for port, _ in walk.outputs] == [5]


def test_group_leaves_the_packet_alone_for_what_follows() -> None:
    """What a bucket does to the packet ends with the bucket."""
    bucket = Bucket(1, (act.SetField(IPV4_DST, 1, IPV4_DST.full_mask), act.Output(7)))
    switch = SimulatedSwitch.of(
        [flow(0, 1, (act.ToGroup(4), act.Output(8)))], [Group(4, GroupType.INDIRECT, (bucket,))]
    )
    (first, changed), (second, same) = switch.walk(PACKET).outputs
    assert (first, second) == (7, 8)
    assert changed.dst == ip_address("0.0.0.1")
    assert same == PACKET


def select(*ports: int) -> Group:
    """Return a select group over these ports, which watches them."""
    buckets = tuple(Bucket(p, (act.Output(p),), 100, p) for p in ports)
    fields = tuple(HashField(field, field.full_mask) for field in (IPV4_SRC, IPV4_DST, TCP_SRC))
    return Group(1, GroupType.SELECT, buckets, fields)


def test_failover_takes_the_first_live_bucket() -> None:
    """A fast failover group follows port and group liveness, and drops when nothing is left."""
    second = Bucket(2, (act.ToGroup(1),), watch_group=1)
    failover = Group(2, GroupType.FAST_FAILOVER, (Bucket(1, (act.Output(9),), watch_port=9), second))
    switch = SimulatedSwitch.of([flow(0, 1, (act.ToGroup(2),))], [failover, select(5)])
    for live, expected in (({9, 5}, [9]), ({5}, [5]), (set(), [])):
        walk = switch.walk(PACKET, live=frozenset(live))
        assert [port for port, _ in walk.outputs] == expected
        assert bool(walk.drops) is not bool(expected)


@given(st.sets(st.integers(4, 50), min_size=2, max_size=6), st.integers(1024, 65535), st.data())
def test_select_moves_only_the_connections_of_a_lost_bucket(
    ports: set[int], port: int, data: st.DataObject
) -> None:
    """A connection keeps its bucket as long as that lives, whatever else comes and goes."""
    packet = replace(PACKET, src_port=port)
    switch = SimulatedSwitch.of([flow(0, 1, (act.ToGroup(1),))], [select(*sorted(ports))])
    ((chosen, _),) = switch.walk(packet).outputs
    lost_port = data.draw(st.sampled_from(sorted(ports)))
    ((after, _),) = switch.walk(packet, live=frozenset(ports - {lost_port})).outputs
    assert after != lost_port
    assert chosen in {after, lost_port}


def test_select_spreads_connections() -> None:
    """Over many connections every bucket of equal weight gets its share."""
    switch = SimulatedSwitch.of([flow(0, 1, (act.ToGroup(1),))], [select(4, 5, 6, 7)])
    ports_taken = [switch.walk(replace(PACKET, src_port=p)).outputs[0][0] for p in range(2000, 3000)]
    assert all(ports_taken.count(p) > 180 for p in (4, 5, 6, 7))


@pytest.mark.parametrize("fields", [CONNECTION, SOME_BITS], ids=["connection", "some bits"])
@pytest.mark.parametrize("gateways", [2, 3, 4])
def test_gateways_get_equal_shares_of_connections(gateways: int, fields: tuple[HashField, ...]) -> None:
    """Of TCP connections with ports of one parity, as Linux chooses them, and of UDP between many Pods."""
    ids = bucket_ids(f"10.0.0.{number}" for number in range(gateways))
    buckets = tuple(Bucket(number, (act.Output(port),)) for port, number in enumerate(ids.values(), 4))
    group = select_group(1, buckets, fields)
    switch = SimulatedSwitch.of([flow(0, 1, (act.ToGroup(1),))], [group])
    pods = [ip_address(f"10.1.{node}.{pod}") for node in range(3) for pod in range(2, 12)]
    tcp = [replace(PACKET, src=pod, src_port=port) for pod in pods for port in range(40000, 40100, 2)]
    udp = [replace(PACKET, src=pod, dst=other, proto=IP_UDP) for pod in pods for other in pods]
    for packets in (tcp, udp):
        shares = Counter(switch.walk(packet).outputs[0][0] for packet in packets)
        assert len(shares) == gateways
        assert max(shares.values()) <= 1.3 * len(packets) / gateways


def test_ct_forks_and_untracks() -> None:
    """With a table the tracked copy goes on there; the actions after ct see an untracked packet."""
    mark = act.SetField(CT_MARK, 3, 0xFF)
    flows = [
        flow(0, 1, (act.Ct(zone=5, table=1), act.Resubmit(2))),
        flow(1, 5, (act.Ct(zone=5, commit=True, exec_=(mark,)), act.Output(10)), ct_state("+trk+new"), IPV4_ONLY),
        flow(1, 1, (act.Output(11),), exact(CT_MARK, 3)),
        flow(2, 5, (act.Output(12),), ct_state("-trk")),
    ]
    switch = SimulatedSwitch.of(flows)
    walk = switch.walk(PACKET)
    assert sorted(port for port, _ in walk.outputs) == [10, 12]
    back = switch.walk(replace(PACKET.reply(), in_port=4), walk.connections)
    assert sorted(port for port, _ in back.outputs) == [11, 12]


@given(st.data())
def test_lookup_equals_a_plain_search(data: st.DataObject) -> None:
    """The index finds exactly what trying every flow would find."""
    nets = st.builds(
        lambda octet, length: ip_network(f"10.{octet}.0.0/{length}", strict=False),
        st.integers(0, 7),
        st.integers(6, 16),
    )
    terms = st.one_of(
        st.just(()),
        nets.map(source_in),
        nets.map(destination_in),
        st.integers(1, 4).map(lambda p: (exact(IN_PORT, p),)),
    )
    drawn = data.draw(st.lists(st.tuples(terms, st.integers(0, 5)), max_size=15))
    flows = [flow(0, priority, (act.Output(90 + i),), *ts) for i, (ts, priority) in enumerate(drawn)]
    packet = replace(
        PACKET,
        in_port=data.draw(st.integers(1, 4)),
        src=ip_address(f"10.{data.draw(st.integers(0, 7))}.0.1"),
        dst=ip_address(f"10.{data.draw(st.integers(0, 7))}.0.1"),
    )
    walk = SimulatedSwitch.of(flows).walk(packet)
    state = walk.steps[0].state
    matching = [f for f in flows if all(state.get(t.field, 0) & t.mask == t.value for t in f.match.terms)]
    top = max((f.priority for f in matching), default=None)
    expected = {f.actions for f in matching if f.priority == top}
    actions = {step.flow.actions for step in walk.steps if step.flow}
    assert actions <= expected
    assert bool(actions) is bool(expected)
    assert bool(walk.problems) is (len(expected) > 1)


def test_a_conjunctive_match_needs_every_clause() -> None:
    """Only with a flow of each clause the packet is looked up again; a plain flow of that priority comes first."""
    conjunction, two = act.Conjunction(7, 1, 2), act.Conjunction(7, 2, 2)
    rule = [
        flow(0, 5, (conjunction,), *to("10.2.0.9/32")),
        flow(0, 5, (two,), exact(IN_PORT, 3)),
        flow(0, 5, (act.Output(9),), exact(CONJ_ID, 7)),
        flow(0, 1, (act.Output(1),)),
    ]
    assert [port for port, _ in SimulatedSwitch.of(rule).walk(PACKET).outputs] == [9]
    assert [port for port, _ in SimulatedSwitch.of(rule[1:]).walk(PACKET).outputs] == [1]
    plain = flow(0, 5, (act.Output(4),), *to("10.2.0.0/16"))
    assert [port for port, _ in SimulatedSwitch.of([*rule, plain]).walk(PACKET).outputs] == [4]
    assert not list(contradictions(rule))
    assert list(contradictions([rule[0], replace(rule[0], actions=(act.Output(4),))]))
