"""The gateways of this cluster: which Nodes they are, and which of them take new connections.

Decides between Gateway objects, annotated Nodes (`gatewaySelection: readiness`) and gateways that are about to
leave; each refusal is a Problem. Knows nothing of tunnels, flows or remote clusters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from mcagent.core.addresses.rules import refuse_network
from mcagent.core.addresses.underlay import first_usable, refuse_underlay, source_of
from mcagent.core.local_cluster.nodes import problem_of, seniority
from mcagent.model.config import Config, GatewaySelection
from mcagent.model.net import Address
from mcagent.model.node_state import LocalGateway
from mcagent.model.objects import Gateway, Node, Snapshot
from mcagent.model.problem import Problem


class Standby(StrEnum):
    """Why a gateway takes no new connections while another is there: the words of `LocalGateway.standby`."""

    NOT_READY = "NotReady"
    CORDONED = "Cordoned"
    DRAINING = "Draining"
    LEAVING = "Leaving"


def wanted_gateways(snapshot: Snapshot, config: Config) -> tuple[Gateway, ...]:
    """Return the gateways that the API asks for, the oldest first; those it has no more are not among them.

    With `gatewaySelection: readiness` these are the annotated Nodes; a Gateway object of such a Node tells its
    addresses and Service CIDR, as far as there is one.
    """
    objects = sorted(
        (g for g in snapshot.gateways.values() if config.namespace in ("", g.meta.namespace)),
        key=lambda g: seniority(g.meta),
    )
    if config.gateway_selection is GatewaySelection.API:
        return tuple(objects)
    by_name = {gateway.meta.name: gateway for gateway in reversed(objects)}
    found = []
    for node in sorted(snapshot.nodes.values(), key=lambda n: seniority(n.meta)):
        if node.gateway_annotation:
            gateway = by_name.get(node.meta.name) or _of_node(node, config)
            if gateway is not None:
                found.append(gateway)
    return tuple(found)


def _of_node(node: Node, config: Config) -> Gateway | None:
    internal = first_usable(node.internal_ips)
    if internal is None:
        return None  # told where tunnels are decided
    cidr = next(iter(config.service_cidrs), None)
    return Gateway(meta=node.meta, gateway_ip=node.gateway_ip or internal, internal_ip=internal, service_cidr=cidr)


def gateways_of(snapshot: Snapshot, config: Config, problems: list[Problem]) -> tuple[LocalGateway, ...]:
    """Return the gateways that are used: their Node exists, and nobody older has the same name or address."""
    found: dict[str, LocalGateway] = {}
    holders: dict[Address, str] = {}
    wanted = wanted_gateways(snapshot, config)
    names = {gateway.meta.name for gateway in wanted}
    leaving = tuple(gateway for gateway in snapshot.leaving if gateway.meta.name not in names)
    for gateway in (*wanted, *leaving):
        problem = _gateway_problem(gateway, snapshot, found, holders)
        if problem is not None:
            if gateway not in leaving:
                problems.append(problem)
            continue
        name = gateway.meta.name
        holders |= dict.fromkeys((gateway.gateway_ip, gateway.internal_ip, source_of(gateway.gateway_ip)), name)
        cidr = gateway.service_cidr
        refusal = refuse_network(cidr) if cidr is not None else None
        if refusal is not None:
            problems.append(problem_of(gateway.meta, "serviceCIDR", refusal.reason, refusal.message))
            cidr = None
        found[name] = LocalGateway(
            node=name,
            gateway_ip=gateway.gateway_ip,
            internal_ip=gateway.internal_ip,
            service_cidr=cidr,
            place=len(found),
            standby=Standby.LEAVING if gateway in leaving else _standby(snapshot.nodes[name]),
        )
    return tuple(found[name] for name in sorted(found))


def _standby(node: Node) -> str:
    if node.drain:
        return Standby.DRAINING
    if not node.ready:
        return Standby.NOT_READY
    return Standby.CORDONED if node.unschedulable else ""


def _gateway_problem(
    gateway: Gateway, snapshot: Snapshot, found: Mapping[str, LocalGateway], holders: Mapping[Address, str]
) -> Problem | None:
    meta = gateway.meta
    if meta.name not in snapshot.nodes:
        return problem_of(meta, "", "UnknownNode", f'there is no Node "{meta.name}": the Gateway is not used')
    if meta.name in found:
        return problem_of(meta, "", "DuplicateGateway", f'an older Gateway of Node "{meta.name}" is used')
    named = (("gatewayIP", gateway.gateway_ip), ("internalIP", gateway.internal_ip))
    for path, address in (*named, ("gatewayIP", source_of(gateway.gateway_ip))):
        refusal = refuse_underlay(address)
        if refusal is not None:
            return problem_of(meta, path, refusal.reason, refusal.message)
        if address in holders:
            message = f'{address} is the address of Gateway "{holders[address]}" already: this one is not used'
            return problem_of(meta, path, "DuplicateAddress", message)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lingering:
    """Gateways that the API has no more, each with the time when it goes.

    Peers learn of it one after the other: until all have moved, a gateway that is taken away goes on serving what
    still comes, and the Nodes of its cluster go on taking what it sends.
    """

    known: tuple[Gateway, ...] = ()  # what the API asked for last
    leaving: tuple[Gateway, ...] = ()
    until: Mapping[str, float] | None = None  # by Node name

    def at(self, snapshot: Snapshot, config: Config, now: float, timeout: float) -> Lingering:
        """Return what lingers at the time `now` (seconds of any clock that never goes back).

        A gateway that is no more in `snapshot` lingers for `timeout` seconds from when that is first seen.
        """
        wanted = wanted_gateways(snapshot, config)
        names = {gateway.meta.name for gateway in wanted}
        until = self.until or {}
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
        until = self.until or {}
        return replace(self, leaving=left, until={g.meta.name: until[g.meta.name] for g in left})

    @property
    def wakes(self) -> float | None:
        """When the next one goes; None when none is leaving."""
        return min((self.until or {}).values(), default=None)

    def put_into(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with what lingers; the very same where that is nothing new."""
        return snapshot if snapshot.leaving == self.leaving else replace(snapshot, leaving=self.leaving)
