"""Attacks on pages through a browser, and by a process on a Node without rights."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import pytest

from mcagent.agent.config import Settings
from mcagent.cli.common.asking import ask_agent
from mcagent.controller.config import ControllerSettings
from mcagent.controller.machinery.serving.servers import Servers
from mcagent.http.listening import Authentication
from mcagent.http.server import Action, HttpServer, Page, Pages
from mcagent.kube.client import Client
from mcagent.kube.credentials import token_kubeconfig
from mcagent.model.config import Config
from mcagent.observe.browser import browser_pages
from tests.attacks.catalogue import Attacker, Group, attack
from tests.attacks.http_clients import PAGES, served, status_of

by_site = partial(attack, Group.HTTP, Attacker.SITE)

LIVE = (
    "/trace/live?in_port=1&source=10.1.2.2&destination=10.2.2.2&protocol=udp&source_port=23000&port=8080&mac=plain"
)
FORGED_HOSTS = (
    "evil.example",
    "evil.example:10351",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "203.0.113.5",
    "[::",
)
OTHER_SITES = (
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://localhost:3000"},
    {"Sec_Fetch_Site": "cross-site"},
    {"Sec_Fetch_Site": "same-site"},
)


class ActingPages:
    """Pages of an agent, and their port. `queries`: what the page that sends packets was asked."""

    def __init__(self) -> None:
        self.queries: list[str] = []
        topology = browser_pages(lambda: {"clusters": ["west"]})
        self.pages: Pages = {**PAGES, **topology, "/trace/live": Action(self._act)}
        self.port = 0

    def _act(self, query: str) -> Page:
        self.queries.append(query)
        return Page(body=json.dumps({"sent": 1}), content_type="application/json")


@contextmanager
def acting(directory: Path, **settings: object) -> Iterator[ActingPages]:
    """Run an agent's servers with a page that sends packets."""
    agent = ActingPages()
    with served(directory, agent.pages, **settings) as servers:
        agent.port = servers.port
        yield agent


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[ActingPages]:
    """Give the servers of an agent that listens on the loopback, as outside Kubernetes."""
    with acting(tmp_path, listen="127.0.0.1:0", health_listen="127.0.0.1:0") as agent_on_loopback:
        yield agent_on_loopback


@attack(
    Group.HTTP,
    Attacker.PROCESS,
    wants="send packets in a Pod's name by the page on the loopback, which asks for no token",
    stopped_by="pages that act: POST, and a token or root's Unix socket",
)
def test_a_process_without_rights_sends_no_packets(agent: ActingPages, tmp_path: Path) -> None:
    """Over the loopback neither GET nor POST acts, with or without a token; root's command by the socket does."""
    assert status_of(agent.port, f"GET {LIVE}", Host="localhost") == 405
    assert status_of(agent.port, f"HEAD {LIVE}", Host="localhost") == 405
    assert status_of(agent.port, f"POST {LIVE}", Host="localhost") == 403
    assert status_of(agent.port, f"POST {LIVE}", Host="localhost", Authorization="Bearer 0123456789") == 403
    assert not agent.queries
    settings = Settings(core=Config(node_name="n1"), run_dir=str(tmp_path))
    assert ask_agent(settings, LIVE) == {"sent": 1}
    assert agent.queries == [LIVE.partition("?")[2]]


@attack(
    Group.HTTP,
    Attacker.POD,
    wants="send packets in another Pod's name where the administrator lets every client read the pages",
    stopped_by="`metricsAuthentication: none`, which opens pages that read, not those that act",
)
def test_open_pages_do_not_act(tmp_path: Path) -> None:
    """Metrics are served without a token, and nothing acts."""
    with acting(tmp_path, metrics_authentication=Authentication.NONE) as agent:
        assert status_of(agent.port, "GET /metrics", Host="10.1.2.3:10360") == 200
        assert status_of(agent.port, f"POST {LIVE}", Host="10.1.2.3:10360") == 403
    assert not agent.queries


@by_site(
    wants="read status and topology from the loopback of an administrator by a name that resolves to 127.0.0.1",
    stopped_by="Host: pages on the loopback have the loopback's names and those configured",
)
def test_a_rebound_name_reads_nothing(agent: ActingPages) -> None:
    """No page, not even the health of it, is given to another name; the loopback's own names get it."""
    for host in FORGED_HOSTS:
        for path in (*agent.pages, "/nothing"):
            assert status_of(agent.port, f"GET {path}", Host=host) == 421, (host, path)
        assert status_of(agent.port, f"POST {LIVE}", Host=host) == 421, host
    for host in (
        "localhost",
        f"localhost:{agent.port}",
        "127.0.0.1:8443",
        "[::1]:8443",
        "LOCALHOST",
        socket.gethostname(),
    ):
        assert status_of(agent.port, "GET /topology", Host=host) == 200, host


@by_site(
    wants="read the pages of a controller that listens on the loopback by a name that resolves to 127.0.0.1",
    stopped_by="Host: pages on the loopback have the loopback's names and those configured",
)
def test_a_rebound_name_reads_nothing_of_a_controller() -> None:
    """Both servers refuse other names; a configured one is served."""
    settings = ControllerSettings(
        listen="127.0.0.1:0", metrics_listen="127.0.0.1:0", metrics_host_names=("leader.example",)
    )
    client = Client(token_kubeconfig("http://127.0.0.1:9", b"", "x"))
    servers = Servers(settings, PAGES, client)
    ports = (servers.port, servers.pages_port)
    try:
        for host in FORGED_HOSTS:
            assert {status_of(port, "GET /status", Host=host) for port in ports} == {421}
        assert {status_of(port, "GET /status", Host="localhost:8443") for port in ports} == {200}
        assert status_of(servers.pages_port, "GET /status", Host="leader.example") == 200
    finally:
        servers.close()
        client.close()


@by_site(
    wants="have an administrator's browser, by `kubectl port-forward`, get pages or send packets for an image",
    stopped_by="Origin and Sec-Fetch-Site: what pages of other sites request is refused",
)
def test_pages_of_other_sites_request_nothing(agent: ActingPages) -> None:
    """Each header of another site is enough, also without Host, on all pages, with GET and POST."""
    for headers in OTHER_SITES:
        assert status_of(agent.port, "GET /status", **headers) == 403, headers
        for path in agent.pages:
            assert status_of(agent.port, f"GET {path}", Host="localhost:10351", **headers) == 403, (headers, path)
        assert status_of(agent.port, f"POST {LIVE}", Host="localhost:10351", **headers) == 403
    assert not agent.queries


@by_site(
    wants="use a token that a browser sends by itself to pages with TLS",
    stopped_by="Origin and Sec-Fetch-Site, checked before the token",
)
def test_pages_of_other_sites_get_nothing_with_a_token() -> None:
    """A server with a guard refuses other sites, whatever the guard says; its own page may have any name."""
    server = HttpServer(("127.0.0.1", 0), PAGES, guard=lambda *_: 200)
    with closing(server):
        for headers in OTHER_SITES:
            assert status_of(server.port, "GET /status", Host="mcagent.example", **headers) == 403
        assert (
            status_of(server.port, "GET /status", Host="mcagent.example", Origin="https://mcagent.example") == 200
        )
