"""Clients that use a source port again, while a server or conntrack still has something of its last connection."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from devtools.lab.lab import Lab
from devtools.lab.topology import POD_PORT, generate
from devtools.traffic.traffic import TcpClient

pytestmark = [pytest.mark.packets, pytest.mark.datapath]

TCP_REPAIR = 19  # linux/tcp.h
AGAIN = 8.0  # seconds: the first SYN only makes the server ask, the next one comes after 1 s
BURST = 40
SOURCES = 8  # of them some come by each gateway


@pytest.fixture(scope="module")
def lab(make_lab: Callable[..., Lab]) -> Lab:
    """Two clusters of two gateways and a worker: a connection may come to a gateway's Pod by the other gateway."""
    return make_lab(generate(gateways=2, workers=1, pods=1), liveness=False)


@dataclass(frozen=True, slots=True)
class Server:
    """Who is asked, and the first of the source ports that are used for that."""

    address: str
    port: int
    sources: int

    def connect(self, lab: Lab, source: int) -> TcpClient:
        """Connect from a Pod of a worker."""
        client = lab.namespace(lab.topology.clusters[0].workers[0].pods[0])
        return TcpClient(client, self.address, self.port, source_port=self.sources + source, timeout=AGAIN)


@pytest.fixture(params=["service", "pod of a worker", "pod of a gateway"])
def server(lab: Lab, request: pytest.FixtureRequest) -> Server:
    """Give a Service of the other cluster, or one of its Pods by its own address."""
    west = lab.topology.clusters[1]
    if request.param == "service":
        return Server(str(west.services[0].cluster_ip), 80, 41000)
    if request.param == "pod of a worker":
        return Server(str(west.workers[0].pods[0].address), POD_PORT, 43000)
    return Server(str(west.gateways[0].pods[0].address), POD_PORT, 45000)


def _vanish(client: TcpClient) -> None:
    """End a connection without a word, as a client does that loses its power."""
    client.socket.setsockopt(socket.SOL_TCP, TCP_REPAIR, 1)
    client.close()


def test_a_client_that_vanished_connects_by_the_same_port(lab: Lab, server: Server) -> None:
    """Server and client find out that the old connection is over (RFC 9293, section 3.5.1), and nothing hangs."""
    for source in range(SOURCES):
        before = server.connect(lab, source)
        before.exchange(b"before")
        _vanish(before)
        with server.connect(lab, source) as after:
            assert after.exchange(b"after") < AGAIN


@pytest.mark.parametrize("first", ["service", "pod"])
def test_a_service_and_its_pod_are_asked_by_the_same_port(lab: Lab, first: str) -> None:
    """The Pod takes both for one connection: the new one ends the old one, and nothing hangs."""
    west = lab.topology.clusters[1]
    pods = {pod.name: str(pod.address) for node in west.nodes for pod in node.pods}
    base = {"service": 47000, "pod": 48000}[first]
    service = Server(str(west.services[0].cluster_ip), 80, base)
    for source in range(SOURCES * len(pods)):
        if first == "service":
            before = service.connect(lab, source)
            after = Server(pods[before.hello.pod], POD_PORT, base)
        else:
            before = Server([*pods.values()][source % len(pods)], POD_PORT, base).connect(lab, source)
            after = service
        before.exchange(b"before")
        _vanish(before)
        with after.connect(lab, source) as connection:
            assert connection.exchange(b"after") < AGAIN


@pytest.mark.parametrize("first", ["imported", "own"])
def test_a_service_is_asked_by_both_addresses_from_the_same_port(lab: Lab, first: str) -> None:
    """The address under which a cluster imports a Service, and its own one in the other cluster, get along."""
    east, west = lab.topology.clusters
    found = next(found for found in lab.topology.imports(east) if found.service == west.services[0])
    base = {"imported": 49000, "own": 50000}[first]
    addresses = [str(found.cluster_ip), str(west.services[0].cluster_ip)]
    before, after = addresses if first == "imported" else reversed(addresses)
    for source in range(SOURCES):
        connection = Server(before, 80, base).connect(lab, source)
        connection.exchange(b"before")
        connection.reset()
        with Server(after, 80, base).connect(lab, source) as again:
            assert again.exchange(b"after") < AGAIN


def test_ports_of_a_moment_ago_take_nothing_from_others(lab: Lab, server: Server) -> None:
    """A burst of connections, the same again, and the ports beside them: each gets its own answers."""
    burst = range(100, 100 + BURST)
    for source in burst:
        connection = server.connect(lab, source)
        connection.exchange(b"x" * 64)
        connection.reset()
    with contextlib.ExitStack() as stack:
        for source in (*burst, *range(100 + BURST, 100 + 2 * BURST)):
            connection = stack.enter_context(server.connect(lab, source))
            assert connection.exchange(b"y" * 64) < AGAIN
