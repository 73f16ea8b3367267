"""Tables Unmap, Virtual, Map and Real: addresses that differ between the bridge and the kernel of a Node.

The source of a connection that a remote gateway has translated is an address that the Node may also reach without
the bridge. The kernel gets a mapped address instead, which is routed to the bridge, as are the replies by it.

A Pod CIDR that other clusters have, too, is published with a virtual prefix, which the bridges of all Nodes use in
place of the real one. Prefixes are replaced without state: every gateway can forward every packet.
"""

from __future__ import annotations

from collections.abc import Iterator

from flows.actions import Action, Actions, Output, SetField, set_bits, set_whole
from flows.fields import (
    ETH_DST,
    ETH_SRC,
    IPV4_DST,
    IPV4_ONLY,
    IPV4_SRC,
    IPV6_DST,
    IPV6_SRC,
    PORT_IN_PORT,
    MatchField,
    Network,
    destination_in,
    in_network,
    source_in,
)
from flows.flow import Flow
from flows.pipeline import declaration as d
from flows.pipeline import entries as e
from flows.pipeline import registers as r
from flows.pipeline import tables as t
from flows.pipeline.values import Env, RemoteCluster

_TO_KERNEL = (set_whole(ETH_DST, r.HOST_MAC), Output(r.HOST_OFPORT))
_BACK = (set_whole(ETH_SRC, r.MAC_PLAIN), set_whole(ETH_DST, r.HOST_MAC), Output(PORT_IN_PORT))


def to_kernel(env: Env) -> Actions:
    """Return the actions that output to the kernel."""
    return (e.goto(t.REAL),) if env.prefixes else _TO_KERNEL


def _after_unmap(env: Env) -> Action:
    return e.goto(t.VIRTUAL if env.prefixes else t.SOURCE)


def base(env: Env) -> Iterator[Flow]:
    """Pass packets with other addresses unchanged; replace the prefixes of this cluster's Pods.

    Return to the kernel what it has to answer or translate; it routes that to the bridge again. It refuses what is
    too large for tunnels by the route's MTU, or fragments it; nft replaces the mapped address in what ICMP errors
    quote. If neither happens, the TTL ends that.
    """
    errors = [
        (*error, *destination_in(r.MAPPED_ADDRESSES), r.REPAIRED.is_(0)) for error in r.ICMP_ERRORS[IPV4_ONLY]
    ]
    large = [] if env.mtu is None else [(family, r.TOO_LARGE.is_(1)) for family in r.FAMILIES]
    for priority, matches in ((d.SPECIAL, large), (d.EXACT, errors)):
        for terms in matches:
            yield d.PIPELINE.flow(t.UNMAP, priority, terms, _BACK, cookie=d.COOKIES.cookie(d.FOR_RETURNED))
    yield e.flow(t.UNMAP, d.ELSE, (), _after_unmap(env))
    yield e.flow(t.MAP, d.ELSE, (), *to_kernel(env))
    if not env.prefixes:
        return
    check_source = e.goto(t.SOURCE)
    yield e.flow(t.VIRTUAL, d.ELSE, (), check_source)
    yield e.flow(t.REAL, d.ELSE, (), *_TO_KERNEL)
    for prefix in env.prefixes:
        real, virtual = prefix.real, prefix.virtual
        priority = d.PREFIX + real.prefixlen
        forged = source_in(virtual)
        yield e.flow(t.VIRTUAL, priority, source_in(real), source_prefix(virtual), check_source)
        yield e.drop(t.VIRTUAL, priority, forged, d.DROP_SPOOFED, r.ORIGIN_HOST)
        destination = _prefix(IPV4_DST if real.version == 4 else IPV6_DST, real)
        yield e.flow(t.REAL, priority, destination_in(virtual), destination, *_TO_KERNEL)


def source_prefix(network: Network) -> SetField:
    """Return the action that replaces the prefix of the source address by that of a network."""
    return _prefix(IPV4_SRC if network.version == 4 else IPV6_SRC, network)


def _prefix(field: MatchField, network: Network) -> SetField:
    return SetField(*in_network(field, network))


def cluster(env: Env, c: RemoteCluster) -> Iterator[Flow]:
    """Replace the sources of a cluster's translated connections, and the destinations of the replies."""
    go_on = _after_unmap(env)
    for source, mapped in c.mapped:
        reply = set_bits(r.REPLY, 1)
        if source == mapped:  # by the remote gateway itself
            yield e.flow(t.UNMAP, d.NORMAL, destination_in(mapped), reply, go_on)
        elif source.version == mapped.version == 4:
            back = set_whole(IPV4_DST, int(source))
            yield e.flow(t.UNMAP, d.NORMAL, destination_in(mapped), back, reply, go_on)
            mapping = set_whole(IPV4_SRC, int(mapped))
            yield e.flow(t.MAP, d.NORMAL, source_in(source), mapping, *to_kernel(env))
