"""The schemas of CustomResourceDefinitions: pruning, defaulting and validation of objects. Pure.

Known are the keywords of structural schemas (apiextensions.k8s.io/v1 JSONSchemaProps) but for `format` other
than date-time, and CEL rules (`x-kubernetes-validations`): those are passed over.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from devtools.apiserver.errors import Cause, Json

_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
}
_KEEP = "x-kubernetes-preserve-unknown-fields"
_ROOT = ("apiVersion", "kind", "metadata")


def prune(value: Any, schema: Json, dropped: list[str] | None = None, path: str = "", *, root: bool = True) -> Any:
    """Return a value without the fields that its schema does not have; their paths go to `dropped`."""
    if isinstance(value, list):
        items = schema.get("items") or {}
        return [
            prune(item, items, dropped, f"{path}[{at}]", root=bool(items.get("x-kubernetes-embedded-resource")))
            for at, item in enumerate(value)
        ]
    if not isinstance(value, dict):
        return value
    known, others = schema.get("properties") or {}, schema.get("additionalProperties")
    kept = {}
    for key, inner in value.items():
        where = f"{path}.{key}" if path else key
        if root and key in _ROOT:
            kept[key] = inner
        elif key in known:
            nested = known[key]
            kept[key] = prune(
                inner, nested, dropped, where, root=bool(nested.get("x-kubernetes-embedded-resource"))
            )
        elif isinstance(others, dict):
            kept[key] = prune(inner, others, dropped, where, root=False)
        elif schema.get(_KEEP) or others is True:
            kept[key] = inner
        elif dropped is not None:
            dropped.append(where)
    return kept


def default(value: Any, schema: Json) -> Any:
    """Return a value with the defaults of its schema filled in."""
    if isinstance(value, list):
        return [default(item, schema.get("items") or {}) for item in value]
    if not isinstance(value, dict):
        return value
    filled = dict(value)
    for key, inner in (schema.get("properties") or {}).items():
        if "default" in inner and (key not in filled or (filled[key] is None and not inner.get("nullable"))):
            filled[key] = inner["default"]
        if key in filled:
            filled[key] = default(filled[key], inner)
    if isinstance(others := schema.get("additionalProperties"), dict):
        known = schema.get("properties") or {}
        filled |= {key: default(inner, others) for key, inner in filled.items() if key not in known}
    return filled


def validate(value: Any, schema: Json, path: str = "", *, root: bool = True) -> Iterator[Cause]:
    """Yield what is wrong with a value, in the words of the real server."""
    if value is None and schema.get("nullable"):
        return
    if wrong := _type(value, schema, path):
        yield wrong
        return
    if "enum" in schema and value not in schema["enum"]:
        listed = ", ".join(json.dumps(item) for item in schema["enum"])
        yield Cause(path, f"Unsupported value: {json.dumps(value)}: supported values: {listed}")
    if isinstance(value, str):
        yield from _text(value, schema, path)
    elif isinstance(value, list):
        yield from _list(value, schema, path)
    elif isinstance(value, dict):
        yield from _object(value, schema, path, root=root)
    elif not isinstance(value, bool) and isinstance(value, int | float):
        yield from _number(value, schema, path)
    yield from _combined(value, schema, path)


def _type(value: Any, schema: Json, path: str) -> Cause | None:
    wanted = schema.get("type")
    if schema.get("x-kubernetes-int-or-string"):
        good = isinstance(value, int | str) and not isinstance(value, bool)
        wanted = "integer,string"
    elif wanted is None:
        return None
    else:
        good = isinstance(value, _TYPES[wanted]) and (wanted == "boolean" or not isinstance(value, bool))
        good = good or (wanted == "integer" and isinstance(value, float) and value.is_integer())
    if good:
        return None
    given = _name(value)
    return Cause(path, f'Invalid value: "{given}": {path} in body must be of type {wanted}: "{given}"')


def _name(value: Any) -> str:
    if value is None:
        return "null"
    for name in ("boolean", "object", "array", "string", "integer"):
        if isinstance(value, _TYPES[name]):
            return name
    return "number"


def _text(value: str, schema: Json, path: str) -> Iterator[Cause]:
    if len(value) > schema.get("maxLength", len(value)):
        yield Cause(path, f"Too long: may not be more than {schema['maxLength']} bytes")
    if len(value) < schema.get("minLength", 0):
        least = schema["minLength"]
        yield Cause(
            path, f"Invalid value: {json.dumps(value)}: {path} in body should be at least {least} chars long"
        )
    if "pattern" in schema and not re.search(schema["pattern"], value):
        yield Cause(path, f"Invalid value: {json.dumps(value)}: {path} in body should match '{schema['pattern']}'")
    if schema.get("format") == "date-time" and not _is_time(value):
        yield Cause(
            path,
            f"Invalid value: {json.dumps(value)}: {path} in body must be of type date-time: {json.dumps(value)}",
        )


def _is_time(value: str) -> bool:
    try:
        return datetime.fromisoformat(value.replace("Z", "+00:00")).tzinfo is not None
    except ValueError:
        return False


def _number(value: float, schema: Json, path: str) -> Iterator[Cause]:
    if value < schema.get("minimum", value):
        least = schema["minimum"]
        yield Cause(path, f"Invalid value: {value}: {path} in body should be greater than or equal to {least}")
    if value > schema.get("maximum", value):
        most = schema["maximum"]
        yield Cause(path, f"Invalid value: {value}: {path} in body should be less than or equal to {most}")


def _list(value: list[Any], schema: Json, path: str) -> Iterator[Cause]:
    if len(value) > schema.get("maxItems", len(value)):
        most = schema["maxItems"]
        yield Cause(path, f"Too many: {len(value)}: must have at most {most} item" + ("s" if most != 1 else ""))
    if len(value) < schema.get("minItems", 0):
        least = schema["minItems"]
        yield Cause(path, f"Invalid value: {len(value)}: {path} in body should have at least {least} items")
    seen: list[Any] = []
    keys = schema.get("x-kubernetes-list-map-keys")
    for at, item in enumerate(value):
        yield from validate(item, schema.get("items") or {}, f"{path}[{at}]", root=False)
        identity = {key: item.get(key) for key in keys} if keys and isinstance(item, dict) else item
        if schema.get("x-kubernetes-list-type") in ("map", "set"):
            if identity in seen:
                yield Cause(f"{path}[{at}]", f"Duplicate value: {json.dumps(identity)}")
            seen.append(identity)


def _object(value: Json, schema: Json, path: str, *, root: bool) -> Iterator[Cause]:
    for key in schema.get("required") or ():
        if key not in value:
            yield Cause(f"{path}.{key}" if path else key, "Required value")
    known, others = schema.get("properties") or {}, schema.get("additionalProperties")
    for key, inner in value.items():
        if root and key in _ROOT:
            continue
        nested = known.get(key, others if isinstance(others, dict) else None)
        if nested is not None:
            yield from validate(inner, nested, f"{path}.{key}" if path else key, root=False)


def _combined(value: Any, schema: Json, path: str) -> Iterator[Cause]:
    for part in schema.get("allOf") or ():
        yield from validate(value, part, path, root=False)
    for word in ("anyOf", "oneOf"):
        if word in schema:
            fitting = sum(not any(validate(value, part, path, root=False)) for part in schema[word])
            if not fitting or (word == "oneOf" and fitting > 1):
                yield Cause(path, f"Invalid value: {json.dumps(value)}: {path} in body must validate {word}")
    if "not" in schema and not any(validate(value, schema["not"], path, root=False)):
        yield Cause(path, f"Invalid value: {json.dumps(value)}: {path} in body must not validate the schema")


def at_path(obj: Any, path: str) -> Any:
    """Return what is at a cause's path, None where nothing is."""
    for step in re.findall(r"[^.\[\]]+", path):
        if isinstance(obj, list):
            obj = obj[int(step)] if step.isdecimal() and int(step) < len(obj) else None
        else:
            obj = obj.get(step) if isinstance(obj, dict) else None
    return obj
