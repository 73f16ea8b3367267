"""What an API server does not keep of what it is sent: fields that its CRDs do not know, or that it rewrites.

A write's answer tells. Such a value is sent once, and not again as long as the object is what the server made of
it: until the value changes, somebody changes the field, the object is made anew, or an hour has passed (its CRDs
may be newer then). `apply.plan` leaves it out. Pure but for the memory, which is safe to use from many threads.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mcagent.controller.machinery.reconciler import Json, Ref, Side

REMEMBER = 3600.0  # seconds

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unkept:
    """A value that was sent, and what the server has instead. `fields` are what is missing of it."""

    sent: Any
    instead: Any
    fields: tuple[str, ...]


@dataclass(slots=True)
class _Known:
    uid: object
    epoch: int
    since: float
    values: dict[Path, Unkept]


class UnkeptValues:
    """Remembers what was not kept, by object. `epoch` counts leaders: of another one nothing is known."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[Ref, _Known] = {}

    def of(self, ref: Ref, present: Json | None, epoch: int, now: float) -> Mapping[Path, Unkept]:
        """Return what is known about an object that is there."""
        with self._lock:
            record = self._known.get(ref)
            if record is None:
                return {}
            same = record.uid == _value_at(present, ("metadata", "uid"))
            if not same or record.epoch != epoch or now > record.since + REMEMBER:
                del self._known[ref]
                return {}
            return dict(record.values)

    def note(self, ref: Ref, unkept: Mapping[Path, Unkept], answer: Json, epoch: int, now: float) -> set[str]:
        """Remember what a write's answer has shown. Returns the fields that are news."""
        with self._lock:
            record = self._known.get(ref)
            uid = _value_at(answer, ("metadata", "uid"))
            if record is None or record.uid != uid or record.epoch != epoch:
                record = self._known[ref] = _Known(uid, epoch, now, {})
            before = {field for value in record.values.values() for field in value.fields}
            record.values |= unkept
            return {field for value in unkept.values() for field in value.fields} - before

    def fields(self, side: Side) -> list[str]:
        """Return "Kind field" of all that is not kept on a side, sorted."""
        with self._lock:
            return sorted(
                {
                    f"{ref.kind} {field}"
                    for ref, record in self._known.items()
                    if ref.side is side
                    for value in record.values.values()
                    for field in value.fields
                }
            )

    def prune(self, now: float) -> None:
        """Forget what is long past."""
        with self._lock:
            for ref in [ref for ref, record in self._known.items() if now > record.since + REMEMBER]:
                del self._known[ref]


def not_kept(sent: Json, following: Json, answer: Json) -> dict[Path, Unkept]:
    """Return the values of a write that its answer lacks: those that `following`, the next patch, sends again."""
    unkept: dict[Path, Unkept] = {}
    for path, value in leaves(following):
        if path != ("metadata", "resourceVersion") and _same(_value_at(sent, path), value):
            instead = _value_at(answer, path)
            fields = tuple(dict.fromkeys(_lost(value, instead, ".".join(path))))
            unkept[path] = Unkept(sent=value, instead=instead, fields=fields)
    return unkept


def without_unkept(patch: Json, present: Json, unkept: Mapping[Path, Unkept]) -> Json:
    """Return a patch without values that the server is known not to keep; {} if nothing is left."""
    return _without(patch, present, unkept, ()) if unkept else patch


def leaves(patch: Json, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Return the values of a merge patch, each replaced as a whole, with their paths."""
    for key, value in patch.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key), value


def _without(patch: Json, present: Any, unkept_values: Mapping[Path, Unkept], path: Path) -> Json:
    reduced: Json = {}
    for key, value in patch.items():
        here, present_value = (*path, key), _value_at(present, (key,))
        if isinstance(value, dict) and value:
            if inner := _without(value, present_value, unkept_values, here):
                reduced[key] = inner
        elif (unkept := unkept_values.get(here)) is None or not (
            _same(unkept.sent, value) and _same(unkept.instead, present_value)
        ):
            reduced[key] = value
    return reduced


def _value_at(value: Any, path: Path) -> Any:
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _same(one: Any, other: Any) -> bool:
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)  # True is not 1


def _lost(sent: Any, instead: Any, path: str) -> Iterator[str]:
    """Return the paths of the values that are missing or different, as deep as both have the same shape."""
    if isinstance(sent, dict) and isinstance(instead, dict):
        for key, value in sent.items():
            if not _same(value, instead.get(key)):
                yield from _lost(value, instead.get(key), f"{path}.{key}")
    elif isinstance(sent, list) and isinstance(instead, list) and len(sent) == len(instead):
        for one, other in zip(sent, instead, strict=True):
            if not _same(one, other):
                yield from _lost(one, other, f"{path}[]")
    else:
        yield path
