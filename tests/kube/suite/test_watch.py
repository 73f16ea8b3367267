"""Watches, as informers rely on them: resume, bookmarks, 410."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from devtools.waiting import wait_until
from mcagent.kube.errors import ApiRefusalError
from tests.worlds.apiservers import Cluster

pytestmark = pytest.mark.apiserver


@contextmanager
def watching(cluster: Cluster, path: str, **query: str) -> Iterator[Iterator[Any]]:
    """Open a watch and give its events."""
    query = {"watch": "true", "timeoutSeconds": "15", **query}
    with cluster.client.watch(path, query, inactivity=20.0) as stream:
        yield (json.loads(line) for line in stream.lines())


def version(obj: Any) -> str:
    """Return an object's or a list's resourceVersion."""
    return str(obj["metadata"]["resourceVersion"])


def test_a_watch_resumes_after_an_event(cluster: Cluster) -> None:
    """From the version of the last event seen, exactly the events after it come."""
    first = cluster.create(cluster.gateways, "a", gatewayIP="10.0.0.1")
    second = cluster.patch(f"{cluster.gateways}/a", {"gatewayIP": "10.0.0.2"})
    cluster.client.request("DELETE", f"{cluster.gateways}/a")
    for since, expected in ((first, ["MODIFIED", "DELETED"]), (second, ["DELETED"])):
        with watching(cluster, cluster.gateways, resourceVersion=version(since)) as events:
            assert [next(events)["type"] for _ in expected] == expected


def test_a_deleted_object_has_the_version_of_its_deletion(cluster: Cluster) -> None:
    """So that a watch can go on from a DELETED event."""
    created = cluster.create(cluster.gateways, "a", gatewayIP="10.0.0.1")
    cluster.client.request("DELETE", f"{cluster.gateways}/a")
    with watching(cluster, cluster.gateways, resourceVersion=version(created)) as events:
        event = next(events)
    assert event["type"] == "DELETED"
    assert int(version(event["object"])) > int(version(created))
    assert event["object"]["gatewayIP"] == "10.0.0.1"


def test_a_version_from_long_ago_is_gone(cluster: Cluster) -> None:
    """A watch from history that was compacted away is told 410, by its status or by an ERROR event."""
    if cluster.server.embedded is not None:
        cluster.create(cluster.gateways, "a")
        cluster.server.embedded.store.compact()
    try:
        with watching(cluster, cluster.gateways, resourceVersion="1") as events:
            event = next(events)
    except ApiRefusalError as error:
        code, reason = error.code, error.reason
    else:
        assert event["type"] == "ERROR"
        code, reason = event["object"]["code"], event["object"]["reason"]
    assert (code, reason) == (410, "Expired")


@pytest.mark.real_only
def test_a_version_of_the_future_is_told(cluster: Cluster) -> None:
    """A list that wants a version not yet reached is refused with 504, and when to come again."""
    now = int(version(cluster.client.request("GET", cluster.gateways)))
    error = cluster.refused("GET", cluster.gateways, resourceVersion=str(now + 100_000))
    assert (error.code, error.reason) == (504, "Timeout")
    assert "Too large resource version" in str(error)


def test_a_watch_from_a_version_of_the_future_is_silent(cluster: Cluster) -> None:
    """It is accepted, and nothing comes, no bookmark either: so it is after a restore of etcd from a backup."""
    rv = int(version(cluster.client.request("GET", cluster.gateways))) + 100_000
    with watching(
        cluster, cluster.gateways, resourceVersion=str(rv), allowWatchBookmarks="true", timeoutSeconds="3"
    ) as events:
        cluster.create(cluster.gateways, "a", gatewayIP="10.0.0.1")
        assert list(events) == []


def test_a_watch_of_all_namespaces(cluster: Cluster) -> None:
    """Across namespaces events of all come, with their namespaces."""
    everywhere = cluster.gateways.replace(f"/namespaces/{cluster.namespace}", "")
    rv = version(cluster.client.request("GET", everywhere))
    cluster.create(cluster.gateways, "a")
    with watching(cluster, everywhere, resourceVersion=rv) as events:
        event = next(
            event for event in events if event["object"]["metadata"].get("namespace") == cluster.namespace
        )
    assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", "a")


def test_a_status_write_is_an_event(cluster: Cluster) -> None:
    """A watch of the resource sees writes of the status."""
    created = cluster.create(cluster.gateways, "a")
    cluster.patch(f"{cluster.gateways}/a/status", {"status": {"conditions": []}})
    with watching(cluster, cluster.gateways, resourceVersion=version(created)) as events:
        event = next(events)
    assert (event["type"], event["object"]["status"]) == ("MODIFIED", {"conditions": []})


def test_a_field_selector_chooses_in_a_watch(cluster: Cluster) -> None:
    """By name only the one object's events come."""
    rv = version(cluster.client.request("GET", cluster.gateways))
    for name in ("a", "b", "a2"):
        cluster.create(cluster.gateways, name)
    with watching(
        cluster, cluster.gateways, resourceVersion=rv, fieldSelector="metadata.name=b", timeoutSeconds="2"
    ) as events:
        assert [event["object"]["metadata"]["name"] for event in events] == ["b"]


def test_a_list_from_the_cache_catches_up(cluster: Cluster) -> None:
    """A list from the cache (resourceVersion 0) and one by quorum show the same in the end."""
    cluster.create(cluster.gateways, "a")

    def cached() -> list[str]:
        items = cluster.client.request("GET", cluster.gateways, {"resourceVersion": "0"})["items"]
        return [item["metadata"]["name"] for item in items]

    wait_until(lambda: cached() == ["a"], "the cache to catch up")
