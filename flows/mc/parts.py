"""Builds what follows from one remote cluster, one Node of this cluster, or one exported Service."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_network

from flows import actions as act
from flows.actions import Ct, DecTtl, Goto, Move, Nat, Output, Resubmit, ToGroup, set_bits, set_whole
from flows.declare import Table
from flows.errors import FlowError
from flows.fields import (
    ETH_SRC,
    IN_PORT,
    IP_PROTO,
    IP_TCP,
    IPV4_DST,
    IPV4_SRC,
    IPV6_DST,
    IPV6_SRC,
    PORTS_DST,
    PORTS_SRC,
    PROTOCOLS,
    TCP_SRC,
    Field,
    Network,
    Term,
    destination_in,
    destination_is,
    eth_type_of,
    exact,
    source_in,
    source_is,
    tcp_flags,
)
from flows.flow import Bucket, Flow, Group, GroupType
from flows.mc import declaration as d
from flows.mc.base import (
    AS_REPLY,
    FROM_GATEWAY,
    FROM_HOST,
    FROM_NODE,
    FROM_REMOTE,
    LOCAL_GATEWAYS,
    PLAIN,
    STATE_NEW,
    UNMARKED,
    UNTRANSLATED,
    drop,
    translate_source,
)
from flows.mc.choice import candidate, choose, passing_on, select, watching
from flows.mc.topology import Endpoint, Env, LocalNode, LocalService, Part, RemoteCluster, RemoteGateway

_MAX_BUCKET = 0x7FFFFFFF


def _flow(cookie: int, table: Table, priority: int, terms: tuple[Term, ...], *actions: act.Action) -> Flow:
    return d.PIPELINE.flow(table, priority, terms, actions, cookie=cookie)


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


# --- remote cluster -------------------------------------------------------------------------------------


def cluster(env: Env, c: RemoteCluster) -> Part:
    """Return the way to and from a remote cluster; FlowError when a value does not fit."""
    cookie = d.COOKIES.cookie(d.FOR_CLUSTER, c.number)
    tunnels = {gateway.ofport: gateway for gateway in c.gateways if gateway.ofport is not None}
    sources = dict.fromkeys((*c.cidrs, *(ip_network(gateway.address) for gateway in c.gateways)))
    flows: list[Flow] = []
    if env.local_gateways:  # delivered to us by a gateway of our own cluster
        deliver = Goto(d.DELIVER.number)
        flows.extend(
            _flow(
                cookie,
                d.SOURCE,
                d.PREFIX + net.prefixlen,
                (eth_type_of(net), FROM_GATEWAY, source_in(net)),
                deliver,
            )
            for net in sources
        )
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
        return Part(flows=tuple(flows))
    if not env.gateway:
        to_gateway = ToGroup(LOCAL_GATEWAYS)
        flows.extend(
            _flow(
                cookie,
                d.ROUTE,
                d.PREFIX + net.prefixlen,
                (eth_type_of(net), FROM_HOST, destination_in(net)),
                to_gateway,
            )
            for net in c.cidrs
        )
        return Part(flows=tuple(flows))
    flows.extend(_from_cluster(c, cookie, tunnels, sources))
    flows.extend(_to_cluster(env, c, cookie, tunnels))
    return Part(flows=tuple(flows), groups=tuple(_cluster_groups(env, c, tunnels)))


def _lost_replies(env: Env, c: RemoteCluster, cookie: int) -> Iterator[Flow]:
    """Replies to SNATed connections that conntrack of this Node has lost: nothing else goes to these addresses.

    Not committed, or the next request would look like a reply.
    """
    go_on = Goto(d.ROUTE.number) if env.gateway else ToGroup(LOCAL_GATEWAYS)
    for address in dict.fromkeys(gateway.address for gateway in c.gateways):
        family = eth_type_of(address)
        if not any(address in net for net in c.cidrs if eth_type_of(net) == family):
            terms = (family, STATE_NEW, destination_is(address))
            yield _flow(cookie, d.DEPARTURE, d.EXACT, terms, *AS_REPLY, go_on)


def _from_cluster(
    c: RemoteCluster, cookie: int, tunnels: dict[int, RemoteGateway], sources: Iterable[Network]
) -> Iterator[Flow]:
    number = d.CLUSTER.is_(c.number)
    for port in tunnels:
        for family in d.FAMILIES:
            yield _flow(
                cookie, d.CLASSIFY, d.NORMAL, (exact(IN_PORT, port), family),
                UNMARKED, set_bits(d.ORIGIN, d.ORIGIN_REMOTE),
                set_bits(d.CLUSTER, c.number), set_bits(d.CAME_BY, port),
                Goto(d.SOURCE.number),
            )  # fmt: skip
    go_on = Goto(d.UNTRANSLATE.number)
    for net in sources:
        terms = (eth_type_of(net), FROM_REMOTE, number, source_in(net))
        yield _flow(cookie, d.SOURCE, d.PREFIX + net.prefixlen, terms, go_on)
    yield drop(d.SOURCE, d.ELSE, (FROM_REMOTE, number), d.DROP_SPOOFED_REMOTE, c.number)


def _to_cluster(env: Env, c: RemoteCluster, cookie: int, tunnels: dict[int, RemoteGateway]) -> Iterator[Flow]:
    snat = (set_bits(d.SNAT, 1),) if c.snat else ()
    route = (set_bits(d.CLUSTER, c.number), *snat, Goto(d.RELAY.number))
    for net in c.cidrs:
        terms = (eth_type_of(net), destination_in(net))
        yield d.PIPELINE.flow(d.ROUTE, d.PREFIX + net.prefixlen, terms, route, cookie=cookie)
    number = d.CLUSTER.is_(c.number)
    if env.local_gateways:
        yield _flow(cookie, d.RELAY, d.NORMAL, (number,), ToGroup(d.GROUP_RELAY.group_id(c.number)))
    out = (PLAIN, DecTtl(), ToGroup(d.GROUP_CLUSTER.group_id(c.number)))
    for family in d.FAMILIES:
        yield _flow(cookie, d.EXIT, d.NORMAL, (family, number), *out)
    if c.snat_address is not None:
        opening = (eth_type_of(c.snat_address), STATE_NEW, number)
        yield _flow(cookie, d.SNAT_STATE, d.EXACT, opening, translate_source(env, c.snat_address))
    # Replies to connections that were SNATed over there go to the gateway that knows them.
    for port, gateway in tunnels.items():
        reply = (eth_type_of(gateway.address), d.REPLY.is_(1), destination_is(gateway.address))
        directly = (PLAIN, DecTtl(), Output(port))
        if env.local_gateways:
            yield _flow(cookie, d.ROUTE, d.SPECIAL, reply, ToGroup(d.GROUP_REPLY.group_id(port)))
            yield _flow(cookie, d.ROUTE, d.SPECIAL + 1, (*reply, FROM_GATEWAY), *directly)
        else:
            yield _flow(cookie, d.ROUTE, d.SPECIAL, reply, *directly)


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


def node(env: Env, n: LocalNode) -> Part:
    """Return the way to and from a Node of this cluster. On workers only their own Node has any."""
    cookie = d.COOKIES.cookie(d.FOR_NODE, n.number)
    if n.ofport == d.HOST_PORT:
        return Part(flows=tuple(_own_node(env, n, cookie)))
    return Part(flows=tuple(_other_node(env, n, cookie)) if env.gateway else ())


def _own_node(env: Env, n: LocalNode, cookie: int) -> Iterator[Flow]:
    track = Ct(env.zones.arrival, table=d.DEPARTURE.number)
    arrive = Goto(d.ARRIVE.number)
    for net in dict.fromkeys(n.networks):
        family, priority = eth_type_of(net), d.PREFIX + net.prefixlen
        yield _flow(cookie, d.SOURCE, priority, (family, FROM_HOST, source_in(net)), track)
        yield _flow(cookie, d.DELIVER, priority, (family, destination_in(net)), arrive)


def _other_node(env: Env, n: LocalNode, cookie: int) -> Iterator[Flow]:
    came_by = d.CAME_BY.is_(n.ofport)
    if not n.gateway:  # tunnels to gateways are classified by `base`
        for family in d.FAMILIES:
            yield _flow(
                cookie, d.CLASSIFY, d.NORMAL, (exact(IN_PORT, n.ofport), family),
                UNMARKED, set_bits(d.ORIGIN, d.ORIGIN_NODE), set_bits(d.CAME_BY, n.ofport), Goto(d.SOURCE.number),
            )  # fmt: skip
    go_on = Goto(d.UNTRANSLATE.number)
    deliver = (DecTtl(), set_bits(d.LEAVES_BY, n.ofport), Goto(d.OUTPUT.number))
    for net in dict.fromkeys(n.networks):
        family, source, priority = eth_type_of(net), source_in(net), d.PREFIX + net.prefixlen
        if not n.gateway:
            yield _flow(cookie, d.SOURCE, priority, (family, FROM_NODE, came_by, source), go_on)
        if env.local_gateways:  # a sibling's own, or what a sibling relays because it lost the other cluster
            # Replies to what is SNATed here then go to the Node itself: the sibling may take them from us only for
            # its own Pods, and may be about to fail.
            opener = set_bits(d.CAME_BY, n.ofport)
            yield _flow(cookie, d.SOURCE, priority, (family, FROM_GATEWAY, source), opener, go_on)
        yield _flow(cookie, d.DELIVER, priority, (family, FROM_REMOTE, destination_in(net)), *deliver)


# --- endpoints on this Node ----------------------------------------------------------------------------------


def endpoints(found: Iterable[Endpoint]) -> Part:
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
    return Part(flows=tuple(flows))


# --- exported Service -----------------------------------------------------------------------------------


def service(env: Env, s: LocalService) -> Part:
    """Return the translation of one port of an exported Service; on workers there is none.

    FlowError: unknown protocol, an endpoint of another family than the Service, a number that does not fit.
    """
    if not env.gateway:
        return Part(flows=())
    if s.protocol not in PROTOCOLS:
        raise FlowError(d.SERVICE.name, "protocol", f'"{s.protocol}" is none of {", ".join(PROTOCOLS)}')
    protocol = PROTOCOLS[s.protocol]
    terms = (
        eth_type_of(s.address),
        exact(IP_PROTO, protocol),
        destination_is(s.address),
        exact(PORTS_DST[protocol], s.port),
        STATE_NEW,
    )
    if not s.endpoints:
        return Part(flows=(drop(d.SERVICE, d.NORMAL, terms, d.DROP_NO_ENDPOINT, s.number),))
    group_id = d.GROUP_SERVICE.group_id(s.number)
    cookie = d.COOKIES.cookie(d.FOR_SERVICE, s.number)
    numbered = set_whole(ETH_SRC, d.MAC_SERVICE | s.number)
    to_endpoint = (set_bits(d.TRANSLATED, 1), numbered, ToGroup(group_id))
    flows = [_flow(cookie, d.SERVICE, d.NORMAL, terms, *to_endpoint)]
    if env.client_ports_move and protocol == IP_TCP:
        # What is left of a connection that was here before (expired, but not swept yet) counts as another one
        # with the same addresses and ports, for which conntrack finds this one a free port
        # (nat_get_unique_tuple in OVS' lib/conntrack.c). One that begins here may have that.
        keep = Move(d.SOURCE_PORT, d.CLIENT_PORT)
        flows.append(_flow(cookie, d.SERVICE, d.NORMAL + 1, (*terms, tcp_flags("-syn")), keep, *to_endpoint))
    group = select(group_id, tuple(_endpoint_buckets(env, s)), _service_fields(s, protocol))
    return Part(flows=(*flows, *_undo_by_number(s, protocol, cookie)), groups=(group,))


def _endpoint_buckets(env: Env, s: LocalService) -> Iterator[Bucket]:
    by_name: dict[str, Endpoint] = {f"{endpoint.address} {endpoint.port}": endpoint for endpoint in s.endpoints}
    numbers = bucket_ids(by_name)
    for name in sorted(by_name, key=numbers.__getitem__):
        endpoint = by_name[name]
        if endpoint.address.version != s.address.version:
            raise FlowError(d.SERVICE.name, str(endpoint.address), f"is not of the family of {s.address}")
        nat = Nat("dst", endpoint.address, endpoint.port)
        client_port = (Move(d.CLIENT_PORT, d.LABEL_CLIENT_PORT),) if env.client_ports_move else ()
        keep = (set_bits(d.LABEL_SERVICE, s.number), *client_port)
        translate = Ct(env.zones.service, d.CLIENT.number, commit=True, nat=nat, exec_=keep)
        yield Bucket(numbers[name], (translate,))


def _undo_by_number(s: LocalService, protocol: int, cookie: int) -> Iterator[Flow]:
    """Un-translate replies that another gateway translated, which was lost: without state, from endpoints only.

    Whatever conntrack says of them: new (loose pick-up), or invalid (a SYN+ACK or RST out of the blue). The
    userspace datapath un-translates what it calls invalid as well: packets of a connection that went on by another
    gateway for a while, until its window was past the one remembered here.
    """
    source = IPV4_SRC if s.address.version == 4 else IPV6_SRC
    done = (
        eth_type_of(s.address),
        exact(IP_PROTO, protocol),
        source_is(s.address),
        exact(PORTS_SRC[protocol], s.port),
        d.SERVICE_NUMBER.is_(s.number),
    )
    yield _flow(cookie, d.UNDNAT, d.ELSE, done, *UNTRANSLATED, Goto(d.ROUTE.number))
    undo = (set_whole(source, int(s.address)), set_whole(PORTS_SRC[protocol], s.port), *UNTRANSLATED)
    for endpoint in sorted(set(s.endpoints), key=lambda one: (int(one.address), one.port)):
        reply = (
            eth_type_of(endpoint.address),
            exact(IP_PROTO, protocol),
            source_is(endpoint.address),
            exact(PORTS_SRC[protocol], endpoint.port),
            d.SERVICE_NUMBER.is_(s.number),
        )
        yield _flow(cookie, d.UNDNAT, d.ELSE, reply, *undo, Goto(d.ROUTE.number))


def _service_fields(s: LocalService, protocol: int) -> tuple[Field, ...]:
    source, destination = (IPV4_SRC, IPV4_DST) if s.address.version == 4 else (IPV6_SRC, IPV6_DST)
    if s.client_ip_affinity:
        return (source,)
    return (source, destination, PORTS_SRC[protocol], PORTS_DST[protocol])
