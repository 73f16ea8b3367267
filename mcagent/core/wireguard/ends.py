"""How each gateway of other clusters is reached while traffic between clusters is encrypted.

Owns the addresses of tunnel endpoints behind the WireGuard device, which keys and endpoints gateways want and who
claimed them first, and what becomes of a gateway that cannot be encrypted to. Each refusal is a Problem. Knows
nothing of ports, flows, routes or devices.

Endpoints. A gateway that publishes a key of its own has an endpoint that follows from its gatewayIP alone
(`mcagent.core.addresses.underlay`), so nobody has to tell it, and it stays when other gateways come or go. One
that publishes none (Antrea has one key for a cluster) has Antrea's: the first address of its cluster's Service
CIDR. Endpoints are IPv4, whatever the underlay is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mcagent.core.addresses.rules import Taken
from mcagent.core.addresses.underlay import ENDPOINTS, endpoint_of
from mcagent.core.local_cluster.nodes import seniority
from mcagent.core.remote_clusters.settle import CheckedCluster, rank_of
from mcagent.model.config import Config, EncryptionFallback
from mcagent.model.facts import DatapathType, Facts
from mcagent.model.net import Address, Network, host_network
from mcagent.model.node_state import AcceptedCluster, LocalGateway, Publication, RemoteEnd
from mcagent.model.objects import ClusterInfoImport, Gateway, WireGuardInfo
from mcagent.model.problem import Problem, Severity
from mcagent.model.wireguard import WireGuardImplementation


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


@dataclass(frozen=True, slots=True, kw_only=True)
class WireGuardFacts:
    """What this Node can encrypt with."""

    implementation: WireGuardImplementation | None
    public_key: str
    next_public_key: str
    datapath: DatapathType
    uplink_mtu: int

    @classmethod
    def of(cls, facts: Facts) -> WireGuardFacts:
        """Return that part of the facts."""
        return cls(
            implementation=facts.wireguard,
            public_key=facts.wireguard_public_key,
            next_public_key=facts.wireguard_next_key,
            datapath=facts.datapath,
            uplink_mtu=facts.uplink_mtu,
        )

    @property
    def why_not(self) -> str:
        """Why this Node cannot send its tunnels through WireGuard; "" if it can."""
        if self.datapath is DatapathType.NETDEV:
            return (
                "the userspace datapath of Open vSwitch sends its tunnels past the kernel, so WireGuard cannot "
                "encrypt them: load the kernel module openvswitch"
            )
        if self.implementation is None:
            return "this kernel has no WireGuard, and there is no wireguard-go: load the module or install it"
        return "" if self.public_key else "this Node has no WireGuard key: the log says why"


@dataclass(frozen=True, slots=True, kw_only=True)
class Encryption:
    """The verdict on all gateways of other clusters, on a gateway of this one.

    `addresses` are those of this Node's own WireGuard device: none, when there is to be none.
    """

    ends: Mapping[str, tuple[RemoteEnd, ...]]  # by cluster ID; those that are used, in the API's order
    addresses: tuple[Address, ...]
    problems: tuple[Problem, ...]


def publication(gateways: Mapping[str, Gateway], facts: WireGuardFacts, config: Config) -> Publication | None:
    """Return what a gateway is to publish; None without a Gateway object of this Node."""
    found = [
        gateway
        for gateway in gateways.values()
        if gateway.meta.name == config.node_name and config.namespace in ("", gateway.meta.namespace)
    ]
    if not found:
        return None
    gateway = min(found, key=lambda one: seniority(one.meta))
    wanted = None
    if config.encrypts and not facts.why_not:
        wanted = WireGuardInfo(
            public_key=facts.public_key, next_public_key=facts.next_public_key, port=config.wireguard_port
        )
    return Publication(meta=gateway.meta, there=gateway.wireguard, wanted=wanted)


def own_ends(own: LocalGateway) -> Ends:
    """Return where tunnels end on this gateway."""
    return Ends(gateway_ip=own.gateway_ip, own=endpoint_of(own.gateway_ip), first=first_endpoint(own.service_cidr))


Found = tuple[tuple[RemoteEnd, ...], tuple[Problem, ...]]  # what is used of a cluster, and why the rest is not


def ends_of(
    value: tuple[CheckedCluster, Wants, Mapping[Claimed, str] | None],
    taken: Taken,
    facts: WireGuardFacts,
    config: Config,
) -> Found:
    """Return those of a cluster's gateways that are used. `value`: what they want, and what others have of it."""
    checked, wants, lost = value
    clear = config.encryption_fallback is EncryptionFallback.ALLOW_CLEAR
    if facts.why_not:
        return tuple(RemoteEnd(gateway=gateway, address=gateway) for gateway, _ in wants if clear), ()
    ends: list[RemoteEnd] = []
    problems: list[Problem] = []
    for gateway, wanted in wants:
        if isinstance(wanted, Wanted):
            problem = _contested(checked.info, gateway, wanted, lost or {}, taken)
            if problem is None:
                ends.append(_end(checked.info, gateway, wanted, config.wireguard_port))
        elif isinstance(wanted, str):
            message = f"{gateway} is not used: {wanted}"
            problem = checked.info.meta.problem("spec.wireGuard", "NoEndpoint", message)
        else:
            problem = _without_key(checked.info, gateway, clear=clear)
            if problem.severity is Severity.WARNING:
                ends.append(RemoteEnd(gateway=gateway, address=gateway))
        if problem is not None:
            problems.append(problem)
    return tuple(ends), tuple(problems)


def _contested(
    info: ClusterInfoImport, gateway: Address, wanted: Wanted, lost: Mapping[Claimed, str], taken: Taken
) -> Problem | None:
    """Return the problem of a gateway whose key or tunnel endpoint somebody else has; None if nobody has."""
    address = wanted.address
    for what, _ in wanted.claims[1:]:
        if lost.get(what, wanted.who) != wanted.who:
            message = f"{gateway} is not used: its WireGuard key is that of {lost[what]}"
            return info.meta.problem(wanted.path, "DuplicateKey", message)
    holder = lost.get(address, wanted.who)
    own = taken.overlapping(host_network(address)) if address in ENDPOINTS else None
    if holder == wanted.who and own is not None:
        holder = f"{own[1]} ({own[0]})"
    if holder == wanted.who:
        return None
    message = f"{gateway} is not used: its tunnel endpoint {address} is that of {holder}"
    return info.meta.problem(wanted.path, "DuplicateAddress", message)


def _end(info: ClusterInfoImport, gateway: Address, wanted: Wanted, default_port: int) -> RemoteEnd:
    return RemoteEnd(
        gateway=gateway,
        address=wanted.address,
        public_key=wanted.published.public_key,
        next_public_key=wanted.published.next_public_key,
        port=wanted.published.port or default_port,
        source=wanted.source,
        own_key=wanted.address != first_endpoint(info.service_cidr),
    )


def _without_key(info: ClusterInfoImport, gateway: Address, *, clear: bool) -> Problem:
    """Return the problem of a gateway without a key: a warning where it is used all the same."""
    path = f"spec.gatewayInfos[{info.gateway_ips.index(gateway)}].wireGuard"
    if info.gateway_wireguard or info.wireguard is not None:
        message = (
            f"{gateway} is not used: it has published no WireGuard key of its own yet (an API server with an "
            "older CustomResourceDefinition drops it: then only a cluster's first gateway is used)"
        )
        return info.meta.problem(path, "NoKey", message)
    if not clear:
        message = f"{gateway} is not used: it has published no WireGuard key, and encryption is on here"
        return info.meta.problem(path, "NotEncrypted", message)
    message = f"traffic to {gateway} is NOT ENCRYPTED: it has published no WireGuard key (encryptionFallback)"
    return info.meta.problem(path, "NotEncrypted", message, Severity.WARNING)


def encryption(found: Mapping[str, Found], own: Ends, facts: WireGuardFacts, config: Config) -> Encryption:
    """Return the verdict on all clusters together."""
    problems = [problem for _, every in found.values() for problem in every]
    ends = {cluster_id: every for cluster_id, (every, _) in found.items()}
    if facts.why_not:
        result = "nothing goes to other clusters"
        if config.encryption_fallback is EncryptionFallback.ALLOW_CLEAR:
            result = "traffic to other clusters is NOT ENCRYPTED"
        message = f"{facts.why_not}; {result} (encryptionFallback)"
        problems.append(
            Problem(
                subject="configuration",
                path="trafficEncryptionMode",
                reason="EncryptionUnavailable",
                message=message,
            )
        )
        return Encryption(ends=ends, addresses=(), problems=tuple(problems))
    used = own.first is not None and any(end.source == own.first for every in ends.values() for end in every)
    addresses = (own.own, own.first) if used and own.first is not None else (own.own,)
    return Encryption(ends=ends, addresses=tuple(sorted(addresses, key=int)), problems=tuple(problems))
