"""What was not declared, or is no legal OpenFlow, is refused when it is built, with table and field named."""

from __future__ import annotations

import pytest

from flows import Bits, Bucket, FlowError, Group, GroupType, Match, Term
from flows import actions as act
from flows import fields as f
from flows.declare import Category, CookieLayout, GroupKind, Pipeline, PipelineTable

KEPT = Bits("kept", f.REGISTERS[0], 0, 3)
MARK = Bits("mark", f.CT_MARK, 0, 7)
FIRST = PipelineTable(number=0, name="First", purpose="in", fields=(f.ETH_TYPE, f.IPV4_SRC, KEPT), next=(5,))
SECOND = PipelineTable(number=5, name="Second", purpose="out", fields=(f.ETH_TYPE,))
BASE = Category(number=1, name="base", purpose="all")
CHOICE = GroupKind(number=1, name="choice", purpose="some port", next=(5,))
PIPELINE = Pipeline(
    tables=(FIRST, SECOND),
    bits=(KEPT, MARK),
    writes=(f.ETH_DST,),
    zones=(),
    groups=(CHOICE,),
    categories=(BASE,),
    cookies=CookieLayout(owner=0x6D63),
)


def build(
    *actions: act.Action, terms: tuple[Term, ...] = (), table: PipelineTable = FIRST, priority: int = 1
) -> str:
    """Build a flow and return its actions' text."""
    return PIPELINE.flow(table, priority, terms, actions).actions_text


def test_what_is_declared_is_built() -> None:
    """A flow that keeps to the declaration is a plain value."""
    terms = (f.IPV4_ONLY, KEPT.is_(2))
    flow = PIPELINE.flow(FIRST, 7, terms, (act.set_bits(KEPT, 1), act.Goto(5)), cookie=3)
    assert (flow.table, flow.priority, flow.cookie) == (0, 7, 3)
    assert (flow.match_text, flow.actions_text) == ("ip,reg0=0x2/0xf", "set_field:0x1/0xf->reg0,goto_table:5")


@pytest.mark.parametrize(
    ("terms", "actions", "where", "fault"),
    [
        ((f.IPV4_ONLY, f.exact(f.IPV4_DST, 1)), (), "First", "ip_dst"),
        ((Bits("more", f.REGISTERS[0], 0, 4).is_(1),), (), "First", "reg0"),
        ((f.exact(f.IPV4_SRC, 1),), (), "First", "ip_src"),  # no prerequisite
        ((), (act.Goto(6),), "First", "table 6"),
        ((), (act.Resubmit(0),), "First", "table 0"),
        ((), (act.Ct(1, table=9),), "First", "table 9"),
        ((), (act.Goto(5), act.Output(1)), "First", "goto_table"),
        ((), (act.set_whole(f.REGISTERS[0], 1),), "First", "reg0"),
        ((), (act.set_whole(f.ETH_SRC, 1),), "First", "eth_src"),
        ((), (act.SetField(f.CT_MARK, 1, 0xFF),), "First", "ct_mark"),
        ((), (act.Ct(1, exec_=(act.SetField(f.CT_MARK, 1, 0xFF),)),), "First", "ct"),  # no commit
        ((), (act.Ct(1, commit=True, exec_=(act.SetField(f.CT_MARK, 1, 0x1FF),)),), "First", "ct_mark"),
        ((), (act.Move(KEPT, Bits("else", f.REGISTERS[1], 0, 3)),), "First", "reg1"),
        ((), (act.ToGroup(2 << 24),), "First", "group 0x2000000"),
        ((), (act.Ct(1 << 16),), "First", "ct"),
        ((), (act.CheckLarger(1500, Bits("else", f.REGISTERS[1], 0, 0)),), "First", "reg1"),
        ((), (act.Conjunction(7, 1, 2), act.set_bits(KEPT, 1)), "First", "conjunction"),
        ((), (act.set_bits(KEPT, 1), act.Conjunction(7, 1, 2), act.Conjunction(8, 1, 2)), "First", "conjunction"),
        ((), (act.Conjunction(7, 1, 2), act.Conjunction(8, 1, 2), act.Goto(5)), "First", "conjunction"),
        ((), (act.Conjunction(7, 3, 2),), "First", "conjunction(7,3/2)"),
        ((), (act.Conjunction(7, 1, 65),), "First", "conjunction(7,1/65)"),
    ],
)
def test_what_is_not_declared_is_refused(
    terms: tuple[Term, ...], actions: act.Actions, where: str, fault: str
) -> None:
    """The error names table and field."""
    with pytest.raises(FlowError) as caught:
        PIPELINE.flow(FIRST, 1, terms, actions)
    assert (caught.value.table, caught.value.field) == (where, fault)
    assert where in str(caught.value)


def test_a_table_of_another_pipeline_is_refused() -> None:
    """Only the declared Table objects count, not their numbers."""
    with pytest.raises(FlowError, match="Foreign"):
        build(table=PipelineTable(number=0, name="Foreign", purpose=""))


def test_goto_leads_to_later_tables_only() -> None:
    """OpenFlow allows goto_table to higher numbers only."""
    back = PipelineTable(number=7, name="Back", purpose="", next=(0,))
    pipeline = Pipeline(
        tables=(FIRST, SECOND, back),
        bits=(KEPT,),
        writes=(),
        zones=(),
        groups=(),
        categories=(),
        cookies=CookieLayout(owner=1),
    )
    with pytest.raises(FlowError, match="later tables"):
        pipeline.flow(back, 1, (), (act.Goto(0),))
    assert pipeline.flow(back, 1, (), (act.Resubmit(0),)).actions_text == "resubmit(,0)"


@pytest.mark.parametrize(
    ("group_id", "buckets", "fault"),
    [
        (2 << 24, (), "no declared kind"),
        (1 << 24, (Bucket(1, (act.Goto(5),)),), "cannot goto"),
        (1 << 24, (Bucket(1, (act.Resubmit(0),)),), "table 0"),
        (1 << 24, (Bucket(1, ()), Bucket(1, ())), "one bucket_id"),
    ],
)
def test_groups_keep_to_their_kind(group_id: int, buckets: tuple[Bucket, ...], fault: str) -> None:
    """A group of no declared kind, or whose buckets leave it, is refused."""
    with pytest.raises(FlowError, match=fault):
        PIPELINE.group(Group(group_id, GroupType.SELECT, buckets))


@pytest.mark.parametrize(
    "terms",
    [
        (KEPT.is_(1), Bits("low", f.REGISTERS[0], 0, 0).is_(0)),
        (f.exact(f.ETH_TYPE, 0x0800), f.exact(f.ETH_TYPE, 0x86DD)),
        (Term(f.IN_PORT, 1, 0xFF),),
        (f.IPV4_ONLY, f.exact(f.TCP_DST, 80)),
        (f.IPV4_ONLY, f.exact(f.IP_PROTO, f.IP_UDP), f.exact(f.TCP_DST, 80)),
        (f.IPV6_ONLY, f.exact(f.IPV4_SRC, 1)),
        (Term(f.REGISTERS[0], 0x10, 0xF),),
    ],
)
def test_a_match_that_no_packet_or_no_ovs_takes_is_refused(terms: tuple[Term, ...]) -> None:
    """Contradictions, missing prerequisites and illegal masks are errors."""
    with pytest.raises(FlowError):
        Match.of(*terms)


def test_numbers_that_do_not_fit_are_refused() -> None:
    """Values, cookies and group numbers are checked against their width."""
    layout = PIPELINE.cookies
    for wrong in (lambda: KEPT.is_(16), lambda: layout.cookie(BASE, 1 << 32), lambda: CHOICE.group_id(1 << 24)):
        with pytest.raises(FlowError, match="does not fit"):
            wrong()
    for number in (-1, 256):
        with pytest.raises(FlowError, match=f"{number} does not fit 8 bits"):
            f.exact(f.IP_TOS, number)
    assert [f.exact(f.IP_TOS, number).value for number in (0, 255)] == [0, 255]


def test_declarations_are_checked_against_each_other() -> None:
    """Overlapping bit ranges and undeclared next tables are errors of the declaration."""
    common = {"writes": (), "zones": (), "groups": (), "categories": (), "cookies": CookieLayout(owner=1)}
    with pytest.raises(FlowError, match="overlaps"):
        Pipeline(tables=(SECOND,), bits=(KEPT, Bits("b", f.REGISTERS[0], 3, 5)), **common)  # type: ignore[arg-type]
    with pytest.raises(FlowError, match="not declared"):
        Pipeline(tables=(FIRST,), bits=(), **common)  # type: ignore[arg-type]


def test_cookies_say_whose_they_are() -> None:
    """Owner, category and number can be read back from a cookie."""
    cookie = PIPELINE.cookies.cookie(BASE, 77)
    assert cookie == 0x6D63_0100_0000_004D
    assert PIPELINE.cookies.split(cookie) == (1, 77)
    assert PIPELINE.cookies.split(77) is None
    value, mask = PIPELINE.cookies.mask
    assert cookie & mask == value
