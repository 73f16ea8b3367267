"""The order of this cluster's gateways, and who is put last in it. Pure.

Antrea's peers send to the first gateway only, have no BFD, and learn of its death by this order alone. So the
member's controller puts a first gateway last as soon as the other gateways report it as dead, instead of waiting
until its Node
is not Ready. Connections that it translated end then in any case; a wrong demotion would end them, too:
- All other Ready gateways must agree, except those that a reporter calls dead as well. One wrong reporter changes
  nothing as long as another gateway still reaches the first one.
- A gateway that itself reports the reporter is not demoted: the path between the two is broken.
- The order is in an annotation and stays: a gateway that returns does not become the first again.
- Without clusters that run Antrea nothing depends on the order, and it does not change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from mcagent.controller.member.networks.election import by_age
from mcagent.model.api.multicluster import ApiGateway
from mcagent.model.parsing.clusters import demotions_of


def in_order(gateways: Iterable[ApiGateway]) -> list[ApiGateway]:
    """Return the Gateways that are not being deleted, in the order that other clusters see."""
    return sorted(by_age(gateways), key=demotions_of)


def dead_gateways(gateways: Iterable[ApiGateway], ready: Collection[str]) -> dict[str, list[str]]:
    """Return the gateways that count as dead, each with those that report it. `ready`: names of Ready Nodes."""
    gateways = list(gateways)
    reports = {g.name: frozenset(g.status.unreachable_gateways) for g in gateways if g.name in ready}
    reporters_by_name = {}
    for gateway in gateways:
        name = gateway.name
        reporters = {other for other, reported in reports.items() if other != name and name in reported}
        excused = frozenset().union(*(reports[other] for other in reporters))
        disagreeing = reports.keys() - reporters - excused - {name}
        if reporters and not disagreeing and not reporters & reports.get(name, frozenset()):
            reporters_by_name[name] = sorted(reporters)
    return reporters_by_name


def demotions(gateways: Sequence[ApiGateway], chosen: Sequence[str], dead: Collection[str]) -> Mapping[str, int]:
    """Return the number of demotions of each gateway in `chosen`. Lower numbers come first, then older gateways.

    `gateways`: the Gateway objects in the present order. A new gateway comes last.
    """
    numbers = {gateway.name: demotions_of(gateway) for gateway in gateways}
    order = [gateway.name for gateway in gateways if gateway.name in chosen]
    if any(gateway.status.antrea_clusters for gateway in gateways) and not set(order) <= set(dead):
        while order[0] in dead:
            numbers[order[0]] = max(numbers.values()) + 1
            order.append(order.pop(0))
    last = max(numbers.values(), default=0)
    return {name: numbers.get(name, last) for name in chosen}
