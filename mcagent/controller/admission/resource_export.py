"""Admission of ResourceExports: a member writes its own, under the names that follow from them. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from mcagent.controller.admission.accounts import Accounts, is_administrator, is_kubernetes
from mcagent.controller.admission.cidr_claims import refuse_claims
from mcagent.controller.admission.decision import (
    ALLOWED,
    HOUSEKEEPING,
    Decision,
    Lookup,
    Operation,
    Request,
    changed_parts,
    denied,
    no_account,
)
from mcagent.controller.admission.identity import bound_cluster
from mcagent.controller.admission.quota import refuse_bounds, refuse_size
from mcagent.controller.contract import names
from mcagent.controller.contract.antrea_before_2_7 import EXPORT_FINALIZERS, may_lack_labels
from mcagent.controller.contract.names import SERVICE_KINDS, ExportKind
from mcagent.controller.leader.exports.header import derived_name
from mcagent.model.api.multicluster import ResourceExport
from mcagent.model.errors import InputError
from mcagent.model.parsing.field import Field, printable
from mcagent.model.parsing.labels import read_labels

POLICIES = frozenset({names.POLICY, names.KUBERNETES_POLICY})  # that administrators write
_MEMBER_KINDS = frozenset(ExportKind)
_TRUST = (
    "; list one that acts for administrators in admission.trustedServiceAccounts of the leader's configuration"
)


def review_resource_export(request: Request, lookup: Lookup, accounts: Accounts) -> Decision:
    """Decide on a ResourceExport (contract section 1.6).

    A member's ServiceAccount (of the object's namespace, with the cluster ID annotation) writes its own. Users
    that are no ServiceAccounts, and trusted ones, may do what their roles allow; other ServiceAccounts nothing.
    """
    caller = request.caller
    if is_kubernetes(request.user) and request.operation is Operation.UPDATE:
        foreign = changed_parts(request.old, request.object) - HOUSEKEEPING
        return denied(f"{request.user} may change only finalizers and owners") if foreign else ALLOWED
    if is_administrator(request.user, accounts):
        return ALLOWED
    if is_kubernetes(request.user) and request.operation is Operation.DELETE:
        return ALLOWED
    if caller is None:
        return no_account(request)
    if caller in accounts.controllers and request.operation is not Operation.CREATE:
        return ALLOWED  # takes finalizers off, and deletes what members left behind
    if caller.namespace != request.namespace:
        return denied(f"{caller} is not in namespace {request.namespace}, where the members' accounts are{_TRUST}")
    account = lookup.service_account(caller.namespace, caller.name)
    old, new = request.of(ResourceExport)
    if account is None:
        gone = request.operation is Operation.DELETE and old.is_deleting
        return ALLOWED if gone else denied(f"{caller} is not found", code=412)
    cluster = bound_cluster(account)
    if cluster is None:
        return denied(f"{caller} stands for no cluster (annotation {names.CLUSTER_ID_ANNOTATION}){_TRUST}")
    if not cluster:
        return denied(f"the annotation {names.CLUSTER_ID_ANNOTATION} of {caller} is empty")
    if request.operation is not Operation.CREATE:
        if old.spec.cluster_id != cluster:
            owner = printable(old.spec.cluster_id)
            return denied(f"{caller} may not touch exports of another member, {owner}")
        if request.operation is Operation.DELETE:
            return ALLOWED
    return (
        refuse_size(request, new, lookup)
        or _finalizer(request, old, new)
        or _content(request, old, new, cluster)
        or refuse_bounds(request, new, cluster, lookup)
        or refuse_claims(request, old, new, cluster, lookup)
        or ALLOWED
    )


def _finalizer(request: Request, old: ResourceExport, new: ResourceExport) -> Decision | None:
    if _is_held(new):
        return None
    if request.operation is Operation.UPDATE:
        return denied("only the leader removes the finalizer, when nothing is left") if _is_held(old) else None
    if new.spec.kind in _MEMBER_KINDS - {ExportKind.LABEL_IDENTITY}:
        return denied(f"an export must have a finalizer: {' or '.join(sorted(EXPORT_FINALIZERS))}")
    return None


def _is_held(export: ResourceExport) -> bool:
    return not EXPORT_FINALIZERS.isdisjoint(export.metadata.finalizers)


def _tuple(export: ResourceExport) -> tuple[str, str, str]:
    return export.spec.namespace, export.spec.name, export.spec.kind


def _content(request: Request, old: ResourceExport, new: ResourceExport, cluster: str) -> Decision | None:
    spec = new.spec
    changing = request.operation is Operation.UPDATE and bool({old.spec.kind, spec.kind} & SERVICE_KINDS)
    if changing and _tuple(old) != _tuple(new):
        return denied("spec.namespace, spec.name and spec.kind of an export are immutable")
    if spec.kind not in _MEMBER_KINDS:
        return denied(f'a member is not authorized to export the kind "{printable(spec.kind)}"')
    if spec.cluster_id != cluster:
        return denied(f"spec.clusterID must be {cluster}, the caller's")
    if spec.kind in SERVICE_KINDS:
        service = spec.kind == ExportKind.SERVICE
        if (spec.service if service else spec.endpoints) is None:
            payload = "service" if service else "endpoints"
            return denied(f"spec.{payload} is missing: an export of kind {spec.kind} has it")
        for path, value in (("spec.namespace", spec.namespace), ("spec.name", spec.name)):
            if not names.is_label(value):
                return denied(f'{path} must be a valid DNS-1123 label: "{printable(value)}"')
    info = spec.cluster_info
    if spec.kind == ExportKind.CLUSTER_INFO and (info is None or info.cluster_id != cluster):
        return denied(f"spec.clusterInfo.clusterID must be {cluster}, the caller's")
    if spec.kind == ExportKind.LABEL_IDENTITY:
        label = spec.label_identity.normalized_label
        try:
            new.check("spec.labelIdentity")
            read_labels(Field("ResourceExport", label, "spec.labelIdentity.normalizedLabel"))
        except InputError as error:
            return denied(f"{error.path} {error.reason}")
    return _labels(new) or _name(new)


def _labels(new: ResourceExport) -> Decision | None:
    if may_lack_labels(new):
        return None
    spec = new.spec
    labels = {names.LABEL_SOURCE_CLUSTER_ID: spec.cluster_id, names.LABEL_SOURCE_KIND: spec.kind}
    if spec.kind in SERVICE_KINDS:
        labels |= {names.LABEL_SOURCE_NAME: spec.name, names.LABEL_SOURCE_NAMESPACE: spec.namespace}
    for label, value in labels.items():
        actual = new.labels.get(label, "")
        if actual != value:
            return denied(f'label {label} must be {value}, as the spec says: it is "{printable(actual)}"')
    return None


def _name(new: ResourceExport) -> Decision | None:
    derived = derived_name(new)
    if new.name == derived:
        return None
    return denied(f"the export's name must be {derived}: it is {printable(new.name)}")


def complete_resource_export(request: Request) -> Decision:
    """Complete an export of a policy, which a person writes: labels as the spec says, and the finalizer.

    Other kinds come from controllers, which write all of it (contract section 1.6, the mutating webhook).
    """
    _, new = request.of(ResourceExport)
    if request.operation is Operation.DELETE or new.spec.kind not in POLICIES:
        return ALLOWED
    wanted = {
        **new.labels,
        names.LABEL_SOURCE_NAME: new.spec.name,
        names.LABEL_SOURCE_NAMESPACE: "",
        names.LABEL_SOURCE_KIND: new.spec.kind,
    }
    patch: list[Mapping[str, object]] = []
    if wanted != new.labels:
        patch.append({"op": "add", "path": "/metadata/labels", "value": wanted})
    if not _is_held(new) and not new.is_deleting:
        finalizers = [*new.metadata.finalizers, names.EXPORT_FINALIZER]
        patch.append({"op": "add", "path": "/metadata/finalizers", "value": finalizers})
    return Decision(allowed=True, patch=tuple(patch))
