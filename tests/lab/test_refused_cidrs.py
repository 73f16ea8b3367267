"""A cluster does not use the Pod CIDR of another one: Services work both ways, with translated sources."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from devtools.errors import LabError
from devtools.lab.lab import Lab
from devtools.lab.topology import POD_PORT, Cluster, Node, generate
from devtools.nodes import netns
from devtools.traffic import matrix, traffic
from devtools.waiting import wait_until
from mcagent.model.dataplane.facts import DatapathType
from tests.worlds.labs import MakeLab

pytestmark = pytest.mark.packets


def source_at_service(lab: Lab, client: Cluster, serving: Cluster) -> str:
    """Return the source address that an endpoint of the exported Service sees; "" without an answer."""
    namespace = lab.namespace(client.workers[0].pods[0])
    try:
        return traffic.tcp(namespace, serving.services[0].cluster_ip, 80, timeout=1.0).source
    except LabError:
        return ""


def _status(lab: Lab, node: Node) -> str:
    return lab.mcagent(node.name, "status", check=False)


def _is_translated(lab: Lab, client: Cluster, serving: Cluster) -> bool:
    return source_at_service(lab, client, serving) == str(matrix.seen_as(client.gateways[0]))


def test_services_work_where_a_pod_cidr_is_refused(make_lab: MakeLab, datapath: DatapathType) -> None:
    """East's agents allow the Service CIDR of west alone; west learns it, and translates its Pods' addresses."""
    if datapath is not DatapathType.NETDEV:
        pytest.skip("the control plane is the same on any datapath")
    shape = generate(gateways=1, workers=1)
    east, west = shape.clusters
    east = replace(east, config={"allowedRemoteCIDRs": [str(west.service_cidr)]})
    lab = make_lab(replace(shape, clusters=(east, west)), control_plane=True, liveness=False)
    for client, serving in ((west, east), (east, west)):
        wait_until(
            partial(_is_translated, lab, client, serving),
            f"Pods of {client.name} to reach the Service of {serving.name} with translated sources",
            timeout=90,
        )
    status = lab.mcagent(west.gateways[0].name, "status")
    assert f"{west.pod_cidr} of this cluster is refused: sources are translated towards cluster east" in status


def test_a_network_that_appears_in_a_pod_cidr_takes_only_its_part(make_lab: MakeLab) -> None:
    """A bridge inside west's Pod CIDR on a worker of east, over a restart of its agent: the Pods lose nothing."""
    lab = make_lab(generate(clusters=2, gateways=1, workers=1, pods=1))
    east, west = lab.topology.clusters
    worker, pod = east.workers[0], west.workers[0].pods[0]
    local = list(west.pod_cidr.subnets(new_prefix=24))[200]  # of no Node
    namespace = lab.namespace(worker)

    def warned() -> bool:
        return f"{west.pod_cidr} is used without {local}" in _status(lab, worker)

    def answered() -> bool:
        try:
            return bool(traffic.udp(lab.namespace(worker.pods[0]), pod.address, POD_PORT, b"x").pod)
        except LabError:
            return False

    wait_until(answered, "a Pod of west", timeout=60)
    netns.ip(namespace, "link", "add", "br-compose", "type", "bridge")
    netns.ip(namespace, "address", "add", f"{local[1]}/24", "dev", "br-compose")
    wait_until(
        lambda: f"{west.pod_cidr} is used without {local[1]}" in _status(lab, worker), "the address", timeout=60
    )
    netns.ip(namespace, "link", "set", "br-compose", "up")
    for _ in range(2):
        wait_until(warned, "the warning", timeout=60)
        wait_until(answered, "a Pod of west", timeout=15)
        route = netns.execute(namespace, ["ip", "route", "get", str(local[2])]).stdout
        assert "dev br-compose" in route
        assert "mc-gw0" in netns.execute(namespace, ["ip", "route", "get", str(pod.address)]).stdout
        lab.stop_agent(worker.name)
        lab.start_agent(worker.name)
    netns.ip(namespace, "link", "del", "br-compose")
    wait_until(
        lambda: "mc-gw0" in netns.execute(namespace, ["ip", "route", "get", str(local[2])]).stdout,
        "the whole CIDR",
        timeout=60,
    )
