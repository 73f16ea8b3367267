"""The gateways of this cluster: which Nodes they are, which take new connections, and which stay for a while.

Decides between Gateway objects, annotated Nodes (`gatewaySelection: readiness`) and gateways that the API has no
more, which stay until all peers have moved; each refusal is a Problem. Knows nothing of tunnels, flows or remote
clusters, and no clock: the time is an argument.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from mcagent.core.addresses.rules import refuse_network
from mcagent.core.addresses.underlay import refuse_underlay, source_of, tunnel_address
from mcagent.core.local_cluster.nodes import CheckedNode, Standby, seniority
from mcagent.model.config import Config, GatewaySelection
from mcagent.model.net import Address
from mcagent.model.node_state import LocalGateway
from mcagent.model.objects import Gateway, Node, Snapshot
from mcagent.model.problem import Problem


def wanted_gateways(
    gateways: Mapping[str, Gateway], nodes: Mapping[str, Node], config: Config
) -> tuple[Gateway, ...]:
    """Return the gateways that the API asks for, the oldest first; those it has no more are not among them.

    With `gatewaySelection: readiness` these are the annotated Nodes; a Gateway object of such a Node tells its
    addresses and Service CIDR, as far as there is one.
    """
    objects = sorted(
        (g for g in gateways.values() if config.namespace in ("", g.meta.namespace)),
        key=lambda g: seniority(g.meta),
    )
    if config.gateway_selection is GatewaySelection.API:
        return tuple(objects)
    by_name = {gateway.meta.name: gateway for gateway in reversed(objects)}
    annotated = sorted((n for n in nodes.values() if n.gateway_annotation), key=lambda n: seniority(n.meta))
    found = (by_name.get(node.meta.name) or _of_node(node, config) for node in annotated)
    return tuple(gateway for gateway in found if gateway is not None)


def _of_node(node: Node, config: Config) -> Gateway | None:
    internal = tunnel_address(node.internal_ips)
    if internal is None:
        return None  # reported where tunnels are decided
    cidr = next(iter(config.service_cidrs), None)
    return Gateway(meta=node.meta, gateway_ip=node.gateway_ip or internal, internal_ip=internal, service_cidr=cidr)


def accept_gateways(
    wanted: tuple[Gateway, ...], leaving: tuple[Gateway, ...], nodes: Mapping[str, CheckedNode]
) -> tuple[tuple[LocalGateway, ...], tuple[Problem, ...]]:
    """Return the gateways that are used, by name: their Node exists, nobody older has their name or address."""
    problems: list[Problem] = []
    found: dict[str, LocalGateway] = {}
    holders: dict[Address, str] = {}
    names = {gateway.meta.name for gateway in wanted}
    for gateway in wanted:
        accepted = _accept(gateway, nodes, found, holders, problems)
        if isinstance(accepted, Problem):
            problems.append(accepted)
    for gateway in leaving:
        if gateway.meta.name not in names:
            accepted = _accept(gateway, nodes, found, holders, problems)
            if isinstance(accepted, LocalGateway):
                found[accepted.node] = replace(accepted, standby=Standby.LEAVING)
    return tuple(found[name] for name in sorted(found)), tuple(problems)


def _accept(
    gateway: Gateway,
    nodes: Mapping[str, CheckedNode],
    found: dict[str, LocalGateway],
    holders: dict[Address, str],
    problems: list[Problem],
) -> LocalGateway | Problem:
    """Add a gateway to those found, or return why it is not used."""
    meta, name = gateway.meta, gateway.meta.name
    if name not in nodes:
        return meta.problem("", "UnknownNode", f'there is no Node "{name}": the Gateway is not used')
    if name in found:
        return meta.problem("", "DuplicateGateway", f'an older Gateway of Node "{name}" is used')
    for path, address in (("gatewayIP", gateway.gateway_ip), ("internalIP", gateway.internal_ip)):
        refusal = refuse_underlay(address)
        if refusal is not None:
            return meta.problem(path, refusal.reason, refusal.message)
    source = source_of(gateway.gateway_ip)
    own = (("gatewayIP", gateway.gateway_ip), ("internalIP", gateway.internal_ip), ("gatewayIP", source))
    for path, address in own:
        if address in holders:
            message = f'{address} already belongs to Gateway "{holders[address]}": this one is not used'
            return meta.problem(path, "DuplicateAddress", message)
    holders |= {address: name for _, address in own}
    cidr = gateway.service_cidr
    refusal = refuse_network(cidr) if cidr is not None else None
    if refusal is not None:
        problems.append(meta.problem("serviceCIDR", refusal.reason, refusal.message))
        cidr = None
    found[name] = LocalGateway(
        node=name,
        gateway_ip=gateway.gateway_ip,
        internal_ip=gateway.internal_ip,
        source=source,
        service_cidr=cidr,
        place=len(found),
        standby=nodes[name].standby,
    )
    return found[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lingering:
    """Gateways that the API has no more, each with the time when it goes.

    Peers learn of it one after the other: until all have moved, a gateway that is taken away goes on serving what
    still comes, and the Nodes of its cluster go on taking what it sends.
    """

    known: tuple[Gateway, ...] = ()  # what the API asked for last
    leaving: tuple[Gateway, ...] = ()
    until: Mapping[str, float] = field(default_factory=dict)  # by Node name

    def at(self, snapshot: Snapshot, config: Config, now: float, timeout: float) -> Lingering:
        """Return what lingers at the time `now` (seconds of any clock that never goes back).

        A gateway that is no more in `snapshot` lingers for `timeout` seconds from when that is first seen.
        """
        wanted = wanted_gateways(snapshot.gateways, snapshot.nodes, config)
        names = {gateway.meta.name for gateway in wanted}
        until = self.until
        leaving = {g.meta.name: g for g in self.leaving if until[g.meta.name] > now}
        deadlines = {name: until[name] for name in leaving}
        for gateway in self.known:
            name = gateway.meta.name
            if name not in until and name in snapshot.nodes and timeout > 0:
                leaving[name], deadlines[name] = gateway, now + timeout
        kept = tuple(gateway for name, gateway in sorted(leaving.items()) if name not in names)
        if kept == self.leaving:
            kept = self.leaving
        return Lingering(known=wanted, leaving=kept, until={g.meta.name: deadlines[g.meta.name] for g in kept})

    def without(self, *names: str) -> Lingering:
        """Return the same without these Nodes' gateways: they have nothing to do any more."""
        left = tuple(g for g in self.leaving if g.meta.name not in names)
        return replace(self, leaving=left, until={g.meta.name: self.until[g.meta.name] for g in left})

    @property
    def wakes(self) -> float:
        """When the next one goes; inf when none is leaving."""
        return min(self.until.values(), default=math.inf)

    def put_into(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with what lingers; the very same where that is nothing new."""
        return snapshot if snapshot.leaving == self.leaving else replace(snapshot, leaving=self.leaving)
