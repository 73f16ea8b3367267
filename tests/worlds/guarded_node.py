"""A Node with the guard of tunnels in its kernel, between a Pod and a peer.

pod 10.244.1.2 -- node 192.0.2.10 -- uplink -- peer 192.0.2.1, the way to far 198.51.100.7 (a peer, too)
                     `-- side (no route but its own subnet) -- router 203.0.113.1"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, ip_network

import pytest

from devtools.nodes import netns
from mcagent.core.fragments.tunnel_guard import (
    TunnelPeers,
    guard,
)
from mcagent.dataplane.nft.backend import NftBackend
from mcagent.model.config import Config, TrafficEncryption
from tests.attacks import tunnel_packets as packets
from tests.attacks.tunnel_packets import GENEVE
from tests.contract.inside import Inside, make

POD, NODE, PEER, FAR = (IPv4Address(a) for a in ("10.244.1.2", "192.0.2.10", "192.0.2.1", "198.51.100.7"))
OTHER = IPv4Address("192.0.2.12")  # a peer, too, that is not there
PEERS = TunnelPeers(
    version=4,
    addresses=tuple(ip_network(a) for a in (PEER, NODE, OTHER, FAR)),
    on_link=(ip_network(PEER),),
    own_ends=(ip_network(NODE),),
    wireguard=((PEER, 51821), (FAR, 53)),
)
CONFIG = Config(node_name="n", encryption=TrafficEncryption.WIREGUARD)
DEVICES = ("mc-wg0",)  # of WireGuard


@dataclass(frozen=True)
class Wires:
    """The namespaces, and the nft backend of the Node."""

    pod: str
    node: str
    peer: str
    nft: Inside

    def guarded(self, config: Config = CONFIG) -> None:
        """Put up the guard."""
        make(self.nft, guard(config, (PEERS,), DEVICES))

    def counted(self) -> dict[str, int]:
        """Return the counters by chain."""
        families = self.nft.backend
        assert isinstance(families, NftBackend)
        return dict(netns.call(self.node, families.packet_counts))

    def arrives(
        self,
        sender: str,
        receiver: str,
        source: IPv4Address,
        to: IPv4Address,
        port: int = GENEVE,
        *,
        ttl: int = 64,
    ) -> bool:
        """Send a datagram with any source, and an honest one after it; tell whether the first arrived."""
        token, last = os.urandom(8), os.urandom(8)
        with (
            netns.call(receiver, lambda: udp_listener(port)) as sock,
            netns.call(receiver, lambda: udp_listener(9)) as end,
        ):
            packets.send_raw(sender, to, packets.ipv4(source, to, packets.udp(source, to, port, token), ttl=ttl))
            packets.send_raw(sender, to, packets.ipv4(source, to, packets.udp(source, to, 9, last)))
            end.settimeout(5)
            assert end.recv(64) == last
            sock.setblocking(False)
            try:
                return sock.recv(64) == token
            except BlockingIOError:
                return False


def udp_listener(port: int) -> socket.socket:
    """Return a UDP socket of a port at all addresses."""
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.bind(("0.0.0.0", port))
    return receiver


@pytest.fixture
def wires() -> Iterator[Wires]:
    """Give the wiring of the picture above, without any filter."""
    names = {part: f"mct{os.getpid()}-{part}" for part in ("pod", "node", "peer")}
    pod, node, peer = names.values()
    try:
        for name in names.values():
            netns.create(name)
        netns.add_veth("eth0", pod, "veth0", node)
        netns.add_veth("uplink", node, "eth0", peer)
        netns.add_veth("side", node, "eth1", peer)
        for namespace, device, address in (
            (pod, "eth0", f"{POD}/24"),
            (node, "veth0", "10.244.1.1/24"),
            (node, "uplink", f"{NODE}/24"),
            (node, "side", "203.0.113.10/24"),
            (peer, "eth0", f"{PEER}/24"),
            (peer, "eth1", "203.0.113.1/24"),
            (peer, "lo", f"{FAR}/32"),
        ):
            netns.add_address(namespace, device, address)
        netns.ip(pod, "route", "add", "default", "via", "10.244.1.1")
        netns.ip(node, "route", "add", "default", "via", str(PEER))
        netns.ip(peer, "route", "add", "10.244.1.0/24", "via", str(NODE))
        netns.execute(node, ["sysctl", "-qw", "net.ipv4.ip_forward=1"])
        for namespace in (node, peer):
            for path in netns.execute(
                namespace, ["sysctl", "-aN", "--pattern", r"ipv4.conf.*\.rp_filter"]
            ).stdout.split():
                netns.execute(namespace, ["sysctl", "-qw", f"{path}=0"])
        yield Wires(pod, node, peer, Inside(node, NftBackend(table="mcagent")))
    finally:
        for name in names.values():
            netns.delete(name)
