"""Tables Deliver, Output, Arrive, Related, Admit, NewConnections, ArriveState: to the destination's kernel.

Conntrack (zone ARRIVAL) stores the gateway through which a connection arrived, and the Service that it translated.
"""

from __future__ import annotations

from collections.abc import Iterator

from flows.actions import Ct, DecTtl, Goto, Meter, Move, OutputBits, Resubmit, set_bits, set_whole
from flows.fields import ETH_DST, ETH_SRC, Term, destination_in
from flows.flow import Flow
from flows.pipeline import declaration as d
from flows.pipeline import entries as e
from flows.pipeline import registers as r
from flows.pipeline import tables as t
from flows.pipeline.steps.mapping import to_kernel
from flows.pipeline.values import Env, LocalNode, RemoteCluster

# The source MAC tells the kernel whether a packet was translated (`mct_nodes` in nft). For translated packets it
# is kept: writing it would create a datapath flow per Service. For others it is overwritten, since a remote
# cluster may set any.
_PLAIN = set_whole(ETH_SRC, r.MAC_PLAIN)
_DELIVER = {0: (_PLAIN, e.goto(t.MAP)), 1: (e.goto(t.MAP),)}  # requests, by whether a Service was translated


def _output() -> Iterator[Flow]:
    """Output to a tunnel; the destination MAC says whether a Service was translated or the Node is queried."""
    out = OutputBits(r.EGRESS_PORT)
    for number, mac in enumerate((r.MAC_TRANSLATED, r.MAC_ASK, r.MAC_ASK_ALL)):
        terms = (r.TRANSLATED.is_(1), r.LOOKUP.is_(number))
        yield e.flow(t.OUTPUT, d.NORMAL, terms, set_whole(ETH_DST, mac), out)
    yield e.flow(t.OUTPUT, d.NORMAL, (r.TRANSLATED.is_(0),), e.PLAIN, out)


def own_node(n: LocalNode) -> Iterator[Flow]:
    """Deliver packets to this Node itself."""
    for net in dict.fromkeys(n.networks):
        yield e.flow(t.DELIVER, d.PREFIX + net.prefixlen, destination_in(net), e.goto(t.ARRIVE))


def node(n: LocalNode) -> Iterator[Flow]:
    """Gateway: deliver packets of remote clusters to another Node."""
    to_node = (DecTtl(), set_bits(r.EGRESS_PORT, n.ofport), e.goto(t.OUTPUT))
    for net in dict.fromkeys(n.networks):
        terms = (e.FROM_REMOTE, *destination_in(net))
        yield e.flow(t.DELIVER, d.PREFIX + net.prefixlen, terms, *to_node)


def base(env: Env) -> Iterator[Flow]:
    """Process connections that remote clusters opened."""
    yield from _output()
    yield from _related(env)
    track = Ct(env.zone(r.ZONE_ARRIVAL), table=t.RELATED.number)
    table = t.ARRIVE_STATE
    for family in r.FAMILIES:
        translated = (family, e.FROM_GATEWAY, e.mac(r.MAC_TRANSLATED))
        yield e.flow(t.ARRIVE, d.NORMAL, translated, set_bits(r.TRANSLATED, 1), track)
        yield e.flow(t.ARRIVE, d.ELSE, (family, e.FROM_GATEWAY), track)
        if env.gateway:  # replies return through this Node itself
            from_this_node = set_bits(r.INGRESS_PORT, r.HOST_OFPORT)
            yield e.flow(t.ARRIVE, d.NORMAL, (family, e.FROM_REMOTE), from_this_node, track)
        yield e.flow(t.ADMIT, d.ELSE, (family,), e.goto(table))
        yield from e.limited(env, t.ADMIT, (family, e.NEW, r.MARK_PORT.is_(0)), table)
        yield from store_ingress(env, (family, e.NEW))
        yield from store_ingress(env, (family, e.ESTABLISHED))
        # A request that conntrack considers a reply: conntrack was lost (with the userspace datapath's process),
        # and the server sent first since. A gateway translates requests only, so the direction is certain.
        reversed_request = Ct(env.zone(r.ZONE_ARRIVAL), commit=True, force=True, exec_=e.REMEMBER[1])
        yield e.flow(table, d.NORMAL, (family, e.REVERSED, r.TRANSLATED.is_(1)), reversed_request, *_DELIVER[1])
        for port in (*((r.HOST_OFPORT,) if env.gateway else ()), *env.local_gateways):
            as_before = (r.INGRESS_PORT.is_(port), r.MARK_PORT.is_(port))
            for bit in (0, 1):
                same = (*as_before, r.TRANSLATED.is_(bit), r.MARK_TRANSLATED.is_(bit))
                yield e.flow(table, d.EXACT, (family, e.ESTABLISHED, *same), *_DELIVER[bit])
        for bit in (0, 1):
            yield e.flow(table, d.ELSE, (family, e.TRACKED, r.TRANSLATED.is_(bit)), *_DELIVER[bit])
        # The server of a connection that this Node opened may be at the address of a remote gateway.
        untranslated, deliver = (family, r.TRANSLATED.is_(0)), (_PLAIN, *to_kernel(env))
        yield e.flow(table, d.ELSE + 1, (*untranslated, e.IN_REPLY), *deliver)
        own_request = set_whole(ETH_SRC, r.MAC_OWN_REQUEST)
        yield e.flow(table, d.ELSE + 2, (*untranslated, e.RELATED_REPLY), own_request, *to_kernel(env))
        if env.userspace_conntrack:  # an invalid packet of a connection
            opened_here = (e.INVALID, r.MARK_OPENED.is_(1))
            yield e.flow(table, d.ELSE + 1, (*untranslated, *opened_here), *deliver)


def _after_related(env: Env) -> Goto:
    return e.goto(t.INGRESS_TIERS if env.identities else t.ADMIT)


def _related(env: Env) -> Iterator[Flow]:
    """Accept ICMP errors only from the cluster at the other end of the connection that they quote.

    If this side opened the connection, the address of that end takes the place of the source in tables Owner and
    Source, then the source returns. All addresses of the cluster count, whatever tunnel the error came through.
    An error about a connection that a remote cluster opened has the state +rel+trk alone, in which Open vSwitch
    reads the fields of the first packet as 0 (is_ct_valid in lib/flow.h): conntrack's label has the cluster.

    Other packets are matched first: the fields of conntrack's first packet would create a datapath flow per
    connection. Without a connection nothing shows whose error it is, and this Node's kernel may know a connection
    that never passed the bridge.
    """
    quoted = r.QUOTED.is_(1)
    any_tunnel = (set_bits(r.OTHER_GATEWAY, 0), Resubmit(t.SOURCE.number))
    yield e.flow(t.SOURCE, d.SPECIAL + 1, (quoted, r.OTHER_GATEWAY.is_(1)), *any_tunnel)
    yield e.drop(t.SOURCE, d.SPECIAL, (quoted,), d.DROP_NOT_RELATED, t.SOURCE.number)
    for family in r.FAMILIES:
        yield e.flow(t.RELATED, d.SPECIAL, (family, e.UNRELATED), _after_related(env))
        for error in r.ICMP_ERRORS[family]:
            terms = (family, e.INVALID, *error)
            yield e.drop(t.RELATED, d.SPECIAL + 1, terms, d.DROP_NOT_RELATED, t.RELATED.number)
        keep = (Move(r.SOURCE_ADDRESS, r.SENDER_ADDRESS), set_bits(r.QUOTED, 1), set_bits(r.OTHER_GATEWAY, 0))
        address = (Move(r.QUOTED_ADDRESS[family], r.SOURCE_ADDRESS), set_bits(r.OWNER, 0))
        look_up = (*address, Resubmit(t.OWNER.number))
        yield e.flow(t.RELATED, d.NORMAL, (family, e.RELATED_REPLY), *keep, *look_up)
        labelled = (Move(r.LABEL_CLUSTER, r.OWNER), Resubmit(t.SOURCE.number))
        yield e.flow(t.RELATED, d.NORMAL, (family, e.RELATED_REQUEST), *keep, *labelled)
        back = Move(r.SENDER_ADDRESS, r.SOURCE_ADDRESS)
        yield e.flow(t.FRAGMENTS, d.SPECIAL, (family, quoted), back, _after_related(env))


def store_ingress(env: Env, request: tuple[Term, ...]) -> Iterator[Flow]:
    """Store the gateway through which a request arrived, and the translated Service; then output to the kernel."""
    for bit, marks in e.REMEMBER.items():
        commit = Ct(env.zone(r.ZONE_ARRIVAL), commit=True, exec_=marks)
        yield e.flow(t.ARRIVE_STATE, d.NORMAL, (*request, r.TRANSLATED.is_(bit)), commit, *_DELIVER[bit])


def cluster(c: RemoteCluster) -> Iterator[Flow]:
    """Limit the packets of a remote cluster that would create a conntrack entry (`entries.limited`)."""
    if c.meter is not None:
        yield e.flow(t.NEW_CONNECTIONS, d.NORMAL, (r.CLUSTER.is_(c.id),), Meter(c.meter))
