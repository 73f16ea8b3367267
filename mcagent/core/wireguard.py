"""Encryption between clusters: the WireGuard key and the tunnel endpoint of each remote gateway.

Owns the tunnel endpoints behind the WireGuard device, the conflicts between claims to keys and endpoints, the
treatment of gateways that cannot be encrypted to (each refusal is a Problem), and what this Node publishes. Must
not know ports and flows, or how a device is configured.

Endpoints: the endpoint of a gateway with its own key is a function of its gatewayIP
(`mcagent.core.addresses.underlay`). So it is not exchanged, and does not depend on other gateways. A gateway
without its own key (Antrea has one key per cluster) has Antrea's endpoint: the first address of its cluster's
Service CIDR. Endpoints are IPv4 on any underlay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mcagent.core.addresses.rules import ReservedRanges
from mcagent.core.addresses.underlay import ENDPOINTS, endpoint_of
from mcagent.core.local_cluster.nodes import seniority
from mcagent.core.remote_clusters.claims import CheckedCluster, claim_rank
from mcagent.core.wireguard_devices import device_count, devices_of_peer
from mcagent.model.config import Config, EncryptionFallback
from mcagent.model.dataplane.facts import DatapathType, Facts
from mcagent.model.net import Address, Network, host_network
from mcagent.model.node_state import AcceptedCluster, Publication, RemoteEnd
from mcagent.model.objects import ClusterInfoImport, Gateway, WireGuardInfo
from mcagent.model.problem import Problem, Severity

ClaimedValue = str | Address  # a key or a tunnel endpoint


# --- this Node ------------------------------------------------------------------------------------------


def encryption_facts(facts: Facts) -> Facts:
    """Return only the facts that encryption depends on, which rarely change."""
    return Facts(
        datapath=facts.datapath,
        uplink_mtu=facts.uplink_mtu,
        wireguard=facts.wireguard,
        wireguard_public_key=facts.wireguard_public_key,
        wireguard_next_key=facts.wireguard_next_key,
        processors=facts.processors,
    )


def why_not(facts: Facts) -> str:
    """Return why this Node cannot send its tunnels through WireGuard, or ""."""
    if facts.datapath is DatapathType.NETDEV:
        return (
            "the userspace datapath of Open vSwitch sends its tunnels past the kernel, so WireGuard cannot "
            "encrypt them: load the kernel module openvswitch"
        )
    if facts.wireguard is None:
        return "this kernel has no WireGuard, and there is no wireguard-go: load the module or install it"
    return "" if facts.wireguard_public_key else "this Node has no WireGuard key: the log says why"


def own_gateway(gateways: Mapping[str, Gateway], config: Config) -> Gateway | None:
    """Return the Gateway object of this Node, the oldest one; None if there is none."""
    candidates = (gateway for gateway in gateways.values() if config.namespace in ("", gateway.meta.namespace))
    own_gateways = (gateway for gateway in candidates if gateway.meta.name == config.node_name)
    return min(own_gateways, key=lambda gateway: seniority(gateway.meta), default=None)


def publication(gateways: Mapping[str, Gateway], facts: Facts, config: Config) -> Publication | None:
    """Return the key that this Node is to publish as a gateway; None without a Gateway object of this Node."""
    gateway = own_gateway(gateways, config)
    if gateway is None:
        return None
    desired = own_keys(facts, config, device_count(facts, config)) if config.encrypts else None
    return Publication(meta=gateway.meta, published=gateway.wireguard, desired=desired)


def own_keys(facts: Facts, config: Config, devices: int = 1) -> WireGuardInfo | None:
    """Return what this Node can publish of its WireGuard devices; None if it cannot encrypt."""
    if why_not(facts):
        return None
    return WireGuardInfo(
        public_key=facts.wireguard_public_key,
        next_public_key=facts.wireguard_next_key,
        port=config.wireguard_port,
        devices=devices,
    )


def _first_endpoint(service_cidr: Network | None) -> Address | None:
    """Return Antrea's tunnel endpoint of a cluster: the network address, which no Service has."""
    return service_cidr.network_address if service_cidr is not None else None


# --- claims of remote gateways --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointClaim:
    """The claim of a remote gateway to a tunnel endpoint and to its keys, which are unique."""

    end: RemoteEnd
    path: str  # of the field that publishes it
    claimant: str  # a description of the gateway
    values: tuple[tuple[ClaimedValue, tuple[str, ...]], ...]  # address and keys, each with its rank


EndpointClaims = tuple[tuple[Address, EndpointClaim | Problem], ...]  # by gatewayIP; see `_claim_of`


def endpoint_claims(
    value: tuple[AcceptedCluster, CheckedCluster],
    own: Address,
    service_cidr: Network | None,
    config: Config,
    *,
    own_devices: int,
) -> EndpointClaims:
    """Return the claims of a cluster's gateways. `own`: this Node's gatewayIP; `service_cidr`: of this cluster.

    `own_devices`: number of this Node's WireGuard devices.
    """
    cluster, checked = value
    ends = endpoint_of(own), _first_endpoint(service_cidr)
    reached = cluster.reached_from(own)
    return tuple(
        (gateway, _claim_of(checked.info, cluster, gateway, ends, config, own_devices=own_devices))
        for gateway in reached
    )


def _claim_of(
    info: ClusterInfoImport,
    cluster: AcceptedCluster,
    gateway: Address,
    own_endpoints: tuple[Address, Address | None],
    config: Config,
    *,
    own_devices: int,
) -> EndpointClaim | Problem:
    """Return the claim of a gateway, or why it is not encrypted to: a warning if it is used without encryption.

    `own_endpoints`: this Node's tunnel endpoint, and the one towards clusters with a single key.
    """
    index = info.gateway_ips.index(gateway)
    path, rank_key = f"spec.gatewayInfos[{index}].wireGuard", str(gateway)
    published = dict(info.gateway_wireguard).get(gateway)
    own_key = published is not None
    address: Address | None = endpoint_of(gateway)
    source: Address | None = own_endpoints[0]
    if published is None:
        if index or info.wireguard is None:
            return _without_key(info, gateway, path, config)
        published, path, rank_key = info.wireguard, "spec.wireGuard", str(info.service_cidr)
        address, source = _first_endpoint(info.service_cidr), own_endpoints[1]
    if address is None or source is None or not (own_key or info.service_cidr in cluster.cidrs):
        message = f"{gateway} is not used: without both Service CIDRs there is no tunnel endpoint"
        return info.meta.problem("spec.wireGuard", "NoEndpoint", message)
    keys = filter(None, (published.public_key, published.next_public_key))
    port = published.port or config.wireguard_port
    return EndpointClaim(
        end=RemoteEnd(
            gateway=gateway,
            address=address,
            public_key=published.public_key,
            next_public_key=published.next_public_key,
            port=port,
            source=source,
            own_key=own_key,
            devices=min(own_devices, devices_of_peer(published, port)),
        ),
        path=path,
        claimant=f'gateway {gateway} of cluster "{info.cluster_id}"',
        values=((address, claim_rank(info, rank_key)), *((key, claim_rank(info, key)) for key in keys)),
    )


def _without_key(info: ClusterInfoImport, gateway: Address, path: str, config: Config) -> Problem:
    """Return the problem of a gateway without a key: a warning if it is used without encryption."""
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
    claims: Mapping[str, EndpointClaims], clusters: Mapping[str, AcceptedCluster], own: tuple[ClaimedValue, ...]
) -> dict[str, dict[ClaimedValue, str]]:
    """Return the lost values by cluster ID, each with a description of the winner.

    The lowest rank wins; of equal ranks (gateways of one cluster) the first one. This Node's values, `own`, always
    win.
    """
    holders: dict[ClaimedValue, tuple[tuple[str, ...], str]] = dict.fromkeys(own, ((), "this Node"))
    # The mapped SNAT address of an IPv6 gateway must not be an endpoint (its own endpoint is never equal to it).
    for cluster in clusters.values():
        for gateway, source in zip(cluster.gateways, cluster.sources, strict=True):
            if gateway.version == 6:
                holders.setdefault(source, ((), f"gateway {gateway}"))
    all_claims = [
        (cluster_id, claimed, rank, endpoint.claimant)
        for cluster_id, cluster_claims in claims.items()
        for _, endpoint in cluster_claims
        if isinstance(endpoint, EndpointClaim)
        for claimed, rank in endpoint.values
    ]
    for _, claimed, rank, claimant in all_claims:
        if claimed not in holders or rank < holders[claimed][0]:
            holders[claimed] = (rank, claimant)
    winners: dict[str, dict[ClaimedValue, str]] = {}
    for cluster_id, claimed, _, claimant in all_claims:
        if holders[claimed][1] != claimant:
            winners.setdefault(cluster_id, {})[claimed] = holders[claimed][1]
    return winners


# --- the decision ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Encryption:
    """A gateway's decision on all remote gateways. `addresses`: of this Node's WireGuard device, if any."""

    # The gateways in use by cluster ID, in the API's order.
    ends: Mapping[str, tuple[RemoteEnd, ...]] = field(default_factory=dict)
    addresses: tuple[Address, ...] = ()
    problems: tuple[Problem, ...] = ()


ClusterEnds = tuple[tuple[RemoteEnd, ...], tuple[Problem, ...]]  # gateways in use, problems of the others


def ends_of(
    value: tuple[CheckedCluster, EndpointClaims, Mapping[ClaimedValue, str] | None],
    reserved: ReservedRanges,
    facts: Facts,
    config: Config,
) -> ClusterEnds:
    """Decide on the gateways of one cluster. `value`: the cluster, its claims, its lost values with the winners.

    `reserved`: networks that an endpoint must not lie in.
    """
    checked, claims, winners = value
    if why_not(facts):
        clear = config.encryption_fallback is EncryptionFallback.ALLOW_CLEAR
        return tuple(RemoteEnd(gateway=gateway, address=gateway) for gateway, _ in claims if clear), ()
    ends: list[RemoteEnd] = []
    problems: list[Problem] = []
    for gateway, claim in claims:
        problem = claim if isinstance(claim, Problem) else _contested(checked.info, claim, winners or {}, reserved)
        if problem is not None:
            problems.append(problem)
        if isinstance(claim, EndpointClaim) and problem is None:
            ends.append(claim.end)
        elif problem is not None and problem.severity is Severity.WARNING:
            ends.append(RemoteEnd(gateway=gateway, address=gateway))
    return tuple(ends), tuple(problems)


def _contested(
    info: ClusterInfoImport, claim: EndpointClaim, winners: Mapping[ClaimedValue, str], reserved: ReservedRanges
) -> Problem | None:
    """Return the problem of a gateway whose key or tunnel endpoint is lost or reserved; None if neither is."""
    gateway, address = claim.end.gateway, claim.end.address
    for key, _ in claim.values[1:]:
        if winners.get(key, claim.claimant) != claim.claimant:
            message = f"{gateway} is not used: its WireGuard key is that of {winners[key]}"
            return info.meta.problem(claim.path, "DuplicateKey", message)
    holder = winners.get(address, claim.claimant)
    own = reserved.overlapping(host_network(address)) if address in ENDPOINTS else None
    if holder == claim.claimant and own is not None:
        holder = f"{own[1]} ({own[0]})"
    if holder == claim.claimant:
        return None
    message = f"{gateway} is not used: its tunnel endpoint {address} is that of {holder}"
    return info.meta.problem(claim.path, "DuplicateAddress", message)


def encryption(cluster_ends: Mapping[str, ClusterEnds], own: Address, facts: Facts, config: Config) -> Encryption:
    """Combine the decisions on all clusters. `own`: this Node's tunnel endpoint."""
    problems = [problem for _, cluster_problems in cluster_ends.values() for problem in cluster_problems]
    ends = {cluster_id: used_ends for cluster_id, (used_ends, _) in cluster_ends.items()}
    reason_against = why_not(facts)
    if reason_against:
        result = "nothing goes to other clusters"
        if config.encryption_fallback is EncryptionFallback.ALLOW_CLEAR:
            result = "traffic to other clusters is NOT ENCRYPTED"
        message = f"{reason_against}; {result} (encryptionFallback)"
        where, reason = "trafficEncryptionMode", "EncryptionUnavailable"
        problems.append(Problem(subject="configuration", path=where, reason=reason, message=message))
        return Encryption(ends=ends, problems=tuple(problems))
    addresses = {own, *(end.source for used_ends in ends.values() for end in used_ends if end.source is not None)}
    return Encryption(ends=ends, addresses=tuple(sorted(addresses, key=int)), problems=tuple(problems))


def other_gateway_addresses(encryption: Encryption) -> tuple[Address, ...]:
    """Return the addresses, other than the gatewayIP, of this gateway in clusters with a single key."""
    return tuple(a for a in encryption.addresses if a not in ENDPOINTS)
