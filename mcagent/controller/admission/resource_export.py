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
from mcagent.controller.contract.raw import is_deleting, name_of, text_at
from mcagent.kube.source import RawObject
from mcagent.model.errors import InputError
from mcagent.model.field import Field, printable
from mcagent.model.labels import label_hash, read_labels

POLICIES = frozenset({names.POLICY, names.KUBERNETES_POLICY})  # that administrators write
_MEMBER_KINDS = frozenset(ExportKind)
_PAYLOADS = {ExportKind.SERVICE: "service", ExportKind.ENDPOINTS: "endpoints"}
_TUPLE = ("namespace", "name", "kind")
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
    if account is None:
        gone = request.operation is Operation.DELETE and is_deleting(request.old)
        return ALLOWED if gone else denied(f"{caller} is not found", code=412)
    cluster = bound_cluster(account)
    if cluster is None:
        return denied(f"{caller} stands for no cluster (annotation {names.CLUSTER_ID_ANNOTATION}){_TRUST}")
    if not cluster:
        return denied(f"the annotation {names.CLUSTER_ID_ANNOTATION} of {caller} is empty")
    if request.operation is not Operation.CREATE:
        owner = text_at(request.old, "spec", "clusterID")
        if owner != cluster:
            return denied(f"{caller} may not touch exports of another member, {printable(owner)}")
        if request.operation is Operation.DELETE:
            return ALLOWED
    return (
        refuse_size(request, lookup)
        or _finalizer(request)
        or _content(request, cluster)
        or refuse_bounds(request, cluster, lookup)
        or refuse_claims(request, cluster, lookup)
        or ALLOWED
    )


def _finalizer(request: Request) -> Decision | None:
    if _held(request.object):
        return None
    if request.operation is Operation.UPDATE:
        return (
            denied("only the leader removes the finalizer, when nothing is left") if _held(request.old) else None
        )
    if text_at(request.object, "spec", "kind") in _MEMBER_KINDS - {ExportKind.LABEL_IDENTITY}:
        return denied(f"an export must have a finalizer: {' or '.join(sorted(EXPORT_FINALIZERS))}")
    return None


def _held(raw: RawObject) -> bool:
    meta = raw.get("metadata")
    held = meta.get("finalizers") if isinstance(meta, Mapping) else None
    return isinstance(held, list) and any(f in EXPORT_FINALIZERS for f in held if isinstance(f, str))


def _content(request: Request, cluster: str) -> Decision | None:
    new = request.object
    kind = text_at(new, "spec", "kind")
    namespace, name = text_at(new, "spec", "namespace"), text_at(new, "spec", "name")
    if request.operation is Operation.UPDATE:
        before = text_at(request.old, "spec", "kind")
        if {before, kind} & SERVICE_KINDS and any(
            text_at(request.old, "spec", field) != text_at(new, "spec", field) for field in _TUPLE
        ):
            return denied("spec.namespace, spec.name and spec.kind of an export are immutable")
    if kind not in _MEMBER_KINDS:
        return denied(f'a member is not authorized to export the kind "{printable(kind)}"')
    if text_at(new, "spec", "clusterID") != cluster:
        return denied(f"spec.clusterID must be {cluster}, the caller's")
    if kind in SERVICE_KINDS:
        spec = new.get("spec")
        payload = _PAYLOADS[ExportKind(kind)]
        if not isinstance(spec, Mapping) or not isinstance(spec.get(payload), Mapping):
            return denied(f"spec.{payload} is missing: an export of kind {kind} has it")
        for path, value in (("spec.namespace", namespace), ("spec.name", name)):
            if not names.is_label(value):
                return denied(f'{path} must be a valid DNS-1123 label: "{printable(value)}"')
    if kind == ExportKind.CLUSTER_INFO and text_at(new, "spec", "clusterInfo", "clusterID") != cluster:
        return denied(f"spec.clusterInfo.clusterID must be {cluster}, the caller's")
    if kind == ExportKind.LABEL_IDENTITY:
        try:
            read_labels(Field("ResourceExport", new).get("spec").get("labelIdentity").get("normalizedLabel"))
        except InputError as error:
            return denied(f"{error.path} {error.reason}")
    return _labels(new, cluster, kind) or _name(new, cluster, kind)


def _labels(new: RawObject, cluster: str, kind: str) -> Decision | None:
    if may_lack_labels(new):
        return None
    wanted = {names.LABEL_SOURCE_CLUSTER_ID: cluster, names.LABEL_SOURCE_KIND: kind}
    if kind in SERVICE_KINDS:
        wanted[names.LABEL_SOURCE_NAME] = text_at(new, "spec", "name")
        wanted[names.LABEL_SOURCE_NAMESPACE] = text_at(new, "spec", "namespace")
    for label, value in wanted.items():
        found = text_at(new, "metadata", "labels", label)
        if found != value:
            return denied(f'label {label} must be {value}, as the spec says: it is "{printable(found)}"')
    return None


def _name(new: RawObject, cluster: str, kind: str) -> Decision | None:
    namespace, name = text_at(new, "spec", "namespace"), text_at(new, "spec", "name")
    if kind == ExportKind.SERVICE:
        derived = names.service_export(cluster, namespace, name)
    elif kind == ExportKind.ENDPOINTS:
        derived = names.endpoints_export(cluster, namespace, name)
    elif kind == ExportKind.CLUSTER_INFO:
        derived = names.cluster_info(cluster)
    else:
        label = text_at(new, "spec", "labelIdentity", "normalizedLabel")
        derived = names.label_export(cluster, label_hash(label))
    found = name_of(new)
    return None if found == derived else denied(f"the export's name must be {derived}: it is {printable(found)}")


def complete_resource_export(request: Request) -> Decision:
    """Complete an export of a policy, which a person writes: labels as the spec says, and the finalizer.

    Other kinds come from controllers, which write all of it (contract section 1.6, the mutating webhook).
    """
    new = request.object
    kind = text_at(new, "spec", "kind")
    if request.operation is Operation.DELETE or kind not in POLICIES:
        return ALLOWED
    meta = new.get("metadata")
    meta = meta if isinstance(meta, Mapping) else {}
    labels, held = meta.get("labels"), meta.get("finalizers")
    wanted = {
        **(labels if isinstance(labels, Mapping) else {}),
        names.LABEL_SOURCE_NAME: text_at(new, "spec", "name"),
        names.LABEL_SOURCE_NAMESPACE: "",
        names.LABEL_SOURCE_KIND: kind,
    }
    patch: list[Mapping[str, object]] = []
    if wanted != labels:
        patch.append({"op": "add", "path": "/metadata/labels", "value": wanted})
    if not _held(new) and not is_deleting(new):
        finalizers = [*(held if isinstance(held, list) else []), names.EXPORT_FINALIZER]
        patch.append({"op": "add", "path": "/metadata/finalizers", "value": finalizers})
    return Decision(allowed=True, patch=tuple(patch))
