"""Field ownership: managedFields and server-side apply, in the form that one writer per field needs. Pure.

Covered: ownership by leaf field, kept in `metadata.managedFields` (fieldsV1); apply creates or merges, takes
away fields that the manager no longer gives, refuses fields that another manager owns with another value
(409), or takes them over with `force`; `conditions` are merged by `type`. Not covered: every other list is one
value (atomic), apply per subresource is one set of fields, and there is no conversion between versions.
Reference: kubernetes.io/docs/reference/using-api/server-side-apply.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from mcagent.lab.apiserver.errors import ApiError, Json

Path = tuple[str, ...]  # "f:name" steps, and 'k:{"type":"Ready"}' within conditions

_OURS = frozenset(
    {"name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp"}
    | {"managedFields", "selfLink", "generateName", "deletionGracePeriodSeconds"}
)


def _conditions(step: str, value: Any) -> bool:
    return step == "f:conditions" and isinstance(value, list) and all(isinstance(v, dict) for v in value)


def _leaves(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(inner, (*path, f"f:{key}"))
    elif path and _conditions(path[-1], value):
        for item in value:
            yield from _leaves(item, (*path, "k:" + json.dumps({"type": item.get("type", "")})))
    else:
        yield path, value


def leaves(obj: Json) -> dict[Path, Any]:
    """Return every owned leaf field of an object with its value; identity and bookkeeping have no owner."""
    meta = {key: value for key, value in (obj.get("metadata") or {}).items() if key not in _OURS}
    rest = {key: value for key, value in obj.items() if key not in ("apiVersion", "kind", "metadata")}
    return dict(_leaves({**rest, "metadata": meta} if meta else rest, ())) if rest or meta else {}


def encode(paths: set[Path]) -> Json:
    """Return a set of paths as fieldsV1."""
    tree: Json = {}
    for path in sorted(paths):
        where = tree
        for step in path:
            where = where.setdefault(step, {})
    return tree


def decode(tree: Any, path: Path = ()) -> set[Path]:
    """Return fieldsV1 as a set of paths."""
    if not isinstance(tree, dict) or not tree:
        return {path} if path else set()
    found: set[Path] = set()
    for step, inner in tree.items():
        if step != ".":
            found |= decode(inner, (*path, step))
    return found


Owners = dict[tuple[str, str], set[Path]]  # (manager, operation) -> fields


def owners(obj: Json) -> Owners:
    """Return who owns what, read from managedFields."""
    found: Owners = {}
    for entry in obj.get("metadata", {}).get("managedFields") or ():
        if isinstance(entry, dict):
            key = (str(entry.get("manager", "")), str(entry.get("operation", "")))
            found.setdefault(key, set()).update(decode(entry.get("fieldsV1")))
    return found


def with_owners(obj: Json, who: Owners, api_version: str, now: str) -> Json:
    """Return the object with managedFields that say who owns what; an entry that stays keeps its time."""
    before = {
        (entry.get("manager"), entry.get("operation")): entry
        for entry in obj.get("metadata", {}).get("managedFields") or ()
        if isinstance(entry, dict)
    }
    entries = []
    for (manager, operation), paths in who.items():
        if not paths:
            continue
        fields = encode(paths)
        known = before.get((manager, operation))
        if known is not None and known.get("fieldsV1") == fields:
            entries.append(known)
        else:
            entry = {"manager": manager, "operation": operation, "apiVersion": api_version, "time": now}
            entries.append({**entry, "fieldsType": "FieldsV1", "fieldsV1": fields})
    meta = {key: value for key, value in obj.get("metadata", {}).items() if key != "managedFields"}
    if entries:
        meta["managedFields"] = entries
    return {**obj, "metadata": meta}


def record_update(old: Json | None, new: Json, manager: str, now: str) -> Json:
    """Return `new` with the fields that this write changed owned by `manager`."""
    who = owners(old) if old is not None else {}
    before = leaves(old) if old is not None else {}
    after = leaves(new)
    changed = {path for path, value in after.items() if path not in before or before[path] != value}
    for key in who:
        who[key] = (who[key] - changed) & after.keys()
    if changed:
        who.setdefault((manager, "Update"), set()).update(changed)
    meta = dict(new.get("metadata") or {})
    meta["managedFields"] = (old or {}).get("metadata", {}).get("managedFields") or []
    return with_owners({**new, "metadata": meta}, who, str(new.get("apiVersion", "")), now)


def _without(value: Any, path: Path) -> Any:
    """Return the value without one leaf, and without the objects that this empties."""
    step, rest = path[0], path[1:]
    if isinstance(value, list):
        kept = []
        for item in value:
            if "k:" + json.dumps({"type": item.get("type", "")}) == step and rest:
                item = _without(item, rest)  # noqa: PLW2901
            if item and item.keys() != {"type"}:
                kept.append(item)
        return kept
    if not isinstance(value, dict) or step[2:] not in value:
        return value
    inner = _without(value[step[2:]], rest) if rest else None
    if inner in (None, {}, []):
        return {key: item for key, item in value.items() if key != step[2:]}
    return {**value, step[2:]: inner}


def _merge(old: Any, new: Any, step: str = "") -> Any:
    if isinstance(old, dict) and isinstance(new, dict):
        return {**old, **{key: _merge(old.get(key), value, f"f:{key}") for key, value in new.items()}}
    if _conditions(step, new) and _conditions(step, old):
        merged = {item.get("type"): item for item in old}
        for item in new:
            merged[item.get("type")] = _merge(merged.get(item.get("type")), item)
        return list(merged.values())
    return new


def apply(old: Json | None, config: Json, manager: str, now: str, *, force: bool) -> Json:
    """Return what a server-side apply of `config` makes of `old` (None: nothing is there).

    Raises ApiError 409 that names the managers and fields in the way.
    """
    given = leaves(config)
    meta = {key: value for key, value in (config.get("metadata") or {}).items() if key != "managedFields"}
    config = {**config, "metadata": meta}
    if old is None:
        return with_owners(config, {(manager, "Apply"): set(given)}, str(config["apiVersion"]), now)
    who, present = owners(old), leaves(old)
    mine = who.pop((manager, "Apply"), set())
    causes = []
    for (other, operation), paths in who.items():
        differ = {path for path in paths & given.keys() if present.get(path) != given[path]}
        if force:
            who[other, operation] = paths - differ
            continue
        for path in sorted(differ):
            message = f'conflict with "{other}"'
            causes.append({"reason": "FieldManagerConflict", "message": message, "field": _dotted(path)})
    if causes:
        fields = ", ".join(f"{cause['field']} ({cause['message']})" for cause in causes)
        message = f"Apply failed with {len(causes)} conflict{'s' * (len(causes) > 1)}: {fields}"
        raise ApiError(409, "Conflict", message, {"causes": causes})
    made: Json = old
    for path in sorted(mine - given.keys() - set().union(*who.values())):
        made = _without(made, path)
    made = _merge(made, config)
    made.setdefault("metadata", {})["managedFields"] = old.get("metadata", {}).get("managedFields") or []
    who[manager, "Apply"] = set(given)
    return with_owners(made, who, str(config.get("apiVersion", "")), now)


def _dotted(path: Path) -> str:
    return "." + ".".join(step[2:] if step.startswith("f:") else f"[{step[2:]}]" for step in path)
