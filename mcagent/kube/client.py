"""Raw HTTP to one API server with the official client's credentials, TLS and proxies.

Owns connections, credentials and the wording of failures. Answers are plain JSON values; the client's typed
models are never loaded (they cost 20 MiB and half a second). Everything raises `SourceError` in plain words.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlencode

from mcagent.kube.addresses import ServerAddresses
from mcagent.kube.credentials import authorization, load
from mcagent.kube.errors import ApiGarbageError, ApiTooLargeError, ApiUnreachableError, failures, refusal, words_of
from mcagent.kube.source import RawObject
from mcagent.model.document import decode
from mcagent.model.net import Address

MAX_ANSWER = 256 * 1024 * 1024  # bytes of one answer; more is no list but an accident
MAX_REFUSAL = 1024 * 1024  # bytes of an answer that is an error
MAX_LINE = 16 * 1024 * 1024  # bytes of one watch event (an object is at most 1.5 MiB in etcd)
_BLOCK = 64 * 1024
_REREAD = 1.0  # seconds for which the credentials are not looked at again


class Client:
    """One API server. Safe to use from many threads.

    `kubeconfig` is a path, or its content; "" means the Pod's service account (in-cluster). `context` "" means
    the current one. Raises SourceError when the credentials cannot be read.
    """

    def __init__(
        self, kubeconfig: str | RawObject = "", context: str = "", *, user_agent: str = "mcagent"
    ) -> None:
        self._user_agent = user_agent
        self._kubeconfig, self._context = kubeconfig, context
        self._lock = threading.Lock()
        self._api: Any = load(kubeconfig, context)
        self._addresses = ServerAddresses()
        self._read: tuple[Any, float, dict[str, str]] = (None, 0.0, {})  # of which credentials, when, the header

    @property
    def server(self) -> str:
        """Return the base URL of the API server."""
        return str(self._api.configuration.host)

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Return the addresses at which the API server is reached, as far as they are known."""
        return self._addresses.of(self.server)

    def reload(self) -> None:
        """Read the credentials again (a token that expired, a certificate that was renewed)."""
        fresh = load(self._kubeconfig, self._context)
        with self._lock:
            old, self._api = self._api, fresh
        with suppress(OSError):
            old.rest_client.pool_manager.clear()

    def close(self) -> None:
        """Close idle connections."""
        self._api.rest_client.pool_manager.clear()

    def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        body: Any = None,
        content_type: str = "application/json",
        timeout: float = 30.0,
    ) -> Any:
        """Make a request and return the JSON of the answer.

        `timeout` (seconds) is for the whole; after it nothing is sent any more. Raises ApiRefusalError (4xx,
        5xx), ApiGarbageError (no JSON), ApiUnreachableError.
        """
        data = None if body is None else json.dumps(body).encode()
        text = self.fetch(method, path, query, body=data, content_type=content_type, timeout=timeout)
        try:
            return decode(text)
        except ValueError as err:
            raise ApiGarbageError(
                f"{self.server}: {method} {path}: the answer is no JSON: {_excerpt(text)}"
            ) from err

    def fetch(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        body: bytes | None = None,
        content_type: str = "application/json",
        timeout: float = 30.0,
        most: int = MAX_ANSWER,
        accept: str = "application/json",
    ) -> bytes:
        """Make a request as `request` does, and return the answer as it is.

        Raises ApiTooLargeError when it has more than `most` bytes.
        """
        with self.open(
            method,
            path,
            query,
            body=body,
            content_type=content_type,
            accept=accept,
            timeout=timeout,
            whole=True,
        ) as stream:
            return stream.read(timeout, most)

    def open(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        body: bytes | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        timeout: float = 30.0,
        whole: bool = False,
    ) -> Stream:
        """Send a request and return its answer as a stream, once it begins with a success.

        `timeout` (seconds) is between two signs of life; with `whole`, from connecting to the answer's beginning.
        Raises as `request`.
        """
        import urllib3

        api = self._api
        headers = {"Accept": accept, "User-Agent": self._user_agent}
        if body is not None:
            headers["Content-Type"] = content_type
        where = f"{api.configuration.host}: {method} {path}"
        headers |= self._authorization(api)
        try:
            response = api.rest_client.pool_manager.request(
                method,
                api.configuration.host + path + ("?" + urlencode(query) if query else ""),
                body=body,
                headers=headers,
                timeout=urllib3.Timeout(
                    total=timeout if whole else None, connect=min(timeout, 10.0), read=timeout
                ),
                preload_content=False,
                retries=False,
            )
        except failures() as err:
            raise ApiUnreachableError(f"{where}: {words_of(err)}") from err
        self._addresses.note(getattr(getattr(response, "connection", None), "sock", None))
        stream = Stream(response, where)
        if response.status >= 300:
            if response.status == 401:
                self._read = (None, 0.0, {})
            with stream:
                raise refusal(where, response, stream.read(5.0, MAX_REFUSAL))
        return stream

    def _authorization(self, api: Any) -> dict[str, str]:
        """Return the header that names us, read anew every second: that costs a fifth of a request."""
        of, at, found = self._read
        now = time.monotonic()
        if of is not api or now - at >= _REREAD:
            found = authorization(api.configuration)
            self._read = (api, now, found)
        return found


class Stream:
    """An answer that is being read. `close` may be called from another thread to end it."""

    def __init__(self, response: Any, where: str) -> None:
        self._response = response
        self._where = where
        # Taken now: urllib3 lets go of the connection when the answer ends.
        self._socket = getattr(getattr(response, "connection", None), "sock", None)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_exc: object) -> None:
        with suppress(*failures()):
            self._response.close()

    def abort(self) -> None:
        """End the answer from another thread: a blocked read returns at once."""
        import socket

        if self._socket is not None:
            with suppress(OSError, AttributeError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def _blocks(self) -> Iterator[bytes]:
        try:
            yield from self._response.stream(_BLOCK)
        except failures() as err:
            raise ApiUnreachableError(f"{self._where}: {words_of(err)}") from err

    def _pieces(self) -> Iterator[bytes]:
        """Yield what has come, however little: bytes that drip must not hold up the look at the clock."""
        try:
            while piece := self._response.read1(_BLOCK):
                yield piece
        except failures() as err:
            raise ApiUnreachableError(f"{self._where}: {words_of(err)}") from err

    def read(self, timeout: float, most: int = MAX_ANSWER) -> bytes:
        """Return the rest. Raises ApiUnreachableError when it takes longer than `timeout` seconds.

        Raises ApiTooLargeError after `most` bytes.
        """
        end = time.monotonic() + timeout
        blocks, size = [], 0
        for block in self._pieces():
            blocks.append(block)
            size += len(block)
            if size > most:
                raise ApiTooLargeError(f"{self._where}: an answer of more than {most} bytes")
            if time.monotonic() > end:
                raise ApiUnreachableError(f"{self._where}: the answer takes longer than {timeout:g} s")
        return b"".join(blocks)

    def lines(self, too_long: Callable[[], None] = lambda: None) -> Iterator[bytes]:
        """Yield the lines of the answer, without the empty ones, as they come.

        One of more than MAX_LINE bytes is left out, and `too_long` called.
        """
        parts: list[bytes] = []  # of the line under way
        size = 0
        for block in self._blocks():
            *ends, rest = block.split(b"\n")
            for end in ends:
                if size + len(end) > MAX_LINE:
                    too_long()
                elif line := b"".join((*parts, end)).strip():
                    yield line
                parts, size = [], 0
            size += len(rest)
            parts = [*parts, rest] if size <= MAX_LINE else []
        if size <= MAX_LINE and (line := b"".join(parts).strip()):
            yield line


def _excerpt(text: bytes) -> str:
    shown = text[:60].decode("utf-8", "replace")
    return repr(shown) + ("…" if len(text) > 60 else "")
