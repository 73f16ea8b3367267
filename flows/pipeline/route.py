"""Tables Route, Relay, Snat, SnatState and Exit: towards another cluster, by which gateway, from which address.

Replies and Pods that the other cluster may see keep their address; everything else takes the gateway's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ipaddress import ip_network

from flows import actions as act
from flows.actions import Ct, DecTtl, Move, Nat, Output, Resubmit, ToGroup, set_bits
from flows.fields import Address, destination_in, destination_is, eth_type_of, source_in
from flows.flow import Flow, Group, GroupType
from flows.pipeline import declaration as d
from flows.pipeline import registers as r
from flows.pipeline import tables as t
from flows.pipeline.entries import (
    FROM_GATEWAY,
    FROM_HOST,
    LOCAL_GATEWAYS,
    NEW,
    PLAIN,
    REQUEST,
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
    yield from _snat(env)


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
    yield from _cluster_snat(env, c, cookie)


def _snat(env: Env) -> Iterator[Flow]:
    """Who keeps an address, and how one is given."""
    out = goto(t.EXIT)
    yield base_entry(t.SNAT_TABLE, d.SPECIAL, (r.REPLY.is_(1),), out)
    for network in env.published_pods:
        terms = (eth_type_of(network), r.SNAT.is_(0), source_in(network))
        yield base_entry(t.SNAT_TABLE, d.NORMAL, terms, out)
    look_up = Ct(env.zones.snat, table=t.SNAT_STATE.number, nat=Nat())
    for family in r.FAMILIES:
        own = next((address for address in env.own_gateway_ips if eth_type_of(address) == family), None)
        if own is None:
            continue
        yield base_entry(t.SNAT_TABLE, d.ELSE, (family,), look_up)
        if any(own in network for network in env.published_pods if eth_type_of(network) == family):
            # What the other cluster sends to a gatewayIP is taken for a reply to a SNATed connection: so must be
            # those that this Node opens by itself, even if its address counts as a Pod's.
            yield base_entry(t.SNAT_TABLE, d.EXACT, (family, r.SNAT.is_(0), source_in(ip_network(own))), look_up)
        yield base_entry(t.SNAT_STATE, d.NORMAL, (family, REQUEST), out)
        yield base_entry(t.SNAT_STATE, d.NORMAL, (family, NEW), _translate(env, own))


def _cluster_snat(env: Env, c: RemoteCluster, cookie: int) -> Iterator[Flow]:
    """A cluster that knows this gateway by another address."""
    if c.snat_address is not None:
        opening = (eth_type_of(c.snat_address), NEW, r.CLUSTER.is_(c.id))
        yield entry(cookie, t.SNAT_STATE, d.EXACT, opening, _translate(env, c.snat_address))


def _translate(env: Env, address: Address) -> Ct:
    """Give a new connection the gateway's address, and remember the port it came from."""
    return Ct(
        env.zones.snat,
        table=t.EXIT.number,
        commit=True,
        nat=Nat("src", address),
        exec_=(Move(r.INGRESS_PORT, r.LABEL_PORT),),
    )


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
    buckets = (*live, passing_on(len(live), LOCAL_GATEWAYS), watching(len(live) + 1, r.HOST_OFPORT, True, *out))
    return d.PIPELINE.group(Group(group_id, GroupType.FAST_FAILOVER, buckets))
