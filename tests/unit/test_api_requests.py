"""Requests to an API server, without a network: what is sent, what is read of answers, words for failures."""

from __future__ import annotations

import json
import socket
import ssl
from http.client import IncompleteRead, RemoteDisconnected
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from urllib3 import exceptions
from websocket import WebSocketBadStatusException

from mcagent.kube import stream as stream_module
from mcagent.kube.bearer import BearerAccess, bearer_access
from mcagent.kube.client import MAX_ANSWER, Client
from mcagent.kube.credentials import token_kubeconfig
from mcagent.kube.errors import (
    ApiGarbageError,
    ApiRefusalError,
    ApiTooLargeError,
    ApiUnreachableError,
    CredentialsError,
    ExpiredError,
    metric_word,
    status_error,
    words_of,
)
from mcagent.kube.execute import execute
from mcagent.kube.source import checked_object
from mcagent.kube.stream import Stream
from mcagent.kube.version import server_version
from mcagent.model.errors import SourceError
from mcagent.model.objects import Kind

SERVER = "http://192.0.2.1:6443"


class Response:
    """An answer of urllib3: blocks of bytes, the last of which may be an error."""

    def __init__(self, *blocks: bytes | Exception, status: int = 200, **headers: str) -> None:
        self.blocks, self.status = list(blocks), status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}
        self.closed = False

    def read1(self, _most: int) -> bytes:
        """Return the next block."""
        block = self.blocks.pop(0) if self.blocks else b""
        if isinstance(block, Exception):
            raise block
        return block

    def close(self) -> None:
        """Close it."""
        self.closed = True


class Pool:
    """Connections whose answers are given."""

    def __init__(self) -> None:
        self.answers: list[Response | Exception] = []
        self.requests: list[tuple[str, str, dict[str, Any]]] = []
        self.cleared = 0

    def clear(self) -> None:
        """Count it."""
        self.cleared += 1

    def request(self, method: str, url: str, **options: Any) -> Response:
        """Return the next answer."""
        self.requests.append((method, url, options))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def pool() -> Pool:
    """Give connections."""
    return Pool()


@pytest.fixture
def client(pool: Pool) -> Client:
    """Give a client that uses them."""
    new_client = Client(token_kubeconfig(SERVER, b"", "t0ken"), user_agent="tester")
    new_client.credentials.pool = pool
    return new_client


# --- what is sent -----------------------------------------------------------------------------------------


def test_what_is_sent(client: Client, pool: Pool) -> None:
    """Who asks, what for, and how long an answer may take; no redirect or second attempt of the library."""
    pool.answers = [Response(b'{"a": 1}'), Response(b"7"), Response(b"8")]
    assert client.request("GET", "/a", {"x": "1 2"}, timeout=4.0) == {"a": 1}
    assert client.request("PATCH", "/b", body={"c": 2}, content_type="application/merge-patch+json") == 7
    assert client.request("POST", "/c", body=b"raw") == 8
    (first, second, third) = pool.requests
    method, url, options = first
    assert (method, url) == ("GET", f"{SERVER}/a?x=1+2")
    timeout = options.pop("timeout")
    assert (timeout.total, timeout.connect_timeout, timeout._read) == (4.0, 4.0, 4.0)
    headers = {"Accept": "application/json", "User-Agent": "tester", "authorization": "Bearer t0ken"}
    assert options == {"body": None, "headers": headers, "preload_content": False, "retries": False}
    assert second[:2] == ("PATCH", f"{SERVER}/b")
    assert second[2]["body"] == b'{"c": 2}'
    assert second[2]["headers"] == headers | {"Content-Type": "application/merge-patch+json"}
    timeout = second[2]["timeout"]
    assert (timeout.total, timeout.connect_timeout, timeout._read) == (30.0, 10.0, 30.0)
    assert third[2]["body"] == b"raw"
    assert third[2]["headers"]["Content-Type"] == "application/json"


def test_a_watch_has_no_deadline(client: Client, pool: Pool) -> None:
    """Only a time without a byte ends it."""
    pool.answers = [Response(b"{}\n")]
    with client.watch("/w", {"watch": "true"}, inactivity=77.0) as stream:
        assert list(stream.lines()) == [b"{}"]
    ((method, url, options),) = pool.requests
    assert (method, url) == ("GET", f"{SERVER}/w?watch=true")
    assert (options["timeout"].total, options["timeout"]._read, options["timeout"]._connect) == (None, 77.0, 10.0)


def test_an_answer_as_it_is(client: Client, pool: Pool) -> None:
    """In the form that was asked for, and no larger than allowed."""
    pool.answers = [Response(b"[1", b"]"), Response(b"12345"), Response(b"1234")]
    assert client.get("/l", {"limit": "5"}, timeout=3.0, accept="application/x") == b"[1]"
    assert pool.requests[0][2]["headers"]["Accept"] == "application/x"
    assert pool.requests[0][2]["timeout"].total == 3.0
    with pytest.raises(ApiTooLargeError, match=r"^http://192.0.2.1:6443: GET /l: an answer of more than 4 bytes$"):
        client.get("/l", {}, timeout=3.0, most=4)
    assert client.get("/l", {}, timeout=3.0, most=4) == b"1234"
    assert MAX_ANSWER == 256 * 1024 * 1024


def test_the_object_at_a_path(client: Client, pool: Pool) -> None:
    """None is there, or it, or an error."""
    pool.answers = [
        Response(b'{"kind": "X"}'),
        Response(b"{}", status=404),
        Response(b"{}", status=403),
        Response(b"[]"),
    ]
    assert client.find("/o") == {"kind": "X"}
    assert client.find("/o") is None
    with pytest.raises(ApiRefusalError, match="not allowed"):
        client.find("/o")
    with pytest.raises(ApiGarbageError, match=f"^{SERVER}: the answer is not an object$"):
        client.find("/o", timeout=2.0)
    assert [options["timeout"].total for _, _, options in pool.requests] == [30.0, 30.0, 30.0, 2.0]


def test_an_answer_that_is_not_json(client: Client, pool: Pool) -> None:
    """The error shows its beginning."""
    pool.answers = [Response(b"<html>"), Response(b"<" + b"x" * 60)]
    with pytest.raises(ApiGarbageError, match=f"^{SERVER}: PUT /a: the answer is not JSON: '<html>'$"):
        client.request("PUT", "/a")
    with pytest.raises(ApiGarbageError, match=f"'<{'x' * 59}'…$"):
        client.request("PUT", "/a")


def test_a_refusal_is_an_error_with_the_words_of_the_server(client: Client, pool: Pool) -> None:
    """Its status, its reason, and when to come again."""
    status = {"kind": "Status", "message": "slow down", "reason": "TooManyRequests", "code": 500}
    pool.answers = [
        Response(json.dumps(status).encode(), status=429, Retry_After="7"),
        Response(json.dumps({"message": "no Status"}).encode(), status=302, Retry_After="soon"),
        Response(json.dumps(["x"]).encode(), status=300),
    ]
    with pytest.raises(ApiRefusalError) as refused:
        client.request("GET", "/a")
    assert str(refused.value) == f"{SERVER}: GET /a: too many requests: slow down"
    assert (refused.value.code, refused.value.reason, refused.value.retry_after) == (429, "TooManyRequests", 7.0)
    with pytest.raises(ApiRefusalError) as refused:
        client.request("GET", "/a")
    assert str(refused.value) == f"{SERVER}: GET /a: HTTP 302"
    assert (refused.value.code, refused.value.reason, refused.value.retry_after) == (302, "", 0.0)
    with pytest.raises(ApiRefusalError, match=r"HTTP 300$"):
        client.request("GET", "/a")


@pytest.fixture
def kubeconfig(pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the file of a kubeconfig; each client that reads it uses the connections."""
    monkeypatch.setattr(BearerAccess, "pool", lambda _access, **_options: pool)
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(token_kubeconfig(SERVER, b"", "first")))
    return path


@pytest.mark.parametrize(
    "answer", [Response(b"", status=403), Response(b"", status=500), ConnectionRefusedError()]
)
def test_other_failures_read_no_credentials(answer: Response | Exception, pool: Pool, kubeconfig: Path) -> None:
    """They say nothing of who we are."""
    client = Client(str(kubeconfig))
    credentials = client.credentials
    pool.answers = [answer]
    with pytest.raises(SourceError):
        client.request("GET", "/a")
    assert (client.credentials is credentials, pool.cleared) == (True, 0)


def test_credentials_that_are_refused_are_read_again(
    pool: Pool, kubeconfig: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The next request has those that the kubeconfig has by then, on another connection."""
    client = Client(str(kubeconfig))
    pool.answers = [Response(b"", status=401) for _ in range(3)]
    replaced = json.dumps(token_kubeconfig(SERVER, b"", "second"))
    for text, message in ((replaced, ""), ("{", f"kubeconfig {kubeconfig}: cannot be used"), (replaced, "")):
        caplog.clear()
        kubeconfig.write_text(text)
        with pytest.raises(ApiRefusalError, match=r"the credentials were refused"):
            client.request("GET", "/a")
        assert caplog.text.count("cannot be used") == bool(message)
        assert message in caplog.text
        assert client.credentials.token() == "second"
    assert pool.cleared == 2


def test_credentials_that_cannot_be_read_are_read_again(pool: Pool, kubeconfig: Path, tmp_path: Path) -> None:
    """A kubeconfig may name another file for its token."""
    document = token_kubeconfig(SERVER, b"", "")
    document["users"][0]["user"] = {"tokenFile": str(tmp_path / "token")}
    kubeconfig.write_text(json.dumps(document))
    client = Client(str(kubeconfig))
    kubeconfig.write_text(json.dumps(token_kubeconfig(SERVER, b"", "second")))
    with pytest.raises(CredentialsError):
        client.request("GET", "/a")
    pool.answers = [Response(b"7")]
    assert client.request("GET", "/a") == 7
    assert pool.requests[0][2]["headers"]["authorization"] == "Bearer second"


def test_a_kubeconfig_that_was_replaced_is_read_if_the_server_does_not_answer(
    pool: Pool, kubeconfig: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It may name another server, or another authority of its certificate; one that is the same is not read."""
    client = Client(str(kubeconfig))
    first, elsewhere = client.credentials, "http://192.0.2.9:6443"
    reason = exceptions.SSLError(ssl.SSLCertVerificationError("unable to get local issuer certificate"))

    def fail() -> None:
        pool.answers = [reason]
        with pytest.raises(ApiUnreachableError, match="issuer"):
            client.request("GET", "/a")

    fail()
    kubeconfig.unlink()
    fail()
    assert (client.credentials is first, caplog.messages) == (True, [])
    kubeconfig.write_text("{")
    fail()
    assert client.credentials is first
    assert f"kubeconfig {kubeconfig}: cannot be used" in caplog.text
    kubeconfig.write_text(json.dumps(token_kubeconfig(elsewhere, b"", "second")))
    fail()
    pool.answers = [Response(b"7")]
    assert client.request("GET", "/a") == 7
    assert pool.requests[-1][1] == f"{elsewhere}/a"
    renewed = client.credentials
    fail()
    assert client.credentials is renewed


def test_two_threads_whose_credentials_are_refused_read_them_once(pool: Pool, kubeconfig: Path) -> None:
    """The other one's have been replaced by then, and the connections of the new ones stay."""
    client = Client(str(kubeconfig))
    first, respond = client.credentials, pool.request

    def late(*arguments: Any, **options: Any) -> Response:
        client._renew(first)  # as the other thread does, whose request was refused before
        return respond(*arguments, **options)

    pool.request = late  # type: ignore[method-assign]
    pool.answers = [Response(b"", status=401)]
    with pytest.raises(ApiRefusalError):
        client.request("GET", "/a")
    assert (client.credentials is not first, pool.cleared) == (True, 1)


def test_no_answer(client: Client, pool: Pool) -> None:
    """The error says for what, and why."""
    pool.answers = [ConnectionRefusedError()]
    with pytest.raises(ApiUnreachableError, match=f"^{SERVER}: GET /a: connection refused$"):
        client.request("GET", "/a")


@pytest.mark.parametrize(
    ("date", "ahead"),
    [("Tue, 14 Nov 2023 22:13:20 GMT", 0.0), ("Tue, 14 Nov 2023 22:14:20 GMT", 60.0), ("x", None)],
)
def test_the_clock_of_the_server(
    date: str, ahead: float | None, client: Client, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the date of an answer, which has whole seconds, compared to the middle of the request."""
    times = iter([1_700_000_000.0, 1_700_000_001.0])
    monkeypatch.setattr("mcagent.kube.client.time", SimpleNamespace(time=lambda: next(times)))
    pool.answers = [Response(b"", Date=date)]
    assert client.clock(timeout=2.0) == ahead
    assert pool.requests[0][:2] == ("GET", f"{SERVER}/version")
    assert pool.requests[0][2]["timeout"].total == 2.0


def test_a_client_that_takes_other_credentials(client: Client, pool: Pool) -> None:
    """The next request has them; what cannot be used changes nothing."""
    client.use(token_kubeconfig("http://192.0.2.9:1", b"", "other"))
    assert (client.server, client.credentials.token()) == ("http://192.0.2.9:1", "other")
    with pytest.raises(SourceError):
        client.use({"kind": "Config"})
    assert (client.server, pool.cleared) == ("http://192.0.2.9:1", 1)


def test_the_version_of_the_server(client: Client, pool: Pool) -> None:
    """It is asked at the path that all users may read; an answer without one is no API server's."""
    pool.answers = [Response(b'{"gitVersion": "v1.30.2"}'), *(Response(text) for text in (b"{}", b"[]", b"7"))]
    pool.answers.append(Response(b'{"gitVersion": "latest"}'))
    assert server_version(client, timeout=3.0) == "v1.30.2"
    method, url, options = pool.requests[0]
    assert (method, url, options["timeout"].total) == ("GET", f"{SERVER}/version", 3.0)
    for _ in range(4):
        with pytest.raises(ApiGarbageError, match=f"^{SERVER}: /version has no gitVersion"):
            server_version(client)
    assert pool.requests[1][2]["timeout"].total == 10.0


def test_who_the_client_is(tmp_path: Path) -> None:
    """Without a token it is anonymous; a kubeconfig may hold the authority that signs the server's certificate."""
    assert Client(token_kubeconfig(SERVER, b"", "")).credentials.token() == ""
    assert Client(token_kubeconfig(SERVER, b"", "t0ken")).credentials.token() == "t0ken"
    access = bearer_access(token_kubeconfig("https://192.0.2.1", b"an authority", "t"), "")
    assert access is not None
    assert (access.ca_data, access.ca_file) == ("an authority", None)
    # Another access than by a token: contexts are chosen by the official client's rules.
    document = token_kubeconfig("http://192.0.2.1", b"", "")
    document["users"] = [{"name": "u", "user": {"username": "a", "password": "b"}}]
    document["clusters"].append({"name": "d", "cluster": {"server": "http://192.0.2.2"}})
    document["contexts"].append({"name": "y", "context": {"cluster": "d", "user": "u"}})
    file = tmp_path / "config"
    file.write_text(json.dumps(document))
    assert [Client(str(file), context).server[-1] for context in ("", "x", "y")] == ["1", "1", "2"]
    with pytest.raises(SourceError, match=r'has no context "other"; it has x, y$'):
        Client(str(file), "other")


@pytest.mark.parametrize(
    ("answer", "usable"),
    [
        ({"kind": "Node", "metadata": {"name": "a", "resourceVersion": "7"}}, True),
        ({"kind": "Node", "metadata": {"name": "a", "resourceVersion": ""}}, False),
        ({"kind": "Node", "metadata": {"name": "a", "resourceVersion": 7}}, False),
        ({"kind": "Pod", "metadata": {"name": "a", "resourceVersion": "7"}}, False),
        ({"kind": "Node", "metadata": {"resourceVersion": "7"}}, False),
        ([], False),
    ],
)
def test_an_answer_that_must_be_an_object(answer: Any, usable: bool) -> None:
    """Of its kind, with a name and a version."""
    if usable:
        assert checked_object(answer, Kind.NODE, "here") is answer
    else:
        with pytest.raises(ApiGarbageError, match=r"^here: the answer is no Node$"):
            checked_object(answer, Kind.NODE, "here")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"message": "no Pod", "reason": "NotFound"}', "no Pod"),
        (b"no \xff kubelet", "no \ufffd kubelet"),
        (b"[]", "HTTP 502"),
        (None, "HTTP 502"),
    ],
)
def test_a_command_that_is_refused(
    body: bytes | None, text: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error has the words of the API server, or of what stands in its place."""

    def refuse(_path: str, _query: object) -> None:
        raise WebSocketBadStatusException("refused", 502, resp_body=body)

    monkeypatch.setattr(client.credentials, "stream", refuse)
    with pytest.raises(ApiRefusalError) as refused:
        execute(client, namespace="n", pod="p", container="c", command=["ls"], timeout=1.0, most=9)
    assert str(refused.value).startswith(f"{SERVER}: exec in n/p: HTTP 502")
    assert text in str(refused.value)


# --- what is read -----------------------------------------------------------------------------------------


def stream(*blocks: bytes | Exception) -> Stream:
    """Return an answer that is being read."""
    return Stream(Response(*blocks), "here")


def test_lines_come_whole() -> None:
    """However the answer is cut into blocks; empty ones are left out, and the last needs no end."""
    blocks = (b"on", b"e\n", b"\n  \ntwo\nthr", b"e", b"e\r\nfo", b"ur")
    assert list(stream(*blocks).lines()) == [b"one", b"two", b"three", b"four"]
    assert list(stream().lines()) == []
    assert list(stream(b"one\n", b"  ").lines()) == [b"one"]


def test_a_line_that_is_too_long_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told once, and the lines after it come."""
    monkeypatch.setattr(stream_module, "MAX_LINE", 4)
    calls: list[int] = []
    blocks = (b"1234\n12345\nab\n", b"123", b"45", b"6\ncd\n", b"12", b"34\n", b"1234", b"5")
    assert list(stream(*blocks).lines(lambda: calls.append(1))) == [b"1234", b"ab", b"cd", b"1234"]
    assert len(calls) == 2
    assert list(stream(b"12345\nab").lines()) == [b"ab"]
    assert list(stream(b"1234").lines()) == [b"1234"]


def test_a_connection_that_is_cut_ends_the_lines() -> None:
    """Those that came whole are given; the error says what broke."""
    lines = stream(b"one\ntw", IncompleteRead(b"")).lines()
    assert next(lines) == b"one"
    with pytest.raises(ApiUnreachableError, match=r"^here: the answer was truncated$"):
        next(lines)


def test_an_answer_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that drip do not extend its time."""
    times = iter([100.0, 104.0, 105.0, 105.5])
    monkeypatch.setattr("mcagent.kube.stream.time", SimpleNamespace(monotonic=lambda: next(times)))
    with pytest.raises(ApiUnreachableError, match=r"^here: the answer takes longer than 5 s$"):
        stream(b"a", b"b", b"c", b"d").read(5.0, 100)


def test_an_answer_is_closed_and_can_be_aborted() -> None:
    """From another thread: the socket is shut down; one that is gone is no error."""
    near_end, far_end = socket.socketpair()
    with far_end, near_end:
        response = Response(b"x", Date="now")
        response.connection = SimpleNamespace(sock=near_end)  # type: ignore[attr-defined]
        with Stream(response, "here") as answer:
            assert (answer.header("Date"), answer.header("Other")) == ("now", "")
            answer.abort()
            assert far_end.recv(1) == b""
        assert response.closed
    answer.abort()
    stream().abort()


# --- words ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "reason", "message", "text"),
    [
        (401, "", "", "x: the credentials were refused"),
        (403, "", "no", "x: not allowed: the role lacks a rule for it: no"),
        (403, "", 'admission webhook "w" denied the request: no', "refused by admission"),
        (403, "", "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no", "refused by admission"),
        (
            404,
            "",
            "page not found",
            "x: the server has no such resource (are the CRDs installed?): page not found",
        ),
        (404, "", 'nodes "n" not found', 'x: nodes "n" not found'),
        (500, "", "", "x: HTTP 500"),
    ],
)
def test_refusals_in_plain_words(code: int, reason: str, message: str, text: str) -> None:
    """What a status code means, and what the server says."""
    error = status_error("x", {"code": code, "reason": reason, "message": message})
    assert text in str(error)
    assert type(error) is ApiRefusalError
    assert str(error).startswith("x: ")
    assert error.retry_after == 0.0


@pytest.mark.parametrize(("code", "reason"), [(410, ""), (500, "Expired"), (400, "Gone")])
def test_history_that_is_lost(code: int, reason: str) -> None:
    """By the code or the reason."""
    assert type(status_error("x", {"code": code, "reason": reason})) is ExpiredError


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (ExpiredError("x", code=410), "expired"),
        (ApiTooLargeError("x"), "garbage"),
        (ApiUnreachableError("x"), "unreachable"),
        (ApiRefusalError("x", code=401), "unauthorized"),
        (ApiRefusalError("x", code=403), "forbidden"),
        (ApiRefusalError("x", code=404), "missing"),
        (ApiRefusalError("x", code=499), "refused"),
        (ApiRefusalError("x", code=500), "server-error"),
        (CredentialsError("x"), "other"),
    ],
)
def test_failures_as_labels_of_metrics(error: SourceError, word: str) -> None:
    """A few words: each is a time series."""
    assert metric_word(error) == word


def caused(outer: BaseException, inner: BaseException) -> BaseException:
    """Return an error with a cause."""
    outer.__cause__ = inner
    return outer


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "connection refused"),
        (caused(exceptions.HTTPError("x"), ConnectionRefusedError()), "connection refused"),
        (exceptions.MaxRetryError(None, "/", ConnectionRefusedError()), "connection refused"),  # type: ignore[arg-type]
        (exceptions.NameResolutionError("h", None, socket.gaierror()), "the server's name cannot be resolved"),  # type: ignore[arg-type]
        (exceptions.ReadTimeoutError(None, "/", "x"), "no answer in time"),  # type: ignore[arg-type]
        (RemoteDisconnected("x"), "the connection was cut"),
        (ConnectionResetError(104, "reset"), "the connection was cut"),
        (BrokenPipeError(), "the connection was cut"),
        (IncompleteRead(b""), "the answer was truncated"),
        (ssl.SSLError(1, "unknown authority"), "TLS: "),
        (OSError(101, "Network is unreachable"), "Network is unreachable"),
        (exceptions.ConnectTimeoutError("x"), "no connection in time"),
        (exceptions.HTTPError("odd"), "HTTPError: odd"),
        (OSError("secret"), "OSError"),
        (ValueError("secret"), "ValueError"),
    ],
)
def test_failures_in_plain_words(error: BaseException, words: str) -> None:
    """The most telling of an error and its causes; texts that may repeat what was sent are left out."""
    assert words_of(error).startswith(words)
    assert "secret" not in words_of(error)
