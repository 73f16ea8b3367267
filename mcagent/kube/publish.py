"""Writes what this Node publishes of its WireGuard device into its Gateway object. Never in the dataplane's way.

Calls only leave a value behind; a thread of its own writes, with back-off, and only what differs from what the API
is known to hold. The object and its content are decided by `mcagent.core.wireguard`.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from mcagent.kube.client import Client
from mcagent.model.backoff import Backoff
from mcagent.model.errors import InputError, SourceError
from mcagent.model.kinds import object_path
from mcagent.model.objects import Gateway, Kind, Meta, WireGuardInfo
from mcagent.model.parsing.parse import parse_object
from mcagent.supervised import Supervised

log = logging.getLogger(__name__)

RETRY = Backoff(first=0.5, most=30.0, jitter=0.0)
SEEN = 5.0  # seconds for which a written value may take to be seen


def published(info: WireGuardInfo | None) -> dict[str, Any] | None:
    """Return the field `wireGuard` as the API has it."""
    if info is None:
        return None
    found: dict[str, Any] = {"publicKey": info.public_key, "nextPublicKey": info.next_public_key or None}
    return found | {"port": info.port or None}


class Publisher:
    """Keeps one field of one object as it should be."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._wanted: tuple[Meta, WireGuardInfo | None] | None = None
        self._kept: dict[WireGuardInfo | None, WireGuardInfo | None] = {}  # what the API makes of a value
        self._dirty, self._stopping = threading.Event(), threading.Event()
        self._thread = Supervised(self._run, name="publisher", until=self._stopping)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self) -> None:
        """Stop; what is not written yet is not."""
        self._stopping.set()
        self._dirty.set()
        self._thread.join(timeout=1.0)

    def want(self, meta: Meta, there: WireGuardInfo | None, wanted: WireGuardInfo | None) -> None:
        """Say what should be in the Gateway `meta` and what is `there`. Returns at once."""
        with self._lock:
            if there == self._kept.get(wanted, wanted):
                self._wanted = None
            elif self._wanted != (meta, wanted):
                self._wanted = (meta, wanted)
                self._dirty.set()

    def _run(self) -> None:
        failures = 0
        while True:
            self._dirty.wait()
            self._dirty.clear()
            if self._stopping.is_set():  # `stop` sets this one first: what it sets after the line above stays
                return
            with self._lock:
                wanted = self._wanted
            if wanted is None:
                continue
            try:
                self._write(*wanted)
            except SourceError as error:
                log.warning("this Node's WireGuard key is not published yet: %s", error)
                failures += 1
                again = RETRY.delay(failures)
            else:
                again, failures = SEEN, 0
            # Until it is seen (`want`), it is written again.
            if not self._dirty.wait(again) and not self._stopping.is_set():
                self._dirty.set()

    def _write(self, meta: Meta, wanted: WireGuardInfo | None) -> None:
        path = object_path(Kind.GATEWAY, meta.namespace, meta.name)
        change = {"wireGuard": published(wanted)}
        found = self._client.request("PATCH", path, body=change, content_type="application/merge-patch+json")
        key = wanted.public_key if wanted is not None else "no key"
        log.info("published in %s: %s", meta.subject, key, extra={"about": meta})
        try:
            value = parse_object(found, Kind.GATEWAY).value
        except InputError as error:
            raise SourceError(f"the API server's answer cannot be used: {error}") from None
        if isinstance(value, Gateway) and value.wireguard != wanted:
            log.warning(
                "%s: the API server keeps only a part of the WireGuard fields (is its "
                "CustomResourceDefinition older?): key changes lose packets",
                meta.subject,
                extra={"about": meta},
            )
            with self._lock:
                self._kept[wanted] = value.wireguard
