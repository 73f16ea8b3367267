"""The process that sends a load: `python -m mcagent.lab.load_process`, spoken to by `mcagent.lab.load.Load`.

First line of standard input: a JSON list of streams. When all are under way one line comes back ("ready" as a JSON
object, or a string that says what is wrong). After that each line {"since", "until"} is answered by
{"streams", "stall"}; {"forget"} drops what was before that moment (the history of an hour would make this process
late) and is not answered. Ends when its input does. One thread, one epoll; sockets belong to the Pods' namespaces.
"""

from __future__ import annotations

import bisect
import contextlib
import heapq
import itertools
import json
import os
import random
import select
import socket
import sys
import time
from array import array
from collections.abc import Callable
from typing import Protocol

from mcagent.lab import netns
from mcagent.lab.load import READY_TIMEOUT, Kind, Stream
from mcagent.model.errors import LabError

MESSAGE = b"m" * 32
RECONNECT = 0.1  # seconds until a broken connection is made anew
REQUEST_TIMEOUT = 10.0
HUNG = 20.0  # seconds without an answer after which a client gives a connection up: it counts as broken
BATCH = 64  # timers between two looks at the sockets
NOTED = 0.03  # seconds: shorter silences are not kept one by one
Json = dict[str, object]


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
        one = socket.socket(socket.AF_INET, kind)
        one.setblocking(False)
        return one

    def watch(self, descriptor: int, handler: Callable[[], None], events: int = select.EPOLLIN) -> None:
        """Call the handler whenever there is something to read (or other `events`)."""
        known = descriptor in self._handlers
        self._handlers[descriptor] = handler
        (self.epoll.modify if known else self.epoll.register)(descriptor, events)

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
        lost = answers.count(0)
        begin = max(0, bisect.bisect_left(self._arrivals, since) - 1)
        end = bisect.bisect_right(self._arrivals, until) + 1
        moments = list(self._arrivals[begin:end])
        if not moments or moments[-1] < until:
            moments.append(until)
        silence = max((b - a for a, b in itertools.pairwise(moments)), default=until - since)
        return last - first, lost, sum(answers) - len(answers) + lost, silence

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
        self.breaks = [one for one in self.breaks if one[0] >= moment]


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
        one = Connection(self._loop, self._stream, lambda reason: self._finish(one, reason))
        one.greeted = one.send
        one.heard = lambda: self._finish(one, "")
        self._loop.at(self.begin + REQUEST_TIMEOUT, lambda: self._finish(one, "no answer") if one.open else None)
        self._current = one

    def _finish(self, one: Connection, reason: str) -> None:
        one.close()
        if one is not self._current:
            return
        now = time.monotonic()
        self.done.append((self.begin, now, reason))
        self._loop.at(max(now, self.begin + self._stream.interval), self._request)

    def drop_before(self, moment: float) -> None:
        """Forget requests that were done before a moment."""
        self.done = [one for one in self.done if one[1] >= moment]


class Group:
    """All of a stream."""

    def __init__(self, loop: Loop, stream: Stream) -> None:
        self.stream = stream
        number = range(stream.count)
        self.udp = [Udp(loop, stream) for _ in number] if stream.kind is Kind.UDP else []
        self.tcp = [Tcp(loop, stream) for _ in number] if stream.kind is Kind.TCP else []
        self.http = [Http(loop, stream) for _ in number] if stream.kind is Kind.HTTP else []

    @property
    def ready(self) -> bool:
        """Whether every part of it has had an answer."""
        return (
            all(one.ready for one in self.udp)
            and all(one.ready for one in self.tcp)
            and all(one.ready for one in self.http)
        )

    def drop_before(self, moment: float) -> None:
        """Forget what was before a moment."""
        parts: list[Remembers] = [*self.udp, *self.tcp, *self.http]
        for one in parts:
            one.drop_before(moment)

    def report(self, since: float, until: float) -> Json:
        """Return the outcome of a span."""
        named: Json = {"kind": str(self.stream.kind), "name": self.stream.name}
        if self.udp:
            return named | _sum([one.report(since, until) for one in self.udp])
        if self.tcp:
            breaks = [why for one in self.tcp for when, why in one.breaks if since <= when <= until]
            moments = [bisect.bisect_right(t.sent, until) - bisect.bisect_left(t.sent, since) for t in self.tcp]
            silences = [one.silence(since, until) for one in self.tcp]
            return named | _counts(sum(moments), breaks, silences)
        done = [entry for one in self.http for entry in one.done if entry[1] >= since and entry[0] <= until]
        waiting = [until - one.begin for one in self.http if since <= one.begin <= until]
        failed = [why for _, _, why in done if why]
        return named | _counts(len(done), failed, [max([b - a for a, b, _ in done] + waiting, default=0.0)])


def _sum(parts: list[tuple[int, int, int, float]]) -> Json:
    sent, lost, duplicates, silences = zip(*parts, strict=True)
    counts = {"sent": sum(sent), "lost": sum(lost), "duplicates": sum(duplicates)}
    return {**counts, "broken": 0, "reasons": [], "silences": list(silences)}


def _counts(sent: int, reasons: list[str], silences: list[float]) -> Json:
    found: Json = {"sent": sent, "lost": 0, "duplicates": 0, "broken": len(reasons)}
    return found | {"reasons": sorted(set(reasons)), "silences": silences}


def _answer(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def main() -> int:
    """Send until the input ends."""
    streams = [Stream(**{**raw, "kind": Kind(raw["kind"])}) for raw in json.loads(sys.stdin.buffer.readline())]
    loop = Loop()
    try:
        groups = [Group(loop, stream) for stream in streams]
    except (OSError, LabError) as error:
        _answer(f"cannot open sockets: {error}")
        return 1
    deadline = time.monotonic() + READY_TIMEOUT * 0.8
    while not all(group.ready for group in groups):
        loop.turn()
        if time.monotonic() > deadline:
            _answer("not answered: " + ", ".join(group.stream.name for group in groups if not group.ready))
            return 1
    _answer({"ready": len(groups)})
    buffer = bytearray()
    ended = False

    def hear() -> None:
        nonlocal ended
        data = os.read(0, 65536)
        ended = not data
        buffer.extend(data)
        while b"\n" in buffer:
            line, _, rest = bytes(buffer).partition(b"\n")
            buffer[:] = rest
            asked = json.loads(line)
            if "forget" in asked:
                parts: list[Remembers] = [loop, *groups]
                for part in parts:
                    part.drop_before(asked["forget"])
                continue
            since, until = asked["since"], asked["until"]
            streams = [group.report(since, until) for group in groups]
            _answer({"streams": streams, "stall": loop.stall(since, until)})

    loop.watch(0, hear)
    while not ended:
        loop.turn()
    return 0


if __name__ == "__main__":
    sys.exit(main())
