"""How the leader's administrator limits what the attacker claims, by the commands of mcagent on objects in memory.

A ClusterSet of an earlier version has no list of CIDRs. `clusterset init` gives a new one a list, and `membertoken
create` gives each member that list, or one of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from mcagent.controller.admin import cluster_sets, tokens
from mcagent.controller.admin.cluster import Cluster
from mcagent.kube.client import Client
from mcagent.kube.credentials import token_kubeconfig
from mcagent.kube.source import RawObject
from mcagent.model.kinds import KINDS, object_path
from mcagent.model.objects import Kind
from tests.worlds.leader_world import AREA

LISTED = "10.30.0.0/15"  # which an administrator names
OWN_CIDRS = ("10.96.0.0/12", "10.244.1.0/24")  # of the leader's own cluster: Services, Pods of a Node
OWN_RANGE = "10.0.0.0/8"  # the private range of these


@dataclass(frozen=True)
class Limit:
    """The flags of both commands, and the range in which the attacker may have CIDRs ("": any private one)."""

    init: tuple[str, ...] | None  # None: no command created the ClusterSet
    member: tuple[str, ...]
    allowed: str
    text: str


class Limits(Enum):
    """The limits that are drawn."""

    NONE = Limit(None, (), "", "the ClusterSet is of an earlier version")
    OF_MEMBER = Limit(None, (LISTED,), LISTED, f"the attacker's token is for {LISTED}")
    OF_NEW_SET = Limit((LISTED,), (), LISTED, f"the ClusterSet is created with {LISTED}")
    DERIVED = Limit((), (), OWN_RANGE, f"the ClusterSet is created without a list, by a cluster in {OWN_RANGE}")

    def __str__(self) -> str:
        return self.value.text


class _Objects(Cluster):
    """The leader's cluster, in memory. Tokens are filled in at once."""

    def __init__(self) -> None:
        super().__init__(Client(token_kubeconfig("http://127.0.0.1:1", b"", "")), lambda _: None)
        role = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{AREA}/roles/{tokens.MEMBER_ROLE}"
        node = {"metadata": {"name": "n"}, "spec": {"podCIDRs": [OWN_CIDRS[1]]}}
        self.stored_objects: dict[str, RawObject] = {role: {}, object_path(Kind.NODE, "", "n"): node}

    def service_cidr(self) -> str:
        return OWN_CIDRS[0]

    def find(self, path: str) -> RawObject | None:
        return self.stored_objects.get(path)

    def objects(self, kind: Kind, namespace: str = "") -> list[RawObject]:
        prefix = f"{object_path(kind, namespace)}/"
        return [obj for path, obj in self.stored_objects.items() if path.startswith(prefix)]

    def create(self, kind: Kind, namespace: str, name: str, content: Mapping[str, Any]) -> RawObject:
        meta = {**content.get("metadata", {}), "name": name, "namespace": namespace}
        filled = {"data": {"token": "", "ca.crt": ""}} if kind is Kind.SECRET else {}
        obj = {"kind": KINDS[kind].name, **content, "metadata": meta, **filled}
        return self.stored_objects.setdefault(object_path(kind, namespace, name), obj)


def account_of(limits: Limits, member: str) -> RawObject | None:
    """Return the account of a member of a ClusterSet with these limits; None: it has none of the commands."""
    limit, cluster = limits.value, _Objects()
    if limit.init is not None:
        cluster_sets.init(cluster, AREA, "blue", "leader", allowed_cidrs=limit.init)
    elif not limit.member:
        return None
    tokens.create(cluster, AREA, member, member, bounds=tokens.bounds(limit.member))
    return cluster.get(Kind.SERVICE_ACCOUNT, AREA, member)
