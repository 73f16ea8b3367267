"""Whether this cluster is a member of a ClusterSet now: what all reconcilers of a member check first. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from mcagent.controller.contract import names
from mcagent.controller.contract.conditions import find
from mcagent.controller.contract.raw import age, is_deleting, items_at, name_of, text_at, texts_at, value_at
from mcagent.controller.machinery.reconciler import Leader, ObjectChange, Ref, View
from mcagent.kube.source import RawObject
from mcagent.model.objects import Kind

NOT_TAKEN = "AnnounceFailed"  # reason of a ClusterSet's Ready: the leader does not take the announcement


def cluster_set_of(view: View) -> RawObject | None:
    """Return the ClusterSet that counts: the oldest one here that names the server of a leader."""
    joined = [
        raw
        for raw in view.list(Kind.CLUSTER_SET, namespace=view.namespace)
        if any(text_at(leader, "server") for leader in items_at(raw, "spec", "leaders")[:1])
    ]
    return min(joined, key=age, default=None)


def cluster_set_ref(raw: RawObject, view: View) -> Ref:
    """Return the name of a ClusterSet here."""
    return Ref(kind=Kind.CLUSTER_SET, namespace=view.namespace, name=name_of(raw))


def joined_leader(view: View) -> Leader | None:
    """Return the leader while this cluster is a member and not about to leave.

    It is one from when the ClusterSet has our finalizer: nothing is made that leaving would not clean up.
    """
    raw, leader = cluster_set_of(view), view.leader
    if raw is None or leader is None or is_deleting(raw) or leader.cluster_set != name_of(raw):
        return None
    return leader if names.MEMBER_FINALIZER in texts_at(raw, "metadata", "finalizers") else None


def is_for(raw: RawObject, leader: Leader) -> bool:
    """Tell whether a ResourceImport is for this cluster, and not on its way out.

    `spec.clusterID` names the clusters that it is for; none means all (Antrea declares the field and ignores it).
    """
    clusters = value_at(raw, "spec", "clusterID")
    return not is_deleting(raw) and (
        not clusters or (isinstance(clusters, list) and leader.cluster_id in clusters)
    )


def is_joined(view: View) -> bool:
    """Tell whether there is a ClusterSet here that is not about to go, reachable leader or not."""
    raw = cluster_set_of(view)
    return raw is not None and not is_deleting(raw)


def concerns_membership(change: ObjectChange) -> bool:
    """Tell whether a change of a ClusterSet may change what `joined_leader` returns, or what the leader takes."""
    if change.kind is not Kind.CLUSTER_SET:
        return False
    if change.old is None or change.new is None or change.old is change.new:
        return True
    return _identity(change.old) != _identity(change.new)


def _identity(raw: RawObject) -> Iterable[object]:
    held = names.MEMBER_FINALIZER in texts_at(raw, "metadata", "finalizers")
    # A leader that takes announcements again takes the rest, too: nothing waits for its back-off any longer.
    refused = find(value_at(raw, "status", "conditions"), "Ready").get("reason") == NOT_TAKEN
    return (raw.get("spec"), is_deleting(raw), held, refused, text_at(raw, "metadata", "uid"))
