"""The monitor of changes in the kernel, whose sockets cannot be opened at first."""

from __future__ import annotations

import errno
import os
import socket
import threading

import pytest

from mcagent.dataplane.netlink import watch
from mcagent.dataplane.netlink.watch import NetlinkMonitor

PATIENCE = 10.0  # seconds


def test_a_monitor_that_cannot_open_its_sockets_tries_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """For lack of file descriptors, or as devices change faster than they are read; then all is read anew."""
    attempts, woken = list[int](), threading.Event()
    events, kernel = socket.socketpair()

    def open_events(protocol: int, groups: int) -> socket.socket:
        assert (protocol, groups) == (socket.NETLINK_ROUTE, watch.RTNETLINK_GROUPS)
        attempts.append(protocol)
        if len(attempts) < 4:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return events

    monkeypatch.setattr(watch, "open_events", open_events)
    monkeypatch.setattr(watch, "RETRY", 0.01)
    monkeypatch.setattr(NetlinkMonitor, "_read_devices", lambda _: None)
    monitor = NetlinkMonitor(woken.set, route_tables=(1,), route_protocol=111, devices=("mc-gw0",))
    try:
        monitor.start()
        assert woken.wait(PATIENCE)
        (message,) = caplog.messages
        assert "Too many open files" in message
    finally:
        monitor.stop()
        kernel.close()
    assert (len(attempts), events.fileno()) == (4, -1)
