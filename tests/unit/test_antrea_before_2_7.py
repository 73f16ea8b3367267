"""What controllers of Antrea write, version by version: recorded, or after their sources (tests/data/antrea)."""

from __future__ import annotations

import copy

import pytest

from mcagent.controller.contract import names
from mcagent.controller.contract.antrea_before_2_7 import with_finalizer
from mcagent.controller.settings import LeaderSettings
from mcagent.model.objects import Kind
from tests.worlds.antrea_objects import VERSIONS, written_by
from tests.worlds.leader_world import AREA, SET, Leader

OLD, NEW = "resourceexport.finalizers.antrea.io", "resourceexport.antrea.io/finalizer"


@pytest.mark.parametrize(
    ("finalizers", "remaining"),
    [([], [OLD]), ([OLD], [OLD]), ([NEW], [NEW]), (["a/b"], ["a/b", OLD]), ([NEW, OLD], [NEW, OLD])],
)
def test_an_export_has_a_finalizer_that_every_leader_removes(finalizers: list[str], remaining: list[str]) -> None:
    """Leaders before 2.2 know only the older one; what an export has already stays."""
    assert with_finalizer(finalizers) == remaining


def test_cluster_information_of_old_members_has_no_labels() -> None:
    """So an admission policy permits one without all labels (tests/worlds/admission_cases.py)."""
    infos = {version: written_by(version)["south-clusterinfo"] for version in VERSIONS}
    labelled = {version for version, info in infos.items() if info["metadata"].get("labels")}
    assert labelled == {"v2.7.0"}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_leader_of_ours_takes_what_members_write(version: str) -> None:
    """Heartbeats, networks, keys and Services of every version count; what is deleted goes, whatever holds it."""
    leader = Leader(settings=LeaderSettings(namespace=""))
    written = written_by(version, AREA, SET)
    leader.put(*written.values())
    leader.settle()
    assert leader.ready("south")["status"] == "True"
    exports = [name for name, item in written.items() if item["kind"] == "ResourceExport"]
    assert [leader.verdict(name)["type"] for name in exports] == ["Succeeded"] * 3
    info = leader.imported("south-clusterinfo")["clusterinfo"]
    assert info["serviceCIDR"] == "10.98.0.0/16"
    assert info["gatewayInfos"] == [{"gatewayIP": "192.168.2.1"}]
    assert ("wireGuard" in info) is (version != "v1.11")
    assert leader.addresses("default-web-endpoints") == ["10.98.169.46"]
    announce = written["member-announce-from-south"]
    for second in range(12):  # its clock may be any
        leader.clock.forward(10.0)
        announce["metadata"]["annotations"][names.HEARTBEAT_ANNOTATION] += f" {second}"
        leader.put(copy.deepcopy(announce))
        leader.controller.due()
        leader.controller.run()
    assert leader.ready("south")["status"] == "True"
    for name in exports:
        leader.remove(name)
    leader.settle()
    assert [leader.api.get(Kind.RESOURCE_EXPORT, AREA, name) for name in exports] == [None] * 3
    assert leader.imported("default-web-service") is None
