"""Structs to JSON values and back.

A member that an older version does not send has its default; a member that a newer version adds is ignored.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from mcagent.model.errors import McagentError

VERSION = "v1"  # changes only when a member changes its meaning or its type, or goes
T = TypeVar("T")
_inspecting = threading.Lock()
_inspected = set[object]()


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Values whose members have the same names in JSON."""


class CamelRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Values whose members are in camelCase in JSON."""


def to_json(value: Record | CamelRecord) -> dict[str, Any]:
    """Convert a struct to JSON members."""
    members: dict[str, Any] = msgspec.to_builtins(value)
    return members


def from_json(kind: type[T], members: Mapping[str, Any], source: str) -> T:
    """Decode JSON members of `source` into a struct.

    Raises McagentError, which names `source` and the first member of a wrong type, or an unknown API version.
    """
    version = members.get("apiVersion", VERSION)
    if version != VERSION:
        raise McagentError(f"{source}: its API has version {version}, this program reads {VERSION}")
    try:
        return convert(kind, members)
    except msgspec.ValidationError as error:
        raise McagentError(f"{source}: {error}") from None


def plain(value: object) -> Any:
    """Convert a value to JSON types: dataclasses to their members, sets sorted, addresses to text."""
    return msgspec.to_builtins(value, enc_hook=_plain, order="deterministic")


def _plain(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else str(value)


def converted(kind: type[T], value: object) -> T:
    """Convert a dataclass, or a container of dataclasses, to structs with the same members."""
    return convert(kind, plain(value))


def convert(kind: type[T], value: object) -> T:
    """Convert JSON types to structs. Raises msgspec.ValidationError.

    msgspec inspects the structs of a type when it first converts to it. Two threads that make it inspect the same
    struct at the same time crash the process, so that is done by one thread after the other.
    """
    if kind in _inspected:
        return msgspec.convert(value, kind)
    with _inspecting:
        result = msgspec.convert(value, kind)
        _inspected.add(kind)
    return result
