"""Gateway, tables AdmitService, Service and UnDnat: exported Services are translated, and their replies back.

Every gateway of a cluster builds the same, so that a connection gets the same endpoint wherever it comes by.
"""

from __future__ import annotations

from collections.abc import Iterator

from flows.actions import Action, Ct, Meter, Nat, ToGroup, set_bits, set_whole
from flows.errors import FlowError
from flows.fields import (
    ETH_SRC,
    IP_PROTO,
    IPV4_DST,
    IPV4_SRC,
    IPV6_DST,
    IPV6_SRC,
    PORTS_DST,
    PORTS_SRC,
    PROTOCOLS,
    Address,
    Field,
    Term,
    destination_is,
    eth_type_of,
    exact,
    source_is,
)
from flows.flow import Bucket, Flow, Group, GroupType
from flows.pipeline import declaration as d
from flows.pipeline import registers as r
from flows.pipeline import tables as t
from flows.pipeline.entries import (
    DNATED,
    NEW,
    REPLY,
    UNTRANSLATED,
    WITH_SERVICE_ID,
    base_entry,
    drop,
    entry,
    goto,
)
from flows.pipeline.groups import bucket_ids, passing_on, select, watching
from flows.pipeline.values import Endpoint, Env, LocalService, RemoteCluster


def base() -> Iterator[Flow]:
    """What every connection to a Service does; one that is not exported is dropped."""
    for family in r.FAMILIES:
        yield base_entry(t.ADMIT_SERVICE, d.ELSE, (family,), goto(t.SERVICE))
        # Not "established": the userspace datapath translates, but calls a UDP connection new until a reply.
        known = (set_bits(r.TRANSLATED, 1), *WITH_SERVICE_ID)
        yield base_entry(t.SERVICE, d.EXACT, (family, DNATED), *known, goto(t.CLIENT))
        yield drop(t.SERVICE, d.ELSE, (family, NEW), d.DROP_NOT_EXPORTED)
        yield base_entry(t.UN_DNAT, d.NORMAL, (family, REPLY), *UNTRANSLATED, goto(t.ROUTE))


def cluster(c: RemoteCluster, cookie: int) -> Iterator[Flow]:
    """What would become a new entry of conntrack passes the cluster's meter."""
    if c.meter is not None:
        for family in r.FAMILIES:
            terms = (family, NEW, r.LABEL_SERVICE.is_(0), r.CLUSTER.is_(c.id))
            yield entry(cookie, t.ADMIT_SERVICE, d.NORMAL, terms, Meter(c.meter), goto(t.SERVICE))


def protocol_of(s: LocalService) -> int:
    """Return the IP protocol of a Service; FlowError when it is unknown."""
    if s.protocol not in PROTOCOLS:
        raise FlowError(t.SERVICE.name, "protocol", f'"{s.protocol}" is none of {", ".join(PROTOCOLS)}')
    return PROTOCOLS[s.protocol]


def new_connections(s: LocalService) -> tuple[Term, ...]:
    """Return the condition on what begins a connection to the Service, or continues one that nobody knows."""
    protocol = protocol_of(s)
    service_port = exact(PORTS_DST[protocol], s.port)
    return (eth_type_of(s.address), exact(IP_PROTO, protocol), destination_is(s.address), service_port, NEW)


def to_endpoint(s: LocalService) -> tuple[Action, ...]:
    """Return the actions that give a connection its endpoint."""
    with_id = set_whole(ETH_SRC, r.MAC_SERVICE | s.id)
    return (set_bits(r.TRANSLATED, 1), with_id, ToGroup(d.GROUP_SERVICE.group_id(s.id)))


def service(s: LocalService, cookie: int) -> Iterator[Flow]:
    """New connections get an endpoint; replies from endpoints get the Service's address back."""
    terms = new_connections(s)
    if not s.endpoints:
        yield drop(t.SERVICE, d.NORMAL, terms, d.DROP_NO_ENDPOINT, s.id)
        return
    yield entry(cookie, t.SERVICE, d.NORMAL, terms, *to_endpoint(s))
    yield from _un_dnat_by_id(s, cookie)


def endpoint_groups(env: Env, s: LocalService) -> Iterator[Group]:
    """Yield the groups that choose an endpoint by a hash of the connection, or of the client alone.

    Endpoints on Nodes that are dead (BFD) get no new connections. While all Nodes look dead, which may be a false
    alarm, one endpoint gets them all. FlowError: unknown protocol, an endpoint of another family than the Service.
    """
    group_id, live_id = (kind.group_id(s.id) for kind in (d.GROUP_SERVICE, d.GROUP_ENDPOINTS))
    tunnels = {endpoint.ofport for endpoint in s.endpoints}
    buckets = _buckets(env, s, watch=len(tunnels) > 1)
    if None in tunnels or len(tunnels) == 1:
        yield select(group_id, buckets, _hashed(s))
        return
    yield select(live_id, buckets, _hashed(s))
    resort = watching(1, r.HOST_OFPORT, True, *buckets[0].actions)
    yield d.PIPELINE.group(Group(group_id, GroupType.FAST_FAILOVER, (passing_on(0, live_id), resort)))


def _buckets(env: Env, s: LocalService, *, watch: bool) -> tuple[Bucket, ...]:
    by_name: dict[str, Endpoint] = {f"{endpoint.address} {endpoint.port}": endpoint for endpoint in s.endpoints}
    ids = bucket_ids(by_name)
    keep = (set_bits(r.LABEL_SERVICE, s.id),)
    buckets = []
    for name in sorted(by_name, key=ids.__getitem__):
        endpoint = by_name[name]
        if endpoint.address.version != s.address.version:
            raise FlowError(t.SERVICE.name, str(endpoint.address), f"is not of the family of {s.address}")
        nat = Nat("dst", endpoint.address, endpoint.port)
        translate = Ct(env.zones.service, t.CLIENT.number, commit=True, nat=nat, exec_=keep)
        buckets.append(Bucket(ids[name], (translate,), watch_port=endpoint.ofport if watch else None))
    return tuple(buckets)


def _hashed(s: LocalService) -> tuple[Field, ...]:
    source, destination = (IPV4_SRC, IPV4_DST) if s.address.version == 4 else (IPV6_SRC, IPV6_DST)
    if s.client_ip_affinity:
        return (source,)
    protocol = protocol_of(s)
    return (source, destination, PORTS_SRC[protocol], PORTS_DST[protocol])


def _un_dnat_by_id(s: LocalService, cookie: int) -> Iterator[Flow]:
    """Un-translate replies that another gateway translated, which was lost: without state, from endpoints only.

    Whatever conntrack says of them: new (loose pick-up), or invalid (a SYN+ACK or RST out of the blue). The
    userspace datapath un-translates what it calls invalid as well: packets of a connection that went on by another
    gateway for a while, until its window was past the one remembered here.
    """
    protocol, route = protocol_of(s), goto(t.ROUTE)
    source = IPV4_SRC if s.address.version == 4 else IPV6_SRC
    yield entry(cookie, t.UN_DNAT, d.ELSE, _reply(s, s.address, s.port), *UNTRANSLATED, route)
    undo = (set_whole(source, int(s.address)), set_whole(PORTS_SRC[protocol], s.port), *UNTRANSLATED)
    for endpoint in sorted(set(s.endpoints), key=lambda one: (int(one.address), one.port)):
        yield entry(cookie, t.UN_DNAT, d.ELSE, _reply(s, endpoint.address, endpoint.port), *undo, route)


def _reply(s: LocalService, address: Address, port: int) -> tuple[Term, ...]:
    protocol = protocol_of(s)
    source_port = exact(PORTS_SRC[protocol], port)
    of = r.SERVICE_ID.is_(s.id)
    return (eth_type_of(address), exact(IP_PROTO, protocol), source_is(address), source_port, of)
