"""Webhooks with the manifests of deploy/, before an API server that calls them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import yaml

from devtools.ports import free_port
from mcagent.controller.config import ControllerRole
from mcagent.controller.contract import names
from mcagent.kube.client import Client
from mcagent.kube.sources.manifests import FastLoader
from mcagent.model.kinds import KINDS, object_path
from mcagent.model.objects import Kind
from tests.kube.access import token_of
from tests.worlds.apiservers import Cluster, collection, refusal
from tests.worlds.controllers import Controller, controller

DEPLOY = Path(__file__).parents[2] / "deploy"
HOME = {ControllerRole.LEADER: "antrea-multicluster", ControllerRole.MEMBER: "kube-system"}
NOT_APPLIED = ("ConfigMap", "CustomResourceDefinition", "Deployment", "Namespace", "PodDisruptionBudget")


class Shipped:
    """A role's manifests in the test's namespace, and its controller with the rights that they give it."""

    def __init__(self, cluster: Cluster, role: ControllerRole, directory: Path) -> None:
        self.cluster, self.role, self.directory = cluster, role, directory
        self.port = free_port()
        self.stack = ExitStack()
        self.apply(f"{role}.yaml")
        self.token = token_of(cluster, "mcagent-controller")
        self.own = self.stack.enter_context(closing(cluster.server.as_token(self.token)))

    def apply(self, file: str) -> None:
        """Apply a file of `deploy/`."""
        text = (DEPLOY / file).read_text().replace(HOME[self.role], self.cluster.namespace)
        for manifest in yaml.load_all(text, FastLoader):
            if manifest["kind"] not in NOT_APPLIED:
                self._apply(manifest)

    def _apply(self, manifest: dict[str, Any]) -> None:
        if manifest["kind"] == "Service":  # leads to this machine
            manifest["spec"] = {"type": "ExternalName", "externalName": "127.0.0.1"}
        for hook in manifest.get("webhooks", ()):
            # Aliases of YAML: several hooks have one clientConfig.
            hook["clientConfig"] = {"service": {**hook["clientConfig"]["service"], "port": self.port}}
        path, meta = collection(self.cluster.client, manifest), manifest["metadata"]
        self.cluster.client.request("POST", path, {"fieldValidation": "Strict"}, body=manifest)
        if "namespace" not in meta:
            self.stack.callback(self.cluster.client.request, "DELETE", f"{path}/{meta['name']}")

    @contextmanager
    def running(self, namespace: str = "") -> Iterator[Controller]:
        """Run the controller's process, as its Deployment does, for its own namespace or another."""
        config = yaml.safe_load(self.cluster.server.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": self.token}
        file = self.directory / "kubeconfig"
        file.write_text(json.dumps(config))
        file.chmod(0o600)
        home = self.cluster.namespace
        webhook = {"host": "127.0.0.1", "port": self.port}
        settings = {"podNamespace": home, "leaderElection": {"leaderElect": True}, "webhook": webhook}
        with controller(self.role, file, namespace or home, self.directory, **settings) as process:
            yield process

    def write(self, obj: dict[str, Any], client: Client | None = None, **query: str) -> str:
        """Create an object; return "" or why it was refused."""
        kind = Kind(obj["kind"])
        body = {**obj, "apiVersion": KINDS[kind].api_version}
        body["metadata"] = {name: value for name, value in obj["metadata"].items() if name != "namespace"}
        path = object_path(kind, self.cluster.namespace)
        refused = refusal(client or self.cluster.client, "POST", path, body, **query)
        return f"{refused.code} {refused}" if refused is not None else ""

    def change(self, kind: Kind, name: str, patch: dict[str, Any], client: Client | None = None) -> Any:
        """Change an object and return it. Raises ApiRefusalError."""
        path = object_path(kind, self.cluster.namespace, name)
        return (client or self.cluster.client).request(
            "PATCH", path, body=patch, content_type="application/merge-patch+json"
        )

    def get(self, kind: Kind, name: str) -> Any:
        """Return an object."""
        return self.cluster.client.request("GET", object_path(kind, self.cluster.namespace, name))


def cluster_set(name: str, cluster_id: str = "north") -> dict[str, Any]:
    """Return a ClusterSet of a leader."""
    spec = {"clusterID": cluster_id, "leaders": [{"clusterID": "north"}]}
    return {"kind": "ClusterSet", "metadata": {"name": name}, "spec": spec}


def gateway(name: str) -> dict[str, Any]:
    """Return a Gateway."""
    return {"kind": "Gateway", "metadata": {"name": name}, "gatewayIP": "10.0.0.1", "internalIP": "10.0.0.1"}


def standing_for(cluster_id: str) -> dict[str, Any]:
    """Return the metadata of an account that stands for a cluster."""
    return {"annotations": {names.CLUSTER_ID_ANNOTATION: cluster_id}}


def join(shipped: Shipped, cluster_id: str) -> str:
    """Make an account of a member, with the Role that the manifests have for it; return its token."""
    cluster = shipped.cluster
    cluster.create(cluster.path("serviceaccounts"), cluster_id, metadata=standing_for(cluster_id))
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "antrea-mc-member-cluster-role"}
    subject = {"kind": "ServiceAccount", "name": cluster_id, "namespace": cluster.namespace}
    binding = {"metadata": {"name": cluster_id}, "roleRef": role, "subjects": [subject]}
    cluster.client.request("POST", object_path(Kind.ROLE_BINDING, cluster.namespace), body=binding)
    return token_of(cluster, cluster_id)
