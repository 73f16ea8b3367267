"""A member that claims the addresses of another member's Nodes as gateways, before they are gateways."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from devtools.errors import LabError
from devtools.lab.control import LEADER_NAMESPACE, MEMBER_NAMESPACE, ControlPlane
from devtools.lab.lab import Lab
from devtools.lab.topology import POD_PORT, Cluster, generate
from devtools.traffic import traffic
from devtools.waiting import wait_until
from mcagent.model.dataplane.facts import DatapathType
from tests.attacks.catalogue import Attacker, Group, attack
from tests.labs import MakeLab

GATEWAY = "multicluster.antrea.io/gateway"


@pytest.fixture(scope="module")
def lab(datapath: DatapathType, make_lab: MakeLab) -> Iterator[Lab]:
    """Three members of a gateway and a worker each, with controllers."""
    if datapath is not DatapathType.NETDEV:
        pytest.skip("the leader decides, and probes are the same on any datapath")
    with make_lab(generate(clusters=3, gateways=1, workers=1), control_plane=True) as running:
        yield running


def imported_gateways(lab: Lab, at: Cluster, cluster: Cluster) -> list[str]:
    """Return the gateways of a cluster that another one knows."""
    info: Any = lab.api(at.name).get("ClusterInfoImport", f"{cluster.name}-clusterinfo", MEMBER_NAMESPACE)
    gateways = info["spec"].get("gatewayInfos") or () if info is not None else ()
    return [gateway["gatewayIP"] for gateway in gateways]


@attack(
    Group.ADDRESSES,
    Attacker.MEMBER,
    wants="have another member's next gateway refused by naming its Node as a gateway of its own beforehand",
    stopped_by="the ledger, and probes that the victim's gateway answers with its cluster's fingerprint",
)
def test_a_failover_to_a_squatted_node(lab: Lab) -> None:
    """The third member reports that the victim answers at the address, and packets arrive again."""
    third, victim, squatter = lab.topology.clusters
    (old,), (new,) = victim.gateways, victim.workers
    plane, leader, api = ControlPlane(lab), lab.api(third.name), lab.api(victim.name)
    address = str(new.address)
    plane.stop_controller(squatter, "member")
    name = f"{squatter.name}-clusterinfo"
    export: Any = leader.get("ResourceExport", name, LEADER_NAMESPACE)
    gateways = [*export["spec"]["clusterInfo"]["gatewayInfos"], {"gatewayIP": address}]
    leader.patch("ResourceExport", name, {"spec": {"clusterInfo": {"gatewayInfos": gateways}}}, LEADER_NAMESPACE)
    wait_until(lambda: address in imported_gateways(lab, third, squatter), "the squatter's claim", timeout=60)

    pod = new.pods[0]

    def is_reached() -> bool:
        try:
            reply = traffic.tcp(lab.namespace(third.workers[0].pods[0]), pod.address, POD_PORT, timeout=1.0)
        except LabError:
            return False
        return reply.pod == pod.name

    wait_until(is_reached, "the victim's Pod, by its old gateway", timeout=60)
    api.patch("Node", new.name, {"metadata": {"annotations": {GATEWAY: "true"}}})
    api.patch("Node", old.name, {"metadata": {"annotations": {GATEWAY: None}}})
    wait_until(lambda: api.get("Gateway", old.name, MEMBER_NAMESPACE) is None, "another gateway", timeout=60)
    wait_until(lambda: imported_gateways(lab, third, victim) == [address], "the victim's new gateway", timeout=60)
    wait_until(lambda: address not in imported_gateways(lab, third, squatter), "the claim to be lost", timeout=60)
    wait_until(is_reached, "the victim's Pod, by its new gateway", timeout=60)
