"""Writes into a Gateway's status how well this gateway reaches other clusters, and what else its agent reports.

Callers only set a value; a thread reads and writes, so the dataplane never waits. A dead gateway of this cluster
is written at once, a link that goes up or down within about a second, traffic at most every `TRAFFIC` seconds,
and only what differs from the API's. An API server that drops the fields (Antrea's CustomResourceDefinition
lacks them) gets them once in `DROPPED_FOR`.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from mcagent.kube.client import Client
from mcagent.kube.publish import DROPPED_FOR
from mcagent.model.backoff import Backoff
from mcagent.model.errors import SourceError
from mcagent.model.kinds import object_path
from mcagent.model.objects import Kind, Meta
from mcagent.model.parsing.links import NO_REPORT, ClusterLink, GatewayReport, to_json
from mcagent.supervised import BackgroundLoop

log = logging.getLogger(__name__)

RETRY = Backoff(first=1.0, most=300.0, jitter=0.0)
SOON = 1.0  # seconds from a change to its write: what follows at once goes with it
TRAFFIC = 30.0  # seconds between two reads of traffic

Look = Callable[[], Sequence[ClusterLink]]
_Target = tuple[Meta, Look, GatewayReport | None]


class LinkPublisher(BackgroundLoop):
    """Keeps `status` of one Gateway as it should be."""

    def __init__(self, client: Client, *, traffic: float = TRAFFIC) -> None:
        super().__init__(self._publish, name="link-publisher", delay=SOON, patience=1.0)
        self._client, self._traffic = client, traffic
        self._lock = threading.Lock()
        self._target: _Target | None = None
        self._basis: object = None  # of the last call of `want`
        self._dropped_until = -math.inf  # by the API server; monotonic
        self._changed: Mapping[str, object] = {}  # fields of the last write that it stored otherwise
        self._failures = 0

    def want(self, meta: Meta | None, look: Look, basis: object, report: GatewayReport | None = NO_REPORT) -> None:
        """Set the Gateway to write (None: none), the source of its links, and the report. Returns at once.

        The thread calls `look` if `basis` is another object than before, after `wake`, and from time to time.
        Without a report only links and unreachable gateways are written: none.
        """
        target = (meta, look, report) if meta is not None else None
        with self._lock:
            before, self._target = self._target, target
            if basis is self._basis and _identity(before) == _identity(target):
                return
            self._basis = basis
        self.wake(at_once=bool(_dead(target) - _dead(before)))

    def _publish(self) -> float:
        with self._lock:
            target = self._target
        if target is None:
            return math.inf
        if (wait := self._dropped_until - time.monotonic()) > 0:
            return wait
        meta, look, report = target
        try:
            self._write(meta, tuple(look()), report)
        except SourceError as error:
            self._failures += 1
            log.log(
                logging.WARNING if self._failures == 1 else logging.DEBUG,
                "%s: cannot publish how other clusters are reached: %s",
                meta.subject,
                error,
            )
            self.pause(RETRY.delay(self._failures))  # also if links change meanwhile
            return 0.0
        self._failures = 0
        return self._traffic

    def _write(self, meta: Meta, links: Sequence[ClusterLink], report: GatewayReport | None) -> None:
        path = object_path(Kind.GATEWAY, meta.namespace, meta.name)
        fields = _fields(report) if report is not None else {"unreachableGateways": None}
        desired = {"links": [to_json(link) for link in links] or None, **fields}
        status = _difference(desired, _status(self._client.request("GET", path)))
        if not status or status == self._changed:
            return
        change = "application/merge-patch+json"
        answer = self._client.request("PATCH", f"{path}/status", body={"status": status}, content_type=change)
        stored = _status(answer)
        self._changed = _difference(desired, stored)
        if links and not stored.get("links"):
            self._dropped_until, self._changed = time.monotonic() + DROPPED_FOR, {}
            log.info(
                "%s: the API server does not keep status.links (its CustomResourceDefinition is not mcagent's): "
                "the ClusterSet's page does not show this gateway's links",
                meta.subject,
            )


def _identity(target: _Target | None) -> tuple[str, str, GatewayReport | None] | None:
    return (target[0].key, target[0].created, target[2]) if target is not None else None


def _dead(target: _Target | None) -> frozenset[str]:
    report = target[2] if target is not None else None
    return frozenset(report.unreachable_gateways) if report is not None else frozenset()


def _status(gateway: object) -> Mapping[str, object]:
    status = gateway.get("status") if isinstance(gateway, dict) else None
    return status if isinstance(status, dict) else {}


def _difference(desired: Mapping[str, object], status: Mapping[str, object]) -> dict[str, object]:
    """Return the desired fields that a status has otherwise."""
    return {name: value for name, value in desired.items() if status.get(name) != value}


def _fields(report: GatewayReport) -> dict[str, object]:
    """Return a report as fields of a Gateway's status; None removes a field."""
    return {
        "clusterID": report.cluster_id or None,
        "antreaClusters": list(report.antrea_clusters) or None,
        "unreachableGateways": list(report.unreachable_gateways) or None,
        "encryptionError": report.encryption_error or None,
        "tunnelMTU": report.tunnel_mtu or None,
        "exportAddresses": report.export_addresses or None,
        "podPrefixes": report.pod_prefixes or None,
    }
