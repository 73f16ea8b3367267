"""What an informer tells about objects that it cannot use, and kinds that it does without: counts, log, state."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from devtools.apiserver import ApiServer, Fault, FaultKind
from mcagent.kube.source import RawObject
from mcagent.kube.sources.apiserver import ApiServerSource
from mcagent.kube.sources.informer import Informer
from mcagent.kube.sources.lister import TOO_DEEP
from mcagent.model.api.base import ApiObject
from mcagent.model.kinds import object_path
from mcagent.model.objects import Kind
from mcagent.model.parsing.decode import read_object
from mcagent.model.parsing.document import MAX_DEPTH
from tests.waiting import allowed, until
from tests.worlds.mirrors import FAST, Mirror, api, client, mirror, put, requests, start

__all__ = ["api", "client", "mirror", "start"]  # fixtures

PATH = object_path(Kind.GATEWAY, "")


def deep() -> Any:
    """Return a value that is nested too deeply."""
    value: Any = "x"
    for _ in range(MAX_DEPTH + 1):
        value = [value]
    return value


def test_an_object_that_is_nested_too_deeply_is_named_once(
    api: ApiServer, mirror: Mirror, start: Callable[..., Informer], caplog: pytest.LogCaptureFixture
) -> None:
    """In a list as in a watch, each time counts, and the log has it once; the other objects are read."""
    put(api, Kind.GATEWAY, "listed", spec=deep())
    put(api, Kind.GATEWAY, "plain")
    informer = start()
    mirror.wait_names(Kind.GATEWAY, "listed", "plain")
    for number in range(2):
        put(api, Kind.GATEWAY, "watched", spec=deep(), other=number)
    until(lambda: informer.state().restarts.get("object-nested") == 3)
    put(api, Kind.GATEWAY, "after")
    mirror.wait_names(Kind.GATEWAY, "listed", "plain", "watched", "after")
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert lines == [f"Gateway kube-system/{name}: {TOO_DEEP}" for name in ("listed", "watched")]


def test_a_value_of_a_wrong_type_is_named_and_left_out(
    api: ApiServer, mirror: Mirror, start: Callable[..., Informer], caplog: pytest.LogCaptureFixture
) -> None:
    """The object stays, with what can be read of it."""
    put(api, Kind.GATEWAY, "odd", gatewayIP=5, internalIP="192.0.2.1")
    informer = start()
    mirror.wait_names(Kind.GATEWAY, "odd")
    assert informer.state().restarts == {"object-invalid": 1}
    (line,) = [record.getMessage() for record in caplog.records]
    assert "odd" in line
    assert "gatewayIP" in line
    assert line.endswith(": left out")


@pytest.mark.parametrize("code", [403, 404])
def test_a_kind_that_is_done_without_is_told_once(
    code: int,
    api: ApiServer,
    mirror: Mirror,
    start: Callable[..., Informer],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A kind that the API server does not have is no fault; that one may not be read is a warning and an error."""
    caplog.set_level(logging.INFO)
    fault = Fault(kind=FaultKind.STATUS, verbs=("list",), path=PATH, code=code)
    api.faults.add(fault)
    informer = start(dispensable=frozenset({403, 404}))
    mirror.wait_names(Kind.GATEWAY)
    until(lambda: requests(api, "list") >= 3)
    records = [record for record in caplog.records if "assuming none" in record.getMessage()]
    assert [record.levelno for record in records] == [logging.INFO if code == 404 else logging.WARNING]
    assert records[0].getMessage().startswith("Gateway: assuming none: ")
    assert ("the API server does not have this kind" in records[0].getMessage()) is (code == 404)
    assert bool(informer.state().error) is (code == 403)
    api.faults.clear()
    put(api, Kind.GATEWAY, "a")
    mirror.wait_names(Kind.GATEWAY, "a")
    until(lambda: informer.state().error == "")


def test_a_line_that_is_no_event_is_told_with_server_and_path(
    api: ApiServer, client: Any, mirror: Mirror, start: Callable[..., Informer], caplog: pytest.LogCaptureFixture
) -> None:
    """Of the bad lines of a watch, the first one."""
    put(api, Kind.GATEWAY, "a")
    api.faults.add(Fault(kind=FaultKind.GARBAGE, verbs=("watch",), times=1, body="<html>\n<p>\n"))
    informer = start()
    mirror.wait_names(Kind.GATEWAY, "a")
    until(lambda: informer.state().restarts.get("bad-line") == 2)
    lines = [record.getMessage() for record in caplog.records if "watch" in record.getMessage()]
    assert len([line for line in lines if line.startswith(f"{client.server}: watch {PATH}: ")]) == 1


def test_a_watch_ends_at_the_time_that_it_asked_for(
    api: ApiServer, mirror: Mirror, start: Callable[..., Informer]
) -> None:
    """Then it is opened again, and this is no fault."""
    put(api, Kind.GATEWAY, "a")
    informer = start(timing=replace(FAST, watch_timeout=1.0))
    mirror.wait_names(Kind.GATEWAY, "a")
    until(lambda: informer.state().restarts.get("timeout", 0) >= 2)
    assert informer.state().restarts.keys() == {"timeout"}
    assert (informer.state().lists, informer.state().error) == (1, "")


def test_a_kind_that_is_needed_and_refused_is_an_error_until_it_is_allowed(
    api: ApiServer, client: Any, mirror: Mirror
) -> None:
    """It does not count as empty, and is tried again."""
    put(api, Kind.GATEWAY, "a")
    api.faults.add(Fault(kind=FaultKind.STATUS, verbs=("list",), path=PATH, code=403, times=2))
    source = ApiServerSource(client, mirror, timing=FAST)
    source.start([Kind.GATEWAY])
    try:
        until(lambda: "403" in source.state()[Kind.GATEWAY].error)
        mirror.wait_names(Kind.GATEWAY, "a")
        until(lambda: source.state()[Kind.GATEWAY].error == "")
    finally:
        source.stop()


def test_a_thread_that_fails_is_told_and_begins_anew(api: ApiServer, client: Any, mirror: Mirror) -> None:
    """The state names the cause; objects that were delivered stay, and a list follows."""
    put(api, Kind.GATEWAY, "a")
    broken = [RuntimeError("a bug")]

    def transform(kind: Kind, raw: RawObject) -> ApiObject:
        if broken:
            raise broken[0]
        return read_object(kind, raw)

    informer = Informer(Kind.GATEWAY, client, mirror, timing=FAST, transform=transform)
    informer.start()
    try:
        until(lambda: informer.state().error.startswith("the informer's thread failed: "))
        assert "a bug" in informer.state().error
        assert not informer.state().connected
        broken.clear()
        mirror.wait_names(Kind.GATEWAY, "a")
        until(lambda: informer.state().connected)
    finally:
        informer.stop()


def test_a_source_that_was_stopped_reads_nothing_any_more(api: ApiServer, client: Any, mirror: Mirror) -> None:
    """A late change of the role starts no informer; the open watch ends at once, not when it is quiet."""
    put(api, Kind.GATEWAY, "a")
    source = ApiServerSource(client, mirror, timing=replace(FAST, inactivity=60.0))
    source.start([Kind.GATEWAY])
    until(lambda: source.state()[Kind.GATEWAY].connected)
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "informer-gateways"]
    source.stop()
    thread.join(allowed(5.0))
    assert not thread.is_alive()
    source.set_kinds([Kind.GATEWAY, Kind.NODE])
    assert not [thread for thread in threading.enumerate() if thread.name == "informer-nodes"]
