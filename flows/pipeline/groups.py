"""Groups that choose one of several gateways, by liveness alone: no agent is needed when one dies."""

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

# What a choice among gateways is hashed over. UDP ports are left out on purpose: later fragments have none, and
# all fragments of a datagram must meet at one gateway to be translated (network cards hash UDP like this, too).
# In the order in which OVS keeps and prints the fields.
CONNECTION = (
    f.IPV4_SRC, f.IPV4_DST, f.IPV6_SRC, f.IPV6_DST, f.IP_PROTO, f.TCP_SRC, f.TCP_DST, f.SCTP_SRC, f.SCTP_DST,
)  # fmt: skip
_NUMBER = 0xFFFFFF
_MAX_BUCKET = 0x7FFFFFFF


def bucket_ids(names: Iterable[str]) -> dict[str, int]:
    """Return a number per name that depends on the name alone, but where two names hash to one number.

    OVS scores a bucket by a hash of its number and the connection (group_best_live_bucket in its
    ofproto-dpif-xlate.c), so that gateways with the same numbers choose alike, and few connections move
    when one name comes or goes.
    """
    taken: dict[int, str] = {}
    for name in sorted(set(names)):
        number = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest()) & _MAX_BUCKET
        while number in taken:
            number = (number + 1) & _MAX_BUCKET
        taken[number] = name
    return {name: number for number, name in taken.items()}


def choose(
    env: Env, group_id: int, hops: Mapping[int, NextHop], *, ordered: bool, last_resort: bool
) -> Iterator[Group]:
    """Yield the group that chooses, and those it needs. `ordered`: the first live one in the order given.

    Else the numbers of the next hops decide with the hash; they are the same wherever that matters.
    All on standby is the same as none on standby. `last_resort`: nobody looks elsewhere when none of these is
    live; then those that are not on standby are used all the same. A false alarm (a busy Node that answers BFD
    late, or sessions that have to begin anew because our own ovs-vswitchd was restarted) would drop packets that
    arrive, and a true one loses nothing that another way would have saved. Those on standby have been gone for
    longer, or somebody asked to leave them.
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
        buckets = tuple(watching(n, hop, Output(hop.ofport)) for n, hop in enumerate(order))
        yield d.PIPELINE.group(Group(group_id, GroupType.FAST_FAILOVER, buckets))
        return
    levels = {d.GROUP_FIRST.group_id(group_id & _NUMBER): first}
    if standby:
        levels[d.GROUP_STANDBY.group_id(group_id & _NUMBER)] = standby
    if last_resort and first:
        # The same numbers: what is hashed to one goes to the same one when it is live again.
        levels[d.GROUP_ANY.group_id(group_id & _NUMBER)] = _unwatched(first)
    if len(levels) == 1:
        yield _by_hash(group_id, first, hashed=hashed)
        return
    for number, level in levels.items():
        yield _by_hash(number, level, hashed=hashed)
    nested = tuple(passing_on(n, number) for n, number in enumerate(levels))
    yield d.PIPELINE.group(Group(group_id, GroupType.FAST_FAILOVER, nested))


def keeps_width(env: Env) -> bool:
    """Tell whether every way to a gateway hashes the connection, also one that nothing is chosen for.

    So it is on the userspace datapath where there is another way: as gateways fail and return, packets change
    between a choice, which hashes, and a way without one. The datapath's flows would be narrow at one time and
    wide at another. Where a narrow one and a wide one overlap, Open vSwitch 3.1 may change the actions of the
    wrong one (flow_put_on_pmd in its lib/dpif-netdev.c looks a flow up by a packet), and connections keep going to
    a gateway that is lost.
    """
    return env.userspace_conntrack and len(env.local_gateways) > (0 if env.gateway else 1)


def to_gateway(env: Env, port: int) -> act.Action:
    """Return the action that sends a packet to the gateway behind a port, without a choice."""
    return ToGroup(d.GROUP_GATEWAYS.group_id(port)) if keeps_width(env) else Output(port)


def single(env: Env, ports: Iterable[int]) -> Iterator[Group]:
    """Yield the groups that `to_gateway` needs."""
    if keeps_width(env):
        for port in sorted(ports):
            yield select(d.GROUP_GATEWAYS.group_id(port), (Bucket(port, (Output(port),)),), hashed=True)


def _unwatched(hops: Mapping[int, NextHop]) -> dict[int, NextHop]:
    return {number: replace(hop, watched=False) for number, hop in hops.items()}


def watching(number: int, hop: NextHop | None, *actions: act.Action) -> Bucket:
    """Return a bucket of a fast-failover group, for a next hop or for what needs none.

    Such a bucket must watch something (ofp-group.c, ofputil_check_group_mod): where liveness is not known, our
    own port, which is there as long as there is anything to send.
    """
    return Bucket(number, actions, watch_port=hop.ofport if hop and hop.watched else r.HOST_OFPORT)


def passing_on(number: int, group_id: int) -> Bucket:
    """Return a bucket of a fast-failover group that leads to another group while anything in that is live."""
    return Bucket(number, (ToGroup(group_id),), watch_group=group_id)


def select(
    group_id: int,
    buckets: tuple[Bucket, ...],
    fields: tuple[f.MatchField, ...] = CONNECTION,
    *,
    hashed: bool = False,
) -> Group:
    """Return a group that chooses a live bucket by a hash of `fields`.

    Where there is one bucket only, nothing is hashed unless `hashed`: a hash makes every connection a flow of its
    own in the datapath, with an upcall to ovs-vswitchd (pick_hash_select_group un-wildcards what it hashes).
    """
    if len(buckets) == 1 and not hashed:
        watches = buckets[0].watch_port is not None or buckets[0].watch_group is not None
        kind = GroupType.FAST_FAILOVER if watches else GroupType.INDIRECT
        return d.PIPELINE.group(Group(group_id, kind, buckets))
    return d.PIPELINE.group(Group(group_id, GroupType.SELECT, buckets, fields))


def _by_hash(group_id: int, hops: Mapping[int, NextHop], *, hashed: bool) -> Group:
    buckets = (
        Bucket(number, (Output(hop.ofport),), watch_port=hop.ofport if hop.watched else None)
        for number, hop in sorted(hops.items())
    )
    return select(group_id, tuple(buckets), hashed=hashed)


def local_gateways(env: Env, group: NextHopGroup) -> Iterator[Group]:
    """Yield the groups that choose a gateway of this cluster, and that prefer the one behind a port."""
    if env.gateway and not group.next_hops:
        return
    hops = {hop.ofport: hop for hop in group.next_hops}
    # A gateway is one itself: while no other one is live it needs none (`route.cluster_groups`).
    yield from choose(env, e.LOCAL_GATEWAYS, hops, ordered=group.ordered, last_resort=not env.gateway)
    other = watching(1, None, e.un_dnat(env)) if env.gateway else passing_on(1, e.LOCAL_GATEWAYS)
    yield from single(env, hops)
    for port, hop in sorted(hops.items()):
        # Also to one on standby: a reply follows the last request, and other gateways may not know the connection.
        buckets = (watching(0, hop, to_gateway(env, port)), other)
        yield d.PIPELINE.group(Group(d.GROUP_PREFER.group_id(port), GroupType.FAST_FAILOVER, buckets))
