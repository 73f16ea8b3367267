"""What controllers of Antrea before 2.7 write, as recorded from v1.14.3 and v2.4.0."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from mcagent.controller.contract.antrea_before_2_7 import held_finalizers, may_lack_labels

OLD, NEW = "resourceexport.finalizers.antrea.io", "resourceexport.antrea.io/finalizer"
INFO: dict[str, Any] = {  # v1.14.3's, of a cluster with one gateway
    "metadata": {"name": "west-clusterinfo", "namespace": "antrea-multicluster", "finalizers": [OLD]},
    "spec": {
        "clusterID": "west",
        "clusterInfo": {
            "clusterID": "west",
            "gatewayInfos": [{"gatewayIP": "192.168.2.1"}],
            "podCIDRs": ["10.201.0.0/16"],
            "serviceCIDR": "10.97.0.0/16",
        },
        "kind": "ClusterInfo",
        "name": "west",
        "namespace": "kube-system",
    },
}


@pytest.mark.parametrize(
    ("held", "found"),
    [([], [OLD]), ([OLD], [OLD]), ([NEW], [NEW]), (["a/b"], ["a/b", OLD]), ([NEW, OLD], [NEW, OLD])],
)
def test_an_export_has_a_finalizer_that_every_leader_removes(held: list[str], found: list[str]) -> None:
    """Leaders before 2.2 know only the older one; what an export has already stays."""
    assert held_finalizers(held) == found


def test_cluster_information_of_old_members_has_no_labels() -> None:
    """Only a ClusterInfo may be without labels, and only without all."""
    assert may_lack_labels(INFO)
    for labels in ({"sourceKind": "ClusterInfo"}, {"sourceClusterID": ""}):
        half = copy.deepcopy(INFO)
        half["metadata"]["labels"] = labels
        assert not may_lack_labels(half)
    service = copy.deepcopy(INFO)
    service["spec"]["kind"] = "Service"
    assert not may_lack_labels(service)
