"""Takes mcagent away from a cluster: membership, agents and what is on Nodes, controllers, rights, CRDs last.

What it removes is what `mcagent deploy` installs, found by kind and name. Of a Helm release it does what Helm does
not, and leaves the rest to `helm uninstall`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus

from mcagent.controller.admin import cluster_sets, dns, manifests, node_cleanup
from mcagent.controller.admin.cluster import AdminError, Cluster, shown
from mcagent.controller.admin.deployment import is_ours, release_of
from mcagent.controller.admin.fields import items_at, name_of, namespace_of, text_at, texts_at, value_at
from mcagent.controller.admin.manifests import CRD, NAMESPACE, OURS, Part, Role, Site
from mcagent.controller.contract import names
from mcagent.controller.contract.conditions import TRUE
from mcagent.controller.leader.cluster_set import is_leader_set
from mcagent.kube.errors import ApiRefusalError
from mcagent.kube.source import RawObject
from mcagent.model.api.multicluster import ClusterSet
from mcagent.model.kinds import object_path
from mcagent.model.objects import Kind
from mcagent.model.parsing.decode import read_as

TIMEOUT = 120.0  # seconds, of each step
_MEMBERS = (Part.MEMBER, Part.OPENVSWITCH, Part.AGENT)
_LEADERS = (Part.LEADER, Part.LEADER_ALL_NAMESPACES)
_SHARED = (Part.METRICS_READER, Part.ADMISSION_POLICIES)
_COMPONENT = node_cleanup.COMPONENT
_HELD = (Kind.CLUSTER_SET, Kind.MEMBER_CLUSTER_ANNOUNCE, Kind.RESOURCE_EXPORT)  # by finalizers
_WORKLOADS = ("/apis/apps/v1/deployments", "/apis/apps/v1/daemonsets")


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """What is to go. `crds`: the CRDs too, and all that is stored under them; `nodes`: what is on Nodes."""

    role: Role
    site: Site
    crds: bool = False
    nodes: bool = True

    @property
    def roles(self) -> tuple[tuple[Part, ...], ...]:
        """Return the parts of each role that goes: the member first, which needs its leader to leave."""
        named = {Role.MEMBER: (_MEMBERS,), Role.LEADER: (_LEADERS,), Role.ALL: (_MEMBERS, _LEADERS)}
        return named[self.role]


def uninstall(cluster: Cluster, removal: Removal, *, dry_run: bool, timeout: float = TIMEOUT) -> None:
    """Remove it, or say what would be. May be repeated after an error. Raises McagentError."""
    other = _other_role(cluster, removal)
    sets = _sets(cluster, removal)
    _refuse(cluster, removal, sets, other)
    gone, helms = _objects(cluster, removal, shared=not other)
    nodes = (
        node_cleanup.agent_nodes(cluster, removal.site.namespace)
        if _MEMBERS in removal.roles and removal.nodes
        else []
    )
    named = _MEMBERS in removal.roles and _undo_dns(cluster, dry_run=dry_run)
    if dry_run:
        _tell(cluster, removal, sets, nodes, gone)
    else:
        for found in sets:
            cluster_sets.leave(cluster, namespace_of(found), name_of(found), timeout=timeout)
        if _MEMBERS in removal.roles and removal.nodes:
            node_cleanup.clean_nodes(cluster, removal.site.namespace, timeout=timeout)
        _remove(cluster, gone, timeout)
        if _LEADERS in removal.roles and not helms:
            _release(cluster, _HELD, removal.site.leader_namespace)
    if helms:
        release, where = release_of(helms[0]), namespace_of(helms[0]) or removal.site.namespace
        command = f"helm uninstall {release} --namespace {where}"
        cluster.report(f"left to Helm, which has installed them: {len(helms)} objects ({command})")
    if removal.crds and helms:
        raise AdminError("--crds: the controllers need them until Helm has removed the release; repeat this then")
    if removal.crds:
        _remove_crds(cluster, dry_run=dry_run, timeout=timeout)
    if not (sets or nodes or gone or helms or named or removal.crds):
        cluster.report(
            f"nothing of role {removal.role} is here (--role, --namespace, --leader-namespace say where to look)"
        )


# --- what there is


def _other_role(cluster: Cluster, removal: Removal) -> str:
    """Return what shows that this cluster keeps its other role, "" when it has none."""
    keeps = [str(part) for parts in (_MEMBERS, _LEADERS) if parts not in removal.roles for part in parts]
    for path in _WORKLOADS:
        for found in items_at(cluster.find_any(path), "items"):
            labels = value_at(found, "metadata", "labels") or {}
            if OURS.items() <= labels.items() and labels.get(_COMPONENT) in keeps:
                return f"{labels[_COMPONENT]} in namespace {namespace_of(found)}"
    return ""


def _stored(cluster: Cluster, kind: Kind, namespace: str = "") -> list[RawObject]:
    """Return all objects of a kind of ours; none where its CRD is not installed."""
    return (
        cluster.objects(kind, namespace)
        if cluster.find_any(object_path(kind, "") + "?limit=1") is not None
        else []
    )


def _is_leaders(cluster_set: RawObject) -> bool:
    return is_leader_set(read_as(ClusterSet, cluster_set))


def _sets(cluster: Cluster, removal: Removal) -> list[RawObject]:
    """Return the ClusterSets to leave and to destroy, in that order."""
    everywhere = _stored(cluster, Kind.CLUSTER_SET)
    member, leader = removal.site.namespace, removal.site.leader_namespace
    cluster_sets = []
    if _MEMBERS in removal.roles:
        cluster_sets += [
            cluster_set
            for cluster_set in everywhere
            if namespace_of(cluster_set) == member and not _is_leaders(cluster_set)
        ]
    if _LEADERS in removal.roles:
        cluster_sets += [
            cluster_set
            for cluster_set in everywhere
            if _is_leaders(cluster_set) and namespace_of(cluster_set) == leader
        ]
    return cluster_sets


def _refuse(cluster: Cluster, removal: Removal, sets: Sequence[RawObject], other: str) -> None:
    """Raise AdminError where something else still needs what is to go."""
    if removal.crds and other:
        raise AdminError(f"--crds: the {other} needs them (--role all removes both)")
    if _LEADERS not in removal.roles:
        return
    for cluster_set in _stored(cluster, Kind.CLUSTER_SET):
        if _is_leaders(cluster_set) and cluster_set not in sets and cluster.there(_ALL_NAMESPACES):
            raise AdminError(
                f"ClusterSet {namespace_of(cluster_set)}/{name_of(cluster_set)} is led here, too: "
                "mcagent clusterset destroy first"
            )
    leaving = {text_at(cluster_set, "spec", "clusterID") for cluster_set in sets if not _is_leaders(cluster_set)}
    announces = _stored(cluster, Kind.MEMBER_CLUSTER_ANNOUNCE, removal.site.leader_namespace)
    announces_by_id = {text_at(announce, "clusterID"): name_of(announce) for announce in announces}
    members = {cluster_id: name for cluster_id, name in announces_by_id.items() if cluster_id not in leaving}
    if members:
        first, announce = min(members.items())
        raise AdminError(
            f"this cluster leads {', '.join(sorted(members))}: let each leave first (there: mcagent uninstall "
            f"or clusterset leave; for the member in this cluster: --role all). If {first} is gone for good: "
            f"kubectl delete memberclusterannounce -n {removal.site.leader_namespace} {announce}"
        )


_ALL_NAMESPACES = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRole",
    "metadata": {"name": "mcagent-leader-all-namespaces"},
}


def _objects(cluster: Cluster, removal: Removal, *, shared: bool) -> tuple[list[RawObject], list[RawObject]]:
    """Return the objects that go, last installed first, and those that are Helm's. CRDs are not among them."""
    gone: list[RawObject] = []
    helms: list[RawObject] = []
    for parts in (*removal.roles, *((_SHARED,) if shared else ())):
        for obj in reversed(manifests.objects(parts, removal.site)):
            there = cluster.there(obj)
            if there is None or (obj["kind"] == NAMESPACE and not is_ours(there)) or there in gone:
                continue
            (helms if release_of(there) else gone).append(
                {"apiVersion": obj["apiVersion"], "kind": obj["kind"]} | there
            )
    first = [obj for obj in gone if obj["kind"].endswith("WebhookConfiguration")]
    last = [obj for obj in gone if obj["kind"] == NAMESPACE]
    others = [obj for obj in gone if obj not in first and obj not in last]
    return [*first, *others, *([] if helms else last)], helms  # what is Helm's is in these Namespaces


# --- taking it away


def _tell(
    cluster: Cluster, removal: Removal, sets: Sequence[RawObject], nodes: Sequence[str], gone: Sequence[RawObject]
) -> None:
    for found in sets:
        does = "destroyed" if _is_leaders(found) else "left"
        cluster.report(f"ClusterSet {namespace_of(found)}/{name_of(found)} would be {does}")
    for node in nodes:
        cluster.report(f"Node {node} would be cleaned: mcagent cleanup in namespace {removal.site.namespace}")
    for obj in gone:
        cluster.report(f"{shown(obj)} would be deleted")


def _undo_dns(cluster: Cluster, *, dry_run: bool) -> bool:
    """Take back what `mcagent dns apply` did; tell whether there was any. What may not be done is told instead."""
    coredns = dns.CoreDns()
    try:
        if not dns.is_applied(cluster, coredns):
            return False
        if dry_run:
            cluster.report(f"{coredns.shown}: what mcagent dns added would be removed")
            return True
        return dns.remove(cluster, coredns)
    except ApiRefusalError as error:
        if error.code != HTTPStatus.FORBIDDEN:
            raise
        cluster.report(f"{coredns.shown} is left as it is: {error}; let an administrator run: mcagent dns remove")
        return False


def _remove(cluster: Cluster, gone: Sequence[RawObject], timeout: float) -> None:
    """Delete objects in this order, and wait for their Pods' end; a Namespace with Pods of others stays."""
    namespaces = {namespace_of(obj) for obj in gone if obj["kind"] in ("Deployment", "DaemonSet")}
    components = {value_at(obj, "metadata", "labels", _COMPONENT) for obj in gone}

    def left(namespace: str, *, ours: bool) -> list[str]:
        pods = (
            (name_of(pod), value_at(pod, "metadata", "labels") or {})
            for pod in cluster.objects(Kind.POD, namespace)
        )
        if ours:
            return [
                name
                for name, labels in pods
                if OURS.items() <= labels.items() and labels.get(_COMPONENT) in components
            ]
        return [name for name, labels in pods if not OURS.items() <= labels.items()]

    for obj in gone:
        if obj["kind"] != NAMESPACE:
            cluster.remove(obj)
    if not cluster.wait(lambda: not any(left(namespace, ours=True) for namespace in namespaces), timeout):
        raise AdminError(
            f"after {timeout:g} s Pods in {', '.join(sorted(namespaces))} still run: kubectl get pods"
        )
    for obj in (obj for obj in gone if obj["kind"] == NAMESPACE):
        if others := left(name_of(obj), ours=False):
            cluster.report(f"{shown(obj)} kept: it has other Pods ({', '.join(others[:3])})")
        elif cluster.remove(obj) and not cluster.wait(lambda obj=obj: cluster.there(obj) is None, timeout):  # type: ignore[misc]
            conditions = items_at(cluster.there(obj) or {}, "status", "conditions")
            why = [text_at(one, "message") for one in conditions if one.get("status") == TRUE]
            raise AdminError(f"after {timeout:g} s {shown(obj)} is still there: {' '.join(why)}")


def _release(cluster: Cluster, kinds: Sequence[Kind], namespace: str = "") -> None:
    """Take off the finalizers that only controllers like ours take off: what is deleted later must not hang."""
    for kind in (kind for kind in _HELD if kind in kinds):
        for one in _stored(cluster, kind, namespace):
            held = texts_at(one, "metadata", "finalizers")
            rest = [text for text in held if not names.is_finalizer(text)]
            if rest != held:
                path = object_path(kind, namespace_of(one), name_of(one))
                cluster.merge(path, {"metadata": {"finalizers": rest or None}})
                cluster.report(
                    f"{kind} {namespace_of(one)}/{name_of(one)}: finalizer removed, as no controller is left"
                )


def _remove_crds(cluster: Cluster, *, dry_run: bool, timeout: float) -> None:
    """Delete our CRDs, and wait until they are gone. Raises AdminError that names what holds them."""
    found = [obj for obj in manifests.objects([Part.CRDS], Site()) if obj["kind"] == CRD]
    there = []
    for obj in found:
        now = cluster.there(obj)
        if now and is_ours(now):
            there.append(obj)
        elif now:
            cluster.report(f"{shown(obj)} kept: it is somebody else's")
    if not dry_run:
        _release(cluster, [Kind(obj["spec"]["names"]["kind"]) for obj in there])
    for obj in there:
        does = "would go" if dry_run else "goes"
        count = len(_instances(cluster, obj))
        cluster.report(f"{shown(obj)} {does}, with all that is stored under it: {count} objects")
        if not dry_run:
            cluster.remove(obj)
    if dry_run or cluster.wait(lambda: not any(map(cluster.there, there)), timeout):
        return
    held = [
        f"{one.get('kind', obj['spec']['names']['kind'])} {namespace_of(one)}/{name_of(one)}"
        for obj in there
        for one in _instances(cluster, obj)
        if value_at(one, "metadata", "finalizers")
    ]
    raise AdminError(
        f"after {timeout:g} s CRDs are still there; finalizers hold {', '.join(held) or 'none of their objects'}"
    )


def _instances(cluster: Cluster, crd: RawObject) -> list[RawObject]:
    spec = crd["spec"]
    version = next(one["name"] for one in spec["versions"] if one["served"])
    return items_at(cluster.find_any(f"/apis/{spec['group']}/{version}/{spec['names']['plural']}"), "items")
