"""What a ClusterSet says of its health while tunnels are blocked: agents, controllers and the leader."""

from __future__ import annotations

import pytest

from devtools.errors import LabError
from devtools.lab import faults
from devtools.lab.control import CLUSTER_SET, LEADER_NAMESPACE, MEMBER_NAMESPACE
from devtools.lab.lab import Lab
from devtools.lab.topology import generate
from devtools.waiting import wait_until
from mcagent.controller.contract.health import HEALTHY
from mcagent.core.health import HealthReason
from mcagent.model.api.base import Condition, condition_of
from mcagent.model.api.multicluster import ClusterSet
from mcagent.model.dataplane.facts import DatapathType
from mcagent.model.parsing.decode import read_as
from tests.worlds.labs import MakeLab

pytestmark = pytest.mark.packets

SOON = 60.0  # seconds


def health(lab: Lab, cluster: str, namespace: str = MEMBER_NAMESPACE, member: str = "") -> Condition:
    """Return the condition Healthy of a cluster's ClusterSet, or of a member in it."""
    cluster_set = read_as(ClusterSet, lab.api(cluster).get("ClusterSet", CLUSTER_SET, namespace) or {})
    return condition_of(cluster_set.conditions_of(member) if member else cluster_set.status.conditions, HEALTHY)


def test_blocked_tunnels_are_seen_on_every_surface(make_lab: MakeLab, datapath: DatapathType) -> None:
    """Both directions, then one of them: the Node, the member and the leader name it, until it is healed."""
    if datapath is not DatapathType.NETDEV:
        pytest.skip("the control plane is the same on any datapath")
    lab = make_lab(generate(clusters=2, gateways=1, workers=1), control_plane=True, liveness=False)
    leader, member = (cluster.name for cluster in lab.topology.clusters)
    near, far = (cluster.gateways[0].name for cluster in lab.topology.clusters)
    wait_until(lambda: health(lab, member).is_true, "a healthy member", timeout=SOON)
    assert "HEALTHY" not in lab.mcagent(far, "status")
    for one_way, reason in ((False, HealthReason.UNREACHABLE), (True, HealthReason.ONE_WAY)):
        fault = faults.port_blocked(lab, far, near, one_way=one_way)
        fault.inject()
        try:
            wait_until(lambda: health(lab, member).reason == reason, f"{reason} of the member", timeout=SOON)  # noqa: B023
            wait_until(
                lambda: health(lab, leader, LEADER_NAMESPACE, member).reason == reason,  # noqa: B023
                f"{reason} of the member on the leader",
                timeout=SOON,
            )
            with pytest.raises(LabError, match=f"NOT HEALTHY.*\n.*{reason}"):  # exit code 1
                lab.mcagent(far, "status")
        finally:
            fault.heal()
        wait_until(
            lambda: health(lab, member).is_true and health(lab, leader, LEADER_NAMESPACE).is_true,
            "a healthy ClusterSet",
            timeout=SOON,
        )
