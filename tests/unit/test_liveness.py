"""The liveness state machine: who is live and why, damping, what it remembers."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcagent.core.failover.liveness import (
    DAMPED_AFTER,
    FORGET_AFTER,
    GRACE,
    HISTORY,
    Advance,
    Damping,
    LivenessCause,
    Observation,
    Peers,
    advance,
    hold_after_loss,
)

DAMPING = Damping(initial=1.0, longest=60.0)


def up(port: str = "a", group: str = "east", **more: object) -> Observation:
    """Return a port whose BFD is up."""
    return replace(Observation(port=port, group=group, bfd=True, state="up", forwarding=True), **more)  # type: ignore[arg-type]


def down(port: str = "a", group: str = "east", **more: object) -> Observation:
    """Return a port whose BFD is down."""
    return replace(Observation(port=port, group=group, bfd=True, state="down"), **more)  # type: ignore[arg-type]


def half_up(port: str = "a", group: str = "east") -> Observation:
    """Return a port that receives BFD packets of a peer that does not receive any of its own."""
    return replace(down(port, group), state="init")


class Story:
    """A machine that is told one look after the other."""

    def __init__(self, damping: Damping = DAMPING) -> None:
        self.damping = damping
        self.state: Peers = {}
        self.last: Advance | None = None

    def at(self, now: float, *looks: Observation) -> Advance:
        """Take a look."""
        self.last = advance(self.state, looks, now, self.damping)
        self.state = self.last.peers
        return self.last


def test_a_peer_that_never_answered_is_trusted_and_told_so() -> None:
    """An Antrea gateway has no BFD: it is used on the API's word."""
    story = Story()
    found = story.at(0.0, down())
    peer = found.peers["a"]
    assert peer.live
    assert peer.cause is LivenessCause.API
    assert "never answered" in peer.text
    assert found.seen == frozenset()
    assert found.damped == frozenset()


def test_a_peer_that_sends_bfd_and_receives_none_is_not_used() -> None:
    """A path that is open in one direction only: BFD decides as soon as a peer has had time to answer."""
    story = Story()
    story.at(0.0, up("a"))
    announced = story.at(10.0, up("a"), down("b"))
    assert announced.damped == {"b"}
    story.at(11.0, up("a"), half_up("b"))
    released = story.at(10.0 + GRACE, up("a"), half_up("b"))
    assert released.seen == {"a"}
    assert released.wake == 11.0 + GRACE
    late = story.at(11.0 + GRACE, up("a"), half_up("b"))
    assert "b" in late.seen
    assert not late.peers["b"].live
    assert late.peers["b"].cause is LivenessCause.BFD
    assert story.at(20.0, up("a"), up("b")).peers["b"].live


def test_a_session_that_ends_half_up_is_of_a_peer_with_bfd() -> None:
    """The path was cut just after the first packets: the peer is not one without BFD."""
    story = Story()
    story.at(0.0, down("a"))
    assert story.at(1.0, half_up("a")).peers["a"].live  # the answer may be on its way
    ended = story.at(4.0, down("a"))
    assert "a" in ended.seen
    assert not ended.peers["a"].live
    assert ended.peers["a"].text == "BFD is down"


def test_a_session_has_the_same_time_to_come_up_whenever_it_begins() -> None:
    """Also if it is half up when the agent starts, or hours after the tunnel was made; each time anew."""
    story = Story()
    first = story.at(5.0, half_up("a"), down("b"))
    assert first.wake == 5.0 + GRACE
    assert story.at(6.0, half_up("a"), down("b")).peers["a"].live
    assert not story.at(5.0 + GRACE, half_up("a"), down("b")).peers["a"].live
    assert story.at(7000.0, half_up("a"), half_up("b")).wake == 7000.0 + GRACE
    assert story.at(7001.0, half_up("a"), half_up("b")).peers["b"].live
    assert story.at(7002.0, half_up("a"), up("b")).peers["b"].live


def test_a_new_gateway_is_used_when_it_answers_or_after_a_grace() -> None:
    """It is announced before it is ready. What was there when the agent started is not new."""
    story = Story()
    story.at(0.0, up("a"))
    found = story.at(10.0, up("a"), down("b"), down("c"))
    assert found.damped == {"b", "c"}
    assert found.wake == 10.0 + GRACE
    assert "new" in found.peers["b"].text
    assert story.at(11.0, up("a"), up("b"), down("c")).damped == {"c"}
    late = story.at(10.0 + GRACE, up("a"), up("b"), down("c"))
    assert late.damped == frozenset()
    assert late.peers["c"].live
    assert late.peers["c"].cause is LivenessCause.API
    assert story.at(20.0, up("a"), up("b"), down("c"), down("d", "west")).damped == frozenset()  # the only one


def test_a_peer_known_from_before_a_restart_is_not_trusted_blindly() -> None:
    """What answered once must answer: `seen` survives the agent."""
    story = Story()
    found = story.at(0.0, down(seen=True))
    assert not found.peers["a"].live
    assert found.seen == {"a"}
    assert found.peers["a"].flaps == 0  # we saw no loss


def test_a_loss_and_a_return_are_transitions_with_cause_and_time() -> None:
    """Down by BFD, kept out by damping, live again by BFD."""
    story = Story()
    story.at(0.0, up("a"), up("b"))
    lost = story.at(5.0, down("a"), up("b"))
    assert [(p.port, p.live, p.cause, p.since) for p in lost.changed] == [("a", False, LivenessCause.BFD, 5.0)]
    assert lost.wake == 5.0 + DAMPED_AFTER
    standby = story.at(lost.wake, down("a"), up("b"))
    assert standby.damped == {"a"}
    assert standby.wake == math.inf
    back = story.at(7.0, up("a"), up("b"))
    assert back.peers["a"].cause is LivenessCause.DAMPING
    assert back.damped == {"a"}
    assert back.wake == 8.0  # damping.initial, no more
    again = story.at(8.0, up("a"), up("b"))
    assert again.damped == frozenset()
    assert [t.cause for t in again.peers["a"].transitions] == [
        LivenessCause.BFD,
        LivenessCause.DAMPING,
        LivenessCause.BFD,
    ]
    assert again.peers["a"].since == 8.0
    assert again.peers["a"].flaps == 1


def test_what_was_just_lost_is_left_to_open_vswitch_for_a_moment() -> None:
    """Groups are not changed while everybody finds out; then they are, also if it came and went meanwhile."""
    story = Story()
    story.at(0.0, up("a"), up("b"))
    for tenths in range(4):
        now = 5.0 + tenths / 10
        assert story.at(now, up("a") if tenths % 2 else down("a"), up("b")).damped == frozenset()
    assert story.at(5.0 + DAMPED_AFTER, up("a"), up("b")).damped == {"a"}
    assert story.at(7.5, down("a"), up("b")).damped == {"a"}
    assert story.at(7.6, up("a"), up("b")).damped == {"a"}


def test_holds_grow_with_every_loss_up_to_the_longest() -> None:
    """1, 2, 4, ... 60 seconds, and not more."""
    story = Story()
    now, holds = 0.0, []
    story.at(now, up("a"), up("b"))
    for _ in range(9):
        story.at(now, down("a"), up("b"))
        now += 0.1
        found = story.at(now, up("a"), up("b"))
        until = found.peers["a"].hold_down.until
        assert until is not None
        holds.append(until - now)
        now = until
        story.at(now, up("a"), up("b"))
    assert [round(hold, 6) for hold in holds] == [1, 2, 4, 8, 16, 32, 60, 30, 60]


def test_flaps_between_two_looks_count() -> None:
    """Open vSwitch counts what was too short to be seen."""
    story = Story()
    story.at(0.0, up("a", flap_count=1), up("b"))
    found = story.at(1.0, up("a", flap_count=5), up("b"))
    assert found.peers["a"].flaps == 2
    held = story.at(found.wake, up("a", flap_count=5), up("b"))
    assert held.damped == {"a"}
    assert held.wake == 3.0


def test_a_counter_that_begins_anew_is_no_flap() -> None:
    """ovs-vswitchd was restarted."""
    story = Story()
    story.at(0.0, up("a", flap_count=9), up("b"))
    assert story.at(1.0, up("a", flap_count=1), up("b")).peers["a"].flaps == 0


def test_what_is_drained_is_left_without_being_damped() -> None:
    """A planned change is no flap: what comes back is used at once."""
    story = Story()
    story.at(0.0, up("a"), up("b"))
    left = story.at(1.0, up("a", forwarding=False, remote_diagnostic="Concatenated Path Down"), up("b"))
    assert (left.peers["a"].live, left.peers["a"].cause) == (False, LivenessCause.DRAIN)
    assert left.damped == frozenset()
    assert story.at(2.0, up("a"), up("b")).peers["a"].live


def test_the_last_of_a_group_is_never_held_and_stays_in_use() -> None:
    """A gateway that flapped is released when the other one dies, and does not go out again by itself."""
    story = Story()
    story.at(0.0, up("a"), up("b"))
    story.at(1.0, down("a"), up("b"))
    assert story.at(1.5, up("a"), up("b")).damped == {"a"}
    assert story.at(1.6, up("a"), down("b")).damped == frozenset()
    alone = story.at(2.0, up("a"), down("b"))
    assert alone.damped == {"b"}
    assert alone.peers["a"].live
    back = story.at(2.1, up("a"), up("b"))
    assert back.damped == {"b"}
    assert back.peers["a"].live


def test_all_gone_at_once_are_not_held() -> None:
    """While nothing of a group is up every bucket stays: the first that returns is used at once."""
    story = Story()
    story.at(0.0, up("a"), up("b"))
    assert story.at(1.0, down("a"), down("b")).damped == frozenset()
    first = story.at(2.0, up("a"), down("b"))
    assert first.peers["a"].live
    assert first.damped == {"b"}


def test_while_none_is_live_those_that_were_lost_last_are_used() -> None:
    """What has been gone for long stays on standby when the others go, too, until anything is up again."""
    story = Story()
    story.at(0.0, up("a"), up("b"), up("c"))
    story.at(5.0, down("a"), up("b"), up("c"))
    assert story.at(6.0, down("a"), up("b"), up("c")).damped == {"a"}
    assert story.at(7.0, down("a"), down("b"), up("c")).damped == {"a"}
    for now in (7.1, 9.0, 100.0):
        assert story.at(now, down("a"), down("b"), down("c")).damped == {"a"}
    back = story.at(101.0, up("a"), down("b"), down("c"))
    assert back.peers["a"].live
    assert back.damped == {"b", "c"}


def test_groups_do_not_stand_in_for_each_other() -> None:
    """A live gateway of another cluster is no reason to hold one of this."""
    story = Story()
    story.at(0.0, up("a", "east"), up("b", "west"))
    assert story.at(1.0, down("a", "east"), up("b", "west")).damped == frozenset()


def test_node_readiness_decides_where_bfd_is_fine() -> None:
    """A Node that is not Ready is not live, by the control plane's word; BFD's word is told first."""
    story = Story()
    story.at(0.0, up("a"), up("b"))
    found = story.at(1.0, up("a", unready="Node a is not Ready"), up("b")).peers["a"]
    assert (found.live, found.cause, found.text) == (False, LivenessCause.NODE, "Node a is not Ready")
    assert found.flaps == 0
    found = story.at(2.0, down("a", unready="Node a is not Ready"), up("b")).peers["a"]
    assert found.cause is LivenessCause.BFD


def test_what_is_no_longer_wanted_is_told_for_a_while() -> None:
    """A deleted Gateway is shown as such, then forgotten."""
    story = Story()
    story.at(0.0, up("a"), up("b"))
    found = story.at(10.0, up("b"))
    assert (found.peers["a"].live, found.peers["a"].cause) == (False, LivenessCause.API)
    assert found.seen == {"b"}
    assert "a" in story.at(10.0 + FORGET_AFTER, up("b")).peers
    assert "a" not in story.at(10.1 + FORGET_AFTER, up("b")).peers


def test_holds_decay_in_quiet_times() -> None:
    """Each `longest` without a loss halves the hold; never below the first one."""
    assert hold_after_loss(32.0, 59.0, DAMPING) == 60.0
    assert hold_after_loss(32.0, 61.0, DAMPING) == 16.0
    assert hold_after_loss(32.0, 125.0, DAMPING) == 8.0
    assert hold_after_loss(32.0, math.inf, DAMPING) == 1.0


def test_damping_can_be_turned_off() -> None:
    """With no initial hold a port is used whenever it is up."""
    story = Story(Damping(initial=0.0, longest=0.0))
    story.at(0.0, up("a"), up("b"))
    for now in range(1, 20, 2):
        assert story.at(float(now), down("a"), up("b")).damped == frozenset()
        assert story.at(float(now + 1), up("a"), up("b")).peers["a"].live


_STATES = st.sampled_from(["up", "down", "init", "admin_down", ""])
_LOOK = st.builds(
    Observation,
    port=st.sampled_from("abcde"),
    group=st.just("?"),
    bfd=st.sampled_from([True, True, True, False]),
    state=_STATES,
    forwarding=st.booleans(),
    remote_diagnostic=st.sampled_from(["No Diagnostic", "Concatenated Path Down"]),
    flap_count=st.integers(0, 1000),
    seen=st.booleans(),
    unready=st.sampled_from(["", "", "not Ready"]),
)
_GROUP = {"a": "east", "b": "east", "c": "east", "d": "west", "e": "west"}


@st.composite
def _stories(draw: st.DrawFn) -> list[tuple[float, list[Observation]]]:
    now, looks = 0.0, []
    for _ in range(draw(st.integers(1, 25))):
        now += draw(st.floats(0.0, 200.0))
        found = {one.port: replace(one, group=_GROUP[one.port]) for one in draw(st.lists(_LOOK, max_size=6))}
        looks.append((now, list(found.values())))
    return looks


@pytest.mark.costly
@given(story=_stories(), initial=st.floats(0.1, 5.0), more=st.floats(0.0, 100.0))
def test_whatever_happens_the_machine_keeps_its_promises(
    story: list[tuple[float, list[Observation]]], initial: float, more: float
) -> None:
    """Holds bounded, history bounded and in order, never everything held, the same story the same end."""
    damping = Damping(initial=initial, longest=initial + more)
    machine, twin = Story(damping), Story(damping)
    for now, looks in story:
        found = machine.at(now, *looks)
        assert found == twin.at(now, *reversed(looks))  # deterministic, and order does not matter
        peers = found.peers
        wanted = {look.port for look in looks}
        assert found.damped <= wanted
        assert found.seen <= wanted
        for group in {_GROUP[name] for name in found.damped}:
            others = [p for p in peers.values() if p.group == group and p.port not in found.damped and not p.gone]
            held = max(peers[name].hold_down.begins for name in found.damped if _GROUP[name] == group)
            assert any(p.live or p.hold_down.begins > held for p in others), "held without another to stand in"
        assert found.wake > now
        for peer in peers.values():
            assert not (peer.live and peer.port in found.damped)
            assert peer.hold_down.seconds == 0 or initial <= peer.hold_down.seconds <= damping.longest
            # what is new is held until it answers, for GRACE at most
            longest = max(damping.longest, GRACE) + 1e-6  # sums of floats
            assert peer.hold_down.until in (None, math.inf) or peer.hold_down.until - now <= longest
            assert len(peer.transitions) <= HISTORY
            assert all(one.at <= two.at for one, two in pairwise(peer.transitions))
            assert not peer.transitions or peer.transitions[-1].live == peer.live
        # looking again at once changes nothing and tells nothing
        again = advance(machine.state, looks, now, damping)
        assert (again.damped, again.seen, again.changed) == (found.damped, found.seen, ())


@given(losses=st.lists(st.floats(0.0, 600.0), min_size=1, max_size=50))
def test_damping_is_bounded_and_grows_only_by_losses_that_are_close(losses: list[float]) -> None:
    """A hold doubles at most, and grows only after a loss within the longest hold."""
    hold = 0.0
    for quiet in losses:
        after = hold_after_loss(hold, quiet, DAMPING)
        assert DAMPING.initial <= after <= DAMPING.longest
        assert after <= max(2 * hold, DAMPING.initial)
        if quiet >= DAMPING.longest:
            assert after <= max(hold, DAMPING.initial)
        else:
            assert after >= hold
        hold = after
