"""Packets to and from an Antrea cluster through WireGuard, as Antrea's agent sets it up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from devtools.lab.lab import Lab
from devtools.lab.topology import Cluster, Cni, Node, Topology, generate
from devtools.nodes import antrea_wireguard, netns
from devtools.traffic import matrix
from devtools.traffic.traffic import PATIENCE
from devtools.waiting import wait_until
from mcagent.model.config import TrafficEncryption
from mcagent.model.dataplane.facts import DatapathType
from tests.lab.antrea_gateways import SILENCE, echoed, taken_for_antrea
from tests.lab.encryption import Wire

pytestmark = pytest.mark.datapath

LARGEST = 1390  # bytes: 1500 less WireGuard's 60 and Geneve's 50
SOON = 60.0  # seconds until there are sessions and verdicts


def _shape() -> Topology:
    """Return our cluster east, of two gateways and a worker, and Antrea's, west, of a gateway."""
    shape = generate(cni=Cni.ANTREA, gateways=2, encryption=TrafficEncryption.WIREGUARD)
    east, west = shape.clusters
    west = replace(west, nodes=west.gateways)
    return replace(shape, clusters=(east, _served_by(west, west.gateways)))


def _served_by(cluster: Cluster, nodes: tuple[Node, ...]) -> Cluster:
    pods = tuple(pod.name for node in nodes for pod in node.pods)
    return replace(cluster, services=tuple(replace(service, pods=pods) for service in cluster.services))


@pytest.fixture(scope="module")
def lab(make_lab: Callable[..., Lab], datapath: DatapathType) -> Iterator[Lab]:
    """The two clusters, when there are sessions and verdicts."""
    if datapath is not DatapathType.SYSTEM:
        pytest.skip("tunnels of the userspace datapath cannot be encrypted: this runs in the kernel lane")
    shape = _shape()
    with make_lab(shape) as lab:
        names = [gateway.name for gateway in shape.cluster("east").gateways]
        wait_until(lambda: all(taken_for_antrea(lab, name) for name in names), "the verdict on west", timeout=SOON)
        yield lab


def test_every_way_of_the_matrix(lab: Lab) -> None:
    """Services and Pods are reached both ways by two gateways of ours, and nothing is sent in the clear."""
    cases = list(matrix.cases(lab.topology))
    second = lab.topology.cluster("east").gateways[1].pods[0]
    cases += [replace(case, source=second) for case in cases if case.source.name.startswith("east-gw1")]
    wire = Wire(lab)
    with wire:
        results = [matrix.run(lab, case) for case in cases]
    assert [f"{r.case.source.name} -> {r.case.target}: {r.problem}" for r in results if not r.ok] == []
    assert wire.encrypted
    assert wire.clear == []


def test_the_largest_packet_passes_both_ways(lab: Lab) -> None:
    """Ours and Antrea's Pods agree: what is let through arrives whole, and one byte more is not let through."""
    assert echoed(lab, LARGEST, within=PATIENCE) == [True, True]
    assert echoed(lab, LARGEST + 1, within=SILENCE) == [False, False]


def test_only_the_first_gateway_speaks_to_it(lab: Lab) -> None:
    """Antrea has one key of ours; the gateway that it does not know is no fault, and nobody is told that it is."""
    first, second = (gateway.name for gateway in lab.topology.cluster("east").gateways)
    shown = netns.execute(lab.namespace("west-gw1"), ["wg", "show", antrea_wireguard.DEVICE, "peers"]).stdout
    assert len(shown.split()) == 1
    peers: dict[str, Any] = {name: lab.status(name)["encryption"] for name in (first, second)}
    assert [peer["state"] for peer in peers[first]["peers"]] == ["established"]
    assert lab.mcagent(second, "wireguard", "show")
