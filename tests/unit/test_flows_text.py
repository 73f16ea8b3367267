"""The text form: what Open vSwitch prints, written and read back."""

from __future__ import annotations

import time
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows import Bits, Bucket, Flow, FlowError, Group, GroupType, Match, Term
from flows import actions as act
from flows import fields as f
from flows.parse import parse_flow, parse_group, parse_match
from flows.parse_actions import parse_actions
from flows.text import is_group_line, parse_flow_line, parse_group_line

# Lines as Open vSwitch 3.1.0 printed them (-O OpenFlow15 --no-names --no-stats).
MATCHES = [
    "",
    "ip,in_port=1,dl_dst=aa:bb:cc:dd:ee:f0",
    "ip,reg0=0x4/0xf,reg1=0x7,nw_src=10.1.2.3,nw_dst=10.0.0.0/24",
    "ct_state=+rpl+trk,ct_label=0x1/0xffff,ip",
    "ct_state=+new-est+trk,tcp,nw_dst=10.1.2.3,tp_dst=80",
    (
        "ct_state=+est-rpl+trk,ct_zone=3,ct_mark=0x5/0xffff,ct_label=0/0xffff,tcp,reg0=0x10/0x10,reg3=0/0xffff,"
        "tun_id=0x5,metadata=0x3,in_port=2,dl_src=aa:bb:cc:dd:ee:f0,dl_dst=aa:bb:cc:dd:ee:f0/ff:ff:ff:ff:ff:fe,"
        "nw_src=10.0.0.0/8,nw_dst=1.2.3.4,nw_ttl=64,nw_frag=no,tp_src=80,tp_dst=443"
    ),
    "ip,nw_proto=47,nw_frag=yes",
    "ip,nw_dst=10.0.0.1,nw_proto=47,nw_ttl=3",
    "ip,nw_frag=not_later",
    "ip,nw_frag=later",
    "udp6,ipv6_dst=fd00::1,tp_dst=53",
    "ipv6,ipv6_src=fd00::/64",
    "icmp,icmp_type=8,icmp_code=0",
    "icmp6,icmp_type=128",
    "sctp,tp_dst=0x50/0xfff0",
    "arp",
    "ct_state=-trk",
]
ACTIONS = [
    "drop",
    "set_field:0x1/0xf->reg0,set_field:0/0xffff->reg2,resubmit(,10)",
    "set_field:0x5->reg1,goto_table:10",
    "ct(table=30,zone=100)",
    "ct(table=30,zone=101,nat)",
    "ct(commit,table=60,zone=101,nat(dst=10.3.3.3:80))",
    (
        "ct(commit,force,table=60,zone=101,nat(src=10.3.3.3),exec(move:NXM_NX_REG2[0..15]->NXM_NX_CT_LABEL[0..15],"
        "set_field:0x1/0xffff->ct_mark,set_field:0x10000/0x10000->ct_mark))"
    ),
    (
        "move:NXM_NX_CT_LABEL[0..15]->NXM_NX_REG3[0..15],set_field:aa:bb:cc:dd:ee:f0->eth_dst,dec_ttl,"
        "output:NXM_NX_REG3[0..15]"
    ),
    "ct(commit,zone=5,nat(dst=fd00::1))",
    "ct(commit,zone=5,nat(dst=[fd00::1]:80))",
    "output:1,IN_PORT",
    "LOCAL",
    "group:16777217",
    "set_field:1->tcp_dst,move:NXM_OF_ETH_SRC[]->NXM_OF_ETH_DST[]",
    "set_field:fd00::2->ipv6_dst,set_field:10->nw_ttl",
    "ct(commit,zone=5,exec(set_field:0x5->ct_mark,set_field:0x5->ct_label))",
]
GROUPS = [
    " group_id=7,type=select,bucket=bucket_id:5,watch_port:1,actions=dec_ttl,output:1",
    " group_id=6,type=all,bucket=bucket_id:0,actions=output:1,bucket=bucket_id:1,actions=drop",
    " group_id=5,type=indirect,bucket=bucket_id:0,actions=output:1",
    (
        " group_id=3,type=ff,bucket=bucket_id:1,watch_port:1,actions=output:1,bucket=bucket_id:2,watch_group:2,"
        "actions=group:2"
    ),
    " group_id=8,type=select",
    (
        " group_id=16777217,type=select,selection_method=hash,fields(ip_src,ip_dst,nw_proto,tcp_src,tcp_dst),"
        "bucket=bucket_id:5,weight:100,actions=ct(commit,table=60,zone=101,nat(dst=10.3.3.3:80)),"
        "bucket=bucket_id:7,weight:0,actions=ct(commit,table=60,zone=101,nat(dst=10.3.3.4:80))"
    ),
    " group_id=9,type=select,selection_method=hash,fields=ip_src,bucket=bucket_id:305419896,actions=resubmit(,60)",
]


@pytest.mark.parametrize("text", MATCHES)
def test_matches_of_a_dump_are_written_as_they_were_read(text: str) -> None:
    """Reading and writing a match changes nothing."""
    flow = Flow(0, 1, parse_match(text), ())
    assert flow.match_text == text


@pytest.mark.parametrize("text", ACTIONS)
def test_actions_of_a_dump_are_written_as_they_were_read(text: str) -> None:
    """Reading and writing actions changes nothing."""
    flow = Flow(0, 1, Match(), parse_actions(text))
    assert flow.actions_text == text


@pytest.mark.parametrize("line", GROUPS)
def test_groups_of_a_dump_are_written_as_they_were_read(line: str) -> None:
    """Reading and writing a group changes nothing, and both ways to read it agree."""
    group = parse_group(line)
    assert f" group_id={group.group_id},{group.body_text}" == line
    assert parse_group_line(line) == (group.group_id, group.body_text)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (" priority=101,ip,in_port=1 actions=goto_table:10", (0, 101, "ip,in_port=1", 0, "goto_table:10")),
        (" cookie=0x6d63000000000001, priority=0 actions=drop\n", (0, 0, "", 0x6D63_0000_0000_0001, "drop")),
        (" table=22, priority=0 actions=drop", (22, 0, "", 0, "drop")),
        (" table=1, actions=resubmit(,3)", (1, 32768, "", 0, "resubmit(,3)")),
        (" actions=drop", (0, 32768, "", 0, "drop")),
        (" table=1, ipv6 actions=drop", (1, 32768, "ipv6", 0, "drop")),
        (
            (
                " cookie=0x7, duration=810.299s, table=23, n_packets=3, n_bytes=9, idle_timeout=5, idle_age=810, "
                "priority=3,ip,nw_dst=10.0.0.0/8 actions=output:1"
            ),
            (23, 3, "ip,nw_dst=10.0.0.0/8", 7, "output:1"),
        ),
    ],
)
def test_lines_are_cut_with_and_without_statistics(line: str, expected: tuple[int, int, str, int, str]) -> None:
    """Table, priority, match, cookie and actions are found wherever they stand; defaults are filled in."""
    assert parse_flow_line(line) == expected
    flow = parse_flow(line)
    assert (flow.table, flow.priority, flow.match_text, flow.cookie, flow.actions_text) == expected


def test_headings_of_dumps_are_told_from_entries() -> None:
    """The first line of a dump of groups is none."""
    assert not is_group_line("OFPST_GROUP_DESC reply (OF1.5) (xid=0x2):")
    assert is_group_line(GROUPS[0])


def test_port_names_are_understood_when_told() -> None:
    """A dump with --names reads like one with numbers."""
    line = ' priority=1,ip,in_port="mc-gw0" actions=output:"mcn-1"'
    assert parse_flow(line, {"mc-gw0": 1, "mcn-1": 7}) == parse_flow(" priority=1,ip,in_port=1 actions=output:7")
    with pytest.raises(FlowError, match="mc-gw0"):
        parse_flow(line)


def test_a_load_is_the_set_field_that_ovs_makes_of_it() -> None:
    """OpenFlow 1.3 dumps print load where 1.5 prints set_field; both give one value."""
    assert parse_actions("load:0x1->NXM_NX_REG0[4]") == parse_actions("set_field:0x10/0x10->reg0")
    assert parse_actions("load:0x50->NXM_OF_TCP_DST[]") == parse_actions("set_field:80->tcp_dst")


@pytest.mark.parametrize(
    "line",
    [
        "priority=1,ip",
        "priority=1,nosuch=3 actions=drop",
        "priority=1,ip,tp_dst=3 actions=drop",
        "priority=1,ip,nw_src=fd00::1 actions=drop",
        "priority=1,ip,nw_src=10.0.0 actions=drop",
        "priority=1 actions=nosuch",
        "priority=1 actions=set_field:1->nosuch",
        "priority=1 actions=move:NOSUCH[]->NXM_NX_REG0[]",
        "priority=1 actions=ct(nosuch)",
        "priority=1 actions=ct(commit,nat(src=10.0.0.1-10.0.0.9))",
    ],
)
def test_what_is_not_understood_is_an_error(line: str) -> None:
    """Nothing is passed over in silence."""
    with pytest.raises(FlowError):
        parse_flow(line)


@pytest.mark.parametrize(
    "line", ["type=select", "group_id=1,type=nosuch", "group_id=1,type=all,bucket=bucket_id:1"]
)
def test_what_is_no_group_is_an_error(line: str) -> None:
    """Nothing is passed over in silence."""
    with pytest.raises(FlowError):
        parse_group(line)


def test_a_big_dump_is_cut_quickly() -> None:
    """Ten thousand flows take far under a second of this process's own time (20 ms where this was written)."""
    line = " cookie=0x6d63020000000065, table=10, priority=216,ip,reg1={},nw_src=10.{}.{}.0/24 actions=drop"
    lines = [line.format(hex(n + 1), n // 256, n % 256) for n in range(10_000)]
    start = time.process_time()
    assert len({parse_flow_line(text) for text in lines}) == 10_000
    assert time.process_time() - start < 1


# --- any value ------------------------------------------------------------------------------------------


def _prefixes(width: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(0, (1 << width) - 1), st.integers(1, width)).map(
        lambda pair: (
            pair[0] & ~((1 << (width - pair[1])) - 1),
            ((1 << width) - 1) ^ ((1 << (width - pair[1])) - 1),
        )
    )


def _masked(field: f.MatchField) -> st.SearchStrategy[Term]:
    full = field.full_mask
    return st.tuples(st.integers(0, full), st.integers(1, full)).map(lambda p: Term(field, p[0] & p[1], p[1]))


_STATE_MASK = sum(f.CT_BITS.values())
_FREE = [
    *(_masked(field) for field in (f.REGISTERS[0], f.REGISTERS[9], f.CT_MARK, f.CT_LABEL, f.PKT_MARK, f.TUN_ID)),
    *(_masked(field) for field in (f.ETH_SRC, f.ETH_DST)),
    st.integers(1, 0xFEFF).map(lambda port: f.exact(f.IN_PORT, port)),
    st.tuples(st.integers(0, 255), st.integers(1, 255)).map(
        lambda p: Term(f.CT_STATE, p[0] & p[1] & _STATE_MASK, (p[1] & _STATE_MASK) or f.CT_TRK)
    ).map(lambda t: Term(t.field, t.value & t.mask, t.mask)),
]  # fmt: skip


@st.composite
def matches(draw: st.DrawFn) -> Match:
    """Any match of either family or of none."""
    terms = [draw(strategy) for strategy in draw(st.lists(st.sampled_from(_FREE), max_size=5))]
    family = draw(st.sampled_from((None, f.IPV4_ONLY, f.IPV6_ONLY)))
    if family is not None:
        terms.append(family)
        sides = (f.IPV4_SRC, f.IPV4_DST) if family is f.IPV4_ONLY else (f.IPV6_SRC, f.IPV6_DST)
        terms.extend(Term(side, *draw(_prefixes(side.width))) for side in draw(st.sets(st.sampled_from(sides))))
        protocol = draw(st.sampled_from((None, 6, 17, 47, 132)))
        if protocol is not None:
            terms.append(f.exact(f.IP_PROTO, protocol))
            if protocol in f.PORTS_DST and draw(st.booleans()):
                terms.append(draw(_masked(f.PORTS_DST[protocol])))
        if draw(st.booleans()):
            terms.append(f.exact(f.IP_TTL, draw(st.integers(0, 255))))
    unique = {term.field: term for term in terms}
    return Match.of(*unique.values())


_addresses = st.one_of(
    st.integers(0, (1 << 32) - 1).map(IPv4Address), st.integers(1 << 96, (1 << 128) - 1).map(IPv6Address)
)
_set_fields = st.one_of(*(_masked(field) for field in (f.REGISTERS[1], f.ETH_DST))).map(
    lambda t: act.SetField(t.field, t.value, t.mask)
)
_exec = st.one_of(
    _masked(f.CT_MARK).map(lambda t: act.SetField(t.field, t.value, t.mask)),
    st.just(act.Move(Bits("a", f.REGISTERS[2], 0, 15), Bits("b", f.CT_LABEL, 16, 31))),
)
_nats = st.one_of(
    st.none(),
    st.just(act.Nat()),
    st.builds(act.Nat, st.sampled_from(("src", "dst")), _addresses, st.one_of(st.none(), st.integers(1, 65535))),
    st.builds(act.Nat, st.just("src"), _addresses, st.integers(1, 1024), st.integers(1025, 65535)),
)
_actions = st.one_of(
    st.integers(1, 0xFEFF).map(act.Output),
    st.just(act.OutputBits(Bits("out", f.REGISTERS[3], 4, 4))),
    st.integers(0, 254).map(act.Resubmit),
    _set_fields,
    st.just(act.DecTtl()),
    st.just(act.CtClear()),
    st.builds(act.CheckLarger, st.integers(1, 65535), st.just(Bits("large", f.REGISTERS[0], 9, 9))),
    st.integers(1, (1 << 31)).map(act.ToGroup),
    st.builds(
        act.Ct, st.integers(0, 65535), st.one_of(st.none(), st.integers(0, 254)), st.booleans(), st.booleans(),
        _nats, st.lists(_exec, max_size=2).map(tuple),
    ),
)  # fmt: skip
_action_lists = st.lists(_actions, max_size=4).map(tuple)


@given(matches(), _action_lists, st.integers(0, 254), st.integers(0, 65535), st.integers(0, (1 << 64) - 1))
def test_any_flow_survives_its_text(
    match: Match, actions: act.Actions, table: int, priority: int, cookie: int
) -> None:
    """What is written is read back as the same value."""
    flow = Flow(table, priority, match, actions, cookie)
    matched = f",{flow.match_text}" if flow.match_text else ""
    line = f" cookie={cookie:#x}, table={table}, priority={priority}{matched} actions={flow.actions_text}"
    assert parse_flow(line) == flow
    assert parse_flow_line(line) == (table, priority, flow.match_text, cookie, flow.actions_text)


_buckets = st.lists(
    st.builds(
        Bucket, st.integers(0, 1 << 31), _action_lists, st.integers(0, 100),
        st.one_of(st.none(), st.integers(1, 65000)), st.one_of(st.none(), st.integers(1, 1 << 30)),
    ),
    max_size=4,
).map(tuple)  # fmt: skip


@given(st.sampled_from(GroupType), _buckets, st.booleans())
def test_any_group_survives_its_text(kind: GroupType, buckets: tuple[Bucket, ...], hashed: bool) -> None:
    """What is written is read back as the same value."""
    fields = (f.HashField(f.IPV4_SRC, 7), f.HashField(f.IP_PROTO, 0xFF), f.HashField(f.UDP_DST, 0x7E))
    group = Group(5, kind, buckets, fields=fields if hashed else ())
    assert parse_group(f"group_id=5,{group.body_text}") == group


@given(st.integers(0, (1 << 32) - 1), st.integers(0, 32))
def test_networks_become_conditions_on_the_field_of_their_family(address: int, length: int) -> None:
    """A packet matches exactly when its address lies in the network; nothing assumes IPv4."""
    net4 = IPv4Network((address, length), strict=False)
    net6 = IPv6Network((address << 96, length), strict=False)
    for net, source in ((net4, f.IPV4_SRC), (net6, f.IPV6_SRC)):
        family, inside = f.source_in(net)
        assert (family, inside.field) == (f.eth_type_of(net), source)
        assert int(net.network_address) & inside.mask == inside.value
        if length:
            assert (int(net.network_address) ^ (1 << (source.width - 1))) & inside.mask != inside.value
