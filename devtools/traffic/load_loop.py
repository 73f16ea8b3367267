"""Sockets, timers and namespaces of the process that sends a load: one thread, one epoll.

Knows nothing of what is sent. Each socket belongs to the namespace that it was opened in; the thread itself stays
in the last one.
"""

from __future__ import annotations

import heapq
import itertools
import select
import socket
import time
from collections.abc import Callable
from typing import Protocol

from devtools.nodes import netns
from devtools.traffic.datagrams import roomy_socket

BATCH = 64  # timers between two looks at the sockets
NOTED = 0.03  # seconds: shorter silences and delays are not kept one by one


class Remembers(Protocol):
    """What keeps a history that can be cut."""

    def drop_before(self, moment: float) -> None:
        """Forget what was before a moment (monotonic)."""


class Loop:
    """Sockets, timers, and the namespace that the thread is in."""

    def __init__(self) -> None:
        self.epoll = select.epoll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()
        self._namespace = ""
        self._stalls: list[tuple[float, float]] = []

    def open(self, namespace: str, kind: socket.SocketKind) -> socket.socket:
        """Open a socket inside a namespace; the thread stays there until the next call."""
        if namespace != self._namespace:
            netns.enter(namespace)
            self._namespace = namespace
        sock = roomy_socket() if kind is socket.SOCK_DGRAM else socket.socket(socket.AF_INET, kind)
        sock.setblocking(False)
        return sock

    def watch(self, descriptor: int, handler: Callable[[], None], events: int = select.EPOLLIN) -> None:
        """Call the handler whenever there is something to read (or other `events`)."""
        registered = descriptor in self._handlers
        self._handlers[descriptor] = handler
        (self.epoll.modify if registered else self.epoll.register)(descriptor, events)

    def forget(self, descriptor: int) -> None:
        """Watch it no more."""
        if self._handlers.pop(descriptor, None) is not None:
            self.epoll.unregister(descriptor)

    def at(self, moment: float, function: Callable[[], None]) -> None:
        """Call a function once, at a moment or soon after."""
        heapq.heappush(self._timers, (moment, next(self._number), function))

    def turn(self) -> None:
        """Do what is due, then wait for sockets until the next timer."""
        now = time.monotonic()
        if self._timers and now - self._timers[0][0] > NOTED:
            self._stalls.append((self._timers[0][0], now))
        for _ in range(BATCH):
            if not self._timers or self._timers[0][0] > time.monotonic():
                break
            heapq.heappop(self._timers)[2]()
        timeout = max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else 1.0
        for descriptor, _ in self.epoll.poll(timeout):
            handler = self._handlers.get(descriptor)
            if handler is not None:
                handler()

    def stall(self, since: float, until: float) -> float:
        """Return by how much this process was late at most in a span: what the machine, not the network, did."""
        return max((b - a for a, b in self._stalls if b >= since and a <= until), default=0.0)

    def drop_before(self, moment: float) -> None:
        """Forget what was over before a moment."""
        self._stalls = [span for span in self._stalls if span[1] >= moment]
