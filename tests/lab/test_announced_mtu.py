"""A cluster with smaller tunnels announces their MTU, and kernels of other clusters report it to senders."""

from __future__ import annotations

import errno
import os
import re
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from devtools.errors import LabError
from devtools.lab.lab import Lab
from devtools.lab.topology import POD_PORT, Cluster, Pod, generate
from devtools.nodes import netns
from devtools.traffic import matrix, traffic
from devtools.waiting import wait_until

pytestmark = [pytest.mark.packets, pytest.mark.datapath]

SMALL = 1300
LARGE = SMALL - 28 + 1  # bytes of the smallest datagram that west does not take: IP 20, UDP 8
IP_MTU_DISCOVER, IP_PMTUDISC_DO = 10, 2  # ip(7)


@pytest.fixture(scope="module")
def lab(make_lab: Callable[..., Lab]) -> Iterator[Lab]:
    """Two clusters with controllers; the Nodes of west have an MTU of 1300, as behind one more overlay."""
    shape = generate(gateways=1, workers=1)
    east, west = shape.clusters
    west = replace(west, config={"mtu": SMALL})
    with make_lab(replace(shape, clusters=(east, west)), control_plane=True, liveness=False) as lab:
        wait_until(
            lambda: _announced(lab), "the Nodes of east to have the MTU of west on their routes", timeout=90
        )
        yield lab


def _announced(lab: Lab) -> bool:
    east, west = lab.topology.clusters
    routes = [
        netns.ip(lab.namespace(node), "route", "show", "table", "28003", str(destination))
        for node in east.nodes
        for destination in (west.pod_cidr, matrix.seen_as(west.gateways[0]))
    ]
    return all(f"mtu {SMALL}" in route for route in routes)


def _pods(cluster: Cluster) -> list[Pod]:
    return [node.pods[0] for node in cluster.nodes]


def _refused(sender: socket.socket) -> bool:
    """Send one datagram; return whether the kernel refuses it as too large."""
    try:
        sender.send(os.urandom(LARGE))
    except OSError as error:
        if error.errno != errno.EMSGSIZE:
            raise
        return True
    return False


def test_senders_are_told_the_mtu_of_the_other_cluster(lab: Lab) -> None:
    """The Node answers the first large packet with the MTU; each further one is refused in the Pod."""
    east, west = lab.topology.clusters
    for client in _pods(east):
        for target in _pods(west):
            namespace = lab.namespace(client)
            fits = ["ping", "-n", "-c", "1", "-w", f"{traffic.PATIENCE:.0f}", "-M", "do", "-s", str(SMALL - 28)]
            netns.execute(namespace, [*fits, str(target.address)])
            with traffic.udp_socket(namespace, target.address, POD_PORT) as sender:
                sender.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
                wait_until(lambda sender=sender: _refused(sender), "a large datagram to be refused", timeout=5)  # type: ignore[misc]
                assert [_refused(sender) for _ in range(20)] == [True] * 20
            cached_route = netns.ip(namespace, "route", "get", str(target.address))
            assert re.search(rf"\bmtu {SMALL}\b", cached_route), cached_route


def test_large_datagrams_are_fragmented_at_their_source(lab: Lab) -> None:
    """A sender that allows fragments, as is the default, gets 20 of 20 large datagrams through, once it knows."""
    east, west = lab.topology.clusters
    for client in _pods(east):
        for target in _pods(west):
            with traffic.udp_socket(lab.namespace(client), target.address, POD_PORT) as sender:
                wait_until(lambda sender=sender: _passes(sender), "the sender to fragment datagrams", timeout=20)  # type: ignore[misc]
                replies = [traffic.exchange(sender, os.urandom(LARGE)) for _ in range(20)]
            assert [reply.pod for reply in replies] == [target.name] * 20
            assert sum(reply.sent == 1 for reply in replies) > 10  # a busy machine loses some, but not one of two


def _passes(sender: socket.socket) -> bool:
    try:
        traffic.exchange(sender, os.urandom(LARGE), timeout=1.0)
    except LabError:
        return False
    return True


def test_segments_fit_the_other_cluster(lab: Lab) -> None:
    """A connection's segments do, in both directions."""
    east, west = lab.topology.clusters
    for client, server in ((east, west), (west, east)):
        address = str(server.services[0].cluster_ip)
        with traffic.TcpClient(lab.namespace(_pods(client)[0]), address, 80, timeout=20) as connection:
            connection.exchange(os.urandom(60000))
            assert connection.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG) <= SMALL - 40


def test_servers_are_told_the_mtu_of_their_clients(lab: Lab) -> None:
    """Replies have a route of their own: a large answer that does not fit is reported to the server, too."""
    east, west = lab.topology.clusters
    client, server = _pods(west)[0], _pods(east)[1]
    with traffic.udp_socket(lab.namespace(client), server.address, POD_PORT) as asker:
        wait_until(lambda: _answered(asker), "the server to fragment its answers", timeout=20)
        assert [_answered(asker) for _ in range(20)] == [True] * 20
    cached_route = netns.ip(lab.namespace(server), "route", "get", str(client.address))
    assert re.search(rf"\bmtu {SMALL}\b", cached_route), cached_route


def _answered(asker: socket.socket) -> bool:
    """Ask for an answer that is larger than the MTU, by a datagram that is not; tell whether it comes."""
    asker.settimeout(1.0)
    asker.send(os.urandom(LARGE - 1))
    try:
        return len(asker.recv(65536)) >= LARGE
    except TimeoutError:
        return False
