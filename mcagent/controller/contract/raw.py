"""Reading raw API objects (any JSON value) without ever raising. Pure.

For values that are only compared. Values that have to be right are read with `mcagent.model.field.Field`, which
names what is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcagent.kube.source import RawObject


def value_at(obj: object, *path: str) -> Any:
    """Return the value at a path in any JSON value; None when there is none."""
    for step in path:
        obj = obj.get(step) if isinstance(obj, dict) else None  # decoded JSON: an ABC would cost ten times as much
    return obj


def text_at(obj: object, *path: str) -> str:
    """Return the text at a path in any JSON value; "" when there is none."""
    found = value_at(obj, *path)
    return found if isinstance(found, str) else ""


def items_at(obj: object, *path: str) -> list[RawObject]:
    """Return the mappings of the list at a path in any JSON value; none when there is none."""
    found = value_at(obj, *path)
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def texts_at(obj: object, *path: str) -> list[str]:
    """Return the texts of the list at a path in any JSON value; none when there is none."""
    found = value_at(obj, *path)
    return [item for item in found if isinstance(item, str)] if isinstance(found, list) else []


def name_of(obj: object) -> str:
    """Return an object's name."""
    return text_at(obj, "metadata", "name")


def namespace_of(obj: object) -> str:
    """Return an object's namespace; "" for a cluster-scoped one."""
    return text_at(obj, "metadata", "namespace")


def key_of(obj: object) -> str:
    """Return "namespace/name" of an object."""
    return f"{namespace_of(obj)}/{name_of(obj)}"


def annotation(obj: object, key: str) -> str | None:
    """Return an annotation; None when there is none."""
    found = value_at(obj, "metadata", "annotations", key)
    return found if isinstance(found, str) else None


def is_deleting(obj: object) -> bool:
    """Tell whether an object is on its way out: only its finalizers hold it."""
    return bool(text_at(obj, "metadata", "deletionTimestamp"))


def age(obj: object) -> tuple[str, str, str]:
    """Return a sort key, the oldest first: creation time, then namespace and name."""
    return (text_at(obj, "metadata", "creationTimestamp"), namespace_of(obj), name_of(obj))


def only(wanted: Any, there: Any) -> Any:
    """Return a value for a Wanted such that nothing else stays: what `there` has beside it must be absent."""
    if not isinstance(wanted, Mapping):
        return wanted
    before = there if isinstance(there, Mapping) else {}
    return {**dict.fromkeys(before), **{key: only(value, before.get(key)) for key, value in wanted.items()}}
