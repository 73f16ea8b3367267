"""Virtual Pod CIDRs: members that publish those of others, or real ones, and Pods that send from such."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from ipaddress import IPv4Address, IPv4Network, ip_network

import pytest

from flows import pipeline
from flows.simulator import Packet, SimulatedSwitch
from mcagent.controller.contract.export_ranges import AUTO, as_text
from mcagent.controller.contract.pod_ranges import (
    POD_CIDRS_ANNOTATION,
    POD_RANGE_ANNOTATION,
    POD_RANGES_ANNOTATION,
    AssignedPodCidrs,
    parse_pod_ranges,
)
from mcagent.controller.leader.pod_ranges import assign_pods
from mcagent.controller.settings import MemberLimits
from mcagent.core.compile import Compiled, compile_desired
from mcagent.kube.source import RawObject
from mcagent.model.config import Config
from mcagent.model.dataplane.facts import Facts
from mcagent.model.net import PodPrefix
from mcagent.model.objects import ApiObject, Gateway, Kind
from mcagent.model.parsing.prefixes import PREFIXES_ANNOTATION
from tests.attacks.catalogue import Attacker, Group, attack
from tests.worlds.core_inputs import HOME, cluster, config, networks, snapshot
from tests.worlds.leader_world import AREA, SET, Leader, account, announce, cluster_info
from tests.worlds.member_world import AREA as NORTH
from tests.worlds.member_world import HOME as MEMBER_HOME
from tests.worlds.memory_objects import START
from tests.worlds.pod_ranges import KUBEADM, member, occupied, own_prefixes, world
from tests.worlds.topologies import from_kernel

by_member = partial(attack, Group.ADDRESSES, Attacker.MEMBER)

SERVICES = {"attacker": "10.1.0.0/16", "first": "10.97.0.0/16", "victim": "10.98.0.0/16"}


def reporting(name: str, published: str, real: str = KUBEADM) -> RawObject:
    """Return the ClusterInfo export of a member that reports its Pod CIDR."""
    raw = cluster_info(name, SERVICES[name], [published] if published else [])
    raw["metadata"]["annotations"] = {POD_CIDRS_ANNOTATION: real, POD_RANGE_ANNOTATION: AUTO}
    return raw


def identical() -> Leader:
    """Return a leader with two clusters of one Pod CIDR, which have got their virtual ones, and an attacker."""
    leader = Leader("attacker", "first", "victim")
    leader.put(cluster_info("attacker", SERVICES["attacker"]))
    leader.put(reporting("first", KUBEADM), reporting("victim", KUBEADM))
    return leader


def decisions(leader: Leader) -> dict[str, AssignedPodCidrs]:
    """Return the leader's decisions."""
    raw = leader.api.get(Kind.CLUSTER_SET, AREA, SET)
    assert raw is not None
    return dict(parse_pod_ranges(raw["metadata"]["annotations"][POD_RANGES_ANNOTATION]))


def virtual(leader: Leader, name: str) -> IPv4Network:
    """Return the virtual Pod CIDR of a cluster."""
    (pair,) = decisions(leader)[name].pairs
    return IPv4Network(str(pair.virtual))


def granted(leader: Leader, name: str) -> list[str]:
    """Return the Pod CIDRs that a cluster was granted."""
    raw = leader.api.get(Kind.RESOURCE_IMPORT, AREA, f"{name}-clusterinfo")
    info = (raw or {"spec": {"clusterinfo": {}}})["spec"]["clusterinfo"]
    return list(info.get("podCIDRs") or ())


@by_member(
    wants="publish another cluster's virtual Pod CIDR, before or after that cluster does",
    stopped_by="the leader's ledger, which keeps each virtual Pod CIDR for its cluster from the assignment on",
)
def test_another_clusters_virtual_pod_cidr() -> None:
    """The CIDR, a part of it, or one around it, and after the victim uses it."""
    leader = identical()
    cidr = virtual(leader, "victim")
    for published in (str(cidr), str(next(cidr.subnets(new_prefix=25))), str(cidr.supernet(new_prefix=12))):
        leader.put(cluster_info("attacker", SERVICES["attacker"], [published]))
        assert granted(leader, "attacker") == []
    leader.put(reporting("victim", str(cidr)))
    assert granted(leader, "victim") == [str(cidr)]
    leader.put(cluster_info("attacker", SERVICES["attacker"], [str(cidr)]))
    assert granted(leader, "attacker") == []


@by_member(
    wants="have the virtual Pod CIDR of a cluster that left, to which caches and UDP clients still lead",
    stopped_by="the leader's record of virtual Pod CIDRs: that of a cluster that left is kept for its ID, and is "
    "given to another cluster only if the pool has no other",
)
def test_the_virtual_pod_cidr_of_a_cluster_that_left() -> None:
    """Neither by a claim nor by an ID whose hash leads there; its cluster gets it back."""
    leader = identical()
    cidr = virtual(leader, "victim")
    leader.put(reporting("victim", str(cidr)))
    leader.leave("victim")
    leader.put(cluster_info("attacker", SERVICES["attacker"], [str(cidr)]))
    assert granted(leader, "attacker") == []
    before = decisions(leader)
    for number in range(256):
        members = [member(name) for name in ("first", f"attacker{number}")]
        decided = assign_pods(before, members, MemberLimits().pod_export_cidrs, occupied(members))
        (pair,) = decided[f"attacker{number}"].pairs
        assert pair.virtual != cidr
    leader.put(announce("victim", START), reporting("victim", KUBEADM))
    assert virtual(leader, "victim") == cidr


@by_member(
    wants="make all other clusters change the addresses of their Pods, again and again, by false Pod CIDRs",
    stopped_by="the limits of the member (mcagent.io/allowed-cidrs), and /9, the largest Pod CIDR that counts; a "
    "cluster that has a virtual Pod CIDR never changes it again",
)
def test_a_false_pod_cidr() -> None:
    """What the member may not have counts for itself alone; a cluster that has moved stays."""
    leader = Leader("attacker", "first", "victim")
    leader.put(account("attacker", allowed_cidrs=SERVICES["attacker"]))
    leader.put(reporting("first", "10.42.0.0/16", "10.42.0.0/16"), reporting("victim", KUBEADM))
    for false in (KUBEADM, "10.42.0.0/16", "10.0.0.0/8", "0.0.0.0/0"):
        leader.put(reporting("attacker", "", false))
        assert [name for name in ("victim", "first") if decisions(leader)[name].why] == []
    assert granted(leader, "victim") == [KUBEADM]
    moved = identical()
    before = decisions(moved)["victim"]
    for false in (KUBEADM, "10.42.0.0/16", str(virtual(moved, "victim")), "100.64.0.0/12"):
        moved.put(reporting("attacker", "", false))
        assert decisions(moved)["victim"] == before


def with_prefix(*objects: ApiObject, node: str = "g1") -> Compiled:
    """Return the state of a Node of a cluster with a virtual Pod CIDR."""
    prefix = PodPrefix(real=ip_network("10.10.0.0/16"), virtual=ip_network("100.72.0.0/16"))
    home = [replace(obj, prefixes=(prefix,)) if isinstance(obj, Gateway) else obj for obj in HOME]
    settings: Config = replace(config(node), enable_pod_to_pod=True, pod_cidrs=networks("10.10.0.0/16"))
    return compile_desired(snapshot(*home, *objects), Facts(), settings)


@by_member(
    wants="publish a Pod CIDR that covers the real or the virtual Pod CIDR of a cluster",
    stopped_by="its agents, which keep both reserved: packets of its own Pods are never routed away",
)
@pytest.mark.parametrize(
    "published", ["10.10.0.0/16", "10.10.7.0/24", "10.0.0.0/8", "100.72.9.0/24", "100.64.0.0/10"]
)
@pytest.mark.parametrize("node", ["g1", "w1"])
def test_a_pod_cidr_over_a_real_or_virtual_one(published: str, node: str) -> None:
    """On gateways and on workers."""
    attacker, other = (
        cluster("attacker", "10.97.0.0/16", published),
        cluster("other", "10.98.0.0/16", "100.80.0.0/16"),
    )
    clusters = with_prefix(attacker, other, node=node).state.clusters
    assert clusters["attacker"].cidrs == networks("10.97.0.0/16")
    assert clusters["other"].cidrs == networks("10.98.0.0/16", "100.80.0.0/16")
    assert not clusters["other"].snat


@attack(
    Group.ADDRESSES,
    Attacker.POD,
    wants="send in the name of another Pod of its Node, from that Pod's virtual address",
    stopped_by="table Virtual of the bridge: no kernel sends from a virtual address",
)
def test_a_virtual_source_of_a_kernel() -> None:
    """The real address passes, as the virtual one; the virtual one is dropped."""
    prefix = PodPrefix(real=ip_network("10.10.0.0/16"), virtual=ip_network("100.72.0.0/16"))
    env = pipeline.Env(gateway=False, ct_zone_base=100, local_gateways=(2,), prefixes=(prefix,))
    hops = pipeline.NextHopGroup(next_hops=(pipeline.NextHop(ofport=2),))
    remote = pipeline.RemoteCluster(
        id=7,
        cidrs=(IPv4Network("10.97.0.0/16"),),
        gateways=(pipeline.RemoteGateway(address=IPv4Network("192.0.2.1/32")[0]),),
        snat=False,
    )
    node = pipeline.LocalNode(id=1, ofport=1, gateway=False, networks=(IPv4Network("10.10.1.0/24"),))
    parts = (pipeline.base(env, hops), pipeline.cluster(env, remote), pipeline.node(env, node))
    flows, groups = ([x for part in parts for x in getattr(part, name)] for name in ("flows", "groups"))
    switch = SimulatedSwitch.of(flows, groups)

    def sent(source: str) -> list[str]:
        walk = switch.walk(from_kernel(Packet(in_port=1, src=IPv4Address(source), dst=IPv4Address("10.97.0.9"))))
        return [str(packet.src) for _, packet in walk.outputs]

    assert sent("10.10.1.5") == ["100.72.1.5"]
    assert sent("100.72.1.6") == []
    assert sent("10.10.2.5") == []  # of another Node


@attack(
    Group.ADDRESSES,
    Attacker.LEADER,
    wants="assign a virtual Pod CIDR that covers a Node, the Pods or the ClusterIPs of a member",
    stopped_by="the member's controller, which takes none with addresses of its own cluster",
)
@pytest.mark.parametrize(
    "cidr", ["192.168.0.0/16", "10.96.0.0/16", "10.244.0.0/16", "224.0.0.0/16", "100.72.0.0/24"]
)
def test_a_virtual_pod_cidr_over_the_members_own_networks(cidr: str) -> None:
    """It publishes its Pod CIDR instead."""
    clusters = world(("east",))
    east = clusters.members["east"]
    clusters.controller.closed = True
    assigned = as_text(AssignedPodCidrs(pod_cidrs=KUBEADM, prefixes=f"{KUBEADM}={cidr}", why="so"))
    note = {"metadata": {"annotations": {POD_RANGE_ANNOTATION: assigned}}}
    clusters.north.change(Kind.RESOURCE_IMPORT, NORTH, "east-clusterinfo", note)
    clusters.run()
    (gateway,) = east.api.list(Kind.GATEWAY, MEMBER_HOME)
    assert PREFIXES_ANNOTATION not in gateway["metadata"].get("annotations", {})
    assert own_prefixes(east)[1] != "Assigned"
