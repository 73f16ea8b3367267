"""The other clusters: which of what they announce is used, and who wins where two want the same.

The order in which clusters get what several want is creation time, then cluster ID, then name: a newcomer
can never take what another has. Each refusal is a Problem. Work that looks at one object alone is kept in
`Candidate` and reused while the object is the same; what remains per change is one sweep over integers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter

from mcagent.core.candidate import Candidate, Judge, Remote, Surroundings, problem_of
from mcagent.core.claim_table import ClaimTable
from mcagent.core.claims import Ledger, contested
from mcagent.core.local import Local
from mcagent.model.config import Config
from mcagent.model.facts import Facts
from mcagent.model.net import Network, host_network
from mcagent.model.objects import ClusterInfoImport
from mcagent.model.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Remotes:
    """The verdict on all clusters, and what the next call reuses."""

    clusters: Mapping[str, Remote]  # by cluster ID, in order of seniority
    problems: tuple[Problem, ...]
    surroundings: Surroundings
    pod_hosts: frozenset[int]
    infos: Mapping[str, ClusterInfoImport]
    candidates: Mapping[str, Candidate] = field(repr=False)
    table: ClaimTable = field(repr=False)
    calm: bool = False  # nobody is in anybody's way: each has what it would have alone


def surroundings_of(local: Local, facts: Facts, config: Config) -> Surroundings:
    """Return what the verdicts rest on."""
    return Surroundings(
        config=config,
        taken=local.taken,
        node_addresses=local.node_addresses,
        service_cidrs=local.service_cidrs,
        node_cidrs=local.node_cidrs,
        publishes=bool(local.published_pods),
        addresses=facts.addresses,
        connected=facts.connected,
        gateway_ip=local.own_gateway_ip,
    )


def build_remotes(
    infos: Mapping[str, ClusterInfoImport],
    around: Surroundings,
    pod_hosts: frozenset[int] = frozenset(),
    previous: Remotes | None = None,
) -> Remotes:
    """Return which clusters are used and how. Equal inputs give back the very `previous`.

    `pod_hosts` (addresses of Pods that are known one by one) are apart from `around` because they change often.
    """
    if previous is not None and previous.surroundings != around:
        previous = None
    if previous is not None and previous.infos is infos and previous.pod_hosts == pod_hosts:
        return previous
    if previous is not None and previous.calm and previous.pod_hosts == pod_hosts:
        quick = _one_changed(previous, infos)
        if quick is not None:
            return quick
    known = previous.candidates if previous is not None else {}
    judge: Judge | None = None
    candidates: dict[str, Candidate] = {}
    for key, info in infos.items():
        found = known.get(key)
        if found is None or found.info is not info:
            judge = judge or Judge(around)
            found = judge.candidate(info)
        candidates[key] = found
    problems: list[Problem] = []
    winners = _winners(candidates.values(), around.config, problems)
    table = ClaimTable.of(winners, previous.table if previous is not None else None)
    clusters = _settle(table, pod_hosts, problems)
    if previous is not None:
        for cluster_id, remote in clusters.items():
            before = previous.clusters.get(cluster_id)
            if before is not None and before is not remote and before == remote:
                clusters[cluster_id] = before
    return Remotes(
        clusters=clusters,
        problems=tuple(sorted(set(problems))),
        surroundings=around,
        pod_hosts=pod_hosts,
        infos=infos,
        candidates=candidates,
        table=table,
        calm=all(clusters[i] == c.alone and not c.hosts for i, c in winners.items()),
    )


def _one_changed(previous: Remotes, infos: Mapping[str, ClusterInfoImport]) -> Remotes | None:
    """Return the verdicts after one object changed that is in nobody's way; None if it is another case."""
    if previous.infos.keys() != infos.keys():
        return None
    changed = [key for key, info in infos.items() if previous.infos[key] is not info]
    if len(changed) != 1:
        return None
    (key,) = changed
    old, new = previous.candidates[key], Judge(previous.surroundings).candidate(infos[key])
    cluster_id = new.info.cluster_id
    if new.order != old.order or previous.table.winners.get(cluster_id) is not old:
        return None
    if new.hosts or any(point[1] in previous.pod_hosts for point in new.points):
        return None
    table = previous.table.with_one(cluster_id, new)
    if table is None:
        return None
    clusters = previous.clusters
    if new.alone != clusters[cluster_id]:
        clusters = {**clusters, cluster_id: new.alone}
    problems = previous.problems
    if old.problems or new.problems:
        problems = tuple(sorted({*(p for p in problems if p not in old.problems), *new.problems}))
    return replace(
        previous,
        clusters=clusters,
        problems=problems,
        infos=infos,
        candidates={**previous.candidates, key: new},
        table=table,
    )


_order = attrgetter("order")


def _winners(candidates: Iterable[Candidate], config: Config, problems: list[Problem]) -> dict[str, Candidate]:
    """Return one candidate per cluster ID, oldest first, and never this cluster itself."""
    winners: dict[str, Candidate] = {}
    for candidate in sorted(candidates, key=_order):
        info = candidate.info
        if info.cluster_id == config.cluster_id or (config.namespace and info.meta.namespace != config.namespace):
            continue
        holder = winners.setdefault(info.cluster_id, candidate)
        if holder is not candidate:
            message = f'clusterID "{info.cluster_id}" is taken by the older {holder.info.meta.subject}: not used'
            problems.append(problem_of(info, "spec.clusterID", "DuplicateClusterID", message))
    return winners


def _settle(table: ClaimTable, pod_hosts: frozenset[int], problems: list[Problem]) -> dict[str, Remote]:
    """Return the verdicts: what a candidate may have alone, less what an older one has."""
    disputed = contested(table.ranges)
    ledger = Ledger()
    holders: dict[tuple[int, int], str] = {}  # of single addresses: the cluster that came first
    clusters: dict[str, Remote] = {}
    for cluster_id, candidate in table.winners.items():
        if candidate.problems:
            problems.extend(candidate.problems)
        remote = candidate.alone
        lost = _lost_hosts(candidate, holders, pod_hosts) if candidate.hosts else {}
        if lost or cluster_id in disputed:
            remote = _less_networks(candidate, lost, ledger, problems)
        for place, point in enumerate(candidate.points):
            holder = holders.setdefault(point, cluster_id)
            if point[1] in pod_hosts:
                remote = _less_address(candidate, remote, place, "a Pod of this cluster", problems)
            elif holder != cluster_id:
                remote = _less_address(candidate, remote, place, f'the older cluster "{holder}"', problems)
        for address in candidate.hosts:
            holders.setdefault((address.version, int(address)), cluster_id)
        clusters[cluster_id] = remote
    _mark_direct(clusters, table)
    return clusters


def _lost_hosts(
    candidate: Candidate, holders: Mapping[tuple[int, int], str], pod_hosts: frozenset[int]
) -> dict[Network, str]:
    """Return those of the candidate's single-address CIDRs that are somebody's tunnel endpoint or Pod."""
    lost: dict[Network, str] = {}
    for address in candidate.hosts:
        holder = holders.get((address.version, int(address)))
        if holder is not None:
            lost[host_network(address)] = f'of the older cluster "{holder}"'
        elif int(address) in pod_hosts:
            lost[host_network(address)] = "of a Pod of this cluster"
    return lost


def _less_networks(
    candidate: Candidate, lost: Mapping[Network, str], ledger: Ledger, problems: list[Problem]
) -> Remote:
    """Give the candidate those of its networks that nobody has yet."""
    remote = candidate.alone
    kept: list[Network] = []
    pods_whole = True
    for claim in candidate.claims:
        who = lost.get(claim.network)
        holder = ledger.holder(claim.network) if who is None else (claim.network, who)
        if holder is None:
            kept.append(claim.network)
            continue
        pods_whole = pods_whole and not claim.pod
        message = f"{claim.network} is not used: it overlaps {holder[0]} {holder[1]}"
        problems.append(problem_of(candidate.info, claim.path, "OverlapsRemote", message))
    for network in kept:
        ledger.give(network, f'of the older cluster "{candidate.info.cluster_id}"')
    return Remote(
        cluster_id=remote.cluster_id,
        cidrs=tuple(kept),
        gateways=remote.gateways,
        snat=remote.snat or not pods_whole,
    )


def _less_address(candidate: Candidate, remote: Remote, place: int, who: str, problems: list[Problem]) -> Remote:
    address, path = candidate.gateways[place]
    message = f"{address} is not used: it belongs to {who}"
    problems.append(problem_of(candidate.info, path, "DuplicateAddress", message))
    return Remote(
        cluster_id=remote.cluster_id,
        cidrs=remote.cidrs,
        gateways=tuple(a for a in remote.gateways if a != address),
        snat=remote.snat,
    )


def _mark_direct(clusters: dict[str, Remote], table: ClaimTable) -> None:
    """Find gateways whose address lies inside a remote CIDR: one merge of two sorted lists.

    A network that was refused still counts: keeping an address out of the tunnels is never wrong.
    """
    inside: dict[str, set[int]] = {}
    rows = iter(table.ranges)
    upcoming = next(rows, None)
    version, end = 0, -1
    for point, cluster_id in table.points:
        while upcoming is not None and upcoming[0][:2] <= point:
            row_version, _, last = upcoming[0]
            if row_version != version or last > end:
                version, end = row_version, last
            upcoming = next(rows, None)
        if point[0] == version and point[1] <= end:
            inside.setdefault(cluster_id, set()).add(point[1])
    for cluster_id, values in inside.items():
        remote = clusters[cluster_id]
        clusters[cluster_id] = replace(remote, direct=tuple(a for a in remote.gateways if int(a) in values))
