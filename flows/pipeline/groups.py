"""Groups that select a gateway by liveness, so that failover needs no agent."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from flows import actions as act
from flows import fields as f
from flows.actions import Output, ToGroup
from flows.flow import Bucket, Group, GroupType
from flows.pipeline import declaration as d
from flows.pipeline import entries as e
from flows.pipeline import registers as r
from flows.pipeline.values import Env, NextHop, NextHopGroup

# The hash input of a selection of gateways, in the order in which OVS prints the fields. UDP ports are excluded:
# later fragments have none, and all fragments of a datagram must reach one gateway to be translated (network cards
# hash UDP like this, too).
_ADDRESSES = (f.IPV4_SRC, f.IPV4_DST, f.IPV6_SRC, f.IPV6_DST)
_PORTS = (f.TCP_SRC, f.TCP_DST, f.SCTP_SRC, f.SCTP_DST)
CONNECTION = tuple(f.HashField(field, field.full_mask) for field in (*_ADDRESSES, f.IP_PROTO, *_PORTS))
# A datapath flow matches all hashed bits (pick_hash_select_group in OVS' ofproto-dpif-xlate.c). Of these there are
# 256 combinations of addresses, and 64 of a client's port, so connections share datapath flows, and most need no
# upcall. Linux gives clients ports of one parity (__inet_hash_connect in net/ipv4/inet_hashtables.c), so the
# lowest bit of a port is not hashed.
SOME_BITS = (
    *(f.HashField(field, 0b1111) for field in _ADDRESSES),
    f.HashField(f.IP_PROTO, f.IP_PROTO.full_mask),
    *(f.HashField(field, 0b111_1110) for field in _PORTS),
)
_NUMBER = 0xFFFFFF
_MAX_BUCKET = 0x7FFFFFFF


def bucket_ids(names: Iterable[str]) -> dict[str, int]:
    """Return a bucket ID per name: a hash of the name; on a collision, in sorted order, the next free ID.

    OVS scores a bucket by a hash of its ID and the connection (group_best_live_bucket in its
    ofproto-dpif-xlate.c). So gateways with the same bucket IDs select the same bucket, and few connections move
    when a name is added or removed.
    """
    names_by_id: dict[int, str] = {}
    for name in sorted(set(names)):
        number = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest()) & _MAX_BUCKET
        while number in names_by_id:
            number = (number + 1) & _MAX_BUCKET
        names_by_id[number] = name
    return {name: number for number, name in names_by_id.items()}


def next_hop_groups(
    env: Env, group_id: int, hops: Mapping[int, NextHop], *, ordered: bool, last_resort: bool
) -> Iterator[Group]:
    """Yield the group that selects a next hop, and the groups that it refers to. `hops`: by bucket ID.

    `ordered`: the first live one in the given order is selected; otherwise a hash of bucket ID and connection
    decides. If all next hops are on standby, they are treated as if none were.

    `last_resort`: there is no alternative to these next hops. If none of them is live, those that are not on
    standby are used anyway. In a false alarm (a busy Node that answers BFD late, or sessions that restart because
    the own ovs-vswitchd was restarted) the packets still arrive, and in a true alarm no alternative would have
    saved them. Next hops on standby have been dead for longer, or were drained.
    """
    hashed = keeps_width(env) or (env.userspace_conntrack and len(hops) > 1)
    if last_resort and len(hops) == 1:
        hops = _unwatched(hops)
    last_resort = last_resort and all(hop.watched for hop in hops.values())
    standby = {number: hop for number, hop in hops.items() if hop.standby}
    first = {number: hop for number, hop in hops.items() if not hop.standby}
    if not first:
        first, standby = standby, {}
    if ordered:
        order = [*first.values(), *standby.values()]
        if last_resort and first:
            order.append(replace(order[0], watched=False))
        buckets = tuple(watching_bucket(n, hop, Output(hop.ofport)) for n, hop in enumerate(order))
        yield d.PIPELINE.group(Group(group_id, GroupType.FAST_FAILOVER, buckets))
        return
    levels = {d.GROUP_FIRST.group_id(group_id & _NUMBER): first}
    if standby:
        levels[d.GROUP_STANDBY.group_id(group_id & _NUMBER)] = standby
    if last_resort and first:
        # The bucket IDs are the same, so connections stay with their next hop when it is live again.
        levels[d.GROUP_ANY.group_id(group_id & _NUMBER)] = _unwatched(first)
    if len(levels) == 1:
        yield _by_hash(env, group_id, first, hashed=hashed)
        return
    for number, level in levels.items():
        yield _by_hash(env, number, level, hashed=hashed)
    nested = tuple(nested_bucket(n, number) for n, number in enumerate(levels))
    yield d.PIPELINE.group(Group(group_id, GroupType.FAST_FAILOVER, nested))


def keeps_width(env: Env) -> bool:
    """Tell whether all paths to a gateway hash the connection, even those without a selection.

    This is so in the userspace datapath if there are several gateways. As gateways fail and return, packets change
    between paths with a selection, which hashes, and paths without one, so datapath flows would have wide masks at
    one time and narrow ones at another. If two such flows overlap, Open vSwitch 3.1 may update the actions of the
    wrong one (flow_put_on_pmd in its lib/dpif-netdev.c looks up a flow by a packet), and connections would still
    be sent to a lost gateway.
    """
    return env.userspace_conntrack and len(env.local_gateways) > (0 if env.gateway else 1)


def to_gateway(env: Env, port: int) -> act.Action:
    """Return the action that sends a packet to the gateway behind a port, without a selection."""
    return ToGroup(d.GROUP_GATEWAYS.group_id(port)) if keeps_width(env) else Output(port)


def single_gateway_groups(env: Env, ports: Iterable[int]) -> Iterator[Group]:
    """Yield the groups that `to_gateway` refers to."""
    if keeps_width(env):
        for port in sorted(ports):
            yield select_group(
                d.GROUP_GATEWAYS.group_id(port), (Bucket(port, (Output(port),)),), CONNECTION, hashed=True
            )


def _unwatched(hops: Mapping[int, NextHop]) -> dict[int, NextHop]:
    return {number: replace(hop, watched=False) for number, hop in hops.items()}


def watching_bucket(number: int, hop: NextHop | None, *actions: act.Action) -> Bucket:
    """Return a bucket of a fast-failover group, for a next hop or, with `hop` None, for other actions.

    Such a bucket must watch something (ofp-group.c, ofputil_check_group_mod). Without known liveness it watches
    the host port, which always exists.
    """
    return Bucket(number, actions, watch_port=hop.ofport if hop and hop.watched else r.HOST_OFPORT)


def nested_bucket(number: int, group_id: int) -> Bucket:
    """Return a bucket of a fast-failover group that leads to another group while a bucket of that is live."""
    return Bucket(number, (ToGroup(group_id),), watch_group=group_id)


def select_group(
    group_id: int,
    buckets: tuple[Bucket, ...],
    fields: tuple[f.HashField, ...],
    *,
    hashed: bool = False,
) -> Group:
    """Return a group that selects a live bucket by a hash of `fields`.

    With a single bucket nothing is hashed unless `hashed` is set: a hash makes more datapath flows, each with an
    upcall to ovs-vswitchd.
    """
    if len(buckets) == 1 and not hashed:
        watches = buckets[0].watch_port is not None or buckets[0].watch_group is not None
        kind = GroupType.FAST_FAILOVER if watches else GroupType.INDIRECT
        return d.PIPELINE.group(Group(group_id, kind, buckets))
    return d.PIPELINE.group(Group(group_id, GroupType.SELECT, buckets, fields))


def _by_hash(env: Env, group_id: int, hops: Mapping[int, NextHop], *, hashed: bool) -> Group:
    # The userspace datapath hashes whole connections on all paths (`keeps_width`); fewer bits are untested.
    fields = CONNECTION if env.userspace_conntrack else SOME_BITS
    buckets = (
        Bucket(number, (Output(hop.ofport),), watch_port=hop.ofport if hop.watched else None)
        for number, hop in sorted(hops.items())
    )
    return select_group(group_id, tuple(buckets), fields, hashed=hashed)


def local_gateways(env: Env, group: NextHopGroup) -> Iterator[Group]:
    """Yield the groups that select a gateway of this cluster, and those that prefer the one behind a port."""
    if env.gateway and not group.next_hops:
        return
    hops = {hop.ofport: hop for hop in group.next_hops}
    # A gateway needs no other gateway while none is live (`route.cluster_groups`).
    yield from next_hop_groups(env, e.LOCAL_GATEWAYS, hops, ordered=group.ordered, last_resort=not env.gateway)
    other = watching_bucket(1, None, e.un_dnat(env)) if env.gateway else nested_bucket(1, e.LOCAL_GATEWAYS)
    yield from single_gateway_groups(env, hops)
    for port, hop in sorted(hops.items()):
        # Standby does not count: a reply follows the last request, since others may not know the connection.
        buckets = (watching_bucket(0, hop, to_gateway(env, port)), other)
        yield d.PIPELINE.group(Group(d.GROUP_PREFER.group_id(port), GroupType.FAST_FAILOVER, buckets))
