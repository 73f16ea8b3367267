"""OpenFlow as values: tables, matches, actions, flows, groups, their text form, and a simulator.

A library of its own: pure, importable alone, and without knowledge of Kubernetes or of mcagent. The pipeline of
mcagent's bridge is `flows.pipeline`.
"""

from flows.errors import FlowError
from flows.fields import Bits, Field, Term
from flows.flow import Bucket, Flow, Group, GroupType
from flows.lines import is_flow_line, is_group_line, parse_flow_line, parse_group_line
from flows.match import Match
from flows.parse import parse_flow, parse_group, parse_match
from flows.parse_actions import parse_actions

__all__ = [
    "Bits",
    "Bucket",
    "Field",
    "Flow",
    "FlowError",
    "Group",
    "GroupType",
    "Match",
    "Term",
    "is_flow_line",
    "is_group_line",
    "parse_actions",
    "parse_flow",
    "parse_flow_line",
    "parse_group",
    "parse_group_line",
    "parse_match",
]
