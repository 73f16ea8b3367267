"""Who verifies that a packet is from the Pod whose address it has, and what a Node says if no one does."""

from __future__ import annotations

from typing import Any

import pytest

from mcagent.core.compile import Compiled, compile_desired
from mcagent.core.fragments.kernel import POD_SOURCES
from mcagent.model.config import UnverifiedLabels
from mcagent.model.dataplane.facts import Facts
from mcagent.model.dataplane.resources import FlowEntry, NftChain
from mcagent.model.problem import Severity
from tests.worlds.core_inputs import (
    HOME,
    cluster,
    config,
    label_identity,
    namespace,
    networks,
    pod,
    resources,
    snapshot,
)

EAST = cluster("east", "10.97.0.0/16")
POD_NETWORK = networks("10.10.3.0/24")[0]  # of Node w1


def compiled(facts: Facts, on: str = "w1", **keys: Any) -> Compiled:
    """Compile a Node of cluster home with policies between clusters."""
    settings = config(on, **{"stretched_network_policy": True, **keys})
    return compile_desired(snapshot(*HOME, EAST), facts, settings)


def rules(state: Compiled) -> list[tuple[str, ...]]:
    """Return the rules of the chain that checks sources; [] without the chain."""
    return [r.rules for r in resources(state) if isinstance(r, NftChain) and r.name == POD_SOURCES]


def messages(state: Compiled) -> list[str]:
    """Return the messages of LabelsUnverified."""
    return [p.message for p in state.desired.problems if p.reason == "LabelsUnverified"]


@pytest.mark.parametrize("on", ["g1", "w1"])
def test_a_device_for_each_pod_is_checked(on: str) -> None:
    """Only packets into the bridge with the address of a Pod are looked at."""
    state = compiled(Facts(shared_devices=((networks("172.17.0.0/16")[0], "docker0"),)), on)
    forged = 'oifname "mc-gw0" iifname != "mc-gw0" fib saddr . iif oif missing ip saddr @mct_pods counter drop'
    assert rules(state) == [(forged,)]
    assert messages(state) == []


@pytest.mark.parametrize("network", ["10.10.3.0/24", "10.10.0.0/16", "10.10.3.0/25"])
def test_a_device_of_several_pods_is_reported(network: str) -> None:
    """The kernel would accept every Pod of the device, so it checks nothing; the Node says which device it is."""
    state = compiled(Facts(shared_devices=((networks(network)[0], "cni0"),)))
    assert rules(state) == []
    (problem,) = (p for p in state.desired.problems if p.reason == "LabelsUnverified")
    assert problem.message == (
        "the labels of this Node's Pods are not verified: several Pods are behind cni0, and one of them can send "
        "with the address of another"
    )
    assert (problem.subject, problem.severity) == ("Node w1", Severity.WARNING)


@pytest.mark.parametrize("device", ["antrea-gw0", "cilium_host", "ovn-k8s-mp0"])
def test_a_cni_that_checks_itself_is_left_to_it(device: str) -> None:
    """Packets of its Pods arrive by other devices than the route's, so the chain would drop them all."""
    facts = Facts(shared_devices=((POD_NETWORK, device),))
    assert (rules(compiled(facts)), messages(compiled(facts))) == ([], [])
    host_facts = Facts(shared_devices=((POD_NETWORK, device), (POD_NETWORK, "cni0")))
    assert (rules(compiled(host_facts)), len(messages(compiled(host_facts)))) == ([], 1)


def test_what_the_node_cannot_or_may_not_check_is_reported() -> None:
    """An old kernel would refuse the rule; the key switches it off."""
    old = compiled(Facts(checks_forwarded=False))
    off = compiled(Facts(), pod_source_check=False)
    assert rules(old) == rules(off) == []
    assert "Linux 5.19" in messages(old)[0]
    assert "podSourceCheck is false" in messages(off)[0]


WEB = "ns:kubernetes.io/metadata.name=default&pod:app=web"


@pytest.mark.parametrize(
    ("device", "mode", "sent"), [("cni0", "send", 1), ("cni0", "withhold", 0), ("", "withhold", 1)]
)
def test_labels_that_are_not_verified_can_be_withheld(device: str, mode: str, sent: int) -> None:
    """The packets then have the unknown identity; where labels are verified they are sent all the same."""
    objects = (namespace("default"), pod("a", "w1", "10.10.3.5", labels="app=web"), label_identity(WEB, 7))
    facts = Facts(shared_devices=((POD_NETWORK, device),) if device else ())
    settings = config("w1", stretched_network_policy=True, unverified_labels=UnverifiedLabels(mode))
    state = compile_desired(snapshot(*HOME, EAST, *objects), facts, settings)
    marks = [r for r in resources(state) if isinstance(r, FlowEntry) and "set_field:0x7->tun_id" in r.actions]
    assert len(marks) == sent
    assert [("withhold" in message) for message in messages(state)] == ([mode == "withhold"] if device else [])


def test_ipvs_is_checked_as_far_as_it_can_be() -> None:
    """Packets to Pods pass the chain, those to imported Services do not."""
    state = compiled(Facts(ipvs=True))
    assert len(rules(state)) == 1
    assert "IPVS" in messages(state)[0]


def test_without_policies_between_clusters_nothing_is_said_of_labels() -> None:
    """Sources are checked all the same: other clusters' CNIs see them."""
    shared = Facts(shared_devices=((POD_NETWORK, "cni0"),))
    assert messages(compiled(shared, stretched_network_policy=False)) == []
    assert len(rules(compiled(Facts(), stretched_network_policy=False))) == 1
