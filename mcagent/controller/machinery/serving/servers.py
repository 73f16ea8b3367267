"""The controller's HTTP servers: which address serves health, and which all pages. `pages` has the content."""

from __future__ import annotations

from contextlib import ExitStack

from mcagent.controller.config import ControllerSettings
from mcagent.http.listening import is_loopback
from mcagent.http.server import HttpServer, Pages
from mcagent.http.serving import HEALTH_PATHS, serve_health, serve_pages
from mcagent.kube.client import Client
from mcagent.kube.reviews import Reviewer
from mcagent.model.keys.values import listen_address


class Servers:
    """Serve until closed. `client` asks this cluster's API server whose a token is."""

    def __init__(self, settings: ControllerSettings, pages: Pages, client: Client) -> None:
        """Listen. Raises OSError when an address cannot be had."""
        with ExitStack() as opened:
            address = listen_address(settings.listen)
            near = is_loopback(address[0])
            self._health = HttpServer(address, pages) if near else serve_health(address, pages)
            opened.callback(self._health.close)
            self._pages = self._health
            if settings.metrics_listen != "0":
                metrics = serve_pages(
                    listen_address(settings.metrics_listen),
                    {path: page for path, page in pages.items() if path not in HEALTH_PATHS},
                    authentication=settings.metrics_authentication,
                    guard=Reviewer(client.request),
                    certificates=settings.metrics_cert_dir,
                    host_names=settings.metrics_host_names,
                )
                opened.callback(metrics.close)
                self._pages = metrics
            self._opened = opened.pop_all()

    @property
    def port(self) -> int:
        """The port of health."""
        return self._health.port

    @property
    def pages_port(self) -> int:
        """The port of metrics and status."""
        return self._pages.port

    def close(self) -> None:
        """Stop listening."""
        self._opened.close()
