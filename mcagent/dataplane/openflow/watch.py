"""Notices what happens to our flows and groups without our doing: by somebody's hand, or by a restart.

Owns one OpenFlow connection to a bridge's management socket. ovs-vswitchd reports on it every flow and group that
is changed (flow monitor and request forward of OpenFlow 1.4 and later; "monitor" in ovs-ofctl(8)); the kernel ends
it the moment the daemon dies. While nothing changes it costs nothing: no process, no polling, however many flows
there are.

Our own changes go by other connections, so they are reported as well. They are counted: as many as were made are
expected, one more or less is somebody else's.
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import threading
import time
from collections.abc import Callable

from mcagent.dataplane.openflow import messages
from mcagent.dataplane.openflow.connection import TIMEOUT, OpenFlowConnection
from mcagent.dataplane.openflow.messages import Message
from mcagent.supervised import Supervised

log = logging.getLogger(__name__)

RETRY = 0.05  # seconds between attempts to connect while there is no bridge
QUIET = 2.0  # seconds between two reports of changed flows: reading all of them may take a good part of a second


class BridgeWatch:
    """Calls `on_change`, in its own thread, when somebody changed flows or groups; first when the bridge answers.

    `on_restart` is called there whenever the bridge went away or came back, and `on_idle` after each of our own
    bundles and when the bridge came (back).
    """

    def __init__(
        self,
        path: str,
        on_change: Callable[[], None],
        on_restart: Callable[[], None],
        on_idle: Callable[[], None],
        *,
        ours: Callable[[int], bool],  # whether a flow of such a cookie is
    ) -> None:
        self._path = path
        self._on_change, self._on_restart, self._on_idle = on_change, on_restart, on_idle
        self._on_answer = on_change
        self._ours = ours
        self._closed = threading.Event()
        self._lock = threading.Lock()  # of all below
        self._socket: OpenFlowConnection | None = None
        self._connected = False
        self._counts = False  # changes are reported
        self._applying = 0
        self._expected = 0  # changes made by us since the last time that all were accounted for ...
        self._seen = 0  # ... and reported
        self._echo = 0  # number of the echo request after the last of our bundles; 0: none under way
        self._last_echo = 0
        self._due: float | None = None  # when `on_change` is to be called for changed flows
        self._reported = 0.0
        self._thread = Supervised(self._run, name="openflow", until=self._closed)
        self._thread.start()

    def begin(self) -> None:
        """A bundle of ours is about to be sent."""
        with self._lock:
            self._applying += 1

    def end(self, changes: int) -> None:
        """It has been answered: so many flows and groups were changed."""
        with self._lock:
            self._applying -= 1
            self._expected += changes
            if self._socket is None or not self._connected:
                return
            # What is reported before the answer to this was done before this.
            self._last_echo = self._last_echo % 0xFFFF + 1
            self._echo = self._last_echo
            with contextlib.suppress(OSError):  # its thread will see
                self._socket.sendall(messages.echo_request(self._echo))

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        with self._lock:
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)
        if self._thread is not threading.current_thread():
            self._thread.join(TIMEOUT)

    def _run(self) -> None:
        while not self._closed.is_set():
            with contextlib.suppress(OSError):
                self._connection()
            self._closed.wait(RETRY)

    def _connection(self) -> None:
        """Hold one connection until it ends."""
        with OpenFlowConnection(self._path) as connection:
            with self._lock:
                if self._closed.is_set():
                    return
                self._socket = connection
            counts = self._subscribe(connection)
            with self._lock:
                self._connected, self._counts = True, counts
                self._expected = self._seen = self._echo = 0
                self._due = None
            self._on_answer()
            self._on_answer = self._on_restart
            try:
                self._on_idle()
                while True:
                    if self._wait(connection):
                        self._take(connection.receive())
                    elif not self._closed.is_set():
                        self._on_change()
            finally:
                with self._lock:
                    self._connected = False
                if not self._closed.is_set():
                    self._on_restart()

    def _subscribe(self, connection: OpenFlowConnection) -> bool:
        """Subscribe to changes; return whether all that come from now on are reported. Raises OSError."""
        connection.sendall(messages.subscribe() + messages.echo_request(0))
        counts = True
        while (answer := connection.receive()).kind != messages.ECHO_REPLY:
            if answer.kind == messages.ERROR:
                counts = False
                log.warning("Open vSwitch does not report changed flows: they are found with the next full look")
        return counts

    def _wait(self, connection: OpenFlowConnection) -> bool:
        """Wait for a message; False if it is time to report a change first."""
        with self._lock:
            due = self._due
        timeout = None if due is None else max(0.0, due - time.monotonic())
        if due is not None and (timeout == 0.0 or not select.select([connection], [], [], timeout)[0]):
            with self._lock:
                self._due, self._reported = None, time.monotonic()
            return False
        connection.settimeout(None)
        return True

    def _take(self, message: Message) -> None:
        idle = False
        with self._lock:
            if message.kind == messages.ECHO_REPLY and message.xid == self._echo and not self._applying:
                if self._counts and self._seen != self._expected:
                    self._suspect()
                self._expected = self._seen = self._echo = 0
                idle = True
            else:
                self._count(message)
        if idle:
            self._on_idle()

    def _count(self, message: Message) -> None:
        if message.kind == messages.REQUESTFORWARD:
            self._seen += 1
        elif message.kind == messages.MULTIPART_REPLY:
            for change in messages.changes(message):
                if change.lost:
                    self._suspect()
                elif not change.removed or self._ours(change.cookie):  # a new one may have taken ours' place
                    self._seen += 1
        if self._seen and not self._applying and not self._echo:
            self._seen = 0
            self._suspect()

    def _suspect(self) -> None:
        if self._due is None:
            now = time.monotonic()
            self._due = max(now, self._reported + QUIET)
