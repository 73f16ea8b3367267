"""What is kept of an object in memory. Pure."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from mcagent.kube.source import RawObject
from mcagent.kube.trim import Shape, keep
from mcagent.model.objects import Kind

_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_INTERN = 64  # strings up to this length are shared between objects

_EACH_PORT = [{"name": None, "port": None, "protocol": None, "appProtocol": None}]

# Of kinds that are read in great numbers, or that others fill: the fields that are kept beside the metadata, as
# `mcagent.kube.trim` has them. What nobody reads is dropped before anything walks it.
_KEPT: Mapping[Kind, Shape] = {
    Kind.POD: {
        "spec": {"nodeName": None, "hostNetwork": None},
        "status": {"phase": None, "podIP": None, "podIPs": None, "conditions": None},
    },
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
                "serviceSpec": {"ports": _EACH_PORT, "sessionAffinity": None, "sessionAffinityConfig": None}
            },
            "endpoints": {"subsets": [{"addresses": [{"ip": None}], "ports": _EACH_PORT}]},
            "clusterInfo": None,
        },
        "status": {"conditions": None},
    },
    Kind.SECRET: {},  # without data: nobody but the connection and the certificates reads a Secret, and not here
}


def trim(kind: Kind, obj: RawObject) -> RawObject:
    """Return what is kept of an object: without bookkeeping of the server, and with shared strings.

    It has come through `mcagent.model.document`, so it may be walked.
    """
    meta = obj["metadata"]
    kept_meta = {key: value for key, value in meta.items() if key not in ("managedFields", "selfLink")}
    annotations = meta.get("annotations")
    if isinstance(annotations, dict) and _LAST_APPLIED in annotations:
        kept_meta["annotations"] = {k: v for k, v in annotations.items() if k != _LAST_APPLIED}
    if kind in _KEPT:
        obj = keep(obj, {"apiVersion": None, "kind": None, **_KEPT[kind]})
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
