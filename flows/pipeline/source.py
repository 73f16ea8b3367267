"""Table Source: a cluster, a Node and the host may send only from addresses that are theirs.

Everything else is dropped and counted, by who sent it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from flows.actions import Ct, set_bits
from flows.fields import Network, eth_type_of, source_in
from flows.flow import Flow
from flows.pipeline import declaration as d
from flows.pipeline import registers as r
from flows.pipeline import tables as t
from flows.pipeline.entries import (
    FROM_GATEWAY,
    FROM_HOST,
    FROM_NODE,
    FROM_REMOTE,
    base_entry,
    drop,
    entry,
    goto,
)
from flows.pipeline.values import Env, LocalNode, RemoteCluster


def base(env: Env) -> Iterator[Flow]:
    """What nobody may send; on a gateway, the replies of Services that a sibling un-translated."""
    for origin in (r.ORIGIN_HOST, r.ORIGIN_NODE, r.ORIGIN_GATEWAY):
        yield drop(t.SOURCE, d.ELSE, (r.ORIGIN.is_(origin),), d.DROP_SPOOFED, origin)
    if env.gateway and env.local_gateways:  # a sibling that lost the other cluster relays them
        for network in env.service_cidrs:
            terms = (eth_type_of(network), FROM_GATEWAY, source_in(network))
            yield base_entry(t.SOURCE, d.PREFIX + network.prefixlen, terms, goto(t.UNTRANSLATE))


def cluster(env: Env, c: RemoteCluster, cookie: int, sources: Iterable[Network]) -> Iterator[Flow]:
    """What a gateway of this cluster hands on from another cluster is delivered here."""
    if env.local_gateways:
        deliver = (set_bits(r.CLUSTER, c.id), goto(t.DELIVER))
        for net in sources:
            terms = (eth_type_of(net), FROM_GATEWAY, source_in(net))
            yield entry(cookie, t.SOURCE, d.PREFIX + net.prefixlen, terms, *deliver)


def cluster_tunnel(c: RemoteCluster, cookie: int, sources: Iterable[Network]) -> Iterator[Flow]:
    """Gateway: another cluster sends from its own CIDRs, and its gateways from their addresses."""
    of = r.CLUSTER.is_(c.id)
    for net in sources:
        terms = (eth_type_of(net), FROM_REMOTE, of, source_in(net))
        yield entry(cookie, t.SOURCE, d.PREFIX + net.prefixlen, terms, goto(t.UNTRANSLATE))
    yield drop(t.SOURCE, d.ELSE, (FROM_REMOTE, of), d.DROP_SPOOFED_REMOTE, c.id)


def own_node(env: Env, n: LocalNode, cookie: int) -> Iterator[Flow]:
    """From the host: what lives on this Node, by way of conntrack."""
    track = Ct(env.zones.arrival, table=t.DEPARTURE.number)
    for net in dict.fromkeys(n.networks):
        terms = (eth_type_of(net), FROM_HOST, source_in(net))
        yield entry(cookie, t.SOURCE, d.PREFIX + net.prefixlen, terms, track)


def node(env: Env, n: LocalNode, cookie: int) -> Iterator[Flow]:
    """Gateway: a worker's own, by its tunnel; and what a sibling relays because it lost the other cluster."""
    go_on = goto(t.UNTRANSLATE)
    for net in dict.fromkeys(n.networks):
        family, source, priority = eth_type_of(net), source_in(net), d.PREFIX + net.prefixlen
        if not n.gateway:
            terms = (family, FROM_NODE, r.INGRESS_PORT.is_(n.ofport), source)
            yield entry(cookie, t.SOURCE, priority, terms, go_on)
        if env.local_gateways:
            # Replies to what is SNATed here then go to the Node itself: the sibling may take them from us only for
            # its own Pods, and may be about to fail.
            opener = set_bits(r.INGRESS_PORT, n.ofport)
            yield entry(cookie, t.SOURCE, priority, (family, FROM_GATEWAY, source), opener, go_on)
