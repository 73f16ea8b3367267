"""The ends and the TTL of tunnels (`options:local_ip`, `options:ttl`) can be set on tunnels in use."""

from __future__ import annotations

import re
from functools import partial

import pytest

from devtools.lab.faults import Settled
from devtools.lab.lab import Lab
from devtools.lab.topology import POD_PORT, Node, generate
from devtools.traffic import traffic
from devtools.waiting import wait_until
from tests.worlds.labs import MakeLab

OPTIONS = ("local_ip", "ttl")


@pytest.fixture(scope="module")
def lab(make_lab: MakeLab) -> Lab:
    """Two clusters of a gateway and a worker."""
    return make_lab(generate())


def tunnels(lab: Lab, node: Node) -> dict[str, tuple[str, str]]:
    """Return the options and the number of BFD's state changes of each tunnel of a Node."""
    columns = "--columns=name,options,bfd_status"
    rows = lab.ovs(node.name).vsctl("--format=csv", "--no-headings", columns, "list", "Interface").splitlines()
    matches = (re.match(r'(mc[nr]-\w+),"\{(.*)\}","\{.*flap_count=""(\d+)""', row) for row in rows)
    return {match[1]: (match[2], match[3]) for match in matches if match}


def repaired(lab: Lab, node: Node, before: dict[str, tuple[str, str]]) -> bool:
    """Tell whether the tunnels of a Node have their options, and no BFD session has changed its state."""
    return tunnels(lab, node) == before


@pytest.mark.timing
def test_tunnels_in_use_get_their_options_without_a_loss(lab: Lab, settled: Settled) -> None:
    """As by an upgrade from a version that did not set them: the agent sets what another program has removed."""
    settled.wait()
    east, west = lab.topology.clusters
    client, server = lab.namespace(east.workers[0].pods[0]), west.workers[0].pods[0]
    nodes = [node for _, node in lab.topology.nodes()]
    before = {node.name: tunnels(lab, node) for node in nodes}
    assert all(len(before[node.name]) == (2 if node.gateway else 1) for node in nodes)
    with traffic.UdpStream(client, server.address, POD_PORT) as stream:
        for node in nodes:
            ovs = lab.ovs(node.name)
            for name in before[node.name]:
                ovs.vsctl("remove", "Interface", name, "options", *OPTIONS)
            wait_until(partial(repaired, lab, node, before[node.name]), f"the agent of {node.name} to set them")
    assert stream.result is not None
    assert stream.result.lost == 0
