"""Tables Owner, Source and Fragments: the source-address check of clusters, Nodes and the host.

Packets from other addresses than the sender's own are dropped, and counted by sender. An address of a remote
cluster is in one flow for all senders: table Owner looks up the cluster, and table Source compares it with
the cluster of the tunnel. Flows cannot compare two registers, so each cluster has one that matches its ID in both.
"""

from __future__ import annotations

from collections.abc import Iterator

from flows.actions import Meter, Move, Resubmit, set_bits
from flows.fields import source_in
from flows.flow import Flow
from flows.pipeline import declaration as d
from flows.pipeline import entries as e
from flows.pipeline import registers as r
from flows.pipeline import tables as t
from flows.pipeline.steps.identity import departure_action
from flows.pipeline.values import Env, LocalNode, RemoteCluster


def base(env: Env) -> Iterator[Flow]:
    """Accept packets of remote clusters from this cluster's gateways, and those that Nodes return with an answer.

    Drop spoofed packets. On a gateway, accept replies of Services that a sibling has un-translated.
    """
    yield e.flow(t.OWNER, d.ELSE, (), e.goto(t.SOURCE))
    for origin in (r.ORIGIN_HOST, r.ORIGIN_NODE):
        yield e.drop(t.SOURCE, d.ELSE, (r.ORIGIN.is_(origin),), d.DROP_SPOOFED, origin)
    for origin, table in ((r.ORIGIN_GATEWAY, t.FRAGMENTS), (r.ORIGIN_ANSWER, t.LOOKUP_RESULT)):
        sender = r.ORIGIN.is_(origin)
        yield e.drop(t.SOURCE, d.ELSE + 1, (sender, r.OWNER.is_(0)), d.DROP_SPOOFED, origin)
        yield e.flow(t.SOURCE, d.ELSE, (sender,), Move(r.OWNER, r.CLUSTER), e.goto(table))
    yield e.flow(t.FRAGMENTS, d.ELSE, (e.FROM_GATEWAY,), e.goto(t.DELIVER))
    if env.gateway:
        yield e.flow(
            t.FRAGMENTS, d.ELSE, (e.FROM_REMOTE,), e.goto(t.IDENTITY if env.identities else t.UNTRANSLATE)
        )
    if env.gateway and env.local_gateways:  # a sibling that has lost the remote cluster relays them
        for network in env.service_cidrs:
            terms = (e.FROM_GATEWAY, *source_in(network))
            yield e.flow(t.SOURCE, d.PREFIX + network.prefixlen, terms, e.goto(t.UNTRANSLATE))


def cluster(c: RemoteCluster) -> Iterator[Flow]:
    """Accept packets of a remote cluster from its CIDRs, and from a gateway through its own tunnel.

    The gateway that translates a connection also sends it, so no other tunnel has packets with its address. A
    cluster could otherwise send in the name of any host by naming the host's address as a further gateway.
    """
    owned = (set_bits(r.OWNER, c.id), e.goto(t.SOURCE))
    for net in c.cidrs:
        yield e.flow(t.OWNER, d.PREFIX + net.prefixlen, source_in(net), *owned)
    outside = [gateway for gateway in c.gateways if not any(gateway.address in net for net in c.cidrs)]
    for address in dict.fromkeys(gateway.address for gateway in outside):
        elsewhere = set_bits(r.OTHER_GATEWAY, 1)
        yield e.flow(t.OWNER, d.PREFIX + address.max_prefixlen, source_in(address), elsewhere, *owned)
    for gateway in outside:
        if gateway.next_hop is not None:
            tunnel = r.INGRESS_PORT.is_(gateway.next_hop.ofport)
            yield e.flow(t.OWNER, d.SPECIAL, (tunnel, *source_in(gateway.address)), *owned)
    same = (r.OTHER_GATEWAY.is_(0), r.CLUSTER.is_(c.id), r.OWNER.is_(c.id))
    yield e.flow(t.SOURCE, d.SPECIAL + 1, same, e.goto(t.FRAGMENTS))
    if c.fragment_meter is not None:  # conntrack keeps fragments, and has one limit for all of them
        limit = (Meter(c.fragment_meter), set_bits(r.METERED, 1), Resubmit(t.FRAGMENTS.number))
        for family in r.FAMILIES:
            terms = (family, e.FRAGMENT, r.METERED.is_(0), r.CLUSTER.is_(c.id))
            yield e.flow(t.FRAGMENTS, d.NORMAL, terms, *limit)


def cluster_tunnel(c: RemoteCluster) -> Iterator[Flow]:
    """Gateway: drop and count what a remote cluster sends from other addresses."""
    yield e.drop(t.SOURCE, d.ELSE, (e.FROM_REMOTE, r.CLUSTER.is_(c.id)), d.DROP_SPOOFED_REMOTE, c.id)


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
