"""A Node that dies with endpoints of an exported Service, long before Kubernetes says NotReady."""

from __future__ import annotations

from collections.abc import Callable

from devtools.lab import faults
from devtools.lab.faults import Settled
from devtools.lab.lab import Lab
from devtools.lab.topology import Topology
from devtools.traffic import traffic
from devtools.waiting import wait_until
from tests import failover
from tests.failover import INTERVALS

CONNECTIONS = 24  # that all miss one of two workers by chance: once in 16 million


def test_new_connections_avoid_a_dead_node(make_lab: Callable[[Topology], Lab]) -> None:
    """As soon as gateways know by BFD, no new connection goes to the dead Node; once it is back, some do."""
    with make_lab(failover.topology(INTERVALS["100x3"], gateways=2, workers=2)) as lab:
        settled = Settled(lab)
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


def _misses_one(lab: Lab, gateway: str) -> bool:
    """Tell whether one of a gateway's BFD sessions is down."""
    return [session.up for session in faults.sessions(lab, gateway)].count(False) == 1
