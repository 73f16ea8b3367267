"""Table Classify: who sent a packet, by the port that it came in by.

Sets origin, ingress port and, from another cluster, its ID. Knows no addresses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from flows.actions import set_bits
from flows.fields import IN_PORT, IP_PROTO, IP_TCP, IP_TOS, PORT_CONTROLLER, exact, tcp_flags
from flows.flow import Flow
from flows.pipeline import declaration as d
from flows.pipeline import registers as r
from flows.pipeline import tables as t
from flows.pipeline.entries import (
    AS_REPLY,
    TO_LOCAL_GATEWAY,
    UNMARKED,
    base_entry,
    drop,
    entry,
    goto,
    mac,
)
from flows.pipeline.values import Env, LocalNode, RemoteCluster


def base(env: Env) -> Iterator[Flow]:
    """From the host and from the gateways of this cluster."""
    source = goto(t.SOURCE)
    for family in r.FAMILIES:
        terms = (exact(IN_PORT, r.HOST_OFPORT), family, mac(r.MAC_PLAIN))
        host = (UNMARKED, set_bits(r.ORIGIN, r.ORIGIN_HOST), set_bits(r.INGRESS_PORT, r.HOST_OFPORT))
        yield base_entry(t.CLASSIFY, d.NORMAL, terms, *host, source)
        for port in env.local_gateways:
            gateway = (UNMARKED, set_bits(r.ORIGIN, r.ORIGIN_GATEWAY), set_bits(r.INGRESS_PORT, port))
            yield base_entry(t.CLASSIFY, d.NORMAL, (exact(IN_PORT, port), family), *gateway, source)
    yield from _probes(env)


def _probes(env: Env) -> Iterator[Flow]:
    """What the agent asks clients in the name of endpoints goes the way of replies, by any gateway.

    By the agent only: no packet comes in by this port. A client that is asked for a connection that it does not
    have refuses with a reset, which userspace conntrack would take for the end of the one that it has.
    """
    for family in r.FAMILIES:
        refused = (family, exact(IP_PROTO, IP_TCP), exact(IP_TOS, r.TOS_PROBE), tcp_flags("+rst"))
        yield drop(t.CLASSIFY, d.SPECIAL, refused, d.DROP_REFUSED)
        host = set_bits(r.ORIGIN, r.ORIGIN_HOST)
        for what in (r.MAC_TRANSLATED, r.MAC_REPLY):
            terms = (exact(IN_PORT, PORT_CONTROLLER), family, mac(what))
            if not env.gateway:
                yield base_entry(t.CLASSIFY, d.NORMAL, terms, UNMARKED, TO_LOCAL_GATEWAY)
            elif what == r.MAC_TRANSLATED:
                yield base_entry(t.CLASSIFY, d.NORMAL, terms, UNMARKED, host, goto(t.UN_DNAT))
            else:
                yield base_entry(t.CLASSIFY, d.NORMAL, terms, UNMARKED, host, *AS_REPLY, goto(t.ROUTE))


def cluster(c: RemoteCluster, cookie: int, ports: Iterable[int]) -> Iterator[Flow]:
    """Gateway: from the tunnels to another cluster's gateways."""
    for port in ports:
        who = (set_bits(r.ORIGIN, r.ORIGIN_REMOTE), set_bits(r.CLUSTER, c.id), set_bits(r.INGRESS_PORT, port))
        for family in r.FAMILIES:
            yield entry(
                cookie, t.CLASSIFY, d.NORMAL, (exact(IN_PORT, port), family), UNMARKED, *who, goto(t.SOURCE)
            )


def node(n: LocalNode, cookie: int) -> Iterator[Flow]:
    """Gateway: from the tunnel to a worker; those to gateways are everybody's."""
    if n.gateway:
        return
    who = (set_bits(r.ORIGIN, r.ORIGIN_NODE), set_bits(r.INGRESS_PORT, n.ofport))
    for family in r.FAMILIES:
        yield entry(
            cookie, t.CLASSIFY, d.NORMAL, (exact(IN_PORT, n.ofport), family), UNMARKED, *who, goto(t.SOURCE)
        )
