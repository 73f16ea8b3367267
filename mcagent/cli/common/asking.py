"""Asks one agent for a page: that of this Node, or one at an address. Knows of no API server."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mcagent.agent.config import Settings
from mcagent.model.errors import McagentError
from mcagent.model.parsing.field import printable

TIMEOUT = 10.0  # seconds
MAX_ANSWER = 64 * 1024 * 1024  # bytes
_SHOWN = 400  # characters of a refusal
STATUS = "/status"
CONNECTIONS = "/connections"
ACTIONS = frozenset({"/doctor", "/trace/live"})  # pages that send packets
_HINTS = {
    401: "it rejects the token",
    404: "no such page: is it an older version?",
    405: "it requires another method: is it another version?",
    429: "too many requests",
}


def ask_agent(settings: Settings, page: str = STATUS, timeout: float = TIMEOUT) -> Mapping[str, Any]:
    """Return a page of this Node's agent. Raises McagentError when none answers, or it refuses.

    Where the pages ask others for a token, and for what acts, the agent's own Node has a Unix socket, which is
    root's.
    """
    if settings.requires_token or _acts(page):
        return ask_socket(settings.status_socket, page, timeout)
    return ask(*settings.listen_address, page, timeout)


def ask(host: str, port: int, page: str = STATUS, timeout: float = TIMEOUT) -> Mapping[str, Any]:
    """Return a page of the agent that listens there in clear text. Raises McagentError."""
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"
    return _ask(http.client.HTTPConnection(host, port, timeout=timeout), f"{host}:{port}", page)


def ask_tls(
    host: str, port: int, page: str, *, token: str, context: ssl.SSLContext, timeout: float = TIMEOUT
) -> Mapping[str, Any]:
    """Return a page of the agent that listens there with TLS, as the token's user. Raises McagentError."""
    connection = http.client.HTTPSConnection(host, port, timeout=timeout, context=context)
    return _ask(connection, f"{host}:{port}", page, {"Authorization": f"Bearer {token}"})


def ask_socket(path: Path, page: str = STATUS, timeout: float = TIMEOUT) -> Mapping[str, Any]:
    """Return a page of the agent whose Unix socket this is. Raises McagentError."""
    return _ask(UnixConnection(path, timeout), str(path), page)


def _acts(page: str) -> bool:
    return page.partition("?")[0] in ACTIONS


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _ask(
    connection: http.client.HTTPConnection, where: str, page: str, headers: Mapping[str, str] | None = None
) -> Mapping[str, Any]:
    try:
        connection.request("POST" if _acts(page) else "GET", page, headers=dict(headers or {}))
        answer = connection.getresponse()
        text = answer.read(MAX_ANSWER + 1)
        if len(text) > MAX_ANSWER:
            raise ValueError(f"more than {MAX_ANSWER} bytes")
        if answer.status != http.HTTPStatus.OK:
            message = printable(text.decode("utf-8", "replace").strip(), _SHOWN)
            hint = _HINTS.get(answer.status)
            if answer.status == http.HTTPStatus.FORBIDDEN and headers:
                role = "live-tracer" if page.startswith("/trace/live") else "metrics-reader"
                hint = f"the token's user lacks ClusterRole mcagent-{role}"
            raise McagentError(f"the agent at {where}: {hint or message or answer.status}")
        return document(text, where)
    except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or error
        raise McagentError(f"no agent answers at {where}: {reason}") from None
    finally:
        connection.close()


def document(text: str | bytes, where: str) -> Mapping[str, Any]:
    """Return the JSON object of a page. Raises McagentError, ValueError, RecursionError."""
    answer = json.loads(text)
    if not isinstance(answer, dict):
        raise McagentError(f"{where} does not answer as an agent")
    return answer
