"""What the bridge marks as rejected is answered by a Node's kernel, and gets nowhere."""

from __future__ import annotations

import socket

import pytest

from devtools.nodes import netns
from mcagent.core.fragments.kernel import REJECT_MACS, REJECTED, netfilter
from mcagent.dataplane.nft.backend import NftBackend
from mcagent.model.config import Config
from tests.contract.inside import make
from tests.worlds.kernel_node import FAR, MAPPED, POD, Wires, wires

__all__ = ["wires"]
pytestmark = pytest.mark.contract


@pytest.fixture
def rejecting(wires: Wires) -> Wires:
    """Give the wiring with our chains; all that the far side sends is marked."""
    config = Config(node_name="node", stretched_network_policy=True)
    make(wires.nft, netfilter(config, ()))
    netns.ip(wires.far, "link", "set", "far0", "address", REJECT_MACS[0])
    netns.ip(wires.node, "neigh", "replace", "169.254.77.2", "lladdr", REJECT_MACS[0], "dev", "mc-gw0")
    return wires


def _listen() -> socket.socket:
    server = socket.socket()
    server.bind((POD, 5000))
    server.listen()
    server.settimeout(0)
    return server


@pytest.mark.parametrize("client_address", [FAR, MAPPED])
def test_tcp_is_reset_and_the_rest_prohibited(rejecting: Wires, client_address: str) -> None:
    """A client is refused at once, though the Pod listens; a sender of UDP hears that there is no way to it.

    Also one to which only the way back of its connection leads.
    """
    with netns.call(rejecting.pod, _listen) as server:
        with pytest.raises(ConnectionRefusedError):
            netns.call(rejecting.far, lambda: socket.create_connection((POD, 5000), 2, (client_address, 0)))
        with pytest.raises(BlockingIOError):
            server.accept()
    with rejecting.udp(rejecting.pod, POD, 5000) as server, rejecting.udp(rejecting.far, client_address) as client:
        client.connect((POD, 5000))
        client.send(b"x")
        with pytest.raises(OSError, match="No route to host"):
            client.recv(16)
        server.settimeout(0)
        with pytest.raises(BlockingIOError):
            server.recv(16)


def test_answers_are_limited(rejecting: Wires) -> None:
    """Of a burst of 2,000 datagrams most are not answered, and counted; none gets to the Pod."""
    with rejecting.udp(rejecting.pod, POD, 5000) as server, rejecting.udp(rejecting.far, FAR) as client:
        for _ in range(2000):
            client.sendto(b"x", (POD, 5000))
        counted = netns.call(rejecting.node, NftBackend(table="mcagent").packet_counts)
        assert counted[REJECTED] > 1000
        server.settimeout(0)
        with pytest.raises(BlockingIOError):
            server.recv(16)
