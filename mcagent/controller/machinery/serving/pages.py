"""The pages of the controller: /healthz, /readyz, /status, /metrics. Turns values into text.

Ready means: this cluster's objects are listed, changes would be noticed, and the webhook can be asked. A standby
is ready too, as is a member whose leader is away: with another Pod nothing would be better. Alive means that all
threads run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

from prometheus_client import CollectorRegistry

from mcagent.api.codec import to_json
from mcagent.api.status import ReadinessCheck
from mcagent.controller.machinery.engine import Engine
from mcagent.controller.machinery.informers import OPTIONAL
from mcagent.controller.machinery.reconciler import Leader, Side
from mcagent.controller.machinery.statistics import Durations
from mcagent.http.server import Pages
from mcagent.observe.standard import rfc3339, standard_pages
from mcagent.observe.version import version

SHOWN = 1000  # entries of a list in /status


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """The process as pages and metrics show it. No function of it raises or blocks for long."""

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
    reviews: Callable[[], Mapping[tuple[str, str], int]]  # admission reviews by kind and answer
    review_durations: Callable[[], Durations]
    certificate_expiry: Callable[[], float]  # seconds since the epoch; 0.0: there is none
    events: Callable[[], Mapping[str, int]]  # Events by result
    unhealthy: Callable[[], Mapping[str, int]]  # clusters that are not healthy, by reason
    members: Callable[[], Mapping[str, int]] | None = None  # of the ClusterSets that it leads, by state

    def ready(self) -> bool:
        """Tell whether every condition of being ready holds."""
        return all(check.good for check in checks(self))


def checks(process: Process) -> tuple[ReadinessCheck, ...]:
    """Return every condition of being ready, in the order in which they become true at start."""
    engine = process.engine
    unsynced = sorted(engine.cache.unsynced(Side.LOCAL))
    states = engine.informers()[Side.LOCAL]
    errors = {state.kind: state.error for state in states if state.error}
    disconnected = [
        f"{state.kind}: {state.error or 'not connected'}"
        for state in states
        if state.synced and not state.connected and state.kind not in OPTIONAL
    ]
    missing = "; ".join(f"{kind}: {errors[kind]}" if kind in errors else kind for kind in unsynced)
    webhook = process.webhook()
    return (
        ReadinessCheck(name="listed", good=not unsynced, text=f"not listed yet: {missing}" if unsynced else ""),
        ReadinessCheck(name="connected", good=not disconnected, text="; ".join(disconnected)),
        ReadinessCheck(name="webhook", good=not webhook, text=webhook),
    )


def make_pages(process: Process, registry: CollectorRegistry) -> Pages:
    """Return the pages by path."""
    return standard_pages(
        checks=lambda: checks(process),
        failures=lambda: [f"not running: {thread}" for thread in process.dead()],
        status=lambda: status_of(process),
        registry=registry,
    )


def status_of(process: Process) -> dict[str, object]:
    """Return /status as plain values."""
    engine = process.engine
    leader = engine.view.leader
    readiness = checks(process)
    later, now = engine.waiting()
    return {
        "version": version(),
        "role": process.role,
        "identity": process.identity,
        "namespace": process.namespace,
        "startedAt": rfc3339(process.started_at),
        "ready": all(check.good for check in readiness),
        "alive": not process.dead(),
        "checks": [to_json(check) for check in readiness],
        "lease": {"held": process.leading(), "holder": process.holder(), "error": process.lease_error()},
        "leader": _leader(leader) if leader is not None else None,
        "reconcilers": {name: {"waiting": count} for name, count in sorted(engine.depths().items())},
        "delayed": later,
        "active": now,
        "refused": [
            {"object": str(ref), "reason": why} for ref, why in sorted(engine.written.failures().items())[:SHOWN]
        ],
        "contended": [
            {"object": str(ref), "writes": count}
            for ref, count in sorted(engine.written.repeated().items())[:SHOWN]
        ],
        "notKept": {str(side): fields for side in Side if (fields := engine.written.dropped_fields(side))},
        "informers": [
            {"side": side, **asdict(state), "objects": engine.cache.count(side, state.kind)}
            for side, states in engine.informers().items()
            for state in states
        ],
    }


def _leader(leader: Leader) -> dict[str, object]:
    return {**asdict(leader), "since": rfc3339(leader.since) if leader.since else None}
