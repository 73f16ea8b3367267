"""Fields of objects as JSON, for kinds without a struct: workloads, webhooks, CRDs. Never raises."""

from __future__ import annotations

from mcagent.kube.source import RawObject


def value_at(obj: object, *path: str) -> object:
    """Return the value at a path of a JSON value; None if there is none."""
    for step in path:
        obj = obj.get(step) if isinstance(obj, dict) else None
    return obj


def mapping_at(obj: object, *path: str) -> RawObject:
    """Return the mapping at a path of a JSON value; {} if there is none."""
    value = value_at(obj, *path)
    return value if isinstance(value, dict) else {}


def text_at(obj: object, *path: str) -> str:
    """Return the text at a path of a JSON value; "" if there is none."""
    value = value_at(obj, *path)
    return value if isinstance(value, str) else ""


def items_at(obj: object, *path: str) -> list[RawObject]:
    """Return the mappings in the list at a path of a JSON value; [] if there is no list."""
    value = value_at(obj, *path)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def texts_at(obj: object, *path: str) -> list[str]:
    """Return the texts in the list at a path of a JSON value; [] if there is no list."""
    value = value_at(obj, *path)
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def name_of(obj: object) -> str:
    """Return an object's name, "" if it has none."""
    return text_at(obj, "metadata", "name")


def namespace_of(obj: object) -> str:
    """Return an object's namespace; "" for a cluster-scoped one."""
    return text_at(obj, "metadata", "namespace")


def condition_at(obj: object, kind: str) -> RawObject:
    """Return the condition of a type in an object's status; {} if there is none."""
    return next((item for item in items_at(obj, "status", "conditions") if item.get("type") == kind), {})
