"""A leader and a member of ours, and a member of each version of Antrea's."""

from __future__ import annotations

from tests.antrea.clusters import OURS
from tests.antrea.suite import Suite


class TestLeaderOurs(Suite):
    """All of the suite."""

    LEADER = OURS
    MEMBERS = (OURS, "v1.14.3", "v2.4.0")
