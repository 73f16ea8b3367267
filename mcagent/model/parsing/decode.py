"""JSON values to the structs of their kinds. Pure; never raises.

A value of a wrong type is left out, and the object says so (`ApiObject.fault`): the other fields stay, and code
that needs the field refuses the object with a message that names it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from mcagent.model.api import admission, kubernetes, multicluster, policies
from mcagent.model.api.base import ApiObject, ApiPart, Fault
from mcagent.model.errors import InputError
from mcagent.model.objects import Kind
from mcagent.model.parsing.field import printable

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
_MOST = 16  # wrong fields of one object that are left out one by one; then all of the field at the top goes
_PLACE = re.compile(r" - at (?:`key` in )?`\$([^`]*)`$")
_MISSING = re.compile(r"Object missing required field `([^`]*)`")
_EXPECTED = re.compile(r"Expected `(?P<type>[^`]*?)(?: \| null)?`(?:, got `(?P<got>[^`]*)`)?")
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]|\[\.\.\.\]")
_NAMES = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "a mapping",
}
_JSON_TYPES: Mapping[str, type] = {"str": str, "int": int, "bool": bool, "array": list, "object": dict}


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


def _without_faults(cls: type[_Part], raw: Mapping[str, Any]) -> tuple[_Part, Sequence[Sequence[str]]]:
    """Return a struct without what is null, which is the same as absent, and without what has a wrong type.

    Beside it, for each such value: its path, what it should be, and the code of the error.
    """
    try:
        return msgspec.convert(raw, cls), ()
    except msgspec.ValidationError:
        value = _without_nulls(raw)
    faults: list[Sequence[str]] = []
    for count in range(10 * _MOST):
        try:
            return msgspec.convert(value, cls), faults
        except msgspec.ValidationError as error:
            path, *fault = _explained(error, value)
            faults.append(fault)
            value = _removed(value, path if count < _MOST else path[:1] if path[0] != "metadata" else path[:2])
    raise AssertionError("a struct without fields was not taken")


def _subject(cls: type[ApiObject], raw: Mapping[str, Any]) -> str:
    meta, kind = raw.get("metadata"), getattr(cls, "KIND", "manifest")
    texts = (meta.get("namespace"), meta.get("name")) if isinstance(meta, dict) else ()
    return f"{kind} {'/'.join(printable(text, 253) for text in texts if text and isinstance(text, str))}"


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _without_nulls(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list | tuple):
        return [_without_nulls(item) for item in value]
    return value


def _explained(error: msgspec.ValidationError, value: Any) -> tuple[list[str | int], str, str, str]:
    """Return the path to remove; the path of the fault as text, what is wrong there, and the code of the error."""
    text = str(error)
    place = _PLACE.search(text)
    expected = _EXPECTED.match(text)
    path: list[str | int] = []
    for step in _STEP.finditer(place[1] if place else ""):
        if step[1] is not None:
            path.append(step[1])
        elif step[2] is not None:
            path.append(int(step[2]))
        else:
            inner, json_type = _at(value, path), _JSON_TYPES[expected["type"] if expected else "str"]
            path.append(next(key for key, item in inner.items() if not isinstance(item, json_type)))
    if missing := _MISSING.match(text):
        return path, f"{_shown(path)}.{missing[1]}", "is missing", "Missing"
    if expected is None:  # the only enumeration
        return (
            path,
            _shown(path),
            f'must be TCP, UDP or SCTP, is "{printable(_at(value, path))}"',
            "InvalidProtocol",
        )
    return path, _shown(path), *_reason(path, expected)


def _reason(path: list[str | int], expected: re.Match[str]) -> tuple[str, str]:
    """Return what is wrong, and the code of the error: of some fields the message says more than their type."""
    name, got = str(path[-1]) if path else "", expected["got"]
    if got is None:  # the only range
        return "not a port: must be from 1 to 65535", "InvalidPort"
    if got == "null":
        return "is missing", "Missing"
    shown = "a boolean" if got == "bool" else "a number" if got in ("int", "float") else _NAMES.get(got, got)
    allowed_types = " or ".join(_NAMES.get(json_type, json_type) for json_type in expected["type"].split(" | "))
    if name in ("port", "containerPort"):
        return f"must be a port number, is {shown}", "InvalidPort"
    if name == "creationTimestamp":
        return f"must be a time (RFC 3339), is {shown}", "InvalidTime"
    return f"must be {allowed_types}, is {shown}", "InvalidValue"


def _shown(path: list[str | int]) -> str:
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")


def _at(value: Any, path: list[str | int]) -> Any:
    for step in path:
        value = value[step]
    return value


def _removed(value: Any, path: list[str | int]) -> Any:
    """Return a value without what stands at a path."""
    first, remaining = path[0], path[1:]
    if isinstance(value, dict):
        if not remaining:
            return {key: inner for key, inner in value.items() if key != first}
        return {key: _removed(inner, remaining) if key == first else inner for key, inner in value.items()}
    if not remaining:
        return [item for number, item in enumerate(value) if number != first]
    return [_removed(item, remaining) if number == first else item for number, item in enumerate(value)]
