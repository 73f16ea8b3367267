"""`deploy/admission-policies.yaml` on a real API server: the policies' answers of tests/admission_cases.py."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest
import yaml

from devtools.waiting import wait_until
from mcagent.kube.client import Client
from mcagent.kube.source import RawObject
from tests.admission_cases import ADMIN, CASES, GC, Case, Why
from tests.admission_objects import a_gateway, a_service, an_announce, put
from tests.apiservers import Cluster, Server

POLICIES = Path(__file__).parents[3] / "deploy/admission-policies.yaml"
BASE = "/apis/admissionregistration.k8s.io/v1"
GROUP = "multicluster.crd.antrea.io"

pytestmark = pytest.mark.real_only  # the embedded server has no CEL


class Policies:
    """The policies, for namespaces with a label, and one such namespace; made when they are first asked for."""

    def __init__(self) -> None:
        self.name = f"mcagent-test-{uuid.uuid4().hex[:8]}"  # of the label and the namespace, and a part of others
        self.made = ExitStack()
        self.ready = False

    def make(self, server: Server) -> Cluster:
        """Create them, wait until they are in force, and return the namespace."""
        namespace = Cluster(server, self.name)
        if self.ready:
            return namespace
        for obj in yaml.safe_load_all(POLICIES.read_text()):
            obj["metadata"]["name"] += f".{self.name}"
            plural = obj["kind"].lower().removesuffix("y") + ("ies" if obj["kind"].endswith("y") else "s")
            if "policyName" in obj["spec"]:
                obj["spec"]["policyName"] += f".{self.name}"
                obj["spec"]["matchResources"] = {"namespaceSelector": {"matchLabels": {self.name: "yes"}}}
            self._create(server.client, f"{BASE}/{plural}", obj)
        metadata = {"name": self.name, "labels": {self.name: "yes"}}
        self._create(server.client, "/api/v1/namespaces", {"metadata": metadata})
        wrong = [an_announce("x", clusterID="y"), put(a_service("x"), "metadata.name", "probe"), a_gateway()]
        self.wait(namespace, *wrong)
        self.ready = True
        return namespace

    def wait(self, namespace: Cluster, *wrong: RawObject) -> None:
        """Wait until objects that are wrong are refused in a namespace."""
        wait_until(
            lambda: all(send(namespace, "POST", obj, ADMIN)[1] for obj in wrong),
            "the policies to be in force",
            timeout=30,
        )

    def _create(self, client: Client, path: str, obj: RawObject) -> None:
        client.request("POST", path, body=obj)
        self.made.callback(client.request, "DELETE", f"{path}/{obj['metadata']['name']}")


@pytest.fixture(scope="module")
def policies() -> Iterator[Policies]:
    """Give the policies, and remove them in the end."""
    found = Policies()
    with found.made:
        yield found


@pytest.mark.parametrize("case", [pytest.param(c, id=c.title) for c in CASES if c.asks_policies])
def test_policies_decide(request: pytest.FixtureRequest, server: Server, policies: Policies, case: Case) -> None:
    """Each case of the table gets the answer that stands there, from the policies and not by chance."""
    namespace = policies.make(server)
    method, body = "POST", case.subject
    if case.old is not None:
        namespace = request.getfixturevalue("cluster")
        stored = older_than_policies(namespace, policies, case.old)
        method, body = "PUT", put(body, "metadata.resourceVersion", stored["metadata"]["resourceVersion"])
    part = "/status" if case.why is Why.STATUS else ""
    _, refusal = send(namespace, method, body, case.user, node=case.node, part=part)
    assert case.policy in refusal
    assert bool(refusal) == bool(case.policy)
    assert ("ValidatingAdmissionPolicy" in refusal) == (bool(refusal) and case.why is not Why.API_SERVER)
    if case.old is not None:  # no finalizer may hold the namespace
        send(namespace, "PATCH", case.old, GC, body={"metadata": {"finalizers": None}}, dry_run=False)


def older_than_policies(namespace: Cluster, policies: Policies, obj: RawObject) -> RawObject:
    """Create an object in a namespace, then let the policies hold there; return the object."""
    stored, refusal = send(namespace, "POST", obj, ADMIN, dry_run=False)
    assert not refusal
    if "deletionTimestamp" in obj["metadata"]:
        stored, _ = send(namespace, "DELETE", obj, ADMIN, dry_run=False)
    namespace.patch(f"/api/v1/namespaces/{namespace.namespace}", {"metadata": {"labels": {policies.name: "yes"}}})
    policies.wait(namespace, put(a_gateway(), "metadata.name", "probe"))
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
) -> tuple[RawObject, str]:
    """Make a request about an object of the test's namespace; return the answer, or why it was refused.

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
        with urllib.request.urlopen(request, context=context) as response:
            answer: RawObject = json.load(response)
            return answer, ""
    except urllib.error.HTTPError as error:
        if error.code != 422:
            raise
        return {}, str(json.loads(error.read())["message"])


@cache
def access(kubeconfig: Path) -> tuple[str, str, ssl.SSLContext]:
    """Return the API server's URL, the administrator's token, and whom to trust."""
    config = yaml.safe_load(kubeconfig.read_text())
    (where,) = (item["cluster"] for item in config["clusters"])
    context = ssl.create_default_context(cafile=where["certificate-authority"])
    return where["server"], config["users"][0]["user"]["token"], context
