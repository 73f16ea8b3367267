"""A small HTTP server: path to page. Does not know the content of pages.

One request for each connection. With a guard every page requires a bearer token that the guard accepts, except
those that are `Public`. For a path without a page the answer is 404 without the guard. Requests that pages of
other sites make in a browser are refused (`mcagent.http.origin`). An `Action` requires POST, and a token or root's
Unix socket: without a guard it is refused.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path

from mcagent.http.connection import ClientConnection, Limits, RequestStage
from mcagent.http.listener import Listener
from mcagent.http.listening import Address, is_loopback
from mcagent.http.origin import ServerNames, host_refusal, is_cross_site, is_navigation
from mcagent.http.request import BadRequestError, Head
from mcagent.supervised import attempt

log = logging.getLogger(__name__)

LIMITS = Limits(slots=16, ask=5.0, answer=10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """An HTTP answer."""

    body: str
    status: int = 200
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()  # further headers


@dataclass(frozen=True, slots=True)
class Query:
    """A page with a query: `answer` gets the text after the "?" of the request, as sent."""

    answer: Callable[[str], Page]


@dataclass(frozen=True, slots=True)
class Public:
    """A page without a token, for static files."""

    answer: Callable[[], Page]


@dataclass(frozen=True, slots=True)
class Action:
    """A page that acts or sends packets: `answer` gets the query as that of a `Query` does."""

    answer: Callable[[str], Page]


PlainPages = Mapping[str, Callable[[], Page]]
Pages = Mapping[str, Callable[[], Page] | Query | Public | Action]
# Arguments: bearer token ("": none), path, source, verb ("get" or "post"). Result: 200, or the HTTP status of the
# refusal.
Guard = Callable[[str, str, str, str], int]
_READS = ("GET", "HEAD")


class HttpServer:
    """Serves pages, in its own threads, until closed."""

    def __init__(
        self,
        address: Address,
        pages: Pages,
        *,
        guard: Guard | None = None,
        context: Callable[[], ssl.SSLContext | None] | None = None,
        limits: Limits = LIMITS,
        names: ServerNames | None = None,
    ) -> None:
        """Listen. Raises OSError when the address cannot be bound.

        `names`: of this server in the header Host, for pages without a token; default: those of the address. With
        a guard, and on a Unix socket, which no browser uses, Host may be anything.
        """
        self._pages, self._guard = pages, guard
        self._root_only = isinstance(address, Path)
        self._names: ServerNames | None = None
        if not isinstance(address, Path) and guard is None:
            self._names = names or ServerNames(loopback=is_loopback(address[0]))
        self._listener = Listener(address, self._serve, limits, context=context)

    @property
    def port(self) -> int:
        """The port, also if 0 (any) was requested."""
        return self._listener.port

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()

    def _serve(self, connection: ClientConnection) -> None:
        try:
            head = connection.head()
        except BadRequestError as error:
            connection.send(encoded(Page(body=f"{error}\n", status=error.status)))
            return
        if head is None:
            return
        connection.enter(RequestStage.WORKING, connection.limits.answer)
        page = self._page(head, connection.source)
        connection.send(encoded(page, body=head.method != "HEAD"))

    def _page(self, head: Head, source: str) -> Page:
        if self._names is not None and (text := host_refusal(head.headers, self._names)):
            return Page(body=text, status=HTTPStatus.MISDIRECTED_REQUEST)
        page = self._pages.get(head.path)
        if is_cross_site(head.headers) and not (isinstance(page, Public) and is_navigation(head.headers)):
            return Page(body="pages of other sites get nothing here\n", status=403)
        if head.method not in ("POST", *_READS):
            return Page(body="only GET, HEAD and POST\n", status=501)
        if page is None:
            return Page(body="not found\n", status=404)
        is_action = isinstance(page, Action)
        methods = ("POST",) if is_action else _READS
        if head.method not in methods:
            allowed = ", ".join(methods)
            return Page(body=f"only {allowed}\n", status=405, headers=(("Allow", allowed),))
        if isinstance(page, Public):
            return answer_of(page.answer)
        if self._guard is not None:
            token, verb = bearer(head.headers.get("authorization", "")), "post" if is_action else "get"
            status = self._guard(token, head.path, source, verb)
            if status != 200:
                return Page(body=f"{HTTPStatus(status).phrase}\n", status=status)
        elif is_action and not self._root_only:
            return Page(body="this page requires a token, or the Unix socket of root (status.sock)\n", status=403)
        if isinstance(page, Query | Action):
            return answer_of(partial(page.answer, head.query))
        return answer_of(page)


def answer_of(page: Callable[[], Page]) -> Page:
    """Call a page; an exception is logged, and the client gets status 500."""
    result, error = attempt(page)
    if error is not None:
        log.error("a page failed, which is a bug", exc_info=error)
    return result or Page(body="the page failed: see the log\n", status=500)


def bearer(authorization: str) -> str:
    """Return the bearer token of an Authorization header; "": there is none."""
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def encoded(page: Page, *, body: bool = True) -> bytes:
    """Encode an answer, after which the connection is closed."""
    text = page.body.encode()
    extra_headers = {401: 'WWW-Authenticate: Bearer realm="mcagent"\r\n', 429: "Retry-After: 1\r\n"}
    headers = "".join(f"{name}: {value}\r\n" for name, value in page.headers)
    head = (
        f"HTTP/1.1 {page.status} {HTTPStatus(page.status).phrase}\r\n"
        f"Content-Type: {page.content_type}\r\n"
        f"Content-Length: {len(text)}\r\n"
        "Cache-Control: no-store\r\n"
        "X-Content-Type-Options: nosniff\r\n"
        f"{headers}{extra_headers.get(page.status, '')}"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + (text if body else b"")
