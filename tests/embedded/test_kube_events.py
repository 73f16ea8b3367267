"""Events and conditions against the embedded API server: written once, compared before, never in the way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from devtools.apiserver import ApiServer, Fault, FaultKind
from mcagent.kube.client import Client
from mcagent.kube.events import Condition, Notice, Reporter
from mcagent.model.objects import Kind
from mcagent.model.problem import Problem
from tests.waiting import until

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
    made = Client(str(tmp_path / "kubeconfig"))
    made.request("POST", GATEWAYS, body={"metadata": {"name": "n1"}, "gatewayIP": "x"})
    yield made
    made.close()


@pytest.fixture
def make(client: Client) -> Iterator[Callable[[str], Reporter]]:
    """Give a function that starts a reporter of a Node; all are stopped at the end."""
    started: list[Reporter] = []

    def begin(node: str) -> Reporter:
        reporter = Reporter(client, node=node, per_minute=60_000, spread=0.0)
        reporter.start()
        started.append(reporter)
        return reporter

    yield begin
    for reporter in started:
        reporter.stop()


def events(client: Client) -> list[dict[str, Any]]:
    """Return the Events that there are."""
    found: list[dict[str, Any]] = client.request("GET", "/api/v1/namespaces/kube-system/events")["items"]
    return found


def test_a_problem_becomes_one_event(client: Client, make: Callable[[str], Reporter]) -> None:
    """Two Nodes that see the same problem, again and again, make one Event that names object and cause."""
    one, two = make("n1"), make("n2")
    for reporter in (one, two):
        reporter.problems([PROBLEM])
        until(lambda: sum(reporter.counts().values()) == 1)  # noqa: B023 (called in this turn only)
    one.problems([])
    one.problems([PROBLEM])
    (event,) = events(client)
    assert event["reason"] == "NoAddress"
    assert event["message"] == "gatewayIP: not an address"
    assert event["involvedObject"]["uid"] == client.request("GET", f"{GATEWAYS}/n1")["metadata"]["uid"]
    assert event["source"] == {"component": "mcagent", "host": "n1"}
    assert two.counts() == {"unchanged": 1}


def test_what_is_no_api_object_is_passed_over(client: Client, make: Callable[[str], Reporter]) -> None:
    """Problems of files, and of objects that are gone, make no Event."""
    reporter = make("n1")
    subjects = ("file a.yaml", "Gateway kube-system/gone", "Gateway nonamespace", "")
    reporter.problems([Problem(subject=s, path="", reason="X", message="y") for s in subjects])
    until(lambda: reporter.counts().get("unchanged") == len(subjects))
    assert events(client) == []


def test_a_condition_is_compared_before_it_is_written(
    api: ApiServer, client: Client, make: Callable[[str], Reporter]
) -> None:
    """The same condition again, also after a restart, writes nothing; another status gets a new time."""
    ready = Condition(type="Ready", status=True, reason="Programmed", message="2 clusters")
    client.request(
        "PATCH",
        f"{GATEWAYS}/n1/status",
        body={"status": {"conditions": [{"type": "Other", "status": "True"}]}},
        content_type="application/merge-patch+json",
    )
    first = make("n1")
    first.condition(Kind.GATEWAY, "kube-system", "n1", ready)
    until(lambda: first.counts() == {"written": 1})
    conditions = client.request("GET", f"{GATEWAYS}/n1")["status"]["conditions"]
    assert [item["type"] for item in conditions] == ["Other", "Ready"]
    assert conditions[1]["status"] == "True"
    rv = api.store.rv
    second = make("n1")
    second.condition(Kind.GATEWAY, "kube-system", "n1", ready)
    until(lambda: second.counts() == {"unchanged": 1})
    assert api.store.rv == rv


def test_failures_are_counted_and_given_up(
    api: ApiServer, client: Client, make: Callable[[str], Reporter]
) -> None:
    """An API server that refuses is asked three times, then the report is dropped; the caller never waits."""
    api.faults.add(Fault(kind=FaultKind.STATUS, code=500))
    reporter = make("n1")
    began = time.monotonic()
    reporter.problems([PROBLEM])
    assert time.monotonic() - began < 0.5
    until(lambda: reporter.counts() == {"failed": 2, "dropped": 1})
    api.faults.clear()
    other = Problem(subject=PROBLEM.subject, path="", reason="Other", message="m")
    reporter.problems([PROBLEM, other])
    until(lambda: reporter.counts().get("written") == 1)
    assert [event["reason"] for event in events(client)] == ["Other"]


def test_what_happens_becomes_an_event_each_time(client: Client, make: Callable[[str], Reporter]) -> None:
    """Two times the same are two Events, in order; a Node's are in the namespace default."""
    client.request("POST", "/api/v1/nodes", body={"metadata": {"name": "n1"}})
    reporter = make("n1")
    for number in (1, 1, 2):
        reporter.tell(Notice(subject="Node n1", reason="Drained", message=f"number {number}", normal=number == 2))
    until(lambda: reporter.counts().get("written") == 3)
    found = client.request("GET", "/api/v1/namespaces/default/events")["items"]
    assert sorted((e["message"], e["type"]) for e in found) == [
        ("number 1", "Warning"),
        ("number 1", "Warning"),
        ("number 2", "Normal"),
    ]
    assert {e["involvedObject"]["name"] for e in found} == {"n1"}


def test_of_too_many_notices_the_last_are_kept(client: Client) -> None:
    """A reporter that cannot write does not grow."""
    reporter = Reporter(client, node="n1")  # not started
    for number in range(100):
        reporter.tell(Notice(subject="Node n1", reason="Drained", message=str(number)))
    assert reporter.counts()["dropped"] == 84
