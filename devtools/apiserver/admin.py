"""The admin endpoint `/_admin/...`: faults, drops and compaction over HTTP, for tests in another process.

GET/POST/DELETE /_admin/faults, POST /_admin/drop, POST /_admin/compact, GET /_admin/requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from devtools.apiserver.errors import method_not_allowed, no_such_path, success
from devtools.apiserver.faults import fault_from_json
from devtools.apiserver.handlers import read_json

if TYPE_CHECKING:
    from devtools.apiserver.server import ApiServer


def handle(api: ApiServer, method: str, steps: list[str], body: bytes) -> tuple[int, Any]:
    """Do an admin request. Returns code and JSON document; raises ApiError."""
    match method, steps:
        case "GET", ["faults"]:
            return 200, api.faults.as_json()
        case "POST", ["faults"]:
            api.faults.add(fault_from_json(read_json(body)))
            return 201, success()
        case "DELETE", ["faults"]:
            api.faults.clear()
            return 200, success()
        case "POST", ["drop"]:
            return 200, success(f"{api.drop_connections()} connections dropped")
        case "POST", ["compact"]:
            return 200, success(f"compacted at {api.store.compact()}")
        case "GET", ["requests"]:
            return 200, [list(entry) for entry in list(api.requests)]
        case _, ["faults" | "drop" | "compact" | "requests"]:
            raise method_not_allowed(method)
    raise no_such_path()
