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
MAX_DEPTH = 500


def dumps(value: Any) -> bytes:
    """Return a value as compact JSON."""
    return json.dumps(value, separators=(",", ":")).encode()


def read_json(body: bytes) -> Any:
    """Read a request's body. Raises ApiError 400 for anything but JSON, or too deep."""
    try:
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


def chosen_by(request: Request) -> Predicate:
    """Return which objects a request is about. Raises ApiError 400."""
    return selector(request.rt, request.query.get("labelSelector", ""), request.query.get("fieldSelector", ""))


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
    """Answer with the objects that are selected, whole or in pages. Raises ApiError."""
    chosen = chosen_by(request)
    limit, at, start = request.number("limit") or 0, None, None
    wanted = request.number("resourceVersion")
    if token := request.query.get("continue", ""):
        at, start = _read_continue(token)
    elif wanted and wanted > store.rv:
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
