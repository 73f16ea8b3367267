"""Requests to one API server: JSON in and out, each with a deadline, answers bounded in size.

The client library's typed models are never loaded (they cost 20 MiB and half a second): answers are plain values.
Everything raises `SourceError` in plain words (`mcagent.kube.errors`).
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlencode

from mcagent.kube.addresses import ServerAddresses
from mcagent.kube.credentials import Credentials
from mcagent.kube.errors import (
    ApiGarbageError,
    ApiRefusalError,
    ApiUnreachableError,
    CredentialsError,
    failures,
    refusal,
    words_of,
)
from mcagent.kube.source import RawObject
from mcagent.kube.stream import Stream
from mcagent.model.errors import SourceError
from mcagent.model.net import Address
from mcagent.model.parsing.document import decode

log = logging.getLogger(__name__)

MAX_ANSWER = 256 * 1024 * 1024  # bytes of one answer; more is no list but an accident
_MAX_REFUSAL = 1024 * 1024  # bytes of an answer that is an error
_REFUSAL_TIME = 5.0  # seconds to read it
_CONNECT_TIME = 10.0  # seconds, at most
_JSON = "application/json"


class Client:
    """One API server. Safe to use from many threads.

    Credentials that the server refuses, or that cannot be read, are read again for the next request: a certificate
    may have been renewed. So is a kubeconfig that was replaced, once its server cannot be reached.

    `kubeconfig` is a path, or its content; "" means the Pod's service account (in-cluster). `context` "" means
    the current one. Raises SourceError when the credentials cannot be read.
    """

    def __init__(
        self, kubeconfig: str | RawObject = "", context: str = "", *, user_agent: str = "mcagent"
    ) -> None:
        self._user_agent = user_agent
        self._kubeconfig, self._context = kubeconfig, context
        self._lock = threading.Lock()
        self.credentials = Credentials(kubeconfig, context)  # as read last
        self._addresses = ServerAddresses()

    @property
    def server(self) -> str:
        """The base URL of the API server."""
        return self.credentials.server

    @property
    def addresses(self) -> tuple[Address, ...]:
        """The addresses at which the API server is reached, as far as they are known."""
        return self._addresses.of(self.server)

    def _reload(self) -> None:
        """Read the credentials again. Raises SourceError."""
        fresh = Credentials(self._kubeconfig, self._context)
        with self._lock:
            old, self.credentials = self.credentials, fresh
        with suppress(OSError):
            old.pool.clear()

    def use(self, kubeconfig: RawObject) -> None:
        """Use other credentials from the next request on; watches go on. Raises SourceError: nothing changes."""
        Credentials(kubeconfig, self._context)
        self._kubeconfig = kubeconfig
        self._reload()

    def close(self) -> None:
        """Close idle connections."""
        self.credentials.pool.clear()

    def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        body: Any = None,
        content_type: str = _JSON,
        timeout: float = 30.0,
    ) -> Any:
        """Make a request and return the JSON of the answer.

        `body` is JSON as a value, or as bytes. `timeout` (seconds) is for the whole; after it nothing is sent any
        more. Raises ApiRefusalError (4xx, 5xx), ApiGarbageError (no JSON), ApiUnreachableError.
        """
        headers = {"Accept": _JSON} | ({} if body is None else {"Content-Type": content_type})
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        with self._send(method, path, query, headers, timeout, body=data, total=timeout) as stream:
            text = stream.read(timeout, MAX_ANSWER)
        try:
            return decode(text)
        except ValueError as err:
            shown = repr(text[:60].decode("utf-8", "replace")) + ("…" if len(text) > 60 else "")
            raise ApiGarbageError(f"{self.server}: {method} {path}: the answer is not JSON: {shown}") from err

    def find(self, path: str, *, timeout: float = 30.0) -> RawObject | None:
        """Return the JSON object at a path; None if there is none (404). Raises as `request`."""
        try:
            answer = self.request("GET", path, timeout=timeout)
        except ApiRefusalError as err:
            if err.code == 404:
                return None
            raise
        if not isinstance(answer, dict):
            raise ApiGarbageError(f"{self.server}: the answer is not an object")
        return answer

    def get(
        self, path: str, query: Mapping[str, str], *, timeout: float, most: int = MAX_ANSWER, accept: str = _JSON
    ) -> bytes:
        """Return an answer as it is. Raises as `request`; ApiTooLargeError after more than `most` bytes."""
        with self._send("GET", path, query, {"Accept": accept}, timeout, total=timeout) as stream:
            return stream.read(timeout, most)

    def clock(self, *, timeout: float) -> float | None:
        """Return by how many seconds the server's clock is ahead of ours; None: no date. Raises as `request`.

        The header Date has whole seconds (RFC 9110, section 6.6.1).
        """
        began = time.time()
        with self._send("GET", "/version", None, {"Accept": _JSON}, timeout, total=timeout) as stream:
            date = stream.header("Date")
        try:
            server_time = parsedate_to_datetime(date).timestamp()
        except ValueError:
            return None
        return server_time + 0.5 - (began + time.time()) / 2

    def watch(self, path: str, query: Mapping[str, str], *, inactivity: float) -> Stream:
        """Begin a watch, which fails after `inactivity` seconds without a byte. Raises as `request`."""
        return self._send("GET", path, query, {"Accept": _JSON}, inactivity)

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        headers: Mapping[str, str],
        timeout: float,
        *,
        body: bytes | None = None,
        total: float | None = None,
    ) -> Stream:
        """Return the answer once it begins with a success.

        `timeout` (seconds) is between two signs of life, `total` from connecting to the answer's beginning.
        """
        import urllib3

        credentials = self.credentials
        where = f"{credentials.server}: {method} {path}"
        try:
            named = {"User-Agent": self._user_agent, **headers, **credentials.header()}
        except CredentialsError:
            self._renew(credentials)
            raise
        try:
            response = credentials.pool.request(
                method,
                credentials.server + path + ("?" + urlencode(query) if query else ""),
                body=body,
                headers=named,
                timeout=urllib3.Timeout(total=total, connect=min(timeout, _CONNECT_TIME), read=timeout),
                preload_content=False,
                retries=False,
            )
        except failures() as err:
            if credentials.outdated:
                self._renew(credentials)
            raise ApiUnreachableError(f"{where}: {words_of(err)}") from err
        stream = Stream(response, where)
        self._addresses.note(stream.socket)
        if response.status >= 300:
            if response.status == 401:
                self._renew(credentials)
            with stream:
                raise refusal(where, response, stream.read(_REFUSAL_TIME, _MAX_REFUSAL))
        return stream

    def _renew(self, unusable: Credentials) -> None:
        """Read the credentials again, unless another thread has."""
        if self.credentials is unusable:
            try:
                self._reload()
            except SourceError as err:
                log.warning("%s", err)
