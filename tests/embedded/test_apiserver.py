"""The embedded API server over real HTTP on the loopback: versions, conflicts, watches, merge patches, faults."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devtools.apiserver import ApiServer, Fault, FaultKind

pytestmark = pytest.mark.apiserver

CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
GATEWAYS = "/apis/multicluster.crd.antrea.io/v1alpha1/namespaces/kube-system/gateways"


@pytest.fixture
def api() -> Iterator[ApiServer]:
    """Give a running server."""
    with ApiServer(bookmark_interval=0.1) as server:
        yield server


def call(
    api: ApiServer,
    method: str,
    path: str,
    body: Any = None,
    *,
    kind: str = "application/json",
    code: int | None = None,
) -> Any:
    """Make one request and return the JSON of the answer, which must have the expected code."""
    connection = http.client.HTTPConnection(api.address, timeout=10)
    try:
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection.request(method, path, data, {"Content-Type": kind, "User-Agent": "tests/1"})
        answer = connection.getresponse()
        text = answer.read()
    finally:
        connection.close()
    expected = code if code is not None else 201 if method == "POST" else 200
    assert answer.status == expected, text
    return json.loads(text)


def configmap(name: str, **data: str) -> dict[str, Any]:
    """Return a ConfigMap to create."""
    return {"metadata": {"name": name}, "data": data}


watches: list[Watch] = []


@pytest.fixture(autouse=True)
def _closed_watches() -> Iterator[None]:
    yield
    while watches:
        watch = watches.pop()
        watch.answer.close()
        watch.connection.close()


class Watch:
    """A watch of a path; `next` blocks until an event comes. Closed at the end of the test."""

    def __init__(self, api: ApiServer, path: str, **query: object) -> None:
        self.connection = http.client.HTTPConnection(api.address, timeout=10)
        text = "&".join(f"{key}={value}" for key, value in {"watch": 1, **query}.items())
        self.connection.request("GET", f"{path}?{text}")
        self.answer = self.connection.getresponse()
        watches.append(self)
        assert self.answer.status == 200

    def next(self) -> dict[str, Any] | None:
        line = self.answer.readline()
        return json.loads(line) if line else None

    def until_end(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.answer]


def test_a_created_object_gets_what_the_server_gives(api: ApiServer) -> None:
    """uid, creationTimestamp, generation and a version come from the server; a second create conflicts."""
    created = call(api, "POST", CONFIGMAPS, configmap("a", k="v"))
    meta = created["metadata"]
    assert created["kind"] == "ConfigMap"
    assert created["apiVersion"] == "v1"
    assert meta["uid"]
    assert meta["creationTimestamp"].endswith("Z")
    assert "generation" not in meta  # only kinds with a wanted and an actual state have one
    assert call(api, "GET", f"{CONFIGMAPS}/a") == created
    status = call(api, "POST", CONFIGMAPS, configmap("a"), code=409)
    assert status["reason"] == "AlreadyExists"


def test_a_write_from_an_old_version_conflicts(api: ApiServer) -> None:
    """Of two writers that read the same version only the first succeeds."""
    created = call(api, "POST", CONFIGMAPS, configmap("a", k="1"))
    newer = call(api, "PUT", f"{CONFIGMAPS}/a", created | {"data": {"k": "2"}})
    assert int(newer["metadata"]["resourceVersion"]) > int(created["metadata"]["resourceVersion"])
    status = call(api, "PUT", f"{CONFIGMAPS}/a", created | {"data": {"k": "3"}}, code=409)
    assert status["reason"] == "Conflict"


def test_a_write_that_changes_nothing_makes_no_version(api: ApiServer) -> None:
    """A no-op write returns the object as it was, and watches see nothing of it."""
    created = call(api, "POST", CONFIGMAPS, configmap("a", k="1"))
    again = call(api, "PUT", f"{CONFIGMAPS}/a", configmap("a", k="1"))
    assert again["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]


def test_status_is_written_only_through_its_subresource(api: ApiServer) -> None:
    """The object's path leaves the status alone, the subresource's leaves the rest alone."""
    gateway = {"metadata": {"name": "n1"}, "gatewayIP": "10.0.0.1", "status": {"x": 1}}
    created = call(api, "POST", GATEWAYS, gateway)
    assert "status" not in created
    stored = call(api, "PUT", f"{GATEWAYS}/n1/status", created | {"gatewayIP": "9.9.9.9", "status": {"x": 2}})
    assert stored["gatewayIP"] == "10.0.0.1"
    assert stored["status"] == {"x": 2}
    assert stored["metadata"]["generation"] == 1
    changed = call(api, "PUT", f"{GATEWAYS}/n1", stored | {"gatewayIP": "10.0.0.2", "status": {"x": 3}})
    assert changed["status"] == {"x": 2}
    assert changed["metadata"]["generation"] == 2


def test_the_status_of_a_node_is_written_with_its_annotations(api: ApiServer) -> None:
    """As by Kubernetes, where a write to it leaves only the spec and the identity of a Node alone."""
    created = call(api, "POST", "/api/v1/nodes", {"metadata": {"name": "n1"}, "spec": {"unschedulable": True}})
    metadata = created["metadata"] | {"annotations": {"a": "b"}}
    stored = call(api, "PUT", "/api/v1/nodes/n1/status", created | {"metadata": metadata, "spec": {}})
    assert stored["metadata"]["annotations"] == {"a": "b"}
    assert stored["spec"] == {"unschedulable": True}
    gone = call(
        api, "PUT", "/api/v1/nodes/n1/status", stored | {"metadata": created["metadata"] | {"resourceVersion": ""}}
    )
    assert "annotations" not in gone["metadata"]


def test_finalizers_hold_an_object_until_they_are_gone(api: ApiServer) -> None:
    """A delete marks an object that has finalizers; it goes when the last one is taken off."""
    body = configmap("a")
    body["metadata"]["finalizers"] = ["example.org/hold"]
    call(api, "POST", CONFIGMAPS, body)
    marked = call(api, "DELETE", f"{CONFIGMAPS}/a")
    assert marked["metadata"]["deletionTimestamp"]
    patch = {"metadata": {"finalizers": None}}
    call(api, "PATCH", f"{CONFIGMAPS}/a", patch, kind="application/merge-patch+json")
    assert call(api, "GET", f"{CONFIGMAPS}/a", code=404)["reason"] == "NotFound"


def test_a_watch_begins_where_the_list_ended(api: ApiServer) -> None:
    """Events after the list's version come in order, each with its version, across kinds of change."""
    call(api, "POST", CONFIGMAPS, configmap("before"))
    rv = call(api, "GET", CONFIGMAPS)["metadata"]["resourceVersion"]
    call(api, "POST", CONFIGMAPS, configmap("a"))
    watch = Watch(api, CONFIGMAPS, resourceVersion=rv)
    call(api, "PATCH", f"{CONFIGMAPS}/a", {"data": {"k": "v"}}, kind="application/merge-patch+json")
    call(api, "DELETE", f"{CONFIGMAPS}/a")
    events = [watch.next() for _ in range(3)]
    assert [event and event["type"] for event in events] == ["ADDED", "MODIFIED", "DELETED"]
    versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in events if event]
    assert versions == sorted(versions)
    assert versions[0] > int(rv)


def test_bookmarks_tell_the_version_without_events(api: ApiServer) -> None:
    """A quiet watch that allows bookmarks learns the version that other kinds have moved on to."""
    watch = Watch(api, CONFIGMAPS, allowWatchBookmarks="true", resourceVersion=api.store.rv)
    call(api, "POST", GATEWAYS, {"metadata": {"name": "n1"}})
    event = watch.next()
    while event and int(event["object"]["metadata"]["resourceVersion"]) < api.store.rv:
        event = watch.next()
    assert event
    assert event["type"] == "BOOKMARK"
    assert event["object"]["kind"] == "ConfigMap"


def test_a_watch_ends_at_its_timeout(api: ApiServer) -> None:
    """timeoutSeconds ends the stream cleanly, with a last bookmark."""
    events = Watch(api, CONFIGMAPS, allowWatchBookmarks=1, timeoutSeconds=1).until_end()
    assert events[-1]["type"] == "BOOKMARK"


def test_a_watch_from_a_compacted_version_is_told_410(api: ApiServer) -> None:
    """History that is gone is answered with an ERROR event of code 410."""
    call(api, "POST", CONFIGMAPS, configmap("a"))
    old = api.store.rv
    call(api, "POST", CONFIGMAPS, configmap("b"))
    api.store.compact()
    (event,) = Watch(api, CONFIGMAPS, resourceVersion=old).until_end()
    assert event["type"] == "ERROR"
    assert event["object"]["code"] == 410


def test_selectors_turn_changes_into_added_and_deleted(api: ApiServer) -> None:
    """For a watch with a selector, an object that leaves the selection is deleted and one that enters added."""
    body = configmap("a")
    body["metadata"]["labels"] = {"app": "web"}
    call(api, "POST", CONFIGMAPS, body)
    watch = Watch(api, CONFIGMAPS, labelSelector="app%20in%20(web,db)", resourceVersion=api.store.rv)
    for app in ("other", "db"):
        patch = {"metadata": {"labels": {"app": app}}}
        call(api, "PATCH", f"{CONFIGMAPS}/a", patch, kind="application/merge-patch+json")
    assert [event and event["type"] for event in (watch.next(), watch.next())] == ["DELETED", "ADDED"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("labelSelector=app%3Dweb", ["a"]),
        ("labelSelector=app!%3Dweb", ["b", "c"]),
        ("labelSelector=app", ["a", "b"]),
        ("labelSelector=!app", ["c"]),
        ("labelSelector=app%20notin%20(web)", ["b", "c"]),
        ("labelSelector=app,app!%3Ddb", ["a"]),
        ("fieldSelector=metadata.name%3Db", ["b"]),
        ("fieldSelector=metadata.name!%3Db,metadata.name!%3Dc", ["a"]),
    ],
)
def test_selectors_choose(api: ApiServer, query: str, expected: list[str]) -> None:
    """Label and field selectors in all their operators."""
    for name, labels, data in (("a", {"app": "web"}, {"k": "v"}), ("b", {"app": "db"}, {"k": "v"}), ("c", {}, {})):
        call(api, "POST", CONFIGMAPS, {"metadata": {"name": name, "labels": labels}, "data": data})
    assert [item["metadata"]["name"] for item in call(api, "GET", f"{CONFIGMAPS}?{query}")["items"]] == expected


def test_pages_are_of_one_version(api: ApiServer) -> None:
    """All pages of a list name the version of the first, from which a watch goes on; it may be compacted."""
    for number in range(5):
        call(api, "POST", CONFIGMAPS, configmap(f"c{number}"))
    first = call(api, "GET", f"{CONFIGMAPS}?limit=2")
    call(api, "DELETE", f"{CONFIGMAPS}/c3")
    call(api, "POST", CONFIGMAPS, configmap("c9"))
    token = first["metadata"]["continue"]
    second = call(api, "GET", f"{CONFIGMAPS}?limit=10&continue={token}")
    assert [item["metadata"]["name"] for item in second["items"]] == ["c2", "c4", "c9"]
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    api.store.compact()
    call(api, "GET", f"{CONFIGMAPS}?continue={token}", code=410)


def test_an_apply_creates_or_merges(api: ApiServer) -> None:
    """Nothing owns fields: an apply is a merge patch of an object that it creates first."""
    path, kind = f"{CONFIGMAPS}/a?fieldManager=one", "application/apply-patch+yaml"
    call(api, "PATCH", path, configmap("a", x="1"), kind=kind, code=201)
    merged = call(api, "PATCH", path, configmap("a", x="2", y="1"), kind=kind)
    assert merged["data"] == {"x": "2", "y": "1"}
    call(api, "PATCH", f"{CONFIGMAPS}/a", {}, kind="application/strategic-merge-patch+json", code=415)


@pytest.mark.parametrize(
    ("method", "path", "body", "code"),
    [
        ("POST", CONFIGMAPS, b"{not json", 400),
        ("POST", CONFIGMAPS, b"[1]", 400),
        ("POST", CONFIGMAPS, b"[" * 100_000, 400),
        ("POST", CONFIGMAPS, {"metadata": {"name": "a"}, "kind": "Secret", "apiVersion": "v1"}, 400),
        ("POST", CONFIGMAPS, {"metadata": {}}, 422),
        ("POST", CONFIGMAPS, {"metadata": {"name": "a", "namespace": "other"}}, 400),
        ("POST", CONFIGMAPS.replace("default", "nowhere"), {"metadata": {"name": "a"}}, 404),
        ("PUT", f"{CONFIGMAPS}/none", {"metadata": {"name": "none"}}, 404),
        ("PUT", CONFIGMAPS, {}, 405),
        ("GET", "/apis/example.org/v1/things", None, 404),
        ("GET", "/nowhere", None, 404),
        ("GET", f"{CONFIGMAPS}?limit=x", None, 400),
        ("GET", f"{CONFIGMAPS}?continue=x", None, 400),
        ("GET", f"{CONFIGMAPS}?labelSelector=a(", None, 400),
    ],
)
def test_bad_requests_get_a_typed_status(api: ApiServer, method: str, path: str, body: Any, code: int) -> None:
    """Every refusal is a Status object with its code and reason."""
    status = call(api, method, path, body, code=code)
    assert status["kind"] == "Status"
    assert status["code"] == code
    assert status["reason"]


def test_a_definition_adds_a_resource_and_its_end_removes_it(api: ApiServer) -> None:
    """A CustomResourceDefinition is served from its creation to its deletion, in discovery too."""
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    versions = [{"name": "v1", "served": True, "storage": True, "subresources": {"status": {}}}]
    spec: dict[str, Any] = {"group": "example.org", "scope": "Namespaced", "versions": versions}
    spec["names"] = {"plural": "things", "kind": "Thing"}
    definition = call(api, "POST", crds, {"metadata": {"name": "things.example.org"}, "spec": spec})
    assert {"Established", "NamesAccepted"} == {c["type"] for c in definition["status"]["conditions"]}
    things = "/apis/example.org/v1/namespaces/default/things"
    call(api, "POST", things, {"metadata": {"name": "t"}, "spec": {}})
    names = [resource["name"] for resource in call(api, "GET", "/apis/example.org/v1")["resources"]]
    assert names == ["things", "things/status"]
    call(api, "DELETE", f"{crds}/things.example.org")
    call(api, "GET", things, code=404)


def test_a_namespace_takes_its_objects_with_it(api: ApiServer) -> None:
    """A namespace terminates while something in it has a finalizer, and takes nothing new meanwhile."""
    call(api, "POST", "/api/v1/namespaces", {"metadata": {"name": "n"}})
    inside = "/api/v1/namespaces/n/configmaps"
    call(api, "POST", inside, {"metadata": {"name": "a"}})
    call(api, "POST", inside, {"metadata": {"name": "b", "finalizers": ["example.org/hold"]}})
    gone = call(api, "DELETE", "/api/v1/namespaces/n")
    assert gone["status"]["phase"] == "Terminating"
    call(api, "POST", inside, configmap("c"), code=403)
    call(api, "PATCH", f"{inside}/b", {"metadata": {"finalizers": []}}, kind="application/merge-patch+json")
    call(api, "GET", "/api/v1/namespaces/n", code=404)


def test_objects_outlive_a_restart(tmp_path: Path) -> None:
    """With a data file a new server has the same objects, and watches from old versions are told to list."""
    file = tmp_path / "data.json"
    with ApiServer(data=file) as api:
        created = call(api, "POST", CONFIGMAPS, configmap("a", k="v"))
        rv = api.store.rv
    with ApiServer(data=file) as api:
        assert call(api, "GET", f"{CONFIGMAPS}/a") == created
        (event,) = Watch(api, CONFIGMAPS, resourceVersion=rv).until_end()
        assert event["object"]["code"] == 410
        assert api.store.rv > rv


def test_many_writers_lose_no_update(api: ApiServer) -> None:
    """Twenty compare-and-swap increments from four threads add up."""
    call(api, "POST", CONFIGMAPS, configmap("n", k="0"))

    def add() -> None:
        done = 0
        while done < 5:
            old = call(api, "GET", f"{CONFIGMAPS}/n")
            old["data"]["k"] = str(int(old["data"]["k"]) + 1)
            try:
                call(api, "PUT", f"{CONFIGMAPS}/n", old)
                done += 1
            except AssertionError:
                continue

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert call(api, "GET", f"{CONFIGMAPS}/n")["data"]["k"] == "20"


def test_faults_are_switched_over_http(api: ApiServer) -> None:
    """The admin endpoint sets a fault for so many requests, lists and clears them."""
    call(api, "POST", "/_admin/faults", {"kind": "status", "code": 503, "path": "configmaps", "times": 1})
    assert len(call(api, "GET", "/_admin/faults")) == 1
    call(api, "GET", CONFIGMAPS, code=503)
    call(api, "GET", CONFIGMAPS)
    call(api, "POST", "/_admin/faults", {"kind": "nonsense"}, code=400)
    api.faults.add(Fault(kind=FaultKind.DROP))
    with pytest.raises(http.client.RemoteDisconnected):
        call(api, "GET", CONFIGMAPS)
    call(api, "DELETE", "/_admin/faults")
    call(api, "GET", CONFIGMAPS)


def test_a_refusing_server_comes_back_on_its_port(api: ApiServer) -> None:
    """refuse() cuts and refuses connections; refuse(False) serves the same objects on the same port."""
    call(api, "POST", CONFIGMAPS, configmap("a"))
    api.refuse()
    with pytest.raises(ConnectionRefusedError):
        call(api, "GET", CONFIGMAPS)
    api.refuse(False)
    assert call(api, "GET", f"{CONFIGMAPS}/a")["metadata"]["name"] == "a"
