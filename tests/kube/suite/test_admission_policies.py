"""`deploy/admission-policies.yaml` and the leader's webhook on a real API server: tests/worlds/admission_cases.py.

The webhook is the one of `deploy/leader.yaml`, with its rules and matchConditions; the server looks up the case's
world instead of the API server's objects.
"""

from __future__ import annotations

import base64
import json
import ssl
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from devtools.lab import certificates
from devtools.waiting import wait_until
from mcagent.controller.admin import manifests
from mcagent.controller.admin.manifests import Part, Site
from mcagent.controller.admission import AdmissionDecision, review
from mcagent.controller.webhook.server import WebhookServer
from mcagent.http.certificates import context_of
from mcagent.kube.client import Client
from mcagent.kube.source import RawObject
from tests.worlds.admission_cases import ADMIN, CASES, GC, Case, Why
from tests.worlds.admission_objects import AREA, a_gateway, a_service, an_announce, put, sa
from tests.worlds.apiservers import Cluster, Server, leave_out

BASE = "/apis/admissionregistration.k8s.io/v1"
GROUP = "multicluster.crd.antrea.io"

pytestmark = pytest.mark.real_only  # the embedded server has no CEL


class Admission:
    """Policies and webhook, for namespaces with a label, and one such namespace; made when first needed."""

    def __init__(self) -> None:
        self.name = f"mcagent-test-{uuid.uuid4().hex[:8]}"  # of the label and the namespace, and a part of others
        self.made = ExitStack()
        self.ready = False
        self.case = CASES[0]  # that the webhook is asked about

    def make(self, server: Server) -> Cluster:
        """Create them, wait until they are in force, and return the namespace."""
        namespace = Cluster(server, self.name)
        if self.ready:
            return namespace
        selector = {"namespaceSelector": {"matchLabels": {self.name: "yes"}}}
        client_config = self._serve(server)
        parts = {Part.ADMISSION_POLICIES, Part.LEADER}
        for obj in manifests.objects(parts, Site(leader_namespace=AREA)):
            if not obj["kind"].startswith("Validating"):
                continue
            obj["metadata"]["name"] += f".{self.name}"
            if obj["kind"] == "ValidatingAdmissionPolicyBinding":
                obj["spec"] |= {"policyName": obj["metadata"]["name"], "matchResources": selector}
            for hook in obj.get("webhooks", ()):
                hook.update({"clientConfig": client_config, "failurePolicy": "Fail"} | selector)
            plural = obj["kind"].lower().removesuffix("y") + ("ies" if obj["kind"].endswith("y") else "s")
            self._create(server.client, f"{BASE}/{plural}", obj)
        metadata = {"name": self.name, "labels": {self.name: "yes"}}
        self._create(server.client, "/api/v1/namespaces", {"metadata": metadata})
        wrong = [an_announce("x", clusterID="y"), put(a_service("x"), "metadata.name", "probe"), a_gateway()]
        wait_until(
            lambda: (
                all(send(namespace, "POST", obj, ADMIN)[1] for obj in wrong)
                and "not found" in send(namespace, "POST", an_announce(), sa("unknown"))[1]
                and "not found" in send(namespace, "POST", a_service(), sa("unknown"))[1]
            ),
            "policies and webhook to be in force",
            timeout=30,
        )
        self.ready = True
        return namespace

    def _serve(self, server: Server) -> RawObject:
        """Serve the webhook, and return how the API server reaches it."""
        identity = certificates.server_identity(server.directory / self.name, ["127.0.0.1"])
        webhook = WebhookServer(("127.0.0.1", 0), {"/validate": self._review})
        self.made.callback(webhook.close)
        webhook.use(context_of(identity.certificate.read_bytes(), identity.key.read_bytes()))
        bundle = base64.b64encode(identity.ca.read_bytes()).decode()
        return {"url": f"https://127.0.0.1:{webhook.port}/validate", "caBundle": bundle}

    def _review(self, request: Mapping[str, Any]) -> AdmissionDecision:
        """Decide as in the namespace of the case's object; probes are about another kind than a ClusterSet."""
        is_set = request["kind"]["kind"] == "ClusterSet"
        namespace = self.case.subject["metadata"]["namespace"] if is_set else AREA
        return review({**request, "namespace": namespace}, self.case.world, self.case.accounts)

    def _create(self, client: Client, path: str, obj: RawObject) -> None:
        client.request("POST", path, body=obj)
        self.made.callback(client.request, "DELETE", f"{path}/{obj['metadata']['name']}")


@pytest.fixture(scope="module")
def admission() -> Iterator[Admission]:
    """Give policies and webhook, and remove them in the end."""
    admission = Admission()
    with admission.made:
        yield admission


@pytest.mark.parametrize("case", [pytest.param(c, id=c.title) for c in CASES if c.is_possible])
def test_policies_decide(request: pytest.FixtureRequest, server: Server, admission: Admission, case: Case) -> None:
    """Each case of the table gets the answer that stands there; the API server asks policies first."""
    if server.kind != "real":
        leave_out(request, "the API server of MCAGENT_TEST_KUBECONFIG cannot ask a webhook of this machine")
    namespace, admission.case = admission.make(server), case
    method, body = "POST", case.subject
    if case.old is not None:
        namespace = request.getfixturevalue("cluster")
        stored = older_than_policies(namespace, admission, case.old)
        version = stored["metadata"]["resourceVersion"]
        method = "DELETE" if case.operation == "DELETE" else "PUT"
        body = put(body, "metadata.resourceVersion", version)
    part = "/status" if case.why is Why.STATUS else ""
    _, refusal, code = send(namespace, method, body, case.user, node=case.node, part=part)
    if case.policy:
        assert (code, case.policy in refusal) == (422, True), refusal
        assert ("ValidatingAdmissionPolicy" in refusal) == (case.why is not Why.API_SERVER)
    elif case.code != 200:
        assert (code, case.message in refusal) == (case.code, True), refusal
        assert "admission webhook" in refusal
    else:
        assert not refusal
    if case.old is not None:  # no finalizer may hold the namespace
        send(namespace, "PATCH", case.old, GC, body={"metadata": {"finalizers": None}}, dry_run=False)


def older_than_policies(namespace: Cluster, admission: Admission, obj: RawObject) -> RawObject:
    """Create an object in a namespace, then let policies and webhook hold there; return the object."""
    stored, refusal, _ = send(namespace, "POST", obj, ADMIN, dry_run=False)
    assert not refusal
    if "deletionTimestamp" in obj["metadata"]:
        stored, _, _ = send(namespace, "DELETE", obj, ADMIN, dry_run=False)
    labels = {admission.name: "yes"}
    namespace.patch(f"/api/v1/namespaces/{namespace.namespace}", {"metadata": {"labels": labels}})
    policy, webhook = put(a_gateway(), "metadata.name", "probe"), a_service("probe")
    wait_until(
        lambda: (
            send(namespace, "POST", policy, ADMIN)[1]
            and "not found" in send(namespace, "POST", webhook, sa("unknown"))[1]
        ),
        "policies and webhook to be in force",
        timeout=30,
    )
    return stored


def send(
    cluster: Cluster,
    method: str,
    obj: RawObject,
    user: str,
    *,
    node: str = "",
    part: str = "",
    body: RawObject | None = None,
    dry_run: bool = True,
) -> tuple[RawObject, str, int]:
    """Make a request about an object of the test's namespace; return the answer or the refusal, and the code.

    `user`: impersonated, with all rights of RBAC. `node`: of the token. `body`: instead of the object.
    """
    version = "v1alpha2" if obj["kind"] == "ClusterSet" else "v1alpha1"
    name = "" if method == "POST" else obj["metadata"]["name"]
    path = cluster.path(obj["kind"].lower() + "s", name, group=GROUP, version=version) + part
    if body is None:
        body = obj | {"apiVersion": f"{GROUP}/{version}"}
        body["metadata"] = obj["metadata"] | {"namespace": cluster.namespace}
    url, token, context = access(cluster.server.kubeconfig)
    headers = {
        "Authorization": f"Bearer {token}",
        "Content-Type": "application/merge-patch+json" if method == "PATCH" else "application/json",
        "Impersonate-User": user,
        "Impersonate-Group": "system:masters",
    }
    if node:
        headers["Impersonate-Extra-Authentication.kubernetes.io%2fnode-Name"] = node
    data = None if method in ("GET", "DELETE") else json.dumps(body).encode()
    query = "?dryRun=All" if dry_run else ""
    request = urllib.request.Request(url + path + query, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, context=context, timeout=30) as response:
            answer: RawObject = json.load(response)
            return answer, "", 200
    except urllib.error.HTTPError as error:
        return {}, str(json.loads(error.read())["message"]), error.code


@cache
def access(kubeconfig: Path) -> tuple[str, str, ssl.SSLContext]:
    """Return the API server's URL, the administrator's token, and whom to trust."""
    config = yaml.safe_load(kubeconfig.read_text())
    (where,) = (item["cluster"] for item in config["clusters"])
    context = ssl.create_default_context(cafile=where["certificate-authority"])
    return where["server"], config["users"][0]["user"]["token"], context
