"""Table Source: a cluster, a Node and the host may send only from addresses that are theirs.

Everything else is dropped and counted, by who sent it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from flows.actions import set_bits
from flows.fields import Network, source_in
from flows.flow import Flow
from flows.pipeline import declaration as d
from flows.pipeline import entries as e
from flows.pipeline import registers as r
from flows.pipeline import tables as t
from flows.pipeline.identity import departing
from flows.pipeline.values import Env, LocalNode, RemoteCluster


def base(env: Env) -> Iterator[Flow]:
    """What nobody may send; on a gateway, the replies of Services that a sibling un-translated."""
    for origin in (r.ORIGIN_HOST, r.ORIGIN_NODE, r.ORIGIN_GATEWAY, r.ORIGIN_ANSWER):
        yield e.drop(t.SOURCE, d.ELSE, (r.ORIGIN.is_(origin),), d.DROP_SPOOFED, origin)
    if env.gateway and env.local_gateways:  # a sibling that lost the other cluster relays them
        for network in env.service_cidrs:
            terms = (e.FROM_GATEWAY, *source_in(network))
            yield e.flow(t.SOURCE, d.PREFIX + network.prefixlen, terms, e.goto(t.UNTRANSLATE))


def cluster(env: Env, c: RemoteCluster, sources: Iterable[Network]) -> Iterator[Flow]:
    """What a gateway hands on from another cluster is delivered here; what a Node returns was asked for."""
    of = set_bits(r.CLUSTER, c.id)
    if env.gateway:
        for net in sources:
            answered = (e.FROM_ANSWER, *source_in(net))
            yield e.flow(t.SOURCE, d.PREFIX + net.prefixlen, answered, of, e.goto(t.LOOKUP_RESULT))
    if env.local_gateways:
        deliver = (of, e.goto(t.DELIVER))
        for net in sources:
            yield e.flow(t.SOURCE, d.PREFIX + net.prefixlen, (e.FROM_GATEWAY, *source_in(net)), *deliver)


def cluster_tunnel(env: Env, c: RemoteCluster, sources: Iterable[Network]) -> Iterator[Flow]:
    """Gateway: another cluster sends from its own CIDRs, and its gateways from their addresses."""
    of, go_on = r.CLUSTER.is_(c.id), e.goto(t.IDENTITY if env.identities else t.UNTRANSLATE)
    for net in sources:
        yield e.flow(t.SOURCE, d.PREFIX + net.prefixlen, (e.FROM_REMOTE, of, *source_in(net)), go_on)
    yield e.drop(t.SOURCE, d.ELSE, (e.FROM_REMOTE, of), d.DROP_SPOOFED_REMOTE, c.id)


def own_node(env: Env, n: LocalNode) -> Iterator[Flow]:
    """From the host: what lives on this Node, by way of conntrack."""
    go_on = e.goto(t.IDENTITY) if env.identities else departing(env)
    for net in dict.fromkeys(n.networks):
        yield e.flow(t.SOURCE, d.PREFIX + net.prefixlen, (e.FROM_HOST, *source_in(net)), go_on)


def node(env: Env, n: LocalNode) -> Iterator[Flow]:
    """Gateway: a worker's own, by its tunnel; and what a sibling relays because it lost the other cluster."""
    go_on = e.goto(t.UNTRANSLATE)
    for net in dict.fromkeys(n.networks):
        source, priority = source_in(net), d.PREFIX + net.prefixlen
        if not n.gateway:
            yield e.flow(t.SOURCE, priority, (e.FROM_NODE, r.INGRESS_PORT.is_(n.ofport), *source), go_on)
        if env.local_gateways:
            # Replies to what is SNATed here then go to the Node itself: the sibling may take them from us only for
            # its own Pods, and may be about to fail.
            opener = set_bits(r.INGRESS_PORT, n.ofport)
            yield e.flow(t.SOURCE, priority, (e.FROM_GATEWAY, *source), opener, go_on)
