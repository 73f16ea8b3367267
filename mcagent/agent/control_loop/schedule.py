"""When the next pass is due: pure functions of times and counts, so that pace and back-off are tested as values.

Times are seconds of one monotonic clock. Knows no thread, clock or backend; randomness is a parameter.

- The first change after a quiet time starts a pass at once. Changes in a burst are gathered: each pass that
  gathered many doubles the pause before the next one, up to a limit; a pass that gathered few halves it.
- A backend that another program may have changed ("suspect") is read again after a short delay, so that the
  notifications of the loop's own changes cause one read.
- A backend that was restarted ("urgent") is read at once, whatever failed before.
- A backend that failed is tried again after a delay that doubles. New input may try it earlier, but no more often
  than `LoopTiming.retry_on_change`. One that cannot be reached is tried at least every
  `LoopTiming.unreachable_max`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from mcagent.agent.pass_outcome import Retry
from mcagent.model.backoff import Backoff
from mcagent.model.dataplane.backend import Backend


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopTiming:
    """Parameters of the schedule; times in seconds."""

    gap: float = 0.01  # least pause between two passes
    gap_max: float = 0.5  # and the greatest, in a burst
    burst: int = 4  # number of changes gathered in one pause from which on it is a burst
    suspect_delay: float = 0.25
    resync: float = 60.0
    retry_first: float = 0.25
    retry_max: float = 30.0
    retry_on_change: float = 1.0
    unreachable_max: float = 1.0
    jitter: float = 0.25  # the share of a delay that is random


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The pause after a pass: changes wait until `not_before`."""

    gap: float = 0.0
    not_before: float = 0.0


def next_pace(pace: Pace, *, changes: int, now: float, timing: LoopTiming) -> Pace:
    """Return the pace after a pass that ended at `now` and had gathered `changes`."""
    if changes >= timing.burst:
        gap = min(max(pace.gap, timing.gap / 2) * 2, timing.gap_max)
    else:
        gap = max(pace.gap / 2, timing.gap)
    return Pace(gap=gap, not_before=now + gap)


def next_retry(
    previous: Retry | None, *, unreachable: bool, retryable: bool, now: float, random: float, timing: LoopTiming
) -> Retry:
    """Return when to try again after one more failure; `random` is in [0, 1).

    An error that is not `retryable` waits for new input or the next resync.
    """
    failures = 1 if previous is None else previous.failures + 1
    longest = timing.unreachable_max if unreachable else timing.retry_max
    delay = Backoff(first=timing.retry_first, most=longest, jitter=timing.jitter).delay(failures, random)
    at = now + delay if retryable or unreachable else math.inf
    return Retry(failures=failures, at=at, on_change_at=now + min(delay, timing.retry_on_change))


def after_change(retry: Retry) -> Retry:
    """Return the retry of a blocked backend after new input: at `on_change_at`, if that is earlier."""
    return replace(retry, at=min(retry.at, retry.on_change_at))


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """The work queue: all reasons for a pass."""

    changes: int = 0  # inputs replaced since the last pass
    suspects: Mapping[Backend, float] = field(default_factory=dict)  # backends to read again, with the time
    urgent: frozenset[Backend] = frozenset()  # those of them to read at once
    retries: Mapping[Backend, Retry] = field(default_factory=dict)
    resync_at: float = 0.0
    wake_at: float = math.inf  # requested by the last pass, for a time-out
    pace: Pace = field(default_factory=Pace)

    def suspect(self, backends: Iterable[Backend], at: float, *, urgent: bool = False) -> Queue:
        """Return the queue with backends to read again at `at`."""
        added = dict.fromkeys(backends, at)
        read_at_once = added.keys() if urgent else ()
        return replace(self, suspects={**self.suspects, **added}, urgent=self.urgent.union(read_at_once))

    def take(self, todo: Pass, now: float, timing: LoopTiming) -> Queue:
        """Return the queue after the pass `todo` began; backends that it blocks are read when they are tried."""
        suspects = {backend: at for backend, at in self.suspects.items() if at > now and not todo.resync}
        return replace(
            self,
            changes=0,
            suspects=suspects,
            urgent=self.urgent & suspects.keys(),
            resync_at=now + timing.resync if todo.resync else self.resync_at,
        )


def due(queue: Queue) -> float:
    """Return the time of the next pass."""
    times = [queue.resync_at, queue.wake_at, *queue.suspects.values()]
    times.extend(retry.at for retry in queue.retries.values())
    if queue.changes:
        times.append(queue.pace.not_before)
    return min(times)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """A pass to do: backends to read again (`observe`), and those not to use (`blocked`)."""

    observe: frozenset[Backend]
    blocked: frozenset[Backend]
    resync: bool


def plan_pass(queue: Queue, now: float) -> Pass:
    """Plan the pass that begins at `now`."""
    resync = queue.resync_at <= now
    suspects = frozenset(backend for backend, at in queue.suspects.items() if at <= now)
    blocked = frozenset(
        backend
        for backend, retry in queue.retries.items()
        if not resync
        and backend not in queue.urgent
        and retry.at > now
        and not (queue.changes and retry.on_change_at <= now)
    )
    return Pass(observe=(frozenset(Backend) if resync else suspects) - blocked, blocked=blocked, resync=resync)
