"""The patch formats: JSON merge patch (RFC 7386), JSON patch (RFC 6902), strategic merge patch. Pure.

Strategic merge follows the Kubernetes API conventions for the built-in kinds: lists in `MERGE_KEYS` are merged
by their key, `$patch: delete|replace`, `$deleteFromPrimitiveList/X` and `$retainKeys` are honoured,
`$setElementOrder/X` is read and ignored (the order of merged lists stays as it was). Lists not named here are
replaced whole.
"""

from __future__ import annotations

import copy
from typing import Any

from devtools.apiserver.errors import ApiError, Json, bad_request

# The patchMergeKey of the lists that the built-in kinds served here have (k8s.io/api/core/v1/types.go).
MERGE_KEYS: dict[str, tuple[str, ...]] = {
    "addresses": ("type",),
    "conditions": ("type",),
    "containers": ("name",),
    "initContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "imagePullSecrets": ("name",),
    "ownerReferences": ("uid",),
    "podIPs": ("ip",),
    "ports": ("containerPort", "port"),
    "secrets": ("name",),
}
PRIMITIVE_SETS = frozenset({"finalizers", "podCIDRs"})


def merge_patch(target: Any, patch: Any) -> Any:
    """Return `target` after a JSON merge patch (RFC 7386 section 2)."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def _pointer(text: Any) -> list[str]:
    if not isinstance(text, str) or (text and not text.startswith("/")):
        raise bad_request(f"json patch: not a JSON pointer: {text!r}")
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]


def _failed(why: str) -> ApiError:
    return ApiError(422, "Invalid", f"the server rejected our request due to an error in our request: {why}")


def _walk(document: Any, path: list[str]) -> Any:
    for step in path:
        document = _child(document, step)
    return document


def _index(where: list[Any], step: str, *, end: bool) -> int:
    if end and step == "-":
        return len(where)
    if not step.isdecimal() or int(step) > len(where) - (not end):
        raise _failed(f"index {step} is not in the list")
    return int(step)


def _child(where: Any, step: str) -> Any:
    if isinstance(where, dict):
        if step not in where:
            raise _failed(f"missing path: {step}")
        return where[step]
    if isinstance(where, list):
        return where[_index(where, step, end=False)]
    raise _failed(f"nothing can be under a plain value: {step}")


def _add(document: Any, path: list[str], value: Any, *, replace: bool) -> Any:
    if not path:
        return value
    parent, last = _walk(document, path[:-1]), path[-1]
    if isinstance(parent, dict):
        if replace:
            _child(parent, last)
        parent[last] = value
    elif isinstance(parent, list):
        at = _index(parent, last, end=not replace)
        parent[at : at + replace] = [value]
    else:
        raise _failed(f"nothing can be added under a plain value: {last}")
    return document


def _remove(document: Any, path: list[str]) -> Any:
    if not path:
        raise _failed("the whole document cannot be removed")
    parent = _walk(document, path[:-1])
    value = _child(parent, path[-1])
    del parent[int(path[-1]) if isinstance(parent, list) else path[-1]]
    return value


def json_patch(target: Json, operations: Any) -> Json:
    """Return `target` after a JSON patch. Raises ApiError 400 (no patch), 422 (a test or path fails)."""
    if not isinstance(operations, list):
        raise bad_request("json patch: not a list of operations")
    document: Any = copy.deepcopy(target)
    for operation in operations:
        if not isinstance(operation, dict):
            raise bad_request("json patch: an operation is not an object")
        kind, path = operation.get("op"), _pointer(operation.get("path"))
        if kind in ("add", "replace", "test") and "value" not in operation:
            raise bad_request(f"json patch: {kind} without a value")
        if kind == "test":
            if _walk(document, path) != operation["value"]:
                raise _failed(f"testing value {operation['path']} failed")
        elif kind in ("add", "replace"):
            document = _add(document, path, copy.deepcopy(operation["value"]), replace=kind == "replace")
        elif kind == "remove":
            _remove(document, path)
        elif kind in ("move", "copy"):
            source = _pointer(operation.get("from"))
            value = _remove(document, source) if kind == "move" else copy.deepcopy(_walk(document, source))
            document = _add(document, path, value, replace=False)
        else:
            raise bad_request(f"json patch: unknown operation {kind!r}")
    if not isinstance(document, dict):
        raise _failed("the result is not an object")
    return document


def strategic_merge(target: Any, patch: Any) -> Any:
    """Return `target` after a strategic merge patch."""
    if not isinstance(patch, dict):
        return patch
    directive = patch.get("$patch")
    if directive == "replace":
        return {key: value for key, value in patch.items() if key != "$patch"}
    if directive == "delete":
        return {}
    merged = dict(target) if isinstance(target, dict) else {}
    keep = patch.get("$retainKeys")
    if isinstance(keep, list):
        merged = {key: value for key, value in merged.items() if key in keep}
    for key, value in patch.items():
        if key.startswith("$"):
            verb, _, name = key.partition("/")
            if verb == "$deleteFromPrimitiveList" and isinstance(merged.get(name), list):
                merged[name] = [item for item in merged[name] if item not in value]
        elif value is None:
            merged.pop(key, None)
        elif isinstance(value, list):
            merged[key] = _merge_list(key, merged.get(key), value)
        else:
            merged[key] = strategic_merge(merged.get(key), value)
    return merged


def _merge_list(name: str, old: Any, new: list[Any]) -> list[Any]:
    if not isinstance(old, list):
        old = []
    if name in PRIMITIVE_SETS:
        return [*old, *(item for item in new if item not in old)]
    if not all(isinstance(item, dict) for item in (*old, *new)):
        return new
    if any(item == {"$patch": "replace"} for item in new):
        return [item for item in new if "$patch" not in item]
    key = next((k for k in MERGE_KEYS.get(name, ()) if all(k in item for item in (*old, *new))), None)
    if key is None:
        return [item for item in new if item.get("$patch") != "delete"]
    merged = list(old)
    for item in new:
        at = next((i for i, known in enumerate(merged) if known[key] == item[key]), None)
        if item.get("$patch") == "delete":
            if at is not None:
                del merged[at]
        elif at is None:
            merged.append(strategic_merge({}, item))
        else:
            merged[at] = strategic_merge(merged[at], item)
    return merged
