"""Tables Route, Relay, Snat, SnatState and Exit: the gateway and the source address of packets to remote clusters.

Replies and published Pods keep their address; all other packets are SNATed to the gateway's address.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from flows import actions as act
from flows import fields as f
from flows.actions import Ct, DecTtl, Move, Nat, Output, Resubmit, SetField, ToGroup, set_bits, set_whole
from flows.fields import Address, Term, destination_in, eth_type_of, exact, source_in, tcp_flags
from flows.flow import Bucket, Flow, Group, GroupType
from flows.pipeline import declaration as d
from flows.pipeline import entries as e
from flows.pipeline import registers as r
from flows.pipeline import tables as t
from flows.pipeline.groups import (
    bucket_ids,
    nested_bucket,
    next_hop_groups,
    single_gateway_groups,
    to_gateway,
    watching_bucket,
)
from flows.pipeline.values import Env, NextHop, RemoteCluster

Tunnels = Mapping[Address, NextHop]  # by the address of the gateway

_AS_ENDED = set_whole(f.IP_TOS, r.TOS_ENDED)


def base(env: Env) -> Iterator[Flow]:
    """Gateway: send packets that a sibling relays directly."""
    if env.local_gateways:
        yield e.flow(t.RELAY, d.SPECIAL, (e.FROM_GATEWAY,), e.goto(t.SNAT_TABLE))
    else:
        yield e.flow(t.RELAY, d.NORMAL, (), e.goto(t.SNAT_TABLE))
    yield from _snat(env)


def unreachable(c: RemoteCluster) -> Iterator[Flow]:
    """Drop and count packets to a cluster without a usable gateway; they are never sent elsewhere."""
    for net in c.cidrs:
        yield e.drop(t.ROUTE, d.PREFIX + net.prefixlen, destination_in(net), d.DROP_NO_GATEWAY, c.id)


def by_local_gateway(c: RemoteCluster) -> Iterator[Flow]:
    """Worker: send packets to a gateway of this cluster."""
    for net in c.cidrs:
        yield e.flow(t.ROUTE, d.PREFIX + net.prefixlen, (e.FROM_HOST, *destination_in(net)), e.TO_LOCAL_GATEWAY)


def cluster(env: Env, c: RemoteCluster, tunnels: Tunnels) -> Iterator[Flow]:
    """Gateway: send packets to a gateway of the remote cluster, selected by a hash of the connection."""
    snat = (set_bits(r.SNAT, 1),) if c.snat else ()
    to_cluster = (set_bits(r.CLUSTER, c.id), *snat, e.goto(t.RELAY))
    for net in c.cidrs:
        yield e.flow(t.ROUTE, d.PREFIX + net.prefixlen, destination_in(net), *to_cluster)
    to_this_cluster = r.CLUSTER.is_(c.id)
    if env.local_gateways:
        yield e.flow(t.RELAY, d.NORMAL, (to_this_cluster,), ToGroup(d.GROUP_RELAY.group_id(c.id)))
    out = (e.PLAIN, DecTtl(), ToGroup(d.GROUP_CLUSTER.group_id(c.id)))
    for family in r.FAMILIES:
        yield e.flow(t.EXIT, d.NORMAL, (family, to_this_cluster), *out)
    # Replies to connections that a remote gateway SNATed return to that gateway.
    for address, hop in tunnels.items():
        reply = (r.REPLY.is_(1), *destination_in(address))
        directly = (e.PLAIN, DecTtl(), Output(hop.ofport))
        if env.local_gateways:
            yield e.flow(t.ROUTE, d.SPECIAL, reply, ToGroup(d.GROUP_REPLY.group_id(hop.ofport)))
            yield e.flow(t.ROUTE, d.SPECIAL + 1, (*reply, e.FROM_GATEWAY), *directly)
        else:
            yield e.flow(t.ROUTE, d.SPECIAL, reply, *directly)
    if c.snat_address is not None:  # the remote cluster uses another address of this gateway
        opening = (eth_type_of(c.snat_address), to_this_cluster)
        yield from _new_connections(env, d.EXACT, *opening, address=c.snat_address)


def _snat(env: Env) -> Iterator[Flow]:
    """Decide which sources keep their address, and SNAT the others."""
    out = e.goto(t.EXIT)
    yield e.flow(t.SNAT_TABLE, d.SPECIAL, (r.REPLY.is_(1),), out)
    for network in env.published_pods:
        yield e.flow(t.SNAT_TABLE, d.NORMAL, (r.SNAT.is_(0), *source_in(network)), out)
    look_up = Ct(env.zone(r.ZONE_SNAT), table=t.SNAT_STATE.number, nat=Nat())
    for family in r.FAMILIES:
        gateway_ip = next((address for address in env.own_gateway_ips if eth_type_of(address) == family), None)
        if gateway_ip is None:
            continue
        yield e.flow(t.SNAT_TABLE, d.ELSE, (family,), look_up)
        if any(gateway_ip in network for network in env.published_pods):
            # Packets of the remote cluster to a gatewayIP are treated as replies to SNATed connections. So
            # connections of this Node itself are SNATed, too, even if its address is in a published Pod CIDR.
            yield e.flow(t.SNAT_TABLE, d.EXACT, (r.SNAT.is_(0), *source_in(gateway_ip)), look_up)
        yield e.flow(t.SNAT_STATE, d.NORMAL, (family, e.REQUEST), out)
        ended = (family, e.REQUEST, exact(f.IP_PROTO, f.IP_TCP), r.LABEL_ENDED.is_(1))
        yield e.flow(t.SNAT_STATE, d.NORMAL + 1, ended, _AS_ENDED, out)
        yield from _new_connections(env, d.NORMAL, family, address=gateway_ip)
        if env.userspace_conntrack:
            # The source has that address already. A translation to itself crashes Open vSwitch 3.1 if such a
            # connection has expired and is not swept (conn_key_lookup in lib/conntrack.c finds its NAT entry
            # instead).
            yield e.flow(t.SNAT_STATE, d.NORMAL + 2, (e.NEW, *source_in(gateway_ip)), _commit(env, None))


def _new_connections(env: Env, priority: int, *terms: Term, address: Address) -> Iterator[Flow]:
    """SNAT new connections to an address of this gateway, and store their ingress port.

    A TCP connection that begins here with another packet than a SYN was SNATed by another gateway, to another
    address. The server does not know it with this address, and must reset it: else the client would wait until its
    own timeout (15 minutes, tcp(7), tcp_retries2).
    """
    translation = Nat("src", address, *env.snat_ports)
    yield e.flow(t.SNAT_STATE, priority, (*terms, e.NEW), _commit(env, translation))
    ended = (*terms, e.NEW, exact(f.IP_PROTO, f.IP_TCP), tcp_flags("-syn"))
    commit = _commit(env, translation, set_bits(r.LABEL_ENDED, 1))
    yield e.flow(t.SNAT_STATE, priority + 1, ended, _AS_ENDED, commit)


def _commit(env: Env, nat: Nat | None, *label_writes: SetField) -> Ct:
    remember: tuple[Move | SetField, ...] = (Move(r.INGRESS_PORT, r.LABEL_PORT), *label_writes)
    return Ct(env.zone(r.ZONE_SNAT), t.EXIT.number, commit=True, nat=nat, exec_=remember)


def cluster_groups(env: Env, c: RemoteCluster, tunnels: Tunnels) -> Iterator[Group]:
    """Yield the groups that select a remote gateway, and, with siblings, decide whether one of them relays."""
    ids = bucket_ids(map(str, tunnels))
    numbered = {ids[str(address)]: hop for address, hop in tunnels.items()}
    yield from next_hop_groups(env, d.GROUP_CLUSTER.group_id(c.id), numbered, ordered=c.ordered, last_resort=True)
    if env.local_gateways:
        yield from single_gateway_groups(env, (hop.ofport for hop in tunnels.values()))
        relay = d.GROUP_RELAY.group_id(c.id)
        if c.by is None:
            yield _group_with_sibling(relay, tunnels.values(), Resubmit(t.SNAT_TABLE.number))
        else:  # used even if BFD is down: the cluster answers no other gateway
            yield d.PIPELINE.group(Group(relay, GroupType.INDIRECT, (Bucket(0, (Output(c.by),)),)))
        for hop in tunnels.values():
            to_it = (e.PLAIN, DecTtl(), to_gateway(env, hop.ofport))
            yield _group_with_sibling(d.GROUP_REPLY.group_id(hop.ofport), (hop,), *to_it)


def _group_with_sibling(group_id: int, hops: Collection[NextHop], *out: act.Action) -> Group:
    """Return a group that executes `out` if a tunnel is live, else uses a live sibling, else executes `out`."""
    live = [watching_bucket(n, hop, *out) for n, hop in enumerate(hops)]
    buckets = (*live, nested_bucket(len(live), e.LOCAL_GATEWAYS), watching_bucket(len(live) + 1, None, *out))
    return d.PIPELINE.group(Group(group_id, GroupType.FAST_FAILOVER, buckets))
