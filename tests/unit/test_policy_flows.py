"""Flows of policies and label identities in fixed examples. Properties search more: test_pipeline_policies.py."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network
from random import Random

import pytest

from flows.fields import IP_ICMP, IP_TCP, IP_UDP
from flows.pipeline import (
    PIPELINE,
    Entries,
    Env,
    PolicyDirection,
    PolicyPort,
    PolicyVerdict,
    claimed_identities,
    pod_identity,
)
from flows.pipeline import declaration as d
from flows.pipeline import tables as t
from flows.simulator import IpFragment, SimulatedSwitch
from mcagent.model.net import PodPrefix
from tests.worlds.contradictions import contradictions
from tests.worlds.policies import PODS, policies, request, verdict_of
from tests.worlds.policy_switch import EXITS, flows_of

ENV = Env(gateway=True, ct_zone_base=28003, local_gateways=(), identities=True)


@pytest.mark.parametrize("seed", range(2))
def test_flows_decide_as_the_rules_say(seed: int) -> None:
    """What a naive reader of the rules decides about requests, first fragments included; later ones pass."""
    random = Random(seed)
    drawn = policies(random)
    flows = flows_of(drawn)
    assert not list(contradictions(flows))
    switch = SimulatedSwitch.of(flows)
    for direction in PolicyDirection:
        for _ in range(15):
            packet = request(random, direction)
            expected = verdict_of(drawn, packet, direction)
            for fragment, verdict in (
                (packet.fragment, expected),
                (IpFragment.FIRST, expected),
                (IpFragment.LATER, PolicyVerdict.ALLOW),
            ):
                walk = switch.walk(replace(packet, fragment=fragment))
                assert not walk.problems
                decided = EXITS[walk.outputs[0][0]] if walk.outputs else PolicyVerdict.DROP
                assert decided is verdict, (packet, drawn)


def texts(entries: Entries) -> list[str]:
    """Return flows as "match -> actions"."""
    return [f"{flow.match_text} -> {flow.actions_text}" for flow in entries.flows]


def test_the_identity_of_a_pod() -> None:
    """Its packets get it on their way out, by the address that the bridge sees; the cookie has it, too."""
    address = ip_address("10.10.0.7")
    plain = pod_identity(ENV, address, 300)
    (flow,) = plain.flows
    assert flow.table == t.IDENTITY.number
    assert PIPELINE.cookies.split(flow.cookie) == (d.FOR_IDENTITY.number, 300)
    assert "nw_src=10.10.0.7" in flow.match_text
    assert "0x12c" in flow.actions_text
    prefix = PodPrefix(real=ip_network("10.10.0.0/16"), virtual=ip_network("100.72.0.0/16"))
    (translated,) = texts(pod_identity(replace(ENV, prefixes=(prefix,)), address, 300))
    assert "nw_src=100.72.0.7" in translated


def test_identities_that_a_cluster_has_claimed() -> None:
    """Those of one cluster are accepted from it alone, those of every cluster from all."""
    of_cluster, of_any = claimed_identities(7, [5, 6]), claimed_identities(0, [5])
    assert {PIPELINE.cookies.split(flow.cookie) for flow in of_cluster.flows} == {(d.FOR_CLUSTER.number, 7)}
    assert {flow.table for flow in (*of_cluster.flows, *of_any.flows)} == {t.IDENTITY.number}
    assert all(any(f"tun_id={n:#x}" in text for n in (5, 6)) for text in texts(of_cluster))
    without = {text.replace(",", " ") for text in texts(of_any)}
    assert len(of_cluster.flows) == 2 * len(of_any.flows)
    assert not without & {text.replace(",", " ") for text in texts(of_cluster)}


@pytest.mark.parametrize(
    ("port", "matching", "other"),
    [
        (PolicyPort(protocol=IP_TCP, low=80, high=80), (IP_TCP, 80, 0), (IP_TCP, 81, 0)),
        (PolicyPort(protocol=IP_TCP, low=80, high=82), (IP_TCP, 82, 0), (IP_TCP, 83, 0)),
        (PolicyPort(protocol=IP_UDP, low=0, high=65535), (IP_UDP, 7, 0), (IP_TCP, 7, 0)),
        (PolicyPort(protocol=IP_ICMP), (IP_ICMP, 0, 3), (IP_UDP, 3, 0)),
        (PolicyPort(protocol=IP_ICMP, icmp_type=8), (IP_ICMP, 0, 8), (IP_ICMP, 0, 3)),
    ],
)
def test_ports_of_a_rule(port: PolicyPort, matching: tuple[int, int, int], other: tuple[int, int, int]) -> None:
    """A rule that drops one port drops nothing else."""
    random = Random(1)
    drawn = policies(random)
    (rule,) = {rule.direction: rule for rule in drawn.rules if rule.direction is PolicyDirection.EGRESS}.values()
    rule = replace(
        rule,
        verdict=PolicyVerdict.DROP,
        pods=PODS,
        peers=replace(rule.peers, any_peer=True, networks=(), services=()),
        ports=(port,),
    )
    pods = replace(drawn.pods, isolated_egress=())
    switch = SimulatedSwitch.of(flows_of(replace(drawn, rules=(rule,), pods=pods)))
    for (protocol, number, icmp_type), passes in ((matching, False), (other, True)):
        packet = replace(
            request(random, PolicyDirection.EGRESS),
            proto=protocol,
            dst_port=number,
            icmp_type=icmp_type,
            icmp_code=0,
        )
        assert bool(switch.walk(packet).outputs) is passes
