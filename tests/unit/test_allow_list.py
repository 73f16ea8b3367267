"""The list of CIDRs that `clusterset init` proposes."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from mcagent.controller.admin.allow_list import enclosing, proposal


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


def test_a_proposal_without_cidrs_has_a_placeholder() -> None:
    """The cluster may not be readable; the key is named all the same."""
    assert any("allowedCIDRs: [CIDR, …]" in line for line in proposal([]))
    assert any(
        "allowedCIDRs: [10.96.0.0/12, 10.244.0.0/16]}" in line
        for line in proposal(["10.96.0.0/12", "10.244.0.0/16"])
    )
