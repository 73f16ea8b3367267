"""The command `mcagent uninstall`: removes membership, agents, their objects on Nodes, controllers, rights, CRDs.

It removes the objects that `mcagent deploy` installs, by kind and name. Of a Helm release it removes only what
`helm uninstall` does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus

from mcagent.controller.admin import cluster_sets, dns, losses, manifests, node_cleanup
from mcagent.controller.admin.cluster import AdminError, Cluster, shown
from mcagent.controller.admin.deployment import is_ours, release_of
from mcagent.controller.admin.fields import items_at, mapping_at, name_of, namespace_of, text_at, value_at
from mcagent.controller.admin.manifests import CRD, NAMESPACE, OURS, InstalledRole, Part, Site
from mcagent.controller.contract import names
from mcagent.controller.contract.conditions import TRUE
from mcagent.kube.errors import ApiRefusalError
from mcagent.kube.source import RawObject
from mcagent.model.api.kubernetes import ApiPod
from mcagent.model.api.multicluster import ClusterSet, MemberClusterAnnounce
from mcagent.model.kinds import object_path
from mcagent.model.objects import Kind
from mcagent.model.parsing.decode import TYPES

TIMEOUT = 120.0  # seconds, of each step
_MEMBERS = (Part.MEMBER, Part.MEMBER_POLICIES, Part.OPENVSWITCH, Part.AGENT)
_LEADERS = (Part.LEADER, Part.LEADER_ALL_NAMESPACES)
_SHARED = (Part.METRICS_READER, Part.ADMISSION_POLICIES)
_COMPONENT = node_cleanup.COMPONENT
_WITH_FINALIZER = (Kind.CLUSTER_SET, Kind.MEMBER_CLUSTER_ANNOUNCE, Kind.RESOURCE_EXPORT)
_WORKLOADS = ("/apis/apps/v1/deployments", "/apis/apps/v1/daemonsets")


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """The parts of an installation to remove."""

    role: InstalledRole
    site: Site
    crds: bool = False  # the CRDs, with all their objects
    nodes: bool = True  # the agents' objects on Nodes

    @property
    def roles(self) -> tuple[tuple[Part, ...], ...]:
        """The parts of each removed role: the member first, which needs its leader to leave."""
        named = {
            InstalledRole.MEMBER: (_MEMBERS,),
            InstalledRole.LEADER: (_LEADERS,),
            InstalledRole.ALL: (_MEMBERS, _LEADERS),
        }
        return named[self.role]


def uninstall(
    cluster: Cluster,
    removal: Removal,
    *,
    dry_run: bool,
    consent: Callable[[Sequence[str]], None] = lambda _losses: None,
    timeout: float = TIMEOUT,
) -> None:
    """Remove an installation; `dry_run`: only report the removals. Can be repeated. Raises McagentError.

    `consent` gets what is lost before anything is removed, and raises McagentError without consent.
    """
    other = _other_role(cluster, removal)
    sets = _sets(cluster, removal)
    _refuse(cluster, removal, sets, other)
    gone, helms = _objects(cluster, removal, shared=not other)
    release, where = (release_of(helms[0]), namespace_of(helms[0])) if helms else ("", "")
    command = f"helm uninstall {release} --namespace {where or removal.site.namespace}"
    if removal.crds and helms:
        raise AdminError(
            f"--crds: a Helm release needs them: uninstall without --crds, then {command}, then --crds"
        )
    agents = node_cleanup.agent_nodes(cluster, removal.site.namespace) if _MEMBERS in removal.roles else []
    nodes = agents if removal.nodes else []
    if not dry_run:
        leaves = _MEMBERS in removal.roles and bool(sets)
        consent(losses.of_uninstalling(cluster, len(agents), leaves=leaves, crds=removal.crds))
    if dry_run:
        _report(cluster, removal, sets, nodes, gone)
    else:
        for cluster_set in sets:
            cluster_sets.leave(cluster, cluster_set.namespace, cluster_set.name, timeout=timeout)
        if _MEMBERS in removal.roles and removal.nodes:
            node_cleanup.clean_nodes(cluster, removal.site.namespace, timeout=timeout)
        _remove(cluster, gone, timeout)
        if _LEADERS in removal.roles and not helms:
            _release(cluster, _WITH_FINALIZER, removal.site.leader_namespace)
    named = _MEMBERS in removal.roles and _undo_dns(cluster, dry_run=dry_run)  # after the Services of these names
    if helms:
        cluster.report(f"left to Helm, which has installed them: {len(helms)} objects ({command})")
    if removal.crds:
        _remove_crds(cluster, dry_run=dry_run, timeout=timeout)
    if not (sets or nodes or gone or helms or named or removal.crds):
        cluster.report(
            f"nothing of role {removal.role} is here (--role, --namespace, --leader-namespace say where to look)"
        )


# --- reading


def _other_role(cluster: Cluster, removal: Removal) -> str:
    """Return the workload by which this cluster has a role that is not removed, "" if there is none."""
    components = [str(part) for parts in (_MEMBERS, _LEADERS) if parts not in removal.roles for part in parts]
    for path in _WORKLOADS:
        for workload in items_at(cluster.find_any(path), "items"):
            labels = mapping_at(workload, "metadata", "labels")
            if OURS.items() <= labels.items() and labels.get(_COMPONENT) in components:
                return f"{labels[_COMPONENT]} in namespace {namespace_of(workload)}"
    return ""


def _sets(cluster: Cluster, removal: Removal) -> list[ClusterSet]:
    """Return the ClusterSets to leave and to destroy, in that order."""
    everywhere = cluster.stored(ClusterSet)
    member, leader = removal.site.namespace, removal.site.leader_namespace
    cluster_sets = []
    if _MEMBERS in removal.roles:
        cluster_sets += [item for item in everywhere if item.namespace == member and not item.is_leaders]
    if _LEADERS in removal.roles:
        cluster_sets += [item for item in everywhere if item.namespace == leader and item.is_leaders]
    return cluster_sets


def _refuse(cluster: Cluster, removal: Removal, sets: Sequence[ClusterSet], other: str) -> None:
    """Raise AdminError if another role or cluster needs the removed objects."""
    if removal.crds and other:
        raise AdminError(f"--crds: the {other} needs them (--role all removes both)")
    if _LEADERS not in removal.roles:
        return
    named = {cluster_set.key for cluster_set in sets}
    for cluster_set in cluster.stored(ClusterSet):
        is_other = cluster_set.is_leaders and cluster_set.key not in named
        if is_other and cluster.present(_ALL_NAMESPACES):
            raise AdminError(f"{cluster_set.subject} is led here, too: mcagent clusterset destroy first")
    leaving = {cluster_set.spec.cluster_id for cluster_set in sets if not cluster_set.is_leaders}
    announces = cluster.stored(MemberClusterAnnounce, removal.site.leader_namespace)
    announces_by_id = {announce.cluster_id: announce.name for announce in announces}
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
    """Return the objects to remove, the last installed first, and those of a Helm release. Without CRDs."""
    gone: list[RawObject] = []
    helms: list[RawObject] = []
    for parts in (*removal.roles, *((_SHARED,) if shared else ())):
        for obj in reversed(manifests.objects(parts, removal.site)):
            present = cluster.present(obj)
            if present is None or (obj["kind"] == NAMESPACE and not is_ours(present)) or present in gone:
                continue
            (helms if release_of(present) else gone).append(
                {"apiVersion": obj["apiVersion"], "kind": obj["kind"]} | present
            )
    first = [obj for obj in gone if obj["kind"].endswith("WebhookConfiguration")]
    last = [obj for obj in gone if obj["kind"] == NAMESPACE]
    middle = [obj for obj in gone if obj not in first and obj not in last]
    return [*first, *middle, *([] if helms else last)], helms  # the Namespaces have the Helm release's objects


# --- removing


def _report(
    cluster: Cluster, removal: Removal, sets: Sequence[ClusterSet], nodes: Sequence[str], gone: Sequence[RawObject]
) -> None:
    for cluster_set in sets:
        action = "destroyed" if cluster_set.is_leaders else "left"
        cluster.report(f"{cluster_set.subject} would be {action}")
    for node in nodes:
        cluster.report(f"Node {node} would be cleaned: mcagent cleanup in namespace {removal.site.namespace}")
    for obj in gone:
        cluster.report(f"{shown(obj)} would be deleted")


def _undo_dns(cluster: Cluster, *, dry_run: bool) -> bool:
    """Undo `mcagent dns apply`; return whether there was anything to undo. Report missing rights."""
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
    """Delete objects in this order, and wait for the end of their Pods; a Namespace with other Pods stays."""
    namespaces = {namespace_of(obj) for obj in gone if obj["kind"] in ("Deployment", "DaemonSet")}
    components = {value_at(obj, "metadata", "labels", _COMPONENT) for obj in gone}

    def pods_in(namespace: str, *, ours: bool) -> list[str]:
        pods = [(pod.name, pod.labels) for pod in cluster.typed(ApiPod, namespace)]
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
    if not cluster.wait(lambda: not any(pods_in(namespace, ours=True) for namespace in namespaces), timeout):
        raise AdminError(
            f"after {timeout:g} s Pods in {', '.join(sorted(namespaces))} still run: kubectl get pods"
        )
    for obj in (obj for obj in gone if obj["kind"] == NAMESPACE):
        if other_pods := pods_in(name_of(obj), ours=False):
            cluster.report(f"{shown(obj)} kept: it has other Pods ({', '.join(other_pods[:3])})")
        elif cluster.remove(obj) and not cluster.wait(lambda obj=obj: cluster.present(obj) is None, timeout):  # type: ignore[misc]
            conditions = items_at(cluster.present(obj), "status", "conditions")
            why = [text_at(item, "message") for item in conditions if item.get("status") == TRUE]
            raise AdminError(f"after {timeout:g} s {shown(obj)} is still there: {' '.join(why)}")


def _release(cluster: Cluster, kinds: Sequence[Kind], namespace: str = "") -> None:
    """Remove the finalizers that only the removed controllers would remove, so that objects can be deleted."""
    for kind in (kind for kind in _WITH_FINALIZER if kind in kinds):
        for obj in cluster.stored(TYPES[kind], namespace):
            foreign = [text for text in obj.metadata.finalizers if not names.is_finalizer(text)]
            if len(foreign) != len(obj.metadata.finalizers):
                path = object_path(kind, obj.namespace, obj.name)
                cluster.merge(path, {"metadata": {"finalizers": foreign or None}})
                cluster.report(f"{obj.subject}: finalizer removed, as no controller is left")


def _remove_crds(cluster: Cluster, *, dry_run: bool, timeout: float) -> None:
    """Delete mcagent's CRDs, and wait until they are gone. Raises AdminError with objects that have finalizers."""
    crds = []
    for obj in manifests.objects([Part.CRDS, Part.POLICIES], Site()):
        present = cluster.present(obj) if obj["kind"] == CRD else None
        if present and is_ours(present):
            crds.append(obj)
        elif present:
            cluster.report(f"{shown(obj)} kept: it belongs to another installation")
    if not dry_run:
        _release(cluster, [Kind(obj["spec"]["names"]["kind"]) for obj in crds])
    for obj in crds:
        action = "would go" if dry_run else "goes"
        count = len(_instances(cluster, obj))
        cluster.report(f"{shown(obj)} {action}, with all that is stored under it: {count} objects")
        if not dry_run:
            cluster.remove(obj)
    if dry_run or cluster.wait(lambda: not any(map(cluster.present, crds)), timeout):
        return
    undeleted = [
        f"{instance.get('kind', obj['spec']['names']['kind'])} {namespace_of(instance)}/{name_of(instance)}"
        for obj in crds
        for instance in _instances(cluster, obj)
        if value_at(instance, "metadata", "finalizers")
    ]
    raise AdminError(
        f"after {timeout:g} s CRDs are still there; finalizers hold "
        f"{', '.join(undeleted) or 'none of their objects'}"
    )


def _instances(cluster: Cluster, crd: RawObject) -> list[RawObject]:
    spec = crd["spec"]
    version = next(item["name"] for item in spec["versions"] if item["served"])
    return items_at(cluster.find_any(f"/apis/{spec['group']}/{version}/{spec['names']['plural']}"), "items")
