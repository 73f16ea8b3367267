"""A leader and a member with accounts, roles, policies and webhooks of deploy/, on a real kube-apiserver.

Both are in namespaces of one API server. Tokens are real: members' by TokenRequest, agents' bound to Pods of
Nodes.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import yaml

from devtools.ports import free_port
from devtools.waiting import wait_until
from mcagent.controller.contract import names
from mcagent.kube.client import Client
from mcagent.kube.errors import ApiRefusalError
from mcagent.kube.sources.manifests import FastLoader
from mcagent.model.kinds import KINDS, object_path
from mcagent.model.objects import Kind
from mcagent.model.parsing.node_key import NODE_KEY_ANNOTATION
from tests.kube.access import MERGE, RBAC, token_of, token_of_pod
from tests.worlds.apiservers import Cluster, Server, collection, leave_out, refusal
from tests.worlds.controllers import controller
from tests.worlds.leader_world import announce, service

DEPLOY = Path(__file__).parents[2] / "deploy"
SET = "blue"
MEMBERS = ("east", "west")
JOIN_SECRET = "member-east"
_LEFT_OUT = (
    "ConfigMap",
    "CustomResourceDefinition",
    "Deployment",
    "DaemonSet",
    "Namespace",
    "PodDisruptionBudget",
)
_RIGHTS = ("ServiceAccount", "Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding", "Secret", "Lease")
Json = dict[str, Any]
NODE_KEY: Json = {"metadata": {"annotations": {NODE_KEY_ANNOTATION: '{"publicKey":"a"}'}}}


class Stage:
    """The Common Area `area`, the member's namespace `home`, and `evil`, where somebody may do everything."""

    def __init__(self, server: Server, directory: Path, stack: ExitStack) -> None:
        self.server, self.directory, self.stack = server, directory, stack
        self.admin = server.client
        self.port = free_port()
        suffix = uuid.uuid4().hex[:8]
        self.area, self.home, self.evil = (
            self._namespace(f"mcagent-{w}-{suffix}") for w in ("area", "home", "evil")
        )
        self.nodes = [f"{self.home.namespace}-{number}" for number in (1, 2)]
        self._apply("leader.yaml", {"antrea-multicluster": self.area.namespace})
        home = {"kube-system": self.home.namespace}
        self._apply("member.yaml", home, only=_RIGHTS)
        self._apply("agent.yaml", home, only=_RIGHTS, namespace=self.home.namespace)
        self._apply("examples/member-east-clusterset.yaml", home, only=_RIGHTS)
        self._apply("admission-policies.yaml", home)
        self._join()
        self._gateways()
        self._grant_node_keys()
        self._lead()
        wait_until(self._in_force, "policies, roles and webhooks to be in force", timeout=60)

    def _namespace(self, name: str) -> Cluster:
        self.admin.request("POST", "/api/v1/namespaces", body={"metadata": {"name": name}})
        self.stack.callback(self.admin.request, "DELETE", f"/api/v1/namespaces/{name}")
        return Cluster(self.server, name)

    def _apply(self, file: str, replaced: dict[str, str], only: tuple[str, ...] = (), namespace: str = "") -> None:
        text = (DEPLOY / file).read_text()
        for old, new in replaced.items():
            text = text.replace(old, new)
        # What Kubernetes runs itself stays where it is.
        for own in ("generic-garbage-collector",):
            text = text.replace(f"{self.home.namespace}:{own}", f"kube-system:{own}")
        for manifest in yaml.load_all(text, FastLoader):
            kind = manifest["kind"]
            if kind in _LEFT_OUT or (only and kind not in only):
                continue
            if namespace and not kind.startswith("Cluster"):
                manifest["metadata"]["namespace"] = namespace
            if kind == "Service":  # leads to this machine
                manifest["spec"] = {"type": "ExternalName", "externalName": "127.0.0.1"}
            if kind == "ValidatingAdmissionPolicyBinding":
                # The API server forgets a deleted binding late: tests that follow must not meet this one.
                mine = [stage.namespace for stage in (self.area, self.home, self.evil)]
                chosen = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": mine}
                manifest["spec"]["matchResources"] = {"namespaceSelector": {"matchExpressions": [chosen]}}
            for hook in manifest.get("webhooks", ()):
                hook["clientConfig"] = {"service": {**hook["clientConfig"]["service"], "port": self.port}}
            path = collection(self.admin, manifest)
            self.admin.request("POST", path, {"fieldValidation": "Strict"}, body=manifest)
            if "namespace" not in manifest["metadata"]:
                self.stack.callback(self.admin.request, "DELETE", f"{path}/{manifest['metadata']['name']}")

    def _join(self) -> None:
        """Make the ClusterSet, and the accounts of its members with the Role that tokens are bound to."""
        spec = {"clusterID": "north", "leaders": [{"clusterID": "north"}]}
        self._put(self.area, Kind.CLUSTER_SET, SET, {"spec": spec})
        for member in MEMBERS:
            self.account(self.area, member, {names.CLUSTER_ID_ANNOTATION: member})
            self.bind(self.area, member, self.area, "antrea-mc-member-cluster-role")
            self._put(self.area, Kind.SECRET, f"token-of-{member}", {"data": {"token": "c2VjcmV0"}})
        self._put(self.home, Kind.SECRET, JOIN_SECRET, {"data": {"token": "c2VjcmV0"}})
        self._put(self.home, Kind.SECRET, "of-somebody-else", {"data": {"token": "c2VjcmV0"}})

    def _gateways(self) -> None:
        """Make two Nodes, each with a Pod of the agent and a Gateway."""
        for name in self.nodes:
            self.admin.request("POST", "/api/v1/nodes", body={"metadata": {"name": name}})
            self.stack.callback(self.admin.request, "DELETE", f"/api/v1/nodes/{name}")

        def made() -> bool:
            body = gateway(self.nodes[0])
            return refusal(self.controller, "POST", self.home.gateways, body, dryRun="All") is None

        wait_until(made, "the controller to have its rights", timeout=20)
        for name in self.nodes:
            self.controller.request("POST", self.home.gateways, body=gateway(name))

    def _grant_node_keys(self) -> None:
        """Let agents write the status of Nodes, as the chart does with nodeTrafficEncryption."""
        name, group = f"{self.home.namespace}-node-keys", f"/apis/{RBAC}/v1"
        role: Json = {"metadata": {"name": name}}
        role["rules"] = [{"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]}]
        agents = {"kind": "ServiceAccount", "name": "mcagent-agent", "namespace": self.home.namespace}
        binding = {"metadata": {"name": name}, "subjects": [agents]}
        binding["roleRef"] = {"apiGroup": RBAC, "kind": "ClusterRole", "name": name}
        for plural, body in (("clusterroles", role), ("clusterrolebindings", binding)):
            self.admin.request("POST", f"{group}/{plural}", body=body)
            self.stack.callback(self.admin.request, "DELETE", f"{group}/{plural}/{name}")

    def _lead(self) -> None:
        """Run the leader's controller, as its Deployment does."""
        config = yaml.safe_load(self.server.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": token_of(self.area, "mcagent-controller")}
        file = self.directory / "leader.kubeconfig"
        file.write_text(json.dumps(config))
        file.chmod(0o600)
        settings = {
            "podNamespace": self.area.namespace,
            "leaderElection": {"leaderElect": True},
            "webhook": {"host": "127.0.0.1", "port": self.port},
        }
        self.stack.enter_context(controller("leader", file, self.area.namespace, self.directory, **settings))

    def _in_force(self) -> bool:
        east, announces = self.members["east"], self.path(Kind.MEMBER_CLUSTER_ANNOUNCE)
        allowed = (
            refusal_of(self.agent(0), self.gateway(0), {"wireGuard": {"publicKey": "a"}}, dryRun="All"),
            refusal_of(self.agent(0), self.node(0), NODE_KEY, dryRun="All"),
            refusal(east, "POST", announces, self.announce("east"), dryRun="All"),
            refusal(self.controller, "GET", self.home.path("secrets", JOIN_SECRET)),
        )
        refused = (
            refusal_of(self.admin, self.gateway(0), {"gatewayIP": "10.0.0.9"}, dryRun="All"),
            refusal_of(self.agent(0), self.node(1), NODE_KEY, dryRun="All"),
            refusal(east, "POST", announces, self.announce("west"), dryRun="All"),
        )
        return not any(allowed) and all(refused) and "is not permitted" in str(refused[-1])

    @contextmanager
    def webhook_away(self) -> Iterator[None]:
        """Have the webhook of the leader asked where nobody listens."""
        path = object_path(Kind.VALIDATING_WEBHOOK_CONFIGURATION, "", "mcagent-leader")

        def lead_to(port: int) -> None:
            hooks = self.admin.request("GET", path)["webhooks"]
            for hook in hooks:
                hook["clientConfig"]["service"]["port"] = port
            self.admin.request("PATCH", path, body={"webhooks": hooks}, content_type=MERGE)

        def away() -> bool:
            announces = self.path(Kind.MEMBER_CLUSTER_ANNOUNCE)
            error = refusal(self.members["east"], "POST", announces, self.announce("east"), dryRun="All")
            return error is not None and "failed calling webhook" in str(error)

        lead_to(free_port())
        try:
            wait_until(away, "the webhook to be missed", timeout=20)
            yield
        finally:
            lead_to(self.port)
            wait_until(self._in_force, "the webhook to be asked again", timeout=30)

    # --- who there is ---------------------------------------------------------------------------------------

    def _put(self, where: Cluster, kind: Kind, name: str, content: Json) -> None:
        head = {"apiVersion": KINDS[kind].api_version, "kind": str(kind), "metadata": {"name": name}}
        self.admin.request("POST", object_path(kind, where.namespace), body=head | content)

    def account(self, where: Cluster, name: str, annotations: dict[str, str] | None = None) -> None:
        """Make a ServiceAccount."""
        where.create(where.path("serviceaccounts"), name, metadata={"annotations": annotations or {}})

    def bind(self, where: Cluster, account: str, home: Cluster, role: str, kind: str = "Role") -> None:
        """Bind an account of `home` to a role in a namespace."""
        body = {
            "metadata": {"name": f"{account}-{home.namespace}-{role}"},
            "roleRef": {"apiGroup": RBAC, "kind": kind, "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": home.namespace}],
        }
        self.admin.request("POST", object_path(Kind.ROLE_BINDING, where.namespace), body=body)

    def client(self, token: str) -> Client:
        """Return a client with a token."""
        return self.stack.enter_context(closing(self.server.as_token(token)))

    @cached_property
    def members(self) -> dict[str, Client]:
        """The members' clients."""
        return {member: self.client(token_of(self.area, member)) for member in MEMBERS}

    @cached_property
    def controller(self) -> Client:
        """The client of the member's controller."""
        return self.client(token_of(self.home, "mcagent-controller"))

    @cached_property
    def _agents(self) -> list[Client]:
        return [self.client(token_of_pod(self.home, "mcagent-agent", node)) for node in self.nodes]

    def agent(self, number: int) -> Client:
        """Return the client of a Node's agent, with the token of its Pod."""
        return self._agents[number]

    # --- what there is --------------------------------------------------------------------------------------

    def announce(self, cluster: str) -> Json:
        """Return the announcement of a cluster to the ClusterSet."""
        announcement = announce(cluster, cluster_set=SET) | {
            "apiVersion": KINDS[Kind.MEMBER_CLUSTER_ANNOUNCE].api_version
        }
        announcement["metadata"] = {"name": names.announce(cluster)}
        return announcement

    def path(self, kind: Kind, name: str = "") -> str:
        """Return a path of the Common Area."""
        return object_path(kind, self.area.namespace, name)

    def gateway(self, number: int) -> str:
        """Return the path of a Node's Gateway."""
        return f"{self.home.gateways}/{self.nodes[number]}"

    def node(self, number: int) -> str:
        """Return the path of a Node's status."""
        return f"/api/v1/nodes/{self.nodes[number]}/status"

    def there(self, kind: Kind, obj: Json) -> str:
        """Make an object of the Common Area as its member, if it is not there; return its path."""
        path = self.path(kind, obj["metadata"]["name"])
        cluster = obj.get("clusterID") or obj["spec"]["clusterID"]
        if refusal(self.admin, "GET", path) is not None:
            self.members[cluster].request("POST", self.path(kind), body=obj)
        return path


def gateway(name: str) -> Json:
    """Return a Gateway."""
    head = {"apiVersion": KINDS[Kind.GATEWAY].api_version, "kind": "Gateway", "metadata": {"name": name}}
    return head | {"gatewayIP": "192.0.2.1", "internalIP": "192.0.2.1", "serviceCIDR": "10.96.0.0/16"}


def export_of(cluster: str, target: str = "shop/cart") -> Json:
    """Return the export of a Service, as a member's controller writes it."""
    export = service(cluster, target) | {"apiVersion": KINDS[Kind.RESOURCE_EXPORT].api_version}
    spec = export["spec"]
    labels = {"sourceClusterID": cluster, "sourceKind": "Service"}
    labels |= {"sourceName": spec["name"], "sourceNamespace": spec["namespace"]}
    export["metadata"] = {
        "name": names.service_export(cluster, spec["namespace"], spec["name"]),
        "labels": labels,
        "finalizers": [names.EXPORT_FINALIZER],
    }
    return export


def refusal_of(client: Client, path: str, patch: Json, **query: str) -> ApiRefusalError | None:
    """Patch an object and return how it was refused, None if it was not."""
    try:
        client.request("PATCH", path, query, body=patch, content_type=MERGE)
    except ApiRefusalError as error:
        return error
    return None


def decoded(secret: Json, key: str) -> str:
    """Return what a Secret has under a key."""
    return base64.b64decode(secret["data"][key]).decode()


def stopped(refused: ApiRefusalError | None, *words: str) -> None:
    """Check that a request was refused, and by what: the API server names one of several policies that refuse."""
    assert refused is not None, "it was allowed"
    assert any(word in str(refused) for word in words), refused


@pytest.fixture(scope="module")
def _stages() -> Iterator[tuple[dict[str, Stage], ExitStack]]:
    with ExitStack() as stack:
        yield {}, stack


@pytest.fixture
def stage(
    request: pytest.FixtureRequest,
    server: Server,
    _stages: tuple[dict[str, Stage], ExitStack],
    tmp_path_factory: pytest.TempPathFactory,
) -> Stage:
    """Give the stage, the same one for all tests of this file."""
    stages, stack = _stages
    if server.real is None:
        leave_out(request, "the API server of MCAGENT_TEST_KUBECONFIG cannot ask a webhook of this machine")
    if server.kind not in stages:
        stages[server.kind] = Stage(server, tmp_path_factory.mktemp("stage"), stack)
    return stages[server.kind]
