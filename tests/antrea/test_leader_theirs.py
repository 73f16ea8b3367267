"""A leader and a member of Antrea's, and a member of ours."""

from __future__ import annotations

import pytest

from tests.antrea.suite import (
    test_a_gateway_moves,
    test_a_member_leaves_and_joins_again,
    test_cluster_information_goes_both_ways,
    test_services_go_both_ways,
)

LEADER = "theirs"
pytestmark = pytest.mark.timeout(300)

__all__ = [
    "test_a_gateway_moves",
    "test_a_member_leaves_and_joins_again",
    "test_cluster_information_goes_both_ways",
    "test_services_go_both_ways",
]
