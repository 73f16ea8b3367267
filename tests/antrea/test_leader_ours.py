"""A leader and a member of ours, and a member of Antrea's."""

from __future__ import annotations

import pytest

from tests.antrea.suite import (
    test_a_gateway_moves,
    test_a_member_leaves_and_joins_again,
    test_cluster_information_goes_both_ways,
    test_services_go_both_ways,
)

LEADER = "ours"
pytestmark = pytest.mark.timeout(300)  # the set-up is the first test's, and waits for Antrea's timers

__all__ = [
    "test_a_gateway_moves",
    "test_a_member_leaves_and_joins_again",
    "test_cluster_information_goes_both_ways",
    "test_services_go_both_ways",
]
