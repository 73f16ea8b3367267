"""The decision on virtual Pod CIDRs: which members publish CIDRs of the leader instead of their Pod CIDRs. Pure.

The reconciler `export_ranges` decides on these with the export ranges, and stores both on the leader's ClusterSet.
The rules are the same; a virtual CIDR is as long as its Pod CIDR, and a cluster can need several.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network

from mcagent.controller.contract.cidr_claims import CidrClaim
from mcagent.controller.contract.export_ranges import ALWAYS, places_from
from mcagent.controller.contract.pod_ranges import AssignedPodCidrs
from mcagent.controller.contract.ranges import Networks, valid_range
from mcagent.model.net import PodPrefix
from mcagent.model.parsing.prefixes import prefixes_text

_ALWAYS = "podExportCIDR is always"
_NONE = AssignedPodCidrs()


@dataclass(frozen=True, slots=True, kw_only=True)
class PodMember:
    """What a member's ClusterInfo says of its Pods."""

    cluster_id: str
    mode: str  # AUTO or ALWAYS, or "": the leader assigns it no virtual CIDR
    pod_cidrs: tuple[CidrClaim, ...] = ()  # the real ones
    reported: str = ""  # the text that they were read from


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupied:
    """The networks of all members. An owner is "cluster ID CIDR".

    `granted`: their CIDRs. `used`: these, and real ones, which decide who needs virtual CIDRs. `claimed`: what no
    new virtual CIDR may have.
    """

    granted: Networks
    used: Networks
    claimed: Networks


def assign_pods(
    before: Mapping[str, AssignedPodCidrs], members: Iterable[PodMember], pool: Sequence[str], occupied: Occupied
) -> dict[str, AssignedPodCidrs]:
    """Return the decision on each member that reports Pod CIDRs, and the virtual CIDRs of clusters that left.

    A virtual CIDR stays while the pool has it, unless another member was granted an address in it.
    """
    by_id = {member.cluster_id: member for member in sorted(members, key=lambda member: member.cluster_id)}
    networks = [IPv4Network(text) for text in pool]
    pairs = {
        cluster: {str(p.real): p for p in decision.pairs if _stays(p, cluster, networks, occupied.granted)}
        for cluster, decision in before.items()
    }
    recorded = _recorded(pairs)
    assigned: dict[str, AssignedPodCidrs] = {}
    for cluster, member in by_id.items():
        if not member.mode or not member.pod_cidrs:
            continue
        own = pairs.setdefault(cluster, {})
        why, needed = _needed(member, occupied.used, before.get(cluster, _NONE), own)
        for real in needed:
            if real not in own and (virtual := _new((cluster, real), networks, recorded, by_id, occupied.claimed)):
                for owner in recorded.overlapping(*valid_range(str(virtual))):  # clusters that left
                    other, _, key = owner.rsplit(" ", 2)
                    del pairs[other][key]
                own[real] = PodPrefix(real=IPv4Network(real), virtual=virtual)
                recorded = _recorded(pairs)
        shown = sorted(set(needed) & own.keys()) if why else sorted(own)
        assigned[cluster] = AssignedPodCidrs(
            pod_cidrs=member.reported,
            prefixes=prefixes_text(own[real] for real in shown) or "",
            why=why,
            missing=", ".join(real for real in needed if real not in own),
        )
    reserved = {
        c: AssignedPodCidrs(prefixes=text) for c, ps in pairs.items() if (text := prefixes_text(ps.values()))
    }
    return dict(sorted((reserved | assigned).items()))


def _recorded(pairs: Mapping[str, Mapping[str, PodPrefix]]) -> Networks:
    """Return the virtual CIDRs of clusters. An owner is "cluster ID CIDR Pod CIDR"."""
    rows = ((cluster, real, str(pair.virtual)) for cluster, own in pairs.items() for real, pair in own.items())
    return Networks((*valid_range(virtual), f"{cluster} {virtual} {real}") for cluster, real, virtual in rows)


def _needed(
    member: PodMember, used: Networks, before: AssignedPodCidrs, own: Mapping[str, PodPrefix]
) -> tuple[str, list[str]]:
    """Return why a member needs virtual CIDRs, and for which Pod CIDRs; those that it uses stay."""
    texts = [claim.text for claim in member.pod_cidrs]
    if member.mode == ALWAYS:
        return _ALWAYS, texts
    in_use = {text for text in texts if text in own} if before.why not in ("", _ALWAYS) else set()
    reasons = {text: why for text in texts if (why := _conflict(member, text, used))}
    why = before.why if in_use else next(iter(reasons.values()), "")
    return why, [text for text in texts if text in reasons or text in in_use]


def _conflict(member: PodMember, cidr: str, used: Networks) -> str:
    for owner in used.overlapping(*valid_range(cidr)):
        cluster, text = owner.split(" ")
        if cluster != member.cluster_id:
            return f"its Pod CIDR {cidr} overlaps {text} of cluster {cluster}"
    return ""


def _stays(pair: PodPrefix, cluster: str, pool: Iterable[IPv4Network], granted: Networks) -> bool:
    virtual = IPv4Network(str(pair.virtual))
    owners = granted.overlapping(*valid_range(str(virtual)))
    return any(virtual.subnet_of(network) for network in pool) and all(o == f"{cluster} {virtual}" for o in owners)


def _new(
    key: tuple[str, str],
    pool: Iterable[IPv4Network],
    recorded: Networks,
    members: Mapping[str, PodMember],
    claimed: Networks,
) -> IPv4Network | None:
    """Return a free virtual CIDR for `key` (cluster, Pod CIDR), else one of a cluster that left; None: no such."""
    cluster, real = key
    length = IPv4Network(real).prefixlen
    places = [(n, 1 << (length - n.prefixlen)) for n in pool if n.prefixlen <= length]

    def slot(place: int) -> tuple[IPv4Network, IPv4Network]:
        """Return a slot, and the network of the pool that it is part of."""
        for network, count in places:
            if place < count:
                return IPv4Network((int(network.network_address) + (place << 32 - length), length)), network
            place -= count
        raise AssertionError(place)

    def first(*, of_members: bool) -> IPv4Network | None:
        total = sum(count for _, count in places)
        start, step = next(places_from(f"{cluster} {real}", total), 0), 0
        while step < total:
            candidate, network = slot((start + step) % total)
            bounds, own = valid_range(str(candidate)), f"{cluster} {candidate}"
            owners = [owner for owner in claimed.overlapping(*bounds) if owner != own]
            owners += [
                owner
                for owner in recorded.overlapping(*bounds)
                if not of_members or owner.rsplit(" ", 2)[0] in members
            ]
            if not owners:
                return candidate
            # Skip all slots in the largest of these CIDRs: a member can claim the whole pool.
            end = max(valid_range(owner.split(" ")[1])[1] for owner in owners)
            end = min(end, int(network.broadcast_address))
            step += (end - bounds[0]) // candidate.num_addresses + 1
        return None

    return first(of_members=False) or first(of_members=True)
