"""The reconcilers of replicated policies: ResourceExports of Antrea's and of Kubernetes' to ResourceImports.

One for each form. A key is "area/name" of the policy. Administrators of the leader write these exports, members
cannot (admission). It owns the ResourceImport, and the exports' status and finalizers. Of several exports of
one name the oldest counts; the others say so. What a policy means is the matter of each member's API server.
Members that do not have it report why on their announcements: that becomes an Event of the ResourceImport, with
the cluster's name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mcagent.controller.contract import names
from mcagent.controller.contract.policies import read_carried
from mcagent.controller.contract.raw import (
    age,
    annotation,
    is_deleting,
    name_of,
    namespace_of,
    only,
    text_at,
    value_at,
)
from mcagent.controller.leader.announces import announces
from mcagent.controller.leader.export_status import failed, reason_of, released, succeeded
from mcagent.controller.leader.exports import subject
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
from mcagent.kube.source import RawObject
from mcagent.model.errors import InputError
from mcagent.model.event import Event
from mcagent.model.field import Field, printable
from mcagent.model.objects import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How exports and imports carry policies of one form; `check` raises InputError for one that is none."""

    kind: str  # `spec.kind` of both
    reconciler: str
    exported: str  # the field of an export's spec
    imported: str  # the field of an import's
    import_name: Callable[[str], str]
    report_name: Callable[[str], str]  # how members call it in reports
    reason: str  # of Events
    check: Callable[[Field], None]


def _check_antrea(policy: Field) -> None:
    policy.get("tier").name("")


def _check_kubernetes(raw: Field) -> None:
    read_carried(raw.get("data"))


ANTREA = Form(
    kind=names.POLICY,
    reconciler="policy-copy",
    exported="clusterNetworkPolicy",
    imported="clusternetworkpolicy",
    import_name=names.policy_import,
    report_name=str,
    reason="ACNPImportFailed",
    check=_check_antrea,
)
KUBERNETES = Form(
    kind=names.KUBERNETES_POLICY,
    reconciler="kubernetes-policy-copy",
    exported="raw",
    imported="raw",
    import_name=names.kubernetes_policy_import,
    report_name=names.kubernetes_policy_import,
    reason="PolicyImportFailed",
    check=_check_kubernetes,
)


class PolicyCopies:
    """Passes policies of a form on to all members."""

    needs_leader = False
    reads = Access(local={Kind.RESOURCE_EXPORT, Kind.RESOURCE_IMPORT, Kind.MEMBER_CLUSTER_ANNOUNCE})
    writes = Access(local={Kind.RESOURCE_EXPORT, Kind.RESOURCE_IMPORT})

    def __init__(self, settings: LeaderSettings, form: Form) -> None:
        self._settings, self._form, self.name = settings, form, form.reconciler
        self._policies = Index(
            name=f"exports-{form.reconciler}", kind=Kind.RESOURCE_EXPORT, side=Side.LOCAL, values=self._by_name
        )  # exports of policies, under "area/name" of the policy
        self.indexes = (self._policies,)

    def keys(self, change: ObjectChange, view: View) -> Iterable[str]:
        """Return the policies that a change is about, or about which a member reports something else."""
        if change.kind is Kind.MEMBER_CLUSTER_ANNOUNCE:
            before, after = _problems(change.old), _problems(change.new)
            area = namespace_of(change.new or change.old)
            touched = {name for name in {**before, **after} if before.get(name) != after.get(name)}
            if not touched or not self._settings.covers(area):  # every heartbeat comes by here
                return []
            known = {key.partition("/")[2]: key for key in self.all_keys(view) if key.startswith(f"{area}/")}
            return [key for name, key in known.items() if self._form.report_name(name) in touched]
        found = [o for o in (change.old, change.new) if o is not None and self._is_ours(o)]
        return dict.fromkeys(_key(o) for o in found if self._settings.covers(namespace_of(o)))

    def all_keys(self, view: View) -> Iterable[str]:
        """Return all policies that are exported or imported."""
        area = self._settings.namespace or None
        kinds = (Kind.RESOURCE_EXPORT, Kind.RESOURCE_IMPORT)
        return dict.fromkeys(
            _key(o) for kind in kinds for o in view.list(kind, namespace=area) if self._is_ours(o)
        )

    def desired(self, key: str, view: View, now: float) -> DesiredObjects:
        """Return the ResourceImport, and what is written about the exports."""
        area, name = key.split("/", 1)
        target = Ref(kind=Kind.RESOURCE_IMPORT, namespace=area, name=self._form.import_name(name))
        steps: list[Wanted | Ref] = []
        there = view.get(target)
        copy: Wanted | None = None
        first = ""
        for raw in sorted(view.indexed(self._policies, key), key=age):
            if is_deleting(raw):
                steps += filter(None, (released(raw),))
                continue
            if copy is not None:
                steps.append(failed(raw, f"ResourceExport {first} defines the policy {printable(name)}", now))
                continue
            try:
                copy, first = self._copy(raw, target, name, there), name_of(raw)
                steps.append(succeeded(raw, now))
            except InputError as error:
                steps.append(failed(raw, reason_of(error), now))
        if copy is not None:
            return DesiredObjects(steps=[copy, *steps], events=self._events(view, target, name))
        return DesiredObjects(steps=[*([target] if there is not None and self._is_ours(there) else []), *steps])

    def _copy(self, raw: RawObject, target: Ref, name: str, there: RawObject | None) -> Wanted:
        """Return the ResourceImport. Raises InputError."""
        form, spec = self._form, subject(raw).get("spec")
        if not names.is_subdomain(names.imported(name)):
            raise spec.get("name").error(f'must be a DNS-1123 subdomain: "{printable(name)}"', "InvalidName")
        policy = spec.get(form.exported)
        if not isinstance(policy.value, dict) or not policy.value:
            raise policy.error(f"is missing: an export of kind {form.kind} has it", "Missing")
        form.check(policy)
        content = only(policy.value, value_at(there, "spec", form.imported))
        body = {"kind": form.kind, "name": name, "namespace": "", form.imported: content}
        return Wanted(ref=target, body={"spec": body})

    def _events(self, view: View, target: Ref, name: str) -> list[Event]:
        """Return what members report of a policy that they do not have."""
        found = []
        for raw in view.list(Kind.MEMBER_CLUSTER_ANNOUNCE, namespace=target.namespace):
            if announces(raw) and (why := _problems(raw).get(self._form.report_name(name))):
                cluster = printable(text_at(raw, "clusterID"))
                message = f"cluster {cluster} does not have the policy: {printable(why, 256)}"
                found.append(Event(subject=str(target), reason=self._form.reason, message=message))
        return found

    def _is_ours(self, raw: RawObject) -> bool:
        return text_at(raw, "spec", "kind") == self._form.kind

    def _by_name(self, obj: RawObject) -> Iterable[str]:
        return [_key(obj)] if self._is_ours(obj) else []


def _problems(raw: RawObject | None) -> dict[str, str]:
    """Return what a member reports of policies, by name. Whatever it wrote, nothing is raised."""
    text = annotation(raw, names.POLICY_PROBLEMS_ANNOTATION) or ""
    try:
        found = json.loads(text) if text and len(text) <= _MAX_REPORT else {}
    except (ValueError, RecursionError):
        return {}
    pairs = found.items() if isinstance(found, dict) else ()
    return {name: why for name, why in pairs if isinstance(why, str) and names.is_subdomain(name)}


_MAX_REPORT = 32 * 1024  # characters


def _key(raw: RawObject) -> str:
    return f"{namespace_of(raw)}/{text_at(raw, 'spec', 'name')}"
