"""Built-in kinds: the defaults that clients rely on. Pure. All else of a built-in object is taken as it is."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from devtools.apiserver.errors import Json, bad_request
from devtools.apiserver.objects.resources import ResourceType


def defaults(rt: ResourceType, obj: Json) -> Json:
    """Return the object with what clients rely on the server to fill in. Raises ApiError 400."""
    if rt.custom:
        return obj
    filler = _DEFAULTS.get((rt.group, rt.kind))
    return filler(obj) if filler else obj


def _service(obj: Json) -> Json:
    spec = dict(obj.get("spec") or {})
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    if spec["type"] != "ExternalName":
        spec.setdefault("internalTrafficPolicy", "Cluster")
    ports = spec.get("ports")
    if isinstance(ports, list):
        spec["ports"] = [_service_port(port) for port in ports]
    if address := spec.get("clusterIP"):
        spec.setdefault("clusterIPs", [address])
    return {"status": {"loadBalancer": {}}, **obj, "spec": spec}


def _service_port(port: Any) -> Any:
    if not isinstance(port, dict):
        return port
    return {"protocol": "TCP", "targetPort": port.get("port"), **port}


def _namespace(obj: Json) -> Json:
    meta = obj["metadata"]
    labels = {**(meta.get("labels") or {}), "kubernetes.io/metadata.name": meta["name"]}
    phase = "Terminating" if meta.get("deletionTimestamp") else "Active"
    return {
        **obj,
        "metadata": {**meta, "labels": labels},
        "status": {**(obj.get("status") or {}), "phase": phase},
    }


def _pod(obj: Json) -> Json:
    return obj if "status" in obj else {**obj, "status": {"phase": "Pending"}}


def _secret(obj: Json) -> Json:
    made = {"type": "Opaque", **obj}
    texts = made.pop("stringData", None)
    if isinstance(texts, dict):
        encoded = {key: base64.b64encode(str(text).encode()).decode() for key, text in texts.items()}
        made["data"] = {**(made.get("data") or {}), **encoded}
    for value in (made.get("data") or {}).values():
        try:
            base64.b64decode(value or "", validate=True)
        except (binascii.Error, ValueError, TypeError):
            raise bad_request(
                'Secret in version "v1" cannot be handled as a Secret: illegal base64 data at input byte 0'
            ) from None
    return made


def _slice(obj: Json) -> Json:
    made = dict(obj)
    if isinstance(ports := obj.get("ports"), list):
        made["ports"] = [{"name": "", "protocol": "TCP", **port} for port in ports if isinstance(port, dict)]
    if isinstance(endpoints := obj.get("endpoints"), list):
        made["endpoints"] = [{"conditions": {}, **item} for item in endpoints if isinstance(item, dict)]
    return made


def _endpoints(obj: Json) -> Json:
    made = dict(obj)
    if isinstance(subsets := obj.get("subsets"), list):
        made["subsets"] = [
            {**part, "ports": [{"protocol": "TCP", **port} for port in part["ports"]]}
            if part.get("ports")
            else part
            for part in subsets
            if isinstance(part, dict)
        ]
    return made


_DEFAULTS = {
    ("", "Service"): _service,
    ("", "Namespace"): _namespace,
    ("", "Pod"): _pod,
    ("", "Secret"): _secret,
    ("", "Endpoints"): _endpoints,
    ("discovery.k8s.io", "EndpointSlice"): _slice,
}
