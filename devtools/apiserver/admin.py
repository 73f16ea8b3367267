"""The admin endpoint `/_admin/...`: faults and drops over HTTP, for tests in another process.

GET/POST/DELETE /_admin/faults, POST /_admin/drop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from devtools.apiserver.errors import no_such_path, success
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
    raise no_such_path()
