"""A member that claims the addresses of another member's Nodes as gateways, before they are gateways."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from devtools.errors import LabError
from devtools.lab.control import LEADER_NAMESPACE, MEMBER_NAMESPACE, ControlPlane
from devtools.lab.lab import Lab
from devtools.lab.topology import POD_PORT, Cluster, Node, Pod, generate
from devtools.traffic import traffic
from devtools.waiting import wait_until
from mcagent.model.dataplane.facts import DatapathType
from tests.attacks.catalogue import Attacker, Group, attack
from tests.worlds.labs import MakeLab

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


def nodes_of_gateway(lab: Lab, cluster: Cluster) -> tuple[Node, Node]:
    """Return the Node that is a cluster's gateway, and the one that is not."""
    nodes = (*cluster.gateways, *cluster.workers)
    (old,) = [node for node in nodes if lab.api(cluster.name).get("Gateway", node.name, MEMBER_NAMESPACE)]
    (new,) = [node for node in nodes if node is not old]
    return old, new


def is_reached(lab: Lab, source: Pod, pod: Pod) -> bool:
    """Tell whether a Pod answers another one."""
    try:
        return traffic.tcp(lab.namespace(source), pod.address, POD_PORT, timeout=1.0).pod == pod.name
    except LabError:
        return False


@attack(
    Group.ADDRESSES,
    Attacker.MEMBER,
    wants="have another member's next gateway refused by claiming what collides with its Node beforehand",
    stopped_by="the ledger, and probes that the victim's gateway answers with its cluster's fingerprint",
)
@pytest.mark.parametrize("claimed", ["gateway", "Pod CIDR", "same low bits"])
def test_a_failover_to_a_squatted_node(lab: Lab, claimed: str) -> None:
    """The victim's gateway is granted, and packets arrive again."""
    third, victim, squatter = lab.topology.clusters
    plane, leader, api = ControlPlane(lab), lab.api(third.name), lab.api(victim.name)
    old, new = nodes_of_gateway(lab, victim)
    address = str(new.address)
    plane.stop_controller(squatter, "member")
    name = f"{squatter.name}-clusterinfo"
    export: Any = leader.get("ResourceExport", name, LEADER_NAMESPACE)
    info = export["spec"]["clusterInfo"]
    own = [{"gatewayIP": str(node.address)} for node in squatter.gateways]
    extra = {"gateway": address, "same low bits": str(new.address - (1 << 28))}.get(claimed)
    gateways = [*own, {"gatewayIP": extra}] if extra else own
    cidrs = [text for text in info.get("podCIDRs") or () if not text.endswith("/32")]
    cidrs += [f"{address}/32"] if claimed == "Pod CIDR" else []
    change: dict[str, object] = {"spec": {"clusterInfo": {"gatewayInfos": gateways, "podCIDRs": cidrs}}}
    leader.patch("ResourceExport", name, change, LEADER_NAMESPACE)
    if extra:
        wait_until(lambda: extra in imported_gateways(lab, third, squatter), "the squatter's claim", timeout=60)

    source, pod = third.workers[0].pods[0], victim.workers[0].pods[0]
    wait_until(lambda: is_reached(lab, source, pod), "the victim's Pod, by its old gateway", timeout=60)
    api.patch("Node", new.name, {"metadata": {"annotations": {GATEWAY: "true"}}})
    api.patch("Node", old.name, {"metadata": {"annotations": {GATEWAY: None}}})
    wait_until(lambda: api.get("Gateway", old.name, MEMBER_NAMESPACE) is None, "another gateway", timeout=60)
    wait_until(lambda: imported_gateways(lab, third, victim) == [address], "the victim's new gateway", timeout=60)
    wait_until(lambda: address not in imported_gateways(lab, third, squatter), "the claim to be lost", timeout=60)
    wait_until(lambda: is_reached(lab, source, pod), "the victim's Pod, by its new gateway", timeout=60)
    record: Any = leader.get("ResourceImport", name, LEADER_NAMESPACE)
    assert f"{address}/32" not in (record["spec"]["clusterinfo"].get("podCIDRs") or ())
