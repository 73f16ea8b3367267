"""Validating webhooks: who is asked about what, and what becomes of the answer."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from devtools.lab import certificates
from devtools.waiting import wait_until
from mcagent.kube.errors import ApiRefusalError
from tests.kube.access import account, gateway, grant, rule, token_of
from tests.worlds.apiservers import Cluster, refusal

pytestmark = pytest.mark.apiserver

GROUP = "multicluster.crd.antrea.io"
BASE = "/apis/admissionregistration.k8s.io/v1"


@dataclass
class Webhook:
    """A webhook server: what it was asked, and what it answers to the next questions."""

    url: str = ""
    bundle: str = ""
    answer: dict[str, Any] = field(default_factory=lambda: {"allowed": True})
    asked: list[dict[str, Any]] = field(default_factory=list)


@pytest.fixture
def webhook(cluster: Cluster) -> Iterator[Webhook]:
    """Give a webhook server over TLS on the loopback, with a certificate of its own authority."""
    identity = certificates.server_identity(cluster.server.directory / cluster.namespace, ["127.0.0.1"])
    hook = Webhook(bundle=base64.b64encode(identity.ca.read_bytes()).decode())

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["request"]
            if not request.get("dryRun"):
                hook.asked.append(request)
            review = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}
            body = json.dumps(review | {"response": {"uid": request["uid"]} | hook.answer}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity.certificate, identity.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    hook.url = f"https://127.0.0.1:{server.server_address[1]}/validate"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield hook
    server.shutdown()
    server.server_close()
    thread.join()


@contextmanager
def configured(
    cluster: Cluster, hook: Webhook, prefix: str = "test", *, operations: str = "*", **fields: Any
) -> Iterator[None]:
    """Have the server ask a webhook about Gateways of the namespace (or what `more` says)."""
    name = f"{cluster.namespace}.{prefix}.mcagent"
    home = {"matchLabels": {"kubernetes.io/metadata.name": cluster.namespace}}
    rules = [
        {"apiGroups": [GROUP], "apiVersions": ["v1alpha1"], "resources": ["gateways"], "operations": [operations]}
    ]
    webhook = {
        "name": name,
        "clientConfig": {"url": hook.url, "caBundle": hook.bundle},
        "rules": rules,
        "namespaceSelector": home,
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 5,
    }
    head = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration"}
    body = {**head, "metadata": {"name": name}, "webhooks": [webhook | fields]}
    path = f"{BASE}/validatingwebhookconfigurations"
    cluster.client.request("POST", path, body=body)
    try:
        yield
    finally:
        cluster.client.request("DELETE", f"{path}/{name}")


def in_force(cluster: Cluster, hook: Webhook) -> None:
    """Wait until the server asks (a real one reads its configurations through a watch)."""

    hook.answer = {"allowed": False, "status": {"message": "probe"}}

    def asks() -> bool:
        refused = refusal(cluster.client, "POST", cluster.gateways, gateway("probe"), dryRun="All")
        return refused is not None and "probe" in str(refused)

    wait_until(asks, "the webhook to be asked", timeout=20)
    hook.answer = {"allowed": True}
    hook.asked.clear()


def test_each_operation_is_asked_about(cluster: Cluster, webhook: Webhook) -> None:
    """CREATE has an object, UPDATE both, DELETE the old one; all have user, names, kind and resource."""
    with configured(cluster, webhook):
        in_force(cluster, webhook)
        cluster.create(cluster.gateways, "a", gatewayIP="10.0.0.1")
        cluster.patch(f"{cluster.gateways}/a", {"gatewayIP": "10.0.0.2"})
        cluster.client.request("DELETE", f"{cluster.gateways}/a")
    create, update, delete = webhook.asked
    assert [question["operation"] for question in webhook.asked] == ["CREATE", "UPDATE", "DELETE"]
    for question in webhook.asked:
        assert (question["name"], question["namespace"]) == ("a", cluster.namespace)
        assert question["kind"] == {"group": GROUP, "version": "v1alpha1", "kind": "Gateway"}
        assert question["resource"] == {"group": GROUP, "version": "v1alpha1", "resource": "gateways"}
        assert "system:masters" in question["userInfo"]["groups"]
        assert question["uid"]
    assert create["object"]["gatewayIP"] == "10.0.0.1"
    assert create["object"]["metadata"]["uid"]
    assert create["oldObject"] is None
    assert (update["oldObject"]["gatewayIP"], update["object"]["gatewayIP"]) == ("10.0.0.1", "10.0.0.2")
    assert delete["object"] is None
    assert delete["oldObject"]["gatewayIP"] == "10.0.0.2"


def test_the_webhook_learns_who_asks(cluster: Cluster, webhook: Webhook) -> None:
    """For a ServiceAccount: its user name, uid and groups."""
    uid = account(cluster, "member")["metadata"]["uid"]
    grant(cluster, "member", rule("create", "get", "list"))
    with configured(cluster, webhook), closing(cluster.server.as_token(token_of(cluster, "member"))) as client:
        in_force(cluster, webhook)
        client.request("POST", cluster.gateways, body=gateway("a"))
    (question,) = webhook.asked
    user = question["userInfo"]
    assert user["username"] == f"system:serviceaccount:{cluster.namespace}:member"
    assert user["uid"] == uid
    assert {"system:serviceaccounts", f"system:serviceaccounts:{cluster.namespace}"} <= set(user["groups"])


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        ({"message": "not yours", "code": 403, "reason": "Forbidden"}, 403, "denied the request: not yours"),
        ({"message": "not right"}, 400, "denied the request: not right"),
        ({"code": 412}, 412, "denied the request without explanation"),
        (None, 400, "denied the request without explanation"),
    ],
)
def test_a_refusal_is_passed_on(
    cluster: Cluster, webhook: Webhook, status: dict[str, Any] | None, code: int, words: str
) -> None:
    """Code and message are the webhook's; nothing is stored."""
    with configured(cluster, webhook):
        in_force(cluster, webhook)
        webhook.answer = {"allowed": False} | ({"status": status} if status else {})
        with pytest.raises(ApiRefusalError, match=words) as caught:
            cluster.create(cluster.gateways, "a")
        assert caught.value.code == code
        assert f'admission webhook "{cluster.namespace}.test.mcagent"' in str(caught.value)
        assert cluster.refused("GET", f"{cluster.gateways}/a").code == 404


def test_a_delete_can_be_refused(cluster: Cluster, webhook: Webhook) -> None:
    """The object stays as it is, without a deletion time; a collection is refused as well."""
    cluster.create(cluster.gateways, "a")
    with configured(cluster, webhook):
        in_force(cluster, webhook)
        webhook.answer = {"allowed": False, "status": {"message": "kept", "code": 403}}
        assert "kept" in str(cluster.refused("DELETE", f"{cluster.gateways}/a"))
        if cluster.server.kind != "embedded":
            assert "kept" in str(cluster.refused("DELETE", cluster.gateways))
        gateway = cluster.client.request("GET", f"{cluster.gateways}/a")
        assert "deletionTimestamp" not in gateway["metadata"]


def test_rules_choose(cluster: Cluster, webhook: Webhook) -> None:
    """Operations, resources and namespaces that no rule names are not asked about; status is one of its own."""
    with configured(cluster, webhook, operations="CREATE"):
        in_force(cluster, webhook)
        webhook.answer = {"allowed": False}
        cluster.create(cluster.configmaps, "a")
        elsewhere = cluster.gateways.replace(cluster.namespace, "default")
        cluster.create(elsewhere, cluster.namespace)
        cluster.client.request("DELETE", f"{elsewhere}/{cluster.namespace}")
        webhook.answer = {"allowed": True}
        cluster.create(cluster.gateways, "a")
        webhook.answer = {"allowed": False}
        cluster.patch(f"{cluster.gateways}/a", {"gatewayIP": "10.0.0.2"})
        cluster.patch(f"{cluster.gateways}/a/status", {"status": {"conditions": []}})
    assert [question["operation"] for question in webhook.asked] == ["CREATE"]


def test_a_status_is_asked_about_by_its_own_rule(cluster: Cluster, webhook: Webhook) -> None:
    """A rule for gateways/status is asked about writes of the status, with the subresource's name."""
    cluster.create(cluster.gateways, "a")
    rules = [
        {
            "apiGroups": [GROUP],
            "apiVersions": ["*"],
            "resources": ["gateways", "gateways/status"],
            "operations": ["CREATE", "UPDATE"],
        }
    ]
    with configured(cluster, webhook, rules=rules):
        in_force(cluster, webhook)
        cluster.patch(f"{cluster.gateways}/a/status", {"status": {"conditions": []}})
    (question,) = webhook.asked
    assert (question["operation"], question["subResource"]) == ("UPDATE", "status")
    assert question["object"]["status"] == {"conditions": []}


@pytest.mark.real_only
def test_another_version_is_asked_about_all_the_same(cluster: Cluster, webhook: Webhook) -> None:
    """A rule for ClusterSet v1alpha2 sees a write through v1alpha1, as v1alpha2 (matchPolicy Equivalent)."""
    kinds = {"apiGroups": [GROUP], "operations": ["CREATE"]}
    rules = [
        kinds | {"apiVersions": ["v1alpha2"], "resources": ["clustersets"]},
        kinds | {"apiVersions": ["v1alpha1"], "resources": ["gateways"]},
    ]
    with configured(cluster, webhook, rules=rules):
        in_force(cluster, webhook)
        body = {"apiVersion": f"{GROUP}/v1alpha1", "kind": "ClusterSet", "metadata": {"name": "a"}}
        path = cluster.path("clustersets", group=GROUP, version="v1alpha1")
        cluster.client.request("POST", path, body=body | {"spec": {"leaders": [{"clusterID": "l"}]}})
    (question,) = webhook.asked
    assert question["kind"]["version"] == "v1alpha2"
    assert question["requestKind"]["version"] == "v1alpha1"
    assert question["object"]["apiVersion"] == f"{GROUP}/v1alpha2"


@pytest.mark.real_only
def test_objects_are_selected_by_label(cluster: Cluster, webhook: Webhook) -> None:
    """objectSelector is looked up in the new and in the old object."""
    selector = {"matchExpressions": [{"key": "watched", "operator": "Exists"}]}
    with configured(cluster, webhook):
        in_force(cluster, webhook)
    with configured(cluster, webhook, objectSelector=selector):
        cluster.create(cluster.gateways, "a")
        labelled = {"labels": {"watched": "yes"}}

        def asked() -> bool:
            cluster.patch(f"{cluster.gateways}/a", {"metadata": labelled})
            return bool(webhook.asked)

        wait_until(asked, "the webhook to be asked", timeout=20)
        webhook.asked.clear()
        cluster.patch(f"{cluster.gateways}/a", {"metadata": {"labels": None}})
        cluster.patch(f"{cluster.gateways}/a", {"gatewayIP": "10.0.0.1"})
    assert [question["object"].get("gatewayIP") for question in webhook.asked] == [None]


@pytest.mark.parametrize("policy", ["Fail", "Ignore"])
def test_a_webhook_that_is_away(cluster: Cluster, webhook: Webhook, policy: str) -> None:
    """failurePolicy Fail refuses with 500, Ignore lets the write pass."""
    away = Webhook(url="https://127.0.0.1:1/validate", bundle=webhook.bundle)
    if policy == "Ignore":
        # Once the second configuration is in force the first is.
        with configured(cluster, away, "away", failurePolicy="Ignore"), configured(cluster, webhook):
            in_force(cluster, webhook)
            cluster.create(cluster.gateways, "a")
        assert len(webhook.asked) == 1
        return
    with configured(cluster, away, failurePolicy="Fail"):

        def refused() -> bool:
            error = refusal(cluster.client, "APPLY", f"{cluster.gateways}/b", gateway("b"), fieldManager="tests")
            assert error is None or error.code == 500, str(error)
            return error is not None and "failed calling webhook" in str(error)

        wait_until(refused, "the webhook to be missed", timeout=20)


def test_an_untrusted_webhook_is_not_believed(cluster: Cluster, webhook: Webhook) -> None:
    """A certificate that is not of the caBundle's authority counts as a webhook that is away."""
    other = certificates.server_identity(cluster.server.directory / f"{cluster.namespace}-other", ["127.0.0.1"])
    wrong = Webhook(url=webhook.url, bundle=base64.b64encode(other.ca.read_bytes()).decode())
    with configured(cluster, wrong):

        def refused() -> bool:
            error = refusal(cluster.client, "APPLY", f"{cluster.gateways}/a", gateway("a"), fieldManager="tests")
            assert error is None or error.code == 500, str(error)
            return error is not None and "failed calling webhook" in str(error)

        wait_until(refused, "the webhook to be refused", timeout=20)
    assert webhook.asked == []


def test_a_write_that_was_overtaken_is_asked_about_again(cluster: Cluster, webhook: Webhook) -> None:
    """What is stored is what the webhook saw: twenty concurrent patches, each asked about as it was stored."""
    cluster.create(cluster.gateways, "a", gatewayIP="10.0.0.0")
    with configured(cluster, webhook, operations="UPDATE"):

        def asked() -> bool:
            cluster.patch(f"{cluster.gateways}/a", {"metadata": {"labels": {"probe": "yes"}}})
            return bool(webhook.asked)

        wait_until(asked, "the webhook to be asked", timeout=20)
        webhook.asked.clear()
        threads = [
            threading.Thread(
                target=cluster.patch,
                args=(f"{cluster.gateways}/a", {"metadata": {"annotations": {f"k{number}": "v"}}}),
            )
            for number in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        annotations = cluster.client.request("GET", f"{cluster.gateways}/a")["metadata"]["annotations"]
    assert annotations == {f"k{number}": "v" for number in range(8)}
    seen = [question["object"]["metadata"].get("annotations", {}) for question in webhook.asked]
    assert annotations in seen


@pytest.mark.real_only(reason="admission policies are CEL, which the embedded server does not evaluate")
def test_an_admission_policy_is_enforced(cluster: Cluster) -> None:
    """A ValidatingAdmissionPolicy with its binding refuses what its expression does not allow."""
    name = f"{cluster.namespace}.test.mcagent"
    head = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": name}}
    rules = [{"apiGroups": [GROUP], "apiVersions": ["*"], "resources": ["gateways"], "operations": ["CREATE"]}]
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": rules},
        "validations": [{"expression": "has(object.gatewayIP)", "message": "a gatewayIP is needed"}],
    }
    chosen = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": cluster.namespace}}}
    bound = {"policyName": name, "validationActions": ["Deny"], "matchResources": chosen}
    plurals = ("validatingadmissionpolicies", "validatingadmissionpolicybindings")
    kinds = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    try:
        for plural, kind, body in zip(plurals, kinds, (spec, bound), strict=True):
            cluster.client.request("POST", f"{BASE}/{plural}", body=head | {"kind": kind, "spec": body})

        def refused() -> bool:
            error = refusal(cluster.client, "POST", cluster.gateways, gateway("a"), dryRun="All")
            assert error is None or error.code == 422, str(error)
            return error is not None and "a gatewayIP is needed" in str(error)

        wait_until(refused, "the policy to be in force", timeout=30)
        cluster.create(cluster.gateways, "a", gatewayIP="10.0.0.1")
    finally:
        for plural in plurals:
            cluster.client.request("DELETE", f"{BASE}/{plural}/{name}")
