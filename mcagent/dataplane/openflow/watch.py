"""Detects changes of the agent's flows and groups that the agent did not make, and restarts of ovs-vswitchd.

Owns one OpenFlow connection to a bridge's management socket. ovs-vswitchd reports on it every change of a flow or
group (flow monitor and request forward of OpenFlow 1.4 and later; "monitor" in ovs-ofctl(8)); the kernel closes it
when the daemon ends. Without changes it needs neither a process nor polling, for any number of flows. Packets that
flows send to the agent arrive on it, too.

The agent's own changes use other connections, so they are reported as well. They are counted: any difference
between the changes made and those reported is a change by another program.
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
from mcagent.model.dataplane.conntrack import OriginalTuple
from mcagent.supervised import Supervised

RETRY = 0.05  # seconds between attempts to connect while there is no bridge
QUIET = 2.0  # seconds between two reports of changed flows, because reading all of them may take much of a second

Action = Callable[[], None]
OnPacket = Callable[[int, bytes], None]  # input port and frame
OnConnection = Callable[[OriginalTuple], None]


class BridgeWatch:
    """Calls `on_change`, in its own thread, after changes by other programs; first when the bridge answers.

    In that thread it also calls `on_restart` when the bridge disappears or returns, `on_idle` after each bundle of
    the agent and when the bridge appears, `on_packet` for packets that flows send to the agent, and in its place
    `on_ended` for those of tracked connections.
    """

    def __init__(
        self,
        path: str,
        on_change: Action,
        on_restart: Action,
        on_idle: Action,
        *,
        on_packet: OnPacket,
        on_ended: OnConnection,
    ) -> None:
        self._path = path
        self._on_change, self._on_restart, self._on_idle = on_change, on_restart, on_idle
        self._on_packet, self._on_ended = on_packet, on_ended
        self._on_answer = on_change
        self._closed = threading.Event()
        self._due: float | None = None  # when `on_change` is to be called for changed flows
        self._reported = 0.0
        self._lock = threading.Lock()  # guards all below
        self._connection: OpenFlowConnection | None = None  # that reports changes
        self._applying = 0
        self._echoes = 0  # unanswered echo requests that follow the agent's bundles
        self._missing = 0  # own changes not yet reported; below 0: reported changes not yet counted as own
        self._thread = Supervised(self._run, name="openflow", until=self._closed)
        self._thread.start()

    def begin(self) -> None:
        """Call this before a bundle of the agent is sent."""
        with self._lock:
            self._applying += 1

    def end(self, changes: int) -> None:
        """Call this after the bundle was answered. `changes`: number of flows and groups that it changed."""
        with self._lock:
            self._applying -= 1
            self._missing += changes
            if self._connection is not None:
                # Changes reported before the answer to this request were made before it.
                self._echoes += 1
                if not self._transmit(self._connection, openflow.message(openflow.ECHO_REQUEST)):
                    self._abort(self._connection)

    def send(self, messages: bytes) -> bool:
        """Send messages that have no answer; return False without a connection, or if ovs-vswitchd reads none."""
        with self._lock:
            return self._connection is not None and self._transmit(self._connection, messages)

    def _transmit(self, connection: OpenFlowConnection, messages: bytes) -> bool:
        """Send without waiting, because callers hold the lock, which the control loop needs, too."""
        try:
            if connection.send(messages, socket.MSG_DONTWAIT) == len(messages):
                return True
        except OSError:  # there is no room, or the connection has ended, which its thread detects
            return False
        self._abort(connection)  # after a part of a message
        return False

    def _abort(self, connection: OpenFlowConnection) -> None:
        """End the connection; its thread opens another one."""
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        with self._lock:
            if self._connection is not None:
                self._abort(self._connection)
        self._thread.join(TIMEOUT)

    def _run(self) -> None:
        while not self._closed.is_set():
            with contextlib.suppress(OSError), OpenFlowConnection(self._path) as connection:
                self._follow(connection)
            self._closed.wait(RETRY)

    def _follow(self, connection: OpenFlowConnection) -> None:
        """Handle the messages of a connection until it ends."""
        connection.sendall(openflow.subscribe() + openflow.message(openflow.ECHO_REQUEST))
        while connection.receive().kind != openflow.ECHO_REPLY:  # all later changes are reported
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
                delay = None if self._due is None else self._due - time.monotonic()
                if delay is None or (delay > 0 and select.select([connection], [], [], delay)[0]):
                    self._take(connection.receive())
                elif delay <= 0:
                    self._due, self._reported = None, time.monotonic()
                    self._on_change()
        finally:
            with self._lock:
                self._connection = None
            if not self._closed.is_set():
                self._on_restart()

    def _take(self, report: openflow.Message) -> None:
        if report.kind == openflow.PACKET_IN:
            connection = openflow.packet_connection(report)
            if connection is not None:
                self._on_ended(connection)
            else:
                self._on_packet(*openflow.packet_in(report))
            return
        with self._lock:
            if report.kind == openflow.ECHO_REPLY:
                self._echoes -= 1
            elif report.kind == openflow.REQUESTFORWARD:
                self._missing -= 1
            elif report.kind == openflow.MULTIPART_REPLY:
                for event, cookie in openflow.flow_updates(report):
                    if event in (openflow.PAUSED, openflow.RESUMED):  # changes were not reported
                        self._suspect()
                    # A flow of another program may have replaced one of the agent's.
                    elif event != openflow.REMOVED or is_ours(cookie):
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
