"""A member names an outside server as one of its gateways, and sends in its name through the tunnel of another."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import IPv4Address

import pytest

from devtools.lab.lab import Lab
from devtools.lab.objects import NAMESPACE
from devtools.lab.topology import OUTSIDE, POD_PORT, Cni, Node, Pod, generate
from devtools.nodes import netns, underlay
from devtools.traffic import traffic
from devtools.traffic.capture import ETHERNET_HEADER, Capture
from devtools.waiting import wait_until
from mcagent.core.addresses.underlay import mapped_addresses
from tests.attacks import packets
from tests.attacks.catalogue import Attacker, Group, attack
from tests.attacks.packets import PORT_UNREACHABLE, icmp_error
from tests.waiting import until
from tests.worlds.labs import MakeLab

pytestmark = pytest.mark.datapath

by_member = partial(attack, Group.STATE, Attacker.MEMBER)

PLAIN_MAC, ANY_MAC = "aa:bb:cc:dd:ee:f0", "0a:6d:63:00:00:02"
NTP, CLOSED = 123, 9  # ports; no Pod serves the second
SOURCE_PORT = slice(ETHERNET_HEADER + 20, ETHERNET_HEADER + 22)  # of UDP in a frame
TRIES = 3  # one packet could be lost on a busy machine, and look like one that was dropped
OWN_TUNNEL = "table Source: a gateway's address is a source in its own tunnel only"


@dataclass(frozen=True)
class World:
    """The lab. `node` of the first cluster is attacked by the second one, which claims the outside server."""

    lab: Lab
    node: Node
    attacker: Node

    @property
    def pod(self) -> Pod:
        """The attacked Pod."""
        return self.node.pods[0]

    def inject(self, source: IPv4Address, destination: IPv4Address, datagram: bytes) -> None:
        """Send a packet from the attacker's gateway into its tunnel to the gateway of the attacked Node."""
        self.send(packets.ipv4(source, destination, socket.IPPROTO_UDP, datagram))

    def send(self, packet: bytes) -> None:
        """Send an IPv4 packet in the same way."""
        peer = self.lab.topology.clusters[0].gateways[0]
        frame = packets.ethernet(PLAIN_MAC, ANY_MAC, packet)
        packets.geneve(self.lab.namespace(self.attacker), peer.address, frame)


@pytest.fixture(scope="module")
def world(make_lab: MakeLab) -> Iterator[World]:
    """Two clusters whose Nodes and Pods have addresses of one network, with policies."""
    shape = generate(cni=Cni.AWS_VPC)
    on: dict[str, object] = {"enableStretchedNetworkPolicy": True}
    shape = replace(shape, clusters=tuple(replace(cluster, config=on) for cluster in shape.clusters))
    with make_lab(shape, liveness=False) as lab:
        east, west = lab.topology.clusters
        gateways = [*(node.tunnel_address for node in west.gateways), OUTSIDE]
        infos = {"gatewayInfos": [{"gatewayIP": str(address)} for address in gateways]}
        lab.api(east.name).patch("ClusterInfoImport", f"{west.name}-clusterinfo", {"spec": infos}, NAMESPACE)
        mapped = str(next(mapped_addresses(OUTSIDE)))
        wait_until(lambda: all(mapped in _routes(lab, node) for node in east.nodes), "the claim", timeout=30)
        yield World(lab, east.workers[0], west.gateways[0])


def _routes(lab: Lab, node: Node) -> str:
    return netns.ip(lab.namespace(node), "route", "show", "table", "all", "proto", "111")


def _still_reached(world: World) -> None:
    """Fail unless the attacker's Pods reach the attacked one by the way of the attack."""
    client = world.lab.namespace(world.lab.topology.clusters[1].workers[0].pods[0])
    assert traffic.tcp(client, world.pod.address, POD_PORT).pod == world.pod.name


@by_member(
    wants="answer a Node's own connection in the name of an outside server, which it names as its gateway",
    stopped_by=f"{OWN_TUNNEL}; nft: a reply arrives by the device to which the route to its source leads",
)
def test_an_answer_in_the_name_of_an_outside_server(world: World) -> None:
    """The Node's addresses are published as Pods', and its connection leaves by the uplink."""
    namespace, address = world.lab.namespace(world.node), world.node.address
    with (
        traffic.udp_socket(namespace, OUTSIDE, NTP, str(address)) as client,
        Capture(namespace, "mc-gw0") as host_port,
    ):
        for _ in range(TRIES):
            token = packets.token()
            with contextlib.suppress(ConnectionRefusedError):  # nobody serves there
                client.send(b"what time is it?")
            world.inject(OUTSIDE, address, packets.udp(NTP, client.getsockname()[1], token))
            _still_reached(world)
            assert host_port.count(token) == 0


@attack(
    Group.POLICIES,
    Attacker.MEMBER,
    wants="send to a Pod in the name of an outside host that a policy allows, which it names as its gateway",
    stopped_by=OWN_TUNNEL,
)
def test_the_name_of_an_outside_host_that_a_policy_allows(world: World) -> None:
    """The Pod accepts clients at that address only."""
    api, client = world.lab.api("east"), world.lab.namespace(world.lab.topology.clusters[1].workers[0].pods[0])
    peer = {"ipBlock": {"cidr": f"{OUTSIDE}/32"}}
    policy = {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{"from": [peer]}]}
    metadata = {"name": "outside", "namespace": "default"}
    kind = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy"}
    api.apply({**kind, "metadata": metadata, "spec": policy})

    def closed() -> bool:
        return not packets.connects(client, world.pod.address, POD_PORT, within=packets.SILENCE)

    until(closed)
    with Capture(world.lab.namespace(world.pod)) as received:
        tokens = [packets.token() for _ in range(TRIES)]
        for token in tokens:
            world.inject(OUTSIDE, world.pod.address, packets.udp(NTP, POD_PORT, token))
        api.delete("NetworkPolicy", "outside", "default")
        until(lambda: not closed())
        _still_reached(world)
        assert [received.count(token) for token in tokens] == [0] * TRIES


@pytest.mark.parametrize("way", ["by the uplink", "through the bridge"])
@by_member(
    wants="end a Node's own connection through the uplink to an address of the member's CIDR, by ICMP errors",
    stopped_by="nft: an ICMP error about a Node's request passes only if the bridge has seen the request",
)
def test_icmp_errors_about_a_connection_by_the_uplink(world: World, way: str) -> None:
    """A rule of the Node leads there by the uplink. Without it the bridge sees the request, and errors pass."""
    namespace, address = world.lab.namespace(world.node), world.node.address
    server = world.lab.topology.clusters[1].workers[0].pods[0].address
    rule = ("rule", "{}", "pref", "100", "from", str(address), "to", str(server), "lookup", "main")
    by_uplink = way == "by the uplink"
    with contextlib.ExitStack() as repairs:
        if by_uplink:
            netns.ip(namespace, *(word.format("add") for word in rule))
            repairs.callback(netns.ip, namespace, *(word.format("del") for word in rule))
        client = repairs.enter_context(traffic.udp_socket(namespace, server, CLOSED, str(address)))
        client.settimeout(packets.SILENCE)
        token = packets.token()
        uplink = repairs.enter_context(Capture(world.lab.underlay, underlay.bridge(1)))
        port = client.getsockname()[1]
        errors = []
        for _ in range(TRIES):
            try:
                client.send(token)
                until(lambda: uplink.count(token))  # else the datagram for conntrack may pass the bridge first
                if by_uplink:  # the CNI translates the source port
                    (port,) = {int.from_bytes(sent.frame[SOURCE_PORT]) for sent in uplink.holding(token)}
                world.inject(
                    server, address, packets.udp(CLOSED, port, packets.token())
                )  # for the bridge's conntrack
                quoted = packets.ipv4(address, server, socket.IPPROTO_UDP, packets.udp(port, CLOSED, token))
                world.send(icmp_error(PORT_UNREACHABLE, world.attacker.pods[0].address, quoted))
                while True:  # the datagram for conntrack arrives too, and may be there before the error
                    client.recv(100)
            except OSError as error:  # at the latest TimeoutError
                errors.append(type(error))
        _still_reached(world)
    assert (ConnectionRefusedError in errors) is not by_uplink
