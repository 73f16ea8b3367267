"""Threads that break: none without a word, health fails for those that do not come back."""

from __future__ import annotations

import gc
import math
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcagent import supervised
from mcagent.model.backoff import Backoff
from mcagent.observe.metrics.agent import Metrics, Sources
from mcagent.observe.pages import Identity, make_pages
from mcagent.observe.report import Report
from mcagent.observe.standard import metrics_text
from mcagent.supervised import BackgroundLoop, Supervised, attempt, dead, restarts
from tests.waiting import until

PRODUCT = Path(supervised.__file__).parent


@pytest.fixture(autouse=True)
def log_lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Give what is logged, as text: records keep tracebacks, whose frames keep the thread."""
    lines: list[str] = []

    def note(form: str, *args: object, exc_info: BaseException) -> None:
        lines.append(form % args + "".join(traceback.format_exception(exc_info)))

    monkeypatch.setattr(supervised, "RESTART", Backoff(first=0.001, most=0.002))
    monkeypatch.setattr(supervised.log, "error", note)
    yield lines
    gc.collect()
    assert dead() == []  # of threads whose owners are gone nothing is told


def boom() -> None:
    """Break, as by an object that nobody thought of."""
    raise KeyError("a\x1b[2J")


def test_an_urgent_wake_does_not_wait_for_others() -> None:
    """A loop with a delay collects changes; one that is urgent, also after others, ends the wait."""
    calls: list[float] = []

    def step() -> float:
        calls.append(1.0)
        return math.inf

    loop = BackgroundLoop(step, name="urgent", delay=600.0, patience=5.0)
    loop.start()
    try:
        until(lambda: len(calls) == 1)
        loop.wake()
        loop.wake(at_once=True)
        until(lambda: len(calls) == 2)
    finally:
        loop.stop()
    assert not loop.alive


def test_a_thread_that_dies_is_told_with_its_cause(log_lines: list[str]) -> None:
    """Health names it and why, in printable words, for as long as its owner has it."""
    thread = Supervised(boom, name="reader")
    thread.start()
    thread.join()
    (threads,) = dead()
    assert threads.startswith("reader (KeyError: ")
    assert threads.isprintable()
    assert "thread reader has died: KeyError" in log_lines[0]
    assert "in boom" in log_lines[0]
    del thread
    gc.collect()
    assert dead() == []


def test_one_that_ends_is_not_dead() -> None:
    """A thread that did its work, or was told to stop, is nobody's concern."""
    thread = Supervised(lambda: None, name="done", until=threading.Event())
    thread.start()
    thread.join()
    assert (thread.cause, dead()) == ("", [])


def test_a_loop_is_run_again() -> None:
    """One that may begin anew does, and is dead to health only while it breaks again and again."""
    stop, good = threading.Event(), threading.Event()
    turns: list[int] = []

    def loop() -> None:
        turns.append(1)
        if not good.is_set():
            boom()
        stop.wait()

    before = restarts().get("loop", 0)
    thread = Supervised(loop, name="loop", until=stop)
    thread.start()
    until(lambda: any(told.startswith("loop (") for told in dead()))
    assert len(turns) > supervised.TOLERATED
    assert restarts()["loop"] > before
    until(lambda: thread.interrupted.startswith("KeyError: "))
    good.set()
    until(lambda: dead() == [] and thread.interrupted == "")
    assert thread.cause
    stop.set()
    thread.join()
    assert (thread.cause, dead()) == ("", [])


def test_stopping_ends_the_wait() -> None:
    """A loop that waits to be run again ends at once when it is to stop."""
    stop = threading.Event()
    thread = Supervised(boom, name="stopped", until=stop)
    thread.start()
    until(lambda: thread.breaks > 0)
    stop.set()
    thread.join(5)
    assert not thread.is_alive()


def test_an_attempt_returns_what_it_caught() -> None:
    """Either a result or an exception; what ends the process passes."""
    assert attempt(lambda: 3) == (3, None)
    result, error = attempt(boom)
    assert result is None
    assert isinstance(error, KeyError)
    with pytest.raises(SystemExit):
        attempt(lambda: (_ for _ in ()).throw(SystemExit))


def test_health_fails_for_a_dead_thread() -> None:
    """/healthz of the agent answers 503 with the thread and the cause, while the loop turns."""
    metrics = Metrics()
    sources = Sources(
        report=Report,
        informers=tuple,
        ready=lambda: True,
        ports=dict,
        drops=dict,
    )
    metrics.watch(sources)
    identity = Identity(node="n", cluster_id="c", source="s", started_at=0.0)
    pages = make_pages(
        identity=lambda: identity,
        metrics=metrics,
        sources=sources,
        alive=lambda: True,
        pending=lambda: False,
    )
    assert pages["/healthz"]().status == 200
    thread = Supervised(boom, name="watcher")
    thread.start()
    thread.join()
    page = pages["/healthz"]()
    assert page.status == 503
    assert "not running: watcher (KeyError" in page.body
    assert "mcagent_threads_dead 1.0" in metrics_text(metrics.registry)


def test_a_loop_calls_its_step_after_the_returned_time_and_when_woken() -> None:
    """After `math.inf` only `wake` causes a call; wakes in quick succession cause one; `stop` ends any wait."""
    calls: list[int] = []

    def step() -> float:
        calls.append(len(calls))
        return 0.0 if len(calls) < 3 else math.inf

    loop = BackgroundLoop(step, name="loop", delay=0.05)
    loop.start()
    until(lambda: len(calls) == 3)
    loop.wake()
    loop.wake()
    until(lambda: len(calls) == 4)
    assert not loop.stopping
    loop.stop()
    assert loop.stopping
    assert not loop.alive
    assert len(calls) == 4


def test_a_loop_continues_after_an_exception_and_stops_within_a_pause(log_lines: list[str]) -> None:
    """A step that raises is called again; `pause` ends with `stop`."""
    calls: list[int] = []

    def step() -> float:
        calls.append(len(calls))
        if len(calls) == 1:
            boom()
        loop.pause(3600.0)
        return 0.0

    loop = BackgroundLoop(step, name="loop")
    loop.start()
    until(lambda: len(calls) == 2)
    loop.stop()
    assert not loop.alive
    assert len(calls) == 2
    assert "thread loop broke: KeyError" in log_lines[0]


def test_every_thread_of_the_product_is_one() -> None:
    """Nobody starts a thread that could die unnoticed, or catches every exception, but in the one place for it."""
    threads = []
    for file in sorted(PRODUCT.rglob("*.py")):
        if file.name == "supervised.py" or "lab" in file.parts:
            continue
        text = file.read_text(encoding="utf-8")
        if ("threading.Thread(" in text and "attempt(" not in text) or "except Exception" in text:
            threads.append(str(file.relative_to(PRODUCT)))
    assert threads == [], "use mcagent.supervised: Supervised, attempt"
