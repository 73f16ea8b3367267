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
    cluster_id_of,
)
from mcagent.controller.contract import names
from mcagent.controller.contract.raw import is_deleting, name_of, text_at
from mcagent.model.field import printable

_FIXED = {"clusterID": "ClusterID", "clusterSetID": "ClusterSet ID", "leaderClusterID": "leader cluster ID"}


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
    trusted = caller in accounts.controllers and request.operation is not Operation.CREATE
    if not trusted:
        if caller.namespace != request.namespace:
            return denied(f"{caller} is not in namespace {request.namespace}, where the members' accounts are")
        decision = _identity(request, caller, lookup)
        if decision is not None:
            return decision
    if request.operation is Operation.CREATE:
        return _create(request, lookup)
    return _update(request) if request.operation is Operation.UPDATE else ALLOWED


def _only_housekeeping(request: Request) -> bool:
    changing = request.operation is Operation.UPDATE
    return changing and changed_parts(request.old, request.object) <= HOUSEKEEPING


def _identity(request: Request, caller: Caller, lookup: Lookup) -> Decision | None:
    """Return the decision if the caller alone settles it; None: go on."""
    account = lookup.service_account(caller.namespace, caller.name)
    if account is None:
        gone = request.operation is Operation.DELETE and is_deleting(request.old)
        return ALLOWED if gone else denied(f"{caller} is not found", code=412)
    cluster = cluster_id_of(request.subject)
    if bound_cluster(account) is None:
        # Accounts made before Antrea 2.7, by its manifests too, are not annotated.
        return denied(
            f'cluster ID "{printable(cluster)}" is not permitted for {caller}, which stands for no cluster: an '
            f"administrator of the leader annotates it with {names.CLUSTER_ID_ANNOTATION}, if it is that cluster's"
        )
    if not cluster or bound_cluster(account) != cluster:
        return denied(f'cluster ID "{cluster}" is not permitted for {caller}: see {names.CLUSTER_ID_ANNOTATION}')
    return None


def _create(request: Request, lookup: Lookup) -> Decision:
    new = request.object
    cluster = cluster_id_of(new)
    sets = lookup.cluster_sets(request.namespace)
    if not sets:
        return denied(f"there is no ClusterSet in namespace {request.namespace}", code=412)
    cluster_set = sets[0]
    name = name_of(cluster_set)
    if text_at(new, "clusterSetID") != name:
        return denied(f'unknown ClusterSet ID "{text_at(new, "clusterSetID")}": it is {name} here', code=412)
    spec = cluster_set.get("spec")
    leaders = spec.get("leaders") if isinstance(spec, dict) else None
    leader = text_at(leaders[0], "clusterID") if isinstance(leaders, list) and leaders else ""
    if text_at(new, "leaderClusterID") != leader:
        return denied(f"leaderClusterID does not match the ClusterSet's leader, {leader}", code=412)
    if name_of(new) != names.announce(cluster):
        return denied(f"the name of cluster {cluster}'s announcement must be {names.announce(cluster)}")
    other = ambiguous_with(cluster, bound_clusters(lookup.service_accounts(request.namespace)))
    if other:
        return denied(
            f"cluster ID {cluster} conflicts with that of member {other}: one is the other and a dash and more"
        )
    return ALLOWED


def _update(request: Request) -> Decision:
    for path, what in _FIXED.items():
        if text_at(request.old, path) != text_at(request.object, path):
            return denied(f"{what} ({path}) cannot be changed", code=412)
    return ALLOWED
