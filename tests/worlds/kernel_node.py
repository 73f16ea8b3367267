"""A Node's kernel between a Pod, the host port of the bridge, and the underlay.

pod 10.244.1.2 -- node -- mc-gw0 -- far 10.245.0.2 and 198.51.100.7 (where the bridge would be)
                    `--- uplink --- lan 192.0.2.1 (default route)"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address, ip_network

import pytest

from devtools.nodes import netns
from mcagent.core.addresses.underlay import mapped_addresses
from mcagent.dataplane.netlink.backend import NetlinkBackend
from mcagent.dataplane.nft.backend import NftBackend
from mcagent.model.dataplane.resources import (
    Link,
    LinkAddress,
    Neighbour,
    Resource,
    Route,
    Rule,
)
from tests.contract.inside import Inside, make

POD, NODE, FAR, GATEWAY, LAN = "10.244.1.2", "192.0.2.10", "10.245.0.2", "198.51.100.7", "192.0.2.1"
NEXT_HOP = ip_address("169.254.77.2")
MAPPED = str(next(mapped_addresses(ip_address(GATEWAY))))
MTU = 1400  # of mc-gw0; every other device has 1500
KERNEL: list[Resource] = [
    Link(name="mc-gw0", mtu=MTU),
    LinkAddress(device="mc-gw0", address=ip_address("169.254.77.1"), prefixlen=32),
    Neighbour(device="mc-gw0", address=NEXT_HOP, mac="aa:bb:cc:dd:ee:f0"),
    Route(
        table=28003,
        destination=ip_network("10.245.0.0/16"),
        device="mc-gw0",
        via=NEXT_HOP,
        source=ip_address(NODE),
    ),
    Route(table=28003, destination=ip_network(MAPPED), device="mc-gw0", via=NEXT_HOP, source=ip_address(NODE)),
    Rule(priority=300, table=28003),
]


@dataclass(frozen=True)
class Wires:
    """The four namespaces, and the nft backend of the Node."""

    pod: str
    node: str
    far: str
    lan: str
    nft: Inside

    def udp(self, namespace: str, address: str, port: int = 0) -> socket.socket:
        """Return a UDP socket of a namespace; it is closed with the fixture that owns it."""
        return netns.call(namespace, lambda: udp_socket(address, port))


def udp_socket(address: str, port: int) -> socket.socket:
    """Return a UDP socket of an address and a port, 0 for any."""
    bound = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    bound.settimeout(2)
    bound.bind((address, port))
    return bound


@pytest.fixture
def wires() -> Iterator[Wires]:
    """Give the wiring of the picture above, with our links, routes and rules but no chains yet."""
    names = {part: f"mct{os.getpid()}-{part}" for part in ("pod", "node", "far", "lan")}
    pod, node, far, lan = names.values()
    try:
        for name in names.values():
            netns.create(name)
        netns.add_veth("eth0", pod, "veth0", node)
        netns.add_veth("mc-gw0", node, "far0", far)
        netns.add_veth("uplink", node, "lan0", lan)
        netns.ip(far, "link", "set", "far0", "address", str(KERNEL[2].mac))  # type: ignore[union-attr]
        netns.ip(node, "link", "set", "mc-gw0", "address", "0a:6d:63:00:00:01")
        for namespace, device, address in (
            (pod, "eth0", f"{POD}/24"),
            (node, "veth0", "10.244.1.1/24"),
            (node, "uplink", f"{NODE}/24"),
            (far, "far0", f"{FAR}/32"),
            (far, "far0", f"{MAPPED}/32"),
            (lan, "lan0", f"{LAN}/24"),
        ):
            netns.add_address(namespace, device, address)
        netns.ip(pod, "route", "add", "default", "via", "10.244.1.1")
        netns.ip(node, "route", "add", "default", "via", LAN)
        netns.ip(far, "neigh", "add", "169.254.77.1", "lladdr", "0a:6d:63:00:00:01", "dev", "far0")
        netns.ip(far, "route", "add", "default", "via", "169.254.77.1", "dev", "far0", "onlink")
        netns.execute(node, ["sysctl", "-qw", "net.ipv4.ip_forward=1"])
        kernel = Inside(node, NetlinkBackend(route_tables=(28003,), route_protocol=111, devices=("mc-gw0",)))
        make(kernel, KERNEL)
        kernel.close()
        yield Wires(pod, node, far, lan, Inside(node, NftBackend(table="mcagent")))
    finally:
        for name in names.values():
            netns.delete(name)
