"""What the server itself sets in objects: uid, generation, timestamps, defaults; what a writer may not change.

Pure but for uid and generated names: each function takes JSON objects and returns a new one. No storage, no HTTP.
"""

from __future__ import annotations

import json
import secrets
import uuid
from collections.abc import Iterable
from typing import Any

from devtools.apiserver.errors import Cause, Json, bad_request, conflict, invalid, invalid_all
from devtools.apiserver.objects import builtin, schema
from devtools.apiserver.objects.resources import ResourceType
from devtools.apiserver.objects.validation import metadata_causes

_GENERATED = "bcdfghjklmnpqrstvwxz2456789"  # k8s.io/apimachinery/pkg/util/rand: no vowels, no look-alikes
_MAX_GENERATE = 58  # characters of generateName that are kept
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


def prepare_create(rt: ResourceType, namespace: str, obj: Json, now: str, wanted: Json | None = None) -> Json:
    """Return the object as it is first stored. Raises ApiError 422. `wanted`: the schema it must have."""
    meta = dict(obj.get("metadata", {}))
    if not meta.get("name") and meta.get("generateName"):
        ending = "".join(secrets.choice(_GENERATED) for _ in range(5))
        meta["name"] = f"{meta['generateName'][:_MAX_GENERATE]}{ending}"
    name = meta.get("name", "")
    if not isinstance(name, str) or not name:
        raise invalid(rt.group_kind, "", "metadata.name", "Required value: name or generateName is required")
    for field in (*_FIXED, "resourceVersion"):
        meta.pop(field, None)
    meta |= {"uid": str(uuid.uuid4()), "creationTimestamp": now} | ({"generation": 1} if rt.generation else {})
    made = _tidy(rt, namespace, obj, meta)
    if rt.status and not rt.keeps_status:
        made.pop("status", None)
    made = builtin.defaults(rt, made)
    _refuse(rt, name, [*metadata_causes(rt, made["metadata"]), *_causes(rt, made, wanted)])
    return made


def _causes(rt: ResourceType, obj: Json, wanted: Json | None) -> Iterable[Cause]:
    yield from builtin.causes(rt, obj)
    if wanted is not None:
        yield from schema.validate(obj, wanted)


def _refuse(rt: ResourceType, name: str, causes: list[Cause]) -> None:
    if causes:
        raise invalid_all(rt.group_kind, name, causes)


def _ratcheted(old: Json, new: Json, cause: Cause) -> bool:
    """Tell whether a field is as wrong as it was before: an update may leave it so (ratcheting validation)."""
    path = cause.field
    if cause.why.startswith("Required value"):
        path = path.rpartition(".")[0]  # what lacks the field must be as it was
    return (
        bool(path)
        and schema.at_path(old, path) is not None
        and schema.at_path(old, path) == schema.at_path(new, path)
    )


def prepare_update(rt: ResourceType, old: Json, new: Json, subresource: str, wanted: Json | None = None) -> Json:
    """Return the object as it is stored after a write of `new` over `old`.

    A write to the object leaves a status subresource as it was, a write to the subresource leaves the rest.
    Raises ApiError 409 for another uid, 422 for what may not be or may not change. `wanted`: the schema.
    """
    before, after = old["metadata"], dict(new.get("metadata", {}))
    name = before["name"]
    if after.get("name", name) != name:
        raise invalid(rt.group_kind, name, "metadata.name", "Invalid value: field is immutable")
    if after.get("uid", before["uid"]) != before["uid"]:
        raise conflict(rt.group, rt.plural, name, f"Precondition failed: UID in precondition: {after['uid']}")
    if subresource == "status":
        managed = after.get("managedFields", before.get("managedFields"))
        merged = {key: value for key, value in old.items() if key != "status"}
        merged["metadata"] = {**before, **({"managedFields": managed} if managed else {})}
        if "status" in new:
            merged["status"] = new["status"]
        merged["apiVersion"] = new.get("apiVersion", old["apiVersion"])
        checked = schema.validate(merged, wanted) if wanted is not None else ()
        _refuse(rt, name, [cause for cause in checked if not _ratcheted(old, merged, cause)])
        return merged
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
    causes = [*metadata_causes(rt, made["metadata"]), *_causes(rt, made, wanted)]
    _refuse(rt, name, [cause for cause in causes if not _ratcheted(old, made, cause)])
    if rt.generation and _spec_of(made) != _spec_of(old):
        made["metadata"]["generation"] = before.get("generation", 0) + 1
    return made


def same_but_version(old: Json, new: Json) -> bool:
    """Tell whether a write changes nothing (then the version stays, as in the real server)."""

    def essence(obj: Json) -> Json:
        meta = {k: v for k, v in obj["metadata"].items() if k != "resourceVersion"}
        meta["managedFields"] = [
            {k: v for k, v in entry.items() if k != "time"} for entry in meta.get("managedFields") or ()
        ]
        return {**obj, "metadata": meta}

    return essence(old) == essence(new)


def _spec_of(obj: Json) -> Json:
    return {key: value for key, value in obj.items() if key not in ("apiVersion", "metadata", "status")}
