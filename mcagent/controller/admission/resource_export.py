"""Admission of ResourceExports: a member writes only its own, within its limits. Pure.

Names, labels and payloads are the admission policies' rules; the leader's reconcilers check them again when they
read. Only LabelIdentities, whose name is a SHA-1 hash (CEL has none), are checked here.
"""

from __future__ import annotations

from collections.abc import Mapping

from mcagent.controller.admission.accounts import Accounts, is_administrator, is_kubernetes
from mcagent.controller.admission.cidr_claims import refuse_claims
from mcagent.controller.admission.decision import (
    ALLOWED,
    HOUSEKEEPING,
    AdmissionDecision,
    Lookup,
    Operation,
    ReviewRequest,
    changed_parts,
    denied,
    no_account,
)
from mcagent.controller.admission.identity import bound_cluster
from mcagent.controller.admission.quota import refuse_bounds, refuse_size
from mcagent.controller.contract import names
from mcagent.controller.contract.antrea_before_2_7 import EXPORT_FINALIZERS
from mcagent.controller.contract.names import ExportKind
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


def review_resource_export(request: ReviewRequest, lookup: Lookup, accounts: Accounts) -> AdmissionDecision:
    """Decide on a ResourceExport (contract section 1.6).

    A member's ServiceAccount (of the object's namespace, with the cluster ID annotation) writes its own. Users
    that are not ServiceAccounts, and trusted ServiceAccounts, may do what their roles allow; others nothing.
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
        return ALLOWED  # removes finalizers, and deletes what members left behind
    if caller.namespace != request.namespace:
        return denied(f"{caller} is not in namespace {request.namespace}, where the members' accounts are{_TRUST}")
    account = lookup.service_account(caller.namespace, caller.name)
    old, new = request.of(ResourceExport)
    if account is None:
        is_gone = request.operation is Operation.DELETE and old.is_deleting
        return ALLOWED if is_gone else denied(f"{caller} is not found", code=412)
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
        or _refuse_release(request, old, new)
        or _refuse_owner(new, cluster)
        or _refuse_label(new)
        or refuse_bounds(request, new, cluster, lookup)
        or refuse_claims(request, old, new, cluster, lookup)
        or ALLOWED
    )


def _refuse_release(request: ReviewRequest, old: ResourceExport, new: ResourceExport) -> AdmissionDecision | None:
    """Return the refusal of a member that removes the finalizer of an export."""
    if request.operation is Operation.UPDATE and _is_held(old) and not _is_held(new):
        return denied("only the leader removes the finalizer, when nothing is left")
    return None


def _is_held(export: ResourceExport) -> bool:
    return not EXPORT_FINALIZERS.isdisjoint(export.metadata.finalizers)


def _refuse_owner(new: ResourceExport, cluster: str) -> AdmissionDecision | None:
    """Return the refusal of an export of another cluster, or of a kind that members do not export."""
    if new.spec.kind not in _MEMBER_KINDS:
        return denied(f'a member is not authorized to export the kind "{printable(new.spec.kind)}"')
    if new.spec.cluster_id != cluster:
        return denied(f"spec.clusterID must be {cluster}, the caller's")
    return None


def _refuse_label(new: ResourceExport) -> AdmissionDecision | None:
    """Return the refusal of an invalid LabelIdentity."""
    if new.spec.kind != ExportKind.LABEL_IDENTITY:
        return None
    try:
        new.check("spec.labelIdentity")
        label = new.spec.label_identity.normalized_label
        read_labels(Field("ResourceExport", label, "spec.labelIdentity.normalizedLabel"))
    except InputError as error:
        return denied(f"{error.path} {error.reason}")
    if new.name != derived_name(new):
        return denied(f"metadata.name must be {derived_name(new)}: it is {printable(new.name)}")
    return None


def complete_resource_export(request: ReviewRequest) -> AdmissionDecision:
    """Complete an export of a policy, which a user writes: labels as the spec says, and the finalizer.

    Controllers write the other kinds completely (contract section 1.6, the mutating webhook).
    """
    _, new = request.of(ResourceExport)
    if request.operation is Operation.DELETE or new.spec.kind not in POLICIES:
        return ALLOWED
    labels = {
        **new.labels,
        names.LABEL_SOURCE_NAME: new.spec.name,
        names.LABEL_SOURCE_NAMESPACE: "",
        names.LABEL_SOURCE_KIND: new.spec.kind,
    }
    patch: list[Mapping[str, object]] = []
    if labels != new.labels:
        patch.append({"op": "add", "path": "/metadata/labels", "value": labels})
    if not _is_held(new) and not new.is_deleting:
        finalizers = [*new.metadata.finalizers, names.EXPORT_FINALIZER]
        patch.append({"op": "add", "path": "/metadata/finalizers", "value": finalizers})
    return AdmissionDecision(allowed=True, patch=tuple(patch))
