"""The HTTPS server of the admission webhook: AdmissionReview v1 in, AdmissionReview v1 out.

Owns limits (connections, body, time), the certificate in use and what is counted. Decides nothing: a path has a
function that does. What goes wrong here refuses the request, or lets the failurePolicy decide.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import socket
import ssl
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler
from typing import Any

from mcagent.controller.admission.decision import Decision
from mcagent.controller.raw import text_at
from mcagent.controller.tally import BUCKETS, Durations
from mcagent.controller.worker import BUGS
from mcagent.model.document import MAX_DEPTH, decode_told, was_cut
from mcagent.model.errors import SourceError
from mcagent.model.field import printable
from mcagent.observe.http import BoundedServer
from mcagent.supervised import Supervised

log = logging.getLogger(__name__)

MAX_BODY = 8 * 1024 * 1024  # bytes: an object and what it was, each at most as large as an API server takes it
MAX_CONNECTIONS = 128
TIMEOUT = 10.0  # seconds for each read or write, the handshake, and the first request
# Seconds that a connection may be unused. API servers give one up after 90 (Go's http.DefaultTransport): they, not
# we, have to be the first, or a request crosses our closing and fails. A heartbeat comes every 10 s.
IDLE = 100.0
_API_VERSION = "admission.k8s.io/v1"
_MESSAGE = 1024
_LENGTH_DIGITS = 12  # of a Content-Length
_DEEP = "mcagent.io/too-deep"  # beside a request's own fields: what is written is nested too deeply
_TOO_DEEP = Decision(
    allowed=False, code=422, message=f"the object is nested more than {MAX_DEPTH} deep: nobody would read it"
)

Review = Callable[[Mapping[str, Any]], Decision]


def context_of(certificate: bytes, key: bytes) -> ssl.SSLContext:
    """Return a server's TLS context. The key never touches a disk. Raises ssl.SSLError for unusable PEM."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    file = os.memfd_create("webhook", os.MFD_CLOEXEC)
    try:
        os.write(file, certificate + key)
        context.load_cert_chain(f"/proc/self/fd/{file}")
    finally:
        os.close(file)
    return context


class WebhookServer:
    """Serves reviews until closed. Without a certificate it closes every connection at once."""

    def __init__(self, address: tuple[str, int], reviews: Mapping[str, Review]) -> None:
        """Listen. Raises OSError when the address cannot be had."""
        self._context: ssl.SSLContext | None = None
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._durations = Durations()
        self._server = _TlsServer(address, _handler(reviews, self._counted), lambda: self._context)
        self._thread = Supervised(self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="webhook")
        self._thread.start()

    @property
    def port(self) -> int:
        """The port listened on; of interest when 0 was asked for."""
        return int(self._server.server_address[1])

    @property
    def alive(self) -> bool:
        """Tell whether its thread runs."""
        return self._thread.is_alive()

    @property
    def has_certificate(self) -> bool:
        """Tell whether it can be asked."""
        return self._context is not None

    def use(self, context: ssl.SSLContext) -> None:
        """Use another certificate for new connections."""
        self._context = context

    def counts(self) -> Mapping[tuple[str, str], int]:
        """Return how many reviews there were, by kind and answer."""
        with self._lock:
            return dict(self._counts)

    def durations(self) -> Durations:
        """Return how long reviews took."""
        with self._lock:
            return Durations(list(self._durations.counts), self._durations.total)

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _counted(self, kind: str, answer: str, seconds: float) -> None:
        with self._lock:
            self._counts[kind, answer] += 1
            self._durations.counts[bisect_left(BUCKETS, seconds)] += 1
            self._durations.total += seconds


class _TlsServer(BoundedServer):
    def __init__(
        self,
        address: tuple[str, int],
        handler: type[BaseHTTPRequestHandler],
        context: Callable[[], ssl.SSLContext | None],
    ) -> None:
        self._context = context
        super().__init__(address, handler, slots=MAX_CONNECTIONS)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Make the handshake in the connection's own thread, and serve."""
        context = self._context()
        if context is None:
            return
        assert isinstance(request, socket.socket)
        request.settimeout(TIMEOUT)
        with context.wrap_socket(request, server_side=True) as secured:
            super().finish_request(secured, client_address)


class _BadReviewError(Exception):
    """The request is no AdmissionReview."""

    def __init__(self, message: str, code: int = 400) -> None:
        super().__init__(message)
        self.code = code


def _handler(
    reviews: Mapping[str, Review], counted: Callable[[str, str, float], None]
) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = TIMEOUT
        server_version = "mcagent"
        sys_version = ""
        disable_nagle_algorithm = True
        wbufsize = -1
        waits = TIMEOUT  # for the next request

        def handle_one_request(self) -> None:
            """Wait for a request: not for long for the first one, so that a connection alone costs little."""
            self.connection.settimeout(self.waits)
            super().handle_one_request()
            self.waits = IDLE

        def parse_request(self) -> bool:
            """Read on: what has begun must come soon."""
            self.connection.settimeout(TIMEOUT)
            return super().parse_request()

        def do_POST(self) -> None:
            try:
                review = reviews.get(self.path.split("?", 1)[0])
                if review is None:
                    raise _BadReviewError("no such webhook", 404)
                request = read_review(self._body())
                answer = self._decide(review, request)
            except _BadReviewError as err:
                counted("unknown", "malformed", 0.0)
                self.close_connection = True
                self._answer(err.code, f"{err}\n".encode(), "text/plain; charset=utf-8")
                return
            self._answer(200, json.dumps(answer).encode(), "application/json")

        def _decide(self, review: Review, request: Mapping[str, Any]) -> Mapping[str, Any]:
            known = text_at(request, "kind", "kind")
            began = time.perf_counter()
            try:
                decision = _TOO_DEEP if _DEEP in request else review(request)
            except SourceError as err:
                decision = Decision(allowed=False, code=503, message=f"cannot be decided now: {err}")
            except BUGS:
                log.exception("a review failed, which is a bug")
                decision = Decision(allowed=False, code=500, message="the review failed: see the controller's log")
            seconds = time.perf_counter() - began
            word = "allowed" if decision.allowed else "error" if decision.code >= 500 else "denied"
            counted(known if known in _KINDS else "other", word, seconds)
            if not decision.allowed:
                log.info("%s %s: denied: %s", printable(known), _named(request), decision.message[:_MESSAGE])
            return answer_of(request, decision)

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding"):
                raise _BadReviewError("a body needs a Content-Length", 411)
            length = self.headers.get("Content-Length", "")
            if not length.isascii() or not length.isdecimal() or len(length) > _LENGTH_DIGITS:
                raise _BadReviewError("a body needs a Content-Length", 411)
            if int(length) > MAX_BODY:
                raise _BadReviewError(f"the body is larger than {MAX_BODY} bytes", 413)
            return self.rfile.read(int(length))

        def _answer(self, code: int, body: bytes, content_type: str) -> None:
            self.send_response(code)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            if self.close_connection:
                self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body)
            self.wfile.flush()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            log.debug("%s", format % args)

    return Handler


_KINDS = frozenset({"ClusterSet", "Gateway", "MemberClusterAnnounce", "ResourceExport"})


def read_review(body: bytes) -> Mapping[str, Any]:
    """Return the request of an AdmissionReview. Raises _BadReviewError."""
    try:
        review, cut = decode_told(body)
    except ValueError:
        raise _BadReviewError("the body is no JSON") from None
    request = review.get("request") if isinstance(review, dict) else None
    if not isinstance(request, dict) or review.get("kind") != "AdmissionReview":
        raise _BadReviewError("the body is no AdmissionReview with a request")
    if review.get("apiVersion") != _API_VERSION:
        raise _BadReviewError(f"only AdmissionReviews of {_API_VERSION} are read")
    if not isinstance(request.get("uid"), str) or not request["uid"]:
        raise _BadReviewError("the request has no uid")
    if cut and was_cut(request.get("object")) and not was_cut(request.get("oldObject")):
        return {**request, _DEEP: True}
    return request


def answer_of(request: Mapping[str, Any], decision: Decision) -> Mapping[str, Any]:
    """Return the AdmissionReview that tells a decision."""
    response: dict[str, Any] = {"uid": request["uid"], "allowed": decision.allowed}
    if not decision.allowed:
        response["status"] = {"code": decision.code, "message": decision.message[:_MESSAGE]}
    elif decision.patch:
        patch = json.dumps(list(decision.patch)).encode()
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(patch).decode()}
    return {"apiVersion": _API_VERSION, "kind": "AdmissionReview", "response": response}


def _named(request: Mapping[str, Any]) -> str:
    names = (text_at(request, key) for key in ("namespace", "name"))
    return "/".join(printable(name, 256) for name in names if name)
