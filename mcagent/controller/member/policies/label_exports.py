"""The reconciler of this cluster's label identities on the leader: one ResourceExport for each set of labels.

A key is a label identity's text, or "#" and the name of an export of this cluster without a valid one. All Pods
of a Namespace with the same labels have one export, which is deleted with the last of them (the leader keeps the
number for some time). Pods of the host network, finished ones, and those without a Node or an address have no
address of their own, so they are ignored. Namespaces share the number of exports that the leader accepts
(`exports`). With `enableStretchedNetworkPolicy` false no Pods are read, and the exports are deleted.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

from mcagent.controller.contract import names
from mcagent.controller.contract.names import ExportKind
from mcagent.controller.machinery.reconciler import (
    Access,
    DesiredObjects,
    Index,
    Leader,
    ObjectChange,
    Ref,
    Side,
    View,
    Wanted,
)
from mcagent.controller.member.exports import BY_CLUSTER, OWN_BY_KIND, RETRY, Quota, export_ref
from mcagent.controller.member.membership import concerns_membership, exporting_leader
from mcagent.controller.settings import MemberSettings
from mcagent.model.api.base import ApiObject, condition_of
from mcagent.model.api.kubernetes import ApiNamespace, ApiPod
from mcagent.model.api.multicluster import LabelIdentityExport, ResourceExport, ResourceExportSpec
from mcagent.model.api.patches import metadata_patch, patch
from mcagent.model.errors import InputError
from mcagent.model.event import Event
from mcagent.model.objects import Kind
from mcagent.model.parsing import labels
from mcagent.model.parsing.field import Field


class LabelExports:
    """Exports the label identities of this cluster's Pods."""

    name = "label-export"
    needs_leader = True
    writes = Access(leader={Kind.RESOURCE_EXPORT})

    def __init__(self, settings: MemberSettings) -> None:
        self._on = settings.stretched_network_policy
        pods = {Kind.POD, Kind.NAMESPACE} if self._on else set()
        self.reads = Access(local={Kind.CLUSTER_SET, *pods}, leader={Kind.RESOURCE_EXPORT, Kind.RESOURCE_IMPORT})
        self.indexes = (BY_CLUSTER, OWN_BY_KIND, *((PODS_BY_LABELS,) if self._on else ()))

    def keys(self, change: ObjectChange, view: View) -> Iterable[str]:
        """Return the old and new identity of a Pod, or all of a Namespace whose labels changed."""
        match change.object:
            case ApiPod(namespace=namespace):
                before, after = _part(change.old), _part(change.new)
                space = _namespace(view, namespace)
                return [] if before == after else _identities([space], filter(_is_part, (before, after)))
            case ApiNamespace(name=name):
                spaces = dict.fromkeys(_namespace_part(o) for o in change.of(ApiNamespace) if o is not None)
                if change.old is not None and change.new is not None and len(spaces) < 2:
                    return []
                parts = [_part(pod) for pod in view.list(ApiPod, namespace=name)]
                return _identities(spaces, dict.fromkeys(filter(_is_part, parts)))
            case ResourceExport():
                leader, exports = view.leader, (o for o in change.of(ResourceExport) if o is not None)
                return dict.fromkeys(_key(o) for o in exports if leader is not None and _is_own(o, leader))
            case _:
                return self.all_keys(view) if concerns_membership(change) else []

    def all_keys(self, view: View) -> Iterable[str]:
        """Return the identities of all Pods, and all that are exported."""
        leader, keys = view.leader, dict[str, None]()
        if leader is not None:
            exports = view.indexed(BY_CLUSTER, leader.cluster_id)
            keys |= dict.fromkeys(_key(export) for export in exports if _is_own(export, leader))
        if self._on:
            spaces = {namespace.name: _namespace_part(namespace) for namespace in view.list(ApiNamespace)}
            pods = ((spaces.get(pod.namespace), _part(pod)) for pod in view.list(ApiPod))
            keys |= {labels.identity(space, part): None for space, part in pods if space and part is not None}
        return keys

    def desired(self, key: str, view: View, now: float) -> DesiredObjects:  # noqa: ARG002
        """Return the export while a Pod has these labels, else its deletion."""
        leader = exporting_leader(view)
        if leader is None:
            return DesiredObjects()
        if key.startswith("#"):
            return DesiredObjects(steps=[export_ref(leader, key[1:])])
        ref = export_ref(leader, names.label_export(leader.cluster_id, labels.label_hash(key)))
        present = view.get(ref, ResourceExport)
        namespace = _of_pods(key, view) if self._on else None
        if namespace is None:
            return DesiredObjects(steps=[ref] if present is not None else [])
        try:
            labels.read_labels(Field("labels", key))
        except InputError as error:
            steps = [ref] if present is not None else []
            return DesiredObjects(steps=steps, events=[_not_exported(namespace, key, error.reason)])
        if present is not None and present.is_deleting:
            return DesiredObjects()  # created again once it is gone
        place = QUOTA.place(view, leader, ref.name, namespace)
        if place.refusal:
            steps = [ref] if present is not None else []
            return DesiredObjects(steps=steps, events=[_not_exported(namespace, key, place.refusal)], again=RETRY)
        replaced = [] if place.replaced is None else [export_ref(leader, place.replaced.name)]
        why = view.failure(ref)
        failure = condition_of(present.status.conditions if present is not None else (), "Failure")
        if not why and failure.is_false:
            why = failure.message
        events = [_not_exported(namespace, key, why)] if why else []
        return DesiredObjects(steps=[*replaced, _export(ref, leader, key)], events=events)


def _export(ref: Ref, leader: Leader, label: str) -> Wanted:
    """Return the ResourceExport as Antrea's members write it: without name, namespace and finalizer."""
    marks = {
        names.LABEL_SOURCE_KIND: str(ExportKind.LABEL_IDENTITY),
        names.LABEL_SOURCE_CLUSTER_ID: leader.cluster_id,
    }
    spec = patch(
        ResourceExportSpec,
        cluster_id=leader.cluster_id,
        kind=ExportKind.LABEL_IDENTITY,
        label_identity=patch(LabelIdentityExport, normalized_label=label),
    )
    return Wanted(ref=ref, body=patch(ResourceExport, metadata=metadata_patch(labels=marks), spec=spec))


def _not_exported(namespace: str, label: str, why: str) -> Event:
    shown = label if len(label) <= _SHOWN else f"{label[:_SHOWN]}..."
    message = f"other clusters do not know Pods with these labels, {shown}: {why}"
    return Event(subject=f"{Kind.NAMESPACE} {namespace}", reason="LabelIdentityNotExported", message=message)


_SHOWN = 200  # characters of an identity in a message


def _of_pods(label: str, view: View) -> str | None:
    """Return the Namespace of the Pods with an identity; None: there are none."""
    space, _, part = label.removeprefix("ns:").partition("&pod:")
    name = _namespace_name(label)
    if not name or space != _namespace(view, name):
        return None
    return name if view.count(PODS_BY_LABELS, f"{name}/{part}") else None


def _namespace_name(label: str) -> str:
    """Return the name of the Namespace in a label identity; "" if it has none."""
    space = label.removeprefix("ns:").partition("&pod:")[0]
    prefix = f"{labels.NAMESPACE_NAME}="
    return next((item.removeprefix(prefix) for item in space.split(",") if item.startswith(prefix)), "")


def _namespace_of_export(export: ResourceExport) -> str:
    return _namespace_name(export.spec.label_identity.normalized_label)


QUOTA = Quota(kind=ExportKind.LABEL_IDENTITY, what="label identities", namespace_of=_namespace_of_export)


def _namespace(view: View, name: str) -> str:
    """Return the labels of a Namespace as text; "" if it does not exist."""
    namespace = view.get(Ref(kind=Kind.NAMESPACE, name=name), ApiNamespace)
    return "" if namespace is None else _namespace_part(namespace)


def _namespace_part(namespace: ApiNamespace) -> str:
    return labels.namespace_part(namespace.name, {**namespace.labels, labels.NAMESPACE_NAME: namespace.name})


def _part(pod: ApiObject | None) -> str | None:
    """Return a Pod's labels as text; None if it has no address of its own, or does not exist."""
    if not isinstance(pod, ApiPod) or pod.spec.host_network or pod.status.is_finished:
        return None
    if not pod.spec.node_name or not (pod.status.pod_ip or pod.status.pod_ips):
        return None
    return labels.joined(pod.labels)


def _is_part(part: str | None) -> bool:
    return part is not None


def _identities(spaces: Iterable[str], parts: Iterable[str | None]) -> list[str]:
    pairs = product(spaces, parts)
    return [labels.identity(space, part) for space, part in pairs if part is not None]


def _is_own(export: ResourceExport, leader: Leader) -> bool:
    return export.spec.kind == ExportKind.LABEL_IDENTITY and export.spec.cluster_id == leader.cluster_id


def _key(export: ResourceExport) -> str:
    """Return the identity of an export, or "#" and its name if that does not follow from the identity."""
    label, cluster = export.spec.label_identity.normalized_label, export.spec.cluster_id
    good = export.name == names.label_export(cluster, labels.label_hash(label)) and label.startswith("ns:")
    return label if good else f"#{export.name}"


def _by_labels(pod: ApiPod) -> Iterable[str]:
    part = _part(pod)
    return [] if part is None else [f"{pod.namespace}/{part}"]


# Pods with an address of their own, under "namespace/labels".
PODS_BY_LABELS = Index("pods-by-labels", ApiPod, Side.LOCAL, _by_labels)
