"""What every reconciler of the control plane has in common: the values it reads and the values it returns.

A reconciler owns a set of objects, divided by key. It is level-triggered and pure: `desired(key, view, now)` says
what all objects of that key should be, from the cached objects alone; a worker compares with what is there
and writes the difference. A reconciler does no I/O, knows no clock, and remembers nothing between two calls: what
must be remembered is in objects.

The rules that the engine keeps, and that reconcilers may rely on:
- `desired` is never called before all local kinds have been listed once, and for a reconciler with `needs_leader`
  not before the leader's kinds have been, too. While the leader is away its last known objects stay in the view.
- A key is worked on by one thread at a time; keys of failures are tried again with back-off; every key of
  `all_keys` is worked on at start, after each reconnect to the leader, and once a period.
- The steps of DesiredObjects are written in order; after one that failed the later ones are not written. Nor are
  they while one waits that another client reverts. A status holds up no later step.
- A cached object may change between two calls of the view: a reconciler gets an object once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar

from mcagent.controller.contract.member_tokens import TokenClaims
from mcagent.model.api.base import ApiObject, Condition
from mcagent.model.errors import McagentError
from mcagent.model.event import Event
from mcagent.model.objects import Kind

Json = dict[str, Any]
Object = TypeVar("Object", bound=ApiObject)


class Side(StrEnum):
    """Which API server: this cluster's, or that of the leader which a member has joined."""

    LOCAL = "local"
    LEADER = "leader"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Ref:
    """Names an object. `namespace` is "" for a cluster-scoped one."""

    side: Side = Side.LOCAL
    kind: Kind
    namespace: str = ""
    name: str

    @classmethod
    def of(cls, obj: ApiObject) -> Ref:
        """Name an object of this cluster."""
        return cls(kind=obj.KIND, namespace=obj.namespace, name=obj.name)

    def __str__(self) -> str:
        """Return how messages name it: "ResourceExport mcs/east-clusterinfo (leader)"."""
        key = f"{self.namespace}/{self.name}" if self.namespace else self.name
        return f"{self.kind} {key}" + (" (leader)" if self.side is Side.LEADER else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectChange:
    """An object came, changed or went. `old` and `new` are whole objects; None: it was or is not there."""

    side: Side
    kind: Kind
    old: ApiObject | None
    new: ApiObject | None

    @property
    def object(self) -> ApiObject:
        """The object as it is, or as it was last."""
        newest = self.new or self.old
        assert newest is not None
        return newest

    @property
    def came_or_went(self) -> bool:
        """Whether an object was created or deleted, or its deletion began."""
        return self.old is None or self.new is None or self.old.is_deleting != self.new.is_deleting

    def of(self, cls: type[Object]) -> tuple[Object | None, Object | None]:
        """Return `old` and `new` as objects of a kind; None for one of another kind."""
        old = self.old if isinstance(self.old, cls) else None
        return old, self.new if isinstance(self.new, cls) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """The ClusterSet that this cluster is a member of, and how the connection to its leader is."""

    cluster_set: str  # the ClusterSet's name, which is its ID
    cluster_id: str  # this cluster's ID
    leader_cluster_id: str
    namespace: str  # the Common Area on the leader
    addresses: tuple[str, ...] = ()  # of its API server, sorted; none while they are not known
    connected: bool = False  # the last request or watch went through
    synced: bool = False  # all kinds listed once over this connection
    error: str = ""  # why it is not connected, in plain words; never a secret
    since: float = 0.0  # when `connected` last changed; seconds since the epoch
    token: TokenClaims | None = None  # what the token says of its end; None: it has none
    token_error: str = ""  # why it could not be renewed; never a secret


class View(Protocol):
    """The cached objects, read only. Objects must not be changed by who reads them."""

    @property
    def namespace(self) -> str:
        """Return the namespace of the ClusterSet; the controller's own one where that may be any."""

    @property
    def leader(self) -> Leader | None:
        """Return the membership; None while there is no usable ClusterSet (or on a leader's controller)."""

    def get(self, ref: Ref, cls: type[Object]) -> Object | None:
        """Return an object of the kind that `ref` names, None if there is none."""

    def list(self, cls: type[Object], side: Side = Side.LOCAL, namespace: str | None = None) -> Sequence[Object]:
        """Return all objects of a kind, those of one namespace if given, sorted by namespace and name."""

    def indexed(self, index: Index[Object], value: str) -> Sequence[Object]:
        """Return the objects that an index files under a value, sorted likewise."""

    def count(self, index: Index[Object], value: str) -> int:
        """Return how many objects an index files under a value, however many that are at no cost."""

    def quiet_for(self, ref: Ref) -> float:
        """Return for how many seconds an object has been as it is, by a clock that never steps; 0.0: no object.

        It counts from when this process first saw the object's resourceVersion, also over a relist: after a
        restart it begins at 0. What has to outlast a restart is in objects.
        """

    def failure(self, ref: Ref) -> str:
        """Return why the last write of an object was refused, in plain words; "" if it was not."""

    def accepted(self, ref: Ref) -> bool:
        """Tell whether an object's last write went well, or none was needed; known from the first question on."""

    def dropped_fields(self, side: Side) -> Sequence[str]:
        """Return "Kind field" of what an API server drops of the objects written to it, sorted."""

    def events(self, reconciler: str) -> Mapping[str, frozenset[Event]]:
        """Return the Events that `desired` of a reconciler returned last, by key."""


@dataclass(frozen=True, slots=True)
class Index(Generic[Object]):
    """An index over the objects of one kind on one side.

    `values` are those under which it files an object, none or more; it is pure and never raises.
    """

    name: str
    of: type[Object]
    side: Side
    values: Callable[[Object], Iterable[str]]

    @property
    def kind(self) -> Kind:
        """The kind of the objects."""
        return self.of.KIND


AnyIndex = Index[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a present object must not be changed to what is wanted. `body`: what is written to it instead."""

    reason: str
    body: ApiObject | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What an object should be. Only the fields given are compared and written; what others added stays.

    `body` is a patch (`mcagent.model.api.patches`) of metadata, content and status, which is written through the
    status subresource. In lists every item counts, so a list is owned whole, as are policies (`apply.RAW`).
    `conditions`: those of the status that are owned, by type (None: none of this type); those of other types stay
    as they are. `create` False: only changed if it is there. `refuse` judges the present object; its refusal
    becomes the failure of this write.
    """

    ref: Ref
    body: ApiObject | None = None
    conditions: Mapping[str, Condition | None] = field(default_factory=dict)
    create: bool = True
    refuse: Callable[[ApiObject], Refusal | None] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredObjects:
    """What all objects of a key should be.

    `steps` are carried out in order: a Wanted is created or changed, a Ref is deleted if it is there (a reconciler
    names only what is its own). `again` asks to be called for this key once more after so many seconds.
    """

    steps: Sequence[Wanted | Ref] = ()
    events: Sequence[Event] = ()
    again: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Kinds of objects, by side: what a reconciler reads, or what it writes."""

    local: Set[Kind] = frozenset()
    leader: Set[Kind] = frozenset()

    def on(self, side: Side) -> Set[Kind]:
        """Return the kinds of one side."""
        return self.leader if side is Side.LEADER else self.local


class Reconciler(Protocol):
    """One responsibility of the control plane.

    `reads`, `writes` and `indexes` declare all that it has to do with objects; they do not change while it runs.
    Informers, the side whose workers it gets, and the rights of the manifests follow from them. A look at, or a
    write of, anything else raises UndeclaredAccessError.
    """

    @property
    def name(self) -> str:
        """Name it for logs, metrics and /status: "gateway-election"."""

    @property
    def needs_leader(self) -> bool:
        """Tell whether it is called only once the leader's objects are listed."""

    @property
    def reads(self) -> Access:
        """Name the kinds that the view has for it; a change of one goes through `keys`."""

    @property
    def writes(self) -> Access:
        """Name the kinds of which it creates, changes (also only a status) or deletes objects."""

    @property
    def indexes(self) -> Sequence[AnyIndex]:
        """Name the indexes that it looks things up in; each over a kind that it reads."""

    def keys(self, change: ObjectChange, view: View) -> Iterable[str]:
        """Return the keys that a change touches. Cheap; never raises."""

    def all_keys(self, view: View) -> Iterable[str]:
        """Return every key that has something to read, or something of ours that may have to go."""

    def desired(self, key: str, view: View, now: float) -> DesiredObjects:
        """Return what the objects of a key should be. `now` is in seconds since the epoch.

        Bad input becomes a condition or an Event, never an exception.
        """


class UndeclaredAccessError(McagentError):
    """A reconciler reads or writes what it does not declare, which is a bug."""


def side_of(reconciler: Reconciler) -> Side:
    """Return whose workers run it: the leader's if it has anything to do with the leader, which may be slow."""
    leader = reconciler.needs_leader or reconciler.reads.leader or reconciler.writes.leader
    return Side.LEADER if leader else Side.LOCAL


def check_writes(reconciler: Reconciler, desired: DesiredObjects) -> None:
    """Raise UndeclaredAccessError if something is to be written that the reconciler does not declare."""
    for step in desired.steps:
        ref = step if isinstance(step, Ref) else step.ref
        if ref.kind not in reconciler.writes.on(ref.side):
            raise UndeclaredAccessError(f"{reconciler.name} does not declare that it writes {ref}")
