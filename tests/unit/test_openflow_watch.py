"""The watch of a bridge, in whose place a fake switch answers."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from devtools.waiting import wait_until
from mcagent.dataplane.openflow import connection as openflow
from mcagent.dataplane.openflow.watch import BridgeWatch

FRAME = openflow.packet_out(1, bytes(100))
PATIENCE = 10.0  # seconds


class SilentSwitch:
    """Answers until a watch has subscribed; reads nothing then, as an ovs-vswitchd that hangs."""

    def __init__(self, path: Path) -> None:
        self.path = str(path / "br.mgmt")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen()
        self._connections: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._connections.append(connection)
                connection.sendall(openflow.message(openflow.HELLO) + openflow.message(openflow.ECHO_REPLY))

    def close(self) -> None:
        """End: threads that wait go on."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE)
        self._listener.close()
        for connection in self._connections:
            connection.close()


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[BridgeWatch]:
    """Give a watch that has subscribed to a switch."""
    switch, subscribed = SilentSwitch(tmp_path), threading.Event()
    watch = BridgeWatch(
        switch.path,
        subscribed.set,
        lambda: None,
        lambda: None,
        on_packet=lambda *_: None,
        on_ended=lambda _: None,
    )
    assert subscribed.wait(PATIENCE)
    yield watch
    switch.close()
    watch.close()


def test_a_switch_that_hangs_blocks_no_sender(watch: BridgeWatch) -> None:
    """Probes that it does not read are given up, and the control loop can begin a bundle."""
    given_up, begun = threading.Event(), threading.Event()

    def send_probes() -> None:
        while watch.send(FRAME):
            pass
        given_up.set()
        watch.begin()
        begun.set()

    threading.Thread(target=send_probes, daemon=True).start()
    assert given_up.wait(PATIENCE)
    assert begun.wait(PATIENCE)


def test_a_bundle_after_which_the_switch_hangs_lets_the_watch_begin_anew(watch: BridgeWatch) -> None:
    """Without the answer that follows a bundle, changes by other programs would not be reported any more."""
    while watch.send(FRAME):
        pass
    former = watch._connection
    watch.begin()
    watch.end(1)
    wait_until(lambda: watch._connection not in (None, former), "another connection")
