"""Which server pages get: clear text on the loopback, TLS and tokens for everybody else. Fails closed.

Knows addresses and choices; who vouches for a token is told as a guard.
"""

from __future__ import annotations

import logging
import socket
from pathlib import Path

from mcagent.http.listening import Authentication, is_loopback
from mcagent.http.server import Guard, HttpServer, Pages

log = logging.getLogger(__name__)


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
    where = f"{address[0]}:{address[1]}"
    if authentication is Authentication.NONE:
        log.warning("pages at %s: clear text for everybody: authentication is none", where)
        return HttpServer(address, pages)
    if guard is None:
        log.warning(
            "pages at %s: nobody gets them: no API server is configured that could vouch for a token; listen on "
            "the loopback, or set metricsAuthentication: none",
            where,
        )
    from mcagent.http.certificates import Kept, Made

    context = Kept(Path(certificates)) if certificates else Made(socket.gethostname())
    return HttpServer(address, pages, guard=guard or _nobody, context=context)


def _nobody(_token: str, _path: str, _source: str) -> int:
    return 403
