"""What a load consists of: datagrams, connections that stay, requests; each remembers what became of it.

Knows nothing of who asks: `load_process` does. Times are those of the monotonic clock, in seconds.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import random
import socket
import time
from array import array
from collections.abc import Callable

from devtools.traffic.load import Stream
from devtools.traffic.load_loop import NOTED, Loop

MESSAGE = b"m" * 32
RECONNECT = 0.1  # seconds until a broken connection is made anew
REQUEST_TIMEOUT = 10.0
HUNG = 20.0  # seconds without an answer after which a client gives a connection up: it counts as broken


class Udp:
    """Numbered datagrams at a steady rate."""

    def __init__(self, loop: Loop, stream: Stream) -> None:
        self._loop, self._stream = loop, stream
        self._socket = loop.open(stream.namespace, socket.SOCK_DGRAM)
        self._socket.connect((stream.address, stream.port))
        self._first = 0  # number of the first datagram that is remembered
        self._sent = array("d")
        self._answers = bytearray()
        self._arrivals = array("d")
        self._due = time.monotonic() + stream.interval * random.random()  # noqa: S311  # no secret
        loop.watch(self._socket.fileno(), self._receive)
        loop.at(self._due, self._send)

    @property
    def ready(self) -> bool:
        """Whether an answer has come."""
        return len(self._arrivals) > 0

    def _send(self) -> None:
        now = time.monotonic()
        while self._due <= now:
            self._sent.append(time.monotonic())
            self._answers.append(0)
            with contextlib.suppress(OSError):  # counted as lost: an ICMP error of an earlier one, no buffer
                self._socket.send((self._first + len(self._sent) - 1).to_bytes(8, "big"))
            self._due += self._stream.interval
        self._loop.at(self._due, self._send)

    def _receive(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                number = int.from_bytes(self._socket.recv(2048)[-8:], "big") - self._first
                if 0 <= number < len(self._answers):
                    self._answers[number] = min(self._answers[number] + 1, 255)
                    self._arrivals.append(time.monotonic())

    def report(self, since: float, until: float) -> tuple[int, int, int, float]:
        """Return how many were sent in the span, lost, answered more than once, and the longest silence."""
        first, last = bisect.bisect_left(self._sent, since), bisect.bisect_right(self._sent, until)
        answers = self._answers[first:last]
        unanswered = answers.count(0)
        begin = max(0, bisect.bisect_left(self._arrivals, since) - 1)
        end = bisect.bisect_right(self._arrivals, until) + 1
        moments = list(self._arrivals[begin:end])
        if not moments or moments[-1] < until:
            moments.append(until)
        silence = max((b - a for a, b in itertools.pairwise(moments)), default=until - since)
        return last - first, unanswered, sum(answers) - len(answers) + unanswered, silence

    def drop_before(self, moment: float) -> None:
        """Forget what was sent before a moment, and answers but the last before it."""
        old = bisect.bisect_left(self._sent, moment)
        self._first += old
        del self._sent[:old]
        del self._answers[:old]
        del self._arrivals[: max(0, bisect.bisect_left(self._arrivals, moment) - 1)]


class Connection:
    """A TCP connection: first its server's line, then messages to and fro. `ended` is told why it ended."""

    def __init__(self, loop: Loop, stream: Stream, ended: Callable[[str], None]) -> None:
        self._loop, self._ended = loop, ended
        self.socket = loop.open(stream.namespace, socket.SOCK_STREAM)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.heard: Callable[[], None] | None = None  # called when the whole message is back
        self.greeted: Callable[[], None] | None = None
        self._hello = True
        self._missing = 0
        self.open = True
        self.begun = time.monotonic()
        self.socket.connect_ex((stream.address, stream.port))
        loop.watch(self.socket.fileno(), self._receive)

    def send(self) -> None:
        """Send a message."""
        if not self.open:
            return
        try:
            self._missing += self.socket.send(MESSAGE)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(error.strerror or str(error))

    def _receive(self) -> None:
        try:
            data = self.socket.recv(65536)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(error.strerror or str(error))
            return
        if not data:
            self._end("closed by the peer")
            return
        if self._hello:
            _, newline, data = data.partition(b"\n")
            if newline:
                self._hello = False
                if self.greeted:
                    self.greeted()
        if data and self.open:
            self._missing -= len(data)
            if self._missing <= 0 and self.heard:
                self.heard()

    def _end(self, reason: str) -> None:
        self.close()
        self._ended(reason)

    def close(self) -> None:
        """Close it without a word."""
        if self.open:
            self.open = False
            self._loop.forget(self.socket.fileno())
            self.socket.close()


class Tcp:
    """One of a stream's connections that stay; made anew when it breaks."""

    def __init__(self, loop: Loop, stream: Stream) -> None:
        self._loop, self._stream = loop, stream
        self.ready = False
        self._last = self._asked = time.monotonic()
        self._gaps = array("d"), array("d")  # silences that are over: begins and ends
        self.sent = array("d")
        self.breaks: list[tuple[float, str]] = []
        self._connect()
        self._look()

    def _connect(self) -> None:
        self._connection = Connection(self._loop, self._stream, self._broken)
        # Connections that began together do not go on in step.
        first = self._stream.interval * random.random()  # noqa: S311  # no secret
        self._connection.greeted = lambda: self._loop.at(time.monotonic() + first, self._ask)
        self._connection.heard = self._heard

    def _look(self) -> None:
        """Give up what hangs."""
        now = time.monotonic()
        if self.ready and self._connection.open and now - max(self._last, self._connection.begun) > HUNG:
            self._connection.close()
            self._broken(f"no answer for {HUNG:g} s")
        self._loop.at(now + 1.0, self._look)

    def _broken(self, reason: str) -> None:
        now = time.monotonic()
        self.breaks.append((now, reason))
        self._loop.at(now + RECONNECT, self._connect)

    def _ask(self) -> None:
        if not self.ready:
            self.ready, self._last = True, time.monotonic()
        self._asked = time.monotonic()
        self.sent.append(self._asked)
        self._connection.send()

    def _heard(self) -> None:
        now = time.monotonic()
        if now - self._last > NOTED:
            self._gaps[0].append(self._last)
            self._gaps[1].append(now)
        self._last = now
        self._loop.at(max(now, self._asked + self._stream.interval), self._ask)

    def silence(self, since: float, until: float) -> float:
        """Return the longest time without an answer that touches the span."""
        begins, ends = self._gaps
        first, last = bisect.bisect_left(ends, since), bisect.bisect_right(begins, until)
        gaps = [b - a for a, b in zip(begins[first:last], ends[first:last], strict=True)]
        if self._last <= until:
            gaps.append(until - self._last)
        return max([*gaps, self._stream.interval])

    def drop_before(self, moment: float) -> None:
        """Forget what was over before a moment."""
        old = bisect.bisect_left(self._gaps[1], moment)
        for moments in self._gaps:
            del moments[:old]
        del self.sent[: bisect.bisect_left(self.sent, moment)]
        self.breaks = [entry for entry in self.breaks if entry[0] >= moment]


class Http:
    """A request loop."""

    def __init__(self, loop: Loop, stream: Stream) -> None:
        self._loop, self._stream = loop, stream
        self.done: list[tuple[float, float, str]] = []  # begin, end, "" or what went wrong
        self._request()

    @property
    def ready(self) -> bool:
        """Whether a request is done."""
        return bool(self.done)

    def _request(self) -> None:
        self.begin = time.monotonic()
        connection = Connection(self._loop, self._stream, lambda reason: self._finish(connection, reason))
        connection.greeted = connection.send
        connection.heard = lambda: self._finish(connection, "")
        self._loop.at(
            self.begin + REQUEST_TIMEOUT,
            lambda: self._finish(connection, "no answer") if connection.open else None,
        )
        self._current = connection

    def _finish(self, one: Connection, reason: str) -> None:
        one.close()
        if one is not self._current:
            return
        now = time.monotonic()
        self.done.append((self.begin, now, reason))
        self._loop.at(max(now, self.begin + self._stream.interval), self._request)

    def drop_before(self, moment: float) -> None:
        """Forget requests that were done before a moment."""
        self.done = [entry for entry in self.done if entry[1] >= moment]
