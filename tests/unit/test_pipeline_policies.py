"""Tables of policies: what flows decide is what a naive reader of the rules decides."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from devtools.simulator import Packet, Switch, contradictions
from flows.fields import IP_TCP, IP_UDP
from flows.pipeline import Direction, PolicyPeers, PolicyPort, PolicyRule, Stage, Verdict, rules
from flows.pipeline.policy import ranges
from tests.conversations import examples
from tests.policies import policies, request, verdict_of
from tests.policy_switch import EXITS, flows_of


def decided(switch: Switch, packet: Packet) -> Verdict:
    """Return what became of a packet."""
    walk = switch.walk(packet)
    assert not walk.problems, walk
    return EXITS[walk.outputs[0][0]] if walk.outputs else Verdict.DROP


@examples(300)
@given(seed=st.integers(0, 2**32))
def test_flows_decide_as_the_rules_say(seed: int) -> None:
    """Whatever rules there are, and whatever packet comes: allowed, dropped or rejected, as the rules read."""
    random = Random(seed)
    known = policies(random)
    flows = flows_of(known)
    switch = Switch.of(flows)
    assert not list(contradictions(flows))
    for direction in Direction:
        for _ in range(30):
            packet = request(random, direction)
            assert decided(switch, packet) is verdict_of(known, packet, direction), (packet, known)


def test_a_rule_has_as_many_flows_as_pods_peers_and_ports_together() -> None:
    """Its size is the sum, not the product."""
    ports = (PolicyPort(protocol=IP_TCP, low=80, high=80), PolicyPort(protocol=IP_UDP, low=53, high=53))
    rule = PolicyRule(
        id=9,
        direction=Direction.INGRESS,
        stage=Stage.TIERS,
        level=0,
        verdict=Verdict.DROP,
        pods=tuple(IPv4Address("10.1.0.0") + n for n in range(100)),
        peers=PolicyPeers(identities=tuple((0, n) for n in range(1, 1001))),
        ports=ports,
    )
    assert len(rules([rule]).flows) == 100 + 1000 + 2 + 1
    assert not rules([replace(rule, peers=PolicyPeers())]).flows
    assert not rules([replace(rule, pods=())]).flows


@given(low=st.integers(0, 65535), size=st.integers(0, 65535))
def test_ranges_cover_what_they_are_to_cover(low: int, size: int) -> None:
    """Every number from the first to the last has one match, no other number has any, and they are few."""
    high = min(low + size, 65535)
    found = list(ranges(low, high))
    assert sum(0x10000 - mask for _, mask in found) == high - low + 1
    assert all(low <= value <= value + 0xFFFF - mask <= high for value, mask in found)
    assert len(found) <= 30
