"""Leaving alone what somebody else changes again and again."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from mcagent.core.plan.contention import AT_ONCE, MOST, PAUSE_MAX, WITHIN, Contention


def test_the_first_times_it_is_put_back_at_once_then_with_growing_pauses() -> None:
    """A writer that answers at once gets slower and slower answers."""
    contention, now, put_back = Contention(), 0.0, []
    while now < 300.0:
        contention = contention.update(["route"], now)
        if not contention.paused:
            put_back.append(now)
        now += 0.25
    gaps = [after - before for before, after in pairwise(put_back)]
    assert gaps[: AT_ONCE - 1] == [0.25] * (AT_ONCE - 1)
    assert gaps[AT_ONCE - 1 : AT_ONCE + 5] == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0]
    assert max(gaps) == PAUSE_MAX


def test_peace_is_remembered() -> None:
    """After a quiet minute it begins anew; other things are not concerned."""
    contention = Contention()
    for _ in range(AT_ONCE):
        contention = contention.update(["route"], 0.0)
    assert contention.update(["route", "rule"], 1.0).paused.keys() == {"route"}
    contention = contention.update(["route"], 3.0 + WITHIN)
    assert not contention.paused
    assert contention.by_key["route"].count == 1


@given(st.lists(st.tuples(st.floats(0, 100), st.sets(st.integers(0, 5))), max_size=60))
def test_nothing_is_left_alone_for_long(steps: list[tuple[float, set[int]]]) -> None:
    """Whatever happens: pauses are bounded, and what was left alone comes back."""
    contention, now = Contention(), 0.0
    for wait, changed in steps:
        now += wait
        contention = contention.update(changed, now)
        assert contention.paused.keys() <= changed
        assert all(now < pause.until <= pause.at + PAUSE_MAX for pause in contention.paused.values())


def test_memory_is_bounded() -> None:
    """A whole table that is flushed is not remembered for ever."""
    contention = Contention().update(range(5 * MOST), 0.0)
    assert len(contention.by_key) == MOST
