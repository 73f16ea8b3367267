"""Networks of this Node, and Nodes and Pods, that appeared inside CIDRs of other clusters that were in use.

Only the part is given up. Pure: for what is in use see `Facts.in_use`. Must not know objects of the API.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import IPv4Network
from itertools import chain

from mcagent.core.addresses.rules import prefix_range
from mcagent.model.net import Address, Network, host_network, network_key

Enclosed = tuple[tuple[Network, Network], ...]  # (network of this Node, network around it that is in use)

MAX_PARTS = 128  # of a CIDR around networks that are not used; each part is a route and flows
_LARGEST = 8  # prefix length; no larger CIDR is accepted


def later_networks(
    networks: Iterable[Network],
    addresses: Iterable[Address],
    node_addresses: Iterable[tuple[Address, str]],
    pods: Iterable[Network],
    in_use: Iterable[Network],
) -> Enclosed:
    """Return those of this Node's networks, and of Nodes and Pods, that appeared inside CIDRs in use.

    `networks`, `addresses`: of this Node. An address is there before its network, while its device is down.
    """
    nodes = map(host_network, (*addresses, *(address for address, _ in node_addresses)))
    return enclosed((*networks, *nodes, *pods), in_use)


def pods_inside(pods: Sequence[int], cidrs: Mapping[str, Iterable[Network]]) -> tuple[Network, ...]:
    """Return the addresses of Pods (sorted) inside CIDRs: of each CIDR the first ones, up to one too many."""
    inside: set[int] = set()
    for network in chain.from_iterable(cidrs.values()):
        version, first, last = prefix_range(network)
        begin = bisect_left(pods, first)
        if version == 4:
            inside.update(pods[begin : min(bisect_right(pods, last), begin + MAX_PARTS + 1)])
    return tuple(IPv4Network((address, 32)) for address in sorted(inside))


def enclosed(networks: Iterable[Network], in_use: Iterable[Network]) -> Enclosed:
    """Return the IPv4 networks inside one in use, each with the smallest network around it that is in use.

    A CIDR that is used without a network is in use as its parts, so each larger network is examined by its other
    half: of a CIDR that was refused because of the network no part is in use.
    """
    prefixes = {_number(network) for network in in_use if network.version == 4}
    result: list[tuple[Network, Network]] = []
    for network in sorted(set(networks), key=network_key):
        if network.version != 4:
            continue
        around = number = _number(network)
        while around >> _LARGEST > 1:  # the halves that hold the network
            other, whole = around ^ 1, around >> 1
            if other in prefixes or whole in prefixes:
                outer = whole if other in prefixes else number >> 1
                length = outer.bit_length() - 1
                result.append((network, IPv4Network((outer - (1 << length) << 32 - length, length))))
                break
            around = whole
    return tuple(result)


def _number(network: Network) -> int:
    """Return the bits of a prefix after a 1: n >> 1 is the prefix around n, and n ^ 1 the other half of that."""
    return (1 << network.max_prefixlen | int(network.network_address)) >> network.max_prefixlen - network.prefixlen
