"""Metrics of policies: packets that each rule decided on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from prometheus_client.core import Metric

from mcagent.model.node_state import PolicyRuleName
from mcagent.observe.metric_families import counter

MOST_RULES = 500  # rules, in order of names, with a time series of their own; further ones share one


def policy_metrics(rules: Mapping[int, PolicyRuleName], packets: Mapping[int, int] | None) -> Iterator[Metric]:
    """Yield the packets of each rule; `packets`: by the rule's number; None: unknown."""
    if packets is None:
        return  # a 0 would be a reset of the counter
    counts: Counter[tuple[str, str, str, str]] = Counter()
    for place, (number, name) in enumerate(sorted(rules.items(), key=lambda item: item[1])):
        names = (name.policy, name.rule) if place < MOST_RULES else ("", "")
        counts[*names, name.direction, name.verdict] += packets.get(number, 0)
    text = (
        f"Request packets that a policy's rule decided on; rules beyond the first {MOST_RULES} share a series "
        "without a name."
    )
    yield counter("mcagent_policy_rule_packets", text, ["policy", "rule", "direction", "verdict"], counts.items())
