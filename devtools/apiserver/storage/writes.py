"""The verbs that write: from a Request through pruning, admission and the store to an answer.

The way of a write: decode, prune and default by the schema of its version; patch or apply; check; ask the
webhooks, with no lock held; store, if the object is still at the version that was checked, else once more.
It must not know sockets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from devtools.apiserver import errors, handlers
from devtools.apiserver.access.accounts import Accounts
from devtools.apiserver.access.admission import Admission, Operation
from devtools.apiserver.access.authorize import Authorizer, attributes
from devtools.apiserver.clock import utc_now
from devtools.apiserver.errors import ApiError, Json, bad_request
from devtools.apiserver.handlers import Answer, chosen_by, dry_run, dumps, read_json
from devtools.apiserver.objects import schema
from devtools.apiserver.objects.resources import SECRETS, SERVICE_ACCOUNTS
from devtools.apiserver.routes import Request
from devtools.apiserver.storage import ownership, patch
from devtools.apiserver.storage.history import Stored
from devtools.apiserver.storage.lifecycle import check_shape
from devtools.apiserver.storage.store import MovedError, Store

_ATTEMPTS = 20  # of a write that others overtake
# etcd's limit of a request, of which some is not the object (--max-request-bytes, 1.5 MiB)
MAX_STORED = 1_572_864


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """What a request is answered from. `authorizer` None: everybody may do everything."""

    store: Store
    accounts: Accounts
    admission: Admission
    authorizer: Authorizer | None = None


def handle(backend: Backend, request: Request) -> Answer:
    """Do what a request asks, but watching. Raises ApiError."""
    if request.verb == "get":
        return handlers.get(backend.store, request)
    if request.verb == "list":
        return handlers.list_(backend.store, request)
    if request.subresource == "token":
        answer = backend.accounts.request(request.namespace, request.name, read_json(request.body))
        return 201, dumps(answer)
    return _VERBS[request.verb](backend, request)


def _decoded(store: Store, request: Request, body: Any) -> Json:
    """Return a body as an object of the request's resource and version. Raises ApiError 400."""
    obj = check_shape(request.rt, request.version, request.namespace, body)
    obj = {**obj, "apiVersion": request.api_version, "kind": request.rt.kind}
    wanted = store.registry.schema(request.rt, request.api_version)
    if wanted is None:
        return obj
    dropped: list[str] = []
    pruned: Json = schema.default(schema.prune(obj, wanted, dropped), wanted)
    if dropped and request.query.get("fieldValidation") == "Strict":
        kind, told = request.rt.kind, ", ".join(f'unknown field "{path}"' for path in dropped)
        raise bad_request(
            f'{kind} in version "{request.version}" cannot be handled as a {kind}: strict decoding error: {told}'
        )
    return pruned


def _check_size(obj: Json) -> None:
    if len(dumps(obj)) > MAX_STORED:
        raise ApiError(500, "", "etcdserver: request is too large")


def _operation(request: Request, kind: str, new: Json | None, old: Json | None) -> Operation:
    meta = (new or old or {})["metadata"]
    return Operation(
        kind=kind,
        rt=request.rt,
        version=request.version,
        subresource=request.subresource,
        namespace=request.namespace,
        name=meta["name"],
        user=request.user,
        new=new,
        old=old,
        dry_run=dry_run(request),
    )


def _create(backend: Backend, request: Request) -> Answer:
    body = _decoded(backend.store, request, read_json(request.body))
    lists = backend.store.registry.lists(request.rt, request.api_version)
    return _insert(backend, request, ownership.record_update(None, body, request.manager, utc_now(), lists=lists))


def _insert(backend: Backend, request: Request, obj: Json) -> Answer:
    store, rt = backend.store, request.rt
    made = store.prepare(rt, request.namespace, obj)
    _check_size(made)
    if backend.admission.wanted(rt):
        backend.admission.review(_operation(request, "CREATE", made, None))
    stored = store.insert(rt, made, dry_run=dry_run(request))
    if rt is SECRETS and not dry_run(request):
        backend.accounts.complete(stored)
    return 201, stored.text(request.api_version)


def _update(backend: Backend, request: Request) -> Answer:
    body = _decoded(backend.store, request, read_json(request.body))
    return _change(backend, request, lambda _old: body, unconditional=not request.rt.custom)


def _change(
    backend: Backend, request: Request, change: Callable[[Json], Json], *, unconditional: bool = True
) -> Answer:
    lists = backend.store.registry.lists(request.rt, request.api_version)

    def made(old: Json) -> Json:
        new = {**change(old), "apiVersion": request.api_version}
        if request.subresource:  # nothing but the status is written, so nothing else gets a new owner
            new = {**old, "status": new.get("status"), "metadata": {**old["metadata"], **_versioned(new)}}
            new = {key: value for key, value in new.items() if value is not None}
        return ownership.record_update(
            old, new, request.manager, utc_now(), lists=lists, subresource=request.subresource
        )

    return _store_change(backend, request, made, unconditional=unconditional)


def _store_change(
    backend: Backend, request: Request, change: Callable[[Json], Json], *, unconditional: bool = True
) -> Answer:
    """Store what `change` makes of the present object, after asking the webhooks about just that."""

    def write(*, tried: bool, at: int | None) -> Stored:
        return backend.store.update(
            *(request.rt, request.namespace, request.name, change),
            subresource=request.subresource,
            unconditional=unconditional,
            dry_run=tried,
            at=at,
        )

    for _ in range(_ATTEMPTS):
        at = None
        if backend.admission.wanted(request.rt):
            old = backend.store.get(request.rt, request.namespace, request.name)
            at = old.rv
            try:
                new = write(tried=True, at=at)
            except MovedError:
                continue
            backend.admission.review(_operation(request, "UPDATE", new.obj, old.obj))
        try:
            stored = write(tried=dry_run(request), at=at)
        except MovedError:
            continue
        if request.rt is SECRETS and not dry_run(request):
            backend.accounts.complete(stored)
        return 200, stored.text(request.api_version)
    raise errors.conflict(request.rt.group, request.rt.plural, request.name)


def _versioned(obj: Json) -> Json:
    """Return what identifies the version that a write was made from; empty values say "whatever is there"."""
    meta = obj.get("metadata", {})
    return {key: meta.get(key) for key in ("resourceVersion", "uid") if key in meta}


def _patch(backend: Backend, request: Request) -> Answer:
    rt, kind = request.rt, request.content_type
    if kind in ("application/apply-patch+yaml", "application/apply-patch+cbor"):
        return _apply(backend, request)
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
        return _decoded(backend.store, request, apply({**old, "apiVersion": request.api_version}, body))

    return _change(backend, request, change)


def _apply(backend: Backend, request: Request) -> Answer:
    store, rt = backend.store, request.rt
    if not request.query.get("fieldManager"):
        why = "Required value: is required for apply patch"
        raise errors.invalid("PatchOptions.meta.k8s.io", "", "fieldManager", why)
    body = _decoded(store, request, read_json(request.body, "yaml"))
    body["metadata"] = {**body.get("metadata", {}), "name": request.name}
    if body["metadata"].get("managedFields"):
        raise bad_request("metadata.managedFields must be nil")
    if request.subresource:  # the rest of the object is none of this endpoint's business
        kept = {"apiVersion": body["apiVersion"], "kind": rt.kind, "metadata": {"name": request.name}}
        kept["metadata"] |= _versioned(body)
        body = kept | ({"status": body["status"]} if "status" in body else {})
    elif rt.status and not rt.keeps_status:
        body.pop("status", None)
    manager, force = request.manager, request.flag("force")
    lists = store.registry.lists(rt, request.api_version)

    def applied(old: Json | None) -> Json:
        return ownership.apply(
            *(old, body, manager, utc_now()), force=force, lists=lists, subresource=request.subresource
        )

    for _ in range(_ATTEMPTS):
        try:
            store.get(rt, request.namespace, request.name)
        except ApiError:
            if request.subresource:
                raise
            if backend.authorizer is not None:
                backend.authorizer.check(request.user, attributes(request, "create"))
            try:
                return _insert(backend, request, applied(None))
            except ApiError as err:
                if err.reason != "AlreadyExists":
                    raise
                continue  # somebody else was quicker
        return _store_change(backend, request, applied)
    raise errors.conflict(rt.group, rt.plural, request.name)


def _delete_options(request: Request) -> tuple[Json, bool]:
    options = read_json(request.body) if request.body.strip() else {}
    if not isinstance(options, dict):
        raise bad_request("DeleteOptions is not a JSON object")
    preconditions = options.get("preconditions") or {}
    if not isinstance(preconditions, dict) or not preconditions.keys() <= {"uid", "resourceVersion"}:
        raise bad_request("preconditions: an object with uid and resourceVersion")
    return preconditions, dry_run(request) or options.get("dryRun") == ["All"]


def _remove(backend: Backend, request: Request, namespace: str, name: str) -> tuple[Stored, bool]:
    """Delete one object, after asking the webhooks. Returns it and whether it is gone."""
    preconditions, tried = _delete_options(request)
    for _ in range(_ATTEMPTS):
        at = None
        if backend.admission.wanted(request.rt):
            old = backend.store.get(request.rt, namespace, name)
            at = old.rv
            backend.admission.review(_operation(request, "DELETE", None, old.obj))
        try:
            stored, gone = backend.store.delete(
                request.rt, namespace, name, preconditions=preconditions, dry_run=tried, at=at
            )
        except MovedError:
            continue
        if request.rt is SERVICE_ACCOUNTS and gone and not tried:
            backend.accounts.forget(stored)
        return stored, gone
    raise errors.conflict(request.rt.group, request.rt.plural, name)


def _delete(backend: Backend, request: Request) -> Answer:
    stored, gone = _remove(backend, request, request.namespace, request.name)
    if not gone:
        return 200, stored.text(request.api_version)
    details = {**errors.details(request.rt.group, request.rt.plural, request.name)}
    return 200, dumps(errors.success(details={**details, "uid": stored.obj["metadata"]["uid"]}))


def _delete_collection(backend: Backend, request: Request) -> Answer:
    chosen = chosen_by(request)
    found, rv = backend.store.select(request.rt, request.namespace)
    removed = []
    for stored in found:
        if chosen(stored.obj):
            try:
                done, _ = _remove(backend, request, *stored.key)
            except ApiError as err:
                if err.code != 404:  # somebody else was quicker: it is gone, which is what was asked
                    raise
            else:
                removed.append(done.obj)
    kind = {"kind": f"{request.rt.kind}List", "apiVersion": request.api_version}
    return 200, dumps({**kind, "metadata": {"resourceVersion": str(rv)}, "items": removed})


_VERBS = {
    "create": _create,
    "update": _update,
    "patch": _patch,
    "delete": _delete,
    "deletecollection": _delete_collection,
}
