"""The nft tables of a Node as a whole, for each configuration that adds chains: nft(8) would accept them."""

from __future__ import annotations

import re
from itertools import pairwise, product

import pytest

from mcagent.core.compile import compile_desired
from mcagent.core.fragments.kernel import REJECT_MACS
from mcagent.model.config import TrafficEncryption
from mcagent.model.dataplane.facts import Facts
from mcagent.model.dataplane.resources import NftChain, NftSet
from mcagent.model.dataplane.wireguard import WireGuardImplementation
from tests.worlds.core_inputs import HOME, config, resources, snapshot
from tests.worlds.encrypted_clusters import EAST, OWN

FACTS = Facts(wireguard=WireGuardImplementation.KERNEL, wireguard_public_key=OWN)
# Hooks of each type of chain (nft(8), CHAINS).
HOOKS = {
    "filter": {"prerouting", "input", "forward", "output", "postrouting"},
    "nat": {"prerouting", "input", "output", "postrouting"},
    "route": {"output"},
}
CASES = list(
    product(("g1", "w1"), (TrafficEncryption.NONE, TrafficEncryption.WIREGUARD), (False, True), (False, True))
)


@pytest.mark.parametrize(("node", "encryption", "policies", "exposed"), CASES)
def test_chains_and_sets_fit_together(
    node: str, encryption: TrafficEncryption, policies: bool, exposed: bool
) -> None:
    """Base chains have a type with such a hook; rules name sets and chains that exist, and all sets are named."""
    settings = config(node, encryption=encryption, stretched_network_policy=policies, expose_nodes=exposed)
    tables = resources(compile_desired(snapshot(*HOME, EAST), FACTS, settings))
    chains = [r for r in tables if isinstance(r, NftChain)]
    sets = {(r.family, r.name) for r in tables if isinstance(r, NftSet)}
    assert chains
    names = {(chain.family, chain.name) for chain in chains}
    named = set()
    for chain in chains:
        assert bool(chain.type) is bool(chain.hook), chain
        assert not chain.type or chain.hook in HOOKS[chain.type], chain
        for rule in chain.rules:
            named |= {(chain.family, name) for name in re.findall(r"@(mct_\w+)", rule)}
            assert {(chain.family, name) for name in re.findall(r"(?:jump|goto) (\w+)", rule)} <= names, rule
    assert named == sets
    assert len(names) == len(chains)


def test_rejected_packets_to_pods_are_answered_after_the_mark_of_their_connection() -> None:
    """The chain that sets it comes before; packets from Pods are answered before conntrack (-200)."""
    settings = config("g1", stretched_network_policy=True)
    all_resources = resources(compile_desired(snapshot(*HOME, EAST), FACTS, settings))
    chains = {r.name: r for r in all_resources if isinstance(r, NftChain)}
    assert chains["mct_reject_in"].priority == -150
    assert chains["mct_reject_out"].priority == -300
    for name, mac in zip(("mct_reject_in", "mct_reject_out"), REJECT_MACS, strict=True):
        assert f"ether saddr != {mac} accept" in chains[name].rules
        accepted = [rule.endswith("accept") for rule in chains[name].rules]
        assert not any(later and not earlier for earlier, later in pairwise(accepted))  # conditions, then answers
        limit = "limit rate over 100/second burst 200 packets accept"
        assert chains[name].rules[-3:] == (limit, "reject with tcp reset", "reject with icmp admin-prohibited")
