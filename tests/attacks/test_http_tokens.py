"""Attacks on pages that are not for everybody: tokens, and a real API server that vouches for them."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from mcagent.http.server import Action, HttpServer, Page
from mcagent.http.serving import serve_health
from mcagent.kube.client import Client
from mcagent.kube.credentials import token_kubeconfig
from mcagent.kube.errors import ApiUnreachableError
from mcagent.kube.reviews import Reviewer, ReviewLimits
from tests.attacks.catalogue import Attacker, Group, attack
from tests.attacks.http_clients import ATTACKER, PAGES, connect, exchange, get, served
from tests.waiting import until
from tests.worlds.apiservers import Cluster

pytestmark = pytest.mark.real_only  # the embedded server checks no rights

by_pod = partial(attack, Group.HTTP, Attacker.POD)

HEAD = b"GET /metrics HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture
def health() -> Iterator[HttpServer]:
    """Give a health server as a Pod of a controller has it."""
    health_server = serve_health(("0.0.0.0", 0), PAGES)
    yield health_server
    health_server.close()


READERS = Path(__file__).parents[2] / "deploy/metrics-reader.yaml"
READ_METRICS = {"nonResourceURLs": ["/metrics"], "verbs": ["get"]}
RBAC = "/apis/rbac.authorization.k8s.io/v1"


class Reader:
    """A ServiceAccount of the test's namespace, perhaps with the right to read the pages."""

    def __init__(
        self, cluster: Cluster, name: str, *, may: bool, rules: Sequence[Mapping[str, Any]] = (READ_METRICS,)
    ) -> None:
        self.cluster, self.name = cluster, name
        cluster.create(cluster.path("serviceaccounts"), name)
        self.role = f"{cluster.namespace}-{name}"
        if may:
            api = {"apiVersion": "rbac.authorization.k8s.io/v1"}
            role = {**api, "kind": "ClusterRole", "metadata": {"name": self.role}, "rules": [*rules]}
            cluster.client.request("POST", f"{RBAC}/clusterroles", body=role)
            binding = {**api, "kind": "ClusterRoleBinding", "metadata": {"name": self.role}}
            subject = {"kind": "ServiceAccount", "name": name, "namespace": cluster.namespace}
            ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": self.role}
            body = {**binding, "subjects": [subject], "roleRef": ref}
            cluster.client.request("POST", f"{RBAC}/clusterrolebindings", body=body)

    def token(self, *audiences: str) -> str:
        """Return a token, for the API server or for others."""
        spec: dict[str, Any] = {"expirationSeconds": 3600} | ({"audiences": list(audiences)} if audiences else {})
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        path = self.cluster.path("serviceaccounts", self.name) + "/token"
        return str(self.cluster.client.request("POST", path, body=body)["status"]["token"])


@by_pod(
    wants="read /metrics and /status through the Node's address",
    stopped_by="TLS and a bearer token off the loopback",
)
def test_pages_take_a_token(cluster: Cluster, tmp_path: Path) -> None:
    """Without one nothing is told, in clear text not even that; who may read gets the page."""
    reader = Reader(cluster, "prometheus", may=True)
    with served(tmp_path, kubeconfig=str(cluster.server.kubeconfig)) as agent:
        for path in ("/metrics", "/status", "/healthz", "/readyz"):
            assert get(agent.port, path, tls=True)[0] == 401
            assert b"HTTP" not in exchange(agent.port, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        basic = b"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Basic YTpi\r\n\r\n"
        assert exchange(agent.port, basic, tls=True).startswith(b"HTTP/1.1 401")
        until(lambda: get(agent.port, "/metrics", reader.token(), tls=True) == (200, "mcagent_ready 1\n"))


@by_pod(
    wants="read /metrics and /status with its own ServiceAccount's token",
    stopped_by="a SubjectAccessReview for each page: the right to `get` that very path",
)
def test_a_token_without_the_right_reads_nothing(cluster: Cluster, tmp_path: Path) -> None:
    """A ServiceAccount without a role gets 403, and one that may read metrics does not read the status."""
    with served(tmp_path, kubeconfig=str(cluster.server.kubeconfig)) as agent:
        assert get(agent.port, "/metrics", Reader(cluster, "pod", may=False).token(), tls=True)[0] == 403
        token = Reader(cluster, "prometheus", may=True).token()
        assert get(agent.port, "/status", token, tls=True)[0] == 403


@by_pod(
    wants="send packets in another Pod's name with the token of Prometheus",
    stopped_by="the page that sends them is in the ClusterRole `mcagent-live-tracer` alone",
)
def test_who_reads_metrics_sends_no_packets(cluster: Cluster, tmp_path: Path) -> None:
    """All pages of the ClusterRole that Prometheus is given are readable, and `/trace/live` is not."""
    reader, tracer = yaml.safe_load_all(READERS.read_text(encoding="utf-8"))
    assert {
        verb for rule in reader["rules"] for verb in rule["verbs"] if "/doctor" not in rule["nonResourceURLs"]
    } == {"get"}
    token = Reader(cluster, "prometheus", may=True, rules=reader["rules"]).token()
    administrator = Reader(cluster, "administrator", may=True, rules=tracer["rules"]).token()
    pages = {**PAGES, "/trace/live": Action(lambda _query: Page(body="sent\n"))}
    with served(tmp_path, pages, kubeconfig=str(cluster.server.kubeconfig)) as agent:
        until(lambda: get(agent.port, "/status", token, tls=True)[0] == 200)
        assert get(agent.port, "/trace/live", token, tls=True, method="POST")[0] == 403
        until(lambda: get(agent.port, "/trace/live", administrator, tls=True, method="POST")[0] == 200)
        assert get(agent.port, "/trace/live", administrator, tls=True)[0] == 405


@by_pod(
    wants="read pages with a token that it got as another service, made for another audience",
    stopped_by="a TokenReview for the API server's own audience",
)
def test_a_token_for_another_audience_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    """The account may read; its token for a vault says nothing here."""
    reader = Reader(cluster, "prometheus", may=True)
    with served(tmp_path, kubeconfig=str(cluster.server.kubeconfig)) as agent:
        assert get(agent.port, "/metrics", reader.token("vault"), tls=True)[0] == 401


@by_pod(
    wants="read pages with a forged token, or one of an account that is gone",
    stopped_by="a TokenReview: the API server checks signature, expiry and account",
)
def test_forged_and_orphaned_tokens_are_refused(cluster: Cluster, tmp_path: Path) -> None:
    """A changed claim, a changed signature, no JWT at all, a deleted account."""
    reader = Reader(cluster, "prometheus", may=True)
    token = reader.token()
    head, claims, signature = token.split(".")
    forged = [f"{head}.{claims[:-4]}AAAA.{signature}", f"{head}.{claims}.{signature[:-8]}AAAAAAAA"]
    forged += [f"{head}.{claims}.", "x" * 40, "'; drop table", "a" * 9000]
    cluster.client.request("DELETE", cluster.path("serviceaccounts", reader.name))
    limits = ReviewLimits(per_second=100, per_source=100, burst=100)
    server = HttpServer(("127.0.0.1", 0), PAGES, guard=Reviewer(cluster.client.request, limits))
    for bad in [*forged, token]:
        assert get(server.port, "/metrics", bad)[0] == 401
    server.close()


@by_pod(
    wants="slip a second request past the check of the first one's token, on the same connection",
    stopped_by="one request for each connection of the pages",
)
def test_pipelined_requests_are_not_answered(cluster: Cluster) -> None:
    """After a request with a good token one without any is not read."""
    token = Reader(cluster, "prometheus", may=True).token()
    server = HttpServer(("127.0.0.1", 0), PAGES, guard=Reviewer(cluster.client.request))
    good = HEAD + f"Authorization: Bearer {token}\r\n\r\n".encode()
    until(lambda: get(server.port, "/metrics", token)[0] == 200, timeout=15)
    answers = exchange(server.port, good + b"GET /status HTTP/1.1\r\nHost: x\r\n\r\n")
    assert answers.count(b"HTTP/1.1 ") <= 1
    assert b"n1" not in answers
    server.close()


class Counting:
    """A client of the API server that counts, and can be cut off."""

    def __init__(self, client: Client) -> None:
        self.client, self.count, self.away = client, 0, False

    def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        body: Any = None,
        timeout: float = 30.0,
    ) -> Any:
        """Make a request."""
        self.count += 1
        if self.away:
            raise ApiUnreachableError("connection refused")
        return self.client.request(method, path, query, body=body, timeout=timeout)


@by_pod(
    wants="flood the API server with reviews of guessed tokens, and push the good ones out of the cache",
    stopped_by="limits on reviews for each source and in all; good and bad answers are kept apart, both bounded",
)
def test_guessing_costs_the_api_server_little(cluster: Cluster) -> None:
    """Hundreds of guesses are a handful of reviews; a token that is known, and a new one, are served."""
    counting = Counting(cluster.client)
    reviewer = Reviewer(counting.request)
    token = Reader(cluster, "prometheus", may=True).token()
    until(lambda: reviewer(token, "/metrics", "127.0.0.1") == 200, timeout=25)
    before = counting.count
    statuses = [reviewer(f"guess-{number}", "/metrics", ATTACKER) for number in range(1000)]
    assert set(statuses) <= {401, 429}
    assert counting.count - before < 50
    before = counting.count
    assert reviewer(token, "/metrics", ATTACKER) == 200
    assert counting.count == before  # still known
    another = Reader(cluster, "second", may=True).token()
    until(lambda: reviewer(another, "/metrics", "127.0.0.2") == 200, timeout=25)


@pytest.mark.timing
@by_pod(
    wants="read pages while the API server is down and no token can be checked",
    stopped_by="failing closed: only what was good a short while ago still is",
)
def test_without_the_api_server_nobody_new_comes_in(cluster: Cluster) -> None:
    """A token that was reviewed stays good for some minutes; another is refused, and in the end all are."""
    counting = Counting(cluster.client)
    now = [1000.0]
    reviewer = Reviewer(counting.request, clock=lambda: now[0])
    known, new = (Reader(cluster, name, may=True).token() for name in ("prometheus", "other"))
    deadline = time.monotonic() + 25
    while reviewer(known, "/metrics", "a") != 200:
        assert time.monotonic() < deadline
        now[0] += 11.0
    counting.away = True
    now[0] += 200.0
    assert reviewer(known, "/metrics", "a") == 200
    assert reviewer(known, "/status", "a") == 503
    assert reviewer(new, "/metrics", "b") == 503
    now[0] += 200.0
    assert reviewer(known, "/metrics", "a") == 503


@by_pod(
    wants="read the pages of an agent that has no API server to ask",
    stopped_by="failing closed: off the loopback they are closed until the configuration opens them by name",
)
def test_without_an_api_server_pages_are_nobodys(tmp_path: Path) -> None:
    """With objects from a directory any token is refused, but commands of the Node's root are answered."""
    with served(tmp_path) as agent:
        for token in ("", "x" * 40):
            assert get(agent.port, "/status", token, tls=True)[0] == 403
        assert (tmp_path / "status.sock").stat().st_mode & 0o777 == 0o600
        with closing(socket.socket(socket.AF_UNIX)) as local:
            local.connect(str(tmp_path / "status.sock"))
            local.sendall(b"GET /status HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"n1" in local.recv(65536)


@by_pod(
    wants="learn from /readyz of a controller which objects exist and where its API servers are",
    stopped_by="health that tells its status only, off the loopback",
)
def test_health_tells_no_reasons(health: HttpServer) -> None:
    """The status is that of the page; the reasons are for those who may read /status."""
    status, body = get(health.port, "/readyz")
    assert status == 503
    assert "10.0.0.1" not in body
    assert "Gateway" not in body
    assert {get(health.port, path)[0] for path in ("/metrics", "/status")} == {404}


@by_pod(
    wants="have an unreachable API server's reviews pile up and block the pages for those who are known",
    stopped_by="few reviews at once, each with a time limit, and known answers that need none",
)
def test_reviews_that_hang_block_nobody_known(cluster: Cluster) -> None:
    """Reviews of guesses hang at a server that never answers; a known token is answered at once."""
    silent = socket.create_server(("127.0.0.1", 0))
    hanging = Client(token_kubeconfig(f"http://127.0.0.1:{silent.getsockname()[1]}", b"", "x"))
    counting = Counting(cluster.client)
    token = Reader(cluster, "prometheus", may=True).token()
    reviewer = Reviewer(counting.request, ReviewLimits(timeout=1.0))
    server = HttpServer(("127.0.0.1", 0), PAGES, guard=reviewer)
    until(lambda: get(server.port, "/metrics", token)[0] == 200, timeout=25)
    counting.client = hanging
    guesses = []
    for number in range(40):
        guess = connect(server.port)
        guess.sendall(HEAD + f"Authorization: Bearer guess-{number:08}\r\n\r\n".encode())
        guesses.append(guess)
    assert get(server.port, "/metrics", token, timeout=3.0)[0] == 200
    for guess in guesses:
        guess.close()
    server.close()
    hanging.close()
    silent.close()
