"""Clusters with identical Service CIDRs: a leader and members with export ranges, in memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mcagent.controller.contract.export_ranges import (
    ADDRESS_ANNOTATION,
    RANGE_ANNOTATION,
    is_export_address,
    read_used,
)
from mcagent.controller.settings import LeaderSettings, MemberLimits
from mcagent.kube.source import RawObject
from mcagent.model.api.multicluster import ClusterSet
from mcagent.model.objects import Kind
from mcagent.model.parsing.clusters import ADDRESS_CONDITION, SERVICE_CIDR_ANNOTATION
from tests.worlds.control_clusters import LEADER, Clusters, Member
from tests.worlds.control_view import Controller
from tests.worlds.export_ranges import KUBEADM, agents_serve, condition_text, exported, join, world
from tests.worlds.member_world import AREA, HOME, SET, conditions_of
from tests.worlds.memory_objects import typed


def own_range(member: Member) -> tuple[str, str]:
    """Return the range that a member uses, and the reason."""
    raw = member.api.get(Kind.CLUSTER_SET, HOME, SET)
    assert raw is not None
    cluster_set = typed(raw, Kind.CLUSTER_SET)
    assert isinstance(cluster_set, ClusterSet)
    ranges_used = read_used(cluster_set)
    return ("", "undecided") if ranges_used is None else (ranges_used.cidr, ranges_used.reason)


def gateway(member: Member) -> RawObject:
    """Return the Gateway of a member."""
    (raw,) = member.api.list(Kind.GATEWAY, HOME)
    return raw


def published(clusters: Clusters, cluster: str) -> str:
    """Return the Service CIDR that a cluster was granted."""
    raw = clusters.north.get(Kind.RESOURCE_IMPORT, AREA, f"{cluster}-clusterinfo")
    return str((raw or {"spec": {"clusterinfo": {}}})["spec"]["clusterinfo"].get("serviceCIDR", ""))


def test_three_clusters_with_one_service_cidr_use_each_others_services() -> None:
    """Each publishes its range; Services have addresses in it; each imports the others' at these addresses."""
    clusters = world(("east", "west", "south"))
    ranges = {}
    for name, member in clusters.members.items():
        ranges[name], reason = own_range(member)
        assert reason == "Assigned"
        assert published(clusters, name) == ranges[name] == gateway(member)["serviceCIDR"]
        assert gateway(member)["metadata"]["annotations"][SERVICE_CIDR_ANNOTATION] == KUBEADM
        address, endpoints = exported(clusters, member)
        assert endpoints == [address] == [condition_text(member, f"web-{name}")]
        assert is_export_address(address, ranges[name])
        assert conditions_of(member.api.get(Kind.CLUSTER_SET, HOME, SET))["ExportRange"] == ("True", "Assigned")
    assert len(set(ranges.values())) == 3
    for member in clusters.members.values():
        expected = {f"web-{name}": {exported(clusters, m)[0]} for name, m in clusters.members.items()}
        expected[f"web-{member.cluster_id}"] = {"10.10.1.5"}  # its own Pod
        assert member.imported() == expected
        infos = member.api.list(Kind.CLUSTER_INFO_IMPORT, HOME)
        assert all(conditions_of(raw)["Ready"][0] == "True" for raw in infos)


def test_the_first_cluster_keeps_its_service_cidr_until_the_second_joins() -> None:
    """Then both have ranges, and keep them: the first when the second leaves, the second when it returns."""
    clusters = world(("east", "west"))
    east, west = clusters.members["east"], clusters.members["west"]
    address, ranges = exported(clusters, east), (published(clusters, "east"), published(clusters, "west"))
    assert KUBEADM not in ranges
    west.leave()
    clusters.run()
    clusters.wait(60)
    assert (published(clusters, "east"), published(clusters, "west")) == (ranges[0], "")
    join(clusters, west)
    assert (published(clusters, "east"), published(clusters, "west")) == ranges
    assert exported(clusters, east) == address

    alone = world(("east",))
    assert own_range(alone.members["east"]) == ("", "")
    assert published(alone, "east") == KUBEADM
    assert exported(alone, alone.members["east"]) == ("", ["10.96.200.5"])


def test_restarts_change_nothing() -> None:
    """Neither of the leader's controller nor of a member's, also while the leader is away."""
    clusters = world()
    clusters.writes()
    clusters.restart_leader()
    clusters.run()
    for member in clusters.members.values():
        member.restart()
        clusters.run()
    east = clusters.members["east"]
    east.away = True
    east.restart()
    clusters.run()
    assert own_range(east)[1] == "Assigned"
    assert gateway(east)["serviceCIDR"] == own_range(east)[0]
    east.away = False
    clusters.run()
    assert [write for write in clusters.writes() if "ClusterSet" not in write] == []


def test_older_agents_keep_the_service_cidr() -> None:
    """Until the agents of all gateways serve export addresses, nothing moves, and the condition says why."""
    clusters = Clusters(["east", "west"], service_cidr=KUBEADM)
    east, west = clusters.members.values()
    for member in (east, west):
        member.node("gw", 1)
        member.serve("web", 5)
        member.export("web")
        member.join()
    clusters.run()
    assert own_range(east) == ("", "AgentsTooOld")
    assert published(clusters, "east") == KUBEADM
    assert exported(clusters, east, "web") == ("", ["10.96.200.5"])
    agents_serve(clusters, east)
    assert own_range(east)[1] == "Assigned"
    east.node("gw2", 2)
    east.settings = replace(east.settings, max_active_gateways=2)
    east.restart()
    clusters.run()
    assert len(east.api.list(Kind.GATEWAY, HOME)) == 2
    assert own_range(east)[1] == "Assigned"  # a new gateway does not move it back


def test_modes_of_a_member() -> None:
    """`never` keeps the Service CIDR, a CIDR precedes the leader's, `always` needs no conflict."""
    clusters = world()
    east, west = clusters.members["east"], clusters.members["west"]

    def configured(member: Member, mode: str) -> tuple[str, str]:
        member.settings = replace(member.settings, export_cidr=mode)
        member.restart()
        clusters.run()
        return own_range(member)

    assert configured(east, "172.31.16.0/20") == ("172.31.16.0/20", "Configured")
    assert published(clusters, "east") == "172.31.16.0/20"
    assert is_export_address(exported(clusters, east)[0], "172.31.16.0/20")
    assert configured(east, "10.96.0.0/20")[1] == "RangeInUse"
    assert configured(east, "192.168.1.0/24")[1] == "RangeInUse"  # of its Node
    assert configured(east, "never") == ("", "")
    assert gateway(east)["serviceCIDR"] == KUBEADM
    assert SERVICE_CIDR_ANNOTATION not in gateway(east)["metadata"].get("annotations", {})
    assert exported(clusters, east) == ("", ["10.96.200.5"])
    assert condition_text(east, "web-east") == ""
    west.leave()
    clusters.run()
    assert configured(east, "always")[1] == "Assigned"


def test_a_full_pool_and_a_smaller_pool_are_reported() -> None:
    """A pool of one range: the second cluster gets none; without a pool the first loses its own."""
    clusters = world(export_cidrs=("100.64.0.0/20",))
    by_reason = {own_range(member)[1]: name for name, member in clusters.members.items()}
    assert set(by_reason) == {"Assigned", "RangeExhausted"}
    assert any(event.reason == "ExportRangesExhausted" for event in clusters.controller.past_events)
    clusters.leader_settings = LeaderSettings(namespace=AREA, limits=MemberLimits(export_cidrs=()))
    clusters.restart_leader()
    clusters.run()
    first = clusters.members[by_reason["Assigned"]]
    assert own_range(first) == ("", "RangeWithdrawn")
    status, reason = conditions_of(first.api.get(Kind.CLUSTER_SET, HOME, SET))["ExportRange"]
    assert (status, reason) == ("False", "RangeWithdrawn")
    assert gateway(first)["serviceCIDR"] == KUBEADM


def test_a_leader_that_assigns_no_ranges() -> None:
    """An earlier version, or Antrea's, drops nothing and answers nothing: `always` reports it, a CIDR works."""
    clusters = Clusters(["east"], service_cidr=KUBEADM)
    reconcilers = [r for r in clusters.controller.reconcilers if r.name != "export-ranges"]
    clusters.controller.closed = True
    clusters.controller = Controller(clusters.view, reconcilers, LEADER)
    east = clusters.members["east"]
    east.settings = replace(east.settings, export_cidr="always")
    east.restart()
    join(clusters, east)
    assert own_range(east) == ("", "NoPool")
    assert "serviceCIDR" not in gateway(east)
    east.settings = replace(east.settings, export_cidr="172.31.16.0/20")
    east.restart()
    clusters.run()
    assert published(clusters, "east") == "172.31.16.0/20"


def test_two_services_with_one_address_get_two() -> None:
    """Two workers may choose the same address at once: the older export keeps it."""
    clusters = world()
    east = clusters.members["east"]
    clusters.wait(10)
    east.serve("late", 6)
    east.export("late")
    clusters.run()
    address = exported(clusters, east)[0]
    note = {"metadata": {"annotations": {ADDRESS_ANNOTATION: address}}}
    clusters.north.change(Kind.RESOURCE_EXPORT, AREA, "east-shop-late-service", note)
    clusters.run()
    assert exported(clusters, east)[0] == address
    assert exported(clusters, east, "late")[0] not in ("", address)
    assert exported(clusters, east, "late")[1] == [exported(clusters, east, "late")[0]]


def test_a_range_without_free_addresses_refuses_a_service() -> None:
    """A /30 has two addresses: the third Service is not exported, and its condition says why."""
    clusters = world(("east",))
    east = clusters.members["east"]
    east.settings = replace(east.settings, export_cidr="172.31.16.0/30")
    for number in (6, 7):
        east.serve(f"more{number}", number)
        east.export(f"more{number}")
    east.restart()
    clusters.run()
    exports = east.api.list(Kind.SERVICE_EXPORT, "shop")
    reasons = [conditions_of(raw)["Valid"][1] for raw in exports]
    assert sorted(reasons) == ["NoExportAddress", "Valid", "Valid"]


@pytest.mark.parametrize("text", ["10.96.0.1", "100.64.0.0", "x", ""])
def test_a_forged_condition_is_restored(text: str) -> None:
    """The status of a ServiceExport is the controller's; what else wrote there is overwritten."""
    clusters = world()
    east = clusters.members["east"]
    address = exported(clusters, east)[0]
    forged = {"type": ADDRESS_CONDITION, "status": "True", "message": text, "reason": "Assigned"}
    east.api.change(Kind.SERVICE_EXPORT, "shop", "web-east", {"status": {"conditions": [forged]}})
    clusters.run()
    assert condition_text(east, "web-east") == address
    notes = {"metadata": {"annotations": {ADDRESS_ANNOTATION: text, RANGE_ANNOTATION: text}}}
    east.api.change(Kind.SERVICE_EXPORT, "shop", "web-east", notes)
    clusters.run()
    assert exported(clusters, east) == (address, [address])
