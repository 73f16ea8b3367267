"""The verbs that write: from a Request through admission and the store to an answer.

The way of a write: decode; merge a patch; ask the webhooks, with no lock held; store, if the object is still at
the version that was checked, else once more. It must not know sockets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from devtools.apiserver import errors, handlers
from devtools.apiserver.access.accounts import Accounts
from devtools.apiserver.access.admission import Admission, Operation
from devtools.apiserver.errors import ApiError, Json, bad_request
from devtools.apiserver.handlers import Answer, chosen_by, dry_run, dumps, read_json
from devtools.apiserver.objects.resources import SECRETS, SERVICE_ACCOUNTS
from devtools.apiserver.routes import Request
from devtools.apiserver.storage.history import Stored
from devtools.apiserver.storage.lifecycle import check_shape
from devtools.apiserver.storage.merge import merge_patch
from devtools.apiserver.storage.store import MovedError, Store

_ATTEMPTS = 20  # of a write that others overtake
# etcd's limit of a request, of which some is not the object (--max-request-bytes, 1.5 MiB)
MAX_STORED = 1_572_864


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """What a request is answered from."""

    store: Store
    accounts: Accounts
    admission: Admission


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


def _decoded(request: Request, body: Any) -> Json:
    """Return a body as an object of the request's resource and version. Raises ApiError 400."""
    obj = check_shape(request.rt, request.version, request.namespace, body)
    return {**obj, "apiVersion": request.api_version, "kind": request.rt.kind}


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
    return _insert(backend, request, _decoded(request, read_json(request.body)))


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
    body = _decoded(request, read_json(request.body))
    return _store_change(backend, request, lambda _old: body, unconditional=not request.rt.custom)


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


def _patch(backend: Backend, request: Request) -> Answer:
    """Merge a patch. Server-side apply creates what is not there and merges else: nothing owns fields here."""
    body, apply = read_json(request.body), request.content_type == "application/apply-patch+yaml"
    if not apply and request.content_type != "application/merge-patch+json":
        raise ApiError(
            415,
            "UnsupportedMediaType",
            f"the body of the request was in an unknown format - {request.content_type!r} cannot patch "
            f"{request.rt.plural} here: this embedded API server has JSON merge patches only",
        )
    if not isinstance(body, dict):
        raise bad_request("the patch is not a JSON object")

    def change(old: Json) -> Json:
        return _decoded(request, merge_patch({**old, "apiVersion": request.api_version}, body))

    if apply and not request.subresource:
        if not request.query.get("fieldManager"):
            why = "Required value: is required for apply patch"
            raise errors.invalid("PatchOptions.meta.k8s.io", "", "fieldManager", why)
        try:
            return _store_change(backend, request, change)
        except ApiError as err:
            if err.reason != "NotFound":
                raise
        new = _decoded(request, body)
        return _insert(backend, request, {**new, "metadata": {**new.get("metadata", {}), "name": request.name}})
    return _store_change(backend, request, change)


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
