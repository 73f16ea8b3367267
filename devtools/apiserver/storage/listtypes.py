"""Which lists are merged item by item, and by what: for field ownership and server-side apply. Pure.

Built-in kinds: the `listType` and `listMapKey` markers of k8s.io/api. Custom resources: what their schema says;
without a word there a list is one value (atomic).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from devtools.apiserver.errors import Json
from devtools.apiserver.objects.resources import ResourceType

Names = tuple[str, ...]  # of the fields on the way to a list, without what chooses an item of a list
Keys = tuple[str, ...]  # of a map's items; () for a set
Lists = Callable[[Names], Keys | None]  # None: atomic

_METADATA: dict[Names, Keys] = {("metadata", "finalizers"): (), ("metadata", "ownerReferences"): ("uid",)}
# The last two steps, else the last one.
_BUILT_IN: dict[Names, Keys] = {
    ("status", "conditions"): ("type",),
    ("containers", "ports"): ("containerPort", "protocol"),
    ("spec", "ports"): ("port", "protocol"),
    ("status", "podIPs"): ("ip",),
    ("spec", "podCIDRs"): (),
    ("containers",): ("name",),
    ("initContainers",): ("name",),
    ("env",): ("name",),
    ("volumes",): ("name",),
    ("volumeMounts",): ("mountPath",),
    ("imagePullSecrets",): ("name",),
    ("webhooks",): ("name",),
}
_DEFAULTS = {"protocol": "TCP"}


def lists_of(rt: ResourceType, schema: Json | None) -> Lists:
    """Return how the lists of a resource are merged. `schema` is that of the version of the request."""

    def keys(names: Names) -> Keys | None:
        if names in _METADATA:
            return _METADATA[names]
        if not rt.custom:
            return _BUILT_IN.get(names[-2:], _BUILT_IN.get(names[-1:]))
        return _in_schema(schema or {}, names)

    return keys


def _in_schema(schema: Json, names: Names) -> Keys | None:
    for name in names:
        while "items" in schema:
            schema = schema["items"]
        others = schema.get("additionalProperties")
        schema = (schema.get("properties") or {}).get(name) or (others if isinstance(others, dict) else {})
    kind = schema.get("x-kubernetes-list-type")
    if kind == "map":
        return tuple(schema["x-kubernetes-list-map-keys"])
    return () if kind == "set" else None


def step(item: Any, keys: Keys) -> str:
    """Return the step of a path that chooses an item of a merged list (fieldsV1: `k:{...}` or `v:...`)."""
    if not keys:
        return "v:" + json.dumps(item, separators=(",", ":"))
    given = item if isinstance(item, dict) else {}
    identity = {key: given.get(key, _DEFAULTS.get(key)) for key in sorted(keys)}
    return "k:" + json.dumps(identity, separators=(",", ":"))


def mergeable(value: Any, keys: Keys | None) -> bool:
    """Tell whether a value is a list to be merged item by item."""
    if keys is None or not isinstance(value, list) or not value:
        return False
    return all(isinstance(item, dict) for item in value) if keys else True
