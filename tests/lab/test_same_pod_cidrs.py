"""Two clusters with one Pod CIDR: Pods reach each other at virtual addresses, also after gateways are lost."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from ipaddress import IPv4Address

import pytest

from devtools.errors import LabError
from devtools.lab import faults, story
from devtools.lab.control import LEADER_NAMESPACE, MEMBER_NAMESPACE, ControlPlane
from devtools.lab.lab import Lab
from devtools.lab.topology import DIRECT_PORT, KUBEADM_PODS, POD_PORT, Cluster, Pod, generate
from devtools.nodes import netns
from devtools.traffic import matrix, traffic
from devtools.traffic.traffic import TcpClient
from devtools.waiting import wait_until
from mcagent.model.net import internet_checksum
from tests.lab.traces import trace
from tests.worlds.labs import MakeLab

pytestmark = [pytest.mark.packets, pytest.mark.datapath]

CLOSED_PORT, SMALL_MTU = 9999, 1000
_MTU_DISCOVER, _DO, _MTU = 10, 2, 14  # linux/in.h: IP_MTU_DISCOVER, IP_PMTUDISC_DO, IP_MTU


@pytest.fixture(scope="module")
def lab(make_lab: MakeLab) -> Iterator[Lab]:
    """Two clusters of two gateways and a worker."""
    with make_lab(generate(clusters=2, gateways=2, workers=1, same_cidrs=True), control_plane=True) as lab:
        yield lab


def worker_pod(cluster: Cluster) -> Pod:
    """Return a Pod that is on no gateway."""
    return cluster.workers[0].pods[0]


def remote_address(lab: Lab, cluster: Cluster, pod: Pod) -> IPv4Address:
    """Return the address of a Pod in other clusters."""
    return matrix.remote_address(cluster, pod, story.pod_prefixes(lab))


def ways(lab: Lab) -> Iterator[tuple[Cluster, Pod, Cluster, Pod]]:
    """Yield client and server in both directions."""
    east, west = lab.topology.clusters
    for client, server in ((east, west), (west, east)):
        yield client, worker_pod(client), server, worker_pod(server)


def test_every_way_between_the_pods(lab: Lab) -> None:
    """TCP and UDP, from gateways and workers, one copy; the server sees the virtual address, as documented."""
    addresses, prefixes = story.export_addresses(lab), story.pod_prefixes(lab)
    assert {pair.real for pairs in prefixes.values() for pair in pairs} == {KUBEADM_PODS}
    cases = list(matrix.cases(lab.topology, story.imported_addresses(lab), addresses, prefixes))
    assert any(case.address in pair.virtual for case in cases for pair in prefixes["west"])
    results = [matrix.run(lab, case) for case in cases]
    assert [f"{r.case.source.name} -> {r.case.target}: {r.problem}" for r in results if not r.ok] == []


def test_the_real_addresses_stay_at_home(lab: Lab) -> None:
    """The same address is a Pod of the own cluster; the virtual one of the own cluster leads nowhere."""
    for client, pod, _, other in ways(lab):
        reply = traffic.tcp(lab.namespace(pod), client.gateways[0].pods[0].address, POD_PORT)
        assert reply.pod.split("-")[0] == client.name
        assert reply.source == str(pod.address)
        assert other.address in KUBEADM_PODS


def test_large_datagrams_are_fragmented_and_translated(lab: Lab) -> None:
    """Each fragment has the virtual address, and the checksum of the whole datagram is right."""
    for _, pod, server, other in ways(lab):
        with traffic.udp_socket(lab.namespace(pod), remote_address(lab, server, other), POD_PORT) as client:
            for size in (100, 3000, 8000):
                assert traffic.exchange(client, bytes(size)).pod == other.name


def test_a_datagram_without_checksum_has_none_after_the_translation(lab: Lab) -> None:
    """A zero means that there is none (RFC 768), and must not become one that is wrong."""
    for client, pod, server, other in ways(lab):
        address = remote_address(lab, server, other)

        def bound(kind: int) -> socket.socket:
            sock = socket.socket(socket.AF_INET, kind, socket.IPPROTO_UDP)
            sock.settimeout(5)
            return sock

        with ExitStack() as stack:
            receiver = stack.enter_context(netns.call(lab.namespace(other), lambda: bound(socket.SOCK_DGRAM)))
            receiver.bind(("", 7777))
            sender = stack.enter_context(netns.call(lab.namespace(pod), lambda: bound(socket.SOCK_RAW)))
            sender.sendto(struct.pack("!HHHH", 7000, 7777, 8 + 5, 0) + b"hello", (str(address), 0))
            data, peer = receiver.recvfrom(64)
            assert (data, peer[0]) == (b"hello", str(remote_address(lab, client, pod)))


def test_errors_reach_the_sender(lab: Lab) -> None:
    """A closed port refuses at once; a smaller MTU on the way to the server, behind its Pod, is learnt."""
    for client_cluster, pod, server, other in ways(lab):
        address = remote_address(lab, server, other)
        with netns.call(lab.namespace(pod), lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as client:
            client.setsockopt(socket.IPPROTO_IP, _MTU_DISCOVER, _DO)
            client.connect((str(address), CLOSED_PORT))
            with pytest.raises(LabError, match="refused"):
                traffic.exchange(client, b"anyone")
            ends = (remote_address(lab, client_cluster, pod), other.address)
            quoted = struct.pack("!BBHHHBBH", 0x45, 0, 1028, 0, 0x4000, 60, socket.IPPROTO_UDP, 0)
            quoted += b"".join(end.packed for end in ends)
            quoted += struct.pack("!HHHH", client.getsockname()[1], CLOSED_PORT, 1008, 0)
            header = struct.pack("!BBHHH", 3, 4, 0, 0, SMALL_MTU)
            error = header[:2] + internet_checksum(header + quoted).to_bytes(2) + header[4:] + quoted
            raw = partial(socket.socket, socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
            with netns.call(lab.namespace(other), raw) as behind_the_pod:
                behind_the_pod.sendto(error, (str(ends[0]), 0))
            wait_until(
                lambda client=client: client.getsockopt(socket.IPPROTO_IP, _MTU) == SMALL_MTU,  # type: ignore[misc]
                "the client to learn the MTU",
                timeout=5,
            )


def test_trace_shows_both_addresses(lab: Lab) -> None:
    """From the real address to the virtual one and back, hop by hop, and with real probes."""
    for client, pod, server, other in ways(lab):
        address = remote_address(lab, server, other)
        traced, shown = trace(lab, client.workers[0].name, pod.address, f"{address}:{POD_PORT}", "--live")
        assert traced["delivered"], shown
        assert traced["answered"], shown
        first, last = traced["hops"][0]["walk"], traced["hops"][-1]["walk"]
        assert (first["source"], first["destination"]) == (str(remote_address(lab, client, pod)), str(address))
        assert (last["source"], last["destination"]) == (str(remote_address(lab, client, pod)), str(other.address))
        assert traced["answer"][-1]["walk"]["destination"] == str(pod.address)
        assert traced["live"]["answered"], shown


def test_connections_survive_the_loss_of_each_gateway(lab: Lab) -> None:
    """One gateway after another dies, in both clusters, under open connections between Pods."""
    with ExitStack() as stack:
        clients = [
            stack.enter_context(
                TcpClient(lab.namespace(pod), str(remote_address(lab, server, other)), DIRECT_PORT)
            )
            for _, pod, server, other in ways(lab)
            for _ in range(8)
        ]
        for cluster in lab.topology.clusters:
            for gateway in cluster.gateways:
                settled = faults.Settled(lab)
                fault = faults.node_gone(lab, gateway.name)
                fault.inject()
                for number, client in enumerate(clients):
                    assert client.exchange(b"%d" % number) < 10
                fault.heal()
                settled.wait()
                for client in clients:
                    client.exchange(b"again")


def test_the_virtual_cidrs_are_shown(lab: Lab) -> None:
    """By `get clusterset` on leader and member, and by `mcagent status` on each Node."""
    plane, prefixes = ControlPlane(lab), story.pod_prefixes(lab)
    listed = plane.command(plane.leader, "get", "clusterset", "-n", LEADER_NAMESPACE, "-o", "wide")
    for cluster in lab.topology.clusters:
        (pair,) = prefixes[cluster.name]
        assert f"virtual Pod CIDR {pair.virtual} for {pair.real}: its Pod CIDR {pair.real} overlaps" in listed
        own = plane.command(cluster, "get", "clusterset", "-n", MEMBER_NAMESPACE, "-o", "wide")
        assert f"virtual Pod CIDR {pair.virtual} for {pair.real}" in own
        for node in cluster.nodes:
            status = lab.mcagent(node.name, "status")
            assert f"pods      {pair.real} are {pair.virtual} in other clusters" in status
