"""ICMP errors about replies: a server learns that its client has gone."""

from __future__ import annotations

import socket
import time

import pytest

from devtools.lab.lab import Lab
from devtools.lab.topology import Pod, generate
from devtools.nodes import netns
from devtools.traffic.traffic import PATIENCE
from devtools.waiting import wait_until
from tests.attacks import packets
from tests.worlds.labs import MakeLab

pytestmark = [pytest.mark.packets, pytest.mark.datapath]
PORT = 5000


@pytest.fixture(scope="module")
def lab(make_lab: MakeLab) -> Lab:
    """Two clusters of a gateway and a worker."""
    return make_lab(generate(), liveness=False)


def udp_socket(lab: Lab, pod: Pod, port: int = 0) -> socket.socket:
    """Return a UDP socket of a Pod, bound to a port."""

    def bound() -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.bind((str(pod.address), port))
        return sock

    return netns.call(lab.namespace(pod), bound)


@pytest.mark.parametrize("role", ["worker", "gateway"])
def test_a_server_learns_that_its_client_has_gone(lab: Lab, role: str) -> None:
    """The client's Pod answers a reply by "port unreachable", which reaches the socket of the server's Pod."""
    east, west = lab.topology.clusters
    server_pod = (east.workers if role == "worker" else east.gateways)[0].pods[0]
    with udp_socket(lab, server_pod, PORT) as server:
        server.settimeout(packets.SILENCE)
        deadline = time.monotonic() + PATIENCE
        with udp_socket(lab, west.workers[0].pods[0]) as client:
            peer = None
            while peer is None:
                client.sendto(b"request", (str(server_pod.address), PORT))
                try:
                    _, peer = server.recvfrom(100)
                except TimeoutError:
                    assert time.monotonic() < deadline
        server.connect(peer)

        def has_learned() -> bool:
            try:
                server.send(b"reply")
                server.recv(100)  # a request that was sent twice
            except ConnectionRefusedError:
                return True
            except TimeoutError:
                pass
            return False

        wait_until(has_learned, "the error", timeout=PATIENCE)
