"""Tables Route, Relay and Exit: to which remote cluster, from here or by a sibling, to which of its gateways."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from flows import actions as act
from flows.actions import DecTtl, Output, Resubmit, ToGroup, set_bits
from flows.fields import destination_in, destination_is, eth_type_of
from flows.flow import Flow, Group, GroupType
from flows.pipeline import declaration as d
from flows.pipeline import registers as r
from flows.pipeline import tables as t
from flows.pipeline.entries import (
    FROM_GATEWAY,
    FROM_HOST,
    LOCAL_GATEWAYS,
    PLAIN,
    TO_LOCAL_GATEWAY,
    base_entry,
    drop,
    entry,
    goto,
)
from flows.pipeline.groups import bucket_ids, candidate, choose, passing_on, watching
from flows.pipeline.values import Env, RemoteCluster, RemoteGateway

Tunnels = Mapping[int, RemoteGateway]  # by the port of this bridge that leads to the gateway


def base(env: Env) -> Iterator[Flow]:
    """Gateway: what a sibling hands on goes out here."""
    if env.local_gateways:
        yield base_entry(t.RELAY, d.SPECIAL, (FROM_GATEWAY,), goto(t.SNAT_TABLE))
    else:
        yield base_entry(t.RELAY, d.NORMAL, (), goto(t.SNAT_TABLE))


def unreachable(c: RemoteCluster) -> Iterator[Flow]:
    """A cluster without a usable gateway: dropped and counted, never sent elsewhere."""
    for net in c.cidrs:
        terms = (eth_type_of(net), destination_in(net))
        yield drop(t.ROUTE, d.PREFIX + net.prefixlen, terms, d.DROP_NO_GATEWAY, c.id)


def by_local_gateway(c: RemoteCluster, cookie: int) -> Iterator[Flow]:
    """Worker: a gateway of this cluster knows how."""
    for net in c.cidrs:
        terms = (eth_type_of(net), FROM_HOST, destination_in(net))
        yield entry(cookie, t.ROUTE, d.PREFIX + net.prefixlen, terms, TO_LOCAL_GATEWAY)


def cluster(env: Env, c: RemoteCluster, cookie: int, tunnels: Tunnels) -> Iterator[Flow]:
    """Gateway: to a gateway of the cluster, chosen by a hash of the connection."""
    snat = (set_bits(r.SNAT, 1),) if c.snat else ()
    to_cluster = (set_bits(r.CLUSTER, c.id), *snat, goto(t.RELAY))
    for net in c.cidrs:
        terms = (eth_type_of(net), destination_in(net))
        yield entry(cookie, t.ROUTE, d.PREFIX + net.prefixlen, terms, *to_cluster)
    of = r.CLUSTER.is_(c.id)
    if env.local_gateways:
        yield entry(cookie, t.RELAY, d.NORMAL, (of,), ToGroup(d.GROUP_RELAY.group_id(c.id)))
    out = (PLAIN, DecTtl(), ToGroup(d.GROUP_CLUSTER.group_id(c.id)))
    for family in r.FAMILIES:
        yield entry(cookie, t.EXIT, d.NORMAL, (family, of), *out)
    # Replies to connections that were SNATed over there go to the gateway that knows them.
    for port, gateway in tunnels.items():
        reply = (eth_type_of(gateway.address), r.REPLY.is_(1), destination_is(gateway.address))
        directly = (PLAIN, DecTtl(), Output(port))
        if env.local_gateways:
            yield entry(cookie, t.ROUTE, d.SPECIAL, reply, ToGroup(d.GROUP_REPLY.group_id(port)))
            yield entry(cookie, t.ROUTE, d.SPECIAL + 1, (*reply, FROM_GATEWAY), *directly)
        else:
            yield entry(cookie, t.ROUTE, d.SPECIAL, reply, *directly)


def cluster_groups(env: Env, c: RemoteCluster, tunnels: Tunnels) -> Iterator[Group]:
    """The choice of a gateway; with siblings, also whether one of them has to relay."""
    ids = bucket_ids(str(gateway.address) for gateway in tunnels.values())
    candidates = [candidate(ids[str(gateway.address)], gateway) for gateway in tunnels.values()]
    yield from choose(d.GROUP_CLUSTER.group_id(c.id), candidates, ordered=c.ordered, last_resort=True)
    if env.local_gateways:
        yield _else_sibling(d.GROUP_RELAY.group_id(c.id), tunnels, Resubmit(t.SNAT_TABLE.number))
        for port, gateway in tunnels.items():
            yield _else_sibling(d.GROUP_REPLY.group_id(port), {port: gateway}, PLAIN, DecTtl(), Output(port))


def _else_sibling(group_id: int, tunnels: Tunnels, *out: act.Action) -> Group:
    """Return a group that does `out` if a tunnel is live, else uses a live sibling, else does it all the same."""
    live = [watching(n, port, gateway.watched, *out) for n, (port, gateway) in enumerate(tunnels.items())]
    buckets = (*live, passing_on(len(live), LOCAL_GATEWAYS), watching(len(live) + 1, r.HOST_PORT, True, *out))
    return d.PIPELINE.group(Group(group_id, GroupType.FAST_FAILOVER, buckets))
