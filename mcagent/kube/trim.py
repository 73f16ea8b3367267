"""What is kept of an object in memory: the fields that somebody reads, with one copy of each short text. Pure.

Trimming never judges: a value of a wrong type is kept as it is, and whoever parses the object reports it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from mcagent.kube.source import RawObject
from mcagent.model.objects import Kind

# None keeps a value whole; a mapping keeps the named fields; a list of one applies to every item.
Shape = Any

_BOOKKEEPING = frozenset({"managedFields", "selfLink"})  # of the API server, in metadata
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_INTERN = 64  # texts up to this length are shared between objects

_EACH_PORT = [{"name": None, "port": None, "protocol": None, "appProtocol": None}]

# Of kinds that are read in great numbers, or that others fill: the fields that are kept beside the metadata. What
# nobody reads is dropped before anything walks it. Of other kinds everything is kept.
_SHAPES: Mapping[Kind, Shape] = {
    Kind.POD: {
        "spec": {"nodeName": None, "hostNetwork": None, "containers": [{"ports": None}]},
        "status": {"phase": None, "podIP": None, "podIPs": None, "conditions": None},
    },
    Kind.NAMESPACE: {},
    Kind.NODE: {
        "spec": {"podCIDR": None, "podCIDRs": None, "unschedulable": None},
        "status": {"addresses": None, "conditions": None},
    },
    Kind.RESOURCE_EXPORT: {
        "spec": {
            "clusterID": None,
            "name": None,
            "namespace": None,
            "kind": None,
            "service": {
                "serviceSpec": {
                    "ports": _EACH_PORT,
                    "clusterIP": None,
                    "sessionAffinity": None,
                    "sessionAffinityConfig": None,
                    "internalTrafficPolicy": None,
                    "trafficDistribution": None,
                    "ipFamilies": None,
                }
            },
            "endpoints": {"subsets": [{"addresses": [{"ip": None, "hostname": None}], "ports": _EACH_PORT}]},
            "clusterInfo": None,
            "raw": {"data": None},
            "labelIdentity": {"normalizedLabel": None},
            "clusterNetworkPolicy": None,
        },
        "status": {"conditions": None},
    },
    Kind.SECRET: {},  # without data: who needs that of a Secret reads it by another way
}


def trim(kind: Kind, obj: RawObject) -> RawObject:
    """Return what is kept of an object that `mcagent.model.parsing.document` has decoded, so it may be walked."""
    meta = obj["metadata"]
    kept_meta = {key: value for key, value in meta.items() if key not in _BOOKKEEPING}
    annotations = meta.get("annotations")
    if isinstance(annotations, dict) and _LAST_APPLIED in annotations:
        kept_meta["annotations"] = {key: text for key, text in annotations.items() if key != _LAST_APPLIED}
    if kind in _SHAPES:
        obj = _keep(obj, {"apiVersion": None, "kind": None, **_SHAPES[kind]})
    trimmed: RawObject = _shared({**obj, "metadata": kept_meta})
    return trimmed


def _keep(value: Any, shape: Shape) -> Any:
    """Return a copy of a value with only what the shape names; what is of another type is kept as it is."""
    if isinstance(shape, dict) and isinstance(value, dict):
        return {key: _keep(value[key], inner) for key, inner in shape.items() if key in value}
    if isinstance(shape, list) and isinstance(value, list):
        return [_keep(item, shape[0]) for item in value]
    return value


def _shared(value: Any) -> Any:
    if isinstance(value, dict):
        return {sys.intern(key): _shared(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_shared(item) for item in value]
    if isinstance(value, str) and len(value) <= _INTERN:
        return sys.intern(value)
    return value
