"""Back-off: doubles, has an end, and loses at most its jitter."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mcagent.model.backoff import Backoff


def test_it_doubles_up_to_the_most() -> None:
    """The first failure waits `first`; no number of failures waits longer than `most`."""
    backoff = Backoff(first=0.5, most=3.0, jitter=0.0)
    assert [backoff.delay(failures) for failures in (1, 2, 3, 4, 1_000_000)] == [0.5, 1.0, 2.0, 3.0, 3.0]


@given(failures=st.integers(1, 10_000), chance=st.floats(0, 1), jitter=st.floats(0, 1))
def test_jitter_only_shortens(failures: int, chance: float, jitter: float) -> None:
    """A delay is at most that without jitter, and less by no more than its share."""
    whole = Backoff(first=0.1, most=60.0, jitter=0.0).delay(failures)
    delay = Backoff(first=0.1, most=60.0, jitter=jitter).delay(failures, chance)
    assert whole * (1 - jitter) - 1e-9 <= delay <= whole
