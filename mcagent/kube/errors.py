"""What can go wrong between us and an API server, as errors in plain words."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from mcagent.model.document import decode
from mcagent.model.errors import SourceError
from mcagent.model.field import printable

_SAID = 600  # characters of a server's message that are shown


class ApiRefusalError(SourceError):
    """The API server answered, but not with what was asked for. `code` is the HTTP status."""

    def __init__(self, message: str, *, code: int, reason: str = "", retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.retry_after = retry_after


class ApiGarbageError(SourceError):
    """The API server (or something in its place) answered with what no API server says."""


class ApiTooLargeError(ApiGarbageError):
    """The answer is larger than was asked for."""


class ApiUnreachableError(SourceError):
    """No answer: refused, no route, TLS failure, timeout, connection cut."""


class ExpiredError(SourceError):
    """The server's history no longer reaches our version, or that of a page."""


def failures() -> tuple[type[BaseException], ...]:
    """Return what sending and reading can raise."""
    import http.client

    import urllib3

    return (urllib3.exceptions.HTTPError, http.client.HTTPException, OSError, ValueError, AttributeError)


def refusal(where: str, response: Any, text: bytes) -> ApiRefusalError:
    """Return the error that an answer of 300 and above tells."""
    reason, message = "", ""
    with suppress(ValueError):
        status = decode(text)
        if isinstance(status, dict) and status.get("kind") == "Status":
            reason, message = str(status.get("reason", "")), printable(str(status.get("message", "")), _SAID)
    hints = {
        401: "the credentials were refused",
        403: "not allowed: the role lacks a rule for it",
        404: "the server has no such resource (are the CRDs installed?)",
        429: "the server asks for less",
    }
    said = hints.get(response.status, f"HTTP {response.status}")
    retry_after = str(response.headers.get("Retry-After") or "")
    return ApiRefusalError(
        f"{where}: {said}" + (f": {message}" if message else ""),
        code=response.status,
        reason=reason,
        retry_after=float(retry_after) if retry_after.isdecimal() else 0.0,
    )


def words_of(err: BaseException) -> str:
    """Return a failure in plain words: the most telling of an error and its causes."""
    import ssl
    from http.client import IncompleteRead, RemoteDisconnected

    from urllib3 import exceptions

    chain: list[BaseException] = []
    todo: list[object] = [err]
    while todo:
        cause = todo.pop()
        if isinstance(cause, BaseException) and cause not in chain:
            chain.append(cause)
            todo += [getattr(cause, "reason", None), cause.__cause__, cause.__context__]
    words: tuple[tuple[tuple[type[BaseException], ...], str], ...] = (
        ((ConnectionRefusedError,), "connection refused"),
        ((exceptions.NameResolutionError,), "the server's name cannot be resolved"),
        ((exceptions.ReadTimeoutError,), "no sign of life in time"),
        ((RemoteDisconnected, ConnectionResetError, BrokenPipeError), "the connection was cut"),
        ((IncompleteRead, exceptions.InvalidChunkLength), "the answer was cut off"),
    )
    for types, text in words:
        if any(isinstance(cause, types) for cause in chain):
            return text
    for cause in chain:
        if isinstance(cause, ssl.SSLError):
            return f"TLS: {cause}"
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
    if isinstance(err, exceptions.ConnectTimeoutError):
        return "no connection in time"
    return f"{type(err).__name__}: {err}"
