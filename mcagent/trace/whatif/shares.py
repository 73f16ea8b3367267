"""The shares of connections that a group sends to each port, by liveness: Open vSwitch's rules for our groups.

A select group gives each live bucket its weight's part (the best of pseudo-random scores wins,
group_best_live_bucket in ofproto/ofproto-dpif-xlate.c), a fast-failover group gives all to the first live bucket,
an indirect one to its only. A bucket is live when what it watches is; a group is while a bucket of it is
(group_is_alive). Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction

from flows.actions import Output, ToGroup
from flows.flow import Bucket, Group, GroupType

Groups = Mapping[int, Group]
Live = Callable[[int], bool]  # takes a watched port
ONWARD = 0  # instead of a port: the packet goes on in the pipeline
WHOLE = Fraction(1)


def shares(groups: Groups, group_id: int, live: Live) -> dict[int, Fraction]:
    """Return the shares of connections by port, or `ONWARD`; dropped connections are missing."""
    total: dict[int, Fraction] = {}
    group = groups.get(group_id)
    for bucket, part in _chosen(groups, group, live) if group is not None else ():
        for port, share in _leads_to(groups, bucket, live).items():
            total[port] = total.get(port, Fraction(0)) + part * share
    return total


def _chosen(groups: Groups, group: Group, live: Live) -> Iterator[tuple[Bucket, Fraction]]:
    if group.type is GroupType.INDIRECT:  # its bucket is used whatever it watches
        yield from ((bucket, WHOLE) for bucket in group.buckets[:1])
        return
    alive = [bucket for bucket in group.buckets if _is_live(groups, bucket, live)]
    if group.type is GroupType.FAST_FAILOVER:
        yield from ((bucket, WHOLE) for bucket in alive[:1])
        return
    total = sum(bucket.weight for bucket in alive)
    yield from ((bucket, Fraction(bucket.weight, total)) for bucket in alive)


def _leads_to(groups: Groups, bucket: Bucket, live: Live) -> dict[int, Fraction]:
    for action in bucket.actions:
        if isinstance(action, Output):
            return {action.port: WHOLE}
        if isinstance(action, ToGroup):
            return shares(groups, action.group_id, live)
    return {ONWARD: WHOLE}


def _is_live(groups: Groups, bucket: Bucket, live: Live) -> bool:
    if bucket.watch_port is None and bucket.watch_group is None:
        return True
    if bucket.watch_port is not None and live(bucket.watch_port):
        return True
    watched = groups.get(bucket.watch_group) if bucket.watch_group is not None else None
    return watched is not None and any(_is_live(groups, nested, live) for nested in watched.buckets)
