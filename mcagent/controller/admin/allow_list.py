"""The CIDRs that members of a new ClusterSet may claim: an annotation of the leader's ClusterSet.

`clusterset init` writes it, and `membertoken create` copies it to the ServiceAccount of each member without a list
of its own; the leader's controller reads only ServiceAccounts. Without a list a member may claim every private
network that no other member has, also one that the others reach by their default route.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Network

from mcagent.controller.admin.cluster import Cluster
from mcagent.controller.contract.names import ALLOWED_CIDRS_ANNOTATION
from mcagent.controller.leader.eligibility import PRIVATE
from mcagent.controller.leader.exports.bounds import ANY, annotation_errors
from mcagent.model.api.kubernetes import ApiNode
from mcagent.model.api.multicluster import ClusterSet
from mcagent.model.errors import InputError, McagentError
from mcagent.model.net import contains, parse_network


def annotations_for(cluster: Cluster, cidrs: Sequence[str]) -> dict[str, str]:
    """Return the annotation of a new ClusterSet with these CIDRs, and report it. Raises InputError.

    By default these are the private ranges in which the CIDRs of this cluster lie: those of members usually do,
    and networks of machines often have another one.
    """
    text = ",".join(cidrs)
    if errors := annotation_errors({ALLOWED_CIDRS_ANNOTATION: text}):
        raise InputError("--allow-cidr", "", errors)
    text = text or ",".join(ranges_of(_own_cidrs(cluster)))
    for line in explanation(text, given=bool(cidrs)):
        cluster.report(line)
    return {ALLOWED_CIDRS_ANNOTATION: text} if text else {}


def explanation(text: str, *, given: bool) -> list[str]:
    """Return the lines that tell what members may claim. `text`: of the annotation; `given`: by flags."""
    if text in ("", ANY):
        why = "" if given else ": this cluster's CIDRs cannot be read"
        return [
            f"members may claim every private network that no other member has{why}",
            "allow each only its Service and Pod CIDRs: mcagent membertoken create … --allow-cidr CIDR",
        ]
    of_this = "" if given else ", the private ranges of this cluster's CIDRs"
    return [
        f"members may claim CIDRs in {text}{of_this} (annotation {ALLOWED_CIDRS_ANNOTATION} of the ClusterSet)",
        "allow each member only its own: mcagent membertoken create … --allow-cidr CIDR",
    ]


def ranges_of(cidrs: Iterable[str]) -> list[str]:
    """Return the private range of each CIDR, or the CIDR itself if it lies in none."""
    ranges = [IPv4Network(text) for text in PRIVATE]
    networks = [network for cidr in cidrs if isinstance(network := parse_network(cidr)[0], IPv4Network)]
    chosen = (next((range_ for range_ in ranges if contains(range_, network)), network) for network in networks)
    return list(dict.fromkeys(map(str, chosen)))


def inherited(cluster: Cluster, namespace: str) -> str:
    """Return the list of the leader's ClusterSet in a namespace; "" without one. Raises SourceError."""
    leaders = (cluster_set for cluster_set in cluster.typed(ClusterSet, namespace) if cluster_set.is_leaders)
    texts = (cluster_set.annotation(ALLOWED_CIDRS_ANNOTATION) for cluster_set in leaders)
    return next(filter(None, texts), "")


def _own_cidrs(cluster: Cluster) -> list[str]:
    """Return the Service CIDR and the Pod CIDRs of all Nodes; [] if unreadable."""
    try:
        pods = [cidr for node in cluster.typed(ApiNode) for cidr in node.spec.pod_cidrs]
        return [cluster.service_cidr(), *pods]
    except McagentError:
        return []
