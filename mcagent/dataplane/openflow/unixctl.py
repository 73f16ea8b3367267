"""Commands of ovs-vswitchd's control socket, as ovs-appctl(8) sends them: JSON-RPC, no process, no shell.

Source: lib/unixctl.c and python/ovs/unixctl/client.py of Open vSwitch.
"""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

from mcagent.model.errors import BackendError

TIMEOUT = 5.0  # seconds for the whole call
MAX_ANSWER = 16 * 1024 * 1024  # bytes: some 60,000 connections of conntrack
_DAEMON = "ovs-vswitchd"


def control_socket(directory: Path) -> Path:
    """Return the control socket of the ovs-vswitchd whose files are in a directory."""
    named = directory / f"{_DAEMON}.ctl"
    try:
        pid = (directory / f"{_DAEMON}.pid").read_text().strip()
    except (OSError, ValueError):  # no such file, or not text
        return named
    own = directory / f"{_DAEMON}.{pid}.ctl"
    return own if own.exists() else named


def call(directory: Path, command: str, *arguments: str) -> str:
    """Send a command and return its answer. Raises BackendError."""
    path, end, text = control_socket(directory), time.monotonic() + TIMEOUT, b""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as control:
            control.settimeout(TIMEOUT)
            control.connect(str(path))
            control.sendall(json.dumps({"method": command, "params": arguments, "id": 0}).encode())
            while not text.endswith(b"}") or (answer := _decoded(text)) is None:
                control.settimeout(max(0.01, end - time.monotonic()))
                text += (part := control.recv(65536))
                if not part or len(text) > MAX_ANSWER:
                    raise OSError("truncated answer")
    except OSError as error:
        raise BackendError("openflow", command, str(path), str(error)) from None
    if answer.get("error") is not None:
        raise BackendError("openflow", command, str(path), str(answer["error"]).strip()[:400])
    return str(answer.get("result"))


def _decoded(text: bytes) -> dict[str, object] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
