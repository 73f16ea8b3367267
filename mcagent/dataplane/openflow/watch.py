"""Notices what happens to our flows and groups without our doing: by somebody's hand, or by a restart.

Owns one OpenFlow connection to a bridge's management socket. ovs-vswitchd reports on it every flow and group that
is changed (flow monitor and request forward of OpenFlow 1.4 and later; "monitor" in ovs-ofctl(8)); the kernel ends
it the moment the daemon dies. While nothing changes it costs nothing: no process, no polling, however many flows
there are. Packets that flows hand to the agent come by it, too.

Our own changes go by other connections, so they are reported as well. They are counted: as many as were made are
expected, one more or less is somebody else's.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable

from mcagent.dataplane.openflow import connection as openflow
from mcagent.dataplane.openflow.connection import TIMEOUT, OpenFlowConnection
from mcagent.dataplane.openflow.observe import is_ours
from mcagent.supervised import Supervised

RETRY = 0.05  # seconds between attempts to connect while there is no bridge
QUIET = 2.0  # seconds between two reports of changed flows: reading all of them may take a good part of a second

Action = Callable[[], None]
OnPacket = Callable[[int, bytes], None]  # the port by which it came in, and the frame


class BridgeWatch:
    """Calls `on_change`, in its own thread, when somebody changed flows or groups; first when the bridge answers.

    `on_restart` is called there whenever the bridge went away or came back, and `on_idle` after each of our own
    bundles and when the bridge came (back). `on_packet` takes what flows hand to the agent.
    """

    def __init__(
        self, path: str, on_change: Action, on_restart: Action, on_idle: Action, on_packet: OnPacket
    ) -> None:
        self._path = path
        self._on_change, self._on_restart, self._on_idle = on_change, on_restart, on_idle
        self._on_packet = on_packet
        self._on_answer = on_change
        self._closed = threading.Event()
        self._due: float | None = None  # when `on_change` is to be called for changed flows
        self._reported = 0.0
        self._lock = threading.Lock()  # of all below
        self._connection: OpenFlowConnection | None = None  # on which changes are reported
        self._applying = 0
        self._echoes = 0  # requests after our bundles that are not answered
        self._missing = 0  # changes of ours that are not reported; below 0: reported, and not known to be ours
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
            self._missing += changes
            if self._connection is not None:
                # What is reported before the answer to this was done before this.
                self._echoes += 1
                with contextlib.suppress(OSError):  # its thread will see
                    self._connection.sendall(openflow.message(openflow.ECHO_REQUEST))

    def send(self, messages: bytes) -> bool:
        """Send messages that are answered by nothing but errors, which nobody hears. False: not connected."""
        with self._lock:
            if self._connection is None:
                return False
            try:
                self._connection.sendall(messages)
            except OSError:  # its thread will see
                return False
        return True

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        with self._lock:
            if self._connection is not None:
                with contextlib.suppress(OSError):
                    self._connection.shutdown(socket.SHUT_RDWR)
        self._thread.join(TIMEOUT)

    def _run(self) -> None:
        while not self._closed.is_set():
            with contextlib.suppress(OSError), OpenFlowConnection(self._path) as connection:
                self._follow(connection)
            self._closed.wait(RETRY)

    def _follow(self, connection: OpenFlowConnection) -> None:
        """Report what comes by a connection until it ends."""
        connection.sendall(openflow.subscribe() + openflow.message(openflow.ECHO_REQUEST))
        while connection.receive().kind != openflow.ECHO_REPLY:  # then all that changes from now on is reported
            pass
        connection.settimeout(None)
        with self._lock:
            if self._closed.is_set():
                return
            self._connection, self._due = connection, None
            self._echoes = self._missing = 0
        self._on_answer()
        self._on_answer = self._on_restart
        try:
            self._on_idle()
            while not self._closed.is_set():
                left = None if self._due is None else self._due - time.monotonic()
                if left is None or (left > 0 and select.select([connection], [], [], left)[0]):
                    self._take(connection.receive())
                elif left <= 0:
                    self._due, self._reported = None, time.monotonic()
                    self._on_change()
        finally:
            with self._lock:
                self._connection = None
            if not self._closed.is_set():
                self._on_restart()

    def _take(self, report: openflow.Message) -> None:
        if report.kind == openflow.PACKET_IN:
            self._on_packet(*openflow.packet_in(report))
            return
        with self._lock:
            if report.kind == openflow.ECHO_REPLY:
                self._echoes -= 1
            elif report.kind == openflow.REQUESTFORWARD:
                self._missing -= 1
            elif report.kind == openflow.MULTIPART_REPLY:
                for event, cookie in openflow.flow_updates(report):
                    if event in (openflow.PAUSED, openflow.RESUMED):  # not all changes are reported
                        self._suspect()
                    elif event != openflow.REMOVED or is_ours(cookie):  # a new one may have taken ours' place
                        self._missing -= 1
            if self._applying or self._echoes:
                return
            if self._missing:
                self._suspect()
            self._missing = 0
        if report.kind == openflow.ECHO_REPLY:
            self._on_idle()

    def _suspect(self) -> None:
        if self._due is None:
            self._due = max(time.monotonic(), self._reported + QUIET)
