"""Parses the output of ovs-ofctl for the agent's bridge. Pure.

The top 16 bits of the cookie mark the agent's flows.
"""

from __future__ import annotations

import re
from collections import Counter
from sys import intern

from flows.pipeline import PIPELINE
from flows.text import is_group_line, parse_flow_line, parse_group_line
from mcagent.model.dataplane.resources import FlowEntry, GroupEntry

COOKIE, COOKIE_MASK = PIPELINE.cookies.mask  # of every flow of the agent
OURS = f"cookie={COOKIE:#x}/{COOKIE_MASK:#x}"

_LINE = re.compile(r"[^\n]+")
_COUNTERS = re.compile(r"cookie=0x([0-9a-f]+), .{0,500}?n_packets=(\d+)")
_DROPPED = re.compile(r"^\d+: ?packet_count:(\d+)", re.MULTILINE)


def is_ours(cookie: int) -> bool:
    """Return whether a flow with this cookie is the agent's."""
    return cookie & COOKIE_MASK == COOKIE


def parse_flows(text: str) -> list[FlowEntry]:
    """Parse the flows of a dump of OURS (--no-names, --no-stats). Raises flows.errors.FlowError if malformed.

    The lines, 23,000 with 1,000 clusters, are not all in memory at once, and equal actions are one text.
    """
    rows = (parse_flow_line(row[0]) for row in _LINE.finditer(text) if "actions=" in row[0])
    return [
        FlowEntry(table=table, priority=priority, match=match, cookie=cookie, actions=intern(actions))
        for table, priority, match, cookie, actions in rows
    ]


def parse_groups(text: str) -> list[GroupEntry]:
    """Parse the groups of a dump; raises flows.errors.FlowError on a malformed line."""
    rows = (parse_group_line(row) for row in text.splitlines() if is_group_line(row))
    return [GroupEntry(group_id=number, body=body) for number, body in rows]


def parse_dropped(text: str) -> int:
    """Sum the packets that all meters dropped, from the output of `ovs-ofctl meter-stats`."""
    return sum(map(int, _DROPPED.findall(text)))


def parse_packets(text: str) -> Counter[int]:
    """Sum the packets of flows since they were added, by cookie."""
    totals: Counter[int] = Counter()
    for cookie, packets in _COUNTERS.findall(text):
        totals[int(cookie, 16)] += int(packets)
    return totals
