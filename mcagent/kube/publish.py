"""Writes what this Node publishes of its WireGuard device into its Gateway or Node object.

Never in the dataplane's way.

Callers only set a value; a thread writes it, with back-off, and only if it differs from the API's.
`mcagent.core.wireguard` decides on the object and its content.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from typing import Any

from mcagent.kube.client import Client
from mcagent.model.backoff import Backoff
from mcagent.model.errors import InputError, SourceError
from mcagent.model.kinds import object_path
from mcagent.model.objects import Gateway, Kind, Meta, Node, WireGuardInfo
from mcagent.model.parsing.node_key import NODE_KEY_ANNOTATION, node_key_text
from mcagent.model.parsing.parse import parse_object
from mcagent.supervised import BackgroundLoop

log = logging.getLogger(__name__)

RETRY = Backoff(first=0.5, most=30.0, jitter=0.0)
SEEN = 5.0  # seconds until a written value should be seen
DROPPED_FOR = 3600.0  # seconds until dropped fields are sent again: the CustomResourceDefinition may be newer then


def published(info: WireGuardInfo | None) -> dict[str, Any] | None:
    """Return the field `wireGuard` as the API has it."""
    if info is None:
        return None
    return {
        "publicKey": info.public_key,
        "nextPublicKey": info.next_public_key or None,
        "port": info.port or None,
        "devices": info.devices if info.devices > 1 else None,
    }


def _change(meta: Meta, desired: WireGuardInfo | None) -> tuple[str, dict[str, Any]]:
    """Return the path and the merge patch by which an object gets the value.

    For a Node it is the subresource `status`: a right on it does not extend to taints, as one on Nodes would.
    """
    path = object_path(meta.kind, meta.namespace, meta.name)
    if meta.kind is Kind.NODE:
        text = node_key_text(desired) if desired is not None else None
        return f"{path}/status", {"metadata": {"annotations": {NODE_KEY_ANNOTATION: text}}}
    return path, {"wireGuard": published(desired)}


class Publisher(BackgroundLoop):
    """Keeps the WireGuard fields of one Gateway, or the annotation of one Node, as they should be."""

    def __init__(self, client: Client) -> None:
        super().__init__(self._publish, name="publisher", patience=1.0)
        self._client = client
        self._lock = threading.Lock()
        self._desired: tuple[Meta, WireGuardInfo | None] | None = None
        # By value, what the API makes of it, and until when that counts (monotonic).
        self._stored: dict[WireGuardInfo | None, tuple[WireGuardInfo | None, float]] = {}
        self._failures = 0

    def want(self, meta: Meta, present: WireGuardInfo | None, desired: WireGuardInfo | None) -> None:
        """Set the desired and the present value of the object `meta`. Returns at once."""
        with self._lock:
            stored, until = self._stored.get(desired, (desired, math.inf))
            if present == (stored if time.monotonic() < until else desired):
                self._desired = None
            elif self._desired != (meta, desired):
                self._desired = (meta, desired)
                self.wake()

    def want_nothing(self) -> None:
        """Write no longer: this Node has no such object."""
        with self._lock:
            self._desired = None

    def _publish(self) -> float:
        with self._lock:
            desired = self._desired
        if desired is None:
            return math.inf
        try:
            self._write(*desired)
        except SourceError as error:
            log.warning("this Node's WireGuard key is not published yet: %s", error)
            self._failures += 1
            return RETRY.delay(self._failures)
        self._failures = 0
        return SEEN  # written again, until the value is seen (`want`)

    def _write(self, meta: Meta, desired: WireGuardInfo | None) -> None:
        path, change = _change(meta, desired)
        answer = self._client.request("PATCH", path, body=change, content_type="application/merge-patch+json")
        key = desired.public_key if desired is not None else "no key"
        log.info("published in %s: %s", meta.subject, key, extra={"about": meta})
        try:
            value = parse_object(answer, meta.kind).value
        except InputError as error:
            raise SourceError(f"the API server's answer cannot be used: {error}") from None
        if isinstance(value, Gateway | Node) and value.wireguard != desired:
            log.warning(
                "%s: the API server keeps only a part of the WireGuard fields (is its "
                "CustomResourceDefinition older?): key changes lose packets",
                meta.subject,
                extra={"about": meta},
            )
            with self._lock:
                self._stored = {desired: (value.wireguard, time.monotonic() + DROPPED_FOR)}
