"""Attacks by the label identities that members export, on policies of another cluster that match them.

Judged by the rules that an agent selects, with objects in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from unittest.mock import patch

from hypothesis import strategies as st

from mcagent.core.engine import IncrementalEngine
from mcagent.core.policies import peer_shares
from mcagent.core.policies.peer_shares import Demand
from mcagent.core.policies.pipeline_input import Identities, UnknownPeers
from mcagent.core.policies.selection import select_rules
from mcagent.model.config import Config
from tests.attacks.generated.search import AttackClass
from tests.attacks.policies import FROM_WEB, FROM_WEB_ANTREA, antrea_policy, identities, policy, snapshot
from tests.worlds.policy_manifests import NODE

LIMIT = 100  # flows of the policies of a Namespace
VICTIM = range(300, 303)  # identities of the victim's cluster


@dataclass(frozen=True, kw_only=True)
class Exports:
    """Identities of the attacker's cluster, also those of the victim's; the victim's policies that match them."""

    first: int
    count: int
    also_the_victims: bool
    policies: int
    antrea: bool

    def __str__(self) -> str:
        also = ", and those of east" if self.also_the_victims else ""
        kind = "Antrea NetworkPolicies" if self.antrea else "NetworkPolicies"
        return f"{self.count} label identities of west from {self.first}{also}; {self.policies} {kind} match them"


def _judge(attack: Exports) -> str:
    by_attacker = identities("west", range(attack.first, attack.first + attack.count))
    by_victim = identities("east", VICTIM)
    if attack.also_the_victims:
        for exported in by_victim:
            exported["metadata"]["annotations"]["mcagent.io/exporters"] = "east,west"
    make, peer = (antrea_policy, FROM_WEB_ANTREA) if attack.antrea else (policy, FROM_WEB)
    policies = [make(f"p{number}", "victim", [peer]) for number in range(attack.policies)]
    config = Config(node_name=NODE, max_policy_flows=LIMIT, max_namespace_policy_flows=LIMIT)
    engine = IncrementalEngine()
    with engine.one_pass():
        selected = select_rules(engine, snapshot(*by_attacker, *by_victim, *policies), config)
    if any(problem.reason == "NotEnforceable" for problem in selected.problems):
        return "a policy is refused"
    flows = 0
    for subject, rules in selected.rules.items():
        unknown = selected.unknown.get(subject, {})
        matched = {pair for rule in rules for selector in rule.selectors for pair in selected.identities[selector]}
        if any(number in VICTIM and cluster != "west" for cluster, number in matched & unknown.keys()):
            return "a policy does not match label identities of the other cluster"
        flows += len(matched - unknown.keys())
    return "" if flows <= LIMIT else f"label identities have {flows} flows, the limit of the Namespace is {LIMIT}"


def _first_come(demand: Demand, identities: Identities, *_: object) -> UnknownPeers:
    """Return the identities beyond the limit, whoever exports them."""
    pairs = sorted(
        {pair for selector, _ in demand.selectors for pair in identities.get(selector, ())}, key=_number
    )
    count = sum(count for _, count in demand.selectors) or 1
    return {pair: (pair[0],) for pair in pairs[demand.limit // count :]}


def _number(pair: tuple[str, int]) -> int:
    return pair[1]


def _none(*_: object) -> Mapping[tuple[str, int], tuple[str, ...]]:
    return {}


N5 = AttackClass(
    name="N5",
    title="a member exports label identities that policies of another cluster match",
    grammar=st.builds(
        Exports,
        first=st.sampled_from((1, 1000)),
        count=st.integers(0, 150),
        also_the_victims=st.booleans(),
        policies=st.integers(1, 6),
        antrea=st.booleans(),
    ),
    judge=_judge,
    property="no policy is refused, identities of other clusters are matched, and the flows are within the limit",
    protections={
        "clusters share the flows of a Namespace": partial(
            patch.object, peer_shares, "unknown_peers", _first_come
        ),
        "label identities are limited": partial(patch.object, peer_shares, "unknown_peers", _none),
    },
    examples=100,
)
