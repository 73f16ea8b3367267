"""The agent's HTTP servers: all pages, health alone, and a Unix socket for the commands of this Node.

Owns which server listens where; `mcagent.observe.pages` makes the pages.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack

from mcagent.agent.config import Settings
from mcagent.http.server import Guard, HttpServer, Pages
from mcagent.http.serving import serve_health, serve_pages
from mcagent.model.keys.values import listen_address

log = logging.getLogger(__name__)


class AgentServers:
    """All servers of the agent. Serve until closed."""

    def __init__(self, settings: Settings, pages: Pages) -> None:
        """Listen. Raises OSError when an address cannot be bound, SourceError without usable credentials."""
        with ExitStack() as resources:
            try:
                resources.callback(HttpServer(settings.status_socket, pages).close)
            except OSError as error:
                level = logging.WARNING if settings.requires_token else logging.INFO
                log.log(level, "commands cannot query this agent: %s", error)
            self._pages = serve_pages(
                settings.listen_address,
                pages,
                authentication=settings.metrics_authentication,
                guard=_guard(settings, resources),
                certificates=settings.tls_cert_dir,
                host_names=settings.host_names,
            )
            resources.callback(self._pages.close)
            self._health = self._pages
            if settings.health_listen != "0":
                self._health = serve_health(listen_address(settings.health_listen), pages)
                resources.callback(self._health.close)
            self._resources = resources.pop_all()

    @property
    def port(self) -> int:
        """The port of all pages."""
        return self._pages.port

    @property
    def health_port(self) -> int:
        """The port of health."""
        return self._health.port

    def close(self) -> None:
        """Stop listening."""
        self._resources.close()


def _guard(settings: Settings, resources: ExitStack) -> Guard | None:
    """Return the token reviewer; None if `listen` requires no token or no API server is configured."""
    if not settings.requires_token or settings.source != "kube":
        return None
    from mcagent.kube.client import Client
    from mcagent.kube.reviews import Reviewer

    client = Client(settings.kubeconfig, user_agent="mcagent-pages")
    resources.callback(client.close)
    return Reviewer(client.request)
