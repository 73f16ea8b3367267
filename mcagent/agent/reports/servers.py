"""The agent's HTTP servers: all pages, health alone, and a Unix socket for the commands of this Node.

Knows which server gets which address; what pages say is `mcagent.observe.pages`.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack

from mcagent.agent.config import Settings
from mcagent.config.values import listen_address
from mcagent.http.listening import Authentication, is_loopback
from mcagent.http.server import Guard, HttpServer, Pages
from mcagent.http.serving import serve_health, serve_pages

log = logging.getLogger(__name__)


class Servers:
    """Serve until closed."""

    def __init__(self, settings: Settings, pages: Pages) -> None:
        """Listen. Raises OSError when an address cannot be had, SourceError without usable credentials."""
        with ExitStack() as opened:
            try:
                opened.callback(HttpServer(settings.status_socket, pages).close)
            except OSError as error:
                level = logging.WARNING if settings.asks_by_socket else logging.INFO
                log.log(level, "commands cannot query this agent: %s", error)
            self._pages = serve_pages(
                settings.listen_address,
                pages,
                authentication=settings.metrics_authentication,
                guard=_guard(settings, opened),
                certificates=settings.tls_cert_dir,
            )
            opened.callback(self._pages.close)
            if settings.health_listen != "0":
                opened.callback(serve_health(listen_address(settings.health_listen), pages).close)
            self._opened = opened.pop_all()

    @property
    def port(self) -> int:
        """The port of all pages."""
        return self._pages.port

    def close(self) -> None:
        """Stop listening."""
        self._opened.close()


def _guard(settings: Settings, opened: ExitStack) -> Guard | None:
    """Return what asks the API server whose a token is; None where nobody has to be asked, or can be."""
    asks = settings.metrics_authentication is Authentication.TOKEN and not is_loopback(settings.listen_address[0])
    if not asks or settings.source != "kube":
        return None
    from mcagent.kube.client import Client
    from mcagent.kube.reviews import Reviewer

    client = Client(settings.kubeconfig, user_agent="mcagent-pages")
    opened.callback(client.close)
    return Reviewer(client.request)
