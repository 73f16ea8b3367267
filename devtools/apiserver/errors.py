"""Errors of the API as values of metav1.Status. Knows HTTP codes and reasons, nothing of storage or sockets.

Reasons and codes: k8s.io/apimachinery/pkg/apis/meta/v1/types.go, type StatusReason.
"""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


class ApiError(Exception):
    """A request that is refused: HTTP `code`, CamelCase `reason`, and a sentence."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message

    def status(self) -> Json:
        """Return the metav1.Status that tells this error."""
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }


def not_found(resource: str, name: str) -> ApiError:
    """Return 404 for an object that does not exist. `resource` as `ResourceType.resource` has it."""
    return ApiError(404, "NotFound", f'{resource} "{name}" not found')


def no_such_path() -> ApiError:
    """Return 404 for a path that nothing serves."""
    return ApiError(404, "NotFound", "the server could not find the requested resource")


def already_exists(resource: str, name: str) -> ApiError:
    """Return 409 for a create of an object that exists."""
    return ApiError(409, "AlreadyExists", f'{resource} "{name}" already exists')


def conflict(resource: str, name: str, why: str = "") -> ApiError:
    """Return 409 for a write on the strength of an old version, or a failed precondition."""
    why = why or "the object has been modified; please apply your changes to the latest version and try again"
    return ApiError(409, "Conflict", f'Operation cannot be fulfilled on {resource} "{name}": {why}')


def invalid(kind: str, name: str, field: str, why: str) -> ApiError:
    """Return 422 for an object whose `field` cannot be as it is. `kind` as `ResourceType.group_kind` has it."""
    return ApiError(422, "Invalid", f'{kind} "{name}" is invalid: {field}: {why}')


def forbidden(resource: str, why: str) -> ApiError:
    """Return 403."""
    return ApiError(403, "Forbidden", f"{resource} is forbidden: {why}")


def internal(message: str) -> ApiError:
    """Return 500."""
    return ApiError(500, "InternalError", f"Internal error occurred: {message}")


def bad_request(message: str) -> ApiError:
    """Return 400."""
    return ApiError(400, "BadRequest", message)


def expired(message: str = "The resourceVersion is too old: its history was compacted") -> ApiError:
    """Return 410 for a version that history no longer reaches back to."""
    return ApiError(410, "Expired", message)


def method_not_allowed(method: str) -> ApiError:
    """Return 405."""
    return ApiError(405, "MethodNotAllowed", f"the server does not allow {method} on this resource")


def success(message: str = "", **fields: Any) -> Json:
    """Return the metav1.Status of a success."""
    answer: Json = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", **fields}
    if message:
        answer["message"] = message
    return answer
