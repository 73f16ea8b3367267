"""How long properties are searched: hypothesis profiles, and the share of their examples for costly properties.

Owns every number of examples; tests name a constant of this module or nothing. `HYPOTHESIS_PROFILE` chooses:

- `ci` (the default): the same examples on every run.
- `mutants`: a fifth of the examples of `ci`, since `make mutants` runs each property for hundreds of mutants.
- `nightly`: forty times as many, other ones on every run; a failure prints how to repeat it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings

settings.register_profile("ci", derandomize=True, deadline=None, max_examples=50)
settings.register_profile("mutants", derandomize=True, deadline=None, max_examples=10)
settings.register_profile("nightly", deadline=None, max_examples=2000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

_SEARCHED = settings().max_examples
# Worlds and real components shrink slowly: `ci` prints the example that failed as it was drawn.
_PHASES = [Phase.explicit, Phase.generate] if settings().derandomize else list(Phase)

COSTLY = settings(
    max_examples=_SEARCHED // 5,
    phases=_PHASES,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
"""For a property whose examples take some 50 ms: a world of clusters, or a sequence of steps."""

REAL = settings(
    max_examples=_SEARCHED // 10,
    phases=_PHASES,
    database=None,
    suppress_health_check=list(HealthCheck),
)
"""For a property of a real component: Open vSwitch, the kernel, an API server."""

Test = TypeVar("Test", bound=Callable[..., None])


def costly(test: Test) -> Test:
    """Give a property the settings COSTLY, and the marker of the tests that `make properties` runs."""
    marked: Test = pytest.mark.costly(COSTLY(test))
    return marked
