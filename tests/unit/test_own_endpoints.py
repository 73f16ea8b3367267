"""Policies about Services of the ClusterSet, for endpoints in this cluster: rules of nft, in their order."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from mcagent.core.compile import Compiled, compile_desired
from mcagent.core.fragments.own_endpoints import CHAIN
from mcagent.model.dataplane.facts import Facts
from mcagent.model.dataplane.resources import FlowEntry, NftChain
from mcagent.model.objects import ApiObject
from tests.worlds.core_inputs import (
    HOME,
    cluster,
    config,
    endpoint,
    imported_slice,
    namespace,
    pod,
    resources,
    snapshot,
)
from tests.worlds.own_endpoints import CLIENTS, OWN, rule

REMOTE = imported_slice("remote", "cart", "west", [endpoint("10.102.0.80")])
OTHERS = (pod("c", "g1", "10.10.1.7", labels="app=other"), pod("d", "g2", "10.10.2.5", labels="app=client"))


def compiled(*objects: ApiObject, device: str = "") -> Compiled:
    """Compile Node g1, whose Pods are behind a device of the CNI, or each behind its own."""
    objects_of_home = snapshot(*HOME, namespace("default"), *CLIENTS, *OTHERS, OWN, REMOTE, *objects)
    facts = Facts(shared_devices=((ip_network("10.10.0.0/16"), device),) if device else ())
    return compile_desired(objects_of_home, facts, config("g1", stretched_network_policy=True, cluster_id="home"))


def chain(state: Compiled) -> tuple[str, ...]:
    """Return the rules of the chain; () without one."""
    chains = [r for r in resources(state) if isinstance(r, NftChain) and r.name == CHAIN]
    assert {(chain.type, chain.hook) for chain in chains} <= {("filter", "postrouting")}
    return chains[0].rules if chains else ()


def reasons(state: Compiled) -> list[str]:
    """Return the reasons of problems of policies."""
    return [problem.reason for problem in state.desired.problems if "Policy" in problem.subject]


def test_own_endpoints_are_closed_to_the_pods_that_a_policy_selects() -> None:
    """Only to those of this Node, in the direction of the request, and not to endpoints in other clusters."""
    state = compiled(rule("stay", 5, "Drop"))
    ends = "ip saddr { 10.10.1.5, 10.10.1.6 } ip daddr { 10.10.1.9, 10.10.2.7 }"
    assert chain(state) == ("ct direction reply accept", f"{ends} tcp dport 80 counter drop")
    assert reasons(state) == []


def test_the_order_is_that_of_policies() -> None:
    """The first that fits decides, by tier and priority; Reject drops; Pass leaves the packet to the CNI."""
    state = compiled(
        rule("z", 9, "Reject"),
        rule("y", 3, "Allow"),
        rule("x", 9, "Pass", tier="emergency"),
        rule("w", 1, "Drop", tier="baseline"),
    )
    assert [text.rpartition(" ")[2] for text in chain(state)] == ["accept", "accept", "accept", "drop", "drop"]


@pytest.mark.parametrize("action", ["Drop", "Allow"])
def test_without_endpoints_here_there_is_no_chain(action: str) -> None:
    """Nor without a rule about a Service."""
    assert chain(compiled()) == ()
    assert chain(compiled(rule("stay", 5, action, service="elsewhere"))) == ()


@pytest.mark.parametrize(("device", "cni"), [("cilium_host", "Cilium"), ("antrea-gw0", "Antrea"), ("cni0", "")])
def test_a_cni_that_forwards_past_the_kernel_is_reported(device: str, cni: str) -> None:
    """No chain pretends to enforce the rule there; a bridge of Pods is passed by the kernel."""
    state = compiled(rule("stay", 5, "Drop"), device=device)
    assert bool(chain(state)) is not bool(cni)
    assert reasons(state) == (["PartlyEnforced"] if cni else [])
    assert all(cni in problem.message for problem in state.desired.problems if problem.reason == "PartlyEnforced")


def test_endpoints_beyond_a_share_are_dropped_with_their_cluster() -> None:
    """A rule that drops has the CIDRs of the cluster that exports more endpoints than its share."""
    many = imported_slice("many", "cart", "west", [endpoint(f"10.102.{n >> 8}.{n & 255}") for n in range(120)])
    objects = snapshot(
        *HOME, namespace("default"), *CLIENTS, many, rule("no", 5, "Drop"), cluster("west", "10.102.0.0/16")
    )
    settings = config("g1", stretched_network_policy=True, cluster_id="home", max_policy_flows=100)
    state = compile_desired(objects, Facts(), settings)
    assert reasons(state) == ["IdentitiesUnknown"]
    matches = [flow.match for flow in resources(state) if isinstance(flow, FlowEntry)]
    assert any("nw_dst=10.102.0.0/16" in match for match in matches if "conj" not in match)
