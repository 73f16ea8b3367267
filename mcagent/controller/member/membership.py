"""Whether this cluster is a member of a ClusterSet now: what all reconcilers of a member check first. Pure."""

from __future__ import annotations

from mcagent.controller.contract import names
from mcagent.controller.machinery.reconciler import Leader, ObjectChange, Ref, Side, View, Wanted
from mcagent.model.api.base import condition_of
from mcagent.model.api.multicluster import ClusterSet, ResourceImport
from mcagent.model.objects import Kind

NOT_TAKEN = "AnnounceFailed"  # reason of a ClusterSet's Ready: the leader does not take the announcement


def cluster_set_of(view: View) -> ClusterSet | None:
    """Return the ClusterSet that counts: the oldest one here that names the server of a leader."""
    cluster_sets = view.list(ClusterSet, namespace=view.namespace)
    joined = [cluster_set for cluster_set in cluster_sets if cluster_set.leader_server]
    return min(joined, key=lambda cluster_set: cluster_set.age, default=None)


def cluster_set_ref(cluster_set: ClusterSet, view: View) -> Ref:
    """Return the name of a ClusterSet here."""
    return Ref(kind=Kind.CLUSTER_SET, namespace=view.namespace, name=cluster_set.name)


def released(cluster_set: ClusterSet, view: View) -> Wanted:
    """Return the write that takes our finalizer off a ClusterSet."""
    foreign = [text for text in cluster_set.metadata.finalizers if text != names.MEMBER_FINALIZER]
    body = {"metadata": {"finalizers": foreign or None}}
    return Wanted(ref=cluster_set_ref(cluster_set, view), body=body, create=False)


def joined_leader(view: View) -> Leader | None:
    """Return the leader while this cluster is a member and not about to leave.

    It is one from when the ClusterSet has our finalizer: nothing is made that leaving would not clean up.
    """
    cluster_set, leader = cluster_set_of(view), view.leader
    if cluster_set is None or leader is None or cluster_set.is_deleting:
        return None
    joined = leader.cluster_set == cluster_set.name and names.MEMBER_FINALIZER in cluster_set.metadata.finalizers
    return leader if joined else None


def import_ref(leader: Leader, name: str) -> Ref:
    """Return the name of a ResourceImport on the leader."""
    return Ref(side=Side.LEADER, kind=Kind.RESOURCE_IMPORT, namespace=leader.namespace, name=name)


def is_for(resource_import: ResourceImport, leader: Leader) -> bool:
    """Tell whether a ResourceImport is for this cluster, and not on its way out.

    `spec.clusterID` names the clusters that it is for; none means all (Antrea declares the field and ignores it).
    """
    clusters = resource_import.spec.cluster_id
    return not resource_import.is_deleting and (not clusters or leader.cluster_id in clusters)


def is_joined(view: View) -> bool:
    """Tell whether there is a ClusterSet here that is not about to go, reachable leader or not."""
    cluster_set = cluster_set_of(view)
    return cluster_set is not None and not cluster_set.is_deleting


def concerns_membership(change: ObjectChange) -> bool:
    """Tell whether a change of a ClusterSet may change what `joined_leader` returns, or what the leader takes."""
    if change.kind is not Kind.CLUSTER_SET:
        return False
    old, new = change.of(ClusterSet)
    if old is None or new is None or old is new:
        return True
    return _identity(old) != _identity(new)


def _identity(cluster_set: ClusterSet) -> object:
    held = names.MEMBER_FINALIZER in cluster_set.metadata.finalizers
    # A leader that takes announcements again takes the rest, too: nothing waits for its back-off any longer.
    refused = condition_of(cluster_set.status.conditions, "Ready").reason == NOT_TAKEN
    return (cluster_set.spec, cluster_set.is_deleting, held, refused, cluster_set.metadata.uid)
