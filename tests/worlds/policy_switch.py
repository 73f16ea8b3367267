"""The tables of policies alone, between a first table that stands for what comes before, and exits by port."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from flows import fields as f
from flows import pipeline
from flows.actions import Ct, Move, Output, set_bits
from flows.fields import Bits
from flows.flow import Flow, Match
from flows.pipeline import PolicyVerdict
from flows.pipeline import registers as r
from flows.pipeline import tables as t
from flows.pipeline.steps import policy as built
from tests.worlds.policies import CLUSTERS, Policies
from tests.worlds.topologies import ZONES

EXITS = {21: PolicyVerdict.ALLOW, 22: PolicyVerdict.REJECT}
PORTS = (1, *(10 + number for number in CLUSTERS), *EXITS)
_IDENTITY = Move(Bits("", f.ETH_SRC, 0, 23), Bits("", f.TUN_ID, 0, 23))


def flows_of(policies: Policies) -> tuple[Flow, ...]:
    """Return all flows; a Pod's packets come in by port 1, those of another cluster by 10 and its ID."""
    return tuple(_flows(policies))


def _flows(policies: Policies) -> Iterator[Flow]:
    env = pipeline.Env(gateway=True, ct_zone_base=ZONES.arrival, local_gateways=(), identities=True)
    exits = {t.ADMIT: 21, t.DEPARTURE: 21, t.REJECT: 22, t.EGRESS_REJECT: 22}
    for table, port in exits.items():
        yield Flow(table.number, 0, Match.of(), (Output(port),), 1)
    track = Ct(ZONES.arrival, table=t.EGRESS_TIERS.number)
    yield Flow(0, 0, Match.of(f.exact(f.IN_PORT, 1), f.IPV4_ONLY), (track,), 1)
    for number in CLUSTERS:
        track = Ct(ZONES.arrival, table=t.INGRESS_TIERS.number)
        match = Match.of(f.exact(f.IN_PORT, 10 + number), f.IPV4_ONLY)
        yield Flow(0, 0, match, (set_bits(r.CLUSTER, number), _IDENTITY, track), 1)
    gone = {table.number for table in (*exits, t.REJECT_STATE)}
    mine = (flow for flow in built.base(env) if flow.table not in gone)
    yield from (replace(flow, cookie=flow.cookie or 1) for flow in mine)
    yield from pipeline.pod_policies(policies.pods).flows
    levels = defaultdict(list)
    for rule in policies.rules:
        levels[rule.direction, rule.stage, rule.level].append(rule)
    for rules in levels.values():
        yield from pipeline.rules(rules).flows
