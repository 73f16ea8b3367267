"""Pages and metrics that agent and controllers have in common: health, readiness, status, process."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric

from mcagent import supervised
from mcagent.api.status import ReadinessCheck
from mcagent.http.server import Page, PlainPages
from mcagent.observe.metric_families import by_word, counter, gauge, single
from mcagent.observe.version import version

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def standard_pages(
    *,
    checks: Callable[[], Sequence[ReadinessCheck]],
    failures: Callable[[], Sequence[str]],
    status: Callable[[], Mapping[str, object]],
    registry: CollectorRegistry,
) -> PlainPages:
    """Make the pages by path: alive while there are no `failures`, ready while all `checks` are good."""

    def healthz() -> Page:
        reasons = failures()
        return Page(body="\n".join([*(reasons or ["ok"]), ""]), status=503 if reasons else 200)

    def readyz() -> Page:
        results = checks()
        ready = all(check.good for check in results)
        lines = [f"[{'+' if c.good else '-'}] {c.name}{': ' if c.text else ''}{c.text}" for c in results]
        return Page(body="\n".join([*lines, "ready" if ready else "not ready", ""]), status=200 if ready else 503)

    def as_json() -> Page:
        return Page(body=json.dumps(status(), indent=1) + "\n", content_type="application/json")

    return {
        "/": lambda: Page(body="/metrics\n/healthz\n/readyz\n/status\n"),
        "/metrics": lambda: Page(body=metrics_text(registry), content_type=_METRICS_TYPE),
        "/healthz": healthz,
        "/livez": healthz,
        "/readyz": readyz,
        "/status": as_json,
    }


def metrics_text(registry: CollectorRegistry) -> str:
    """Format all metrics in the Prometheus text format."""
    return generate_latest(registry).decode()


def process_metrics(ready: bool, *, prefix: str = "mcagent") -> Iterator[Metric]:
    """Yield the metrics of a process: version, readiness, dead and restarted threads."""
    yield gauge("mcagent_build_info", "Version of mcagent.", ["version"], [([version()], 1)])
    yield single(f"{prefix}_ready", "1 when /readyz reports ready.", ready)
    yield single(
        "mcagent_threads_dead",
        "Threads that ended unexpectedly; /healthz fails and names them.",
        len(supervised.dead()),
    )
    yield counter(
        "mcagent_thread_restarts",
        "Threads that were restarted after an unexpected exception.",
        ["thread"],
        by_word(supervised.restarts()),
    )


def rfc3339(at: float, *, digits: int = 0) -> str:
    """Format seconds since the epoch as RFC 3339 text in UTC, with `digits` decimals of a second."""
    units = round(at * 10**digits)
    fraction = f".{units % 10**digits:0{digits}d}" if digits else ""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(units // 10**digits)) + f"{fraction}Z"
