"""The lines of a watch: what is an event, what is passed over, and what ends the watch."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcagent.kube.errors import ApiGarbageError, ApiRefusalError, ExpiredError
from mcagent.kube.source import EventType
from mcagent.kube.sources.watch import BadLineError, Line, read_line
from mcagent.model.errors import McagentError
from mcagent.model.objects import Kind

POD = {"kind": "Pod", "metadata": {"name": "a", "namespace": "b", "resourceVersion": "7"}}


def read(word: object, obj: object) -> Line:
    """Read the line of an event."""
    return read_line(Kind.POD, json.dumps({"type": word, "object": obj}).encode(), "server")


def test_an_event_has_its_object_and_the_version_to_go_on_from() -> None:
    """A bookmark has the version only; a type that is not known has neither."""
    assert read("MODIFIED", POD) == Line(version="7", type=EventType.MODIFIED, object=POD)
    assert read("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": "9"}}) == Line(version="9")
    assert read("PROGRESS", POD) == Line()


@pytest.mark.parametrize(
    ("status", "error"),
    [
        ({"kind": "Status", "code": 410, "message": "too old"}, ExpiredError),
        ({"kind": "Status", "code": 500, "reason": "Expired"}, ExpiredError),
        ({"kind": "Status", "code": 403}, ApiRefusalError),
        ({"kind": "Status", "code": "410"}, ApiGarbageError),
        ({"code": 410}, ApiGarbageError),
    ],
)
def test_an_error_event_ends_the_watch(status: dict[str, object], error: type[McagentError]) -> None:
    """It says whether history is lost, or what the server refuses; without a Status it is garbage."""
    with pytest.raises(error, match="server"):
        read("ERROR", status)


@pytest.mark.parametrize(
    "obj",
    [
        None,
        [],
        {},
        POD | {"kind": "Node"},
        {"kind": "Pod", "metadata": {"name": "a"}},
        {"kind": "Pod", "metadata": {"resourceVersion": "7"}},
        {"kind": "Pod", "metadata": {"name": 5, "resourceVersion": "7"}},
    ],
)
def test_an_event_without_a_usable_object_is_a_bad_line(obj: object) -> None:
    """It is passed over: one bad line must not end the watch."""
    with pytest.raises(BadLineError):
        read("ADDED", obj)


_JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists)


@given(
    st.binary() | st.dictionaries(st.sampled_from(["type", "object", "x"]), _JSON).map(json.dumps).map(str.encode)
)
def test_any_bytes_are_a_line_or_an_error(line: bytes) -> None:
    """Whatever comes, nothing else is raised."""
    with contextlib.suppress(BadLineError, ApiGarbageError, ApiRefusalError):
        read_line(Kind.POD, line, "server")
