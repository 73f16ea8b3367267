"""Which endpoints the new connections to imported Services get."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from ipaddress import ip_address
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcagent.core.compile import compile_desired
from mcagent.core.failover.reachability import cluster_hash
from mcagent.core.fragments.imported import (
    SLOTS,
    PortShares,
    ServiceShares,
    fragment,
    parse_shares,
    service_rules,
)
from mcagent.core.imported_services import MAX_ENDPOINTS, ImportInput, NodeLocation, share_endpoints
from mcagent.model.dataplane.facts import DatapathType, Facts
from mcagent.model.dataplane.resources import NftChain, NftSet
from mcagent.model.objects import EndpointSlice, Kind, ServiceImport
from mcagent.model.parsing.parse import parse_object
from mcagent.model.plan import Desired
from mcagent.model.traffic import MAX_READY, Share, Traffic, read_traffic, told_ready
from tests.worlds.core_inputs import (
    HOME,
    config,
    endpoint,
    imported_slice,
    service,
    service_import,
    snapshot,
)
from tests.worlds.core_inputs import cluster as remote


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("any", ()),
        ("east", ((Share("east"),),)),
        ("local > *", ((Share("local"),), (Share("*"),))),
        (" east = 3,west=0 ", ((Share("east", 3), Share("west", 0)),)),
    ],
)
def test_a_text_is_read(text: str, ranks: tuple[tuple[Share, ...], ...]) -> None:
    """Ranks by ">", clusters of a rank by ",", weights by "="; what is written says the same again."""
    assert read_traffic(text) == Traffic(ranks)
    assert read_traffic(str(Traffic(ranks))) == Traffic(ranks)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not a cluster"),
        ("east > ", "is not a cluster"),
        ("East", '"East" is not a cluster'),
        ("east=", "weights from 0 to 1000"),
        ("east=1001", "weights from 0 to 1000"),
        ("east=-1", "weights from 0 to 1000"),
        ("east=½", "weights from 0 to 1000"),
        ("east > west > east", 'has "east" 2 times'),
        ("any > east > any", 'has "any" 2 times'),
        ("local > east=3, *", '"*" of "east=3, *" has none'),
        ("a," * 3000, "at most 4096 characters"),
    ],
)
def test_a_text_that_says_nothing_is_refused(text: str, words: str) -> None:
    """The error names what is wrong, and what would be right."""
    with pytest.raises(ValueError, match=re.escape(words)):
        read_traffic(text)


def test_clusters_that_are_not_named_come_last() -> None:
    """A rank without any cluster that is there stays empty; "*" names all others."""
    counts = {"home": 4, "east": 2, "west": 1}
    assert read_traffic("north > local").weights(counts, "home") == [{}, {"home": 4}, {"east": 2, "west": 1}]
    assert read_traffic("local=2, *=3").weights(counts, "home") == [{"home": 2, "east": 3, "west": 3}]
    assert read_traffic("east=0 > *").weights(counts, "home") == [{}, {"home": 4, "west": 1}]
    assert read_traffic("east, *=0").weights(counts, "home") == [{"east": 2}]


def shares(shares: ServiceShares) -> dict[str, float]:
    """Return the share of each endpoint of the first port."""
    given_to: dict[str, float] = {}
    before = 0
    for end, (address, number) in shares.ports[0].shares:
        assert end > before
        given_to[f"{address}:{number}"] = (end - before) / SLOTS
        before = end
    assert before == SLOTS
    return given_to


def with_address(service_import: ServiceImport, slices: tuple[EndpointSlice, ...]) -> ImportInput:
    """Return the import, with the addresses of the Service that stands for it."""
    return ImportInput(object=service_import, slices=slices, cluster_ips=frozenset(service_import.ips))


def decided(text: str, endpoints: Mapping[str, Iterable[str]], **fields: Any) -> ServiceShares:
    """Decide on a Service whose endpoints, by cluster, are ready."""
    slices = tuple(
        imported_slice(f"web-{cluster}", "web", cluster, map(endpoint, ips)) for cluster, ips in endpoints.items()
    )
    return share_endpoints(with_address(service_import("web", **fields), slices), read_traffic(text), "home")


def test_shares_are_those_of_clusters_not_of_endpoints() -> None:
    """Three endpoints of this cluster have together what one of the other has, or what the weights say."""
    endpoints = {"home": ["10.10.1.1", "10.10.1.2", "10.10.1.3"], "east": ["10.97.0.1"]}
    assert shares(decided("*=1", endpoints))["10.97.0.1:80"] == 0.5
    share_by_cluster = shares(decided("local=3, east=1", endpoints))
    assert share_by_cluster["10.97.0.1:80"] == pytest.approx(0.25)
    assert share_by_cluster["10.10.1.2:80"] == pytest.approx(0.25, abs=1e-4)


def test_endpoints_have_their_shares_in_the_order_of_their_addresses() -> None:
    """By clusters, then as numbers: neither in the order of the API nor in that of texts."""
    decision = decided(
        "local=1, east=1", {"home": ["10.10.1.10", "10.10.2.1", "10.10.1.9"], "east": ["10.97.0.1"]}
    )
    addresses = ["10.97.0.1:80", "10.10.1.9:80", "10.10.1.10:80", "10.10.2.1:80"]
    assert list(shares(decision)) == addresses


@pytest.mark.parametrize(
    ("ready", "share"),
    [("9", 0.75), (None, 0.25), ("0", 0.25), ("many", 0.25), ("1234567", 0.25), ("999999", 1000 / 1003)],
)
def test_a_cluster_behind_one_address_has_the_share_of_its_endpoints(ready: str | None, share: float) -> None:
    """By the number that it tells, within a bound; what is no number is a problem, and not used. Weights win."""
    annotations = {} if ready is None else {"mcagent.io/ready-endpoints": ready}
    parsed = parse_object(raw_slice("east", "10.97.0.1", annotations), Kind.ENDPOINT_SLICE)
    assert [problem.path for problem in parsed.problems] == (
        ["metadata.annotations.mcagent.io/ready-endpoints"] if ready in {"many", "1234567"} else []
    )
    assert isinstance(parsed.value, EndpointSlice)
    own = imported_slice("own", "web", "home", map(endpoint, ["10.10.1.1", "10.10.1.2", "10.10.1.3"]))
    own = replace(own, told_ready=500)  # of this cluster its endpoints count, whatever anybody says
    service = with_address(service_import("web"), (own, parsed.value))
    assert shares(share_endpoints(service, read_traffic("*"), "home"))["10.97.0.1:80"] == pytest.approx(
        share, abs=1e-4
    )
    weighed = shares(share_endpoints(service, read_traffic("local=3, *=1"), "home"))
    assert weighed["10.97.0.1:80"] == pytest.approx(0.25, abs=1e-4)


def raw_slice(cluster: str, address: str, annotations: Mapping[str, str]) -> dict[str, Any]:
    """Return an EndpointSlice of imported Service web, as the API has it."""
    labels = {
        "kubernetes.io/service-name": "antrea-mc-web",
        "multicluster.kubernetes.io/service-name": "web",
        "multicluster.kubernetes.io/source-cluster": cluster,
    }
    meta = {"name": f"web-{cluster}", "namespace": "default", "labels": labels, "annotations": dict(annotations)}
    ports = [{"name": "http", "port": 80, "protocol": "TCP"}]
    endpoints = [{"addresses": [address]}]
    return {"metadata": meta, "addressType": "IPv4", "endpoints": endpoints, "ports": ports}


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=30))
def test_what_is_told_is_right_within_an_eighth_and_seldom_changes(counts: list[int]) -> None:
    """Whatever happens; nothing is told of what differs less, and of none at once."""
    ready: int | None = None
    for count in counts:
        before, ready = ready, told_ready(ready, count)
        assert bool(ready) == bool(count)
        assert abs(ready - min(count, MAX_READY)) <= ready / 8
        if before and count and abs(before - min(count, MAX_READY)) <= before / 8:
            assert ready == before


def test_a_thousand_pods_that_come_or_go_are_told_of_some_fifty_times() -> None:
    """An exporter's rollout is no storm of writes at the leader."""
    for order in (range(1001), range(1000, -1, -1)):
        ready: int | None = None
        writes = 0
        for count in order:
            before, ready = ready, told_ready(ready, count)
            writes += ready != before
        assert writes < 60


def test_who_prefers_near_endpoints_gets_them_of_this_cluster() -> None:
    """They share what all of this cluster would have; without a near one all count. Other clusters have theirs."""
    places = {"10.10.1.1": ("n1", "a"), "10.10.1.2": ("n2", "a"), "10.10.1.3": ("n3", "b")}
    own = [replace(endpoint(ip), node_name=node, zone=zone) for ip, (node, zone) in places.items()]
    slices = (
        imported_slice("own", "web", "home", own),
        imported_slice("east", "web", "east", [endpoint("10.97.0.1")]),
    )

    def near(distribution: str, node: str, zone: str) -> set[str]:
        imported = replace(service_import("web"), distribution=distribution)
        shared = share_endpoints(
            with_address(imported, slices), read_traffic("*"), "home", frozenset(), NodeLocation(node, zone)
        )
        fractions = shares(shared)
        assert fractions.pop("10.97.0.1:80") == 0.25
        return {text.removesuffix(":80") for text in fractions}

    assert near("PreferClose", "n1", "a") == {"10.10.1.1", "10.10.1.2"}
    assert near("PreferSameNode", "n1", "a") == {"10.10.1.1"}
    assert near("PreferSameNode", "n9", "b") == {"10.10.1.3"}
    for distribution, zone in (("PreferSameZone", "c"), ("PreferSameZone", ""), ("", "a")):
        assert near(distribution, "n9", zone) == set(places)


def test_the_first_rank_with_a_ready_endpoint_has_everything() -> None:
    """Endpoints that are not ready do not count, and come back by themselves."""
    assert shares(decided("local > *", {"home": ["10.10.1.1"], "east": ["10.97.0.1"]})) == {"10.10.1.1:80": 1.0}
    assert shares(decided("local > *", {"home": [], "east": ["10.97.0.1"]})) == {"10.97.0.1:80": 1.0}
    slices = (
        imported_slice("a", "web", "home", [endpoint("10.10.1.1", ready=False)]),
        imported_slice("b", "web", "east", [endpoint("10.97.0.1")]),
    )
    shared = share_endpoints(with_address(service_import("web"), slices), read_traffic("local > *"), "home")
    assert shares(shared) == {"10.97.0.1:80": 1.0}


@given(
    st.dictionaries(
        st.sampled_from(["home", "east", "west", "north"]),
        st.tuples(st.integers(0, 40), st.integers(0, 1000)),
        min_size=1,
    ),
    st.randoms(use_true_random=False),
)
def test_every_cluster_gets_its_share(clusters: dict[str, tuple[int, int]], chance: Any) -> None:
    """Whatever the weights and numbers of endpoints, and in whatever order slices come."""
    endpoints = {
        cluster: [f"10.{50 + place}.0.{number + 1}" for number in range(count)]
        for place, (cluster, (count, _)) in enumerate(sorted(clusters.items()))
    }
    text = ", ".join(f"{cluster}={weight}" for cluster, (_, weight) in clusters.items())
    decision = decided(text, endpoints)
    weights = {cluster: weight for cluster, (count, weight) in clusters.items() if count and weight}
    if not weights:
        assert not decision.ports
        return
    total = sum(weights.values())
    given_to = shares(decision)
    for cluster, weight in weights.items():
        got = sum(given_to.get(f"{address}:80", 0.0) for address in endpoints[cluster])
        assert got == pytest.approx(weight / total, abs=2 / SLOTS)
    shuffled = list(endpoints.items())
    chance.shuffle(shuffled)
    assert decided(text, dict(shuffled)) == decision


def test_what_kube_proxy_would_choose_alike_is_left_to_it() -> None:
    """A Service of one cluster needs no rule, nor one whose endpoints have all the same share; others do."""
    lone = imported_slice("web-east", "web", "east", [endpoint("10.97.0.1"), endpoint("10.97.0.2")])
    assert chains(compiled("*", service_import("web"), lone)) == {}
    slices = [imported_slice("web-home", "web", "home", [endpoint("10.10.3.5"), endpoint("10.10.3.6")]), lone]
    assert chains(compiled("*", service_import("web"), *slices)) == {}
    assert chains(compiled("*=1", service_import("web"), *slices)) == {}
    assert chains(compiled("local=2, *=1", service_import("web"), *slices)) != {}
    service = replace(lone, told_ready=7)
    assert chains(compiled("*", service_import("web"), slices[0], service)) != {}


def test_more_endpoints_than_fit_are_left_to_kube_proxy() -> None:
    """The problem names object and port."""
    many = [f"10.{98 + n // 250}.0.{n % 250 + 1}" for n in range(MAX_ENDPOINTS + 1)]
    decision = decided("*", {"home": many})
    assert not decision.ports
    assert [(problem.path, problem.reason) for problem in decision.problems] == [
        ("spec.ports[0]", "TooManyEndpoints")
    ]


def compiled(text: str, *objects: Any, unreachable: frozenset[int] = frozenset()) -> Desired:
    """Compile this for a worker; the imported Service is there."""
    facts = Facts(datapath=DatapathType.SYSTEM, unreachable=unreachable)
    source = snapshot(*HOME, service("antrea-mc-web", "10.96.200.1", 80), *objects)
    return compile_desired(source, facts, config("w1", imported_traffic=text)).desired


OF_WEB = "mct_import_10_96_200_1"


def chains(desired: Desired) -> dict[str, tuple[str, ...]]:
    """Return the rules of the chains for imported Services."""
    resources = [resource for part in desired.fragments.values() for resource in part.resources]
    return {
        resource.name: resource.rules
        for resource in resources
        if isinstance(resource, NftChain) and "import" in resource.name
    }


SLICES = (
    imported_slice("web-home", "web", "home", [endpoint("10.10.3.5")]),
    imported_slice("web-east", "web", "east", [endpoint("10.97.0.1")]),
)


def test_rules_come_before_kube_proxy_and_leave_others_alone() -> None:
    """A map leads to the rules of a Service by its address; what comes out of the bridge meets none of them."""
    result = compiled("local > *", service_import("web"), *SLICES)
    rules = chains(result)
    first, *other_rules = rules["mct_import_pre"]
    assert first == 'iifname "mc-gw0" accept'
    assert tuple(other_rules) == rules["mct_import_out"]
    assert other_rules == ["ip daddr vmap { 10.96.200.1 : jump mct_import_10_96_200_1 }"]
    assert rules[OF_WEB] == (
        "ip daddr 10.96.200.1 tcp dport 80 dnat ip to numgen random mod 65536 map { 0-65535 : 10.10.3.5 . 80 }",
    )
    assert rules["mct_import_self"][2:] == ("ip saddr 10.10.3.5 ip daddr 10.10.3.5 ct status dnat masquerade",)
    resources = [resource for part in result.fragments.values() for resource in part.resources]
    (own,) = [
        resource for resource in resources if isinstance(resource, NftSet) and resource.name == "mct_import_own"
    ]
    assert [str(resource) for resource in own.elements] == ["10.10.3.5/32"]


def test_an_annotation_stands_before_the_default() -> None:
    """ "any" leaves a Service to kube-proxy; affinity makes the choice follow the client."""
    own = replace(service_import("web", client_ip_affinity=True), traffic=read_traffic("east"))
    (rule,) = chains(compiled("local > *", own, *SLICES))[OF_WEB]
    assert "jhash ip saddr mod 65536 seed 0x6d63 map { 0-65535 : 10.97.0.1 . 80 }" in rule
    own_import = replace(own, traffic=Traffic())
    assert chains(compiled("local > *", own_import, *SLICES)) == {}
    assert chains(compiled("any", service_import("web"), *SLICES)) == {}
    assert chains(compiled("", own, *SLICES)) == {}


def test_an_import_takes_no_address_but_its_own_services() -> None:
    """Whoever may write ServiceImports and EndpointSlices in a namespace gets no other Service's connections."""
    victim = service("dns", "10.96.0.10", 80)
    liar = replace(service_import("web"), ips=(ip_address("10.96.0.10"),))
    assert chains(compiled("local > *", victim, liar, *SLICES)) == {}
    own_import = replace(liar, ips=(ip_address("10.96.0.10"), ip_address("10.96.200.1")))
    assert "10.96.0.10" not in str(compiled("local > *", victim, own_import, *SLICES).fragments["imported"])
    elsewhere = replace(service_import("web"), meta=replace(liar.meta, namespace="other"))
    assert chains(compiled("local > *", elsewhere, *SLICES)) == {}


def test_a_wrong_annotation_counts_as_none_and_is_reported() -> None:
    """The ServiceImport stays in use, and the problem names the annotation."""
    raw = {
        "metadata": {"name": "web", "namespace": "default", "annotations": {"mcagent.io/traffic": "East"}},
        "spec": {"type": "ClusterSetIP", "ips": ["10.96.200.1"], "ports": [{"name": "http", "port": 80}]},
    }
    parsed = parse_object(raw, Kind.SERVICE_IMPORT)
    assert isinstance(parsed.value, ServiceImport)
    assert parsed.value.traffic is None
    assert parsed.value.ips == (ip_address("10.96.200.1"),)
    (problem,) = parsed.problems
    assert problem.path == "metadata.annotations.mcagent.io/traffic"
    assert '"East" is not a cluster' in problem.message


def left(text: str, endpoints: Mapping[str, Iterable[str]], *unreachable: str) -> ServiceShares:
    """Decide where clusters are not reached."""
    slices = tuple(
        imported_slice(f"web-{cluster}", "web", cluster, map(endpoint, ips)) for cluster, ips in endpoints.items()
    )
    service = with_address(service_import("web"), slices)
    return share_endpoints(service, read_traffic(text), "home", frozenset(unreachable))


def test_new_connections_leave_a_cluster_that_nobody_reaches() -> None:
    """All others share alike where kube-proxy chose; a policy takes it for a cluster without endpoints."""
    endpoints = {"home": ["10.10.1.1", "10.10.1.2"], "east": ["10.97.0.1"], "west": ["10.98.0.1"]}
    assert not left("any", endpoints).ports
    assert not left("any", endpoints, "north").ports
    share_by_cluster = shares(left("any", endpoints, "east"))
    assert share_by_cluster.keys() == {"10.10.1.1:80", "10.10.1.2:80", "10.98.0.1:80"}
    assert max(share_by_cluster.values()) - min(share_by_cluster.values()) < 1e-4
    assert shares(left("east > west > *", endpoints, "east")) == {"10.98.0.1:80": 1.0}


def test_all_stays_as_it_is_where_nothing_else_may_have_a_connection() -> None:
    """It may be a false alarm: then they arrive."""
    endpoints = {"east": ["10.97.0.1"], "west": ["10.98.0.1"]}
    assert not left("any", endpoints, "east", "west").ports
    assert shares(left("east > west", endpoints, "east", "west")) == {"10.97.0.1:80": 1.0}
    assert shares(left("east, *=0", endpoints, "east")) == {"10.97.0.1:80": 1.0}


def test_a_worker_leaves_the_clusters_that_its_gateways_tell_of() -> None:
    """By their number; nothing follows of clusters that nobody knows, or where Services are not steered."""
    numbers = frozenset({cluster_hash("east"), cluster_hash("elsewhere")})
    east = remote("east", "10.97.0.0/16", "172.18.1.1")
    result = compiled("any", service_import("web"), *SLICES, east, unreachable=numbers)
    (rule,) = chains(result)[OF_WEB]
    assert rule.endswith("map { 0-65535 : 10.10.3.5 . 80 }")
    assert result.state.unreachable == ("east",)
    assert chains(compiled("any", service_import("web"), *SLICES, east)) == {}
    off = compiled("", service_import("web"), *SLICES, east, unreachable=numbers)
    assert (chains(off), off.state.unreachable) == ({}, ())


def test_shares_are_read_back_from_the_rules() -> None:
    """`mcagent trace` names the endpoints that a rule gives, with their shares, and no other port's."""
    address = ip_address("10.96.0.7")
    ends = ((ip_address("10.1.0.5"), 8080), (ip_address("10.102.0.80"), 80))
    port = PortShares(
        address=address,
        protocol="tcp",
        port=80,
        by_client=True,
        shares=((SLOTS // 4, ends[0]), (SLOTS, ends[1])),
    )
    rules = service_rules(ServiceShares(ports=(port,)), config("n"))
    chains = fragment({"shop/web": rules}, config("n")).resources
    (rule,) = {rule for chain in chains if isinstance(chain, NftChain) for rule in chain.rules if "dnat" in rule}
    assert parse_shares(rule, address, "tcp", 80) == ((ends[0], 0.25), (ends[1], 0.75))
    assert parse_shares(rule, address, "udp", 80) == ()
    assert parse_shares("ip daddr vmap { 10.96.0.7 : jump mct_import_10_96_0_7 }", address, "tcp", 80) == ()
