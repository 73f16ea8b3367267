"""The user guide as one story: a leader and its members, real agents and packets, on both kinds of API server."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from devtools.errors import LabError
from devtools.lab import objects, story
from devtools.lab.api import ApiKind, Json
from devtools.lab.control import CLUSTER_SET, LEADER_NAMESPACE, MEMBER_NAMESPACE, ControlPlane
from devtools.lab.lab import Lab
from devtools.lab.topology import Cluster, generate
from devtools.realapi import find
from devtools.realapi.binaries import HINT
from devtools.traffic import matrix, traffic
from devtools.waiting import wait_until
from mcagent.model.dataplane.facts import DatapathType
from tests.waiting import allowed
from tests.worlds.labs import MakeLab


@pytest.fixture(
    scope="module", params=[pytest.param(ApiKind.EMBEDDED, marks=pytest.mark.packets), ApiKind.REAL], ids=str
)
def lab(request: pytest.FixtureRequest, datapath: DatapathType, make_lab: MakeLab) -> Iterator[Lab]:
    """A leader and two more members, two gateways and a worker each where there is need for them."""
    if datapath is not DatapathType.NETDEV:
        pytest.skip("the control plane is the same on any datapath")
    if request.param is ApiKind.REAL and find() is None:
        pytest.skip(f"NOT RUN: no kube-apiserver and etcd on this machine: {HINT}")
    with make_lab(generate(clusters=3, gateways=1, workers=1), api=request.param, control_plane=True) as lab:
        yield lab


def reached(lab: Lab, client: Cluster, address: object, pods: tuple[str, ...]) -> bool:
    """Tell whether a Pod of a worker has an answer from one of these Pods."""
    try:
        reply = traffic.tcp(lab.namespace(client.workers[0].pods[0]), address, 80, timeout=1.0)
    except LabError:
        return False
    return reply.pod in pods


def test_every_way_between_the_members(lab: Lab) -> None:
    """What controllers elected, exported and imported carries packets, from every cluster to every other."""
    wrong = [
        f"{r.case.source.name} -> {r.case.target}: {r.problem}"
        for r in (matrix.run(lab, case) for case in matrix.cases(lab.topology, story.imported_addresses(lab)))
        if not r.ok
    ]
    assert wrong == []
    for cluster, address in ((c, ControlPlane(lab).imported_address(c, "web")) for c in lab.topology.clusters):
        replies = [traffic.tcp(lab.namespace(cluster.workers[0].pods[0]), address, 80) for _ in range(24)]
        assert {reply.pod.split("-")[0] for reply in replies} == {c.name for c in lab.topology.clusters}


def test_export_follow_the_endpoints_and_unexport(lab: Lab) -> None:
    """A Service is exported and reached from a third cluster, follows its endpoints, and goes with its export."""
    plane = ControlPlane(lab)
    serving, client = lab.topology.clusters[1:]
    api = lab.api(serving.name)
    api.create(objects.export_object(serving.services[1]))
    wait_until(
        lambda: lab.api(client.name).get("Service", "antrea-mc-private") is not None, "the import", timeout=60
    )
    address = plane.imported_address(client, "private")
    pods = serving.services[1].pods
    wait_until(lambda: reached(lab, client, address, pods), "the exported Service to be reached", timeout=60)
    endpoints = [{"addresses": ["10.2.1.2"], "conditions": {"ready": True}}]
    api.patch("EndpointSlice", "private-1", {"endpoints": endpoints})
    wait_until(lambda: _only(lab, client, address, pods[0]), "only the Pod that is left to answer", timeout=60)
    api.delete("ServiceExport", "private")
    wait_until(lambda: lab.api(client.name).get("Service", "antrea-mc-private") is None, "the end", timeout=60)
    wait_until(lambda: not reached(lab, client, address, pods), "nobody to answer any more", timeout=60)


def _only(lab: Lab, client: Cluster, address: object, pod: str) -> bool:
    return all(reached(lab, client, address, (pod,)) for _ in range(8))


@pytest.mark.timing
def test_a_gateway_whose_node_is_not_ready_is_replaced_without_the_leader(lab: Lab) -> None:
    """With the leader's API server away a Node's readiness alone makes another annotated Node the gateway."""
    leader, cluster = lab.topology.clusters[0], lab.topology.clusters[1]
    (old,), (other,) = cluster.gateways, cluster.workers
    api = lab.api(cluster.name)
    lab.stop_api(leader.name)
    try:
        api.patch("Node", other.name, {"metadata": {"annotations": {"multicluster.antrea.io/gateway": ""}}})
        conditions = [{"type": "Ready", "status": "False", "reason": "KubeletNotReady"}]
        begin = time.monotonic()
        api.patch_status("Node", old.name, {"conditions": conditions})
        wait_until(
            lambda: (
                api.get("Gateway", old.name, MEMBER_NAMESPACE) is None
                and api.get("Gateway", other.name, MEMBER_NAMESPACE) is not None
            ),
            "another gateway",
            timeout=30,
        )
        seconds = time.monotonic() - begin
        assert seconds < allowed(10)  # a second is promised; the machine may be busy
    finally:
        lab.start_api(leader)
        api.patch_status(
            "Node", old.name, {"conditions": [{"type": "Ready", "status": "True", "reason": "Ready"}]}
        )
        api.patch("Node", other.name, {"metadata": {"annotations": {"multicluster.antrea.io/gateway": None}}})
    wait_until(lambda: api.get("Gateway", old.name, MEMBER_NAMESPACE) is not None, "the first again", timeout=30)
    cases = list(matrix.cases(lab.topology, story.imported_addresses(lab)))
    mine = [case for case in cases if case.source.name.startswith(cluster.name) and not case.closed]
    wait_until(lambda: all(matrix.run(lab, case).ok for case in mine), "every way again", timeout=90)


def test_the_leader_refuses_what_its_manifests_refuse(lab: Lab) -> None:
    """The webhook an announcement of no member; with a real API server, admission policies another cluster ID."""
    leader = lab.topology.clusters[0]
    api = lab.api(leader.name)
    announce: Json = {
        "apiVersion": "multicluster.crd.antrea.io/v1alpha1",
        "kind": "MemberClusterAnnounce",
        "metadata": {"name": "member-announce-from-south", "namespace": LEADER_NAMESPACE},
        "clusterID": "south",
        "clusterSetID": CLUSTER_SET,
        "leaderClusterID": "north",
    }
    with pytest.raises(LabError, match=r"memberclusterannounces\.mcagent\.io"):
        api.create(announce)
    if lab.api_kind is ApiKind.REAL:
        with pytest.raises(LabError, match=r"spec\.clusterID cannot be changed"):
            api.patch("ClusterSet", CLUSTER_SET, {"spec": {"clusterID": "south"}}, LEADER_NAMESPACE)


def test_a_cluster_leaves_and_joins_again(lab: Lab) -> None:
    """Leaving takes everything along that was made, here and elsewhere; joining again brings it back."""
    plane = ControlPlane(lab)
    cluster, other = lab.topology.clusters[2], lab.topology.clusters[1]
    plane.leave(cluster)
    own, api = lab.api(cluster.name), lab.api(other.name)
    name = f"{cluster.name}-clusterinfo"
    wait_until(
        lambda: api.get("ClusterInfoImport", name, MEMBER_NAMESPACE) is None, "others to forget", timeout=60
    )
    for kind, left in (("Service", "antrea-mc-web"), ("ServiceImport", "web")):
        assert own.get(kind, left) is None
    assert own.get("Gateway", cluster.gateways[0].name, MEMBER_NAMESPACE) is None
    assert own.get("Service", "web") is not None
    plane.join(cluster)
    plane.wait_joined()
    cases = list(matrix.cases(lab.topology, story.imported_addresses(lab)))
    mine = [case for case in cases if case.source.name.startswith(cluster.name) and not case.closed]
    wait_until(lambda: all(matrix.run(lab, case).ok for case in mine), "every way again", timeout=90)
