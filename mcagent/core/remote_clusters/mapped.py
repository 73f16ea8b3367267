"""Mapped addresses: the sources of translated connections of other clusters, as this cluster's kernels see them.

The bridge of a server's Node replaces the address of the gateway that translated a connection. The address in its
place is routed to the bridge by a route of its own, so a reply comes back whatever forwards it: the kernel, or an
eBPF program that passes netfilter. The mapping is a matter of this cluster alone, and all of its Nodes compute the
same one. IPv6 gateways translate to a mapped address themselves. Must not know flows or routes.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

from mcagent.core.addresses.underlay import MAPPED, endpoint_of, mapped_addresses
from mcagent.core.local_cluster.topology import LocalCluster
from mcagent.core.remote_clusters.claims import CheckedCluster
from mcagent.model.net import Address
from mcagent.model.node_state import AcceptedCluster

TunnelEnds = tuple[tuple[str, str, str, str], tuple[Address, ...]]  # `order` of a cluster, and its gateways
MappedSources = tuple[tuple[Address, Address], ...]  # see `AcceptedCluster.mapped`
_MAPPED_BYTE = int(MAPPED.network_address) >> 24


def preferred_sources(value: tuple[AcceptedCluster, CheckedCluster]) -> MappedSources:
    """Map the sources of a cluster, without regard to other clusters.

    Where a cluster has a single WireGuard key, Antrea translates to its tunnel endpoint, the first address of its
    Service CIDR; this cluster's gateways route that to the WireGuard device.
    """
    cluster, checked = value
    info = checked.info
    sources = dict(zip(cluster.gateways, cluster.sources, strict=True))
    pairs = [(s, next(mapped_addresses(s)) if gateway.version == 4 else s) for gateway, s in sources.items()]
    single_key = info.wireguard is not None and not info.gateway_wireguard
    if single_key and info.service_cidr is not None and info.service_cidr in cluster.cidrs:
        endpoint = info.service_cidr.network_address
        pairs.append((endpoint, next(mapped_addresses(endpoint))))
    return tuple(pairs)


def tunnel_ends(cluster: CheckedCluster) -> TunnelEnds:
    """Return what `mapped_sources` needs of a cluster: a change of anything else is none to it."""
    return cluster.order, cluster.info.gateway_ips


def mapped_sources(
    preferred: Mapping[str, MappedSources], clusters: Mapping[str, TunnelEnds], local: LocalCluster
) -> Mapping[str, MappedSources]:
    """Resolve the collisions: a mapped address stands for one source, and no tunnel ends there.

    The cluster that was there first keeps its address; others get the next free one.
    """
    pairs = tuple(chain.from_iterable(preferred.values()))
    nodes = tuple(address for address, _ in local.node_addresses)
    ends = (*chain.from_iterable(addresses for _, addresses in clusters.values()), *nodes)
    own = (gateway.source for gateway in local.gateways)
    occupied = {int(address) for address in (*own, *nodes) if _is_mapped(address)}
    occupied.update(int(endpoint_of(address)) for address in ends if _ends_mapped(address))
    fixed = {int(source) for source, mapped in pairs if source == mapped}
    chosen = [int(mapped) for source, mapped in pairs if source != mapped]
    if len(set(chosen)) == len(chosen) and (occupied | fixed).isdisjoint(chosen):
        return preferred
    occupied |= fixed
    result: dict[str, MappedSources] = {}
    for name in sorted(preferred, key=lambda name: clusters[name][0]):
        result[name] = tuple((source, _next_free(source, mapped, occupied)) for source, mapped in preferred[name])
    return {name: result[name] for name in preferred}


def _next_free(source: Address, mapped: Address, occupied: set[int]) -> Address:
    """Return the mapped address of a source, and add it to `occupied`."""
    if source == mapped:
        return mapped
    free = next(address for address in mapped_addresses(source) if int(address) not in occupied)
    occupied.add(int(free))
    return free


def _is_mapped(address: Address) -> bool:
    return address.version == 4 and int(address) >> 24 == _MAPPED_BYTE


def _ends_mapped(address: Address) -> bool:
    """Tell whether `endpoint_of` an address is in the range; those of IPv6 addresses are not."""
    return address.version == 4 and int(address) >> 24 & 0xF == _MAPPED_BYTE & 0xF
