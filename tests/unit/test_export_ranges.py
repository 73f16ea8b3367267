"""Export ranges: their assignment by the leader, the ledger that enforces it, and the addresses in them."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Address, IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcagent.controller.contract.cidr_claims import CidrClaim, cidr_claim
from mcagent.controller.contract.export_ranges import (
    ALWAYS,
    AUTO,
    RANGE_ANNOTATION,
    RANGES_ANNOTATION,
    Assigned,
    as_text,
    export_address,
    is_export_address,
    parse_ranges,
    service_cidr_of,
    slots,
)
from mcagent.controller.leader.export_ranges import Member, assign
from mcagent.controller.settings import LeaderSettings, MemberLimits
from mcagent.kube.source import RawObject
from mcagent.model.objects import Kind
from mcagent.model.parsing.clusters import SERVICE_CIDR_ANNOTATION
from tests.worlds.leader_world import AREA, SET, Leader, account, cluster_info, endpoints, service
from tests.worlds.memory_objects import typed

POOL = ("100.64.0.0/18",)  # four ranges
KUBEADM = "10.96.0.0/12"


def claim(text: str) -> CidrClaim:
    """Return the claim to a CIDR."""
    value = cidr_claim(text, "Service CIDR")
    assert value is not None
    return value


def member(cluster: str, real: str = KUBEADM, mode: str = AUTO, granted: tuple[str, ...] = ()) -> Member:
    """Return a member with granted CIDRs."""
    claims = tuple(map(claim, granted))
    return Member(cluster_id=cluster, mode=mode, service_cidr=claim(real), granted=claims, claimed=claims)


def used(ranges: Mapping[str, Assigned]) -> dict[str, str]:
    """Return the ranges in use, by cluster."""
    return {cluster: assigned.cidr for cluster, assigned in ranges.items() if assigned.why and assigned.cidr}


_NAMES = [f"c{number}" for number in range(7)]
_REAL = st.sampled_from([KUBEADM, "10.43.0.0/16", "10.50.0.0/16", "100.64.16.0/24"])


@given(
    st.lists(st.lists(st.sampled_from(_NAMES), unique=True), min_size=1, max_size=6),
    st.lists(_REAL, min_size=len(_NAMES), max_size=len(_NAMES)),
)
def test_ranges_are_unique_stable_and_in_the_pool(history: list[list[str]], service_cidrs: list[str]) -> None:
    """Clusters come and go: no two have one range, a member keeps its own, and a full pool is reported."""
    reals = {name: IPv4Network(text) for name, text in zip(_NAMES, service_cidrs, strict=True)}
    places = slots(POOL)
    ranges: dict[str, Assigned] = {}
    for clusters in history:
        before, members = ranges, [member(cluster, str(reals[cluster])) for cluster in clusters]
        ranges = assign(before, members, POOL)
        assert ranges == assign(ranges, members, POOL)
        in_use, recorded = used(ranges), [a.cidr for a in ranges.values() if a.cidr]
        assert len(set(recorded)) == len(recorded)
        assert set(recorded) <= set(places)
        occupied = [reals[cluster] for cluster in clusters]
        new = [IPv4Network(cidr) for cidr in in_use.values() if cidr not in used(before).values()]
        assert not any(cidr.overlaps(real) for cidr in new for real in occupied)
        free = {slot for slot in places if not any(IPv4Network(slot).overlaps(real) for real in occupied)}
        for cluster in clusters:
            assert in_use.get(cluster) == (used(before).get(cluster) or in_use.get(cluster))
            other_ranges = [reals[other] for other in clusters if other != cluster]
            assert ranges[cluster].why or not any(reals[cluster].overlaps(other) for other in other_ranges)
            if ranges[cluster].why and not ranges[cluster].cidr:
                assert free <= set(in_use.values())


def test_a_member_without_conflict_gets_no_range() -> None:
    """Its Service CIDR is published unchanged; with `always` it gets one."""
    ranges = assign({}, [member("east"), member("west", "10.43.0.0/16")], POOL)
    assert used(ranges) == {}
    assert set(used(assign(ranges, [member("east", mode=ALWAYS), member("west", "10.43.0.0/16")], POOL))) == {
        "east"
    }


def test_a_conflict_with_granted_networks_counts() -> None:
    """Pod CIDRs of another cluster, and the Service CIDR of one that reports no real one (Antrea)."""
    antrea = Member(cluster_id="west", mode="", granted=(claim("10.100.0.0/16"),))
    ranges = assign({}, [member("east"), antrea], POOL)
    assert set(used(ranges)) == {"east"}
    assert ranges["east"].why == "its Service CIDR 10.96.0.0/12 overlaps 10.100.0.0/16 of cluster west"


def test_a_range_outlasts_the_conflict_and_the_membership() -> None:
    """It stays when the other cluster leaves, and is kept for its ID; others get it only if nothing is left."""
    first = assign({}, [member("east"), member("west")], POOL)
    alone = assign(first, [member("east")], POOL)
    assert used(alone) == {"east": first["east"].cidr}
    assert alone["west"] == Assigned(cidr=first["west"].cidr)
    assert used(assign(alone, [member("east"), member("west")], POOL)) == used(first)
    crowd = [member(name) for name in ("east", "c1", "c2")]
    without = assign(alone, crowd, POOL)
    assert first["west"].cidr not in used(without).values()
    full = assign(without, [*crowd, member("c3")], POOL)
    assert used(full)["c3"] == first["west"].cidr
    assert "west" not in full
    exhausted = assign(full, [*crowd, member("c3"), member("c4")], POOL)
    assert exhausted["c4"].cidr == ""
    assert "overlaps" in exhausted["c4"].why


def test_a_changed_pool_withdraws_ranges() -> None:
    """Members get ranges of the new pool; without a pool they get none."""
    members = [member("east"), member("west")]
    first = assign({}, members, POOL)
    second = assign(first, members, ("172.31.0.0/16",))
    assert all(IPv4Network(cidr).subnet_of(IPv4Network("172.31.0.0/16")) for cidr in used(second).values())
    assert len(used(second)) == 2
    assert used(assign(second, members, ())) == {}


@pytest.mark.parametrize("text", ["10.0.0.0/8", "10.0.0.0/11", "fd00::/64", "x", "", "0.0.0.0/0", "127.0.0.0/16"])
def test_a_service_cidr_that_no_cluster_can_have_does_not_count(text: str) -> None:
    """One annotation of a member must not move all others to ranges."""
    raw = {"kind": "ResourceExport", "metadata": {"name": "x", "annotations": {SERVICE_CIDR_ANNOTATION: text}}}
    assert service_cidr_of(typed(raw, Kind.RESOURCE_EXPORT)) is None


# --- the ledger -------------------------------------------------------------------------------------------


def reporting(cluster: str, published: str, real: str = KUBEADM, mode: str = AUTO) -> RawObject:
    """Return the ClusterInfo export of a member that reports its real Service CIDR."""
    raw = cluster_info(cluster, published)
    raw["metadata"]["annotations"] = {SERVICE_CIDR_ANNOTATION: real, RANGE_ANNOTATION: mode}
    return raw


def granted(leader: Leader, cluster: str) -> str:
    """Return the Service CIDR that a cluster was granted."""
    raw = leader.api.get(Kind.RESOURCE_IMPORT, AREA, f"{cluster}-clusterinfo")
    assert raw is not None
    return str(raw["spec"]["clusterinfo"].get("serviceCIDR", ""))


def ranges_of(leader: Leader) -> dict[str, str]:
    """Return the ranges in use."""
    raw = leader.api.get(Kind.CLUSTER_SET, AREA, SET)
    assert raw is not None
    return used(parse_ranges(raw["metadata"]["annotations"][RANGES_ANNOTATION]))


def test_both_clusters_with_one_service_cidr_move() -> None:
    """The first keeps its CIDR until it moves, the second does not get it, nor does a third in between."""
    leader = Leader("east", "west", "south")
    leader.put(reporting("east", KUBEADM))
    assert granted(leader, "east") == KUBEADM
    leader.put(reporting("west", KUBEADM))
    assert granted(leader, "west") == ""
    assert granted(leader, "east") == KUBEADM
    ranges = ranges_of(leader)
    assert set(ranges) == {"east", "west"}
    for cluster, cidr in ranges.items():
        leader.put(reporting(cluster, cidr))
        assert granted(leader, cluster) == cidr
    leader.put(reporting("south", KUBEADM))
    assert granted(leader, "south") == ""
    leader.put(reporting("south", ranges_of(leader)["south"]))
    assert granted(leader, "south") == ranges_of(leader)["south"]


def test_no_cluster_gets_the_range_of_another() -> None:
    """Neither assigned but not yet claimed, nor in use, nor after its cluster left; nor a CIDR around it."""
    leader = Leader("east", "west", "south")
    leader.put(reporting("east", KUBEADM), reporting("west", KUBEADM))
    cidr = ranges_of(leader)["west"]
    around = str(IPv4Network(cidr).supernet(new_prefix=16))
    for published in (cidr, around, str(next(IPv4Network(cidr).subnets(new_prefix=24)))):
        leader.put(cluster_info("south", published))
        assert granted(leader, "south") == ""
    leader.put(reporting("west", cidr))
    leader.put(cluster_info("south", cidr))
    assert granted(leader, "south") == ""
    leader.api.remove(Kind.MEMBER_CLUSTER_ANNOUNCE, AREA, "member-announce-from-west")
    leader.settle()
    assert leader.api.get(Kind.RESOURCE_EXPORT, AREA, "west-clusterinfo") is None
    leader.put(cluster_info("south", around), cluster_info("south", cidr))
    assert granted(leader, "south") == ""
    leader.put(cluster_info("south", "100.127.0.0/20"))
    assert granted(leader, "south") == "100.127.0.0/20"


def test_a_range_is_granted_in_spite_of_the_members_limits() -> None:
    """`mcagent.io/allowed-cidrs` names what the administrator knew, and the range is the leader's own decision."""
    leader = Leader("east", "west")
    leader.put(account("east", allowed_cidrs=KUBEADM), reporting("east", KUBEADM), reporting("west", KUBEADM))
    leader.put(reporting("east", ranges_of(leader)["east"]))
    assert granted(leader, "east") == ranges_of(leader)["east"]
    address = str(IPv4Network(ranges_of(leader)["east"])[80])
    leader.put(service("east"), endpoints("east", [address, "100.100.0.1"]))
    assert leader.addresses("default-nginx-endpoints") == [address]
    leader.put(reporting("east", "100.100.0.0/20"))
    assert granted(leader, "east") == ""


def test_a_member_moves_no_cluster_by_a_cidr_that_it_may_not_have() -> None:
    """A reported Service CIDR counts within the member's limits only; the member itself gets a range."""
    leader = Leader("east", "west")
    leader.put(reporting("east", KUBEADM))
    leader.put(account("west", allowed_cidrs="10.43.0.0/16"), reporting("west", "10.43.0.0/16", real=KUBEADM))
    assert set(ranges_of(leader)) == {"west"}
    assert granted(leader, "east") == KUBEADM


def test_without_a_pool_the_first_claim_stands_as_before() -> None:
    """`exportCIDRs: []`: the second cluster's Service CIDR is refused."""
    limits = MemberLimits(export_cidrs=())
    leader = Leader("east", "west", settings=LeaderSettings(namespace="", limits=limits))
    leader.put(reporting("east", KUBEADM), reporting("west", KUBEADM))
    assert (granted(leader, "east"), granted(leader, "west")) == (KUBEADM, "")
    raw = leader.api.get(Kind.RESOURCE_IMPORT, AREA, "west-clusterinfo")
    assert raw is not None
    assert '"cidr":""' in raw["metadata"]["annotations"][RANGE_ANNOTATION]


def test_damaged_records_are_none() -> None:
    """Who may write the leader's ClusterSet may damage it: ranges are assigned anew."""
    for text in ("", "{", "[]", '{"east": 1}', '{"east": {"cidr": 7}}', "[" * 100_000, "x" * 300_000):
        assert parse_ranges(text) == {}
    assert parse_ranges('{"east": {"cidr": "x", "why": "y"}}') == {}
    assigned = {"east": Assigned(service_cidr=KUBEADM, cidr="100.64.16.0/20", why="w")}
    assert parse_ranges(as_text(assigned) or "") == assigned


# --- addresses of Services --------------------------------------------------------------------------------


@given(st.integers(24, 30), st.lists(st.text("abc", min_size=1, max_size=4), unique=True, max_size=40))
def test_addresses_are_unique_and_never_the_first_or_last(length: int, services: list[str]) -> None:
    """Until all are given; the address of a Service depends on its name and those that are taken."""
    network = IPv4Network(f"100.64.16.0/{length}")
    owners: dict[str, str] = {}
    for name in services:
        address = export_address(str(network), name, lambda text: text not in owners.values())
        if not address:
            assert len(owners) == network.num_addresses - 2
            continue
        assert is_export_address(address, str(network))
        assert network.network_address < IPv4Address(address) < network.broadcast_address
        assert address not in owners.values()
        owners[name] = address


@pytest.mark.parametrize("cidr", ["100.64.16.0/31", "100.64.16.0/32"])
def test_a_range_without_room_has_no_address(cidr: str) -> None:
    """Its only addresses are the first and the last."""
    assert export_address(cidr, "shop/web", lambda _: True) == ""
    assert not is_export_address("100.64.16.1", cidr)
