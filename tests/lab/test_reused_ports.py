"""Clients that use a source port again, while a server or conntrack still has something of its last connection."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Sequence

import pytest

from devtools.lab.lab import Lab
from devtools.lab.topology import POD_PORT, generate
from devtools.traffic.traffic import TcpClient

TCP_REPAIR = 19  # linux/tcp.h
AGAIN = 8.0  # seconds: the first SYN only makes the server ask, the next one comes after 1 s
BURST = 16


@pytest.fixture(scope="module")
def lab(make_lab: Callable[..., Lab]) -> Lab:
    """Two clusters of two gateways and a worker."""
    return make_lab(generate(gateways=2, workers=1, pods=1))


@pytest.fixture(params=["service", "pod"])
def server(lab: Lab, request: pytest.FixtureRequest) -> tuple[str, int]:
    """Give what is asked: a Service of the other cluster, or one of its Pods by its own address."""
    west = lab.topology.clusters[1]
    if request.param == "service":
        return str(west.services[0].cluster_ip), 80
    return str(west.workers[0].pods[0].address), POD_PORT


def _client(lab: Lab) -> str:
    return lab.namespace(lab.topology.clusters[0].workers[0].pods[0])


def _vanish(client: TcpClient) -> None:
    """End a connection without a word, as a client does that loses its power."""
    client.socket.setsockopt(socket.SOL_TCP, TCP_REPAIR, 1)
    client.close()


def test_a_client_that_vanished_connects_by_the_same_port(lab: Lab, server: tuple[str, int]) -> None:
    """Server and client find out that the old connection is over (RFC 9293, section 3.5.1), and nothing hangs."""
    for port in range(41000, 41004):
        before = TcpClient(_client(lab), *server, source_port=port)
        before.exchange(b"before")
        _vanish(before)
        with TcpClient(_client(lab), *server, source_port=port, timeout=AGAIN) as after:
            assert after.exchange(b"after") < AGAIN


def test_ports_of_a_moment_ago_take_nothing_from_others(lab: Lab, server: tuple[str, int]) -> None:
    """A burst of connections, the same again, and the ports beside them: each gets its own answers."""
    with contextlib.ExitStack() as stack:

        def connect(ports: Sequence[int]) -> list[TcpClient]:
            made = [TcpClient(_client(lab), *server, source_port=port, timeout=AGAIN) for port in ports]
            for one in made:
                stack.callback(one.close)
                one.exchange(b"x" * 64)
            return made

        for one in connect(range(42000, 42000 + BURST)):
            one.reset()
        for one in connect(range(42000, 42000 + 2 * BURST)):
            assert one.exchange(b"y" * 64) < AGAIN
