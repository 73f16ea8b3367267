"""Writes into a Gateway's status how well this gateway reaches other clusters. Never in the dataplane's way.

Callers only set a value; a thread reads and writes. A link that goes up or down is written within about a second,
traffic at most every `TRAFFIC` seconds, and only what differs from the API's. An API server that drops the field
(Antrea's CustomResourceDefinition lacks it) gets it once.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Sequence

from mcagent.kube.client import Client
from mcagent.model.backoff import Backoff
from mcagent.model.errors import SourceError
from mcagent.model.kinds import object_path
from mcagent.model.objects import Kind, Meta
from mcagent.model.parsing.links import ClusterLink, read, to_json
from mcagent.supervised import BackgroundLoop

log = logging.getLogger(__name__)

RETRY = Backoff(first=1.0, most=300.0, jitter=0.0)
SOON = 1.0  # seconds from a change to its write: what follows at once goes with it
TRAFFIC = 30.0  # seconds between two reads of traffic

Look = Callable[[], Sequence[ClusterLink]]


class LinkPublisher:
    """Keeps `status.links` of one Gateway as it should be."""

    def __init__(self, client: Client, *, traffic: float = TRAFFIC) -> None:
        self._client, self._traffic = client, traffic
        self._lock = threading.Lock()
        self._target: tuple[Meta, Look] | None = None
        self._basis: object = None  # of the last call of `want`
        self._written: tuple[str, Sequence[ClusterLink]] | None = None  # by Gateway: what the API has
        self._dropped = False  # by the API server
        self._failures = 0
        self._loop = BackgroundLoop(self._publish, name="link-publisher", delay=SOON)

    def start(self) -> None:
        """Begin to write."""
        self._loop.start()

    def stop(self) -> None:
        """Stop; what is not written yet is not."""
        self._loop.stop(timeout=1.0)

    def want(self, meta: Meta | None, look: Look, basis: object) -> None:
        """Set the Gateway to write (None: none), and the source of its links. Returns at once.

        The thread calls `look` if `basis` is another object than the last time, and from time to time.
        """
        with self._lock:
            previous = self._target[0].key if self._target is not None else None
            if basis is self._basis and previous == (meta.key if meta is not None else None):
                return
            self._basis = basis
            self._target = (meta, look) if meta is not None else None
        self._loop.wake()

    def look_again(self) -> None:
        """Have `look` called soon. Returns at once."""
        self._loop.wake()

    def _publish(self) -> float:
        with self._lock:
            target = self._target
        if target is None or self._dropped:
            return math.inf
        meta, look = target
        try:
            self._write(meta, tuple(look()))
        except SourceError as error:
            self._failures += 1
            log.log(
                logging.WARNING if self._failures == 1 else logging.DEBUG,
                "%s: cannot publish how other clusters are reached: %s",
                meta.subject,
                error,
            )
            self._loop.pause(RETRY.delay(self._failures))  # also if links change meanwhile
            return 0.0
        self._failures = 0
        return self._traffic

    def _write(self, meta: Meta, links: Sequence[ClusterLink]) -> None:
        path = object_path(Kind.GATEWAY, meta.namespace, meta.name)
        if self._written is None or self._written[0] != meta.key:  # after a restart, or as a gateway anew
            self._written = (meta.key, _links(self._client.request("GET", path)))
        if self._written[1] == links:
            return
        body = {"status": {"links": [to_json(link) for link in links]}}
        change = "application/merge-patch+json"
        stored = _links(self._client.request("PATCH", f"{path}/status", body=body, content_type=change))
        self._written = (meta.key, links)
        if links and not stored:
            self._dropped = True
            log.info(
                "%s: the API server does not keep status.links (its CustomResourceDefinition is not mcagent's): "
                "the ClusterSet's page does not show this gateway's links",
                meta.subject,
            )


def _links(gateway: object) -> tuple[ClusterLink, ...]:
    status = gateway.get("status") if isinstance(gateway, dict) else None
    return read(status.get("links")) if isinstance(status, dict) else ()
