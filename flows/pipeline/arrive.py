"""Tables Deliver, Output, Arrive, Admit and ArriveState: to the destination's Node, and there into the kernel.

Conntrack (zone ARRIVAL) keeps the gateway that a connection came in by, and the Service that it translated.
"""

from __future__ import annotations

from collections.abc import Iterator

from flows.actions import Ct, DecTtl, Meter, Move, Output, OutputBits, set_bits, set_whole
from flows.fields import ETH_DST, ETH_SRC, ct_state, destination_in, eth_type_of
from flows.flow import Flow
from flows.pipeline import declaration as d
from flows.pipeline import registers as r
from flows.pipeline import tables as t
from flows.pipeline.entries import (
    AS_TRANSLATED,
    ESTABLISHED,
    FROM_GATEWAY,
    FROM_REMOTE,
    NEW,
    PLAIN,
    TRACKED,
    base_entry,
    entry,
    goto,
    mac,
)
from flows.pipeline.values import Env, LocalNode, RemoteCluster

_REVERSED = ct_state("-rel-inv+rpl+trk")


def _output() -> Iterator[Flow]:
    """By tunnel, with the MAC that says whether a Service was translated."""
    out = OutputBits(r.EGRESS_PORT)
    yield base_entry(t.OUTPUT, d.NORMAL, (r.TRANSLATED.is_(1),), AS_TRANSLATED, out)
    yield base_entry(t.OUTPUT, d.NORMAL, (r.TRANSLATED.is_(0),), PLAIN, out)


def own_node(n: LocalNode, cookie: int) -> Iterator[Flow]:
    """To this Node itself."""
    for net in dict.fromkeys(n.networks):
        terms = (eth_type_of(net), destination_in(net))
        yield entry(cookie, t.DELIVER, d.PREFIX + net.prefixlen, terms, goto(t.ARRIVE))


def node(n: LocalNode, cookie: int) -> Iterator[Flow]:
    """Gateway: from another cluster to another Node."""
    to_node = (DecTtl(), set_bits(r.EGRESS_PORT, n.ofport), goto(t.OUTPUT))
    for net in dict.fromkeys(n.networks):
        terms = (eth_type_of(net), FROM_REMOTE, destination_in(net))
        yield entry(cookie, t.DELIVER, d.PREFIX + net.prefixlen, terms, *to_node)


def base(env: Env) -> Iterator[Flow]:
    """What every connection does that another cluster opened."""
    yield from _output()
    track = Ct(env.zones.arrival, table=t.ADMIT.number)
    mark = (Move(r.INGRESS_PORT, r.MARK_PORT), Move(r.TRANSLATED, r.MARK_TRANSLATED))
    # The Service is kept with the mark and not compared by itself: a connection has one as long as it lives.
    service = Move(r.SERVICE_ID, r.LABEL_SERVICE)
    remember = {0: mark, 1: (*mark, service)}
    # By the source MAC the kernel tells what was translated (`mct_nodes` in nft). There it stays: to write
    # it would make every Service a flow of its own in the datapath. Else it is whatever another cluster wrote.
    to_kernel = (set_whole(ETH_DST, r.HOST_MAC), Output(r.HOST_OFPORT))
    deliver = {0: (set_whole(ETH_SRC, r.MAC_PLAIN), *to_kernel), 1: to_kernel}
    table = t.ARRIVE_STATE
    for family in r.FAMILIES:
        translated = (family, FROM_GATEWAY, mac(r.MAC_TRANSLATED))
        yield base_entry(t.ARRIVE, d.NORMAL, translated, set_bits(r.TRANSLATED, 1), track)
        yield base_entry(t.ARRIVE, d.ELSE, (family, FROM_GATEWAY), track)
        if env.gateway:  # the way back is by this Node itself
            here = set_bits(r.INGRESS_PORT, r.HOST_OFPORT)
            yield base_entry(t.ARRIVE, d.NORMAL, (family, FROM_REMOTE), here, track)
        yield base_entry(t.ADMIT, d.ELSE, (family,), goto(table))
        for state in (NEW, ESTABLISHED):
            for bit, kept in remember.items():
                commit = Ct(env.zones.arrival, commit=True, exec_=kept)
                yield base_entry(table, d.NORMAL, (family, state, r.TRANSLATED.is_(bit)), commit, *deliver[bit])
        # A request that is called a reply: conntrack was lost (with the userspace datapath's process), and the
        # server spoke first since. Only requests are translated by a gateway, so their direction is sure.
        turned = Ct(env.zones.arrival, commit=True, force=True, exec_=remember[1])
        yield base_entry(table, d.NORMAL, (family, _REVERSED, r.TRANSLATED.is_(1)), turned, *deliver[1])
        for port in (*((r.HOST_OFPORT,) if env.gateway else ()), *env.local_gateways):
            as_before = (r.INGRESS_PORT.is_(port), r.MARK_PORT.is_(port))
            for bit in (0, 1):
                same = (*as_before, r.TRANSLATED.is_(bit), r.MARK_TRANSLATED.is_(bit))
                yield base_entry(table, d.EXACT, (family, ESTABLISHED, *same), *deliver[bit])
        for bit in (0, 1):
            yield base_entry(table, d.ELSE, (family, TRACKED, r.TRANSLATED.is_(bit)), *deliver[bit])


def cluster(c: RemoteCluster, cookie: int) -> Iterator[Flow]:
    """What would become a new entry of conntrack passes the cluster's meter.

    Where nobody answers, conntrack calls every packet of UDP new: what has a mark has its entry.
    """
    if c.meter is not None:
        for family in r.FAMILIES:
            terms = (family, NEW, r.MARK_PORT.is_(0), r.CLUSTER.is_(c.id))
            yield entry(cookie, t.ADMIT, d.NORMAL, terms, Meter(c.meter), goto(t.ARRIVE_STATE))
