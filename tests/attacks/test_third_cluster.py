"""Attacks on connections of other clusters, and of other Pods: by ICMP errors, by replies, by fragments."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Address

import pytest

from devtools.lab.lab import Lab
from devtools.lab.topology import POD_PORT, Cluster, Cni, Pod, generate
from devtools.nodes import netns
from devtools.traffic import traffic
from tests.attacks import packets, tunnel_packets
from tests.attacks.catalogue import Attacker, Group, attack
from tests.attacks.packets import FRAGMENTATION_NEEDED, PORT_UNREACHABLE, SMALL_MTU, icmp_error
from tests.worlds.labs import MakeLab
from tests.worlds.profiles import FORWARDING

pytestmark = pytest.mark.datapath

by_member = partial(attack, Group.STATE, Attacker.MEMBER)

PLAIN_MAC, ANY_MAC = "aa:bb:cc:dd:ee:f0", "0a:6d:63:00:00:02"
BOTH = frozenset({"ECONNREFUSED", "EMSGSIZE"})  # what a socket learns of them
TRIED = 6.0  # seconds for which errors are sent that nobody must learn of
SOCKET_PORT = 33333
IP_MTU_DISCOVER, IP_PMTUDISC_DONT, IP_PMTUDISC_DO = 10, 0, 2  # ip(7)
FRAGMENTS = 6000  # more than either datapath stores
BURST = 100  # fragments that the receive queue of the lab's packet sockets holds, with other packets
LARGE, LARGE_DATAGRAMS, LARGE_BURST = 2900, 500, 25  # bytes of a datagram in three fragments; datagrams
MORE_FRAGMENTS = 0x2000  # MF (RFC 791 section 3.1)
PIECE = 1208  # bytes; the userspace datapath takes no fragment below 1200 (lib/ipf.c)
RELATED = "the pipeline, by conntrack: an ICMP error comes from the cluster at the other end of what it quotes"


@dataclass(frozen=True)
class World:
    """Three clusters: a Pod of `east` has connections, `west` serves it, `north` attacks."""

    lab: Lab
    east: Cluster
    west: Cluster
    north: Cluster

    @property
    def client(self) -> Pod:
        """The attacked Pod, on a worker."""
        return self.east.workers[0].pods[0]

    @property
    def server(self) -> Pod:
        """A Pod of the other cluster."""
        return self.west.workers[0].pods[0]

    def inject(self, cluster: Cluster, *inner: bytes) -> None:
        """Send IPv4 packets from a cluster's gateway into its tunnel to the gateway of `east`."""
        gateway, peer = cluster.gateways[0], self.east.gateways[0]
        for packet in inner:
            frame = packets.ethernet(PLAIN_MAC, ANY_MAC, packet)
            packets.geneve(self.lab.namespace(gateway), peer.address, frame)

    def connected(self, address: IPv4Address, port: int) -> socket.socket:
        """Return a UDP socket of the attacked Pod, connected to an address; it learns of ICMP errors."""
        namespace, source = self.lab.namespace(self.client), str(self.client.address)
        client = traffic.udp_socket(namespace, address, port, source, SOCKET_PORT)
        client.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
        return client


def profiles(*cnis: Cni) -> pytest.MarkDecorator:
    """Let a test run in labs of these profiles."""
    return pytest.mark.parametrize("world", cnis, indirect=True, ids=str)


@pytest.fixture(scope="module")
def world(request: pytest.FixtureRequest, make_lab: MakeLab) -> Iterator[World]:
    """Three clusters of a gateway and a worker."""
    with make_lab(generate(cni=request.param, clusters=3), liveness=False) as lab:
        yield World(lab, *lab.topology.clusters)


def sent_by_client(world: World, address: IPv4Address, port: int) -> bytes:
    """Return a datagram of the attacked Pod's socket."""
    datagram = packets.udp(SOCKET_PORT, port, bytes(8))
    return packets.ipv4(world.client.address, address, socket.IPPROTO_UDP, datagram)


def learned(
    world: World, client: socket.socket, source: Cluster, quoted: bytes, address: IPv4Address, *, within: float
) -> set[str]:
    """Return what the attacked Pod learns of ICMP errors that a cluster sends about a packet of its socket.

    They are sent again and again for `within` seconds, or until it has learned of both.
    """
    sender = source.workers[0].pods[0].address
    client.settimeout(packets.SILENCE)
    deadline = time.monotonic() + within
    errors: set[str] = set()
    while errors != BOTH and time.monotonic() < deadline:
        for kind in (PORT_UNREACHABLE, FRAGMENTATION_NEEDED):
            world.inject(source, icmp_error(kind, sender, quoted))
            try:
                client.recv(65536)
            except OSError as error:
                errors |= BOTH & {errno.errorcode.get(error.errno or 0, "")}
        if f"mtu {SMALL_MTU}" in netns.ip(world.lab.namespace(world.client), "route", "get", str(address)):
            errors.add("EMSGSIZE")
    netns.ip(world.lab.namespace(world.client), "route", "flush", "cache")
    return errors


@profiles(Cni.FLANNEL, Cni.EBPF)
@by_member(
    wants="end a connection of two other clusters, or give it a tiny path MTU, by ICMP errors that quote it",
    stopped_by=RELATED,
)
def test_icmp_errors_about_connections_of_others(world: World) -> None:
    """The same errors of the server's cluster arrive."""
    address, port = world.server.address, POD_PORT
    with world.connected(address, port) as client:
        assert traffic.exchange(client, packets.token()).pod == world.server.name
        quoted = sent_by_client(world, address, port)
        assert learned(world, client, world.north, quoted, address, within=TRIED) == set()
        assert traffic.exchange(client, packets.token()).pod == world.server.name
        assert learned(world, client, world.west, quoted, address, within=traffic.PATIENCE) == BOTH


@profiles(Cni.FLANNEL)
@by_member(
    wants="end a connection that a Pod has inside its own cluster or with the internet, by ICMP errors",
    stopped_by="the pipeline: an ICMP error about a connection that did not pass the bridge is dropped",
)
def test_icmp_errors_about_connections_without_the_bridge(world: World) -> None:
    """The kernel of the Pod's Node knows the connection, the bridge does not."""
    neighbour = world.east.gateways[0].pods[0].address
    with world.connected(neighbour, POD_PORT) as client:
        assert traffic.exchange(client, packets.token()).pod
        quoted = sent_by_client(world, neighbour, POD_PORT)
        assert learned(world, client, world.north, quoted, neighbour, within=TRIED) == set()


@profiles(*FORWARDING)
@by_member(
    wants="answer in another cluster's name on a connection that a Pod has with that cluster",
    stopped_by="the source-address check of the tunnel, for replies as for requests",
)
def test_replies_of_a_third_cluster(world: World) -> None:
    """A reply with the server's address and port arrives through the server's tunnel only."""
    address, port = world.server.address, POD_PORT
    with world.connected(address, port) as client:
        assert traffic.exchange(client, packets.token()).pod == world.server.name
        for cluster, arrives in ((world.north, False), (world.west, True)):
            token = packets.token()
            datagram = packets.udp(port, SOCKET_PORT, token)
            reply = packets.ipv4(address, world.client.address, socket.IPPROTO_UDP, datagram)
            if arrives:
                assert packets.arrives(client, token, partial(world.inject, cluster, reply))
            else:
                world.inject(cluster, reply)
                assert not packets.received(client, token, within=packets.SILENCE)


@profiles(Cni.FLANNEL)
@by_member(
    wants="end the fragmented datagrams of all clusters to a Node, by fragments that never become whole",
    stopped_by="a meter for each remote cluster, in front of the reassembly (`fragments`)",
)
def test_a_flood_of_fragments(world: World) -> None:
    """Other clusters' large datagrams arrive meanwhile, and a cluster's own are limited, not ended."""
    sender, target = world.north.workers[0].pods[0].address, world.client.address
    gateway, peer = world.north.gateways[0], world.east.gateways[0]

    def piece(number: int) -> bytes:
        transport = packets.udp(1000, 2000, bytes(PIECE))
        packet = tunnel_packets.ipv4(sender, target, transport, ident=number, fragment=MORE_FRAGMENTS)
        return tunnel_packets.geneve(packets.ethernet(PLAIN_MAC, ANY_MAC, packet))

    assert _large_pings(world) == 0
    for start in range(0, FRAGMENTS, BURST):
        pieces = [piece(number) for number in range(start, start + BURST)]
        packets.datagrams(world.lab.namespace(gateway), peer.address, tunnel_packets.GENEVE, pieces)
        # The userspace datapath has read a burst when it has passed what came later. What its queue would drop
        # would not meet the meter, and the drops would hit the echo requests.
        assert packets.echoes(world.lab.namespace(world.server), target)
    assert _large_pings(world) == 0


@profiles(Cni.FLANNEL)
@attack(
    Group.STATE,
    Attacker.POD,
    wants="end the fragmented datagrams of all Pods of its cluster to another cluster's Node, by sending many",
    stopped_by="a meter for the sender of fragments on its Node, of half of what other clusters accept",
)
def test_large_datagrams_of_one_pod(world: World) -> None:
    """Large datagrams of another Pod of its cluster arrive, and some of its own."""
    attacker = world.lab.namespace(world.west.gateways[0].pods[0])
    assert _large_pings(world) == 0
    with ThreadPoolExecutor(1) as pool, traffic.udp_socket(attacker, world.client.address, POD_PORT) as sender:
        sender.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DONT)

        def send(datagrams: int) -> None:
            for _ in range(0, datagrams, LARGE_BURST):
                for _ in range(LARGE_BURST):
                    sender.send(bytes(LARGE))
                # See above: the queue of the attacker's Node must not drop what the meter is to drop.
                assert packets.echoes(attacker, world.client.address)

        send(LARGE_DATAGRAMS)
        pings = pool.submit(_large_pings, world)
        while not pings.done():
            send(LARGE_BURST)
        assert pings.result() == 0


def _large_pings(world: World) -> int:
    """Return how many of five echo requests in fragments, from `west` to the attacked Pod, are not answered."""
    argv = ["ping", "-n", "-q", "-c", "5", "-i", "0.3", "-s", "3000", "-W", "15"]
    text = netns.execute(world.lab.namespace(world.server), [*argv, str(world.client.address)], check=False).stdout
    return 5 - int(text.partition(" received")[0].rpartition(" ")[2])
