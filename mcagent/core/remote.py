"""The other clusters: which of what they announce is used, and who wins where two want the same.

The order in which clusters get what several want is creation time, then cluster ID, then name: a newcomer
can never take what another has. Each refusal is a Problem. Work that looks at one object alone is kept in
`Candidate` and reused while the object is the same; what remains per change is one sweep over integers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from mcagent.core.claims import (
    Ledger,
    PrefixRange,
    Taken,
    contested,
    prefix_range,
    refuse_address,
    refuse_network,
)
from mcagent.core.local import Local
from mcagent.model.config import Config, SourceNat
from mcagent.model.facts import Facts
from mcagent.model.net import Address, Network, contains, host_network, network_key
from mcagent.model.objects import ClusterInfoImport
from mcagent.model.problem import Problem, Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """A cluster as it is used. `direct` are tunnel endpoints that lie inside some remote CIDR."""

    cluster_id: str
    cidrs: tuple[Network, ...]
    gateways: tuple[Address, ...]
    snat: bool
    direct: tuple[Address, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """All that the verdict on one ClusterInfoImport rests on beside the other clusters."""

    config: Config
    taken: tuple[tuple[Network, str], ...]
    node_addresses: tuple[tuple[Address, str], ...]
    service_cidrs: tuple[Network, ...]
    publishes: bool  # Pod-to-Pod is on, and this cluster has Pod CIDRs to publish
    addresses: tuple[Address, ...]
    connected: tuple[Network, ...]


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
    pods_whole: bool  # publishes Pod CIDRs, and none was refused so far
    problems: tuple[Problem, ...]
    alone: Remote  # the verdict if nobody else wants any of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Remotes:
    """The verdict on all clusters, and what the next call reuses."""

    clusters: Mapping[str, Remote]  # by cluster ID, in order of seniority
    problems: tuple[Problem, ...]
    surroundings: Surroundings
    infos: Mapping[str, ClusterInfoImport]
    candidates: Mapping[str, Candidate] = field(repr=False)


def surroundings_of(local: Local, facts: Facts, config: Config) -> Surroundings:
    """Return what the verdicts rest on."""
    return Surroundings(
        config=config,
        taken=local.taken,
        node_addresses=local.node_addresses,
        service_cidrs=local.service_cidrs,
        publishes=bool(local.published_pods),
        addresses=facts.addresses,
        connected=facts.connected,
    )


def build_remotes(
    infos: Mapping[str, ClusterInfoImport], around: Surroundings, previous: Remotes | None = None
) -> Remotes:
    """Return which clusters are used and how. Equal inputs give back the very `previous`."""
    if previous is not None and previous.surroundings != around:
        previous = None
    if previous is not None and previous.infos is infos:
        return previous
    known = previous.candidates if previous is not None else {}
    judge: _Judge | None = None
    candidates: dict[str, Candidate] = {}
    for key, info in infos.items():
        found = known.get(key)
        if found is None or found.info is not info:
            judge = judge or _Judge(around)
            found = judge.candidate(info)
        candidates[key] = found
    problems: list[Problem] = []
    winners = _winners(candidates.values(), around.config, problems)
    clusters = _settle(winners, problems)
    if previous is not None:
        for cluster_id, remote in clusters.items():
            before = previous.clusters.get(cluster_id)
            if before is not None and before is not remote and before == remote:
                clusters[cluster_id] = before
    return Remotes(
        clusters=clusters,
        problems=tuple(sorted(set(problems))),
        surroundings=around,
        infos=infos,
        candidates=candidates,
    )


class _Judge:
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
        for network, path, pod in asked:
            problem = self._network_problem(info, network, path)
            if problem is None:
                accepted.append(Claim(network=network, range=prefix_range(network), path=path, pod=pod))
            else:
                problems.append(problem)
                pods_whole = pods_whole and not pod
        claims = _distinct(info, accepted, problems)
        gateways = self._gateways(info, problems)
        return Candidate(
            info=info,
            order=(info.meta.created, info.cluster_id, info.meta.name, info.meta.namespace),
            claims=claims,
            gateways=gateways,
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
            return _problem(info, path, refusal.reason, refusal.message)
        allowed = self._around.config.allowed_remote_cidrs
        if allowed and not any(contains(outer, network) for outer in allowed):
            return _problem(
                info, path, "NotAllowed", f"{network} is not used: allowedRemoteCIDRs does not hold it"
            )
        holder = self._taken.overlapping(network)
        if holder is not None:
            message = f"{network} is not used: it overlaps {holder[0]}, {holder[1]}"
            return _problem(info, path, "OverlapsLocal", message)
        return None

    def _gateways(self, info: ClusterInfoImport, problems: list[Problem]) -> tuple[tuple[Address, str], ...]:
        found: list[tuple[Address, str]] = []
        for address in dict.fromkeys(info.gateway_ips):
            index = info.gateway_ips.index(address)
            path = f"spec.gatewayInfos[{index}].gatewayIP"
            refusal = refuse_address(address)
            own = self._node_addresses.get(address)
            if refusal is not None:
                problems.append(_problem(info, path, refusal.reason, refusal.message))
            elif own is not None or address in self._around.addresses:
                who = own or "this Node"
                message = f"{address} is not used: it is the address of {who} of this cluster"
                problems.append(_problem(info, path, "DuplicateAddress", message))
            elif any(contains(cidr, address) for cidr in self._around.service_cidrs):
                message = f"{address} is not used: it lies in this cluster's Service CIDR"
                problems.append(_problem(info, path, "OverlapsLocal", message))
            else:
                found.append((address, path))
        if not found:
            message = "has no gateway that can be used: nothing reaches this cluster"
            problems.append(_problem(info, "spec.gatewayInfos", "NoGateway", message))
        return tuple(found)


def _distinct(info: ClusterInfoImport, claims: list[Claim], problems: list[Problem]) -> tuple[Claim, ...]:
    """Return the claims sorted, without those that lie inside another of the same cluster (with a warning)."""
    kept: list[Claim] = []
    for claim in sorted(claims, key=lambda c: (network_key(c.network), c.path)):
        if kept and claim.range[0] == kept[-1].range[0] and claim.range[2] <= kept[-1].range[2]:
            message = f"{claim.network} lies in {kept[-1].network} of the same cluster: not needed"
            problems.append(_problem(info, claim.path, "RedundantCIDR", message, Severity.WARNING))
        else:
            kept.append(claim)
    return tuple(kept)


_order = attrgetter("order")


def _winners(candidates: Iterable[Candidate], config: Config, problems: list[Problem]) -> list[Candidate]:
    """Return one candidate per cluster ID, oldest first, and never this cluster itself."""
    winners: dict[str, Candidate] = {}
    for candidate in sorted(candidates, key=_order):
        info = candidate.info
        if info.cluster_id == config.cluster_id or (config.namespace and info.meta.namespace != config.namespace):
            continue
        holder = winners.setdefault(info.cluster_id, candidate)
        if holder is not candidate:
            message = f'clusterID "{info.cluster_id}" is taken by the older {holder.info.meta.subject}: not used'
            problems.append(_problem(info, "spec.clusterID", "DuplicateClusterID", message))
    return list(winners.values())


def _settle(winners: Sequence[Candidate], problems: list[Problem]) -> dict[str, Remote]:
    """Return the verdicts: what a candidate may have alone, less what an older one has."""
    ranges = [(claim.range, index) for index, c in enumerate(winners) for claim in c.claims]
    ranges.sort()
    disputed = contested(ranges)
    ledger = Ledger()
    addresses: dict[Address, Candidate] = {}
    clusters: dict[str, Remote] = {}
    for index, candidate in enumerate(winners):
        problems.extend(candidate.problems)
        remote = candidate.alone
        if index in disputed:
            remote = _less_networks(candidate, remote, ledger, problems)
        for address in candidate.alone.gateways:
            if addresses.setdefault(address, candidate) is not candidate:
                remote = _less_address(candidate, remote, address, addresses[address], problems)
        clusters[candidate.info.cluster_id] = remote
    _mark_direct(clusters, winners, ranges)
    return clusters


def _less_networks(candidate: Candidate, remote: Remote, ledger: Ledger, problems: list[Problem]) -> Remote:
    """Give the candidate those of its networks that nobody has yet."""
    kept: list[Network] = []
    pods_whole = True
    for claim in candidate.claims:
        holder = ledger.holder(claim.network)
        if holder is None:
            kept.append(claim.network)
            continue
        pods_whole = pods_whole and not claim.pod
        message = f'{claim.network} is not used: it overlaps {holder[0]} of the older cluster "{holder[1]}"'
        problems.append(_problem(candidate.info, claim.path, "OverlapsRemote", message))
    for network in kept:
        ledger.give(network, candidate.info.cluster_id)
    return Remote(
        cluster_id=remote.cluster_id,
        cidrs=tuple(kept),
        gateways=remote.gateways,
        snat=remote.snat or not pods_whole,
    )


def _less_address(
    candidate: Candidate, remote: Remote, address: Address, holder: Candidate, problems: list[Problem]
) -> Remote:
    path = dict(candidate.gateways)[address]
    message = f'{address} is not used: it is a gateway of the older cluster "{holder.info.cluster_id}"'
    problems.append(_problem(candidate.info, path, "DuplicateAddress", message))
    return Remote(
        cluster_id=remote.cluster_id,
        cidrs=remote.cidrs,
        gateways=tuple(a for a in remote.gateways if a != address),
        snat=remote.snat,
    )


def _mark_direct(
    clusters: dict[str, Remote], winners: Sequence[Candidate], ranges: Sequence[tuple[PrefixRange, int]]
) -> None:
    """Find gateways whose address lies inside a remote CIDR: one merge of two sorted lists.

    A network that was refused still counts: keeping an address out of the tunnels is never wrong.
    """
    points = sorted(
        [(a.version, int(a), i) for i, c in enumerate(winners) for a in c.alone.gateways], reverse=True
    )
    inside: dict[int, list[int]] = {}
    version, end = 0, -1
    for (row_version, first, last), _ in ranges:
        while points and points[-1][:2] < (row_version, first):
            found_version, value, index = points.pop()
            if found_version == version and value <= end:
                inside.setdefault(index, []).append(value)
        if row_version != version or last > end:
            version, end = row_version, last
    for found_version, value, index in points:
        if found_version == version and value <= end:
            inside.setdefault(index, []).append(value)
    for index, values in inside.items():
        remote = clusters[winners[index].info.cluster_id]
        clusters[remote.cluster_id] = Remote(
            cluster_id=remote.cluster_id,
            cidrs=remote.cidrs,
            gateways=remote.gateways,
            snat=remote.snat,
            direct=tuple(a for a in remote.gateways if int(a) in values),
        )


def _problem(
    info: ClusterInfoImport, path: str, reason: str, message: str, severity: Severity = Severity.ERROR
) -> Problem:
    return Problem(subject=info.meta.subject, path=path, reason=reason, message=message, severity=severity)
