"""Builds what follows from one remote cluster, one Node of this cluster, or the endpoints on this Node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_network

from flows import actions as act
from flows.actions import Ct, DecTtl, Goto, Meter, Output, Resubmit, ToGroup, set_bits
from flows.fields import (
    IN_PORT,
    IP_PROTO,
    IP_TCP,
    TCP_SRC,
    Network,
    destination_in,
    destination_is,
    eth_type_of,
    exact,
    source_in,
    source_is,
    tcp_flags,
)
from flows.flow import Flow, Group, GroupType
from flows.pipeline import declaration as d
from flows.pipeline.base import (
    AS_REPLY,
    FROM_GATEWAY,
    FROM_HOST,
    FROM_NODE,
    FROM_REMOTE,
    LOCAL_GATEWAYS,
    PLAIN,
    STATE_NEW,
    UNMARKED,
    drop,
    entry,
    translate_source,
)
from flows.pipeline.choice import bucket_ids, candidate, choose, passing_on, watching
from flows.pipeline.values import Endpoint, Entries, Env, LocalNode, RemoteCluster, RemoteGateway

# --- remote cluster -------------------------------------------------------------------------------------


def cluster(env: Env, c: RemoteCluster) -> Entries:
    """Return the way to and from a remote cluster; FlowError when a value does not fit."""
    cookie = d.COOKIES.cookie(d.FOR_CLUSTER, c.number)
    tunnels = {gateway.ofport: gateway for gateway in c.gateways if gateway.ofport is not None}
    sources = dict.fromkeys((*c.cidrs, *(ip_network(gateway.address) for gateway in c.gateways)))
    flows: list[Flow] = []
    if env.local_gateways:  # delivered to us by a gateway of our own cluster
        deliver = (set_bits(d.CLUSTER, c.number), Goto(d.DELIVER.number))
        flows.extend(
            entry(
                cookie,
                d.SOURCE,
                d.PREFIX + net.prefixlen,
                (eth_type_of(net), FROM_GATEWAY, source_in(net)),
                *deliver,
            )
            for net in sources
        )
    if c.meter is not None:
        flows.extend(_admit(env, c.number, Meter(c.meter), cookie))
    flows.extend(_lost_replies(env, c, cookie))
    usable = bool(tunnels) if env.gateway else bool(c.gateways)
    if not usable:
        flows.extend(
            drop(
                d.ROUTE,
                d.PREFIX + net.prefixlen,
                (eth_type_of(net), destination_in(net)),
                d.DROP_NO_GATEWAY,
                c.number,
            )
            for net in c.cidrs
        )
        return Entries(flows=tuple(flows))
    if not env.gateway:
        to_gateway = ToGroup(LOCAL_GATEWAYS)
        flows.extend(
            entry(
                cookie,
                d.ROUTE,
                d.PREFIX + net.prefixlen,
                (eth_type_of(net), FROM_HOST, destination_in(net)),
                to_gateway,
            )
            for net in c.cidrs
        )
        return Entries(flows=tuple(flows))
    flows.extend(_from_cluster(c, cookie, tunnels, sources))
    flows.extend(_to_cluster(env, c, cookie, tunnels))
    return Entries(flows=tuple(flows), groups=tuple(_cluster_groups(env, c, tunnels)))


def _admit(env: Env, number: int, meter: Meter, cookie: int) -> Iterator[Flow]:
    """What would become a new entry of conntrack passes the meter.

    Where nobody answers, conntrack calls every packet of UDP new: what has a mark or a Service has its entry.
    """
    cluster = d.CLUSTER.is_(number)
    for family in d.FAMILIES:
        here = (family, STATE_NEW, d.MARK_PORT.is_(0), cluster)
        yield entry(cookie, d.ADMIT, d.NORMAL, here, meter, Goto(d.ARRIVE_STATE.number))
        if env.gateway:
            to_service = (family, STATE_NEW, d.LABEL_SERVICE.is_(0), cluster)
            yield entry(cookie, d.ADMIT_SERVICE, d.NORMAL, to_service, meter, Goto(d.SERVICE.number))


def _lost_replies(env: Env, c: RemoteCluster, cookie: int) -> Iterator[Flow]:
    """Replies to SNATed connections that conntrack of this Node has lost: nothing else goes to these addresses.

    Not committed, or the next request would look like a reply.
    """
    go_on = Goto(d.ROUTE.number) if env.gateway else ToGroup(LOCAL_GATEWAYS)
    for address in dict.fromkeys(gateway.address for gateway in c.gateways):
        family = eth_type_of(address)
        if not any(address in net for net in c.cidrs if eth_type_of(net) == family):
            terms = (family, STATE_NEW, destination_is(address))
            yield entry(cookie, d.DEPARTURE, d.EXACT, terms, *AS_REPLY, go_on)


def _from_cluster(
    c: RemoteCluster, cookie: int, tunnels: dict[int, RemoteGateway], sources: Iterable[Network]
) -> Iterator[Flow]:
    number = d.CLUSTER.is_(c.number)
    for port in tunnels:
        for family in d.FAMILIES:
            yield entry(
                cookie, d.CLASSIFY, d.NORMAL, (exact(IN_PORT, port), family),
                UNMARKED, set_bits(d.ORIGIN, d.ORIGIN_REMOTE),
                set_bits(d.CLUSTER, c.number), set_bits(d.INGRESS_PORT, port),
                Goto(d.SOURCE.number),
            )  # fmt: skip
    go_on = Goto(d.UNTRANSLATE.number)
    for net in sources:
        terms = (eth_type_of(net), FROM_REMOTE, number, source_in(net))
        yield entry(cookie, d.SOURCE, d.PREFIX + net.prefixlen, terms, go_on)
    yield drop(d.SOURCE, d.ELSE, (FROM_REMOTE, number), d.DROP_SPOOFED_REMOTE, c.number)


def _to_cluster(env: Env, c: RemoteCluster, cookie: int, tunnels: dict[int, RemoteGateway]) -> Iterator[Flow]:
    snat = (set_bits(d.SNAT, 1),) if c.snat else ()
    route = (set_bits(d.CLUSTER, c.number), *snat, Goto(d.RELAY.number))
    for net in c.cidrs:
        terms = (eth_type_of(net), destination_in(net))
        yield d.PIPELINE.flow(d.ROUTE, d.PREFIX + net.prefixlen, terms, route, cookie=cookie)
    number = d.CLUSTER.is_(c.number)
    if env.local_gateways:
        yield entry(cookie, d.RELAY, d.NORMAL, (number,), ToGroup(d.GROUP_RELAY.group_id(c.number)))
    out = (PLAIN, DecTtl(), ToGroup(d.GROUP_CLUSTER.group_id(c.number)))
    for family in d.FAMILIES:
        yield entry(cookie, d.EXIT, d.NORMAL, (family, number), *out)
    if c.snat_address is not None:
        opening = (eth_type_of(c.snat_address), STATE_NEW, number)
        yield entry(cookie, d.SNAT_STATE, d.EXACT, opening, translate_source(env, c.snat_address))
    # Replies to connections that were SNATed over there go to the gateway that knows them.
    for port, gateway in tunnels.items():
        reply = (eth_type_of(gateway.address), d.REPLY.is_(1), destination_is(gateway.address))
        directly = (PLAIN, DecTtl(), Output(port))
        if env.local_gateways:
            yield entry(cookie, d.ROUTE, d.SPECIAL, reply, ToGroup(d.GROUP_REPLY.group_id(port)))
            yield entry(cookie, d.ROUTE, d.SPECIAL + 1, (*reply, FROM_GATEWAY), *directly)
        else:
            yield entry(cookie, d.ROUTE, d.SPECIAL, reply, *directly)


def _cluster_groups(env: Env, c: RemoteCluster, tunnels: dict[int, RemoteGateway]) -> Iterator[Group]:
    ids = bucket_ids(str(gateway.address) for gateway in tunnels.values())
    candidates = [candidate(ids[str(gateway.address)], gateway) for gateway in tunnels.values()]
    group_id = d.GROUP_CLUSTER.group_id(c.number)
    yield from choose(group_id, candidates, ordered=c.ordered, last_resort=True)
    if not env.local_gateways:
        return
    yield _else_sibling(d.GROUP_RELAY.group_id(c.number), tunnels, Resubmit(d.SNAT_TABLE.number))
    for port, gateway in tunnels.items():
        yield _else_sibling(d.GROUP_REPLY.group_id(port), {port: gateway}, PLAIN, DecTtl(), Output(port))


def _else_sibling(group_id: int, tunnels: Mapping[int, RemoteGateway], *out: act.Action) -> Group:
    """Return a group that does `out` if a tunnel is live, else uses a live sibling, else does it all the same."""
    live = [watching(n, port, gateway.watched, *out) for n, (port, gateway) in enumerate(tunnels.items())]
    buckets = (*live, passing_on(len(live), LOCAL_GATEWAYS), watching(len(live) + 1, d.HOST_PORT, True, *out))
    return d.PIPELINE.group(Group(group_id, GroupType.FAST_FAILOVER, buckets))


# --- Node of this cluster -------------------------------------------------------------------------------


def node(env: Env, n: LocalNode) -> Entries:
    """Return the way to and from a Node of this cluster. On workers only their own Node has any."""
    cookie = d.COOKIES.cookie(d.FOR_NODE, n.number)
    if n.ofport == d.HOST_PORT:
        return Entries(flows=tuple(_own_node(env, n, cookie)))
    return Entries(flows=tuple(_other_node(env, n, cookie)) if env.gateway else ())


def _own_node(env: Env, n: LocalNode, cookie: int) -> Iterator[Flow]:
    track = Ct(env.zones.arrival, table=d.DEPARTURE.number)
    arrive = Goto(d.ARRIVE.number)
    for net in dict.fromkeys(n.networks):
        family, priority = eth_type_of(net), d.PREFIX + net.prefixlen
        yield entry(cookie, d.SOURCE, priority, (family, FROM_HOST, source_in(net)), track)
        yield entry(cookie, d.DELIVER, priority, (family, destination_in(net)), arrive)


def _other_node(env: Env, n: LocalNode, cookie: int) -> Iterator[Flow]:
    ingress_port = d.INGRESS_PORT.is_(n.ofport)
    if not n.gateway:  # tunnels to gateways are classified by `base`
        for family in d.FAMILIES:
            yield entry(
                cookie, d.CLASSIFY, d.NORMAL, (exact(IN_PORT, n.ofport), family),
                UNMARKED, set_bits(d.ORIGIN, d.ORIGIN_NODE),
                set_bits(d.INGRESS_PORT, n.ofport), Goto(d.SOURCE.number),
            )  # fmt: skip
    go_on = Goto(d.UNTRANSLATE.number)
    deliver = (DecTtl(), set_bits(d.EGRESS_PORT, n.ofport), Goto(d.OUTPUT.number))
    for net in dict.fromkeys(n.networks):
        family, source, priority = eth_type_of(net), source_in(net), d.PREFIX + net.prefixlen
        if not n.gateway:
            yield entry(cookie, d.SOURCE, priority, (family, FROM_NODE, ingress_port, source), go_on)
        if env.local_gateways:  # a sibling's own, or what a sibling relays because it lost the other cluster
            # Replies to what is SNATed here then go to the Node itself: the sibling may take them from us only for
            # its own Pods, and may be about to fail.
            opener = set_bits(d.INGRESS_PORT, n.ofport)
            yield entry(cookie, d.SOURCE, priority, (family, FROM_GATEWAY, source), opener, go_on)
        yield entry(cookie, d.DELIVER, priority, (family, FROM_REMOTE, destination_in(net)), *deliver)


# --- endpoints on this Node ----------------------------------------------------------------------------------


def endpoints(found: Iterable[Endpoint]) -> Entries:
    """Hold back what TCP endpoints on this Node send in the middle of a connection that conntrack has lost.

    It may be that of a client of the Service, or of one that came to the endpoint's own address: the bytes are the
    same. Sent as it is, it would be answered with a reset by the former. The client's next packet tells; the agent
    makes it send one where a whole Node has lost its conntrack (`mcagent.core.probes`).
    """
    flows = []
    for one in sorted(set(found), key=lambda one: (int(one.address), one.port)):
        terms = (
            eth_type_of(one.address),
            STATE_NEW,
            exact(IP_PROTO, IP_TCP),
            source_is(one.address),
            exact(TCP_SRC, one.port),
            tcp_flags("-syn"),
        )
        flows.append(drop(d.DEPARTURE, d.SPECIAL, terms, d.DROP_NO_STATE, d.DEPARTURE.number))
    return Entries(flows=tuple(flows))
