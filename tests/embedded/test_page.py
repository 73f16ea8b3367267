"""The page of the ClusterSet in a real browser: Chromium, headless. Left out where there is none.

Everything that can be chosen stands in the address, so a page with a fragment shows what a click would.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcagent.api.topology import Change, ShownCluster, ShownLink, ShownProblem, Topology
from mcagent.http.server import HttpServer
from mcagent.observe.browser import browser_pages
from mcagent.observe.topology import page_of

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HOSTILE = "<img src=x onerror=alert(1)>"

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (Debian's package chromium)")


def cluster_set(count: int) -> Topology:
    """Return a ClusterSet in which the first cluster has lost the second one."""
    ids = [f"cluster-{number:03}" for number in range(count)]
    lost = (ids[0], ids[1])
    return Topology(
        name="blue",
        clusters=tuple(
            ShownCluster(id=name, ready=name != ids[0], gateways=("192.0.2.1",), services=3) for name in ids
        ),
        links=tuple(
            ShownLink(
                source=a,
                target=b,
                live=0 if (a, b) == lost else 2,
                tunnels=2,
                why=HOSTILE if (a, b) == lost else "",
                bytes_per_second=125_000,
            )
            for a in ids
            for b in ids
            if a != b
        ),
        changes=(Change(at="2030-01-01T00:00:00Z", source=ids[0], target=ids[1], good=False, text=HOSTILE),),
        problems=(ShownProblem(subject="ResourceExport a/b", reason="ConvergeFailure", message=HOSTILE),),
        problem_count=7,
        policies=2,
    )


class Browser:
    """Chromium with a profile of its own. Each call starts it anew."""

    def __init__(self, profile: Path) -> None:
        self._profile = profile

    def dom(self, url: str) -> str:
        """Return the document after its script has run."""
        return self._run("--dump-dom", url)

    def screenshot(self, url: str, size: str, file: Path) -> bytes:
        """Return a PNG of so many pixels."""
        self._run("--hide-scrollbars", f"--window-size={size}", f"--screenshot={file}", url)
        return file.read_bytes()

    def _run(self, *arguments: str) -> str:
        assert CHROMIUM is not None
        # --no-sandbox: Chromium refuses to sandbox for root, as which tests run; it sees nothing but our page.
        fixed = ("--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=2000")
        command = [CHROMIUM, *fixed, f"--user-data-dir={self._profile}", *arguments]
        environment = {**os.environ, "HOME": str(self._profile)}
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=60, env=environment
        ).stdout


@pytest.fixture
def browser(tmp_path: Path) -> Browser:
    """Give a browser."""
    return Browser(tmp_path / "profile")


@pytest.fixture(params=[2, 100])
def served(request: pytest.FixtureRequest) -> Iterator[tuple[int, str]]:
    """Give the page of a ClusterSet with so many clusters, and its address."""
    found = cluster_set(request.param)
    pages = browser_pages(lambda: page_of("clusterset", "mcagent-0", "1.0", time.time(), (found,)))
    server = HttpServer(("127.0.0.1", 0), pages)
    yield request.param, f"http://127.0.0.1:{server.port}/ui"
    server.close()


def test_a_clusterset_is_drawn(browser: Browser, served: tuple[int, str], tmp_path: Path) -> None:
    """Each cluster is drawn and listed, what is lost is seen and told, and foreign text stays text."""
    count, url = served
    dom = browser.dom(f"{url}#link=cluster-000~cluster-001")
    links = count * (count - 1) // 2
    assert f"{count} clusters · {links - 1} of {links} links up · 1 down · 1 cluster away" in dom
    assert len(re.findall(r'<circle class="dot"', dom)) == count
    assert len(re.findall(r"<tr><td>", dom)) == count
    assert re.search(r'class="link down chosen[^"]*" href="#link=cluster-000~cluster-001"', dom)
    assert re.search("Link cluster-000 . cluster-001", dom)
    assert "0 of 2 live" in dom
    assert "mcagent trace --context cluster-000 --remote-context cluster-001 --from" in dom
    assert "mcagent doctor --context cluster-000 --context cluster-001" in dom
    assert "1.0 Mbit/s" in dom
    assert "and 6 more" in dom
    assert "<img" not in dom
    assert "&lt;img src=x onerror" in dom
    picture = browser.screenshot(url, "1400,1000" if count == 100 else "390,1200", tmp_path / "page.png")
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 20_000  # an empty page has a tenth of that


def test_everything_can_be_reached_by_keyboard(browser: Browser, served: tuple[int, str]) -> None:
    """Clusters and what is wrong are links with a name for screen readers, in the picture and in the table."""
    _, url = served
    dom = browser.dom(f"{url}#cluster=cluster-001")
    labels = re.findall(r'<a class="(?:cluster|link)[^>]*aria-label="([^"]+)"', dom)
    assert any(label.startswith("Cluster cluster-000: down") for label in labels)
    assert "cluster-000 and cluster-001: down, 1.0 Mbit/s" in labels
    (tab,) = re.findall(r'href="#link=cluster-000~cluster-001" aria-label="[^"]*" tabindex="(-?\d)"', dom)
    assert tab == "0"
    assert "mcagent doctor --context cluster-001" in dom


def test_without_a_token_the_page_asks_for_one(browser: Browser) -> None:
    """The files need none; what they ask for does."""
    asked: list[str] = []

    def guard(token: str, path: str, _source: str, _verb: str) -> int:
        asked.append(path)
        return 200 if token == "good" else 401

    pages = browser_pages(lambda: page_of("node", "node-1", "1.0", time.time(), (cluster_set(2),)))
    server = HttpServer(("127.0.0.1", 0), pages, guard=guard)
    try:
        dom = browser.dom(f"http://127.0.0.1:{server.port}/ui")
    finally:
        server.close()
    assert set(asked) == {"/topology"}
    assert '<form id="sign-in">' in dom
    assert "cluster-000" not in dom
