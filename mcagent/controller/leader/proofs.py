"""Which cluster's gateway answers at an address, by what members report. Pure.

Members probe the tunnels to other clusters' gateways, and the answer has the fingerprint of the cluster that
answers (`mcagent.core.tunnel_probes`); a WireGuard session with the claimed key counts as an answer. They report
it with their links (`mcagent.model.parsing.links`). A report may be false: `disputes` decides what it counts.
Gateways of Antrea answer no probes, so without encryption these have no proof.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from mcagent.controller.leader.exports.header import announces
from mcagent.controller.machinery.reconciler import Index, Side
from mcagent.model.api.base import ApiObject
from mcagent.model.api.multicluster import MemberClusterAnnounce
from mcagent.model.net import cluster_fingerprint
from mcagent.model.parsing import links


@dataclass(frozen=True, slots=True)
class LinkReport:
    """What a member reports of its tunnels to other clusters."""

    answers: Mapping[str, frozenset[str]]  # fingerprints, by the address of the gateway that answered
    clusters: Mapping[str, Sequence[str]]  # with tunnels, and the addresses that answer through them

    def has_tunnels(self, cluster_id: str, address: str) -> bool:
        """Tell whether it would have reported an answer at the address of a gateway of a cluster."""
        addresses = self.clusters.get(cluster_id)
        return addresses is not None and (len(addresses) < links.MAX_ANSWERS or address in addresses)

    def changed(self, other: LinkReport) -> tuple[list[str], list[str]]:
        """Return the addresses, and the clusters with tunnels, that differ between two reports."""
        return _differing_keys(self.answers, other.answers), _differing_keys(self.clusters, other.clusters)

    def names(self, cluster_id: str, address: str) -> bool:
        """Tell whether a cluster, and no other one, answers at an address."""
        return self.answers.get(address) == _fingerprint(cluster_id)


_NOTHING = LinkReport({}, {})


def _differing_keys(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    return sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))


def link_report(announce: ApiObject | None) -> LinkReport:
    """Return what a member reports. One that reports no answer at all cannot tell who answers: nothing."""
    if not isinstance(announce, MemberClusterAnnounce) or not announces(announce):
        return _NOTHING
    return _report(announce.annotation(links.ANNOTATION) or "")


@lru_cache(maxsize=2048)
def _report(text: str) -> LinkReport:
    answers: dict[str, frozenset[str]] = {}
    clusters: dict[str, Sequence[str]] = {}
    for link in links.read_text(text):
        for address, fingerprint in link.answers:
            answers[address] = answers.get(address, frozenset()) | {fingerprint}
        if link.tunnels:
            clusters[link.cluster] = [address for address, _ in link.answers]
    return LinkReport(answers, clusters) if answers else _NOTHING


@lru_cache(maxsize=2048)
def _fingerprint(cluster_id: str) -> frozenset[str]:
    return frozenset({links.fingerprint_text(cluster_fingerprint(cluster_id))})


def _by_linked_cluster(obj: MemberClusterAnnounce) -> Iterable[str]:
    return [
        f"{obj.namespace}/{cluster_id}" for cluster_id in link_report(obj).clusters if cluster_id != obj.cluster_id
    ]


def _by_confirmed_gateway(obj: MemberClusterAnnounce) -> Iterable[str]:
    report = link_report(obj)
    return [
        f"{obj.namespace}/{cluster_id}/{address}"
        for cluster_id, addresses in report.clusters.items()
        for address in addresses
        if cluster_id != obj.cluster_id and report.names(cluster_id, address)
    ]


# MemberClusterAnnounces, under "area/cluster ID" of each other cluster that they report tunnels to.
REPORTERS = Index("announces-by-linked-cluster", MemberClusterAnnounce, Side.LOCAL, _by_linked_cluster)
# The same, under "area/cluster ID/address" of each gateway of those that answers in its cluster's name.
CONFIRMING = Index("announces-by-confirmed-gateway", MemberClusterAnnounce, Side.LOCAL, _by_confirmed_gateway)
