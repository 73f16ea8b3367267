"""The server of /healthz and /readyz: one thread, no waiting for anybody, so that nothing can occupy it.

A connection is read as it comes, answered with a few bytes that its socket has room for, and closed. Off the
loopback only the status is told: why something is not ready names objects and servers, which is nobody else's
matter.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field

from mcagent.http.listening import bound, oldest_of_most, source_of
from mcagent.http.request import BadRequestError, parse_head
from mcagent.http.server import Page, Pages, answer_of, encoded
from mcagent.supervised import Supervised

log = logging.getLogger(__name__)

PATHS = ("/healthz", "/livez", "/readyz")
SLOTS = 64
TIME = 3.0  # seconds for a whole request
MAX_HEAD = 4096  # bytes
_LOOK = 0.25


@dataclass(slots=True, eq=False, kw_only=True)
class _Asking:
    """A connection that has not sent a whole request yet."""

    stream: socket.socket
    source: str
    since: float
    received: bytearray = field(default_factory=bytearray)


class HealthServer:
    """Serves those of `pages` that tell of health, until closed. `terse`: their status only."""

    def __init__(self, address: tuple[str, int], pages: Pages, *, terse: bool) -> None:
        """Listen. Raises OSError when the address cannot be had."""
        self._pages = {path: pages[path] for path in PATHS if path in pages}
        self._terse = terse
        self._asking: set[_Asking] = set()
        self._listening = bound(address)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listening, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._closing = threading.Event()
        self._thread = Supervised(self._run, until=self._closing, name="health")
        self._thread.start()

    @property
    def port(self) -> int:
        """The port listened on; of interest when 0 was asked for."""
        return int(self._listening.getsockname()[1])

    def close(self) -> None:
        """Stop listening."""
        self._closing.set()
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        for one in tuple(self._asking):
            self._close(one)
        self._selector.close()
        self._listening.close()
        os.close(self._wake)

    def _run(self) -> None:
        while not self._closing.is_set():
            events = self._selector.select(_LOOK if self._asking else None)
            for key, _ in events:
                if isinstance(key.data, _Asking):
                    if key.data in self._asking:  # else it has given way in this very turn
                        self._read(key.data)
                elif key.fileobj is self._listening:
                    self._accept()
            late = time.monotonic() - TIME
            for one in [one for one in self._asking if one.since <= late]:
                self._close(one)

    def _accept(self) -> None:
        try:
            raw, peer = self._listening.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError as error:  # no file descriptor is left: not in a tight loop
            log.warning("health: a connection cannot be accepted: %s", error)
            self._make_room()
            time.sleep(_LOOK)
            return
        if len(self._asking) >= SLOTS:
            self._make_room()
        raw.setblocking(False)
        one = _Asking(stream=raw, source=source_of(peer), since=time.monotonic())
        self._asking.add(one)
        self._selector.register(raw, selectors.EVENT_READ, one)

    def _make_room(self) -> None:
        if (victim := oldest_of_most(self._asking)) is not None:
            self._close(victim)

    def _read(self, one: _Asking) -> None:
        try:
            data = one.stream.recv(MAX_HEAD)
            one.received += data
            end = one.received.find(b"\r\n\r\n")
            if end < 0 and data and len(one.received) <= MAX_HEAD:
                return
            if end >= 0:
                one.stream.send(self._answer(bytes(one.received[:end])))  # a new socket has room for it
            elif data:
                one.stream.send(encoded(Page(body="the head is too large\n", status=431)))
        except BlockingIOError:
            return
        except OSError as error:
            log.debug("health: a connection of %s broke: %s", one.source, error)
        self._close(one)

    def _answer(self, text: bytes) -> bytes:
        try:
            head = parse_head(text)
        except BadRequestError as error:
            return encoded(Page(body=f"{error}\n", status=error.status))
        page = self._pages.get(head.path)
        if head.method not in ("GET", "HEAD"):
            return encoded(Page(body="only GET and HEAD\n", status=501))
        if page is None:
            return encoded(Page(body="not found\n", status=404))
        found = answer_of(page)
        if self._terse:
            good = found.status == 200
            found = Page(body="ok\n" if good else "not ok: see /status or the log\n", status=found.status)
        return encoded(found, body=head.method != "HEAD")

    def _close(self, one: _Asking) -> None:
        self._asking.discard(one)
        with suppress(KeyError, ValueError):
            self._selector.unregister(one.stream)
        one.stream.close()
