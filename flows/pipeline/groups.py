"""Groups that choose one of several gateways, by liveness alone: no agent is needed when one dies."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from flows import actions as act
from flows.actions import Output, ToGroup
from flows.fields import (
    IP_PROTO,
    IPV4_DST,
    IPV4_SRC,
    IPV6_DST,
    IPV6_SRC,
    SCTP_DST,
    SCTP_SRC,
    TCP_DST,
    TCP_SRC,
    Field,
)
from flows.flow import Bucket, Group, GroupType
from flows.pipeline import declaration as d
from flows.pipeline import registers as r
from flows.pipeline.entries import LOCAL_GATEWAYS, un_dnat
from flows.pipeline.values import Env, NextHop, NextHopGroup, RemoteGateway

# What a choice among gateways is hashed over. UDP ports are left out on purpose: later fragments have none, and
# all fragments of a datagram must meet at one gateway to be translated (network cards hash UDP like this, too).
# In the order in which OVS keeps and prints the fields.
CONNECTION: tuple[Field, ...] = (
    IPV4_SRC, IPV4_DST, IPV6_SRC, IPV6_DST, IP_PROTO, TCP_SRC, TCP_DST, SCTP_SRC, SCTP_DST,
)  # fmt: skip
_NUMBER = 0xFFFFFF
_MAX_BUCKET = 0x7FFFFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A port that can be chosen; `number` decides with the hash, and is the same wherever that matters."""

    number: int
    ofport: int
    watched: bool
    standby: bool


def candidate(number: int, way: NextHop | RemoteGateway) -> Candidate:
    """Return the tunnel as a candidate."""
    assert way.ofport is not None
    return Candidate(number=number, ofport=way.ofport, watched=way.watched, standby=way.standby)


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


def choose(group_id: int, candidates: Sequence[Candidate], *, ordered: bool, last_resort: bool) -> Iterator[Group]:
    """Yield the group that chooses, and those it needs. `ordered`: the first live one in the order given.

    All on standby is the same as none on standby. `last_resort`: nobody looks elsewhere when none of these is
    live; then those that are not on standby are used all the same. A false alarm (a busy Node that answers BFD
    late, or sessions that have to begin anew because our own ovs-vswitchd was restarted) would drop packets that
    arrive, and a true one loses nothing that another way would have saved. Those on standby have been gone for
    longer, or somebody asked to leave them.
    """
    if last_resort and len(candidates) == 1:
        candidates = (replace(candidates[0], watched=False),)
    last_resort = last_resort and all(one.watched for one in candidates)
    first = tuple(one for one in candidates if not one.standby)
    rest = tuple(one for one in candidates if one.standby) if first else ()
    first = first or tuple(candidates)
    if ordered:
        order = (*first, *rest, *([replace(first[0], watched=False)] if last_resort and first else []))
        buckets = (watching(n, one.ofport, one.watched, Output(one.ofport)) for n, one in enumerate(order))
        yield d.PIPELINE.group(Group(group_id, GroupType.FAST_FAILOVER, tuple(buckets)))
        return
    levels = [(d.GROUP_FIRST, first)]
    if rest:
        levels.append((d.GROUP_STANDBY, rest))
    if last_resort and first:
        # The same numbers: what is hashed to one goes to the same one when it is live again.
        levels.append((d.GROUP_ANY, tuple(replace(one, watched=False) for one in first)))
    if len(levels) == 1:
        yield _by_hash(group_id, first)
        return
    numbers = [kind.group_id(group_id & _NUMBER) for kind, _ in levels]
    for number, (_, level) in zip(numbers, levels, strict=True):
        yield _by_hash(number, level)
    nested = tuple(passing_on(n, number) for n, number in enumerate(numbers))
    yield d.PIPELINE.group(Group(group_id, GroupType.FAST_FAILOVER, nested))


def watching(number: int, ofport: int, watched: bool, *actions: act.Action) -> Bucket:
    """Return a bucket of a fast-failover group.

    Such a bucket must watch something (ofp-group.c, ofputil_check_group_mod): where liveness is not known, our
    own port, which is there as long as there is anything to send.
    """
    return Bucket(number, actions, watch_port=ofport if watched else r.HOST_OFPORT)


def passing_on(number: int, group_id: int) -> Bucket:
    """Return a bucket of a fast-failover group that leads to another group while anything in that is live."""
    return Bucket(number, (ToGroup(group_id),), watch_group=group_id)


def select(group_id: int, buckets: tuple[Bucket, ...], fields: tuple[Field, ...] = CONNECTION) -> Group:
    """Return a group that chooses a live bucket by a hash of `fields`.

    Where there is one bucket only, nothing is hashed: a hash makes every connection a flow of its own in the
    datapath, with an upcall to ovs-vswitchd (pick_hash_select_group un-wildcards what it hashes).
    """
    if len(buckets) == 1:
        watches = buckets[0].watch_port is not None or buckets[0].watch_group is not None
        kind = GroupType.FAST_FAILOVER if watches else GroupType.INDIRECT
        return d.PIPELINE.group(Group(group_id, kind, buckets))
    group = Group(group_id, GroupType.SELECT, buckets, selection_method="hash", fields=fields)
    return d.PIPELINE.group(group)


def _by_hash(group_id: int, candidates: Sequence[Candidate]) -> Group:
    ordered = sorted(candidates, key=lambda one: one.number)
    return select(
        group_id,
        tuple(
            Bucket(one.number, (Output(one.ofport),), watch_port=one.ofport if one.watched else None)
            for one in ordered
        ),
    )


def local_gateways(env: Env, group: NextHopGroup) -> Iterator[Group]:
    """Yield the groups that choose a gateway of this cluster, and that prefer the one behind a port."""
    if env.gateway and not group.next_hops:
        return
    candidates = [candidate(hop.ofport, hop) for hop in group.next_hops]
    # A gateway is one itself: while no other one is live it needs none (`route.cluster_groups`).
    yield from choose(LOCAL_GATEWAYS, candidates, ordered=group.ordered, last_resort=not env.gateway)
    other = watching(1, r.HOST_OFPORT, True, un_dnat(env)) if env.gateway else passing_on(1, LOCAL_GATEWAYS)
    for hop in sorted(group.next_hops, key=lambda hop: hop.ofport):
        # Also to one on standby: a reply follows the last request, and other gateways may not know the connection.
        buckets = (watching(0, hop.ofport, hop.watched, Output(hop.ofport)), other)
        yield d.PIPELINE.group(Group(d.GROUP_PREFER.group_id(hop.ofport), GroupType.FAST_FAILOVER, buckets))
