"""What can go wrong between us and an API server, as errors in plain words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from mcagent.model.errors import SourceError
from mcagent.model.parsing.document import decode
from mcagent.model.parsing.field import printable

_SHOWN = 600  # characters of a server's message that are shown
_FORBIDDEN, _MISSING, _GONE = 403, 404, 410
# How an API server begins the refusals of webhooks and ValidatingAdmissionPolicies, which also have status 403
_DENIED = re.compile(
    r"admission webhook .{1,600} denied the request|ValidatingAdmissionPolicy .{1,600} denied request"
)
_ADMISSION = "refused by admission"
# How it begins the 404 of an object, which has no hint; one of an unknown resource has another message.
_NO_OBJECT = re.compile(r'\S+ "[^"]*" not found')
_HINTS = {
    401: "the credentials were refused",
    403: "not allowed: the role lacks a rule for it",
    404: "the server has no such resource (are the CRDs installed?)",
    429: "too many requests",
}


class ApiRefusalError(SourceError):
    """The API server answered, but not with what was asked for. `code` is the HTTP status."""

    def __init__(self, message: str, *, code: int, reason: str = "", retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.retry_after = retry_after


class ExpiredError(ApiRefusalError):
    """The server's history no longer reaches our version, or that of a page."""


class ApiGarbageError(SourceError):
    """The API server (or something in its place) answered with what no API server says."""


class ApiTooLargeError(ApiGarbageError):
    """The answer is larger than was asked for."""


class ApiUnreachableError(SourceError):
    """No answer: refused, no route, TLS failure, timeout, connection cut."""


class CredentialsError(SourceError):
    """Our credentials cannot be read, or cannot be sent. The text holds none of them."""


def failures() -> tuple[type[BaseException], ...]:
    """Return what sending and reading can raise."""
    import http.client

    import urllib3

    return (urllib3.exceptions.HTTPError, http.client.HTTPException, OSError, ValueError, AttributeError)


def refusal(where: str, response: Any, text: bytes) -> ApiRefusalError:
    """Return the error for an answer whose HTTP status is 300 or above."""
    status: dict[str, Any] = {}
    with suppress(ValueError):
        answer = decode(text)
        if isinstance(answer, dict) and answer.get("kind") == "Status":
            status = answer
    retry_after = str(response.headers.get("Retry-After") or "")
    return status_error(
        where,
        status | {"code": response.status},
        retry_after=float(retry_after) if retry_after.isdecimal() else 0.0,
    )


def status_error(where: str, status: Mapping[str, Any], *, retry_after: float = 0.0) -> ApiRefusalError:
    """Return the error for a Status object with an integer `code`."""
    code, reason = status["code"], str(status.get("reason", ""))
    message = printable(str(status.get("message", "")), _SHOWN)
    hint = _hint(code, message)
    kind = ExpiredError if code == _GONE or reason in ("Expired", "Gone") else ApiRefusalError
    return kind(
        ": ".join(filter(None, (where, hint, message))),
        code=code,
        reason=reason,
        retry_after=retry_after,
    )


def _hint(code: int, message: str) -> str:
    """Return what a status code means; "" if the message is enough."""
    if code == _FORBIDDEN and _DENIED.search(message):
        return _ADMISSION
    if code == _MISSING and _NO_OBJECT.match(message):
        return ""
    return _HINTS.get(code, f"HTTP {code}")


def metric_word(error: SourceError) -> str:
    """Return a failure as a word that is fit for a metric's label."""
    match error:
        case ExpiredError():
            return "expired"
        case ApiGarbageError():
            return "garbage"
        case ApiUnreachableError():
            return "unreachable"
        case ApiRefusalError(code=code):
            words = {401: "unauthorized", 403: "forbidden", 404: "missing"}
            return words.get(code, "server-error" if code >= 500 else "refused")
    return "other"


def words_of(err: BaseException) -> str:
    """Return a failure in plain words: the most telling of an error and its causes."""
    import ssl
    from http.client import HTTPException, IncompleteRead, RemoteDisconnected

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
        ((exceptions.ReadTimeoutError,), "no answer in time"),
        ((RemoteDisconnected, ConnectionResetError, BrokenPipeError), "the connection was cut"),
        ((IncompleteRead, exceptions.InvalidChunkLength), "the answer was truncated"),
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
    # The text of others may repeat what was to be sent: http.client's ValueError holds the header with the token.
    is_of_library = isinstance(err, exceptions.HTTPError | HTTPException)
    return f"{type(err).__name__}: {err}" if is_of_library else type(err).__name__
