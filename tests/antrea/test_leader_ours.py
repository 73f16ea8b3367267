"""A leader and a member of ours, and a member of each version of Antrea's."""

from __future__ import annotations

import pytest

from tests.antrea.clusters import OURS
from tests.antrea.suite import Suite


@pytest.mark.timeout(600)  # the set-up is the first test's, and waits for Antrea's timers
class TestLeaderOurs(Suite):
    """All of the suite."""

    LEADER = OURS
    MEMBERS = (OURS, "v1.14.3", "v2.4.0")
