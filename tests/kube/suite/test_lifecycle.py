"""From creation to deletion: namespaces, finalizers, owners, Leases, Events."""

from __future__ import annotations

from typing import Any

import pytest

from devtools.waiting import wait_until
from mcagent.kube.errors import ApiRefusalError
from tests.worlds.apiservers import Cluster, refusal

pytestmark = pytest.mark.apiserver


def gone(cluster: Cluster, path: str) -> bool:
    """Tell whether there is nothing at a path."""
    refused = refusal(cluster.client, "GET", path)
    assert refused is None or refused.code == 404, str(refused)
    return refused is not None


@pytest.fixture
def other(cluster: Cluster) -> str:
    """Give the name of a second namespace, whose end is the test's business."""
    name = f"{cluster.namespace}-2"
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    cluster.client.request("POST", "/api/v1/namespaces", body=body)
    return name


def test_nothing_is_created_in_no_namespace(cluster: Cluster) -> None:
    """A create in a namespace that does not exist is refused with 404, of built-in and custom kinds."""
    for path in (cluster.configmaps, cluster.gateways):
        where = path.replace(cluster.namespace, "mcagent-test-nowhere")
        with pytest.raises(ApiRefusalError, match='namespaces "mcagent-test-nowhere" not found') as caught:
            cluster.create(where, "a")
        assert caught.value.code == 404


def test_a_namespace_is_labelled_with_its_name(cluster: Cluster) -> None:
    """Selectors of namespaces can go by the name."""
    namespace = cluster.client.request("GET", f"/api/v1/namespaces/{cluster.namespace}")
    assert namespace["metadata"]["labels"] == {"kubernetes.io/metadata.name": cluster.namespace}
    assert namespace["status"]["phase"] == "Active"


def test_a_namespace_that_ends_takes_nothing_new(cluster: Cluster, other: str) -> None:
    """From its deletion on a namespace refuses creates with 403, while what is in it can still be changed."""
    path = cluster.configmaps.replace(cluster.namespace, other)
    cluster.create(path, "a", metadata={"finalizers": ["example.org/hold"]})
    cluster.client.request("DELETE", f"/api/v1/namespaces/{other}")
    with pytest.raises(ApiRefusalError, match="because it is being terminated") as caught:
        cluster.create(path, "b")
    assert caught.value.code == 403
    assert cluster.patch(f"{path}/a", {"data": {"k": "v"}})["data"] == {"k": "v"}
    cluster.patch(f"{path}/a", {"metadata": {"finalizers": None}})


@pytest.mark.controllers
def test_a_namespace_ends_with_its_last_object(cluster: Cluster, other: str) -> None:
    """All in a namespace is deleted with it; it stays while a finalizer holds an object. (On a real server this
    is the work of kube-controller-manager, and takes some seconds.)"""
    path = cluster.configmaps.replace(cluster.namespace, other)
    cluster.create(path, "held", metadata={"finalizers": ["example.org/hold"]})
    cluster.create(path, "free")
    cluster.client.request("DELETE", f"/api/v1/namespaces/{other}")
    wait_until(lambda: gone(cluster, f"{path}/free"), "the object without a finalizer to go", timeout=30)

    def marked() -> bool:  # the controller deletes one after the other, in any order
        return "deletionTimestamp" in cluster.client.request("GET", f"{path}/held")["metadata"]

    wait_until(marked, "the object with a finalizer to be deleted, too", timeout=30)
    assert cluster.client.request("GET", f"/api/v1/namespaces/{other}")["status"]["phase"] == "Terminating"
    cluster.patch(f"{path}/held", {"metadata": {"finalizers": None}})
    wait_until(lambda: gone(cluster, f"/api/v1/namespaces/{other}"), "the namespace to go", timeout=30)


def test_a_deleted_object_with_finalizers(cluster: Cluster) -> None:
    """It can be changed, gets no new finalizer, is not created anew, and a second delete changes nothing."""
    cluster.create(cluster.gateways, "a", metadata={"finalizers": ["example.org/a", "example.org/b"]})
    path = f"{cluster.gateways}/a"
    marked = cluster.client.request("DELETE", path)
    assert marked["metadata"]["deletionTimestamp"]
    assert marked["metadata"]["generation"] == 2
    assert cluster.patch(path, {"gatewayIP": "10.0.0.1"})["gatewayIP"] == "10.0.0.1"
    with pytest.raises(ApiRefusalError, match="no new finalizers can be added if the object is being deleted"):
        cluster.patch(path, {"metadata": {"finalizers": ["example.org/a", "example.org/c"]}})
    with pytest.raises(ApiRefusalError, match="already exists"):
        cluster.create(cluster.gateways, "a")
    again = cluster.client.request("DELETE", path)
    assert again["metadata"]["deletionTimestamp"] == marked["metadata"]["deletionTimestamp"]
    cluster.patch(path, {"metadata": {"finalizers": ["example.org/b"]}})
    last = cluster.patch(path, {"metadata": {"finalizers": None}})
    assert last["metadata"]["deletionTimestamp"]
    assert gone(cluster, path)


def test_deletion_cannot_be_written(cluster: Cluster) -> None:
    """uid, creation and deletion time are the server's: what a writer says of them is passed over or refused."""
    metadata = {"deletionTimestamp": "2026-01-01T00:00:00Z", "generation": 7, "finalizers": ["example.org/a"]}
    created = cluster.create(cluster.gateways, "a", metadata=metadata)
    assert "deletionTimestamp" not in created["metadata"]
    assert created["metadata"]["generation"] == 1
    path = f"{cluster.gateways}/a"
    assert cluster.refused("PUT", path, created | {"metadata": created["metadata"] | {"uid": "other"}}).code == 409
    renamed = created | {"metadata": created["metadata"] | {"name": "b"}}
    assert cluster.refused("PUT", path, renamed).code in (400, 422)
    cluster.patch(path, {"metadata": {"finalizers": None}})


def test_preconditions_of_a_delete(cluster: Cluster) -> None:
    """A delete can be bound to a uid and a version."""
    created = cluster.create(cluster.gateways, "a")["metadata"]
    path = f"{cluster.gateways}/a"
    for wrong in ({"uid": "other"}, {"resourceVersion": "1"}):
        error = cluster.refused("DELETE", path, {"preconditions": wrong})
        assert (error.code, error.reason) == (409, "Conflict")
    right = {"uid": created["uid"], "resourceVersion": created["resourceVersion"]}
    cluster.client.request("DELETE", path, body={"preconditions": right})
    assert gone(cluster, path)


def test_an_owner_that_goes_leaves_what_it_owns(cluster: Cluster) -> None:
    """The API server itself collects no garbage, and keeps references to owners that do not exist."""
    owner = cluster.create(cluster.configmaps, "owner")["metadata"]
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["uid"]}
    cluster.create(cluster.gateways, "a", metadata={"ownerReferences": [reference]})
    cluster.client.request("DELETE", f"{cluster.configmaps}/owner", {"propagationPolicy": "Background"})
    gateway = cluster.client.request("GET", f"{cluster.gateways}/a")
    assert gateway["metadata"]["ownerReferences"] == [reference]


def test_leases(cluster: Cluster) -> None:
    """A Lease is taken by compare-and-swap."""
    path = cluster.path("leases", group="coordination.k8s.io")
    spec: dict[str, Any] = {"holderIdentity": "a", "leaseDurationSeconds": 15}
    spec["renewTime"] = "2026-01-01T00:00:00.000000Z"
    body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"}, "spec": spec}
    lease = cluster.client.request("POST", path, body=body)
    renewed = lease | {"spec": spec | {"renewTime": "2026-01-01T00:00:05.000000Z"}}
    cluster.client.request("PUT", f"{path}/l", body=renewed)
    stolen = cluster.refused("PUT", f"{path}/l", lease | {"spec": spec | {"holderIdentity": "b"}})
    assert (stolen.code, stolen.reason) == (409, "Conflict")


@pytest.mark.real_only
def test_leases_that_cannot_be(cluster: Cluster) -> None:
    """Times of a Lease have microseconds, and its duration is more than 0."""
    path = cluster.path("leases", group="coordination.k8s.io")
    spec = {"holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.000000Z"}
    cluster.create(path, "l", spec=spec)
    with pytest.raises(ApiRefusalError):
        cluster.patch(f"{path}/l", {"spec": {"renewTime": "2026-01-01T00:00:10Z"}})
    with pytest.raises(ApiRefusalError, match="leaseDurationSeconds: Invalid value: 0: must be greater than 0"):
        cluster.patch(f"{path}/l", {"spec": {"leaseDurationSeconds": 0}})


@pytest.mark.real_only
def test_an_event_is_in_the_namespace_of_its_object(cluster: Cluster) -> None:
    """Another one is refused."""
    body: dict[str, Any] = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"}}
    body["involvedObject"] = {"kind": "Gateway", "name": "a", "namespace": "default"}
    assert "does not match event.namespace" in str(cluster.refused("POST", cluster.path("events"), body))


def test_events(cluster: Cluster) -> None:
    """An Event can be selected by what it is about."""
    path = cluster.path("events")
    about = {"kind": "Gateway", "name": "a", "namespace": cluster.namespace}
    body: dict[str, Any] = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"}}
    body |= {"reason": "Conflict", "message": "m", "type": "Warning", "involvedObject": about}
    cluster.client.request("POST", path, body=body)
    query = {"fieldSelector": "involvedObject.name=a,reason=Conflict"}
    assert len(cluster.client.request("GET", path, query)["items"]) == 1
    query = {"fieldSelector": "involvedObject.name=b"}
    assert cluster.client.request("GET", path, query)["items"] == []
