"""JSON values to the structs of their kinds. Pure; never raises.

A value of a wrong type is left out, and the object says so (`ApiObject.fault`): the other fields stay, and code
that needs the field refuses the object with a message that names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import msgspec

from mcagent.model.api import admission, kubernetes, multicluster, policies
from mcagent.model.api.base import ApiObject, ApiPart, Fault
from mcagent.model.api.kubernetes import PortNumber
from mcagent.model.errors import InputError
from mcagent.model.objects import IpProtocol, Kind
from mcagent.model.parsing.field import describe, printable

TYPES: Mapping[Kind, type[ApiObject]] = {
    struct.KIND: struct
    for module in (admission, kubernetes, multicluster, policies)
    for struct in vars(module).values()
    if isinstance(struct, type) and issubclass(struct, ApiObject) and "KIND" in vars(struct)
}


def _prepare(parts: Iterable[type[ApiPart]]) -> None:
    """Let msgspec look at all structs now: two threads that are the first to decode a struct crash the process."""
    for part in parts:
        with suppress(msgspec.ValidationError):  # required fields
            msgspec.convert({}, part)
        _prepare(part.__subclasses__())


_prepare(ApiPart.__subclasses__())

_Part = TypeVar("_Part", bound=ApiPart)
_Object = TypeVar("_Object", bound=ApiObject)
_Wrong = tuple[str, str, str]  # a fault: its path, what is wrong there, and the code of the error
_MOST = 16  # faults in a list or mapping; with more it is left out
_LEFT_OUT: Any = object()
_NAMES = {
    str: "a string",
    IpProtocol: "a string",
    int: "an integer",
    bool: "true or false",
    tuple: "a list",
}


@cache
def _fields(cls: type[ApiPart]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """Return the fields that JSON can have."""
    return tuple(field for field in msgspec.structs.fields(cls) if field.type != Fault | None)


@cache
def _types(annotation: Any) -> tuple[Any, ...]:
    """Return the types that an annotation allows, without None."""
    is_union = get_origin(annotation) in (Union, UnionType)
    return tuple(kind for kind in get_args(annotation) if kind is not NoneType) if is_union else (annotation,)


def read_as(cls: type[_Object], raw: Mapping[str, Any]) -> _Object:
    """Return an object as a struct. Fields that the struct does not have are passed over."""
    obj, faults = _without_faults(cls, raw)
    if faults:
        subject = _subject(cls, raw)
        errors = [InputError(subject, path, reason, code=code) for path, reason, code in faults]
        msgspec.structs.force_setattr(obj, "fault", Fault(errors))
    return obj


def read_part(cls: type[_Part], raw: Mapping[str, Any]) -> _Part:
    """Return a JSON object that is no object of the API as a struct, without what has a wrong type."""
    return _without_faults(cls, raw)[0]


def read_object(kind: Kind, raw: Mapping[str, Any]) -> ApiObject:
    """Return an object of a kind that has a struct."""
    return read_as(TYPES[kind], raw)


def _without_faults(cls: type[_Part], raw: Mapping[str, Any]) -> tuple[_Part, Sequence[_Wrong]]:
    """Return a struct without what is null, which is the same as absent, and what is wrong; and the faults."""
    try:
        return msgspec.convert(raw, cls), ()
    except msgspec.ValidationError:
        faults: list[_Wrong] = []
        part = _part(cls, raw, "", faults)
        return (cls() if part is _LEFT_OUT else part), faults


def _subject(cls: type[ApiObject], raw: Mapping[str, Any]) -> str:
    meta, kind = raw.get("metadata"), getattr(cls, "KIND", "manifest")
    texts = (meta.get("namespace"), meta.get("name")) if isinstance(meta, dict) else ()
    return f"{kind} {'/'.join(printable(text, 253) for text in texts if text and isinstance(text, str))}"


def _part(cls: type[_Part], raw: Mapping[str, Any], path: str, faults: list[_Wrong]) -> Any:
    """Return a struct; _LEFT_OUT if it lacks a required field."""
    present = {key: value for key, value in raw.items() if value is not None}
    with suppress(msgspec.ValidationError):
        return msgspec.convert(present, cls)
    values: dict[str, Any] = {}
    for field in _fields(cls):
        field_path = f"{path}.{field.encode_name}" if path else field.encode_name
        value, raw_value = _LEFT_OUT, present.get(field.encode_name)
        if raw_value is not None:
            value = _value(field.type, raw_value, field_path, faults)
        elif field.required:
            faults.append((field_path, "is missing", "Missing"))
        if value is not _LEFT_OUT:
            values[field.name] = value
        elif field.required:
            return _LEFT_OUT
    return cls(**values)


def _value(annotation: Any, raw: Any, path: str, faults: list[_Wrong]) -> Any:
    """Return a value of a type, without what is wrong within; _LEFT_OUT if it is of another type itself."""
    types = _types(annotation)
    kind, origin, of = types[0], get_origin(types[0]), get_args(types[0])
    if isinstance(raw, dict) and origin is None and isinstance(kind, type) and issubclass(kind, ApiPart):
        return _part(kind, raw, path, faults)
    with suppress(msgspec.ValidationError):
        return msgspec.convert(raw, annotation)
    if isinstance(raw, dict) and origin is Mapping:
        entries = {str(key): item for key, item in raw.items() if item is not None}
        return _items(of[1], ((key, f".{printable(key)}", item) for key, item in entries.items()), path, faults)
    if isinstance(raw, list | tuple) and origin is tuple:
        items = _items(of[0], ((n, f"[{n}]", item) for n, item in enumerate(raw)), path, faults)
        return items if items is _LEFT_OUT else tuple(items.values())
    faults.append((path, *_reason(types, path, raw)))
    return _LEFT_OUT


def _items(
    annotation: Any, entries: Iterable[tuple[str | int, str, Any]], path: str, faults: list[_Wrong]
) -> dict[str | int, Any]:
    """Return the values of a list or mapping by index or key; `entries` have the step to each, too."""
    items: dict[str | int, Any] = {}
    before = len(faults)
    for key, step, raw in entries:
        value = _value(annotation, raw, path + step, faults)
        if value is not _LEFT_OUT:
            items[key] = value
        if len(faults) - before > _MOST:
            faults.append((path, f"has more than {_MOST} wrong values", "InvalidValue"))
            return _LEFT_OUT  # type: ignore[no-any-return]
    return items


def _reason(types: Sequence[Any], path: str, raw: Any) -> tuple[str, str]:
    """Return what is wrong, and the code of the error: of some fields the message says more than their type."""
    kind, shown = types[0], describe(raw)
    if raw is None:
        return "is missing", "Missing"
    if kind is IpProtocol and isinstance(raw, str):
        return f'must be TCP, UDP or SCTP, is "{printable(raw)}"', "InvalidProtocol"
    if kind == PortNumber and isinstance(raw, int) and not isinstance(raw, bool):
        return "not a port: must be from 1 to 65535", "InvalidPort"
    if path.endswith((".port", ".containerPort")):
        return f"must be a port number, is {shown}", "InvalidPort"
    if path.endswith(".creationTimestamp"):
        return f"must be a time (RFC 3339), is {shown}", "InvalidTime"
    if get_origin(kind) is Annotated and isinstance(raw, int) and not isinstance(raw, bool):
        return f"must be at least {get_args(kind)[1].ge}", "InvalidValue"
    return f"must be {' or '.join(map(_name, types))}, is {shown}", "InvalidValue"


def _name(kind: Any) -> str:
    origin = get_origin(kind)
    return _NAMES.get(get_args(kind)[0] if origin is Annotated else origin or kind, "a mapping")
