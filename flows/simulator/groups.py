"""Groups of Open vSwitch: the bucket of a packet, and the shares of many packets by port.

Owns liveness and selection; must not know tables or connection tracking. Semantics: ofproto/ofproto-dpif-xlate.c.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction

from flows.actions import Output, ToGroup
from flows.fields import FIELDS, IP_PROTO, IPV6_DST, HashField
from flows.flow import Bucket, Group, GroupType
from flows.simulator.hashing import basis_of, score
from flows.simulator.view import State, hashed

Live = Callable[[int], bool]  # takes a watched port
MAX_DEPTH = 64  # MAX_DEPTH of ofproto-dpif-xlate.c
ONWARD = 0  # instead of a port: the packet goes on in the pipeline
WHOLE = Fraction(1)


def bucket_of(groups: Mapping[int, Group], group: Group, state: State, live: Live) -> Bucket | None:
    """Select the bucket of a packet in a group that is not of type all; None if no bucket is live.

    The best of pseudo-random scores, which are proportional to weights, wins (group_best_live_bucket).
    """
    candidates = _candidates(groups, group, live)
    if len(candidates) < 2:
        return candidates[0] if candidates else None
    # For a group without fields OVS hashes the fields of the connection, differently in each datapath.
    chosen = group.fields or tuple(HashField(f, f.full_mask) for f in FIELDS if f.needs)
    values = (hashed(state, *part) for part in sorted(chosen, key=_hash_order))
    basis = basis_of(0, (value for value in values if value is not None))
    return max(reversed(candidates), key=lambda bucket: score(bucket.bucket_id, bucket.weight, basis))


def shares(groups: Mapping[int, Group], group_id: int, live: Live, depth: int = 0) -> dict[int, Fraction]:
    """Return the shares of connections by port, or `ONWARD`; dropped connections are missing."""
    group = groups.get(group_id)
    if group is None or depth > MAX_DEPTH:
        return {}
    candidates = _candidates(groups, group, live)
    weight = sum(bucket.weight for bucket in candidates)
    total: dict[int, Fraction] = {}
    for bucket in candidates:
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


def _candidates(groups: Mapping[int, Group], group: Group, live: Live) -> tuple[Bucket, ...]:
    """Return the buckets among which the weights decide: the live ones of a select group, else the first live one.

    An indirect group has its only bucket, whatever that watches (xlate_all_group).
    """
    if group.type is GroupType.INDIRECT:
        return group.buckets[:1]
    usable = tuple(bucket for bucket in group.buckets if _is_live(groups, bucket, live))
    return usable if group.type is GroupType.SELECT else usable[:1]


def _is_live(groups: Mapping[int, Group], bucket: Bucket, live: Live, depth: int = 0) -> bool:
    """Tell whether a bucket is live: the watched port or group is, or it watches nothing."""
    if depth > MAX_DEPTH or (bucket.watch_port is None and bucket.watch_group is None):
        return depth <= MAX_DEPTH
    if bucket.watch_port is not None and live(bucket.watch_port):
        return True
    group = groups.get(bucket.watch_group) if bucket.watch_group is not None else None
    return group is not None and any(_is_live(groups, inner, live, depth + 1) for inner in group.buckets)


def _hash_order(chosen: HashField) -> tuple[int, bool]:
    """The order of enum mf_field_id (lib/meta-flow.h); there the IP protocol follows the addresses."""
    return (IPV6_DST.order, True) if chosen.field is IP_PROTO else (chosen.field.order, False)
