"""The membership of this cluster in a ClusterSet, which all reconcilers of a member check first. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mcagent.controller.contract import names
from mcagent.controller.contract.cluster_uid import DUPLICATE
from mcagent.controller.contract.export_ranges import RANGE_ANNOTATION
from mcagent.controller.contract.pod_ranges import POD_RANGE_ANNOTATION
from mcagent.controller.machinery.reconciler import Leader, ObjectChange, Ref, Side, View, Wanted
from mcagent.model.api.base import ApiObject, condition_of
from mcagent.model.api.multicluster import ClusterSet, ResourceImport
from mcagent.model.api.patches import metadata_patch, patch
from mcagent.model.event import Event
from mcagent.model.objects import Kind

# Reasons of a ClusterSet's Ready; "": it has no status yet.
NOT_TAKEN = "AnnounceFailed"  # the leader refuses the announcement
DISCONNECTED = "Disconnected"  # the leader is away
NOT_CONNECTED = "LeaderNotConnected"  # the leader's objects are not listed yet
NOT_ANNOUNCED = "NotAnnounced"  # the leader has not accepted an announcement since it was away
_NOT_HOLDING = ("", NOT_CONNECTED, NOT_ANNOUNCED, DUPLICATE)
_NOT_EXPORTING = (*_NOT_HOLDING, DISCONNECTED)


def cluster_set_of(view: View) -> ClusterSet | None:
    """Return the ClusterSet that this cluster joins: the oldest one with the server of a leader."""
    cluster_sets = view.list(ClusterSet, namespace=view.namespace)
    joined = [cluster_set for cluster_set in cluster_sets if cluster_set.leader_server]
    return min(joined, key=lambda cluster_set: cluster_set.age, default=None)


def released(cluster_set: ClusterSet) -> Wanted:
    """Return the write that removes MEMBER_FINALIZER from a ClusterSet."""
    foreign = [text for text in cluster_set.metadata.finalizers if text != names.MEMBER_FINALIZER]
    body = patch(ClusterSet, metadata=metadata_patch(finalizers=foreign))
    return Wanted(ref=Ref.of(cluster_set), body=body, create=False)


def joined_leader(view: View) -> Leader | None:
    """Return the leader while this cluster is a member, not leaving, and holds its cluster ID.

    It holds the ID from the first announcement that the leader accepts; a leader that is away changes nothing.
    """
    return None if _reason(cluster_set_of(view)) in _NOT_HOLDING else announcing_leader(view)


def exporting_leader(view: View) -> Leader | None:
    """Return `joined_leader` once the leader has accepted an announcement since it was away.

    Another cluster may hold the ID by then, whose exports this cluster would overwrite.
    """
    return None if _reason(cluster_set_of(view)) in _NOT_EXPORTING else announcing_leader(view)


def _reason(cluster_set: ClusterSet | None) -> str:
    return condition_of(cluster_set.status.conditions, "Ready").reason if cluster_set is not None else ""


def announcing_leader(view: View) -> Leader | None:
    """Return the leader while this cluster is a member and not leaving, whether or not it holds its ID.

    It is a member once the ClusterSet has MEMBER_FINALIZER, so that leaving cleans up all objects.
    """
    cluster_set, leader = cluster_set_of(view), view.leader
    if cluster_set is None or leader is None or cluster_set.is_deleting:
        return None
    joined = leader.cluster_set == cluster_set.name and names.MEMBER_FINALIZER in cluster_set.metadata.finalizers
    return leader if joined else None


def import_ref(leader: Leader, name: str) -> Ref:
    """Return the reference to a ResourceImport on the leader."""
    return Ref(side=Side.LEADER, kind=Kind.RESOURCE_IMPORT, namespace=leader.namespace, name=name)


def own_cluster_info(view: View, leader: Leader) -> ResourceImport | None:
    """Return the leader's copy of this cluster's own ClusterInfo, which has the answers of the leader."""
    return view.get(import_ref(leader, names.cluster_info(leader.cluster_id)), ResourceImport)


def managed_labels() -> dict[str, str]:
    """Return the label of objects that this controller creates, in a new dict."""
    return {names.MANAGED_BY_LABEL: names.MANAGED_BY}


def is_managed(obj: ApiObject | None) -> bool:
    """Tell whether an object exists and this controller created it."""
    return obj is not None and obj.labels.get(names.MANAGED_BY_LABEL) == names.MANAGED_BY


def is_for(resource_import: ResourceImport, leader: Leader) -> bool:
    """Tell whether a ResourceImport is for this cluster, and not being deleted.

    `spec.clusterID` lists its clusters; an empty one means all (Antrea declares the field and ignores it).
    """
    clusters = resource_import.spec.cluster_id
    return not resource_import.is_deleting and (not clusters or leader.cluster_id in clusters)


def is_duplicate(cluster_set: ClusterSet) -> bool:
    """Tell whether a ClusterSet's condition says that another cluster holds the ID of this one."""
    return _reason(cluster_set) == DUPLICATE


def refused_writes(
    steps: Iterable[Wanted | Ref], view: View, about: str, reason: str = "ImportFailed"
) -> Iterator[Event]:
    """Yield an Event for each object of these steps whose last write was refused."""
    for ref in (step if isinstance(step, Ref) else step.ref for step in steps):
        if failure := view.failure(ref):
            yield Event(subject=about, reason=reason, message=f"{ref}: {failure}")


def is_joined(view: View) -> bool:
    """Tell whether the ClusterSet of this cluster is not being deleted; its leader may be unreachable."""
    cluster_set = cluster_set_of(view)
    return cluster_set is not None and not cluster_set.is_deleting


def concerns_membership(change: ObjectChange) -> bool:
    """Tell whether a change of a ClusterSet changes a leader above, its acceptance of writes, or export range."""
    if change.kind is not Kind.CLUSTER_SET:
        return False
    old, new = change.of(ClusterSet)
    if old is None or new is None or old is new:
        return True
    return _identity(old) != _identity(new)


def _identity(cluster_set: ClusterSet) -> object:
    has_finalizer = names.MEMBER_FINALIZER in cluster_set.metadata.finalizers
    # A leader that accepts announcements again accepts other writes too: they end their back-off.
    reason = _reason(cluster_set)
    states = (reason == NOT_TAKEN, reason in _NOT_HOLDING, reason in _NOT_EXPORTING)
    used_ranges = [cluster_set.annotation(key) for key in (RANGE_ANNOTATION, POD_RANGE_ANNOTATION)]
    return (
        cluster_set.spec,
        cluster_set.is_deleting,
        has_finalizer,
        cluster_set.metadata.uid,
        *used_ranges,
        *states,
    )
