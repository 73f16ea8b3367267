"""Leaving alone what somebody else changes again and again."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from mcagent.core.plan.contention import AT_ONCE, MOST, PAUSE_MAX, WITHIN, Contention


def test_the_first_times_it_is_put_back_at_once_then_with_growing_pauses() -> None:
    """A writer that answers at once gets slower and slower answers."""
    fights, now, put_back = Contention(), 0.0, []
    while now < 300.0:
        fights, alone = fights.judge(["route"], now)
        if not alone:
            put_back.append(now)
        now += 0.25
    gaps = [after - before for before, after in pairwise(put_back)]
    assert gaps[: AT_ONCE - 1] == [0.25] * (AT_ONCE - 1)
    assert gaps[AT_ONCE - 1 : AT_ONCE + 5] == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0]
    assert max(gaps) == PAUSE_MAX


def test_peace_is_remembered() -> None:
    """After a quiet minute it begins anew; other things are not concerned."""
    fights = Contention()
    for _ in range(AT_ONCE):
        fights, _ = fights.judge(["route"], 0.0)
    assert fights.judge(["route", "rule"], 1.0)[1].keys() == {"route"}
    fights, alone = fights.judge(["route"], 3.0 + WITHIN)
    assert not alone
    assert fights.by_key["route"].count == 1


@given(st.lists(st.tuples(st.floats(0, 100), st.sets(st.integers(0, 5))), max_size=60))
def test_nothing_is_left_alone_for_long(steps: list[tuple[float, set[int]]]) -> None:
    """Whatever happens: pauses are bounded, and what was left alone comes back."""
    fights, now = Contention(), 0.0
    for wait, changed in steps:
        now += wait
        fights, alone = fights.judge(changed, now)
        assert alone.keys() <= changed
        assert all(now < fight.until <= fight.at + PAUSE_MAX for fight in alone.values())


def test_memory_is_bounded() -> None:
    """A whole table that is flushed is not remembered for ever."""
    fights, _ = Contention().judge(range(5 * MOST), 0.0)
    assert len(fights.by_key) == MOST
