"""A leader and a member of Antrea's v2.4.0, a member of ours, and an older one of Antrea's."""

from __future__ import annotations

from tests.antrea.clusters import OURS
from tests.antrea.suite import Suite


class TestLeaderV24(Suite):
    """All of the suite."""

    LEADER = "v2.4.0"
    MEMBERS = ("v2.4.0", OURS, "v1.14.3")
