"""What users read when a claim of a remote cluster is not used: object, field, reason and the whole message."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from ipaddress import IPv4Network, collapse_addresses, ip_address, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcagent.core.compile import compile_desired
from mcagent.core.engine import IncrementalEngine
from mcagent.core.forwarding import forwarding
from mcagent.core.remote_clusters.check import check_cluster, cluster_validator
from mcagent.core.remote_clusters.claims import CheckedCluster, cidr_claim, claimed_ranges, gateway_claim
from mcagent.core.remote_clusters.resolve import RemoteClusters, resolve_clusters
from mcagent.model.config import Config, TrafficEncryption
from mcagent.model.dataplane.facts import Facts
from mcagent.model.objects import ClusterInfoImport, Kind
from mcagent.model.parsing.granted import CLAIMS_ANNOTATION
from mcagent.model.problem import Problem, Severity
from tests.worlds.core_inputs import HOME, addresses, cluster, config, gateway, networks, node, snapshot

FACTS = Facts(
    addresses=addresses("172.30.0.1"),
    connected=networks("172.17.0.0/16"),
    api_servers=addresses("10.41.0.1"),
    resolvers=addresses("10.42.0.1"),
    default_gateways=addresses("10.43.0.1"),
    routed=networks("10.0.0.0/8", "10.46.8.0/24", "10.96.3.0/24", "192.168.128.0/17"),
)
POD_TO_POD = config("g1", enable_pod_to_pod=True, protected_cidrs=networks("10.44.0.0/16"))
NO_CONSENT = "and no entry of allowedRemoteCIDRs is for this network"
OLD, NEW = "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"


def checked(info: ClusterInfoImport, settings: Config = POD_TO_POD, *objects: Any) -> CheckedCluster:
    """Check one ClusterInfoImport on Node g1 of cluster home."""
    local = forwarding(IncrementalEngine(), snapshot(*(objects or HOME)), FACTS, settings).local
    return check_cluster(info, cluster_validator(local, FACTS, settings, addresses("10.45.0.1")))


def resolved(*infos: ClusterInfoImport, pods: Iterable[str] = ()) -> RemoteClusters:
    """Check and resolve these objects; `pods`: addresses of individual Pods of cluster home."""
    claims = {info.meta.key: checked(info) for info in infos}
    return resolve_clusters(claims, sorted(int(ip_address(pod)) for pod in pods), POD_TO_POD)


def lines(problems: Iterable[Problem]) -> list[tuple[str, str, str]]:
    """Return what a problem consists of besides its object and severity."""
    return [(problem.path, problem.reason, problem.message) for problem in problems]


@pytest.mark.parametrize(
    ("cidr", "reason", "why"),
    [
        ("10.41.0.1/32", "Protected", "it overlaps 10.41.0.1/32, an API server of this cluster"),
        ("10.42.0.1/32", "Protected", "it overlaps 10.42.0.1/32, a resolver of this Node"),
        ("10.43.0.1/32", "Protected", "it overlaps 10.43.0.1/32, a default gateway of this Node"),
        ("10.44.3.0/24", "Protected", "it overlaps 10.44.0.0/16, listed in protectedCIDRs"),
        ("10.45.0.1/32", "Protected", "it overlaps 10.45.0.1/32, an API server of this cluster"),
        ("172.30.0.0/16", "OverlapsLocal", "it overlaps 172.30.0.1/32, an address of this Node"),
        ("172.17.9.0/24", "OverlapsLocal", "it overlaps 172.17.0.0/16, a network that this Node is connected to"),
        ("10.96.1.0/24", "OverlapsLocal", "it overlaps 10.96.0.0/16, this cluster's Service CIDR"),
        ("10.10.3.0/25", "OverlapsLocal", "it overlaps 10.10.3.0/24, a Pod CIDR of this cluster"),
        ("10.46.0.0/16", "RoutedElsewhere", f"this Node has a route to 10.46.8.0/24, {NO_CONSENT}"),
        ("10.46.8.0/24", "RoutedElsewhere", f"this Node has a route to 10.46.8.0/24, {NO_CONSENT}"),
        ("192.168.200.0/24", "RoutedElsewhere", f"this Node has a route to 192.168.128.0/17, {NO_CONSENT}"),
        ("10.96.3.0/25", "OverlapsLocal", "it overlaps 10.96.0.0/16, this cluster's Service CIDR"),
        ("240.0.0.0/8", "NotUnicast", "it overlaps 240.0.0.0/4, where encrypted tunnels end"),
        ("8.8.8.0/24", "NotAllowed", "it is neither private (RFC 1918, 100.64.0.0/10) nor in allowedRemoteCIDRs"),
        ("169.254.3.0/24", "NotUnicast", "it overlaps 169.254.0.0/16 (link-local)"),
        ("0.0.0.0/8", "NotUnicast", "it overlaps 0.0.0.0/8 (this network)"),
        ("127.0.0.0/16", "NotUnicast", "it overlaps 127.0.0.0/8 (loopback)"),
        ("224.0.0.0/8", "NotUnicast", "it overlaps 224.0.0.0/4 (multicast)"),
        ("255.255.255.255/32", "NotUnicast", "it overlaps 255.255.255.255/32 (broadcast)"),
        ("8.0.0.0/7", "PrefixTooShort", "a prefix shorter than /8 covers too much"),
        ("fd00::/64", "IPv6NotSupported", "IPv6 is not supported yet"),
    ],
)
def test_a_refused_cidr_says_why(cidr: str, reason: str, why: str) -> None:
    """The problem names the field, the CIDR and what prevents its use; the rest of the cluster is used."""
    cluster_east = checked(cluster("east", "10.97.0.0/16", cidr))
    assert lines(cluster_east.problems) == [("spec.podCIDRs[0]", reason, f"{cidr} is not used: {why}")]
    assert cluster_east.problems[0].severity is Severity.ERROR
    assert cluster_east.uncontested.cidrs == networks("10.97.0.0/16")
    assert cluster_east.uncontested.snat


@pytest.mark.parametrize(
    ("cidr", "excluded", "named"),
    [
        ("10.41.0.0/24", ["10.41.0.1/32"], "10.41.0.1/32 (an API server of this cluster)"),
        ("10.42.0.0/16", ["10.42.0.1/32"], "10.42.0.1/32 (a resolver of this Node)"),
        (
            "10.44.0.0/15",
            ["10.44.0.0/16", "10.45.0.1/32"],
            "10.44.0.0/16 (listed in protectedCIDRs), 10.45.0.1/32 ",
        ),
    ],
)
def test_a_pod_cidr_is_used_without_protected_addresses(cidr: str, excluded: list[str], named: str) -> None:
    """Other addresses are routed, sources are kept, a warning names what is not; Service CIDRs are refused."""
    granted = {cidr: "2026-01-05T00:00:00.000000Z"}
    east = checked(cluster("east", "10.97.0.0/16", cidr, granted=granted))
    cidrs = [n for n in east.uncontested.cidrs if n != ip_network("10.97.0.0/16")]
    outside = {ip_network(text) for text in excluded}
    assert sorted(collapse_addresses([*cidrs, *outside])) == [ip_network(cidr)]  # type: ignore[type-var]
    assert not any(part.overlaps(network) for part in cidrs for network in outside)
    assert not east.uncontested.snat
    assert east.uncontested.refused_pods == ()
    (problem,) = east.problems
    assert (problem.path, problem.reason, problem.severity) == (
        "spec.podCIDRs[0]",
        "PartlyProtected",
        Severity.WARNING,
    )
    assert problem.message.startswith(f"{cidr} is used without {named}")
    assert {claim.claim.rank[0] for claim in east.claims if claim.pod} == {granted[cidr]}
    services = checked(cluster("east", cidr))
    assert [problem.reason for problem in services.problems] == ["Protected"]
    assert services.uncontested.cidrs == ()


def test_a_pod_cidr_with_too_many_protected_networks_is_refused() -> None:
    """The parts of a CIDR are bounded, because each is a route and flows."""
    scattered = networks(*(f"10.64.{number}.9" + "/32" for number in range(0, 256, 8)))
    settings = replace(POD_TO_POD, protected_cidrs=scattered)
    east = checked(cluster("east", "10.97.0.0/16", "10.64.0.0/16"), settings)
    assert [problem.reason for problem in east.problems] == ["Protected"]
    assert east.uncontested.cidrs == networks("10.97.0.0/16")


def test_refused_pod_cidrs_are_reported_to_their_cluster() -> None:
    """Those that this Node refuses, that its controller left out, and that another cluster has."""
    east = cluster("east", "10.97.0.0/16", "10.96.1.0/24", "10.20.0.0/16", granted={"10.31.0.0/16": ""})
    east = replace(east, protected_cidrs=networks("10.31.0.0/16"))
    assert checked(east).uncontested.refused_pods == networks("10.31.0.0/16", "10.96.1.0/24")
    assert [problem.reason for problem in checked(east).problems] == ["LeftOut", "OverlapsLocal"]
    west = cluster("west", "10.98.0.0/16", "10.20.3.0/24", gateways=("203.0.113.2",), created=OLD)
    contested = resolved(replace(east, meta=replace(east.meta, created=NEW)), west)
    assert contested.accepted["east"].refused_pods == networks("10.20.0.0/16", "10.31.0.0/16", "10.96.1.0/24")
    off = replace(POD_TO_POD, enable_pod_to_pod=False)
    assert checked(west, off).uncontested.refused_pods == networks("10.20.3.0/24")


def test_sources_are_translated_towards_a_cluster_that_refuses_them() -> None:
    """A warning names the CIDR; towards other clusters sources are kept."""
    east = cluster("east", "10.97.0.0/16", "10.20.0.0/16")
    assert not checked(east).uncontested.snat
    refusing = checked(replace(east, refused_pod_cidrs=networks("10.10.0.0/16")))
    assert refusing.uncontested.snat
    assert lines(refusing.problems) == [
        (
            "metadata.annotations[mcagent.io/refused-pod-cidrs]",
            "PodCIDRRefused",
            "10.10.0.0/16 of this cluster is refused: sources are translated towards cluster east",
        )
    ]


def test_a_cidr_outside_a_configured_list_says_so() -> None:
    """With allowedRemoteCIDRs the message does not speak of private ranges."""
    settings = config("g1", allowed_remote_cidrs=networks("10.97.0.0/16"))
    assert lines(checked(cluster("east", "10.98.0.0/16"), settings).problems) == [
        ("spec.serviceCIDR", "NotAllowed", "10.98.0.0/16 is not used: it is not in allowedRemoteCIDRs")
    ]


@pytest.mark.parametrize(
    ("allowed", "accepted"),
    [
        ((), False),
        (("10.46.8.0/24",), True),
        (("10.46.0.0/16", "10.0.0.0/8"), True),
        (("10.0.0.0/8",), False),  # says that private addresses are allowed, not this network
        (("0.0.0.0/0",), False),
        (("10.46.8.0/25", "10.0.0.0/8"), False),
    ],
)
def test_an_administrator_gives_a_network_of_the_node_to_a_cluster(
    allowed: tuple[str, ...], accepted: bool
) -> None:
    """An entry of allowedRemoteCIDRs for the network precedes the Node's route; a whole private range does not."""
    settings = config("g1", allowed_remote_cidrs=networks(*allowed))
    reasons = [problem.reason for problem in checked(cluster("east", "10.46.8.0/24"), settings).problems]
    assert reasons == ([] if accepted else ["RoutedElsewhere"])


def test_what_a_node_routes_otherwise_is_reported_to_its_cluster() -> None:
    """Like every refused Pod CIDR: that cluster then translates sources."""
    facts = Facts(routed=networks("10.46.8.0/24", "10.47.0.0/16"))
    infos = (cluster("east", "10.97.0.0/16", "10.46.0.0/16", "10.47.3.0/24"), cluster("west", "10.98.0.0/16"))
    clusters = compile_desired(snapshot(*HOME, *infos), facts, POD_TO_POD).state.clusters
    assert {name: accepted.refused_pods for name, accepted in clusters.items()} == {
        "east": networks("10.46.0.0/16", "10.47.3.0/24"),
        "west": (),
    }
    assert clusters["east"].cidrs == networks("10.97.0.0/16")


def test_a_route_to_a_whole_private_range_refuses_nothing() -> None:
    """Like the default route it does not tell which networks exist; FACTS has one to 10.0.0.0/8."""
    east = checked(cluster("east", "10.97.0.0/16", "10.20.0.0/16"))
    assert east.problems == ()
    assert east.uncontested.cidrs == networks("10.20.0.0/16", "10.97.0.0/16")


PRIVATE_NETWORKS = st.builds(
    lambda address, length: IPv4Network((address, length), strict=False),
    st.integers(int(ip_address("10.0.0.0")), int(ip_address("10.255.255.255")))
    | st.just(int(ip_address("8.0.0.0"))),
    st.integers(6, 28),
)


@given(
    routes=st.lists(PRIVATE_NETWORKS, max_size=6),
    claims=st.lists(PRIVATE_NETWORKS, max_size=6),
    allowed=st.lists(PRIVATE_NETWORKS, max_size=3),
)
def test_no_claim_takes_a_route_over(
    routes: list[IPv4Network], claims: list[IPv4Network], allowed: list[IPv4Network]
) -> None:
    """Whatever the order and nesting, an accepted CIDR shares no address with a specific route without consent."""
    settings = config("g1", enable_pod_to_pod=True, allowed_remote_cidrs=tuple(allowed))
    facts = Facts(routed=tuple(routes))
    local = forwarding(IncrementalEngine(), snapshot(*HOME), facts, settings).local
    info = cluster("east", "10.97.0.0/16", *map(str, claims))
    result = check_cluster(info, cluster_validator(local, facts, settings))
    private = IPv4Network("10.0.0.0/8")
    specific = [route for route in routes if not private.subnet_of(route)]
    for accepted in result.uncontested.cidrs:
        assert isinstance(accepted, IPv4Network)
        overlapping = [route for route in specific if route.overlaps(accepted)]
        consent = any(accepted.subnet_of(a) and not private.subnet_of(a) for a in allowed)
        assert not overlapping or consent
    if not specific:
        assert "RoutedElsewhere" not in {problem.reason for problem in result.problems}


def test_the_last_addresses_below_the_endpoints_are_not_endpoints() -> None:
    """240.0.0.0/4 begins where the message says."""
    settings = config("g1", allowed_remote_cidrs=networks("0.0.0.0/0"))
    assert [p.reason for p in checked(cluster("east", "223.255.255.0/24"), settings).problems] == []
    assert [p.reason for p in checked(cluster("east", "240.0.0.0/32"), settings).problems] == ["NotUnicast"]


@pytest.mark.parametrize(
    ("address", "reason", "why"),
    [
        ("192.0.2.3", "DuplicateAddress", 'it is the address of Node "w1" of this cluster'),
        ("172.30.0.1", "DuplicateAddress", "it is the address of this Node of this cluster"),
        ("240.0.0.0", "NotUnicast", "it lies in 240.0.0.0/4, where encrypted tunnels end"),
        ("240.0.0.1", "NotUnicast", "it lies in 240.0.0.0/4, where encrypted tunnels end"),
        ("10.44.0.9", "Protected", "it lies in 10.44.0.0/16, listed in protectedCIDRs"),
        ("10.43.0.1", "Protected", "it lies in 10.43.0.1/32, a default gateway of this Node"),
        ("10.96.0.9", "OverlapsLocal", "it lies in 10.96.0.0/16, this cluster's Service CIDR"),
        ("10.10.3.9", "OverlapsLocal", "it lies in 10.10.3.0/24, a Pod CIDR of this cluster"),
        ("127.0.0.1", "NotUnicast", "it lies in 127.0.0.0/8 (loopback)"),
        ("fe80::1", "NotUnicast", "it lies in fe80::/10 (link-local)"),
        ("::1", "NotUnicast", "it lies in ::/96 (unspecified, loopback, or IPv4-compatible)"),
        ("::ffff:192.0.2.9", "NotUnicast", "it lies in ::ffff:0:0/96 (IPv4-mapped)"),
        ("100::9", "NotUnicast", "it lies in 100::/64 (discard-only)"),
        ("ff02::1", "NotUnicast", "it lies in ff00::/8 (multicast)"),
        ("fe80::1%eth0", "NotUnicast", "it has a zone"),
    ],
)
def test_a_refused_gateway_says_why(address: str, reason: str, why: str) -> None:
    """The problem names the field, the address and what prevents its use; the other gateway is used."""
    cluster_east = checked(cluster("east", "10.97.0.0/16", gateways=("203.0.113.1", address)))
    subject = ip_address(address)
    assert lines(cluster_east.problems) == [
        ("spec.gatewayInfos[1].gatewayIP", reason, f"{subject} is not used: {why}")
    ]
    assert cluster_east.problems[0].severity is Severity.ERROR
    assert cluster_east.uncontested.gateways == addresses("203.0.113.1")


def test_two_ipv6_gateways_that_stand_for_one_address() -> None:
    """Both are hashed to one IPv4 source: the first is used, and the problem of the second names both."""
    info = cluster("east", "10.97.0.0/16", gateways=("2001:db8::1a8", "2001:db8::23a4"))
    message = "2001:db8::23a4 is not used: 251.125.137.118 stands for 2001:db8::1a8 already"
    home = tuple(item for item in HOME if item.meta.kind is not Kind.GATEWAY)
    assert lines(checked(info, POD_TO_POD, *home).problems) == [
        ("spec.gatewayInfos[1].gatewayIP", "DuplicateAddress", message)
    ]


def test_a_cluster_without_a_usable_gateway_is_reported() -> None:
    """The address is refused, and then the cluster as a whole has none."""
    assert lines(checked(cluster("east", "10.97.0.0/16", gateways=("127.0.0.1",))).problems) == [
        (
            "spec.gatewayInfos[0].gatewayIP",
            "NotUnicast",
            "127.0.0.1 is not used: it lies in 127.0.0.0/8 (loopback)",
        ),
        ("spec.gatewayInfos", "NoGateway", "has no usable gateway: nothing reaches this cluster"),
    ]


@pytest.mark.parametrize(("gateways", "severity"), [(1, Severity.ERROR), (2, Severity.WARNING)])
def test_a_gateway_of_another_family(gateways: int, severity: Severity) -> None:
    """The message names both addresses, families and the Node; with another gateway left it is a warning."""
    home = (node("g1", "192.0.2.1", "10.10.1.0/24"), gateway("g1", "192.0.2.1"))
    info = cluster("east", "10.97.0.0/16", gateways=("2001:db8::1", "203.0.113.1")[:gateways])
    problem = checked(info, POD_TO_POD, *home).problems[0]
    assert (problem.path, problem.reason) == ("spec.gatewayInfos[0].gatewayIP", "MixedFamilies")
    assert problem.message == (
        'no tunnel between 2001:db8::1 (IPv6) and this cluster\'s gateway "g1", whose gatewayIP 192.0.2.1 is '
        "IPv4: both need one of the same family (annotation multicluster.antrea.io/gateway-ip)"
    )
    assert problem.severity is severity


@pytest.mark.parametrize("keys", [{"wireguard": "all"}, {"gateway_wireguard": "each"}, {}])
def test_a_cluster_that_encrypts_while_this_one_does_not(keys: dict[str, Any]) -> None:
    """One key for all gateways or one for each: both are a warning; where this cluster encrypts there is none."""
    key = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
    info = cluster("east", "10.97.0.0/16", gateways=("203.0.113.1",))
    if "wireguard" in keys:
        info = replace(info, wireguard=key)  # type: ignore[arg-type]
    elif keys:
        info = replace(info, gateway_wireguard={"203.0.113.1": key})  # type: ignore[arg-type]
    message = "this cluster encrypts and we do not (trafficEncryptionMode): it takes nothing in the clear"
    problems = checked(info).problems
    assert lines(problems) == ([("spec.wireGuard", "PeerEncrypts", message)] if keys else [])
    assert all(problem.severity is Severity.WARNING for problem in problems)
    encrypts = replace(POD_TO_POD, encryption=TrafficEncryption.WIREGUARD)
    assert checked(info, encrypts).problems == ()


@pytest.mark.parametrize(("count", "shown"), [(4, ""), (5, ", …")])
def test_what_the_leader_has_refused_is_named(count: int, shown: str) -> None:
    """Up to four CIDRs are named, in order; addresses of gateways are not CIDRs."""
    refused = {f"10.2{number}.0.0/16": "" for number in reversed(range(count))} | {"203.0.113.9": ""}
    info = cluster("east", "10.97.0.0/16", "10.30.0.0/16", granted=refused)
    named = "10.20.0.0/16, 10.21.0.0/16, 10.22.0.0/16, 10.23.0.0/16" + shown
    assert lines(checked(info).problems) == [
        (
            f"metadata.annotations[{CLAIMS_ANNOTATION}]",
            "RefusedByLeader",
            f"the leader has refused {named} to this cluster: sources are translated",
        )
    ]


def test_a_redundant_cidr_names_both() -> None:
    """A CIDR inside another one of the same cluster, and two of one size side by side that are not."""
    info = cluster("east", "10.97.0.0/16", "10.20.0.0/16", "10.20.255.0/24", "10.21.0.0/16")
    assert lines(checked(info).problems) == [
        (
            "spec.podCIDRs[1]",
            "RedundantCIDR",
            "10.20.255.0/24 lies in 10.20.0.0/16 of the same cluster: not needed",
        )
    ]


def test_a_lost_cidr_names_the_winner() -> None:
    """The message has the older claim and its cluster; the loser keeps its other claims."""
    result = resolved(
        cluster("zeta", "10.98.0.0/17", created=OLD, gateways=("10.60.0.1",)),
        cluster("alpha", "10.98.0.0/16", "10.60.0.0/16", created=NEW),
    )
    of_zeta = 'of cluster "zeta", which claimed it first'
    assert lines(result.problems) == [
        (
            "spec.podCIDRs[0]",
            "OverlapsRemote",
            f"10.60.0.0/16 is not used: it overlaps the gateway 10.60.0.1 {of_zeta}",
        ),
        (
            "spec.serviceCIDR",
            "OverlapsRemote",
            f"10.98.0.0/16 is not used: it overlaps 10.98.0.0/17 {of_zeta}",
        ),
    ]
    assert {problem.subject for problem in result.problems} == {"ClusterInfoImport mc/alpha-clusterinfo"}
    assert (result.accepted["alpha"].cluster_id, result.accepted["alpha"].cidrs) == ("alpha", ())


def test_a_lost_gateway_names_the_winner() -> None:
    """Of two clusters with one gateway address the older has it."""
    result = resolved(
        cluster("a", "10.98.0.0/16", created=NEW, gateways=("203.0.113.1",)),
        cluster("b", "10.99.0.0/16", created=OLD, gateways=("203.0.113.1",)),
    )
    message = '203.0.113.1 is not used: it overlaps the gateway 203.0.113.1 of cluster "b", which claimed it first'
    assert lines(result.problems) == [("spec.gatewayInfos[0].gatewayIP", "DuplicateAddress", message)]
    assert {name: accepted.gateways for name, accepted in result.accepted.items()} == {
        "a": (),
        "b": addresses("203.0.113.1"),
    }


def test_a_cidr_around_a_pod_of_this_cluster() -> None:
    """The Pod keeps its address; Pods elsewhere are in the way of no cluster."""
    info = cluster("east", "10.97.0.0/16", "10.20.0.0/16", created=OLD)
    for pod in ("10.20.0.0", "10.20.7.7", "10.20.255.255"):
        result = resolved(info, pods=["10.1.0.1", pod, "10.200.0.1"])
        message = "10.20.0.0/16 is not used: it overlaps a Pod of this cluster"
        assert lines(result.problems) == [("spec.podCIDRs[0]", "OverlapsLocal", message)]
        assert result.accepted["east"].cidrs == networks("10.97.0.0/16")
        assert result.accepted["east"].snat
    elsewhere = resolved(info, pods=["10.19.255.255", "10.21.0.0"])
    assert elsewhere.problems == ()
    assert elsewhere.accepted["east"].cidrs == networks("10.20.0.0/16", "10.97.0.0/16")


def test_the_younger_of_two_objects_of_one_cluster_names_the_older() -> None:
    """Both objects are named, so that an administrator can remove one."""
    result = resolved(
        cluster("east", "10.97.0.0/16", created=NEW, object_name="late"),
        cluster("east", "10.98.0.0/16", created=OLD, object_name="early"),
    )
    assert [(problem.subject, problem.reason, problem.message) for problem in result.problems] == [
        (
            "ClusterInfoImport mc/late",
            "DuplicateClusterID",
            'clusterID "east" is taken by the older ClusterInfoImport mc/early: not used',
        )
    ]
    assert result.problems[0].path == "spec.clusterID"


def test_losing_a_service_cidr_leaves_sources_alone() -> None:
    """Only a lost Pod CIDR makes sources translated: those Pods would be strangers to the other cluster."""
    east = checked(cluster("east", "10.97.0.0/16", "10.20.0.0/16"))
    claims = {str(remote.network): remote.claim for remote in east.claims}
    without_services = east.without({claims["10.97.0.0/16"]})
    assert (without_services.cluster_id, without_services.snat) == ("east", False)
    assert without_services.cidrs == networks("10.20.0.0/16")
    without_pods = east.without({claims["10.20.0.0/16"]})
    assert (without_pods.snat, without_pods.cidrs) == (True, networks("10.97.0.0/16"))


def test_claimed_ranges_are_disjoint() -> None:
    """Of ranges that begin with one address the longest counts, whatever the order of the claims."""
    east = checked(cluster("east", "10.64.0.0/16", "10.64.0.0/12", "10.20.0.0/16"))
    ends = [ip_network("10.20.0.0/16"), ip_network("10.64.0.0/12")]
    expected = [(int(n.network_address), int(n.broadcast_address)) for n in ends]
    cidrs = [remote for remote in east.claims if remote.gateway is None]
    assert list(claimed_ranges(cidrs)) == expected
    assert list(claimed_ranges(reversed(cidrs))) == expected


def test_a_claim_to_a_gateway_is_not_one_to_a_cidr() -> None:
    """A gateway's claim ranks by the time that the leader granted its address."""
    info = cluster("east", "10.97.0.0/16", created=OLD, granted={"203.0.113.1": "2026-01-05T00:00:00.000000Z"})
    host, address = ip_network("203.0.113.1/32"), ip_address("203.0.113.1")
    to_gateway = gateway_claim(info, address, address, "spec.gatewayInfos[0].gatewayIP").claim
    to_cidr = cidr_claim(info, host, host, "spec.podCIDRs[0]", pod=True).claim
    assert (to_gateway.gateway, to_cidr.gateway) == (True, False)
    assert to_gateway.owner == to_cidr.owner == "east"
    assert to_gateway.rank[0] == "2026-01-05T00:00:00.000000Z"
    assert to_cidr.rank[0] == "2026-01-01T00:00:00.000000Z"
