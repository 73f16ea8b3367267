"""A ServiceAccount whose token shows the page in a browser: it may read the pages of agents and controllers."""

from __future__ import annotations

from mcagent.controller.admin.cluster import AdminError, Cluster
from mcagent.model.kinds import object_path
from mcagent.model.objects import Kind

ROLE = "mcagent-metrics-reader"
LIFETIME = 8 * 3600  # seconds of a token
_RBAC = "rbac.authorization.k8s.io"


def token(cluster: Cluster, namespace: str, name: str) -> str:
    """Return a new token of the account, which is created and bound to ROLE if needed. Raises SourceError."""
    roles, bindings = (f"/apis/{_RBAC}/v1/{kind}" for kind in ("clusterroles", "clusterrolebindings"))
    if cluster.find(f"{roles}/{ROLE}") is None:
        raise AdminError(
            f"there is no ClusterRole {ROLE}: install it with mcagent deploy, or metricsReader.enabled=true"
        )
    account = object_path(Kind.SERVICE_ACCOUNT, namespace, name)
    if cluster.find(account) is None:
        cluster.request("POST", object_path(Kind.SERVICE_ACCOUNT, namespace), {"metadata": {"name": name}})
        cluster.report(f"ServiceAccount {namespace}/{name} created")
    binding = f"{ROLE}-{namespace}-{name}"
    if cluster.find(f"{bindings}/{binding}") is None:
        body = {
            "metadata": {"name": binding},
            "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": ROLE},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        }
        cluster.request("POST", bindings, body)
        cluster.report(f"ClusterRoleBinding {binding} created")
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": LIFETIME},
    }
    status = cluster.request("POST", f"{account}/token", request)["status"]
    cluster.report(f"the token expires at {status['expirationTimestamp']}; paste it into the page")
    return str(status["token"])
