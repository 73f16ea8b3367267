"""What every source of objects has in common: the events it delivers, the sink they go to, its state.

A source lists and watches kinds in threads of its own and hands objects
(`mcagent.model.api`) to a sink. It must not know what becomes of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, TypeGuard

from mcagent.kube.errors import ApiGarbageError
from mcagent.model.api.base import ApiObject
from mcagent.model.informer_state import InformerState
from mcagent.model.kinds import KINDS
from mcagent.model.objects import Kind
from mcagent.model.problem import Problem

RawObject = dict[str, Any]


class EventType(StrEnum):
    """What happened to an object (the API's watch event types that carry one)."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchEvent:
    """One change of one object. `object` is its new state, or the last one for DELETED."""

    type: EventType
    object: ApiObject

    @property
    def key(self) -> str:
        """Return "namespace/name", or the name of a cluster-scoped object, as `Meta.key` does."""
        return object_key(self.object)


def object_key(obj: RawObject | ApiObject) -> str:
    """Return "namespace/name", or the name of a cluster-scoped object. JSON must have passed `is_object`."""
    if isinstance(obj, ApiObject):
        namespace, name = obj.namespace, obj.name
    else:
        namespace, name = obj["metadata"].get("namespace"), obj["metadata"]["name"]
    return f"{namespace}/{name}" if namespace else name


def is_object(obj: object) -> TypeGuard[RawObject]:
    """Tell whether something can be an API object: it has a name, and a namespace that is text if any."""
    if not isinstance(obj, dict) or not isinstance(meta := obj.get("metadata"), dict):
        return False
    name = meta.get("name")
    return isinstance(name, str) and bool(name) and isinstance(meta.get("namespace", ""), str)


def checked_object(answer: object, kind: Kind, where: object) -> RawObject:
    """Return an answer that is an object of a kind, with a version. Raises ApiGarbageError that names `where`."""
    if is_object(answer) and answer.get("kind") == KINDS[kind].name:
        version = answer["metadata"].get("resourceVersion")
        if isinstance(version, str) and version:
            return answer
    raise ApiGarbageError(f"{where}: the answer is no {KINDS[kind].name}")


class Sink(Protocol):
    """Where a source delivers. Called from the source's threads, for one kind by one thread at a time.

    Every call must be short (O(1) per event) and must not block or raise.
    """

    def replace(self, kind: Kind, objects: Sequence[ApiObject]) -> None:
        """Take all objects of a kind: what is not among them is gone. The kind is synced from now on."""

    def apply(self, kind: Kind, event: WatchEvent) -> None:
        """Take one change, in the order of the watch."""

    def forget(self, kind: Kind) -> None:
        """Take that a kind is read no longer: its objects are unknown, and it is not synced."""


class Source(Protocol):
    """A source of objects: an API server or a directory of manifests."""

    def start(self, kinds: Sequence[Kind]) -> None:
        """Begin to read these kinds. Returns at once."""

    def set_kinds(
        self,
        kinds: Sequence[Kind],
        field_selectors: Mapping[Kind, str] | None = None,
        label_selectors: Mapping[Kind, str] | None = None,
    ) -> None:
        """Read exactly these kinds from now on; the sink forgets those no longer read.

        `field_selectors` narrow kinds down ("spec.nodeName=node-1"), as do `label_selectors`. A kind whose
        selector changes is read anew; where no label selects any more, it is unknown until then. A source may
        deliver more than was selected.
        """

    def stop(self) -> None:
        """Stop within about a second; nothing is delivered afterwards."""

    def state(self) -> Mapping[Kind, InformerState]:
        """Return how reading goes, by kind."""

    def problems(self) -> tuple[Problem, ...]:
        """Return what the source itself cannot use (a file that does not parse)."""
