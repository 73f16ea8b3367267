"""Clients of the pages that are served: browsers through a tunnel, Prometheus, the kubelet, commands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from mcagent.agent.agent import Agent
from mcagent.agent.config import Settings
from mcagent.cli.common.asking import ACTIONS
from mcagent.doctor.diagnose import diagnose
from mcagent.http.listening import Authentication
from mcagent.http.server import Pages
from mcagent.model.config import Config
from mcagent.observe.browser import browser_pages
from tests.attacks.http_clients import PAGES, served, status_of


@pytest.fixture
def pages_port(tmp_path: Path) -> Iterator[int]:
    """Give the port of an agent's pages on the loopback."""
    pages: Pages = {**PAGES, **browser_pages(lambda: {"clusters": ["west"]})}
    with served(tmp_path, pages, listen="127.0.0.1:0", health_listen="127.0.0.1:0") as servers:
        yield servers.port


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    """Give an agent of cluster west that serves its pages, and is not started."""
    settings = Settings(
        core=Config(node_name="n1", cluster_id="west"),
        source=f"dir:{tmp_path}",
        run_dir=str(tmp_path),
        listen="127.0.0.1:0",
        health_listen="0",
    )
    agent = Agent(settings, diagnose)
    yield agent
    agent._http.close()
    agent._monitor.stop()
    agent._backends.close()


def test_every_page_of_an_agent_that_sends_packets_is_an_action(agent: Agent) -> None:
    """GET does nothing at the pages that the commands POST to; all others are read with GET."""
    port = agent._http.port
    assert {page: status_of(port, f"GET {page}", Host="localhost") for page in ACTIONS} == dict.fromkeys(
        ACTIONS, 405
    )
    assert {page: status_of(port, f"POST {page}", Host="localhost") for page in ACTIONS} == dict.fromkeys(
        ACTIONS, 403
    )
    reads = ("/status", "/metrics", "/topology", "/ui", "/trace", "/trace/seen")
    assert {status_of(port, f"POST {page}", Host="localhost") for page in reads} == {405}


def test_pages_name_the_cluster_of_a_reloaded_configuration(agent: Agent) -> None:
    """After SIGHUP with another `clusterID`, /status and /topology have that one."""

    def read(path: str) -> Any:
        with urlopen(f"http://127.0.0.1:{agent._http.port}{path}") as answer:
            return json.load(answer)

    assert read("/status")["clusterID"] == "west"
    agent.reconfigure(replace(agent.settings, core=replace(agent.settings.core, cluster_id="east")))
    assert read("/status")["clusterID"] == "east"
    (topology,) = read("/topology")["sets"]
    assert [cluster["id"] for cluster in topology["clusters"] if cluster["own"]] == ["east"]


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/metrics", {"Host": "127.0.0.1:10351"}),
        ("/metrics", {}),
        ("/topology", {"Host": "localhost:8443", "Sec_Fetch_Site": "same-origin", "Sec_Fetch_Mode": "cors"}),
        ("/topology", {"Host": "localhost:8443", "Origin": "http://localhost:8443"}),
        ("/ui", {"Host": "localhost:8443", "Sec_Fetch_Site": "none", "Sec_Fetch_Mode": "navigate"}),
        (
            "/ui",  # the user follows a link to the page
            {
                "Host": "localhost:8443",
                "Sec_Fetch_Site": "cross-site",
                "Sec_Fetch_Mode": "navigate",
                "Sec_Fetch_Dest": "document",
            },
        ),
    ],
)
def test_browsers_and_scrapes_are_served(pages_port: int, path: str, headers: dict[str, str]) -> None:
    """The browser page through `kubectl port-forward`, a link to it, curl and Prometheus get their pages."""
    assert status_of(pages_port, f"GET {path}", **headers) == 200


def test_probes_and_scrapes_by_address_are_served(tmp_path: Path) -> None:
    """The kubelet probes health by the address of the Pod or Node, a load balancer by a name; Prometheus too."""
    pages: Pages = {**PAGES}
    with served(
        tmp_path, pages, metrics_authentication=Authentication.NONE, host_names=("mc.example",)
    ) as servers:
        for host in ("10.1.2.3:10360", "[fd00::5]:10360", "mc.example"):
            assert status_of(servers.port, "GET /metrics", Host=host) == 200
        assert status_of(servers.port, "GET /metrics", Host="evil.example") == 421
        for host in ("10.1.2.3:10361", "10.1.2.3", "health.example"):
            assert status_of(servers.health_port, "GET /healthz", Host=host) == 200
