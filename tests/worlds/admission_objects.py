"""Objects, accounts and look-ups of admission tests (`admission_cases.py` and others). Knows no decision."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mcagent.controller.admission import Accounts, AdmissionDecision, accounts_of, review
from mcagent.controller.contract import names
from mcagent.controller.contract.cidr_claims import GRANTED
from mcagent.controller.settings import MemberLimits
from mcagent.kube.source import RawObject
from mcagent.model.api.kubernetes import ServiceAccount
from mcagent.model.api.multicluster import ClusterSet, MemberClusterAnnounce, ResourceImport
from mcagent.model.objects import Kind
from mcagent.model.parsing.decode import read_object
from tests.worlds.leader_world import announce, cluster_info, cluster_set, endpoints, export, service

AREA = "mcs1"
SET = "clusterset1"
LABEL = "ns:kubernetes.io/metadata.name=shop&pod:app=web"


def account(name: str, cluster: str | None = None, namespace: str = AREA) -> RawObject:
    """Return a ServiceAccount, bound to a cluster if one is given."""
    annotations = {} if cluster is None else {names.CLUSTER_ID_ANNOTATION: cluster}
    return {"metadata": {"name": name, "namespace": namespace, "annotations": annotations}}


@dataclass(frozen=True, kw_only=True)
class World:
    """What a review may look up."""

    accounts: Sequence[RawObject] = field(default_factory=list)
    sets: Sequence[RawObject] = field(default_factory=list)
    members: Sequence[RawObject] = field(default_factory=list)
    limits: MemberLimits = field(default_factory=MemberLimits)
    exports: Mapping[tuple[str, str], int] = field(default_factory=dict)  # how many, by cluster and kind
    imports: Sequence[RawObject] = field(default_factory=list)

    def count_exports(self, namespace: str, cluster_id: str, kind: str) -> int:
        return self.exports.get((cluster_id, kind), 0) if namespace == AREA else 0

    def granted(self, namespace: str, values: Iterable[str]) -> Sequence[ResourceImport]:
        requested = set(values)
        imports = _typed(Kind.RESOURCE_IMPORT, self.imports, namespace)
        return [imported for imported in imports if not requested.isdisjoint(GRANTED.values(imported))]

    def service_account(self, namespace: str, name: str) -> ServiceAccount | None:
        return next((account for account in self.service_accounts(namespace) if account.name == name), None)

    def service_accounts(self, namespace: str) -> Sequence[ServiceAccount]:
        return _typed(Kind.SERVICE_ACCOUNT, self.accounts, namespace)

    def cluster_sets(self, namespace: str) -> Sequence[ClusterSet]:
        return _typed(Kind.CLUSTER_SET, self.sets, namespace)

    def announces(self, namespace: str) -> Sequence[MemberClusterAnnounce]:
        return _typed(Kind.MEMBER_CLUSTER_ANNOUNCE, self.members, namespace)


def _typed(kind: Kind, objects: Iterable[RawObject], namespace: str) -> list[Any]:
    """Return the objects of a namespace as structs."""
    return [read_object(kind, raw) for raw in objects if raw["metadata"]["namespace"] == namespace]


ACCOUNTS = (
    account("east-sa", "east"),
    account("west-sa", "west"),
    account("north-sa", "north"),
    account("admin-sa"),
    account("empty-sa", ""),
    account("default", "east"),
    account("east-sa", "east", "elsewhere"),
    account("namespace-controller", None, "kube-system"),
)
OWN = accounts_of(AREA, trusted=["argocd/argocd-application-controller"])
WORLD = World(accounts=ACCOUNTS, sets=[cluster_set(AREA, SET, "leader1")])


def sa(name: str, namespace: str = AREA) -> str:
    """Return a ServiceAccount's user name."""
    return f"system:serviceaccount:{namespace}:{name}"


def put(raw: RawObject, path: str, value: Any) -> RawObject:
    """Return an object with one field changed; None removes it."""
    changed = copy.deepcopy(raw)
    *steps, last = path.split(".")
    inner = changed
    for step in steps:
        inner = inner[step]
    if value is None:
        inner.pop(last, None)
    else:
        inner[last] = value
    return changed


def leaving(raw: RawObject) -> RawObject:
    """Return an object that is being deleted."""
    return put(raw, "metadata.deletionTimestamp", "2026-01-01T00:00:00Z")


def held_by(raw: RawObject, *finalizers: str) -> RawObject:
    """Return an object with these finalizers; without any for none."""
    return put(raw, "metadata.finalizers", list(finalizers) or None)


def a_set(cluster: str = "leader1", leader: str = "leader1") -> RawObject:
    """Return a leader's ClusterSet."""
    return put(cluster_set(AREA, SET, leader), "spec.clusterID", cluster)


def a_members_set(cluster: str = "east", **leader: str) -> RawObject:
    """Return a member's ClusterSet; `leader` replaces fields of its leader."""
    leader = {"clusterID": "leader1", "server": "https://l:6443", "secret": "t"} | leader
    return put(a_set(cluster), "spec.leaders", [leader])


def a_gateway(**fields: Any) -> RawObject:
    """Return the Gateway of node-1."""
    metadata = {"name": "node-1", "namespace": "kube-system"}
    return {"kind": "Gateway", "metadata": metadata, "gatewayIP": "10.0.0.1", "internalIP": "10.0.0.1"} | fields


def an_announce(cluster: str = "east", **fields: str) -> RawObject:
    """Return an announcement to the world's ClusterSet."""
    return announce(cluster, area=AREA) | {"clusterSetID": SET, "leaderClusterID": "leader1"} | fields


def labelled(raw: RawObject, *, finalizer: bool = True) -> RawObject:
    """Return an export with the labels that members give."""
    spec = raw["spec"]
    labels = {"sourceClusterID": spec["clusterID"], "sourceKind": spec["kind"]}
    if spec["kind"] in ("Service", "Endpoints"):
        labels |= {"sourceName": spec["name"], "sourceNamespace": spec["namespace"]}
    raw["metadata"] |= {"labels": labels, "namespace": AREA}
    if not finalizer:
        del raw["metadata"]["finalizers"]
    return raw


def an_info(cluster: str = "east") -> RawObject:
    """Return a ClusterInfo export."""
    return labelled(cluster_info(cluster, "10.1.0.0/16"))


def networks(*pod_cidrs: str, gateway: str = "192.168.9.1", service_cidr: str = "10.1.0.0/16") -> RawObject:
    """Return a ClusterInfo export of east."""
    raw = labelled(cluster_info("east", service_cidr, pod_cidrs))
    return put(raw, "spec.clusterInfo.gatewayInfos", [{"gatewayIP": gateway}])


def a_service(cluster: str = "east", target: str = "default/nginx") -> RawObject:
    """Return a Service export."""
    return labelled(service(cluster, target))


def an_endpoints(cluster: str = "east") -> RawObject:
    """Return an Endpoints export."""
    return labelled(endpoints(cluster, ["10.1.0.1"]))


def a_label(cluster: str = "east") -> RawObject:
    """Return a LabelIdentity export."""
    name = f"{cluster}-{hashlib.sha1(LABEL.encode()).hexdigest()[:16]}"
    payload = {"labelIdentity": {"normalizedLabel": LABEL}}
    return labelled(export(cluster, "LabelIdentity", name, payload), finalizer=False)


def a_policy() -> RawObject:
    """Return an export of a policy."""
    return labelled(export("east", "AntreaClusterNetworkPolicy", "east-acnp", {"name": "acnp"}))


def ask(
    operation: str,
    new: RawObject | None,
    old: RawObject | None = None,
    user: str = "kubernetes-admin",
    *,
    world: World = WORLD,
    accounts: Accounts = OWN,
) -> AdmissionDecision:
    """Return the decision on a request."""
    subject: RawObject = new or old or {}
    meta = subject.get("metadata")
    request = {
        "uid": "u",
        "operation": operation,
        "kind": {"group": "multicluster.crd.antrea.io", "version": "v1alpha1", "kind": subject.get("kind")},
        "namespace": meta.get("namespace", AREA) if isinstance(meta, dict) else AREA,
        "object": new,
        "oldObject": old,
        "userInfo": {"username": user, "groups": ["system:authenticated"]},
    }
    return review(request, world, accounts)
