"""The entries of each owner: base, remote cluster, Node, exported Service, label identity, level of policy rules.

Collects the flows of all steps of the packet; makes no decisions itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from flows.declare import Category
from flows.fields import Address
from flows.flow import Flow, Group
from flows.pipeline import declaration as d
from flows.pipeline import entries as e
from flows.pipeline import groups
from flows.pipeline import registers as r
from flows.pipeline import tables as t
from flows.pipeline.prefixes import VirtualPrefix, address_in_bridge, network_in_bridge
from flows.pipeline.steps import (
    arrive,
    classify,
    departure,
    identity,
    lookup,
    mapping,
    policy,
    route,
    source,
    untranslate,
    userspace,
)
from flows.pipeline.steps import service as services
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

Prefixes = tuple[VirtualPrefix, ...]


def base(env: Env, group: NextHopGroup) -> Entries:
    """Return the entries that exist once. `group` has a next hop for every port in `env.local_gateways`."""
    absent = (*(() if env.identities else t.POLICY_TABLES), *(() if env.prefixes else t.PREFIX_TABLES))
    tables = [table for table in t.TABLES if table not in absent]
    flows = [e.drop(table, d.LOWEST, (), d.MISS.get(table.number, d.DROP_MISS), table.number) for table in tables]
    flows += [*classify.base(env), *mapping.base(env), *source.base(env), *identity.base(env), *policy.base(env)]
    flows += [*departure.base(env), *arrive.base(env), *lookup.base(env), *userspace.invalid_tcp(env)]
    if env.gateway:
        flows += [*untranslate.base(env), *services.base(env), *userspace.client_table(env), *route.base(env)]
    return _owned(d.FOR_BASE, 0, flows, groups.local_gateways(env, group))


def cluster(env: Env, c: RemoteCluster) -> Entries:
    """Return the entries to and from a remote cluster; FlowError if a value does not fit."""
    tunnels = {gateway.address: gateway.next_hop for gateway in c.gateways if gateway.next_hop is not None}
    flows = [
        *source.cluster(c),
        *arrive.cluster(c),
        *mapping.cluster(env, c),
    ]
    chosen: Iterable[Group] = ()
    if env.gateway:
        flows += [*services.cluster(c), *lookup.cluster(c)]
    if not (tunnels if env.gateway else c.gateways):
        flows += route.unreachable(c)
    elif env.gateway:
        flows += [*classify.cluster(env, c, tunnels.values()), *source.cluster_tunnel(c)]
        flows += route.cluster(env, c, tunnels)
        chosen = route.cluster_groups(env, c, tunnels)
    else:
        flows += route.by_local_gateway(c)
    return _owned(d.FOR_CLUSTER, c.id, flows, chosen)


def node(env: Env, n: LocalNode) -> Entries:
    """Return the entries to and from a Node of this cluster. On workers only their own Node has any."""
    flows: Iterable[Flow] = ()
    if env.prefixes:
        n = replace(n, networks=tuple(network_in_bridge(network, env.prefixes) for network in n.networks))
    if n.ofport == r.HOST_OFPORT:
        flows = (*source.own_node(env, n), *arrive.own_node(n))
    elif env.gateway:
        flows = (*classify.node(n), *lookup.from_node(n.ofport), *source.node(env, n), *arrive.node(n))
    return _owned(d.FOR_NODE, n.id, flows)


def service(env: Env, s: LocalService) -> Entries:
    """Return the translation of an exported Service's port; none on workers. FlowError if an ID does not fit."""
    if not env.gateway:
        return Entries(flows=())
    if env.prefixes:
        old_endpoints = _in_bridge(s.old_endpoints, env.prefixes)
        s = replace(s, endpoints=_in_bridge(s.endpoints, env.prefixes), old_endpoints=old_endpoints)
    flows = (
        *services.service(s),
        *services.connections(s),
        *services.service_replies(env, s),
        *lookup.service(env, s),
    )
    chosen = services.endpoint_groups(env, s, userspace.client_port_writes(env, s)) if s.endpoints else ()
    return _owned(d.FOR_SERVICE, s.id, flows, (*chosen, *lookup.groups(s)))


def endpoints(local_endpoints: Iterable[ServiceEndpoint], prefixes: Prefixes = ()) -> Entries:
    """Return the flows that hold back packets of endpoints on this Node whose connection is unknown."""
    return Entries(flows=tuple(userspace.endpoints(_in_bridge(local_endpoints, prefixes))))


def _in_bridge(endpoints: Iterable[ServiceEndpoint], prefixes: Prefixes) -> tuple[ServiceEndpoint, ...]:
    return tuple(
        replace(endpoint, address=address_in_bridge(endpoint.address, prefixes)) for endpoint in endpoints
    )


def pod_identity(env: Env, address: Address, number: int) -> Entries:
    """Return the flows that mark packets of a Pod of this Node with its label identity."""
    return _owned(d.FOR_IDENTITY, number, identity.pod(env, address_in_bridge(address, env.prefixes), number))


def claimed_identities(cluster: int, numbers: Iterable[int]) -> Entries:
    """Return the flows that accept label identities from a cluster; from any cluster, if it is 0."""
    return _owned(d.FOR_CLUSTER, cluster, identity.claimed(cluster, numbers))


def rules(policy_rules: Iterable[PolicyRule], prefixes: Prefixes = ()) -> Entries:
    """Return the flows of the rules of one direction, stage and level."""
    if prefixes:
        policy_rules = [replace(rule, pods=_pods_in_bridge(rule.pods, prefixes)) for rule in policy_rules]
    return Entries(flows=tuple(policy.level(policy_rules)))


def pod_policies(policies: PodPolicies, prefixes: Prefixes = ()) -> Entries:
    """Return the flows that drop requests to and from isolated Pods if no rule matches."""
    in_bridge = PodPolicies(
        isolated_ingress=_pods_in_bridge(policies.isolated_ingress, prefixes),
        isolated_egress=_pods_in_bridge(policies.isolated_egress, prefixes),
        unknown_dropped=_pods_in_bridge(policies.unknown_dropped, prefixes),
    )
    return Entries(flows=tuple(policy.pods(in_bridge)))


def _pods_in_bridge(pods: tuple[Address, ...], prefixes: Prefixes) -> tuple[Address, ...]:
    return tuple(address_in_bridge(address, prefixes) for address in pods) if prefixes else pods


def _owned(owner: Category, number: int, flows: Iterable[Flow], groups: Iterable[Group] = ()) -> Entries:
    """Set the owner's cookie in its flows, except in drops, whose cookie has the reason."""
    cookie = d.COOKIES.cookie(owner, number)
    owned = (  # not by `replace`, which takes four times as long
        flow if flow.cookie else Flow(flow.table, flow.priority, flow.match, flow.actions, cookie)
        for flow in flows
    )
    return Entries(flows=tuple(owned), groups=tuple(groups))
