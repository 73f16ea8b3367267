"""Packets through a Node's kernel with our routes and chains: a Pod, the host port, and the underlay."""

from __future__ import annotations

import socket
import struct
import threading
import time
from ipaddress import ip_address, ip_network

import pytest

from devtools.nodes import netns
from mcagent.core.fragments.kernel import netfilter
from mcagent.core.fragments.quoted import quoted_addresses, quoted_prefixes, quoted_rules
from mcagent.model.config import Config
from mcagent.model.dataplane.resources import (
    NftChain,
    NftSet,
    Resource,
)
from mcagent.model.net import PodPrefix
from mcagent.model.node_state import AcceptedCluster
from mcagent.model.plan import Step
from tests.contract.inside import make
from tests.worlds.kernel_node import FAR, GATEWAY, LAN, MAPPED, MTU, NODE, POD, Wires, udp_socket, wires

__all__ = ["wires"]  # fixtures
pytestmark = pytest.mark.contract

PODS = "10.244.0.0/16"
OTHER_POD = "10.244.2.2"  # of another Node
MSS = "tcp flags & (syn|rst) == syn tcp option maxseg size set rt mtu"


def chain(name: str, type_: str, hook: str, priority: int, *rules: str) -> NftChain:
    """Return a chain of our table."""
    return NftChain(table="mcagent", name=name, type=type_, hook=hook, priority=priority, rules=rules)


def pods(*cidrs: str) -> NftSet:
    """Return the set of Pod networks, with more of them if asked for."""
    elements = tuple(ip_network(cidr) for cidr in (*cidrs, PODS))
    return NftSet(table="mcagent", name="mct_pods", elements=elements)


IDENTITY = chain("mct_post", "nat", "postrouting", 99, 'oifname "mc-gw0" ip saddr @mct_pods snat to ip saddr')
CLAMP = chain("mct_mss", "filter", "forward", -150, f'oifname "mc-gw0" {MSS}', f'iifname "mc-gw0" {MSS}')


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


NODE_PORT = f"""
table ip kube-proxy {{
  chain called {{
    type nat hook prerouting priority -100;
    ip daddr {NODE} udp dport 30000 meta mark set 0x4000 dnat to {FAR}:5000
  }}
  chain post {{
    type nat hook postrouting priority 100;
    meta mark 0x4000 masquerade
  }}
}}
"""


def test_replies_to_a_pod_of_another_node_return_by_the_node_whose_node_port_it_called(wires: Wires) -> None:
    """Only that Node can translate them back, so it leaves the source to kube-proxy."""
    netns.execute(wires.node, ["nft", "-f", "-"], stdin=NODE_PORT)
    netns.add_address(wires.lan, "lan0", f"{OTHER_POD}/32")
    netns.ip(wires.node, "route", "add", OTHER_POD, "via", LAN)
    own = (ip_address(NODE),), (ip_network("10.244.1.0/24"),)
    make(wires.nft, netfilter(Config(node_name="n"), (ip_network(PODS),), *own))
    with wires.udp(wires.far, FAR, 5000) as server, wires.udp(wires.lan, OTHER_POD) as client:
        client.sendto(b"ask", (NODE, 30000))
        source = server.recvfrom(16)[1]
        assert source[0] != OTHER_POD
        server.sendto(b"answer", source)
        assert client.recvfrom(16) == (b"answer", (NODE, 30000))
    with wires.udp(wires.far, FAR, 5000) as server, wires.udp(wires.pod, POD) as client:
        client.sendto(b"ask", (NODE, 30000))
        assert server.recvfrom(16)[1][0] == POD


@pytest.mark.parametrize(("server", "address"), [("pod", POD), ("node", NODE)])
def test_replies_to_a_mapped_address_leave_by_the_host_port(wires: Wires, server: str, address: str) -> None:
    """Of Pods and of the Node itself, with no rule of netfilter."""
    namespace = getattr(wires, server)
    with wires.udp(namespace, address, 5000) as listener, wires.udp(wires.far, MAPPED) as client:
        client.sendto(b"ask", (address, 5000))
        _, peer = listener.recvfrom(16)
        assert peer[0] == MAPPED
        listener.sendto(b"answer", peer)
        assert client.recv(16) == b"answer"


SERVER = "10.250.0.9"  # behind the default route
ROUTED = "10.245.9.9"  # in a network of the other cluster; the Node has a rule of its own to it
MASQUERADE = f"""
table ip cni {{
  chain post {{
    type nat hook postrouting priority 100;
    ip saddr {POD} oifname "uplink" snat to {NODE}
  }}
}}
"""


@pytest.mark.parametrize("exposed", [False, True])
@pytest.mark.parametrize("client", ["node", "pod"])
@pytest.mark.parametrize("server", [SERVER, ROUTED])
def test_a_reply_arrives_by_the_device_by_which_the_request_left(
    wires: Wires, client: str, server: str, exposed: bool
) -> None:
    """No other cluster answers in the name of a server behind the uplink, neither a Node nor a masqueraded Pod."""
    source = NODE if client == "node" else POD
    netns.execute(wires.node, ["nft", "-f", "-"], stdin=MASQUERADE)
    netns.ip(wires.node, "route", "add", ROUTED, "via", LAN, "table", "77")
    netns.ip(wires.node, "rule", "add", "to", ROUTED, "lookup", "77", "priority", "100")
    netns.add_address(wires.lan, "lo", f"{server}/32")
    netns.add_address(wires.far, "far0", f"{server}/32")
    settings = Config(node_name="n", expose_nodes=exposed)
    make(wires.nft, netfilter(settings, (ip_network(PODS),), (ip_address(NODE),)))
    with (
        wires.udp(getattr(wires, client), source) as asking,
        wires.udp(wires.lan, server, 123) as sock,
        wires.udp(wires.far, server, 123) as forging,
    ):
        asking.sendto(b"ask", (server, 123))
        peer = sock.recvfrom(16)[1]
        assert peer[0] == NODE
        forging.sendto(b"forged", peer)
        sock.sendto(b"answer", peer)
        assert asking.recvfrom(16) == (b"answer", (server, 123))


@pytest.mark.parametrize("exposed", [False, True])
@pytest.mark.parametrize("client", ["node", "pod"])
def test_replies_of_another_cluster_arrive(wires: Wires, client: str, exposed: bool) -> None:
    """The request left by the host port."""
    settings = Config(node_name="n", expose_nodes=exposed)
    make(wires.nft, netfilter(settings, (ip_network(PODS),), (ip_address(NODE),)))
    with (
        wires.udp(getattr(wires, client), NODE if client == "node" else POD) as asking,
        wires.udp(wires.far, FAR, 123) as sock,
    ):
        asking.sendto(b"ask", (FAR, 123))
        sock.sendto(b"answer", sock.recvfrom(16)[1])
        assert asking.recvfrom(16) == (b"answer", (FAR, 123))


def _raw(kind: int, address: str) -> socket.socket:
    raw_socket = socket.socket(socket.AF_INET, socket.SOCK_RAW, kind)
    raw_socket.settimeout(2)
    raw_socket.bind((address, 0))
    return raw_socket


def _checksum(data: bytes) -> int:
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total & 0xFFFF) + (total >> 16)
    return ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF


def _unreachable(quoted: bytes, code: int = 3, mtu: int = 0, unused: int = 0) -> bytes:
    header = struct.pack("!BBHHH", 3, code, 0, unused, mtu)
    return header[:2] + struct.pack("!H", _checksum(header + quoted)) + header[4:] + quoted


def test_icmp_errors_quote_the_addresses_of_each_side(wires: Wires) -> None:
    """To the bridge an error about a request quotes the gateway's own address; to a Pod, the mapped one."""
    pair = (ip_address(GATEWAY), ip_address(MAPPED))
    east = AcceptedCluster(cluster_id="east", cidrs=(), gateways=(), snat=False, mapped=(pair,))
    make(wires.nft, quoted_addresses(Config(node_name="n"), {"east": quoted_rules(east)}))
    with (
        netns.call(wires.far, lambda: _raw(socket.IPPROTO_ICMP, MAPPED)) as errors,
        wires.udp(wires.far, MAPPED, 4000) as client,
    ):
        client.sendto(b"anyone", (POD, 9))
        error = errors.recv(2048)[20:]
        assert (error[0], error[1], _checksum(error + bytes(len(error) % 2))) == (3, 3, 0)
        assert [socket.inet_ntoa(error[start : start + 4]) for start in (8 + 12, 8 + 16)] == [GATEWAY, POD]
        with wires.udp(wires.pod, POD, 5000) as server:
            server.connect((MAPPED, 4000))
            server.send(b"answer")
            ip = bytearray(struct.pack("!BBHHHBBH", 0x45, 0, 34, 0, 0, 64, socket.IPPROTO_UDP, 0))
            ip += socket.inet_aton(POD) + socket.inet_aton(GATEWAY)
            ip[10:12] = struct.pack("!H", _checksum(bytes(ip)))
            errors.sendto(_unreachable(bytes(ip) + struct.pack("!HHHH", 5000, 4000, 14, 0)), (POD, 0))
            with pytest.raises(ConnectionRefusedError):
                server.recv(16)


VIRTUAL, VIRTUAL_POD = "100.72.0.0/16", "100.72.1.2"
REMOTE = "100.80.0.0/16"  # the virtual Pod CIDR of another cluster with the same real one


def test_icmp_errors_quote_the_virtual_or_the_real_pod(wires: Wires) -> None:
    """To the bridge an error about a request quotes the virtual address; to a Pod, the real one, with its MTU.

    The MTU is in an error whose unused field another cluster has written for its own prefix, and in one of a Node
    that translates nothing.
    """
    prefix = PodPrefix(real=ip_network(PODS), virtual=ip_network(VIRTUAL))
    far = AcceptedCluster(cluster_id="far", cidrs=(ip_network(REMOTE),), gateways=(), snat=False)
    make(wires.nft, quoted_addresses(Config(node_name="n"), {}, quoted_prefixes((prefix,), {"far": far})))
    with (
        netns.call(wires.far, lambda: _raw(socket.IPPROTO_ICMP, FAR)) as errors,
        wires.udp(wires.far, FAR, 4000) as client,
    ):
        client.sendto(b"anyone", (POD, 9))
        error = errors.recv(2048)[20:]
        assert (error[0], error[1], _checksum(error + bytes(len(error) % 2))) == (3, 3, 0)
        assert [socket.inet_ntoa(error[start : start + 4]) for start in (8 + 12, 8 + 16)] == [FAR, VIRTUAL_POD]
        with wires.udp(wires.pod, POD, 5000) as server:
            server.setsockopt(socket.IPPROTO_IP, _MTU_DISCOVER, _DO)
            server.connect((FAR, 4000))

            def quoted() -> bytes:
                server.send(b"answer")
                ip = bytearray(struct.pack("!BBHHHBBH", 0x45, 0, 34, 0, 0x4000, 64, socket.IPPROTO_UDP, 0))
                ip += socket.inet_aton(VIRTUAL_POD) + socket.inet_aton(FAR)
                ip[10:12] = struct.pack("!H", _checksum(bytes(ip)))
                return bytes(ip) + struct.pack("!HHHH", 5000, 4000, 14, 0)

            errors.sendto(_unreachable(quoted()), (POD, 0))
            with pytest.raises(ConnectionRefusedError):
                server.recv(16)
            ends = [int(ip_network(cidr).network_address) >> 16 for cidr in (PODS, REMOTE)]
            for mtu, unused in ((900, 0), (800, (ends[0] - ends[1]) % 0xFFFF)):
                errors.sendto(_unreachable(quoted(), 4, mtu, unused), (POD, 0))
                with pytest.raises(OSError, match="Message too long"):
                    server.recv(16)
                assert server.getsockopt(socket.IPPROTO_IP, _MTU) == mtu


_MTU_DISCOVER, _DO, _MTU = 10, 2, 14  # linux/in.h: IP_MTU_DISCOVER, IP_PMTUDISC_DO, IP_MTU


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
                sizes = tuple(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG) for sock in (client, peer))
                return sizes[0], sizes[1]

    assert min(segment_sizes()) > MTU - 40, "segments are small enough without a clamp: the test shows nothing"
    make(wires.nft, [CLAMP])
    assert all(MTU - 60 <= size <= MTU - 40 for size in segment_sizes())


def test_filling_the_table_again_under_traffic_loses_and_masquerades_nothing(wires: Wires) -> None:
    """New flows every few milliseconds, twenty rewrites of set and chains under them: all arrive as they left."""
    rule = ["-t", "nat", "-A", "POSTROUTING", "-s", PODS, "!", "-d", PODS, "-j", "MASQUERADE"]
    netns.execute(wires.node, ["iptables-nft", "-w", *rule])
    table: list[Resource] = [IDENTITY, CLAMP]
    many = pods(*(f"10.{n // 256}.{n % 256}.0/25" for n in range(2000)))
    make(wires.nft, [many, *table])
    steps = [Step(old=one, new=one) for one in (many, *table)]
    results: list[int] = []

    def rewrite() -> None:
        results.extend(len(wires.nft.apply(steps).failed) for _ in range(20))

    probes = netns.call(wires.pod, lambda: [udp_socket(POD, 0) for _ in range(800)])
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
