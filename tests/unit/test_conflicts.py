"""How conflicting input is decided: one test per rule of docs/architecture.md."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from ipaddress import IPv4Network, ip_address, ip_network
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcagent.core.addresses.rules import ReservedRanges
from mcagent.core.compile import Compiled, Compiler, compile_desired
from mcagent.core.engine import IncrementalEngine
from mcagent.core.forwarding import forwarding
from mcagent.core.local_cluster.topology import LocalCluster
from mcagent.core.remote_clusters.check import cluster_validator
from mcagent.core.remote_clusters.claims import CheckedCluster
from mcagent.core.remote_clusters.resolve import resolve_clusters
from mcagent.model.config import Config, PodRouting, SourceNat
from mcagent.model.dataplane.facts import Facts
from mcagent.model.net import Network, overlaps
from mcagent.model.node_state import AcceptedCluster, ExportedPort
from mcagent.model.objects import ApiObject, ClusterInfoImport, Endpoint, IpProtocol, Kind, ServicePort, Snapshot
from mcagent.model.parsing.granted import CLAIMS_ANNOTATION
from mcagent.model.problem import Problem, Severity
from tests.properties import costly
from tests.worlds.core_inputs import (
    HOME,
    addresses,
    cluster,
    config,
    endpoint,
    endpoint_slice,
    export,
    gateway,
    networks,
    node,
    pod,
    service,
    snapshot,
)

NO_FACTS = Facts()
OLD, NEW = "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"  # when an object was created


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What is decided: this cluster as the Node sees it, and what the Node is."""

    local: LocalCluster
    compiled: Compiled

    @property
    def clusters(self) -> Mapping[str, AcceptedCluster]:
        """What is used of other clusters."""
        return self.compiled.state.clusters

    @property
    def ports(self) -> Mapping[str, ExportedPort]:
        """The exported ports."""
        return self.compiled.state.services

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The problems."""
        return self.compiled.desired.problems


def decided(source: Snapshot, settings: Config, facts: Facts = NO_FACTS) -> Found:
    """Return what is decided, from scratch."""
    local = forwarding(IncrementalEngine(), source, facts, settings).local
    return Found(local=local, compiled=compile_desired(source, facts, settings))


def topology(*objects: ApiObject, on: str = "g1", facts: Facts = NO_FACTS, **values: object) -> Found:
    """Return what is decided in cluster home plus these objects."""
    return decided(snapshot(*HOME, *objects), config(on, **values), facts)


def told(found: Found) -> list[tuple[str, str, str]]:
    """Return the problems as (object name, path, reason)."""
    return [(p.subject.rsplit("/", 1)[-1], p.path, p.reason) for p in found.problems]


def test_roles() -> None:
    """A Gateway of this Node's name makes it a gateway; others are workers; enableGateway false is no role."""
    assert topology().local.role == "gateway"
    assert topology(on="w1").local.role == "worker"
    assert [g.node for g in topology(on="w1").local.gateways] == ["g1", "g2"]
    off = topology(enable_gateway=False).local
    assert (off.role, off.why) == ("none", "enableGateway is false")
    assert topology(on="new").local.why == 'there is no Node "new" yet'
    alone = decided(snapshot(node("w1", "192.0.2.3")), config("w1")).local
    assert (alone.role, alone.why) == ("none", "no Gateway is known")


def test_a_gateway_has_tunnels_to_all_nodes_and_a_worker_to_all_gateways() -> None:
    """Peers are every other Node on a gateway, and every gateway on a worker."""
    assert [(p.name, str(p.address), p.gateway) for p in topology().local.peers] == [
        ("g2", "192.0.2.2", True),
        ("w1", "192.0.2.3", False),
    ]
    assert [p.name for p in topology(on="w1").local.peers] == ["g1", "g2"]


def test_gateways_that_are_not_used() -> None:
    """Unknown Node, an address somebody older has, one that is none: not used, each with its reason."""
    decision = topology(
        node("g3", "192.0.2.4"),
        node("g4", "192.0.2.5"),
        gateway("ghost", "192.0.2.9"),
        gateway("g3", "192.0.2.1", "192.0.2.4", created="2026-01-01T00:00:00Z"),
        gateway("g4", "fe80::1"),
    )
    assert [g.node for g in decision.local.gateways] == ["g1", "g2"]
    assert told(decision) == [
        ("g3", "gatewayIP", "DuplicateAddress"),
        ("g4", "gatewayIP", "NotUnicast"),
        ("ghost", "", "UnknownNode"),
    ]


def test_gateways_of_other_namespaces_are_passed_over() -> None:
    """With a namespace configured only its objects count."""
    assert topology(namespace="mc").local.role == "gateway"
    assert topology(cluster("a", "10.97.0.0/16"), namespace="other").clusters == {}
    assert topology(namespace="other").local.role == "none"


def test_the_internal_ip_of_the_gateway_is_its_tunnel_address() -> None:
    """Nodes send to a gateway's internalIP; other Nodes are reached at their first usable InternalIP."""
    objects = (
        node("g1", ("192.0.2.1", "198.51.100.1")),
        node("w1", ("fd00::1", "192.0.2.3", "192.0.2.33")),
        gateway("g1", "203.0.113.1", "198.51.100.1"),
    )
    local = decided(snapshot(*objects), config("w1")).local
    assert [str(p.address) for p in local.peers] == ["198.51.100.1"]
    assert local.own is not None
    assert str(local.own.address) == "192.0.2.3"


def test_two_nodes_with_one_address() -> None:
    """The older Node keeps it; the other has no tunnel and a problem."""
    decision = topology(node("w2", "192.0.2.3", "10.10.4.0/24", created="2026-01-01T00:00:00Z"))
    assert {p.name: p.address is None for p in decision.local.peers} == {"g2": False, "w1": False, "w2": True}
    assert ("Node w2", "status.addresses", "DuplicateAddress") in told(decision)


@pytest.mark.parametrize("on", ["g1", "w1"])
def test_the_object_of_a_dead_node_takes_nothing_from_a_live_one(on: str) -> None:
    """It is older, and NotReady: the live Node keeps address and Pod CIDR, and the message says what to delete."""
    dead = replace(node("a-old", "192.0.2.3", "10.10.3.0/24", created=OLD), ready=False)
    with_dead = topology(node("w1", "192.0.2.3", "10.10.3.0/24", created=NEW), dead, on=on)
    without = topology(on=on).local
    assert with_dead.local.own == without.own
    peers = {peer.name: peer for peer in with_dead.local.peers}
    assert [peers[peer.name] for peer in without.peers] == list(without.peers)
    if on == "g1":
        assert (peers["a-old"].address, peers["a-old"].networks) == (None, ())
    messages = [problem.message for problem in with_dead.problems]
    assert {(p.subject, p.reason) for p in with_dead.problems} <= {
        ("Node a-old", "DuplicateAddress"),
        ("Node a-old", "DuplicatePodCIDR"),
    }
    assert messages
    assert all('Node "w1"' in text and text.endswith("kubectl delete node a-old") for text in messages)


@pytest.mark.parametrize("ready", [True, False])
def test_the_own_object_of_a_node_precedes_all_others(ready: bool) -> None:
    """Whatever age and state the objects have: the agent that runs here is the proof that this Node exists."""
    dying = replace(node("w1", "192.0.2.3", "10.10.3.0/24", created=NEW), ready=ready)
    other = node("a-old", "192.0.2.3", "10.10.3.0/24", created=OLD)
    own_topology = topology(dying, other, on="w1")
    assert (own_topology.local.role, own_topology.local.own) == ("worker", topology(on="w1").local.own)
    assert 'already belongs to Node "w1"' in own_topology.problems[0].message
    # Also if the other one is a gateway
    own_topology = topology(dying, other, gateway("a-old", "192.0.2.3"), on="w1")
    assert (own_topology.local.role, own_topology.local.own) == ("worker", topology(on="w1").local.own)
    assert {peer.name: peer.address is None for peer in own_topology.local.peers} == {
        "a-old": True,
        "g1": False,
        "g2": False,
    }


def test_of_two_gateways_with_one_address_the_ready_one_is_used() -> None:
    """The age of both objects decides the order of gateways, not who has the address."""
    dead = replace(node("g0", "192.0.2.9"), ready=False)
    older, younger = gateway("g0", "192.0.2.2", "192.0.2.9", created=OLD), gateway("g2", "192.0.2.2", created=NEW)
    result = topology(dead, older, younger, on="w1")
    assert [g.node for g in result.local.gateways] == ["g1", "g2"]
    (problem,) = result.problems
    assert (problem.subject.rsplit("/", 1)[-1], problem.reason) == ("g0", "DuplicateAddress")
    assert problem.message.endswith("kubectl delete node g0")
    both_ready = topology(replace(dead, ready=True), older, younger, on="w1")
    assert [g.node for g in both_ready.local.gateways] == ["g0", "g1"]


@pytest.mark.parametrize(("home_created", "other_created"), [(OLD, NEW), (NEW, OLD)])
def test_a_second_gateway_of_a_node_is_not_used(home_created: str, other_created: str) -> None:
    """Of two Gateways with the name of one Node, in two namespaces, the older is used."""
    second = gateway("g1", "203.0.113.5", "192.0.2.11", created=other_created)
    objects = (
        node("g1", "192.0.2.1", "10.10.1.0/24"),
        node("w1", "192.0.2.3", "10.10.3.0/24"),
        gateway("g1", "192.0.2.1", created=home_created),
        replace(second, meta=replace(second.meta, namespace="other")),
    )
    decision = decided(snapshot(*objects), config("w1"))
    older = ("192.0.2.1", "192.0.2.1") if home_created == OLD else ("203.0.113.5", "192.0.2.11")
    assert [(str(g.gateway_ip), str(g.internal_ip)) for g in decision.local.gateways] == [older]
    assert [str(peer.address) for peer in decision.local.peers] == [older[1]]
    younger = "Gateway other/g1" if home_created == OLD else "Gateway mc/g1"
    (problem,) = decision.problems
    assert (problem.subject, problem.reason, problem.severity) == (younger, "DuplicateGateway", Severity.ERROR)
    assert 'Node "g1"' in problem.message


def test_two_nodes_with_one_pod_cidr() -> None:
    """The older Node has the Pod CIDR, whatever the names; the other keeps its address, tunnel and other CIDRs."""
    decision = topology(node("a1", "192.0.2.4", "10.10.3.0/24", "10.10.4.0/24", created=NEW))
    peers = {peer.name: peer for peer in decision.local.peers}
    assert peers["w1"].networks == networks("10.10.3.0/24", "192.0.2.3/32")
    assert peers["a1"].networks == networks("10.10.4.0/24", "192.0.2.4/32")
    assert str(peers["a1"].address) == "192.0.2.4"
    assert told(decision) == [("Node a1", "spec.podCIDRs[0]", "DuplicatePodCIDR")]
    assert '10.10.3.0/24 belongs to Node "w1" already' in decision.problems[0].message


@pytest.mark.parametrize("cidr", ["10.96.4.0/24", "10.96.0.0/16", "10.0.0.0/8"])
def test_a_pod_cidr_of_a_node_that_overlaps_the_service_cidr(cidr: str) -> None:
    """The Node keeps its address; its Pod CIDR is neither delivered to it nor published."""
    decision = topology(node("w2", "192.0.2.4", cidr), enable_pod_to_pod=True)
    assert {peer.name: peer.networks for peer in decision.local.peers}["w2"] == networks("192.0.2.4/32")
    pod_cidrs = networks("10.10.1.0/24", "10.10.2.0/24", "10.10.3.0/24")
    assert decision.local.node_cidrs == decision.local.pods == pod_cidrs
    assert decision.local.published_pods == networks("10.10.1.0/24", "10.10.2.0/23")
    assert told(decision) == [("Node w2", "spec.podCIDRs[0]", "OverlapsLocal")]
    assert "Service CIDR 10.96.0.0/16" in decision.problems[0].message


@pytest.mark.parametrize("on", ["g1", "w1"])
def test_configured_pod_cidrs_that_overlap_the_service_cidr(on: str) -> None:
    """They are not used; the others are, and the Pod CIDRs of Nodes where no other is configured."""
    decision = topology(on=on, enable_pod_to_pod=True, pod_cidrs=networks("10.96.8.0/24", "10.10.0.0/16"))
    assert decision.local.pods == networks("10.10.0.0/16")
    assert decision.local.published_pods == networks("10.10.0.0/16")
    assert (ip_network("10.96.8.0/24"), "a Pod CIDR of this cluster") not in decision.local.reserved
    assert told(decision) == [("configuration", "podCIDRs", "OverlapsLocal")]
    assert "10.96.8.0/24 overlaps this cluster's Service CIDR" in decision.problems[0].message
    only = topology(on=on, enable_pod_to_pod=True, pod_cidrs=networks("10.96.8.0/24"))
    assert only.local.pods == networks("10.10.1.0/24", "10.10.2.0/24", "10.10.3.0/24")


def test_networks_of_nodes_include_their_addresses() -> None:
    """What is delivered to a Node, and may come from it, are its Pod CIDRs and its own addresses."""
    networks_of = {p.name: p.networks for p in topology().local.peers}
    assert networks_of["w1"] == networks("10.10.3.0/24", "192.0.2.3/32")


def test_per_pod_routing() -> None:
    """Where Nodes have no Pod CIDR, each Pod is a network of its Node; of two with one address the newer."""
    objects = (
        node("g1", "192.0.2.1"),
        node("w1", "192.0.2.3"),
        gateway("g1", "192.0.2.1"),
        pod("a", "w1", "10.0.0.5"),
        pod("old", "w1", "10.0.0.6", "2026-01-01T00:00:00Z"),
        pod("new", "g1", "10.0.0.6", "2026-02-01T00:00:00Z"),
        pod("six", "w1", "fd00::6"),
    )
    local = decided(snapshot(*objects), config("g1")).local
    assert {p.name: p.networks for p in local.peers} == {"w1": networks("192.0.2.3/32", "10.0.0.5/32")}
    assert local.own is not None
    assert local.own.networks == networks("192.0.2.1/32", "10.0.0.6/32")
    assert Kind.POD in local.needs


def test_a_worker_in_per_pod_mode_takes_the_configured_range() -> None:
    """With podCIDRs a worker needs no Pods; without, it goes by the Pods it knows and says what is missing."""
    objects = (
        node("g1", "192.0.2.1"),
        node("w1", "192.0.2.3"),
        gateway("g1", "192.0.2.1"),
        pod("a", "w1", "10.0.0.5"),
        pod("b", "g1", "10.0.0.6"),
    )
    with_range = decided(snapshot(*objects), config("w1", pod_cidrs=networks("10.0.0.0/16")))
    assert with_range.local.own is not None
    assert with_range.local.own.networks == networks("10.0.0.0/16", "192.0.2.3/32")
    assert Kind.POD not in with_range.local.needs
    assert with_range.problems == ()
    without = decided(snapshot(*objects), config("w1"))
    assert without.local.own is not None
    assert without.local.own.networks == networks("192.0.2.3/32", "10.0.0.5/32")
    assert Kind.POD in without.local.needs
    assert [(p.path, p.reason) for p in without.problems] == [("podCIDRs", "PodCIDRsMissing")]


def test_pod_cidrs_of_nodes_can_be_set_aside() -> None:
    """podRouting perPod goes by Pods although Nodes have Pod CIDRs, for CNIs that do not honour them."""
    local = topology(pod("a", "w1", "10.44.0.5"), pod_routing=PodRouting.PER_POD).local
    assert {p.name: p.networks for p in local.peers}["w1"] == networks("192.0.2.3/32", "10.44.0.5/32")


def test_a_remote_cluster() -> None:
    """Service CIDR and, with Pod-to-Pod on, Pod CIDRs are used, through all gateways."""
    east = cluster("east", "10.97.0.0/16", "10.20.0.0/16", gateways=("203.0.113.1", "203.0.113.2"))
    off = topology(east).clusters["east"]
    assert (off.cidrs, off.snat) == (networks("10.97.0.0/16"), True)
    on = topology(east, enable_pod_to_pod=True).clusters["east"]
    assert on.cidrs == networks("10.20.0.0/16", "10.97.0.0/16")
    assert on.gateways == addresses("203.0.113.1", "203.0.113.2")
    assert not on.snat


@pytest.mark.parametrize(
    ("values", "pods", "snat"),
    [
        ({"enable_pod_to_pod": True}, ("10.20.0.0/16",), False),
        ({"enable_pod_to_pod": True, "source_nat": SourceNat.ALWAYS}, ("10.20.0.0/16",), True),
        ({"enable_pod_to_pod": False}, ("10.20.0.0/16",), True),
        ({"enable_pod_to_pod": True}, (), True),
        ({"enable_pod_to_pod": True}, ("10.20.0.0/16", "10.10.3.0/24"), True),
    ],
)
def test_source_nat(values: dict[str, Any], pods: tuple[str, ...], snat: bool) -> None:
    """Sources keep their address only where both clusters publish Pod CIDRs and none is refused."""
    decision = topology(cluster("east", "10.97.0.0/16", *pods), **values)
    assert decision.clusters["east"].snat is snat


@pytest.mark.parametrize(
    ("cidr", "reason"),
    [
        ("10.96.128.0/17", "OverlapsLocal"),  # the Service CIDR
        ("10.10.3.0/25", "OverlapsLocal"),  # a Node's Pod CIDR
        ("10.0.0.0/8", "OverlapsLocal"),  # holds both
        ("192.0.2.2/32", "OverlapsLocal"),  # a Node
        ("172.17.0.0/24", "OverlapsLocal"),  # connected
        ("172.30.0.0/16", "OverlapsLocal"),  # holds an address of this Node
        ("127.0.0.0/8", "NotUnicast"),
        ("169.0.0.0/8", "NotUnicast"),
        ("224.0.0.0/8", "NotUnicast"),
        ("0.0.0.0/8", "NotUnicast"),
        ("8.0.0.0/7", "PrefixTooShort"),
        ("fd00::/64", "IPv6NotSupported"),
    ],
)
def test_refused_cidrs_leave_the_rest_of_the_cluster(cidr: str, reason: str) -> None:
    """A Pod CIDR that cannot be had is refused with a reason; the Service CIDR serves on."""
    facts = Facts(connected=networks("172.17.0.0/16"), addresses=addresses("192.0.2.1", "172.30.0.1"))
    decision = topology(cluster("east", "10.97.0.0/16", cidr), facts=facts, enable_pod_to_pod=True)
    assert decision.clusters["east"].cidrs == networks("10.97.0.0/16")
    assert told(decision) == [("east-clusterinfo", "spec.podCIDRs[0]", reason)]


def test_allowed_remote_cidrs() -> None:
    """What the configuration does not allow is refused."""
    decision = topology(
        cluster("a", "10.97.0.0/16"), cluster("b", "10.1.0.0/16"), allowed_remote_cidrs=networks("10.96.0.0/11")
    )
    assert {c: r.cidrs for c, r in decision.clusters.items()} == {"a": networks("10.97.0.0/16"), "b": ()}
    assert told(decision) == [("b-clusterinfo", "spec.serviceCIDR", "NotAllowed")]


@pytest.mark.parametrize("cidr", ["8.8.8.0/24", "172.15.0.0/16", "100.128.0.0/16", "192.169.0.0/24", "11.0.0.0/8"])
def test_public_ranges_are_opened_on_purpose(cidr: str) -> None:
    """Without allowedRemoteCIDRs only private ranges are taken; with it, just what it lists."""
    decision = topology(cluster("east", cidr))
    assert decision.clusters["east"].cidrs == ()
    assert told(decision) == [("east-clusterinfo", "spec.serviceCIDR", "NotAllowed")]
    opened = topology(cluster("east", cidr, "10.20.0.0/16"), allowed_remote_cidrs=networks(cidr))
    assert opened.clusters["east"].cidrs == networks(cidr)
    for private in ("10.1.0.0/16", "172.31.0.0/16", "192.168.7.0/24", "100.64.0.0/10"):
        assert topology(cluster("east", private)).clusters["east"].cidrs == networks(private)


def test_a_newcomer_cannot_take_what_another_cluster_has() -> None:
    """Of two clusters with overlapping CIDRs the older keeps its own, whatever the names."""
    old = cluster("zeta", "10.98.0.0/17", created="2026-01-01T00:00:00Z")
    new = cluster("alpha", "10.98.0.0/16", "10.20.0.0/16", created="2026-01-02T00:00:00Z")
    decision = topology(old, new, enable_pod_to_pod=True)
    assert {c: r.cidrs for c, r in decision.clusters.items()} == {
        "zeta": networks("10.98.0.0/17"),
        "alpha": networks("10.20.0.0/16"),
    }
    assert told(decision) == [("alpha-clusterinfo", "spec.serviceCIDR", "OverlapsRemote")]
    assert '"zeta"' in decision.problems[0].message


def test_same_age_is_decided_by_cluster_id() -> None:
    """Clusters of one age are told apart by their ID."""
    decision = topology(cluster("b", "10.98.0.0/16"), cluster("a", "10.98.0.0/16"))
    assert {c: r.cidrs for c, r in decision.clusters.items()} == {"a": networks("10.98.0.0/16"), "b": ()}


def test_duplicate_cluster_ids() -> None:
    """Of two objects with one clusterID the older is used; this cluster's own is passed over without a word."""
    decision = topology(
        cluster("east", "10.97.0.0/16", created="2026-01-02T00:00:00Z", object_name="late"),
        cluster("east", "10.98.0.0/16", created="2026-01-01T00:00:00Z", object_name="early"),
        cluster("home", "10.96.0.0/16", gateways=("192.0.2.1",)),
    )
    assert {c: r.cidrs for c, r in decision.clusters.items()} == {"east": networks("10.98.0.0/16")}
    assert told(decision) == [("late", "spec.clusterID", "DuplicateClusterID")]


def test_gateway_addresses_that_somebody_has() -> None:
    """An address of ours, of an older cluster or in our Service CIDR is no remote gateway; others stay."""
    decision = topology(
        cluster("a", "10.97.0.0/16", gateways=("203.0.113.1",)),
        cluster("b", "10.98.0.0/16", gateways=("203.0.113.1", "192.0.2.3", "10.96.0.9", "::1", "203.0.113.2")),
        cluster("c", "10.99.0.0/16", gateways=("127.0.0.1",)),
    )
    assert {c: r.gateways for c, r in decision.clusters.items()} == {
        "a": addresses("203.0.113.1"),
        "b": addresses("203.0.113.2"),
        "c": (),
    }
    assert told(decision) == [
        ("b-clusterinfo", "spec.gatewayInfos[0].gatewayIP", "DuplicateAddress"),
        ("b-clusterinfo", "spec.gatewayInfos[1].gatewayIP", "DuplicateAddress"),
        ("b-clusterinfo", "spec.gatewayInfos[2].gatewayIP", "OverlapsLocal"),
        ("b-clusterinfo", "spec.gatewayInfos[3].gatewayIP", "NotUnicast"),
        ("c-clusterinfo", "spec.gatewayInfos", "NoGateway"),
        ("c-clusterinfo", "spec.gatewayInfos[0].gatewayIP", "NotUnicast"),
    ]


def test_a_cidr_inside_another_of_the_same_cluster_is_not_needed() -> None:
    """The larger one stands for it; this is a warning."""
    decision = topology(cluster("a", "10.97.0.0/16", "10.20.0.0/16", "10.20.3.0/24"), enable_pod_to_pod=True)
    assert decision.clusters["a"].cidrs == networks("10.20.0.0/16", "10.97.0.0/16")
    assert not decision.clusters["a"].snat
    assert told(decision) == [("a-clusterinfo", "spec.podCIDRs[1]", "RedundantCIDR")]
    (problem,) = decision.problems
    assert problem.severity is Severity.WARNING
    assert "10.20.3.0/24 lies in 10.20.0.0/16" in problem.message


@pytest.mark.parametrize(
    ("service_cidr", "pod_cidrs", "path", "cidrs"),
    [
        ("10.97.0.0/16", ("10.20.0.1/32", "10.30.0.0/16"), "spec.podCIDRs[0]", ("10.30.0.0/16", "10.97.0.0/16")),
        ("10.20.0.1/32", ("10.30.0.0/16",), "spec.serviceCIDR", ("10.30.0.0/16",)),
    ],
)
def test_a_cidr_that_is_just_the_gateway(
    service_cidr: str, pod_cidrs: tuple[str, ...], path: str, cidrs: tuple[str, ...]
) -> None:
    """The gateway is used and the CIDR is not: there is no route through the tunnels to where they end."""
    east = cluster("east", service_cidr, *pod_cidrs, gateways=("10.20.0.1", "203.0.113.2"))
    decision = topology(east, enable_pod_to_pod=True)
    accepted = decision.clusters["east"]
    assert accepted.cidrs == networks(*cidrs)
    assert accepted.gateways == addresses("10.20.0.1", "203.0.113.2")
    assert accepted.snat is path.startswith("spec.podCIDRs")
    assert told(decision) == [("east-clusterinfo", path, "IsGateway")]
    assert decision.problems[0].severity is Severity.ERROR
    assert "10.20.0.1/32 is not used" in decision.problems[0].message


def test_tunnel_endpoints_inside_remote_cidrs_are_reached_directly() -> None:
    """A gateway in its own cluster's CIDR is marked, so that tunnels do not go through tunnels."""
    decision = topology(
        cluster("a", "10.97.0.0/16", "10.20.0.0/16", gateways=("10.20.0.1", "203.0.113.1")),
        cluster("c", "10.99.0.0/16", gateways=("10.21.0.0",)),
        enable_pod_to_pod=True,
    )
    assert {c: r.direct for c, r in decision.clusters.items()} == {"a": addresses("10.20.0.1"), "c": ()}


def test_a_gateway_and_a_cidr_of_two_clusters_do_not_share_an_address() -> None:
    """Whoever has had it for longer keeps it, be it a gateway in a CIDR or a CIDR around a gateway."""
    young = "2026-01-02T00:00:00Z"
    decision = topology(
        cluster("a", "10.97.0.0/16", gateways=("10.30.0.1",)),
        cluster("b", "10.98.0.0/16", "10.30.0.0/16", gateways=("10.97.255.255", "203.0.113.2"), created=young),
        enable_pod_to_pod=True,
    )
    assert {c: (r.cidrs, r.gateways) for c, r in decision.clusters.items()} == {
        "a": (networks("10.97.0.0/16"), addresses("10.30.0.1")),
        "b": (networks("10.98.0.0/16"), addresses("203.0.113.2")),
    }
    assert decision.clusters["b"].snat
    assert told(decision) == [
        ("b-clusterinfo", "spec.gatewayInfos[0].gatewayIP", "DuplicateAddress"),
        ("b-clusterinfo", "spec.podCIDRs[0]", "OverlapsRemote"),
    ]


def test_seniority_is_that_of_the_claim() -> None:
    """What an old cluster adds is younger than what a young one has had for longer; without times, age counts."""
    day = "2026-01-0{}T00:00:00.000000Z".format
    had = {"10.97.0.0/16": day(1), "10.20.0.0/16": day(5), "203.0.113.1": day(5)}
    old = cluster("old", "10.97.0.0/16", "10.20.0.0/16", gateways=("203.0.113.1",), created=day(1), granted=had)
    has = {"10.98.0.0/16": day(3), "10.20.0.0/17": day(4), "203.0.113.1": day(4)}
    young = cluster(
        "young", "10.98.0.0/16", "10.20.0.0/17", gateways=("203.0.113.1",), created=day(3), granted=has
    )
    clusters = topology(old, young, enable_pod_to_pod=True).clusters
    assert {c: (r.cidrs, r.gateways) for c, r in clusters.items()} == {
        "old": (networks("10.97.0.0/16"), ()),
        "young": (networks("10.20.0.0/17", "10.98.0.0/16"), addresses("203.0.113.1")),
    }
    without = (replace(old, granted={}), replace(young, granted={}))
    clusters = topology(*without, enable_pod_to_pod=True).clusters
    assert {c: (r.cidrs, r.gateways) for c, r in clusters.items()} == {
        "old": (networks("10.20.0.0/16", "10.97.0.0/16"), addresses("203.0.113.1")),
        "young": (networks("10.98.0.0/16"), ()),
    }


def test_a_cidr_that_lost_does_not_take_an_older_one_inside_it_along() -> None:
    """A cluster that asks for more than it gets keeps what it had."""
    day = "2026-01-0{}T00:00:00Z".format
    granted = {"10.20.3.0/24": day(1), "10.20.0.0/16": day(3)}
    clusters = topology(
        cluster("a", "10.97.0.0/16", "10.20.3.0/24", "10.20.0.0/16", created=day(1), granted=granted),
        cluster("b", "10.20.4.0/24", created=day(2)),
        enable_pod_to_pod=True,
    ).clusters
    assert clusters["a"].cidrs == networks("10.20.3.0/24", "10.97.0.0/16")
    assert clusters["a"].snat


def test_what_the_leader_refused_is_known() -> None:
    """A refused CIDR means that Pod CIDRs are not whole: sources are translated, and it is told."""
    granted = {"10.97.0.0/16": "2026-01-01T00:00:00.000000Z", "10.21.0.0/16": "", "203.0.113.9": ""}
    east = cluster("east", "10.97.0.0/16", "10.20.0.0/16", granted=granted)
    decision = topology(east, enable_pod_to_pod=True)
    assert decision.clusters["east"].snat
    assert [(p.reason, p.severity) for p in decision.problems] == [("RefusedByLeader", Severity.WARNING)]
    assert "10.21.0.0/16" in decision.problems[0].message


def test_what_the_leader_refused_comes_after_all_others() -> None:
    """A refused claim that is published all the same loses to any other, and is used where there is no other."""
    day = "2026-01-0{}T00:00:00.000000Z".format
    refused = {"10.97.0.0/16": day(1), "10.20.0.0/16": "", "203.0.113.1": ""}
    old = cluster(
        "old", "10.97.0.0/16", "10.20.0.0/16", gateways=("203.0.113.1",), created=day(1), granted=refused
    )
    young = cluster(
        "young", "10.98.0.0/16", "10.20.0.0/17", gateways=("203.0.113.1", "203.0.113.2"), created=day(3)
    )
    granted = {"10.98.0.0/16": day(3), "10.20.0.0/17": day(4), "203.0.113.1": day(4), "203.0.113.2": day(4)}
    for other in (young, replace(young, granted=granted)):
        decision = topology(old, other, enable_pod_to_pod=True)
        assert {c: (r.cidrs, r.gateways) for c, r in decision.clusters.items()} == {
            "old": (networks("10.97.0.0/16"), ()),
            "young": (networks("10.20.0.0/17", "10.98.0.0/16"), addresses("203.0.113.1", "203.0.113.2")),
        }
        assert told(decision) == [
            ("old-clusterinfo", f"metadata.annotations[{CLAIMS_ANNOTATION}]", "RefusedByLeader"),
            ("old-clusterinfo", "spec.gatewayInfos[0].gatewayIP", "DuplicateAddress"),
            ("old-clusterinfo", "spec.podCIDRs[0]", "OverlapsRemote"),
        ]
    alone = topology(old, enable_pod_to_pod=True).clusters["old"]
    assert (alone.cidrs, alone.gateways) == (networks("10.20.0.0/16", "10.97.0.0/16"), addresses("203.0.113.1"))


def test_exported_services() -> None:
    """Each port of an exported Service leads to the ready endpoints of its name; the rest is not there."""
    decision = topology(
        service("web", "10.96.0.7", ServicePort(name="http", port=80), ServicePort(name="admin", port=81)),
        service("secret", "10.96.0.8", 80),
        export("web"),
        endpoint_slice("s1", "web", [endpoint("10.10.3.9"), endpoint("10.10.1.9")], ("http", 8080), ("admin", 9)),
        endpoint_slice("s2", "web", [endpoint("10.10.3.9"), endpoint("10.10.2.9", ready=False)], ("http", 8081)),
    )
    assert {n: p.endpoints for n, p in decision.ports.items()} == {
        "default/web:80/tcp": (
            (ip_address("10.10.1.9"), 8080),
            (ip_address("10.10.3.9"), 8080),
            (ip_address("10.10.3.9"), 8081),
        ),
        "default/web:81/tcp": ((ip_address("10.10.1.9"), 9), (ip_address("10.10.3.9"), 9)),
    }
    assert decision.problems == ()


def test_exported_ports_that_share_an_endpoint_are_marked() -> None:
    """Where two ports of one protocol lead to one endpoint, both know; what is the same stays the very object."""
    web = service("web", "10.96.0.7", ServicePort(name="http", port=80), ServicePort(name="admin", port=81))
    dns = service("dns", "10.96.0.8", ServicePort(name="", port=80, protocol=IpProtocol.UDP))
    own = (endpoint_slice("s1", "web", [endpoint("10.10.3.9")], ("http", 8080), ("admin", 9)),)
    other = endpoint_slice("s2", "dns", [endpoint("10.10.3.9")], ("", 8080))
    objects = (*HOME, web, dns, export("web"), export("dns"), *own, other)
    compiler = Compiler()
    services_before = compiler.compile(snapshot(*objects), NO_FACTS, config("g1")).state.services
    assert not any(port.shares_endpoints for port in services_before.values())
    more = (service("more", "10.96.0.9", 80), export("more"))
    third = endpoint_slice("s3", "more", [endpoint("10.10.3.9"), endpoint("10.10.1.9")], ("", 8080))
    services = compiler.compile(snapshot(*objects, *more, third), NO_FACTS, config("g1")).state.services
    assert {name for name, port in services.items() if port.shares_endpoints} == {
        "default/web:80/tcp",
        "default/more:80/tcp",
    }
    assert services["default/web:81/tcp"] is services_before["default/web:81/tcp"]


def test_serving_endpoints_stand_in_when_none_is_ready() -> None:
    """Terminating endpoints that still serve are used only while there is nothing better."""
    decision = topology(
        service("web", "10.96.0.7", 80),
        export("web"),
        endpoint_slice("s", "web", [endpoint("10.10.3.9", ready=False, serving=True)], ("", 80)),
    )
    assert decision.ports["default/web:80/tcp"].endpoints == ((ip_address("10.10.3.9"), 80),)


@pytest.mark.parametrize(("older", "younger"), [("web", "api"), ("api", "web")])
def test_two_exported_services_with_one_cluster_ip(older: str, younger: str) -> None:
    """The older export has the ClusterIP and port, whatever the names; another port of it is served."""
    exports = {
        name: replace(export(name), meta=replace(export(name).meta, created=created))
        for name, created in ((older, OLD), (younger, NEW))
    }
    unnamed, named = ServicePort(name="", port=80), ServicePort(name="more", port=81)
    decision = topology(
        service(older, "10.96.0.7", 80),
        service(younger, "10.96.0.7", unnamed, named),
        *exports.values(),
        endpoint_slice("o", older, [endpoint("10.10.3.9")], ("", 8080)),
        endpoint_slice("y", younger, [endpoint("10.10.1.9")], ("", 9090), ("more", 9091)),
    )
    assert {name: port.endpoints for name, port in decision.ports.items()} == {
        f"default/{older}:80/tcp": ((ip_address("10.10.3.9"), 8080),),
        f"default/{younger}:81/tcp": ((ip_address("10.10.1.9"), 9091),),
    }
    assert told(decision) == [(younger, "", "DuplicateAddress")]
    assert f"10.96.0.7 port 80/tcp belongs to Service default/{older}" in decision.problems[0].message


def test_exports_that_cannot_be_served() -> None:
    """Missing, foreign endpoints, a ClusterIP that nobody routes: told, and nothing else stops.

    A headless Service is exported by its Pods: gateways serve nothing for it, and that is no problem.
    """
    decision = topology(
        service("headless", None, 80),
        export("headless"),
        export("missing"),
        service("far", "10.200.0.1", 80),
        export("far"),
        service("web", "10.96.0.7", 80),
        export("web"),
        endpoint_slice("s", "web", [endpoint("169.254.169.254"), endpoint("8.8.8.8")], ("", 80)),
    )
    assert decision.ports["default/web:80/tcp"].endpoints == ()
    assert told(decision) == [
        ("far", "", "OutsideServiceCIDR"),
        ("missing", "", "NoService"),
        ("web", "", "EndpointElsewhere"),
    ]
    (far,) = (problem.message for problem in decision.problems if problem.reason == "OutsideServiceCIDR")
    assert far == "its ClusterIP 10.200.0.1 lies in no Gateway's serviceCIDR: other clusters do not reach it"


def test_pods_outside_of_their_nodes_cidrs_are_told() -> None:
    """Another IPAM than the Nodes' podCIDRs: the setting is named. What refers to no Pod of a Node is foreign."""

    def problems(*endpoints: Endpoint, routing: PodRouting = PodRouting.AUTO) -> set[str]:
        objects = (service("web", "10.96.0.7", 80), export("web"), endpoint_slice("s", "web", endpoints, ("", 80)))
        return {reason for _, _, reason in told(topology(*objects, pod_routing=routing))}

    outside = replace(endpoint("10.10.201.5"), node_name="w1", pod="web-1")
    assert problems(outside) == {"PodsOutsideCIDRs"}
    assert problems(outside, endpoint("8.8.8.8")) == {"PodsOutsideCIDRs", "EndpointElsewhere"}
    assert problems(replace(outside, node_name="elsewhere")) == {"EndpointElsewhere"}
    assert problems(replace(outside, pod="")) == {"EndpointElsewhere"}
    assert problems(outside, routing=PodRouting.PER_POD) == {"EndpointElsewhere"}  # there is no such Pod
    assert problems(replace(outside, ready=False, serving=False)) == set()
    assert problems(replace(outside, addresses=addresses("169.254.169.254"))) == {"EndpointElsewhere"}
    assert problems(replace(outside, addresses=addresses("10.10.3.5"))) == set()


def test_services_are_a_gateways_business() -> None:
    """Workers need neither Services nor Pods."""
    decision = topology(service("web", "10.96.0.7", 80), export("web"), on="w1")
    assert decision.ports == {}
    assert decision.local.needs == {Kind.GATEWAY, Kind.NODE, Kind.CLUSTER_INFO_IMPORT}


def test_equal_inputs_give_the_very_same_parts() -> None:
    """What did not change is the same object, which is what makes a change cheap."""
    objects = (*HOME, cluster("a", "10.97.0.0/16"), cluster("b", "10.98.0.0/16"))
    compiler = Compiler()
    first = compiler.compile(snapshot(*objects), NO_FACTS, config("g1")).state.clusters
    again = compiler.compile(deepcopy(snapshot(*objects)), NO_FACTS, config("g1")).state.clusters
    assert all(again[name] is first[name] for name in ("a", "b"))
    changed = (*objects, cluster("b", "10.99.0.0/16"))
    after = compiler.compile(snapshot(*changed), NO_FACTS, config("g1")).state.clusters
    assert after["a"] is first["a"]
    assert after["b"].cidrs == networks("10.99.0.0/16")


# A few small prefixes, so that they often meet.
CIDRS = st.builds(
    lambda value, length: str(IPv4Network(((10 << 24) + (value << 16), length), strict=False)),
    st.integers(0, 15),
    st.integers(10, 18),
)
# When the leader granted what; mostly it says nothing.
GRANTED = st.dictionaries(
    CIDRS | st.integers(0, 40).map(lambda n: f"10.{n}.0.0/16") | st.sampled_from(["203.0.113.1", "10.3.0.1"]),
    st.sampled_from(["", "0.5Z", "1.5Z", "2.5Z", "3.5Z"]),
    max_size=5,
)
CLUSTERS = st.lists(
    st.builds(
        cluster,
        st.sampled_from("abcdef"),
        CIDRS,
        CIDRS,
        gateways=st.lists(st.sampled_from(["203.0.113.1", "203.0.113.2", "10.3.0.1"]), min_size=1).map(tuple),
        created=st.sampled_from(["1", "2", "3"]),
        object_name=st.sampled_from("uvwxyz"),
        granted=GRANTED,
    ),
    max_size=7,
)


@costly
@given(CLUSTERS)
def test_no_two_clusters_share_an_address_and_order_does_not_matter(clusters: list[ClusterInfoImport]) -> None:
    """Whatever is asked for: accepted CIDRs are disjoint, gateways differ, and the order of input is no input."""
    unique = list({c.meta.key: c for c in clusters}.values())
    decision = topology(*unique, enable_pod_to_pod=True)
    accepted = [n for r in decision.clusters.values() for n in r.cidrs]
    assert not any(overlaps(a, b) for a, b in combinations(accepted, 2))
    ips = [a for r in decision.clusters.values() for a in r.gateways]
    assert len(ips) == len(set(ips))
    for cluster_id, remote in decision.clusters.items():
        other_networks = [n for r in decision.clusters.values() if r.cluster_id != cluster_id for n in r.cidrs]
        assert not any(a in n for a in remote.gateways for n in other_networks)
    again = topology(*reversed(unique), enable_pod_to_pod=True)
    assert again.clusters == decision.clusters
    assert again.problems == decision.problems


# Mostly nobody is in anybody's way: then one changed object is settled by a look at its neighbours only.
CHANGES = st.lists(
    st.builds(
        cluster,
        st.sampled_from("abcdef"),
        st.integers(0, 40).map(lambda n: f"10.{n}.0.0/16") | CIDRS,
        st.integers(50, 90).map(lambda n: f"10.{n}.0.0/16"),
        gateways=st.lists(
            st.integers(1, 30).map(lambda n: f"203.0.113.{n}") | st.just("10.3.0.1"), min_size=1, max_size=2
        ).map(tuple),
        created=st.sampled_from(["1", "1", "1", "2"]),
        object_name=st.just(""),
        granted=GRANTED,
    ).map(lambda found: replace(found, meta=replace(found.meta, name=found.cluster_id))),
    max_size=12,
)


# Pods that are known one by one: in CIDRs, at gateways, in nobody's way.
PODS = st.frozensets(
    st.sampled_from(["203.0.113.7", "203.0.113.8", "10.3.0.1", "10.7.1.2", "10.55.0.9", "10.99.0.1"]), max_size=3
)


@costly
@given(CHANGES, st.lists(st.tuples(st.integers(0, 12), st.just(frozenset()) | PODS), max_size=4))
def test_one_change_after_the_other_gives_what_all_at_once_give(
    changes: list[ClusterInfoImport], moves: list[tuple[int, frozenset[str]]]
) -> None:
    """Whatever changes, clusters or Pods: what is used and the problems are those of a fresh look at all."""
    settings = config("g1", enable_pod_to_pod=True, pod_routing=PodRouting.PER_POD)
    infos: dict[str, ClusterInfoImport] = {}
    pods: frozenset[str] = frozenset()
    compiler = Compiler()
    for number, step in enumerate(changes):
        infos = {**infos, step.meta.key: step}
        for now in (pods, *(moved for place, moved in moves if place == number)):
            pods = now
            source = snapshot(*HOME, *infos.values(), *(pod(f"p{ip}", "w1", ip) for ip in sorted(pods)))
            after, fresh = (
                compiler.compile(source, NO_FACTS, settings),
                compile_desired(source, NO_FACTS, settings),
            )
            assert after.state == fresh.state
            assert after.desired.problems == fresh.desired.problems
            everything = resolve_clusters(checked_alone(source, settings), sorted_hosts(pods), settings)
            unmapped = {name: replace(cluster, mapped=()) for name, cluster in after.state.clusters.items()}
            assert unmapped == everything.accepted  # mapped addresses are added later


@costly
@given(CHANGES, PODS)
def test_uncontested_clusters_have_what_they_would_have_alone(
    changes: list[ClusterInfoImport], pods: frozenset[str]
) -> None:
    """The quick answer, that nobody is in anybody's way, is given when comparing each with each gives it."""
    settings = config("g1", enable_pod_to_pod=True)
    infos = {info.meta.key: info for info in changes}
    resolved = resolve_clusters(
        checked_alone(snapshot(*HOME, *infos.values()), settings), sorted_hosts(pods), settings
    )
    claims = [(name, claim) for name, checked in resolved.checked.items() for claim in checked.claims]
    contested = any(
        a != b and overlaps(first.network, second.network) for (a, first), (b, second) in combinations(claims, 2)
    ) or any(ip_address(ip) in claim.network for ip in pods for _, claim in claims)
    alone = {name: checked.uncontested for name, checked in resolved.checked.items()}
    assert (resolved.accepted == alone) is not contested


def checked_alone(source: Snapshot, settings: Config) -> dict[str, CheckedCluster]:
    """Return each cluster as it would be alone."""
    local = forwarding(IncrementalEngine(), source, NO_FACTS, settings).local
    validator = cluster_validator(local, NO_FACTS, settings)
    return {key: validator.check(info) for key, info in source.cluster_infos.items()}


def sorted_hosts(pods: frozenset[str]) -> list[int]:
    """Return addresses as numbers."""
    return sorted(int(ip_address(ip)) for ip in pods)


@costly
@given(CLUSTERS)
def test_a_bad_cluster_changes_nothing_for_older_ones(clusters: list[ClusterInfoImport]) -> None:
    """However greedy a newcomer is, all others stay as they were."""
    unique = list({c.meta.key: c for c in clusters}.values())
    before = topology(*unique, enable_pod_to_pod=True).clusters
    greedy = cluster(
        "zz", "10.0.0.0/8", "10.0.0.0/9", gateways=("203.0.113.1", "10.3.0.1"), created="~9", object_name="greedy"
    )
    after = topology(*unique, greedy, enable_pod_to_pod=True).clusters
    assert {c: (r.cidrs, r.gateways, r.snat) for c, r in after.items() if c != "zz"} == {
        c: (r.cidrs, r.gateways, r.snat) for c, r in before.items()
    }


@given(st.lists(CIDRS, max_size=12), CIDRS)
def test_what_is_taken_agrees_with_the_obvious(texts: list[str], text: str) -> None:
    """Binary search says what pairwise comparison says."""
    ranges: list[Network] = [ip_network(t) for t in texts]
    network = ip_network(text)
    overlapping = [n for n in ranges if overlaps(n, network)]
    overlap = ReservedRanges((n, str(n)) for n in ranges).overlapping(network)
    assert (overlap is not None) == bool(overlapping)
    assert overlap is None or overlap[0] in overlapping
