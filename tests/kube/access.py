"""ServiceAccounts, their tokens and rights, on an API server under test."""

from __future__ import annotations

from typing import Any

from tests.worlds.apiservers import Cluster

MERGE = "application/merge-patch+json"
RBAC = "rbac.authorization.k8s.io"


def account(cluster: Cluster, name: str) -> Any:
    """Create a ServiceAccount."""
    return cluster.create(cluster.path("serviceaccounts"), name)


def token_of(cluster: Cluster, name: str, seconds: int = 3600) -> str:
    """Return a token by TokenRequest."""
    body: dict[str, Any] = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
    body["spec"] = {"expirationSeconds": seconds}
    answer = cluster.client.request("POST", cluster.path("serviceaccounts", name) + "/token", body=body)
    return str(answer["status"]["token"])


def token_of_pod(cluster: Cluster, name: str, node: str) -> str:
    """Return a token as the kubelet of a Node gets it for a Pod of its own."""
    spec = {
        "nodeName": node,
        "serviceAccountName": name,
        "automountServiceAccountToken": False,
        "containers": [{"name": "agent", "image": "mcagent"}],
    }
    pod = cluster.client.request(
        "POST", cluster.path("pods"), body={"metadata": {"name": f"{name}-{node}"}, "spec": spec}
    )
    bound = {"kind": "Pod", "apiVersion": "v1", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"boundObjectRef": bound}}
    answer = cluster.client.request("POST", cluster.path("serviceaccounts", name) + "/token", body=body)
    return str(answer["status"]["token"])


def grant(cluster: Cluster, account: str, *rules: dict[str, Any]) -> None:
    """Let a ServiceAccount do what the rules say, in the namespace."""
    api = f"{RBAC}/v1"
    role = {"apiVersion": api, "kind": "Role", "metadata": {"name": account}, "rules": list(rules)}
    cluster.client.request("POST", cluster.path("roles", group=RBAC), body=role)
    subject = {"kind": "ServiceAccount", "name": account, "namespace": cluster.namespace}
    binding = {"apiVersion": api, "kind": "RoleBinding", "metadata": {"name": account}, "subjects": [subject]}
    binding["roleRef"] = {"apiGroup": RBAC, "kind": "Role", "name": account}
    cluster.client.request("POST", cluster.path("rolebindings", group=RBAC), body=binding)


def rule(*verbs: str, resources: str = "gateways", **fields: Any) -> dict[str, Any]:
    """Return a rule about our own resources."""
    return {
        "apiGroups": ["multicluster.crd.antrea.io"],
        "resources": resources.split(),
        "verbs": list(verbs),
        **fields,
    }


def gateway(name: str) -> dict[str, Any]:
    """Return a Gateway."""
    return {"apiVersion": "multicluster.crd.antrea.io/v1alpha1", "kind": "Gateway", "metadata": {"name": name}}
