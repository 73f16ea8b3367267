"""When somebody else changes the same thing again and again: how long to leave it alone before putting it back.

The first few times it is put back at once. Then it is a fight that nobody wins, and the pauses grow. Pure; times
are seconds of one monotonic clock.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field

AT_ONCE = 5  # times that something is put back without a pause ...
WITHIN = 10.0  # ... each within so many seconds of the time before: another writer answers soon
PAUSE, PAUSE_MAX = 2.0, 60.0
MOST = 1000  # things remembered


@dataclass(frozen=True, slots=True, kw_only=True)
class Contended:
    """One thing that was put back `count` times, last at `at`; it is left alone until `until`."""

    count: int
    at: float
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Contention:
    """All that was put back lately."""

    by_key: Mapping[Hashable, Contended] = field(default_factory=dict)

    def judge(self, changed: Iterable[Hashable], now: float) -> tuple[Contention, Mapping[Hashable, Contended]]:
        """Return the next state, given what somebody changed, and what of it is to be left alone for now.

        What is not left alone counts as put back now.
        """
        known = {key: fight for key, fight in self.by_key.items() if now <= fight.until + WITHIN}
        alone: dict[Hashable, Contended] = {}
        for key in changed:
            fight = known.get(key)
            if fight is not None and now < fight.until:
                alone[key] = fight
                continue
            count = fight.count + 1 if fight is not None else 1
            pause = 0.0 if count < AT_ONCE else min(PAUSE * 2.0 ** min(count - AT_ONCE, 16), PAUSE_MAX)
            known[key] = Contended(count=count, at=now, until=now + pause)
        if len(known) > MOST:
            oldest = sorted(known, key=lambda key: known[key].at)[: len(known) - MOST]
            known = {key: fight for key, fight in known.items() if key not in set(oldest)}
        return Contention(by_key=known), alone
