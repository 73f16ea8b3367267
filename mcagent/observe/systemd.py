"""systemd's notify protocol (sd_notify(3)): datagrams to the socket that NOTIFY_SOCKET names."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping


class Notifier:
    """Notifies systemd of the state of the service; does nothing without systemd."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        variables = os.environ if environ is None else environ
        name = variables.get("NOTIFY_SOCKET", "")
        self._address = "\0" + name[1:] if name.startswith("@") else name  # "@" means an abstract socket
        self._ready = False
        self._status = ""
        # The watchdog is for one process: a child must not keep a hung parent alive.
        own = variables.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self._watchdog = own and variables.get("WATCHDOG_USEC", "").isdigit()

    def turn(self, *, ready: bool, status: str) -> None:
        """Send the watchdog's keep-alive, a changed status and, once, readiness."""
        lines = ["WATCHDOG=1"] if self._watchdog else []
        if ready and not self._ready:
            self._ready = True
            lines.append("READY=1")
        if status != self._status:
            self._status = status
            lines.append(f"STATUS={status}")
        self._send(lines)

    def stopping(self) -> None:
        """Notify that the process is about to end."""
        self._send(["STOPPING=1"])

    def _send(self, lines: list[str]) -> None:
        if not self._address or not lines:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
            try:
                client.sendto("\n".join(lines).encode(), self._address)
            except OSError:  # systemd restarts its socket when it re-executes; the next turn sends it again
                self._status = ""
