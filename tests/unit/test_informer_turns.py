"""Single turns of an informer, with given answers and a given clock: its requests, its waits, what it delivers.

The informer against a server with its threads: tests/embedded/test_informer.py.
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from mcagent.kube.client import Client
from mcagent.kube.errors import (
    ApiGarbageError,
    ApiRefusalError,
    ApiUnreachableError,
    ExpiredError,
)
from mcagent.kube.source import WatchEvent, object_key
from mcagent.kube.sources import informer as informer_module
from mcagent.kube.sources.informer import Informer, Timing
from mcagent.model.api.base import ApiObject
from mcagent.model.backoff import Backoff
from mcagent.model.errors import SourceError
from mcagent.model.objects import Kind

BACKOFF = Backoff(first=1.0, most=8.0)
SERVER = "https://192.0.2.1:6443"
PATH = "/apis/multicluster.crd.antrea.io/v1alpha1/gateways"
NOW = 1_700_000_000.0  # seconds since the epoch when a test begins


class Clock:
    """The time that the informer sees. Watches let it pass."""

    def __init__(self) -> None:
        self.passed = 0.0

    def monotonic(self) -> float:
        """Return seconds since some moment."""
        return 5000.0 + self.passed

    def time(self) -> float:
        """Return seconds since the epoch."""
        return NOW + self.passed


class Watch:
    """The answer to a watch: `lines`, the last after `seconds`, and an end by `error` or without one.

    A line is bytes, None (one that is too long), or a function that is called when its turn comes.
    """

    def __init__(self, *lines: bytes | Callable[[], object] | None, seconds: float = 0.0) -> None:
        self.lines_given, self.seconds = lines, seconds
        self.error: SourceError | None = None
        self.clock = Clock()
        self.aborted = self.closed = False

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.closed = True

    def lines(self, too_long: Callable[[], None]) -> Iterator[bytes]:
        """Yield the lines."""
        for line in self.lines_given:
            if line is None:
                too_long()
            elif isinstance(line, bytes):
                yield line
            else:
                line()
        self.clock.passed += self.seconds
        if self.error is not None:
            raise self.error

    def abort(self) -> None:
        """End it."""
        self.aborted = True


class Answers(Client):
    """A client whose answers are given; an error is raised. Without one more, a list is empty, and a watch too."""

    server = SERVER

    def __init__(self, clock: Clock) -> None:
        self.passing = clock
        self.lists: list[Sequence[str] | SourceError] = []
        self.watches: list[Watch | SourceError] = []
        self.asked: list[tuple[str, str, dict[str, str], float]] = []

    def get(
        self, path: str, query: Mapping[str, str], *, timeout: float, most: int = 0, accept: str = ""
    ) -> bytes:
        """Return the next list: of Gateways with these names, at the version 7."""
        self.asked.append(("list", path, {**query, "most": str(most)}, timeout))
        answer = self.lists.pop(0) if self.lists else ()
        if isinstance(answer, SourceError):
            raise answer
        items = [{"metadata": {"namespace": "a", "name": name}} for name in answer]
        return json.dumps({"kind": "GatewayList", "metadata": {"resourceVersion": "7"}, "items": items}).encode()

    def watch(self, path: str, query: Mapping[str, str], *, inactivity: float) -> Any:
        """Return the next watch."""
        self.asked.append(("watch", path, dict(query), inactivity))
        answer = self.watches.pop(0) if self.watches else Watch()
        if isinstance(answer, SourceError):
            raise answer
        answer.clock = self.passing
        return answer

    @property
    def verbs(self) -> list[str]:
        """What was asked for since the last look."""
        verbs = [verb for verb, *_ in self.asked]
        self.asked.clear()
        return verbs


class Deliveries:
    """A sink that keeps what is delivered, in order."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def replace(self, kind: Kind, objects: Sequence[ApiObject]) -> None:
        """Take a list."""
        self.texts.append(" ".join([f"{kind}:", *map(object_key, objects)]))

    def apply(self, kind: Kind, event: WatchEvent) -> None:
        """Take an event."""
        self.texts.append(f"{kind}: {event.type} {event.key}")

    def forget(self, kind: Kind) -> None:
        """Forget a kind."""
        self.texts.append(f"{kind}: forgotten")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Give the informer's clock. What it takes at random is the lower end."""
    clock = Clock()
    monkeypatch.setattr(informer_module, "time", clock)
    monkeypatch.setattr(random, "random", lambda: 0.0)
    monkeypatch.setattr(random, "uniform", lambda low, _high: low)
    return clock


@pytest.fixture
def answers(clock: Clock) -> Answers:
    """Give a client."""
    return Answers(clock)


@pytest.fixture
def deliveries() -> Deliveries:
    """Give a sink."""
    return Deliveries()


@pytest.fixture
def make(answers: Answers, deliveries: Deliveries) -> Callable[..., Informer]:
    """Give a function that makes an informer, whose thread does not run."""

    def informer(kind: Kind = Kind.GATEWAY, **options: Any) -> Informer:
        return Informer(kind, answers, deliveries, **{"timing": Timing(backoff=BACKOFF), **options})

    return informer


def event(word: str, name: str, version: str, **fields: Any) -> bytes:
    """Return a line of a watch."""
    obj = {"metadata": {"namespace": "a", "name": name, "resourceVersion": version}, **fields}
    return json.dumps({"type": word, "object": obj}).encode()


def bookmark(version: str) -> bytes:
    """Return a bookmark."""
    return json.dumps({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": version}}}).encode()


def ended(error: SourceError, *lines: bytes, seconds: float = 0.0) -> Watch:
    """Return a watch that ends by an error."""
    watch = Watch(*lines, seconds=seconds)
    watch.error = error
    return watch


# --- what is asked ----------------------------------------------------------------------------------------


def test_the_requests_of_an_informer(answers: Answers, make: Callable[..., Informer]) -> None:
    """Lists and watches are of its namespace and selectors, as large and as long as its timing says."""
    informer = make(
        namespace="a",
        field_selector="f",
        label_selector="l",
        timing=Timing(list_timeout=11.0, watch_timeout=90.5, inactivity=33.0, page=5, page_bytes=999),
    )
    informer._turn()
    path, selectors = (
        PATH.replace("/gateways", "/namespaces/a/gateways"),
        {"fieldSelector": "f", "labelSelector": "l"},
    )
    assert answers.asked == [
        ("list", path, {**selectors, "limit": "5", "most": "999"}, 11.0),
        (
            "watch",
            path,
            {
                **selectors,
                "watch": "true",
                "allowWatchBookmarks": "true",
                "resourceVersion": "7",
                "timeoutSeconds": "90",
            },
            33.0,
        ),
    ]


def test_the_requests_by_default(answers: Answers, make: Callable[..., Informer]) -> None:
    """All namespaces, no selector; a watch of five minutes that may be silent for two."""
    make(timing=None)._turn()
    (_, path, _, timeout), (_, watched, query, inactivity) = answers.asked
    assert (path, watched, timeout, inactivity) == (PATH, PATH, 60.0, 120.0)
    assert query.keys() == {"watch", "allowWatchBookmarks", "resourceVersion", "timeoutSeconds"}
    assert query["timeoutSeconds"] == "300"


def test_watches_of_many_agents_end_at_different_times(
    answers: Answers, make: Callable[..., Informer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the time of the timing to twice that; at least a second, since 0 means the server's own choice."""
    monkeypatch.setattr(random, "uniform", lambda _low, high: high)
    make()._turn()
    make(timing=Timing(watch_timeout=0.1))._turn()
    watched = [query["timeoutSeconds"] for verb, _, query, _ in answers.asked if verb == "watch"]
    assert watched == ["600", "1"]


# --- how long it waits ------------------------------------------------------------------------------------


def test_failures_in_a_row_wait_ever_longer(answers: Answers, make: Callable[..., Informer]) -> None:
    """And a watch that says something, or lasts five seconds, ends the row."""
    informer = make()
    away = ApiUnreachableError("away")
    answers.lists = [away, away, away]
    answers.watches = [away, Watch(bookmark("8")), away, Watch(seconds=5.0), away, Watch(seconds=4.9), away]
    assert [informer._turn() for _ in range(10)] == [1.0, 2.0, 4.0, 8.0, 1.0, 2.0, 0.0, 1.0, 2.0, 4.0]


def test_a_watch_that_lasted_and_failed_is_a_first_failure(
    answers: Answers, make: Callable[..., Informer]
) -> None:
    """Its end by an error means a wait, as short as there is."""
    informer = make()
    answers.watches = [ApiUnreachableError("away"), ended(ApiUnreachableError("away"), seconds=5.0)]
    assert [informer._turn() for _ in range(2)] == [1.0, 1.0]


def test_waits_of_many_agents_differ(
    answers: Answers, make: Callable[..., Informer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The back-off takes a part off at random."""
    monkeypatch.setattr(random, "random", lambda: 1.0)
    answers.lists = [ApiUnreachableError("away")]
    assert make()._turn() == 0.5


@pytest.mark.parametrize(("retry_after", "wait"), [(0.0, 1.0), (5.0, 5.0), (600.0, 8.0)])
def test_the_server_may_ask_for_a_longer_wait(
    retry_after: float, wait: float, answers: Answers, make: Callable[..., Informer]
) -> None:
    """By Retry-After, up to the longest of the back-off."""
    answers.lists = [ApiRefusalError("too many", code=429, retry_after=retry_after)]
    assert make()._turn() == wait


def test_an_expired_version_is_listed_again_soon(
    answers: Answers, make: Callable[..., Informer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, but not by all agents in one moment: within 0.2 s. One that expires again and again waits."""
    informer = make()
    answers.watches = [ExpiredError("gone", code=410)] * 3
    assert informer._turn() == 0.0
    assert informer._turn() == 2.0
    assert answers.verbs == ["list", "watch"] * 2
    monkeypatch.setattr(random, "uniform", lambda _low, high: high)
    assert make()._turn() == 0.2


def test_a_version_is_kept_for_three_failures(answers: Answers, make: Callable[..., Informer]) -> None:
    """Whatever is wrong with it, the fourth in a row ends with a list."""
    informer = make()
    answers.watches = [ApiUnreachableError("away")] * 4
    for _ in range(5):
        informer._turn()
    assert answers.verbs == ["list", *["watch"] * 4, "list", "watch"]


def test_a_watch_that_is_silent_all_its_time_is_followed_by_a_list(
    answers: Answers, make: Callable[..., Informer]
) -> None:
    """A bookmark in it proves that the version is valid; so does a shorter silence not disprove it."""
    informer = make(timing=Timing(backoff=BACKOFF, inactivity=60.0))
    answers.watches = [Watch(seconds=59.9), Watch(bookmark("8"), seconds=60.0), Watch(seconds=60.0)]
    for _ in range(4):
        informer._turn()
    assert answers.verbs == ["list", "watch", "watch", "watch", "list", "watch"]


# --- what it delivers and says ----------------------------------------------------------------------------


def test_a_list_and_the_events_that_follow(
    answers: Answers, clock: Clock, deliveries: Deliveries, make: Callable[..., Informer]
) -> None:
    """Each is delivered; the next watch begins at the last version; the state counts events, not bookmarks."""
    informer = make()
    answers.lists = [["x", "y"]]
    answers.watches = [
        Watch(
            event("ADDED", "z", "8"),
            lambda: setattr(clock, "passed", 3.0),
            event("DELETED", "x", "9"),
            lambda: setattr(clock, "passed", 4.0),
            bookmark("12"),
        )
    ]
    states = []
    answers.watches.append(Watch(lambda: states.append(informer.state()), seconds=6.0))
    informer._turn()
    informer._turn()
    assert deliveries.texts == ["Gateway: a/x a/y", "Gateway: ADDED a/z", "Gateway: DELETED a/x"]
    assert [query["resourceVersion"] for _, _, query, _ in answers.asked[1:]] == ["7", "12"]
    (state,) = states
    assert (state.kind, state.synced, state.connected, state.error) == (Kind.GATEWAY, True, True, "")
    assert (state.lists, state.events, state.last_event) == (1, 2, NOW + 4.0)
    assert not informer.state().connected


def test_the_ends_of_watches_are_counted_by_reason(answers: Answers, make: Callable[..., Informer]) -> None:
    """An end at the time that was asked for, give or take a second, is a timeout; an earlier one is not."""
    informer = make(timing=Timing(watch_timeout=10.0))
    answers.watches = [
        Watch(bookmark("8"), seconds=9.0),
        Watch(bookmark("8"), seconds=8.9),
        ended(ApiUnreachableError("away"), seconds=9.0),
    ]
    for _ in range(3):
        informer._turn()
    assert informer.state().restarts == {"timeout": 1, "closed": 1, "unreachable": 1}
    assert informer.state().error == "away"


def test_an_error_is_logged_when_it_begins(
    answers: Answers, make: Callable[..., Informer], caplog: pytest.LogCaptureFixture
) -> None:
    """Not each time, and again after it was gone; the end of a watch is none."""
    informer = make()
    away = ApiUnreachableError("away")
    answers.watches = [away, away, Watch(), away, ApiUnreachableError("far away")]
    for _ in range(5):
        informer._turn()
    assert caplog.messages == ["Gateway: away", "Gateway: away", "Gateway: far away"]


def test_lines_that_cannot_be_read_are_followed_by_a_list(
    answers: Answers, deliveries: Deliveries, make: Callable[..., Informer], caplog: pytest.LogCaptureFixture
) -> None:
    """The watch goes on: the log has the first of them, the state counts each, and no event is lost."""
    informer = make()
    answers.watches = [Watch(b"<html>", None, event("ADDED", "z", "8")), Watch(None)]
    for _ in range(3):
        informer._turn()
    assert deliveries.texts == ["Gateway:", "Gateway: ADDED a/z", "Gateway:", "Gateway:"]
    assert informer.state().restarts == {"bad-line": 3, "closed": 3}
    assert caplog.messages == [
        f"{SERVER}: watch {PATH}: a line is not JSON: b'<html>'",
        f"{SERVER}: watch {PATH}: a line of more than 16777216 bytes",
    ]


def test_a_watch_of_nonsense_is_given_up(answers: Answers, make: Callable[..., Informer]) -> None:
    """A hundred lines that cannot be read are borne."""
    informer = make()
    answers.watches = [Watch(*[b"x"] * 100), Watch(*[b"x"] * 101)]
    informer._turn()
    assert informer.state().error == ""
    informer._turn()
    assert informer.state().error == f"{SERVER}: watch {PATH}: a line is not JSON: b'x'"
    assert informer.state().restarts == {"bad-line": 200, "closed": 1, "garbage": 1}


def test_an_event_of_an_unknown_type_is_counted_alone(answers: Answers, make: Callable[..., Informer]) -> None:
    """It is no sign that the version is valid, and no reason for a list."""
    informer = make()
    answers.watches = [Watch(event("LATER", "z", "8")), Watch()]
    assert [informer._turn() for _ in range(2)] == [1.0, 2.0]
    assert answers.verbs == ["list", "watch", "watch"]
    assert informer.state().restarts == {"unknown-event": 1, "closed": 2}
    assert informer.state().events == 0


def test_what_cannot_be_used_of_an_object_is_logged_once(
    answers: Answers,
    make: Callable[..., Informer],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of so many at most: an API server full of them fills no disk. All are counted."""
    assert informer_module._REPORTED == 1000
    monkeypatch.setattr(informer_module, "_REPORTED", 3)
    informer = make()
    lines = [event("ADDED", f"n{number}", "8", gatewayIP=7) for number in range(5)]
    answers.watches = [Watch(*lines[:2], *lines)]
    informer._turn()
    assert informer.state().restarts["object-invalid"] == 7
    assert len(caplog.messages) == 3
    assert caplog.messages[0] == "Gateway a/n0: gatewayIP: must be a string, is a number: left out"


# --- kinds that are done without --------------------------------------------------------------------------


def absent(code: int) -> ApiRefusalError:
    """Return the refusal of a list."""
    return ApiRefusalError(f"refused with {code}", code=code)


def test_a_kind_that_the_server_does_not_have(
    answers: Answers, deliveries: Deliveries, make: Callable[..., Informer], caplog: pytest.LogCaptureFixture
) -> None:
    """It is empty, told once as often as it goes, and looked for again with ever longer waits."""
    caplog.set_level(logging.INFO)
    informer = make(dispensable=frozenset({404}))
    answers.lists = [absent(404), absent(404), ["x"], absent(404)]
    answers.watches = [ExpiredError("gone", code=410)]
    assert [informer._turn() for _ in range(2)] == [1.0, 2.0]
    state = informer.state()
    assert (state.synced, state.connected, state.error, state.lists) == (True, True, "", 1)
    assert state.restarts == {"missing": 2}
    assert deliveries.texts == ["Gateway:"]
    for _ in range(2):
        informer._turn()
    assert deliveries.texts == ["Gateway:", "Gateway: a/x", "Gateway:"]
    entry = (logging.INFO, "Gateway: assuming none: the API server does not have this kind")
    logged = [(record.levelno, record.getMessage()) for record in caplog.records]
    assert logged == [entry, (logging.WARNING, "Gateway: gone"), entry]


def test_a_kind_that_may_not_be_read(
    answers: Answers, deliveries: Deliveries, make: Callable[..., Informer], caplog: pytest.LogCaptureFixture
) -> None:
    """It is empty, with a warning and an error; what was listed before a right was taken away stays."""
    informer = make(dispensable=frozenset({403, 404}))
    answers.lists = [absent(403), ["x"], absent(403)]
    answers.watches = [ExpiredError("gone", code=410)]
    informer._turn()
    state = informer.state()
    assert (state.synced, state.connected, state.error) == (True, False, "refused with 403")
    assert (caplog.records[0].levelno, caplog.messages) == (
        logging.WARNING,
        ["Gateway: assuming none: refused with 403"],
    )
    informer._turn()
    informer._turn()
    assert deliveries.texts == ["Gateway:", "Gateway: a/x"]
    assert (informer.state().synced, informer.state().error) == (True, "refused with 403")
    assert caplog.messages[1:] == ["Gateway: gone"]


def test_a_kind_that_is_needed_is_not_empty(
    answers: Answers, deliveries: Deliveries, make: Callable[..., Informer]
) -> None:
    """Only codes that mean so for this kind."""
    informer = make(dispensable=frozenset({404}))
    answers.lists = [absent(403), ApiGarbageError("404")]
    informer._turn()
    informer._turn()
    assert deliveries.texts == []
    assert not informer.state().synced


# --- the end ----------------------------------------------------------------------------------------------


def test_nothing_is_delivered_after_a_stop(
    answers: Answers, deliveries: Deliveries, make: Callable[..., Informer]
) -> None:
    """The watch is cut; an event that was on its way, and a list, go nowhere; nothing is waited for."""
    informer = make()
    watch = Watch(event("ADDED", "x", "8"), informer.signal_stop, event("ADDED", "y", "9"))
    answers.watches = [watch]
    assert informer._turn() == 0.0
    assert watch.aborted
    assert watch.closed
    assert deliveries.texts == ["Gateway:", "Gateway: ADDED a/x"]
    answers.asked.clear()
    informer._version = ""
    assert informer._turn() == 0.0
    assert answers.verbs == ["list"]
    assert len(deliveries.texts) == 2


def test_a_stop_between_list_and_watch(answers: Answers, make: Callable[..., Informer]) -> None:
    """Of a watch that is open by then, no line is taken."""
    informer = make()

    class Late(Watch):
        def __enter__(self) -> Watch:
            informer.signal_stop()
            return self

    answers.watches = [Late(lambda: pytest.fail("a line is asked for"))]
    assert informer._turn() == 0.0
    assert informer.state().events == 0


def test_a_stopped_informer_does_not_make_a_kind_empty(
    answers: Answers, deliveries: Deliveries, make: Callable[..., Informer]
) -> None:
    """An answer that comes too late changes nothing."""
    informer = make(dispensable=frozenset({404}))
    informer.signal_stop()
    answers.lists = [absent(404)]
    assert informer._turn() == 0.0
    assert deliveries.texts == []
