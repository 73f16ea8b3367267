"""Chooses the server of pages: clear text on a loopback address, TLS and tokens elsewhere. Fails closed.

Knows addresses and settings; the guard that checks tokens is a parameter.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from mcagent.http.connection import Limits
from mcagent.http.listening import Authentication, host_port_text, is_loopback
from mcagent.http.origin import ServerNames
from mcagent.http.server import Action, Guard, HttpServer, Page, Pages, Public, Query, answer_of

log = logging.getLogger(__name__)

HEALTH_PATHS = ("/healthz", "/livez", "/readyz")
HEALTH_LIMITS = Limits(slots=64, ask=3.0, answer=3.0)


def serve_health(address: tuple[str, int], pages: Pages) -> HttpServer:
    """Serve the health pages of `pages` in clear text. Raises OSError when the address cannot be bound.

    Except on a loopback address, only the status is shown: reasons contain names of objects and servers, which
    other clients must not see.
    """
    available = {path: pages[path] for path in HEALTH_PATHS if path in pages}
    special = Query | Public | Action
    health_pages = {path: page for path, page in available.items() if not isinstance(page, special)}
    if is_loopback(address[0]):
        return HttpServer(address, health_pages, limits=HEALTH_LIMITS)
    terse = {path: _terse(page) for path, page in health_pages.items()}
    return HttpServer(address, terse, limits=HEALTH_LIMITS, names=ServerNames(any_name=True))


def serve_pages(
    address: tuple[str, int],
    pages: Pages,
    *,
    authentication: Authentication,
    guard: Guard | None,
    certificates: str,
    host_names: Sequence[str] = (),
) -> HttpServer:
    """Serve pages as their address requires. Raises OSError when the address cannot be bound.

    `guard`: None without an API server, in which case every request is refused. `certificates` is a directory, or
    "" for a self-signed certificate. `host_names`: further names of this server, for pages without a token.
    """
    loopback = is_loopback(address[0])
    names = ServerNames(names={socket.gethostname().lower(), *host_names}, loopback=loopback)
    if loopback:
        return HttpServer(address, pages, names=names)
    where = host_port_text(*address)
    if authentication is Authentication.NONE:
        log.warning("pages at %s: clear text, without authentication: authentication is none", where)
        return HttpServer(address, pages, names=names)
    if guard is None:
        log.warning(
            "pages at %s: every request is refused: no API server is configured to check tokens; listen on "
            "the loopback, or set metricsAuthentication: none",
            where,
        )
    from mcagent.http.certificates import FromDirectory, SelfSigned

    context = FromDirectory(Path(certificates)) if certificates else SelfSigned(socket.gethostname())
    return HttpServer(address, pages, guard=guard or _refuse_all, context=context)


def _refuse_all(_token: str, _path: str, _source: str, _verb: str) -> int:
    return 403


def _terse(page: Callable[[], Page]) -> Callable[[], Page]:
    def status_only() -> Page:
        status = answer_of(page).status
        return Page(body="ok\n" if status == 200 else "not ok: see /status or the log\n", status=status)

    return status_only
