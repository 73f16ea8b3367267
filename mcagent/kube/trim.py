"""Which fields of each kind are kept in memory: those that `mcagent.model.parse` reads. Pure.

Trimming never judges: a value of a wrong type is kept as it is, for the parser to tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcagent.kube.source import RawObject
from mcagent.model.granted import CLAIMS_ANNOTATION
from mcagent.model.objects import Kind
from mcagent.model.parse import DRAIN_ANNOTATION, GATEWAY_ANNOTATION, GATEWAY_IP_ANNOTATION, SERVICE_NAME_LABEL

# None keeps a value whole; a mapping keeps the named fields; a list of one applies to every item.
Shape = Any

_META: Shape = {
    "name": None,
    "namespace": None,
    "uid": None,
    "resourceVersion": None,
    "creationTimestamp": None,
    "labels": {SERVICE_NAME_LABEL: None},
    "annotations": {
        GATEWAY_ANNOTATION: None,
        GATEWAY_IP_ANNOTATION: None,
        DRAIN_ANNOTATION: None,
        CLAIMS_ANNOTATION: None,
    },
}

_SHAPES: Mapping[Kind, Shape] = {
    Kind.GATEWAY: {"gatewayIP": None, "internalIP": None, "serviceCIDR": None, "wireGuard": None},
    Kind.CLUSTER_INFO_IMPORT: {"spec": None},
    Kind.NODE: {
        "spec": {"podCIDR": None, "podCIDRs": None, "unschedulable": None},
        "status": {"addresses": None, "conditions": [{"type": None, "status": None}]},
    },
    Kind.POD: {
        "spec": {"nodeName": None, "hostNetwork": None},
        "status": {"phase": None, "podIP": None, "podIPs": None},
    },
    Kind.SERVICE: {
        "spec": {
            "type": None,
            "clusterIP": None,
            "clusterIPs": None,
            "sessionAffinity": None,
            "ports": [{"name": None, "port": None, "protocol": None}],
        }
    },
    Kind.ENDPOINT_SLICE: {
        "addressType": None,
        "endpoints": [{"addresses": None, "conditions": None, "nodeName": None}],
        "ports": [{"name": None, "port": None, "protocol": None}],
    },
    Kind.SERVICE_EXPORT: {},
}


def keep(value: Any, shape: Shape) -> Any:
    """Return a copy of a value with only what the shape names; what is of another type is kept as it is."""
    if isinstance(shape, dict) and isinstance(value, dict):
        return {key: keep(value[key], inner) for key, inner in shape.items() if key in value}
    if isinstance(shape, list) and isinstance(value, list):
        return [keep(item, shape[0]) for item in value]
    return value


def trim(kind: Kind, obj: RawObject) -> RawObject:
    """Return a copy with only the fields that are read."""
    shape = {"apiVersion": None, "kind": None, "metadata": _META, **_SHAPES[kind]}
    trimmed: RawObject = keep(obj, shape)
    return trimmed
