"""Events and conditions against the embedded API server: written once, compared before, never in the way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from devtools.apiserver import ApiServer, Fault, FaultKind
from mcagent.kube.client import Client
from mcagent.kube.events import RENEWAL, EventRecorder
from mcagent.model.event import Event
from mcagent.model.problem import Problem
from tests.waiting import allowed, until

GATEWAYS = "/apis/multicluster.crd.antrea.io/v1alpha1/namespaces/kube-system/gateways"
PROBLEM = Problem(subject="Gateway kube-system/n1", path="gatewayIP", reason="NoAddress", message="not an address")


@pytest.fixture
def api() -> Iterator[ApiServer]:
    """Give a running server."""
    with ApiServer() as server:
        yield server


@pytest.fixture
def client(api: ApiServer, tmp_path: Path) -> Iterator[Client]:
    """Give a client of the server that has one Gateway."""
    api.write_kubeconfig(tmp_path / "kubeconfig")
    client = Client(str(tmp_path / "kubeconfig"))
    client.request("POST", GATEWAYS, body={"metadata": {"name": "n1"}, "gatewayIP": "x"})
    yield client
    client.close()


@pytest.fixture
def make(client: Client) -> Iterator[Callable[..., EventRecorder]]:
    """Give a function that starts a recorder of a Node; all are stopped at the end."""
    started: list[EventRecorder] = []

    def begin(node: str, renewal: float = RENEWAL) -> EventRecorder:
        recorder = EventRecorder(client, node=node, per_minute=60_000, spread=0.0, renewal=renewal)
        recorder.start()
        started.append(recorder)
        return recorder

    yield begin
    for recorder in started:
        recorder.stop()


def events(client: Client) -> list[dict[str, Any]]:
    """Return the Events that there are."""
    events: list[dict[str, Any]] = client.request("GET", "/api/v1/namespaces/kube-system/events")["items"]
    return events


def test_a_problem_becomes_one_event(client: Client, make: Callable[[str], EventRecorder]) -> None:
    """Two Nodes that see the same problem, again and again, make one Event that names object and cause."""
    one, two = make("n1"), make("n2")
    for recorder in (one, two):
        recorder.problems([PROBLEM])
        until(lambda: sum(recorder.counts().values()) == 1)  # noqa: B023 (called in this turn only)
    one.problems([])
    one.problems([PROBLEM])
    (event,) = events(client)
    assert event["reason"] == "NoAddress"
    assert event["message"] == "gatewayIP: not an address"
    assert event["involvedObject"]["uid"] == client.request("GET", f"{GATEWAYS}/n1")["metadata"]["uid"]
    assert event["source"] == {"component": "mcagent", "host": "n1"}
    assert two.counts() == {"unchanged": 1}


def test_the_event_of_a_problem_that_lasts_is_renewed(client: Client, make: Callable[..., EventRecorder]) -> None:
    """Its count and time change, by the Node that wrote it alone; once it has expired, it is written again."""
    first, second = make("n1", renewal=0.05), make("n2", renewal=0.05)
    first.problems([PROBLEM])
    until(lambda: first.counts().get("written", 0) >= 1)
    second.problems([PROBLEM])
    until(lambda: first.counts()["written"] >= 3)
    until(lambda: second.counts().get("unchanged", 0) >= 2)
    assert "written" not in second.counts()
    (event,) = events(client)
    assert event["count"] >= 3
    assert event["lastTimestamp"] >= event["firstTimestamp"]
    first.stop()
    client.request("DELETE", f"/api/v1/namespaces/kube-system/events/{event['metadata']['name']}")
    until(lambda: second.counts().get("written", 0) >= 2)
    (event,) = events(client)
    assert event["source"]["host"] == "n2"


def test_an_object_that_was_created_again_has_an_event_of_its_own(
    client: Client, make: Callable[..., EventRecorder]
) -> None:
    """The Event of the former one does not stand for it: kubectl describe selects by UID."""
    recorder = make("n1", renewal=0.05)
    recorder.problems([PROBLEM])
    until(lambda: recorder.counts().get("written", 0) >= 1)
    client.request("DELETE", f"{GATEWAYS}/n1")
    uid = client.request("POST", GATEWAYS, body={"metadata": {"name": "n1"}, "gatewayIP": "x"})["metadata"]["uid"]
    until(lambda: uid in {event["involvedObject"]["uid"] for event in events(client)})


def test_a_replica_without_the_lease_renews_nothing(client: Client) -> None:
    """What it knows may be over: the holder reports it."""
    permits = iter([1.0, 0.0])
    recorder = EventRecorder(client, node="n1", spread=0.0, renewal=0.0, permit=lambda: next(permits))
    recorder.problems([PROBLEM])
    for _ in range(2):  # not started
        recorder._write_next()
    assert recorder.counts() == {"written": 1}
    assert events(client)[0]["count"] == 1


def test_an_event_is_not_renewed_before_its_time(client: Client, make: Callable[..., EventRecorder]) -> None:
    """The thread waits for it."""
    recorder = make("n1")
    recorder.problems([PROBLEM])
    until(lambda: recorder.counts() == {"written": 1})
    recorder.problems([PROBLEM])
    assert recorder._write_next() > 0.7 * RENEWAL
    assert events(client)[0]["count"] == 1


def test_without_the_right_to_renew_an_event_it_is_written_once_it_has_expired(
    api: ApiServer, client: Client, make: Callable[..., EventRecorder]
) -> None:
    """Rights of an earlier version allow to create Events only."""
    api.faults.add(Fault(kind=FaultKind.STATUS, code=403, verbs=("patch",)))
    recorder = make("n1", renewal=0.05)
    recorder.problems([PROBLEM])
    until(lambda: recorder.counts().get("unchanged", 0) >= 2)
    (event,) = events(client)
    client.request("DELETE", f"/api/v1/namespaces/kube-system/events/{event['metadata']['name']}")
    until(lambda: recorder.counts()["written"] >= 2)
    assert len(events(client)) == 1


def test_what_is_no_api_object_is_passed_over(client: Client, make: Callable[[str], EventRecorder]) -> None:
    """Problems of files, and of objects that are gone, make no Event."""
    recorder = make("n1")
    subjects = ("file a.yaml", "Gateway kube-system/gone", "Gateway nonamespace", "")
    recorder.problems([Problem(subject=s, path="", reason="X", message="y") for s in subjects])
    until(lambda: recorder.counts().get("unchanged") == len(subjects))
    assert events(client) == []


@pytest.mark.timing
def test_failures_are_counted_and_given_up(
    api: ApiServer, client: Client, make: Callable[[str], EventRecorder]
) -> None:
    """An API server that refuses is asked three times, then the report is dropped; the caller never waits."""
    api.faults.add(Fault(kind=FaultKind.STATUS, code=500))
    recorder = make("n1")
    began = time.monotonic()
    recorder.problems([PROBLEM])
    assert time.monotonic() - began < allowed(0.5)
    until(lambda: recorder.counts() == {"failed": 2, "dropped": 1})
    api.faults.clear()
    other = Problem(subject=PROBLEM.subject, path="", reason="Other", message="m")
    recorder.problems([PROBLEM, other])
    until(lambda: recorder.counts().get("written") == 1)
    assert [event["reason"] for event in events(client)] == ["Other"]


def test_what_happens_becomes_an_event_each_time(client: Client, make: Callable[[str], EventRecorder]) -> None:
    """Two times the same are two Events, in order; a Node's are in the namespace default."""
    client.request("POST", "/api/v1/nodes", body={"metadata": {"name": "n1"}})
    recorder = make("n1")
    for number in (1, 1, 2):
        recorder.record(
            Event(subject="Node n1", reason="Drained", message=f"number {number}", warning=number != 2)
        )
    until(lambda: recorder.counts().get("written") == 3)
    events = client.request("GET", "/api/v1/namespaces/default/events")["items"]
    assert sorted((e["message"], e["type"]) for e in events) == [
        ("number 1", "Warning"),
        ("number 1", "Warning"),
        ("number 2", "Normal"),
    ]
    assert {e["involvedObject"]["name"] for e in events} == {"n1"}


def test_of_too_many_events_the_last_are_kept(client: Client) -> None:
    """A recorder that cannot write does not grow."""
    recorder = EventRecorder(client, node="n1")  # not started
    for number in range(100):
        recorder.record(Event(subject="Node n1", reason="Drained", message=str(number)))
    assert recorder.counts()["dropped"] == 84
