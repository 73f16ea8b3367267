"""What the server itself sets in objects: uid, generation, timestamps, defaults; what a writer may not change.

Pure but for the uid: each function takes JSON objects and returns a new one. No storage, no HTTP.
"""

from __future__ import annotations

import re
import uuid
from typing import Any

from mcagent.lab.apiserver.errors import Json, bad_request, conflict, invalid
from mcagent.lab.apiserver.resources import ResourceType

_SUBDOMAIN = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
_FIXED = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "selfLink")


def check_shape(rt: ResourceType, version: str, namespace: str, body: Any) -> Json:
    """Return the body as an object of this resource. Raises ApiError 400 or 422 when it is none."""
    if not isinstance(body, dict):
        raise bad_request("the body of the request is not a JSON object")
    kind, api_version = body.get("kind", rt.kind), body.get("apiVersion", rt.api_version(version))
    if kind != rt.kind or api_version != rt.api_version(version):
        raise bad_request(
            f"{api_version} {kind} in version {version!r} cannot be handled as {rt.api_version(version)} {rt.kind}"
        )
    meta = body.get("metadata", {})
    if not isinstance(meta, dict):
        raise bad_request("json: cannot unmarshal metadata: not an object")
    for field, wanted in (
        ("labels", dict),
        ("annotations", dict),
        ("finalizers", list),
        ("ownerReferences", list),
    ):
        value = meta.get(field)
        if value is not None and not isinstance(value, wanted):
            raise bad_request(f"json: cannot unmarshal metadata.{field}: not of type {wanted.__name__}")
    for field in ("labels", "annotations"):
        if any(not isinstance(value, str) for value in (meta.get(field) or {}).values()):
            raise bad_request(f"json: cannot unmarshal metadata.{field}: values must be strings")
    if rt.namespaced and meta.get("namespace", namespace) not in (namespace, ""):
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    return body


def _tidy(rt: ResourceType, namespace: str, obj: Json, meta: Json) -> Json:
    meta = {key: value for key, value in meta.items() if value not in (None, {}, [], "")}
    meta.pop("selfLink", None)
    if rt.namespaced:
        meta["namespace"] = namespace
    else:
        meta.pop("namespace", None)
    rest = {key: value for key, value in obj.items() if key not in ("apiVersion", "kind", "metadata")}
    api_version = obj.get("apiVersion") or rt.api_version(rt.versions[0])
    return {"apiVersion": api_version, "kind": rt.kind, "metadata": meta, **rest}


def prepare_create(rt: ResourceType, namespace: str, obj: Json, now: str) -> Json:
    """Return the object as it is first stored. Raises ApiError 422 for a name that cannot be."""
    meta = dict(obj.get("metadata", {}))
    if not meta.get("name") and meta.get("generateName"):
        meta["name"] = f"{meta['generateName']}{uuid.uuid4().hex[:5]}"
    name = meta.get("name", "")
    if not isinstance(name, str) or not name:
        raise invalid(rt.kind, "", "metadata.name", "Required value: name or generateName is required")
    if len(name) > 253 or not _SUBDOMAIN.match(name):
        raise invalid(rt.kind, name, "metadata.name", f"Invalid value: {name!r}: a lowercase RFC 1123 subdomain")
    for field in (*_FIXED, "resourceVersion"):
        meta.pop(field, None)
    meta |= {"uid": str(uuid.uuid4()), "creationTimestamp": now, "generation": 1}
    made = _tidy(rt, namespace, obj, meta)
    if rt.status and not rt.keeps_status:
        made.pop("status", None)
    return _defaults(rt, made)


def prepare_update(rt: ResourceType, old: Json, new: Json, subresource: str) -> Json:
    """Return the object as it is stored after a write of `new` over `old`.

    A write to the object leaves a status subresource as it was, a write to the subresource leaves the rest.
    Raises ApiError 409 for another uid, 422 for another name.
    """
    before, after = old["metadata"], dict(new.get("metadata", {}))
    name = before["name"]
    if after.get("name", name) != name:
        raise invalid(rt.kind, name, "metadata.name", "Invalid value: field is immutable")
    if after.get("uid", before["uid"]) != before["uid"]:
        raise conflict(rt.group, rt.plural, name, f"Precondition failed: UID in precondition: {after['uid']}")
    if subresource == "status":
        managed = after.get("managedFields", before.get("managedFields"))
        merged = {key: value for key, value in old.items() if key != "status"}
        merged["metadata"] = {**before, **({"managedFields": managed} if managed else {})}
        if "status" in new:
            merged["status"] = new["status"]
        return merged
    for field in _FIXED:
        after.pop(field, None)
        if field in before:
            after[field] = before[field]
    after["name"] = name
    if before.get("deletionTimestamp"):
        added = set(after.get("finalizers") or ()) - set(before.get("finalizers") or ())
        if added:
            raise invalid(rt.kind, name, "metadata.finalizers", f"Forbidden: no new finalizers: {sorted(added)}")
    made = _tidy(rt, before.get("namespace", ""), new, after)
    if rt.status:
        made.pop("status", None)
        if "status" in old:
            made["status"] = old["status"]
    made = _defaults(rt, made)
    if _spec_of(made) != _spec_of(old):
        made["metadata"]["generation"] = before.get("generation", 0) + 1
    return made


def same_but_version(old: Json, new: Json) -> bool:
    """Tell whether a write changes nothing (then the version stays, as in the real server)."""

    def essence(obj: Json) -> Json:
        meta = {k: v for k, v in obj["metadata"].items() if k not in ("resourceVersion", "managedFields")}
        return {**obj, "metadata": meta}

    return essence(old) == essence(new)


def _spec_of(obj: Json) -> Json:
    return {key: value for key, value in obj.items() if key not in ("apiVersion", "metadata", "status")}


def _defaults(rt: ResourceType, obj: Json) -> Json:
    """Fill in what clients rely on the server to fill in, for the few core kinds where it matters."""
    if rt.group:
        return obj
    if rt.kind == "Service":
        spec = dict(obj.get("spec") or {})
        spec.setdefault("type", "ClusterIP")
        spec.setdefault("sessionAffinity", "None")
        ports = spec.get("ports")
        if isinstance(ports, list):
            spec["ports"] = [{"protocol": "TCP", **port} if isinstance(port, dict) else port for port in ports]
        address = spec.get("clusterIP")
        if address:
            spec.setdefault("clusterIPs", [address])
        return {**obj, "spec": spec}
    if rt.kind == "Namespace":
        phase = "Terminating" if obj["metadata"].get("deletionTimestamp") else "Active"
        return {**obj, "status": {**(obj.get("status") or {}), "phase": phase}}
    if rt.kind == "Pod" and "status" not in obj:
        return {**obj, "status": {"phase": "Pending"}}
    if rt.kind == "Secret":
        return {"type": "Opaque", **obj}
    return obj
