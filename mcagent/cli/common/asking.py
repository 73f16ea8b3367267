"""Asks the agent of this Node, or of another one, for its /status."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mcagent.agent.config import Settings
from mcagent.model.errors import McagentError

TIMEOUT = 10.0  # seconds
_MAX_ANSWER = 64 * 1024 * 1024  # bytes


def ask_agent(settings: Settings, timeout: float = TIMEOUT) -> Mapping[str, Any]:
    """Return /status of this Node's agent. Raises McagentError when none answers.

    Where the pages ask others for a token, the agent's own Node has a Unix socket, which is root's.
    """
    if settings.status_socket is None:
        return ask(*settings.listen_address, timeout)
    return _ask(_UnixConnection(settings.status_socket, timeout), str(settings.status_socket))


def ask(host: str, port: int, timeout: float = TIMEOUT) -> Mapping[str, Any]:
    """Return /status of the agent that listens there in clear text. Raises McagentError when none answers."""
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"
    return _ask(http.client.HTTPConnection(host, port, timeout=timeout), f"{host}:{port}")


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _ask(connection: http.client.HTTPConnection, where: str) -> Mapping[str, Any]:
    try:
        connection.request("GET", "/status")
        text = connection.getresponse().read(_MAX_ANSWER + 1)
        if len(text) > _MAX_ANSWER:
            raise ValueError(f"more than {_MAX_ANSWER} bytes")
        answer = json.loads(text)
    except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
        raise McagentError(f"no agent answers at {where}: {error}") from None
    finally:
        connection.close()
    if not isinstance(answer, dict):
        raise McagentError(f"what answers at {where} is no agent")
    return answer
