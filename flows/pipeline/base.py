"""Builds what every Node has: the flows that depend on its role, its gateways and this cluster's networks only."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_network

from flows import actions as act
from flows.actions import Ct, DecTtl, Goto, Move, Nat, Output, OutputBits, ToGroup, set_bits, set_whole
from flows.declare import Category, Table
from flows.fields import (
    ETH_DST,
    ETH_SRC,
    IN_PORT,
    IP_PROTO,
    IP_TCP,
    IP_TOS,
    PKT_MARK,
    PORT_CONTROLLER,
    Address,
    Term,
    ct_state,
    destination_in,
    destination_is,
    eth_type_of,
    exact,
    source_in,
    tcp_flags,
)
from flows.flow import Flow, Group, GroupType
from flows.pipeline import declaration as d
from flows.pipeline.choice import candidate, choose, passing_on, watching
from flows.pipeline.values import Entries, Env, NextHop, NextHopGroup

# A packet keeps its kernel mark (skb->mark) through encapsulation and decapsulation (skb_scrub_packet in
# net/core/skbuff.c clears it between namespaces only). Ours, or a CNI's, must not steer the tunnel's own packets.
UNMARKED = set_whole(PKT_MARK, 0)
PLAIN = set_whole(ETH_DST, d.MAC_PLAIN)
AS_TRANSLATED = set_whole(ETH_DST, d.MAC_TRANSLATED)
AS_REPLY = (set_whole(ETH_DST, d.MAC_REPLY), set_bits(d.REPLY, 1))
# The number of the connection's Service is written where it was remembered; un-translated, a packet loses it.
NUMBERED = (set_whole(ETH_SRC, d.MAC_SERVICE), Move(d.LABEL_SERVICE, d.SERVICE_ID))
UNTRANSLATED = (set_whole(ETH_SRC, d.HOST_MAC), *AS_REPLY)
FROM_HOST, FROM_NODE, FROM_GATEWAY, FROM_REMOTE = (d.ORIGIN.is_(n) for n in (1, 2, 3, 4))
LOCAL_GATEWAYS = d.GROUP_GATEWAYS.group_id(0)

_COOKIE = d.COOKIES.cookie(d.FOR_BASE)
STATE_NEW, _STATE_EST = ct_state("+new-rpl+trk"), ct_state("+est-rpl+trk")
_STATE_OPENER, _STATE_REPLY = ct_state("-new-rpl-inv+trk"), ct_state("-inv+rpl+trk")
_STATE_REVERSED = ct_state("-rel-inv+rpl+trk")
_STATE_INVALID, _STATE_TRACKED, _STATE_TRANSLATED = ct_state("+inv+trk"), ct_state("+trk"), ct_state("+trk+dnat")


def mac(value: int) -> Term:
    """Return the condition on the destination MAC."""
    return exact(ETH_DST, value)


def untranslate_service(env: Env) -> Ct:
    """Return the pass through conntrack that undoes what this gateway translated."""
    return Ct(env.zones.service, table=d.UN_DNAT.number, nat=Nat())


def entry(cookie: int, table: Table, priority: int, terms: tuple[Term, ...], *actions: act.Action) -> Flow:
    """Return a flow of the pipeline."""
    return d.PIPELINE.flow(table, priority, terms, actions, cookie=cookie)


def _flow(table: Table, priority: int, terms: tuple[Term, ...], *actions: act.Action) -> Flow:
    return entry(_COOKIE, table, priority, terms, *actions)


def drop(table: Table, priority: int, terms: tuple[Term, ...], why: Category, number: int = 0) -> Flow:
    """Return a flow that drops and whose counter says why."""
    return d.PIPELINE.flow(table, priority, terms, act.DROP, cookie=d.COOKIES.cookie(why, number))


def base(env: Env, group: NextHopGroup | None = None) -> Entries:
    """Return what does not depend on single clusters, Nodes or Services.

    `choice` has a way for every port in `env.local_gateways`; by default all are alike, and watched.
    """
    flows = [*_drops(), *_classify(env), *_asked(env), *_arrive(env), *_departure(env)]
    flows.append(_flow(d.OUTPUT, d.NORMAL, (d.TRANSLATED.is_(1),), AS_TRANSLATED, OutputBits(d.EGRESS_PORT)))
    flows.append(_flow(d.OUTPUT, d.NORMAL, (d.TRANSLATED.is_(0),), PLAIN, OutputBits(d.EGRESS_PORT)))
    if env.gateway:
        flows.extend(_untranslate(env))
        flows.extend(_snat(env))
    return Entries(flows=tuple(flows), groups=tuple(_groups(env, group or _all_alike(env))))


def _all_alike(env: Env) -> NextHopGroup:
    return NextHopGroup(next_hops=tuple(NextHop(ofport=port) for port in env.local_gateways))


def _classify(env: Env) -> Iterator[Flow]:
    """From the host and from the gateways of this cluster. Other ports come with their Node or cluster."""
    source = Goto(d.SOURCE.number)
    for family in d.FAMILIES:
        terms = (exact(IN_PORT, d.HOST_PORT), family, mac(d.MAC_PLAIN))
        host = (UNMARKED, set_bits(d.ORIGIN, d.ORIGIN_HOST), set_bits(d.INGRESS_PORT, d.HOST_PORT))
        yield _flow(d.CLASSIFY, d.NORMAL, terms, *host, source)
        for port in env.local_gateways:
            gateway = (UNMARKED, set_bits(d.ORIGIN, d.ORIGIN_GATEWAY), set_bits(d.INGRESS_PORT, port))
            yield _flow(d.CLASSIFY, d.NORMAL, (exact(IN_PORT, port), family), *gateway, source)


def _asked(env: Env) -> Iterator[Flow]:
    """What the agent asks clients in the name of endpoints goes the way of replies, by any gateway.

    (`mcagent.core.probes` says what is asked, and when.) By the agent only: no packet comes in by this port. A
    client that is asked for a connection that it does not have refuses with a reset, which would end the one that
    it has in the eyes of the userspace datapath's conntrack.
    """
    for family in d.FAMILIES:
        refused = (family, exact(IP_PROTO, IP_TCP), exact(IP_TOS, d.TOS_ASKED), tcp_flags("+rst"))
        yield drop(d.CLASSIFY, d.SPECIAL, refused, d.DROP_REFUSED)
        host = set_bits(d.ORIGIN, d.ORIGIN_HOST)
        for what in (d.MAC_TRANSLATED, d.MAC_REPLY):
            terms = (exact(IN_PORT, PORT_CONTROLLER), family, mac(what))
            if not env.gateway:
                yield _flow(d.CLASSIFY, d.NORMAL, terms, UNMARKED, ToGroup(LOCAL_GATEWAYS))
            elif what == d.MAC_TRANSLATED:
                yield _flow(d.CLASSIFY, d.NORMAL, terms, UNMARKED, host, Goto(d.UN_DNAT.number))
            else:
                yield _flow(d.CLASSIFY, d.NORMAL, terms, UNMARKED, host, *AS_REPLY, Goto(d.ROUTE.number))


def _drops() -> Iterator[Flow]:
    for table in d.TABLES:
        why = d.MISS.get(table.number, d.DROP_MISS)
        yield drop(table, d.LOWEST, (), why, table.number)
    for origin in (d.ORIGIN_HOST, d.ORIGIN_NODE, d.ORIGIN_GATEWAY):
        yield drop(d.SOURCE, d.ELSE, (d.ORIGIN.is_(origin),), d.DROP_SPOOFED, origin)


def _departure(env: Env) -> Iterator[Flow]:
    """From the host, after conntrack in zone ARRIVAL."""
    table, route = d.DEPARTURE, Goto(d.ROUTE.number)
    for family in d.FAMILIES:
        yield drop(table, d.SPECIAL, (family, _STATE_INVALID), d.DROP_INVALID, table.number)
        # Committed, or the replies would look like connections opened by the other side.
        yield _flow(table, d.NORMAL, (family, STATE_NEW), Ct(env.zones.arrival, commit=True), route)
        yield _flow(table, d.NORMAL, (family, _STATE_OPENER), route)
        to_undo = (AS_TRANSLATED, *NUMBERED)
        translated, raw = d.MARK_TRANSLATED.is_(1), d.MARK_TRANSLATED.is_(0)
        for port in env.local_gateways:
            ingress_port, prefer = d.MARK_PORT.is_(port), ToGroup(d.GROUP_PREFER.group_id(port))
            yield _flow(table, d.EXACT, (family, _STATE_REPLY, ingress_port, translated), *to_undo, prefer)
            if not env.gateway:
                yield _flow(table, d.EXACT, (family, _STATE_REPLY, ingress_port, raw), *AS_REPLY, prefer)
        # Came in by this Node itself, or by a gateway that is no more.
        if env.gateway:
            undo = untranslate_service(env)
            yield _flow(table, d.NORMAL, (family, _STATE_REPLY, translated), *to_undo, undo)
            yield _flow(table, d.NORMAL, (family, _STATE_REPLY, raw), *AS_REPLY, route)
        else:
            anyone = ToGroup(LOCAL_GATEWAYS)
            yield _flow(table, d.NORMAL, (family, _STATE_REPLY, translated), *to_undo, anyone)
            yield _flow(table, d.NORMAL, (family, _STATE_REPLY, raw), *AS_REPLY, anyone)


def _arrive(env: Env) -> Iterator[Flow]:
    """Into this Node's kernel, by way of conntrack in zone ARRIVAL."""
    track = Ct(env.zones.arrival, table=d.ADMIT.number)
    mark = (Move(d.INGRESS_PORT, d.MARK_PORT), Move(d.TRANSLATED, d.MARK_TRANSLATED))
    # The Service is kept with the mark and not compared by itself: a connection has one as long as it lives.
    number = Move(d.SERVICE_ID, d.LABEL_SERVICE)
    remember = {0: mark, 1: (*mark, number)}
    # By the source MAC the kernel tells what was translated (`mct_nodes` in nft). There it stays: to write
    # it would make every Service a flow of its own in the datapath. Else it is whatever another cluster wrote.
    to_kernel = (set_whole(ETH_DST, d.HOST_MAC), Output(d.HOST_PORT))
    deliver = {0: (set_whole(ETH_SRC, d.MAC_PLAIN), *to_kernel), 1: to_kernel}
    for family in d.FAMILIES:
        yield _flow(
            d.ARRIVE, d.NORMAL, (family, FROM_GATEWAY, mac(d.MAC_TRANSLATED)), set_bits(d.TRANSLATED, 1), track
        )
        yield _flow(d.ARRIVE, d.ELSE, (family, FROM_GATEWAY), track)
        if env.gateway:  # the way back is by this Node itself
            yield _flow(d.ARRIVE, d.NORMAL, (family, FROM_REMOTE), set_bits(d.INGRESS_PORT, d.HOST_PORT), track)
        yield _flow(d.ADMIT, d.ELSE, (family,), Goto(d.ARRIVE_STATE.number))
        table = d.ARRIVE_STATE
        for state in (STATE_NEW, _STATE_EST):
            for bit, kept in remember.items():
                commit = Ct(env.zones.arrival, commit=True, exec_=kept)
                yield _flow(table, d.NORMAL, (family, state, d.TRANSLATED.is_(bit)), commit, *deliver[bit])
        # A request that is called a reply: conntrack was lost (with the userspace datapath's process), and the
        # server spoke first since. Only requests are translated by a gateway, so their direction is sure.
        turned = Ct(env.zones.arrival, commit=True, force=True, exec_=(*mark, number))
        yield _flow(table, d.NORMAL, (family, _STATE_REVERSED, d.TRANSLATED.is_(1)), turned, *deliver[1])
        for port in (*((d.HOST_PORT,) if env.gateway else ()), *env.local_gateways):
            for bit in (0, 1):
                same = (
                    d.INGRESS_PORT.is_(port),
                    d.MARK_PORT.is_(port),
                    d.TRANSLATED.is_(bit),
                    d.MARK_TRANSLATED.is_(bit),
                )
                yield _flow(table, d.EXACT, (family, _STATE_EST, *same), *deliver[bit])
        for bit in (0, 1):
            yield _flow(table, d.ELSE, (family, _STATE_TRACKED, d.TRANSLATED.is_(bit)), *deliver[bit])


def _untranslate(env: Env) -> Iterator[Flow]:
    """Gateway: tables Untranslate, UnSnat, Service (all but the Services), Client, UnDnat."""
    table, route = d.UNTRANSLATE, Goto(d.ROUTE.number)
    undo_snat = Ct(env.zones.snat, table=d.UN_SNAT.number, nat=Nat())
    to_service = Ct(env.zones.service, table=d.ADMIT_SERVICE.number, nat=Nat())
    for address in env.own_gateway_ips:
        yield _flow(table, d.SPECIAL, (eth_type_of(address), FROM_REMOTE, destination_is(address)), undo_snat)
    for network in env.service_cidrs:
        terms = (eth_type_of(network), FROM_REMOTE, destination_in(network))
        yield _flow(table, d.PREFIX + network.prefixlen, terms, to_service)
        # A sibling that lost the other cluster relays the replies of Services that it un-translated.
        if env.local_gateways:
            terms = (eth_type_of(network), FROM_GATEWAY, source_in(network))
            yield _flow(d.SOURCE, d.PREFIX + network.prefixlen, terms, Goto(table.number))
    for network in env.published_pods:
        terms = (eth_type_of(network), FROM_REMOTE, destination_in(network))
        yield _flow(table, d.PREFIX + network.prefixlen, terms, Goto(d.DELIVER.number))
    for family in d.FAMILIES:
        for origin in (FROM_NODE, FROM_GATEWAY):
            yield _flow(table, d.NORMAL, (family, origin, mac(d.MAC_PLAIN)), route)
            yield _flow(table, d.NORMAL, (family, origin, mac(d.MAC_REPLY)), set_bits(d.REPLY, 1), route)
            yield _flow(table, d.NORMAL, (family, origin, mac(d.MAC_TRANSLATED)), untranslate_service(env))
        back = Move(d.LABEL_PORT, d.EGRESS_PORT)
        yield _flow(
            d.UN_SNAT, d.NORMAL, (family, _STATE_REPLY, d.LABEL_PORT.is_(d.HOST_PORT)), Goto(d.ARRIVE.number)
        )
        yield _flow(d.UN_SNAT, d.ELSE, (family, _STATE_REPLY), DecTtl(), back, Goto(d.OUTPUT.number))
        yield _flow(d.ADMIT_SERVICE, d.ELSE, (family,), Goto(d.SERVICE.number))
        known = set_bits(d.TRANSLATED, 1)
        # Not "established": the userspace datapath translates, but calls a UDP connection new until a reply.
        yield _flow(d.SERVICE, d.EXACT, (family, _STATE_TRANSLATED), known, *NUMBERED, Goto(d.CLIENT.number))
        yield from _client(env, family)
        yield drop(d.SERVICE, d.ELSE, (family, STATE_NEW), d.DROP_NOT_EXPORTED)
        yield _flow(d.UN_DNAT, d.NORMAL, (family, _STATE_REPLY), *UNTRANSLATED, route)


def _client(env: Env, family: Term) -> Iterator[Flow]:
    """Table Client: give a client its port back, where conntrack has another one for it.

    A label costs a flow for each connection in the datapath, so a port that is as it came is forgotten.
    """
    deliver = Goto(d.DELIVER.number)
    forget = Ct(env.zones.service, commit=True, exec_=(set_bits(d.LABEL_CLIENT_PORT, 0),))
    for protocol, port in d.SOURCE_PORTS.items():
        of = (family, exact(IP_PROTO, protocol))
        if env.client_ports_move:
            for bits in range(1 << d.LOW_BITS):
                same = (STATE_NEW, d.LOW_OF_LABEL.is_(bits), d.LOW_OF_SOURCE_PORTS[protocol].is_(bits))
                yield _flow(d.CLIENT, d.SPECIAL, (*of, *same), forget, deliver)
        yield _flow(d.CLIENT, d.NORMAL, of, Move(d.LABEL_CLIENT_PORT, port), deliver)
    yield _flow(d.CLIENT, d.EXACT, (family, d.LABEL_CLIENT_PORT.is_(0)), deliver)
    yield _flow(d.CLIENT, d.ELSE, (family,), deliver)  # an ICMP error about such a connection


def _snat(env: Env) -> Iterator[Flow]:
    """Gateway: tables Relay (all but the clusters), Snat and SnatState."""
    out, keep = Goto(d.EXIT.number), Goto(d.EXIT.number)
    if env.local_gateways:
        yield _flow(d.RELAY, d.SPECIAL, (FROM_GATEWAY,), Goto(d.SNAT_TABLE.number))
    else:
        yield _flow(d.RELAY, d.NORMAL, (), Goto(d.SNAT_TABLE.number))
    yield _flow(d.SNAT_TABLE, d.SPECIAL, (d.REPLY.is_(1),), keep)
    for network in env.published_pods:
        terms = (eth_type_of(network), d.SNAT.is_(0), source_in(network))
        yield _flow(d.SNAT_TABLE, d.NORMAL, terms, keep)
    for family in d.FAMILIES:
        own = next((address for address in env.own_gateway_ips if eth_type_of(address) == family), None)
        if own is None:
            continue
        look_up = Ct(env.zones.snat, table=d.SNAT_STATE.number, nat=Nat())
        yield _flow(d.SNAT_TABLE, d.ELSE, (family,), look_up)
        if any(own in network for network in env.published_pods if eth_type_of(network) == family):
            # What the other cluster sends to a gatewayIP is taken for a reply to a SNATed connection: so must be
            # those that this Node opens by itself, even if its address counts as a Pod's.
            yield _flow(d.SNAT_TABLE, d.EXACT, (family, d.SNAT.is_(0), source_in(ip_network(own))), look_up)
        yield _flow(d.SNAT_STATE, d.NORMAL, (family, _STATE_OPENER), out)
        yield _flow(d.SNAT_STATE, d.NORMAL, (family, STATE_NEW), translate_source(env, own))


def translate_source(env: Env, address: Address) -> Ct:
    """Give a new connection the gateway's address, and remember the port it came from."""
    return Ct(
        env.zones.snat,
        table=d.EXIT.number,
        commit=True,
        nat=Nat("src", address),
        exec_=(Move(d.INGRESS_PORT, d.LABEL_PORT),),
    )


def _groups(env: Env, group: NextHopGroup) -> Iterator[Group]:
    if env.gateway and not group.next_hops:
        return
    candidates = [candidate(way.ofport, way) for way in group.next_hops]
    # A gateway is one itself: while no other one is live it needs none (`parts._cluster_groups`).
    yield from choose(LOCAL_GATEWAYS, candidates, ordered=group.ordered, last_resort=not env.gateway)
    for way in sorted(group.next_hops, key=lambda way: way.ofport):
        if env.gateway:
            other = watching(1, d.HOST_PORT, True, untranslate_service(env))
        else:
            other = passing_on(1, LOCAL_GATEWAYS)
        # Also to one on standby: a reply follows the last request, and other gateways may not know the connection.
        buckets = (watching(0, way.ofport, way.watched, Output(way.ofport)), other)
        yield d.PIPELINE.group(Group(d.GROUP_PREFER.group_id(way.ofport), GroupType.FAST_FAILOVER, buckets))
