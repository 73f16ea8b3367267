"""Text of flows and groups that is not understood: which part the error names, and what is valid there."""

from __future__ import annotations

import pytest

from flows import actions as act
from flows.errors import FlowError
from flows.fields import PORT_IN_PORT, PORT_LOCAL
from flows.parse import parse_flow, parse_group, parse_match
from flows.parse_actions import parse_actions
from flows.pipeline.registers import TOO_LARGE

NO_RANGE = "is no range of bits of a known field"


@pytest.mark.parametrize(
    ("text", "field", "reason"),
    [
        ("x", "x", "is no field"),
        ("x=1", "x", "is no field here"),
        ("tp_src=1", "tp_src", "is no field here"),
        ("nw_proto=x", "nw_proto", '"x" is no number'),
        ("reg0=1/x", "reg0", '"x" is no number'),
        ("nw_frag=x", "nw_frag", '"x" is none of no, yes, first, later, not_later'),
        ("nw_src=x", "nw_src", '"x" is no IP address'),
        ("nw_src=1.2.3.4/x", "nw_src", '"x" is no IP address'),
        ("nw_src=::1", "nw_src", '"::1" is of the other family'),
        ("ipv6_src=1.2.3.4", "ipv6_src", '"1.2.3.4" is of the other family'),
        ("dl_src=1:2", "MAC", '"1:2" is no MAC address'),
        ("in_port=eth0", "port", '"eth0" is not known'),
        ("ct_state=+foo", "ct_state", '"+foo" is none of its flags: new, est, rel, rpl, inv, trk, snat, dnat'),
    ],
)
def test_matches_that_are_not_understood(text: str, field: str, reason: str) -> None:
    """The error names the field, and shows the value."""
    with pytest.raises(FlowError) as info:
        parse_match(text)
    assert (info.value.table, info.value.field, info.value.reason) == ("", field, reason)
    assert str(info.value) == f"{field}: {reason}"


@pytest.mark.parametrize(
    ("text", "field", "reason"),
    [
        ("x", "x", "is no known action"),
        ("set_field:1->x", "x", "is no field to set"),
        ("set_field:x->reg0", "reg0", '"x" is no number'),
        ("output:eth0", "port", '"eth0" is not known'),
        ("output:X[]", "X[]", NO_RANGE),
        ("load:x->NXM_NX_REG0[]", "load", '"x" is no number'),
        ("load:1->X[]", "X[]", NO_RANGE),
        ("load:1->NXM_NX_REG0", "NXM_NX_REG0", NO_RANGE),
        ("move:X[]->NXM_NX_REG0[]", "X[]", NO_RANGE),
        ("move:NXM_NX_REG0[]->X[]", "X[]", NO_RANGE),
        ("ct(x)", "ct", '"x" is not understood'),
        ("ct(table=x)", "ct table", '"x" is no number'),
        ("ct(zone=x)", "ct zone", '"x" is no number'),
        ("ct(nat(x=1))", "nat", '"x=1" is not understood (one address, at most one range of ports)'),
        ("ct(nat(src=x))", "nat", '"src=x" is not understood'),
        ("ct(nat(src=1.2.3.4:x))", "nat", '"src=1.2.3.4:x" is not understood'),
        ("ct(commit,exec(dec_ttl))", "ct", '"dec_ttl" cannot stand in exec'),
        ("group:x", "group", '"x" is no number'),
        ("meter:x", "meter", '"x" is no number'),
        ("CONTROLLER:x", "CONTROLLER", '"x" is no number'),
        ("goto_table:x", "goto_table", '"x" is no number'),
        ("resubmit(,x)", "resubmit", '"x" is no number'),
    ],
)
def test_actions_that_are_not_understood(text: str, field: str, reason: str) -> None:
    """The error names the action or the field that it writes."""
    with pytest.raises(FlowError) as info:
        parse_actions(f"dec_ttl,{text}")
    assert (info.value.table, info.value.field, info.value.reason) == ("", field, reason)


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("LOCAL", act.Output(PORT_LOCAL)),
        ("IN_PORT", act.Output(PORT_IN_PORT)),
        ("output:LOCAL", act.Output(PORT_LOCAL)),
        ('output:"7"', act.Output(7)),
        ("output:eth0", act.Output(9)),
        ("CONTROLLER:128", act.ToController(128)),
        ("resubmit(,7)", act.Resubmit(7)),
        ("goto_table:0x7", act.Goto(7)),
        ("conjunction(5,1/2)", act.Conjunction(5, 1, 2)),
        ("check_pkt_larger(1464)->NXM_NX_REG0[9]", act.CheckLarger(1464, TOO_LARGE)),
        ("dec_ttl", act.DecTtl()),
        ("ct_clear", act.CtClear()),
        ("ct()", act.Ct(0)),
        ("ct(force,commit,zone=7,table=3)", act.Ct(7, table=3, commit=True, force=True)),
        ("ct(nat)", act.Ct(0, nat=act.Nat())),
        ("ct(nat(src))", act.Ct(0, nat=act.Nat("src"))),
    ],
)
def test_actions(text: str, action: act.Action) -> None:
    """Words, numbers in either base, and names of ports become one value each."""
    assert parse_actions(text, {"eth0": 9}) == (action,)
    assert parse_actions(f"{text},dec_ttl", {"eth0": 9}) == (action, act.DecTtl())


@pytest.mark.parametrize(
    ("text", "nat"),
    [
        ("src=10.0.0.1", "src=10.0.0.1"),
        ("dst=10.0.0.1:80", "dst=10.0.0.1:80"),
        ("src=10.0.0.1:80-90", "src=10.0.0.1:80-90"),
        ("src=fd00::1", "src=fd00::1"),
        ("src=[fd00::1]:80-90", "src=[fd00::1]:80-90"),
    ],
)
def test_addresses_of_translations(text: str, nat: str) -> None:
    """Address and ports of both families are read, and written as they were."""
    flow = parse_flow(f"priority=1 actions=ct(commit,nat({text}))")
    assert flow.actions_text == f"ct(commit,nat({nat}))"


@pytest.mark.parametrize(
    ("text", "field", "reason"),
    [
        ("x", "group", '"x" is no group'),
        ("group_id=1", "group", '"group_id=1" is no group'),
        ("group_id=1,type=x", "group 1", "not understood: 'x' is not a valid GroupType"),
        ("group_id=1,type=select,fields=x", "group 1", "not understood: 'x'"),
        ("group_id=1,type=ff,bucket=weight:7", "bucket", 'no actions in "weight:7"'),
        ("group_id=1,type=ff,bucket=b:1,a:2,actions=drop", "bucket", "a, b: not understood"),
        ("group_id=1,type=ff,bucket=weight:x,actions=drop", "weight", '"x" is no number'),
        ("group_id=1,type=ff,bucket=bucket_id:x,actions=drop", "bucket_id", '"x" is no number'),
        ("group_id=1,type=ff,bucket=watch_group:x,actions=drop", "watch_group", '"x" is no number'),
        ("group_id=1,type=ff,bucket=watch_port:eth0,actions=drop", "port", '"eth0" is not known'),
    ],
)
def test_groups_that_are_not_understood(text: str, field: str, reason: str) -> None:
    """The error names the group, or the option of a bucket."""
    with pytest.raises(FlowError) as info:
        parse_group(text)
    assert (info.value.table, info.value.field, info.value.reason) == ("", field, reason)


def test_a_line_that_is_no_flow() -> None:
    """A line without actions is a heading, or cut."""
    with pytest.raises(FlowError) as info:
        parse_flow(" priority=1,ip ")
    assert str(info.value) == 'flow: no "actions=" in "priority=1,ip"'
    assert str(FlowError("First", "reg0", "is not declared")) == "table First: reg0: is not declared"
    assert str(FlowError("First", "", "is not declared")) == "table First: is not declared"
