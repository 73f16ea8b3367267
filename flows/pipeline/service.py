"""Builds what follows from one port of an exported Service: its translation on gateways, and how it is undone.

Every gateway of a cluster builds the same, so that a connection gets the same endpoint wherever it comes by.
"""

from __future__ import annotations

from collections.abc import Iterator

from flows.actions import Ct, Goto, Move, Nat, ToGroup, set_bits, set_whole
from flows.errors import FlowError
from flows.fields import (
    ETH_SRC,
    IP_PROTO,
    IP_TCP,
    IPV4_DST,
    IPV4_SRC,
    IPV6_DST,
    IPV6_SRC,
    PORTS_DST,
    PORTS_SRC,
    PROTOCOLS,
    Address,
    Bits,
    Field,
    Term,
    destination_is,
    eth_type_of,
    exact,
    source_is,
    tcp_flags,
)
from flows.flow import Bucket, Flow
from flows.pipeline import declaration as d
from flows.pipeline.base import STATE_NEW, UNTRANSLATED, drop, entry
from flows.pipeline.choice import bucket_ids, select
from flows.pipeline.values import Endpoint, Entries, Env, LocalService


def service(env: Env, s: LocalService) -> Entries:
    """Return the translation of one port of an exported Service; on workers there is none.

    FlowError: unknown protocol, an endpoint of another family than the Service, a number that does not fit.
    """
    if not env.gateway:
        return Entries(flows=())
    if s.protocol not in PROTOCOLS:
        raise FlowError(d.SERVICE.name, "protocol", f'"{s.protocol}" is none of {", ".join(PROTOCOLS)}')
    protocol = PROTOCOLS[s.protocol]
    if not s.endpoints:
        return Entries(flows=(drop(d.SERVICE, d.NORMAL, _new(s, protocol), d.DROP_NO_ENDPOINT, s.number),))
    cookie = d.COOKIES.cookie(d.FOR_SERVICE, s.number)
    group = select(_group_id(s), tuple(_endpoint_buckets(env, s, protocol)), _hashed(s, protocol))
    return Entries(
        flows=(*_to_endpoint(env, s, protocol, cookie), *_undo_by_number(s, protocol, cookie)), groups=(group,)
    )


def _group_id(s: LocalService) -> int:
    return d.GROUP_SERVICE.group_id(s.number)


def _new(s: LocalService, protocol: int) -> tuple[Term, ...]:
    service_port = exact(PORTS_DST[protocol], s.port)
    return (eth_type_of(s.address), exact(IP_PROTO, protocol), destination_is(s.address), service_port, STATE_NEW)


def _to_endpoint(env: Env, s: LocalService, protocol: int, cookie: int) -> Iterator[Flow]:
    """New connections get an endpoint; `_client_port` says which of them keep their client's port."""
    terms = _new(s, protocol)
    numbered = set_whole(ETH_SRC, d.MAC_SERVICE | s.number)
    choose = (set_bits(d.TRANSLATED, 1), numbered, ToGroup(_group_id(s)))
    yield entry(cookie, d.SERVICE, d.NORMAL, terms, *choose)
    if _client_port(env, s, protocol) == d.CLIENT_PORT:
        keep = Move(d.SOURCE_PORTS[protocol], d.CLIENT_PORT)
        yield entry(cookie, d.SERVICE, d.NORMAL + 1, (*terms, tcp_flags("-syn")), keep, *choose)


def _client_port(env: Env, s: LocalService, protocol: int) -> Bits | None:
    """Return where the port is that clients are to keep, or None: they have what conntrack gives them.

    To the userspace datapath's conntrack, what is left of an earlier connection with the same addresses and ports
    (expired and not swept, or closed a moment ago) is another one, for which it finds this one a free port
    (nat_get_unique_tuple in OVS' lib/conntrack.c). The next gateway would not know of that port. But two
    connections may really be meant, where two Services have the same endpoint: there one that begins may have
    another port, and what keeps its own is TCP that comes in mid-connection. (Nobody sees that of a UDP sender.)
    """
    if not env.client_ports_move or protocol not in d.SOURCE_PORTS:
        return None
    if not s.shares_endpoints:
        return d.SOURCE_PORTS[protocol]
    return d.CLIENT_PORT if protocol == IP_TCP else None


def _endpoint_buckets(env: Env, s: LocalService, protocol: int) -> Iterator[Bucket]:
    by_name: dict[str, Endpoint] = {f"{endpoint.address} {endpoint.port}": endpoint for endpoint in s.endpoints}
    numbers = bucket_ids(by_name)
    port = _client_port(env, s, protocol)
    keep = (set_bits(d.LABEL_SERVICE, s.number), *((Move(port, d.LABEL_CLIENT_PORT),) if port else ()))
    for name in sorted(by_name, key=numbers.__getitem__):
        endpoint = by_name[name]
        if endpoint.address.version != s.address.version:
            raise FlowError(d.SERVICE.name, str(endpoint.address), f"is not of the family of {s.address}")
        nat = Nat("dst", endpoint.address, endpoint.port)
        translate = Ct(env.zones.service, d.CLIENT.number, commit=True, nat=nat, exec_=keep)
        yield Bucket(numbers[name], (translate,))


def _undo_by_number(s: LocalService, protocol: int, cookie: int) -> Iterator[Flow]:
    """Un-translate replies that another gateway translated, which was lost: without state, from endpoints only.

    Whatever conntrack says of them: new (loose pick-up), or invalid (a SYN+ACK or RST out of the blue). The
    userspace datapath un-translates what it calls invalid as well: packets of a connection that went on by another
    gateway for a while, until its window was past the one remembered here.
    """
    source = IPV4_SRC if s.address.version == 4 else IPV6_SRC
    done = _reply(s, protocol, s.address, s.port)
    yield entry(cookie, d.UN_DNAT, d.ELSE, done, *UNTRANSLATED, Goto(d.ROUTE.number))
    undo = (set_whole(source, int(s.address)), set_whole(PORTS_SRC[protocol], s.port), *UNTRANSLATED)
    for endpoint in sorted(set(s.endpoints), key=lambda one: (int(one.address), one.port)):
        reply = _reply(s, protocol, endpoint.address, endpoint.port)
        yield entry(cookie, d.UN_DNAT, d.ELSE, reply, *undo, Goto(d.ROUTE.number))


def _reply(s: LocalService, protocol: int, address: Address, port: int) -> tuple[Term, ...]:
    family, source_port = eth_type_of(address), exact(PORTS_SRC[protocol], port)
    return (family, exact(IP_PROTO, protocol), source_is(address), source_port, d.SERVICE_ID.is_(s.number))


def _hashed(s: LocalService, protocol: int) -> tuple[Field, ...]:
    source, destination = (IPV4_SRC, IPV4_DST) if s.address.version == 4 else (IPV6_SRC, IPV6_DST)
    if s.client_ip_affinity:
        return (source,)
    return (source, destination, PORTS_SRC[protocol], PORTS_DST[protocol])
