"""`mcagent drain`: translated connections are counted, waited for, and reported."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path

import pytest

from mcagent.agent.config import Settings
from mcagent.api.codec import VERSION
from mcagent.api.status import DrainStatus
from mcagent.cli import drain
from mcagent.cli.drain import Target, wait_translated
from mcagent.cli.main import main
from mcagent.core.failover.draining import Phase
from mcagent.http.server import HttpServer, Page
from mcagent.model.errors import McagentError


def target(counts: Iterator[int]) -> Target:
    """Return a Node whose agent counts these connections, one after the other."""
    return Target(
        name="Node g1",
        node="g1",
        set=lambda _: None,
        progress=lambda _: repeat(DrainStatus(phase=Phase.DRAINED)),
        translated=lambda: next(counts),
    )


def waited(counts: Iterator[int], grace: float, monkeypatch: pytest.MonkeyPatch) -> tuple[int | None, ...]:
    """Return the counts at the start and at the end."""
    monkeypatch.setattr(drain, "LOOK", 0.01)
    lines: list[str] = []
    report = wait_translated(target(counts), grace, lines.append)
    expected = f"open TCP connections that it translates, which end with the drain: {report.translated}"
    assert lines[0] == f"Node g1: {expected}"
    return report.translated, report.ended


def test_translated_connections_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until there is none, or the grace period is over; 0 does not wait."""
    assert waited(chain([3, 2, 1], repeat(0)), 60, monkeypatch) == (3, 0)
    assert waited(chain([3], repeat(2)), 0.05, monkeypatch) == (3, 2)
    assert waited(iter([3]), 0, monkeypatch) == (3, 3)
    assert waited(iter([0]), 60, monkeypatch) == (0, 0)


def test_a_gateway_that_cannot_count_is_drained_at_once() -> None:
    """The reason is printed, and is in the report."""

    def refuse() -> int:
        raise McagentError("no such page: is it an older version?")

    lines: list[str] = []
    report = wait_translated(replace(target(iter(())), translated=refuse), 60, lines.append)
    assert (report.translated, report.ended) == (None, None)
    assert "older version" in report.error
    assert lines == [f"Node g1: the connections that it translates are not counted: {report.error}"]


def test_a_failed_count_does_not_end_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent may restart meanwhile; the last count stands."""
    monkeypatch.setattr(drain, "LOOK", 0.01)
    answers: Iterator[int | None] = chain([2, None, 1, None], repeat(0))

    def count() -> int:
        if (number := next(answers)) is None:
            raise McagentError("no agent answers")
        return number

    report = wait_translated(replace(target(iter(())), translated=count), 60, lambda _: None)
    assert (report.translated, report.ended, report.error) == (2, 0, "")


def test_the_command_reads_the_count_of_the_agent_and_reports_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the page /connections; the result is one JSON document, and progress goes to stderr."""
    socket = tmp_path / "status.sock"
    flags: list[bool] = []
    page = Page(body=json.dumps({"apiVersion": VERSION, "translated": 7}), content_type="application/json")
    local = drain.local_target

    def without_database(settings: Settings) -> Target:
        progress = target(iter(())).progress
        return replace(local(settings), set=flags.append, progress=progress)

    monkeypatch.setattr(drain, "local_target", without_database)
    config = tmp_path / "agent.yaml"
    config.write_text(f"nodeName: g1\nclusterID: east\nlisten: ':0'\nrunDirectory: {tmp_path}\n", encoding="utf-8")
    with closing(HttpServer(socket, {"/connections": lambda: page})):
        assert main(["drain", "--local", "--config", str(config), "--grace", "0", "-o", "json"]) == 0
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert (report["translated"], report["ended"], report["drained"], report["clean"]) == (7, 7, True, True)
    assert "asked to hand over" in printed.err
    assert flags == [True]
