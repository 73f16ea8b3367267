"""`deploy/admission-policies.yaml` on a real API server: the same answers as the webhook's rules, and no more."""

from __future__ import annotations

import copy
import json
import ssl
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from devtools.waiting import wait_until
from mcagent.controller.contract import names
from mcagent.kube.client import Client
from mcagent.kube.errors import ApiRefusalError
from tests.antrea_objects import VERSIONS, written_by
from tests.apiservers import Cluster, refusal
from tests.unit.leader_world import announce, cluster_info, endpoints, export, service

POLICIES = Path(__file__).parents[3] / "deploy/admission-policies.yaml"
BASE = "/apis/admissionregistration.k8s.io/v1"
PLURALS = {
    "ClusterSet": "clustersets",
    "Gateway": "gateways",
    "MemberClusterAnnounce": "memberclusterannounces",
    "ResourceExport": "resourceexports",
}

pytestmark = pytest.mark.real_only  # the embedded server has no CEL


class Policies:
    """The policies, for namespaces with a label; made when they are first asked for."""

    def __init__(self) -> None:
        self.label = f"mcagent-test-{uuid.uuid4().hex[:8]}"
        self.made = ExitStack()
        self.there = False

    def make(self, client: Client) -> None:
        """Create them, once."""
        if self.there:
            return
        self.there = True
        for obj in yaml.safe_load_all(POLICIES.read_text()):
            obj["metadata"]["name"] += f".{self.label}"
            plural = obj["kind"].lower().removesuffix("y") + ("ies" if obj["kind"].endswith("y") else "s")
            if "policyName" in obj["spec"]:
                obj["spec"]["policyName"] += f".{self.label}"
                obj["spec"]["matchResources"] = {"namespaceSelector": {"matchLabels": {self.label: "yes"}}}
            client.request("POST", f"{BASE}/{plural}", body=obj)
            self.made.callback(client.request, "DELETE", f"{BASE}/{plural}/{obj['metadata']['name']}")


@pytest.fixture(scope="module")
def policies() -> Iterator[Policies]:
    """Give the policies, and remove them in the end."""
    found = Policies()
    with found.made:
        yield found


@pytest.fixture
def policed(cluster: Cluster, policies: Policies) -> Cluster:
    """Give a namespace in which the policies hold, and wait until they do."""
    policies.make(cluster.client)
    labels = {"metadata": {"labels": {policies.label: "yes"}}}
    cluster.patch(f"/api/v1/namespaces/{cluster.namespace}", labels)

    def in_force() -> bool:
        probes = [announce("x") | {"clusterID": "y"}, service("x") | {"metadata": {"name": "probe"}}, gateway()]
        return all(answer(cluster, probe) for probe in probes)

    wait_until(in_force, "the policies to be in force", timeout=30)
    return cluster


def gateway() -> dict[str, Any]:
    """Return a Gateway."""
    return {"kind": "Gateway", "metadata": {"name": "node-1"}, "gatewayIP": "10.0.0.1", "internalIP": "10.0.0.1"}


def path_of(cluster: Cluster, obj: dict[str, Any], name: str = "") -> str:
    """Return where an object of the test's namespace is."""
    version = "v1alpha2" if obj["kind"] == "ClusterSet" else "v1alpha1"
    return cluster.path(PLURALS[obj["kind"]], name, group="multicluster.crd.antrea.io", version=version)


def answer(cluster: Cluster, obj: dict[str, Any], *, dry: bool = True) -> str:
    """Create an object, or only try to; return "" or why it was refused."""
    version = "v1alpha2" if obj["kind"] == "ClusterSet" else "v1alpha1"
    body = copy.deepcopy(obj) | {"apiVersion": f"multicluster.crd.antrea.io/{version}"}
    body["metadata"]["namespace"] = cluster.namespace
    try:
        query = {"dryRun": "All"} if dry else None
        cluster.client.request("POST", path_of(cluster, obj), query, body=body)
    except ApiRefusalError as error:
        if error.code != 422:
            raise
        return str(error)
    return ""


def change(cluster: Cluster, obj: dict[str, Any], patch: dict[str, Any]) -> str:
    """Change an object; return "" or why that was refused."""
    try:
        cluster.patch(path_of(cluster, obj, obj["metadata"]["name"]), patch)
    except ApiRefusalError as error:
        if error.code != 422:
            raise
        return str(error)
    return ""


def labelled(obj: dict[str, Any]) -> dict[str, Any]:
    """Return an export with the labels that members give."""
    spec = obj["spec"]
    labels = {"sourceClusterID": spec["clusterID"], "sourceKind": spec["kind"]}
    if spec["kind"] != "ClusterInfo":
        labels |= {"sourceName": spec["name"], "sourceNamespace": spec["namespace"]}
    found = copy.deepcopy(obj)
    found["metadata"]["labels"] = labels
    return found


def without(obj: dict[str, Any], *path: str) -> dict[str, Any]:
    """Return an object without a field."""
    found = copy.deepcopy(obj)
    inner = found
    for step in path[:-1]:
        inner = inner[step]
    del inner[path[-1]]
    return found


def test_exports_of_members_pass(policed: Cluster) -> None:
    """What controllers write is taken, and other kinds of exports are none of the policies' business."""
    info, policy = cluster_info("east", "10.1.0.0/16"), export("east", "AntreaClusterNetworkPolicy", "any", {})
    for obj in (service("east"), endpoints("east", ["10.1.0.1"]), info):
        assert answer(policed, labelled(obj)) == ""
    assert answer(policed, policy) == ""
    assert answer(policed, announce("east")) == ""
    for version in VERSIONS:  # before 2.7 without labels on a ClusterInfo
        assert [answer(policed, obj) for obj in written_by(version).values()] == [""] * 4, version


def test_exports_that_are_wrong_are_refused(policed: Cluster) -> None:
    """Derived names, DNS labels, payloads, cluster IDs and labels hold for everybody."""
    good, info = labelled(service("east")), labelled(cluster_info("east", "10.1.0.0/16"))
    named = copy.deepcopy(good)
    named["metadata"]["name"] = "east-default-other-service"
    upper = labelled(service("east", "De-fault/nginx"))
    upper["metadata"]["name"] = "east-de-fault-nginx-service"
    foreign = copy.deepcopy(info)
    foreign["spec"]["clusterInfo"]["clusterID"] = "west"
    lying = copy.deepcopy(good)
    lying["metadata"]["labels"]["sourceName"] = "other"
    cases = [
        (named, "the name must be"),
        (upper, "the name must be"),
        (without(good, "spec", "service"), "spec.service is missing"),
        (without(labelled(endpoints("east", [])), "spec", "endpoints"), "spec.endpoints is missing"),
        (foreign, "spec.clusterInfo.clusterID must be spec.clusterID"),
        (without(info, "spec", "clusterInfo"), "spec.clusterInfo.clusterID must be spec.clusterID"),
        (lying, "the labels"),
        (without(good, "metadata", "labels"), "the labels"),
        (without(labelled(info), "metadata", "labels", "sourceKind"), "the labels"),
        (without(good, "spec", "clusterID"), "the name must be"),
    ]
    for obj, said in cases:
        assert said in answer(policed, obj)


def test_what_an_export_is_of_cannot_change(policed: Cluster) -> None:
    """Another Service under the same name is refused; new endpoints and a status are not."""
    obj = labelled(service("east", "a/b-c"))
    assert answer(policed, obj, dry=False) == ""
    labels = {"sourceNamespace": "a-b", "sourceName": "c"}
    other = {"spec": {"namespace": "a-b", "name": "c"}, "metadata": {"labels": labels}}
    assert "spec.kind of an export" in change(policed, obj, other)
    assert change(policed, obj, {"spec": {"kind": "LabelIdentity"}})
    ports = {"spec": {"service": {"serviceSpec": {"ports": [{"port": 81, "protocol": "TCP"}]}}}}
    assert change(policed, obj, ports) == ""


def test_an_export_from_before_the_policies_can_be_let_go(policed: Cluster) -> None:
    """The leader takes the finalizer off one whose name would be refused today."""
    obj = labelled(service("east", "a/b-c"))
    assert answer(policed, obj, dry=False) == ""
    assert change(policed, obj, {"metadata": {"finalizers": None}}) == ""


def test_announcements(policed: Cluster) -> None:
    """The name follows from the cluster ID, and no ID changes."""
    wrong = announce("east")
    wrong["metadata"]["name"] = names.announce("west")
    assert "must be member-announce-from-east" in answer(policed, wrong)
    assert answer(policed, announce("east"), dry=False) == ""
    for field in ("clusterID", "clusterSetID", "leaderClusterID"):
        assert change(policed, announce("east"), {field: "other"})
    beat = {"metadata": {"annotations": {names.HEARTBEAT_ANNOTATION: "2026-01-01T00:00:00Z"}}}
    assert change(policed, announce("east"), beat) == ""


def test_cluster_sets_keep_their_identity(policed: Cluster) -> None:
    """The IDs of this cluster and of the leader stay; server and Secret may change."""
    spec = {"clusterID": "east", "leaders": [{"clusterID": "north", "server": "https://a:1", "secret": "s"}]}
    obj = {"kind": "ClusterSet", "metadata": {"name": "set"}, "spec": spec}
    assert answer(policed, obj, dry=False) == ""
    assert "cannot be changed: it is east" in change(policed, obj, {"spec": {"clusterID": "west"}})
    assert "leaders[0].clusterID" in change(policed, obj, {"spec": {"leaders": [{"clusterID": "x"}]}})
    moved = {"clusterID": "north", "server": "https://b:1", "secret": "t"}
    assert change(policed, obj, {"spec": {"leaders": [moved]}}) == ""


def test_gateways_are_the_controllers_and_agents(policed: Cluster) -> None:
    """A person is refused, and an account of our names in another namespace than kube-system."""
    assert "only the controllers and agents" in answer(policed, gateway())
    for name in ("mcagent-agent", "mcagent-controller", "antrea-agent", "antrea-mc-controller"):
        assert "only the controllers and agents" in as_account(policed, policed.namespace, name, "POST")


@pytest.mark.parametrize("name", ["mcagent-controller", "antrea-mc-controller"])
def test_controllers_make_and_change_gateways(policed: Cluster, name: str) -> None:
    """Ours and Antrea's, of kube-system."""
    assert as_account(policed, "kube-system", name, "POST") == ""
    assert as_account(policed, "kube-system", name, "PATCH", gatewayIP="10.0.0.2") == ""


@pytest.mark.parametrize("name", ["mcagent-agent", "antrea-agent"])
def test_agents_write_the_key_of_their_own_node(policed: Cluster, name: str) -> None:
    """Antrea's agents as ours: one field of one Gateway, and only by a token that names the Node."""
    key = {"publicKey": "k"}
    assert as_account(policed, "kube-system", name, "PATCH", "node-1", wireGuard=key) == ""
    assert as_account(policed, "kube-system", name, "PATCH", "node-1", wireGuard=None) == ""
    assert "of that Node only" in as_account(policed, "kube-system", name, "PATCH", "node-2", wireGuard=key)
    assert "names no Node" in as_account(policed, "kube-system", name, "PATCH", wireGuard=key)
    for changes in (
        {"gatewayIP": "10.0.0.2"},
        {"metadata": {"labels": {"a": "b"}}},
        {"serviceCIDR": "10.0.0.0/8"},
    ):
        assert "changes the field wireGuard" in as_account(
            policed, "kube-system", name, "PATCH", "node-1", wireGuard=key, **changes
        )
    assert "changes the field wireGuard" in as_account(policed, "kube-system", name, "POST", "node-1")
    told = {"status": {"links": [{"clusterID": "west", "live": 1, "tunnels": 2}]}}
    assert as_account(policed, "kube-system", name, "PATCH", "node-1", part="/status", **told) == ""
    refused = as_account(policed, "kube-system", name, "PATCH", "node-2", part="/status", **told)
    assert "of that Node only" in refused


@pytest.mark.parametrize(
    "user", ["system:serviceaccount:kube-system:generic-garbage-collector", "system:kube-controller-manager"]
)
def test_the_garbage_collector_takes_finalizers_off(policed: Cluster, user: str) -> None:
    """And changes nothing else."""
    assert as_user(policed, user, "PATCH", metadata={"finalizers": ["foregroundDeletion"]}) == ""
    assert "the garbage collector changes" in as_user(policed, user, "PATCH", gatewayIP="10.0.0.2")
    assert "the garbage collector changes" in as_user(policed, user, "PATCH", wireGuard={"publicKey": "k"})


def as_account(cluster: Cluster, namespace: str, name: str, method: str, node: str = "", **fields: Any) -> str:
    """Try to create or patch the Gateway of node-1 as a ServiceAccount whose token names a Node, or none."""
    return as_user(cluster, f"system:serviceaccount:{namespace}:{name}", method, node, **fields)


def as_user(cluster: Cluster, user: str, method: str, node: str = "", **fields: Any) -> str:
    """Try something by impersonation, as somebody who may do everything; return "" or why it was refused."""
    path, kind, dry = cluster.gateways, "application/json", fields.pop("dry", True)
    part = fields.pop("part", "")
    body = gateway() | {"apiVersion": "multicluster.crd.antrea.io/v1alpha1"}
    if method == "PATCH":
        if refusal(cluster.client, "GET", f"{path}/node-1") is not None:
            assert as_account(cluster, "kube-system", "mcagent-controller", "POST", dry=False) == ""
        path, kind, body = f"{path}/node-1{part}", "application/merge-patch+json", fields
    config = yaml.safe_load(cluster.server.kubeconfig.read_text())
    (where,) = (item["cluster"] for item in config["clusters"])
    headers = {
        "Authorization": f"Bearer {config['users'][0]['user']['token']}",
        "Content-Type": kind,
        "Impersonate-User": user,
        "Impersonate-Group": "system:masters",
    }
    if node:
        headers["Impersonate-Extra-Authentication.kubernetes.io%2fnode-Name"] = node
    url = where["server"] + path + ("?dryRun=All" if dry else "")
    request = urllib.request.Request(url, json.dumps(body).encode(), headers, method=method)
    context = ssl.create_default_context(cafile=where["certificate-authority"])
    try:
        with urllib.request.urlopen(request, context=context):
            return ""
    except urllib.error.HTTPError as error:
        if error.code != 422:
            raise
        return str(json.loads(error.read())["message"])
