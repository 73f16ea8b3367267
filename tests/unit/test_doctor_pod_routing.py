"""The doctor's check of Pods outside of their Nodes' Pod CIDRs: values in, findings out."""

from __future__ import annotations

from typing import Any

import pytest

from mcagent.doctor.checks.cluster import pod_routing
from mcagent.doctor.checks.cluster.agents import nodes
from mcagent.doctor.checks.cluster.pod_routing import placed_pods, places_of
from mcagent.doctor.examined import ExaminedCluster
from mcagent.kube.source import RawObject
from mcagent.model.api.kubernetes import ApiNode, ApiPod
from mcagent.model.config import Config, PodRouting
from mcagent.model.parsing.decode import read_as


def node(name: str, *cidrs: str) -> ApiNode:
    """Return a Node with these Pod CIDRs."""
    return read_as(ApiNode, {"metadata": {"name": name}, "spec": {"podCIDRs": list(cidrs)}})


def pod(name: str, on: str, *ips: str, phase: str = "Running", host: bool = False) -> RawObject:
    """Return a Pod."""
    spec: RawObject = {"nodeName": on, "hostNetwork": host} if host else {"nodeName": on}
    status = {"phase": phase, "podIPs": [{"ip": ip} for ip in ips]}
    return {"metadata": {"name": name, "namespace": "shop"}, "spec": spec, "status": status}


def told(pods: list[RawObject], *with_nodes: ApiNode, routing: PodRouting = PodRouting.AUTO) -> tuple[str, str]:
    """Return reason and text of the only finding."""
    client: Any = None
    readings: dict[Any, Any] = {
        nodes: list(with_nodes),
        placed_pods: tuple(placed for each in pods for placed in places_of(read_as(ApiPod, each))),
    }
    config = Config(node_name="", pod_routing=routing)
    (finding,) = pod_routing.examine(ExaminedCluster(client, config, readings=readings))
    return finding.reason, finding.seen


W1, W2 = node("w1", "10.2.1.0/24"), node("w2", "10.2.2.0/24", "fd00:2::/64")
INSIDE, OUTSIDE = pod("a", "w1", "10.2.1.5"), pod("b", "w2", "10.2.202.7", "fd00:9::1")


def test_a_pod_outside_of_its_nodes_cidrs_is_told() -> None:
    """The setting is named, with an example and how many there are."""
    assert told([INSIDE, OUTSIDE], W1, W2) == (
        "PodsOutsideCIDRs",
        "1 of 2 Pods, on 1 Nodes: shop/b has 10.2.202.7, Node w2 has 10.2.2.0/24",
    )
    assert told([pod("a", "w2", "10.2.1.5")], W1, W2)[0] == "PodsOutsideCIDRs"  # of another Node


class Pages:
    """A client of an API server that answers lists in pages of one object."""

    def __init__(self, *objects: RawObject) -> None:
        self.objects = objects

    def request(self, _method: str, _path: str, query: dict[str, str], **_more: object) -> RawObject:
        """Return one object, and the token of the next one."""
        number = int(query.get("continue", "0"))
        following = str(number + 1) if number + 1 < len(self.objects) else ""
        return {"metadata": {"continue": following}, "items": [self.objects[number]]}


def test_all_pages_of_a_list_are_examined() -> None:
    """A Pod beyond the first page is not taken for one that is where it should be."""
    client: Any = Pages(INSIDE, INSIDE, OUTSIDE)
    readings: dict[Any, Any] = {nodes: [W1, W2]}
    (finding,) = pod_routing.examine(ExaminedCluster(client, Config(node_name=""), readings=readings))
    assert (finding.reason, finding.seen.split(",")[0]) == ("PodsOutsideCIDRs", "1 of 3 Pods")


@pytest.mark.parametrize(
    "pods",
    [
        [INSIDE, pod("v6", "w2", "fd00:9::1")],
        [pod("host", "w2", "192.168.2.12", host=True)],
        [pod("done", "w2", "10.2.202.7", phase="Succeeded")],
        [pod("new", "w2", phase="Pending"), pod("bad", "w2", "10.2.202")],
        [pod("away", "gone", "10.2.202.7")],
    ],
)
def test_other_pods_are_no_fault(pods: list[RawObject]) -> None:
    """Pods in their Node's range, in the host network, ended, without an address, or of no Node."""
    assert told(pods, W1, W2)[0] == ""


def test_the_configuration_decides_which_nodes_count() -> None:
    """With perPod none, with auto those with Pod CIDRs, with nodeCIDR all."""
    assert told([OUTSIDE], W1, W2, routing=PodRouting.PER_POD) == ("", "gateways find Pods by their objects")
    bare = node("w2")
    assert told([OUTSIDE], W1, bare)[0] == ""
    assert told([OUTSIDE], bare)[1] == "gateways find Pods by their objects"
    assert told([OUTSIDE], W1, bare, routing=PodRouting.NODE_CIDR)[1].endswith("Node w2 has no Pod CIDR")
