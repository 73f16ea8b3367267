"""Desired, Actual and Plan: what should be, what is, and the steps from one to the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from graphlib import TopologicalSorter

from mcagent.model.dataplane.backend import Backend
from mcagent.model.dataplane.resources import Resource, ResourceKey
from mcagent.model.errors import BackendError
from mcagent.model.node_state import NodeState
from mcagent.model.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """The resources that follow from one cause ("base", "cluster/east", "service/default/web:80", ...).

    Fragments are the grain of reuse: `compile` hands back the very same object while its inputs are equal, so that
    `diff` can pass over it without a look inside.
    """

    owner: str
    resources: tuple[Resource, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Desired:
    """The whole dataplane of one Node. No two fragments hold a resource of the same backend and key."""

    fragments: Mapping[str, Fragment]
    problems: tuple[Problem, ...] = ()
    state: NodeState = field(default_factory=NodeState)  # what it was decided with, for people and probes


# What is: resources by (backend, key). A backend reports only what is ours.
Actual = Mapping[Backend, Mapping[ResourceKey, Resource]]


class Op(StrEnum):
    """What a step does to a resource."""

    ADD = "add"
    REPLACE = "replace"
    DELETE = "delete"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One change to one resource. `old` is None where it is added, `new` where it is deleted."""

    old: Resource | None = None
    new: Resource | None = None
    owner: str = ""  # of `new`; after a restart the owner of an old resource is not known

    @property
    def resource(self) -> Resource:
        """The resource as it will be, or as it was where it goes."""
        resource = self.old if self.new is None else self.new
        assert resource is not None
        return resource

    @property
    def op(self) -> Op:
        """What is done to it."""
        if self.old is None:
            return Op.ADD
        return Op.DELETE if self.new is None else Op.REPLACE

    @property
    def backend(self) -> Backend:
        """The backend that holds it."""
        return self.resource.backend

    @property
    def key(self) -> ResourceKey:
        """Its identity in the backend."""
        return self.resource.key


class StageKind(Enum):
    """The stages of a plan: which backend applies each, and its title for people. `AFTER` orders them."""

    ENCRYPTION = (Backend.WIREGUARD, "set up encryption")
    ROOM_FOR_TUNNELS = (Backend.OVSDB, "make room for tunnels")
    TUNNELS = (Backend.OVSDB, "create bridge and tunnels")
    DEVICES = (Backend.NETLINK, "set up devices")
    NFT = (Backend.NFT, "set packet marks and NAT rules")
    FLOWS = (Backend.OPENFLOW, "program flows")
    ROUTES = (Backend.NETLINK, "add routes")
    FIRST_TUNNELS = (Backend.OVSDB, "create tunnels of an empty bridge")  # see `mcagent.core.plan.diff`
    TUNNELS_IN_USE = (Backend.OVSDB, "take tunnels into use")  # see `mcagent.core.plan.diff`
    OLD_ROUTES = (Backend.NETLINK, "remove routes")
    OLD_TUNNELS = (Backend.OVSDB, "remove tunnels")
    OLD_ENCRYPTION = (Backend.WIREGUARD, "remove encryption")

    def __init__(self, backend: Backend, title: str) -> None:
        self.backend = backend
        self.title = title


# What must stand before what, and what must be gone before what. OpenFlow is one bundle: its adds, changes and
# deletes are seen at once.
_K = StageKind
AFTER: Mapping[StageKind, tuple[StageKind, ...]] = {
    _K.ENCRYPTION: (),
    _K.ROOM_FOR_TUNNELS: (),
    _K.TUNNELS: (_K.ENCRYPTION, _K.ROOM_FOR_TUNNELS),  # tunnels may end behind the WireGuard device
    _K.DEVICES: (_K.TUNNELS,),  # the host port's device is a port of the bridge
    _K.NFT: (_K.DEVICES,),  # rules name devices
    _K.FLOWS: (_K.TUNNELS, _K.DEVICES, _K.NFT),  # flows send to tunnels, by routes to their ends
    _K.ROUTES: (_K.FLOWS,),  # routes send packets to the flows
    _K.FIRST_TUNNELS: (_K.FLOWS, _K.ROUTES),
    _K.TUNNELS_IN_USE: (_K.FLOWS, _K.ROUTES),
    _K.OLD_ROUTES: (_K.ROUTES, _K.FIRST_TUNNELS, _K.TUNNELS_IN_USE),  # make before break
    _K.OLD_TUNNELS: (_K.FLOWS, _K.OLD_ROUTES),
    _K.OLD_ENCRYPTION: (_K.OLD_TUNNELS,),
}
ORDER = tuple(TopologicalSorter(AFTER).static_order())


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Steps of one backend that may be applied together, in the order given."""

    kind: StageKind
    steps: tuple[Step, ...]

    @property
    def backend(self) -> Backend:
        """The backend that applies it."""
        return self.kind.backend


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Stages in `ORDER`. An empty plan means that the dataplane is as it should be."""

    stages: tuple[Stage, ...] = ()

    def __len__(self) -> int:
        return sum(len(stage.steps) for stage in self.stages)

    @property
    def steps(self) -> tuple[Step, ...]:
        """All steps in order."""
        return tuple(step for stage in self.stages for step in stage.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyResult:
    """What became of a stage: steps done, and steps that failed with their error."""

    done: tuple[Step, ...] = ()
    failed: tuple[tuple[Step, BackendError], ...] = ()

    @classmethod
    def of(cls, steps: Sequence[Step], failed: Mapping[int, BackendError]) -> ApplyResult:
        """Return what became of `steps`, of which those at the places in `failed` failed."""
        return cls(
            done=tuple(step for place, step in enumerate(steps) if place not in failed),
            failed=tuple((steps[place], failed[place]) for place in sorted(failed)),
        )
