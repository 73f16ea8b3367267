"""Clients of the lab against servers on loopback that lose, delay, refuse and reset what comes first."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

import pytest

from devtools.errors import LabError
from devtools.nodes import netns
from devtools.traffic import traffic
from devtools.traffic.traffic_server import hello
from tests.attacks import packets

T = TypeVar("T")
HOST = "127.0.0.1"
NAMESPACE = "the test's own"
NEVER = 1000  # datagrams: more than anybody sends here


@pytest.fixture(autouse=True)
def _no_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(namespace: str, function: Callable[[], T], *, timeout: float = 0.0) -> T:
        return function()

    monkeypatch.setattr(netns, "call", call)


@pytest.fixture(autouse=True)
def _unprivileged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "roomy_socket", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send again soon: for servers that do not answer at once."""
    monkeypatch.setattr(traffic, "RESEND", 0.2)


@contextlib.contextmanager
def udp_server(drops: int, answer: Callable[[bytes], bytes] = bytes) -> Iterator[tuple[int, list[bytes]]]:
    """Serve on a port of loopback, but for the first datagrams; give the port and all that came."""
    got: list[bytes] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((HOST, 0))

        def serve() -> None:
            while (received := server.recvfrom(65536))[0] != b"end":
                data, peer = received
                got.append(data)
                if len(got) > drops:
                    server.sendto(hello("server", peer) + answer(data), peer)

        thread = threading.Thread(target=serve)
        thread.start()
        port = int(server.getsockname()[1])
        try:
            yield port, got
        finally:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
                last.sendto(b"end", (HOST, port))
            thread.join()


@pytest.mark.usefixtures("quick")
def test_a_datagram_that_was_lost_is_sent_again() -> None:
    """By the same socket; the reply says how often."""
    with udp_server(drops=1) as (port, got):
        reply = traffic.udp(NAMESPACE, HOST, port, b"hello")
    assert (reply.pod, reply.source, reply.sent) == ("server", HOST, len(got))
    assert set(got) == {b"hello"}
    assert reply.sent >= 2
    assert reply.rtt > traffic.RESEND / 2


def test_a_datagram_that_arrives_is_sent_once() -> None:
    """No server sees copies that are not needed."""
    with udp_server(drops=0) as (port, got):
        assert traffic.udp(NAMESPACE, HOST, port, b"hello", timeout=30.0).sent == 1
    assert got == [b"hello"]


@pytest.mark.usefixtures("quick")
def test_who_waits_for_silence_sends_once() -> None:
    """With a time-out the first datagram decides: a server that would answer the second one is silent."""
    with udp_server(drops=1) as (port, got):
        with pytest.raises(LabError, match=r"no answer in 0\.5 s"):
            traffic.udp(NAMESPACE, HOST, port, b"hello", timeout=0.5)
        assert got == [b"hello"]


@pytest.mark.usefixtures("quick")
def test_nobody_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that never answers fails whoever asks."""
    monkeypatch.setattr(traffic, "PATIENCE", 0.5)
    with udp_server(drops=NEVER) as (port, got):
        with pytest.raises(LabError, match=r"no answer in 0\.5 s"):
            traffic.udp(NAMESPACE, HOST, port, b"hello")
        assert 1 <= len(got) <= 3


@pytest.mark.usefixtures("quick")
def test_other_bytes_are_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes back must be what was sent."""
    monkeypatch.setattr(traffic, "PATIENCE", 0.5)
    with udp_server(drops=0, answer=bytes.upper) as (port, _), pytest.raises(LabError, match="no answer"):
        traffic.udp(NAMESPACE, HOST, port, b"hello")


def _closed_port(kind: socket.SocketKind) -> int:
    with socket.socket(socket.AF_INET, kind) as sock:
        sock.bind((HOST, 0))
        return int(sock.getsockname()[1])


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM])
def test_a_refusal_is_an_answer(kind: socket.SocketKind) -> None:
    """It is told at once, and nobody tries again: a port that is closed at first is a fault."""
    port = _closed_port(kind)
    begin = time.monotonic()
    ask = traffic.tcp if kind == socket.SOCK_STREAM else partial(traffic.udp, payload=b"hello")
    with pytest.raises(LabError, match="refused"):
        ask(NAMESPACE, HOST, port)
    assert time.monotonic() - begin < traffic.PATIENCE / 2


def test_a_first_connection_that_is_reset_fails() -> None:
    """Though the second one would be served."""
    with socket.create_server((HOST, 0)) as listener:

        def reset() -> None:
            connection, _ = listener.accept()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()

        thread = threading.Thread(target=reset)
        thread.start()
        with pytest.raises(LabError, match=r"reset|closed at once"):
            traffic.tcp(NAMESPACE, HOST, listener.getsockname()[1])
        thread.join()
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):  # there is no second one
            listener.accept()


@contextlib.contextmanager
def full_server() -> Iterator[tuple[int, Callable[[], None]]]:
    """Give the port of a server whose kernel drops every SYN, and what makes it serve one connection."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server((HOST, 0), backlog=0))
        port = listener.getsockname()[1]
        stack.enter_context(socket.create_connection((HOST, port)))  # the queue is full: listen(2)

        def serve() -> None:
            listener.accept()[0].close()
            connection, peer = listener.accept()
            with connection:
                connection.sendall(hello("server", peer))
                connection.sendall(connection.recv(100))

        yield port, serve


def test_a_syn_that_was_lost_is_sent_again() -> None:
    """By the kernel, for the same connection, after a second and more."""
    with full_server() as (port, serve):
        later = threading.Timer(0.5, serve)
        later.start()
        assert traffic.tcp(NAMESPACE, HOST, port).pod == "server"
        later.join()


def test_connections_that_nobody_answers() -> None:
    """Silence is told apart from an answer, in as much time as the caller gives."""
    with full_server() as (port, _):
        with pytest.raises(LabError, match="timed out"):
            traffic.tcp(NAMESPACE, HOST, port, timeout=0.3)
        assert not packets.connects(NAMESPACE, HOST, port, within=0.3)
    assert packets.connects(NAMESPACE, HOST, _closed_port(socket.SOCK_STREAM)), "a reset is an answer"


def test_a_datagram_for_a_listener_is_sent_until_it_arrives() -> None:
    """Attackers' helpers: what was lost is sent again, and what never comes is found missing."""
    with packets.listening(NAMESPACE, 0, socket.SOCK_DGRAM) as server:
        port = int(server.getsockname()[1])
        calls: list[int] = []

        def send() -> None:
            calls.append(1)
            if len(calls) > 1:
                packets.datagrams(NAMESPACE, HOST, port, (b"noise", b"a token"))

        assert packets.arrives(server, b"token", send)
        assert len(calls) >= 2
        packets.datagram(NAMESPACE, HOST, port, b"other")
        assert not packets.received(server, b"token", within=0.2)
