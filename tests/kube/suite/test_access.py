"""Who may do what: ServiceAccount tokens and RBAC, as a leader hands them to its members."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from devtools.waiting import wait_until
from mcagent.kube.client import Client
from mcagent.kube.errors import ApiRefusalError
from tests.apiservers import Cluster, refusal

pytestmark = pytest.mark.apiserver

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


def grant(cluster: Cluster, who: str, *rules: dict[str, Any]) -> None:
    """Let a ServiceAccount do what the rules say, in the namespace."""
    api = f"{RBAC}/v1"
    role = {"apiVersion": api, "kind": "Role", "metadata": {"name": who}, "rules": list(rules)}
    cluster.client.request("POST", cluster.path("roles", group=RBAC), body=role)
    subject = {"kind": "ServiceAccount", "name": who, "namespace": cluster.namespace}
    binding = {"apiVersion": api, "kind": "RoleBinding", "metadata": {"name": who}, "subjects": [subject]}
    binding["roleRef"] = {"apiGroup": RBAC, "kind": "Role", "name": who}
    cluster.client.request("POST", cluster.path("rolebindings", group=RBAC), body=binding)


def rule(*verbs: str, resources: str = "gateways", **more: Any) -> dict[str, Any]:
    """Return a rule about our own resources."""
    return {
        "apiGroups": ["multicluster.crd.antrea.io"],
        "resources": resources.split(),
        "verbs": list(verbs),
        **more,
    }


@pytest.fixture
def member(cluster: Cluster) -> Iterator[Client]:
    """Give a client that is known as the ServiceAccount `member`, which has no rights yet."""
    account(cluster, "member")
    with closing(cluster.server.as_token(token_of(cluster, "member"))) as client:
        yield client


def allowed(client: Client, path: str) -> bool:
    """Tell whether a client may read a path."""
    refused = refusal(client, "GET", path)
    assert refused is None or refused.code == 403, str(refused)
    return refused is None


def gateway(name: str) -> dict[str, Any]:
    """Return a Gateway."""
    return {"apiVersion": "multicluster.crd.antrea.io/v1alpha1", "kind": "Gateway", "metadata": {"name": name}}


def test_without_a_role_nothing_is_allowed(cluster: Cluster, member: Client) -> None:
    """Each verb is refused with 403 and the words of the real server; version and discovery are for all."""
    who = f'User "system:serviceaccount:{cluster.namespace}:member"'
    told = cluster.refused("GET", cluster.gateways, client=member)
    assert (told.code, told.reason) == (403, "Forbidden")
    what = 'resource "gateways" in API group "multicluster.crd.antrea.io" in the namespace'
    assert f'{who} cannot list {what} "{cluster.namespace}"' in str(told)
    assert f"{who} cannot create" in str(cluster.refused("POST", cluster.gateways, gateway("a"), client=member))
    assert f"{who} cannot get" in str(cluster.refused("GET", f"{cluster.gateways}/a", client=member))
    assert "cannot delete" in str(cluster.refused("DELETE", f"{cluster.gateways}/a", client=member))
    assert "cannot update" in str(cluster.refused("PUT", f"{cluster.gateways}/a", gateway("a"), client=member))
    assert "at the cluster scope" in str(cluster.refused("GET", "/api/v1/nodes", client=member))
    assert "cannot watch" in str(cluster.refused("GET", cluster.gateways, watch="true", client=member))
    assert member.request("GET", "/version")["major"] == "1"
    assert member.request("GET", "/apis")["groups"]


def test_a_role_allows_what_it_names(cluster: Cluster, member: Client) -> None:
    """Verbs, resources and names of a Role count, and its namespace ends at its border."""
    cluster.create(cluster.gateways, "mine", gatewayIP="10.0.0.1")
    cluster.create(cluster.gateways, "other", gatewayIP="10.0.0.2")
    grant(cluster, "member", rule("list", "create"), rule("get", "patch", resourceNames=["mine"]))
    wait_until(lambda: allowed(member, cluster.gateways), "the role to be known")
    assert member.request("GET", f"{cluster.gateways}/mine")["gatewayIP"] == "10.0.0.1"
    assert cluster.refused("GET", f"{cluster.gateways}/other", client=member).code == 403
    member.request("PATCH", f"{cluster.gateways}/mine", body={"gatewayIP": "10.0.0.9"}, content_type=MERGE)
    member.request("POST", cluster.gateways, body=gateway("new"))
    assert cluster.refused("DELETE", f"{cluster.gateways}/mine", client=member).code == 403
    elsewhere = cluster.gateways.replace(cluster.namespace, "kube-system")
    assert cluster.refused("GET", elsewhere, client=member).code == 403
    everywhere = cluster.gateways.replace(f"/namespaces/{cluster.namespace}", "")
    assert cluster.refused("GET", everywhere, client=member).code == 403


def test_a_subresource_is_a_resource_of_its_own(cluster: Cluster, member: Client) -> None:
    """Who may write the status may not write the object, and the other way round."""
    cluster.create(cluster.gateways, "a", gatewayIP="10.0.0.1")
    grant(cluster, "member", rule("get", "list"), rule("patch", resources="gateways/status"))
    wait_until(lambda: allowed(member, cluster.gateways), "the role to be known")
    member.request(
        "PATCH", f"{cluster.gateways}/a/status", body={"status": {"conditions": []}}, content_type=MERGE
    )
    with pytest.raises(ApiRefusalError, match="cannot patch"):
        member.request("PATCH", f"{cluster.gateways}/a", body={"gatewayIP": "10.0.0.2"}, content_type=MERGE)


def test_an_apply_that_creates_needs_both_verbs(cluster: Cluster, member: Client) -> None:
    """Server-side apply of what is not there takes patch and create."""
    grant(cluster, "member", rule("get", "list", "patch"))
    wait_until(lambda: allowed(member, cluster.gateways), "the role to be known")
    with pytest.raises(ApiRefusalError, match="cannot create"):
        member.request(
            "PATCH",
            f"{cluster.gateways}/a",
            {"fieldManager": "member"},
            body=gateway("a"),
            content_type="application/apply-patch+yaml",
        )


def test_cluster_roles_bound_in_a_namespace(cluster: Cluster, member: Client) -> None:
    """A RoleBinding of a ClusterRole grants its rules in the namespace; a ClusterRoleBinding everywhere."""
    name = f"{cluster.namespace}-reader"
    base = f"/apis/{RBAC}/v1"
    head: dict[str, Any] = {"apiVersion": f"{RBAC}/v1", "metadata": {"name": name}}
    cluster.client.request(
        "POST", f"{base}/clusterroles", body=head | {"kind": "ClusterRole", "rules": [rule("list")]}
    )
    group = {"kind": "Group", "name": f"system:serviceaccounts:{cluster.namespace}", "apiGroup": RBAC}
    ref = {"apiGroup": RBAC, "kind": "ClusterRole", "name": name}
    bound = head | {"subjects": [group], "roleRef": ref}
    everywhere = cluster.gateways.replace(f"/namespaces/{cluster.namespace}", "")
    try:
        path = cluster.path("rolebindings", group=RBAC)
        cluster.client.request("POST", path, body=bound | {"kind": "RoleBinding"})
        wait_until(lambda: allowed(member, cluster.gateways), "the binding to be known")
        assert not allowed(member, everywhere)
        path = f"{base}/clusterrolebindings"
        cluster.client.request("POST", path, body=bound | {"kind": "ClusterRoleBinding"})
        wait_until(lambda: allowed(member, everywhere), "the binding to be known")
    finally:
        for plural in ("clusterroles", "clusterrolebindings"):
            cluster.client.request("DELETE", f"{base}/{plural}/{name}")


def test_a_right_can_be_taken_away(cluster: Cluster, member: Client) -> None:
    """Without its RoleBinding a ServiceAccount may do nothing again."""
    grant(cluster, "member", rule("list"))
    wait_until(lambda: allowed(member, cluster.gateways), "the role to be known")
    cluster.client.request("DELETE", cluster.path("rolebindings", "member", group=RBAC))
    wait_until(lambda: not allowed(member, cluster.gateways), "the right to be gone")


def test_bad_tokens_are_refused(cluster: Cluster) -> None:
    """A token of nobody is 401 Unauthorized; no token at all is the anonymous user, who may do nothing."""
    for token, code in (("nonsense", 401), ("", 403)):
        with closing(cluster.server.as_token(token)) as client:
            assert cluster.refused("GET", cluster.gateways, client=client).code == code


def test_a_token_ends_with_its_account(cluster: Cluster, member: Client) -> None:
    """The token of a ServiceAccount that was deleted is refused, also when there is a new one of that name."""
    cluster.client.request("DELETE", cluster.path("serviceaccounts", "member"))
    account(cluster, "member")

    def refused() -> bool:
        with pytest.raises(ApiRefusalError) as caught:
            member.request("GET", cluster.gateways)
        return caught.value.code == 401

    wait_until(refused, "the token to be refused", timeout=20)


def test_a_token_names_its_account(cluster: Cluster) -> None:
    """The claims of a TokenRequest: who, where, until when; less than ten minutes cannot be asked for."""
    uid = account(cluster, "a")["metadata"]["uid"]
    body = token_of(cluster, "a").split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    assert claims["sub"] == f"system:serviceaccount:{cluster.namespace}:a"
    assert claims["kubernetes.io"] == {"namespace": cluster.namespace, "serviceaccount": {"name": "a", "uid": uid}}
    assert claims["exp"] - claims["iat"] == 3600
    with pytest.raises(ApiRefusalError, match="may not specify a duration less than 10 minutes"):
        token_of(cluster, "a", 10)
    with pytest.raises(ApiRefusalError, match='serviceaccounts "none" not found'):
        token_of(cluster, "none")


@pytest.mark.controllers
def test_a_token_is_written_into_a_secret(cluster: Cluster) -> None:
    """A Secret of type service-account-token is filled by the token controller; the token works until it goes."""
    made = account(cluster, "member")
    annotations = {"kubernetes.io/service-account.name": "member"}
    kind = "kubernetes.io/service-account-token"
    for name in ("t", "unused"):
        cluster.create(cluster.path("secrets"), name, type=kind, metadata={"annotations": annotations})

    def stored() -> dict[str, Any]:
        items = cluster.client.request("GET", cluster.path("secrets"))["items"]
        return {item["metadata"]["name"]: item for item in items}

    wait_until(
        lambda: all("token" in (found.get("data") or {}) for found in stored().values()), "tokens", timeout=20
    )
    secret, unused = stored()["t"], stored()["unused"]
    assert secret["metadata"]["annotations"]["kubernetes.io/service-account.uid"] == made["metadata"]["uid"]
    data = {key: base64.b64decode(value).decode() for key, value in secret["data"].items()}
    assert data["namespace"] == cluster.namespace
    assert data["ca.crt"].startswith("-----BEGIN CERTIFICATE-----")
    with closing(cluster.server.as_token(data["token"])) as client:
        assert cluster.refused("GET", cluster.gateways, client=client).code == 403
    # Of a token that was used a real server believes for ten seconds that it is good.
    cluster.client.request("DELETE", cluster.path("secrets", "unused"))
    with closing(cluster.server.as_token(base64.b64decode(unused["data"]["token"]).decode())) as client:

        def refused() -> bool:
            return cluster.refused("GET", cluster.gateways, client=client).code == 401

        wait_until(refused, "the token of a Secret that is gone to be refused", timeout=20)


@pytest.mark.controllers
def test_a_token_secret_goes_with_its_account(cluster: Cluster) -> None:
    """The Secret of an account that is deleted, or of one that never was, is deleted."""
    kind = "kubernetes.io/service-account-token"
    account(cluster, "member")
    for name, owner in (("t", "member"), ("orphan", "none")):
        annotations = {"kubernetes.io/service-account.name": owner}
        cluster.create(cluster.path("secrets"), name, type=kind, metadata={"annotations": annotations})

    def there() -> list[str]:
        items = cluster.client.request("GET", cluster.path("secrets"))["items"]
        return [item["metadata"]["name"] for item in items]

    wait_until(lambda: there() == ["t"], "the Secret without an account to go", timeout=20)
    cluster.client.request("DELETE", cluster.path("serviceaccounts", "member"))
    wait_until(lambda: there() == [], "the Secret to go with its account", timeout=20)


def test_a_token_secret_needs_an_account_name(cluster: Cluster) -> None:
    """Without the annotation that names the account the Secret is refused."""
    with pytest.raises(ApiRefusalError, match=r"service-account\.name.: Required value"):
        cluster.create(cluster.path("secrets"), "t", type="kubernetes.io/service-account-token")
