"""Admission of MemberClusterAnnounces: a member writes only its own. Pure."""

from __future__ import annotations

from mcagent.controller.admission.accounts import Accounts, Caller, is_administrator, is_kubernetes
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
from mcagent.controller.admission.identity import ambiguous_with, bound_cluster, bound_clusters
from mcagent.controller.contract import names
from mcagent.controller.contract.commands import bind_account
from mcagent.model.api.multicluster import MemberClusterAnnounce
from mcagent.model.parsing.field import printable


def review_announce(request: ReviewRequest, lookup: Lookup, accounts: Accounts) -> AdmissionDecision:
    """Decide on a MemberClusterAnnounce (contract section 1.5).

    A member writes its own. Administrators, Kubernetes and the controllers delete announcements and remove their
    finalizers.
    """
    caller = request.caller
    if is_administrator(request.user, accounts) or is_kubernetes(request.user):
        if request.operation is Operation.DELETE or _only_housekeeping(request):
            return ALLOWED
        return denied(f"{caller} is no member, and announces no cluster") if caller else no_account(request)
    if caller is None:
        return no_account(request)
    if caller in accounts.controllers and request.operation is not Operation.CREATE:
        return ALLOWED
    if caller.namespace != request.namespace:
        return denied(f"{caller} is not in namespace {request.namespace}, where the members' accounts are")
    old, new = request.of(MemberClusterAnnounce)
    refusal = _refuse_identity(request, old, new, caller, lookup)
    if refusal is None and request.operation is Operation.CREATE:
        refusal = _refuse_join(request, new, lookup)
    return refusal or ALLOWED


def _only_housekeeping(request: ReviewRequest) -> bool:
    is_update = request.operation is Operation.UPDATE
    return is_update and changed_parts(request.old, request.object) <= HOUSEKEEPING


def _refuse_identity(
    request: ReviewRequest,
    old: MemberClusterAnnounce,
    new: MemberClusterAnnounce,
    caller: Caller,
    lookup: Lookup,
) -> AdmissionDecision | None:
    """Return the refusal of an announcement that is not the caller's own."""
    account = lookup.service_account(caller.namespace, caller.name)
    if account is None:
        is_gone = request.operation is Operation.DELETE and old.is_deleting
        return None if is_gone else denied(f"{caller} is not found", code=412)
    cluster = (new if request.operation is Operation.CREATE else old).cluster_id
    if bound_cluster(account) is None:
        # Accounts made before Antrea 2.7, by its manifests too, are not annotated.
        command = bind_account(caller.namespace, caller.name, cluster)
        return denied(
            f'cluster ID "{printable(cluster)}" is not permitted for {caller}, which stands for no cluster: an '
            f"administrator of the leader annotates it with {names.CLUSTER_ID_ANNOTATION}, if it is that cluster's"
            + (f": {command}" if command else "")
        )
    if not cluster or bound_cluster(account) != cluster:
        shown = printable(cluster)
        return denied(f'cluster ID "{shown}" is not permitted for {caller}: see {names.CLUSTER_ID_ANNOTATION}')
    return None


def _refuse_join(request: ReviewRequest, new: MemberClusterAnnounce, lookup: Lookup) -> AdmissionDecision | None:
    """Return the refusal of a cluster that cannot join the ClusterSet of this namespace."""
    sets = lookup.cluster_sets(request.namespace)
    if not sets:
        return denied(f"there is no ClusterSet in namespace {request.namespace}", code=412)
    cluster_set = sets[0]
    if new.cluster_set_id != cluster_set.name:
        message = f'unknown ClusterSet ID "{printable(new.cluster_set_id)}": it is {cluster_set.name} here'
        return denied(message, code=412)
    if new.leader_cluster_id != cluster_set.leader_id:
        return denied(f"leaderClusterID must be {cluster_set.leader_id}, the ClusterSet's leader", code=412)
    other = ambiguous_with(new.cluster_id, bound_clusters(lookup.service_accounts(request.namespace)))
    if other:
        message = f"cluster ID {new.cluster_id} conflicts with that of member {other}"
        return denied(f"{message}: one is the other and a dash and more")
    return None
