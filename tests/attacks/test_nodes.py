"""Nodes are closed to other clusters, also where their addresses are published as Pods' (the AWS VPC CNI)."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Address
from typing import Any

import pytest

from devtools.lab import objects
from devtools.lab.lab import Lab
from devtools.lab.topology import POD_PORT, Cni, Node, Service, generate
from devtools.nodes import netns
from devtools.traffic import traffic
from devtools.traffic.capture import Capture, Packet
from tests.attacks import packets
from tests.attacks.catalogue import Attacker, Group, attack
from tests.waiting import until

pytestmark = pytest.mark.datapath

by_pod = partial(attack, Group.NODES, Attacker.POD)
by_member = partial(attack, Group.NODES, Attacker.MEMBER)

KUBELET, NODE_PORT, NODE_PORT_ELSEWHERE = 10250, 30080, 30081
EXPORTED = 9100  # of a process on the Nodes' network: an endpoint may not be one of Kubernetes' own
PORTS = range(2000, 2020)
CLOSED = "nft: out of the bridge into the Node itself comes only what the bridge translated, and replies"

_NODE_PORTS = """\
table ip node-ports {{
  chain prerouting {{
    type nat hook prerouting priority dstnat;
    ip daddr {node} tcp dport {port} dnat to {own}
    ip daddr {node} tcp dport {elsewhere} dnat to {other}
  }}
  chain postrouting {{
    type nat hook postrouting priority srcnat;
    ct status dnat oifname != "pod*" masquerade
  }}
}}
"""


@dataclass(frozen=True)
class World:
    """The lab, who attacks from the first cluster, and the second cluster's Nodes."""

    lab: Lab
    pod: str  # namespace of a Pod on a worker
    gateway: str  # namespace of a gateway
    peer: Node  # the second cluster's gateway
    nodes: tuple[Node, Node]  # workers; a gateway's address takes replies only (table Untranslate)

    def namespace(self, node: Node) -> str:
        """Return the namespace of a Node."""
        return self.lab.namespace(node)


@pytest.fixture(scope="module")
def world(make_lab: Callable[..., Lab]) -> Iterator[World]:
    """Two clusters whose Nodes are in the published Pod CIDR, with kubelet's port open on the second's workers."""
    lab = make_lab(generate(cni=Cni.AWS_VPC, workers=2), liveness=False)
    east, west = lab.topology.clusters
    worker, two = west.workers
    with packets.listening(lab.namespace(worker), KUBELET), packets.listening(lab.namespace(two), KUBELET):
        for node, other in ((worker, two), (two, worker)):
            rules = _NODE_PORTS.format(
                node=node.address,
                port=NODE_PORT,
                own=f"{node.pods[0].address}:{POD_PORT}",
                elsewhere=NODE_PORT_ELSEWHERE,
                other=f"{other.pods[0].address}:{POD_PORT}",
            )
            netns.execute(lab.namespace(node), ["nft", "-f", "-"], stdin=rules)
        pod, gateway = lab.namespace(east.workers[0].pods[0]), lab.namespace(east.gateways[0])
        yield World(lab, pod, gateway, west.gateways[0], (worker, two))


def _still_reached(world: World) -> None:
    """Fail unless the way that an attack took is open for what is allowed: a Pod of each Node answers."""
    for node in world.nodes:
        assert traffic.tcp(world.pod, node.pods[0].address, POD_PORT).pod == node.pods[0].name


@by_pod(
    wants="open a connection to the kubelet of a worker of another cluster",
    stopped_by=CLOSED,
)
def test_the_kubelet_of_a_worker(world: World) -> None:
    """A Pod of another cluster reaches Pods of a worker, but none of the worker's own ports."""
    assert not packets.connects(world.pod, world.nodes[0].address, KUBELET, within=packets.SILENCE)
    _still_reached(world)


@by_member(
    wants="open a connection to a Node from a gateway's own address, for which replies are let in",
    stopped_by=CLOSED,
)
def test_a_gateway_as_the_client(world: World) -> None:
    """What comes from the other cluster's gateway itself is no better."""
    source = str(world.lab.topology.clusters[0].gateways[0].address)

    def connect() -> bool:
        try:
            address = (str(world.nodes[1].address), KUBELET)
            socket.create_connection(address, timeout=packets.SILENCE, source_address=(source, 0)).close()
        except OSError:
            return False
        return True

    assert not netns.call(world.gateway, connect)


@by_pod(
    wants="reach a Pod by a NodePort of a Service that was never exported",
    stopped_by="nft, after kube-proxy's destination NAT: it translates nothing that another cluster sends",
)
def test_a_node_port(world: World) -> None:
    """The NodePort that leads to a Pod of the same Node is closed, and open inside the cluster."""
    inside = world.lab.namespace(world.peer)
    assert not packets.connects(world.pod, world.nodes[0].address, NODE_PORT, within=packets.SILENCE)
    assert packets.connects(inside, world.nodes[0].address, NODE_PORT)


@by_pod(
    wants="reach a Pod of another Node by a NodePort, which forwards what comes in",
    stopped_by="nft, after kube-proxy's destination NAT, on the Node that has the address",
)
def test_a_node_port_that_leads_elsewhere(world: World) -> None:
    """Nor does a Node forward to others of its cluster for other clusters."""
    inside = world.lab.namespace(world.peer)
    assert not packets.connects(world.pod, world.nodes[0].address, NODE_PORT_ELSEWHERE, within=packets.SILENCE)
    assert packets.connects(inside, world.nodes[0].address, NODE_PORT_ELSEWHERE)


@attack(Group.NODES, Attacker.POD, wants="find the Nodes of another cluster by ICMP echo", stopped_by=CLOSED)
def test_echo(world: World) -> None:
    """Nodes do not answer pings of other clusters; their Pods do."""
    for node in world.nodes:
        assert not packets.echoes(world.pod, node.address, within=packets.SILENCE)
    assert [packets.echoes(world.pod, node.pods[0].address) for node in world.nodes] == [True, True]


@attack(
    Group.NODES, Attacker.POD, wants="send a datagram to a daemon on another cluster's Node", stopped_by=CLOSED
)
def test_a_datagram(world: World) -> None:
    """A UDP port of a Node hears nothing of other clusters."""
    for node in world.nodes:
        with packets.listening(world.namespace(node), 10255, socket.SOCK_DGRAM) as server:
            sent = packets.token()
            packets.datagram(world.pod, node.address, 10255, sent)
            assert not packets.received(server, sent, within=packets.SILENCE), node.name


def _forged(world: World, node: Node, destination_mac: str) -> bool:
    """Send a datagram to a Node with the MACs of a translated Service; tell whether it arrived."""
    with packets.listening(world.namespace(node), 10255, socket.SOCK_DGRAM) as server:
        source = world.lab.topology.clusters[0].workers[0].pods[0].address
        sent = packets.token()
        packet = packets.ipv4(source, node.address, socket.IPPROTO_UDP, packets.udp(4000, 10255, sent))
        for number in (0, 1, 0xFFFFFF):
            mac = f"0a:6d:{number.to_bytes(4, 'big').hex(':')}"
            frame = packets.ethernet(destination_mac, mac, packet)
            packets.geneve(world.gateway, world.peer.address, frame)
        return packets.received(server, sent, within=packets.SILENCE)


@by_member(
    wants="pass for a translated Service by a forged source MAC inside the tunnel",
    stopped_by="the pipeline: what was not translated here gets another source MAC before the kernel sees it",
)
def test_a_forged_source_mac(world: World) -> None:
    """A crafted Geneve packet of a peer gateway, with the source MAC that means a Service, reaches no Node."""
    assert [_forged(world, node, "aa:bb:cc:dd:ee:f0") for node in world.nodes] == [False, False]
    source = world.lab.topology.clusters[0].workers[0].pods[0].address
    pod = world.nodes[1].pods[0]
    with packets.listening(world.lab.namespace(pod), 10255, socket.SOCK_DGRAM) as server:  # to a Pod it does get
        sent = packets.token()
        honest = packets.ipv4(source, pod.address, socket.IPPROTO_UDP, packets.udp(4000, 10255, sent))
        frame = packets.ethernet("aa:bb:cc:dd:ee:f0", "0a:6d:00:00:00:01", honest)
        assert packets.arrives(server, sent, lambda: packets.geneve(world.gateway, world.peer.address, frame))


@by_member(
    wants="pass for a translated Service by the destination MAC that gateways use among themselves",
    stopped_by="the pipeline: gateways of other clusters are asked for no MAC, and every packet gets one here",
)
def test_a_forged_destination_mac(world: World) -> None:
    """Nor does the MAC `…:f1`, with which this cluster's gateways mark what they translated."""
    assert [_forged(world, node, "aa:bb:cc:dd:ee:f1") for node in world.nodes] == [False, False]


@by_pod(
    wants="learn which ports of a Node are open by segments of no connection, which are answered by resets",
    stopped_by="nft judges every packet by itself, whatever conntrack makes of it",
)
def test_in_the_middle_of_a_connection(world: World) -> None:
    """Segments without a SYN make the Node say nothing, not even a reset, and its conntrack keeps nothing."""
    attacker = world.lab.topology.clusters[0].workers[0].pods[0]
    with Capture(world.pod) as capture:
        for node in world.nodes:
            segments = (packets.tcp(attacker.address, node.address, (port, KUBELET), syn=False) for port in PORTS)
            packets.flood(world.pod, attacker.address, node.address, segments)
        _still_reached(world)  # sent after them
        answers = [packet.source for packet in map(Packet, capture.frames()) if packet.source in _addresses(world)]
        assert answers == []
    for node in world.nodes:
        lines = netns.execute(world.lab.namespace(node), ["cat", "/proc/net/nf_conntrack"]).stdout.splitlines()
        own = [line for line in lines if " zone=" not in line]  # the others are the bridge's
        assert not any(f"src={attacker.address} dst={node.address} " in line for line in own)


def _addresses(world: World) -> set[IPv4Address]:
    return {node.address for node in world.nodes}


def _host_service(world: World) -> Service:
    """Export a Service whose endpoints are Pods on the Nodes' own network."""
    west = world.lab.topology.clusters[1]
    service = Service(
        name="host", cluster_ip=west.service_cidr[90], pods=(), target_port=EXPORTED, protocols=("TCP",)
    )
    (slice_,) = objects.endpoint_slices(world.lab.topology, service)
    slice_["endpoints"] = [
        {
            "addresses": [str(node.address)],
            "nodeName": node.name,
            "conditions": {"ready": True},
            "targetRef": {"kind": "Pod", "name": f"host-{node.name}", "namespace": service.namespace},
        }
        for node in world.nodes
    ]
    pods = [_host_pod(node, service.namespace) for node in world.nodes]
    exported = [objects.service_object(service), slice_, objects.export_object(service)]
    world.lab.api(west.name).create_all([*exported, *pods])
    return service


def _host_pod(node: Node, namespace: str) -> dict[str, Any]:
    address = str(node.address)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"host-{node.name}", "namespace": namespace},
        "spec": {"nodeName": node.name, "hostNetwork": True, "containers": [{"name": "web", "image": "web"}]},
        "status": {"phase": "Running", "hostIP": address, "podIP": address, "podIPs": [{"ip": address}]},
    }


@by_pod(
    wants="go on to other ports of a Node that has an endpoint of an exported Service",
    stopped_by=CLOSED,
)
def test_beside_an_exported_service(world: World) -> None:
    """An exported Service on the Nodes' own network is reached, by its ClusterIP only, and nothing beside it."""
    service = _host_service(world)
    one, two = (packets.listening(world.lab.namespace(node), EXPORTED) for node in world.nodes)
    with one, two:
        _only_the_service(world, service)


def _only_the_service(world: World, service: Service) -> None:
    until(lambda: packets.connects(world.pod, service.cluster_ip, service.port, within=packets.SILENCE))
    for _ in range(8):  # of both endpoints, by the hash of the source port
        assert packets.connects(world.pod, service.cluster_ip, service.port)
    assert not packets.connects(world.pod, service.cluster_ip, KUBELET, within=packets.SILENCE)
    for node in world.nodes:
        assert not packets.connects(world.pod, node.address, KUBELET, within=packets.SILENCE)
        assert not packets.connects(world.pod, node.address, EXPORTED, within=packets.SILENCE)
