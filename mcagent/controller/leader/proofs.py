"""Which cluster's gateway answers at an address, by what members report. Pure.

Members probe the tunnels to other clusters' gateways, and the answer has the fingerprint of the cluster that
answers (`mcagent.core.tunnel_probes`); a WireGuard session with the claimed key counts as an answer. They report
it with their links (`mcagent.model.parsing.links`). A report may be false: reports of a cluster about itself and
of its rivals do not count, and the majority of the others decides. Gateways of Antrea answer no probes, so without
encryption these have no proof.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache

from mcagent.controller.leader.exports.header import announces
from mcagent.controller.machinery.reconciler import Index, Side, View
from mcagent.model.api.base import ApiObject
from mcagent.model.api.multicluster import MemberClusterAnnounce
from mcagent.model.net import cluster_fingerprint
from mcagent.model.parsing import links


def reported_answers(announce: ApiObject | None) -> Mapping[str, frozenset[str]]:
    """Return the fingerprints that a member reports, by the address of the gateway that answered."""
    if not isinstance(announce, MemberClusterAnnounce) or not announces(announce):
        return {}
    return _answers(announce.annotation(links.ANNOTATION) or "")


@lru_cache(maxsize=2048)
def _answers(text: str) -> Mapping[str, frozenset[str]]:
    answers: dict[str, frozenset[str]] = {}
    for link in links.read_text(text):
        for address, fingerprint in link.answers:
            answers[address] = answers.get(address, frozenset()) | {fingerprint}
    return answers


def is_confirmed(view: View, area: str, address: str, cluster_id: str, rivals: Collection[str] = ()) -> bool:
    """Tell whether more members report that a cluster answers at an address than that others do.

    Reports of the cluster itself and of `rivals` (cluster IDs) do not count.
    """
    own = links.fingerprint_text(cluster_fingerprint(cluster_id))
    confirming = contradicting = 0
    for announce in view.indexed(ANSWERS, f"{area}/{address}"):
        if announce.cluster_id == cluster_id or announce.cluster_id in rivals:
            continue
        if own in reported_answers(announce)[address]:
            confirming += 1
        else:
            contradicting += 1
    return confirming > contradicting


def _by_address(obj: MemberClusterAnnounce) -> Iterable[str]:
    return [f"{obj.namespace}/{address}" for address in reported_answers(obj)]


# MemberClusterAnnounces, under "area/address" of each gateway that they report an answer of.
ANSWERS = Index("announces-by-answer", MemberClusterAnnounce, Side.LOCAL, _by_address)
