"""The health of a ClusterSet as one cluster sees it: which other clusters it reaches, and if not, why. Pure.

It judges what is observed already: the links that agents report (liveness, BFD, probes), their cluster ID and
encryption, the readiness of gateways, and the connection to the leader. `mcagent status`, `mcagent get`,
conditions, Events, metrics, the doctor and the browser page show its result (docs/operations.md, Health). Must not
know objects of the API, pages or tunnels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from mcagent.model.config import EncryptionFallback, NodeTrafficEncryption
from mcagent.model.net import cluster_fingerprint
from mcagent.model.node_state import EncryptionState
from mcagent.model.parsing.field import printable
from mcagent.model.parsing.links import ClusterLink, fingerprint_text, merged
from mcagent.model.problem import Problem

SETTLED = 5.0  # seconds that a state lasts before it counts: a failover, or a tunnel of a new gateway, takes less
_MAX_ERROR = 500  # characters of why a gateway cannot encrypt
_SHOWN = 5  # names in a message
MAX_TEXT = 1024  # characters of all messages together


class HealthReason(StrEnum):
    """What is wrong, the most serious first."""

    CLUSTER_ID = "ClusterIDDiffers"
    NO_GATEWAY = "NoGateway"
    NOT_ENCRYPTED = "EncryptionUnavailable"
    AWAY = "Disconnected"
    UNREACHABLE = "ClusterUnreachable"
    ONE_WAY = "OneWay"
    SILENT = "PeerSilent"
    DEGRADED = "LinkDegraded"


# Those about links; the leader's page judges the links that it shows.
LINK_REASONS = frozenset(
    {HealthReason.UNREACHABLE, HealthReason.ONE_WAY, HealthReason.SILENT, HealthReason.DEGRADED}
)
_ORDER = {reason: place for place, reason in enumerate(HealthReason)}


@dataclass(frozen=True, slots=True, order=True)
class HealthFinding:
    """One thing that is wrong. All but LinkDegraded are errors."""

    reason: HealthReason
    message: str

    @property
    def error(self) -> bool:
        """Whether traffic or updates are lost."""
        return self.reason is not HealthReason.DEGRADED

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenGateway:
    """A gateway of this cluster. `ready`: its Node is. The rest is what its agent reports.

    `cluster_id` "": its agent reports nothing. `encryption_error`: why it cannot encrypt although it is to.
    """

    name: str
    ready: bool = True
    cluster_id: str = ""
    links: Sequence[ClusterLink] = ()
    encryption_error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenCluster:
    """What is observed in one cluster. `neighbours`: the clusters to reach, each with the time since when.

    Times are RFC 3339 text, as `since`, when the cluster joined. `away`: why the leader does not answer, or "".
    """

    cluster_id: str
    gateways: Sequence[SeenGateway] = ()
    neighbours: Mapping[str, str] = field(default_factory=dict)
    since: str = ""
    away: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The findings, the most serious first. `wake`: seconds until another state may count; may be inf."""

    findings: tuple[HealthFinding, ...] = ()
    wake: float = math.inf

    @property
    def summary(self) -> HealthFinding | None:
        """All findings as one, with the reason of the most serious; None: all is well."""
        if not self.findings:
            return None
        message = "; ".join(finding.message for finding in self.findings)
        return HealthFinding(self.findings[0].reason, printable(message, MAX_TEXT))


def cluster_health(seen: SeenCluster, now: float) -> Health:
    """Judge a cluster. `now`: seconds since the epoch. States that began less than SETTLED ago are left out."""
    findings: list[HealthFinding] = []
    wake = math.inf
    for finding, since in _findings(seen):
        age = now - (_seconds(since) or 0.0)
        if 0 <= age < SETTLED:
            wake = min(wake, SETTLED - age)
        else:
            findings.append(finding)
    return Health(findings=in_order(findings), wake=wake)


def in_order(findings: Iterable[HealthFinding]) -> tuple[HealthFinding, ...]:
    """Return each finding once, the most serious first."""
    return tuple(sorted(set(findings), key=lambda finding: (_ORDER[finding.reason], finding.message)))


def judge_link(source: str, link: ClusterLink) -> HealthFinding | None:
    """Return what is wrong with the way from cluster `source` to another one; None: nothing."""
    source, why = printable(source), f": {link.why}" if link.why else ""
    if not link.tunnels:
        return None  # agents report no such link
    own = fingerprint_text(cluster_fingerprint(link.cluster))
    if strangers := [address for address, answering in link.answers if answering != own]:
        text = (
            f"{source} has tunnels to {link.cluster}, and another cluster answers at {_some(strangers)}: agents "
            "there have another clusterID, or the address is another cluster's"
        )
        return HealthFinding(HealthReason.CLUSTER_ID, text)
    if not link.live and link.one_way:
        text = f"{source} hears {link.cluster}, and is not heard there: tunnel packets are lost in one direction"
        return HealthFinding(HealthReason.ONE_WAY, f"{text}{why}")
    if not link.live:
        return HealthFinding(HealthReason.UNREACHABLE, f"{source} has no live tunnel to {link.cluster}{why}")
    if link.silent == link.tunnels:
        text = f"{source} sends packets to {link.cluster}, and none ever came back"
        return HealthFinding(HealthReason.SILENT, text)
    if (answering := link.live - link.silent) < link.tunnels:
        text = f"{answering} of {link.tunnels} tunnels from {source} to {link.cluster} are live{why}"
        return HealthFinding(HealthReason.DEGRADED, text)
    return None


def encryption_error(encryption: EncryptionState, problems: Iterable[Problem]) -> str:
    """Return why a Node with these problems sends nothing, since it cannot encrypt as configured.

    "": it can, or may send in the clear.
    """
    denied = {
        "trafficEncryptionMode": encryption.fallback is EncryptionFallback.DENY,
        "nodeTrafficEncryption": encryption.node_mode is NodeTrafficEncryption.REQUIRED,
    }
    texts = (p.message for p in problems if p.reason == HealthReason.NOT_ENCRYPTED and denied.get(p.path))
    return printable(next(texts, ""), _MAX_ERROR)


def _findings(seen: SeenCluster) -> Iterator[tuple[HealthFinding, str]]:
    """Yield what is wrong, with the time since when it is so ("": unknown)."""
    if seen.away:
        yield HealthFinding(HealthReason.AWAY, seen.away), ""
    by_id: dict[str, list[str]] = {}
    for gateway in seen.gateways:
        by_id.setdefault(gateway.cluster_id, []).append(gateway.name)
    for cluster_id in sorted(by_id.keys() - {"", seen.cluster_id}) if seen.cluster_id else ():
        text = (
            f'clusterID is "{printable(cluster_id)}" in the configuration of the agents of '
            f'{_some(by_id[cluster_id])}, and "{seen.cluster_id}" in the ClusterSet'
        )
        yield HealthFinding(HealthReason.CLUSTER_ID, text), ""
    serving = [gateway for gateway in seen.gateways if gateway.ready]
    if not serving:
        down = _some([gateway.name for gateway in seen.gateways])
        text = f"no Node of its Gateways is Ready: {down}" if seen.gateways else "this cluster has no Gateway"
        yield HealthFinding(HealthReason.NO_GATEWAY, text), seen.since
        return
    for gateway in serving:
        if gateway.encryption_error:
            yield HealthFinding(HealthReason.NOT_ENCRYPTED, f"{gateway.name}: {gateway.encryption_error}"), ""
    links = {link.cluster: link for link in merged(gateway.links for gateway in serving)}
    for link in links.values():
        if (finding := judge_link(seen.cluster_id, link)) is not None:
            yield finding, link.since
    if any(gateway.cluster_id for gateway in serving):  # else no agent has reported yet
        for cluster, since in sorted(seen.neighbours.items()):
            if cluster not in links:
                text = f"{printable(seen.cluster_id)} has no tunnel to {printable(cluster)}"
                yield HealthFinding(HealthReason.UNREACHABLE, text), max(since, seen.since)


def read_finding(text: str) -> HealthFinding | None:
    """Return the finding ("REASON: message") that a member announces, which is not trusted; None: none."""
    reason, _, message = text[:MAX_TEXT].partition(": ")
    return HealthFinding(HealthReason(reason), printable(message, MAX_TEXT)) if reason in _ORDER else None


def _some(names: Sequence[str]) -> str:
    return ", ".join(sorted(names)[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")


def _seconds(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
