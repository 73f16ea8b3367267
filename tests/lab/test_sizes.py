"""Sizes and errors between clusters: the MTU, fragments, segment sizes, ICMP errors, clients that share a port.

The same on both datapaths, except where a test says why not.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from devtools.lab.lab import Lab
from devtools.lab.topology import POD_PORT, Cni, Pod, Service, Topology, Underlay, generate
from devtools.nodes import netns, node, underlay
from devtools.traffic import traffic
from devtools.traffic.capture import ETH_P_IP, ETH_P_IPV6, ETHERNET_HEADER, Capture
from devtools.waiting import wait_until
from mcagent.model.dataplane.resources import TunnelType
from tests.worlds.profiles import Ability, require

pytestmark = pytest.mark.datapath

# Of mc-gw0 on an uplink of 1500: outer IP, UDP, Geneve (RFC 8926) or VXLAN, inner Ethernet.
MTUS = {Underlay.IPV4: 1500 - (20 + 8 + 8 + 14), Underlay.IPV6: 1500 - (40 + 8 + 8 + 14)}
# A datagram that does not fit the larger MTU, and whose answer (with a line of the server's) no device of a Pod: a
# server that has to learn of a smaller MTU first loses that answer.
SLIGHTLY_MORE = MTUS[Underlay.IPV4] - 28 + 1
WITHIN = f"{traffic.PATIENCE:.0f}"  # seconds, for ping(8)
CLOSED_PORT = 9  # nobody listens there in a Pod
IP_MTU_DISCOVER, IP_PMTUDISC_DONT = 10, 0  # ip(7)
# Pods of the profile ebpf send fragments of 1500 bytes, of which each Node makes two: 139 fragments that one of
# them sends here in less than two seconds are more than it may (132 at once; docs/underlay.md, Fragments).
EBPF_CONFIG = {"fragments": 225}


def _topology(cni: Cni, tunnel: TunnelType, family: Underlay) -> Topology:
    """Return two clusters that export, beside `web`, a Service whose Pods refuse every packet."""
    plain = generate(cni=cni, tunnel=tunnel, underlay=family)
    clusters = tuple(
        replace(
            cluster,
            config={**cluster.config, **(EBPF_CONFIG if cni is Cni.EBPF else {})},
            services=(
                *cluster.services,
                Service(
                    name="closed",
                    cluster_ip=cluster.service_cidr[70],
                    pods=(cluster.workers[0].pods[0].name,),
                    target_port=CLOSED_PORT,
                ),
            ),
        )
        for cluster in plain.clusters
    )
    return replace(plain, clusters=clusters)


_SHAPES = [
    pytest.param((Cni.FLANNEL, TunnelType.GENEVE, Underlay.IPV4), marks=pytest.mark.packets),
    (Cni.FLANNEL, TunnelType.VXLAN, Underlay.IPV6),
    (Cni.OVERLAP, TunnelType.GENEVE, Underlay.IPV6),
    (Cni.EBPF, TunnelType.GENEVE, Underlay.IPV4),  # compares sizes with the device's MTU, and drops what is larger
]


@pytest.fixture(scope="module", params=_SHAPES, ids=lambda shape: "-".join(map(str, shape)))
def lab(request: pytest.FixtureRequest, make_lab: Callable[..., Lab]) -> Iterator[Lab]:
    """Two clusters of one gateway and one worker; in `overlap` everything is translated at both ends."""
    with make_lab(_topology(*request.param), liveness=False) as lab:
        yield lab


def _mtu(lab: Lab) -> int:
    return MTUS[Underlay.IPV6 if lab.topology.clusters[0].subnet6 is not None else Underlay.IPV4]


@pytest.fixture
def published(lab: Lab) -> Lab:
    """The lab, where Pods reach each other by their own addresses."""
    if not lab.topology.clusters[0].publish_pods:
        pytest.skip("Pods are not published here: there is no way but by Services")
    return lab


def _clients(lab: Lab) -> list[Pod]:
    return [node.pods[0] for node in lab.topology.clusters[0].nodes]


def _targets(lab: Lab) -> list[Pod]:
    return [node.pods[0] for node in lab.topology.clusters[1].nodes]


def _web(lab: Lab) -> IPv4Address:
    return lab.topology.clusters[1].services[0].cluster_ip


def _ping(lab: Lab, client: Pod, address: IPv4Address, size: int, token: bytes = b"mc") -> tuple[bool, str]:
    """Send echo requests of `size` bytes, "don't fragment" set, with `token`, until one is answered or refused."""
    argv = ["ping", "-n", "-c", "1", "-w", WITHIN, "-M", "do", "-p", token.hex(), "-s", str(size - 28)]
    done = netns.execute(lab.namespace(client), [*argv, str(address)], check=False)
    return done.returncode == 0, done.stdout + done.stderr


def test_the_largest_packet_passes_in_one_piece(published: Lab) -> None:
    """What fits mc-gw0 arrives in one piece whatever way it takes, and fills the underlay between the clusters."""
    mtu, ethertype = _mtu(published), ETH_P_IPV6 if published.topology.clusters[0].subnet6 else ETH_P_IP
    for client in _clients(published):
        for target in _targets(published):
            with (
                Capture(published.namespace(target)) as capture,
                Capture(published.underlay, underlay.bridge(1), ethertype=ethertype) as between,
            ):
                token = os.urandom(16)
                answered, text = _ping(published, client, target.address, mtu, token)
                assert answered, text
                sizes = [len(frame) - ETHERNET_HEADER for frame in capture.frames()]
                outer = [frame[ETHERNET_HEADER:] for frame in between.frames() if token in frame]
            assert set(sizes) == {mtu}
            leaving = [packet for packet in outer if _leaves(published, packet)]
            assert {len(packet) for packet in leaving} == {node.UPLINK_MTU}


def _leaves(lab: Lab, packet: bytes) -> bool:
    """Tell whether an unfragmented UDP packet comes from a Node of the first cluster."""
    gateway = lab.topology.clusters[0].gateways[0].tunnel_address
    if gateway.version == 4:
        assert (packet[9], int.from_bytes(packet[6:8]) & 0x3FFF) == (socket.IPPROTO_UDP, 0)
        return packet[12:16] == gateway.packed
    assert packet[6] == socket.IPPROTO_UDP  # no fragment header (RFC 8200)
    return packet[8:24] == gateway.packed


def test_a_packet_that_is_too_large_is_told_so(published: Lab) -> None:
    """A byte more, with "don't fragment": the client's own Node answers with the MTU, at once."""
    for client in _clients(published):
        for target in _targets(published):
            answered, text = _ping(published, client, target.address, _mtu(published) + 1)
            assert not answered
            assert re.search(rf"(Frag needed and DF set|message too long).*mtu ?= ?{_mtu(published)}", text), text
            netns.ip(published.namespace(client), "route", "flush", "cache")


def _large(namespace: str, address: IPv4Address, port: int, size: int, *, first: bytes = b"") -> traffic.Reply:
    """Send a datagram that is fragmented on its way, after a small one if given; return the answer."""
    with traffic.udp_socket(namespace, address, port) as sock:
        sock.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DONT)
        if first:
            traffic.exchange(sock, first)
        # Once: who has to learn of a smaller MTU first, or to see a datagram in one piece, loses the first one.
        return traffic.exchange(sock, os.urandom(size), timeout=traffic.PATIENCE)


@pytest.mark.parametrize("size", [SLIGHTLY_MORE, 4000, 20000])
def test_fragments_reach_a_pod(published: Lab, size: int) -> None:
    """Datagrams larger than the MTU arrive whole, and their answers come back."""
    require(published, Ability.FRAGMENTS)
    for client in _clients(published):
        for target in _targets(published):
            reply = _large(published.namespace(client), target.address, POD_PORT, size)
            assert (reply.pod, reply.source) == (target.name, str(client.address))


@pytest.mark.parametrize("size", [SLIGHTLY_MORE, 4000, 20000])
def test_fragments_reach_a_service(lab: Lab, size: int) -> None:
    """Fragments have no ports, and are translated with their datagram all the same.

    The userspace datapath takes a Service's first packet only in one piece (docs/pipeline.md, Limits), so there
    a small one goes first.
    """
    require(lab, Ability.FRAGMENTS)
    for client in _clients(lab):
        first = b"opens the connection" if lab.userspace else b""
        reply = _large(lab.namespace(client), _web(lab), 80, size, first=first)
        assert reply.pod in lab.topology.clusters[1].services[0].pods


def test_segments_are_cut_to_what_fits(lab: Lab) -> None:
    """Both ends of a TCP connection agree on segments that fit mc-gw0, though the Pods' devices take more."""
    for client in _clients(lab):
        with traffic.TcpClient(lab.namespace(client), str(_web(lab)), 80, timeout=20) as pod_client:
            pod_client.exchange(os.urandom(60000))
            assert pod_client.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG) <= _mtu(lab) - 40


@pytest.fixture
def narrow(lab: Lab) -> Iterator[int]:
    """Give the serving cluster's Pods devices of a small MTU, as a CNI with an overlay of its own does."""
    small = 1300
    west = lab.topology.clusters[1]

    def devices(mtu: int) -> None:
        for one in west.nodes:
            for pod in one.pods:
                netns.ip(lab.namespace(one), "link", "set", node.pod_device(one, pod), "mtu", str(mtu))

    devices(small)
    yield small
    devices(node.UPLINK_MTU)


def test_segments_are_cut_for_a_narrow_destination(lab: Lab, narrow: int) -> None:
    """No ICMP error from inside the other cluster is needed: the segment size is right from the start."""
    for client in _clients(lab):
        with traffic.TcpClient(lab.namespace(client), str(_web(lab)), 80, timeout=20) as pod_client:
            pod_client.exchange(os.urandom(60000))
            assert pod_client.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG) <= narrow - 40


def _refused(namespace: str, address: IPv4Address, port: int) -> None:
    """Send datagrams until the ICMP error has come back to the socket."""
    with traffic.udp_socket(namespace, address, port) as sock:
        sock.settimeout(0.2)

        def told() -> bool:
            try:
                sock.send(b"knock")
                sock.recv(100)
            except ConnectionRefusedError:
                return True
            except TimeoutError:
                return False
            raise AssertionError("somebody answered")

        wait_until(told, f"{address}:{port} to refuse", timeout=traffic.PATIENCE)


def test_a_pod_that_refuses_is_heard(published: Lab) -> None:
    """The ICMP error for a closed port reaches the client's socket."""
    for client in _clients(published):
        for target in _targets(published):
            _refused(published.namespace(client), target.address, CLOSED_PORT)


def test_a_service_that_refuses_is_heard(lab: Lab) -> None:
    """The error is translated with its connection, at the serving gateway and, with SNAT, at the client's."""
    service = lab.topology.clusters[1].services[2]
    for client in _clients(lab):
        _refused(lab.namespace(client), service.cluster_ip, service.port)


def test_clients_with_one_source_port_are_kept_apart(lab: Lab) -> None:
    """Two Pods with the same source port talk to one endpoint at the same time, behind one address with SNAT."""
    seen = set()
    with ExitStack() as stack:
        sockets = []
        for client in _clients(lab):
            sock = traffic.udp_socket(lab.namespace(client), _web(lab), 80, source_port=4000)
            sockets.append(stack.enter_context(sock))
        for _ in range(3):
            for sock in sockets:
                reply = traffic.exchange(sock, os.urandom(16))
                seen.add((reply.source, reply.port))
    assert len(seen) == len(sockets)


def test_reverse_path_filters_are_the_nodes_own(lab: Lab) -> None:
    """Strict on every device but mc-gw0 (RFC 3704): nothing but our own device was changed, and replies pass."""
    for _, one in lab.topology.nodes():

        def read() -> dict[str, str]:
            paths = Path("/proc/sys/net/ipv4/conf").glob("*/rp_filter")
            return {path.parent.name: path.read_text().strip() for path in paths}

        filters = netns.call(lab.namespace(one), read)
        assert filters["mc-gw0"] == "2"
        values = {filters[name] for name in ("all", "default", node.pod_device(one, one.pods[0]))}
        assert values == {"1"}
