"""The gateways of this cluster: which Nodes are gateways, and which removed gateways still serve.

Sources are Gateway objects, annotated Nodes (`gatewaySelection: readiness`), and lingering gateways: those that
are removed from the API but needed until all peers have moved. Each refusal is a Problem. Must not know tunnels,
flows or remote clusters, nor read a clock: the time is an argument.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from mcagent.core.addresses.rules import refuse_network
from mcagent.core.addresses.underlay import refuse_underlay, source_of, tunnel_address
from mcagent.core.local_cluster.nodes import CheckedNode, Standby, seniority, stale_object
from mcagent.core.local_cluster.prefixes import refuse_prefix
from mcagent.model.config import Config, GatewaySelection
from mcagent.model.net import Address
from mcagent.model.node_state import LocalGateway
from mcagent.model.objects import Gateway, Node, Snapshot
from mcagent.model.parsing.clusters import SERVICE_CIDR_ANNOTATION
from mcagent.model.parsing.prefixes import PREFIXES_ANNOTATION
from mcagent.model.problem import Problem

PREFIXES_PATH = f"metadata.annotations[{PREFIXES_ANNOTATION}]"
SERVICE_CIDR_PATH = f"metadata.annotations[{SERVICE_CIDR_ANNOTATION}]"


def requested_gateways(
    gateways: Mapping[str, Gateway], nodes: Mapping[str, Node], config: Config
) -> tuple[Gateway, ...]:
    """Return the gateways that the API requests, the oldest first, without lingering ones.

    With `gatewaySelection: readiness` these are the annotated Nodes. Addresses and Service CIDR come from the
    Gateway object of the Node, if it has one.
    """
    objects = sorted(
        (g for g in gateways.values() if config.namespace in ("", g.meta.namespace)),
        key=lambda g: seniority(g.meta),
    )
    if config.gateway_selection is GatewaySelection.API:
        return tuple(objects)
    by_name = {gateway.meta.name: gateway for gateway in reversed(objects)}
    annotated = sorted((n for n in nodes.values() if n.gateway_annotation), key=lambda n: seniority(n.meta))
    selected = (by_name.get(node.meta.name) or _of_node(node, config) for node in annotated)
    return tuple(gateway for gateway in selected if gateway is not None)


def _of_node(node: Node, config: Config) -> Gateway | None:
    internal = tunnel_address(node.internal_ips)
    if internal is None:
        return None  # `nodes.tunnel_addresses` reports it
    cidr = next(iter(config.service_cidrs), None)
    return Gateway(meta=node.meta, gateway_ip=node.gateway_ip or internal, internal_ip=internal, service_cidr=cidr)


def accept_gateways(
    requested: tuple[Gateway, ...], leaving: tuple[Gateway, ...], nodes: Mapping[str, CheckedNode]
) -> tuple[tuple[LocalGateway, ...], tuple[Problem, ...]]:
    """Accept gateways whose Node exists and whose name and addresses no other gateway has; sorted by name.

    `leaving`: gateways that are removed from the API and still serve. Of two with one address the one of a ready
    Node has it, then the older. The place of a gateway depends on its demotions, then on its age.
    """
    problems: list[Problem] = []
    accepted_gateways: dict[str, LocalGateway] = {}
    holders: dict[Address, str] = {}
    requested_names = {gateway.meta.name for gateway in requested}
    ready = {name for name, node in nodes.items() if node.ready}
    for place, gateway in sorted(enumerate(requested), key=lambda item: item[1].meta.name not in ready):
        accepted = _accept(gateway, nodes, accepted_gateways, holders, problems, place=place)
        if isinstance(accepted, Problem):
            problems.append(accepted)
    for place, gateway in enumerate(leaving, len(requested)):
        if gateway.meta.name not in requested_names:
            accepted = _accept(gateway, nodes, accepted_gateways, holders, problems, place=place)
            if isinstance(accepted, LocalGateway):
                accepted_gateways[accepted.node] = replace(accepted, standby=Standby.LEAVING)
    demotions = {gateway.meta.name: gateway.demotions for gateway in reversed(requested)}
    by_place = sorted(accepted_gateways.values(), key=lambda g: (demotions.get(g.node, 0), g.place))
    for place, local_gateway in enumerate(by_place):
        accepted_gateways[local_gateway.node] = replace(local_gateway, place=place)
    return tuple(accepted_gateways[name] for name in sorted(accepted_gateways)), tuple(problems)


def _accept(
    gateway: Gateway,
    nodes: Mapping[str, CheckedNode],
    accepted: dict[str, LocalGateway],
    holders: dict[Address, str],
    problems: list[Problem],
    *,
    place: int,
) -> LocalGateway | Problem:
    """Add a gateway to `accepted` and its addresses to `holders`, or return the problem."""
    meta, name = gateway.meta, gateway.meta.name
    if name not in nodes:
        return meta.problem("", "UnknownNode", f'there is no Node "{name}": the Gateway is not used')
    if name in accepted:
        return meta.problem("", "DuplicateGateway", f'an older Gateway of Node "{name}" is used')
    for path, address in (("gatewayIP", gateway.gateway_ip), ("internalIP", gateway.internal_ip)):
        refusal = refuse_underlay(address)
        if refusal is not None:
            return meta.problem(path, refusal.reason, refusal.message)
    source = source_of(gateway.gateway_ip)
    addresses = (("gatewayIP", gateway.gateway_ip), ("internalIP", gateway.internal_ip), ("gatewayIP", source))
    for path, address in addresses:
        if address in holders:
            message = f'{address} already belongs to Gateway "{holders[address]}": this one is not used'
            message += f"; {stale_object(nodes[name], nodes[holders[address]])}"
            return meta.problem(path, "DuplicateAddress", message)
    holders |= {address: name for _, address in addresses}
    cidrs = {"serviceCIDR": gateway.service_cidr, SERVICE_CIDR_PATH: gateway.real_service_cidr}
    for path, cidr in cidrs.items():
        refusal = refuse_network(cidr) if cidr is not None else None
        if refusal is not None:
            problems.append(meta.problem(path, refusal.reason, refusal.message))
            cidrs[path] = None
    refusals = {prefix: refuse_prefix(prefix) for prefix in gateway.prefixes}
    problems += (meta.problem(PREFIXES_PATH, r.reason, r.message) for r in refusals.values() if r is not None)
    published, real = cidrs.values()
    accepted[name] = LocalGateway(
        node=name,
        gateway_ip=gateway.gateway_ip,
        internal_ip=gateway.internal_ip,
        source=source,
        service_cidr=published,
        real_service_cidr=real,
        prefixes=tuple(prefix for prefix, refusal in refusals.items() if refusal is None),
        place=place,
        standby=nodes[name].standby,
    )
    return accepted[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lingering:
    """Gateways that are removed from the API and still serve, each with the time at which it stops.

    Peers learn of a removal one after another. Until all have moved, the gateway forwards packets that still
    arrive, and the Nodes of its cluster accept the packets that it sends.
    """

    requested: tuple[Gateway, ...] = ()  # the gateways of the last snapshot
    leaving: tuple[Gateway, ...] = ()
    until: Mapping[str, float] = field(default_factory=dict)  # by Node name

    def at(self, snapshot: Snapshot, config: Config, now: float, timeout: float) -> Lingering:
        """Return the state at the time `now` (seconds of a monotonic clock).

        A gateway that is missing in `snapshot` lingers for `timeout` seconds from the first call without it.
        """
        requested = requested_gateways(snapshot.gateways, snapshot.nodes, config)
        requested_names = {gateway.meta.name for gateway in requested}
        until = self.until
        leaving = {g.meta.name: g for g in self.leaving if until[g.meta.name] > now}
        deadlines = {name: until[name] for name in leaving}
        for gateway in self.requested:
            name = gateway.meta.name
            if name not in until and name in snapshot.nodes and timeout > 0:
                leaving[name], deadlines[name] = gateway, now + timeout
        lingering = tuple(gateway for name, gateway in sorted(leaving.items()) if name not in requested_names)
        if lingering == self.leaving:
            lingering = self.leaving
        return Lingering(
            requested=requested, leaving=lingering, until={g.meta.name: deadlines[g.meta.name] for g in lingering}
        )

    def without(self, *names: str) -> Lingering:
        """Return the state without the gateways of these Nodes."""
        remaining = tuple(g for g in self.leaving if g.meta.name not in names)
        return replace(self, leaving=remaining, until={g.meta.name: self.until[g.meta.name] for g in remaining})

    @property
    def wakes(self) -> float:
        """The time at which the next gateway stops; inf if none lingers."""
        return min(self.until.values(), default=math.inf)

    def put_into(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with the lingering gateways; the same object if they are unchanged."""
        return snapshot if snapshot.leaving == self.leaving else replace(snapshot, leaving=self.leaving)
