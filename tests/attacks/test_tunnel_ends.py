"""Where a tunnel ends: other addresses of a Node, translations by Services, machines behind a router."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from functools import partial
from ipaddress import IPv4Address, IPv6Address

import pytest

from devtools.lab.topology import POD_PORT, Node
from devtools.nodes import netns
from devtools.nodes.node import uplink
from devtools.traffic import traffic
from devtools.traffic.capture import Capture
from devtools.waiting import wait_until
from mcagent.core.compile import compile_desired
from mcagent.model.dataplane.facts import DatapathType, Facts
from mcagent.model.dataplane.resources import NftChain, NftSet
from tests.attacks import tunnel_packets as packets
from tests.attacks.catalogue import Attacker, Group, attack
from tests.attacks.tunnel_packets import GENEVE
from tests.attacks.tunnel_range import ETH_P_ALL, TRIES, Range, encrypted_nodes, plain, six, v4
from tests.contract.inside import make
from tests.worlds.core_inputs import cluster, config, gateway, networks, node, snapshot
from tests.worlds.guarded_node import FAR, NODE, PEER, Wires, wires

__all__ = ["encrypted_nodes", "plain", "six", "wires"]

pytestmark = pytest.mark.datapath

by_neighbour = partial(attack, Group.TUNNELS, Attacker.NEIGHBOUR)
by_user = partial(attack, Group.TUNNELS, Attacker.USER)
by_pod = partial(attack, Group.TUNNELS, Attacker.POD)

ENDS = "tunnels with two fixed ends (`options:local_ip`), and the guard of tunnels (nft, hook input)"
UNTRACKED = "the guard of tunnels: packets between peers are not tracked, so that no rule translates them"
SECOND = IPv4Address("192.168.2.200")


@contextlib.contextmanager
def second_address(field: Range, address: IPv4Address | IPv6Address) -> Iterator[None]:
    """Give the gateway of the second cluster another address, as of keepalived or of a second network card."""
    device = uplink(userspace=field.lab.userspace)
    # Not of the subnet: Open vSwitch 3.1 would send with the newest IPv6 address of the subnet (`ovs/route/show`).
    place = (f"{address}/{address.max_prefixlen}", "dev", device)
    more = () if address.version == 4 else ("nodad",)
    namespace, ovs = field.lab.namespace(field.far_gateway), field.lab.ovs(field.far_gateway.name)
    nodes = ("ip" if address.version == 4 else "ip6", "underlay", "nodes", f"{{ {address} }}")
    netns.ip(namespace, "address", "add", *place, *more)
    netns.execute(field.lab.underlay, ["nft", "add", "element", *nodes])  # the router knows all Nodes
    try:
        if field.lab.userspace:
            wait_until(lambda: str(address) in ovs.appctl("tnl/ports/show", "-v"), "Open vSwitch to listen there")
        yield
    finally:
        netns.execute(field.lab.underlay, ["nft", "delete", "element", *nodes])
        netns.ip(namespace, "address", "del", *place)


@contextlib.contextmanager
def translating(field: Range, node: Node, hook: str, rule: str) -> Iterator[None]:
    """Have a rule of kube-proxy's for a Service on a Node."""
    namespace = field.lab.namespace(node)
    table = f"""\
table ip attack-ends {{
  chain translation {{ type nat hook {hook} priority -101; {rule}
  }}
  chain post {{ type nat hook postrouting priority 99; ct status dnat masquerade
  }}
}}
"""
    netns.execute(namespace, ["nft", "-f", "-"], stdin=table)
    try:
        yield
    finally:
        netns.execute(namespace, ["nft", "delete", "table", "ip", "attack-ends"])


@by_pod(
    wants="send in the name of any Pod of its cluster, by Geneve to a second address of another cluster's gateway",
    stopped_by=ENDS,
)
def test_a_second_address_of_a_gateway(plain: Range) -> None:
    """The packet leaves with the address of the gateway Node: nobody there knows the address as a peer's."""
    send = plain.forging(plain.gateway, SECOND, plain.worker, plain.far_worker)
    with second_address(plain, SECOND):
        assert plain.attempt(plain.gateway, send).arrived == 0


@by_pod(
    wants="do so with VXLAN to a second IPv6 address",
    stopped_by=ENDS,
)
def test_a_second_ipv6_address_of_a_gateway(six: Range) -> None:
    """A dual-stack Pod, masqueraded to the Node's IPv6 address."""
    cluster = six.west
    assert cluster.subnet6 is not None
    address = cluster.subnet6[0x200]
    send = six.forging(six.gateway, address, six.worker, six.far_worker)
    with second_address(six, address):
        assert six.attempt(six.gateway, send).arrived == 0


@by_user(
    wants="read and cut the tunnels to its cluster, by a Service with a gateway's address and port (externalIPs)",
    stopped_by=UNTRACKED,
)
def test_a_service_with_the_address_of_the_own_gateway(plain: Range) -> None:
    """kube-proxy translates what arrives; the Service leads to the user's Pod."""
    node, thief = plain.far_gateway, plain.far_gateway.pods[0]
    rule = f"ip daddr {node.address} udp dport {GENEVE} dnat to {thief.address}:{GENEVE}"
    _undisturbed(plain, node, "prerouting", rule)


@by_user(
    wants="do so by a Service with the address of another cluster's gateway",
    stopped_by=UNTRACKED,
)
def test_a_service_with_the_address_of_another_gateway(plain: Range) -> None:
    """kube-proxy translates what the Node itself sends."""
    node, thief = plain.gateway, plain.gateway.pods[0]
    rule = f"ip daddr {plain.far_gateway.address} udp dport {GENEVE} dnat to {thief.address}:{GENEVE}"
    _undisturbed(plain, node, "output", rule)


def _undisturbed(field: Range, node: Node, hook: str, rule: str) -> None:
    """Fail unless all new connections between the clusters work while a Node has a rule."""
    with translating(field, node, hook, rule):
        for client in (field.worker, field.gateway, field.worker, field.gateway):
            field.honest(client)


@by_user(
    wants="have a gateway take a packet for a tunnel's, by a NodePort there that leads to its tunnel port",
    stopped_by="the guard of tunnels (nft, hook input): no tunnel packet is translated",
)
def test_a_node_port_that_leads_to_the_own_tunnel_port(plain: Range) -> None:
    """The CNI gives what a Pod of another cluster sends there the address of its gateway."""
    node = plain.far_gateway
    rule = f"ip daddr {node.address} udp dport 30124 dnat to {node.address}:{GENEVE}"
    send = plain.forging(plain.gateway, node.address, plain.worker, plain.far_worker, port=30124)
    with translating(plain, node, "prerouting", rule), plain.listener(node, GENEVE) as count:
        assert plain.attempt(plain.gateway, send, count=count).arrived == 0


@by_neighbour(
    wants="send to a worker in a remote Pod's name, with the address of the worker's gateway, through a router",
    stopped_by="the guard of tunnels (nft, hook input): Nodes of the local link must send the TTL 255 (RFC 5082)",
)
def test_the_address_of_the_own_gateway_from_behind_a_router(plain: Range, datapath: DatapathType) -> None:
    """With the TTL that only a neighbour can send it arrives: a machine on the Nodes' link can do it."""
    if datapath is not DatapathType.SYSTEM:
        pytest.skip("netfilter sees no tunnel packets of the userspace datapath: this runs in the kernel lane")
    victim, forged = plain.worker.pods[0], plain.far_worker.pods[0].address
    source, target = plain.gateway.address, plain.worker.address

    def send(token: bytes, ttl: int = 254) -> None:
        payload = packets.geneve(plain.datagram(forged, victim, token))
        transport = packets.udp(source, target, GENEVE, payload)
        packets.send_raw(plain.lab.underlay, target, packets.ipv4(v4(source), v4(target), transport, ttl=ttl))

    with plain.counting(plain.worker, "off-link-tunnel"):
        assert plain.attempt(plain.worker, send).arrived == 0
    assert plain.attempt(plain.worker, lambda token: send(token, 255)).arrived >= TRIES


@by_neighbour(
    wants="end a worker's tunnel to a gateway behind a router, by a packet with the TTL 255 in the gateway's name",
    stopped_by="the guard of tunnels: the TTL counts for Nodes in networks that this Node is connected to",
)
def test_the_largest_ttl_in_the_name_of_a_gateway_behind_a_router(wires: Wires) -> None:
    """The gateway's own packets, with less, still arrive, and those of a gateway on the link must have it."""
    nodes = (node("w1", (str(NODE),), "10.10.3.0/24"), node("g1", (str(FAR),), "10.10.1.0/24"))
    link = (node("g2", (str(PEER),), "10.10.2.0/24"), gateway("g2", str(PEER)))
    facts = Facts(addresses=(NODE,), connected=networks("192.0.2.0/24"))
    objects = snapshot(*nodes, *link, gateway("g1", str(FAR)), cluster("east", "10.97.0.0/16"))
    compiled = compile_desired(objects, facts, config("w1"))
    rules = [
        r for f in compiled.desired.fragments.values() for r in f.resources if isinstance(r, NftChain | NftSet)
    ]
    make(wires.nft, rules)
    for address in (FAR, PEER):
        assert wires.arrives(wires.peer, wires.node, address, NODE, ttl=255)
    assert wires.arrives(wires.peer, wires.node, FAR, NODE, ttl=254)
    assert not wires.arrives(wires.peer, wires.node, PEER, NODE, ttl=254)


@by_neighbour(
    wants="send to a worker in a remote Pod's name, with the address of its gateway, on the Nodes' own link",
    stopped_by="nodeTrafficEncryption: a Node with a key comes by the WireGuard device alone (nft, hook input)",
)
@pytest.mark.parametrize("to", ["worker", "gateway"])
def test_clear_geneve_in_the_name_of_an_own_node(encrypted_nodes: Range, to: str) -> None:
    """The TTL is 255, as a neighbour can send it. Nor does a gateway accept it in the name of its worker."""
    field, (pod, far) = encrypted_nodes, (encrypted_nodes.worker.pods[0], encrypted_nodes.far_worker.pods[0])
    source, target, inner, victim = field.gateway, field.worker, far.address, pod
    if to == "gateway":
        source, target, inner, victim = field.worker, field.gateway, pod.address, far
    ends = v4(source.address), v4(target.address)

    def send(token: bytes) -> None:
        transport = packets.udp(*ends, GENEVE, packets.geneve(field.datagram(inner, victim, token)))
        packets.send_raw(field.lab.underlay, ends[1], packets.ipv4(*ends, transport, ttl=255))

    with field.counting(target, "clear-tunnel"):
        assert field.attempt(target, send).arrived == 0


@by_neighbour(
    wants="read what Pods of a worker exchange with other clusters, on the link of the Nodes",
    stopped_by="nodeTrafficEncryption: required: no tunnel between Nodes is outside of WireGuard",
)
def test_reading_between_worker_and_gateway(encrypted_nodes: Range) -> None:
    """What a Pod says arrives, and is in no packet on the link of its Node."""
    field, token = encrypted_nodes, os.urandom(16)
    with Capture(*field.port(field.worker), ethertype=ETH_P_ALL) as link:
        answer = traffic.udp(field.pod(field.worker), field.far_worker.pods[0].address, POD_PORT, token)
        assert answer
        assert link.frames()
        assert not [frame for frame in link.frames() if token in frame]
