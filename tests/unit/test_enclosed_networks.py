"""A network of this Node that appears inside a CIDR in use takes only its part of it; one that was first, all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from ipaddress import IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcagent.agent.control_loop.reconciler import NodeReconciler
from mcagent.core.addresses.rules import outermost_networks, parts_outside
from mcagent.core.remote_clusters.enclosed import enclosed, prefix_numbers
from mcagent.model.config import Config, PodRouting
from mcagent.model.dataplane.backend import Backend
from mcagent.model.dataplane.facts import Facts
from mcagent.model.dataplane.resources import Route
from mcagent.model.net import Network, contains
from mcagent.model.objects import ApiObject, Snapshot
from tests.worlds.agentworld import Facility
from tests.worlds.core_inputs import HOME, addresses, cluster, config, networks, node, pod, snapshot

PODS = networks("10.2.0.0/15")[0]
EAST = cluster("east", "10.97.0.0/16", "10.2.0.0/16")
BRIDGE = Facts(connected=networks("10.2.200.0/24"), addresses=addresses("192.0.2.3", "10.2.200.1"))
VPN = Facts(routed=networks("10.2.200.0/24"))
CIDRS = st.builds(
    lambda number, length: IPv4Network((number >> (32 - length) << (32 - length), length)),
    st.integers(10 << 24, (11 << 24) - 1),
    st.integers(9, 32),
)


@given(CIDRS, st.lists(CIDRS, max_size=4))
def test_a_network_inside_a_cidr_in_use_is_found_whatever_was_cut_out_before(
    cidr: IPv4Network, inner: list[IPv4Network]
) -> None:
    """The CIDR is in use as what is left of it; the network around is never larger than the CIDR."""
    networks_inside = [network for network in inner if contains(cidr, network) and network != cidr]
    earlier = networks_inside[:-1]
    in_use = parts_outside(cidr, earlier)
    later = [network for network in networks_inside[-1:] if any(contains(part, network) for part in in_use)]
    outer_by_network = dict(enclosed(later, prefix_numbers(in_use)))
    assert all(network in outer_by_network or network in in_use for network in later)
    assert all(contains(cidr, outer) for outer in outer_by_network.values())
    # The same after it was cut out, in a new process too
    remaining = parts_outside(cidr, networks_inside)
    again = dict(enclosed(outermost_networks(networks_inside), prefix_numbers(remaining)))
    assert all(contains(cidr, outer) for outer in again.values())
    assert not remaining or set(again) == set(outermost_networks(networks_inside))


@given(st.lists(CIDRS), st.lists(CIDRS))
def test_a_cidr_of_which_nothing_is_in_use_surrounds_nothing(
    inner: list[IPv4Network], in_use: list[IPv4Network]
) -> None:
    """So what claims it later is refused."""
    for network, outer in enclosed(inner, prefix_numbers(in_use)):
        assert any(outer.overlaps(range_used) for range_used in in_use if range_used != network)
        assert contains(outer, network)


class Agent:
    """A reconciler on facilities, and what it does with one cluster."""

    def __init__(self, facilities: Mapping[Backend, Facility] | None = None, **values: object) -> None:
        self.facilities = dict(facilities or {name: Facility(name) for name in Backend})
        self.facts = Facts()
        self.config: Config = config("w1", **{"enable_pod_to_pod": True, **values})
        self._reconciler = NodeReconciler(
            backends=self.facilities, read_facts=lambda _: self.facts, config=self.config
        )

    def routed(
        self, facts: Facts, *objects: ApiObject, observe: frozenset[Backend] = frozenset(Backend)
    ) -> tuple[tuple[Network, ...], set[str]]:
        """Do a pass; return the routes to Pods of other clusters, and the reasons of problems."""
        self.facts = facts
        inputs: Snapshot = snapshot(*HOME, *objects)
        outcome = self._reconciler.reconcile(inputs, observe=observe, blocked=frozenset())
        assert outcome.desired is not None
        routes = (route for route in self.facilities[Backend.NETLINK].world.values() if isinstance(route, Route))
        pods = sorted(route.destination for route in routes if contains(PODS, route.destination))
        problems = {problem.reason for problem in outcome.desired.problems}
        return tuple(pods), problems


PARTS = tuple(sorted(parts_outside(networks("10.2.0.0/16")[0], networks("10.2.200.0/24"))))


@pytest.mark.parametrize("later", [BRIDGE, VPN])
def test_only_the_part_of_a_later_network_is_given_up(later: Facts) -> None:
    """Also after a restart, until the network is gone."""
    agent = Agent()
    assert agent.routed(Facts(), EAST) == (networks("10.2.0.0/16"), set())
    for _ in range(3):
        assert agent.routed(later, EAST) == (PARTS, {"PartlyLocal"})
    restarted = Agent(agent.facilities)
    assert restarted.routed(later, EAST) == (PARTS, {"PartlyLocal"})
    assert restarted.routed(Facts(), EAST) == (networks("10.2.0.0/16"), set())
    # It appears while the agent does not run
    assert Agent(agent.facilities).routed(later, EAST) == (PARTS, {"PartlyLocal"})


def test_an_address_that_is_there_before_its_network_takes_no_more_than_that() -> None:
    """As of a bridge that is not up yet; the message then names the network alone."""
    agent, address = Agent(), networks("10.2.200.1/32")
    agent.routed(Facts(), EAST)
    around = tuple(sorted(parts_outside(networks("10.2.0.0/16")[0], address)))
    assert agent.routed(Facts(addresses=BRIDGE.addresses), EAST) == (around, {"PartlyLocal"})
    assert agent.routed(BRIDGE, EAST) == (PARTS, {"PartlyLocal"})
    assert Agent().routed(Facts(addresses=BRIDGE.addresses), EAST) == ((), {"OverlapsLocal"})


@pytest.mark.parametrize("service", [False, True], ids=["Pods", "Services"])
def test_a_service_cidr_in_use_stays_as_a_pod_cidr_does(service: bool) -> None:
    """A bridge takes its part; Services at other addresses, and the other CIDR, are reached as before."""
    cidrs = ("10.2.0.0/16", "10.97.0.0/16") if service else ("10.97.0.0/16", "10.2.0.0/16")
    agent, info = Agent(), cluster("east", *cidrs)
    assert agent.routed(Facts(), info) == (networks("10.2.0.0/16"), set())
    assert agent.routed(BRIDGE, info) == (PARTS, {"PartlyLocal"})
    assert Agent().routed(BRIDGE, info) == ((), {"OverlapsLocal"})  # it was there before the claim


@pytest.mark.parametrize(("first", "reason"), [(BRIDGE, "OverlapsLocal"), (VPN, "RoutedElsewhere")])
def test_a_later_claim_on_a_network_is_refused_as_a_whole(first: Facts, reason: str) -> None:
    """Whatever else is in use: another cluster's CIDR beside it, and CIDRs of the same cluster."""
    neighbour = cluster("west", "10.98.0.0/16", "10.3.0.0/16")
    agent = Agent()
    assert agent.routed(first, EAST, neighbour) == (networks("10.3.0.0/16"), {reason})
    assert agent.routed(first, EAST, neighbour) == (networks("10.3.0.0/16"), {reason})
    assert Agent(agent.facilities).routed(first, EAST, neighbour) == (networks("10.3.0.0/16"), {reason})
    # When the cluster has left and returns, its claim is the later one.
    agent = Agent()
    agent.routed(Facts(), EAST)
    assert agent.routed(first, EAST)[1] == {"PartlyLocal"}
    agent.routed(first)
    assert agent.routed(first, EAST) == ((), {reason})


def test_a_claim_anew_is_refused_also_if_nothing_was_read_meanwhile() -> None:
    """What is in use changes with the objects, not only when the Node's networks are read again."""
    agent = Agent()
    agent.routed(Facts(), EAST)
    assert agent.routed(BRIDGE, EAST)[1] == {"PartlyLocal"}
    agent.routed(BRIDGE, observe=frozenset())
    assert agent.routed(BRIDGE, EAST, observe=frozenset()) == ((), {"OverlapsLocal"})


NODE = node("n9", "10.2.200.9")
AROUND_NODE = tuple(sorted(parts_outside(networks("10.2.0.0/16")[0], networks("10.2.200.9/32"))))


def test_a_node_that_appears_takes_only_its_address_from_a_cidr_in_use() -> None:
    """Until the controller, which tells later agents too, imports the CIDR without it."""
    agent, info = Agent(), cluster("east", "10.97.0.0/16", *map(str, AROUND_NODE))
    agent.routed(Facts(), EAST)
    for _ in range(2):
        assert agent.routed(Facts(), EAST, NODE, observe=frozenset()) == (AROUND_NODE, {"PartlyLocal"})
    assert Agent(agent.facilities).routed(Facts(), EAST, NODE) == (AROUND_NODE, {"PartlyLocal"})
    assert agent.routed(Facts(), info, NODE) == (AROUND_NODE, set())
    assert Agent().routed(Facts(), info, NODE) == (AROUND_NODE, set())
    assert agent.routed(Facts(), EAST) == (networks("10.2.0.0/16"), set())


def test_a_cidr_that_is_claimed_after_a_node_is_refused_as_a_whole() -> None:
    """By a new agent, by one that runs, and when it is claimed anew."""
    agent = Agent()
    assert agent.routed(Facts(), EAST, NODE) == ((), {"OverlapsLocal"})
    assert Agent(agent.facilities).routed(Facts(), EAST, NODE) == ((), {"OverlapsLocal"})
    agent.routed(Facts(), EAST)
    assert agent.routed(Facts(), EAST, NODE)[1] == {"PartlyLocal"}
    agent.routed(Facts(), NODE, observe=frozenset())
    assert agent.routed(Facts(), EAST, NODE, observe=frozenset()) == ((), {"OverlapsLocal"})


def test_many_nodes_inside_a_cidr_take_it() -> None:
    """The number of parts, and the time to compute them, are bounded."""
    agent = Agent()
    agent.routed(Facts(), EAST)
    nodes = [node(f"n{number}", f"10.2.{number}.9") for number in range(200)]
    assert agent.routed(Facts(), EAST, *nodes) == ((), {"OverlapsLocal"})


def test_a_pod_takes_only_its_address_from_a_cidr_in_use() -> None:
    """A CIDR that is claimed after the Pod started, or anew, is refused as a whole, also by a new agent."""
    agent, inside = Agent(pod_routing=PodRouting.PER_POD), pod("p", "w1", "10.2.200.9")
    refused, partly = ((), {"PodCIDRsMissing", "OverlapsLocal"}), (AROUND_NODE, {"PodCIDRsMissing", "PartlyLocal"})
    assert agent.routed(Facts(), EAST, inside) == refused
    agent.routed(Facts(), EAST)
    assert agent.routed(Facts(), EAST, inside, observe=frozenset()) == partly
    restarted = Agent(agent.facilities, pod_routing=PodRouting.PER_POD)
    assert restarted.routed(Facts(), EAST, inside) == partly
    agent.routed(Facts(), inside)
    assert agent.routed(Facts(), EAST, inside) == refused
    for number in (200, 16):  # too many to compute the parts, and too many parts
        agent.routed(Facts(), EAST)
        pods = [pod(f"p{i}", "w1", f"10.2.{256 // number * i}.9") for i in range(number)]
        assert agent.routed(Facts(), EAST, *pods) == refused


def test_several_networks_and_the_whole_cidr() -> None:
    """Networks may be neighbours; one that covers the whole CIDR leaves nothing of it."""
    agent = Agent()
    agent.routed(Facts(), EAST)
    two = networks("10.2.200.0/24", "10.2.201.0/24")
    agent.routed(replace(BRIDGE, connected=two[:1]), EAST)
    routes, problems = agent.routed(replace(BRIDGE, connected=two), EAST)
    assert routes == tuple(sorted(parts_outside(networks("10.2.0.0/16")[0], two)))
    assert problems == {"PartlyLocal"}
    for whole in ("10.2.0.0/16", "10.0.0.0/12"):
        assert agent.routed(Facts(connected=networks(whole)), EAST) == ((), {"OverlapsLocal"})


def test_the_message_names_both() -> None:
    """The CIDR with its object, and the network."""
    agent = Agent()
    agent.routed(Facts(), EAST)
    agent.facts = BRIDGE
    outcome = agent._reconciler.reconcile(snapshot(*HOME, EAST), observe=frozenset(Backend), blocked=frozenset())
    assert outcome.desired is not None
    (problem,) = outcome.desired.problems
    assert (problem.subject.rsplit("/", 1)[-1], problem.severity) == ("east-clusterinfo", "warning")
    assert "10.2.0.0/16 is used without 10.2.200.0/24 (in use here)" in problem.message
