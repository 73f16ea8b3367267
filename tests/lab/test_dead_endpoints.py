"""Endpoints of exported Services that are dead, silent, no longer ready, or known to only one of two gateways."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from ipaddress import IPv4Network
from typing import Any

import pytest

from devtools.lab import faults, objects
from devtools.lab.faults import Settled
from devtools.lab.lab import Lab
from devtools.lab.topology import Cluster, Node, Topology
from devtools.traffic import traffic
from devtools.waiting import wait_until
from tests.worlds import failover
from tests.worlds.failover import INTERVALS

pytestmark = pytest.mark.datapath

CONNECTIONS = 24  # that all miss one of two workers by chance: once in 16 million


@pytest.fixture(scope="module")
def lab(make_lab: Callable[[Topology], Lab]) -> Lab:
    """Two clusters with two gateways and two workers each."""
    return make_lab(failover.topology(INTERVALS["100x3"], gateways=2, workers=2))


@pytest.mark.timing
def test_new_connections_avoid_a_dead_node(lab: Lab, settled: Settled) -> None:
    """As soon as gateways know by BFD, no new connection goes to the dead Node; once it is back, some do."""
    settled.wait()
    east, west = lab.topology.clusters
    client = lab.namespace(east.workers[0].pods[0])
    service = west.services[0].cluster_ip
    hosts = {pod.name: node.name for node in west.workers for pod in node.pods}

    def met() -> set[str]:
        # Not longer: a connection that a dead endpoint gets must not be answered after all, by another one.
        answers = (traffic.tcp(client, service, 80, timeout=traffic.TIMEOUT) for _ in range(CONNECTIONS))
        return {hosts[reply.pod] for reply in answers}

    affected = {node.name for node in west.workers}
    assert met() == affected
    silent_node = west.workers[0].name
    cut = faults.link_cut(lab, silent_node)
    cut.inject()
    try:
        wait_until(lambda: all(_misses_one(lab, g.name) for g in west.gateways), "BFD to report the loss")
        assert met() == affected - {silent_node}
    finally:
        cut.heal()
    settled.wait()
    assert met() == affected


@contextlib.contextmanager
def connections(lab: Lab) -> Iterator[list[traffic.TcpClient]]:
    """Open connections to the Service."""
    east, west = lab.topology.clusters
    where = (lab.namespace(east.workers[0].pods[0]), str(west.services[0].cluster_ip), 80)
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(traffic.TcpClient(*where)) for _ in range(CONNECTIONS)]


def move_between_gateways(lab: Lab, settled: Settled, clients: list[traffic.TcpClient]) -> None:
    """Cut the serving gateways off one after the other, and fail unless every connection goes on all the time.

    A connection meets a gateway that does not know it: it was opened through the other one.
    """
    for gateway in lab.topology.clusters[1].gateways:
        settled.wait()
        cut = faults.link_cut(lab, gateway.name)
        cut.inject()
        try:
            for client in clients:
                client.exchange(b"without a gateway")
        finally:
            cut.heal()
        settled.wait()
        for client in clients:
            client.exchange(b"all gateways are back")


@pytest.mark.timing
def test_connections_of_a_dead_node_s_time_go_on_by_other_gateways(lab: Lab, settled: Settled) -> None:
    """They were opened while a Node was dead, so their endpoint is not the one that the hash chooses otherwise."""
    settled.wait()
    west = lab.topology.clusters[1]
    cut = faults.link_cut(lab, west.workers[0].name)
    cut.inject()
    try:
        wait_until(lambda: all(_misses_one(lab, g.name) for g in west.gateways), "BFD to report the loss")
        with connections(lab) as clients:
            cut.heal()
            move_between_gateways(lab, settled, clients)
    finally:
        cut.heal()


@pytest.mark.timing
def test_connections_outlive_a_change_of_endpoints_and_the_loss_of_a_gateway(lab: Lab, settled: Settled) -> None:
    """Half of the endpoints are no longer ready: they keep their connections, by gateways that never saw these."""
    settled.wait()
    west = lab.topology.clusters[1]
    (service, *_) = west.services
    (endpoint_slice,) = objects.endpoint_slices(lab.topology, service)
    whole: Any = endpoint_slice["endpoints"]
    half = len(whole) // 2
    not_ready = [{**endpoint, "conditions": {"ready": False, "serving": False}} for endpoint in whole[:half]]

    def put(endpoints: Any) -> None:
        lab.api(west.name).patch("EndpointSlice", f"{service.name}-1", {"endpoints": endpoints}, service.namespace)

    def used() -> set[int]:
        exports: list[Any] = [lab.status(gateway.name)["exports"] for gateway in west.gateways]
        return {export[f"{service.namespace}/{service.name}"]["endpoints"] for export in exports}

    (before,) = used()  # of all ports
    fewer = before * (len(whole) - half) // len(whole)
    with connections(lab) as clients:
        put([*not_ready, *whole[half:]])
        try:
            wait_until(lambda: used() == {fewer}, "all gateways to know")
            move_between_gateways(lab, Settled(lab), clients)  # with other groups
        finally:
            put(whole)
        wait_until(lambda: used() == {before}, "all gateways to know all endpoints")


@pytest.mark.timing
def test_gateways_that_know_different_endpoints_show_it(lab: Lab, settled: Settled) -> None:
    """One gateway loses the API server before a change: its hash differs until it is back, and then no more."""
    settled.wait()
    west = lab.topology.clusters[1]
    (service, *_), names = west.services, [gateway.name for gateway in west.gateways]
    (export,) = objects.endpoint_slices(lab.topology, service)
    whole: Any = export["endpoints"]

    def known() -> list[int]:
        exports: list[Any] = [lab.status(name)["exports"] for name in names]
        return [export[f"{service.namespace}/{service.name}"]["hash"] for export in exports]

    (before,) = set(known())
    fault = faults.loses_api(lab, names[1])
    fault.inject()
    try:
        addresses_seen = {before}
        for some in (whole[1:], whole[:1]):
            lab.api(west.name).patch("EndpointSlice", f"{service.name}-1", {"endpoints": some}, service.namespace)
            wait_until(lambda: known()[0] not in addresses_seen, "the other gateway to know")
            assert known()[1] == before
            addresses_seen.add(known()[0])
    finally:
        fault.heal()
    wait_until(lambda: len(set(known())) == 1, "both to know the same", timeout=60)
    lab.api(west.name).patch("EndpointSlice", f"{service.name}-1", {"endpoints": whole}, service.namespace)
    wait_until(lambda: set(known()) == {before}, "both to know all")


def test_new_connections_avoid_a_node_that_never_answered(lab: Lab, settled: Settled) -> None:
    """It has no agent. Its endpoint gets none, from the first on, and open connections of others stay."""
    settled.wait()
    east, west = lab.topology.clusters
    (service, *_), api = west.services, lab.api(west.name)
    (endpoint_slice,) = objects.endpoint_slices(lab.topology, service)
    endpoints: Any = endpoint_slice["endpoints"]
    silent = Node(name="fargate-1", address=west.subnet[99], pod_cidr=subnet_of(west, 200))
    address = str(subnet_of(west, 200)[5])
    silent_endpoint = {**endpoints[0], "addresses": [address], "nodeName": silent.name}

    def put(endpoints: Any) -> None:
        api.patch("EndpointSlice", f"{service.name}-1", {"endpoints": endpoints}, service.namespace)

    def has_tunnel(gateway: str) -> bool:
        tunnels: Any = lab.status(gateway)["tunnels"]
        return any(tunnel["peer"] == silent.name for tunnel in tunnels)

    def known(gateway: str) -> int:
        exports: Any = lab.status(gateway)["exports"]
        return int(exports[f"{service.namespace}/{service.name}"]["endpoints"])

    before = known(west.gateways[0].name)
    api.create(objects.node_object(silent))
    try:
        wait_until(lambda: all(has_tunnel(g.name) for g in west.gateways), "tunnels to the new Node")
        put([*endpoints[:1], silent_endpoint])
        wait_until(
            lambda: all(known(g.name) == before * 2 // len(endpoints) for g in west.gateways), "gateways to know"
        )
        client = lab.namespace(east.workers[0].pods[0])
        pods = {
            traffic.tcp(client, service.cluster_ip, 80, timeout=traffic.TIMEOUT).pod for _ in range(CONNECTIONS)
        }
        assert pods == {service.pods[0]}
    finally:
        put(endpoints)
        api.delete("Node", silent.name)
    wait_until(lambda: all(known(g.name) == before for g in west.gateways), "gateways to know all endpoints")


def subnet_of(cluster: Cluster, number: int) -> IPv4Network:
    """Return a /24 of a cluster's Pod CIDR."""
    return list(cluster.pod_cidr.subnets(new_prefix=24))[number]


def _misses_one(lab: Lab, gateway: str) -> bool:
    """Tell whether one of a gateway's BFD sessions is down."""
    return [session.up for session in faults.sessions(lab, gateway)].count(False) == 1
