"""The page of the ClusterSet in a real browser: Chromium, headless. Left out where there is none.

Everything that can be chosen stands in the address, so a page with a fragment shows what a click would.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from devtools.waiting import wait_until
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

    def measure(self, url: str, width: int, expression: str) -> Any:
        """Return what an expression is on a phone of so many pixels, once the page has drawn its table."""
        screen = {"width": width, "height": 800, "deviceScaleFactor": 2, "mobile": True}
        with self._devtools() as call:
            target = call("", "Target.createTarget", url="about:blank")["targetId"]
            session = call("", "Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            call(session, "Emulation.setDeviceMetricsOverride", **screen)
            call(session, "Page.navigate", url=url)

            def value(text: str) -> Any:
                return call(session, "Runtime.evaluate", expression=text, returnByValue=True)["result"]["value"]

            wait_until(lambda: value("document.querySelectorAll('#rows tr').length") > 0, "the table", timeout=30)
            return value(expression)

    @contextmanager
    def _devtools(self) -> Iterator[Callable[..., dict[str, Any]]]:
        """Give a function that calls a method of the DevTools protocol in a session ("": the browser's)."""
        to_browser, from_browser = os.pipe(), os.pipe()
        # by file descriptors 3 and 4 the browser reads and writes
        script = f'exec 3<&{to_browser[0]} 4>&{from_browser[1]}; exec "$0" "$@"'
        command = ["bash", "-c", script, *self._command("--remote-debugging-pipe")]
        ends = (to_browser[0], from_browser[1])
        with (
            os.fdopen(to_browser[1], "wb", buffering=0) as requests,
            os.fdopen(from_browser[0], "rb") as answers,
            subprocess.Popen(command, pass_fds=ends, env=self._environment, stderr=subprocess.DEVNULL) as process,
        ):
            for end in ends:
                os.close(end)
            numbers = itertools.count(1)

            def call(session: str, method: str, **params: object) -> dict[str, Any]:
                request: dict[str, Any] = {"id": next(numbers), "method": method, "params": params}
                requests.write(json.dumps(request | ({"sessionId": session} if session else {})).encode() + b"\0")
                while True:
                    text = b"".join(iter(lambda: answers.read(1), b"\0"))
                    answer = json.loads(text)
                    if answer.get("id") == request["id"]:
                        assert "error" not in answer, answer
                        result: dict[str, Any] = answer["result"]
                        return result

            try:
                yield call
            finally:
                process.kill()

    def _run(self, *arguments: str) -> str:
        command = self._command("--virtual-time-budget=2000", *arguments)
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=60, env=self._environment
        ).stdout

    @property
    def _environment(self) -> dict[str, str]:
        return {**os.environ, "HOME": str(self._profile)}

    def _command(self, *arguments: str) -> list[str]:
        assert CHROMIUM is not None
        # --no-sandbox: Chromium refuses to sandbox for root, as which tests run; it sees nothing but our page.
        fixed = ("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={self._profile}")
        return [CHROMIUM, *fixed, *arguments]


@pytest.fixture
def browser(tmp_path: Path) -> Browser:
    """Give a browser."""
    return Browser(tmp_path / "profile")


@pytest.fixture(params=[2, 12, 100])
def served(request: pytest.FixtureRequest) -> Iterator[tuple[int, str]]:
    """Give the page of a ClusterSet with so many clusters, and its address."""
    clusters = cluster_set(request.param)
    pages = browser_pages(lambda: page_of("clusterset", "mcagent-0", "1.0", time.time(), (clusters,)))
    server = HttpServer(("127.0.0.1", 0), pages)
    yield request.param, f"http://127.0.0.1:{server.port}/ui"
    server.close()


def test_a_clusterset_is_drawn(browser: Browser, served: tuple[int, str], tmp_path: Path) -> None:
    """Each cluster is drawn and listed, what is lost is seen and told, and foreign text stays text."""
    count, url = served
    dom = browser.dom(f"{url}#link=cluster-000~cluster-001")
    links = count * (count - 1) // 2
    assert f"{count} clusters · {links - 1} of {links} link{'s' * (links > 1)} up · 1 down · 1 cluster away" in dom
    assert len(re.findall(r'<circle class="dot"', dom)) == count  # of the chosen link's first end, and all others
    assert len(re.findall(r'<tr role="row"><td role="cell"><a href="#cluster=', dom)) == count
    (broken,) = re.findall(r'class="link down chosen[^"]*" href="#link=cluster-000~cluster-001".*?</a>', dom)
    widths = [float(width) for width in re.findall(r'stroke-width="([\d.]+)"', dom)]
    assert widths.count(max(widths)) == 1
    assert f'stroke-width="{max(widths):g}"' in broken  # what is broken is the thickest
    broken_fields = re.findall(r'<td class="down[^"]*"><a href="#link=', dom)
    assert len(broken_fields) == (2 if count > 9 else 0)
    fields = re.findall(r'<td class="up[^"]*" title="[^"]+: up" data-link="', dom)
    assert len(fields) == (count * (count - 1) - 2 if count > 9 else 0)
    columns = re.findall(r'<th scope="col"><span><a [^>]*>(cluster-\d+)</a>', dom)
    assert columns == (
        [f"cluster-{number:03}" for number in range(count)] if count > 9 else []
    )  # broken ones first
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
    tabs = re.findall(r'href="#link=cluster-000~cluster-001"[^>]* tabindex="(-?\d)"', dom)
    assert set(tabs) == {"0"}
    assert "mcagent doctor --all --context cluster-001" in dom


OUTSIDE = """(() => {
  const room = document.querySelector("#clusters").getBoundingClientRect();
  const scroll = document.querySelector("#clusters .scroll");
  const cells = [...document.querySelectorAll("#rows td")];
  return [
    document.documentElement.scrollWidth - innerWidth,
    scroll.scrollWidth - scroll.clientWidth,
    cells.filter((cell) => { const box = cell.getBoundingClientRect();
      return box.left < room.left || box.right > room.right || box.width === 0 || box.height === 0; }).length,
    cells.length,
    getComputedStyle(cells.at(-1), "::before").content,
  ];
})()"""


@pytest.mark.parametrize("width", [320, 390])
def test_a_phone_shows_the_whole_table(browser: Browser, served: tuple[int, str], width: int) -> None:
    """No column is outside of the screen or its card, and nothing has to be scrolled sideways."""
    count, url = served
    wider_page, wider_table, cells_outside, cells, name = browser.measure(url, width, OUTSIDE)
    assert cells == 6 * count
    assert "services" in name  # each field has its column's name
    assert (wider_page, wider_table, cells_outside) == (0, 0, 0)


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


def test_two_clusters_have_their_numbers_in_the_picture(browser: Browser) -> None:
    """Gateways below each cluster; tunnels, traffic and round trip on the line between them."""
    two = cluster_set(2)
    links = tuple(replace(link, live=2, why="", round_trip_seconds=0.0028) for link in two.links)
    shown = replace(two, links=links)
    server = HttpServer(
        ("127.0.0.1", 0), browser_pages(lambda: page_of("node", "n1", "1.0", time.time(), (shown,)))
    )
    try:
        dom = browser.dom(f"http://127.0.0.1:{server.port}/ui")
    finally:
        server.close()
    assert "2 of 2 tunnels live · 1.0 Mbit/s · round trip 2.8 ms" in dom
    assert len(re.findall(r'class="gateway"[^>]*>192.0.2.1<', dom)) == 2
