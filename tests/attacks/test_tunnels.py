"""Pods, and machines on the underlay, that send what only tunnels may: nothing of it gets anywhere."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from functools import partial
from ipaddress import IPv4Address, IPv6Address
from typing import Any

import pytest

from devtools.lab.topology import Node
from devtools.nodes import netns
from devtools.nodes.node import pod_device
from devtools.nodes.ovs import OvsInstance
from devtools.waiting import wait_until
from flows.pipeline.registers import ETHERTYPE_PROBE, MAC_ANSWER
from mcagent.core import tunnel_probes
from mcagent.core.addresses.underlay import endpoint_of
from mcagent.core.failover import reachability
from mcagent.dataplane.openflow.backend import OpenFlowBackend
from tests.attacks import tunnel_packets as packets
from tests.attacks.catalogue import Attacker, Group, attack
from tests.attacks.tunnel_packets import BFD, GENEVE, VXLAN
from tests.attacks.tunnel_range import NOTHING, TRIES, Range, encrypted, plain, six, v4, v6

__all__ = ["encrypted", "plain", "six"]

pytestmark = pytest.mark.datapath

by_pod = partial(attack, Group.TUNNELS, Attacker.POD)
by_member = partial(attack, Group.TUNNELS, Attacker.MEMBER)

WIREGUARD = 51821
FLOOD = 2000  # probes, or answers that nobody asked for
FORWARD = "the guard of tunnels (nft, hook forward): nothing that a Node forwards goes to a peer's tunnel port"
SOURCES = "the guard of tunnels (nft, hook prerouting): a peer's packet comes by a device that leads to that peer"


@by_pod(
    wants="send in the name of any Pod of its cluster, by a Geneve packet to the gateway of another cluster",
    stopped_by=FORWARD,
)
def test_geneve_from_a_pod_to_a_remote_gateway(plain: Range) -> None:
    """The CNI would give it the address of the gateway Node, which the other gateway takes for its peer."""
    send = plain.forging(plain.gateway, plain.far_gateway.address, plain.worker, plain.far_worker)
    assert plain.attempt(plain.gateway, send) == NOTHING
    with plain.counting(plain.gateway, "to-tunnel"):
        plain.attempt(plain.gateway, send)


def _said(plain: Range, node: Node) -> object:
    """Return the clusters that a Node's agent takes for lost."""
    summary = plain.lab.status(node.name)["summary"]
    assert isinstance(summary, dict)
    return summary["unreachable"]


LOST = reachability.encode_frame([reachability.cluster_hash("west"), reachability.cluster_hash("east")])


@by_pod(
    wants="make Nodes leave a cluster, by a gateway's word that it is lost, sent into a tunnel",
    stopped_by=FORWARD,
)
def test_pods_tell_nodes_of_no_lost_cluster(plain: Range) -> None:
    """As its own gateway Node would send it to a worker, and as a worker would to the gateway."""
    for near, far in ((plain.gateway, plain.worker), (plain.worker, plain.gateway)):
        address = far.address

        def send(token: bytes, near: Node = near, address: IPv4Address = address) -> None:
            packets.send(plain.pod(near), address, GENEVE, packets.geneve(LOST + token))

        with plain.counting(near, "to-tunnel"):
            assert plain.attempt(near, send) == NOTHING
    assert [_said(plain, node) for node in (plain.gateway, plain.worker)] == [[], []]


@by_member(
    wants="make another cluster's Nodes leave a third one, by telling them that it is lost",
    stopped_by="gateways: such a frame goes to an agent only from the tunnel to a gateway of its own cluster",
)
def test_other_clusters_tell_nodes_of_no_lost_cluster(plain: Range) -> None:
    """It is dropped where it comes in; the same frame from the own gateway counts."""
    far, near = plain.lab.ovs(plain.far_gateway.name), plain.lab.ovs(plain.gateway.name)

    def say(ovs: OvsInstance, to: str, frame: bytes) -> None:
        tunnels = plain.lab.status(plain.far_gateway.name if ovs is far else plain.gateway.name)["tunnels"]
        assert isinstance(tunnels, list)
        (port,) = (tunnel["ofport"] for tunnel in tunnels if tunnel["peerKind"] == to)
        message = f"in_port=controller packet={frame.hex()} actions=output:{port}"
        ovs.ofctl("packet-out", ovs.mgmt("br-mc"), message)

    def missed() -> int:
        lines = near.ofctl("dump-flows", near.mgmt("br-mc"), "table=0").splitlines()
        return sum(
            int(line.partition("n_packets=")[2].partition(",")[0]) for line in lines if "priority=0 " in line
        )

    before = missed()
    assert plain.attempt(plain.worker, lambda token: say(far, "remote", LOST + token)) == NOTHING
    wait_until(lambda: missed() >= before + TRIES, "the drops to be counted")
    assert [_said(plain, node) for node in (plain.gateway, plain.worker)] == [[], []]
    say(near, "node", LOST)
    wait_until(lambda: _said(plain, plain.worker) == ["west"], "the own gateway's word to count")


@by_pod(
    wants="send in the name of another Pod of its Node, by a Geneve packet to its own cluster's gateway",
    stopped_by=FORWARD,
)
def test_geneve_from_a_pod_of_a_worker_to_its_own_gateway(plain: Range) -> None:
    """The gateway takes it for the worker's, and would pass it on to the other cluster."""
    assert plain.worker.pod_cidr is not None
    victim, forged = plain.far_worker.pods[0], plain.worker.pod_cidr[99]

    def send(token: bytes) -> None:
        payload = packets.geneve(plain.datagram(forged, victim, token))
        packets.send(plain.pod(plain.worker), plain.gateway.address, GENEVE, payload)

    assert plain.attempt(plain.worker, send) == NOTHING


@by_pod(
    wants="send in the name of a remote Pod, by a Geneve packet from a gateway Node to a worker of its cluster",
    stopped_by=FORWARD,
)
def test_geneve_from_a_pod_of_a_gateway_to_a_worker(plain: Range) -> None:
    """The worker takes it for its gateway's, which may bring packets from any other cluster."""
    send = plain.forging(plain.gateway, plain.worker.address, plain.far_worker, plain.worker)
    assert plain.attempt(plain.gateway, send) == NOTHING


@by_pod(
    wants="have kube-proxy send its Geneve packets, by a Service whose endpoint is a gateway",
    stopped_by=f"{FORWARD}, after kube-proxy's translation",
)
def test_a_service_that_leads_to_a_tunnel_port(plain: Range) -> None:
    """The Pod sends to a ClusterIP and another port: what counts is where it goes in the end."""
    cluster_ip = plain.east.service_cidr[123]
    rule = f"ip daddr {cluster_ip} udp dport 53 dnat to {plain.far_gateway.address}:{GENEVE}"
    send = plain.forging(plain.gateway, cluster_ip, plain.worker, plain.far_worker, port=53)
    with _proxied(plain, rule):
        assert plain.attempt(plain.gateway, send) == NOTHING


@contextlib.contextmanager
def _proxied(field: Range, rule: str) -> Iterator[None]:
    """Have a rule of kube-proxy's for a Service on the gateway of the first cluster."""
    namespace = field.lab.namespace(field.gateway)
    # Like kube-proxy, which translates the source of what comes from outside: the answer has to come back here.
    table = f"""\
table ip attack-proxy {{
  chain pre {{ type nat hook prerouting priority -101; {rule}
  }}
  chain post {{ type nat hook postrouting priority 99; ct status dnat masquerade
  }}
}}
"""
    netns.execute(namespace, ["nft", "-f", "-"], stdin=table)
    try:
        yield
    finally:
        netns.execute(namespace, ["nft", "delete", "table", "ip", "attack-proxy"])


@by_pod(
    wants="have its gateway Node send its Geneve packets, by a NodePort that leads to another cluster's gateway",
    stopped_by="the guard of tunnels: what a peer sends to a peer passes a Node as it came, or not at all",
)
def test_a_node_port_that_leads_to_a_tunnel_port(plain: Range) -> None:
    """From a worker the packet has a Node's address already, as that of a Node behind a router would."""
    rule = f"ip daddr {plain.gateway.address} udp dport 30123 dnat to {plain.far_gateway.address}:{GENEVE}"
    forge = plain.forging(plain.worker, plain.gateway.address, plain.worker, plain.far_worker, port=30123)

    def send(token: bytes) -> None:
        forge(token)
        plain.honest(plain.worker)

    with _proxied(plain, rule):
        assert plain.attempt(plain.gateway, send) == NOTHING


@by_pod(
    wants="end the BFD session of two gateways, by control packets inside Geneve, so that traffic leaves them",
    stopped_by=FORWARD,
)
def test_bfd_inside_geneve(plain: Range) -> None:
    """A peer that says that it is down is left at once."""
    before = plain.flaps(plain.far_gateway)

    def send(token: bytes) -> None:
        payload = packets.geneve(packets.bfd_down(token))
        packets.send(plain.pod(plain.gateway), plain.far_gateway.address, GENEVE, payload)

    outcome = plain.attempt(plain.gateway, send)
    assert plain.flaps(plain.far_gateway) == before
    assert outcome == NOTHING


@by_pod(
    wants="speak BFD with the address of its Node, on the underlay",
    stopped_by="the guard of tunnels: port 3784 of a peer is as closed as the tunnel's",
)
def test_bfd_on_the_underlay(plain: Range) -> None:
    """RFC 5881 takes a single-hop session's packets for a neighbour's own."""
    frame = packets.bfd_down(b"")

    def send(token: bytes) -> None:
        packets.send(plain.pod(plain.gateway), plain.far_gateway.address, BFD, frame[-24:] + token)

    assert plain.attempt(plain.gateway, send) == NOTHING


@by_pod(
    wants="slip a Geneve packet past its Node in fragments, the first with the UDP header alone",
    stopped_by="connection tracking, which puts fragments together before the guard of tunnels sees them",
)
def test_fragments_of_a_tunnel_packet(plain: Range) -> None:
    """Without the first fragment nobody could put them together, either."""
    sender = plain.gateway.pods[0]
    victim, forged = plain.far_worker.pods[0], plain.worker.pods[0].address
    target = plain.far_gateway.address

    def send(token: bytes) -> None:
        payload = packets.geneve(plain.datagram(forged, victim, token))
        transport = packets.udp(sender.address, target, GENEVE, payload)
        pieces = packets.fragments(sender.address, target, transport, 8)
        packets.send_raw(plain.lab.namespace(sender), target, *pieces)

    assert plain.attempt(plain.gateway, send) == NOTHING


@by_pod(
    wants="hide the port of a Geneve packet behind IPv4 options",
    stopped_by="the guard of tunnels, which finds the UDP header where the IPv4 header says that it is",
)
def test_options_before_the_port(plain: Range) -> None:
    """Four bytes of no-operation move everything."""
    sender = plain.gateway.pods[0]
    victim, forged = plain.far_worker.pods[0], plain.worker.pods[0].address
    target = plain.far_gateway.address

    def send(token: bytes) -> None:
        payload = packets.geneve(plain.datagram(forged, victim, token))
        transport = packets.udp(sender.address, target, GENEVE, payload)
        whole = packets.ipv4(sender.address, target, transport, options=b"\x01\x01\x01\x01")
        packets.send_raw(plain.lab.namespace(sender), target, whole)

    assert plain.attempt(plain.gateway, send) == NOTHING


@by_pod(
    wants="speak to its own Node in the name of a remote gateway, with a forged source, where rp_filter is off",
    stopped_by=SOURCES,
)
def test_a_forged_peer_to_its_own_node(plain: Range) -> None:
    """What is for the Node itself is not forwarded: it is the device that tells."""
    node, pod = plain.gateway, plain.gateway.pods[0]
    victim, forged = plain.worker.pods[0], plain.far_worker.pods[0].address
    source = plain.far_gateway.address

    def send(token: bytes) -> None:
        payload = packets.geneve(plain.datagram(forged, victim, token))
        whole = packets.ipv4(source, node.address, packets.udp(source, node.address, GENEVE, payload))
        packets.send_raw(plain.lab.namespace(pod), node.address, whole)

    with plain.loose(node), plain.listener(node, GENEVE) as count:
        assert plain.attempt(node, send, count=count) == NOTHING
        with plain.counting(node, "forged-tunnel"):
            plain.attempt(node, send, count=count)


@by_pod(
    wants="do so to the address that the CNI's bridge has on the Node, which Pods rightly reach",
    stopped_by="the guard of tunnels: on no device is a peer's packet for an address that no tunnel ends at",
)
def test_a_forged_peer_to_the_address_of_the_cnis_bridge(plain: Range) -> None:
    """Open vSwitch takes a tunnel packet for any address of the Node."""
    node, pod = plain.gateway, plain.gateway.pods[0]
    assert node.pod_cidr is not None
    victim, forged = plain.worker.pods[0], plain.far_worker.pods[0].address
    source, bridge = plain.far_gateway.address, node.pod_cidr[1]
    place = (f"{bridge}/32", "dev", pod_device(node, pod))

    def send(token: bytes) -> None:
        payload = packets.geneve(plain.datagram(forged, victim, token))
        whole = packets.ipv4(source, bridge, packets.udp(source, bridge, GENEVE, payload))
        packets.send_raw(plain.lab.namespace(pod), bridge, whole)

    netns.ip(plain.lab.namespace(node), "address", "add", *place)
    try:
        with plain.loose(node), plain.listener(node, GENEVE) as count:
            assert plain.attempt(node, send, count=count) == NOTHING
    finally:
        netns.ip(plain.lab.namespace(node), "address", "del", *place)


@by_pod(
    wants="speak to a remote gateway from a worker, in the name of its gateway, where rp_filter is off",
    stopped_by=SOURCES,
)
def test_a_forged_gateway_from_a_worker(plain: Range) -> None:
    """The CNI leaves a source alone that is none of its Pods'."""
    victim, forged = plain.far_worker.pods[0], plain.worker.pods[0].address
    source, target = plain.gateway.address, plain.far_gateway.address

    def send(token: bytes) -> None:
        payload = packets.geneve(plain.datagram(forged, victim, token))
        whole = packets.ipv4(source, target, packets.udp(source, target, GENEVE, payload))
        packets.send_raw(plain.pod(plain.worker), target, whole)

    with plain.loose(plain.worker):
        assert plain.attempt(plain.worker, send) == NOTHING


@by_pod(
    wants="do the same with VXLAN over IPv6",
    stopped_by="the guard of tunnels, in the table of the other family",
)
def test_vxlan_over_ipv6(six: Range) -> None:
    """A dual-stack Pod, masqueraded to the Node's IPv6 address."""
    send = six.forging(six.gateway, v6(six.far_gateway), six.worker, six.far_worker)
    assert six.attempt(six.gateway, send) == NOTHING
    with six.counting(six.gateway, "to-tunnel"):
        six.attempt(six.gateway, send)


@by_pod(
    wants="hide the port of a VXLAN packet behind an IPv6 extension header",
    stopped_by="the guard of tunnels, which goes through the headers as the receiver does",
)
def test_an_extension_header_before_the_port(six: Range) -> None:
    """A destination options header of padding stands before UDP."""
    victim, forged = six.far_worker.pods[0], six.worker.pods[0].address
    source, target = IPv6Address("fd00:10:1::2"), v6(six.far_gateway)

    def send(token: bytes) -> None:
        payload = packets.vxlan(six.datagram(forged, victim, token))
        transport = packets.udp(source, target, VXLAN, payload)
        packets.send_raw(six.pod(six.gateway), target, packets.ipv6(source, target, transport, options=True))

    assert six.attempt(six.gateway, send) == NOTHING


@by_pod(
    wants="speak to its own Node in the name of a remote gateway with a forged IPv6 source",
    stopped_by=f"{SOURCES}: for IPv6 the kernel has no rp_filter",
)
def test_a_forged_ipv6_peer_to_its_own_node(six: Range) -> None:
    """Nothing needs to be switched off for that."""
    node = six.gateway
    victim, forged = six.worker.pods[0], six.far_worker.pods[0].address
    source, target = v6(six.far_gateway), v6(node)

    def send(token: bytes) -> None:
        payload = packets.vxlan(six.datagram(forged, victim, token))
        whole = packets.ipv6(source, target, packets.udp(source, target, VXLAN, payload))
        packets.send_raw(six.pod(node), target, whole)

    with six.listener(node, VXLAN) as count:
        assert six.attempt(node, send, count=count) == NOTHING


@by_pod(
    wants="use up the WireGuard handshakes of a remote gateway with the address of its Node",
    stopped_by="the guard of tunnels: each peer's WireGuard port is closed, the one that it publishes",
)
def test_the_wireguard_port(encrypted: Range) -> None:
    """A peer that is flooded answers with cookies, to the address of the Node and its real session."""

    def send(token: bytes) -> None:
        packets.send(encrypted.pod(encrypted.gateway), encrypted.far_gateway.address, WIREGUARD, token)

    assert encrypted.attempt(encrypted.gateway, send) == NOTHING
    with encrypted.counting(encrypted.gateway, "to-wireguard"):
        encrypted.attempt(encrypted.gateway, send)


@by_pod(
    wants="have its Geneve packets encrypted and taken for the tunnel's, by sending into the WireGuard device",
    stopped_by="the guard of tunnels: nothing is forwarded into the WireGuard device or out of it",
)
def test_into_the_wireguard_device(encrypted: Range) -> None:
    """The CNI would give the packet the address of the device, which the peer takes for its peer."""
    target = endpoint_of(encrypted.far_gateway.address)
    send = encrypted.forging(encrypted.gateway, target, encrypted.worker, encrypted.far_worker)
    with encrypted.loose(encrypted.gateway):
        assert encrypted.attempt(encrypted.gateway, send) == NOTHING


def _clear(field: Range, token: bytes) -> tuple[IPv4Address, bytes]:
    """Return a clear Geneve packet between the endpoints behind WireGuard, and where it goes."""
    source, target = v4(endpoint_of(field.far_gateway.address)), v4(endpoint_of(field.gateway.address))
    victim, forged = field.worker.pods[0], field.far_worker.pods[0].address
    payload = packets.geneve(field.datagram(forged, victim, token))
    return target, packets.ipv4(source, target, packets.udp(source, target, GENEVE, payload))


@by_pod(
    wants="speak to its own Node in the name of a remote gateway's endpoint behind WireGuard",
    stopped_by="the guard of tunnels (nft, hook input): an encrypted peer comes by the WireGuard device alone",
)
def test_a_forged_endpoint_behind_wireguard(encrypted: Range) -> None:
    """The Node has the endpoint's address, and would take a packet for it from any device."""

    def send(token: bytes) -> None:
        target, whole = _clear(encrypted, token)
        packets.send_raw(encrypted.pod(encrypted.gateway), target, whole)

    with encrypted.loose(encrypted.gateway):
        assert encrypted.attempt(encrypted.gateway, send) == NOTHING


@attack(
    Group.TUNNELS,
    Attacker.NEIGHBOUR,
    wants="send clear Geneve packets to an encrypted gateway, where rp_filter is loose",
    stopped_by="the guard of tunnels (nft, hook input): an encrypted peer comes by the WireGuard device alone",
)
def test_clear_geneve_from_the_uplink(encrypted: Range) -> None:
    """A machine of the same network needs no route to hand a Node a packet for any address that it has."""
    target, _ = _clear(encrypted, b"")
    way = ("route", "replace", f"{target}/32", "via", str(encrypted.gateway.address))
    netns.ip(encrypted.lab.underlay, *way)

    def send(token: bytes) -> None:
        packets.send_raw(encrypted.lab.underlay, target, _clear(encrypted, token)[1])

    with encrypted.loose(encrypted.gateway):
        assert encrypted.attempt(encrypted.gateway, send) == NOTHING
        with encrypted.counting(encrypted.gateway, "clear-tunnel"):
            encrypted.attempt(encrypted.gateway, send)


@pytest.mark.timing
@by_member(
    wants="have a gateway send more than it gets, or keep its agent busy, by a flood of probes and false answers",
    stopped_by="a meter for each remote cluster; a probe goes back once, as large as it was, where it came from, "
    "and an answer has to have the token of a probe",
)
def test_a_flood_of_probes(plain: Range) -> None:
    """Few of thousands are answered; no false answer counts, and no frame gets to a Pod."""
    lab, near = plain.lab, plain.gateway
    gateway_name, bridge = plain.far_gateway.name, lab.ovs(plain.far_gateway.name).mgmt("br-mc")
    tunnels: Any = lab.status(gateway_name)["tunnels"]
    (ofport,) = (tunnel["ofport"] for tunnel in tunnels if tunnel["peerKind"] == "remote")
    backend = OpenFlowBackend(bridge)
    began = time.monotonic()
    before = _probes(plain, near), _answers(plain)

    def send(token: bytes) -> None:
        probe = tunnel_probes.probe_frame(token[:8])
        for frame in (probe, MAC_ANSWER.to_bytes(6) + probe[6:]):
            for _ in range(FLOOD // 100):
                backend.send_out([ofport] * 100, frame)

    outcome = plain.attempt(plain.far_gateway, send)
    assert outcome.arrived == 0
    # Open vSwitch's counters are late by up to a second.
    wait_until(lambda: _answers(plain) - before[1] >= 100, "what the meter lets pass to be counted", timeout=15)
    answers = _answers(plain) - before[1]
    # As many as the burst lets pass and a second's worth for each second; both agents' own are among them.
    assert answers <= 200 + 110 * (time.monotonic() - began)
    assert _probes(plain, near) - before[0] <= time.monotonic() - began + 5


def _answers(plain: Range) -> int:
    """Return how many answers to probes the gateway of the second cluster was sent."""
    ovs = plain.lab.ovs(plain.far_gateway.name)
    match = f"table=0,dl_type={ETHERTYPE_PROBE:#x},dl_dst={MAC_ANSWER.to_bytes(6).hex(':')}"
    text = ovs.ofctl("dump-aggregate", ovs.mgmt("br-mc"), match)
    return int(re.search(r"packet_count=(\d+)", text)[1])  # type: ignore[index]


def _probes(plain: Range, node: Node) -> float:
    """Return how many probes a gateway's agent counts."""
    page = plain.lab.http(node.name, "/metrics")[1]
    return sum(map(float, re.findall(r"^mcagent_tunnel_probes_total\{.*\} (\S+)$", page, re.MULTILINE)))
