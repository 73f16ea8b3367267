"""What is kept of an object in memory. Pure."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from mcagent.kube.source import RawObject
from mcagent.model.objects import Kind

_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_INTERN = 64  # strings up to this length are shared between objects

# Of kinds that are read in great numbers and never written: the fields that are kept, below the top level.
_KEPT: Mapping[Kind, Mapping[str, frozenset[str]]] = {
    Kind.POD: {
        "spec": frozenset({"nodeName", "hostNetwork"}),
        "status": frozenset({"phase", "podIP", "podIPs", "conditions"}),
    },
    Kind.NODE: {
        "spec": frozenset({"podCIDR", "podCIDRs", "unschedulable"}),
        "status": frozenset({"addresses", "conditions"}),
    },
    Kind.SECRET: {},  # without data: nobody but the connection and the certificates reads a Secret, and not here
}


def trim(kind: Kind, obj: RawObject) -> RawObject:
    """Return what is kept of an object: without bookkeeping of the server, and with shared strings."""
    meta = obj["metadata"]
    kept_meta = {key: value for key, value in meta.items() if key not in ("managedFields", "selfLink")}
    annotations = meta.get("annotations")
    if isinstance(annotations, dict) and _LAST_APPLIED in annotations:
        kept_meta["annotations"] = {k: v for k, v in annotations.items() if k != _LAST_APPLIED}
    if kind in _KEPT:
        kept: RawObject = {}
        for part, fields in _KEPT[kind].items():
            value = obj.get(part)
            kept[part] = {k: v for k, v in value.items() if k in fields} if isinstance(value, dict) else value
        obj = {key: obj[key] for key in ("apiVersion", "kind") if key in obj} | kept
    trimmed: RawObject = _shared({**obj, "metadata": kept_meta})
    return trimmed


def _shared(value: Any) -> Any:
    if isinstance(value, dict):
        return {sys.intern(key): _shared(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_shared(item) for item in value]
    if isinstance(value, str) and len(value) <= _INTERN:
        return sys.intern(value)
    return value
