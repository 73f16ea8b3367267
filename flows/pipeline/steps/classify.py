"""Table Classify: the sender of a packet, by its input port.

Sets origin, ingress port and, for packets of remote clusters, the cluster ID. Must not know addresses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from flows.actions import CheckLarger, Meter, Output, ToController, set_bits, set_whole
from flows.fields import (
    ETH_DST,
    ETH_SRC,
    ETH_TYPE,
    IN_PORT,
    IP_ICMP,
    IP_PROTO,
    IP_TCP,
    IP_TOS,
    IPV4_ONLY,
    IPV4_SRC,
    IPV6_SRC,
    PORT_CONTROLLER,
    PORT_IN_PORT,
    Term,
    exact,
    tcp_flags,
)
from flows.flow import Flow
from flows.pipeline import declaration as d
from flows.pipeline import entries as e
from flows.pipeline import registers as r
from flows.pipeline import tables as t
from flows.pipeline.values import Env, LocalNode, NextHop, RemoteCluster

_ETHERNET = 14  # bytes of the header


def base(env: Env) -> Iterator[Flow]:
    """Classify packets of the host and of the gateways of this cluster."""
    measure = () if env.mtu is None else (CheckLarger(env.mtu + _ETHERNET, r.TOO_LARGE),)
    for family in r.FAMILIES:
        terms = (exact(IN_PORT, r.HOST_OFPORT), family, e.mac(r.MAC_PLAIN))
        host = (*e.FOREIGN, set_bits(r.ORIGIN, r.ORIGIN_HOST), set_bits(r.INGRESS_PORT, r.HOST_OFPORT))
        yield e.flow(t.CLASSIFY, d.NORMAL, terms, *host, *measure, e.goto(t.UNMAP))
        # Not TCP, whose segments fit: measured packets leave their batch in the userspace datapath, and Linux
        # before 5.13 takes segments that a device has to cut for large (execute_check_pkt_len).
        yield e.flow(t.CLASSIFY, d.EXACT, (*terms, exact(IP_PROTO, IP_TCP)), *host, e.goto(t.UNMAP))
        repaired = (*terms, exact(IP_PROTO, IP_ICMP), exact(IP_TOS, r.TOS_REPAIRED), e.WHOLE)
        yield e.flow(t.CLASSIFY, d.EXACT, repaired, *host, set_bits(r.REPAIRED, 1), *measure, e.goto(t.UNMAP))
        if env.fragment_meters:
            yield e.flow(t.CLASSIFY, d.EXACT + 1, (*terms, e.FRAGMENT), *host, *measure, e.goto(t.SENT_FRAGMENTS))
            yield from _sent_fragments(env, family)
        for port in env.local_gateways:
            gateway = (e.UNMARKED, set_bits(r.ORIGIN, r.ORIGIN_GATEWAY), set_bits(r.INGRESS_PORT, port))
            yield e.flow(t.CLASSIFY, d.NORMAL, (exact(IN_PORT, port), family), *gateway, e.goto(t.OWNER))
    yield from _agent_reports(env)
    yield from _probes(env)


def _sent_fragments(env: Env, family: Term) -> Iterator[Flow]:
    """Pass fragments through the meter of their sender: other clusters limit those of this cluster together.

    In a table of its own, since the source address in a match would create a datapath flow per sender for all
    packets. Consecutive addresses have different meters.
    """
    source, mask = IPV4_SRC if family is IPV4_ONLY else IPV6_SRC, len(env.fragment_meters) - 1
    for bits, meter in enumerate(env.fragment_meters):
        yield e.flow(t.SENT_FRAGMENTS, d.NORMAL, (family, Term(source, bits, mask)), Meter(meter), e.goto(t.UNMAP))


def _agent_reports(env: Env) -> Iterator[Flow]:
    """Send reports of the agents of this cluster's gateways to the local agent; others do not pass."""
    for port in env.local_gateways:
        terms = (exact(IN_PORT, port), exact(ETH_TYPE, r.ETHERTYPE_AGENTS))
        yield e.flow(t.CLASSIFY, d.NORMAL, terms, ToController(r.AGENTS_FRAME))


def _probes(env: Env) -> Iterator[Flow]:
    """Route probes that the agent sends to clients in the name of endpoints like replies, by any gateway.

    Only the agent can use this input port. A client without the probed connection answers with a reset, which is
    dropped here, since conntrack of the userspace datapath would end the connection on it.
    """
    for family in r.FAMILIES:
        refused = (family, exact(IP_PROTO, IP_TCP), exact(IP_TOS, r.TOS_PROBE), tcp_flags("+rst"))
        yield e.drop(t.CLASSIFY, d.SPECIAL, refused, d.DROP_REFUSED)
        host = set_bits(r.ORIGIN, r.ORIGIN_HOST)
        for mac in (r.MAC_TRANSLATED, r.MAC_REPLY):
            terms = (exact(IN_PORT, PORT_CONTROLLER), family, e.mac(mac))
            if not env.gateway:
                yield e.flow(t.CLASSIFY, d.NORMAL, terms, *e.FOREIGN, e.TO_LOCAL_GATEWAY)
            elif mac == r.MAC_TRANSLATED:
                yield e.flow(t.CLASSIFY, d.NORMAL, terms, *e.FOREIGN, host, e.goto(t.UN_DNAT))
            else:
                yield e.flow(t.CLASSIFY, d.NORMAL, terms, *e.FOREIGN, host, *e.AS_REPLY, e.goto(t.ROUTE))


def cluster(env: Env, c: RemoteCluster, hops: Iterable[NextHop]) -> Iterator[Flow]:
    """Gateway: classify packets of remote gateways. Table Identity checks the label identity that they claim."""
    prepare = (e.UNMARKED,) if env.identities else e.FOREIGN
    for port in (hop.ofport for hop in hops):
        origin = (set_bits(r.ORIGIN, r.ORIGIN_REMOTE), set_bits(r.CLUSTER, c.id), set_bits(r.INGRESS_PORT, port))
        for family in r.FAMILIES:
            go_on = (*prepare, *origin, e.goto(t.OWNER))
            yield e.flow(t.CLASSIFY, d.NORMAL, (exact(IN_PORT, port), family), *go_on)
        if c.probe_meter is not None:
            yield from _tunnel_probes(env, port, Meter(c.probe_meter))


def _tunnel_probes(env: Env, port: int, meter: Meter) -> Iterator[Flow]:
    """Return each probe once, unchanged in size, through its tunnel; send answers to the agent. Metered."""
    frame = (exact(IN_PORT, port), exact(ETH_TYPE, r.ETHERTYPE_PROBE))
    signed = () if env.fingerprint is None else (set_whole(ETH_SRC, env.fingerprint),)
    back = (*signed, set_whole(ETH_DST, r.MAC_ANSWER), Output(PORT_IN_PORT))
    yield e.flow(t.CLASSIFY, d.NORMAL, (*frame, e.mac(r.MAC_PROBE)), meter, *e.FOREIGN, *back)
    yield e.flow(t.CLASSIFY, d.NORMAL, (*frame, e.mac(r.MAC_ANSWER)), meter, ToController(r.PROBE_HEAD))


def node(n: LocalNode) -> Iterator[Flow]:
    """Gateway: classify packets of a worker; `base` does so for gateways, on all Nodes."""
    if n.gateway:
        return
    origin = (set_bits(r.ORIGIN, r.ORIGIN_NODE), set_bits(r.INGRESS_PORT, n.ofport))
    for family in r.FAMILIES:
        yield e.flow(
            t.CLASSIFY, d.NORMAL, (exact(IN_PORT, n.ofport), family), e.UNMARKED, *origin, e.goto(t.SOURCE)
        )
