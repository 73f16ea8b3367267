"""Table Source: the source-address check of clusters, Nodes and the host.

Packets from other addresses than the sender's own are dropped, and counted by sender.
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
from flows.pipeline.steps.identity import departure_action
from flows.pipeline.values import Env, LocalNode, RemoteCluster


def base(env: Env) -> Iterator[Flow]:
    """Drop spoofed packets; on a gateway, accept replies of Services that a sibling has un-translated."""
    for origin in (r.ORIGIN_HOST, r.ORIGIN_NODE, r.ORIGIN_GATEWAY, r.ORIGIN_ANSWER):
        yield e.drop(t.SOURCE, d.ELSE, (r.ORIGIN.is_(origin),), d.DROP_SPOOFED, origin)
    if env.gateway and env.local_gateways:  # a sibling that has lost the remote cluster relays them
        for network in env.service_cidrs:
            terms = (e.FROM_GATEWAY, *source_in(network))
            yield e.flow(t.SOURCE, d.PREFIX + network.prefixlen, terms, e.goto(t.UNTRANSLATE))


def cluster(env: Env, c: RemoteCluster, sources: Iterable[Network]) -> Iterator[Flow]:
    """Accept packets of a remote cluster from its gateways, and the packets with which Nodes answer queries."""
    from_cluster = set_bits(r.CLUSTER, c.id)
    if env.gateway:
        for net in sources:
            answered = (e.FROM_ANSWER, *source_in(net))
            yield e.flow(t.SOURCE, d.PREFIX + net.prefixlen, answered, from_cluster, e.goto(t.LOOKUP_RESULT))
    if env.local_gateways:
        deliver = (from_cluster, e.goto(t.DELIVER))
        for net in sources:
            yield e.flow(t.SOURCE, d.PREFIX + net.prefixlen, (e.FROM_GATEWAY, *source_in(net)), *deliver)


def cluster_tunnel(env: Env, c: RemoteCluster) -> Iterator[Flow]:
    """Gateway: accept packets of a remote cluster from its CIDRs, and from a gateway through its own tunnel.

    The gateway that translates a connection also sends it, so no other tunnel has packets with its address. A
    cluster could otherwise send in the name of any host by naming the host's address as a further gateway.
    """
    from_cluster, go_on = r.CLUSTER.is_(c.id), e.goto(t.IDENTITY if env.identities else t.UNTRANSLATE)
    for net in c.cidrs:
        yield e.flow(t.SOURCE, d.PREFIX + net.prefixlen, (e.FROM_REMOTE, from_cluster, *source_in(net)), go_on)
    for gateway in c.gateways:
        if gateway.next_hop is not None:
            tunnel = r.INGRESS_PORT.is_(gateway.next_hop.ofport)
            terms = (e.FROM_REMOTE, from_cluster, tunnel, *source_in(gateway.address))
            yield e.flow(t.SOURCE, d.PREFIX + gateway.address.max_prefixlen, terms, go_on)
    yield e.drop(t.SOURCE, d.ELSE, (e.FROM_REMOTE, from_cluster), d.DROP_SPOOFED_REMOTE, c.id)


def own_node(env: Env, n: LocalNode) -> Iterator[Flow]:
    """Accept packets of the host from this Node's networks, and pass them through conntrack."""
    go_on = e.goto(t.IDENTITY) if env.identities else departure_action(env)
    for net in dict.fromkeys(n.networks):
        yield e.flow(t.SOURCE, d.PREFIX + net.prefixlen, (e.FROM_HOST, *source_in(net)), go_on)


def node(env: Env, n: LocalNode) -> Iterator[Flow]:
    """Gateway: accept packets of a worker through its tunnel, or from a sibling that relays them."""
    go_on = e.goto(t.UNTRANSLATE)
    for net in dict.fromkeys(n.networks):
        source, priority = source_in(net), d.PREFIX + net.prefixlen
        if not n.gateway:
            yield e.flow(t.SOURCE, priority, (e.FROM_NODE, r.INGRESS_PORT.is_(n.ofport), *source), go_on)
        if env.local_gateways:
            # Replies to connections SNATed here then go to the Node directly: the sibling accepts them from this
            # gateway only for its own Pods, and may be about to fail.
            opener = set_bits(r.INGRESS_PORT, n.ofport)
            yield e.flow(t.SOURCE, priority, (e.FROM_GATEWAY, *source), opener, go_on)
