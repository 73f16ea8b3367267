"""A command in a container, through the API server's `pods/exec`: what it prints, bounded in size and time.

The cluster's own RBAC (`create` or `get` of `pods/exec`) and audit apply. Source of the channels and of the last
message, a Status: k8s.io/apimachinery/pkg/util/remotecommand, protocol v4.channel.k8s.io.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from mcagent.kube.client import Client
from mcagent.kube.errors import (
    ApiGarbageError,
    ApiRefusalError,
    ApiTooLargeError,
    ApiUnreachableError,
    status_error,
)
from mcagent.model.parsing.field import printable

_STDOUT, _STDERR, _ERROR = 1, 2, 3
_SHOWN = 400  # characters of what a failed command says


@dataclass(frozen=True, slots=True, kw_only=True)
class Executed:
    """How a command ended. `code` is its exit code."""

    out: str
    err: str
    code: int


def execute(
    client: Client,
    *,
    namespace: str,
    pod: str,
    container: str,
    command: Sequence[str],
    timeout: float,
    most: int,
) -> Executed:
    """Run a command and return what it printed, once it has ended.

    `timeout` (seconds) is from its start on, `most` (characters) for what it prints. A caller that cannot wait for
    an API server that waits for a kubelet calls this in a thread. Raises ApiRefusalError, ApiTooLargeError,
    ApiGarbageError, ApiUnreachableError.
    """
    from websocket import WebSocketBadStatusException, WebSocketException

    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(pod, safe='')}/exec"
    where = f"{client.server}: exec in {namespace}/{pod}"
    query = [*(("command", word) for word in command), ("container", container)]
    query += [("stdin", "false"), ("stdout", "true"), ("stderr", "true"), ("tty", "false")]
    try:
        stream = client.credentials.stream(path, query)
        try:
            return _read(stream, where, time.monotonic() + timeout, most)
        finally:
            stream.sock.shutdown()  # its own close() waits for an answer, or leaves the socket open
    except WebSocketBadStatusException as error:
        raise _refusal(where, error) from None
    except (WebSocketException, OSError, ValueError) as error:
        text = "" if isinstance(error, ValueError) else str(error)  # which may hold the token
        reason = printable(text, _SHOWN) or type(error).__name__
        raise ApiUnreachableError(f"{where}: {reason}") from None


def _read(stream: Any, where: str, end: float, most: int) -> Executed:
    output = {_STDOUT: "", _STDERR: "", _ERROR: ""}
    going = True
    while going:
        remaining = end - time.monotonic()
        if remaining <= 0:
            raise ApiUnreachableError(f"{where}: it timed out")
        stream.update(timeout=remaining)
        going = stream.is_open()  # asked before reading, which takes in more: nothing comes after the end
        for channel in output:
            output[channel] += stream.read_channel(channel)
        if sum(map(len, output.values())) > most:
            raise ApiTooLargeError(f"{where}: its output exceeds {most} characters")
    return Executed(out=output[_STDOUT], err=output[_STDERR], code=_exit_code(output[_ERROR], where))


def _exit_code(text: str, where: str) -> int:
    """Return the exit code that the last message tells. Raises ApiGarbageError, ApiUnreachableError."""
    try:
        status = json.loads(text)
        if status.get("status") == "Success":
            return 0
        causes = (status.get("details") or {}).get("causes") or []
        codes = [cause["message"] for cause in causes if cause.get("reason") == "ExitCode"]
        if codes:
            return int(codes[0])
        message = str(status.get("message", ""))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ApiGarbageError(f"{where}: it ended without a status") from None
    raise ApiUnreachableError(f"{where}: {printable(message, _SHOWN)}")


def _refusal(where: str, error: Any) -> ApiRefusalError:
    body = error.resp_body or b""
    try:
        status = json.loads(body)
    except (ValueError, RecursionError):
        status = {"message": printable(body.decode("utf-8", "replace"), _SHOWN)}
    fields = status if isinstance(status, dict) else {}
    return status_error(where, fields | {"code": error.status_code})
