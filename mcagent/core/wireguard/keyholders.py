"""Who has a WireGuard key, and an end of tunnels behind the device: what gateways want, and the first to claim it.

Knows nothing of devices, problems, or of what becomes of a gateway that does not get what it wants.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mcagent.core.addresses.underlay import endpoint_of
from mcagent.core.remote_clusters.cidr_claims import CheckedCluster, rank_of
from mcagent.model.net import Address, Network
from mcagent.model.node_state import AcceptedCluster
from mcagent.model.objects import ClusterInfoImport, WireGuardInfo


def first_endpoint(service_cidr: Network | None) -> Address | None:
    """Return Antrea's tunnel endpoint of a cluster's only gateway; no Service has that address."""
    return service_cidr.network_address if service_cidr is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """This Node's own ends of tunnels."""

    gateway_ip: Address
    own: Address
    first: Address | None  # towards a cluster that has one key; None: its Service CIDR is not known


Claimed = str | Address  # a key, or where tunnels end


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a gateway of another cluster wants for itself alone: its keys, and where its tunnels end."""

    published: WireGuardInfo
    path: str
    address: Address
    source: Address  # of this Node's end
    who: str
    claims: tuple[tuple[Claimed, tuple[str, ...]], ...]  # address and keys, each with its rank


Wants = tuple[tuple[Address, Wanted | str | None], ...]  # by gateway; see `wanted_by`


def wants_of(value: tuple[AcceptedCluster, CheckedCluster], own: Ends) -> Wants:
    """Return what the gateways of a cluster that are reached from here want."""
    cluster, checked = value
    reached = cluster.reached_from(own.gateway_ip)
    return tuple((gateway, wanted_by(checked.info, cluster, gateway, own)) for gateway in reached)


def wanted_by(
    info: ClusterInfoImport, cluster: AcceptedCluster, gateway: Address, own: Ends
) -> Wanted | str | None:
    """Return what a gateway wants; None where it has no key, and what is missing where that is something else."""
    place = info.gateway_ips.index(gateway)
    published = dict(info.gateway_wireguard).get(gateway)
    path, claim = f"spec.gatewayInfos[{place}].wireGuard", str(gateway)
    address: Address | None = endpoint_of(gateway)
    source: Address | None = own.own
    if published is None:
        if place or info.wireguard is None:
            return None
        published, path, claim = info.wireguard, "spec.wireGuard", str(info.service_cidr)
        address, source = first_endpoint(info.service_cidr), own.first
    if address is None or source is None or (source is own.first and info.service_cidr not in cluster.cidrs):
        return "without both Service CIDRs there is no tunnel endpoint"
    keys = filter(None, (published.public_key, published.next_public_key))
    return Wanted(
        published=published,
        path=path,
        address=address,
        source=source,
        who=f'gateway {gateway} of cluster "{info.cluster_id}"',
        claims=((address, rank_of(info, claim)), *((key, rank_of(info, key)) for key in keys)),
    )


def lost_claims(
    wants: Mapping[str, Wants], clusters: Mapping[str, AcceptedCluster], own: tuple[Claimed, ...]
) -> dict[str, dict[Claimed, str]]:
    """Return by cluster ID what somebody else has, and who: the first to claim it, this Node before all.

    `own` is this Node's. Of equal ranks (gateways of one cluster) the first has it.
    """
    holders: dict[Claimed, tuple[tuple[str, ...], str]] = dict.fromkeys(own, ((), "this Node"))
    # What an IPv6 gateway is mapped to as a source must be nobody's endpoint (its own it never is).
    for cluster in clusters.values():
        for gateway, source in zip(cluster.gateways, cluster.sources, strict=True):
            if gateway.version == 6:
                holders.setdefault(source, ((), f"gateway {gateway}"))
    asked = [
        (cluster_id, what, rank, wanted.who)
        for cluster_id, every in wants.items()
        for _, wanted in every
        if isinstance(wanted, Wanted)
        for what, rank in wanted.claims
    ]
    for _, what, rank, who in asked:
        if what not in holders or rank < holders[what][0]:
            holders[what] = (rank, who)
    lost: dict[str, dict[Claimed, str]] = {}
    for cluster_id, what, _, who in asked:
        if holders[what][1] != who:
            lost.setdefault(cluster_id, {})[what] = holders[what][1]
    return lost
