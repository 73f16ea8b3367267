"""What is assumed: the words of `mcagent plan --what-if`, and the world in which they are true.

A world is what decisions follow from: what the API says, what this Node says, and which Nodes and gateways answer
nobody. An assumption makes of one world another, as the API and liveness would tell of it if it came true. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from mcagent.core.local_cluster.gateways import requested_gateways
from mcagent.model.config import Config, DatapathChoice
from mcagent.model.errors import InputError
from mcagent.model.facts import DatapathType, Facts
from mcagent.model.field import printable
from mcagent.model.objects import Snapshot

SHOWN = 8  # names in a message
GRAMMAR = (
    '"gateway NAME down" (a Node of this cluster, or the gatewayIP of another\'s), "node NAME down", '
    '"node NAME drained", or "cluster ID removed"'
)
_FORM = re.compile(r"\s*(\S+)\s+(\S+)\s+(\S+)\s*")


class Event(StrEnum):
    """What happens."""

    DOWN = "down"
    DRAINED = "drained"
    REMOVED = "removed"


_EVENTS = {
    "gateway": (Event.DOWN, Event.DRAINED),
    "node": (Event.DOWN, Event.DRAINED),
    "cluster": (Event.REMOVED,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What decisions follow from. `silent`: Nodes of this cluster and gatewayIPs of others that nobody reaches."""

    snapshot: Snapshot
    facts: Facts = field(default_factory=Facts)
    silent: frozenset[str] = frozenset()


def facts_unseen(config: Config) -> Facts:
    """Return the facts of a Node that nobody looks at, as far as its configuration says them."""
    choice = config.datapath
    return Facts() if choice is DatapathChoice.AUTO else Facts(datapath=DatapathType(choice.value))


@dataclass(frozen=True, slots=True)
class Assumption:
    """One thing that happens: to a Node of this cluster, a gateway of another one, or a whole other cluster."""

    what: str  # "gateway", "node", "cluster"
    name: str
    event: Event

    def __str__(self) -> str:
        """Return the text that says it."""
        return f"{self.what} {self.name} {self.event}"


def read_assumption(text: str, snapshot: Snapshot, config: Config) -> Assumption:
    """Return what the text says. Raises InputError that names what would be right."""

    def wrong(reason: str) -> InputError:
        return InputError(f'--what-if "{printable(text)}"', "", reason)

    found = _FORM.fullmatch(text)
    if found is None:
        raise wrong(f"must be {GRAMMAR}")
    what, name, event = found.groups()
    if what not in _EVENTS:
        raise wrong(f'cannot assume anything of "{printable(what)}": must be {GRAMMAR}')
    if event not in _EVENTS[what]:
        raise wrong(f'a {what} can be {" or ".join(_EVENTS[what])}, not "{printable(event)}"')
    far = sorted({str(ip) for info in snapshot.cluster_infos.values() for ip in info.gateway_ips})
    gateways = [gateway.meta.name for gateway in requested_gateways(snapshot.gateways, snapshot.nodes, config)]
    if what == "gateway" and name in far and event != Event.DOWN:
        raise wrong(f'{name} is a gateway of another cluster: drain it there; here it can be assumed "down"')
    there = {
        "gateway": [*gateways, *far],
        "node": sorted(snapshot.nodes),
        "cluster": sorted({info.cluster_id for info in snapshot.cluster_infos.values()}),
    }[what]
    if name not in there:
        raise wrong(f'there is no {what} "{printable(name)}": {_named(what, there)}')
    return Assumption(what, name, Event(event))


def _named(what: str, names: Iterable[str]) -> str:
    every = [*names]
    if not every:
        return f"no {what} is known"
    more = f" and {len(every) - SHOWN} more" if len(every) > SHOWN else ""
    return f"there are {', '.join(every[:SHOWN])}{more}"


def assume(world: World, assumption: Assumption) -> World:
    """Return the world in which it has happened."""
    snapshot, name = world.snapshot, assumption.name
    if assumption.event is Event.REMOVED:
        return replace(world, snapshot=_without_cluster(snapshot, name))
    node = snapshot.nodes.get(name)
    if node is not None:
        after = replace(node, drain=True) if assumption.event is Event.DRAINED else replace(node, ready=False)
        snapshot = replace(snapshot, nodes={**snapshot.nodes, name: after})
    silent = world.silent | ({name} if assumption.event is Event.DOWN else set())
    return replace(world, snapshot=snapshot, silent=silent)


def _without_cluster(snapshot: Snapshot, cluster_id: str) -> Snapshot:
    """Return what the API says when a cluster has left: nothing of it, nor of its Services' endpoints."""
    return replace(
        snapshot,
        cluster_infos={k: one for k, one in snapshot.cluster_infos.items() if one.cluster_id != cluster_id},
        endpoint_slices={
            k: one for k, one in snapshot.endpoint_slices.items() if one.source_cluster != cluster_id
        },
    )
