"""The verbs that read resources, and what all verbs share. Those that write are in `writes`, watches in `watch`.

It must not know sockets.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from devtools.apiserver.errors import Json, bad_request
from devtools.apiserver.routes import Request
from devtools.apiserver.storage.history import Stored
from devtools.apiserver.storage.selectors import Predicate, selector
from devtools.apiserver.storage.store import Store

Answer = tuple[int, bytes]


def dumps(value: Any) -> bytes:
    """Return a value as compact JSON."""
    return json.dumps(value, separators=(",", ":")).encode()


def read_json(body: bytes) -> Any:
    """Read a request's body. Raises ApiError 400 for anything but JSON."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as err:  # JSONDecodeError and UnicodeDecodeError are ValueErrors
        raise bad_request(f"error decoding JSON: {err}") from None


def chosen_by(request: Request) -> Predicate:
    """Return which objects a request is about. Raises ApiError 400."""
    return selector(request.query.get("labelSelector", ""), request.query.get("fieldSelector", ""))


def dry_run(request: Request) -> bool:
    """Tell whether a write is to be tried only. Raises ApiError 400."""
    value = request.query.get("dryRun", "")
    if value not in ("", "All"):
        raise bad_request(f'Invalid value: "{value}": dryRun must be All')
    return bool(value)


def get(store: Store, request: Request) -> Answer:
    """Answer with one object. Raises ApiError 404."""
    stored = store.get(request.rt, request.namespace, request.name)
    return 200, stored.text(request.api_version)


def list_(store: Store, request: Request) -> Answer:
    """Answer with the objects that are selected, whole or in pages. Raises ApiError.

    All pages name the version of the first, from which a watch sends what the pages may have missed.
    """
    chosen = chosen_by(request)
    limit = request.number("limit") or 0
    objects, rv = store.select(request.rt, request.namespace)
    if token := request.query.get("continue", ""):
        rv, start = _read_continue(token)
        store.history(request.rt.store_key).position(rv)
        objects = [stored for stored in objects if stored.key > start]
    objects = [stored for stored in objects if chosen(stored.obj)]
    meta: Json = {"resourceVersion": str(rv)}
    if limit and len(objects) > limit:
        objects = objects[:limit]
        meta["continue"] = _continue(rv, objects[-1])
    head = dumps({"kind": f"{request.rt.kind}List", "apiVersion": request.api_version, "metadata": meta})
    items = b",".join(stored.text(request.api_version) for stored in objects)
    return 200, head[:-1] + b',"items":[' + items + b"]}"


def _continue(rv: int, last: Stored) -> str:
    return base64.urlsafe_b64encode(dumps({"rv": rv, "start": last.key})).decode()


def _read_continue(token: str) -> tuple[int, tuple[str, str]]:
    try:
        data = json.loads(base64.urlsafe_b64decode(token))
        namespace, name = data["start"]
        return int(data["rv"]), (str(namespace), str(name))
    except (ValueError, KeyError, TypeError, binascii.Error):
        raise bad_request("continue key is not valid") from None
