"""Fragments of policies: flows of the rules of each direction, stage and level, and of Pods that are isolated.

Knows rules by their numbers and addresses only.
"""

from __future__ import annotations

from flows import pipeline
from mcagent.core.fragments.build import Resources, entries
from mcagent.model.plan import Fragment

Rules = tuple[pipeline.PolicyRule, ...]


def rule_flows(rules: Rules) -> Resources:
    """Return the flows of the rules of one level."""
    return entries(pipeline.rules(rules))


def pods_fragment(pods: pipeline.PodPolicies) -> Fragment:
    """Return what does not get to Pods, or from them, where no rule says anything."""
    return Fragment(owner="policy/pods", resources=entries(pipeline.pod_policies(pods)))
