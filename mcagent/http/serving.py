"""Which server pages get: clear text on the loopback, TLS and tokens for everybody else. Fails closed.

Knows addresses and choices; who vouches for a token is passed as a guard.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from pathlib import Path

from mcagent.http.connection import Limits
from mcagent.http.listening import Authentication, is_loopback, shown
from mcagent.http.server import Guard, HttpServer, Page, Pages, Public, Query, answer_of

log = logging.getLogger(__name__)

HEALTH_PATHS = ("/healthz", "/livez", "/readyz")
HEALTH_LIMITS = Limits(slots=64, ask=3.0, answer=3.0)


def serve_health(address: tuple[str, int], pages: Pages) -> HttpServer:
    """Serve those of `pages` that are about health, in clear text. Raises OSError when the address cannot be had.

    Off the loopback only the status is shown: why something is not ready names objects and servers, which is
    nobody else's matter.
    """
    wanted = {path: pages[path] for path in HEALTH_PATHS if path in pages}
    found = {path: page for path, page in wanted.items() if not isinstance(page, Query | Public)}
    if not is_loopback(address[0]):
        found = {path: _terse(page) for path, page in found.items()}
    return HttpServer(address, found, limits=HEALTH_LIMITS)


def serve_pages(
    address: tuple[str, int],
    pages: Pages,
    *,
    authentication: Authentication,
    guard: Guard | None,
    certificates: str,
) -> HttpServer:
    """Serve pages as their address asks for. Raises OSError when the address cannot be had.

    `guard`: None where there is no API server to ask; then nobody gets anything. `certificates` is a directory, or
    "" for a certificate that is made.
    """
    if is_loopback(address[0]):
        return HttpServer(address, pages)
    where = shown(*address)
    if authentication is Authentication.NONE:
        log.warning("pages at %s: clear text, open to everybody: authentication is none", where)
        return HttpServer(address, pages)
    if guard is None:
        log.warning(
            "pages at %s: closed to everybody: no API server is configured to check tokens; listen on "
            "the loopback, or set metricsAuthentication: none",
            where,
        )
    from mcagent.http.certificates import FromDirectory, SelfSigned

    context = FromDirectory(Path(certificates)) if certificates else SelfSigned(socket.gethostname())
    return HttpServer(address, pages, guard=guard or _nobody, context=context)


def _nobody(_token: str, _path: str, _source: str) -> int:
    return 403


def _terse(page: Callable[[], Page]) -> Callable[[], Page]:
    def shown() -> Page:
        status = answer_of(page).status
        return Page(body="ok\n" if status == 200 else "not ok: see /status or the log\n", status=status)

    return shown
