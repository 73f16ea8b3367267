"""Who has a WireGuard key, and an end of tunnels behind the device: what gateways want, and the first to claim it.

Knows nothing of devices, problems, or of what becomes of a gateway that does not get what it wants.
"""

from __future__ import annotations

from dataclasses import dataclass

from mcagent.core.addresses.underlay import endpoint_of
from mcagent.model.net import Address, Network
from mcagent.model.node_state import AcceptedCluster
from mcagent.model.objects import ClusterInfoImport, WireGuardInfo


def first_endpoint(service_cidr: Network | None) -> Address | None:
    """Return Antrea's tunnel endpoint of a cluster's only gateway; no Service has that address."""
    return service_cidr.network_address if service_cidr is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """This Node's own ends of tunnels."""

    own: Address
    first: Address | None  # towards a cluster that has one key; None: its Service CIDR is not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a gateway of another cluster wants for itself alone: its keys, and where its tunnels end."""

    published: WireGuardInfo
    path: str
    address: Address
    source: Address  # of this Node's end
    claim: str  # that the address follows from
    who: str

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the key that it has, and the next one if it has told that."""
        return tuple(key for key in (self.published.public_key, self.published.next_public_key) if key)


class Holders:
    """Who has each key and each end of tunnels: whoever has claimed it for longest, this Node before all."""

    def __init__(self) -> None:
        self._found: dict[str | Address, tuple[tuple[str, ...], str]] = {}

    def ask(self, what: str | Address, who: str, rank: tuple[str, ...] = ()) -> None:
        """Note that somebody wants it; of equal ranks (gateways of one cluster) whoever asks first has it."""
        if what not in self._found or rank < self._found[what][0]:
            self._found[what] = (rank, who)

    def other(self, what: str | Address, who: str) -> str:
        """Return who else has it, "" if nobody else does."""
        _, holder = self._found[what]
        return "" if holder == who else holder


def wanted_by(
    info: ClusterInfoImport, cluster: AcceptedCluster, gateway: Address, own: Ends
) -> Wanted | str | None:
    """Return what a gateway wants; None where it has no key, and what is missing where that is something else."""
    place = info.gateway_ips.index(gateway)
    who = f'gateway {gateway} of cluster "{info.cluster_id}"'
    published = dict(info.gateway_wireguard).get(gateway)
    if published is not None:
        return Wanted(
            published=published,
            path=f"spec.gatewayInfos[{place}].wireGuard",
            address=endpoint_of(gateway),
            source=own.own,
            claim=str(gateway),
            who=who,
        )
    if place or info.wireguard is None:
        return None
    address, source = first_endpoint(info.service_cidr), own.first
    if address is None or source is None or info.service_cidr not in cluster.cidrs:
        return "without both Service CIDRs there is no tunnel endpoint"
    return Wanted(
        published=info.wireguard,
        path="spec.wireGuard",
        address=address,
        source=source,
        claim=str(info.service_cidr),
        who=who,
    )
