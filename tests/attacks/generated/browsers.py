"""Attacks on HTTP servers by processes on a Node and by pages of other sites: real requests over the loopback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from unittest.mock import patch

from hypothesis import strategies as st

from mcagent.http import server as http_server
from mcagent.http.server import Action, HttpServer, Page, Query
from tests.attacks.generated.search import AttackClass
from tests.attacks.http_clients import exchange

TOKEN = "0123456789"
SECRET = "west"  # in the answer of the page that reads
LOOPBACK_HOSTS = ("localhost", "localhost:10351", "127.0.0.1:8443", "[::1]:8443", "LOCALHOST")
HOSTS = (*LOOPBACK_HOSTS, "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "203.0.113.5", "")
ORIGINS = (
    "",
    "http://evil.example",
    "null",
    "http://localhost:3000",
    "http://localhost:10351",
    "http://localhost",
)
FETCH_SITES = ("", "cross-site", "same-site", "same-origin", "none")


class LoopbackServer:
    """An agent's pages on the loopback: one that reads and one that acts. `guarded`: they ask for a token."""

    def __init__(self, *, guarded: bool, reads: bool) -> None:
        self.acted = 0
        page = Query if reads else Action
        pages: dict[str, object] = {
            "/topology": lambda: Page(body=json.dumps({"clusters": [SECRET]}), content_type="application/json"),
            "/trace/live": page(self._act),
        }
        guard = (lambda token, *_: 200 if token == TOKEN else 401) if guarded else None
        self.server = HttpServer(("127.0.0.1", 0), pages, guard=guard)  # type: ignore[arg-type]

    def _act(self, query: str) -> Page:
        self.acted += 1
        return Page(body=f"sent {SECRET} {query}")


_reading = False  # whether the page that acts is one that reads, as it once was


@contextmanager
def _acting_by_get() -> Iterator[None]:
    with patch(f"{__name__}._reading", new=True):
        yield


@dataclass(frozen=True, kw_only=True)
class BrowserRequest:
    """A request. `guarded`: the server asks for a token."""

    guarded: bool
    method: str
    path: str
    host: str
    origin: str
    fetch_site: str
    token: str

    @property
    def headers(self) -> dict[str, str]:
        """The headers that are given."""
        headers = {
            "Host": self.host,
            "Origin": self.origin,
            "Sec-Fetch-Site": self.fetch_site,
            "Authorization": f"Bearer {self.token}" if self.token else "",
        }
        return {name: text for name, text in headers.items() if text}

    @property
    def of_another_site(self) -> bool:
        """Whether a browser would send this for a page of another origin."""
        origin = (self.origin.partition("://")[2] or self.origin).lower()
        return self.fetch_site in ("cross-site", "same-site") or origin not in ("", self.host.lower())

    def __str__(self) -> str:
        headers = ", ".join(f"{name}: {text}" for name, text in self.headers.items())
        kind = "a page with a token" if self.guarded else "a page on the loopback"
        return f"{self.method} {self.path} of {kind}, headers {headers or 'none'}"


GRAMMAR = st.builds(
    BrowserRequest,
    guarded=st.booleans(),
    method=st.sampled_from(("GET", "POST", "HEAD", "PUT", "OPTIONS")),
    path=st.sampled_from(("/topology", "/trace/live?source=10.1.2.2", "/trace/live")),
    host=st.sampled_from(HOSTS),
    origin=st.sampled_from(ORIGINS),
    fetch_site=st.sampled_from(FETCH_SITES),
    token=st.sampled_from(("", "wrong", TOKEN)),
)


def _judge(attack: BrowserRequest) -> str:
    running = LoopbackServer(guarded=attack.guarded, reads=_reading)
    lines = [
        f"{attack.method} {attack.path} HTTP/1.1",
        *(f"{name}: {text}" for name, text in attack.headers.items()),
    ]
    with closing(running.server):
        answer = exchange(running.server.port, ("\r\n".join(lines) + "\r\n\r\n").encode())
    acted, read = running.acted > 0, SECRET.encode() in answer
    authorised = attack.guarded and attack.token == TOKEN
    if acted and not (authorised and attack.method == "POST"):
        return "a page acts for a request without POST and a token"
    if (acted or read) and attack.of_another_site:
        return "a page answers a request that a page of another site makes"
    if (acted or read) and attack.guarded and not authorised:
        return "a page answers without the token"
    rebound = not attack.guarded and attack.host not in ("", *LOOPBACK_HOSTS)
    return "a page on the loopback answers to a name that is not the loopback's" if read and rebound else ""


A12 = AttackClass(
    name="A12",
    title="requests of processes without rights, and of pages of other sites in a browser",
    grammar=GRAMMAR,
    judge=_judge,
    property="pages act only for POST with a token, and answer no other site, and on the loopback no other name",
    protections={
        "what acts needs POST and a token": _acting_by_get,
        "requests of other sites are refused": partial(
            patch.object, http_server, "is_cross_site", lambda _: False
        ),
        "other names are refused": partial(patch.object, http_server, "host_refusal", lambda *_: ""),
    },
    examples=1000,
)
