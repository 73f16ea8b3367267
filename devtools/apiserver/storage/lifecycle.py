"""What the server itself sets in objects: uid, generation, timestamps, defaults; what a writer may not change.

Pure: each function takes JSON objects and returns a new one. No storage, no HTTP.
"""

from __future__ import annotations

import json
from typing import Any

from devtools.apiserver.errors import Json, bad_request, conflict, invalid
from devtools.apiserver.objects import builtin
from devtools.apiserver.objects.resources import ResourceType

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


def prepare_create(rt: ResourceType, namespace: str, obj: Json, now: str, uid: str) -> Json:
    """Return the object as it is first stored. Raises ApiError 422."""
    meta = dict(obj.get("metadata", {}))
    name = meta.get("name", "")
    if not isinstance(name, str) or not name:
        raise invalid(rt.group_kind, "", "metadata.name", "Required value: name is required")
    for field in (*_FIXED, "resourceVersion"):
        meta.pop(field, None)
    meta |= {"uid": uid, "creationTimestamp": now} | ({"generation": 1} if rt.generation else {})
    made = _tidy(rt, namespace, obj, meta)
    if rt.status and not rt.keeps_status:
        made.pop("status", None)
    return builtin.defaults(rt, made)


def prepare_update(rt: ResourceType, old: Json, new: Json, subresource: str) -> Json:
    """Return the object as it is stored after a write of `new` over `old`.

    A write to the object leaves a status subresource as it was, a write to the subresource leaves the rest.
    Raises ApiError 409 for another uid, 422 for what may not change.
    """
    before, after = old["metadata"], dict(new.get("metadata", {}))
    name = before["name"]
    if after.get("name", name) != name:
        raise invalid(rt.group_kind, name, "metadata.name", "Invalid value: field is immutable")
    if after.get("uid", before["uid"]) != before["uid"]:
        raise conflict(rt.group, rt.plural, name, f"Precondition failed: UID in precondition: {after['uid']}")
    if subresource == "status":
        merged = {**old, "status": new.get("status"), "apiVersion": new.get("apiVersion", old["apiVersion"])}
        return {key: value for key, value in merged.items() if value is not None}
    for field in _FIXED:
        after.pop(field, None)
        if field in before:
            after[field] = before[field]
    after["name"] = name
    if before.get("deletionTimestamp"):
        added = set(after.get("finalizers") or ()) - set(before.get("finalizers") or ())
        if added:
            listed = ", ".join(json.dumps(item) for item in sorted(added))
            why = "no new finalizers can be added if the object is being deleted, found new finalizers"
            raise invalid(rt.group_kind, name, "metadata.finalizers", f"Forbidden: {why} []string{{{listed}}}")
    made = _tidy(rt, before.get("namespace", ""), new, after)
    if rt.status:
        made.pop("status", None)
        if "status" in old:
            made["status"] = old["status"]
    made = builtin.defaults(rt, made)
    if rt.generation and spec_of(made) != spec_of(old):
        made["metadata"]["generation"] = before.get("generation", 0) + 1
    return made


def same_but_version(old: Json, new: Json) -> bool:
    """Tell whether a write changes nothing (then the version stays, as in the real server)."""
    rv = {"resourceVersion": old["metadata"].get("resourceVersion")}
    return old == {**new, "metadata": {**new["metadata"], **rv}}


def spec_of(obj: Json) -> Json:
    """Return what metadata.generation counts changes of."""
    return {key: value for key, value in obj.items() if key not in ("apiVersion", "metadata", "status")}
