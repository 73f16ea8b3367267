"""The verbs that write: from a Request through admission and the store to an answer. It must not know sockets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from devtools.apiserver import errors, handlers
from devtools.apiserver.access.accounts import Accounts
from devtools.apiserver.access.admission import Admission
from devtools.apiserver.errors import ApiError, Json, bad_request
from devtools.apiserver.handlers import Answer, dry_run, dumps, read_json
from devtools.apiserver.objects.resources import SECRETS
from devtools.apiserver.routes import Request
from devtools.apiserver.storage.lifecycle import check_shape
from devtools.apiserver.storage.merge import merge_patch
from devtools.apiserver.storage.store import Store

_APPLY, _MERGE = "application/apply-patch+yaml", "application/merge-patch+json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """What a request is answered from."""

    store: Store
    accounts: Accounts
    admission: Admission


def handle(backend: Backend, request: Request) -> Answer:
    """Do what a request asks, but watching. Raises ApiError."""
    match request.verb:
        case "get":
            return handlers.get(backend.store, request)
        case "list":
            return handlers.list_(backend.store, request)
        case "create" if request.subresource == "token":
            answer = backend.accounts.request(request.namespace, request.name, read_json(request.body))
            return 201, dumps(answer)
        case "create":
            return _create(backend, request, read_json(request.body))
        case "update":
            body = _decoded(request, read_json(request.body))
            return _update(backend, request, lambda _old: body, unconditional=not request.rt.custom)
        case "patch":
            return _patch(backend, request)
    return _delete(backend, request)


def _decoded(request: Request, body: object) -> Json:
    return check_shape(request.rt, request.version, request.namespace, body)


def _create(backend: Backend, request: Request, body: object) -> Answer:
    stored = backend.store.create(
        *(request.rt, request.namespace, _decoded(request, body)),
        review=backend.admission.review(request, "CREATE"),
        dry_run=dry_run(request),
    )
    if request.rt is SECRETS and not dry_run(request):
        backend.accounts.complete(stored)
    return 201, stored.text(request.api_version)


def _update(
    backend: Backend, request: Request, change: Callable[[Json], Json], *, unconditional: bool = True
) -> Answer:
    stored = backend.store.update(
        *(request.rt, request.namespace, request.name, change),
        subresource=request.subresource,
        unconditional=unconditional,
        review=backend.admission.review(request, "UPDATE"),
        dry_run=dry_run(request),
    )
    return 200, stored.text(request.api_version)


def _patch(backend: Backend, request: Request) -> Answer:
    """Merge a patch. Server-side apply creates what is missing, and merges otherwise: fields have no owners."""
    body = read_json(request.body)
    if request.content_type not in (_APPLY, _MERGE):
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

    place = (request.rt, request.namespace, request.name)
    if request.content_type == _APPLY and not request.subresource and backend.store.find(*place) is None:
        return _create(backend, request, merge_patch(body, {"metadata": {"name": request.name}}))
    return _update(backend, request, change)


def _delete(backend: Backend, request: Request) -> Answer:
    options = read_json(request.body) if request.body.strip() else {}
    if not isinstance(options, dict):
        raise bad_request("DeleteOptions is not a JSON object")
    rt = request.rt
    stored, gone = backend.store.delete(
        *(rt, request.namespace, request.name),
        preconditions=options.get("preconditions"),
        review=backend.admission.review(request, "DELETE"),
        dry_run=dry_run(request),
    )
    if not gone:
        return 200, stored.text(request.api_version)
    details = {"name": request.name, "group": rt.group, "kind": rt.plural, "uid": stored.obj["metadata"]["uid"]}
    return 200, dumps(errors.success(details=details))
