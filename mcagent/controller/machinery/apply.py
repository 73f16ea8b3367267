"""The one write that is needed next, from what an object should be and what is there. Pure.

It writes only what differs, as a JSON merge patch (RFC 7386) that names the version it was made from: a write
never undoes one that was not seen, and what others added stays. Deletes name uid and version.

A replicated policy (`RAW`) is owned whole and compared exactly: an empty selector selects everything, and an
absent one does not.

An API server may drop a part of what it is sent: fields that its CRDs lack, or that it rewrites. A write's answer
shows that (`dropped_values`). Such a value is not sent again while it is the same and the server's is the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

import msgspec

from mcagent.controller.contract.antrea_before_2_7 import NO_TARGET_PORT
from mcagent.controller.contract.policies import CARRIED
from mcagent.controller.machinery.reconciler import Json, Ref, Wanted
from mcagent.model.api.base import Condition, as_json
from mcagent.model.errors import SourceError
from mcagent.model.kinds import KINDS
from mcagent.model.objects import Kind
from mcagent.model.parsing.decode import read_object

Path = tuple[str, ...]  # of a value in an object

_SAME = object()
_NOTHING = (None, "")  # of a field inside a list: structs do not tell an empty text from none

# Where objects have a policy, which no struct describes: it is written as it was read.
RAW: Mapping[Kind, Path] = MappingProxyType(
    {
        Kind.RESOURCE_IMPORT: ("spec", "clusternetworkpolicy"),
        Kind.CLUSTER_NETWORK_POLICY: ("spec",),
        **dict.fromkeys(CARRIED, ("spec",)),
    }
)


class Verb(StrEnum):
    """The kinds of write, as metrics name them."""

    CREATE = "create"
    PATCH = "patch"
    STATUS = "status"
    DELETE = "delete"


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """One request. `body` is what is sent, `uid` that of the object that is changed."""

    verb: Verb
    ref: Ref
    body: Json
    uid: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedValue:
    """A value that was sent, and the one that the server stored instead. `fields` are the paths that differ."""

    sent: object
    stored: object
    fields: tuple[str, ...]


class RefusedStepError(SourceError):
    """A reconciler must not write over the present object (`Wanted.refuse`)."""


def plan(
    step: Wanted | Ref, present: Json | None, dropped: Mapping[Path, DroppedValue] = MappingProxyType({})
) -> Write | None:
    """Return the next write towards what is wanted; None: nothing is left to do.

    Of a Wanted with a status the content comes first; the status follows when `plan` is asked again with what
    the write returned. A Ref alone means that the object must go. Raises RefusedStepError if the step refuses the
    present object, and the refusal's body is written already.
    """
    if isinstance(step, Ref):
        return _deletion(step, present)
    content, status = _desired(step)
    if present is None:
        return Write(verb=Verb.CREATE, ref=step.ref, body=_new(step.ref, content)) if step.create else None
    refusal = step.refuse(read_object(step.ref.kind, present)) if step.refuse is not None else None
    if refusal is not None:
        write = plan(Wanted(ref=step.ref, body=refusal.body), present, dropped)
        if write is None:
            raise RefusedStepError(refusal.reason)
        return write
    for verb, patch in (
        (Verb.PATCH, _difference(content, present, RAW.get(step.ref.kind, ()))),
        (Verb.STATUS, _status_difference(status, step.conditions, present)),
    ):
        if isinstance(patch, dict) and (patch := _without_dropped(patch, present, dropped)):
            uid = present["metadata"].get("uid", "")
            return Write(verb=verb, ref=step.ref, body=_versioned(patch, present), uid=uid)
    return None


def _desired(step: Wanted) -> tuple[Json, Json]:
    """Return the content and the status that are wanted, without what names the object."""
    body = step.body
    assert body is None or (body.IS_PATCH and getattr(body, "KIND", step.ref.kind) is step.ref.kind), step.ref
    content = as_json(body) if body is not None else {}
    status = content.pop("status", {})
    metadata = content.pop("metadata", {})
    meta = {key: value for key, value in metadata.items() if key not in _IDENTITY}
    return content | ({"metadata": meta} if meta else {}), status


def _status_difference(status: Json, conditions: Mapping[str, Condition | None], present: Json) -> object:
    """Return the merge patch of a status, or _SAME. Conditions of other types follow, as they are."""
    if conditions:
        stored = _value_at(present, ("status", "conditions"))
        entries = stored if isinstance(stored, list | tuple) else ()
        status["conditions"] = [
            *(as_json(condition) for condition in conditions.values() if condition is not None),
            *(entry for entry in entries if entry.get("type") not in conditions),
        ]
    patch = _difference({"status": status}, present)
    if isinstance(patch, dict) and "conditions" in patch["status"]:
        patch["status"]["conditions"] = status["conditions"]  # with what is null in those of others
    return patch


_IDENTITY = frozenset({"name", "namespace", "uid", "resourceVersion", "creationTimestamp", "generation"})


def _deletion(ref: Ref, present: Json | None) -> Write | None:
    if present is None or present["metadata"].get("deletionTimestamp"):
        return None
    meta = present["metadata"]
    preconditions = {key: meta[key] for key in ("uid", "resourceVersion") if meta.get(key)}
    body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}
    return Write(verb=Verb.DELETE, ref=ref, body=body)


def _new(ref: Ref, content: Json) -> Json:
    body: Json = {key: _without_none(value) for key, value in content.items() if value is not None}
    named = {"name": ref.name} | ({"namespace": ref.namespace} if KINDS[ref.kind].namespaced else {})
    metadata = body.get("metadata", {}) | named
    return {**body, "apiVersion": KINDS[ref.kind].api_version, "kind": KINDS[ref.kind].name, "metadata": metadata}


def _versioned(patch: Json, present: Json) -> Json:
    meta = patch.get("metadata")
    version = {"resourceVersion": present["metadata"]["resourceVersion"]}
    return {**patch, "metadata": {**(meta if isinstance(meta, dict) else {}), **version}}


def _without_none(value: object) -> object:
    """Return a value as JSON without what is null. Only values with "null" in them are looked through."""
    encoded = msgspec.json.encode(value)
    return msgspec.json.decode(encoded) if b"null" not in encoded else _filtered(value)


def _filtered(value: object) -> object:
    if isinstance(value, dict):
        return {key: _filtered(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list | tuple):
        return [_filtered(item) for item in value]
    return value


def _holds_nothing(value: object) -> bool:
    """Tell whether a wanted value asks for nothing to be there: servers drop empty mappings."""
    return value is None or (isinstance(value, dict) and all(map(_holds_nothing, value.values())))


def _difference(desired: object, present: object, raw: Path = ()) -> object:
    """Return the merge patch from `present` to `desired`, or _SAME. `raw`: the path of a value of RAW."""
    if not isinstance(desired, Mapping):
        return _SAME if _equal(desired, present, "") else _without_none(desired)
    if not isinstance(present, dict):
        return _SAME if present is None and _holds_nothing(desired) else _without_none(desired)
    patch: Json = {}
    for key, value in desired.items():
        present_value = present.get(key)
        if value is None:
            if present_value is not None:
                patch[key] = None
        elif raw == (key,):
            if (inner := _exact_difference(value, present_value)) is not _SAME:
                patch[key] = inner
        elif isinstance(value, Mapping):
            if (inner := _difference(value, present_value, raw[1:] if raw[:1] == (key,) else ())) is not _SAME:
                patch[key] = inner
        elif not _equal(value, present_value, key):
            patch[key] = _without_none(value)
    return patch or _SAME


def _exact_difference(desired: object, present: object) -> object:
    """Return the merge patch that makes `present` equal to `desired`, or _SAME. Only null counts as absent."""
    if isinstance(desired, Mapping) and isinstance(present, Mapping):
        removed = [key for key, value in present.items() if value is not None and desired.get(key) is None]
        patch: Json = dict.fromkeys(removed)
        for key, value in desired.items():
            if value is not None and (inner := _exact_difference(value, present.get(key))) is not _SAME:
                patch[key] = inner
        return patch or _SAME
    if isinstance(desired, list | tuple) and isinstance(present, list | tuple):
        is_same = len(desired) == len(present) and all(
            _exact_difference(item, present_item) is _SAME
            for item, present_item in zip(desired, present, strict=True)
        )
    else:
        is_same = desired == present and isinstance(desired, bool) is isinstance(present, bool)
    return _SAME if is_same else _without_none(desired)


def _equal(desired: object, present: object, key: str) -> bool:
    """Compare values that are owned whole; in lists of ports what the server fills in by itself may be there.

    A field of None, or an empty text, counts as none. Nothing is copied: lists of the endpoints of 250 clusters
    come by here again and again, and mostly are as they should be.
    """
    if isinstance(desired, str):
        return bool(desired == present)
    if isinstance(desired, dict):
        if not isinstance(present, dict):
            return False
        for name, value in desired.items():
            if value not in _NOTHING and not _equal(value, present.get(name), name):
                return False
        for name, present_value in present.items():
            added = desired.get(name) in _NOTHING and present_value not in _NOTHING
            if added and not (key == "ports" and _filled_in(name, present)):
                return False
        return True
    if isinstance(desired, list | tuple):
        if not isinstance(present, list | tuple):
            return not desired and present is None  # how Go writes, and leaves out, an empty list
        if len(desired) != len(present):
            return False
        return _encoded(desired) == _encoded(present) or all(
            _equal(value, present_value, key) for value, present_value in zip(desired, present, strict=True)
        )
    if isinstance(desired, bool) or isinstance(present, bool):
        return desired is present
    return bool(desired == present)


def _encoded(value: object) -> bytes:
    """Return JSON, which is compared faster than one value after the other, and tells True from 1."""
    return msgspec.json.encode(value, order="sorted")


def _filled_in(name: str, port: Json) -> bool:
    """Tell whether a field of a port is the server's default (core/v1 and discovery/v1 defaulting)."""
    match name:
        case "protocol":
            return bool(port[name] == "TCP")
        case "targetPort":
            return bool(port[name] in (NO_TARGET_PORT, port.get("port")))
        case "nodePort":
            return True
    return False


def dropped_values(sent: Json, following: Json, answer: Json) -> dict[Path, DroppedValue]:
    """Return the values of a write that its answer lacks: those that `following`, the next patch, sends again."""
    dropped: dict[Path, DroppedValue] = {}
    for path, value in _leaves(following):
        if path != ("metadata", "resourceVersion") and _is_same(_value_at(sent, path), value):
            stored = _value_at(answer, path)
            fields = tuple(dict.fromkeys(_different(value, stored, ".".join(path))))
            dropped[path] = DroppedValue(sent=value, stored=stored, fields=fields)
    return dropped


def _leaves(patch: Json, path: Path = ()) -> Iterator[tuple[Path, object]]:
    """Yield the values of a merge patch, each replaced as a whole, with their paths."""
    for key, value in patch.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*path, key))
        else:
            yield (*path, key), value


def _without_dropped(
    patch: Json, present: object, dropped_by_path: Mapping[Path, DroppedValue], path: Path = ()
) -> Json:
    """Return a patch without values that the server drops; {} if nothing is left."""
    if not dropped_by_path:
        return patch
    reduced: Json = {}
    for key, value in patch.items():
        value_path, present_value = (*path, key), _value_at(present, (key,))
        if isinstance(value, dict) and value:
            if inner := _without_dropped(value, present_value, dropped_by_path, value_path):
                reduced[key] = inner
        elif (dropped := dropped_by_path.get(value_path)) is None or not (
            _is_same(dropped.sent, value) and _is_same(dropped.stored, present_value)
        ):
            reduced[key] = value
    return reduced


def _value_at(value: object, path: Path) -> object:
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _is_same(a: object, b: object) -> bool:
    return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)  # True is not 1


def _different(sent: object, stored: object, path: str) -> Iterator[str]:
    """Yield the paths of the values that are missing or different, as deep as both have the same shape."""
    if isinstance(sent, dict) and isinstance(stored, dict):
        for key, value in sent.items():
            if not _is_same(value, stored.get(key)):
                yield from _different(value, stored.get(key), f"{path}.{key}")
    elif isinstance(sent, list | tuple) and isinstance(stored, list | tuple) and len(sent) == len(stored):
        for sent_item, stored_item in zip(sent, stored, strict=True):
            if not _is_same(sent_item, stored_item):
                yield from _different(sent_item, stored_item, f"{path}[]")
    else:
        yield path
