"""Conjunctive matches: a real Open vSwitch finds the flow that the simulator finds, and dumps them as made."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address, ip_network
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devtools.nodes.ovs import OvsInstance
from flows import fields as f
from flows.actions import Action, Conjunction, Goto, Output, set_whole
from flows.flow import Flow, Match
from flows.parse import parse_flow
from flows.pipeline import PolicyDirection
from flows.simulator import Packet, SimulatedSwitch
from tests.contract.real_switch import RealSwitch
from tests.properties import COSTLY
from tests.worlds import policy_switch
from tests.worlds.policies import policies, request, verdict_of
from tests.worlds.policy_switch import flows_of

pytestmark = pytest.mark.contract

PORTS = range(1, 9)  # a packet comes in by the first
CLAUSES = (
    tuple(
        f.source_in(ip_network(f"10.1.0.{low}/{length}", strict=False)) for low in (0, 5) for length in (16, 32)
    ),
    tuple(
        f.destination_in(ip_network(f"10.2.0.{low}/{length}", strict=False))
        for low in (0, 7)
        for length in (8, 32)
    ),
    tuple((f.IPV4_ONLY, f.exact(f.IP_PROTO, f.IP_UDP), f.exact(f.UDP_DST, port)) for port in (80, 81)),
    tuple((f.exact(f.TUN_ID, number),) for number in (0, 9)),
)


def random_flows(random: Random) -> Iterator[Flow]:
    """Yield flows of table 0, which sets tun_id, and of table 1: rules of three priorities, and plain ones."""
    for number in (0, 9):
        last = 5 if number else 4
        match = Match.of(f.exact(f.IN_PORT, 1), f.IPV4_ONLY, f.Term(f.IPV4_SRC, last, 0xFF))
        yield Flow(0, 1, match, (set_whole(f.TUN_ID, number), Goto(1)), 1)
    conjunctions: dict[tuple[int, Match], list[Conjunction]] = {}
    plain: dict[tuple[int, Match], tuple[Action, ...]] = {}
    for rule in range(1, random.randint(3, 12)):
        priority = random.randint(10, 12)
        chosen = random.sample(CLAUSES, random.randint(2, 4))
        for clause, terms_of in enumerate(chosen, 1):
            for terms in random.sample(terms_of, random.randint(1, len(terms_of))):
                action = Conjunction(rule, clause, len(chosen))
                conjunctions.setdefault((priority, Match.of(*terms)), []).append(action)
        if random.random() < 0.9:
            where = random.choice((priority, priority, 3))
            plain[where, Match.of(f.exact(f.CONJ_ID, rule))] = (Output(priority - 8),)
    for _ in range(random.randint(0, 3)):
        plain[random.randint(9, 12), Match.of(*random.choice(random.choice(CLAUSES)))] = (Output(6),)
    plain[1, Match.of()] = (Output(7),)
    for (priority, match), actions in {**conjunctions, **plain}.items():
        yield Flow(1, priority, match, tuple(actions), 1)


@COSTLY
@given(seed=st.integers(0, 2**32))
def test_rules_of_policies_decide_the_same_way(ovs: OvsInstance, seed: int) -> None:
    """Requests leave by the same port, or are dropped alike; the dump gives the flows back."""
    random = Random(seed)
    random_policies = policies(random)
    flows = flows_of(random_policies)
    switch = RealSwitch.create(ovs, policy_switch.PORTS)
    try:
        switch.load(flows, ())
        assert {parse_flow(line) for line in switch.dump_flows()} == set(flows)
        for direction in PolicyDirection:
            for _ in range(20):
                packet = request(random, direction)
                verdict = verdict_of(random_policies, packet, direction)
                ports = [port for port, exit_name in policy_switch.EXITS.items() if exit_name is verdict]
                assert [port for port, _ in switch.inject(packet, len(ports))] == ports, packet
    finally:
        switch.close()


@COSTLY
@given(seed=st.integers(0, 2**32))
def test_conjunctive_matches_find_the_same_flow(ovs: OvsInstance, seed: int) -> None:
    """Each packet leaves by the port that the simulator says; the dump gives the flows back."""
    flows = tuple(random_flows(Random(seed)))
    simulated = SimulatedSwitch.of(flows)
    switch = RealSwitch.create(ovs, PORTS)
    try:
        switch.load(flows, ())
        assert {parse_flow(line) for line in switch.dump_flows()} == set(flows)
        for source in ("10.1.0.4", "10.1.0.5", "10.9.0.5"):
            for destination in ("10.2.0.7", "10.2.0.8", "10.3.0.7"):
                for port in (80, 81, 82):
                    packet = Packet(
                        in_port=1,
                        src=IPv4Address(source),
                        dst=IPv4Address(destination),
                        proto=f.IP_UDP,
                        src_port=4000,
                        dst_port=port,
                    )
                    walk = simulated.walk(packet)
                    if not walk.problems:  # flows of one priority that contradict each other
                        ports = [number for number, _ in walk.outputs]
                        assert [number for number, _ in switch.inject(packet, len(ports))] == ports, walk
    finally:
        switch.close()
