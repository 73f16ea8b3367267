"""All entries of one owner: every Node's base, a remote cluster, a Node of this cluster, an exported Service.

Asks each step of the packet for its flows; decides nothing itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_network

from flows.pipeline import arrive, classify, departure, groups, route, source, untranslate, userspace
from flows.pipeline import declaration as d
from flows.pipeline import registers as r
from flows.pipeline import service as services
from flows.pipeline import tables as t
from flows.pipeline.entries import drop
from flows.pipeline.values import (
    Endpoint,
    Entries,
    Env,
    LocalNode,
    LocalService,
    NextHop,
    NextHopGroup,
    RemoteCluster,
)


def base(env: Env, group: NextHopGroup | None = None) -> Entries:
    """Return what does not depend on single clusters, Nodes or Services.

    `group` has a next hop for every port in `env.local_gateways`; by default all are alike, and watched.
    """
    if group is None:
        group = NextHopGroup(next_hops=tuple(NextHop(ofport=port) for port in env.local_gateways))
    flows = [drop(table, d.LOWEST, (), d.MISS.get(table.number, d.DROP_MISS), table.number) for table in t.TABLES]
    flows += [*classify.base(env), *source.base(env), *departure.base(env), *arrive.base(env)]
    if env.gateway:
        flows += [*untranslate.base(env), *services.base(), *userspace.client_table(env)]
        flows += route.base(env)
    return Entries(flows=tuple(flows), groups=tuple(groups.local_gateways(env, group)))


def cluster(env: Env, c: RemoteCluster) -> Entries:
    """Return the way to and from a remote cluster; FlowError when a value does not fit."""
    cookie = d.COOKIES.cookie(d.FOR_CLUSTER, c.id)
    tunnels = {gateway.ofport: gateway for gateway in c.gateways if gateway.ofport is not None}
    sources = tuple(dict.fromkeys((*c.cidrs, *(ip_network(gateway.address) for gateway in c.gateways))))
    flows = [
        *source.cluster(env, c, cookie, sources),
        *arrive.cluster(c, cookie),
        *departure.cluster(env, c, cookie),
    ]
    if env.gateway:
        flows += services.cluster(c, cookie)
    if not (tunnels if env.gateway else c.gateways):
        return Entries(flows=(*flows, *route.unreachable(c)))
    if not env.gateway:
        return Entries(flows=(*flows, *route.by_local_gateway(c, cookie)))
    flows += [*classify.cluster(c, cookie, tunnels), *source.cluster_tunnel(c, cookie, sources)]
    flows += route.cluster(env, c, cookie, tunnels)
    return Entries(flows=tuple(flows), groups=tuple(route.cluster_groups(env, c, tunnels)))


def node(env: Env, n: LocalNode) -> Entries:
    """Return the way to and from a Node of this cluster. On workers only their own Node has any."""
    cookie = d.COOKIES.cookie(d.FOR_NODE, n.id)
    if n.ofport == r.HOST_OFPORT:
        return Entries(flows=(*source.own_node(env, n, cookie), *arrive.own_node(n, cookie)))
    if not env.gateway:
        return Entries(flows=())
    return Entries(flows=(*classify.node(n, cookie), *source.node(env, n, cookie), *arrive.node(n, cookie)))


def service(env: Env, s: LocalService) -> Entries:
    """Return the translation of one port of an exported Service; on workers there is none.

    FlowError: unknown protocol, an endpoint of another family than the Service, an ID that does not fit.
    """
    if not env.gateway:
        return Entries(flows=())
    cookie = d.COOKIES.cookie(d.FOR_SERVICE, s.id)
    flows = tuple(services.service(s, cookie))
    if not s.endpoints:
        return Entries(flows=flows)
    groups = tuple(userspace.keeping_client_ports(env, s, group) for group in services.endpoint_groups(env, s))
    return Entries(flows=(*flows, *userspace.mid_connection(env, s, cookie)), groups=groups)


def endpoints(found: Iterable[Endpoint]) -> Entries:
    """Return what holds back packets of endpoints on this Node whose connection is not known."""
    return Entries(flows=tuple(userspace.endpoints(found)))
