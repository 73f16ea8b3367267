"""A cluster does not use the Pod CIDR of another one: Services work both ways, with translated sources."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from devtools.errors import LabError
from devtools.lab.lab import Lab
from devtools.lab.topology import Cluster, generate
from devtools.traffic import matrix, traffic
from devtools.waiting import wait_until
from mcagent.model.dataplane.facts import DatapathType
from tests.labs import MakeLab

pytestmark = pytest.mark.packets


def source_at_service(lab: Lab, client: Cluster, serving: Cluster) -> str:
    """Return the source address that an endpoint of the exported Service sees; "" without an answer."""
    namespace = lab.namespace(client.workers[0].pods[0])
    try:
        return traffic.tcp(namespace, serving.services[0].cluster_ip, 80, timeout=1.0).source
    except LabError:
        return ""


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
