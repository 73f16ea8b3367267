"""A leader and two members of Antrea's v1.14.3, and a member of ours. Later members could leave nothing here."""

from __future__ import annotations

from tests.antrea.clusters import OURS
from tests.antrea.suite import Suite


class TestLeaderV114(Suite):
    """All of the suite."""

    LEADER = "v1.14.3"
    MEMBERS = ("v1.14.3", OURS, "v1.14.3")
