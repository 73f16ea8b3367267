"""Pace and back-off of the loop, as values."""

from __future__ import annotations

import math
from dataclasses import replace

from mcagent.agent.control_loop.schedule import (
    LoopTiming,
    Pace,
    Queue,
    after_change,
    due,
    next_pace,
    next_retry,
    plan_pass,
)
from mcagent.agent.pass_outcome import Retry
from mcagent.model.dataplane.backend import Backend

TIMING = LoopTiming()
QUIET = Queue(resync_at=100.0)


def retry(previous: Retry | None, *, unreachable: bool = False, retryable: bool = True, now: float = 0.0) -> Retry:
    """Fail once more, without jitter."""
    return next_retry(previous, unreachable=unreachable, retryable=retryable, now=now, random=0.0, timing=TIMING)


def test_the_first_change_after_a_quiet_time_is_due_at_once() -> None:
    """Nothing delays the leading edge."""
    pace = next_pace(Pace(), changes=1, now=10.0, timing=TIMING)
    assert due(replace(QUIET, changes=1, pace=pace)) <= 10.0 + TIMING.gap
    assert due(QUIET) == 100.0


def test_a_burst_of_a_thousand_changes_takes_a_handful_of_passes() -> None:
    """One change a millisecond for a second takes few passes, and none waits longer than half a second."""
    pace, now, passes, gathered, delays = Pace(), 0.0, 0, 0, []
    for tick in range(1000):
        now = tick / 1000
        gathered += 1
        if now >= pace.not_before:
            delays.append(gathered / 1000)
            pace, passes, gathered = next_pace(pace, changes=gathered, now=now, timing=TIMING), passes + 1, 0
    assert passes < 12
    assert pace.not_before - now <= TIMING.gap_max
    assert max(delays) <= TIMING.gap_max + 0.001


def test_the_pause_shrinks_again_when_changes_come_singly() -> None:
    """After a burst the agent is as quick as before."""
    pace = Pace(gap=TIMING.gap_max)
    for _ in range(10):
        pace = next_pace(pace, changes=1, now=0.0, timing=TIMING)
    assert pace.gap == TIMING.gap


def test_back_off_doubles_up_to_a_bound() -> None:
    """What is refused is tried ever more seldom."""
    delay, delays = None, []
    for _ in range(12):
        delay = retry(delay)
        delays.append(delay.at)
    assert delays[:3] == [0.25, 0.5, 1.0]
    assert delays[-1] == TIMING.retry_max


def test_jitter_only_shortens() -> None:
    """Many agents do not knock at the same moment, and none waits longer than the bound."""
    delay = next_retry(None, unreachable=False, retryable=True, now=0.0, random=0.999, timing=TIMING)
    assert 0.25 * 0.75 <= delay.at < 0.25


def test_what_cannot_be_reached_is_tried_every_second() -> None:
    """A facility that comes back is noticed soon even if nobody tells."""
    delay = None
    for _ in range(20):
        delay = retry(delay, unreachable=True)
    assert delay is not None
    assert delay.at == TIMING.unreachable_max


def test_what_cannot_succeed_waits_for_new_input() -> None:
    """A refusal that will be the same again is not repeated for its own sake; new input may try."""
    delay = retry(None, retryable=False)
    assert delay.at == math.inf
    queue = replace(QUIET, changes=1, retries={Backend.NFT: delay})
    assert plan_pass(queue, 0.0).blocked == {Backend.NFT}
    assert plan_pass(queue, delay.on_change_at).blocked == frozenset()
    assert after_change(delay).at == delay.on_change_at


def test_a_failing_backend_is_left_alone_until_its_time() -> None:
    """Other work goes on meanwhile."""
    queue = replace(QUIET, retries={Backend.NFT: Retry(failures=5, at=4.0, on_change_at=1.0)})
    assert due(queue) == 4.0
    assert plan_pass(queue, 0.5).blocked == {Backend.NFT}
    assert plan_pass(queue, 4.0).blocked == frozenset()


def test_suspects_are_read_again_after_a_short_delay() -> None:
    """The echo of own changes is gathered; changes are not held up by it."""
    queue = QUIET.suspect((Backend.NETLINK,), 5.0 + TIMING.suspect_delay)
    assert due(queue) == 5.0 + TIMING.suspect_delay
    assert plan_pass(queue, 5.0).observe == frozenset()
    assert plan_pass(queue, 5.3).observe == {Backend.NETLINK}


def test_what_becomes_suspect_during_a_pass_is_read_by_the_next_one() -> None:
    """A pass takes only what was suspect before it began; what is urgent is due at once."""
    queue = replace(QUIET, changes=3).suspect((Backend.NETLINK,), 5.0)
    todo = plan_pass(queue, 6.0)
    running = queue.take(todo, 6.0, TIMING)
    assert (running.changes, dict(running.suspects)) == (0, {})
    running = running.suspect((Backend.NETLINK, Backend.OPENFLOW), 6.5, urgent=True)
    assert running.suspects.keys() == running.urgent == {Backend.NETLINK, Backend.OPENFLOW}
    assert due(running) == 6.5
    after = running.take(plan_pass(running, 7.0), 7.0, TIMING)
    assert (dict(after.suspects), after.urgent) == ({}, frozenset())


def test_a_suspect_that_is_left_alone_asks_for_no_pass() -> None:
    """What failed is read when it is tried again: until then nobody turns for it."""
    alone = Retry(failures=1, at=math.inf, on_change_at=9.0)
    queue = replace(QUIET, retries={Backend.NFT: alone}).suspect((Backend.NFT,), 5.0)
    todo = plan_pass(queue, 5.0)
    assert not todo.observe
    assert due(queue.take(todo, 5.0, TIMING)) == QUIET.resync_at


def test_a_resync_reads_everything_and_tries_everything() -> None:
    """The safety net has no holes."""
    queue = Queue(resync_at=1.0, retries={Backend.NFT: Retry(failures=1, at=math.inf, on_change_at=9.0)})
    todo = plan_pass(queue, 1.0)
    assert todo.observe == frozenset(Backend)
    assert todo.blocked == frozenset()
    assert todo.resync
