"""One ClusterInfoImport looked at alone: what it may have if no older cluster wants the same.

Judges against this cluster, this Node and the configuration; each refusal is a Problem. What the clusters want
of each other is `mcagent.core.remote`'s business.
"""

from __future__ import annotations

from dataclasses import dataclass

from mcagent.core.claims import PrefixRange, Taken, prefix_range, refuse_network
from mcagent.core.underlay import family, refuse_underlay, source_of
from mcagent.model.config import Config, SourceNat
from mcagent.model.net import Address, Network, contains, host_network, network_key
from mcagent.model.objects import ClusterInfoImport
from mcagent.model.problem import Problem, Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """A cluster as it is used. `direct` are tunnel endpoints that lie inside some remote CIDR.

    Not every gateway is reached from every gateway of ours: both need addresses of one family.
    """

    cluster_id: str
    cidrs: tuple[Network, ...]
    gateways: tuple[Address, ...]
    snat: bool
    direct: tuple[Address, ...] = ()

    def reached_from(self, gateway_ip: Address | None) -> tuple[Address, ...]:
        """Return the gateways that a gateway with this gatewayIP has tunnels to."""
        if gateway_ip is None:
            return self.gateways
        return tuple(address for address in self.gateways if address.version == gateway_ip.version)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """All that the verdict on one ClusterInfoImport rests on beside the other clusters."""

    config: Config
    taken: tuple[tuple[Network, str], ...]
    node_addresses: tuple[tuple[Address, str], ...]
    service_cidrs: tuple[Network, ...]
    node_cidrs: tuple[Network, ...]
    publishes: bool  # Pod-to-Pod is on, and this cluster has Pod CIDRs to publish
    addresses: tuple[Address, ...]
    connected: tuple[Network, ...]
    gateway_ip: Address | None = None  # of this Node, as a gateway


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One CIDR that an object asks for."""

    network: Network
    range: PrefixRange
    path: str
    pod: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One ClusterInfoImport looked at alone: what it may have if nobody older wants it."""

    info: ClusterInfoImport
    order: tuple[str, str, str, str]
    claims: tuple[Claim, ...]
    gateways: tuple[tuple[Address, str], ...]  # with the path
    points: tuple[tuple[int, int], ...]  # the sources of the gateways, as integers: cheap to compare
    hosts: tuple[Address, ...]  # claims that are single addresses: no two may be one gateway's and another's
    pods_whole: bool  # publishes Pod CIDRs, and none was refused so far
    problems: tuple[Problem, ...]
    alone: Remote  # the verdict if nobody else wants any of it


class Judge:
    """Looks at one object alone, in given surroundings."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        # named first stands where two are equal: what belongs to the cluster says more than what a device has
        self._taken = Taken(
            (
                *around.taken,
                *((host_network(address), "an address of this Node") for address in around.addresses),
                *((network, "a network that this Node is connected to") for network in around.connected),
            )
        )
        self._node_addresses = dict(around.node_addresses)
        self._inside = Taken(
            (
                *((network, "this cluster's Service CIDR") for network in around.service_cidrs),
                *((network, "a Pod CIDR of this cluster") for network in around.node_cidrs),
            )
        )

    def candidate(self, info: ClusterInfoImport) -> Candidate:
        """Return what the object may have if nobody older wants it."""
        config = self._around.config
        problems: list[Problem] = []
        asked: list[tuple[Network, str, bool]] = []
        if info.service_cidr is not None:
            asked.append((info.service_cidr, "spec.serviceCIDR", False))
        if config.enable_pod_to_pod:
            asked.extend((n, f"spec.podCIDRs[{i}]", True) for i, n in enumerate(info.pod_cidrs))
        accepted: list[Claim] = []
        pods_whole = config.enable_pod_to_pod and bool(info.pod_cidrs)
        gateways = self._gateways(info, problems)
        if not config.encrypts and (info.wireguard is not None or info.gateway_wireguard):
            message = "this cluster encrypts and we do not (trafficEncryptionMode): it takes nothing in the clear"
            problems.append(problem_of(info, "spec.wireGuard", "PeerEncrypts", message, Severity.WARNING))
        ends = {host_network(source_of(address)) for address, _ in gateways}
        for network, path, pod in asked:
            problem = self._network_problem(info, network, path)
            if problem is None and network in ends:
                message = f"{network} is not used: it is the cluster's own gateway"
                problem = problem_of(info, path, "IsGateway", message)
            if problem is None:
                accepted.append(Claim(network=network, range=prefix_range(network), path=path, pod=pod))
            else:
                problems.append(problem)
                pods_whole = pods_whole and not pod
        claims = _distinct(info, accepted, problems)
        return Candidate(
            info=info,
            order=(info.meta.created, info.cluster_id, info.meta.name, info.meta.namespace),
            claims=claims,
            gateways=gateways,
            points=tuple((4, int(source_of(address))) for address, _ in gateways),
            hosts=tuple(
                c.network.network_address for c in claims if c.network.prefixlen == c.network.max_prefixlen
            ),
            pods_whole=pods_whole,
            problems=tuple(problems),
            alone=Remote(
                cluster_id=info.cluster_id,
                cidrs=tuple(claim.network for claim in claims),
                gateways=tuple(address for address, _ in gateways),
                snat=self._snat(pods_whole),
            ),
        )

    def _snat(self, pods_whole: bool) -> bool:
        config = self._around.config
        return config.source_nat is SourceNat.ALWAYS or not (self._around.publishes and pods_whole)

    def _network_problem(self, info: ClusterInfoImport, network: Network, path: str) -> Problem | None:
        refusal = refuse_network(network)
        if refusal is not None:
            return problem_of(info, path, refusal.reason, refusal.message)
        allowed = self._around.config.allowed_remote_cidrs
        if allowed and not any(contains(outer, network) for outer in allowed):
            return problem_of(
                info, path, "NotAllowed", f"{network} is not used: allowedRemoteCIDRs does not hold it"
            )
        holder = self._taken.overlapping(network)
        if holder is not None:
            message = f"{network} is not used: it overlaps {holder[0]}, {holder[1]}"
            return problem_of(info, path, "OverlapsLocal", message)
        return None

    def _gateways(self, info: ClusterInfoImport, problems: list[Problem]) -> tuple[tuple[Address, str], ...]:
        found: list[tuple[Address, str]] = []
        sources: dict[Address, Address] = {}
        for address in dict.fromkeys(info.gateway_ips):
            index = info.gateway_ips.index(address)
            path = f"spec.gatewayInfos[{index}].gatewayIP"
            refusal = refuse_underlay(address)
            source = source_of(address)
            own = self._node_addresses.get(address) or self._node_addresses.get(source)
            if refusal is not None:
                problems.append(problem_of(info, path, refusal.reason, refusal.message))
            elif own is not None or address in self._around.addresses:
                who = own or "this Node"
                message = f"{address} is not used: it is the address of {who} of this cluster"
                problems.append(problem_of(info, path, "DuplicateAddress", message))
            elif (holder := self._inside.overlapping(host_network(source))) is not None:
                message = f"{address} is not used: it lies in {holder[0]}, {holder[1]}"
                problems.append(problem_of(info, path, "OverlapsLocal", message))
            elif source in sources:
                message = f"{address} is not used: {source} stands for {sources[source]} already"
                problems.append(problem_of(info, path, "DuplicateAddress", message))
            else:
                sources[source] = address
                found.append((address, path))
        if not self._tell_mixed(info, found, problems):
            message = "has no gateway that can be used: nothing reaches this cluster"
            problems.append(problem_of(info, "spec.gatewayInfos", "NoGateway", message))
        return tuple(found)

    def _tell_mixed(
        self, info: ClusterInfoImport, found: list[tuple[Address, str]], problems: list[Problem]
    ) -> bool:
        """Tell of gateways that are of another family than this one; return whether any is reached from here."""
        own = self._around.gateway_ip
        others = [one for one in found if own is not None and one[0].version != own.version]
        severity = Severity.WARNING if len(found) > len(others) else Severity.ERROR
        for address, path in others:
            assert own is not None
            message = (
                f"no tunnel between {address} ({family(address)}) and this cluster's gateway "
                f'"{self._around.config.node_name}", whose gatewayIP {own} is {family(own)}: both need one of the '
                "same family (annotation multicluster.antrea.io/gateway-ip)"
            )
            problems.append(problem_of(info, path, "MixedFamilies", message, severity))
        return len(found) > len(others)


def _distinct(info: ClusterInfoImport, claims: list[Claim], problems: list[Problem]) -> tuple[Claim, ...]:
    """Return the claims sorted, without those that lie inside another of the same cluster (with a warning)."""
    kept: list[Claim] = []
    for claim in sorted(claims, key=lambda c: (network_key(c.network), c.path)):
        if kept and claim.range[0] == kept[-1].range[0] and claim.range[2] <= kept[-1].range[2]:
            message = f"{claim.network} lies in {kept[-1].network} of the same cluster: not needed"
            problems.append(problem_of(info, claim.path, "RedundantCIDR", message, Severity.WARNING))
        else:
            kept.append(claim)
    return tuple(kept)


def problem_of(
    info: ClusterInfoImport, path: str, reason: str, message: str, severity: Severity = Severity.ERROR
) -> Problem:
    """Return a problem of this object."""
    return Problem(subject=info.meta.subject, path=path, reason=reason, message=message, severity=severity)
