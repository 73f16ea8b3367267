"""A network without its exceptions, as networks. Pure; the cost is linear in the number of exceptions.

The clauses of a conjunctive match need one priority (ovs-fields(7)), and NetworkPolicies are a union: an exception
cannot be a flow of a higher priority, which would also hide the other rules of its level. So a network with
exceptions becomes the networks that remain.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network

from mcagent.model.net import Network

_Prefix = tuple[int, int]  # length, and the first bits


def remaining_count(network: Network, exceptions: Iterable[Network]) -> int:
    """Return the number of networks that `remaining` returns, without making them."""
    return len(_remaining(network, exceptions))


def remaining(network: Network, exceptions: Iterable[Network]) -> tuple[Network, ...]:
    """Return the fewest networks that have the addresses of `network` without those of `exceptions`, sorted."""
    make = IPv4Network if network.version == 4 else IPv6Network
    bits = network.max_prefixlen
    prefixes = ((value << (bits - length), length) for length, value in _remaining(network, exceptions))
    return tuple(make(prefix) for prefix in sorted(prefixes))


def _remaining(network: Network, exceptions: Iterable[Network]) -> set[_Prefix]:
    """Return the prefixes beside the paths from the network to its outermost exceptions."""
    top, whole = network.prefixlen, _prefix(network)
    ends = {_prefix(exception) for exception in exceptions if exception.version == network.version}
    if any(_beginning(whole, length) in ends for length in range(top + 1)):
        return set()
    outermost: set[_Prefix] = set()
    for end in sorted(end for end in ends if end[0] > top and _beginning(end, top) == whole):
        if not any(_beginning(end, length) in outermost for length in range(top, end[0])):
            outermost.add(end)
    paths: set[_Prefix] = set()
    for end in outermost:
        prefix = end
        while prefix not in paths and prefix != whole:
            paths.add(prefix)
            prefix = _beginning(prefix, prefix[0] - 1)
    return {(length, value ^ 1) for length, value in paths} - paths if paths else {whole}


def _prefix(network: Network) -> _Prefix:
    return network.prefixlen, int(network.network_address) >> (network.max_prefixlen - network.prefixlen)


def _beginning(prefix: _Prefix, length: int) -> _Prefix:
    return length, prefix[1] >> (prefix[0] - length)
