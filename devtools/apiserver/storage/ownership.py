"""Field ownership: managedFields and server-side apply. Pure.

Ownership is by leaf field, kept in `metadata.managedFields` (fieldsV1), apart for each subresource. Apply creates
or merges, takes away fields that the manager no longer gives, refuses fields that another manager owns with
another value (409), or takes them over with `force`. Which lists are merged by item is `listtypes`' business. Not
covered: conversion of owned fields between versions.
Reference: kubernetes.io/docs/reference/using-api/server-side-apply.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Any

from devtools.apiserver.errors import ApiError, Json
from devtools.apiserver.storage.listtypes import Lists, Names, mergeable, step

Path = tuple[str, ...]  # "f:name" steps, and within merged lists 'k:{"type":"Ready"}' or 'v:"text"'

_OURS = frozenset(
    {"name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp"}
    | {"managedFields", "selfLink", "generateName", "deletionGracePeriodSeconds"}
)


def _leaves(value: Any, path: Path, names: Names, lists: Lists) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(inner, (*path, f"f:{key}"), (*names, key), lists)
    elif path and mergeable(value, keys := lists(names)):
        for item in value:
            yield from _leaves(item, (*path, step(item, keys or ())), names if keys else (), lists)
    else:
        yield path, value


def leaves(obj: Json, lists: Lists) -> dict[Path, Any]:
    """Return every owned leaf field of an object with its value; identity and bookkeeping have no owner."""
    meta = {key: value for key, value in (obj.get("metadata") or {}).items() if key not in _OURS}
    rest = {key: value for key, value in obj.items() if key not in ("apiVersion", "kind", "metadata")}
    if not rest and not meta:
        return {}
    return dict(_leaves({**rest, "metadata": meta} if meta else rest, (), (), lists))


def encode(paths: set[Path]) -> Json:
    """Return a set of paths as fieldsV1."""
    tree: Json = {}
    for path in sorted(paths):
        where = tree
        for one in path:
            where = where.setdefault(one, {})
    return tree


def decode(tree: Any, path: Path = ()) -> set[Path]:
    """Return fieldsV1 as a set of paths."""
    if not isinstance(tree, dict) or not tree:
        return {path} if path else set()
    found: set[Path] = set()
    for one, inner in tree.items():
        if one != ".":
            found |= decode(inner, (*path, one))
    return found


Owner = tuple[str, str, str]  # manager, operation, subresource
Owners = dict[Owner, set[Path]]


def _owner(entry: Json) -> Owner:
    return str(entry.get("manager", "")), str(entry.get("operation", "")), str(entry.get("subresource", ""))


def _entries(obj: Json) -> list[Json]:
    found = obj.get("metadata", {}).get("managedFields") or ()
    return [entry for entry in found if isinstance(entry, dict)]


def owners(obj: Json) -> Owners:
    """Return who owns what, read from managedFields."""
    found: Owners = {}
    for entry in _entries(obj):
        found.setdefault(_owner(entry), set()).update(decode(entry.get("fieldsV1")))
    return found


def with_owners(obj: Json, who: Owners, api_version: str, now: str) -> Json:
    """Return the object with managedFields that say who owns what; an entry that stays keeps its time."""
    before = {_owner(entry): entry for entry in _entries(obj)}
    entries = []
    for (manager, operation, subresource), paths in who.items():
        if not paths:
            continue
        fields = encode(paths)
        known = before.get((manager, operation, subresource))
        if known is not None and known.get("fieldsV1") == fields:
            entries.append(known)
        else:
            entry: Json = {"manager": manager, "operation": operation, "apiVersion": api_version, "time": now}
            entry |= {"fieldsType": "FieldsV1", "fieldsV1": fields}
            entries.append(entry | ({"subresource": subresource} if subresource else {}))
    meta = {key: value for key, value in obj.get("metadata", {}).items() if key != "managedFields"}
    if entries:
        meta["managedFields"] = entries
    return {**obj, "metadata": meta}


def record_update(
    old: Json | None, new: Json, manager: str, now: str, *, lists: Lists, subresource: str = ""
) -> Json:
    """Return `new` with the fields that this write changed owned by `manager`."""
    who = owners(old) if old is not None else {}
    before = leaves(old, lists) if old is not None else {}
    after = leaves(new, lists)
    changed = {path for path, value in after.items() if path not in before or before[path] != value}
    for key in who:
        who[key] = (who[key] - changed) & after.keys()
    if changed:
        who.setdefault((manager, "Update", subresource), set()).update(changed)
    meta = dict(new.get("metadata") or {})
    meta["managedFields"] = (old or {}).get("metadata", {}).get("managedFields") or []
    return with_owners({**new, "metadata": meta}, who, str(new.get("apiVersion", "")), now)


def _without(value: Any, path: Path, names: Names, lists: Lists) -> Any:
    """Return the value without one leaf, and without the objects that this empties."""
    first, rest = path[0], path[1:]
    if isinstance(value, list):
        keys = lists(names) or ()
        kept = []
        for item in value:
            if step(item, keys) == first:
                item = _without(item, rest, names, lists) if rest else None  # noqa: PLW2901
            if item is not None and not (isinstance(item, dict) and item.keys() <= set(keys)):
                kept.append(item)
        return kept
    name = first[2:]
    if not isinstance(value, dict) or name not in value:
        return value
    inner = _without(value[name], rest, (*names, name), lists) if rest else None
    if inner in (None, {}, []):
        return {key: item for key, item in value.items() if key != name}
    return {**value, name: inner}


def _whole_item(path: Path, kept: Set[Path]) -> Path:
    """Return a path to be removed, or that of the list item around it, if nobody has any field of the item."""
    for at, one in enumerate(path, start=1):
        if one.startswith("k:") and not any(other[:at] == path[:at] for other in kept):
            return path[:at]
    return path


def _merge(old: Any, new: Any, names: Names, lists: Lists) -> Any:
    if isinstance(old, dict) and isinstance(new, dict):
        return {**old, **{key: _merge(old.get(key), value, (*names, key), lists) for key, value in new.items()}}
    keys = lists(names) if names else None
    if mergeable(old, keys) and mergeable(new, keys):
        assert keys is not None
        merged = {step(item, keys): item for item in old}
        for item in new:
            merged[step(item, keys)] = _merge(merged.get(step(item, keys)), item, names if keys else (), lists)
        return list(merged.values())
    return new


def apply(
    old: Json | None, config: Json, manager: str, now: str, *, force: bool, lists: Lists, subresource: str = ""
) -> Json:
    """Return what a server-side apply of `config` makes of `old` (None: nothing is there).

    Raises ApiError 409 that names the managers and fields in the way.
    """
    given = leaves(config, lists)
    meta = {key: value for key, value in (config.get("metadata") or {}).items() if key != "managedFields"}
    config = {**config, "metadata": meta}
    me: Owner = (manager, "Apply", subresource)
    if old is None:
        return with_owners(config, {me: set(given)}, str(config["apiVersion"]), now)
    who, present = owners(old), leaves(old, lists)
    mine = who.pop(me, set())
    causes = []
    for owner, paths in who.items():
        differ = {path for path in paths & given.keys() if present.get(path) != given[path]}
        if force:
            who[owner] = paths - differ
            continue
        told = f'conflict with "{owner[0]}"' + (f' with subresource "{owner[2]}"' if owner[2] else "")
        causes += [
            {"reason": "FieldManagerConflict", "message": told, "field": _dotted(path)} for path in sorted(differ)
        ]
    if causes:
        fields = ", ".join(f"{cause['message']}: {cause['field']}" for cause in causes)
        message = f"Apply failed with {len(causes)} conflict{'s' * (len(causes) > 1)}: {fields}"
        raise ApiError(409, "Conflict", message, {"causes": causes})
    made: Json = old
    kept = given.keys() | set().union(*who.values())
    for path in sorted({_whole_item(path, kept) for path in mine - kept}):
        made = _without(made, path, (), lists)
    made = _merge(made, config, (), lists)
    made.setdefault("metadata", {})["managedFields"] = _entries(old)
    who[me] = set(given)
    return with_owners(made, who, str(config.get("apiVersion", "")), now)


def _dotted(path: Path) -> str:
    return "." + ".".join(one[2:] if one.startswith("f:") else f"[{one[2:]}]" for one in path)
