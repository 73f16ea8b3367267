"""What the leader's ledger decides about claims: grants, their times, and the whole message of each refusal."""

from __future__ import annotations

from typing import Any

import pytest

from mcagent.controller.contract import names
from mcagent.controller.contract.cidr_claims import CidrClaim, cidr_claim, gateway_claim
from mcagent.controller.leader.claims import (
    ClusterClaims,
    claims_of_cluster,
    granted_in,
    read_claims,
)
from mcagent.controller.leader.contests import GatewayRecords
from mcagent.controller.leader.disputes import TRIAL
from mcagent.controller.leader.eligibility import allowed_ranges, refusals
from mcagent.controller.leader.exports.bounds import Bounds, defaults_of
from mcagent.controller.leader.ledger import ClaimsDecision, Ledger, touched
from mcagent.controller.settings import MemberLimits
from mcagent.kube.source import RawObject
from mcagent.model.api.multicluster import ResourceExport, ResourceImport
from mcagent.model.objects import Kind
from mcagent.model.parsing.granted import CLAIMS_ANNOTATION, REFUSED
from tests.worlds.leader_world import AREA, Leader, account, announce, cluster_info, gateway_of, reporting
from tests.worlds.memory_objects import START, timestamp, typed

KEY = "IRfSjVAaO0TJMcSZSGRCzRRBGD7h5yFXtxrRFCRJJ0A="
OPEN = defaults_of(MemberLimits())
PRIVATE = allowed_ranges(MemberLimits())
NOT_PRIVATE = (
    "it does not lie in a range that clusters may have: allowedClusterCIDRs of the leader's configuration, by "
    "default private networks"
)
NOT_IN_BOUNDS = (
    f"neither annotation {names.ALLOWED_CIDRS_ANNOTATION} of cluster east's ServiceAccount on the leader holds "
    "it, nor members.allowedCIDRs"
)


def claim(text: str, kind: str = "Pod CIDR") -> CidrClaim:
    """Return the claim to a CIDR."""
    value = cidr_claim(text, kind)
    assert value is not None
    return value


def changed(raw: RawObject, **fields: Any) -> RawObject:
    """Return a ClusterInfo export with other fields."""
    raw["spec"]["clusterInfo"] |= fields
    return raw


def paused(*objects: RawObject, members: tuple[str, ...] = ("east", "west")) -> Leader:
    """Return a leader that has exports, a second apart, and has not looked at them."""
    leader = Leader(*members)
    leader.controller.closed = True
    for obj in objects:
        leader.put(obj)
        leader.clock.forward(1)
    return leader


def decision(leader: Leader, cluster: str, limits: MemberLimits | None = None) -> ClaimsDecision:
    """Return what the ledger decides about a cluster's export now."""
    raw = leader.api.get(Kind.RESOURCE_EXPORT, AREA, names.cluster_info(cluster))
    assert raw is not None
    export = typed(raw)
    assert isinstance(export, ResourceExport)
    return Ledger(limits or MemberLimits()).decide(leader.view, export, leader.clock())


@pytest.mark.parametrize(
    ("bounds", "cidr", "why"),
    [
        (OPEN, "10.1.0.0/16", ""),
        (OPEN, "172.16.0.0/12", ""),
        (OPEN, "192.168.3.0/24", ""),
        (OPEN, "100.64.0.0/10", ""),
        (
            OPEN,
            "100.0.0.0/9",
            NOT_PRIVATE,
        ),
        (Bounds(max_exports=1, problem="the annotation is wrong"), "10.1.0.0/16", "the annotation is wrong"),
        (
            Bounds(max_exports=1, cidrs=()),
            "10.1.0.0/16",
            NOT_IN_BOUNDS,
        ),
    ],
)
def test_a_refusal_says_why(bounds: Bounds, cidr: str, why: str) -> None:
    """The message has the kind of the claim, the CIDR and the rule that it breaks."""
    expected = {cidr: f"Pod CIDR {cidr} is not granted: {why}"} if why else {}
    assert refusals([claim(cidr)], "east", bounds, PRIVATE) == expected


def test_gateways_and_keys_are_not_bounded() -> None:
    """Only CIDRs are, also those that follow a gateway or a key."""
    gateway = gateway_claim("8.8.8.8")
    assert gateway is not None
    key = CidrClaim(KEY, None, what="WireGuard key")
    assert set(refusals([gateway, key, claim("8.8.8.0/24")], "east", OPEN, PRIVATE)) == {"8.8.8.0/24"}


def test_a_granted_key_stays_although_an_older_export_asks_for_it() -> None:
    """And what follows the key in the export is decided, too: a gateway that another cluster has is refused."""
    leader = Leader("east", "west")
    leader.put(cluster_info("west", "10.1.0.0/16", key=KEY))
    leader.controller.closed = True
    other = changed(cluster_info("east", "10.2.0.0/16", key=KEY), gatewayInfos=[{"gatewayIP": gateway_of("west")}])
    leader.put(other, created=timestamp(START - 3600))
    assert set(decision(leader, "east").refused) == {KEY, gateway_of("west")}
    assert decision(leader, "west").refused == {}


def test_a_refused_cidr_does_not_end_the_list() -> None:
    """Gateways are not bounded, and each CIDR is looked at, before and after one that is refused."""
    leader = paused(
        changed(cluster_info("east", "10.1.0.0/16"), podCIDRs=["8.8.8.0/24", "10.2.0.0/16", "9.9.9.0/24"])
    )
    result = decision(leader, "east")
    assert set(result.refused) == {"8.8.8.0/24", "9.9.9.0/24"}
    assert {text for text, since in result.times.items() if since == REFUSED} == set(result.refused)
    assert gateway_of("east") in result.times
    nothing_allowed = decision(leader, "east", MemberLimits(allowed_cidrs=("10.64.0.0/10",)))
    assert set(nothing_allowed.refused) == {"10.1.0.0/16", "8.8.8.0/24", "10.2.0.0/16", "9.9.9.0/24"}
    named = decision(leader, "east", MemberLimits(cluster_cidrs=("8.0.0.0/8",)))
    assert set(named.refused) == {"10.1.0.0/16", "10.2.0.0/16", "9.9.9.0/24"}


def test_a_new_claim_is_granted_from_now_on() -> None:
    """The time has microseconds; nothing waits."""
    leader = paused(cluster_info("east", "10.1.0.0/16", ["10.2.0.0/16"], key=KEY))
    result = decision(leader, "east")
    now = timestamp(leader.clock()).removesuffix("Z") + ".000000Z"
    assert result == ClaimsDecision(
        times=dict.fromkeys(("10.1.0.0/16", "10.2.0.0/16", KEY, gateway_of("east")), now),
        refused={},
        records=GatewayRecords(proved={}, challenged={}, settled={}),
        again=None,
    )


def test_a_grant_keeps_its_time() -> None:
    """What is granted stays granted since then; what is added is granted from now on."""
    leader = Leader("east", "west")
    leader.put(cluster_info("east", "10.1.0.0/16"))
    before = decision(leader, "east").times
    leader.clock.forward(60)
    leader.controller.closed = True
    leader.put(cluster_info("east", "10.1.0.0/16", ["10.2.0.0/16"]))
    after = decision(leader, "east").times
    assert {text: after[text] for text in before} == before
    assert after["10.2.0.0/16"] > before["10.1.0.0/16"]


def test_of_two_that_ask_the_older_export_wins() -> None:
    """The younger one waits: until the older has its grant it is not certain that it gets it."""
    leader = paused(cluster_info("west", "10.1.0.0/16"), cluster_info("east", "10.1.0.0/16"))
    result = decision(leader, "east")
    assert result.refused == {
        "10.1.0.0/16": "Service CIDR 10.1.0.0/16 is not granted: "
        "cluster west asks for it too, and its export is older"
    }
    assert result.again == 1.0
    assert decision(leader, "west").refused == {}
    assert decision(leader, "west").again is None


@pytest.mark.parametrize("cidr", ["10.0.0.0/12", "10.1.7.0/24"])
def test_a_granted_claim_is_named_with_its_time(cidr: str) -> None:
    """The message names the other claim where it is not the same CIDR; nothing is to wait for."""
    leader = Leader("east", "west")
    leader.put(cluster_info("west", "10.1.0.0/16"))
    since = decision(leader, "west").times["10.1.0.0/16"]
    leader.controller.closed = True
    leader.put(cluster_info("east", cidr), created=timestamp(START - 3600))
    result = decision(leader, "east")
    assert result.refused == {
        cidr: f"Service CIDR {cidr} is not granted: cluster west has had Service CIDR 10.1.0.0/16 since {since}"
    }
    assert result.again is None
    assert result.times[cidr] == REFUSED


@pytest.mark.parametrize("granted", [False, True])
def test_a_key_belongs_to_one_cluster(granted: bool) -> None:
    """Of two that publish one WireGuard key it is the older export's, and once granted its owner's."""
    leader = paused(cluster_info("west", "10.1.0.0/16", key=KEY), cluster_info("east", "10.2.0.0/16", key=KEY))
    if granted:
        leader.controller.closed = False
        leader.settle()
        leader.controller.closed = True
        since = decision(leader, "west").times[KEY]
        has = f"cluster west has had it since {since}"
    else:
        has = "cluster west asks for it too, and its export is older"
    gateway = gateway_of("east")
    assert decision(leader, "east").refused == {
        KEY: f"WireGuard key {KEY} is not granted: {has}",
        gateway: f"gateway {gateway} is not granted: its WireGuard key is that of cluster west",
    }
    assert decision(leader, "west").refused == {}


def test_who_asks_for_what_it_may_not_have_is_in_the_way_of_none() -> None:
    """An older export whose claim is refused, or is held in part by a third cluster, blocks no younger one."""
    leader = Leader("east", "west", "south")
    leader.put(cluster_info("south", "10.1.0.0/16"))
    leader.controller.closed = True
    leader.put(account("west", allowed_cidrs="10.99.0.0/16"))
    leader.put(cluster_info("west", "10.2.0.0/16"))
    leader.clock.forward(1)
    leader.put(cluster_info("east", "10.2.0.0/16"))
    assert decision(leader, "east").refused == {}
    leader.put(account("west"))
    assert set(decision(leader, "east").refused) == {"10.2.0.0/16"}
    leader.put(cluster_info("west", "10.0.0.0/14"))  # holds what is granted to south
    assert decision(leader, "east").refused == {}


def test_a_claim_outside_the_bounds_of_its_cluster_is_refused_for_that() -> None:
    """The bounds are those of the cluster's own account, and their message stands although another one has it."""
    leader = Leader("east", "west")
    leader.put(account("east", allowed_cidrs="10.99.0.0/16"), cluster_info("west", "10.0.0.0/8"))
    since = decision(leader, "west").times["10.0.0.0/8"]
    leader.controller.closed = True
    leader.put(cluster_info("east", "10.1.0.0/16", ["10.99.1.0/24"]))
    assert decision(leader, "east").refused == {
        "10.1.0.0/16": f"Service CIDR 10.1.0.0/16 is not granted: {NOT_IN_BOUNDS}",
        "10.99.1.0/24": "Pod CIDR 10.99.1.0/24 is not granted: cluster west has had Service CIDR 10.0.0.0/8 "
        f"since {since}",
    }


def test_claims_of_one_cluster_are_not_in_each_others_way() -> None:
    """A cluster may ask for a CIDR inside another one of its own, and for its gateway's address."""
    own = gateway_of("east")
    leader = paused(cluster_info("east", "10.1.0.0/16", ["10.1.2.0/24", f"{own}/32"]))
    assert decision(leader, "east").refused == {}


def test_grants_without_their_annotation_are_as_old_as_the_object() -> None:
    """Where no times can be read, a ResourceImport grants what it has since it was created."""
    leader = Leader("east", "west")
    leader.put(cluster_info("east", "10.1.0.0/16"))
    raw = leader.api.get(Kind.RESOURCE_IMPORT, AREA, names.cluster_info("east"))
    assert raw is not None
    created = raw["metadata"]["creationTimestamp"].removesuffix("Z") + ".000000Z"
    for notes in ({}, {CLAIMS_ANNOTATION: "nonsense"}):
        raw["metadata"]["annotations"] = notes
        times = granted_in(typed(raw))
        assert {claim.text: since for claim, since in times.items()} == {
            "10.1.0.0/16": created,
            gateway_of("east"): created,
        }
    raw["metadata"]["annotations"] = {CLAIMS_ANNOTATION: '{"10.1.0.0/16":"2026-01-05T00:00:00.000000Z"}'}
    assert granted_in(typed(raw))[claim("10.1.0.0/16")] == "2026-01-05T00:00:00.000000Z"
    assert granted_in(None) == {}


def test_an_export_that_cannot_be_read_keeps_what_it_has() -> None:
    """It asks for nothing that can be told, and its last good copy still holds its claims against others."""
    leader = Leader("east", "west")
    leader.put(cluster_info("west", "10.1.0.0/16"))
    leader.controller.closed = True
    leader.put(changed(cluster_info("west", "10.1.0.0/16"), gatewayInfos=[{"gatewayIP": "nonsense"}]))
    raw = leader.api.get(Kind.RESOURCE_EXPORT, AREA, names.cluster_info("west"))
    assert raw is not None
    export = typed(raw)
    assert isinstance(export, ResourceExport)
    assert read_claims(export) is None
    claims = claims_of_cluster(leader.view, AREA, "west")
    assert {item.text for item in claims.granted} == {"10.1.0.0/16", gateway_of("west")}
    assert list(claims.requested) == []
    leader.put(cluster_info("east", "10.1.0.0/16"))
    assert set(decision(leader, "east").refused) == {"10.1.0.0/16"}


def test_a_withdrawn_claim_is_free_at_once() -> None:
    """What an export no longer asks for is not held, although the last copy still has it."""
    leader = Leader("east", "west")
    leader.put(cluster_info("west", "10.1.0.0/16"))
    leader.controller.closed = True
    leader.put(cluster_info("west", "10.9.0.0/16"))
    claims = claims_of_cluster(leader.view, AREA, "west")
    assert {item.text for item in claims.granted} == {gateway_of("west")}
    assert [item.text for item in claims.requested] == ["10.9.0.0/16"]
    leader.put(cluster_info("east", "10.1.0.0/16"))
    assert decision(leader, "east").refused == {}


@pytest.mark.parametrize("how", ["left", "deleted", "never exported"])
def test_who_is_gone_has_no_claims(how: str) -> None:
    """A cluster that is no member, whose export is being deleted, or that has none, claims nothing."""
    leader = Leader("east", "west")
    if how != "never exported":
        leader.put(cluster_info("west", "10.1.0.0/16"))
    leader.controller.closed = True
    if how == "left":
        leader.leave("west")
    elif how == "deleted":
        leader.remove(names.cluster_info("west"))
    assert claims_of_cluster(leader.view, AREA, "west") == ClusterClaims(
        cluster_id="west", created="", granted={}, requested=()
    )
    leader.put(cluster_info("east", "10.1.0.0/16"))
    assert decision(leader, "east").refused == {}


def test_a_disputed_gateway_is_decided_again() -> None:
    """For both clusters: proofs end without a change of any object."""
    leader = Leader("east", "west")
    leader.put(cluster_info("west", "10.1.0.0/16"))
    raw = cluster_info("east", "10.2.0.0/16")
    raw["spec"]["clusterInfo"]["gatewayInfos"] = [{"gatewayIP": gateway_of("west")}]
    leader.put(raw)
    assert [decision(leader, cluster).again for cluster in ("east", "west")] == [TRIAL, TRIAL]


def test_a_rival_for_another_address_may_report() -> None:
    """Who disputes the reporter's own gateway, too, does not silence its report of another one."""
    shared = "192.168.77.7"
    leader = Leader("east", "west", "third")
    leader.put(cluster_info("third", "10.3.0.0/16"))
    raw = cluster_info("east", "10.1.0.0/16")
    raw["spec"]["clusterInfo"]["gatewayInfos"] = [{"gatewayIP": shared}]
    leader.put(raw)
    leader.controller.closed = True
    raw["spec"]["clusterInfo"]["gatewayInfos"].append({"gatewayIP": gateway_of("third")})
    west = cluster_info("west", "10.2.0.0/16")
    west["spec"]["clusterInfo"]["gatewayInfos"] = [{"gatewayIP": shared}]
    leader.put(raw, west, reporting("third", {shared: "west"}))
    waiting = decision(leader, "east")  # until the other cluster has the address, so that it has an owner
    assert set(waiting.refused) == {gateway_of("third")}
    assert waiting.again == 1.0
    leader.start()
    leader.settle()
    assert set(decision(leader, "east").refused) == {shared, gateway_of("third")}


def granted_pods(leader: Leader, cluster: str) -> list[str]:
    """Return the Pod CIDRs that a cluster has."""
    return list(leader.imported(names.cluster_info(cluster))["clusterinfo"].get("podCIDRs") or ())


def test_a_small_cidr_beside_another_clusters_gateway() -> None:
    """It needs a list of an administrator, or a gateway of its own cluster in it that has proved itself."""
    host = gateway_of("west").removesuffix("1") + "65"
    small = host.removesuffix("65") + "64/26"
    leader = Leader("east", "west", "third")
    leader.put(cluster_info("west", "10.2.0.0/16"), cluster_info("third", "10.3.0.0/16"))
    leader.put(changed(cluster_info("east", "10.1.0.0/16", [small]), gatewayInfos=[{"gatewayIP": host}]))
    assert granted_pods(leader, "east") == []
    network = small.replace(".64/26", ".0/24")
    assert leader.verdict(names.cluster_info("east"))["message"] == (
        f"Pod CIDR {small} is not granted: {network} holds gateway {gateway_of('west')} of cluster west. A "
        f"smaller CIDR in it needs annotation {names.ALLOWED_CIDRS_ANNOTATION} of cluster east's ServiceAccount "
        f"on the leader, or members.allowedCIDRs: a list that holds {small}"
    )
    leader.put(reporting("third", {host: "east"}))
    assert granted_pods(leader, "east") == [small]
    leader.put(announce("third", START))  # a grant stays
    assert granted_pods(leader, "east") == [small]
    other = Leader("east", "west")
    other.put(account("east", allowed_cidrs=f"10.1.0.0/16,{small}"), cluster_info("west", "10.2.0.0/16"))
    other.put(cluster_info("east", "10.1.0.0/16", [small]))
    assert granted_pods(other, "east") == [small]


def test_an_address_that_moved_lawfully() -> None:
    """It goes to the cluster that answers there now, although its proved owner still claims it."""
    address = gateway_of("west")
    leader = Leader("east", "west", "third", "fourth")
    leader.put(cluster_info("west", "10.2.0.0/16"))
    for cluster in ("third", "fourth"):
        leader.put(reporting(cluster, {address: "west"}))
    leader.put(changed(cluster_info("east", "10.1.0.0/16"), gatewayInfos=[{"gatewayIP": address}]))
    assert set(decision(leader, "east").refused) == {address}
    assert decision(leader, "west").records.proved == {address: ""}
    leader.put(reporting("third", {address: "east"}, ["west"]))
    assert set(decision(leader, "east").refused) == {address}
    leader.put(reporting("fourth", {address: "east"}, ["west"]))
    assert decision(leader, "east").refused == {}
    assert set(decision(leader, "west").refused) == {address}


def test_exports_that_a_change_concerns() -> None:
    """Those that ask for an address of it: equal, around it or inside it; others are left alone."""
    leader = paused(
        cluster_info("east", "10.1.0.0/16"),
        cluster_info("west", "10.0.0.0/8"),
        cluster_info("south", "10.1.3.0/24"),
        cluster_info("north", "10.2.0.0/16"),
        members=("east", "west", "south", "north"),
    )
    concerned = touched(leader.view, AREA, [claim("10.1.0.0/16")])
    assert concerned == [names.cluster_info(name) for name in ("east", "south", "west")]
    assert touched(leader.view, "elsewhere", [claim("10.1.0.0/16")]) == []


def test_a_member_that_announces_itself_later_is_heard_then() -> None:
    """The claims of a cluster count from when it is a member."""
    leader = paused(cluster_info("west", "10.1.0.0/16"), cluster_info("east", "10.1.0.0/16"), members=("east",))
    assert decision(leader, "east").refused == {}
    leader.put(announce("west", START))
    assert set(decision(leader, "east").refused) == {"10.1.0.0/16"}


def test_a_resource_import_of_another_kind_grants_nothing() -> None:
    """Only a ClusterInfo holds claims."""
    raw: RawObject = {
        "kind": "ResourceImport",
        "metadata": {"name": "default-nginx-service", "namespace": AREA},
        "spec": {"kind": "ServiceImport", "name": "nginx", "namespace": "default"},
    }
    obj = typed(raw)
    assert isinstance(obj, ResourceImport)
    assert granted_in(obj) == {}
