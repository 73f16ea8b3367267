"""The reconcilers of replicated policies: ResourceExports of Antrea's and of Kubernetes' to ResourceImports.

One for each form. A key is "area/name" of the policy. Administrators of the leader write these exports; admission
refuses those of members. It owns the ResourceImport, and the exports' status and finalizers. Of several exports of
one policy the oldest is copied, and the status of the others names it. The API servers of members validate the
policy. A member that does not fully apply it reports the reason in its announcement, and the leader makes that an
Event of the ResourceImport, with the cluster's ID.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mcagent.controller.contract import names
from mcagent.controller.contract.policies import read_carried
from mcagent.controller.contract.problems import SHOWN, read_report
from mcagent.controller.leader.exports.header import announces
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
from mcagent.model.api.base import ApiObject
from mcagent.model.api.multicluster import (
    MemberClusterAnnounce,
    RawPayload,
    ResourceExport,
    ResourceImport,
    ResourceImportSpec,
)
from mcagent.model.api.patches import patch
from mcagent.model.errors import InputError
from mcagent.model.event import Event
from mcagent.model.objects import Kind
from mcagent.model.parsing.field import Field, printable


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The fields of exports and imports for policies of one form."""

    kind: str  # `spec.kind` of both
    reconciler: str
    exported: str  # the field of an export's spec
    import_name: Callable[[str], str]
    report_name: Callable[[str], str]  # the name in members' reports
    reason: str  # of Events
    # The spec of the import; None: the export has no policy. Raises InputError for an invalid one.
    import_spec: Callable[[ResourceExport], ResourceImportSpec | None]


def _antrea(export: ResourceExport) -> ResourceImportSpec | None:
    spec, policy = export.spec, export.spec.cluster_network_policy
    Field(export.subject, policy.get("tier"), "spec.clusterNetworkPolicy.tier").name("")
    if not policy:
        return None
    return patch(ResourceImportSpec, kind=spec.kind, name=spec.name, cluster_network_policy=policy)


def _kubernetes(export: ResourceExport) -> ResourceImportSpec | None:
    spec, data = export.spec, export.spec.raw.data
    if not data:
        return None
    read_carried(Field(export.subject, data, "spec.raw.data"))
    return patch(ResourceImportSpec, kind=spec.kind, name=spec.name, raw=patch(RawPayload, data=data))


ANTREA = Form(
    kind=names.POLICY,
    reconciler="policy-copy",
    exported="clusterNetworkPolicy",
    import_name=names.policy_import,
    report_name=str,
    reason="ACNPImportFailed",
    import_spec=_antrea,
)
KUBERNETES = Form(
    kind=names.KUBERNETES_POLICY,
    reconciler="kubernetes-policy-copy",
    exported="raw",
    import_name=names.kubernetes_policy_import,
    report_name=names.kubernetes_policy_import,
    reason="PolicyImportFailed",
    import_spec=_kubernetes,
)


class PolicyCopies:
    """Copies policies of a form to ResourceImports, for all members."""

    needs_leader = False
    reads = Access(local={Kind.RESOURCE_EXPORT, Kind.RESOURCE_IMPORT, Kind.MEMBER_CLUSTER_ANNOUNCE})
    writes = Access(local={Kind.RESOURCE_EXPORT, Kind.RESOURCE_IMPORT})

    def __init__(self, form: Form) -> None:
        self._form, self.name = form, form.reconciler
        # Exports of policies, under "area/name" of the policy.
        self._policies = Index(f"exports-{form.reconciler}", ResourceExport, Side.LOCAL, self._by_name)
        self.indexes = (self._policies,)

    def keys(self, change: ObjectChange, view: View) -> Iterable[str]:
        """Return the policies of the changed object, or those whose report by a member changed."""
        if change.kind is Kind.MEMBER_CLUSTER_ANNOUNCE:
            before, after = _problems(change.old), _problems(change.new)
            area = change.object.namespace
            touched = {name for name in {**before, **after} if before.get(name) != after.get(name)}
            if not touched:  # each heartbeat calls this
                return []
            keys_by_name = {
                key.partition("/")[2]: key for key in self.all_keys(view) if key.startswith(f"{area}/")
            }
            return [key for name, key in keys_by_name.items() if self._form.report_name(name) in touched]
        objects: list[ResourceExport | ResourceImport | None]
        objects = [*change.of(ResourceExport), *change.of(ResourceImport)]
        return dict.fromkeys(_key(o) for o in objects if o is not None and self._is_ours(o))

    def all_keys(self, view: View) -> Iterable[str]:
        """Return all policies that are exported or imported."""
        objects: list[ResourceExport | ResourceImport]
        objects = [*view.list(ResourceExport), *view.list(ResourceImport)]
        return dict.fromkeys(_key(o) for o in objects if self._is_ours(o))

    def desired(self, key: str, view: View, now: float) -> DesiredObjects:
        """Return the ResourceImport, and the status of the exports."""
        area, name = key.split("/", 1)
        target = Ref(kind=Kind.RESOURCE_IMPORT, namespace=area, name=self._form.import_name(name))
        steps: list[Wanted | Ref] = []
        present = view.get(target, ResourceImport)
        copy: Wanted | None = None
        first = ""
        for export in sorted(view.indexed(self._policies, key), key=lambda export: export.age):
            if export.is_deleting:
                steps += released(export)
                continue
            if copy is not None:
                steps.append(failed(export, f"ResourceExport {first} defines the policy {printable(name)}", now))
                continue
            try:
                copy, first = self._copy(export, target, name), export.name
                steps.append(succeeded(export, now))
            except InputError as error:
                steps.append(failed(export, reason_of(error), now))
        if copy is not None:
            return DesiredObjects(steps=[copy, *steps], events=self._events(view, target, name))
        removed = [target] if present is not None and self._is_ours(present) else []
        return DesiredObjects(steps=[*removed, *steps])

    def _copy(self, export: ResourceExport, target: Ref, name: str) -> Wanted:
        """Return the ResourceImport. Raises InputError."""
        form = self._form
        export.check("spec")
        if not names.is_subdomain(names.imported(name)):
            why = f'must be a DNS-1123 subdomain: "{printable(name)}"'
            raise InputError(export.subject, "spec.name", why, code="InvalidName")
        spec = form.import_spec(export)
        if spec is None:
            why = f"is missing: an export of kind {form.kind} has it"
            raise InputError(export.subject, f"spec.{form.exported}", why, code="Missing")
        return Wanted(ref=target, body=patch(ResourceImport, spec=spec))

    def _events(self, view: View, target: Ref, name: str) -> list[Event]:
        """Return the reports of members that do not fully apply the policy."""
        events = []
        for announce in view.list(MemberClusterAnnounce, namespace=target.namespace):
            if announces(announce) and (why := _problems(announce).get(self._form.report_name(name))):
                cluster = printable(announce.cluster_id)
                message = f"cluster {cluster} does not fully apply the policy: {printable(why, SHOWN)}"
                events.append(Event(subject=str(target), reason=self._form.reason, message=message))
        return events

    def _is_ours(self, obj: ResourceExport | ResourceImport) -> bool:
        return obj.spec.kind == self._form.kind

    def _by_name(self, obj: ResourceExport) -> Iterable[str]:
        return [_key(obj)] if self._is_ours(obj) else []


def _problems(announce: ApiObject | None) -> dict[str, str]:
    return read_report(announce, names.POLICY_PROBLEMS_ANNOTATION)


def _key(obj: ResourceExport | ResourceImport) -> str:
    return f"{obj.namespace}/{obj.spec.name}"
