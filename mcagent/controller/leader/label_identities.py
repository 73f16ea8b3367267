"""The reconciler of label identities: ResourceExports of that kind to one ResourceImport each, with a number.

A key is "area/hash" of the labels. It owns the ResourceImport named by the hash, and the exports' status. The
hash yields a sequence of numbers, and the labels get the first free one. So the number is the same after a
restart, under another leader, and when labels return, and a number that became free is not used again soon. If
two labels have one number (assigned at the same moment, or by two leaders), the younger ResourceImport is
deleted and created with another number; members import only the older one (`member.policies.label_identities`).
Labels without exports keep their number for GRACE, unless the Common Area has no ClusterSet any more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

from mcagent.controller.contract import names
from mcagent.controller.contract.conditions import time_of, time_text
from mcagent.controller.contract.names import ExportKind
from mcagent.controller.leader.exports.bounds import (
    ACCOUNTS_BY_CLUSTER,
    ACCOUNTS_BY_NAMESPACE,
    at_the_limit,
    bounds_of,
    changed_accounts,
    cluster_id_of,
    defaults_of,
    is_over,
    named_for,
    over_quota,
    refuse_namespace,
)
from mcagent.controller.leader.exports.header import (
    BY_KIND,
    BY_LABEL,
    by_kind,
    changed_members,
    is_member,
    label_of,
    not_a_member,
    read_header,
)
from mcagent.controller.leader.exports.status import failed, reason_of, released, succeeded
from mcagent.controller.machinery.reconciler import (
    Access,
    DesiredObjects,
    Index,
    ObjectChange,
    Ref,
    Side,
    View,
    Wanted,
)
from mcagent.controller.settings import LeaderSettings
from mcagent.model.api.kubernetes import ServiceAccount
from mcagent.model.api.multicluster import (
    ClusterSet,
    LabelIdentitySpec,
    MemberClusterAnnounce,
    ResourceExport,
    ResourceImport,
    ResourceImportSpec,
)
from mcagent.model.api.patches import annotated, metadata_patch, patch
from mcagent.model.errors import InputError
from mcagent.model.objects import Kind
from mcagent.model.parsing import labels
from mcagent.model.parsing.field import Field

GRACE = 300.0  # seconds for which labels without exports keep their number
OFF = "enableStretchedNetworkPolicy is false in this leader's configuration"
_TRIES = 64  # numbers that follow from a hash; after them the next free one is used
_WHAT = "label identities"


class LabelIdentities:
    """Numbers the label identities of a ClusterSet."""

    name = "label-identities"
    needs_leader = False
    reads = Access(
        local={
            Kind.RESOURCE_EXPORT,
            Kind.RESOURCE_IMPORT,
            Kind.MEMBER_CLUSTER_ANNOUNCE,
            Kind.SERVICE_ACCOUNT,
            Kind.CLUSTER_SET,
        }
    )
    writes = Access(local={Kind.RESOURCE_EXPORT, Kind.RESOURCE_IMPORT})

    def __init__(self, settings: LeaderSettings) -> None:
        self._settings, self._defaults = settings, defaults_of(settings.limits)
        self.indexes = (BY_KIND, BY_LABEL, IMPORTS_BY_NUMBER, ACCOUNTS_BY_CLUSTER, ACCOUNTS_BY_NAMESPACE)

    def keys(self, change: ObjectChange, view: View) -> Iterable[str]:
        """Return the labels that a change touches: its own, or all of a member with new membership or bounds."""
        area = change.object.namespace
        match change.object:
            case ResourceImport():
                imports = [o for o in change.of(ResourceImport) if o is not None and _is_ours(o)]
                numbers = dict.fromkeys(number for o in imports for number in _by_number(o))
                rivals = (r for number in numbers for r in view.indexed(IMPORTS_BY_NUMBER, number))
                return dict.fromkeys(o.key for o in (*imports, *rivals))
            case ClusterSet():
                numbered = view.list(ResourceImport, namespace=area) if change.came_or_went else ()
                return [resource_import.key for resource_import in numbered if _is_ours(resource_import)]
            case MemberClusterAnnounce():
                clusters = changed_members(change)
            case ServiceAccount():
                clusters = {*map(cluster_id_of, changed_accounts(change))} - {""}
            case _:
                exports = [o for o in change.of(ResourceExport) if o is not None and _is_ours(o)]
                at_limit = at_the_limit(
                    view,
                    change,
                    ExportKind.LABEL_IDENTITY,
                    lambda cluster: bounds_of(view, area, cluster, self._defaults).max_exports,
                )
                return dict.fromkeys(map(_key, (*exports, *at_limit)))
        return dict.fromkeys(_key(o) for cluster in clusters for o in _of_cluster(view, area, cluster))

    def all_keys(self, view: View) -> Iterable[str]:
        """Return all labels that are exported or have a number."""
        keys = dict.fromkeys(_key(export) for export in view.list(ResourceExport) if _is_ours(export))
        imports = view.list(ResourceImport)
        return keys | dict.fromkeys(o.key for o in imports if _is_ours(o))

    def desired(self, key: str, view: View, now: float) -> DesiredObjects:
        """Return the ResourceImport, and the status of the exports."""
        area, name = key.split("/", 1)
        target = Ref(kind=Kind.RESOURCE_IMPORT, namespace=area, name=name)
        present = view.get(target, ResourceImport)
        present = present if present is not None and _is_ours(present) else None
        steps: list[Wanted | Ref] = []
        merged: list[ResourceExport] = []
        for export in sorted(view.indexed(BY_LABEL, key), key=lambda export: export.age):
            if export.is_deleting:
                steps += released(export)
                continue
            label = label_of(merged[0]) if merged else _label_in(present, name)
            why = self._refusal(view, area, export, label)
            steps.append(failed(export, why, now) if why else succeeded(export, now))
            merged += [] if why else [export]
        if present is not None and (present.is_deleting or self._is_younger(view, present)):
            return DesiredObjects(steps=[target, *steps])  # created again once it is gone, with another number
        if merged:
            return DesiredObjects(steps=[_import(view, target, present, merged), *steps])
        if present is None:
            return DesiredObjects(steps=steps)
        since = time_of(present.annotation(names.UNUSED_SINCE_ANNOTATION))
        remaining = GRACE if since is None else min(GRACE, since + GRACE - now)
        has_cluster_set = any(not o.is_deleting for o in view.list(ClusterSet, namespace=area))
        if remaining <= 0 or not has_cluster_set or not self._settings.stretched_network_policy:
            return DesiredObjects(steps=[target, *steps])
        unused = {names.UNUSED_SINCE_ANNOTATION: time_text(now), names.EXPORTERS_ANNOTATION: ""}
        if since is None:
            steps.insert(0, Wanted(ref=target, body=annotated(ResourceImport, unused), create=False))
        return DesiredObjects(steps=steps, again=remaining)

    def _refusal(self, view: View, area: str, export: ResourceExport, label: str) -> str:
        """Return why an export is refused; "" if it is not. `label`: the labels of its hash, "": none yet."""
        if not self._settings.stretched_network_policy:
            return OFF
        try:
            cluster = read_header(export).cluster_id
            path = "spec.labelIdentity.normalizedLabel"
            read = labels.read_labels(Field(export.subject, label_of(export), path))
        except InputError as error:
            return reason_of(error)
        if not is_member(view, area, cluster):
            return not_a_member(cluster)
        namespace = read.namespace[labels.NAMESPACE_NAME]
        bounds = bounds_of(view, area, cluster, self._defaults)
        if why := refuse_namespace(cluster, namespace, bounds, named_for(view, area, namespace), _WHAT):
            return why
        if label and label != label_of(export):
            return "spec.labelIdentity.normalizedLabel has the same hash as older labels"
        if is_over(view, export, bounds.max_exports):
            return over_quota(cluster, bounds.max_exports, _WHAT)
        return ""

    @staticmethod
    def _is_younger(view: View, resource_import: ResourceImport) -> bool:
        """Tell whether a ResourceImport has no number, or the number of an older one."""
        places = list(_by_number(resource_import))
        return not places or any(o.age < resource_import.age for o in view.indexed(IMPORTS_BY_NUMBER, places[0]))


def number_of(resource_import: ResourceImport | None) -> int | None:
    """Return the number in a ResourceImport of labels; None if it is outside the range of numbers."""
    number = resource_import.spec.label_identity.id if resource_import is not None else None
    return number if number is not None and labels.FIRST <= number <= labels.LAST else None


def _label_in(resource_import: ResourceImport | None, name: str) -> str:
    label = resource_import.spec.label_identity.label if resource_import is not None else ""
    return label if labels.label_hash(label) == name else ""


def numbers(name: str) -> Iterator[int]:
    """Yield all numbers in the order in which labels with this hash try them."""
    number, count = labels.FIRST, labels.LAST - labels.FIRST + 1
    for turn in range(_TRIES):
        digest = hashlib.sha256(f"{name}/{turn}".encode()).digest()
        number = labels.FIRST + int.from_bytes(digest[:8], "big") % count
        yield number
    for step in range(1, count):
        yield labels.FIRST + (number - labels.FIRST + step) % count


def _import(view: View, target: Ref, present: ResourceImport | None, merged: list[ResourceExport]) -> Wanted:
    area = target.namespace
    number = number_of(present)
    if number is None:
        number = next(n for n in numbers(target.name) if not view.count(IMPORTS_BY_NUMBER, f"{area}/{n}"))
    notes = {
        names.EXPORTERS_ANNOTATION: ",".join(sorted(export.spec.cluster_id for export in merged)),
        names.UNUSED_SINCE_ANNOTATION: None,
    }
    spec = patch(
        ResourceImportSpec,
        kind=ExportKind.LABEL_IDENTITY,
        name=target.name,
        namespace=area,
        label_identity=patch(LabelIdentitySpec, label=label_of(merged[0]), id=number),
    )
    metadata = metadata_patch(annotations=notes)
    return Wanted(ref=target, body=patch(ResourceImport, metadata=metadata, spec=spec))


def _is_ours(obj: ResourceExport | ResourceImport) -> bool:
    return obj.spec.kind == ExportKind.LABEL_IDENTITY


def _key(export: ResourceExport) -> str:
    return f"{export.namespace}/{labels.label_hash(label_of(export))}"


def _of_cluster(view: View, area: str, cluster: str) -> Iterable[ResourceExport]:
    return view.indexed(BY_KIND, by_kind(area, cluster, ExportKind.LABEL_IDENTITY))


def _by_number(obj: ResourceImport) -> Iterable[str]:
    number = number_of(obj) if _is_ours(obj) else None
    return [] if number is None else [f"{obj.namespace}/{number}"]


# ResourceImports of labels, under "area/number".
IMPORTS_BY_NUMBER = Index("imports-by-number", ResourceImport, Side.LOCAL, _by_number)
