"""Endpoints of exported Services that are dead, or that only one of two gateways knows of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from devtools.lab import faults, objects
from devtools.lab.faults import Settled
from devtools.lab.lab import Lab
from devtools.lab.topology import Topology
from devtools.traffic import traffic
from devtools.waiting import wait_until
from tests import failover
from tests.failover import INTERVALS

CONNECTIONS = 24  # that all miss one of two workers by chance: once in 16 million


@pytest.fixture(scope="module")
def lab(make_lab: Callable[[Topology], Lab]) -> Lab:
    """Two clusters with two gateways and two workers each."""
    return make_lab(failover.topology(INTERVALS["100x3"], gateways=2, workers=2))


def test_new_connections_avoid_a_dead_node(lab: Lab, settled: Settled) -> None:
    """As soon as gateways know by BFD, no new connection goes to the dead Node; once it is back, some do."""
    settled.wait()
    east, west = lab.topology.clusters
    client = lab.namespace(east.workers[0].pods[0])
    service = west.services[0].cluster_ip
    hosts = {pod.name: node.name for node in west.workers for pod in node.pods}

    def met() -> set[str]:
        return {hosts[traffic.tcp(client, service, 80).pod] for _ in range(CONNECTIONS)}

    both = {node.name for node in west.workers}
    assert met() == both
    lost = west.workers[0].name
    cut = faults.link_cut(lab, lost)
    cut.inject()
    try:
        wait_until(lambda: all(_misses_one(lab, g.name) for g in west.gateways), "BFD to report the loss")
        assert met() == both - {lost}
    finally:
        cut.heal()
    settled.wait()
    assert met() == both


def test_gateways_that_know_different_endpoints_show_it(lab: Lab, settled: Settled) -> None:
    """One gateway loses the API server before a change: its hash differs until it is back, and then no more."""
    settled.wait()
    west = lab.topology.clusters[1]
    (service, *_), names = west.services, [gateway.name for gateway in west.gateways]
    (found,) = objects.endpoint_slices(lab.topology, service)
    whole: Any = found["endpoints"]

    def known() -> list[int]:
        exports: list[Any] = [lab.status(name)["exports"] for name in names]
        return [found[f"{service.namespace}/{service.name}"]["hash"] for found in exports]

    (before,) = set(known())
    fault = faults.loses_api(lab, names[1])
    fault.inject()
    try:
        seen = {before}
        for some in (whole[1:], whole[:1]):
            lab.api(west.name).patch("EndpointSlice", f"{service.name}-1", {"endpoints": some}, service.namespace)
            wait_until(lambda: known()[0] not in seen, "the other gateway to know")
            assert known()[1] == before
            seen.add(known()[0])
    finally:
        fault.heal()
    wait_until(lambda: len(set(known())) == 1, "both to know the same", timeout=60)
    lab.api(west.name).patch("EndpointSlice", f"{service.name}-1", {"endpoints": whole}, service.namespace)
    wait_until(lambda: set(known()) == {before}, "both to know all")


def _misses_one(lab: Lab, gateway: str) -> bool:
    """Tell whether one of a gateway's BFD sessions is down."""
    return [session.up for session in faults.sessions(lab, gateway)].count(False) == 1
