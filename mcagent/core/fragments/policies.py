"""Fragments of policies: flows of label identities, of rules by direction, stage and level, of Pods with policies.

Knows rules by their numbers and addresses only.
"""

from __future__ import annotations

from flows import pipeline
from mcagent.core.fragments.build import Resources, entries
from mcagent.model.net import Address
from mcagent.model.plan import Fragment

Rules = tuple[pipeline.PolicyRule, ...]


def identity_flows(value: tuple[Address, int], env: pipeline.Env) -> Resources:
    """Return the mark of what a Pod of this Node sends, its label identity."""
    return entries(pipeline.pod_identity(env, *value))


def claimed_flows(value: tuple[int, tuple[int, ...]]) -> Resources:
    """Return the label identities that are believed of a cluster, by its ID."""
    return entries(pipeline.claimed_identities(*value))


def rule_flows(rules: Rules) -> Resources:
    """Return the flows of the rules of one level."""
    return entries(pipeline.rules(rules))


def pods_fragment(pods: pipeline.PodPolicies) -> Fragment:
    """Return what does not get to Pods, or from them, where no rule says anything."""
    return Fragment(owner="policy/pods", resources=entries(pipeline.pod_policies(pods)))
