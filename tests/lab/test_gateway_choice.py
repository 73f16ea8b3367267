"""How connections are distributed over several gateways, and what the choice costs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from devtools.lab.lab import Lab
from devtools.lab.topology import POD_PORT, generate
from devtools.traffic.traffic import TcpClient
from mcagent.dataplane.facts import kernel_datapath_exists
from tests.bench.packets.measuring import upcalls

pytestmark = [pytest.mark.packets, pytest.mark.datapath]

CONNECTIONS = 400
FIRST_PORT = 32768  # Linux prefers ports of this parity (__inet_hash_connect in net/ipv4/inet_hashtables.c)


@pytest.fixture(scope="module")
def lab(make_lab: Callable[..., Lab]) -> Lab:
    """Two clusters of two gateways and a worker."""
    return make_lab(generate(gateways=2, workers=1, pods=1), liveness=False)


@pytest.mark.skipif(not kernel_datapath_exists(), reason="the userspace datapath has a flow for each connection")
@pytest.mark.parametrize(("target", "most"), [("pod", 0.1), ("service", 1.1)])
def test_connections_share_datapath_flows(lab: Lab, target: str, most: float) -> None:
    """Connections that agree in the hashed bits need no upcall. Those to a Service need one, for the endpoint."""
    east, west = lab.topology.clusters
    client = lab.namespace(east.workers[0].pods[0])
    address, port = str(west.workers[0].pods[0].address), POD_PORT
    if target == "service":
        address, port = str(west.services[0].cluster_ip), 80
    nodes = [node.name for _, node in lab.topology.nodes()]
    counts = []
    for begin in (0, CONNECTIONS):
        before = upcalls(lab, nodes)
        for number in range(begin, begin + CONNECTIONS):
            TcpClient(client, address, port, source_port=FIRST_PORT + 2 * number).reset()
        counts.append(upcalls(lab, nodes) - before)
    assert counts[0] > 0
    assert counts[1] <= most * CONNECTIONS
