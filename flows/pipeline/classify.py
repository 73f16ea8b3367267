"""Table Classify: who sent a packet, by the port that it came in by.

Sets origin, ingress port and, from another cluster, its ID. Knows no addresses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from flows.actions import Meter, Output, ToController, set_bits, set_whole
from flows.fields import (
    ETH_DST,
    ETH_TYPE,
    IN_PORT,
    IP_PROTO,
    IP_TCP,
    IP_TOS,
    PORT_CONTROLLER,
    PORT_IN_PORT,
    exact,
    tcp_flags,
)
from flows.flow import Flow
from flows.pipeline import declaration as d
from flows.pipeline import entries as e
from flows.pipeline import registers as r
from flows.pipeline import tables as t
from flows.pipeline.values import Env, LocalNode, NextHop, RemoteCluster


def base(env: Env) -> Iterator[Flow]:
    """From the host and from the gateways of this cluster."""
    for family in r.FAMILIES:
        terms = (exact(IN_PORT, r.HOST_OFPORT), family, e.mac(r.MAC_PLAIN))
        host = (*e.FOREIGN, set_bits(r.ORIGIN, r.ORIGIN_HOST), set_bits(r.INGRESS_PORT, r.HOST_OFPORT))
        yield e.flow(t.CLASSIFY, d.NORMAL, terms, *host, e.goto(t.SOURCE))
        for port in env.local_gateways:
            gateway = (e.UNMARKED, set_bits(r.ORIGIN, r.ORIGIN_GATEWAY), set_bits(r.INGRESS_PORT, port))
            yield e.flow(t.CLASSIFY, d.NORMAL, (exact(IN_PORT, port), family), *gateway, e.goto(t.SOURCE))
    yield from _told(env)
    yield from _probes(env)


def _told(env: Env) -> Iterator[Flow]:
    """What the agents of this cluster's gateways tell is for the agent here; from nobody else does it pass."""
    for port in env.local_gateways:
        terms = (exact(IN_PORT, port), exact(ETH_TYPE, r.ETHERTYPE_AGENTS))
        yield e.flow(t.CLASSIFY, d.NORMAL, terms, ToController(r.AGENTS_FRAME))


def _probes(env: Env) -> Iterator[Flow]:
    """What the agent asks clients in the name of endpoints goes the way of replies, by any gateway.

    By the agent only: no packet comes in by this port. A client that is asked for a connection that it does not
    have refuses with a reset, which userspace conntrack would take for the end of the one that it has.
    """
    for family in r.FAMILIES:
        refused = (family, exact(IP_PROTO, IP_TCP), exact(IP_TOS, r.TOS_PROBE), tcp_flags("+rst"))
        yield e.drop(t.CLASSIFY, d.SPECIAL, refused, d.DROP_REFUSED)
        host = set_bits(r.ORIGIN, r.ORIGIN_HOST)
        for what in (r.MAC_TRANSLATED, r.MAC_REPLY):
            terms = (exact(IN_PORT, PORT_CONTROLLER), family, e.mac(what))
            if not env.gateway:
                yield e.flow(t.CLASSIFY, d.NORMAL, terms, *e.FOREIGN, e.TO_LOCAL_GATEWAY)
            elif what == r.MAC_TRANSLATED:
                yield e.flow(t.CLASSIFY, d.NORMAL, terms, *e.FOREIGN, host, e.goto(t.UN_DNAT))
            else:
                yield e.flow(t.CLASSIFY, d.NORMAL, terms, *e.FOREIGN, host, *e.AS_REPLY, e.goto(t.ROUTE))


def cluster(env: Env, c: RemoteCluster, hops: Iterable[NextHop]) -> Iterator[Flow]:
    """Gateway: from the tunnels to another cluster's gateways. Table Identity judges whom they say it is from."""
    begin = (e.UNMARKED,) if env.identities else e.FOREIGN
    for port in (hop.ofport for hop in hops):
        who = (set_bits(r.ORIGIN, r.ORIGIN_REMOTE), set_bits(r.CLUSTER, c.id), set_bits(r.INGRESS_PORT, port))
        for family in r.FAMILIES:
            yield e.flow(t.CLASSIFY, d.NORMAL, (exact(IN_PORT, port), family), *begin, *who, e.goto(t.SOURCE))
        if c.probe_meter is not None:
            yield from _tunnel_probes(port, Meter(c.probe_meter))


def _tunnel_probes(port: int, meter: Meter) -> Iterator[Flow]:
    """A probe goes back the way it came, once and no larger; an answer goes to the agent. Within the meter."""
    found = (exact(IN_PORT, port), exact(ETH_TYPE, r.ETHERTYPE_PROBE))
    back = (set_whole(ETH_DST, r.MAC_ANSWER), Output(PORT_IN_PORT))
    yield e.flow(t.CLASSIFY, d.NORMAL, (*found, e.mac(r.MAC_PROBE)), meter, *e.FOREIGN, *back)
    yield e.flow(t.CLASSIFY, d.NORMAL, (*found, e.mac(r.MAC_ANSWER)), meter, ToController(r.PROBE_HEAD))


def node(n: LocalNode) -> Iterator[Flow]:
    """Gateway: from the tunnel to a worker; those to gateways are everybody's."""
    if n.gateway:
        return
    who = (set_bits(r.ORIGIN, r.ORIGIN_NODE), set_bits(r.INGRESS_PORT, n.ofport))
    for family in r.FAMILIES:
        yield e.flow(t.CLASSIFY, d.NORMAL, (exact(IN_PORT, n.ofport), family), e.UNMARKED, *who, e.goto(t.SOURCE))
