"""Waiting for a condition: errors that go away, errors that do not, and deadlines on a slow machine."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from devtools import waiting
from devtools.errors import FatalError, LabError
from devtools.waiting import SLOWEST, wait_until


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[float]]:
    """Let the machine be so many times slower at each measurement; return the list of what is still to come."""

    def slower(*factors: float) -> list[float]:
        remaining = list(factors)
        monkeypatch.setattr(waiting, "slowness", lambda: remaining.pop(0) if remaining else 1.0)
        return remaining

    slower()
    return slower


def after(seconds: float, answer: Callable[[], object]) -> Callable[[], object]:
    """Return a condition that holds after so many seconds; until then it is what `answer` returns or raises."""
    begin = time.monotonic()
    return lambda: time.monotonic() - begin > seconds or answer()


def fail() -> object:
    """Raise what a lab raises that does not answer."""
    raise LabError("no answer yet")


@pytest.mark.usefixtures("measured")
def test_an_error_that_goes_away_does_not_end_a_wait() -> None:
    """A lab that does not answer now may do so a moment later."""
    wait_until(after(0.2, fail), "an answer", timeout=5.0)


@pytest.mark.usefixtures("measured")
def test_an_error_that_stays_is_named() -> None:
    """After the deadline people read what was waited for, and why it did not come."""
    with pytest.raises(LabError, match=r"in vain: an answer: no answer yet$"):
        wait_until(fail, "an answer", timeout=0.1)


@pytest.mark.usefixtures("measured")
def test_an_error_of_the_past_is_not_named() -> None:
    """The last look decides: it was answered, but not as wanted."""
    answers = iter([LabError("no answer yet")])

    def condition() -> bool:
        for error in answers:
            raise error
        return False

    with pytest.raises(LabError, match=r"in vain: an answer$"):
        wait_until(condition, "an answer", timeout=0.1)


@pytest.mark.parametrize("error", [FatalError("it has ended"), AssertionError("wrong"), ValueError("no number")])
def test_other_errors_pass_through_at_once(error: Exception) -> None:
    """Nobody waits for a process that has ended, or on because of a mistake in the condition."""

    def condition() -> bool:
        raise error

    begin = time.monotonic()
    with pytest.raises(type(error), match=str(error)):
        wait_until(condition, "an answer", timeout=60.0)
    assert time.monotonic() - begin < 30.0


def test_what_holds_soon_costs_no_measurement(measured: Callable[..., list[float]]) -> None:
    """The machine is not measured in the first second."""
    factors = measured(2.0)
    wait_until(after(0.1, bool), "a moment")
    assert factors == [2.0]


def test_a_slow_moment_in_the_past_extends_the_deadline(measured: Callable[..., list[float]]) -> None:
    """The machine is idle again when the deadline is over, but the time that it lost is given back."""
    factors = measured(3.0, 1.0)
    wait_until(after(2.5, bool), "the end", timeout=1.5)
    assert len(factors) < 2


def test_a_real_fault_is_told_at_some_time(measured: Callable[..., list[float]]) -> None:
    """Not later than SLOWEST times the deadline, whatever is measured."""
    measured(SLOWEST, SLOWEST, SLOWEST)
    begin = time.monotonic()
    with pytest.raises(LabError, match="in vain"):
        wait_until(bool, "nothing", timeout=0.1)
    assert 0.1 * SLOWEST < time.monotonic() - begin < 0.1 * SLOWEST + 10.0


def test_the_slowness_of_this_machine_is_bounded() -> None:
    """From an idle machine to one on which nothing can be judged."""
    assert 1.0 <= waiting.slowness() <= SLOWEST
