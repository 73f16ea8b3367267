"""Reading requests, choosing who gives way, certificates, reviews, and which server an address gets."""

from __future__ import annotations

import contextlib
import resource
import socket
import ssl
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mcagent.agent.config import Settings
from mcagent.agent.lock import BusyError, node_lock
from mcagent.agent.reports.servers import AgentServers
from mcagent.cli.common.asking import ask_agent
from mcagent.http.certificates import FromDirectory, self_signed
from mcagent.http.connection import ClientConnection
from mcagent.http.listener import oldest_of_most
from mcagent.http.listening import Authentication, bound, client_source, is_loopback
from mcagent.http.request import BadRequestError, parse_head
from mcagent.http.server import LIMITS, Page, bearer
from mcagent.kube.client import Client as ApiClient
from mcagent.kube.credentials import token_kubeconfig
from mcagent.kube.errors import ApiUnreachableError
from mcagent.kube.reviews import Reviewer, ReviewLimits
from mcagent.model.config import Config
from mcagent.model.errors import McagentError


def test_who_cannot_listen_says_where(tmp_path: Path) -> None:
    """Address and port, or path, and why."""
    address = bound(("127.0.0.1", 0))
    port = address.getsockname()[1]
    with address, pytest.raises(OSError, match=rf"cannot listen on 127\.0\.0\.1:{port}: Address already in use"):
        bound(("127.0.0.1", port))
    with pytest.raises(OSError, match=r"cannot listen on \[2001:db8::1\]:80: Cannot assign requested address"):
        bound(("2001:db8::1", 80))
    with pytest.raises(OSError, match=rf"cannot listen on {tmp_path}/missing/x: No such file"):
        bound(tmp_path / "missing/x")


def test_a_head_is_read() -> None:
    """Method, path without its query, headers in lower case, and whether the connection stays."""
    head = parse_head(b"GET /status?x=1 HTTP/1.1\r\nHost: a\r\nAUTHORIZATION:  Bearer abc ")
    assert (head.method, head.path, head.keeps) == ("GET", "/status", True)
    assert bearer(head.headers["authorization"]) == "abc"
    assert not parse_head(b"GET / HTTP/1.1\r\nConnection: close").keeps
    assert not parse_head(b"GET / HTTP/1.0").keeps
    assert parse_head(b"POST / HTTP/1.1\r\nContent-Length: 12").length(12) == 12


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (b"GET /", 400),
        (b"GET  / HTTP/1.1", 400),
        (b"GET / HTTP/2.0", 400),
        (b"GET http://x/ HTTP/1.1", 400),
        (b"GET /\xff HTTP/1.1", 400),
        (b"GET / HTTP/1.1\r\nA : b", 400),
        (b"GET / HTTP/1.1\r\nA: b\r\n c: d", 400),
        (b"GET / HTTP/1.1\r\nA: b\nC: d", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nhost: b", 400),
        (b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked", 411),
        (b"GET / HTTP/1.1" + b"\r\nA: b" * 65, 431),
    ],
)
def test_what_two_could_read_differently_is_refused(text: bytes, status: int) -> None:
    """The status says why."""
    with pytest.raises(BadRequestError) as caught:
        parse_head(text)
    assert caught.value.status == status


@pytest.mark.parametrize(
    ("length", "status"), [("", 411), ("-1", 411), ("1e3", 411), ("\u00b2", 411), ("101", 413), ("9" * 30, 413)]
)
def test_bodies_have_a_length_and_a_bound(length: str, status: int) -> None:
    """Neither a missing nor a strange nor a large one is taken."""
    head = parse_head(f"POST / HTTP/1.1\r\nContent-Length: {length}".encode("latin-1"))
    with pytest.raises(BadRequestError) as caught:
        head.length(100)
    assert caught.value.status == status


def waiting(source: str, since: float) -> ClientConnection:
    """Return a connection that waits since then."""
    sock = socket.socket()
    sock.close()
    return ClientConnection(stream=sock, handle=sock, source=source, since=since, deadline=0.0, limits=LIMITS)


def test_the_greediest_source_gives_way_first() -> None:
    """Not the oldest of all, but the oldest of those whose source has most."""
    kubelet, greedy = waiting("node", 1.0), [waiting("pod", 2.0 + number) for number in range(3)]
    assert oldest_of_most([kubelet, *reversed(greedy)]) == greedy[0]
    assert oldest_of_most([kubelet, greedy[0]]) == kubelet
    assert oldest_of_most([]) is None


def test_sources_are_addresses_or_prefixes() -> None:
    """An IPv6 host has a whole /64 to choose from, so that counts as one."""
    assert client_source(("10.0.0.1", 5)) == client_source(("::ffff:10.0.0.1", 6, 0, 0)) == "10.0.0.1"
    assert client_source(("2001:db8::1", 5, 0, 0)) == client_source(("2001:db8::ffff:2", 5, 0, 0))
    assert client_source(("2001:db8:0:1::1", 5, 0, 0)) != client_source(("2001:db8::1", 5, 0, 0))
    assert client_source("") == "local"
    assert is_loopback("127.9.9.9")
    assert is_loopback("::1")
    assert is_loopback("localhost")
    assert not is_loopback("0.0.0.0")


def test_a_kept_certificate_is_read_again(tmp_path: Path) -> None:
    """None until there is one, a new one when it changes, the old one when the new one is unusable."""
    certificate = FromDirectory(tmp_path, period=0.0)
    assert certificate() is None
    contexts: list[ssl.SSLContext | None] = []
    for _ in range(2):
        for name, text in zip(("tls.crt", "tls.key"), self_signed("n1", datetime.now(UTC)), strict=True):
            (tmp_path / name).write_bytes(text)
        contexts.append(certificate())
        assert certificate() is contexts[-1]
    assert None not in contexts
    assert contexts[0] is not contexts[1]
    (tmp_path / "tls.crt").write_text("nonsense")
    assert certificate() is contexts[1]


class Api:
    """An API server that says what it is told to."""

    def __init__(self) -> None:
        self.asked: list[Mapping[str, Any]] = []
        self.answers: dict[str, Any] = {
            "TokenReview": {"authenticated": True, "user": {"username": "u", "groups": ["g"], "uid": "1"}},
            "SubjectAccessReview": {"allowed": True},
        }

    def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        body: Any = None,
        timeout: float = 30.0,
    ) -> Any:
        """Answer a review."""
        self.asked.append(body)
        return {"status": self.answers[body["kind"]]}


def test_reviews_ask_for_the_user_and_the_page() -> None:
    """The second review names what the first one found, and the path; both answers are kept for a while."""
    api, now = Api(), [0.0]
    reviewer = Reviewer(api.request, ReviewLimits(good_for=60, bad_for=10), clock=lambda: now[0])
    assert reviewer("token-abc", "/metrics", "a") == 200
    assert api.asked[1]["spec"] == {
        "user": "u",
        "groups": ["g"],
        "uid": "1",
        "nonResourceAttributes": {"path": "/metrics", "verb": "get"},
    }
    now[0] = 59.0
    assert reviewer("token-abc", "/metrics", "a") == 200
    assert len(api.asked) == 2
    api.answers["SubjectAccessReview"] = {"allowed": False}
    now[0] = 61.0
    assert reviewer("token-abc", "/metrics", "a") == 403
    api.answers["SubjectAccessReview"] = {"allowed": True}
    now[0] = 70.0
    assert reviewer("token-abc", "/metrics", "a") == 403
    now[0] = 72.0
    assert reviewer("token-abc", "/metrics", "a") == 200


@pytest.mark.parametrize(
    "answer", [None, [], "yes", {"authenticated": "true"}, {"authenticated": True, "user": []}]
)
def test_strange_answers_let_nobody_in(answer: Any) -> None:
    """Only a whole answer of the right form counts."""
    api = Api()
    api.answers["TokenReview"] = answer
    assert Reviewer(api.request)("token-abc", "/metrics", "a") in (401, 503)
    assert Reviewer(api.request)("no token", "/metrics", "a") == 401


def test_guesses_are_limited_by_source_and_in_all() -> None:
    """Five at once and one a second from each source, twenty in all; who is known to be good is not counted."""
    api, now = Api(), [0.0]
    reviewer = Reviewer(api.request, clock=lambda: now[0])
    assert reviewer("token-good", "/metrics", "good") == 200
    api.answers["TokenReview"] = {}

    def guesses(source: str, count: int) -> list[int]:
        return [reviewer(f"token-{source}-{now[0]}-{number}", "/metrics", source) for number in range(count)]

    assert guesses("a", 7) == [401] * 5 + [429] * 2
    now[0] = 2.0
    assert guesses("a", 3) == [401] * 2 + [429]
    assert [guesses(source, 6) for source in "bcd"] == [[401] * 5 + [429]] * 3
    assert [status for source in "efg" for status in guesses(source, 5)].count(401) == 20 - 15 - 2
    now[0] = 61.0
    api.answers["TokenReview"] = {"authenticated": True, "user": {"username": "u"}}
    assert reviewer("token-good", "/metrics", "a") == 200


def test_reviews_that_fail_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """With the reason; what is not known to be good is refused until the API server answers."""
    api, now = Api(), [0.0]
    reviewer = Reviewer(api.request, clock=lambda: now[0])
    api.answers["TokenReview"] = None
    assert [reviewer(f"token-{number}", "/metrics", "a") for number in range(1000, 1003)] == [503] * 3
    failure = "tokens cannot be reviewed: TokenReview: the answer has no status"
    assert caplog.messages == [failure]
    api.answers["TokenReview"] = {"authenticated": True, "user": {"username": "u"}}
    assert reviewer("token-1", "/metrics", "b") == 401  # too short: not even asked
    assert reviewer("token-0001", "/metrics", "b") == 200
    api.answers["TokenReview"] = None
    now[0] = 61.0  # who was good is so for five minutes more, if no review can be made
    assert reviewer("token-0001", "/metrics", "b") == 200
    assert reviewer("token-0001", "/other", "c") == 503
    now[0] = 360.0
    assert reviewer("token-0001", "/metrics", "b") == 503
    assert caplog.messages == [failure] * 2


def test_commands_of_the_node_ask_over_a_socket_of_root(tmp_path: Path) -> None:
    """Where others need a token, this Node's commands are answered; on the loopback as ever."""
    pages = {"/status": lambda: Page(body='{"node": "n1"}')}
    core = Config(node_name="n1")
    settings = {"core": core, "source": "dir:/nowhere", "run_dir": str(tmp_path), "health_listen": "0"}
    abroad = Settings(**settings, listen="0.0.0.0:0")  # type: ignore[arg-type]
    servers = AgentServers(abroad, pages)
    assert ask_agent(abroad) == {"node": "n1"}
    servers.close()
    assert not list(tmp_path.glob("*.sock"))
    with pytest.raises(McagentError, match=r"status\.sock"):
        ask_agent(abroad)
    home = Settings(**settings, listen="127.0.0.1:0")  # type: ignore[arg-type]
    assert not home.requires_token
    opened = Settings(**settings, listen="0.0.0.0:0", metrics_authentication=Authentication.NONE)  # type: ignore[arg-type]
    servers = AgentServers(opened, pages)
    with socket.create_connection(("127.0.0.1", servers.port)) as connection:
        connection.sendall(b"GET /status HTTP/1.1\r\n\r\n")
        assert b"200 OK" in connection.recv(999)
    servers.close()


def test_nobody_else_can_hold_the_agents_lock(tmp_path: Path) -> None:
    """flock(2) needs no more than an open file: only root may open this one, also when it is an old one."""
    (tmp_path / "agent.lock").touch(mode=0o644)
    with node_lock(tmp_path):
        assert (tmp_path / "agent.lock").stat().st_mode & 0o777 == 0o600


def test_a_full_disk_does_not_keep_the_agent_from_its_node(tmp_path: Path) -> None:
    """The file's content only names the holder in the message of another agent."""
    former = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, former[1]))  # bytes that a file may get
    try:
        with node_lock(tmp_path), pytest.raises(BusyError, match=r"another agent \(process unknown\)"):
            node_lock(tmp_path).__enter__()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, former)


@pytest.mark.parametrize("head", ["Content-Length: 1000\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n3e8\r\n"])
def test_an_answer_that_drips_ends_in_time(head: str) -> None:
    """The time of a request is for the whole of it, however often a byte comes."""
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def drip() -> None:
            connection, _ = listening.accept()
            connection.recv(9999)
            connection.sendall(f"HTTP/1.1 200 OK\r\n{head}".encode())
            with connection, contextlib.suppress(OSError):
                while not stop.wait(0.05):
                    connection.sendall(b"[")

        server = threading.Thread(target=drip)
        server.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        client = ApiClient(token_kubeconfig(url, b"", "x"))
        with pytest.raises(ApiUnreachableError, match="takes longer"):
            client.request("GET", "/api", timeout=0.5)
        client.close()
        stop.set()
        server.join()


def test_connections_are_used_again(tmp_path: Path) -> None:
    """Answers are read to their end: five requests make one connection."""
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(10)

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                while connection.recv(9999):
                    connection.sendall(answer)

        server = threading.Thread(target=serve)
        server.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        client = ApiClient(token_kubeconfig(url, b"", "x"))
        assert [client.request("GET", "/api", timeout=5.0) for _ in range(5)] == [{}] * 5
        client.close()
        server.join()
