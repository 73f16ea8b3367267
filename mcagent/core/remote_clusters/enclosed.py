"""Networks of this Node, and Nodes and Pods, that appeared inside CIDRs of other clusters that were in use.

Only the part is given up. Pure: for what is in use see `Facts.in_use`. Must not know objects of the API.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence, Set
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
    in_use: Mapping[str, Set[int]],
) -> Enclosed:
    """Return those of this Node's networks, and of Nodes and Pods, that appeared inside CIDRs in use.

    `networks`, `addresses`: of this Node. An address is there before its network, while its device is down.
    `in_use`: the `prefix_numbers` of each cluster.
    """
    nodes = map(host_network, (*addresses, *(address for address, _ in node_addresses)))
    return enclosed((*networks, *nodes, *pods), frozenset[int]().union(*in_use.values()))


def pods_inside(pods: Sequence[int], cidrs: Mapping[str, Iterable[Network]]) -> tuple[Network, ...]:
    """Return the addresses of Pods (sorted) inside CIDRs: of each CIDR the first ones, up to one too many."""
    inside: set[int] = set()
    for network in chain.from_iterable(cidrs.values()):
        version, first, last = prefix_range(network)
        begin = bisect_left(pods, first)
        if version == 4:
            inside.update(pods[begin : min(bisect_right(pods, last), begin + MAX_PARTS + 1)])
    return tuple(IPv4Network((address, 32)) for address in sorted(inside))


def prefix_numbers(networks: Iterable[Network]) -> frozenset[int]:
    """Return the numbers of IPv4 networks: their bits after a 1, so n >> 1 is the network around n."""
    return frozenset(_number(network) for network in networks if network.version == 4)


def enclosed(networks: Iterable[Network], in_use: Set[int]) -> Enclosed:
    """Return the IPv4 networks inside one in use, each with the smallest network around it that is in use.

    `in_use`: `prefix_numbers`. A CIDR that is used without a network is in use as its parts, so each larger
    network is examined by its other half: of a CIDR that was refused because of the network no part is in use.
    """
    lengths = {number.bit_length() - 1 for number in in_use}
    halves = sorted(lengths | {length + 1 for length in lengths}, reverse=True)
    result: list[tuple[Network, Network]] = []
    for network in sorted(set(networks), key=network_key):
        if network.version != 4:
            continue
        number = _number(network)
        for length in halves:  # of the half that holds the network
            if not _LARGEST < length <= network.prefixlen:
                continue
            half = number >> network.prefixlen - length
            if half ^ 1 in in_use or half >> 1 in in_use:
                outer = half >> 1 if half ^ 1 in in_use else number >> 1
                bits = outer.bit_length() - 1
                result.append((network, IPv4Network((outer - (1 << bits) << 32 - bits, bits))))
                break
    return tuple(result)


def _number(network: Network) -> int:
    return (1 << network.max_prefixlen | int(network.network_address)) >> network.max_prefixlen - network.prefixlen
