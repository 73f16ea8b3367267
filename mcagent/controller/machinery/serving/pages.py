"""The pages of the controller: /healthz, /readyz, /status, /metrics. Turns values into text.

Ready means: this cluster's objects are listed, changes would be noticed, and the webhook can be asked. A standby
is ready too, as is a member whose leader is away: with another Pod nothing would be better. Alive means that all
threads run.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from prometheus_client import CollectorRegistry

from mcagent.controller.machinery.engine import Engine
from mcagent.controller.machinery.informers import OPTIONAL
from mcagent.controller.machinery.reconciler import Side
from mcagent.controller.machinery.serving import metrics
from mcagent.http.server import Page, Pages
from mcagent.observe.version import version

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SHOWN = 1000  # entries of a list in /status


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One condition of being ready."""

    name: str
    good: bool
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """What the pages tell of."""

    role: str
    identity: str
    namespace: str
    started_at: float
    engine: Engine
    leading: Callable[[], bool]
    holder: Callable[[], str]
    lease_error: Callable[[], str]
    webhook: Callable[[], str]  # why it does not serve; "" if it does, or need not
    dead: Callable[[], list[str]]  # threads that should run and do not


def checks(process: Process) -> tuple[Check, ...]:
    """Return every condition of being ready, in the order in which they become true at start."""
    engine = process.engine
    unsynced = sorted(engine.cache.unsynced(Side.LOCAL))
    states = engine.informers()[Side.LOCAL]
    errors = {state.kind: state.last_error for state in states if state.last_error}
    lost = [
        f"{state.kind}: {state.last_error or 'not connected'}"
        for state in states
        if state.synced and not state.connected and state.kind not in OPTIONAL
    ]
    missing = "; ".join(f"{kind}: {errors[kind]}" if kind in errors else kind for kind in unsynced)
    webhook = process.webhook()
    return (
        Check(name="listed", good=not unsynced, text=f"not listed yet: {missing}" if unsynced else ""),
        Check(name="connected", good=not lost, text="; ".join(lost)),
        Check(name="webhook", good=not webhook, text=webhook),
    )


def make_pages(process: Process, registry: CollectorRegistry) -> Pages:
    """Return the pages by path."""

    def healthz() -> Page:
        dead = process.dead()
        return Page(body=f"not running: {', '.join(dead)}\n", status=503) if dead else Page(body="ok\n")

    def readyz() -> Page:
        found = checks(process)
        ready = all(check.good for check in found)
        lines = [f"[{'+' if c.good else '-'}] {c.name}{': ' if c.text else ''}{c.text}" for c in found]
        return Page(body="\n".join([*lines, "ready" if ready else "not ready", ""]), status=200 if ready else 503)

    return {
        "/": lambda: Page(body="/metrics\n/healthz\n/readyz\n/status\n"),
        "/metrics": metrics_page(registry),
        "/healthz": healthz,
        "/livez": healthz,
        "/readyz": readyz,
        "/status": lambda: Page(
            body=json.dumps(status_of(process), indent=1) + "\n", content_type="application/json"
        ),
    }


def metrics_page(registry: CollectorRegistry) -> Callable[[], Page]:
    """Return the page /metrics."""
    return lambda: Page(body=metrics.text(registry), content_type=METRICS_TYPE)


def status_of(process: Process) -> dict[str, object]:
    """Return /status as plain values."""
    engine = process.engine
    leader = engine.view.leader
    found = checks(process)
    later, now = engine.waiting()
    return {
        "version": version(),
        "role": process.role,
        "identity": process.identity,
        "namespace": process.namespace,
        "startedAt": _time(process.started_at),
        "ready": all(check.good for check in found),
        "alive": not process.dead(),
        "checks": [asdict(check) for check in found],
        "lease": {"held": process.leading(), "holder": process.holder(), "error": process.lease_error()},
        "leader": None if leader is None else {**asdict(leader), "since": _time(leader.since)},
        "reconcilers": {name: {"waiting": count} for name, count in sorted(engine.depths().items())},
        "delayed": later,
        "active": now,
        "refused": [
            {"object": str(ref), "reason": why} for ref, why in sorted(engine.view.failures().items())[:SHOWN]
        ],
        "contended": [
            {"object": str(ref), "writes": count}
            for ref, count in sorted(engine.worker.repeats.repeated().items())[:SHOWN]
        ],
        "informers": [
            {"side": side, "objects": engine.cache.count(side, state.kind), **asdict(state)}
            for side, states in engine.informers().items()
            for state in states
        ],
    }


def _time(seconds: float) -> str | None:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds)) if seconds else None
