"""Which informers a source of an API server starts, with what, and which it ends when roles change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from mcagent.kube.client import Client
from mcagent.kube.source import WatchEvent
from mcagent.kube.sources import apiserver
from mcagent.kube.sources.apiserver import ApiServerSource
from mcagent.kube.sources.informer import Timing
from mcagent.model.api.base import ApiObject
from mcagent.model.informer_state import InformerState
from mcagent.model.objects import Kind
from tests.worlds.mirrors import has_synced

CLIENT = cast(Client, object())


class Log:
    """What happens, in order; it is the sink, too."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.made: dict[Kind, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        self.synced: set[Kind] = set()

    def replace(self, kind: Kind, objects: Sequence[ApiObject]) -> None:
        """Take a list."""

    def apply(self, kind: Kind, event: WatchEvent) -> None:
        """Take an event."""

    def forget(self, kind: Kind) -> None:
        """Forget a kind."""
        self.lines.append(f"forget {kind}")

    def taken(self) -> list[str]:
        """Return what happened since the last look."""
        lines, self.lines = self.lines, []
        return lines


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    """Give the log of informers that do nothing."""
    log = Log()

    class Informer:
        def __init__(self, kind: Kind, *args: Any, **kwargs: Any) -> None:
            self.kind = kind
            log.made[kind] = (args, kwargs)

        def start(self) -> None:
            log.lines.append(f"start {self.kind}")

        def signal_stop(self) -> None:
            log.lines.append(f"end {self.kind}")

        def stop(self, timeout: float = 1.0) -> None:
            log.lines.append(f"wait {timeout} s for {self.kind}")

        def state(self) -> InformerState:
            return InformerState(kind=self.kind, synced=self.kind in log.synced)

    monkeypatch.setattr(apiserver, "Informer", Informer)
    return log


def test_what_informers_are_made_with(log: Log) -> None:
    """A namespace where the kind has one, selectors of the kind, and which refusals it is done without for."""
    timing = Timing(page=7)
    source = ApiServerSource(CLIENT, log, namespace="a", timing=timing)
    kinds = [Kind.GATEWAY, Kind.CLUSTER_INFO_IMPORT, Kind.POD, Kind.SERVICE_IMPORT, Kind.TIER]
    source.set_kinds(kinds, {Kind.POD: "f"}, {Kind.POD: "l", Kind.GATEWAY: "m"})
    assert {args for args, _ in log.made.values()} == {(CLIENT, log)}
    plain = {
        "namespace": "",
        "field_selector": "",
        "label_selector": "",
        "dispensable": frozenset(),
        "timing": timing,
    }
    assert {kind: kwargs for kind, (_, kwargs) in log.made.items()} == {
        Kind.GATEWAY: plain | {"namespace": "a", "label_selector": "m"},
        Kind.CLUSTER_INFO_IMPORT: plain | {"namespace": "a"},
        Kind.POD: plain | {"field_selector": "f", "label_selector": "l"},
        Kind.SERVICE_IMPORT: plain | {"dispensable": {403, 404}},
        Kind.TIER: plain | {"dispensable": {404}},
    }
    ApiServerSource(CLIENT, log).start([Kind.GATEWAY])
    assert log.made[Kind.GATEWAY] == ((CLIENT, log), plain | {"timing": None})


def test_only_kinds_whose_selection_changes_are_read_anew(log: Log) -> None:
    """What was delivered stays until the new list replaces it, unless that list selects more."""
    source = ApiServerSource(CLIENT, log)
    source.start([Kind.NODE, Kind.POD])
    assert log.taken() == ["start Node", "start Pod"]
    source.set_kinds([Kind.NODE, Kind.POD])
    assert log.taken() == []
    source.set_kinds([Kind.NODE, Kind.POD], {Kind.POD: "f"})
    assert log.taken() == ["end Pod", "start Pod"]
    source.set_kinds([Kind.NODE, Kind.POD], {Kind.POD: "f"}, {Kind.POD: "l"})
    assert log.taken() == ["end Pod", "start Pod"]
    source.set_kinds([Kind.NODE, Kind.POD], {Kind.POD: "f"}, {Kind.POD: "m"})
    assert log.taken() == ["end Pod", "start Pod"]
    source.set_kinds([Kind.NODE, Kind.POD], {Kind.POD: "f"})
    assert log.taken() == ["end Pod", "forget Pod", "start Pod"]
    source.set_kinds([Kind.SERVICE, Kind.NODE])
    assert log.taken() == ["end Pod", "forget Pod", "start Service"]
    assert set(source.state()) == {Kind.SERVICE, Kind.NODE}


def test_it_is_synced_when_every_kind_is(log: Log) -> None:
    """Without a kind it is not."""
    source = ApiServerSource(CLIENT, log)
    assert not has_synced(source)
    source.start([Kind.NODE, Kind.POD])
    log.synced = {Kind.POD}
    assert not has_synced(source)
    log.synced = {Kind.POD, Kind.NODE}
    assert has_synced(source)


def test_a_stop_ends_all_informers_before_it_waits_for_one(log: Log) -> None:
    """And no later change of kinds starts one."""
    source = ApiServerSource(CLIENT, log)
    source.start([Kind.NODE, Kind.POD])
    log.lines.clear()
    source.stop()
    assert log.taken() == ["end Node", "end Pod", "wait 0.2 s for Node", "wait 0.2 s for Pod"]
    source.set_kinds([Kind.SERVICE])
    assert log.taken() == []
