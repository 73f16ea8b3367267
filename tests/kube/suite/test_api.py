"""What mcagent and its tests rely on an API server for. Passes against the embedded one and a real one alike."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from mcagent.kube.errors import ApiRefusalError
from mcagent.kube.source import EventType, WatchEvent, object_key
from mcagent.kube.sources.informer import Informer, Timing
from mcagent.model.api.base import ApiObject, as_json
from mcagent.model.objects import Kind
from tests.worlds.apiservers import Cluster

pytestmark = pytest.mark.apiserver


@contextmanager
def watching(cluster: Cluster, path: str, **query: str) -> Iterator[Iterator[Any]]:
    """Open a watch and give its events."""
    with cluster.client.watch(path, {"watch": "true", **query}, inactivity=20.0) as stream:
        yield (json.loads(line) for line in stream.lines())


def names(answer: Any) -> list[str]:
    """Return the names of a list's items."""
    return [item["metadata"]["name"] for item in answer["items"]]


def test_create_and_get(cluster: Cluster) -> None:
    """The server gives uid, version and time; lists are of their kind, their items without one."""
    created = cluster.create(cluster.configmaps, "a", data={"k": "v"})
    assert {"uid", "resourceVersion", "creationTimestamp", "name", "namespace"} <= created["metadata"].keys()
    assert (
        cluster.client.request("GET", f"{cluster.configmaps}/a")["metadata"]["uid"] == created["metadata"]["uid"]
    )
    listed = cluster.client.request("GET", cluster.gateways)
    assert (listed["kind"], listed["items"]) == ("GatewayList", [])
    assert listed["metadata"]["resourceVersion"]


def test_refusals_are_typed(cluster: Cluster) -> None:
    """Each kind of refusal has its code and reason."""
    cluster.create(cluster.configmaps, "a")
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
    refusals = [
        cluster.refused("POST", cluster.configmaps, body),
        cluster.refused("GET", f"{cluster.configmaps}/none"),
        cluster.refused("PUT", f"{cluster.configmaps}/none", body | {"metadata": {"name": "none"}}),
        cluster.refused("POST", cluster.configmaps, body | {"metadata": {}}),
        cluster.refused("POST", cluster.configmaps, body | {"kind": "Secret"}),
        cluster.refused("GET", cluster.configmaps, labelSelector="a("),
    ]
    assert [(error.code, error.reason) for error in refusals] == [
        (409, "AlreadyExists"),
        (404, "NotFound"),
        (404, "NotFound"),
        (422, "Invalid"),
        (400, "BadRequest"),
        (400, "BadRequest"),
    ]
    unknown = cluster.refused("GET", f"/apis/none.example.org/v1/namespaces/{cluster.namespace}/things")
    assert unknown.code == 404


def test_optimistic_locking(cluster: Cluster) -> None:
    """A write from an old version conflicts; custom resources refuse a PUT without a version."""
    old = cluster.create(cluster.gateways, "n1", gatewayIP="10.0.0.1")
    path = f"{cluster.gateways}/n1"
    new = cluster.client.request("PUT", path, body=old | {"gatewayIP": "10.0.0.2"})
    assert new["metadata"]["generation"] == 2
    assert cluster.refused("PUT", path, old | {"gatewayIP": "10.0.0.3"}).code == 409
    bare = {"apiVersion": old["apiVersion"], "kind": "Gateway", "metadata": {"name": "n1"}}
    assert cluster.refused("PUT", path, bare).code == 422
    assert cluster.refused("DELETE", path, {"preconditions": {"uid": "other"}}).code == 409


def test_a_write_without_effect_makes_no_version(cluster: Cluster) -> None:
    """Writing what is there keeps the version."""
    old = cluster.create(cluster.configmaps, "a", data={"k": "v"})
    same = cluster.patch(f"{cluster.configmaps}/a", {"data": {"k": "v"}})
    assert same["metadata"]["resourceVersion"] == old["metadata"]["resourceVersion"]


def test_status_subresource(cluster: Cluster) -> None:
    """The object's path never writes the status, the subresource nothing else."""
    created = cluster.create(cluster.gateways, "n1", gatewayIP="10.0.0.1", status={"conditions": []})
    assert "status" not in created
    condition = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    patched = cluster.patch(
        f"{cluster.gateways}/n1/status", {"gatewayIP": "10.9.9.9", "status": {"conditions": [condition]}}
    )
    assert patched["gatewayIP"] == "10.0.0.1"
    assert patched["status"]["conditions"][0]["type"] == "Ready"
    assert patched["metadata"]["generation"] == 1
    kept = cluster.patch(f"{cluster.gateways}/n1", {"gatewayIP": "10.0.0.2", "status": None})
    assert kept["status"] == patched["status"]


def test_finalizers(cluster: Cluster) -> None:
    """A delete marks; taking the last finalizer off removes."""
    cluster.create(cluster.configmaps, "a", metadata={"finalizers": ["example.org/hold"]})
    cluster.client.request("DELETE", f"{cluster.configmaps}/a")
    assert cluster.client.request("GET", f"{cluster.configmaps}/a")["metadata"]["deletionTimestamp"]
    cluster.patch(f"{cluster.configmaps}/a", {"metadata": {"finalizers": None}})
    assert cluster.refused("GET", f"{cluster.configmaps}/a").code == 404


def test_watch_from_a_version(cluster: Cluster) -> None:
    """Everything after a list's version comes, in order."""
    rv = cluster.client.request("GET", cluster.configmaps)["metadata"]["resourceVersion"]
    cluster.create(cluster.configmaps, "mine")
    cluster.patch(f"{cluster.configmaps}/mine", {"data": {"k": "v"}})
    cluster.client.request("DELETE", f"{cluster.configmaps}/mine")
    seen = []
    with watching(cluster, cluster.configmaps, resourceVersion=rv, timeoutSeconds="10") as events:
        for event in events:
            if event["object"]["metadata"]["name"] == "mine":
                seen.append(event["type"])
            if event["type"] == "DELETED":
                break
    assert seen == ["ADDED", "MODIFIED", "DELETED"]


def test_watch_without_a_version_begins_with_what_is_there(cluster: Cluster) -> None:
    """With resourceVersion 0 the present objects come as ADDED."""
    cluster.create(cluster.gateways, "n1")
    with watching(cluster, cluster.gateways, resourceVersion="0", timeoutSeconds="10") as events:
        event = next(events)
    assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", "n1")


def test_watch_ends_in_time_and_bookmarks(cluster: Cluster) -> None:
    """timeoutSeconds ends the stream; a watch that allows bookmarks gets one before."""
    cluster.create(cluster.gateways, "n1")
    with watching(
        cluster, cluster.gateways, resourceVersion="0", allowWatchBookmarks="true", timeoutSeconds="4"
    ) as events:
        types = [event["type"] for event in events]
    assert types[0] == "ADDED"
    assert types[-1] == "BOOKMARK"


def test_selectors(cluster: Cluster) -> None:
    """Labels and fields select in lists; in watches, entering and leaving is ADDED and DELETED."""
    for name, app in (("a", "web"), ("b", "db")):
        cluster.create(cluster.gateways, name, metadata={"labels": {"app": app}})
    listed = cluster.client.request("GET", cluster.gateways, {"labelSelector": "app in (web)"})
    assert names(listed) == ["a"]
    by_name = cluster.client.request("GET", cluster.gateways, {"fieldSelector": "metadata.name!=a"})
    assert names(by_name) == ["b"]
    rv = listed["metadata"]["resourceVersion"]
    with watching(
        cluster, cluster.gateways, labelSelector="app=web", resourceVersion=rv, timeoutSeconds="10"
    ) as events:
        cluster.patch(f"{cluster.gateways}/a", {"metadata": {"labels": {"app": "x"}}})
        cluster.patch(f"{cluster.gateways}/b", {"metadata": {"labels": {"app": "web"}}})
        seen = [(event["type"], event["object"]["metadata"]["name"]) for event in (next(events), next(events))]
    assert seen == [("DELETED", "a"), ("ADDED", "b")]


@pytest.mark.parametrize(
    ("plural", "selector"),
    [
        ("events", "involvedObject.kind=Node,involvedObject.name=n1"),
        ("events", "reason=EndpointsRefused"),
        ("events", "reportingComponent=mcagent"),
        ("pods", "status.podIP=10.0.0.1"),
        ("secrets", "metadata.name=token"),
    ],
)
def test_fields_that_mcagent_selects_by(cluster: Cluster, plural: str, selector: str) -> None:
    """The API server accepts each field selector of the product."""
    assert cluster.client.request("GET", cluster.path(plural), {"fieldSelector": selector})["items"] == []


@pytest.mark.real_only
@pytest.mark.parametrize("selector", ["data.k=v", "spec.leaders=x", "metadata.uid=x"])
def test_fields_that_select_nothing(cluster: Cluster, selector: str) -> None:
    """Only a few fields can be selected by; any other is refused with 400."""
    for path in (cluster.configmaps, cluster.gateways):
        assert cluster.refused("GET", path, fieldSelector=selector).code == 400


def test_secrets_are_selected_by_type(cluster: Cluster) -> None:
    """Fields of built-in kinds: Secrets by type."""
    data = {"k": "dg=="}
    cluster.create(cluster.path("secrets"), "a", type="Opaque", data=data)
    cluster.create(cluster.path("secrets"), "b", type="example.org/other")
    listed = cluster.client.request("GET", cluster.path("secrets"), {"fieldSelector": "type=Opaque"})["items"]
    assert [(item["metadata"]["name"], item["data"]) for item in listed] == [("a", data)]


@pytest.mark.real_only
def test_pages(cluster: Cluster) -> None:
    """limit and continue walk through one version of a list."""
    for number in range(5):
        cluster.create(cluster.gateways, f"n{number}")
    first = cluster.client.request("GET", cluster.gateways, {"limit": "2"})
    cluster.client.request("DELETE", f"{cluster.gateways}/n3")
    token = first["metadata"]["continue"]
    page = cluster.client.request("GET", cluster.gateways, {"limit": "5", "continue": token})
    assert names(first) + names(page) == [f"n{number}" for number in range(5)]
    assert not page["metadata"].get("continue")


def test_patches(cluster: Cluster) -> None:
    """A merge patch changes and removes fields, and replaces lists."""
    cluster.create(cluster.configmaps, "a", data={"x": "1", "y": "1"}, metadata={"finalizers": ["example.org/a"]})
    path = f"{cluster.configmaps}/a"
    assert cluster.patch(path, {"data": {"x": None, "z": "1"}})["data"] == {"y": "1", "z": "1"}
    merged = cluster.patch(path, {"metadata": {"finalizers": ["example.org/b"]}})
    assert merged["metadata"]["finalizers"] == ["example.org/b"]
    cluster.patch(path, {"metadata": {"finalizers": None}})


def test_an_apply_creates_or_merges(cluster: Cluster) -> None:
    """As the lab and `mcagent deploy` use it: what is not there is made, what is there gets the fields given."""
    path, query = f"{cluster.configmaps}/a", {"fieldManager": "one", "force": "true"}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
    assert cluster.patch(path, body | {"data": {"x": "1"}}, "apply", **query)["data"] == {"x": "1"}
    assert cluster.patch(path, body | {"data": {"x": "2", "y": "1"}}, "apply", **query)["data"] == {
        "x": "2",
        "y": "1",
    }


@pytest.mark.real_only
@pytest.mark.parametrize(
    ("size", "code", "message"),
    [
        (1_400_000, 0, ""),
        (1_600_000, 500, "etcdserver: request is too large"),
        (3_300_000, 413, "Request entity too large: limit is 3145728"),
    ],
)
def test_large_objects(cluster: Cluster, size: int, code: int, message: str) -> None:
    """An object of 1.4 MB is stored; one over etcd's 1.5 MiB is refused with 500, one over 3 MiB with 413."""
    if not code:
        stored = cluster.create(cluster.gateways, "big", gatewayIP="x" * size)
        assert len(stored["gatewayIP"]) == size
        return
    with pytest.raises(ApiRefusalError, match=message) as caught:
        cluster.create(cluster.gateways, "big", gatewayIP="x" * size)
    assert caught.value.code == code


def test_dry_run_changes_nothing(cluster: Cluster) -> None:
    """dryRun=All answers as if, and stores nothing."""
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
    created = cluster.client.request("POST", cluster.configmaps, {"dryRun": "All"}, body=body)
    assert created["metadata"]["uid"]
    assert cluster.refused("GET", f"{cluster.configmaps}/a").code == 404


@pytest.mark.real_only
def test_delete_collection(cluster: Cluster) -> None:
    """A collection is deleted by selector."""
    for name, app in (("a", "web"), ("b", "db")):
        cluster.create(cluster.gateways, name, metadata={"labels": {"app": app}})
    cluster.client.request("DELETE", cluster.gateways, {"labelSelector": "app=web"})
    assert names(cluster.client.request("GET", cluster.gateways)) == ["b"]


def test_discovery(cluster: Cluster) -> None:
    """Groups, versions and resources are told, the status subresource among them."""
    groups = {group["name"] for group in cluster.client.request("GET", "/apis")["groups"]}
    assert {"multicluster.crd.antrea.io", "multicluster.x-k8s.io", "discovery.k8s.io"} <= groups
    served = cluster.client.request("GET", "/apis/multicluster.crd.antrea.io/v1alpha1")["resources"]
    assert {"gateways", "gateways/status", "clusterinfoimports"} <= {resource["name"] for resource in served}
    assert cluster.client.request("GET", "/version")["major"] == "1"


class _Mirror:
    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.objects: dict[str, ApiObject] = {}

    def replace(self, kind: Kind, objects: Sequence[ApiObject]) -> None:
        with self.changed:
            self.objects = {object_key(obj): obj for obj in objects}
            self.changed.notify_all()

    def apply(self, kind: Kind, event: WatchEvent) -> None:
        with self.changed:
            self.objects.pop(event.key, None)
            if event.type is not EventType.DELETED:
                self.objects[event.key] = event.object
            self.changed.notify_all()

    def forget(self, kind: Kind) -> None:
        pass


def test_the_informer_follows(cluster: Cluster) -> None:
    """Our informer sees what is there, what comes, what changes and what goes."""
    cluster.create(cluster.gateways, "n1", gatewayIP="10.0.0.1")
    mirror = _Mirror()
    informer = Informer(Kind.GATEWAY, cluster.client, mirror, namespace=cluster.namespace, timing=Timing(page=1))
    informer.start()

    def wait(**expected: str) -> None:
        def addresses() -> dict[str, str]:
            objects = mirror.objects.items()
            return {key.rpartition("/")[2]: as_json(obj)["gatewayIP"] for key, obj in objects}

        with mirror.changed:
            assert mirror.changed.wait_for(lambda: addresses() == expected, 20)

    wait(n1="10.0.0.1")
    cluster.create(cluster.gateways, "n2", gatewayIP="10.0.0.2")
    wait(n1="10.0.0.1", n2="10.0.0.2")
    cluster.patch(f"{cluster.gateways}/n1", {"gatewayIP": "10.0.0.9"})
    wait(n1="10.0.0.9", n2="10.0.0.2")
    cluster.client.request("DELETE", f"{cluster.gateways}/n2")
    wait(n1="10.0.0.9")
    informer.stop()
