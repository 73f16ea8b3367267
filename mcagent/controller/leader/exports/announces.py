"""Who is a member of the ClusterSet in a Common Area: has announced itself, and is not on its way out. Pure."""

from __future__ import annotations

from mcagent.controller.contract import names
from mcagent.controller.machinery.reconciler import Ref, View
from mcagent.model.api.base import ApiObject
from mcagent.model.api.multicluster import MemberClusterAnnounce
from mcagent.model.objects import Kind


def announce_ref(area: str, cluster_id: str) -> Ref:
    """Return the name of a member's MemberClusterAnnounce."""
    return Ref(kind=Kind.MEMBER_CLUSTER_ANNOUNCE, namespace=area, name=names.announce(cluster_id))


def is_member(view: View, area: str, cluster_id: str) -> bool:
    """Tell whether exports of this cluster count."""
    announce = view.get(announce_ref(area, cluster_id), MemberClusterAnnounce)
    return announce is not None and announces(announce) and announce.cluster_id == cluster_id


def not_a_member(cluster_id: str) -> str:
    """Return why exports of a cluster do not count that is no member."""
    return f"cluster {cluster_id} has not announced itself to this leader, or is leaving"


def announces(obj: ApiObject | None) -> bool:
    """Tell whether a MemberClusterAnnounce, or its absence, announces a member."""
    if not isinstance(obj, MemberClusterAnnounce):
        return False
    return not obj.is_deleting and obj.name == names.announce(obj.cluster_id)


def heartbeat(announce: MemberClusterAnnounce) -> str:
    """Return what changes with each heartbeat: the time the member wrote, or before the first when it joined.

    It is only ever compared with itself: the member's clock may be any.
    """
    return announce.annotation(names.HEARTBEAT_ANNOTATION) or announce.metadata.creation_timestamp
