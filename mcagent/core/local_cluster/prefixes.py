"""The Pod CIDRs of this cluster that bridges translate, and the networks of Pods as bridges see them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from flows.pipeline.prefixes import network_in_bridge
from mcagent.core.addresses.rules import AddressRefusal, merge_networks, parts_outside, refuse_network
from mcagent.core.local_cluster.nodes import seniority
from mcagent.model.net import Network, PodPrefix, contains, overlaps
from mcagent.model.node_state import LocalGateway
from mcagent.model.objects import Gateway


def prefixes_of(gateways: Iterable[LocalGateway], service_cidrs: tuple[Network, ...]) -> tuple[PodPrefix, ...]:
    """Return the prefixes that the controller has written to the Gateways, by the first in their order.

    The Gateways are equal, except while the controller changes them.
    """
    ordered = sorted(gateways, key=lambda gateway: gateway.place)
    return _first_outside((gateway.prefixes for gateway in ordered), service_cidrs)


def prefixes_by_objects(gateways: Iterable[Gateway]) -> tuple[PodPrefix, ...]:
    """Return the same from Gateway objects alone, for commands that know no Nodes."""
    ordered = sorted(gateways, key=lambda gateway: seniority(gateway.meta))
    cidrs = [cidr for g in ordered for cidr in (g.service_cidr, g.real_service_cidr) if cidr is not None]
    return _first_outside((tuple(p for p in g.prefixes if refuse_prefix(p) is None) for g in ordered), cidrs)


def refuse_prefix(prefix: PodPrefix) -> AddressRefusal | None:
    """Return why a prefix cannot be used, None if it can."""
    return refuse_network(prefix.real) or refuse_network(prefix.virtual)


def _first_outside(
    candidates: Iterable[tuple[PodPrefix, ...]], service_cidrs: Collection[Network]
) -> tuple[PodPrefix, ...]:
    prefixes = next(filter(None, candidates), ())
    return tuple(p for p in prefixes if not any(overlaps(p.virtual, cidr) for cidr in service_cidrs))


def pods_in_bridge(pods: Iterable[Network], prefixes: tuple[PodPrefix, ...]) -> tuple[Network, ...]:
    """Return the networks of Pods as bridges see them, merged. `pods` may contain a translated network."""
    return merge_networks(part for network in pods for part in _parts(network, prefixes))


def _parts(network: Network, prefixes: tuple[PodPrefix, ...]) -> Iterator[Network]:
    inner = [prefix for prefix in prefixes if contains(network, prefix.real)]
    for part in parts_outside(network, (prefix.real for prefix in inner)):
        yield network_in_bridge(part, prefixes)
    yield from (prefix.virtual for prefix in inner)
