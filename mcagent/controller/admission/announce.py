"""Admission of MemberClusterAnnounces: a member announces itself, and nobody else. Pure."""

from __future__ import annotations

from mcagent.controller.admission.accounts import Accounts, Caller, is_administrator, is_kubernetes
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
from mcagent.controller.admission.identity import (
    ambiguous_with,
    bound_cluster,
    bound_clusters,
)
from mcagent.controller.contract import names
from mcagent.model.api.multicluster import MemberClusterAnnounce
from mcagent.model.parsing.field import printable


def review_announce(request: Request, lookup: Lookup, accounts: Accounts) -> Decision:
    """Decide on a MemberClusterAnnounce (contract section 1.5).

    A member writes its own. Administrators, Kubernetes and the controllers delete one, or take its finalizers off.
    """
    caller = request.caller
    if is_administrator(request.user, accounts) or is_kubernetes(request.user):
        if request.operation is Operation.DELETE or _only_housekeeping(request):
            return ALLOWED
        return no_account(request) if caller is None else denied(f"{caller} is no member, and announces none")
    if caller is None:
        return no_account(request)
    old, new = request.of(MemberClusterAnnounce)
    trusted = caller in accounts.controllers and request.operation is not Operation.CREATE
    if not trusted:
        if caller.namespace != request.namespace:
            return denied(f"{caller} is not in namespace {request.namespace}, where the members' accounts are")
        decision = _identity(request, old, new, caller, lookup)
        if decision is not None:
            return decision
    if request.operation is Operation.CREATE:
        return _create(request, new, lookup)
    return _update(old, new) if request.operation is Operation.UPDATE else ALLOWED


def _only_housekeeping(request: Request) -> bool:
    changing = request.operation is Operation.UPDATE
    return changing and changed_parts(request.old, request.object) <= HOUSEKEEPING


def _identity(
    request: Request,
    old: MemberClusterAnnounce,
    new: MemberClusterAnnounce,
    caller: Caller,
    lookup: Lookup,
) -> Decision | None:
    """Return the decision if the caller alone settles it; None: go on."""
    account = lookup.service_account(caller.namespace, caller.name)
    if account is None:
        gone = request.operation is Operation.DELETE and old.is_deleting
        return ALLOWED if gone else denied(f"{caller} is not found", code=412)
    cluster = (old if request.operation is Operation.DELETE else new).cluster_id
    if bound_cluster(account) is None:
        # Accounts made before Antrea 2.7, by its manifests too, are not annotated.
        return denied(
            f'cluster ID "{printable(cluster)}" is not permitted for {caller}, which stands for no cluster: an '
            f"administrator of the leader annotates it with {names.CLUSTER_ID_ANNOTATION}, if it is that cluster's"
        )
    if not cluster or bound_cluster(account) != cluster:
        return denied(f'cluster ID "{cluster}" is not permitted for {caller}: see {names.CLUSTER_ID_ANNOTATION}')
    return None


def _create(request: Request, new: MemberClusterAnnounce, lookup: Lookup) -> Decision:
    cluster = new.cluster_id
    sets = lookup.cluster_sets(request.namespace)
    if not sets:
        return denied(f"there is no ClusterSet in namespace {request.namespace}", code=412)
    cluster_set = sets[0]
    if new.cluster_set_id != cluster_set.name:
        message = f'unknown ClusterSet ID "{new.cluster_set_id}": it is {cluster_set.name} here'
        return denied(message, code=412)
    leader = cluster_set.leader_id
    if new.leader_cluster_id != leader:
        return denied(f"leaderClusterID does not match the ClusterSet's leader, {leader}", code=412)
    if new.name != names.announce(cluster):
        return denied(f"the name of cluster {cluster}'s announcement must be {names.announce(cluster)}")
    other = ambiguous_with(cluster, bound_clusters(lookup.service_accounts(request.namespace)))
    if other:
        return denied(
            f"cluster ID {cluster} conflicts with that of member {other}: one is the other and a dash and more"
        )
    return ALLOWED


def _update(old: MemberClusterAnnounce, new: MemberClusterAnnounce) -> Decision:
    fixed = {
        "ClusterID (clusterID)": old.cluster_id == new.cluster_id,
        "ClusterSet ID (clusterSetID)": old.cluster_set_id == new.cluster_set_id,
        "leader cluster ID (leaderClusterID)": old.leader_cluster_id == new.leader_cluster_id,
    }
    changed = next((what for what, same in fixed.items() if not same), "")
    return denied(f"{changed} cannot be changed", code=412) if changed else ALLOWED
