"""The winner of the dispute for a gateway's address: properties over any claimants and reports, and examples."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcagent.controller.leader.disputes import (
    ANY_CLUSTER,
    TRIAL,
    AnswerReport,
    Claimant,
    ClaimStanding,
    Dispute,
    Quorum,
    reason,
    winner,
)

ADDRESS, DERIVED = "192.168.2.12", "176.168.2.12"
CLUSTERS = ("a", "b", "c", "d")
NOW = 1_000_000.0
EARLIER, LATER = "2026-01-01T00:00:00.000000Z", "2026-01-02T00:00:00.000000Z"


def gateway(cluster: str, since: str = "", address: str = ADDRESS, **fields: object) -> Claimant:
    """Return a cluster's claim to a gateway; it encrypts."""
    claimant = Claimant(
        cluster_id=cluster, claim=f"gateway {address}", address=address, since=since, encrypts=True
    )
    return replace(claimant, **fields)  # type: ignore[arg-type]


def cidr(cluster: str, since: str = EARLIER, **fields: object) -> Claimant:
    """Return a cluster's granted CIDR around the gateway."""
    return replace(Claimant(cluster_id=cluster, claim=f"Pod CIDR {ADDRESS}/32", since=since), **fields)  # type: ignore[arg-type]


def reports(*answers: str, encrypts: bool = True) -> tuple[AnswerReport, ...]:
    """Return reports of members that have tunnels to all clusters: who answers each of them; "": nobody."""
    return tuple(
        AnswerReport(
            reporter=f"x{number}",
            tunnels=frozenset(CLUSTERS),
            answers=frozenset({cluster} - {""}),
            encrypts=encrypts,
        )
        for number, cluster in enumerate(answers)
    )


def owner(claimants: list[Claimant], *answers: str) -> str:
    """Return the cluster that wins."""
    first = winner(Dispute(tuple(claimants), reports(*answers), NOW))
    return first.cluster_id if first is not None else ""


# --- properties -----------------------------------------------------------------------------------------------

_TIMES = st.sampled_from(("", EARLIER, LATER))
_IDS = st.frozensets(st.sampled_from((*CLUSTERS, ANY_CLUSTER)), max_size=2)
_GATEWAYS = st.builds(
    gateway,
    st.sampled_from(CLUSTERS),
    _TIMES,
    st.sampled_from((ADDRESS, ADDRESS, DERIVED)),
    created=_TIMES,
    proved=st.booleans(),
    challenged_at=st.sampled_from((None, NOW - 1, NOW - TRIAL)),
    encrypts=st.booleans(),
    has_tried=st.booleans(),
    settled=_IDS,
)
_CIDRS = st.builds(cidr, st.sampled_from(CLUSTERS), st.sampled_from((EARLIER, LATER)), yields_to=_IDS)
_CLAIMANTS = st.lists(st.one_of(_GATEWAYS, _GATEWAYS, _CIDRS), max_size=4, unique_by=lambda c: c.cluster_id)
_REPORTS = st.builds(
    AnswerReport,
    reporter=st.sampled_from((*CLUSTERS, "x", "y", "z")),
    tunnels=st.frozensets(st.sampled_from(CLUSTERS)),
    answers=st.frozensets(st.sampled_from(CLUSTERS), max_size=1),
    encrypts=st.booleans(),
    is_leader=st.booleans(),
)
_DISPUTES = st.builds(
    Dispute,
    _CLAIMANTS.map(tuple),
    st.lists(_REPORTS, max_size=5, unique_by=lambda report: report.reporter).map(tuple),
    st.just(NOW),
)


@given(dispute=_DISPUTES)
def test_there_is_one_winner_in_any_order(dispute: Dispute) -> None:
    """None only where nobody claims the address; the order of claimants and reports does not matter."""
    first = winner(dispute)
    assert (first is None) == (not dispute.claimants)
    for claimants in permutations(dispute.claimants):
        assert winner(Dispute(claimants, dispute.reports[::-1], NOW)) == first


@given(dispute=_DISPUTES, report=_REPORTS)
def test_reports_of_claimants_do_not_count(dispute: Dispute, report: AnswerReport) -> None:
    """Whatever a claimant reports of itself or of others."""
    other_reports = tuple(
        r for r in dispute.reports if r.reporter not in {c.cluster_id for c in dispute.claimants}
    )
    assert winner(replace(dispute, reports=other_reports)) == winner(dispute)
    for claimant in dispute.claimants:
        false = replace(report, reporter=claimant.cluster_id)
        assert winner(replace(dispute, reports=(*other_reports, false))) == winner(dispute)


@given(dispute=_DISPUTES, claimants=_CLAIMANTS)
def test_an_owner_that_most_members_reach_keeps_its_address(dispute: Dispute, claimants: list[Claimant]) -> None:
    """Whatever others claim, whatever they report of the past, and whatever a minority reports."""
    victim = gateway("victim", EARLIER)
    rivals = tuple(claimant for claimant in claimants if claimant.address != DERIVED)
    honest = tuple(
        AnswerReport(reporter=f"h{number}", tunnels=frozenset({"victim"}), answers=frozenset({"victim"}))
        for number in range(len(dispute.reports) + 2)
    )
    false = tuple(replace(report, is_leader=False) for report in dispute.reports)
    assert winner(Dispute((*rivals, victim), (*false, *honest), NOW)) == victim


@given(dispute=_DISPUTES)
def test_the_winner_stays_the_winner(dispute: Dispute) -> None:
    """Once it has the address, and has recorded its rivals, nothing else changes that: not even time."""
    first = winner(dispute)
    if first is None:
        return
    taken = any(claimant.since for claimant in dispute.claimants if claimant is not first)
    other_claimants = tuple(replace(c, since="") for c in dispute.claimants if c is not first and c.address)
    settled = first.settled | {claimant.cluster_id for claimant in dispute.claimants} if taken else first.settled
    proved = dispute.quorum(first) >= Quorum.SINGLE
    now = replace(first, since=first.since or LATER, settled=settled, proved=proved or first.proved)
    later = Dispute((now, *other_claimants), dispute.reports, NOW)
    if dispute.standing(first) is not ClaimStanding.REQUESTED and taken:
        assert winner(later) in {now, *(c for c in other_claimants if later.quorum(c) >= Quorum.SINGLE)}


# --- examples -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("claimants", "answers", "expected"),
    [
        ([], [], ""),
        ([gateway("b"), gateway("a", created="2")], [], "b"),
        # Equal gateways: who answers.
        ([gateway("a", EARLIER), gateway("b")], ["b"], "b"),
        ([gateway("a", EARLIER), gateway("b")], ["b", ""], "a"),
        ([gateway("a", EARLIER), gateway("b")], ["b", "a"], "a"),
        ([gateway("a", EARLIER), gateway("b")], ["b", "b", "a"], "b"),
        # A proved owner: by a majority of several members only.
        ([gateway("a", EARLIER, proved=True), gateway("b")], ["b"], "a"),
        ([gateway("a", EARLIER, proved=True), gateway("b")], ["b", "b", ""], "b"),
        # Nobody has the address, so no tunnel leads there.
        ([gateway("a", created="1"), gateway("b", created="2")], ["b", "b"], "a"),
        ([cidr("a"), gateway("b")], ["b", "b", "b"], "a"),
        # A CIDR and a gateway that both were granted.
        ([cidr("a"), gateway("b", LATER)], [], "a"),
        ([cidr("a"), gateway("b", LATER)], ["b"], "b"),
        ([cidr("a"), gateway("b", LATER, proved=True)], [], "b"),
        ([cidr("a"), gateway("b", LATER, settled=frozenset({"a"}))], [], "b"),
        ([cidr("a", yields_to=frozenset({"b"})), gateway("b")], [], "b"),
        ([cidr("a", yields_to=frozenset({"c"})), gateway("b")], [], "a"),
        # Trials.
        ([gateway("a", EARLIER, challenged_at=NOW - TRIAL), gateway("b")], [""], "b"),
        ([gateway("a", EARLIER, challenged_at=NOW - TRIAL), gateway("b")], ["a", ""], "a"),
        ([gateway("a", EARLIER, challenged_at=NOW - TRIAL), gateway("b")], [], "a"),
        ([gateway("a", EARLIER, challenged_at=NOW - TRIAL), gateway("b", encrypts=False)], [""], "a"),
        ([gateway("a", EARLIER, challenged_at=NOW - TRIAL), gateway("b", has_tried=True)], [""], "a"),
        ([gateway("a", EARLIER, challenged_at=NOW - TRIAL, proved=True), gateway("b")], [""], "a"),
        ([gateway("a", EARLIER, challenged_at=NOW - TRIAL + 1), gateway("b")], [""], "a"),
        ([gateway("a", EARLIER), gateway("b")], [""], "a"),
        # Derived addresses.
        ([gateway("a", EARLIER, DERIVED, challenged_at=NOW - TRIAL), gateway("b")], [""], "b"),
        ([gateway("a", EARLIER, DERIVED), gateway("b", LATER)], ["b", "b"], "b"),
    ],
)
def test_who_wins(claimants: list[Claimant], answers: list[str], expected: str) -> None:
    """By answers, proofs, trials, and last by age; a member without an answer counts against all."""
    assert owner(claimants, *answers) == expected


@pytest.mark.parametrize(("answer", "expected"), [("b", "b"), ("", "a"), ("a", "a")])
def test_the_leaders_own_cluster_decides(answer: str, expected: str) -> None:
    """Alone, whatever the others report."""
    leader = replace(reports(answer)[0], reporter="leader", is_leader=True)
    for others in (reports("a", "a"), reports("b", "b")):
        claimants = (gateway("a", EARLIER, proved=True), gateway("b"))
        first = winner(Dispute(claimants, (*others, leader), NOW))
        assert first is not None
        assert first.cluster_id == expected


def test_a_leader_without_an_answer_takes_no_gateway_that_most_members_reach() -> None:
    """It proves nothing, but there is no trial."""
    leader = replace(reports("")[0], reporter="leader", is_leader=True)
    claimants = (gateway("a", EARLIER, challenged_at=NOW - TRIAL), gateway("b"))
    dispute = Dispute(claimants, (*reports("a"), leader), NOW)
    assert dispute.quorum(claimants[0]) is Quorum.HALF
    assert winner(dispute) is claimants[0]
    assert winner(Dispute(claimants, (*reports("a", ""), leader), NOW)) is claimants[1]


def test_the_reason_names_what_decides() -> None:
    """Answers, an older grant of another claim, or a trial."""
    squatter, victim = gateway("a", EARLIER), gateway("b")
    answered = Dispute((squatter, victim), reports("b"), NOW)
    assert (
        reason(answered, squatter, victim) == f"members report that the gateway of cluster b answers at {ADDRESS}"
    )
    around = cidr("a")
    assert reason(Dispute((around, victim)), victim, around) == (
        f"cluster a has had Pod CIDR {ADDRESS}/32 since {EARLIER}"
    )
    lost = replace(squatter, challenged_at=NOW - TRIAL)
    assert reason(Dispute((lost, victim), reports(""), NOW), lost, victim) == (
        "no member reports an answer of this gateway, and cluster b asks for it"
    )
