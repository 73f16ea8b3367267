"""Whose an address is: members that claim what others have, and controllers that are given such claims."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from ipaddress import ip_address, ip_network
from typing import Any
from unittest.mock import patch

import pytest

from devtools.waiting import wait_until
from mcagent.controller.contract import names
from mcagent.controller.leader.cluster_infos import ClusterInfoCopy
from mcagent.controller.leader.disputes import TRIAL
from mcagent.controller.leader.eligibility import Eligibility
from mcagent.controller.machinery.reconciler import DesiredObjects, Index, Object, Wanted
from mcagent.controller.member.networks.cluster_info_import import ClusterInfoImports
from mcagent.controller.settings import LeaderSettings, MemberLimits
from mcagent.core.addresses.underlay import endpoint_of
from mcagent.kube.errors import ApiRefusalError
from mcagent.kube.source import RawObject
from mcagent.model.kinds import KINDS
from mcagent.model.net import parse_address
from mcagent.model.objects import Kind
from mcagent.model.parsing.granted import CLAIMS_ANNOTATION, read_granted
from tests.attacks.catalogue import Attacker, Group, attack
from tests.worlds.control_view import Controller, MemoryView
from tests.worlds.core_inputs import networks
from tests.worlds.leader_world import AREA, Leader, account, announce, cluster_info, gateway_of, reporting
from tests.worlds.member_world import AREA as NORTH
from tests.worlds.member_world import HOME, leader, member, node, north_of, settings, slice_of
from tests.worlds.memory_objects import START, timestamp
from tests.worlds.shipped_access import Stage, _stages, stage

__all__ = ["_stages", "stage"]

by_member = partial(attack, Group.ADDRESSES, Attacker.MEMBER)

VICTIM_KEY = "IRfSjVAaO0TJMcSZSGRCzRRBGD7h5yFXtxrRFCRJJ0A="
OWN_KEY = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
THIRD_KEY = "ICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj8="
LEDGER = "the leader's ledger of claims: the first claim stands and stays"


def world() -> Leader:
    """Return a leader with an older member, the attacker, and a younger one, the victim."""
    leader = Leader("attacker", "victim", "third")
    leader.put(cluster_info("attacker", "10.1.0.0/16"))
    leader.clock.forward(60)
    leader.put(cluster_info("victim", "10.2.0.0/16", ["10.20.0.0/16"], key=VICTIM_KEY))
    leader.clock.forward(60)
    return leader


def edited(**changes: Any) -> RawObject:
    """Return the attacker's export with other content."""
    raw = cluster_info("attacker", "10.1.0.0/16")
    raw["spec"]["clusterInfo"] |= changes
    return raw


def times(world: Leader, cluster: str) -> dict[str, str]:
    """Return what the leader says of a cluster's claims."""
    raw = world.api.get(Kind.RESOURCE_IMPORT, AREA, names.cluster_info(cluster))
    return read_granted((raw or {})["metadata"]["annotations"][CLAIMS_ANNOTATION]) if raw else {}


def info(world: Leader, cluster: str) -> Any:
    """Return what all members are told of a cluster; {} when that is nothing."""
    spec = world.imported(names.cluster_info(cluster))
    return spec["clusterinfo"] if spec else {}


def unharmed(world: Leader) -> None:
    """Check that the victim has what it had, and the attacker none of it."""
    assert info(world, "victim")["serviceCIDR"] == "10.2.0.0/16"
    assert info(world, "victim")["podCIDRs"] == ["10.20.0.0/16"]
    assert info(world, "victim")["wireGuard"] == {"publicKey": VICTIM_KEY}
    assert info(world, "victim")["gatewayInfos"] == [{"gatewayIP": gateway_of("victim")}]
    report = str(info(world, "attacker"))
    assert not [text for text in ("10.2.", "10.20.", VICTIM_KEY, gateway_of("victim")) if text in report], report


# --- an older member takes what a younger one has -----------------------------------------------------------


@by_member(
    wants="take a younger member's CIDR by editing a ClusterInfo that is older",
    stopped_by=LEDGER,
)
@pytest.mark.parametrize("cidr", ["10.2.0.0/16", "10.2.7.0/24", "10.0.0.0/8", "10.20.0.0/16"])
def test_an_older_member_takes_a_cidr(cidr: str) -> None:
    """The object is the older one, the claim is not; the rest of what the attacker publishes is passed on."""
    leader = world()
    leader.put(edited(podCIDRs=[cidr, "10.30.0.0/16"]))
    unharmed(leader)
    assert info(leader, "attacker")["podCIDRs"] == ["10.30.0.0/16"]
    assert times(leader, "attacker")[cidr] == ""
    assert f"Pod CIDR {cidr} is not granted: cluster victim" in leader.verdict("attacker-clusterinfo")["message"]


@by_member(
    wants="have another member's gateway address, so that tunnels to it end at the attacker",
    stopped_by=LEDGER,
)
def test_an_older_member_takes_a_gateway() -> None:
    """The address is left out, and the attacker's own gateway stays."""
    leader = world()
    own = gateway_of("attacker")
    leader.put(edited(gatewayInfos=[{"gatewayIP": gateway_of("victim")}, {"gatewayIP": own}]))
    unharmed(leader)
    assert info(leader, "attacker")["gatewayInfos"] == [{"gatewayIP": own}]


PROOF = "the leader's ledger of claims: a gateway that has never proved itself loses to one that answers there"
NEXT = "192.168.77.7"  # the address of the Node that becomes the victim's gateway


def squatted(*, encrypted: bool = False) -> Leader:
    """Return a leader that has granted the attacker the address which the victim's next gateway has."""
    leader = world()
    if encrypted:
        leader.put(cluster_info("third", "10.3.0.0/16", key=THIRD_KEY))
        leader.put(reporting("third", {gateway_of("victim"): "victim"}, ["attacker"]))
    leader.put(edited(gatewayInfos=[{"gatewayIP": gateway_of("attacker")}, {"gatewayIP": NEXT}]))
    assert {"gatewayIP": NEXT} in info(leader, "attacker")["gatewayInfos"]
    raw = cluster_info("victim", "10.2.0.0/16", ["10.20.0.0/16"], key=VICTIM_KEY)
    raw["spec"]["clusterInfo"]["gatewayInfos"] = [{"gatewayIP": NEXT}]
    leader.put(raw)
    assert "gatewayInfos" not in info(leader, "victim")
    return leader


@by_member(
    wants="break another member's failover by naming the address of its next gateway beforehand",
    stopped_by=PROOF,
)
def test_the_address_of_the_next_gateway() -> None:
    """As soon as a third member reports that the victim answers there, the victim has the address."""
    leader = squatted()
    leader.put(reporting("third", {NEXT: "victim"}))
    assert info(leader, "victim")["gatewayInfos"] == [{"gatewayIP": NEXT}]
    assert info(leader, "attacker")["gatewayInfos"] == [{"gatewayIP": gateway_of("attacker")}]
    refusal = leader.verdict("attacker-clusterinfo")["message"]
    assert f"members report that the gateway of cluster victim answers at {NEXT}" in refusal
    leader.put(announce("third", START))  # what has proved itself stays
    leader.put(edited(gatewayInfos=[{"gatewayIP": gateway_of("attacker")}, {"gatewayIP": NEXT}]))
    leader.settle()
    assert info(leader, "victim")["gatewayInfos"] == [{"gatewayIP": NEXT}]


@by_member(
    wants="do so where tunnels are encrypted, so that no probe is answered in the victim's name",
    stopped_by="the ledger: a gateway that no member reaches with the key that it claims loses its address",
)
def test_the_address_of_the_next_gateway_behind_encryption() -> None:
    """The victim gets the address a minute later; it answers, and keeps it."""
    leader = squatted(encrypted=True)
    leader.forward(TRIAL - 10)
    assert "gatewayInfos" not in info(leader, "victim")
    leader.forward(20)
    assert info(leader, "victim")["gatewayInfos"] == [{"gatewayIP": NEXT}]
    leader.put(reporting("third", {NEXT: "victim"}))
    leader.forward(3 * TRIAL)
    assert info(leader, "victim")["gatewayInfos"] == [{"gatewayIP": NEXT}]


ANSWERS = "the ledger: whatever collides with a gateway is one contest, which the cluster that answers there wins"


def moved(leader: Leader, address: str, *, beside: bool = False) -> None:
    """Move the victim's gateway to another Node, or add one."""
    raw = cluster_info("victim", "10.2.0.0/16", ["10.20.0.0/16"], key=VICTIM_KEY)
    old = [{"gatewayIP": gateway_of("victim")}] if beside else []
    raw["spec"]["clusterInfo"]["gatewayInfos"] = [*old, {"gatewayIP": address}]
    leader.put(raw)


@by_member(
    wants="have another member's next gateway refused by publishing small Pod CIDRs around its Nodes' addresses",
    stopped_by="the ledger: a small CIDR beside another cluster's gateway needs an administrator's word",
)
@pytest.mark.parametrize("upgraded", [False, True])
def test_the_next_gateway_in_a_small_cidr(upgraded: bool) -> None:
    """It is not granted; one that an early version granted yields, and both stay as they are then."""
    leader = world()
    beside = str(parse_address(gateway_of("victim")) + 11)
    small = f"{beside}/32"
    if upgraded:
        with patch.object(Eligibility, "neighbours", lambda *_: {}):
            leader.put(edited(podCIDRs=[small]))
        assert info(leader, "attacker")["podCIDRs"] == [small]
    else:
        leader.put(edited(podCIDRs=[small, "10.30.0.0/16"]))
        assert info(leader, "attacker")["podCIDRs"] == ["10.30.0.0/16"]
        refusal = leader.verdict("attacker-clusterinfo")["message"]
        assert f"holds gateway {gateway_of('victim')} of cluster victim" in refusal
        assert "members.allowedCIDRs: a list that holds" in refusal
    moved(leader, beside)
    for _ in range(3):
        assert info(leader, "victim")["gatewayInfos"] == [{"gatewayIP": beside}]
        assert small not in info(leader, "attacker").get("podCIDRs", ())
        leader.forward(2 * TRIAL)


@by_member(
    wants="keep another member's next gateway by an accomplice's report that it answers there itself",
    stopped_by="the ledger: proofs have a quorum and an age, and are lost to a newer majority",
)
@pytest.mark.parametrize("withdrawn", [False, True])
@pytest.mark.parametrize("by_leader", [False, True])
def test_an_accomplices_false_proof(withdrawn: bool, by_leader: bool) -> None:
    """Neither a present nor a former report stands against the leader's own cluster, or a majority."""
    leader = Leader("attacker", "accomplice", "victim", "north", "honest", "third")
    for number, cluster in enumerate(("attacker", "accomplice", "victim", "north", "honest", "third"), 1):
        leader.put(cluster_info(cluster, f"10.{number}.0.0/16"))
    reporters = ["north"] if by_leader else ["honest", "third"]
    everybody = ("attacker", "victim")
    raw = cluster_info("attacker", "10.1.0.0/16")
    raw["spec"]["clusterInfo"]["gatewayInfos"].append({"gatewayIP": NEXT})
    leader.put(raw)
    for reporter in reporters:
        leader.put(reporting(reporter, {gateway_of("victim"): "victim"}, everybody))
    leader.put(reporting("accomplice", {NEXT: "attacker"}, everybody))
    leader.forward(TRIAL)
    if withdrawn:
        leader.put(reporting("accomplice", {gateway_of("victim"): "victim"}, everybody))
    victim = cluster_info("victim", "10.3.0.0/16")
    victim["spec"]["clusterInfo"]["gatewayInfos"] = [{"gatewayIP": NEXT}]
    leader.put(victim)
    for reporter in reporters:
        leader.put(reporting(reporter, {NEXT: "victim"}, everybody))
    assert info(leader, "victim")["gatewayInfos"] == [{"gatewayIP": NEXT}]
    leader.forward(3 * TRIAL)
    assert info(leader, "victim")["gatewayInfos"] == [{"gatewayIP": NEXT}]


@by_member(
    wants="take a working gateway that other members reach by accomplices that do not report it",
    stopped_by="the ledger: an owner that half of the members reach has no trial",
)
def test_a_silent_accomplice() -> None:
    """The address does not change its owner, and one member's word takes no proved gateway."""
    leader = Leader("attacker", "accomplice", "victim", "third")
    for number, cluster in enumerate(("attacker", "accomplice", "victim", "third"), 1):
        key = {"attacker": OWN_KEY, "victim": VICTIM_KEY, "third": THIRD_KEY}.get(cluster, "")
        leader.put(cluster_info(cluster, f"10.{number}.0.0/16", key=key))
    gateway = gateway_of("victim")
    leader.put(reporting("third", {gateway: "victim"}, ["attacker"]))
    leader.put(reporting("accomplice", {gateway_of("third"): "third"}, ["attacker", "victim"]))
    raw = cluster_info("attacker", "10.1.0.0/16", key=OWN_KEY)
    raw["spec"]["clusterInfo"]["gatewayInfos"].append({"gatewayIP": gateway})
    leader.put(raw)
    leader.forward(5 * TRIAL)
    assert info(leader, "victim")["gatewayInfos"] == [{"gatewayIP": gateway}]
    leader.leave("accomplice")
    leader.forward(TRIAL)
    leader.put(reporting("third", {gateway: "attacker"}, ["victim"]))
    leader.forward(5 * TRIAL)
    assert info(leader, "victim")["gatewayInfos"] == [{"gatewayIP": gateway}]


@by_member(
    wants="have another member's next gateway refused by a gateway with the same low 28 bits",
    stopped_by=ANSWERS,
)
@pytest.mark.parametrize("encrypted", [False, True])
def test_the_next_gateway_with_the_same_endpoint(encrypted: bool) -> None:
    """Without keys neither is in the other's way; with keys, the squatter loses it after a trial."""
    leader = world()
    other = str(parse_address(NEXT) - 0x10000000)
    assert endpoint_of(parse_address(other)) == endpoint_of(parse_address(NEXT))
    if encrypted:
        leader.put(cluster_info("third", "10.3.0.0/16", key=THIRD_KEY))
    leader.put(reporting("third", {gateway_of("victim"): "victim"}, ["attacker"]))
    key = {"wireGuard": {"publicKey": OWN_KEY}} if encrypted else {}
    leader.put(edited(gatewayInfos=[{"gatewayIP": gateway_of("attacker")}, {"gatewayIP": other}], **key))
    assert {"gatewayIP": other} in info(leader, "attacker")["gatewayInfos"]
    moved(leader, NEXT, beside=True)
    leader.forward(2 * TRIAL)
    assert {"gatewayIP": NEXT} in info(leader, "victim")["gatewayInfos"]
    assert ({"gatewayIP": other} in info(leader, "attacker")["gatewayInfos"]) != encrypted


@by_member(
    wants="have another member's next gateway refused by claiming it with that member's WireGuard key",
    stopped_by="the ledger: a gateway whose key another cluster has is refused, and blocks no other claim",
)
def test_a_gateway_with_another_clusters_key_blocks_nobody() -> None:
    """An older export that publishes the victim's key and the address of its next gateway does not get it."""
    leader = world()
    leader.put(edited(wireGuard={"publicKey": VICTIM_KEY}, gatewayInfos=[{"gatewayIP": NEXT}]))
    moved(leader, NEXT)
    assert info(leader, "victim")["gatewayInfos"] == [{"gatewayIP": NEXT}]
    refusal = leader.verdict("attacker-clusterinfo")["message"]
    assert f"gateway {NEXT} is not granted: its WireGuard key is that of cluster victim" in refusal


@by_member(
    wants="take the address of another member's gateway by a false report that it answers there itself",
    stopped_by="the ledger: reports of a cluster about itself do not count, and a gateway that has answered stays",
)
def test_a_false_report_about_itself() -> None:
    """Neither before nor after the victim's gateway has answered."""
    for answered in (False, True):
        leader = world()
        if answered:
            leader.put(reporting("third", {gateway_of("victim"): "victim"}))
        leader.put(edited(gatewayInfos=[{"gatewayIP": gateway_of("victim")}]))
        leader.put(reporting("attacker", {gateway_of("victim"): "attacker"}))
        leader.forward(3 * TRIAL)
        unharmed(leader)
        if answered:  # an accomplice
            leader.put(reporting("third", {gateway_of("victim"): "attacker"}))
            unharmed(leader)


@by_member(
    wants="reserve the addresses of many Nodes of others as gateways",
    stopped_by="members.maxGateways, and members.allowedGateways or the annotation mcagent.io/allowed-gateways",
)
def test_more_gateways_than_allowed() -> None:
    """The first eight count, or those that an administrator allows."""
    leader = world()
    squats = [f"192.168.78.{number}" for number in range(1, 40)]
    leader.put(edited(gatewayInfos=[{"gatewayIP": text} for text in squats]))
    assert [item["gatewayIP"] for item in info(leader, "attacker")["gatewayInfos"]] == squats[:8]
    assert "a member may have 8 gateways" in leader.verdict("attacker-clusterinfo")["message"]
    leader.put(account("attacker", allowed_gateways="192.168.78.4/31"))
    assert [item["gatewayIP"] for item in info(leader, "attacker")["gatewayInfos"]] == squats[3:5]
    leader.put(account("attacker", allowed_gateways="192.168.78.4/33"))
    assert "gatewayInfos" not in info(leader, "attacker")


@by_member(
    wants="make a Service of another member unreachable by naming its ClusterIP as a gateway",
    stopped_by="the leader's ledger of claims: gateways and CIDRs are in each other's way",
)
def test_a_cluster_ip_as_a_gateway() -> None:
    """An address in the victim's Service CIDR is nobody else's gateway."""
    leader = world()
    own = gateway_of("attacker")
    leader.put(edited(gatewayInfos=[{"gatewayIP": own}, {"gatewayIP": "10.2.0.80"}]))
    unharmed(leader)
    assert info(leader, "attacker")["gatewayInfos"] == [{"gatewayIP": own}]


@by_member(
    wants="route another member's gateway into its own tunnels by a CIDR that holds it",
    stopped_by="the leader's ledger of claims: gateways and CIDRs are in each other's way",
)
def test_a_cidr_around_a_gateway() -> None:
    """A network with the victim's gateway in it is refused, however small."""
    leader = world()
    leader.put(edited(podCIDRs=[f"{gateway_of('victim')}/32", "192.168.0.0/16"]))
    unharmed(leader)
    assert "podCIDRs" not in info(leader, "attacker")


@by_member(
    wants="get the tunnel endpoint of another member's gateway by an address with the same low bits",
    stopped_by="the leader's ledger of claims: what follows from an address is claimed with it",
)
def test_a_gateway_with_the_same_endpoint() -> None:
    """Of two gateways with keys whose endpoints behind WireGuard would be one address the later one is refused."""
    leader = world()
    other = str(parse_address(gateway_of("victim")) - 0x80000000)  # differs in its first bit only
    assert endpoint_of(parse_address(other)) == endpoint_of(parse_address(gateway_of("victim")))
    gateways = [{"gatewayIP": gateway_of("attacker")}, {"gatewayIP": other}]
    leader.put(edited(gatewayInfos=gateways, wireGuard={"publicKey": OWN_KEY}))
    unharmed(leader)
    assert other not in str(info(leader, "attacker"))


@by_member(
    wants="publish another member's WireGuard key, so that peers drop the one or the other",
    stopped_by="the leader's ledger of claims: keys are claims",
)
@pytest.mark.parametrize("own", [True, False])
def test_an_older_member_takes_a_key(own: bool) -> None:
    """A gateway with a key of somebody else is left out; it is not passed on as one that does not encrypt."""
    leader = world()
    key = {"publicKey": VICTIM_KEY}
    gateways = [{"gatewayIP": "192.168.77.1"} | ({"wireGuard": key} if own else {})]
    leader.put(edited(gatewayInfos=gateways, **({} if own else {"wireGuard": key})))
    unharmed(leader)
    assert "gatewayInfos" not in info(leader, "attacker")


@by_member(
    wants="reserve another member's WireGuard key as its own next one",
    stopped_by="the leader's ledger of claims: a next key is claimed like a key",
)
def test_a_key_as_the_next_key() -> None:
    """Only the next key is left out."""
    leader = world()
    key = {"publicKey": OWN_KEY, "nextPublicKey": VICTIM_KEY}
    leader.put(edited(gatewayInfos=[{"gatewayIP": "192.168.77.1", "wireGuard": key}]))
    unharmed(leader)
    assert info(leader, "attacker")["gatewayInfos"][0]["wireGuard"] == {"publicKey": OWN_KEY}


@by_member(
    wants="be first by the age of an export that was made before the victim's, and deleted and made again",
    stopped_by="the leader's ledger of claims: what counts is when a claim was granted, not how old an object is",
)
def test_an_export_that_looks_older() -> None:
    """Not even an export with an earlier creation time gets what is granted."""
    leader = world()
    leader.remove("attacker-clusterinfo")
    leader.put(edited(serviceCIDR="10.2.0.0/16"), created=timestamp(START - 86400))
    unharmed(leader)
    assert "serviceCIDR" not in info(leader, "attacker")


@by_member(
    wants="be granted what it says itself that it was granted, in an annotation of its export",
    stopped_by="the leader, which reads grants from its own ResourceImports only",
)
def test_grants_written_by_the_member() -> None:
    """The annotation of an export counts for nothing, and is not passed on."""
    leader = world()
    raw = edited(serviceCIDR="10.2.0.0/16")
    raw["metadata"]["annotations"] = {CLAIMS_ANNOTATION: '{"10.2.0.0/16":"2001-01-01T00:00:00.000000Z"}'}
    leader.put(raw)
    unharmed(leader)
    assert times(leader, "attacker")["10.2.0.0/16"] == ""


# --- at the right moment --------------------------------------------------------------------------------------


@by_member(
    wants="get another member's addresses while the leader restarts",
    stopped_by="the ledger, which is in the API server: a leader that starts decides as the one before it",
)
def test_claims_while_the_leader_is_away() -> None:
    """What is edited while no leader runs is decided as if it had run, and a restart changes nothing."""
    leader = world()
    before = times(leader, "victim")
    leader.controller.closed = True
    leader.put(edited(serviceCIDR="10.2.0.0/16", podCIDRs=["10.20.0.0/16"]))
    for _ in range(2):
        leader.start()
        leader.settle()
    unharmed(leader)
    assert times(leader, "victim") == before
    leader.api.writes.clear()
    leader.start()
    leader.settle()
    assert leader.api.writes == []


def blind(leader: Leader, cluster: str) -> DesiredObjects:
    """Return what a worker decides on a cluster that has not yet seen what others write."""
    return ClusterInfoCopy(leader.settings).desired(f"{AREA}/{cluster}-clusterinfo", leader.view, leader.clock())


def write(leader: Leader, outcome: DesiredObjects) -> None:
    """Write what a worker has decided."""
    for step in outcome.steps:
        assert isinstance(step, Wanted)
        leader.api.carry_out(step)


@by_member(
    wants="have a CIDR beside another member by claiming it at the same moment",
    stopped_by="the ledger: of two grants the older one stands, whichever worker looks again first",
)
@pytest.mark.parametrize("order", [("attacker", "victim"), ("victim", "attacker")])
def test_two_workers_at_once(order: Sequence[str]) -> None:
    """Workers that did not see each other's grants: the earlier grant is found by both, and stands for good."""
    leader = Leader("attacker", "victim")
    leader.controller.closed = True
    leader.put(cluster_info("victim", "10.2.0.0/16"))
    first = blind(leader, "victim")  # decided, and not yet written
    leader.clock.forward(0.000002)
    leader.put(cluster_info("attacker", "10.2.0.0/16"), created=timestamp(START - 60))
    second = blind(leader, "attacker")
    for outcome in {"victim": [first, second], "attacker": [second, first]}[order[0]]:
        write(leader, outcome)
    for cluster in (*order, *order):
        write(leader, blind(leader, cluster))
    assert info(leader, "victim")["serviceCIDR"] == "10.2.0.0/16"
    assert "serviceCIDR" not in info(leader, "attacker")
    leader.start()
    leader.settle()
    assert info(leader, "victim")["serviceCIDR"] == "10.2.0.0/16"


@by_member(
    wants="leave with its claims kept, so that no other member gets the addresses",
    stopped_by="the ledger: who is no member has no claims, and who returns claims anew",
)
def test_a_member_that_leaves_keeps_nothing() -> None:
    """Its CIDR is free at once; when it returns with an export that looks older, it is somebody else's."""
    leader = world()
    leader.leave("attacker")
    leader.put(cluster_info("third", "10.1.0.0/16"))
    assert info(leader, "third")["serviceCIDR"] == "10.1.0.0/16"
    leader.put(announce("attacker", START))
    leader.put(cluster_info("attacker", "10.1.0.0/16"), created=timestamp(START - 86400))
    assert info(leader, "attacker")["gatewayInfos"] == [{"gatewayIP": gateway_of("attacker")}]
    assert info(leader, "third")["serviceCIDR"] == "10.1.0.0/16"
    assert "serviceCIDR" not in info(leader, "attacker")


@by_member(
    wants="keep newcomers out by asking for all of 10.0.0.0/8 before they do",
    stopped_by="the ledger: a claim that cannot be granted blocks no other claim",
)
def test_a_refused_claim_blocks_nobody() -> None:
    """Some address of it is the victim's, so it is refused, and a newcomer gets another one."""
    leader = world()
    leader.put(edited(podCIDRs=["10.0.0.0/8"]))
    leader.put(cluster_info("third", "10.3.0.0/16"))
    assert info(leader, "third")["serviceCIDR"] == "10.3.0.0/16"
    unharmed(leader)


# --- too much, and what nobody may have -----------------------------------------------------------------------


@attack(
    Group.QUOTAS,
    Attacker.MEMBER,
    wants="keep the leader busy with 100,000 CIDRs in one ClusterInfo",
    stopped_by="limits that are looked at before anything is read",
)
def test_a_hundred_thousand_cidrs() -> None:
    """The export is refused, its last good version stays, and others go on."""
    leader = world()
    many = [str(network) for network in ip_network("10.64.0.0/10").subnets(new_prefix=27)][:100_000]
    assert len(many) == 100_000
    began = time.process_time()
    leader.put(edited(podCIDRs=many))
    leader.put(cluster_info("third", "10.3.0.0/16"))
    assert time.process_time() - began < 5.0
    assert "at most 256 allowed" in leader.verdict("attacker-clusterinfo")["message"]
    assert info(leader, "third")["serviceCIDR"] == "10.3.0.0/16"
    unharmed(leader)


@attack(
    Group.QUOTAS,
    Attacker.MEMBER,
    wants="keep the leader busy with thousands of CIDRs that all overlap",
    stopped_by="a ledger that looks only at who is in the way, in one sweep",
)
def test_thousands_of_overlapping_cidrs() -> None:
    """4,000 claims of 16 members, nested and equal: one change is decided in a moment, and all get an answer."""
    members = [f"m{number}" for number in range(16)]
    leader = Leader(*members)
    nested = [f"10.0.0.0/{length}" for length in range(8, 33)]
    equal = [str(network) for network in ip_network("10.128.0.0/9").subnets(new_prefix=18)][:225]
    leader.controller.closed = True
    for cluster in members:
        leader.put(cluster_info(cluster, "10.0.0.0/9", [*nested, *equal]))
    leader.view = Fast(leader)
    reconciler = ClusterInfoCopy(leader.settings)
    began = time.process_time()
    for cluster in members[:2]:
        write(leader, reconciler.desired(f"{AREA}/{cluster}-clusterinfo", leader.view, leader.clock()))
    assert time.process_time() - began < 5.0
    assert len(info(leader, "m0")["podCIDRs"]) == 250
    assert "podCIDRs" not in info(leader, "m1")


class Fast(MemoryView):
    """A view whose indexes are kept until something is written, as the engine's cache keeps them."""

    def __init__(self, leader: Leader) -> None:
        super().__init__(leader.api, namespace=AREA)
        self._known: dict[str, dict[str, list[Any]]] = {}
        leader.api.watch(lambda *_: self._known.clear())

    def indexed(self, index: Index[Object], value: str) -> Sequence[Object]:
        """Return the objects that an index files under a value."""
        if index.name not in self._known:
            filed: dict[str, list[Any]] = {}
            for obj in self.list(index.of):
                for under in index.values(obj):
                    filed.setdefault(under, []).append(obj)
            self._known[index.name] = filed
        return self._known[index.name].get(value, ())


@by_member(
    wants="have public addresses routed into its tunnels",
    stopped_by="the leader: CIDRs are private, unless allowedClusterCIDRs says otherwise",
)
@pytest.mark.parametrize("cidr", ["8.8.8.0/24", "172.0.0.0/8", "100.0.0.0/9"])
def test_a_public_range(cidr: str) -> None:
    """A range that is public, or partly, is refused; one that an administrator names is not."""
    leader = world()
    leader.put(edited(podCIDRs=[cidr]))
    assert "podCIDRs" not in info(leader, "attacker")
    leader.settings = LeaderSettings(namespace="", limits=MemberLimits(cluster_cidrs=(cidr, "10.0.0.0/8")))
    leader.start()
    leader.settle()
    assert info(leader, "attacker")["podCIDRs"] == [cidr]


@by_member(
    wants="claim CIDRs beyond those that an administrator has named for it",
    stopped_by="the annotation mcagent.io/allowed-cidrs of its ServiceAccount, which the ledger keeps to",
)
def test_beyond_what_an_administrator_allows() -> None:
    """The bound holds when it is written, also for what was granted before."""
    leader = world()
    leader.put(edited(podCIDRs=["10.30.0.0/16"]))
    assert info(leader, "attacker")["podCIDRs"] == ["10.30.0.0/16"]
    notes = {names.CLUSTER_ID_ANNOTATION: "attacker", names.ALLOWED_CIDRS_ANNOTATION: "10.1.0.0/16"}
    leader.put({"kind": "ServiceAccount", "metadata": {"name": "a", "namespace": AREA, "annotations": notes}})
    assert "podCIDRs" not in info(leader, "attacker")
    assert info(leader, "attacker")["serviceCIDR"] == "10.1.0.0/16"
    assert names.ALLOWED_CIDRS_ANNOTATION in leader.verdict("attacker-clusterinfo")["message"]


@by_member(
    wants="break agents of Antrea, which do not check it, with two CIDRs in `serviceCIDR` or IPv6 in CIDRs",
    stopped_by="the leader: serviceCIDR is one IPv4 CIDR, podCIDRs are IPv4; the last valid content stays",
)
@pytest.mark.parametrize(
    "changes",
    [
        {"serviceCIDR": "10.1.0.0/16,10.3.0.0/16"},
        {"serviceCIDR": "10.1.0.0/16 10.3.0.0/16"},
        {"serviceCIDR": "10.1.0.0/16,fd00:1::/112"},
        {"serviceCIDR": "fd00:1::/112"},
        {"podCIDRs": ["10.30.0.0/16", "fd00:30::/64"]},
        {"podCIDRs": ["::ffff:10.30.0.0/112"]},
        {"podCIDRs": ["10.30.0.0/16,10.31.0.0/16"]},
        {"gatewayInfos": [{"gatewayIP": "192.168.5.1,192.168.5.2"}]},
    ],
    ids=str,
)
def test_fields_that_antreas_agents_read_unchecked(changes: dict[str, Any]) -> None:
    """No member is told of the value, not even of a part of it, and the export's status names the field."""
    leader = world()
    before = info(leader, "attacker")
    leader.put(edited(**changes))
    assert info(leader, "attacker") == before
    verdict = leader.verdict("attacker-clusterinfo")
    assert verdict["type"] == "Failure"
    assert next(iter(changes)) in verdict["message"]
    unharmed(leader)


# --- what a member's controller is given ----------------------------------------------------------------------


def resource_import(cluster: str, service_cidr: str, gateway: str, *pod_cidrs: str) -> RawObject:
    """Return a ResourceImport as any leader may write it."""
    content = {
        "clusterID": cluster,
        "serviceCIDR": service_cidr,
        "podCIDRs": list(pod_cidrs),
        "gatewayInfos": [{"gatewayIP": gateway}],
    }
    return {
        "kind": "ResourceImport",
        "metadata": {"name": names.cluster_info(cluster), "namespace": NORTH},
        "spec": {"kind": "ClusterInfo", "clusterinfo": content},
    }


def importing(*imports: RawObject, addresses: tuple[str, ...] = ()) -> tuple[MemoryView, Controller]:
    """Return a member whose leader has these, at some address."""
    view = member()
    view.leader = replace(leader(), addresses=addresses)
    controller = Controller(view, [ClusterInfoImports(settings())])
    for raw in imports:
        north_of(view).put(raw)
        north_of(view).clock.forward(10)
        controller.run()
    return view, controller


def imported(view: MemoryView, cluster: str) -> Any:
    """Return a ClusterInfoImport."""
    raw = view.local.get(Kind.CLUSTER_INFO_IMPORT, HOME, names.cluster_info(cluster))
    assert raw is not None
    return raw


@by_member(
    wants="get the leader's API server into its tunnels, and with it the control plane of all members",
    stopped_by="each member's controller: a Pod CIDR loses the leader's address, a gateway is left out",
)
def test_a_cidr_with_the_leader() -> None:
    """A Pod CIDR loses the address, a Service CIDR or gateway with it is left out; the rest is imported."""
    view, controller = importing(
        resource_import("attacker", "10.1.0.0/16", "192.168.9.1", "192.168.7.0/24", "10.30.0.0/16"),
        resource_import("third", "10.3.0.0/16", "192.168.7.10"),
        addresses=("192.168.7.10",),
    )
    pod_cidrs = networks(*imported(view, "attacker")["spec"]["podCIDRs"])
    assert not any(ip_address("192.168.7.10") in cidr for cidr in pod_cidrs)
    assert sum(cidr.num_addresses for cidr in pod_cidrs) == 2**16 + 2**8 - 1
    north_of(view).put(resource_import("attacker", "192.168.7.0/24", "192.168.9.1"))
    controller.run()
    assert "serviceCIDR" not in imported(view, "attacker")["spec"]
    assert imported(view, "third")["spec"]["gatewayInfos"] == []
    assert {event.reason for event in controller.all_events()} == {"ProtectedAddress"}


@by_member(
    wants="get this cluster's API server into its tunnels",
    stopped_by="each member's controller: a Pod CIDR is imported without the addresses of its API servers",
)
def test_a_cidr_with_an_api_server() -> None:
    """It is left out from when the address is known, and comes back when it is another one."""
    view, controller = importing(resource_import("attacker", "10.1.0.0/16", "192.168.9.1", "172.30.0.0/24"))
    assert imported(view, "attacker")["spec"]["podCIDRs"] == ["172.30.0.0/24"]
    raw = slice_of("kubernetes", "172.30.0.5", name="kubernetes")
    raw["metadata"]["namespace"] = "default"
    view.local.put(raw)
    controller.run()
    pod_cidrs = networks(*imported(view, "attacker")["spec"]["podCIDRs"])
    assert sum(cidr.num_addresses for cidr in pod_cidrs) == 2**8 - 1
    assert not any(ip_address("172.30.0.5") in cidr for cidr in pod_cidrs)
    (ready,) = imported(view, "attacker")["status"]["conditions"]
    assert ready["message"] == "Pod CIDR 172.30.0.0/24 is imported without 172.30.0.5 (an API server)"
    raw["endpoints"][0]["addresses"] = ["172.31.0.5"]
    view.local.put(raw)
    controller.run()
    assert imported(view, "attacker")["spec"]["podCIDRs"] == ["172.30.0.0/24"]


@by_member(
    wants="get Nodes of another cluster into its tunnels, that are not on a network of the Node that looks",
    stopped_by="each member's controller, which knows all Nodes of its cluster",
)
@pytest.mark.parametrize("claimed", ["172.30.0.0/24", "172.16.0.0/12"])
def test_a_cidr_with_a_node(claimed: str) -> None:
    """A Node takes back its address from a CIDR in use, and the whole CIDR if that is claimed after it joined."""
    claims = resource_import("attacker", "10.1.0.0/16", "172.30.0.7", claimed)
    view, controller = importing(claims)
    view.local.put(node("n1", "172.30.0.7"))
    controller.run()
    parts = networks(*imported(view, "attacker")["spec"]["podCIDRs"])
    assert sum(part.num_addresses for part in parts) == ip_network(claimed).num_addresses - 1
    assert not any(ip_address("172.30.0.7") in part for part in parts)
    north_of(view).put(resource_import("attacker", "10.1.0.0/16", "172.30.0.7"))
    controller.run()
    north_of(view).put(claims)
    for _ in range(2):  # the second one is a new process
        controller.run()
        assert "podCIDRs" not in imported(view, "attacker")["spec"]
        assert imported(view, "attacker")["spec"]["gatewayInfos"] == []
        assert imported(view, "attacker")["spec"]["serviceCIDR"] == "10.1.0.0/16"
        controller = Controller(view, [ClusterInfoImports(settings())])
        view.local.put(node("n2", "172.30.0.8"))


@by_member(
    wants="take a younger member's CIDR where the leader keeps no ledger (Antrea's)",
    stopped_by="each member's controller, which notes when it first saw each claim",
)
def test_without_a_ledger_at_the_leader() -> None:
    """A changed claim of an older object is newer than that of a younger one; those that stay keep their time."""
    view, controller = importing(
        resource_import("attacker", "10.1.0.0/16", "192.168.9.1"),
        resource_import("victim", "10.2.0.0/16", "192.168.9.2"),
    )
    north_of(view).clock.forward(10)
    north_of(view).put(resource_import("attacker", "10.1.0.0/16", "192.168.9.1", "10.2.0.0/16"))
    controller.run()
    victim, attacker = (
        read_granted(imported(view, name)["metadata"]["annotations"][CLAIMS_ANNOTATION])
        for name in ("victim", "attacker")
    )
    assert attacker["10.1.0.0/16"] < victim["10.2.0.0/16"] < attacker["10.2.0.0/16"]


# --- a real API server ----------------------------------------------------------------------------------------


def info_export(cluster: str, service_cidr: str, *pod_cidrs: str, gateway: str) -> RawObject:
    """Return a ClusterInfo export as a member's controller writes it."""
    raw = cluster_info(cluster, service_cidr, pod_cidrs)
    raw["spec"]["clusterInfo"]["gatewayInfos"] = [{"gatewayIP": gateway}]
    raw |= {"apiVersion": KINDS[Kind.RESOURCE_EXPORT].api_version}
    labels = {"sourceClusterID": cluster, "sourceKind": "ClusterInfo"}
    raw["metadata"] = {
        "name": names.cluster_info(cluster),
        "labels": labels,
        "finalizers": [names.EXPORT_FINALIZER],
    }
    return raw


@pytest.fixture
def published(stage: Stage) -> Stage:
    """Give the stage after both members have published their networks, east first."""
    for number, name in enumerate(("east", "west"), 1):
        stage.there(Kind.MEMBER_CLUSTER_ANNOUNCE, stage.announce(name))
        export = info_export(name, f"10.{number}.0.0/16", gateway=f"192.168.9.{number}")
        stage.there(Kind.RESOURCE_EXPORT, export)
    wait_until(lambda: len(granted(stage, "west")) == 2, "the claims of west to be granted", timeout=30)
    return stage


def granted(stage: Stage, cluster: str) -> dict[str, str]:
    """Return what a leader says of a cluster's claims."""
    try:
        raw: Any = stage.admin.request("GET", stage.path(Kind.RESOURCE_IMPORT, names.cluster_info(cluster)))
    except ApiRefusalError:
        return {}
    return read_granted(raw["metadata"].get("annotations", {}).get(CLAIMS_ANNOTATION, "{}"))


def patched(stage: Stage, cluster: str, kind: Kind, body: RawObject) -> ApiRefusalError | None:
    """Patch a member's object by its own token; return how that was refused."""
    path = stage.path(kind, names.cluster_info(cluster))
    try:
        stage.members[cluster].request("PATCH", path, {}, body=body, content_type="application/merge-patch+json")
    except ApiRefusalError as error:
        return error
    return None


@pytest.mark.real_only
@by_member(
    wants="claim another member's CIDR, by its token at the API server",
    stopped_by="the webhook, which names the holder; and the ledger, when the request has more in it",
)
def test_a_claim_at_the_api_server(published: Stage) -> None:
    """Alone it is refused at once; with a new gateway in one request the gateway is taken, and the CIDR is not."""
    claim = {"podCIDRs": ["10.2.128.0/17"]}
    refused = patched(published, "east", Kind.RESOURCE_EXPORT, {"spec": {"clusterInfo": claim}})
    assert refused is not None
    assert refused.code == 409
    assert "cluster west has had Service CIDR 10.2.0.0/16 since" in str(refused)
    both = {**claim, "gatewayInfos": [{"gatewayIP": "192.168.9.3"}]}
    assert patched(published, "east", Kind.RESOURCE_EXPORT, {"spec": {"clusterInfo": both}}) is None
    wait_until(lambda: "192.168.9.3" in granted(published, "east"), "the new gateway to be granted", timeout=30)
    assert granted(published, "east")["10.2.128.0/17"] == ""
    raw: Any = published.admin.request("GET", published.path(Kind.RESOURCE_IMPORT, "east-clusterinfo"))
    assert "podCIDRs" not in raw["spec"]["clusterinfo"]


@pytest.mark.real_only
@by_member(
    wants="write into the leader's ledger, by its token at the API server",
    stopped_by="RBAC: members read ResourceImports and write none",
)
def test_writing_into_the_ledger(published: Stage) -> None:
    """Neither its own entry nor another's can be changed."""
    body = {"metadata": {"annotations": {CLAIMS_ANNOTATION: '{"10.2.0.0/16":"2001-01-01T00:00:00Z"}'}}}
    refused = patched(published, "east", Kind.RESOURCE_IMPORT, body)
    assert refused is not None
    assert refused.code == 403
