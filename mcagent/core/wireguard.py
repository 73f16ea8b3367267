"""Encryption between clusters: how each of their gateways is reached, and what that takes on this Node.

Owns the addresses of tunnel endpoints behind the WireGuard device, which keys and endpoints gateways want and who
claimed them first, what becomes of a gateway that cannot be encrypted to (each refusal is a Problem), the device,
its peers, and what keeps packets in. Knows nothing of ports and flows, or of how a device is written.

Endpoints. A gateway that publishes a key of its own has an endpoint that follows from its gatewayIP alone
(`mcagent.core.addresses.underlay`), so nobody has to tell it, and it stays when other gateways come or go. One
that publishes none (Antrea has one key for a cluster) has Antrea's: the first address of its cluster's Service
CIDR. Endpoints are IPv4, whatever the underlay is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mcagent.core.addresses.rules import ReservedRanges
from mcagent.core.addresses.underlay import ENDPOINTS, endpoint_of
from mcagent.core.local_cluster.nodes import seniority
from mcagent.core.remote_clusters.claims import CheckedCluster, claim_rank
from mcagent.model.config import Config, EncryptionFallback
from mcagent.model.facts import DatapathType, Facts
from mcagent.model.net import Address, Network, host_network
from mcagent.model.node_state import AcceptedCluster, EncryptionState, Publication, RemoteEnd
from mcagent.model.objects import ClusterInfoImport, Gateway, WireGuardInfo
from mcagent.model.problem import Problem, Severity

Claimed = str | Address  # a key, or where tunnels end


# --- what this Node has ---------------------------------------------------------------------------------


def facts_of(facts: Facts) -> Facts:
    """Return the facts that encryption follows from, without those that change with time."""
    return Facts(
        datapath=facts.datapath,
        uplink_mtu=facts.uplink_mtu,
        wireguard=facts.wireguard,
        wireguard_public_key=facts.wireguard_public_key,
        wireguard_next_key=facts.wireguard_next_key,
    )


def _why_not(facts: Facts) -> str:
    """Return why this Node cannot send its tunnels through WireGuard; "" if it can."""
    if facts.datapath is DatapathType.NETDEV:
        return (
            "the userspace datapath of Open vSwitch sends its tunnels past the kernel, so WireGuard cannot "
            "encrypt them: load the kernel module openvswitch"
        )
    if facts.wireguard is None:
        return "this kernel has no WireGuard, and there is no wireguard-go: load the module or install it"
    return "" if facts.wireguard_public_key else "this Node has no WireGuard key: the log says why"


def publication(gateways: Mapping[str, Gateway], facts: Facts, config: Config) -> Publication | None:
    """Return what a gateway is to publish; None without a Gateway object of this Node."""
    here = (one for one in gateways.values() if config.namespace in ("", one.meta.namespace))
    ours = (one for one in here if one.meta.name == config.node_name)
    gateway = min(ours, key=lambda one: seniority(one.meta), default=None)
    if gateway is None:
        return None
    wanted = None
    if config.encrypts and not _why_not(facts):
        wanted = WireGuardInfo(
            public_key=facts.wireguard_public_key,
            next_public_key=facts.wireguard_next_key,
            port=config.wireguard_port,
        )
    return Publication(meta=gateway.meta, there=gateway.wireguard, wanted=wanted)


def _first_endpoint(service_cidr: Network | None) -> Address | None:
    """Return Antrea's tunnel endpoint of a cluster's only gateway; no Service has that address."""
    return service_cidr.network_address if service_cidr is not None else None


# --- what the gateways of other clusters want, and who has it -------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The end of tunnels that a gateway of another cluster wants for itself alone."""

    end: RemoteEnd
    path: str  # where it is published
    who: str
    claims: tuple[tuple[Claimed, tuple[str, ...]], ...]  # address and keys, each with its rank


Wants = tuple[tuple[Address, Wanted | Problem], ...]  # by gateway; see `_wanted_by`


def wants_of(
    value: tuple[AcceptedCluster, CheckedCluster], own: Address, service_cidr: Network | None, config: Config
) -> Wants:
    """Return what the gateways of a cluster that are reached from here want; `own`: this Node's gatewayIP."""
    cluster, checked = value
    ends = endpoint_of(own), _first_endpoint(service_cidr)
    reached = cluster.reached_from(own)
    return tuple((gateway, _wanted_by(checked.info, cluster, gateway, ends, config)) for gateway in reached)


def _wanted_by(
    info: ClusterInfoImport,
    cluster: AcceptedCluster,
    gateway: Address,
    own: tuple[Address, Address | None],
    config: Config,
) -> Wanted | Problem:
    """Return what a gateway wants, or why it is not encrypted to: a warning where it is used all the same.

    `own`: where tunnels end on this Node, and where they do towards a cluster that has one key.
    """
    place = info.gateway_ips.index(gateway)
    path, claim = f"spec.gatewayInfos[{place}].wireGuard", str(gateway)
    published = dict(info.gateway_wireguard).get(gateway)
    own_key = published is not None
    address: Address | None = endpoint_of(gateway)
    source: Address | None = own[0]
    if published is None:
        if place or info.wireguard is None:
            return _without_key(info, gateway, path, config)
        published, path, claim = info.wireguard, "spec.wireGuard", str(info.service_cidr)
        address, source = _first_endpoint(info.service_cidr), own[1]
    if address is None or source is None or not (own_key or info.service_cidr in cluster.cidrs):
        message = f"{gateway} is not used: without both Service CIDRs there is no tunnel endpoint"
        return info.meta.problem("spec.wireGuard", "NoEndpoint", message)
    keys = filter(None, (published.public_key, published.next_public_key))
    return Wanted(
        end=RemoteEnd(
            gateway=gateway,
            address=address,
            public_key=published.public_key,
            next_public_key=published.next_public_key,
            port=published.port or config.wireguard_port,
            source=source,
            own_key=own_key,
        ),
        path=path,
        who=f'gateway {gateway} of cluster "{info.cluster_id}"',
        claims=((address, claim_rank(info, claim)), *((key, claim_rank(info, key)) for key in keys)),
    )


def _without_key(info: ClusterInfoImport, gateway: Address, path: str, config: Config) -> Problem:
    """Return the problem of a gateway without a key."""
    if info.gateway_wireguard or info.wireguard is not None:
        message = (
            f"{gateway} is not used: it has published no WireGuard key of its own yet (an API server with an "
            "older CustomResourceDefinition drops it: then only a cluster's first gateway is used)"
        )
        return info.meta.problem(path, "NoKey", message)
    if config.encryption_fallback is EncryptionFallback.ALLOW_CLEAR:
        message = f"traffic to {gateway} is NOT ENCRYPTED: it has published no WireGuard key (encryptionFallback)"
        return info.meta.problem(path, "NotEncrypted", message, Severity.WARNING)
    message = f"{gateway} is not used: it has published no WireGuard key, and encryption is on here"
    return info.meta.problem(path, "NotEncrypted", message)


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


# --- the verdict ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Encryption:
    """The verdict on all gateways of other clusters, on a gateway of this one.

    `addresses` are those of this Node's own WireGuard device: none, when there is to be none.
    """

    # By cluster ID; those that are used, in the API's order.
    ends: Mapping[str, tuple[RemoteEnd, ...]] = field(default_factory=dict)
    addresses: tuple[Address, ...] = ()
    problems: tuple[Problem, ...] = ()


Found = tuple[tuple[RemoteEnd, ...], tuple[Problem, ...]]  # what is used of a cluster, and why the rest is not


def ends_of(
    value: tuple[CheckedCluster, Wants, Mapping[Claimed, str] | None],
    taken: ReservedRanges,
    facts: Facts,
    config: Config,
) -> Found:
    """Return those of a cluster's gateways that are used. `value`: what they want, and what others have of it."""
    checked, wants, lost = value
    if _why_not(facts):
        clear = config.encryption_fallback is EncryptionFallback.ALLOW_CLEAR
        return tuple(RemoteEnd(gateway=gateway, address=gateway) for gateway, _ in wants if clear), ()
    ends: list[RemoteEnd] = []
    problems: list[Problem] = []
    for gateway, wanted in wants:
        problem = wanted if isinstance(wanted, Problem) else _contested(checked.info, wanted, lost or {}, taken)
        if problem is not None:
            problems.append(problem)
        if isinstance(wanted, Wanted) and problem is None:
            ends.append(wanted.end)
        elif problem is not None and problem.severity is Severity.WARNING:
            ends.append(RemoteEnd(gateway=gateway, address=gateway))
    return tuple(ends), tuple(problems)


def _contested(
    info: ClusterInfoImport, wanted: Wanted, lost: Mapping[Claimed, str], taken: ReservedRanges
) -> Problem | None:
    """Return the problem of a gateway whose key or tunnel endpoint somebody else has; None if nobody has."""
    gateway, address = wanted.end.gateway, wanted.end.address
    for key, _ in wanted.claims[1:]:
        if lost.get(key, wanted.who) != wanted.who:
            message = f"{gateway} is not used: its WireGuard key is that of {lost[key]}"
            return info.meta.problem(wanted.path, "DuplicateKey", message)
    holder = lost.get(address, wanted.who)
    own = taken.overlapping(host_network(address)) if address in ENDPOINTS else None
    if holder == wanted.who and own is not None:
        holder = f"{own[1]} ({own[0]})"
    if holder == wanted.who:
        return None
    message = f"{gateway} is not used: its tunnel endpoint {address} is that of {holder}"
    return info.meta.problem(wanted.path, "DuplicateAddress", message)


def encryption(found: Mapping[str, Found], own: Address, facts: Facts, config: Config) -> Encryption:
    """Return the verdict on all clusters together; `own`: this Node's end of tunnels."""
    problems = [problem for _, every in found.values() for problem in every]
    ends = {cluster_id: every for cluster_id, (every, _) in found.items()}
    why_not = _why_not(facts)
    if why_not:
        result = "nothing goes to other clusters"
        if config.encryption_fallback is EncryptionFallback.ALLOW_CLEAR:
            result = "traffic to other clusters is NOT ENCRYPTED"
        message = f"{why_not}; {result} (encryptionFallback)"
        where, reason = "trafficEncryptionMode", "EncryptionUnavailable"
        problems.append(Problem(subject="configuration", path=where, reason=reason, message=message))
        return Encryption(ends=ends, problems=tuple(problems))
    addresses = {own, *(end.source for every in ends.values() for end in every if end.source is not None)}
    return Encryption(ends=ends, addresses=tuple(sorted(addresses, key=int)), problems=tuple(problems))


def encryption_state(
    encryption: Encryption,
    published: Publication | None,
    own_gateway: Address | None,
    facts: Facts,
    config: Config,
) -> EncryptionState:
    """Return how traffic to other clusters is protected."""
    return EncryptionState(
        mode=config.encryption,
        fallback=config.encryption_fallback,
        implementation=facts.wireguard,
        public_key=facts.wireguard_public_key,
        next_public_key=facts.wireguard_next_key,
        device=config.wireguard_device if encryption.addresses else "",
        ends=encryption.ends,
        publication=published,
        own_gateway=own_gateway,
        problems=encryption.problems,
    )


def also_known_by(encryption: Encryption) -> tuple[Address, ...]:
    """Return the address, beside the gatewayIP, by which clusters with a single key know this gateway."""
    return tuple(a for a in encryption.addresses if a not in ENDPOINTS)
