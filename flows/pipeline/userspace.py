"""What only the userspace datapath needs: its conntrack ends with ovs-vswitchd, and may move a client's port.

Table Client, and flows that hold back what an endpoint sends in the middle of a connection that is not known.
No other step knows of either; `owners` puts them in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from flows.actions import Ct, Move, set_bits
from flows.fields import (
    IP_PROTO,
    IP_TCP,
    TCP_SRC,
    Bits,
    Term,
    eth_type_of,
    exact,
    source_is,
    tcp_flags,
)
from flows.flow import Bucket, Flow, Group
from flows.pipeline import declaration as d
from flows.pipeline import registers as r
from flows.pipeline import tables as t
from flows.pipeline.entries import NEW, base_entry, drop, entry, goto
from flows.pipeline.service import new_connections, protocol_of, to_endpoint
from flows.pipeline.values import Endpoint, Env, LocalService


def client_table(env: Env) -> Iterator[Flow]:
    """Give a client its port back, where conntrack has another one for it.

    A label costs a flow for each connection in the datapath, so a port that is as it came is forgotten.
    """
    deliver = goto(t.DELIVER)
    for family in r.FAMILIES:
        for protocol, port in r.SOURCE_PORTS.items():
            of = (family, exact(IP_PROTO, protocol))
            if env.client_ports_move:
                yield from _forget_same_port(env, of, protocol)
            yield base_entry(t.CLIENT, d.NORMAL, of, Move(r.LABEL_CLIENT_PORT, port), deliver)
        yield base_entry(t.CLIENT, d.EXACT, (family, r.LABEL_CLIENT_PORT.is_(0)), deliver)
        yield base_entry(t.CLIENT, d.ELSE, (family,), deliver)  # an ICMP error about such a connection


def _forget_same_port(env: Env, of: tuple[Term, ...], protocol: int) -> Iterator[Flow]:
    forget = Ct(env.zones.service, commit=True, exec_=(set_bits(r.LABEL_CLIENT_PORT, 0),))
    for bits in range(1 << r.LOW_BITS):
        same = (NEW, r.LOW_OF_LABEL.is_(bits), r.LOW_OF_SOURCE_PORTS[protocol].is_(bits))
        yield base_entry(t.CLIENT, d.SPECIAL, (*of, *same), forget, goto(t.DELIVER))


def mid_connection(env: Env, s: LocalService, cookie: int) -> Iterator[Flow]:
    """TCP that comes in mid-connection to a Service that shares endpoints keeps its client's port."""
    if _kept_port(env, s) == r.CLIENT_PORT:
        keep = Move(r.SOURCE_PORTS[protocol_of(s)], r.CLIENT_PORT)
        terms = (*new_connections(s), tcp_flags("-syn"))
        yield entry(cookie, t.SERVICE, d.NORMAL + 1, terms, keep, *to_endpoint(s))


def keeping_client_ports(env: Env, s: LocalService, group: Group) -> Group:
    """Return the Service's group with buckets that remember the client's port, where that is to be kept."""
    port = _kept_port(env, s)
    return group if port is None else replace(group, buckets=tuple(_remembering(b, port) for b in group.buckets))


def _remembering(bucket: Bucket, port: Bits) -> Bucket:
    (translate,) = bucket.actions
    if not isinstance(translate, Ct):
        return bucket  # it leads to another group
    keep = (*translate.exec_, Move(port, r.LABEL_CLIENT_PORT))
    return replace(bucket, actions=(replace(translate, exec_=keep),))


def _kept_port(env: Env, s: LocalService) -> Bits | None:
    """Return where the port is that clients are to keep, or None: they have what conntrack gives them.

    To the userspace datapath's conntrack, what is left of an earlier connection with the same addresses and ports
    (expired and not swept, or closed a moment ago) is another one, for which it finds this one a free port
    (nat_get_unique_tuple in OVS' lib/conntrack.c). The next gateway would not know of that port. But two
    connections may really be meant, where two Services have the same endpoint: there one that begins may have
    another port, and what keeps its own is TCP that comes in mid-connection. (Nobody sees that of a UDP sender.)
    """
    protocol = protocol_of(s)
    if not env.client_ports_move or protocol not in r.SOURCE_PORTS:
        return None
    if not s.shares_endpoints:
        return r.SOURCE_PORTS[protocol]
    return r.CLIENT_PORT if protocol == IP_TCP else None


def endpoints(found: Iterable[Endpoint]) -> Iterator[Flow]:
    """Hold back what TCP endpoints on this Node send in the middle of a connection that conntrack has lost.

    It may be that of a client of the Service, or of one that came to the endpoint's own address: the bytes are the
    same. Sent as it is, it would be answered with a reset by the former. The client's next packet tells; the agent
    makes it send one where a whole Node has lost its conntrack.
    """
    for one in sorted(set(found), key=lambda one: (int(one.address), one.port)):
        sender = (source_is(one.address), exact(TCP_SRC, one.port))
        terms = (eth_type_of(one.address), NEW, exact(IP_PROTO, IP_TCP), *sender, tcp_flags("-syn"))
        yield drop(t.DEPARTURE, d.SPECIAL, terms, d.DROP_NO_STATE, t.DEPARTURE.number)
