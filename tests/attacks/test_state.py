"""State of Nodes and gateways under attack: liveness, connection tracking; and bridge addresses (flannel)."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import IPv4Address
from typing import Any

import pytest

from devtools.errors import LabError
from devtools.lab import objects
from devtools.lab.faults import Settled
from devtools.lab.lab import Lab
from devtools.lab.topology import POD_PORT, Node, Pod, Service, generate
from devtools.nodes import netns
from devtools.traffic import traffic
from tests.attacks import packets
from tests.attacks.catalogue import Attacker, Group, attack
from tests.waiting import until

pytestmark = pytest.mark.datapath

by_pod = partial(attack, Group.STATE, Attacker.POD)
by_user = partial(attack, Group.NODES, Attacker.USER)

KUBELET, BFD_PORT = 10250, 3784
RATE, SYNS = 50, 3000  # new connections a second that are let in, and how many an attacker opens
ZONES = {"arrival": 28003, "service": 28004}  # of conntrack, by default
CLOSED = "nft: out of the bridge into the Node itself comes only what the bridge translated, and replies"
BFD_MAC_ONLY = "BFD is what comes with OVS' own destination MAC, and on data the pipeline writes another"

_EXTERNAL = """\
table ip external {{
  chain prerouting {{
    type nat hook prerouting priority dstnat;
    ip daddr {address} tcp dport 80 dnat to {pod}
  }}
}}
"""


@dataclass(frozen=True)
class World:
    """The lab, a Pod of the first cluster, and the second cluster's Nodes."""

    lab: Lab
    pod: str  # namespace of a Pod on a worker
    nodes: tuple[Node, Node]  # gateway, worker

    def bridge_address(self, node: Node) -> str:
        """Return the address that flannel's and kindnet's bridge has on a Node."""
        assert node.pod_cidr is not None
        return str(node.pod_cidr[1])


@pytest.fixture(scope="module")
def lab(make_lab: Callable[..., Lab]) -> Lab:
    """Three clusters of a gateway and a worker; the second lets each of the others open few connections."""
    topology = generate(clusters=3)
    east, west, north = topology.clusters
    west = replace(west, config={"newConnections": RATE})
    return make_lab(replace(topology, clusters=(east, west, north)), liveness=False)


@pytest.fixture(scope="module")
def world(lab: Lab) -> Iterator[World]:
    """The second cluster's Nodes have a bridge as flannel's, and kubelet listens on it."""
    east, west = lab.topology.clusters[:2]
    world = World(lab, lab.namespace(east.workers[0].pods[0]), (west.gateways[0], west.workers[0]))
    for node in world.nodes:
        netns.ip(lab.namespace(node), "link", "add", "cni0", "type", "bridge")
        netns.ip(lab.namespace(node), "address", "add", f"{world.bridge_address(node)}/24", "dev", "cni0")
        netns.ip(lab.namespace(node), "link", "set", "cni0", "up")
    gateway, worker = (lab.namespace(node) for node in world.nodes)
    with packets.listening(gateway, KUBELET), packets.listening(worker, KUBELET):
        yield world


@attack(
    Group.NODES,
    Attacker.POD,
    wants="open a connection to the kubelet of a worker by the CNI's bridge address in its Pod CIDR",
    stopped_by=CLOSED,
)
def test_the_bridge_address_of_a_worker(world: World) -> None:
    """The first address of a worker's Pod CIDR is the Node's own, and closed."""
    assert not packets.connects(world.pod, world.bridge_address(world.nodes[1]), KUBELET, within=packets.SILENCE)
    assert packets.connects(world.lab.namespace(world.nodes[0]), world.bridge_address(world.nodes[1]), KUBELET)


@attack(
    Group.NODES,
    Attacker.POD,
    wants="open a connection to the kubelet of a gateway Node by the CNI's bridge address in its Pod CIDR",
    stopped_by=CLOSED,
)
def test_the_bridge_address_of_a_gateway(world: World) -> None:
    """So is that of a gateway."""
    assert not packets.connects(world.pod, world.bridge_address(world.nodes[0]), KUBELET, within=packets.SILENCE)
    assert packets.connects(world.lab.namespace(world.nodes[1]), world.bridge_address(world.nodes[0]), KUBELET)


@by_user(
    wants="export a Node's own ports by an endpoint at an address in the Pod CIDR that the CNI gave the Node",
    stopped_by="nft: what the bridge has translated reaches a Node at the addresses of its Node object only",
)
@pytest.mark.parametrize("index", [0, 1], ids=["gateway", "worker"])
def test_an_endpoint_at_an_address_of_the_cni(world: World, index: int) -> None:
    """Cilium's and Calico's Nodes have one. The Service works with a Pod, and not with that address."""
    node, west = world.nodes[index], world.lab.topology.clusters[1]
    assert node.pod_cidr is not None
    namespace, address = world.lab.namespace(node), node.pod_cidr[220]
    netns.ip(namespace, "address", "add", f"{address}/32", "dev", "lo")
    service = Service(name=f"own-{index}", cluster_ip=west.service_cidr[180 + index], pods=(node.pods[0].name,))
    endpoint_slice: Any
    (endpoint_slice,) = objects.endpoint_slices(world.lab.topology, service)
    api = world.lab.api(west.name)
    with packets.listening(namespace, service.target_port):
        api.create_all([objects.service_object(service), endpoint_slice, objects.export_object(service)])
        until(lambda: packets.connects(world.pod, service.cluster_ip, service.port, within=packets.SILENCE))
        endpoints = [{"addresses": [str(address)], "nodeName": node.name, "conditions": {"ready": True}}]
        api.patch("EndpointSlice", endpoint_slice["metadata"]["name"], {"endpoints": endpoints}, service.namespace)
        until(lambda: not packets.connects(world.pod, service.cluster_ip, service.port, within=packets.SILENCE))
        assert packets.connects(world.lab.namespace(world.nodes[1 - index]), address, service.target_port)


@by_user(
    wants="send to daemons on a Node by an endpoint at the broadcast address of the Node's Pod network",
    stopped_by="nft: what the bridge has translated reaches a Node at the addresses of its Node object only",
)
@pytest.mark.parametrize("index", [0, 1], ids=["gateway", "worker"])
def test_an_endpoint_at_a_broadcast_address(world: World, index: int) -> None:
    """Datagrams to an exported Service arrive at its Pod, but at no socket of the Node."""
    node, west = world.nodes[index], world.lab.topology.clusters[1]
    assert node.pod_cidr is not None
    address, pod = west.service_cidr[190 + index], node.pods[0]
    name = f"heard-{index}"
    service = Service(name=name, cluster_ip=address, pods=(pod.name,), target_port=10256, protocols=("UDP",))
    endpoint_slice: Any
    (endpoint_slice,) = objects.endpoint_slices(world.lab.topology, service)
    api = world.lab.api(west.name)
    with (
        packets.listening(world.lab.namespace(pod), service.target_port, socket.SOCK_DGRAM) as own,
        packets.listening(world.lab.namespace(node), service.target_port, socket.SOCK_DGRAM) as server,
    ):

        def arrives(at: socket.socket) -> bool:
            sent = packets.token()
            packets.datagram(world.pod, address, service.port, sent)
            return packets.received(at, sent, within=packets.SILENCE)

        api.create_all([objects.service_object(service), endpoint_slice, objects.export_object(service)])
        until(lambda: arrives(own))
        endpoint = {"addresses": [str(node.pod_cidr[255])], "nodeName": node.name, "conditions": {"ready": True}}
        name = endpoint_slice["metadata"]["name"]
        api.patch("EndpointSlice", name, {"endpoints": [endpoint]}, service.namespace)
        until(lambda: not arrives(own))
        assert not arrives(server)


@attack(
    Group.NODES,
    Attacker.POD,
    wants="send to the broadcast address of a Node's Pod network, which daemons on the Node hear",
    stopped_by=CLOSED,
)
def test_the_broadcast_address(world: World) -> None:
    """The last address of a Node's Pod CIDR reaches no socket of the Node."""
    node = world.nodes[1]
    assert node.pod_cidr is not None
    with packets.listening(world.lab.namespace(node), 10255, socket.SOCK_DGRAM) as server:
        sent = packets.token()
        packets.datagram(world.pod, node.pod_cidr[255], 10255, sent)
        assert not packets.received(server, sent, within=packets.SILENCE)


@attack(
    Group.NODES,
    Attacker.POD,
    wants="reach a Service that was never exported by an external address that kube-proxy translates",
    stopped_by="nft, after kube-proxy's destination NAT: it translates nothing that another cluster sends",
)
def test_an_external_address(world: World) -> None:
    """An external or load balancer's address inside a published Pod CIDR leads other clusters nowhere."""
    node = world.nodes[1]
    assert node.pod_cidr is not None
    address, pod = node.pod_cidr[200], node.pods[0]
    rules = _EXTERNAL.format(address=address, pod=f"{pod.address}:{POD_PORT}")
    netns.execute(world.lab.namespace(node), ["nft", "-f", "-"], stdin=rules)
    assert not packets.connects(world.pod, address, 80, within=packets.SILENCE)
    assert packets.connects(world.lab.namespace(world.nodes[0]), address, 80)


def _bfd(state: int) -> bytes:
    """Return a BFD control packet that says of a session, to whom it does not know: it is down (RFC 5880, 4.1)."""
    return struct.pack("!BBBBIIIII", 0x20, state << 6, 3, 24, 0x6D63, 0, 100_000, 100_000, 0)


def _slow_paths(lab: Lab, node: Node, protocol: str) -> list[str]:
    """Return the flows of a datapath by which packets go to ovs-vswitchd one by one, for a protocol of its own."""
    flows = lab.ovs(node.name).appctl("dpctl/dump-flows").splitlines()
    return [flow for flow in flows if f"slow_path({protocol})" in flow and "00:23:20:00:00:01" not in flow]


@by_pod(
    wants="have gateways swallow a tenant's traffic, on UDP port 3784",
    stopped_by=BFD_MAC_ONLY,
)
def test_a_tenants_bfd_is_data(world: World) -> None:
    """A datagram to a Pod of another cluster on BFD's port arrives as any other."""
    pod = world.nodes[1].pods[0]
    with packets.listening(world.lab.namespace(pod), BFD_PORT, socket.SOCK_DGRAM) as server:
        sent = packets.token()
        assert packets.arrives(server, sent, lambda: packets.datagram(world.pod, pod.address, BFD_PORT, sent))


@by_pod(
    wants="have ovs-vswitchd look at every packet that a Pod sends to UDP port 3784",
    stopped_by=BFD_MAC_ONLY,
)
def test_a_tenants_bfd_costs_no_upcalls(world: World) -> None:
    """No Node on the way has a flow that sends such packets to ovs-vswitchd; all of them arrive."""
    pod = world.nodes[1].pods[0]
    with packets.listening(world.lab.namespace(pod), BFD_PORT, socket.SOCK_DGRAM) as server:
        sent = [packets.token() for _ in range(50)]
        for one in sent:
            packets.datagram(world.pod, pod.address, BFD_PORT, one)
        swallowed = [
            flow for _, node in world.lab.topology.nodes() for flow in _slow_paths(world.lab, node, "bfd")
        ]
        assert swallowed == []
        last = sent[-1]
        assert packets.arrives(server, last, lambda: packets.datagram(world.pod, pod.address, BFD_PORT, last))


@by_pod(
    wants="take down the tunnel to its own gateway by forged BFD, from the host's network with a TTL of 255",
    stopped_by=BFD_MAC_ONLY,
)
def test_a_tenant_cannot_end_liveness(world: World, settled: Settled) -> None:
    """A flood of BFD packets that say "down" changes no tunnel's state, and no connection notices.

    Open vSwitch takes BFD with a TTL of 255 only (RFC 5881, section 5): what a Node forwards has less.
    """
    settled.wait()
    pod = world.nodes[1].pods[0]
    host = world.lab.namespace(world.lab.topology.clusters[0].workers[0])
    before = _flaps(world.lab)
    with traffic.TcpClient(world.pod, str(pod.address), POD_PORT) as client:
        for _ in range(100):
            for state in (0, 1):  # AdminDown, Down
                packets.datagram(host, pod.address, BFD_PORT, _bfd(state), ttl=255)
            client.exchange(b"x" * 64)
    assert _flaps(world.lab) == before


def _flaps(lab: Lab) -> dict[str, str]:
    """Return of every tunnel what its BFD says, with the number of its state's changes."""
    flaps = {}
    for _, node in lab.topology.nodes():
        rows = lab.ovs(node.name).vsctl(
            "--format=csv", "--no-headings", "--columns=name,bfd_status", "list", "interface"
        )
        for line in rows.splitlines():
            name, _, status = line.partition(",")
            words = [
                word
                for word in status.replace('"', "").strip("{}").split(", ")
                if word.startswith(("state=", "flap"))
            ]
            if words:
                flaps[f"{node.name} {name}"] = " ".join(words)
    return flaps


def _flood(world: World, address: IPv4Address, port: int) -> float:
    """Open many connections from a Pod of the first cluster; return for how long, in seconds."""
    attacker = world.lab.topology.clusters[0].workers[0].pods[0].address
    begin = time.monotonic()
    segments = (packets.tcp(attacker, address, (20000 + n, port), syn=True) for n in range(SYNS))
    assert packets.flood(world.pod, attacker, address, segments) == SYNS
    return time.monotonic() - begin


def _entries(lab: Lab, node: Node, zone: str, address: IPv4Address) -> int:
    """Return how many connections to an address a Node's bridge tracks in a zone."""
    text = lab.ovs(node.name).appctl("dpctl/dump-conntrack", f"zone={ZONES[zone]}")
    return sum(f"dst={address}," in line.partition(",reply=")[0] for line in text.splitlines())


def _fine_elsewhere(world: World) -> None:
    """Fail unless a third cluster, and the Nodes of the second, open connections as ever."""
    pod = world.nodes[1].pods[0]
    north = world.lab.topology.clusters[2].workers[0].pods[0]
    for client in (world.lab.namespace(north), world.lab.namespace(world.nodes[0])):
        for _ in range(5):
            assert traffic.tcp(client, pod.address, POD_PORT).pod == pod.name


@pytest.mark.timing
@by_pod(
    wants="fill the connection tracking of another cluster's Nodes by a flood of SYNs",
    stopped_by="a meter for each remote cluster, in front of every new entry (`newConnections`)",
)
def test_a_flood_of_connections_to_a_node(world: World) -> None:
    """Few of thousands become entries, in the bridge and in the Node's kernel; other clusters do not notice.

    What is no new connection passes no meter: a stream of datagrams that nobody answers arrives whole.
    """
    node = world.nodes[1]
    assert node.pod_cidr is not None
    nobody, pod = node.pod_cidr[77], node.pods[0]
    begin = time.monotonic()
    with traffic.TcpClient(world.pod, str(pod.address), POD_PORT) as client:
        _flood(world, nobody, 80)
        _fine_elsewhere(world)
        client.exchange(b"x" * 64)
    allowed = RATE * (2 + time.monotonic() - begin)
    entry_count = _entries(world.lab, node, "arrival", nobody)
    assert 0 < entry_count <= allowed
    kernel = netns.execute(world.lab.namespace(node), ["cat", "/proc/net/nf_conntrack"]).stdout.splitlines()
    assert sum(f" dst={nobody} " in line and " zone=" not in line for line in kernel) <= allowed
    _streams(world, pod)


def _streams(world: World, pod: Pod) -> None:
    """Fail unless many datagrams of one connection, which nobody answers, all arrive."""
    with (
        packets.listening(world.lab.namespace(pod), 9999, socket.SOCK_DGRAM) as server,
        traffic.udp_socket(world.pod, pod.address, 9999) as sock,
    ):
        # lets the meter recover
        until(lambda: sock.send(b"first") and packets.received(server, b"first", within=packets.SILENCE))
        for _ in range(10):  # as many at a time as a socket keeps
            sent = [packets.token() for _ in range(RATE)]
            for token in sent:
                sock.send(token)
            assert all(packets.received(server, token) for token in sent)


@pytest.mark.timing
@by_pod(
    wants="fill the connection tracking of another cluster's gateways through an exported Service",
    stopped_by="a meter for each remote cluster, in front of every new entry (`newConnections`)",
)
def test_a_flood_of_connections_to_a_service(world: World) -> None:
    """Few of thousands get an endpoint; the exported Service goes on serving a third cluster."""
    service = world.lab.topology.clusters[1].services[0]
    begin = time.monotonic()
    _flood(world, service.cluster_ip, service.port)
    north = world.lab.namespace(world.lab.topology.clusters[2].workers[0].pods[0])
    for _ in range(5):
        assert traffic.tcp(north, service.cluster_ip, service.port).pod in service.pods
    allowed = RATE * (2 + time.monotonic() - begin)
    assert 0 < _entries(world.lab, world.nodes[0], "service", service.cluster_ip) <= allowed + 5


@by_pod(
    wants="keep a connection to a Service after its export is deleted, by sending without a pause",
    stopped_by="gateways: packets of translated connections pass only by a flow of their exported Service",
)
def test_a_connection_after_the_end_of_the_export(world: World) -> None:
    """UDP, whose connections have no end of their own, from the same port all the time."""
    lab, west = world.lab, world.lab.topology.clusters[1]
    service, gateway = west.services[0], west.gateways[0].name

    def exported() -> bool:
        exports: Any = lab.status(gateway)["exports"]
        return f"{service.namespace}/{service.name}" in exports

    with traffic.udp_socket(world.pod, service.cluster_ip, service.port) as stream:
        assert traffic.exchange(stream, b"exported").pod
        lab.api(west.name).delete("ServiceExport", service.name, service.namespace)
        try:
            until(lambda: not exported())
            for number in range(3):
                with pytest.raises(LabError):
                    traffic.exchange(stream, b"not exported %d" % number, timeout=packets.SILENCE)
        finally:
            lab.api(west.name).create(objects.export_object(service))
            until(exported)
        assert traffic.exchange(stream, b"exported again").pod
