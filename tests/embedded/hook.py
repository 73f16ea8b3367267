"""A webhook that serves, and a client of it."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from mcagent.controller.admission.decision import AdmissionDecision
from mcagent.controller.webhook.server import LIMITS, WebhookServer
from mcagent.http import certificates
from mcagent.http.certificates import context_of
from mcagent.http.connection import Limits

NAMES = ("mcagent-leader.mc.svc",)


class Hook:
    """A server with a certificate, and a client that trusts its authority only."""

    def __init__(
        self, reviews: Mapping[str, Callable[[Mapping[str, Any]], AdmissionDecision]], limits: Limits = LIMITS
    ) -> None:
        self.server = WebhookServer(("127.0.0.1", 0), reviews, limits)
        self.material = certificates.current(None, NAMES, datetime.now(UTC))

    def use(self) -> None:
        """Give the server its certificate."""
        self.server.use(context_of(self.material.certificate, self.material.key))

    def connect(self) -> http.client.HTTPConnection:
        """Return a connection that was verified as API servers do: authority and name of the Service."""
        return connection(self.server.port, self.material.authorities)

    def post(self, body: bytes, path: str = "/validate") -> tuple[int, Any]:
        """Return status and JSON (or text) of the answer."""
        connection = self.connect()
        try:
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        is_json = answer.headers["Content-Type"] == "application/json"
        return answer.status, json.loads(text) if is_json else text.decode()


def connection(port: int, authorities: bytes) -> http.client.HTTPConnection:
    """Return a connection to a port of this machine that is trusted as the Service."""
    context = ssl.create_default_context(cadata=authorities.decode())
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    raw = socket.create_connection(("127.0.0.1", port), timeout=5)
    try:
        connection.sock = context.wrap_socket(raw, server_hostname=NAMES[0])
    except BaseException:
        raw.close()
        raise
    return connection
