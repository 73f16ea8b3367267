"""Notices that ovs-vswitchd was restarted: its flows are gone then, though the database is unchanged.

Owns one idle OpenFlow connection to a bridge's management socket; the kernel ends it the moment the daemon
dies. Costs no process and no polling while the daemon lives.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable

RETRY = 0.05  # seconds between attempts to connect while there is no bridge
HELLO_TIMEOUT = 5.0  # seconds for the first message of ovs-vswitchd
_HEADER = struct.Struct("!BBHI")  # ofp_header: version, type, length, xid (OpenFlow 1.5, section 7.1.1)
_OPENFLOW15 = 6
_HELLO, _ECHO_REQUEST, _ECHO_REPLY = 0, 2, 3


class BridgeWatch:
    """Calls `on_restart`, in its own thread, at every change between "the bridge answers" and "it does not".

    At its first answer `on_change` is called instead.
    """

    def __init__(self, path: str, on_change: Callable[[], None], on_restart: Callable[[], None]) -> None:
        self._path = path
        self._tell = on_change
        self._on_restart = on_restart
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, name="openflow", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        with self._lock:
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)
        if self._thread is not threading.current_thread():
            self._thread.join(HELLO_TIMEOUT)

    def _run(self) -> None:
        while not self._closed.is_set():
            with contextlib.suppress(OSError):
                self._connection()
            self._closed.wait(RETRY)

    def _connection(self) -> None:
        """Hold one connection until it ends."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
            with self._lock:
                if self._closed.is_set():
                    return
                self._socket = connection
            connection.settimeout(HELLO_TIMEOUT)
            connection.connect(self._path)
            connection.sendall(_HEADER.pack(_OPENFLOW15, _HELLO, _HEADER.size, 1))
            kind, _, _ = _receive(connection)
            if kind != _HELLO:
                raise OSError("no OpenFlow switch")
            connection.settimeout(None)
            self._tell()
            self._tell = self._on_restart
            try:
                while True:
                    kind, xid, body = _receive(connection)
                    if kind == _ECHO_REQUEST:
                        size = _HEADER.size + len(body)
                        connection.sendall(_HEADER.pack(_OPENFLOW15, _ECHO_REPLY, size, xid) + body)
            finally:
                if not self._closed.is_set():
                    self._tell()


def _receive(connection: socket.socket) -> tuple[int, int, bytes]:
    """Return type, transaction number and body of the next message; OSError when the connection ended."""
    _, kind, length, xid = _HEADER.unpack(_exactly(connection, _HEADER.size))
    return kind, xid, _exactly(connection, max(0, length - _HEADER.size))


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise OSError("connection ended")
        data += part
    return data
