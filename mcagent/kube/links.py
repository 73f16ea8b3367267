"""Writes into a Gateway's status how well this gateway reaches other clusters. Never in the dataplane's way.

Calls only leave a value behind; a thread of its own reads and writes. A link that goes up or down is written
within a second, traffic at most every `TRAFFIC` seconds, and only what differs from what the API has. What an
API server does not keep (Antrea's CustomResourceDefinition has no such field) is sent once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from mcagent.kube.client import Client
from mcagent.model.backoff import Backoff
from mcagent.model.errors import SourceError
from mcagent.model.kinds import object_path
from mcagent.model.objects import Kind, Meta
from mcagent.model.parsing.links import Link, read, to_json
from mcagent.supervised import Supervised

log = logging.getLogger(__name__)

RETRY = Backoff(first=1.0, most=300.0, jitter=0.0)
SOON = 1.0  # seconds from a change to its write: what follows at once goes with it
TRAFFIC = 30.0  # seconds between two looks at traffic

Look = Callable[[], Sequence[Link]]


class LinkPublisher:
    """Keeps `status.links` of one Gateway as it should be."""

    def __init__(self, client: Client, *, traffic: float = TRAFFIC) -> None:
        self._client, self._traffic = client, traffic
        self._lock = threading.Lock()
        self._wanted: tuple[Meta, Look] | None = None
        self._basis: object = None  # what the last look was asked for: the same again is no news
        self._written: tuple[str, Sequence[Link]] | None = None  # by Gateway: what the API has
        self._unkept = False
        self._dirty, self._stopping = threading.Event(), threading.Event()
        self._thread = Supervised(self._run, name="link-publisher", until=self._stopping)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self) -> None:
        """Stop; what is not written yet is not."""
        self._stopping.set()
        self._dirty.set()
        self._thread.join(timeout=1.0)

    def want(self, meta: Meta | None, look: Look, basis: object) -> None:
        """Say whose status `look` tells: that of no Gateway (None), or of `meta`. Returns at once.

        `look` is called by the thread, when `basis` is another object than the last time, and from time to time.
        """
        with self._lock:
            known = self._wanted[0].key if self._wanted is not None else None
            if basis is self._basis and known == (meta.key if meta is not None else None):
                return
            self._basis = basis
            self._wanted = (meta, look) if meta is not None else None
            self._dirty.set()

    def _run(self) -> None:
        failures, wait = 0, self._traffic
        while not self._stopping.is_set():
            if self._dirty.wait(wait):
                self._dirty.clear()
                if self._stopping.wait(SOON if not failures else RETRY.delay(failures)):
                    return
            with self._lock:
                wanted = self._wanted
            if wanted is None or self._unkept:
                continue
            meta, look = wanted
            try:
                self._write(meta, tuple(look()))
            except SourceError as error:
                failures += 1
                wait = RETRY.delay(failures)
                log.log(
                    logging.WARNING if failures == 1 else logging.DEBUG,
                    "%s: cannot publish how other clusters are reached: %s",
                    meta.subject,
                    error,
                )
            else:
                failures, wait = 0, self._traffic

    def _write(self, meta: Meta, links: Sequence[Link]) -> None:
        path = object_path(Kind.GATEWAY, meta.namespace, meta.name)
        if self._written is None or self._written[0] != meta.key:  # after a restart, or as a gateway anew
            self._written = (meta.key, _links(self._client.request("GET", path)))
        if self._written[1] == links:
            return
        body = {"status": {"links": [to_json(link) for link in links]}}
        change = "application/merge-patch+json"
        kept = _links(self._client.request("PATCH", f"{path}/status", body=body, content_type=change))
        self._written = (meta.key, links)
        if links and not kept:
            self._unkept = True
            log.info(
                "%s: the API server does not keep status.links (its CustomResourceDefinition is not mcagent's): "
                "the ClusterSet's page does not show this gateway's links",
                meta.subject,
            )


def _links(gateway: object) -> tuple[Link, ...]:
    status = gateway.get("status") if isinstance(gateway, dict) else None
    return read(status.get("links")) if isinstance(status, dict) else ()
