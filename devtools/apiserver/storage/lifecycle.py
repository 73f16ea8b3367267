"""What the server itself sets in objects: uid, generation, timestamps, defaults; what a writer may not change.

Pure: each function takes JSON objects and returns a new one. No storage, no HTTP.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from devtools.apiserver.errors import Json, bad_request, conflict, invalid
from devtools.apiserver.objects import builtin
from devtools.apiserver.objects.resources import ResourceType

_FIXED = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "selfLink")


def utc_text(seconds: float) -> str:
    """Return a time, given in seconds since the epoch, as the API writes it: RFC 3339, UTC, whole seconds."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def check_shape(rt: ResourceType, version: str, namespace: str, body: Any) -> Json:
    """Return the body as an object of this resource. Raises ApiError 400 when it is none."""
    if not isinstance(body, dict) or not isinstance(body.get("metadata", {}), dict):
        raise bad_request("the body of the request is not a JSON object with metadata")
    kind, api_version = body.get("kind", rt.kind), body.get("apiVersion", rt.api_version(version))
    if kind != rt.kind or api_version != rt.api_version(version):
        raise bad_request(
            f"{api_version} {kind} in version {version!r} cannot be handled as {rt.api_version(version)} {rt.kind}"
        )
    if rt.namespaced and body.get("metadata", {}).get("namespace", namespace) not in (namespace, ""):
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    return {**body, "apiVersion": api_version, "kind": kind}


def _tidy(rt: ResourceType, namespace: str, obj: Json, meta: Json) -> Json:
    meta = {key: value for key, value in meta.items() if value not in (None, {}, [], "")}
    meta.pop("selfLink", None)
    if rt.namespaced:
        meta["namespace"] = namespace
    else:
        meta.pop("namespace", None)
    content = {key: value for key, value in obj.items() if key not in ("apiVersion", "kind", "metadata")}
    api_version = obj.get("apiVersion") or rt.api_version(rt.versions[0])
    return {"apiVersion": api_version, "kind": rt.kind, "metadata": meta, **content}


def prepare_create(rt: ResourceType, namespace: str, obj: Json, now: str, uid: str) -> Json:
    """Return the object as it is first stored. Raises ApiError 422."""
    meta = dict(obj.get("metadata", {}))
    name = meta.get("name", "")
    if not isinstance(name, str) or not name:
        raise invalid(rt.group_kind, "", "metadata.name", "Required value: name is required")
    for field in (*_FIXED, "resourceVersion"):
        meta.pop(field, None)
    meta |= {"uid": uid, "creationTimestamp": now} | ({"generation": 1} if rt.generation else {})
    created = _tidy(rt, namespace, obj, meta)
    if rt.status and not rt.keeps_status:
        created.pop("status", None)
    return builtin.defaults(rt, created)


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
        raise conflict(rt.resource, name, f"Precondition failed: UID in precondition: {after['uid']}")
    if subresource == "status":
        merged = {**old, "status": new.get("status"), "apiVersion": new.get("apiVersion", old["apiVersion"])}
        if rt.keeps_status:  # Nodes and Pods: only the spec is restored (nodeStatusStrategy in pkg/registry/core)
            labels = ("labels", "annotations")
            merged["metadata"] = {k: v for k, v in before.items() if k not in labels} | {
                name: after[name] for name in labels if after.get(name)
            }
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
    updated = _tidy(rt, before.get("namespace", ""), new, after)
    if rt.status:
        updated.pop("status", None)
        if "status" in old:
            updated["status"] = old["status"]
    updated = builtin.defaults(rt, updated)
    if rt.generation and spec_of(updated) != spec_of(old):
        updated["metadata"]["generation"] = before.get("generation", 0) + 1
    return updated


def prepare_delete(rt: ResourceType, old: Json, now: str) -> Json:
    """Return the object as it is stored while its finalizers, or a namespace's content, keep it."""
    meta = {**old["metadata"], "deletionTimestamp": now, "deletionGracePeriodSeconds": 0}
    if "generation" in meta:
        meta["generation"] += 1
    return builtin.defaults(rt, {**old, "metadata": meta})


def same_but_version(old: Json, new: Json) -> bool:
    """Tell whether a write changes nothing (then the version stays, as in the real server)."""
    rv = {"resourceVersion": old["metadata"].get("resourceVersion")}
    return old == {**new, "metadata": {**new["metadata"], **rv}}


def spec_of(obj: Json) -> Json:
    """Return what metadata.generation counts changes of."""
    return {key: value for key, value in obj.items() if key not in ("apiVersion", "metadata", "status")}
