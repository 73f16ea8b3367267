"""One HTTP connection: reads requests, applies faults, writes answers and watch streams. HTTP/1.1, keep-alive."""

from __future__ import annotations

import os
import select
import socket
import ssl
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

from devtools.apiserver import admin
from devtools.apiserver.access.accounts import MASTERS
from devtools.apiserver.discovery import discover
from devtools.apiserver.errors import ApiError, Json, no_such_path
from devtools.apiserver.faults import Fault, FaultKind
from devtools.apiserver.handlers import dumps, read_json
from devtools.apiserver.routes import route, split_target
from devtools.apiserver.storage.writes import handle
from devtools.apiserver.watch import WatchStream

if TYPE_CHECKING:
    from devtools.apiserver.server import ApiServer

_PROTOBUF = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"


class Listener(ThreadingHTTPServer):
    """The listening socket and the connections it has accepted."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def __init__(self, address: tuple[str, int], api: ApiServer, tls: tuple[Path, Path] | None) -> None:
        self.api = api
        self._open: set[socket.socket] = set()
        self._context: ssl.SSLContext | None = None
        if tls:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.load_cert_chain(*tls)
        super().__init__(address, Connection)

    def server_bind(self) -> None:
        """Bind without the look-up of the host's name that HTTPServer makes."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept, and remember the connection."""
        connection, address = super().get_request()
        if self._context is not None:  # the handshake is made by the connection's own thread
            connection = self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        self._open.add(connection)
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        """Close and forget a connection."""
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""

    def drop_connections(self) -> int:
        """Cut every connection now. Returns how many there were."""
        dropped = 0
        for connection in list(self._open):
            try:
                connection.shutdown(socket.SHUT_RDWR)
                dropped += 1
            except OSError:
                continue  # it went away by itself
        return dropped


class _Cut(Exception):  # noqa: N818 (no error: a fault that was asked for)
    """The connection is to be closed without more."""


class Connection(BaseHTTPRequestHandler):
    """One client connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else every small answer waits 40 ms for a delayed ACK
    wbufsize = -1
    server: Listener

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Stay quiet: `ApiServer.requests` has the log."""

    def do_GET(self) -> None:
        """Serve a request, whatever its method."""
        try:
            self._serve()
        except ApiError as err:
            self._answer(err.code, dumps(err.status()))
        except (OSError, _Cut):
            self.close_connection = True

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815 (http.server's names)

    def _serve(self) -> None:
        api = self.server.api
        body = self._body()
        steps, _ = split_target(self.path)
        user = api.authenticate(self.headers.get("Authorization", ""))
        if steps[:1] == ["_admin"]:
            if MASTERS not in user.groups:
                raise ApiError(403, "Forbidden", f'forbidden: User "{user.name}" is no administrator')
            code, document = admin.handle(api, self.command, steps[1:], body)
            self._answer(code, dumps(document))
            return
        document = discover(api.registry, steps, api.address)
        if steps[:1] not in (["api"], ["apis"]) or document is not None:
            self._path(steps, document)
            return
        if self.command == "POST" and steps[-1] in ("subjectaccessreviews", "selfsubjectaccessreviews"):
            api.note("create", self.path)
            self._answer(201, dumps({**read_json(body), "status": {"allowed": True}}))
            return
        request = route(
            api.registry, self.command, self.path, headers=dict(self.headers.items()), body=body, user=user
        )
        api.note(request.verb, self.path)
        fault = api.faults.pick(request.verb, self.path)
        if request.verb == "watch":
            if fault is not None and fault.kind in (FaultKind.SLOW, FaultKind.STATUS, FaultKind.DROP):
                self._fault(fault)
                fault = None
            self._watch(WatchStream(api.store, request, bookmark_interval=api.bookmark_interval), fault)
            return
        self._fault(fault)
        code, text = handle(api.backend, request)
        if fault is not None and fault.kind is FaultKind.TRUNCATED:
            self._head(code, "application/json", ("Content-Length", str(len(text))))
            self.wfile.write(text[: len(text) // 2])
            self.wfile.flush()
            raise _Cut
        self._answer(code, text)

    def _path(self, steps: list[str], document: Json | None) -> None:
        """Answer a path that is no resource: discovery, health. Raises ApiError."""
        api = self.server.api
        if steps[:1] in (["healthz"], ["readyz"], ["livez"]):
            self._answer(200, b"ok", "text/plain")
            return
        if document is None:
            raise no_such_path()
        api.note("get", self.path)
        self._fault(api.faults.pick("get", self.path))
        if steps == ["openapi", "v2"] and "protobuf" in self.headers.get("Accept", ""):
            self._answer(200, b"", _PROTOBUF)  # an empty message: kubectl then validates nothing
        else:
            self._answer(200, dumps(document))

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", "0")))

    def _head(self, code: int, kind: str, *headers: tuple[str, str]) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()

    def _answer(self, code: int, body: bytes, kind: str = "application/json") -> None:
        headers = [("Content-Length", str(len(body)))]
        if code in (429, 503):
            headers.append(("Retry-After", "1"))
        self._head(code, kind, *headers)
        self.wfile.write(body)

    def _fault(self, fault: Fault | None) -> None:
        """Act on a fault before a plain answer; returns when the answer shall follow."""
        if fault is None or fault.kind is FaultKind.TRUNCATED:
            return
        if fault.kind is FaultKind.SLOW:
            self._idle(fault.delay)
        elif fault.kind is FaultKind.STATUS:
            raise ApiError(fault.code, "InternalError", f"fault: {fault.code} as asked for")
        elif fault.kind is FaultKind.GARBAGE:
            self._answer(200, fault.garbage)
            self.wfile.flush()
            self.close_connection = True
            raise _Cut
        else:
            if fault.kind is FaultKind.SILENT:
                self._idle(float("inf"))
            raise _Cut

    def _idle(self, seconds: float) -> None:
        """Do nothing for a while, or until the client or the server has gone."""
        end = time.monotonic() + seconds
        while not self._gone() and (remaining := end - time.monotonic()) > 0:
            select.select([self.connection], [], [], min(remaining, 0.2))

    def _gone(self) -> bool:
        if self.server.api.stopping.is_set():
            return True
        try:
            # Below TLS, which cannot be peeked into: an end of the connection shows there too.
            with socket.socket(fileno=os.dup(self.connection.fileno())) as plain:
                readable, _, _ = select.select([plain], [], [], 0)
                return bool(readable) and not plain.recv(1, socket.MSG_PEEK)
        except (OSError, ValueError):
            return True

    def _watch(self, stream: WatchStream, fault: Fault | None) -> None:
        self._head(200, "application/json", ("Transfer-Encoding", "chunked"))
        self.wfile.flush()
        if fault is not None and fault.kind is FaultKind.SILENT:
            self._idle(float("inf"))
            raise _Cut
        sent = 0
        for batch in stream.lines(self._gone):
            lines = batch
            if fault is not None and sent + len(batch) >= fault.after:
                lines = batch[: fault.after - sent]
                self._chunk(b"".join(lines))
                if fault.kind is FaultKind.TRUNCATED:
                    self.wfile.write(b'fff\r\n{"type":"ADDED","object":{"metadata":{"na')
                    self.wfile.flush()
                    raise _Cut
                self._chunk(fault.garbage + b"\n")
                break
            sent += len(lines)
            self._chunk(b"".join(lines))
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()

    def _chunk(self, data: bytes) -> None:
        if data:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()
