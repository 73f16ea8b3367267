"""The UID of a cluster, by which two clusters with one cluster ID are told apart. Pure.

It is the UID of Namespace kube-system, which no two clusters share and which a rebuilt cluster does not keep (the
Kubernetes multicluster SIG's convention for ClusterProperty cluster.clusterset.k8s.io). CLUSTER_UID_ANNOTATION
of a MemberClusterAnnounce has the UID of the cluster that holds the ID, until the announcement is deleted. A
cluster with another UID writes only REFUSED_UID_ANNOTATION, for the leader to report. Members of Antrea publish
no UID.
"""

from __future__ import annotations

import re

from mcagent.controller.contract import names
from mcagent.controller.machinery.reconciler import Refusal
from mcagent.model.api.base import ApiObject
from mcagent.model.api.multicluster import MemberClusterAnnounce
from mcagent.model.api.patches import annotated

CLUSTER_UID_ANNOTATION = "mcagent.io/cluster-uid"
REFUSED_UID_ANNOTATION = "mcagent.io/refused-cluster-uid"
DUPLICATE = "DuplicateClusterID"  # reason of conditions and Events
_REFUSED = "is that of the cluster with UID"  # in the refusals of members and of the admission policy
DUPLICATE_MARK = "cluster ID in use twice:"  # begins the refusals of a copy of a cluster, which has its UID
_UID = re.compile(r"[0-9A-Za-z-]{1,64}")


def is_uid(text: str) -> bool:
    """Tell whether a text can be a UID."""
    return _UID.fullmatch(text) is not None


def uids(announce: ApiObject | None) -> tuple[str, str]:
    """Return the UIDs in an announcement: of the member, and of the cluster that was refused; "": none."""
    if announce is None:
        return "", ""
    texts = (announce.annotation(key) or "" for key in (CLUSTER_UID_ANNOTATION, REFUSED_UID_ANNOTATION))
    own, refused = (text if is_uid(text) else "" for text in texts)
    return own, refused


def refuse(announce: ApiObject, cluster_id: str, uid: str) -> Refusal | None:
    """Return the refusal to write an announcement that another cluster holds; None: no refusal."""
    holder = announce.annotation(CLUSTER_UID_ANNOTATION) or ""
    if not uid or not is_uid(holder) or holder == uid:
        return None
    reason = (
        f"cluster ID {cluster_id} {_REFUSED} {holder}, and this cluster has UID {uid}: give one of them another "
        "cluster ID (mcagent clusterset leave --clusterset NAME, then join with another --clusterid). If this "
        "cluster replaces the other one, on the leader: kubectl delete memberclusterannounce "
        f"-n {announce.namespace} {names.announce(cluster_id)}"
    )
    return Refusal(reason=reason, body=annotated(MemberClusterAnnounce, {REFUSED_UID_ANNOTATION: uid}))


def is_refusal(failure: str) -> bool:
    """Tell whether the failure of a write is the refusal of a second cluster with one ID."""
    return _REFUSED in failure or failure.startswith(DUPLICATE_MARK)
