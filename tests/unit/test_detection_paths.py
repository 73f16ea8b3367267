"""An hour of BFD on five kinds of path, simulated: alarms before and after the detection time is adapted.

`tests/bench/bfd_paths.py` measures the same paths with Open vSwitch and netem.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from mcagent.core.failover.detection import PathTiming, detection_time, next_timing
from mcagent.core.tunnel_probes import EXAMINED, EXAMINED_EVERY, KEPT, Examination, ProbeState
from mcagent.model.dataplane.resources import Bfd

DEFAULT = Bfd(min_tx=100, min_rx=100, mult=3)
HOUR, FIRST = 3600.0, 300.0  # seconds: simulated, and in which alarms may happen
RETURN = 2.0  # seconds from an alarm until the session is up again
JUDGED = 4.0  # seconds from an alarm until its examination is complete
UP = {"state": "up", "diagnostic": "No Diagnostic", "remote_diagnostic": "No Diagnostic"}
ALARM = {
    "state": "up",
    "diagnostic": "Control Detection Time Expired",
    "remote_diagnostic": "Neighbor Signaled Session Down",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of path. Loss in bursts (Gilbert): for each packet, the probabilities that one begins and ends."""

    name: str
    round_trip: float
    jitter: float = 0.0
    begins: float = 0.0
    ends: float = 1.0


KINDS = (
    Kind(name="LAN", round_trip=0.001),
    Kind(name="metro", round_trip=0.01, jitter=0.001),
    Kind(name="WAN 80 ms", round_trip=0.08, jitter=0.01, begins=0.001),
    Kind(name="WAN 200 ms, bursts", round_trip=0.2, jitter=0.01, begins=0.005, ends=0.5),
    Kind(name="mobile", round_trip=0.12, jitter=0.08, begins=0.01, ends=0.3),
)


class Path:
    """A path of a kind with BFD and probes in both directions, in simulated time."""

    def __init__(self, kind: Kind, seed: int, *, adapt: bool) -> None:
        self.kind, self.adapt = kind, adapt
        self.chance = random.Random(seed)
        self.in_burst = [False, False]
        self.timing = PathTiming()
        self.recent: list[float | None] = []

    def is_lost(self, direction: int) -> bool:
        """Send a packet."""
        kind, draw = self.kind, self.chance.random()
        self.in_burst[direction] = draw >= kind.ends if self.in_burst[direction] else draw < kind.begins
        return self.in_burst[direction]

    def probe(self, now: float) -> None:
        """Send a probe there and back, and adapt."""
        is_lost = self.is_lost(0) or self.is_lost(1)
        delay = self.kind.round_trip + self.chance.uniform(-1.0, 1.0) * self.kind.jitter
        self.recent = [*self.recent, None if is_lost else delay][-KEPT:]
        if self.adapt:
            state = ProbeState(answers=True, recent=tuple(self.recent))
            self.timing, _ = next_timing(self.timing, DEFAULT, state, UP, now)

    def judge(self, began: float, outage: float) -> None:
        """Examine the path after an alarm: it is out for `outage` seconds more."""
        results = tuple(
            (at, at >= outage and not (self.is_lost(0) or self.is_lost(1)))
            for at in (number * EXAMINED_EVERY for number in range(EXAMINED))
        )
        examined = Examination(began=began, results=results)
        state = ProbeState(answers=True, recent=tuple(self.recent), examined=examined)
        self.timing, _ = next_timing(self.timing, DEFAULT, state, ALARM, began + JUDGED)

    def alarms(self) -> Iterator[float]:
        """Yield the times of the alarms of an hour."""
        due, received, probed, up_again = [0.0, 0.0], [0.0, 0.0], 1.0, 0.0
        while (now := min(*due, probed)) < HOUR:
            if now == probed:
                self.probe(now)
                probed += 1.0
                continue
            direction = due.index(now)
            due[direction] = now + self.chance.uniform(0.075, 0.1)  # jitter of RFC 5880, 6.8.7
            if self.is_lost(direction):
                continue
            began = received[direction] + detection_time(DEFAULT, self.timing.factor)
            received[direction] = now
            if began < now and now > up_again:
                up_again = began + RETURN
                if self.adapt:
                    self.judge(began, now - began)
                yield began


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_an_hour_has_no_alarm_after_the_path_is_known(kind: Kind) -> None:
    """But rarely one on a path with long bursts; short paths keep the configured time."""
    for seed in range(2):
        path = Path(kind, seed, adapt=True)
        late = [at for at in path.alarms() if at > FIRST]
        assert len(late) <= (kind.name == "mobile")
        assert (path.timing.factor == 1) == (kind.round_trip < 0.1)


def test_without_adaptation_bursts_are_alarms() -> None:
    """Many in an hour: the paths that the test above simulates are bad enough."""
    counts = {kind.name: len(list(Path(kind, 1, adapt=False).alarms())) for kind in KINDS}
    assert counts["LAN"] == counts["metro"] == 0
    assert counts["WAN 200 ms, bursts"] > 50
    assert counts["mobile"] > 200
