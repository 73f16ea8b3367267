"""Admission and RBAC as shipped, on a real kube-apiserver: who may write what, and who reads Secrets.

One leader and one member, with accounts, roles, policies and webhooks of `deploy/` in two namespaces of one API
server. Tokens are real: members' by TokenRequest, agents' bound to Pods of Nodes.
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
from mcagent.cli.main import main
from mcagent.controller.contract import names
from mcagent.kube.client import Client
from mcagent.kube.errors import ApiRefusalError
from mcagent.model.kinds import KINDS, object_path
from mcagent.model.objects import Kind
from mcagent.model.parsing.node_key import NODE_KEY_ANNOTATION
from tests.attacks.catalogue import Attacker, Group, attack
from tests.kube.access import MERGE, RBAC, grant, token_of, token_of_pod
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

pytestmark = pytest.mark.real_only  # the embedded server has neither CEL nor tokens of Pods


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
        for manifest in yaml.safe_load_all(text):
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
            told = refusal(self.members["east"], "POST", announces, self.announce("east"), dryRun="All")
            return told is not None and "failed calling webhook" in str(told)

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
        found = announce(cluster, cluster_set=SET) | {
            "apiVersion": KINDS[Kind.MEMBER_CLUSTER_ANNOUNCE].api_version
        }
        found["metadata"] = {"name": names.announce(cluster)}
        return found

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
    found = service(cluster, target) | {"apiVersion": KINDS[Kind.RESOURCE_EXPORT].api_version}
    spec = found["spec"]
    labels = {"sourceClusterID": cluster, "sourceKind": "Service"}
    labels |= {"sourceName": spec["name"], "sourceNamespace": spec["namespace"]}
    found["metadata"] = {
        "name": names.service_export(cluster, spec["namespace"], spec["name"]),
        "labels": labels,
        "finalizers": [names.EXPORT_FINALIZER],
    }
    return found


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
    assert any(one in str(refused) for one in words), refused


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
    made, stack = _stages
    if server.real is None:
        leave_out(request, "the API server of MCAGENT_TEST_KUBECONFIG cannot ask a webhook of this machine")
    if server.kind not in made:
        made[server.kind] = Stage(server, tmp_path_factory.mktemp("stage"), stack)
    return made[server.kind]


# --- a Node: the agent's token -----------------------------------------------------------------------------


@attack(
    Group.ACCESS,
    Attacker.NODE,
    wants="move another gateway's address to itself, with the agent's token of one Node",
    stopped_by="admission policies: an agent changes the field `wireGuard` alone, of its own Node's Gateway",
)
def test_the_address_of_another_gateway(stage: Stage) -> None:
    """`gatewayIP` of node 2's Gateway is not node 1's to write."""
    refused = refusal_of(stage.agent(0), stage.gateway(1), {"gatewayIP": "192.0.2.66"})
    stopped(refused, "changes the field wireGuard", "the Gateway of that Node only")


@attack(
    Group.ACCESS,
    Attacker.NODE,
    wants="put its own key into another gateway's object, so that peers encrypt to it",
    stopped_by="an admission policy: the Node that the API server finds in the token is the Gateway's name",
)
def test_the_key_of_another_gateway(stage: Stage) -> None:
    """The same field of its own Gateway it may write."""
    key = {"wireGuard": {"publicKey": "attacker"}}
    assert refusal_of(stage.agent(0), stage.gateway(0), {"wireGuard": {"publicKey": "own"}}) is None
    stopped(refusal_of(stage.agent(0), stage.gateway(1), key), "changes the Gateway of that Node only")


@attack(
    Group.ACCESS,
    Attacker.NODE,
    wants="give its own gateway another address, or another Service CIDR, than the controller chose",
    stopped_by="an admission policy: an agent changes the field `wireGuard` alone",
)
@pytest.mark.parametrize("field", ["gatewayIP", "internalIP", "serviceCIDR"])
def test_its_own_address(stage: Stage, field: str) -> None:
    """Addresses are the controller's to write."""
    change = {field: "10.0.0.0/8", "wireGuard": {"publicKey": "own"}}
    stopped(refusal_of(stage.agent(0), stage.gateway(0), change), "changes the field wireGuard")


@attack(
    Group.ACCESS,
    Attacker.NODE,
    wants="keep its Gateway from going, or have others taken with it, by its finalizers, owners or labels",
    stopped_by="an admission policy: an agent changes no metadata",
)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("finalizers", ["example.org/stays"]),
        ("ownerReferences", [{"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "u"}]),
        ("labels", {"a": "b"}),
        ("annotations", {"a": "b"}),
    ],
)
def test_metadata(stage: Stage, field: str, value: object) -> None:
    """Each of them is refused, with or without a key."""
    stopped(
        refusal_of(stage.agent(0), stage.gateway(0), {"metadata": {field: value}}), "changes the field wireGuard"
    )


@attack(
    Group.ACCESS,
    Attacker.NODE,
    wants="write any gateway's key with a token of the agents' account that names no Node",
    stopped_by="an admission policy, which fails closed on such a token",
)
def test_a_token_without_a_node(stage: Stage) -> None:
    """As `kubectl create token` makes it; the refusal says what would be right."""
    client = stage.client(token_of(stage.home, "mcagent-agent"))
    stopped(refusal_of(client, stage.gateway(0), {"wireGuard": {"publicKey": "x"}}), "names no Node")


@attack(
    Group.ACCESS,
    Attacker.NODE,
    wants="have other Nodes encrypt to it in place of another Node, by the key in that Node's annotation",
    stopped_by="an admission policy: an agent changes the annotation `mcagent.io/wireguard` of its own Node only",
)
def test_the_key_of_another_node(stage: Stage) -> None:
    """Its own it may write; a token that names no Node is refused, too."""
    assert refusal_of(stage.agent(0), stage.node(0), NODE_KEY) is None
    written = stage.admin.request("GET", stage.node(0).removesuffix("/status"))
    assert written["metadata"]["annotations"][NODE_KEY_ANNOTATION] == '{"publicKey":"a"}'
    stopped(refusal_of(stage.agent(0), stage.node(1), NODE_KEY), "changes its own Node only")
    without_node = stage.client(token_of(stage.home, "mcagent-agent"))
    stopped(refusal_of(without_node, stage.node(0), NODE_KEY), "changes its own Node only")
    assert (
        refusal_of(stage.agent(0), stage.node(0), {"metadata": {"annotations": {NODE_KEY_ANNOTATION: None}}})
        is None
    )


@attack(
    Group.ACCESS,
    Attacker.NODE,
    wants="change addresses, conditions, labels or annotations of its Node with the right to publish a key there",
    stopped_by="an admission policy: an agent changes this annotation of its Node, and nothing else",
)
@pytest.mark.parametrize(
    "change",
    [
        {"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.66"}]}},
        {"status": {"conditions": [{"type": "Ready", "status": "True"}]}},
        {"metadata": {"labels": {"a": "b"}}},
        {"metadata": {"annotations": {"a": ""}}},
        {"metadata": {"annotations": {"mcagent.io/drain": "true"}}},
        {"metadata": {"finalizers": ["example.org/stays"]}},
    ],
    ids=lambda change: next(iter(next(iter(change.values())))),
)
def test_more_than_the_key_of_its_node(stage: Stage, change: Json) -> None:
    """Beside the key as well as alone."""
    with_key = {**change, "metadata": {**NODE_KEY["metadata"], **change.get("metadata", {})}}
    for patch in (change, with_key):
        stopped(refusal_of(stage.agent(0), stage.node(0), patch), "and nothing else")


@attack(
    Group.ACCESS,
    Attacker.NODE,
    wants="make itself a gateway, or take the gateways away",
    stopped_by="RBAC: agents neither create nor delete Gateways",
)
def test_gateways_of_its_own(stage: Stage) -> None:
    """Create, server-side apply and delete are refused."""
    body = gateway("new")
    stopped(refusal(stage.agent(0), "POST", stage.home.gateways, body), "cannot create")
    stopped(
        refusal(stage.agent(0), "APPLY", f"{stage.home.gateways}/new", body, fieldManager="x"), "cannot create"
    )
    stopped(refusal(stage.agent(0), "DELETE", stage.gateway(1)), "cannot delete")
    stopped(refusal(stage.agent(0), "DELETE", stage.home.gateways), "cannot deletecollection")


@attack(
    Group.ACCESS,
    Attacker.NODE,
    wants="read Secrets, or get tokens of other accounts, with the agent's token",
    stopped_by="RBAC: the agent's role has neither",
)
def test_secrets_by_the_agents_token(stage: Stage) -> None:
    """Neither in its namespace nor anywhere; nor may it request a token or change a Node."""
    agent, home = stage.agent(0), stage.home
    for path in ("/api/v1/secrets", home.path("secrets"), home.path("secrets", JOIN_SECRET)):
        stopped(refusal(agent, "GET", path), "secrets")
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    path = home.path("serviceaccounts", "mcagent-controller") + "/token"
    stopped(refusal(agent, "POST", path, body), "cannot create")
    notes = {"metadata": {"annotations": {"multicluster.antrea.io/gateway": "true"}}}
    stopped(refusal_of(agent, f"/api/v1/nodes/{stage.nodes[0]}", notes), "cannot patch")


@attack(
    Group.ACCESS,
    Attacker.NODE,
    wants="read the Secrets of kube-system with the token of the member's controller, from the Node that runs it",
    stopped_by="RBAC: a Role for the one Secret with the leader's token, by its name",
)
def test_other_secrets_of_the_members_namespace(stage: Stage) -> None:
    """Get, list and watch of others are refused; the Secret of the ClusterSet it reads as its watch does."""
    client, secrets = stage.controller, stage.home.path("secrets")
    assert client.request("GET", f"{secrets}/{JOIN_SECRET}")["data"]
    chosen = {"fieldSelector": f"metadata.name={JOIN_SECRET}"}
    assert len(client.request("GET", secrets, chosen)["items"]) == 1
    stopped(refusal(client, "GET", f"{secrets}/of-somebody-else"), "cannot get")
    stopped(refusal(client, "GET", secrets), "cannot list")
    stopped(refusal(client, "GET", secrets, fieldSelector="metadata.name=of-somebody-else"), "cannot list")
    stopped(refusal(client, "GET", secrets, fieldSelector="metadata.name!=a"), "cannot list")
    stopped(refusal(client, "GET", secrets, watch="true"), "cannot watch")
    stopped(refusal(client, "GET", "/api/v1/secrets", **chosen), "cannot list")


@attack(
    Group.ACCESS,
    Attacker.NODE,
    wants="have Kubernetes write another account's token into a Secret that the controller may read",
    stopped_by="RBAC: controllers create no Secrets; the manifests bring the one that they fill",
)
@pytest.mark.parametrize("role", ["leader", "member"])
def test_a_token_of_another_account(stage: Stage, role: str) -> None:
    """A Secret of the type that Kubernetes fills, by the name that may be read; nor can ours become one."""
    where = stage.area if role == "leader" else stage.home
    client = stage.client(token_of(where, "mcagent-controller"))
    name = f"mcagent-{role}-webhook"
    notes = {"kubernetes.io/service-account.name": "default"}
    body: Json = {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token"}
    for wanted in (JOIN_SECRET, name, "new"):
        made = body | {"metadata": {"name": wanted, "annotations": notes}}
        stopped(refusal(client, "POST", where.path("secrets"), made), "cannot create")
    stopped(refusal(client, "DELETE", where.path("secrets", name)), "cannot delete")
    for changed_secret in (name,) if role == "leader" else (name, JOIN_SECRET):
        there = stage.admin.request("GET", where.path("secrets", changed_secret))
        changed = there | {"type": body["type"], "metadata": there["metadata"] | {"annotations": notes}}
        stopped(refusal(client, "PUT", where.path("secrets", changed_secret), changed), "field is immutable")


# --- a namespace user --------------------------------------------------------------------------------------


@attack(
    Group.ACCESS,
    Attacker.USER,
    wants="make a Gateway in its own namespace, by an account that is named like the agents' or the controller's",
    stopped_by="an admission policy: accounts count by namespace and name",
)
@pytest.mark.parametrize("name", ["mcagent-agent", "mcagent-controller", "antrea-agent", "antrea-mc-controller"])
def test_an_account_of_a_known_name(stage: Stage, name: str) -> None:
    """In its namespace it may do everything, says RBAC."""
    stage.account(stage.evil, name)
    stage.bind(stage.evil, name, stage.evil, "cluster-admin", "ClusterRole")
    client = stage.client(token_of(stage.evil, name))
    wait_until(lambda: refusal(client, "GET", stage.evil.gateways) is None, "the binding to be known")
    stopped(refusal(client, "POST", stage.evil.gateways, gateway("x")), "only the controllers and agents")


@attack(
    Group.ACCESS,
    Attacker.USER,
    wants="choose the gateways and their addresses by annotations of Nodes, or join a ClusterSet of its own",
    stopped_by="RBAC: who has all of a namespace has neither Nodes nor the objects of a ClusterSet",
)
def test_annotations_of_nodes(stage: Stage) -> None:
    """With all that Kubernetes itself has in its namespace."""
    stage.account(stage.evil, "owner")
    groups = ["", "apps", "batch", "discovery.k8s.io", "networking.k8s.io", "coordination.k8s.io"]
    grant(stage.evil, "owner", {"apiGroups": groups, "resources": ["*"], "verbs": ["*"]})
    client = stage.client(token_of(stage.evil, "owner"))
    wait_until(lambda: refusal(client, "GET", stage.evil.configmaps) is None, "the binding to be known")
    notes = {"multicluster.antrea.io/gateway": "true", "multicluster.antrea.io/gateway-ip": "192.0.2.66"}
    stopped(
        refusal_of(client, f"/api/v1/nodes/{stage.nodes[0]}", {"metadata": {"annotations": notes}}, dryRun="All"),
        "cannot patch",
    )
    for kind in (Kind.CLUSTER_SET, Kind.CLUSTER_INFO_IMPORT, Kind.GATEWAY):
        body = {"apiVersion": KINDS[kind].api_version, "kind": str(kind), "metadata": {"name": "x"}, "spec": {}}
        for namespace in (stage.evil.namespace, stage.home.namespace):
            stopped(refusal(client, "POST", object_path(kind, namespace), body, dryRun="All"), "cannot create")


@attack(
    Group.ACCESS,
    Attacker.USER,
    wants="export in a member's name by an account of the Common Area that stands for no cluster",
    stopped_by="the webhook: such an account writes nothing, unless the administrator trusts it by name",
)
def test_an_account_without_a_cluster(stage: Stage) -> None:
    """Roles alone do not suffice, nor for touching what is there."""
    stage.account(stage.area, "nobody")
    stage.bind(stage.area, "nobody", stage.area, "antrea-mc-member-cluster-role")
    client = stage.client(token_of(stage.area, "nobody"))
    exports = stage.path(Kind.RESOURCE_EXPORT)
    wait_until(lambda: refusal(client, "GET", exports) is None, "the binding to be known")
    there = stage.there(Kind.RESOURCE_EXPORT, export_of("west"))
    stopped(refusal(client, "POST", exports, export_of("west", "shop/new")), "stands for no cluster")
    stopped(refusal_of(client, there, {"metadata": {"annotations": {"a": "b"}}}), "stands for no cluster")
    stopped(refusal(client, "DELETE", there), "stands for no cluster")


@attack(
    Group.ACCESS,
    Attacker.USER,
    wants="export in a member's name by an account of another namespace that has a member's rights",
    stopped_by="the webhook: members' accounts are those of the Common Area",
)
def test_an_account_of_another_namespace(stage: Stage) -> None:
    """Also with the annotation, which anybody can write in a namespace of their own."""
    stage.account(stage.evil, "west", {names.CLUSTER_ID_ANNOTATION: "west"})
    stage.bind(stage.area, "west", stage.evil, "antrea-mc-member-cluster-role")
    client = stage.client(token_of(stage.evil, "west"))
    exports = stage.path(Kind.RESOURCE_EXPORT)
    wait_until(lambda: refusal(client, "GET", exports) is None, "the binding to be known")
    stopped(refusal(client, "POST", exports, export_of("west", "shop/new")), "is not in namespace")
    stopped(refusal(client, "DELETE", stage.there(Kind.RESOURCE_EXPORT, export_of("west"))), "is not in namespace")
    announced = stage.there(Kind.MEMBER_CLUSTER_ANNOUNCE, stage.announce("west"))
    stopped(refusal(client, "DELETE", announced), "is not in namespace")


# --- a member ----------------------------------------------------------------------------------------------


@attack(
    Group.ACCESS,
    Attacker.MEMBER,
    wants="join as another member, or as the leader's cluster",
    stopped_by="the webhook: the cluster ID is that of the ServiceAccount's annotation",
)
@pytest.mark.parametrize("cluster", ["west", "north", "south", "east-1"])
def test_another_cluster_id(stage: Stage, cluster: str) -> None:
    """Neither one that is there, nor the leader's, nor a new one."""
    stopped(
        refusal(stage.members["east"], "POST", stage.path(Kind.MEMBER_CLUSTER_ANNOUNCE), stage.announce(cluster)),
        "is not permitted",
    )


@attack(
    Group.ACCESS,
    Attacker.MEMBER,
    wants="delete or change the export or the announcement of another member",
    stopped_by="the webhook: what is there belongs to the cluster that it names",
)
def test_what_is_another_members(stage: Stage) -> None:
    """Delete, patch, and taking the finalizer off."""
    east = stage.members["east"]
    exported = stage.there(Kind.RESOURCE_EXPORT, export_of("west"))
    announced = stage.there(Kind.MEMBER_CLUSTER_ANNOUNCE, stage.announce("west"))
    stopped(refusal(east, "DELETE", exported), "another member")
    stopped(refusal_of(east, exported, {"metadata": {"finalizers": None}}), "another member")
    stopped(refusal_of(east, exported, {"spec": {"service": {"serviceSpec": {"ports": []}}}}), "another member")
    stopped(refusal(east, "DELETE", announced), "is not permitted")
    stopped(refusal_of(east, announced, {"metadata": {"annotations": {names.HEARTBEAT_ANNOTATION: ""}}}), "is not")
    stopped(refusal(east, "DELETE", stage.path(Kind.RESOURCE_EXPORT)), "cannot deletecollection")


@attack(
    Group.ACCESS,
    Attacker.MEMBER,
    wants="take another member's place while the leader's controller is away, which checks who is who",
    stopped_by="`failurePolicy: Fail`: without an answer no account writes announcements and exports",
)
def test_while_the_webhook_is_away(stage: Stage) -> None:
    """The webhook's Service leads nowhere: not even what would be right is taken."""
    east, announces = stage.members["east"], stage.path(Kind.MEMBER_CLUSTER_ANNOUNCE)
    exported = stage.there(Kind.RESOURCE_EXPORT, export_of("west"))
    with stage.webhook_away():
        for refused in (
            refusal(east, "POST", announces, stage.announce("south")),
            refusal(east, "POST", stage.path(Kind.RESOURCE_EXPORT), export_of("west", "shop/other")),
            refusal(east, "DELETE", exported),
        ):
            stopped(refused, "failed calling webhook")


@attack(
    Group.ACCESS,
    Attacker.MEMBER,
    wants="tell all members what is imported, past the leader, or that its own exports succeeded",
    stopped_by="RBAC: ResourceImports and every status are the leader's",
)
def test_imports_and_statuses(stage: Stage) -> None:
    """Members read imports, and write neither them nor a status."""
    east, imports = stage.members["east"], stage.path(Kind.RESOURCE_IMPORT)
    body = {"apiVersion": KINDS[Kind.RESOURCE_IMPORT].api_version, "kind": "ResourceImport"}
    stopped(refusal(east, "POST", imports, body | {"metadata": {"name": "x"}, "spec": {}}), "cannot create")
    stopped(refusal_of(east, f"{imports}/x", {"spec": {}}), "cannot patch")
    stopped(refusal(east, "DELETE", f"{imports}/x"), "cannot delete")
    own = stage.there(Kind.RESOURCE_EXPORT, export_of("east"))
    stopped(refusal_of(east, f"{own}/status", {"status": {"conditions": []}}), "cannot patch")
    cluster_set = stage.path(Kind.CLUSTER_SET, SET)
    stopped(refusal_of(east, cluster_set, {"spec": {"clusterID": "east"}}), "cannot patch")


@attack(
    Group.ACCESS,
    Attacker.MEMBER,
    wants="read the tokens of other members, or get one of their accounts' or the controller's",
    stopped_by="RBAC: the members' Role has no Secrets and no ServiceAccounts",
)
def test_tokens_of_others(stage: Stage) -> None:
    """Neither by name nor by list, nor its own, nor a fresh one."""
    east, secrets = stage.members["east"], stage.area.path("secrets")
    for path in (
        secrets,
        f"{secrets}/token-of-west",
        f"{secrets}/token-of-east",
        f"{secrets}/mcagent-leader-webhook",
    ):
        stopped(refusal(east, "GET", path), "secrets")
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    for account in ("west", "mcagent-controller"):
        path = stage.area.path("serviceaccounts", account) + "/token"
        stopped(refusal(east, "POST", path, body), "cannot create")


@attack(
    Group.ACCESS,
    Attacker.MEMBER,
    wants="widen what it may claim, or become another cluster, by the annotations of its ServiceAccount",
    stopped_by="RBAC: the members' Role has no ServiceAccounts, Roles or bindings",
)
@pytest.mark.parametrize("account", ["east", "west"])
def test_its_own_bounds(stage: Stage, account: str) -> None:
    """Annotations of accounts are the administrator's; so are further rights."""
    east = stage.members["east"]
    path = stage.area.path("serviceaccounts", account)
    notes = {names.CLUSTER_ID_ANNOTATION: "west", "mcagent.io/allowed-cidrs": "0.0.0.0/0"}
    stopped(refusal_of(east, path, {"metadata": {"annotations": notes}}), "cannot patch")
    stopped(refusal(east, "GET", path), "cannot get")
    bindings = object_path(Kind.ROLE_BINDING, stage.area.namespace)
    body = {
        "metadata": {"name": "x"},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "cluster-admin"},
    }
    stopped(refusal(east, "POST", bindings, body), "cannot create")


@pytest.mark.controllers
@attack(
    Group.ACCESS,
    Attacker.MEMBER,
    wants="go on with a token that was taken away, within the seconds for which the API server still believes it",
    stopped_by="`mcagent membertoken delete`: the RoleBinding goes first, then account and Secret",
)
def test_a_token_that_was_taken_away(stage: Stage, tmp_path: Path) -> None:
    """A token in use loses its rights at once, then is nobody's."""
    file = tmp_path / "south.yaml"
    options = ("-n", stage.area.namespace, "--kubeconfig", str(stage.server.kubeconfig))
    create = ("--cluster-id", "south", "-o", str(file), "--expires", "never")
    assert main(["membertoken", "create", "south", *create, *options]) == 0
    south = stage.client(decoded(yaml.safe_load(file.read_text()), "token"))
    exports = stage.path(Kind.RESOURCE_EXPORT)
    wait_until(lambda: refusal(south, "GET", exports) is None, "the binding to be known")
    assert main(["membertoken", "delete", "south", "--yes", *options]) == 0

    def out() -> bool:
        refused = refusal(south, "GET", exports)
        return refused is not None and refused.code in (401, 403)

    wait_until(out, "the token to have no rights", timeout=3)  # a token in use is believed for ten seconds
    stopped(refusal(south, "POST", exports, export_of("south")), "")
