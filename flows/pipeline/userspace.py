"""What only the userspace datapath needs, because of its conntrack; `owners` puts it in.

It may move a client's port: table Client. It calls TCP invalid that the kernel's lets pass: `invalid`. It ends
with ovs-vswitchd: flows that hold back what an endpoint sends in the middle of a connection that is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from flows import fields as f
from flows.actions import Ct, Move, set_bits
from flows.fields import Bits, Term, exact, source_in, tcp_flags
from flows.flow import Flow
from flows.pipeline import arrive, departure, untranslate
from flows.pipeline import declaration as d
from flows.pipeline import entries as e
from flows.pipeline import registers as r
from flows.pipeline import tables as t
from flows.pipeline.service import Remember
from flows.pipeline.values import Env, LocalService, ServiceEndpoint


def client_table(env: Env) -> Iterator[Flow]:
    """Give a client its port back, where conntrack has another one for it.

    A label costs a flow for each connection in the datapath, so a port that is as it came is forgotten.
    """
    deliver = e.goto(t.DELIVER)
    forget = Ct(env.zone(r.ZONE_SERVICE), commit=True, exec_=(set_bits(r.LABEL_CLIENT_PORT, 0),))
    for family in r.FAMILIES:
        for protocol, port in r.SOURCE_PORTS.items():
            of = (family, exact(f.IP_PROTO, protocol))
            give_back = Move(r.LABEL_CLIENT_PORT, port)
            if env.userspace_conntrack:
                for moved in _differences(r.LABEL_CLIENT_PORT, port):
                    yield e.flow(t.CLIENT, d.SPECIAL, (*of, e.NEW, *moved), give_back, deliver)
                yield e.flow(t.CLIENT, d.EXACT, (*of, e.NEW), forget, deliver)
            yield e.flow(t.CLIENT, d.NORMAL, of, give_back, deliver)
        yield e.flow(t.CLIENT, d.SPECIAL + 1, (family, r.LABEL_CLIENT_PORT.is_(0)), deliver)
        yield e.flow(t.CLIENT, d.ELSE, (family,), deliver)  # an ICMP error about such a connection


def _differences(one: Bits, other: Bits) -> Iterator[tuple[Term, Term]]:
    """Yield the conditions of which one holds if the numbers in two fields of one width differ: bit by bit."""
    for number in range(one.high - one.low + 1):
        for value in (0, 1):
            mine, theirs = (Bits(b.name, b.field, b.low + number, b.low + number, b.purpose) for b in (one, other))
            yield mine.is_(value), theirs.is_(1 - value)


def remembered(env: Env, s: LocalService) -> Remember:
    """Return what keeps a new client's port in the connection's label, where that port is to be kept.

    To the userspace datapath's conntrack, what is left of an earlier connection with the same addresses and ports
    (expired and not swept, or closed a moment ago) is another one, for which it finds this one a free port
    (nat_get_unique_tuple in OVS' lib/conntrack.c). The next gateway would not know of that port. But two
    connections may really be meant, where two Services have the same endpoint: there one that begins may have
    another port.
    """
    keep = r.KEEP_CLIENT_PORT.get(s.protocol)
    return () if keep is None or not env.userspace_conntrack or s.shares_endpoints else (keep,)


def invalid(env: Env) -> Iterator[Flow]:
    """Let TCP that conntrack calls invalid by its numbers go the way of the connection that it has.

    A client that uses a port again may meet what its server has left of an earlier connection. It learns that from
    an ACK, and must reset it (RFC 9293, section 3.10.7.3); nf_conntrack lets both pass, this conntrack
    (tcp_conn_update in OVS' lib/conntrack-tcp.c) neither, nor the handshake that follows. Its marks tell the way
    all the same: unlike the kernel, it says them of invalid packets too. What has no mark has no connection.
    """
    if not env.userspace_conntrack:
        return
    above = d.SPECIAL + 1
    for family in r.FAMILIES:
        tcp = (family, e.INVALID, exact(f.IP_PROTO, f.IP_TCP))
        theirs = (*tcp, r.MARK_OPENED.is_(0))
        yield e.flow(t.DEPARTURE, above, (*tcp, r.MARK_OPENED.is_(1)), e.goto(t.ROUTE))
        yield from departure.by_gateway(env, above + 1, theirs)
        no_connection = (*theirs, r.MARK_PORT.is_(0))
        yield e.drop(t.DEPARTURE, above + 1, no_connection, d.DROP_INVALID, t.DEPARTURE.number)
        yield from departure.by_itself(env, above, theirs)
        yield from arrive.remember(env, (family, e.NO_STATE, exact(f.IP_PROTO, f.IP_TCP), r.MARK_OPENED.is_(0)))
        if env.gateway:
            yield e.flow(t.SNAT_STATE, d.SPECIAL, (family, e.INVALID_SNATED), e.goto(t.EXIT))
            yield from untranslate.to_opener((family, e.INVALID_SNATED))


def endpoints(found: Iterable[ServiceEndpoint]) -> Iterator[Flow]:
    """Hold back what TCP endpoints on this Node send in the middle of a connection that conntrack has lost.

    It may be that of a client of the Service, or of one that came to the endpoint's own address: the bytes are the
    same. Sent as it is, it would be answered with a reset by the former. The client's next packet tells; the agent
    makes it send one where a whole Node has lost its conntrack.
    """
    for one in sorted(set(found)):
        sender = (*source_in(one.address), exact(f.IP_PROTO, f.IP_TCP), exact(f.TCP_SRC, one.port))
        terms = (e.NEW, *sender, tcp_flags("-syn"))
        yield e.drop(t.DEPARTURE, d.SPECIAL, terms, d.DROP_NO_STATE, t.DEPARTURE.number)
