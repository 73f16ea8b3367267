"""The shares of connections that a group sends to each port, by liveness: Open vSwitch's rules for our groups.

A select group gives each live bucket its weight's part (the best of pseudo-random scores wins,
group_best_live_bucket in ofproto/ofproto-dpif-xlate.c), a fast-failover group gives all to the first live bucket,
an indirect one to its only. Which buckets are live is the simulated switch's rule. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from flows.actions import Output, ToGroup
from flows.flow import Bucket, Group, GroupType
from flows.simulator.switch import MAX_DEPTH, Live, usable_buckets

ONWARD = 0  # instead of a port: the packet goes on in the pipeline
WHOLE = Fraction(1)


def shares(groups: Mapping[int, Group], group_id: int, live: Live, depth: int = 0) -> dict[int, Fraction]:
    """Return the shares of connections by port, or `ONWARD`; dropped connections are missing."""
    group = groups.get(group_id)
    if group is None or depth > MAX_DEPTH:
        return {}
    buckets = usable_buckets(groups, group, live)
    if group.type is not GroupType.SELECT:
        return _leads_to(groups, buckets[0], live, depth) if buckets else {}
    weight = sum(bucket.weight for bucket in buckets)
    total: dict[int, Fraction] = {}
    for bucket in buckets:
        for port, share in _leads_to(groups, bucket, live, depth).items():
            total[port] = total.get(port, Fraction(0)) + share * bucket.weight / weight
    return total


def _leads_to(groups: Mapping[int, Group], bucket: Bucket, live: Live, depth: int) -> dict[int, Fraction]:
    for action in bucket.actions:
        if isinstance(action, Output):
            return {action.port: WHOLE}
        if isinstance(action, ToGroup):
            return shares(groups, action.group_id, live, depth + 1)
    return {ONWARD: WHOLE}
