"""The list of CIDRs that `clusterset init` writes."""

from __future__ import annotations

import pytest

from mcagent.controller.admin.allow_list import explanation, ranges_of


@pytest.mark.parametrize(
    ("cidrs", "ranges"),
    [
        (["10.96.0.0/16", "10.244.0.0/24", "10.244.1.0/24", "fd00::/64"], ["10.0.0.0/8"]),
        (["172.20.0.0/16", "100.64.0.0/16"], ["172.16.0.0/12", "100.64.0.0/10"]),
        (["10.96.0.0/16", "11.1.0.0/16"], ["10.0.0.0/8", "11.1.0.0/16"]),
        ([], []),
    ],
)
def test_members_may_claim_the_private_ranges_of_the_leaders_cluster(cidrs: list[str], ranges: list[str]) -> None:
    """A CIDR outside of private ranges is taken as it is."""
    assert ranges_of(cidrs) == ranges


@pytest.mark.parametrize(
    ("text", "configured", "expected"),
    [
        ("10.0.0.0/8", False, "CIDRs in 10.0.0.0/8, the private ranges of this cluster's CIDRs (annotation"),
        ("10.96.0.0/12,10.1.0.0/16", True, "CIDRs in 10.96.0.0/12,10.1.0.0/16 (annotation"),
        ("", False, "every private network that no other member has: this cluster's CIDRs cannot be read"),
        ("*", True, "every private network that no other member has"),
    ],
)
def test_an_administrator_learns_what_members_may_claim(text: str, configured: bool, expected: str) -> None:
    """And how a member gets another list."""
    first, second = explanation(text, given=configured)
    assert first.startswith(f"members may claim {expected}")
    assert "mcagent membertoken create … --allow-cidr CIDR" in second
