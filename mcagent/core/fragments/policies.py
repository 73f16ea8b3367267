"""Fragments of policies: flows of the rules of each direction, stage and level, and of Pods that are isolated.

Only those levels are made anew whose rules changed. Knows rules by their numbers and addresses only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from flows import pipeline
from mcagent.core.fragments.build import Resources, entries
from mcagent.model.plan import Fragment

Rules = tuple[pipeline.PolicyRule, ...]


def by_level(rules: Iterable[pipeline.PolicyRule]) -> dict[str, Rules]:
    """Return the rules of each direction, stage and level, by what is its own of the fragment's name."""
    found: defaultdict[str, list[pipeline.PolicyRule]] = defaultdict(list)
    for rule in rules:
        found[f"{rule.direction.value}/{rule.stage.value}/{rule.level}"].append(rule)
    return {level: tuple(members) for level, members in found.items()}


def rule_flows(rules: Rules) -> Resources:
    """Return the flows of the rules of one level."""
    return entries(pipeline.rules(rules))


def pods_fragment(pods: pipeline.PodPolicies) -> Fragment:
    """Return what does not get to Pods, or from them, where no rule says anything."""
    return Fragment(owner="policy/pods", resources=entries(pipeline.pod_policies(pods)))
