"""The webhooks that `deploy/` configures, on a real API server: by Service, with the certificate in the Secret.

Leader and member run with the rights of their manifests; the Service leads to this machine. The embedded server
has neither mutating webhooks nor CEL: what it has is in tests/embedded/test_controller_process.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from devtools.ports import free_port
from devtools.waiting import wait_until
from mcagent.controller.config import ControllerRole
from mcagent.controller.contract import names
from mcagent.kube.client import Client
from mcagent.model.kinds import KINDS, object_path
from mcagent.model.objects import Kind
from tests.kube.access import grant, rule, token_of
from tests.worlds.apiservers import Cluster, collection, leave_out, refusal
from tests.worlds.controllers import Controller, controller
from tests.worlds.leader_world import announce, export, service

DEPLOY = Path(__file__).parents[3] / "deploy"
HOME = {ControllerRole.LEADER: "antrea-multicluster", ControllerRole.MEMBER: "kube-system"}
NOT_APPLIED = ("ConfigMap", "CustomResourceDefinition", "Deployment", "Namespace", "PodDisruptionBudget")

pytestmark = pytest.mark.real_only


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
        for manifest in yaml.safe_load_all(text):
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


@pytest.fixture
def shipped(
    request: pytest.FixtureRequest, cluster: Cluster, role: ControllerRole, tmp_path: Path
) -> Iterator[Shipped]:
    """Give a role's manifests in the test's namespace."""
    if cluster.server.kind != "real":
        leave_out(request, "the API server of MCAGENT_TEST_KUBECONFIG cannot ask a webhook of this machine")
    shipped = Shipped(cluster, role, tmp_path)
    with shipped.stack:
        yield shipped


def cluster_set(name: str, cluster_id: str = "north") -> dict[str, Any]:
    """Return a ClusterSet of a leader."""
    spec = {"clusterID": cluster_id, "leaders": [{"clusterID": "north"}]}
    return {"kind": "ClusterSet", "metadata": {"name": name}, "spec": spec}


def gateway(name: str) -> dict[str, Any]:
    """Return a Gateway."""
    return {"kind": "Gateway", "metadata": {"name": name}, "gatewayIP": "10.0.0.1", "internalIP": "10.0.0.1"}


def reviews(leader: Controller) -> float:
    """Return how many reviews of ResourceExports there were, of both webhooks."""
    return leader.metric("mcagent_controller_webhook_requests_total", 'kind="ResourceExport"')


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


@pytest.mark.parametrize("role", [ControllerRole.LEADER])
def test_the_leaders_webhooks(shipped: Shipped) -> None:
    """Policies are completed, and only they; members are checked; the leader does without its own webhook."""
    exports = object_path(Kind.RESOURCE_EXPORT, shipped.cluster.namespace)
    policy = export("east", "AntreaClusterNetworkPolicy", "acnp", {"name": "acnp"})
    policy["metadata"] = {"name": "acnp", "labels": {"mine": "1"}, "finalizers": ["example.org/held"]}
    complete = {
        "mine": "1",
        "sourceName": "acnp",
        "sourceNamespace": "",
        "sourceKind": "AntreaClusterNetworkPolicy",
    }
    by_hand = service("east") | {"metadata": {"name": "by-hand"}}
    east = shipped.stack.enter_context(closing(shipped.cluster.server.as_token(join(shipped, "east"))))
    assert shipped.write(cluster_set("set")) == ""  # failurePolicy Ignore: nobody answers yet
    assert "failed calling webhook" in shipped.write(by_hand)

    def in_force() -> bool:
        return (
            "has a ClusterSet already" in shipped.write(cluster_set("second"), dryRun="All")
            and "must be a ServiceAccount" in shipped.write(announce("east", cluster_set="set"), dryRun="All")
            and "denied" in shipped.write(service("west"), east, dryRun="All")
        )

    with shipped.running() as leader:
        wait_until(in_force, "the webhooks to be asked", timeout=30)
        before = reviews(leader)
        assert shipped.write(by_hand) == ""
        assert reviews(leader) == before + 1  # not by /mutate: matchConditions
        meta = shipped.get(Kind.RESOURCE_EXPORT, "by-hand")["metadata"]
        assert not {"labels", "finalizers"} & set(meta)

        assert shipped.write(policy) == ""
        assert reviews(leader) == before + 3
        meta = shipped.get(Kind.RESOURCE_EXPORT, "acnp")["metadata"]
        assert meta["labels"] == complete
        assert meta["finalizers"] == ["example.org/held", names.EXPORT_FINALIZER]
        changed = shipped.change(Kind.RESOURCE_EXPORT, "acnp", {"metadata": {"labels": {"sourceKind": "other"}}})
        assert changed["metadata"]["labels"] == complete

        assert "403" in shipped.write(announce("west", cluster_set="set"), east)
        assert shipped.write(announce("east", cluster_set="set"), east) == ""
        path = object_path(Kind.CLUSTER_SET, shipped.cluster.namespace, "set")

        def kept_for_its_member() -> bool:
            refused = refusal(shipped.cluster.client, "DELETE", path, dryRun="All")
            return "1 clusters are still members" in str(refused)

        wait_until(kept_for_its_member, "the leader to list the member", timeout=30)
    # Its process has ended: members cannot write, while it, or another replica of it, can.
    assert "failed calling webhook" in shipped.write(service("east"), east)
    assert shipped.change(Kind.RESOURCE_EXPORT, "acnp", {"metadata": {"finalizers": None}}, shipped.own)
    shipped.own.request("DELETE", f"{exports}/acnp")


@pytest.mark.parametrize("role", [ControllerRole.MEMBER])
def test_the_members_webhooks(shipped: Shipped) -> None:
    """A second ClusterSet is refused while the controller runs; Gateways need no webhook."""
    assert shipped.write(cluster_set("set", "east")) == ""

    def in_force() -> bool:
        return "has a ClusterSet already" in shipped.write(cluster_set("second"), dryRun="All")

    with shipped.running():
        wait_until(in_force, "the webhook to be asked", timeout=30)
    assert shipped.write(gateway("node-1"), shipped.own) == ""


@pytest.mark.parametrize("role", [ControllerRole.LEADER])
def test_a_leader_of_all_namespaces(shipped: Shipped) -> None:
    """In another Common Area it has the rights to work, and its webhook checks who is who."""
    shipped.apply("leader-all-namespaces.yaml")
    client, home = shipped.cluster.client, shipped.cluster.namespace
    shipped.cluster.namespace = other = f"{home}-other"
    client.request("POST", "/api/v1/namespaces", body={"metadata": {"name": other}})
    shipped.stack.callback(client.request, "DELETE", f"/api/v1/namespaces/{other}")
    shipped.cluster.create(shipped.cluster.path("serviceaccounts"), "east", metadata=standing_for("east"))
    verbs = ["get", "list", "watch", "create", "update", "patch", "delete"]
    grant(shipped.cluster, "east", rule(*verbs, resources="memberclusterannounces resourceexports"))
    east = shipped.stack.enter_context(closing(shipped.cluster.server.as_token(token_of(shipped.cluster, "east"))))
    assert shipped.write(cluster_set("set")) == ""

    def in_force() -> bool:
        return "is not permitted" in shipped.write(announce("west", cluster_set="set"), east, dryRun="All")

    shipped.cluster.namespace = home
    with shipped.running("*"):
        shipped.cluster.namespace = other
        wait_until(in_force, "the webhook to be asked", timeout=30)
        assert shipped.write(announce("east", cluster_set="set"), east) == ""

        def joined() -> bool:
            return bool(shipped.get(Kind.CLUSTER_SET, "set").get("status", {}).get("readyClusters") == 1)

        wait_until(joined, "the member to be Ready", timeout=30)
    shipped.cluster.namespace = home
