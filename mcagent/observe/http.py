"""A small HTTP server for GET: path to page. Knows nothing of what the pages say.

At most `MAX_REQUESTS` are answered at once and each has `TIMEOUT`, so that a slow or hostile client costs little.
"""

from __future__ import annotations

import logging
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from mcagent.supervised import Supervised

log = logging.getLogger(__name__)

MAX_REQUESTS = 8
TIMEOUT = 5.0  # seconds for a client to send its request


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """An answer."""

    body: str
    status: int = 200
    content_type: str = "text/plain; charset=utf-8"


Pages = Mapping[str, Callable[[], Page]]


class HttpServer:
    """Serves pages from threads of its own until closed."""

    def __init__(self, address: tuple[str, int], pages: Pages) -> None:
        """Listen. Raises OSError when the address cannot be had."""
        self._server = BoundedServer(address, _handler(pages))
        self._thread = Supervised(self._server.serve_forever, name="http")
        self._thread.start()

    @property
    def port(self) -> int:
        """The port listened on; of interest when 0 was asked for."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class BoundedServer(ThreadingHTTPServer):
    """Answers at most `slots` connections at once, each in a thread; more are closed."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 128  # a connection for which there is no room in it comes a second late (SYN again)

    def __init__(
        self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler], *, slots: int = MAX_REQUESTS
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._slots = threading.BoundedSemaphore(slots)
        super().__init__(address, handler)

    def server_bind(self) -> None:
        """Bind without the name look-up that the base class makes."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread while there is a free slot; else close at once."""
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Give the slot back at the end."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """A client that goes away is nobody's error; a page that breaks is told."""
        error = sys.exception()
        level = logging.DEBUG if isinstance(error, OSError) else logging.ERROR
        log.log(level, "a request from %s broke", client_address, exc_info=error)


def _handler(pages: Pages) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = TIMEOUT
        server_version = "mcagent"
        sys_version = ""

        def do_GET(self) -> None:
            self._answer(body=True)

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def _answer(self, *, body: bool) -> None:
            page = pages.get(self.path.split("?", 1)[0])
            found = page() if page is not None else Page(body="not found\n", status=404)
            encoded = found.body.encode()
            self.send_response(found.status)
            self.send_header("Content-Type", found.content_type)
            self.send_header("Content-Length", str(len(encoded)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            if body:
                self.wfile.write(encoded)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            log.debug("%s", format % args)

    return Handler
