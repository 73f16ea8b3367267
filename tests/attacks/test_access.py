"""Admission and RBAC as shipped, on a real kube-apiserver: who may write what, and who reads Secrets."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import yaml

from devtools.waiting import wait_until
from mcagent.cli.main import main
from mcagent.controller.contract import names
from mcagent.model.kinds import KINDS, object_path
from mcagent.model.objects import Kind
from mcagent.model.parsing.node_key import NODE_KEY_ANNOTATION
from tests.attacks.catalogue import Attacker, Group, attack
from tests.kube.access import RBAC, grant, token_of
from tests.worlds.apiservers import refusal
from tests.worlds.shipped_access import (
    JOIN_SECRET,
    NODE_KEY,
    SET,
    Json,
    Stage,
    _stages,
    decoded,
    export_of,
    gateway,
    refusal_of,
    stage,
    stopped,
)

__all__ = ["_stages", "stage"]  # fixtures


pytestmark = pytest.mark.real_only  # the embedded server has neither CEL nor tokens of Pods

by_node = partial(attack, Group.ACCESS, Attacker.NODE)
by_member = partial(attack, Group.ACCESS, Attacker.MEMBER)
by_user = partial(attack, Group.ACCESS, Attacker.USER)


# --- a Node: the agent's token -----------------------------------------------------------------------------


@by_node(
    wants="move another gateway's address to itself, with the agent's token of one Node",
    stopped_by="admission policies: an agent changes the field `wireGuard` alone, of its own Node's Gateway",
)
def test_the_address_of_another_gateway(stage: Stage) -> None:
    """`gatewayIP` of node 2's Gateway is not node 1's to write."""
    refused = refusal_of(stage.agent(0), stage.gateway(1), {"gatewayIP": "192.0.2.66"})
    stopped(refused, "changes the field wireGuard", "the Gateway of that Node only")


@by_node(
    wants="put its own key into another gateway's object, so that peers encrypt to it",
    stopped_by="an admission policy: the Node that the API server finds in the token is the Gateway's name",
)
def test_the_key_of_another_gateway(stage: Stage) -> None:
    """The same field of its own Gateway it may write."""
    key = {"wireGuard": {"publicKey": "attacker"}}
    assert refusal_of(stage.agent(0), stage.gateway(0), {"wireGuard": {"publicKey": "own"}}) is None
    stopped(refusal_of(stage.agent(0), stage.gateway(1), key), "changes the Gateway of that Node only")


@by_node(
    wants="give its own gateway another address, or another Service CIDR, than the controller chose",
    stopped_by="an admission policy: an agent changes the field `wireGuard` alone",
)
@pytest.mark.parametrize("field", ["gatewayIP", "internalIP", "serviceCIDR"])
def test_its_own_address(stage: Stage, field: str) -> None:
    """Addresses are the controller's to write."""
    change = {field: "10.0.0.0/8", "wireGuard": {"publicKey": "own"}}
    stopped(refusal_of(stage.agent(0), stage.gateway(0), change), "changes the field wireGuard")


@by_node(
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


@by_node(
    wants="write any gateway's key with a token of the agents' account that names no Node",
    stopped_by="an admission policy, which fails closed on such a token",
)
def test_a_token_without_a_node(stage: Stage) -> None:
    """As `kubectl create token` makes it; the refusal says what would be right."""
    client = stage.client(token_of(stage.home, "mcagent-agent"))
    stopped(refusal_of(client, stage.gateway(0), {"wireGuard": {"publicKey": "x"}}), "names no Node")


@by_node(
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


@by_node(
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


@by_node(
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


@by_node(
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


@by_node(
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


@by_node(
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
    for secret_name in (JOIN_SECRET, name, "new"):
        secret_manifest = body | {"metadata": {"name": secret_name, "annotations": notes}}
        stopped(refusal(client, "POST", where.path("secrets"), secret_manifest), "cannot create")
    stopped(refusal(client, "DELETE", where.path("secrets", name)), "cannot delete")
    for changed_secret in (name,) if role == "leader" else (name, JOIN_SECRET):
        secret = stage.admin.request("GET", where.path("secrets", changed_secret))
        changed = secret | {"type": body["type"], "metadata": secret["metadata"] | {"annotations": notes}}
        stopped(refusal(client, "PUT", where.path("secrets", changed_secret), changed), "field is immutable")


# --- a namespace user --------------------------------------------------------------------------------------


@by_user(
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


@by_user(
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


@by_user(
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


@by_user(
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


@by_member(
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


@by_member(
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


@by_member(
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


@by_member(
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


@by_member(
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


@by_member(
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
@by_member(
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
