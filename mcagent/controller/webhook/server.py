"""The HTTPS server of the admission webhook: AdmissionReview v1 in, AdmissionReview v1 out.

Owns its limits, the certificate in use and the counters; `mcagent.http.listener` has the connections. It has no
rules: each path has a function that decides. After an error here the request is refused, or the failurePolicy
decides.
"""

from __future__ import annotations

import base64
import json
import logging
import ssl
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping
from http import HTTPStatus

from mcagent.controller.admission.decision import AdmissionDecision
from mcagent.controller.machinery.statistics import BUCKETS, Durations
from mcagent.controller.settings import MAX_EXPORT_BYTES
from mcagent.controller.webhook.clients import ClientCertificates
from mcagent.controller.webhook.work import WorkLimit
from mcagent.http.connection import ClientConnection, Limits, RequestStage
from mcagent.http.listener import Listener
from mcagent.http.request import BadRequestError
from mcagent.model.api.admission import AdmissionRequest
from mcagent.model.errors import SourceError
from mcagent.model.parsing.decode import read_part
from mcagent.model.parsing.document import MAX_DEPTH, decode_noting_cuts, was_cut
from mcagent.model.parsing.field import printable
from mcagent.supervised import attempt

log = logging.getLogger(__name__)


def body_limit(max_export_bytes: int) -> int:
    """Return the bytes that a review may have: the largest export, new and old, and 1 MiB for all else in them.

    Exports are the largest objects that are reviewed. Of ClusterSets, whose status grows with the members, only
    creation and deletion are.
    """
    return 2 * max_export_bytes + 1024 * 1024


MAX_BODY = body_limit(MAX_EXPORT_BYTES)
# Seconds that a connection may be unused. API servers close it after 90 (Go's http.DefaultTransport), and must be
# first: a request that crosses the closing by this server fails. A heartbeat comes every 10 s.
IDLE = 100.0
# An API server waits 30 s at most (timeoutSeconds); a later answer is useless.
LIMITS = Limits(slots=128, ask=10.0, answer=30.0, idle=IDLE)
_API_VERSION = "admission.k8s.io/v1"
_MESSAGE = 1024
_BUSY = 429
_DEEP = "mcagent.io/too-deep"  # added to the fields of a request: the written object is nested too deeply
_TOO_DEEP = AdmissionDecision(
    allowed=False, code=422, message=f"the object is nested more than {MAX_DEPTH} deep: controllers do not read it"
)

Review = Callable[[Mapping[str, object]], AdmissionDecision]


class WebhookServer:
    """Serves reviews until closed. Without a certificate it closes every connection at once."""

    def __init__(
        self,
        address: tuple[str, int],
        reviews: Mapping[str, Review],
        limits: Limits = LIMITS,
        *,
        clients: ClientCertificates | None = None,
        work: WorkLimit | None = None,
        max_body: int = MAX_BODY,
    ) -> None:
        """Listen. Raises OSError if the address is not available."""
        self._clients = clients or ClientCertificates()
        self._context: ssl.SSLContext | None = None
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._durations = Durations()
        self._listener = Listener(
            address,
            _Service(reviews, self._counted, self._clients, work or WorkLimit(), max_body).serve,
            limits,
            context=lambda: self._context,
            name="webhook",
        )

    @property
    def port(self) -> int:
        """The port of the listener, also if `address` has port 0."""
        return self._listener.port

    @property
    def alive(self) -> bool:
        """Tell whether its thread runs."""
        return self._listener.alive

    @property
    def has_certificate(self) -> bool:
        """Tell whether it has a certificate, so that API servers can connect."""
        return self._context is not None

    def use(self, context: ssl.SSLContext) -> None:
        """Use another certificate for new connections. Raises ssl.SSLError for unusable authorities of clients."""
        self._clients.require(context)
        self._context = context

    def counts(self) -> Mapping[tuple[str, str], int]:
        """Return the number of reviews, by kind and answer."""
        with self._lock:
            return dict(self._counts)

    def durations(self) -> Durations:
        """Return the durations of reviews."""
        with self._lock:
            return Durations(list(self._durations.counts), self._durations.total)

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()

    def _counted(self, kind: str, answer: str, seconds: float) -> None:
        with self._lock:
            self._counts[kind, answer] += 1
            self._durations.counts[bisect_left(BUCKETS, seconds)] += 1
            self._durations.total += seconds


class _BadReviewError(Exception):
    """The request is not an AdmissionReview."""

    def __init__(self, message: str, code: int = 400) -> None:
        super().__init__(message)
        self.code = code


class _Service:
    """Answers the requests of connections, by path."""

    def __init__(
        self,
        reviews: Mapping[str, Review],
        counted: Callable[[str, str, float], None],
        clients: ClientCertificates,
        work: WorkLimit,
        max_body: int,
    ) -> None:
        self._reviews, self._counted, self._clients = reviews, counted, clients
        self._work, self._max_body = work, max_body

    def serve(self, connection: ClientConnection) -> None:
        """Answer one request after the other, until the client closes or sends something else than a review."""
        while self._answer_one(connection):
            connection.enter(RequestStage.IDLE, connection.limits.idle)

    def _answer_one(self, connection: ClientConnection) -> bool:
        """Answer one request. Returns whether the connection stays open. Raises OSError."""
        try:
            head = connection.head()
            if head is None:
                return False
            if not self._clients.accepts(connection.stream):
                raise _BadReviewError("the client's certificate has another common name", 403)
            if head.method != "POST":
                raise _BadReviewError("only POST", 501)
            review = self._reviews.get(head.path)
            if review is None:
                raise _BadReviewError("no such webhook", 404)
            if head.headers.get("expect", "").lower() == "100-continue":
                connection.stream.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            body = connection.body(head.length(self._max_body))
            with self._work.work(connection.source, len(body)) as admitted:
                if not admitted:
                    raise _BadReviewError("too many reviews of this client are in progress", _BUSY)
                connection.enter(RequestStage.WORKING, connection.limits.answer)
                answer = self._decide(review, read_review(body))
        except (_BadReviewError, BadRequestError) as err:
            code = err.code if isinstance(err, _BadReviewError) else err.status
            self._counted("unknown", "busy" if code == _BUSY else "malformed", 0.0)
            connection.send(_encoded(code, f"{err}\n".encode(), "text/plain; charset=utf-8", keeps=False))
            return False
        connection.send(_encoded(200, json.dumps(answer).encode(), "application/json", keeps=head.keeps))
        return head.keeps

    def _decide(self, review: Review, request: Mapping[str, object]) -> Mapping[str, object]:
        review_request = read_part(AdmissionRequest, request)
        kind = review_request.kind.kind
        began = time.perf_counter()
        decision, error = attempt(lambda: _TOO_DEEP if _DEEP in request else review(request))
        if isinstance(error, SourceError):
            decision = AdmissionDecision(allowed=False, code=503, message=f"cannot be decided now: {error}")
        elif decision is None:
            log.error("a review failed, which is a bug", exc_info=error)
            message = "the review failed: see the controller's log"
            decision = AdmissionDecision(allowed=False, code=500, message=message)
        seconds = time.perf_counter() - began
        word = "allowed" if decision.allowed else "error" if decision.code >= 500 else "denied"
        self._counted(kind if kind in _KINDS else "other", word, seconds)
        if not decision.allowed:
            log.info("%s %s: denied: %s", printable(kind), _named(review_request), decision.message[:_MESSAGE])
        return answer_of(request, decision)


def _encoded(code: int, body: bytes, content_type: str, *, keeps: bool) -> bytes:
    head = f"HTTP/1.1 {code} {HTTPStatus(code).phrase}\r\nContent-Type: {content_type}\r\n"
    head += f"Content-Length: {len(body)}\r\n" + ("" if keeps else "Connection: close\r\n")
    head += "Retry-After: 1\r\n" if code == _BUSY else ""  # API servers then repeat the request by themselves
    return head.encode() + b"\r\n" + body


_KINDS = frozenset({"ClusterSet", "MemberClusterAnnounce", "ResourceExport"})


def read_review(body: bytes) -> Mapping[str, object]:
    """Return the request of an AdmissionReview. Raises _BadReviewError."""
    try:
        review, cut = decode_noting_cuts(body)
    except ValueError:
        raise _BadReviewError("the body is not JSON") from None
    request = review.get("request") if isinstance(review, dict) else None
    if not isinstance(request, dict) or review.get("kind") != "AdmissionReview":
        raise _BadReviewError("the body is not an AdmissionReview with a request")
    if review.get("apiVersion") != _API_VERSION:
        raise _BadReviewError(f"only AdmissionReviews of {_API_VERSION} are supported")
    if not isinstance(request.get("uid"), str) or not request["uid"]:
        raise _BadReviewError("the request has no uid")
    if cut and was_cut(request.get("object")) and not was_cut(request.get("oldObject")):
        return {**request, _DEEP: True}
    return request


def answer_of(request: Mapping[str, object], decision: AdmissionDecision) -> Mapping[str, object]:
    """Return the AdmissionReview with a decision."""
    response: dict[str, object] = {"uid": request["uid"], "allowed": decision.allowed}
    if not decision.allowed:
        response["status"] = {"code": decision.code, "message": decision.message[:_MESSAGE]}
    elif decision.patch:
        patch = json.dumps(list(decision.patch)).encode()
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(patch).decode()}
    return {"apiVersion": _API_VERSION, "kind": "AdmissionReview", "response": response}


def _named(request: AdmissionRequest) -> str:
    return "/".join(printable(name, 256) for name in (request.namespace, request.name) if name)
