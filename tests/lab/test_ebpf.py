"""A CNI that forwards by eBPF, past netfilter: replies find their way by their destination alone."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from devtools.lab import faults
from devtools.lab.control import POLICIES
from devtools.lab.faults import Settled
from devtools.lab.lab import Lab
from devtools.lab.topology import Cni, generate
from devtools.nodes import netns
from devtools.traffic import matrix, traffic
from devtools.traffic.capture import Capture
from devtools.waiting import wait_until
from tests.worlds.profiles import translated

pytestmark = [pytest.mark.packets, pytest.mark.datapath]

WATCH = """
table ip watch {
  chain forward {
    type filter hook forward priority -200;
    iifname "pod*" counter
  }
}
"""


@pytest.fixture(scope="module", params=["translated", "published"])
def lab(request: pytest.FixtureRequest, make_lab: Callable[..., Lab]) -> Iterator[Lab]:
    """Two clusters of two gateways and a worker; netfilter counts packets of Pods on each Node.

    All sources are translated, or Pods keep theirs and agents enforce policies.
    """
    shape = generate(cni=Cni.EBPF, gateways=2)
    if request.param == "translated":
        shape = translated(shape)
    else:
        on: dict[str, object] = {POLICIES: True}
        shape = replace(shape, clusters=tuple(replace(cluster, config=on) for cluster in shape.clusters))
    with make_lab(shape) as lab:
        for _, node in lab.topology.nodes():
            netns.execute(lab.namespace(node), ["nft", "-f", "-"], stdin=WATCH)
        yield lab


def wrong(lab: Lab) -> list[str]:
    """Return what is not as it should be of all ways between the clusters."""
    results = [matrix.run(lab, case) for case in matrix.cases(lab.topology)]
    assert any(result.copies for result in results)
    return [f"{r.case.source.name} -> {r.case.target}: {r.problem}" for r in results if not r.ok]


def test_every_way_works_past_netfilter(lab: Lab) -> None:
    """One copy of each packet, from a mapped address or the Pod's, and netfilter sees none of a Pod."""
    assert wrong(lab) == []
    for _, node in lab.topology.nodes():
        watched = netns.execute(lab.namespace(node), ["nft", "list", "table", "ip", "watch"]).stdout
        assert "packets 0 bytes 0" in watched, node.name


def test_processes_of_nodes_are_answered_and_large_transfers_pass(lab: Lab) -> None:
    """From each Node of one cluster to a Service of the other one: TCP, UDP, and a megabyte each way."""
    exchange(lab)


def exchange(lab: Lab) -> None:
    """Fail unless processes of Nodes and Pods reach a Service, and a megabyte passes each way."""
    east, west = lab.topology.clusters
    address, gateways = west.services[0].cluster_ip, {str(matrix.seen_as(gateway)) for gateway in east.gateways}
    for node in east.nodes:
        pod = {str(source) for source in matrix.expected_sources(east, west, node.pods[0])}
        for client, client_namespace in ((lab.namespace(node), gateways), (lab.namespace(node.pods[0]), pod)):
            assert {traffic.tcp(client, address, 80).source for _ in range(4)} <= client_namespace
            assert traffic.udp(client, address, 80, os.urandom(16)).source in client_namespace
            with traffic.TcpClient(client, str(address), 80, timeout=20) as stream:
                for _ in range(16):
                    stream.exchange(os.urandom(65536))


def test_flooded_frames_are_left_to_the_kernel(lab: Lab) -> None:
    """A frame to another Node's MAC address, flooded by a bridge, reaches no Pod; one to the Node's own does."""
    west = lab.topology.clusters[1]
    sender, receiver = lab.namespace(west.workers[0]), west.gateways[0]
    pod = receiver.pods[0]
    own = json.loads(netns.ip(lab.namespace(receiver), "-j", "link", "show", "dev", "eth0"))[0]["address"]
    with Capture(lab.namespace(pod)) as capture:
        for mac, payload in (("02:00:00:00:00:99", b"flooded frame"), (own, b"addressed frame")):
            packet = IP(src=str(west.workers[0].pods[0].address), dst=str(pod.address)) / UDP(dport=9) / payload
            frame = bytes(Ether(src="02:00:00:00:00:98", dst=mac) / packet)
            with netns.call(sender, lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW)) as wire:
                wire.bind(("eth0", 0))
                wire.send(frame)
        wait_until(
            lambda: capture.count(b"addressed frame"), "the frame to the Node's own MAC address", timeout=10
        )
        assert capture.count(b"addressed frame") == 1
        assert capture.count(b"flooded frame") == 0


MARKS = """
table ip marks {
  chain prerouting {
    type filter hook prerouting priority -140;
    meta mark set 0x3fff ct mark set 0x3fff
  }
  chain output {
    type route hook output priority -140;
    meta mark set 0x3fff ct mark set 0x3fff
  }
}
"""


def test_marks_of_other_programs_change_nothing(lab: Lab) -> None:
    """Every packet and connection has all bits that Cilium's IPsec keys and kube-router's Services for DSR use."""
    nodes = [lab.namespace(node) for _, node in lab.topology.nodes()]
    for node in nodes:
        netns.execute(node, ["nft", "-f", "-"], stdin=MARKS)
    try:
        assert wrong(lab) == []
        exchange(lab)
    finally:
        for node in nodes:
            netns.execute(node, ["nft", "delete", "table", "ip", "marks"])


@pytest.mark.timing
def test_translated_connections_outlive_a_gateway(lab: Lab) -> None:
    """A gateway of the servers' cluster is cut off: no connection breaks, and replies take the other gateway."""
    east, west = lab.topology.clusters
    if east.publish_pods:
        pytest.skip("sources are not translated: tests/lab/test_failover_short.py has that")
    gateway = west.gateways[1]
    pods = {pod.name for node in west.nodes if node != gateway for pod in node.pods}
    Settled(lab).wait()
    with contextlib.ExitStack() as stack:
        connect = partial(traffic.TcpClient, lab.namespace(east.workers[0].pods[0]), timeout=20)
        clients = [stack.enter_context(connect(str(west.services[0].cluster_ip), 80)) for _ in range(24)]
        clients = [client for client in clients if client.hello.pod in pods]
        assert len({client.hello.pod for client in clients}) == len(pods)
        assert {client.hello.source for client in clients} <= {str(matrix.seen_as(g)) for g in east.gateways}
        fault = faults.link_cut(lab, gateway.name)
        fault.inject()
        try:
            for client in clients * 2:
                client.exchange(b"still there?")
        finally:
            fault.heal()
        Settled(lab).wait()
        for client in clients:
            client.exchange(b"and now?")
