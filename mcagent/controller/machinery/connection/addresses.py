"""The addresses of the leader's API server, resolved in a thread of their own: a resolver may be slow."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from mcagent.model.net import parse_address
from mcagent.supervised import Supervised

log = logging.getLogger(__name__)

PERIOD = 60.0  # seconds between two look-ups of a name
MOST = 64  # addresses of one name that are kept


class LeaderAddresses:
    """What one server's name leads to. `changed` is called in another thread when that is news."""

    def __init__(self, changed: Callable[[], None], period: float = PERIOD) -> None:
        self._changed, self._period = changed, period
        self._lock = threading.Lock()
        self._server, self._found = "", tuple[str, ...]()
        self._next = 0.0
        self._running = False

    def of(self, server: str) -> tuple[str, ...]:
        """Return the known addresses of a URL's host, sorted; the last ones if resolving fails. Never waits."""
        host = urlsplit(server).hostname or ""
        try:
            return (str(parse_address(host)),)
        except ValueError:
            pass
        with self._lock:
            if server != self._server:
                self._server, self._found, self._next = server, (), 0.0
            if time.monotonic() >= self._next and not self._running:
                self._next, self._running = time.monotonic() + self._period, True
                Supervised(self._look_up, args=(server, host), name="resolve").start()
            return self._found

    def _look_up(self, server: str, host: str) -> None:
        addresses: tuple[str, ...] | None = None
        try:
            answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            addresses = tuple(sorted({str(answer[4][0]) for answer in answers})[:MOST])
        except (OSError, UnicodeError) as err:
            log.debug("%s: %s", host, err)
        with self._lock:
            self._running = False
            if addresses is None or server != self._server or addresses == self._found:
                return
            self._found = addresses
        self._changed()
