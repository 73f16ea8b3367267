"""Fields of objects of any kind as JSON: of workloads, webhooks, CRDs, which no struct describes. Never raises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcagent.kube.source import RawObject


def value_at(obj: object, *path: str) -> Any:
    """Return the value at a path in any JSON value; None when there is none."""
    for step in path:
        obj = obj.get(step) if isinstance(obj, dict) else None
    return obj


def text_at(obj: object, *path: str) -> str:
    """Return the text at a path in any JSON value; "" when there is none."""
    value = value_at(obj, *path)
    return value if isinstance(value, str) else ""


def items_at(obj: object, *path: str) -> list[RawObject]:
    """Return the mappings of the list at a path in any JSON value; none when there is none."""
    value = value_at(obj, *path)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def texts_at(obj: object, *path: str) -> list[str]:
    """Return the texts of the list at a path in any JSON value; none when there is none."""
    value = value_at(obj, *path)
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def name_of(obj: object) -> str:
    """Return an object's name."""
    return text_at(obj, "metadata", "name")


def namespace_of(obj: object) -> str:
    """Return an object's namespace; "" for a cluster-scoped one."""
    return text_at(obj, "metadata", "namespace")


def condition_at(obj: object, kind: str) -> Mapping[str, Any]:
    """Return the condition of a type in an object's status; {} when there is none."""
    return next((item for item in items_at(obj, "status", "conditions") if item.get("type") == kind), {})
