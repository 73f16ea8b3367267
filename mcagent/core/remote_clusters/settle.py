"""The other clusters: which of what they announce is used.

Who wins where two want the same is `mcagent.core.addresses.ownership`'s rule: whoever has claimed it for longer,
so nobody can take what another has. Each refusal is a Problem. Work that looks at one object alone is kept in
`Candidate` and reused while the object is the same; one changed object that is in nobody's way is settled by that
alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter

from mcagent.core.addresses.ownership import AddressClaim, lost
from mcagent.core.addresses.rules import PrefixRange
from mcagent.core.claim_table import ClaimTable
from mcagent.core.local_cluster.topology import Local
from mcagent.core.remote_clusters.check import Judge, Surroundings, problem_of
from mcagent.core.remote_clusters.cidr_claims import Candidate, Claim
from mcagent.model.config import Config
from mcagent.model.facts import Facts
from mcagent.model.net import Address, Network, host_network
from mcagent.model.node_state import AcceptedCluster
from mcagent.model.objects import ClusterInfoImport
from mcagent.model.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Remotes:
    """The verdict on all clusters, and what the next call reuses."""

    clusters: Mapping[str, AcceptedCluster]  # by cluster ID, in order of seniority
    problems: tuple[Problem, ...]
    surroundings: Surroundings
    pod_hosts: frozenset[int]
    pods: list[int] = field(repr=False)  # the same, sorted
    infos: Mapping[str, ClusterInfoImport]
    candidates: Mapping[str, Candidate] = field(repr=False)
    table: ClaimTable = field(repr=False)
    calm: bool = False  # nobody is in anybody's way: each has what it would have alone


def surroundings_of(
    local: Local, facts: Facts, config: Config, api_servers: Iterable[Address] = ()
) -> Surroundings:
    """Return what the verdicts rest on. `api_servers`: those that are known beside `facts`."""
    return Surroundings(
        config=config,
        taken=local.taken,
        node_addresses=local.node_addresses,
        service_cidrs=local.service_cidrs,
        node_cidrs=local.node_cidrs,
        publishes=bool(local.published_pods),
        addresses=facts.addresses,
        connected=facts.connected,
        protected=_protected(facts, config, api_servers),
        gateway_ip=local.own_gateway_ip,
    )


def _protected(facts: Facts, config: Config, api_servers: Iterable[Address]) -> tuple[tuple[Network, str], ...]:
    """Return what the Node cannot do without, whoever may be asked for it; of equal ones the first names it."""
    return (
        *((network, "which protectedCIDRs names") for network in config.protected_cidrs),
        *(
            (host_network(address), "an API server of this cluster")
            for address in (*facts.api_servers, *api_servers)
        ),
        *((host_network(address), "a resolver of this Node") for address in facts.resolvers),
        *((host_network(address), "a default gateway of this Node") for address in facts.default_gateways),
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
    if previous is not None and previous.calm:
        same = previous.pod_hosts == pod_hosts
        quick = _one_changed(previous, infos) if same else _pods_changed(previous, infos, pod_hosts)
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
    table = ClaimTable.of(winners)
    pods = previous.pods if previous is not None and previous.pod_hosts == pod_hosts else sorted(pod_hosts)
    clusters, calm = _settle(table, pods, problems)
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
        pods=pods,
        infos=infos,
        candidates=candidates,
        table=table,
        calm=calm,
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
    if any(_holds(found, previous.pods) for found in new.footprint):
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


def _pods_changed(
    previous: Remotes, infos: Mapping[str, ClusterInfoImport], pod_hosts: frozenset[int]
) -> Remotes | None:
    """Return the verdicts after Pods came or went that are in nobody's way; None if it is another case."""
    if previous.infos is not infos or any(map(previous.table.holds, pod_hosts - previous.pod_hosts)):
        return None
    return replace(previous, pod_hosts=pod_hosts, pods=sorted(pod_hosts))


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


def _settle(
    table: ClaimTable, pods: list[int], problems: list[Problem]
) -> tuple[dict[str, AcceptedCluster], bool]:
    """Return the verdicts, and whether all are what each cluster would have alone.

    That is what a candidate may have alone, less what holds a Pod of this cluster, less what is another cluster's.
    """
    beaten: dict[AddressClaim, str] = {}
    standing: list[AddressClaim] = []
    for candidate in table.winners.values():
        problems.extend(candidate.problems)
        for claim in candidate.claims:
            if _holds(claim.asked.range, pods):
                beaten[claim.asked] = A_POD
            else:
                standing.append(claim.asked)
    beaten |= _named(lost(standing), table)
    losers = {claim.owner for claim in beaten}
    clusters: dict[str, AcceptedCluster] = {}
    for cluster_id, candidate in table.winners.items():
        if cluster_id not in losers:
            clusters[cluster_id] = candidate.alone
            continue
        clusters[cluster_id] = candidate.without(beaten)
        problems.extend(_refusal(candidate, c, beaten[c.asked]) for c in candidate.claims if c.asked in beaten)
    return clusters, not beaten


A_POD = "a Pod of this cluster"


def _holds(found: PrefixRange, pods: list[int]) -> bool:
    """Tell whether an IPv4 range holds one of these addresses (sorted)."""
    place = bisect_left(pods, found[1])
    return place < len(pods) and pods[place] <= found[2]


def _named(found: Mapping[AddressClaim, AddressClaim], table: ClaimTable) -> dict[AddressClaim, str]:
    """Return for each loser what it lost to, for people."""
    owners = {winner.owner for winner in found.values()}
    claims = {claim.asked: claim for owner in owners for claim in table.winners[owner].claims}
    return {loser: _name(claims[winner]) for loser, winner in found.items()}


def _name(claim: Claim) -> str:
    what = f"{claim.network}" if claim.gateway is None else f"the gateway {claim.gateway}"
    return f'{what} of cluster "{claim.asked.owner}", which has had it for longer'


def _refusal(candidate: Candidate, claim: Claim, who: str) -> Problem:
    """Return the problem of a claim that is lost to somebody."""
    if claim.gateway is None:
        message = f"{claim.network} is not used: it overlaps {who}"
        reason = "OverlapsLocal" if who == A_POD else "OverlapsRemote"
    else:
        message = f"{claim.gateway} is not used: it overlaps {who}"
        reason = "DuplicateAddress"
    return problem_of(candidate.info, claim.path, reason, message)
