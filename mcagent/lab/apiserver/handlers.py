"""The verbs on resources, from a Request to an answer: code and JSON bytes. Watches are in `watch`.

It must not know sockets.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from mcagent.lab.apiserver import errors, ownership, patch
from mcagent.lab.apiserver.errors import ApiError, Json, bad_request
from mcagent.lab.apiserver.history import Stored
from mcagent.lab.apiserver.lifecycle import check_shape
from mcagent.lab.apiserver.routes import Request
from mcagent.lab.apiserver.selectors import selector
from mcagent.lab.apiserver.store import Store, utc_now

Answer = tuple[int, bytes]
MAX_DEPTH = 500


def dumps(value: Any) -> bytes:
    """Return a value as compact JSON."""
    return json.dumps(value, separators=(",", ":")).encode()


def read_json(body: bytes, content_type: str = "application/json") -> Any:
    """Read a request's body, JSON or (for apply) YAML. Raises ApiError 400 for anything else or too deep."""
    try:
        if "yaml" in content_type:
            import yaml

            try:
                value = yaml.safe_load(body)
            except yaml.YAMLError as err:
                raise bad_request(f"error decoding YAML: {err}") from None
        else:
            value = json.loads(body)
        _check_depth(value, 0)
    except RecursionError:
        raise bad_request(f"the body is nested deeper than {MAX_DEPTH} levels") from None
    except ValueError as err:  # JSONDecodeError and UnicodeDecodeError
        raise bad_request(f"error decoding JSON: {err}") from None
    return value


def _check_depth(value: Any, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise RecursionError
    if isinstance(value, dict):
        for inner in value.values():
            _check_depth(inner, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            _check_depth(inner, depth + 1)


def handle(store: Store, request: Request) -> Answer:
    """Do what a request asks, but watching. Raises ApiError."""
    return _VERBS[request.verb](store, request)


def _dry_run(request: Request) -> bool:
    value = request.query.get("dryRun", "")
    if value not in ("", "All"):
        raise bad_request(f'Invalid value: "{value}": dryRun must be All')
    return bool(value)


def _get(store: Store, request: Request) -> Answer:
    stored = store.get(request.rt, request.namespace, request.name)
    return 200, stored.text(request.api_version)


def _list(store: Store, request: Request) -> Answer:
    chosen = selector(request.query.get("labelSelector", ""), request.query.get("fieldSelector", ""))
    limit, at, start = request.number("limit") or 0, None, None
    wanted = request.number("resourceVersion")
    match = request.query.get("resourceVersionMatch", "")
    if match not in ("", "Exact", "NotOlderThan") or (match and wanted is None):
        raise bad_request("resourceVersionMatch: Exact or NotOlderThan, together with resourceVersion")
    if token := request.query.get("continue", ""):
        at, start = _read_continue(token)
    elif wanted and (match == "Exact" or wanted > store.rv):
        at = wanted
    found, rv = store.select(request.rt, request.namespace, at=at)
    if start is not None:
        found = [stored for stored in found if stored.key > start]
    found = [stored for stored in found if chosen(stored.obj)]
    meta: Json = {"resourceVersion": str(rv)}
    if limit and len(found) > limit:
        meta["continue"] = _continue(rv, found[limit - 1])
        if not request.query.get("labelSelector") and not request.query.get("fieldSelector"):
            meta["remainingItemCount"] = len(found) - limit
        found = found[:limit]
    head = dumps({"kind": f"{request.rt.kind}List", "apiVersion": request.api_version, "metadata": meta})
    items = b",".join(stored.text(request.api_version) for stored in found)
    return 200, head[:-1] + b',"items":[' + items + b"]}"


def _continue(rv: int, last: Stored) -> str:
    return base64.urlsafe_b64encode(dumps({"rv": rv, "start": last.key})).decode().rstrip("=")


def _read_continue(token: str) -> tuple[int, tuple[str, str]]:
    try:
        data = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        namespace, name = data["start"]
        return int(data["rv"]), (str(namespace), str(name))
    except (ValueError, KeyError, TypeError, binascii.Error):
        raise bad_request("continue key is not valid") from None


def _create(store: Store, request: Request) -> Answer:
    body = check_shape(request.rt, request.version, request.namespace, read_json(request.body))
    body = ownership.record_update(None, {"apiVersion": request.api_version, **body}, request.manager, utc_now())
    stored = store.create(request.rt, request.namespace, body, dry_run=_dry_run(request))
    return 201, stored.text(request.api_version)


def _update(store: Store, request: Request) -> Answer:
    body = check_shape(request.rt, request.version, request.namespace, read_json(request.body))
    return _change(store, request, lambda _old: body, unconditional=not request.rt.custom)


def _change(store: Store, request: Request, change: Any, *, unconditional: bool = True) -> Answer:
    def made(old: Json) -> Json:
        new = {"apiVersion": request.api_version, **change(old)}
        if request.subresource:  # nothing but the status is written, so nothing else gets a new owner
            new = {**old, "status": new.get("status"), "metadata": {**old["metadata"], **_versioned(new)}}
            new = {key: value for key, value in new.items() if value is not None}
        return ownership.record_update(old, new, request.manager, utc_now())

    stored = store.update(
        request.rt,
        request.namespace,
        request.name,
        made,
        subresource=request.subresource,
        unconditional=unconditional,
        dry_run=_dry_run(request),
    )
    return 200, stored.text(request.api_version)


def _versioned(obj: Json) -> Json:
    """Return what identifies the version that a write was made from; empty values say "whatever is there"."""
    meta = obj.get("metadata", {})
    return {key: meta.get(key) for key in ("resourceVersion", "uid") if key in meta}


def _patch(store: Store, request: Request) -> Answer:
    rt, kind = request.rt, request.content_type
    if kind in ("application/apply-patch+yaml", "application/apply-patch+cbor"):
        return _apply(store, request)
    body = read_json(request.body)
    if kind == "application/merge-patch+json":
        apply: Any = patch.merge_patch
    elif kind == "application/json-patch+json":
        apply = patch.json_patch
    elif kind == "application/strategic-merge-patch+json" and not rt.custom:
        apply = patch.strategic_merge
    else:
        raise ApiError(
            415,
            "UnsupportedMediaType",
            f"the body of the request was in an unknown format - {kind!r} cannot patch {rt.plural}",
        )
    if kind != "application/json-patch+json" and not isinstance(body, dict):
        raise bad_request("the patch is not a JSON object")

    def change(old: Json) -> Json:
        made = apply(old, body)
        return check_shape(rt, request.version, request.namespace, {**made, "apiVersion": request.api_version})

    return _change(store, request, change)


def _apply(store: Store, request: Request) -> Answer:
    rt = request.rt
    if not request.query.get("fieldManager"):
        raise bad_request(
            "PatchOptions.meta.k8s.io is invalid: fieldManager: Required value: is required for apply patch"
        )
    body = check_shape(rt, request.version, request.namespace, read_json(request.body, "yaml"))
    body = {**body, "apiVersion": request.api_version, "kind": rt.kind}
    body["metadata"] = {**body.get("metadata", {}), "name": request.name}
    if body["metadata"].get("managedFields"):
        raise bad_request("metadata.managedFields must be nil")
    manager, force = request.manager, request.flag("force")
    with store.lock:
        try:
            store.get(rt, request.namespace, request.name)
        except ApiError:
            if request.subresource:
                raise
            made = ownership.apply(None, body, manager, utc_now(), force=force)
            return 201, store.create(rt, request.namespace, made, dry_run=_dry_run(request)).text(
                request.api_version
            )
        stored = store.update(
            rt,
            request.namespace,
            request.name,
            lambda old: ownership.apply(old, body, manager, utc_now(), force=force),
            subresource=request.subresource,
            dry_run=_dry_run(request),
        )
    return 200, stored.text(request.api_version)


def _delete_options(request: Request) -> tuple[Json, bool]:
    options = read_json(request.body) if request.body.strip() else {}
    if not isinstance(options, dict):
        raise bad_request("DeleteOptions is not a JSON object")
    preconditions = options.get("preconditions") or {}
    if not isinstance(preconditions, dict) or not preconditions.keys() <= {"uid", "resourceVersion"}:
        raise bad_request("preconditions: an object with uid and resourceVersion")
    return preconditions, _dry_run(request) or options.get("dryRun") == ["All"]


def _delete(store: Store, request: Request) -> Answer:
    preconditions, dry_run = _delete_options(request)
    stored, gone = store.delete(
        request.rt, request.namespace, request.name, preconditions=preconditions, dry_run=dry_run
    )
    if not gone:
        return 200, stored.text(request.api_version)
    details = {**errors.details(request.rt.group, request.rt.plural, request.name)}
    return 200, dumps(errors.success(details={**details, "uid": stored.obj["metadata"]["uid"]}))


def _delete_collection(store: Store, request: Request) -> Answer:
    chosen = selector(request.query.get("labelSelector", ""), request.query.get("fieldSelector", ""))
    preconditions, dry_run = _delete_options(request)
    found, rv = store.select(request.rt, request.namespace)
    removed = []
    for stored in found:
        if chosen(stored.obj):
            try:
                done, _ = store.delete(request.rt, *stored.key, preconditions=preconditions, dry_run=dry_run)
            except ApiError as err:
                if err.code != 404:  # somebody else was quicker: it is gone, which is what was asked
                    raise
            else:
                removed.append(done.obj)
    kind = {"kind": f"{request.rt.kind}List", "apiVersion": request.api_version}
    return 200, dumps({**kind, "metadata": {"resourceVersion": str(rv)}, "items": removed})


_VERBS = {
    "get": _get,
    "list": _list,
    "create": _create,
    "update": _update,
    "patch": _patch,
    "delete": _delete,
    "deletecollection": _delete_collection,
}
