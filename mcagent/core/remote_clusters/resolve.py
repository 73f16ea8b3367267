"""Conflicts between remote clusters: which claims of the checked clusters are granted.

The rule is that of `mcagent.core.addresses.ownership`: the oldest claim wins, so no cluster can take an address
that another one has. Each refusal is a Problem. Must not know what a cluster may claim at all (`check`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from operator import attrgetter, itemgetter, lt

from mcagent.core.addresses.ownership import AddressClaim, losing_claims
from mcagent.core.remote_clusters.claims import CheckedCluster, RemoteClaim
from mcagent.model.config import Config
from mcagent.model.node_state import AcceptedCluster
from mcagent.model.objects import ClusterInfoImport
from mcagent.model.problem import Problem

A_POD = "a Pod of this cluster"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteClusters:
    """The remote clusters in use, by cluster ID."""

    checked: Mapping[str, CheckedCluster]
    accepted: Mapping[str, AcceptedCluster]
    problems: tuple[Problem, ...]


def resolve_clusters(checked: Mapping[str, CheckedCluster], pods: Sequence[int], config: Config) -> RemoteClusters:
    """Resolve the conflicts between clusters. `pods`: IPv4 addresses of individual Pods of this cluster, sorted.

    A cluster gets what `check` accepted, without claims that contain a Pod of this cluster or lose to another
    cluster.
    """
    problems: list[Problem] = []
    clusters = _oldest_by_id(checked.values(), config, problems)
    for cluster in clusters.values():
        problems.extend(cluster.problems)
    if _uncontested(clusters.values(), pods):
        accepted = {cluster_id: cluster.uncontested for cluster_id, cluster in clusters.items()}
    else:
        accepted = _contested(clusters, pods, problems)
    return RemoteClusters(checked=clusters, accepted=accepted, problems=tuple(problems))


def _oldest_by_id(
    checked: Iterable[CheckedCluster], config: Config, problems: list[Problem]
) -> dict[str, CheckedCluster]:
    """Return the oldest object of each cluster ID, without this cluster's own; sorted by ID."""
    candidates = [cluster for cluster in checked if _is_remote(cluster.info, config)]
    oldest = {cluster.info.cluster_id: cluster for cluster in candidates}
    if len(oldest) < len(candidates):
        candidates.sort(key=attrgetter("order"))
        oldest = {cluster.info.cluster_id: cluster for cluster in reversed(candidates)}
        for cluster in candidates:
            cluster_id = cluster.info.cluster_id
            holder = oldest[cluster_id]
            if holder is not cluster:
                message = f'clusterID "{cluster_id}" is taken by the older {holder.info.meta.subject}: not used'
                problems.append(cluster.info.meta.problem("spec.clusterID", "DuplicateClusterID", message))
    return dict(sorted(oldest.items(), key=itemgetter(0)))


def _is_remote(info: ClusterInfoImport, config: Config) -> bool:
    return info.cluster_id != config.cluster_id and config.namespace in ("", info.meta.namespace)


def _uncontested(checked: Iterable[CheckedCluster], pods: Sequence[int]) -> bool:
    """Tell whether no address is claimed by two clusters, and none belongs to a Pod.

    With first and last addresses sorted separately, ranges are disjoint if each ends before the next one begins.
    That costs two sorts of integers, and most passes need no more.
    """
    clusters = tuple(checked)
    firsts = sorted(chain.from_iterable(cluster.firsts for cluster in clusters))
    lasts = sorted(chain.from_iterable(cluster.lasts for cluster in clusters))
    if not all(map(lt, lasts, islice(firsts, 1, None))):
        return False
    return not pods or not any(_contains(first, last, pods) for first, last in zip(firsts, lasts, strict=True))


def _contains(first: int, last: int, addresses: Sequence[int]) -> bool:
    """Tell whether the range from `first` to `last` contains one of the addresses (sorted)."""
    index = bisect_left(addresses, first)
    return index < len(addresses) and addresses[index] <= last


def _contested(
    clusters: Mapping[str, CheckedCluster], pods: Sequence[int], problems: list[Problem]
) -> dict[str, AcceptedCluster]:
    """Return what is accepted of each cluster where claims conflict."""
    winner_names: dict[AddressClaim, str] = {}  # by losing claim: a description of the winner
    candidates: list[AddressClaim] = []
    for cluster in clusters.values():
        for remote in cluster.claims:
            if _contains(remote.claim.range[1], remote.claim.range[2], pods):
                winner_names[remote.claim] = A_POD
            else:
                candidates.append(remote.claim)
    winners = losing_claims(candidates)
    owners = {winner.owner for winner in winners.values()}
    names = {remote.claim: _describe(remote) for owner in owners for remote in clusters[owner].claims}
    winner_names |= {loser: names[winner] for loser, winner in winners.items()}
    losing_owners = {claim.owner for claim in winner_names}
    accepted: dict[str, AcceptedCluster] = {}
    for cluster_id, cluster in clusters.items():
        if cluster_id not in losing_owners:
            accepted[cluster_id] = cluster.uncontested
            continue
        accepted[cluster_id] = cluster.without(winner_names)
        lost_claims = (remote for remote in cluster.claims if remote.claim in winner_names)
        problems.extend(_lost_claim(cluster, remote, winner_names[remote.claim]) for remote in lost_claims)
    return accepted


def _describe(remote: RemoteClaim) -> str:
    subject = str(remote.network) if remote.gateway is None else f"the gateway {remote.gateway}"
    return f'{subject} of cluster "{remote.claim.owner}", which claimed it first'


def _lost_claim(cluster: CheckedCluster, remote: RemoteClaim, winner: str) -> Problem:
    """Return the problem of a claim that lost to `winner`, a description."""
    if remote.gateway is None:
        message = f"{remote.network} is not used: it overlaps {winner}"
        reason = "OverlapsLocal" if winner == A_POD else "OverlapsRemote"
    else:
        message = f"{remote.gateway} is not used: it overlaps {winner}"
        reason = "DuplicateAddress"
    return cluster.info.meta.problem(remote.path, reason, message)
