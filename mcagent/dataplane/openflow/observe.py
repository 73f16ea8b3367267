"""What ovs-ofctl prints of our bridge -> values. Pure.

Flows are ours by the top 16 bits of the cookie.
"""

from __future__ import annotations

import re
from collections import Counter

from flows.pipeline import PIPELINE
from flows.text import is_group_line, parse_flow_line, parse_group_line
from mcagent.model.resources import FlowEntry, GroupEntry, MeterEntry

COOKIE, COOKIE_MASK = PIPELINE.cookies.mask  # every flow of ours
OURS = f"cookie={COOKIE:#x}/{COOKIE_MASK:#x}"

_COUNTERS = re.compile(r"cookie=0x([0-9a-f]+), .*?n_packets=(\d+)")
_METER = re.compile(r"^meter=(\d+) (.*) bands=\n((?:type=.*\n?)*)", re.MULTILINE)
_RATE = re.compile(r"type=drop rate=(\d+) burst_size=(\d+)\s*")
_METER_FLAGS = "pktps burst stats"
_DROPPED = re.compile(r"^\d+: ?packet_count:(\d+)", re.MULTILINE)


def is_ours(cookie: int) -> bool:
    """Tell whether a flow with this cookie is ours."""
    return cookie & COOKIE_MASK == COOKIE


def parse_flows(text: str) -> list[FlowEntry]:
    """Return the flows of a dump made with --no-names and --no-stats, those of OURS asked for.

    Raises flows.errors.FlowError on a line that makes no sense.
    """
    rows = (parse_flow_line(row) for row in text.splitlines() if "actions=" in row)
    return [
        FlowEntry(table=table, priority=priority, match=match, cookie=cookie, actions=actions)
        for table, priority, match, cookie, actions in rows
    ]


def parse_groups(text: str) -> list[GroupEntry]:
    """Return the groups of a dump; raises flows.errors.FlowError on a line that makes no sense."""
    rows = (parse_group_line(row) for row in text.splitlines() if is_group_line(row))
    return [GroupEntry(group_id=number, body=body) for number, body in rows]


def parse_meters(text: str) -> list[MeterEntry]:
    """Return the meters of a dump. One that is none of ours has no rate."""
    found = []
    for number, flags, bands in _METER.findall(text):
        band = _RATE.fullmatch(bands) if flags == _METER_FLAGS else None
        rate, burst = (int(band[1]), int(band[2])) if band is not None else (0, 0)
        found.append(MeterEntry(meter_id=int(number), rate=rate, burst=burst))
    return found


def parse_dropped(text: str) -> int:
    """Return how many packets all meters together dropped, of what `ovs-ofctl meter-stats` prints."""
    return sum(map(int, _DROPPED.findall(text)))


def parse_packets(text: str) -> Counter[int]:
    """Return what matched flows since they were added, by cookie, summed over the flows that share one."""
    totals: Counter[int] = Counter()
    for cookie, packets in _COUNTERS.findall(text):
        totals[int(cookie, 16)] += int(packets)
    return totals
