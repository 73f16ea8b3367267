"""Built-in kinds: the defaults that clients rely on. Pure. All else of a built-in object is taken as it is."""

from __future__ import annotations

import base64

from devtools.apiserver.errors import Json
from devtools.apiserver.objects.resources import NAMESPACES, PODS, SECRETS, SERVICES, ResourceType


def defaults(rt: ResourceType, obj: Json) -> Json:
    """Return the object with what clients rely on the server to fill in."""
    if rt is SERVICES:
        return _service(obj)
    if rt is NAMESPACES:
        return _namespace(obj)
    if rt is PODS:
        return {"status": {"phase": "Pending"}, **obj}
    return _secret(obj) if rt is SECRETS else obj


def _service(obj: Json) -> Json:
    spec = {"type": "ClusterIP", "sessionAffinity": "None", **(obj.get("spec") or {})}
    if spec["type"] != "ExternalName":
        spec.setdefault("internalTrafficPolicy", "Cluster")
    if address := spec.get("clusterIP"):
        spec.setdefault("clusterIPs", [address])
    return {**obj, "spec": spec}


def _namespace(obj: Json) -> Json:
    meta = obj["metadata"]
    labels = {**(meta.get("labels") or {}), "kubernetes.io/metadata.name": meta["name"]}
    phase = "Terminating" if meta.get("deletionTimestamp") else "Active"
    status = {**(obj.get("status") or {}), "phase": phase}
    return {**obj, "metadata": {**meta, "labels": labels}, "status": status}


def _secret(obj: Json) -> Json:
    texts = obj.get("stringData") or {}
    encoded = {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}
    content = {key: value for key, value in obj.items() if key != "stringData"}
    data = {**(obj.get("data") or {}), **encoded}
    return {"type": "Opaque", **content, **({"data": data} if data else {})}
