"""Attacks on the HTTP servers of agents and controllers: who takes their slots, time and memory."""

from __future__ import annotations

import json
import re
import resource
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mcagent.controller.admission.decision import AdmissionDecision
from mcagent.controller.webhook.clients import ClientCertificates
from mcagent.controller.webhook.server import LIMITS, MAX_BODY, WebhookServer
from mcagent.http import certificates
from mcagent.http.certificates import context_of
from mcagent.http.connection import Limits
from mcagent.http.server import HttpServer, Page
from mcagent.http.serving import HEALTH_LIMITS, serve_health
from tests.attacks.catalogue import Attacker, Group, attack
from tests.attacks.http_clients import PAGES, Idle, connect, crowd, exchange, get, served, unverified
from tests.waiting import until
from tests.worlds.apiservers import Cluster, refusal
from tests.worlds.client_certificates import Authority

by_pod = partial(attack, Group.HTTP, Attacker.POD)

HEAD = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n"
FEW = Limits(slots=4, ask=1.0, answer=10.0)


@pytest.fixture
def health() -> Iterator[HttpServer]:
    """Give a health server as a Pod of a controller has it."""
    health_server = serve_health(("0.0.0.0", 0), PAGES)
    yield health_server
    health_server.close()


@pytest.fixture
def pages() -> Iterator[HttpServer]:
    """Give pages in clear text, with few slots and little time."""
    server = HttpServer(("127.0.0.1", 0), PAGES, limits=FEW)
    yield server
    server.close()


class Hook:
    """A webhook that allows everything, and counts what it was asked."""

    def __init__(self, limits: Limits = LIMITS, clients: ClientCertificates | None = None) -> None:
        self.asked: list[Mapping[str, Any]] = []
        self.released = threading.Event()  # what reviews of objects named "slow" wait for
        self.server = WebhookServer(("127.0.0.1", 0), {"/validate": self._review}, limits, clients=clients)
        self.material = certificates.current(None, ["localhost"], datetime.now(UTC))
        self.server.use(context_of(self.material.certificate, self.material.key))

    def _review(self, request: Mapping[str, Any]) -> AdmissionDecision:
        self.asked.append(request)
        if request["name"] == "slow":
            self.released.wait(60)
        return AdmissionDecision(allowed=True)

    def exchange(self, request: bytes) -> bytes:
        """Send bytes over TLS and return all that comes back until the server closes."""
        return exchange(self.server.port, request, tls=True)

    def allows(self) -> bool:
        """Ask as an API server does, from a source of its own."""
        answer = b""
        with suppress(OSError), connect(self.server.port, "127.0.0.1") as raw:
            raw.settimeout(5)
            with unverified().wrap_socket(raw) as stream:
                stream.sendall(review(close=True))
                while data := stream.recv(65536):
                    answer += data
        return b'"allowed": true' in answer


@pytest.fixture
def hook() -> Iterator[Hook]:
    """Give a webhook with the limits that it has."""
    hook = Hook()
    yield hook
    hook.server.close()


def review(name: str = "x", *, close: bool = False, fields: str = "", padding: int = 0) -> bytes:
    """Return a whole request as API servers send it."""
    asked = {"uid": "1", "operation": "CREATE", "kind": {"kind": "ClusterSet"}, "name": name}
    asked["object"] = "x" * padding
    text = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": asked}
    body = json.dumps(text).encode()
    fields += "Connection: close\r\n" if close else ""
    return f"POST /validate HTTP/1.1\r\nHost: x\r\n{fields}Content-Length: {len(body)}\r\n\r\n".encode() + body


# --- slots and time -----------------------------------------------------------------------------------------


@by_pod(
    wants="have the agent restarted: its probes find every slot taken by connections that drip bytes",
    stopped_by="a server of its own for health, where the oldest connection of the greediest source gives way",
)
def test_bytes_that_drip_do_not_occupy_health(health: HttpServer) -> None:
    """More dripping connections than it takes; each probe is answered at once."""
    with Idle(health.port, HEALTH_LIMITS.slots + 20, begin=b"G", drip=b"E"):
        for _ in range(5):
            assert get(health.port, "/healthz", timeout=3.0)[0] == 200


@pytest.mark.timing
@by_pod(
    wants="take all slots of the pages with headers that never end, a few bytes at a time",
    stopped_by="one deadline for the whole request, however often a byte comes",
)
def test_headers_that_drip_end_at_the_deadline(pages: HttpServer) -> None:
    """A connection that goes on dripping is cut, although no single read was slow."""
    with connect(pages.port) as connection:
        connection.sendall(HEAD)
        ended = False
        deadline = time.monotonic() + 10 * FEW.ask
        while not ended and time.monotonic() < deadline:
            try:
                connection.sendall(b"X")
                connection.settimeout(0.1)
                ended = connection.recv(1) == b""
            except TimeoutError:
                continue
            except OSError:
                ended = True
        assert ended


@by_pod(
    wants="take all slots of the pages with requests whose answers are never read",
    stopped_by="answers that are not taken within a second give way to new connections, and end at a deadline",
)
def test_answers_that_nobody_reads_hold_no_slot() -> None:
    """All slots hold a large answer that is not read; a new client is answered."""
    large = "x" * (32 * 1024 * 1024)
    answers = {"/metrics": lambda: Page(body=large), "/": lambda: Page(body="ok")}
    server = HttpServer(("127.0.0.1", 0), answers, limits=FEW)
    with Idle(server.port, FEW.slots, begin=HEAD + b"\r\n") as attacker:
        attacker.made[0].settimeout(5)

        def answered() -> bool:
            with suppress(OSError):
                return get(server.port, "/", timeout=1.0)[0] == 200
            return False

        until(answered, timeout=4.0)
    server.close()


@by_pod(
    wants="keep TLS from all clients by handshakes that are never finished",
    stopped_by="handshakes made in a thread of each connection, within the deadline of its request",
)
def test_handshakes_without_end_hold_up_nobody(hook: Hook) -> None:
    """Twice as many silent connections as there are slots, some within the handshake; reviews are answered."""
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"
    with Idle(hook.server.port, 2 * LIMITS.slots, begin=hello, drip=b"\x03"):
        assert all(hook.allows() for _ in range(5))


@by_pod(
    wants="exhaust health, pages and webhook with a thousand idle connections",
    stopped_by="a bound on connections, the oldest of the greediest source giving way",
)
def test_a_thousand_idle_connections(health: HttpServer, hook: Hook, tmp_path: Path) -> None:
    """Each server has a thousand connections made to it, and answers those who ask."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 8192)), hard))
    with served(tmp_path) as agent:
        targets: list[tuple[int, Callable[[], bool]]] = [
            (health.port, lambda: get(health.port, "/healthz")[0] == 200),
            (agent.port, lambda: get(agent.port, "/metrics", tls=True)[0] == 403),
            (hook.server.port, hook.allows),
        ]
        for port, answers in targets:
            idle = crowd(port, 1000)
            assert answers()
            for sock in idle:
                sock.close()


@by_pod(
    wants="hold all slots of the webhook with connections that asked once and stay open",
    stopped_by="unused connections of the greediest source giving way to new ones",
)
def test_connections_that_asked_once_give_way(hook: Hook) -> None:
    """All slots are kept open after a good review; the API server's new connection is served."""
    streams = []
    for _ in range(LIMITS.slots):
        stream = unverified().wrap_socket(connect(hook.server.port))
        stream.sendall(review())
        assert stream.recv(65536).startswith(b"HTTP/1.1 200")
        streams.append(stream)
    assert hook.allows()
    for stream in streams:
        stream.close()


@by_pod(
    wants="have every write refused: the API server finds the webhook (failurePolicy Fail) without a free slot",
    stopped_by="whole-request deadlines and slots that give way by source",
)
def test_an_api_server_is_answered_among_slow_clients(cluster: Cluster, hook: Hook) -> None:
    """While 300 connections drip into the webhook, the API server's own reviews pass."""
    name = f"{cluster.namespace}.mcagent.test"
    url = f"https://localhost:{hook.server.port}/validate"
    import base64

    webhook = {
        "name": name,
        "clientConfig": {"url": url, "caBundle": base64.b64encode(hook.material.authorities).decode()},
        "rules": [
            {
                "apiGroups": ["multicluster.crd.antrea.io"],
                "apiVersions": ["v1alpha1"],
                "resources": ["gateways"],
                "operations": ["*"],
            }
        ],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": cluster.namespace}},
        "sideEffects": "None",
        "failurePolicy": "Fail",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 5,
    }
    head = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration"}
    path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    cluster.client.request("POST", path, body={**head, "metadata": {"name": name}, "webhooks": [webhook]})
    try:
        with Idle(hook.server.port, 300, begin=b"\x16\x03\x01\x02\x00", drip=b"\x01"):

            def asked() -> bool:
                body = {"apiVersion": "multicluster.crd.antrea.io/v1alpha1", "kind": "Gateway"}
                body |= {"metadata": {"name": "probe"}}  # type: ignore[dict-item]
                assert refusal(cluster.client, "POST", cluster.gateways, body, dryRun="All") is None
                return bool(hook.asked)

            until(asked)
            for number in range(5):
                cluster.create(cluster.gateways, f"g{number}", gatewayIP="10.0.0.1")
    finally:
        cluster.client.request("DELETE", f"{path}/{name}")
    assert {"g0", "g4"} <= {request["name"] for request in hook.asked}


# --- bytes --------------------------------------------------------------------------------------------------


@by_pod(
    wants="fill memory with a header that never ends",
    stopped_by="a bound of 16 KiB on the head, and of 64 headers",
)
def test_endless_headers_are_refused(pages: HttpServer, health: HttpServer) -> None:
    """One long header, and many short ones: refused with 431."""
    assert exchange(pages.port, HEAD + b"X: " + b"a" * (17 * 1024)).startswith(b"HTTP/1.1 431")
    assert exchange(pages.port, HEAD + b"X: a\r\n" * 100 + b"\r\n").startswith(b"HTTP/1.1 431")
    assert exchange(health.port, b"GET /healthz HTTP/1.1\r\nX: " + b"a" * 17 * 1024).startswith(b"HTTP/1.1 431")


@by_pod(
    wants="keep agents and controllers busy for hours with a header, or with a review, that takes long to read",
    stopped_by="readers of text whose time grows as its length does, and 1.5 MiB for a body",
)
def test_texts_that_take_long_are_answered(pages: HttpServer, hook: Hook) -> None:
    """Spaces without a value, and a string that is begun again at every character: each is refused at once."""
    assert exchange(pages.port, HEAD + b"X:" + b" " * 15000 + b"\0\r\n\r\n").startswith(b"HTTP/1.1 400")
    start = b"[" * 66 + b'"'
    body = start + b'[\\"' * ((MAX_BODY - len(start)) // 3)
    head = f"POST /validate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    assert hook.exchange(head.encode() + body).startswith(b"HTTP/1.1 400")
    assert hook.allows()


@by_pod(
    wants="fill the leader's memory with bodies of reviews that never end",
    stopped_by="bounds on one body, refused by its length, and on all that is held, the greediest giving way",
)
def test_bodies_without_end_hold_little_memory() -> None:
    """What is too long is refused unread; of many long ones only so much is kept, and a real review passes."""
    hook = Hook(replace(LIMITS, request_bytes=4 * 1024 * 1024))
    head = "POST /validate HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n"
    for length in (MAX_BODY + 1, 8 * 1024**3, 10**30):
        assert hook.exchange(head.format(length).encode()).startswith(b"HTTP/1.1 413")
    half = head.format(MAX_BODY).encode() + b" " * (1024 * 1024)
    streams = []
    for _ in range(12):
        stream = unverified().wrap_socket(connect(hook.server.port))
        with suppress(OSError):
            stream.sendall(half)
        streams.append(stream)

    def ended() -> int:
        count = 0
        for stream in streams:
            stream.settimeout(0.05)
            try:
                count += stream.recv(1) == b""
            except TimeoutError:
                continue
            except OSError:
                count += 1
        return count

    until(lambda: ended() >= 8, timeout=LIMITS.ask / 2)
    assert hook.allows()
    for stream in streams:
        stream.close()
    hook.server.close()


@by_pod(
    wants="fill the memory of the leader, and keep its processor busy, with many large reviews at once",
    stopped_by="a bound on the reviews in progress, in bytes: a source has as many as it leaves to others",
)
def test_many_large_reviews_leave_room_for_others(hook: Hook) -> None:
    """Of twelve large ones five are in progress, the rest is refused at once; a real review passes."""
    large = review("slow", close=True, padding=MAX_BODY - 1024)
    with ThreadPoolExecutor(12) as pool:
        answers = [pool.submit(hook.exchange, large) for _ in range(12)]
        until(lambda: sum(answer.done() for answer in answers) == 7)
        assert {answer.result()[:12] for answer in answers if answer.done()} == {b"HTTP/1.1 429"}
        assert hook.allows()
        hook.released.set()
    assert sum(answer.result().startswith(b"HTTP/1.1 200") for answer in answers) == 5
    assert hook.allows()


@by_pod(
    wants="ask the webhook anything, as if it were an API server",
    stopped_by="`webhook.clientCA`: TLS needs a client certificate, before a byte of the request is read",
)
def test_only_api_servers_ask(tmp_path: Path) -> None:
    """Without a certificate, and with one that the attacker made, no request is answered."""
    hook = Hook(clients=ClientCertificates(authorities=Authority().pem))
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    for own in (None, Authority().client(tmp_path / "own.pem", "kube-apiserver")):
        if own is not None:
            context.load_cert_chain(own)
        with connect(hook.server.port) as raw, suppress(OSError), context.wrap_socket(raw) as secured:
            secured.sendall(review(close=True))
            assert not secured.recv(4096)
    assert hook.asked == []
    hook.server.close()


SMUGGLED = [  # N is the true length of the body
    "Content-Length: N\r\nContent-Length: 5\r\n",
    "Content-Length: 5\r\nContent-Length: N\r\n",
    "Transfer-Encoding: chunked\r\nContent-Length: N\r\n",
    "Content-Length: N\r\nTransfer-Encoding : chunked\r\n",
    "X: a\r\n Content-Length: 5\r\nContent-Length: N\r\n",
    "X: a\nContent-Length: 5\r\nContent-Length: N\r\n",
    "Content-Length: +N\r\n",
    "Content-Length: N, N\r\n",
    "Content-Length: N\r\nContent-Length: \u0665\r\n",
]


@pytest.mark.parametrize("headers", SMUGGLED)
@by_pod(
    wants="smuggle a request past the webhook inside another one's body, by lengths of two meanings",
    stopped_by="a strict reader: two lengths, transfer codings, folded lines, bare line ends are refused",
)
def test_ambiguous_lengths_are_refused(hook: Hook, headers: str) -> None:
    """The server answers once, with a refusal, and closes; what follows is not read as a request."""
    body = review().partition(b"\r\n\r\n")[2]
    head = re.sub(r"\bN\b", str(len(body)), headers)
    answer = hook.exchange(
        f"POST /validate HTTP/1.1\r\nHost: x\r\n{head}\r\n".encode() + body + review("smuggled")
    )
    assert answer.count(b"HTTP/1.1 ") <= 1
    assert not answer.startswith(b"HTTP/1.1 2")
    assert hook.asked == []


@by_pod(
    wants="get hidden pages by odd paths and methods: dots, doubled or quoted slashes, whole URLs, TRACE, CONNECT",
    stopped_by="pages that have one spelling, two methods, and a token asked for before any is made",
)
def test_odd_paths_and_methods_get_nothing(tmp_path: Path, health: HttpServer) -> None:
    """No spelling but the page's own is found, and that one takes a token."""
    paths = [
        "/../status",
        "//status",
        "/%73tatus",
        "/healthz/../status",
        "http://x/status",
        "*",
        "/status/",
        "/STATUS",
    ]
    requests = [f"GET {path}" for path in paths]
    requests += [f"{method} /status" for method in ("TRACE", "CONNECT", "POST", "OPTIONS", "get", "")]
    requests += ["GET /status?a", "GET  /status", "GET\t/status"]
    with served(tmp_path) as agent:
        for request in requests:
            text = f"{request} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
            for answer in (exchange(agent.port, text, tls=True), exchange(health.port, text)):
                assert answer[9:12] in (b"400", b"403", b"404", b"405", b"501"), request
                assert b"n1" not in answer
