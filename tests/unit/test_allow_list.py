"""The list of CIDRs that `clusterset init` writes."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from mcagent.controller.admin.allow_list import enclosing, explanation


@pytest.mark.parametrize(
    ("cidrs", "network"),
    [
        (["10.244.0.0/24"], "10.244.0.0/24"),
        (["10.244.0.0/24", "10.244.2.0/24", "fd00::/64"], "10.244.0.0/22"),
        (["10.1.0.0/16", "10.254.0.0/16"], "10.0.0.0/8"),
    ],
)
def test_pod_cidrs_of_all_nodes_lie_in_one_network(cidrs: list[str], network: str) -> None:
    """The smallest, since a CNI divides one network among Nodes."""
    assert enclosing(cidrs) == [ip_network(network)]


def test_without_pod_cidrs_there_is_no_network() -> None:
    """IPv6 alone is none."""
    assert enclosing(["fd00::/64"]) == enclosing([]) == []


@pytest.mark.parametrize(
    ("text", "given", "told"),
    [
        ("10.96.0.0/12", False, "CIDRs in 10.96.0.0/12, the CIDRs of this cluster (annotation"),
        ("10.96.0.0/12,10.1.0.0/16", True, "CIDRs in 10.96.0.0/12,10.1.0.0/16 (annotation"),
        ("", False, "every private network that no other member has: this cluster's CIDRs cannot be read"),
        ("*", True, "every private network that no other member has"),
    ],
)
def test_an_administrator_learns_what_members_may_claim(text: str, given: bool, told: str) -> None:
    """And how a member gets another list."""
    first, second = explanation(text, given=given)
    assert first.startswith(f"members may claim {told}")
    assert "mcagent membertoken create … --allow-cidr CIDR" in second
