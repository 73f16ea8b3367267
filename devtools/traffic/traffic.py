"""Clients in Pods: TCP and UDP exchanges, and a UDP stream whose losses are counted.

Sockets are opened inside a namespace and used from outside. The other side is `devtools.traffic.traffic_server`.

Who gives a `timeout` measures, or expects silence: one datagram is sent. Who gives none expects an answer: a busy
machine may lose or delay packets for PATIENCE seconds, in which they are sent again, by us (UDP) or by the kernel
(TCP). That is always the same connection, so a dead endpoint among others is not passed over by trying another. A
refusal or a reset is an answer and ends it at once.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import struct
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from types import TracebackType

from devtools.errors import LabError
from devtools.nodes import netns
from devtools.traffic.datagrams import LATE, roomy_socket

TIMEOUT = 3.0  # seconds for one answer, where it is measured how many come
PATIENCE = 15.0  # seconds for an answer that is expected, however busy the machine
RESEND = 1.0  # seconds without that answer until a datagram is sent again
SHOWN = 20  # missing datagrams named in a result


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer: who gave it, the source address it saw, and the round trip in seconds.

    `sent`: how many copies of the datagram were sent until then. Retransmissions of TCP are not counted.
    """

    pod: str
    source: str
    port: int
    rtt: float
    sent: int = 1


def _reply(line: bytes, rtt: float, sent: int = 1) -> Reply:
    reply = json.loads(line)
    return Reply(pod=reply["pod"], source=reply["source"], port=reply["port"], rtt=rtt, sent=sent)


class TcpClient:
    """A TCP connection from a namespace. Raises LabError when it cannot be made in time.

    `source_port`: 0 leaves the choice to the kernel.
    """

    def __init__(
        self, namespace: str, address: str, port: int, *, timeout: float | None = None, source_port: int = 0
    ) -> None:
        timeout = PATIENCE if timeout is None else timeout
        self._what = f"TCP from {namespace} to {address}:{port}"
        begin = time.monotonic()

        def connect() -> socket.socket:
            source = ("", source_port) if source_port else None
            return socket.create_connection((address, port), timeout=timeout, source_address=source)

        with ExitStack() as stack:
            try:
                self.socket = stack.enter_context(netns.call(namespace, connect, timeout=timeout + 5))
                self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._file = stack.enter_context(self.socket.makefile("rb"))
                line = self._file.readline()
            except OSError as error:
                raise LabError(f"{self._what}: {error}") from None
            if not line:
                raise LabError(f"{self._what}: closed at once")
            stack.pop_all()
        self.hello = _reply(line, time.monotonic() - begin)

    def exchange(self, data: bytes) -> float:
        """Send bytes, read them back; return the seconds it took. Raises LabError."""
        begin = time.monotonic()
        try:
            self.socket.sendall(data)
            back = self._file.read(len(data))
        except OSError as error:
            raise LabError(f"{self._what}: {error}") from None
        if back != data:
            raise LabError(f"{self._what}: closed, or other bytes came back")
        return time.monotonic() - begin

    def close(self) -> None:
        """Close it."""
        self._file.close()
        self.socket.close()

    def reset(self) -> None:
        """End it with a reset: its source port is free at once."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def __enter__(self) -> TcpClient:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def tcp(
    namespace: str, address: object, port: int, *, timeout: float | None = None, source_port: int = 0
) -> Reply:
    """Connect, exchange a message, close; `rtt` is that of the message. Raises LabError."""
    with TcpClient(namespace, str(address), port, timeout=timeout, source_port=source_port) as client:
        rtt = client.exchange(b"x" * 64)
        return Reply(pod=client.hello.pod, source=client.hello.source, port=client.hello.port, rtt=rtt)


def udp_socket(
    namespace: str, address: object, port: int, source: str = "", source_port: int = 0
) -> socket.socket:
    """Return a connected UDP socket of a namespace, bound to `source` and `source_port` if given."""

    def connect() -> socket.socket:
        with ExitStack() as stack:
            sock = stack.enter_context(roomy_socket())
            if source or source_port:
                sock.bind((source, source_port))
            sock.connect((str(address), port))
            stack.pop_all()
        return sock

    return netns.call(namespace, connect)


def udp(
    namespace: str, address: object, port: int, payload: bytes, *, source: str = "", timeout: float | None = None
) -> Reply:
    """Send a datagram by a socket of its own and wait for its answer, see `exchange`. Raises LabError."""
    with udp_socket(namespace, address, port, source) as sock:
        return exchange(sock, payload, timeout=timeout)


def read_reply(datagram: bytes) -> Reply:
    """Return what a datagram says of who answered; its round trip is not known."""
    return _reply(datagram.partition(b"\n")[0], 0.0)


def exchange(one: socket.socket, payload: bytes, *, timeout: float | None = None) -> Reply:
    """Send a datagram by a connected socket and wait for its answer. Raises LabError when none comes.

    It is sent once if `timeout` says how many seconds to wait, else again each RESEND seconds. By one socket, each
    payload must be another one: the answer to a copy may come later.
    """
    begin = time.monotonic()
    deadline = begin + (PATIENCE if timeout is None else timeout)
    sent, send_at = 0, begin
    try:
        while (now := time.monotonic()) < deadline:
            if now >= send_at:
                one.send(payload)
                sent += 1
                send_at = min(deadline, now + RESEND) if timeout is None else deadline
            one.settimeout(send_at - now)
            with contextlib.suppress(TimeoutError):
                line, _, data = one.recv(65536).partition(b"\n")
                if data == payload:
                    return _reply(line, time.monotonic() - begin, sent)
    except OSError as error:
        raise LabError(f"UDP to {_peer(one)}: {error}") from None
    raise LabError(f"UDP to {_peer(one)}: no answer in {deadline - begin:g} s")


def _peer(one: socket.socket) -> str:
    with contextlib.suppress(OSError):
        address, port = one.getpeername()
        return f"{address}:{port}"
    return "?"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamResult:
    """What became of a UDP stream. Times in seconds."""

    sent: int
    received: int
    duplicates: int
    longest_gap: float  # between two answers
    sources: frozenset[str]  # as the server saw them
    missing: tuple[int, ...] = ()  # numbers of the first datagrams without an answer

    @property
    def lost(self) -> int:
        """Datagrams without an answer."""
        return self.sent - self.received


class UdpStream:
    """Datagrams at a steady rate from a Pod, each answered; a context manager, `result` after its end."""

    def __init__(
        self, namespace: str, address: object, port: int, *, rate: float = 100.0, source: str = ""
    ) -> None:
        self._socket = udp_socket(namespace, address, port, source)
        self._socket.setblocking(False)
        self._interval = 1.0 / rate
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="udp-stream", daemon=True)
        self._sent = 0
        self._seen: dict[int, int] = {}
        self._sources: set[str] = set()
        self._last = 0.0
        self._gap = 0.0
        self.result: StreamResult | None = None

    @property
    def received(self) -> int:
        """Answers until now."""
        return len(self._seen)

    def __enter__(self) -> UdpStream:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._socket.close()
        self.result = StreamResult(
            sent=self._sent,
            received=len(self._seen),
            duplicates=sum(self._seen.values()) - len(self._seen),
            longest_gap=self._gap,
            sources=frozenset(self._sources),
            missing=tuple(islice((n for n in range(self._sent) if n not in self._seen), SHOWN)),
        )

    def _run(self) -> None:
        due = time.monotonic()
        self._last = due
        while not self._stop.is_set():
            now = time.monotonic()
            if now >= due:
                with contextlib.suppress(OSError):  # counted as lost: ICMP unreachable, no buffer
                    self._socket.send(self._sent.to_bytes(8, "big"))
                self._sent += 1
                due += self._interval
            self._receive(max(0.0, due - time.monotonic()))
        end = time.monotonic()
        while len(self._seen) < self._sent and time.monotonic() - max(end, self._last) < LATE:
            self._receive(0.05)

    def _receive(self, timeout: float) -> None:
        """Take all answers that there are: where a busy machine was late, they are many."""
        while select.select([self._socket], [], [], timeout)[0]:
            try:
                line, _, data = self._socket.recv(65536).partition(b"\n")
            except OSError:
                return
            number = int.from_bytes(data, "big")
            now = time.monotonic()
            self._gap, self._last = max(self._gap, now - self._last), now
            self._seen[number] = self._seen.get(number, 0) + 1
            self._sources.add(str(json.loads(line)["source"]))
            timeout = 0.0
