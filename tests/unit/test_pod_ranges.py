"""Clusters with identical Pod CIDRs: what the leader assigns, what members publish, and what others import."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from ipaddress import IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcagent.controller.contract.export_ranges import ALWAYS, as_text, places_from
from mcagent.controller.contract.pod_ranges import (
    POD_CIDRS_ANNOTATION,
    POD_RANGE_ANNOTATION,
    AssignedPodCidrs,
    parse_pod_ranges,
    pod_cidrs_of,
)
from mcagent.controller.leader.pod_ranges import PodMember, assign_pods
from mcagent.controller.settings import LeaderSettings, MemberLimits
from mcagent.model.objects import Kind
from mcagent.model.parsing.prefixes import PREFIXES_ANNOTATION, read_prefixes
from tests.worlds.control_clusters import Clusters, Member
from tests.worlds.member_world import AREA, HOME, SET, conditions_of
from tests.worlds.memory_objects import typed
from tests.worlds.pod_ranges import KUBEADM, join, member, occupied, own_prefixes, pod_address, world

POOL = ("100.64.0.0/14",)  # four CIDRs of /16


def assigned(
    before: Mapping[str, AssignedPodCidrs],
    members: list[PodMember],
    *granted: tuple[str, str],
    pool: tuple[str, ...] = POOL,
) -> dict[str, AssignedPodCidrs]:
    """Return the decision."""
    return assign_pods(before, members, pool, occupied(members, *granted))


def used(ranges: Mapping[str, AssignedPodCidrs]) -> dict[str, dict[str, str]]:
    """Return the virtual CIDRs in use: by cluster and real CIDR."""
    return {c: {str(p.real): str(p.virtual) for p in a.pairs} for c, a in ranges.items() if a.why and a.prefixes}


_NAMES = [f"c{number}" for number in range(7)]
_REAL = st.sampled_from(
    [KUBEADM, "10.244.0.0/16,10.245.0.0/16", "10.42.0.0/16", "10.244.128.0/17", "100.64.0.0/18"]
)


@given(
    st.lists(st.lists(st.sampled_from(_NAMES), unique=True), min_size=1, max_size=6),
    st.lists(_REAL, min_size=len(_NAMES), max_size=len(_NAMES)),
)
def test_virtual_cidrs_are_disjoint_stable_and_as_long_as_the_real_ones(
    history: list[list[str]], pod_cidrs: list[str]
) -> None:
    """Clusters come and go: no two have one address, a member keeps its own, and a full pool is reported."""
    real = {name: text.split(",") for name, text in zip(_NAMES, pod_cidrs, strict=True)}
    ranges: dict[str, AssignedPodCidrs] = {}
    for clusters in history:
        members = [member(cluster, *real[cluster]) for cluster in clusters]
        before, ranges = ranges, assigned(ranges, members)
        assert ranges == assigned(ranges, members)
        pairs = [(c, pair) for c, a in ranges.items() for pair in a.pairs]
        for place, (_, pair) in enumerate(pairs):
            assert pair.real.prefixlen == pair.virtual.prefixlen
            assert IPv4Network(str(pair.virtual)).subnet_of(IPv4Network(POOL[0]))
            assert not any(pair.virtual.overlaps(other.virtual) for _, other in pairs[:place])
        for cluster in clusters:
            for text, virtual in used(before).get(cluster, {}).items():
                assert used(ranges)[cluster][text] == virtual
            other_networks = [IPv4Network(t) for other in clusters if other != cluster for t in real[other]]
            for text in real[cluster]:
                conflict = any(IPv4Network(text).overlaps(other) for other in other_networks)
                has = text in used(ranges).get(cluster, {})
                assert not conflict or has or text in ranges[cluster].missing


def test_only_the_conflicting_pod_cidr_is_translated() -> None:
    """The other one, and a cluster without conflict, stay; with `always` all get virtual CIDRs."""
    east = member("east", KUBEADM, "10.9.0.0/16")
    ranges = assigned({}, [east, member("west"), member("north", "10.42.0.0/16")])
    assert {c: list(pairs) for c, pairs in used(ranges).items()} == {"east": [KUBEADM], "west": [KUBEADM]}
    assert ranges["east"].why == "its Pod CIDR 10.244.0.0/16 overlaps 10.244.0.0/16 of cluster west"
    assert ranges["north"] == AssignedPodCidrs(pod_cidrs="10.42.0.0/16")
    assert list(used(assigned({}, [member("east", mode=ALWAYS)]))["east"]) == [KUBEADM]


def test_a_virtual_cidr_outlasts_conflict_and_membership() -> None:
    """It stays when the other cluster leaves, is kept for its ID, and goes to others when nothing else is left."""
    first = assigned({}, [member("east"), member("west")])
    alone = assigned(first, [member("east")])
    assert used(alone) == {"east": used(first)["east"]}
    assert alone["west"] == AssignedPodCidrs(prefixes=first["west"].prefixes)
    assert used(assigned(alone, [member("east"), member("west")])) == used(first)
    full = assigned(alone, [member(name) for name in ("east", "c1", "c2", "c3")])
    assert used(first)["west"][KUBEADM] in {pairs[KUBEADM] for pairs in used(full).values()}
    assert "west" not in full
    exhausted = assigned(full, [member(name) for name in ("east", "c1", "c2", "c3", "c4")])
    assert exhausted["c4"].missing == KUBEADM
    assert used(exhausted) == used(full)


def test_a_granted_address_withdraws_a_virtual_cidr() -> None:
    """Within the moment between two decisions another member may have got one; a real one alone takes nothing."""
    members = [member("east"), member("west")]
    first = assigned({}, members)
    virtual = used(first)["east"][KUBEADM]
    assert used(assigned(first, [*members, member("north", virtual)]))["east"][KUBEADM] == virtual
    assert used(assigned(first, members, ("north", virtual)))["east"][KUBEADM] != virtual
    assert used(assigned(first, members, ("east", virtual))) == used(first)
    assert used(assigned(first, members, pool=("172.16.0.0/12",))) != used(first)
    assert assigned(first, members, pool=())["east"].missing == KUBEADM


@pytest.mark.parametrize(
    "text", ["10.0.0.0/8", "fd00::/64", "x", "", "0.0.0.0/0", "127.0.0.0/16", "10.244.0.0/16/"]
)
def test_a_pod_cidr_that_no_cluster_can_have_does_not_count(text: str) -> None:
    """One annotation of a member must not move all others."""
    raw = {"kind": "ResourceExport", "metadata": {"name": "x", "annotations": {POD_CIDRS_ANNOTATION: text}}}
    assert pod_cidrs_of(typed(raw, Kind.RESOURCE_EXPORT)) == ()


def test_damaged_records_are_none() -> None:
    """Who may write the leader's ClusterSet may damage it: virtual CIDRs are assigned anew."""
    for text in ("", "{", "[]", '{"east": 1}', '{"east": {"prefixes": 7}}', "[" * 100_000, "x" * 300_000):
        assert parse_pod_ranges(text) == {}
    assert parse_pod_ranges('{"east": {"prefixes": "x=y", "why": "z"}}')["east"].pairs == ()
    ranges = {"east": AssignedPodCidrs(pod_cidrs=KUBEADM, prefixes=f"{KUBEADM}=100.64.0.0/16", why="w")}
    assert parse_pod_ranges(as_text(ranges) or "") == ranges


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("10.244.0.0/16", "pairs"),
        ("10.244.0.0/16=", "pairs"),
        ("10.244.0.0/16=100.72.0.1/16", "pairs"),
        ("10.244.0.0/16=100.72.0.0/17", "lengths"),
        ("10.244.0.0/16=10.244.0.0/16", "overlap"),
        ("10.244.0.0/16=100.72.0.0/16,10.245.0.0/16=100.72.0.0/16", "overlap"),
        ("x" * 2000, "long"),
    ],
)
def test_invalid_prefixes_are_refused(text: str, error: str) -> None:
    """An agent that reads them on a Gateway translates nothing, and says why."""
    with pytest.raises(ValueError, match=error):
        read_prefixes(text)
    assert AssignedPodCidrs(prefixes=text).pairs == ()


# --- leader and members -----------------------------------------------------------------------------------


def virtual(cluster: Member) -> str:
    """Return the virtual Pod CIDR of a member."""
    return own_prefixes(cluster)[0].partition("=")[2]


def published(clusters: Clusters, cluster: str) -> list[str]:
    """Return the Pod CIDRs that a cluster was granted."""
    raw = clusters.north.get(Kind.RESOURCE_IMPORT, AREA, f"{cluster}-clusterinfo")
    return list((raw or {"spec": {"clusterinfo": {}}})["spec"]["clusterinfo"].get("podCIDRs") or [])


def endpoints(cluster: Member) -> dict[str, str]:
    """Return the addresses behind the imported Service, by hostname."""
    slices = [s for s in cluster.api.list(Kind.ENDPOINT_SLICE, "shop") if s["metadata"]["name"] != "db-x"]
    return {e.get("hostname", ""): a for s in slices for e in s["endpoints"] for a in e["addresses"]}


def test_three_clusters_with_one_pod_cidr_publish_virtual_ones() -> None:
    """Gateways know the pairs; headless Services have virtual addresses of others, real ones of own Pods."""
    clusters = world(("east", "west", "south"))
    cidrs = {name: virtual(cluster) for name, cluster in clusters.members.items()}
    assert len(set(cidrs.values())) == 3
    for name, cluster in clusters.members.items():
        assert own_prefixes(cluster) == (f"{KUBEADM}={cidrs[name]}", "Assigned")
        assert published(clusters, name) == [cidrs[name]]
        (gateway,) = cluster.api.list(Kind.GATEWAY, HOME)
        assert gateway["metadata"]["annotations"][PREFIXES_ANNOTATION] == f"{KUBEADM}={cidrs[name]}"
        conditions = conditions_of(cluster.api.get(Kind.CLUSTER_SET, HOME, SET))
        assert conditions["PodExportRange"] == ("True", "Assigned")
        abroad = {
            other: cidrs[other].replace(".0.0/16", pod_address(m)[6:]) for other, m in clusters.members.items()
        }
        assert endpoints(cluster) == {
            f"db-{other}": pod_address(cluster) if other == name else address for other, address in abroad.items()
        }
        infos = cluster.api.list(Kind.CLUSTER_INFO_IMPORT, HOME)
        assert {tuple(i["spec"]["podCIDRs"]) for i in infos} == {(c,) for o, c in cidrs.items() if o != name}
        assert all(conditions_of(raw)["Ready"][0] == "True" for raw in infos)


def test_the_first_cluster_moves_once() -> None:
    """It keeps its Pod CIDR until the second joins; then both keep their virtual ones, whoever leaves."""
    alone = world(("east",))
    assert own_prefixes(alone.members["east"]) == ("", "")
    assert published(alone, "east") == [KUBEADM]
    clusters = world()
    east, west = clusters.members["east"], clusters.members["west"]
    cidrs = (virtual(east), virtual(west))
    west.leave()
    clusters.run()
    clusters.wait(60)
    assert (published(clusters, "east"), published(clusters, "west")) == ([cidrs[0]], [])
    join(clusters, west)
    assert (published(clusters, "east"), published(clusters, "west")) == ([cidrs[0]], [cidrs[1]])


def test_restarts_change_nothing() -> None:
    """Neither of the leader's controller nor of a member's, also while the leader is away."""
    clusters = world()
    clusters.writes()
    clusters.restart_leader()
    clusters.run()
    for cluster in clusters.members.values():
        cluster.restart()
        clusters.run()
    east = clusters.members["east"]
    east.away = True
    east.restart()
    clusters.run()
    assert own_prefixes(east)[1] == "Assigned"
    east.away = False
    clusters.run()
    assert [write for write in clusters.writes() if "ClusterSet" not in write] == []


def test_modes_of_a_member() -> None:
    """`never` keeps the Pod CIDR, CIDRs precede the leader's, `always` needs no conflict."""
    clusters = world()
    east, west = clusters.members["east"], clusters.members["west"]

    def configured(mode: str) -> tuple[str, str]:
        east.settings = replace(east.settings, pod_export_cidr=mode)
        east.restart()
        clusters.run()
        return own_prefixes(east)

    assert configured("172.20.0.0/16") == (f"{KUBEADM}=172.20.0.0/16", "Configured")
    assert published(clusters, "east") == ["172.20.0.0/16"]
    assert configured("172.20.0.0/17") == ("", "InvalidCIDR")
    assert configured("192.168.0.0/16")[1] == "RangeInUse"  # of its Node
    assert configured("10.96.0.0/16")[1] == "RangeInUse"  # its Service CIDR
    assert configured("never") == ("", "")
    (gateway,) = east.api.list(Kind.GATEWAY, HOME)
    assert PREFIXES_ANNOTATION not in gateway["metadata"].get("annotations", {})
    west.leave()
    clusters.run()
    assert configured("always")[1] == "Assigned"


def test_older_agents_and_missing_pod_cidrs_change_nothing() -> None:
    """Until the agents of all gateways translate, nothing moves; without published Pods nothing ever does."""
    clusters = Clusters(["east", "west"])
    east, west = clusters.members.values()
    for cluster in (east, west):
        cluster.settings = replace(cluster.settings, pod_cidrs=(KUBEADM,))
        cluster.restart()
        cluster.node("gw", 1)
        cluster.join()
    clusters.run()
    assert own_prefixes(east) == ("", "AgentsTooOld")
    assert published(clusters, "east") == [KUBEADM]
    assert published(clusters, "west") == []
    west.settings = replace(west.settings, pod_cidrs=())
    west.restart()
    clusters.run()
    assert own_prefixes(west) == ("", "")


def test_a_full_pool_and_a_smaller_pool_are_reported() -> None:
    """A pool of one CIDR: the second cluster gets none; without a pool the first loses its own."""
    clusters = world(pod_export_cidrs=("100.64.0.0/16",))
    by_reason = {own_prefixes(cluster)[1]: name for name, cluster in clusters.members.items()}
    assert set(by_reason) == {"Assigned", "RangeExhausted"}
    assert any(event.reason == "PodExportRangesExhausted" for event in clusters.controller.past_events)
    clusters.leader_settings = LeaderSettings(namespace=AREA, limits=MemberLimits(pod_export_cidrs=()))
    clusters.restart_leader()
    clusters.run()
    first = clusters.members[by_reason["Assigned"]]
    assert own_prefixes(first) == ("", "RangeWithdrawn")
    assert sorted(published(clusters, name) for name in clusters.members) == [[], [KUBEADM]]


def test_no_cluster_gets_the_virtual_cidr_of_another() -> None:
    """Neither in use, nor around it, nor after its cluster left; nor the real one of a cluster that moved."""
    clusters = world()
    west = clusters.members["west"]
    cidr = virtual(west)
    around = str(IPv4Network(cidr).supernet(new_prefix=15))

    def claimed(cluster: str, text: str) -> list[str]:
        export = f"{cluster}-clusterinfo"
        raw = clusters.north.get(Kind.RESOURCE_EXPORT, AREA, export)
        assert raw is not None
        clusters.members[cluster].away = True
        clusters.north.change(
            Kind.RESOURCE_EXPORT,
            AREA,
            export,
            {"spec": {"clusterInfo": {**raw["spec"]["clusterInfo"], "podCIDRs": [text]}}},
        )
        clusters.run()
        return published(clusters, cluster)

    for text in (cidr, around, str(next(IPv4Network(cidr).subnets(new_prefix=24))), KUBEADM):
        assert claimed("east", text) == []
    west.leave()
    clusters.run()
    assert claimed("east", cidr) == []
    note = {"metadata": {"annotations": {POD_RANGE_ANNOTATION: None, POD_CIDRS_ANNOTATION: None}}}
    clusters.north.change(Kind.RESOURCE_EXPORT, AREA, "east-clusterinfo", note)
    assert claimed("east", KUBEADM) == [KUBEADM]


def test_a_member_that_claims_the_whole_pool_costs_the_leader_no_search() -> None:
    """With a /32 there are four million slots in it: to look at each takes minutes, beyond this test's timeout."""
    members = [member("west", "10.9.9.9/32")]
    networks = occupied([member("east", "10.9.9.9/32"), *members], ("evil", "100.64.0.0/10"))
    (decision,) = assign_pods({}, members, ("100.64.0.0/10",), networks).values()
    assert decision.prefixes == ""
    assert decision.missing == "10.9.9.9/32"


@given(st.sets(st.integers(0, 63), max_size=20), st.integers(26, 30))
def test_no_free_slot_is_skipped(taken: set[int], length: int) -> None:
    """A member gets a virtual CIDR as long as any slot of the pool overlaps no claim."""
    claims = [("evil", f"100.64.0.{4 * number}/30") for number in sorted(taken)]
    members = [member("west", f"10.9.9.0/{length}", mode=ALWAYS)]
    (decision,) = assign_pods({}, members, ("100.64.0.0/24",), occupied(members, *claims)).values()
    claimed = [IPv4Network(text) for _, text in claims]
    slots = IPv4Network("100.64.0.0/24").subnets(new_prefix=length)
    free = [slot for slot in slots if not any(slot.overlaps(network) for network in claimed)]
    assert {IPv4Network(str(pair.virtual)) for pair in decision.pairs} <= set(free)
    assert bool(decision.pairs) is bool(free)


@given(st.lists(st.sampled_from(_NAMES), min_size=1, max_size=14))
def test_a_new_virtual_cidr_is_the_first_that_overlaps_none_compared_pairwise(changes: list[str]) -> None:
    """Clusters come and go one at a time, until the pool is full: those that left lose only what overlaps."""
    pool, members = IPv4Network("100.64.0.0/25"), dict[str, PodMember]()
    ranges: dict[str, AssignedPodCidrs] = {}
    for cluster in changes:
        if members.pop(cluster, None) is None:
            length = 26 + _NAMES.index(cluster) % 3
            members[cluster] = member(cluster, f"10.9.9.0/{length}", mode=ALWAYS)
        before = {(c, p.real): IPv4Network(str(p.virtual)) for c, a in ranges.items() for p in a.pairs}
        ranges = assigned(ranges, [*members.values()], pool=(str(pool),))
        expected = dict(before)
        for name in sorted(members):
            (real,) = (IPv4Network(c.text) for c in members[name].pod_cidrs)
            if (name, real) in before:
                continue
            slots = [*pool.subnets(new_prefix=real.prefixlen)]
            in_order = [slots[place] for place in places_from(f"{name} {real}", len(slots))]
            of_members = {key: network for key, network in expected.items() if key[0] in members}
            free = [
                slot
                for recorded in (expected, of_members)
                for slot in in_order
                if not any(slot.overlaps(network) for network in recorded.values())
            ]
            if free:
                expected = {key: network for key, network in expected.items() if not free[0].overlaps(network)}
                expected[name, real] = free[0]
        assert {(c, p.real): p.virtual for c, a in ranges.items() for p in a.pairs} == expected
