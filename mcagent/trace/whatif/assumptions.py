"""The assumptions of `mcagent plan --what-if`, and their effect on the input of decisions. Pure.

A World is that input: the objects of the API, the facts of this Node, and the Nodes and gateways that do not
answer. An assumption changes a World as the API and liveness would report it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from mcagent.core.local_cluster.gateways import requested_gateways
from mcagent.model.config import Config, DatapathChoice
from mcagent.model.dataplane.facts import DatapathType, Facts
from mcagent.model.errors import InputError
from mcagent.model.objects import Snapshot
from mcagent.model.parsing.field import listed, printable

SHOWN = 8  # names in a message
GRAMMAR = (
    '"gateway NAME down" (a Node of this cluster, or the gatewayIP of another\'s), "node NAME down", '
    '"node NAME drained", or "cluster ID removed"'
)
_FORM = re.compile(r"\s*(\S+)\s+(\S+)\s+(\S+)\s*")


class AssumedEvent(StrEnum):
    """The event of an assumption."""

    DOWN = "down"
    DRAINED = "drained"
    REMOVED = "removed"


_EVENTS = {
    "gateway": (AssumedEvent.DOWN, AssumedEvent.DRAINED),
    "node": (AssumedEvent.DOWN, AssumedEvent.DRAINED),
    "cluster": (AssumedEvent.REMOVED,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The input of decisions. `silent`: Nodes of this cluster and gatewayIPs of others that do not answer."""

    snapshot: Snapshot
    facts: Facts = field(default_factory=Facts)
    silent: frozenset[str] = frozenset()


def facts_unseen(config: Config) -> Facts:
    """Return the facts of a Node that is not observed, by its configuration."""
    choice = config.datapath
    return Facts() if choice is DatapathChoice.AUTO else Facts(datapath=DatapathType(choice.value))


@dataclass(frozen=True, slots=True)
class Assumption:
    """An event of a Node of this cluster, of a gateway of another one, or of a whole other cluster."""

    kind: str  # "gateway", "node", "cluster"
    name: str
    event: AssumedEvent

    def __str__(self) -> str:
        """Return it in the form that `read_assumption` parses."""
        return f"{self.kind} {self.name} {self.event}"


def read_assumption(text: str, snapshot: Snapshot, config: Config) -> Assumption:
    """Parse an assumption. Raises InputError, which names valid values."""

    def wrong(reason: str) -> InputError:
        return InputError(f'--what-if "{printable(text)}"', "", reason)

    match = _FORM.fullmatch(text)
    if match is None:
        raise wrong(f"must be {GRAMMAR}")
    kind, name, event = match.groups()
    if kind not in _EVENTS:
        raise wrong(f'cannot assume anything of "{printable(kind)}": must be {GRAMMAR}')
    if event not in _EVENTS[kind]:
        raise wrong(f'a {kind} can be {" or ".join(_EVENTS[kind])}, not "{printable(event)}"')
    far = sorted({str(ip) for info in snapshot.cluster_infos.values() for ip in info.gateway_ips})
    gateways = [gateway.meta.name for gateway in requested_gateways(snapshot.gateways, snapshot.nodes, config)]
    if kind == "gateway" and name in far and event != AssumedEvent.DOWN:
        raise wrong(f'{name} is a gateway of another cluster: drain it there; here it can be assumed "down"')
    names = {
        "gateway": [*gateways, *far],
        "node": sorted(snapshot.nodes),
        "cluster": sorted({info.cluster_id for info in snapshot.cluster_infos.values()}),
    }[kind]
    if name not in names:
        raise wrong(f'there is no {kind} "{printable(name)}": {_list_of(kind, names)}')
    return Assumption(kind, name, AssumedEvent(event))


def _list_of(kind: str, names: Sequence[str]) -> str:
    if not names:
        return f"no {kind} is known"
    return f"there are {listed(names, SHOWN)}"


def assume(world: World, assumption: Assumption) -> World:
    """Return the World after the event."""
    snapshot, name = world.snapshot, assumption.name
    if assumption.event is AssumedEvent.REMOVED:
        return replace(world, snapshot=_without_cluster(snapshot, name))
    node = snapshot.nodes.get(name)
    if node is not None:
        after = (
            replace(node, drain=True) if assumption.event is AssumedEvent.DRAINED else replace(node, ready=False)
        )
        snapshot = replace(snapshot, nodes={**snapshot.nodes, name: after})
    silent = world.silent | ({name} if assumption.event is AssumedEvent.DOWN else set())
    return replace(world, snapshot=snapshot, silent=silent)


def _without_cluster(snapshot: Snapshot, cluster_id: str) -> Snapshot:
    """Return the objects without a cluster and its Services' endpoints."""
    infos, slices = snapshot.cluster_infos.items(), snapshot.endpoint_slices.items()
    return replace(
        snapshot,
        cluster_infos={key: info for key, info in infos if info.cluster_id != cluster_id},
        endpoint_slices={key: slice_ for key, slice_ in slices if slice_.source_cluster != cluster_id},
    )
