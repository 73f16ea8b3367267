"""Networks of this Node that appeared inside CIDRs of other clusters that were in use: only the part is given up.

Pure: what is in use are the CIDRs of the last desired state or, in a new process, the kernel's routes. Must not
know objects of the API.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from ipaddress import IPv4Network

from mcagent.model.dataplane.facts import Facts
from mcagent.model.net import Network, network_key

Enclosed = tuple[tuple[Network, Network], ...]  # (network of this Node, network around it that is in use)

_LARGEST = 8  # prefix length; no larger CIDR is accepted


def with_enclosed(facts: Facts, in_use: Iterable[Network]) -> Facts:
    """Return the facts with the Node's networks that appeared inside CIDRs in use."""
    return replace(facts, enclosed=enclosed((*facts.connected, *facts.routed), in_use))


def enclosed(networks: Iterable[Network], in_use: Iterable[Network]) -> Enclosed:
    """Return the IPv4 networks inside one in use, each with the smallest network around it that is in use.

    A CIDR that is used without a network is in use as its parts, so each larger network is examined by its other
    half: of a CIDR that was refused because of the network no part is in use.
    """
    prefixes = {(network.prefixlen, _prefix(network)) for network in in_use if network.version == 4}
    lengths = {length for length, _ in prefixes}
    result: list[tuple[Network, Network]] = []
    for network in sorted(set(networks), key=network_key):
        if network.version != 4:
            continue
        prefix = _prefix(network)
        for length in range(network.prefixlen, _LARGEST, -1):  # of the half that holds the network
            other = (prefix >> (network.prefixlen - length)) ^ 1
            if any((shorter, other >> (length - shorter)) in prefixes for shorter in lengths if shorter <= length):
                result.append((network, IPv4Network((other >> 1 << 33 - length, length - 1))))
                break
    return tuple(result)


def _prefix(network: Network) -> int:
    return int(network.network_address) >> (network.max_prefixlen - network.prefixlen)
