"""OpenFlow as values: tables, matches, actions, flows, groups, and their text form.

A library of its own: pure, importable alone, and without knowledge of Kubernetes or of mcagent. The pipeline of
mcagent's bridge is `flows.pipeline`.
"""

from flows.errors import FlowError
from flows.fields import Bits, MatchField, Term
from flows.flow import Bucket, Flow, Group, GroupType, Match

__all__ = ["Bits", "Bucket", "Flow", "FlowError", "Group", "GroupType", "Match", "MatchField", "Term"]
