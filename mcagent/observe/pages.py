"""The pages: /metrics, /healthz, /readyz, /status. Turns values into text; decides only what ready means.

Ready means: the dataplane equals the desired state of all input received, every kind that the role needs is
listed, and changes would be noticed now. So when the API server is gone /readyz fails and says so, while the
dataplane goes on as it is; only people and roll-outs should act on it. Alive (/healthz) means that the loop turns.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType

from mcagent.core.render import plain, problem_json, state_json
from mcagent.http.server import Page, Pages
from mcagent.model.node_state import Role
from mcagent.model.resources import TunnelPort
from mcagent.observe.gateways import LiveReport, drain_of, gateways_of
from mcagent.observe.metrics import Metrics, Sources, TunnelSample
from mcagent.observe.report import InformerReport, Report
from mcagent.observe.version import version
from mcagent.observe.wireguard import WireGuardReport, encryption_of, ends_of, summary_of
from mcagent.supervised import dead as dead_threads

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SHOWN_PROBLEMS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What does not change while the agent runs."""

    node: str
    cluster_id: str
    source: str
    started_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One condition of being ready."""

    name: str
    good: bool
    text: str = ""


def checks(report: Report, informers: Iterable[InformerReport], *, pending: bool) -> tuple[Check, ...]:
    """Return every condition of being ready, in the order in which they become true at start."""
    informers = tuple(informers)
    unsynced = sorted({i.kind for i in informers if not i.synced} | set(report.waiting_for))
    lost = [f"{i.kind}: {i.error or 'not connected'}" for i in informers if i.synced and not i.connected]
    backends = [f"{b.name}: {'; '.join(b.errors) or 'not known'}" for b in report.backends if not b.synced]
    if report.error:
        dataplane = report.error
    elif report.desired is None:
        dataplane = "nothing was computed yet"
    elif not report.converged:
        dataplane = "does not equal the desired state"
    else:
        dataplane = "there is input that is not taken in yet" if pending else ""
    return (
        Check(name="listed", good=not unsynced, text=f"not listed yet: {', '.join(unsynced)}" if unsynced else ""),
        Check(name="connected", good=not lost, text="; ".join(lost)),
        *(Check(name=f"backend {text.split(':')[0]}", good=False, text=text) for text in backends),
        Check(name="dataplane", good=not dataplane, text=dataplane),
    )


def make_pages(
    *,
    identity: Identity,
    metrics: Metrics,
    sources: Sources,
    alive: Callable[[], bool],
    pending: Callable[[], bool],
    dead: Callable[[], Sequence[str]] = dead_threads,
) -> Pages:
    """Return the pages by path. `dead` names threads that should run and do not, and says why."""

    def current_checks() -> tuple[Check, ...]:
        return checks(sources.report(), sources.informers(), pending=pending())

    def healthz() -> Page:
        why = [*([] if alive() else ["the loop does not turn"]), *(f"not running: {one}" for one in dead())]
        return Page(body="\n".join([*(why or ["ok"]), ""]), status=503 if why else 200)

    def readyz() -> Page:
        found = current_checks()
        ready = all(check.good for check in found)
        lines = [f"[{'+' if c.good else '-'}] {c.name}{': ' if c.text else ''}{c.text}" for c in found]
        return Page(body="\n".join([*lines, "ready" if ready else "not ready", ""]), status=200 if ready else 503)

    def status() -> Page:
        found = status_of(
            identity=identity,
            report=sources.report(),
            informers=sources.informers(),
            tunnels=sources.tunnels(),
            found=current_checks(),
            alive=alive() and not dead(),
            live=sources.live(),
            wireguard=sources.wireguard(),
            nft_drops=sources.nft_drops(),
        )
        return Page(body=json.dumps(found, indent=1) + "\n", content_type="application/json")

    return {
        "/": lambda: Page(body="/metrics\n/healthz\n/readyz\n/status\n"),
        "/metrics": lambda: Page(body=metrics.text(), content_type=METRICS_TYPE),
        "/healthz": healthz,
        "/livez": healthz,
        "/readyz": readyz,
        "/status": status,
    }


def status_of(
    *,
    identity: Identity,
    report: Report,
    informers: Iterable[InformerReport],
    tunnels: Iterable[TunnelSample],
    found: tuple[Check, ...],
    alive: bool,
    live: LiveReport | None = None,
    wireguard: WireGuardReport | None = None,
    nft_drops: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, object]:
    """Return /status as plain values."""
    desired = report.desired
    encryption = summary_of(desired)
    live = live or LiveReport()
    samples = {sample.name: sample for sample in tunnels}
    ports = (
        [
            port
            for fragment in desired.fragments.values()
            for port in fragment.resources
            if isinstance(port, TunnelPort)
        ]
        if desired is not None
        else []
    )
    problems = desired.problems if desired is not None else ()
    return {
        "version": version(),
        "node": identity.node,
        "clusterID": identity.cluster_id,
        "source": identity.source,
        "startedAt": _time(identity.started_at),
        "ready": all(check.good for check in found),
        "alive": alive,
        "checks": [asdict(check) for check in found],
        "summary": state_json(desired.state) if desired else {},
        "tunnels": [_tunnel(port, samples.get(port.name)) for port in sorted(ports, key=lambda port: port.name)],
        "nftDrops": dict(nft_drops),
        "encryption": encryption_of(encryption, wireguard or WireGuardReport()),
        "drain": drain_of(live),
        "gateways": gateways_of(
            live,
            {name: sample.statistics for name, sample in samples.items()},
            own_gateway=identity.node if desired is not None and desired.state.role is Role.GATEWAY else "",
            ends=ends_of(encryption),
        ),
        "problems": [problem_json(problem) for problem in problems[:SHOWN_PROBLEMS]],
        "problemCount": len(problems),
        "resources": Counter(
            type(resource).__name__
            for fragment in (desired.fragments.values() if desired else ())
            for resource in fragment.resources
        ),
        "informers": [asdict(informer) for informer in informers],
        "backends": [
            {**asdict(b), "retry_at": _time(b.retry_at) if b.retry_at else None} for b in report.backends
        ],
        "passes": report.passes,
        "driftCorrections": report.drift,
        "lastPass": _timed(report.last_pass),
        "lastChange": _timed(report.last_change),
    }


def _tunnel(port: TunnelPort, sample: TunnelSample | None) -> dict[str, object]:
    return {
        "name": port.name,
        "type": str(port.type),
        "remoteIP": str(port.remote_ip),
        "peerKind": str(port.peer_kind),
        "peer": port.peer,
        "ofport": port.ofport,
        "exists": sample is not None,
        "up": None if sample is None else sample.up,
        "statistics": dict(sample.statistics) if sample is not None else {},
    }


def _timed(value: object) -> dict[str, object] | None:
    if value is None:
        return None
    shown = plain(value)
    assert isinstance(shown, dict)
    return {**shown, "at": _time(float(str(shown["at"])))}


def _time(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
