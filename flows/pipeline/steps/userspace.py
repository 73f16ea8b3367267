"""Flows that only the userspace datapath needs, because of its conntrack; `owners` includes them.

Its conntrack may change a client's port (table Client), considers TCP packets invalid that the kernel accepts
(`invalid_tcp`), and is lost with ovs-vswitchd: then packets of endpoints with unknown connections are held back
(`endpoints`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from flows import fields as f
from flows.actions import Ct, Move, set_bits
from flows.fields import Bits, Term, exact, source_in, tcp_flags
from flows.flow import Flow
from flows.pipeline import declaration as d
from flows.pipeline import entries as e
from flows.pipeline import registers as r
from flows.pipeline import tables as t
from flows.pipeline.steps import arrive, departure, untranslate
from flows.pipeline.steps.service import LabelWrites
from flows.pipeline.values import Env, LocalService, ServiceEndpoint


def client_table(env: Env) -> Iterator[Flow]:
    """Restore a client's port if conntrack has changed it.

    A label in a match creates a datapath flow per connection, so the label of an unchanged port is cleared, by a
    packet in one piece: conntrack would wait for the other fragments.
    """
    deliver = e.goto(t.DELIVER)
    forget = Ct(env.zone(r.ZONE_SERVICE), commit=True, exec_=(set_bits(r.LABEL_CLIENT_PORT, 0),))
    for family in r.FAMILIES:
        for protocol, port in r.SOURCE_PORTS.items():
            client = (family, exact(f.IP_PROTO, protocol))
            give_back = Move(r.LABEL_CLIENT_PORT, port)
            if env.userspace_conntrack:
                for moved in _differences(r.LABEL_CLIENT_PORT, port):
                    yield e.flow(t.CLIENT, d.SPECIAL, (*client, e.NEW, *moved), give_back, deliver)
                yield e.flow(t.CLIENT, d.EXACT, (*client, e.NEW, e.WHOLE), forget, deliver)
            yield e.flow(t.CLIENT, d.NORMAL, client, give_back, deliver)
        yield e.flow(t.CLIENT, d.SPECIAL + 1, (family, r.LABEL_CLIENT_PORT.is_(0)), deliver)
        if env.userspace_conntrack:
            yield e.flow(t.CLIENT, d.SPECIAL + 2, (family, e.LATER), deliver)  # has no port to restore
        yield e.flow(t.CLIENT, d.ELSE, (family,), deliver)  # an ICMP error about such a connection


def _differences(first: Bits, second: Bits) -> Iterator[tuple[Term, Term]]:
    """Yield pairs of conditions, bit by bit; one of them holds if and only if the values of two fields differ."""
    for number in range(first.high - first.low + 1):
        for value in (0, 1):
            first_bit, second_bit = (
                Bits(b.name, b.field, b.low + number, b.low + number, b.purpose) for b in (first, second)
            )
            yield first_bit.is_(value), second_bit.is_(1 - value)


def client_port_writes(env: Env, s: LocalService) -> LabelWrites:
    """Return the write of a new client's port to the connection's label; () if the port may change.

    An earlier connection with the same addresses and ports that has expired or was just closed still occupies its
    tuple in the conntrack of the userspace datapath. So a new connection gets another port (nat_get_unique_tuple
    in OVS' lib/conntrack.c), which the next gateway would not know. If two Services share an endpoint, two
    connections may really have the same tuple; there the port of a new connection may change.
    """
    keep = r.KEEP_CLIENT_PORT.get(s.protocol)
    return () if keep is None or not env.userspace_conntrack or s.shares_endpoints else (keep,)


def invalid_tcp(env: Env) -> Iterator[Flow]:
    """Route TCP packets with invalid sequence numbers like their connection.

    The server of a client that reuses a port may still have an earlier connection. It then answers with an ACK,
    and the client must reset that connection (RFC 9293, section 3.10.7.3). nf_conntrack accepts both packets; this
    conntrack (tcp_conn_update in OVS' lib/conntrack-tcp.c) accepts neither, nor the following handshake. Unlike
    the kernel, it sets the marks of invalid packets, too, so they can be routed. A packet without a mark has no
    connection.
    """
    if not env.userspace_conntrack:
        return
    priority = d.SPECIAL + 1
    for family in r.FAMILIES:
        tcp = (family, e.INVALID, exact(f.IP_PROTO, f.IP_TCP))
        not_opened_here = (*tcp, r.MARK_OPENED.is_(0))
        yield e.flow(t.DEPARTURE, priority, (*tcp, r.MARK_OPENED.is_(1)), e.goto(t.ROUTE))
        yield from departure.replies_by_gateway(env, priority + 1, not_opened_here)
        no_connection = (*not_opened_here, r.MARK_PORT.is_(0))
        yield e.drop(t.DEPARTURE, priority + 1, no_connection, d.DROP_INVALID, t.DEPARTURE.number)
        yield from departure.direct_replies(env, priority, not_opened_here)
        yield from arrive.store_ingress(
            env, (family, e.NO_STATE, exact(f.IP_PROTO, f.IP_TCP), r.MARK_OPENED.is_(0))
        )
        if env.gateway:
            yield e.flow(t.SNAT_STATE, d.SPECIAL, (family, e.INVALID_SNATED), e.goto(t.EXIT))
            yield from untranslate.replies_to_opener((family, e.INVALID_SNATED))


def endpoints(local_endpoints: Iterable[ServiceEndpoint]) -> Iterator[Flow]:
    """Drop mid-connection TCP packets of endpoints on this Node whose connection conntrack has lost.

    The client may have connected to the Service or to the endpoint's own address; the packets do not show which. A
    client of the Service would answer an untranslated packet with a reset. The client's next packet shows which it
    is; if a Node has lost its whole conntrack, the agent makes clients send one.
    """
    for endpoint in sorted(set(local_endpoints)):
        sender = (*source_in(endpoint.address), exact(f.IP_PROTO, f.IP_TCP), exact(f.TCP_SRC, endpoint.port))
        terms = (e.NEW, *sender, tcp_flags("-syn"))
        yield e.drop(t.DEPARTURE, d.SPECIAL, terms, d.DROP_NO_STATE, t.DEPARTURE.number)
