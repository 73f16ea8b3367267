"""All entries of one owner: every Node's base, a remote cluster, a Node of this cluster, an exported Service.

Asks each step of the packet for its flows; decides nothing itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from ipaddress import ip_network

from flows.declare import Category
from flows.fields import Address
from flows.flow import Flow, Group
from flows.pipeline import (
    arrive,
    classify,
    departure,
    groups,
    identity,
    lookup,
    policy,
    route,
    source,
    untranslate,
    userspace,
)
from flows.pipeline import declaration as d
from flows.pipeline import entries as e
from flows.pipeline import registers as r
from flows.pipeline import service as services
from flows.pipeline import tables as t
from flows.pipeline.values import (
    Entries,
    Env,
    LocalNode,
    LocalService,
    NextHopGroup,
    PodPolicies,
    PolicyRule,
    RemoteCluster,
    ServiceEndpoint,
)


def base(env: Env, group: NextHopGroup) -> Entries:
    """Return what does not depend on single clusters, Nodes or Services.

    `group` has a next hop for every port in `env.local_gateways`.
    """
    there = [one for one in t.TABLES if env.identities or one not in t.POLICY_TABLES]
    flows = [e.drop(one, d.LOWEST, (), d.MISS.get(one.number, d.DROP_MISS), one.number) for one in there]
    flows += [*classify.base(env), *source.base(env), *identity.base(env), *policy.base(env)]
    flows += [*departure.base(env), *arrive.base(env), *lookup.base(env), *userspace.invalid(env)]
    if env.gateway:
        flows += [*untranslate.base(env), *services.base(env), *userspace.client_table(env), *route.base(env)]
    return _owned(d.FOR_BASE, 0, flows, groups.local_gateways(env, group))


def cluster(env: Env, c: RemoteCluster) -> Entries:
    """Return the way to and from a remote cluster; FlowError when a value does not fit."""
    tunnels = {gateway.address: gateway.next_hop for gateway in c.gateways if gateway.next_hop is not None}
    sources = tuple(dict.fromkeys((*c.cidrs, *(ip_network(gateway.address) for gateway in c.gateways))))
    flows = [
        *source.cluster(env, c, sources),
        *arrive.cluster(c),
        *policy.cluster(env, c),
        *departure.cluster(env, c),
    ]
    chosen: Iterable[Group] = ()
    if env.gateway:
        flows += [*services.cluster(c), *lookup.cluster(c)]
    if not (tunnels if env.gateway else c.gateways):
        flows += route.unreachable(c)
    elif env.gateway:
        flows += [*classify.cluster(env, c, tunnels.values()), *source.cluster_tunnel(env, c, sources)]
        flows += route.cluster(env, c, tunnels)
        chosen = route.cluster_groups(env, c, tunnels)
    else:
        flows += route.by_local_gateway(c)
    return _owned(d.FOR_CLUSTER, c.id, flows, chosen)


def node(env: Env, n: LocalNode) -> Entries:
    """Return the way to and from a Node of this cluster. On workers only their own Node has any."""
    flows: Iterable[Flow] = ()
    if n.ofport == r.HOST_OFPORT:
        flows = (*source.own_node(env, n), *arrive.own_node(n))
    elif env.gateway:
        flows = (*classify.node(n), *lookup.from_node(n.ofport), *source.node(env, n), *arrive.node(n))
    return _owned(d.FOR_NODE, n.id, flows)


def service(env: Env, s: LocalService) -> Entries:
    """Return the translation of one port of an exported Service; on workers there is none.

    FlowError: an ID that does not fit.
    """
    if not env.gateway:
        return Entries(flows=())
    flows = (*services.service(s), *services.replies(env, s), *lookup.service(env, s))
    chosen = services.endpoint_groups(env, s, userspace.remembered(env, s)) if s.endpoints else ()
    return _owned(d.FOR_SERVICE, s.id, flows, (*chosen, *lookup.groups(s)))


def endpoints(found: Iterable[ServiceEndpoint]) -> Entries:
    """Return what holds back packets of endpoints on this Node whose connection is not known."""
    return Entries(flows=tuple(userspace.endpoints(found)))


def pod_identity(env: Env, address: Address, number: int) -> Entries:
    """Return the mark of what a Pod of this Node sends."""
    return _owned(d.FOR_IDENTITY, number, identity.pod(env, address, number))


def claimed_identities(cluster: int, numbers: Iterable[int]) -> Entries:
    """Return the label identities that are believed of a cluster; of any cluster, if it is 0."""
    return _owned(d.FOR_CLUSTER, cluster, identity.claimed(cluster, numbers))


def rules(found: Iterable[PolicyRule]) -> Entries:
    """Return the rules of policies of one direction, stage and level."""
    return Entries(flows=tuple(policy.level(found)))


def pod_policies(found: PodPolicies) -> Entries:
    """Return what does not get to Pods, or from them, where no rule says anything."""
    return Entries(flows=tuple(policy.pods(found)))


def _owned(owner: Category, number: int, flows: Iterable[Flow], groups: Iterable[Group] = ()) -> Entries:
    """Put the owner's cookie into its flows; those that drop have one that says why."""
    cookie = d.COOKIES.cookie(owner, number)
    owned = (flow if flow.cookie else replace(flow, cookie=cookie) for flow in flows)
    return Entries(flows=tuple(owned), groups=tuple(groups))
