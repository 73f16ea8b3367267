"""Packets through a Node's kernel with our routes and chains: a Pod, the host port, and the underlay.

pod 10.244.1.2 -- node -- mc-gw0 -- far 10.245.0.2 and 198.51.100.7 (where the bridge would be)
                    `--- uplink --- lan 192.0.2.1 (default route)
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address, ip_network

import pytest

from devtools.nodes import netns
from mcagent.dataplane.netlink.backend import NetlinkBackend
from mcagent.dataplane.nft.backend import NftBackend
from mcagent.model.dataplane.resources import (
    Link,
    LinkAddress,
    Neighbour,
    NftChain,
    NftSet,
    Resource,
    Route,
    Rule,
)
from mcagent.model.plan import Step
from tests.contract.inside import Inside, make

pytestmark = pytest.mark.contract

PODS = "10.244.0.0/16"
POD, NODE, FAR, GATEWAY, LAN = "10.244.1.2", "192.0.2.10", "10.245.0.2", "198.51.100.7", "192.0.2.1"
NEXT_HOP = ip_address("169.254.77.2")
BIT = 1 << 12
MARK = f"0x{BIT:08x}"
MTU = 1400  # of mc-gw0; every other device has 1500
MSS = "tcp flags & (syn|rst) == syn tcp option maxseg size set rt mtu"
SET_TO_REPLY = f"ct direction reply ct mark & {MARK} == {MARK} meta mark set meta mark | {MARK}"

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
    Route(table=28004, destination=ip_network("0.0.0.0/0"), device="mc-gw0", via=NEXT_HOP),
    Rule(priority=301, table=28003),
    Rule(priority=300, table=28004, fwmark=BIT, fwmask=BIT),
]


def chain(name: str, type_: str, hook: str, priority: int, *rules: str) -> NftChain:
    """Return a chain of our table."""
    return NftChain(table="mcagent", name=name, type=type_, hook=hook, priority=priority, rules=rules)


def pods(*more: str) -> NftSet:
    """Return the set of Pod networks, with more of them if asked for."""
    elements = tuple(ip_network(cidr) for cidr in (*more, PODS))
    return NftSet(table="mcagent", name="mct_pods", elements=elements)


IDENTITY = chain("mct_post", "nat", "postrouting", 99, 'oifname "mc-gw0" ip saddr @mct_pods snat to ip saddr')
WAY_BACK: list[Resource] = [
    chain(
        "mct_pre",
        "filter",
        "prerouting",
        -151,
        f'iifname "mc-gw0" ct direction original ct mark set ct mark | {MARK}',
        f'iifname != "mc-gw0" {SET_TO_REPLY}',
    ),
    chain("mct_out", "route", "output", -150, SET_TO_REPLY),
]
CLAMP = chain("mct_mss", "filter", "forward", -150, f'oifname "mc-gw0" {MSS}', f'iifname "mc-gw0" {MSS}')


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
        return netns.call(namespace, lambda: _udp(address, port))


def _udp(address: str, port: int) -> socket.socket:
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.settimeout(2)
    one.bind((address, port))
    return one


@pytest.fixture
def wires() -> Iterator[Wires]:
    """Give the wiring of the picture above, with our links, routes and rules but no chains yet."""
    names = {part: f"mcw{os.getpid()}{part}" for part in ("pod", "node", "far", "lan")}
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
            (far, "far0", f"{GATEWAY}/32"),
            (lan, "lan0", f"{LAN}/24"),
        ):
            netns.add_address(namespace, device, address)
        netns.ip(pod, "route", "add", "default", "via", "10.244.1.1")
        netns.ip(node, "route", "add", "default", "via", LAN)
        netns.ip(far, "neigh", "add", "169.254.77.1", "lladdr", "0a:6d:63:00:00:01", "dev", "far0")
        netns.ip(far, "route", "add", "default", "via", "169.254.77.1", "dev", "far0", "onlink")
        netns.execute(node, ["sysctl", "-qw", "net.ipv4.ip_forward=1"])
        kernel = Inside(node, NetlinkBackend(route_tables=(28003, 28004), route_protocol=111, devices=("mc-gw0",)))
        make(kernel, KERNEL)
        kernel.close()
        yield Wires(pod, node, far, lan, Inside(node, NftBackend(table="mcagent")))
    finally:
        for name in names.values():
            netns.delete(name)


def source_seen(wires: Wires, where: str, address: str) -> tuple[str, int]:
    """Send a datagram from the Pod and return the source that its receiver sees, less the Pod's own port."""
    with wires.udp(where, address, 5000) as server, wires.udp(wires.pod, POD) as client:
        client.sendto(b"x", (address, 5000))
        host, port = server.recvfrom(16)[1]
        return host, port - client.getsockname()[1]


@pytest.mark.parametrize("binary", ["iptables-nft", "iptables-legacy"])
@pytest.mark.parametrize("first", ["cni", "mcagent"])
def test_the_cni_does_not_masquerade_what_goes_to_a_remote_cluster(wires: Wires, binary: str, first: str) -> None:
    """Identity SNAT keeps address and port through the host port, whoever came first; the rest is masqueraded."""

    def cni() -> None:
        rule = ["-t", "nat", "-A", "POSTROUTING", "-s", PODS, "!", "-d", PODS, "-j", "MASQUERADE"]
        netns.execute(wires.node, [binary, "-w", *rule])

    if first == "cni":
        cni()
        assert source_seen(wires, wires.far, FAR)[0] != POD
    make(wires.nft, [pods(), IDENTITY])
    if first == "mcagent":
        cni()
    assert source_seen(wires, wires.far, FAR) == (POD, 0)
    assert source_seen(wires, wires.lan, LAN)[0] == NODE


@pytest.mark.parametrize(("server", "address"), [("pod", POD), ("node", NODE)])
def test_replies_of_what_came_in_by_the_host_port_leave_by_it(wires: Wires, server: str, address: str) -> None:
    """A client that the Node's routes would look for at the uplink gets its answer, of Pods and Node."""
    namespace = getattr(wires, server)
    with wires.udp(namespace, address, 5000) as listener, wires.udp(wires.far, GATEWAY) as client:

        def answered() -> bool:
            client.sendto(b"ask", (address, 5000))
            _, peer = listener.recvfrom(16)
            assert peer[0] == GATEWAY
            listener.sendto(b"answer", peer)
            client.settimeout(0.3)
            try:
                return client.recv(16) == b"answer"
            except TimeoutError:
                return False

        assert not answered(), "the wiring alone brings replies back: the test shows nothing"
        make(wires.nft, WAY_BACK)
    with wires.udp(namespace, address, 5000) as listener, wires.udp(wires.far, GATEWAY) as client:
        assert answered()


def test_what_the_node_begins_itself_goes_by_its_own_routes(wires: Wires) -> None:
    """The way back is for replies: a new connection to the same far address leaves by the uplink."""
    make(wires.nft, WAY_BACK)
    netns.add_address(wires.lan, "lan0", f"{GATEWAY}/32")
    with wires.udp(wires.far, GATEWAY) as far, wires.udp(wires.pod, POD, 5000) as pod:
        far.sendto(b"x", (POD, 5000))
        pod.recv(16)
    with wires.udp(wires.lan, GATEWAY, 5001) as lan, wires.udp(wires.pod, POD) as client:
        client.sendto(b"x", (GATEWAY, 5001))
        assert lan.recvfrom(16)[1][0] == POD


def test_the_segment_size_is_clamped_in_both_directions(wires: Wires) -> None:
    """Both ends believe in no more than the host port's MTU less 40 bytes of headers."""

    def listen() -> socket.socket:
        server = socket.socket()
        server.settimeout(2)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((FAR, 5000))
        server.listen()
        return server

    def segment_sizes() -> tuple[int, int]:
        with netns.call(wires.far, listen) as server:
            client = netns.call(wires.pod, lambda: socket.create_connection((FAR, 5000), 2))
            peer, _ = server.accept()
            with client, peer:
                both = tuple(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG) for one in (client, peer))
                return both[0], both[1]

    assert min(segment_sizes()) > MTU - 40, "segments are small enough without a clamp: the test shows nothing"
    make(wires.nft, [CLAMP])
    assert all(MTU - 60 <= size <= MTU - 40 for size in segment_sizes())


def test_filling_the_table_again_under_traffic_loses_and_masquerades_nothing(wires: Wires) -> None:
    """New flows every few milliseconds, twenty rewrites of set and chains under them: all arrive as they left."""
    rule = ["-t", "nat", "-A", "POSTROUTING", "-s", PODS, "!", "-d", PODS, "-j", "MASQUERADE"]
    netns.execute(wires.node, ["iptables-nft", "-w", *rule])
    table = [IDENTITY, *WAY_BACK, CLAMP]
    many = pods(*(f"10.{n // 256}.{n % 256}.0/25" for n in range(2000)))
    make(wires.nft, [many, *table])
    steps = [Step(old=one, new=one) for one in (many, *table)]
    results: list[int] = []

    def rewrite() -> None:
        results.extend(len(wires.nft.apply(steps).failed) for _ in range(20))

    probes = netns.call(wires.pod, lambda: [_udp(POD, 0) for _ in range(800)])
    rewriter = threading.Thread(target=rewrite)
    seen: dict[int, str] = {}
    sent = 0
    with wires.udp(wires.far, FAR, 5000) as server:
        rewriter.start()
        for probe in probes:
            probe.sendto(b"x", (FAR, 5000))
            sent += 1
            host, port = server.recvfrom(16)[1]
            seen[port] = host
            if not rewriter.is_alive():
                break
            time.sleep(0.003)  # the distance of two probes, not a wait
        rewriter.join()
    ports = {probe.getsockname()[1] for probe in probes[:sent]}
    for probe in probes:
        probe.close()
    assert results == [0] * 20
    assert sent >= 100
    assert seen == dict.fromkeys(ports, POD)
