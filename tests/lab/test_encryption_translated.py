"""Encrypted clusters whose gateways translate every source, as with the default configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from devtools.lab.lab import Lab
from devtools.lab.topology import Cni, Underlay, generate
from devtools.traffic import matrix, traffic
from devtools.waiting import wait_until
from mcagent.model.config import TrafficEncryption
from mcagent.model.dataplane.facts import DatapathType
from tests.lab.encryption import Wire, established
from tests.worlds.profiles import translated

pytestmark = pytest.mark.datapath

_SHAPES = [(Cni.FLANNEL, Underlay.IPV4), (Cni.FLANNEL, Underlay.IPV6), (Cni.EBPF, Underlay.IPV4)]


@pytest.fixture(scope="module", params=_SHAPES, ids=lambda shape: "-".join(map(str, shape)))
def lab(request: pytest.FixtureRequest, make_lab: Callable[..., Lab], datapath: DatapathType) -> Iterator[Lab]:
    """Two clusters of a gateway and a worker that publish no Pods, when their gateways have sessions."""
    if datapath is not DatapathType.SYSTEM:
        pytest.skip("tunnels of the userspace datapath cannot be encrypted: this runs in the kernel lane")
    cni, family = request.param
    shape = translated(generate(cni=cni, encryption=TrafficEncryption.WIREGUARD, underlay=family))
    with make_lab(shape, liveness=False) as lab:
        gateways = [gateway for cluster in shape.clusters for gateway in cluster.gateways]
        wait_until(lambda: all(established(lab, gateway.name) for gateway in gateways), "sessions", timeout=60)
        yield lab


def test_pods_and_nodes_reach_services(lab: Lab) -> None:
    """Every Pod and every Node is answered, under the address of a gateway, and only WireGuard is on the wire."""
    with Wire(lab) as wire:
        results = [matrix.run(lab, case) for case in matrix.cases(lab.topology)]
        for source, target in (lab.topology.clusters, reversed(lab.topology.clusters)):
            expected = {str(matrix.seen_as(gateway)) for gateway in source.gateways}
            for node in source.nodes:
                for client in (node, node.pods[0]):
                    reply = traffic.tcp(lab.namespace(client), target.services[0].cluster_ip, 80)
                    assert reply.source in expected, client.name
    assert [f"{r.case.source.name} -> {r.case.target}: {r.problem}" for r in results if not r.ok] == []
    assert any(result.copies for result in results)
    assert wire.encrypted
    assert wire.clear == []
