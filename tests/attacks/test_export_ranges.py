"""Export ranges: members that publish another cluster's range, and users that want another Service's address."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from ipaddress import IPv4Network, ip_address

import pytest

from mcagent.controller.contract.cidr_claims import cidr_claim
from mcagent.controller.contract.export_ranges import (
    ADDRESS_ANNOTATION,
    AUTO,
    RANGE_ANNOTATION,
    RANGES_ANNOTATION,
    Assigned,
    as_text,
    parse_ranges,
)
from mcagent.controller.contract.names import endpoints_export
from mcagent.controller.leader.export_ranges import Member, assign
from mcagent.controller.settings import MemberLimits
from mcagent.core.compile import compile_desired
from mcagent.kube.source import RawObject
from mcagent.model.dataplane.facts import Facts
from mcagent.model.objects import Gateway, Kind
from mcagent.model.parsing.clusters import ADDRESS_CONDITION, SERVICE_CIDR_ANNOTATION
from tests.attacks.catalogue import Attacker, Group, attack
from tests.worlds.core_inputs import (
    HOME,
    cluster,
    config,
    endpoint,
    endpoint_slice,
    export,
    networks,
    service,
    snapshot,
)
from tests.worlds.export_ranges import condition_text, exported, world
from tests.worlds.leader_world import AREA, SET, Leader, account, announce, cluster_info, endpoints
from tests.worlds.leader_world import service as service_export
from tests.worlds.member_world import AREA as NORTH
from tests.worlds.member_world import HOME as MEMBER_HOME
from tests.worlds.memory_objects import START

by_member = partial(attack, Group.ADDRESSES, Attacker.MEMBER)
by_user = partial(attack, Group.SERVICES, Attacker.USER)

KUBEADM = "10.96.0.0/12"
LEDGER = "the leader's ledger, which keeps each range for its cluster from the assignment on"


def reporting(name: str, published: str, real: str = KUBEADM) -> RawObject:
    """Return the ClusterInfo export of a member that reports its Service CIDR."""
    raw = cluster_info(name, published)
    raw["metadata"]["annotations"] = {SERVICE_CIDR_ANNOTATION: real, RANGE_ANNOTATION: AUTO}
    return raw


def identical() -> Leader:
    """Return a leader with two clusters of one Service CIDR, which have got their ranges, and an attacker."""
    leader = Leader("attacker", "first", "victim")
    leader.put(cluster_info("attacker", "10.1.0.0/16"))
    leader.put(reporting("first", KUBEADM), reporting("victim", KUBEADM))
    return leader


def ranges(leader: Leader) -> dict[str, Assigned]:
    """Return the leader's decisions."""
    raw = leader.api.get(Kind.CLUSTER_SET, AREA, SET)
    assert raw is not None
    return dict(parse_ranges(raw["metadata"]["annotations"][RANGES_ANNOTATION]))


def granted(leader: Leader, name: str) -> list[str]:
    """Return the CIDRs that a cluster was granted."""
    raw = leader.api.get(Kind.RESOURCE_IMPORT, AREA, f"{name}-clusterinfo")
    info = (raw or {"spec": {"clusterinfo": {}}})["spec"]["clusterinfo"]
    return [text for text in (info.get("serviceCIDR"), *(info.get("podCIDRs") or ())) if text]


@by_member(
    wants="publish another cluster's export range, before or after that cluster does",
    stopped_by=LEDGER,
)
@pytest.mark.parametrize("pods", [False, True])
def test_another_clusters_range(pods: bool) -> None:
    """The range, a part of it, or a CIDR around it, as Service or Pod CIDR; and after the victim uses it."""
    leader = identical()
    cidr = IPv4Network(ranges(leader)["victim"].cidr)
    for published in (str(cidr), str(next(cidr.subnets(new_prefix=25))), str(cidr.supernet(new_prefix=12))):
        raw = cluster_info("attacker", "10.1.0.0/16", [published]) if pods else cluster_info("attacker", published)
        leader.put(raw)
        assert published not in granted(leader, "attacker")
    leader.put(reporting("victim", str(cidr)))
    assert granted(leader, "victim") == [str(cidr)]
    leader.put(cluster_info("attacker", str(cidr)))
    assert granted(leader, "attacker") == []


@by_member(
    wants="have the export range of a cluster that left, to which clients' UDP connections still lead",
    stopped_by="the leader's record of ranges: that of a cluster that left is kept for its ID, and is given to "
    "another cluster only if the pool has no other",
)
def test_the_range_of_a_cluster_that_left() -> None:
    """Neither by a claim nor by an ID whose hash leads there; its cluster gets it back."""
    leader = identical()
    cidr = ranges(leader)["victim"].cidr
    leader.put(reporting("victim", cidr))
    leader.leave("victim")
    leader.put(cluster_info("attacker", cidr))
    assert granted(leader, "attacker") == []
    before, real = ranges(leader), cidr_claim(KUBEADM, "Service CIDR")
    for number in range(2048):
        members = [
            Member(cluster_id=name, mode=AUTO, service_cidr=real) for name in ("first", f"attacker{number}")
        ]
        decided = assign(before, members, MemberLimits().export_cidrs)
        assert decided[f"attacker{number}"].cidr not in ("", cidr)
    leader.put(announce("victim", START), reporting("victim", KUBEADM))
    assert ranges(leader)["victim"].cidr == cidr


@by_member(
    wants="publish a range that covers the real Service CIDR of a cluster with an export range",
    stopped_by="its agents, which keep the real Service CIDR reserved; its Pods' ClusterIPs are never routed away",
)
@pytest.mark.parametrize("published", ["10.96.0.0/16", "10.96.0.0/12", "10.96.7.0/24", "10.0.0.0/8"])
@pytest.mark.parametrize("node", ["g1", "w1"])
def test_a_range_over_a_real_service_cidr(published: str, node: str) -> None:
    """On gateways and on workers."""
    home = [
        replace(obj, service_cidr=networks("100.64.16.0/20")[0], real_service_cidr=networks("10.96.0.0/16")[0])
        if isinstance(obj, Gateway)
        else obj
        for obj in HOME
    ]
    objects = (*home, cluster("attacker", published), cluster("other", "100.64.32.0/20"))
    compiled = compile_desired(snapshot(*objects), Facts(), config(node))
    assert compiled.state.clusters["attacker"].cidrs == ()
    assert compiled.state.clusters["other"].cidrs == networks("100.64.32.0/20")


@by_member(
    wants="make all other clusters change their addresses, by a false Service CIDR",
    stopped_by="the limits of the member (mcagent.io/allowed-cidrs), and /12, the largest Service CIDR; a cluster "
    "that has a range never changes it again",
)
def test_a_false_service_cidr() -> None:
    """What the member may not have counts for itself alone; too large a CIDR counts for nothing."""
    leader = Leader("attacker", "victim", "other")
    leader.put(account("attacker", allowed_cidrs="10.1.0.0/16"))
    for name, cidr in (("victim", "10.96.0.0/16"), ("other", "10.43.0.0/16")):
        leader.put(reporting(name, cidr, cidr))
    for false in ("10.96.0.0/12", "10.43.0.0/16", "10.0.0.0/8", "0.0.0.0/0"):
        leader.put(reporting("attacker", "10.1.0.0/16", false))
        decided = ranges(leader)
        assert [name for name in ("victim", "other") if decided[name].why] == []
    assert granted(leader, "victim") == ["10.96.0.0/16"]


@by_member(
    wants="make a cluster that has an export range move again and again",
    stopped_by="the leader: a range stays while the cluster is a member, whatever conflicts come and go",
)
def test_conflicts_that_come_and_go() -> None:
    """An unlimited member reports one Service CIDR after the other."""
    leader = identical()
    before = ranges(leader)["victim"]
    for false in (KUBEADM, "10.43.0.0/16", before.cidr, "100.64.0.0/12", KUBEADM):
        leader.put(reporting("attacker", "10.1.0.0/16", false))
        assert ranges(leader)["victim"] == before


@attack(
    Group.SERVICES,
    Attacker.MEMBER,
    wants="answer for another cluster's Service, with its export address as an endpoint",
    stopped_by="the leader: endpoints of a member lie in its own range",
)
def test_another_clusters_export_address() -> None:
    """The endpoint is left out of the imported Service."""
    leader = identical()
    cidr = ranges(leader)["victim"].cidr
    leader.put(reporting("victim", cidr))
    foreign, own = str(IPv4Network(cidr)[9]), "10.1.0.7"
    leader.put(service_export("attacker"), endpoints("attacker", [foreign, own]))
    imported = leader.imported(endpoints_export("", "default", "nginx").removeprefix("-"))
    assert imported is not None
    assert [a["ip"] for subset in imported["endpoints"]["subsets"] for a in subset["addresses"]] == [own]


@by_user(
    wants="get another Service's export address for a Service of its own",
    stopped_by="the record on the leader; annotations of a ServiceExport count for nothing, and the controller "
    "restores its status",
)
def test_another_services_export_address() -> None:
    """By an annotation, or with a right on the status that users do not get from mcagent's roles."""
    clusters = world()
    east = clusters.members["east"]
    address = exported(clusters, east)[0]
    east.serve("mine", 6)
    east.export("mine")
    clusters.run()
    own = exported(clusters, east, "mine")[0]
    notes = {"metadata": {"annotations": {ADDRESS_ANNOTATION: address, ADDRESS_CONDITION: address}}}
    east.api.change(Kind.SERVICE_EXPORT, "shop", "mine", notes)
    forged = {"type": ADDRESS_CONDITION, "status": "True", "reason": "Assigned", "message": address}
    east.api.change(Kind.SERVICE_EXPORT, "shop", "mine", {"status": {"conditions": [forged]}})
    clusters.run()
    assert exported(clusters, east, "mine") == (own, [own])
    assert condition_text(east, "mine") == own
    assert exported(clusters, east)[0] == address


@by_user(
    wants="take connections to the oldest exported Service by its export address, faster than the controller",
    stopped_by="agents: of two exports with one address the older has it, and an address outside the published "
    "range counts for nothing",
)
def test_an_export_address_before_the_controller() -> None:
    """The older export keeps its connections, whatever the younger one's status is."""
    home = [
        replace(obj, service_cidr=networks("100.64.16.0/20")[0], real_service_cidr=networks("10.96.0.0/16")[0])
        if isinstance(obj, Gateway)
        else obj
        for obj in HOME
    ]
    objects = list(home)
    for name, created, cluster_ip in (
        ("old", "2026-01-01T00:00:00Z", "10.96.0.7"),
        ("new", "2026-02-01T00:00:00Z", "10.96.0.8"),
    ):
        meta = replace(export(name).meta, created=created)
        objects += [
            service(name, cluster_ip, 80),
            replace(export(name), meta=meta, address=ip_address("100.64.16.9")),
            endpoint_slice(f"{name}-1", name, [endpoint("10.10.1.9")], ("", 8080)),
        ]
    compiled = compile_desired(snapshot(*objects), Facts(), config("g1"))
    assert list(compiled.state.services) == ["default/old:80/tcp"]


@attack(
    Group.ADDRESSES,
    Attacker.LEADER,
    wants="assign a range that covers a Node, the Pods or the ClusterIPs of a member",
    stopped_by="the member's controller, which takes no range with addresses of its own cluster",
)
@pytest.mark.parametrize("cidr", ["192.168.1.0/24", "10.96.0.0/20", "10.0.0.0/8", "224.0.0.0/20", "0.0.0.0/0"])
def test_a_range_over_the_members_own_networks(cidr: str) -> None:
    """It publishes its Service CIDR instead, and reports it."""
    clusters = world(("east",))
    east = clusters.members["east"]
    clusters.controller.closed = True
    assigned = as_text(Assigned(service_cidr=KUBEADM, cidr=cidr, why="so"))
    note = {"metadata": {"annotations": {RANGE_ANNOTATION: assigned}}}
    clusters.north.change(Kind.RESOURCE_IMPORT, NORTH, "east-clusterinfo", note)
    clusters.run()
    (gateway,) = east.api.list(Kind.GATEWAY, MEMBER_HOME)
    assert gateway["serviceCIDR"] == KUBEADM
