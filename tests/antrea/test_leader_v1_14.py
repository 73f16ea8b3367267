"""A leader and two members of Antrea's v1.14.3, and a member of ours. Later members could leave nothing here."""

from __future__ import annotations

import pytest

from tests.antrea.clusters import OURS
from tests.antrea.suite import Suite


@pytest.mark.timeout(600)  # the set-up is the first test's, and waits for Antrea's timers
class TestLeaderV114(Suite):
    """All of the suite."""

    LEADER = "v1.14.3"
    MEMBERS = ("v1.14.3", OURS, "v1.14.3")
