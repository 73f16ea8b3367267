"""How long to wait after failures, for all that is tried again. A pure value: no clock, no randomness."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Exponential back-off: `first`, twice that, ... up to `most`, in seconds.

    `jitter` is the share of a delay that is taken off at random, so that many who failed together do not all try
    again together.
    """

    first: float
    most: float
    jitter: float = 0.5

    def delay(self, failures: int, chance: float = 0.0) -> float:
        """Return the delay after so many failures in a row (at least 1). `chance`: a random number from 0 to 1."""
        return min(self.most, self.first * 2.0 ** min(failures - 1, 30)) * (1.0 - self.jitter * chance)
