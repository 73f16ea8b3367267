"""Who is a member of the ClusterSet in a Common Area: has announced itself, and is not on its way out. Pure."""

from __future__ import annotations

from mcagent.controller.contract import names
from mcagent.controller.contract.raw import is_deleting, name_of, text_at
from mcagent.controller.machinery.reconciler import Ref, View
from mcagent.kube.source import RawObject
from mcagent.model.objects import Kind


def announce_ref(area: str, cluster_id: str) -> Ref:
    """Return the name of a member's MemberClusterAnnounce."""
    return Ref(kind=Kind.MEMBER_CLUSTER_ANNOUNCE, namespace=area, name=names.announce(cluster_id))


def is_member(view: View, area: str, cluster_id: str) -> bool:
    """Tell whether exports of this cluster count."""
    raw = view.get(announce_ref(area, cluster_id))
    return raw is not None and announces(raw) and text_at(raw, "clusterID") == cluster_id


def not_a_member(cluster_id: str) -> str:
    """Return why exports of a cluster do not count that is no member."""
    return f"cluster {cluster_id} has not announced itself to this leader, or is leaving"


def announces(raw: RawObject | None) -> bool:
    """Tell whether a MemberClusterAnnounce, or its absence, announces a member."""
    return raw is not None and not is_deleting(raw) and name_of(raw) == names.announce(text_at(raw, "clusterID"))


def heartbeat(raw: RawObject) -> str:
    """Return what changes with each heartbeat: the time the member wrote, or before the first when it joined.

    It is only ever compared with itself: the member's clock may be any.
    """
    return text_at(raw, "metadata", "annotations", names.HEARTBEAT_ANNOTATION) or text_at(
        raw, "metadata", "creationTimestamp"
    )
