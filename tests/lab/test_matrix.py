"""Packets between clusters, for every CNI profile and encapsulation, programmed by real agents."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable, Iterator
from ipaddress import IPv4Address

import pytest

from devtools.errors import LabError
from devtools.lab.lab import Lab
from devtools.lab.topology import POD_PORT, Cni, Node, Underlay, generate
from devtools.nodes import netns, underlay
from devtools.nodes import node as node_module
from devtools.traffic import matrix, traffic
from devtools.traffic.capture import ETH_P_IP, ETH_P_IPV6, Capture
from devtools.waiting import wait_until
from mcagent.core.addresses.underlay import source_of
from mcagent.core.fragments.tunnel_guard import BFD_PORT
from mcagent.model.dataplane.facts import DatapathType
from mcagent.model.dataplane.resources import TunnelType
from tests.worlds.profiles import WITH_OUR_AGENTS, Ability, require

pytestmark = pytest.mark.datapath

CLOSED_PORT = 9  # of Pods

_DIFFERENT = [  # addresses: each with each encapsulation; each, and each encapsulation, on both underlays
    (Cni.FLANNEL, TunnelType.GENEVE, Underlay.IPV4),
    (Cni.FLANNEL, TunnelType.VXLAN, Underlay.IPV6),
    (Cni.AWS_VPC, TunnelType.GENEVE, Underlay.IPV6),
    (Cni.AWS_VPC, TunnelType.VXLAN, Underlay.IPV4),
    (Cni.OVERLAP, TunnelType.GENEVE, Underlay.IPV6),
    (Cni.OVERLAP, TunnelType.VXLAN, Underlay.IPV4),
]
_FORWARDING = set(WITH_OUR_AGENTS) - {cni for cni, _, _ in _DIFFERENT}
_SHAPES = [*_DIFFERENT, *((cni, TunnelType.GENEVE, Underlay.IPV4) for cni in sorted(_FORWARDING))]
# On the userspace datapath each profile, encapsulation and underlay once: the kernel lane has every shape.
_FEW = (_SHAPES[0], _SHAPES[2], *_SHAPES[5:])
# Sources are kept, and translated.
_FIRST_TIER = (_SHAPES[0], _SHAPES[5])
_PARAMETERS = [
    pytest.param(shape, marks=pytest.mark.packets) if shape in _FIRST_TIER else shape for shape in _SHAPES
]


@pytest.fixture(scope="module", params=_PARAMETERS, ids=lambda shape: "-".join(map(str, shape)))
def lab(request: pytest.FixtureRequest, make_lab: Callable[..., Lab], datapath: DatapathType) -> Iterator[Lab]:
    """Two clusters of one gateway and one worker, of each profile and encapsulation."""
    if datapath is DatapathType.NETDEV and request.param not in _FEW:
        pytest.skip("the kernel lane has every shape")
    cni, tunnel, family = request.param
    with make_lab(generate(cni=cni, tunnel=tunnel, underlay=family), liveness=False) as lab:
        yield lab


def _known(node: Node) -> str:
    """Return the IPv4 address by which other clusters see a gateway."""
    return str(matrix.seen_as(node))


def test_every_way_of_the_matrix(lab: Lab) -> None:
    """Pods and exported Services are reached, one copy each, with the right source; nothing else is."""
    cases = list(matrix.cases(lab.topology))
    assert any(case.closed for case in cases)
    assert any(len(case.pods) > 1 for case in cases)
    wrong = [f"{r.case.source.name} -> {r.case.target}: {r.problem}" for r in _results(lab, cases) if not r.ok]
    assert wrong == []


def _results(lab: Lab, every: list[matrix.Case]) -> list[matrix.Result]:
    return [matrix.run(lab, case) for case in every]


def test_tunnels_vouch_for_no_identity(lab: Lab) -> None:
    """The VNI of every packet in a tunnel says "unknown" (0xffffff), with either encapsulation."""
    east, west = lab.topology.clusters
    token = os.urandom(16)
    ethertype, ip = (ETH_P_IP, 20) if east.subnet6 is None else (ETH_P_IPV6, 40)
    with contextlib.ExitStack() as stack:
        wires = [
            stack.enter_context(Capture(lab.underlay, underlay.bridge(number), ethertype=ethertype))
            for number in (1, 2)
        ]
        traffic.udp(lab.namespace(east.workers[0].pods[0]), west.services[0].cluster_ip, 80, token)
        for wire in wires:
            frames = [frame for frame in wire.frames() if token in frame]
            assert frames
            # Ethernet, IP, UDP; in the header of either the VNI is behind four bytes (RFC 7348, RFC 8926)
            assert {frame[14 + ip + 8 + 4 :][:3] for frame in frames} == {b"\xff\xff\xff"}


def test_source_addresses_are_kept_where_they_can_be(lab: Lab) -> None:
    """Pods are seen by their own address, but by the gatewayIP where both clusters use the same Pod CIDR."""
    east, west = lab.topology.clusters
    for node in east.nodes:
        pod = node.pods[0]
        reply = traffic.tcp(lab.namespace(pod), west.services[0].cluster_ip, 80)
        kept = lab.topology.clusters[0].cni is not Cni.OVERLAP
        assert reply.source == (str(pod.address) if kept else _known(east.gateways[0]))


def test_a_client_on_a_nodes_own_network_is_seen_as_the_gateway(lab: Lab) -> None:
    """Host-network clients reach Services under the gatewayIP, or their own where Nodes are in the Pod CIDR."""
    east, west = lab.topology.clusters
    for node in east.nodes:
        reply = traffic.tcp(lab.namespace(node), west.services[0].cluster_ip, 80)
        if east.cni is not Cni.AWS_VPC or node.address6 is not None:
            expected = _known(east.gateways[0])
        else:  # its address is in the Pod CIDR, so it is not translated; servers see that of a gateway mapped
            expected = _known(node) if node in east.gateways else str(node.address)
        assert reply.source == expected
        assert reply.pod in west.services[0].pods


def test_a_client_by_the_port_of_bfd_is_answered(lab: Lab) -> None:
    """Behind the gatewayIP it has another one: the answer would be taken for a forged packet of a tunnel."""
    east, west = lab.topology.clusters
    for client in (east.workers[0], east.workers[0].pods[0]):
        namespace, target = lab.namespace(client), west.services[0].cluster_ip
        with traffic.udp_socket(namespace, target, 80, source_port=BFD_PORT) as udp_socket:
            assert traffic.exchange(udp_socket, os.urandom(16)).pod in west.services[0].pods


def test_a_closed_port_is_reported_to_a_client_whose_source_is_translated(lab: Lab) -> None:
    """The ICMP error of a Pod quotes what the client sent, translated back, also where eBPF forwards past nft."""
    east, west = lab.topology.clusters
    require(lab, Ability.TRANSLATED_ERRORS)
    for node in east.nodes:
        for server in west.nodes:
            with pytest.raises(LabError, match="refused"):
                traffic.udp(lab.namespace(node), server.pods[0].address, CLOSED_PORT, b"?")


def test_every_endpoint_of_a_service_is_used_and_only_these(lab: Lab) -> None:
    """Many connections spread over all Pods of the exported Service."""
    east, west = lab.topology.clusters
    client = lab.namespace(east.workers[0].pods[0])
    pods = {traffic.tcp(client, west.services[0].cluster_ip, 80).pod for _ in range(24)}
    assert pods == set(west.services[0].pods)


def test_large_transfers_pass(lab: Lab) -> None:
    """A megabyte each way, so segments are cut to what fits through the tunnel."""
    east, west = lab.topology.clusters
    for node in east.nodes:
        with traffic.TcpClient(
            lab.namespace(node.pods[0]), str(west.services[0].cluster_ip), 80, timeout=20
        ) as client:
            for _ in range(16):
                client.exchange(os.urandom(65536))


def _tcp(namespace: str, address: IPv4Address, port: int) -> traffic.Reply:
    return traffic.tcp(namespace, address, port, timeout=0.5)


def _udp(namespace: str, address: IPv4Address, port: int) -> traffic.Reply:
    return traffic.udp(namespace, address, port, b"x", timeout=0.5)


@pytest.mark.parametrize("probe", [_tcp, _udp])
def test_what_is_not_exported_is_closed(lab: Lab, probe: Callable[[str, IPv4Address, int], traffic.Reply]) -> None:
    """Neither the private Service, nor another port of the exported one, nor an address of nobody answers."""
    east, west = lab.topology.clusters
    client = lab.namespace(east.workers[0].pods[0])
    targets: list[tuple[IPv4Address, int]] = [
        (west.services[1].cluster_ip, 80),
        (west.services[0].cluster_ip, POD_PORT),
        (west.service_cidr[77], 80),
    ]
    for address, port in targets:
        with pytest.raises(LabError):
            probe(client, address, port)


def _spoofs(lab: Lab) -> list[IPv4Address]:
    """Addresses that no packet from the first cluster may have as its source in the second."""
    west = lab.topology.clusters[1]
    sources = [source_of(west.gateways[0].tunnel_address), IPv4Address("203.0.113.7"), west.service_cidr[200]]
    return sources if west.cni is Cni.OVERLAP else [west.gateways[0].pods[0].address, *sources]


@pytest.fixture
def loose(lab: Lab) -> Iterator[None]:
    """Switch reverse path filtering off on the first cluster's Nodes: the dataplane has to do it by itself."""
    nodes = lab.topology.clusters[0].nodes
    names = ["all", *(node_module.pod_device(node, pod) for node in nodes for pod in node.pods)]
    for node in nodes:
        values = {f"net/ipv4/conf/{name}/rp_filter": "0" for name in names}
        underlay.set_sysctl(lab.namespace(node), values)
    yield
    for node in nodes:
        underlay.set_sysctl(lab.namespace(node), {f"net/ipv4/conf/{name}/rp_filter": "1" for name in names})


@pytest.mark.usefixtures("loose")
def test_a_pod_with_a_false_source_address_reaches_nobody(lab: Lab) -> None:
    """A packet from a Pod with an address that its Node does not own never arrives in the other cluster."""
    east, west = lab.topology.clusters
    through = west.services[0].cluster_ip
    with contextlib.ExitStack() as stack:
        captures = [stack.enter_context(Capture(lab.namespace(pod))) for node in west.nodes for pod in node.pods]
        for node in east.nodes:
            sender = lab.namespace(node.pods[0])
            for address in _spoofs(lab):
                token = os.urandom(16)
                netns.ip(sender, "address", "add", f"{address}/32", "dev", "lo")
                try:
                    stack.enter_context(traffic.udp_socket(sender, through, 80, str(address))).send(token)
                finally:
                    netns.ip(sender, "address", "del", f"{address}/32", "dev", "lo")
                # An honest packet sent after it on the same way has arrived: the other one would have.
                traffic.udp(sender, through, 80, b"honest")
                # (The AWS VPC CNI's SNAT makes an honest one of it: that may arrive.)
                sources = [packet.source for capture in captures for packet in capture.holding(token)]
                assert address not in sources, node.name
                assert sources == [] or east.cni is Cni.AWS_VPC, node.name


def _frame(source: IPv4Address, destination: IPv4Address, port: int, payload: bytes) -> bytes:
    """An Ethernet frame with a UDP datagram, as a gateway puts it into a tunnel."""
    udp = struct.pack("!HHHH", 40000, port, 8 + len(payload), 0) + payload  # no checksum (RFC 768)
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(udp), 1, 0, 60, 17, 0) + source.packed + destination.packed
    total = sum(struct.unpack("!10H", head))
    checksum = ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
    head = head[:10] + struct.pack("!H", checksum) + head[12:]
    return bytes.fromhex("aabbccddeef00a6d630000010800") + head + udp


def test_a_remote_gateway_that_lies_about_sources_reaches_nobody(lab: Lab) -> None:
    """What comes by a cluster's tunnel must have that cluster's addresses, else it is dropped."""
    east, west = lab.topology.clusters
    gateway = east.gateways[0]
    tunnels = lab.status(gateway.name)["tunnels"]
    assert isinstance(tunnels, list)
    (tunnel,) = [one for one in tunnels if one["peerKind"] == "remote"]
    honest = east.workers[0].pods[0].address
    if east.cni is Cni.OVERLAP:
        honest = source_of(gateway.tunnel_address)
    with contextlib.ExitStack() as stack:
        captures = [stack.enter_context(Capture(lab.namespace(pod))) for node in west.nodes for pod in node.pods]

        def arrived(source: IPv4Address) -> int:
            token = os.urandom(16)
            for address, port in ((west.services[0].cluster_ip, 80), (west.workers[0].pods[0].address, POD_PORT)):
                frame = _frame(source, address, port, token).hex()
                actions = f"in_port=controller packet={frame} actions=output:{tunnel['ofport']}"
                lab.ovs(gateway.name).ofctl("packet-out", lab.ovs(gateway.name).mgmt("br-mc"), actions)
            traffic.udp(lab.namespace(gateway), west.services[0].cluster_ip, 80, b"after it")
            return sum(capture.count(token) for capture in captures)

        # Where Pods are not published only the Service answers.
        right = 1 if east.cni is Cni.OVERLAP else 2
        wait_until(lambda: arrived(honest) == right, "an honest packet to arrive once", timeout=traffic.PATIENCE)
        for address in [*_spoofs(lab), west.workers[0].pods[0].address]:
            assert arrived(address) == 0, str(address)


def test_the_agents_find_nothing_left_to_do(lab: Lab) -> None:
    """With all that traffic, every dataplane still equals what should be; nobody has repaired anything."""
    for _, node in lab.topology.nodes():
        assert lab.ready(node.name)
        lab.mcagent(node.name, "plan", "--exit-code")
        assert lab.status(node.name)["driftCorrections"] == 0
        assert lab.status(node.name)["problems"] == []


def test_cleanup_leaves_nothing_of_ours_and_everything_else(lab: Lab) -> None:
    """After `mcagent cleanup` bridge, device, routes, rules and nft table are gone, and only these."""
    _, node = lab.topology.node("east-w1")
    namespace, ovs = lab.namespace(node), lab.ovs(node.name)
    bridges = set(ovs.vsctl("list-br").split())
    lab.stop_agent(node.name)
    try:
        lab.mcagent(node.name, "cleanup")
        assert set(ovs.vsctl("list-br").split()) == bridges - {"br-mc"}
        assert "mc-gw0" not in netns.ip(namespace, "-br", "link")
        assert "proto 111" not in netns.ip(namespace, "route", "show", "table", "all")
        assert "28003" not in netns.ip(namespace, "rule") + netns.ip(namespace, "route", "show", "table", "all")
        tables = netns.execute(namespace, ["nft", "list", "tables"]).stdout
        assert "table ip mcagent" not in tables
        assert "table ip kube-proxy" in tables
        assert lab.mcagent(node.name, "cleanup").strip() == "nothing of ours is here"
    finally:
        lab.start_agent(node.name)
        lab.wait_ready(node.name)
    client = lab.namespace(node.pods[0])
    assert traffic.tcp(client, lab.topology.clusters[1].services[0].cluster_ip, 80).pod
