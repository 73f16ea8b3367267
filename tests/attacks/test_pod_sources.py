"""Pods that send with the address of a neighbour: no other cluster gets such a packet."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from ipaddress import IPv4Address

import pytest

from devtools.lab.topology import POD_PORT, Node, generate
from tests.attacks import packets, tunnel_packets
from tests.attacks.catalogue import Attacker, Group, attack
from tests.attacks.tunnel_range import NOTHING, Range
from tests.worlds.labs import MakeLab

pytestmark = pytest.mark.datapath

by_pod = partial(attack, Group.POLICIES, Attacker.POD)

DEVICE = "the Node (nft, hook forward): a Pod's packets come by the device of the route to its address"


@pytest.fixture(scope="module")
def shared(make_lab: MakeLab) -> Iterator[Range]:
    """Two clusters with policies between them, two Pods on each Node."""
    shape = generate(pods=2)
    on: dict[str, object] = {"enableStretchedNetworkPolicy": True}
    shape = replace(shape, clusters=tuple(replace(cluster, config=on) for cluster in shape.clusters))
    with make_lab(shape, liveness=False) as lab:
        yield Range(lab)


def _forge(shared: Range, node: Node, source: IPv4Address, to: IPv4Address, port: int = POD_PORT) -> None:
    """Send from the first Pod of a Node with another source address, where rp_filter is off: nothing arrives."""

    def send(token: bytes) -> None:
        packet = packets.ipv4(source, to, socket.IPPROTO_UDP, packets.udp(4321, port, token))
        tunnel_packets.send_raw(shared.pod(node), to, packet)

    with shared.loose(node), shared.counting(node, "pod-source"):
        assert shared.attempt(node, send) == NOTHING


@by_pod(
    wants="have the label identity of another Pod of its Node by packets with its address, where rp_filter is off",
    stopped_by=DEVICE,
)
@pytest.mark.parametrize("role", ["worker", "gateway"])
def test_the_address_of_a_neighbour(shared: Range, role: str) -> None:
    """To a Pod of another cluster, from a worker and from a gateway Node."""
    node = shared.worker if role == "worker" else shared.gateway
    _forge(shared, node, node.pods[1].address, shared.far_worker.pods[0].address)


@by_pod(
    wants="do so towards a Service that kube-proxy translates to one of another cluster",
    stopped_by=DEVICE,
)
def test_the_address_of_a_neighbour_towards_a_service(shared: Range) -> None:
    """The hook forward sees the packet after the translation."""
    (imported, *_) = shared.lab.topology.imports(shared.east)
    _forge(shared, shared.worker, shared.worker.pods[1].address, imported.cluster_ip, imported.service.port)


@by_pod(
    wants="have the label identity of a Pod of another Node of its cluster, by packets with its address",
    stopped_by=DEVICE,
)
def test_the_address_of_a_pod_of_another_node(shared: Range) -> None:
    """The route to that Pod leads to the uplink."""
    _forge(shared, shared.worker, shared.gateway.pods[1].address, shared.far_worker.pods[0].address)
