"""Single steps of a recorder of Events, with a clock that is given: what it writes, in which order, how fast."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from mcagent.controller.contract.names import is_subdomain
from mcagent.core.causes import CAUSES
from mcagent.kube import events
from mcagent.kube.client import Client
from mcagent.kube.errors import ApiRefusalError
from mcagent.kube.events import EventRecorder
from mcagent.kube.source import RawObject
from mcagent.model.event import Event
from mcagent.model.problem import Problem

NODES = "/api/v1/nodes/"
PROBLEM = Problem(subject="Gateway a/g", path="gatewayIP", reason="NoAddress", message="not an address")
LONG_PATTERN = "%Y-%m-%dT%H:%M:%SZ"


class Server(Client):
    """An API server whose every object has the UID "uid-NAME", but those that are `gone`.

    Requests are refused with `codes`, by method. `answer` is that of `find`, if it is not None.
    """

    def __init__(self) -> None:
        self.written: list[tuple[str, str, RawObject]] = []
        self.gone: set[str] = set()
        self.codes: dict[str, int] = {}
        self.answer: Any = None

    def find(self, path: str, *, timeout: float = 30.0) -> RawObject | None:
        """Return the object at a path."""
        name = path.rpartition("/")[2]
        if self.answer is not None:
            return self.answer  # type: ignore[no-any-return]
        return None if name in self.gone else {"metadata": {"uid": f"uid-{name}"}}

    def request(self, method: str, path: str, query: Any = None, **options: Any) -> Any:
        """Take a write."""
        if code := self.codes.get(method):
            raise ApiRefusalError("refused", code=code)
        self.written.append((method, path, options["body"]))

    @property
    def reasons(self) -> list[str]:
        """The reasons of the Events that were created since the last look."""
        reasons = [body["reason"] for _, _, body in self.written if "reason" in body]
        self.written.clear()
        return reasons


class Clock:
    """Seconds since some moment; the pauses of a recorder let them pass."""

    def __init__(self) -> None:
        self.now = 100.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        """Return the time."""
        return self.now

    def pause(self, seconds: float) -> None:
        """Let the time pass."""
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Give the recorder's clock. What it takes at random is the upper end."""
    clock = Clock()
    monkeypatch.setattr(events, "time", clock)
    monkeypatch.setattr(random, "uniform", lambda _low, high: high)
    return clock


@pytest.fixture
def server() -> Server:
    """Give an API server."""
    return Server()


@pytest.fixture
def make(server: Server, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Callable[..., EventRecorder]:
    """Give a function that makes a recorder, whose thread does not run."""

    def recorder(**options: Any) -> EventRecorder:
        new_recorder = EventRecorder(server, node="n1", **{"spread": 0.0, **options})
        monkeypatch.setattr(new_recorder, "pause", clock.pause)
        return new_recorder

    return recorder


def problem(reason: str, subject: str = "Node n2") -> Problem:
    """Return a problem of a Node."""
    return Problem(subject=subject, path="", reason=reason, message="m")


def test_the_event_of_a_problem(server: Server, make: Callable[..., EventRecorder]) -> None:
    """What kubectl describe shows of it at its object."""
    recorder = make(component="tester")
    recorder.problems([PROBLEM])
    recorder._write_next()
    ((method, path, body),) = server.written
    assert (method, path) == ("POST", "/api/v1/namespaces/a/events")
    name, at = body["metadata"]["name"], body["firstTimestamp"]
    assert name.startswith("g.")
    assert len(name) == 18
    assert abs(datetime.strptime(at, LONG_PATTERN).replace(tzinfo=UTC) - datetime.now(UTC)).total_seconds() < 60
    assert body == {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": "a"},
        "involvedObject": {
            "apiVersion": "multicluster.crd.antrea.io/v1alpha1",
            "kind": "Gateway",
            "name": "g",
            "uid": "uid-g",
            "namespace": "a",
        },
        "type": "Warning",
        "reason": "NoAddress",
        "message": "gatewayIP: not an address",
        "source": {"component": "tester", "host": "n1"},
        "reportingComponent": "tester",
        "reportingInstance": "n1",
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }


def test_the_event_of_an_object_without_a_namespace(server: Server, make: Callable[..., EventRecorder]) -> None:
    """It is in `default`; what to do is said where it is known, and a message is no longer than the API takes."""
    recorder = make()
    reason, cause = next((reason, cause) for reason, cause in sorted(CAUSES.items()) if cause.do)
    recorder.problems([problem(reason), Problem(subject="Node n2", path="", reason="Zz", message="x" * 2000)])
    recorder._write_next()
    recorder._write_next()
    (_, path, body_of_problem), (_, _, long) = server.written
    assert path == "/api/v1/namespaces/default/events"
    assert body_of_problem["metadata"]["namespace"] == "default"
    assert "namespace" not in body_of_problem["involvedObject"]
    assert body_of_problem["message"] == f"m. What to do: {cause.do}"[: len(body_of_problem["message"])]
    assert body_of_problem["source"]["component"] == "mcagent"
    assert 990 < len(long["message"]) <= 1024


def test_names_of_events(server: Server, make: Callable[..., EventRecorder]) -> None:
    """One for each object, reason and message, the same on every Node; a long name is cut."""
    recorder, other = make(), make()
    problems = [problem("A"), problem("B"), problem("A", "Node n3"), problem("A", f"Node {'n' * 250}")]
    for node_recorder in (recorder, other):
        node_recorder.problems(problems)
        for _ in problems:
            node_recorder._write_next()
    names = [body["metadata"]["name"] for _, _, body in server.written]
    assert names[:4] == names[4:]
    assert len(set(names)) == 4
    assert max(map(len, names)) == 200 + 17


@pytest.mark.parametrize("end", [".", "-"])
def test_a_long_name_is_cut_to_a_valid_one(end: str, server: Server, make: Callable[..., EventRecorder]) -> None:
    """A label of a name ends with a letter or digit: the API server would refuse the Event each time."""
    recorder = make()
    recorder.problems([problem("A", f"Node {'n' * 199}{end}{'x' * 40}")])
    recorder._write_next()
    ((_, _, body),) = server.written
    assert is_subdomain(body["metadata"]["name"])


def test_what_happened_goes_before_what_lasts(server: Server, make: Callable[..., EventRecorder]) -> None:
    """In the order in which it happened, and at its time."""
    recorder = make(per_minute=6e9)
    recorder.problems([problem("Lasts")])
    recorder.record(Event(subject="Node n2", reason="Second", message="m", warning=False))
    recorder.record(Event(subject="Node n2", reason="First", message="m"))
    for _ in range(3):
        assert recorder._write_next() == 0.0
    assert [(body["reason"], body["type"]) for _, _, body in server.written] == [
        ("Second", "Normal"),
        ("First", "Warning"),
        ("Lasts", "Warning"),
    ]
    assert len(server.written[0][2]["firstTimestamp"]) == 20
    assert recorder.counts() == {"written": 3}


def test_a_problem_that_ends_is_not_written(server: Server, make: Callable[..., EventRecorder]) -> None:
    """If it did not wait long; one that comes again is written again by its Event's name."""
    recorder = make()
    recorder.problems([problem("A"), problem("B")])
    recorder.problems([problem("B"), problem("C")])
    for _ in range(3):
        recorder._write_next()
    assert server.reasons == ["B", "C"]
    recorder.problems([])
    recorder.problems([problem("B")])
    recorder._write_next()
    assert server.reasons == ["B"]


def test_of_many_events_sixteen_wait(server: Server, make: Callable[..., EventRecorder]) -> None:
    """The first goes for the last; problems take no place of theirs."""
    recorder = make(per_minute=6e9)
    recorder.problems([problem("Lasts")])
    for number in range(18):
        recorder.record(Event(subject="Node n2", reason=f"E{number}", message="m"))
    while math.isclose(recorder._write_next(), 0.0):
        pass
    assert server.reasons == [*(f"E{number}" for number in range(2, 18)), "Lasts"]
    assert recorder.counts() == {"dropped": 2, "written": 17}


def test_the_rate_of_writes(server: Server, clock: Clock, make: Callable[..., EventRecorder]) -> None:
    """Four at once after a quiet time, then so many a minute: what needs no write does not count."""
    recorder = make(per_minute=6.0)
    recorder.problems([problem(f"P{number:02}") for number in range(7)])
    for _ in range(7):
        recorder._write_next()
    assert clock.pauses == [10.0] * 3
    clock.now += 25.0  # two more are free, and a half
    clock.pauses.clear()
    server.gone = {"n9"}
    recorder.problems([problem("Q", "Node n9"), *(problem(f"Q{number}") for number in range(3))])
    for _ in range(4):
        recorder._write_next()
    assert clock.pauses == [5.0]
    assert recorder.counts() == {"written": 10, "unchanged": 1}


def test_twelve_writes_a_minute_by_default(clock: Clock, make: Callable[..., EventRecorder]) -> None:
    """In the long run."""
    recorder = make()
    recorder.problems([problem(f"P{number}") for number in range(6)])
    for _ in range(6):
        recorder._write_next()
    assert clock.pauses == [5.0, 5.0]


def test_the_first_write_waits_a_random_time(
    server: Server, clock: Clock, make: Callable[..., EventRecorder]
) -> None:
    """Once; and what is over by then is not written."""
    recorder = make(spread=7.0)
    recorder.problems([problem("A")])
    assert recorder._write_next() == 0.0
    assert (clock.pauses, server.written) == ([7.0], [])
    recorder.problems([problem("B")])
    recorder._write_next()
    assert (clock.pauses, server.reasons) == ([7.0], ["B"])


def test_problems_that_last_are_renewed(server: Server, clock: Clock, make: Callable[..., EventRecorder]) -> None:
    """After half an hour and a random time; their count goes up by one. Of an Event that is gone: a new one."""
    recorder = make(per_minute=6e9)
    recorder.problems([problem("A")])
    recorder._write_next()
    assert recorder._write_next() == 1800.0
    (_, events_path, body), *_ = server.written
    name = body["metadata"]["name"]
    server.written.clear()
    clock.now += 1799.0
    assert recorder._write_next() == 1.0
    recorder.problems([problem("B"), problem("A")])  # another one comes
    recorder._write_next()
    server.written.clear()
    recorder.problems([problem("A")])
    clock.now += 1.0
    recorder._write_next()
    ((method, path, patch),) = server.written
    assert (method, path) == ("PATCH", f"{events_path}/{name}")
    assert patch.keys() == {"count", "lastTimestamp"}
    assert patch["count"] == 2
    assert recorder._write_next() == pytest.approx(1.2 * 1800.0)
    for code in (403, 404):
        server.written.clear()
        server.codes = {"PATCH": code}
        clock.now += 1.2 * 1800.0
        recorder._write_next()
        ((method, _, body),) = server.written
        assert (method, body["count"]) == ("POST", code - 400)  # 3, then 4
    server.codes = {"PATCH": 500}
    clock.now += 1.2 * 1800.0
    recorder._write_next()
    assert recorder.counts() == {"written": 5, "failed": 1}


def test_an_event_of_another_node_is_left_to_it(
    server: Server, clock: Clock, make: Callable[..., EventRecorder]
) -> None:
    """It is there already: this Node only tries to create it, now and at each renewal."""
    recorder = make(renewal=60.0)
    server.codes = {"POST": 409}
    recorder.problems([problem("A")])
    recorder._write_next()
    clock.now += 60.0
    recorder._write_next()
    assert recorder.counts() == {"unchanged": 2}
    server.codes = {}
    clock.now += 72.0
    recorder._write_next()
    assert [(method, body["count"]) for method, _, body in server.written] == [("POST", 1)]


@pytest.mark.parametrize(("permit", "renewed"), [(1.0, 1), (0.0, 0), (-1.0, 0)])
def test_only_the_holder_of_the_lease_renews(
    permit: float, renewed: int, server: Server, clock: Clock, make: Callable[..., EventRecorder]
) -> None:
    """Problems that another replica knows may be over."""
    recorder = make(permit=lambda: permit)
    recorder.problems([problem("A")])
    recorder._write_next()
    clock.now += 1800.0
    recorder._write_next()
    assert len(server.written) == 1 + renewed


def test_what_cannot_be_written_is_dropped(server: Server, make: Callable[..., EventRecorder]) -> None:
    """After three attempts; another problem is written between them, and later."""
    recorder = make(per_minute=6e9)
    server.codes = {"POST": 500}
    recorder.problems([problem("A")])
    for _ in range(2):
        recorder._write_next()
    assert recorder.counts() == {"failed": 2}
    recorder._write_next()
    assert recorder.counts() == {"failed": 2, "dropped": 1}
    assert recorder._write_next() > 0.0
    server.codes = {}
    recorder.problems([problem("A"), problem("B")])
    recorder._write_next()
    assert server.reasons == ["B"]


def test_an_object_without_a_uid_is_a_failure(server: Server, make: Callable[..., EventRecorder]) -> None:
    """It is no answer of an API server."""
    recorder = make()
    server.answer = {"metadata": {}}
    recorder.problems([problem("A")])
    recorder._write_next()
    server.answer = {"metadata": 7}
    recorder._write_next()
    assert recorder.counts() == {"failed": 2}
    assert server.written == []


@pytest.mark.parametrize(
    "subject",
    ["file a.yaml", "configuration", "Gateway g", "Node a/n", "Node ", "Gateway a/", "Node n 1", ""],
)
def test_what_is_no_object_has_no_event(subject: str, server: Server, make: Callable[..., EventRecorder]) -> None:
    """A subject is a kind and a name, with a namespace where the kind has one."""
    recorder = make()
    recorder.problems([problem("A", subject)])
    recorder._write_next()
    assert server.reasons == []
    assert recorder.counts() == {"unchanged": 1}
