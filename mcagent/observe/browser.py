"""The page that a browser shows: plain files of the package, and what they may do. Knows nothing of what is drawn.

The files say nothing of any cluster and need no token; they ask /topology, which does. Nothing is loaded from
elsewhere, nothing inline runs (Content-Security-Policy), and no other site can frame the page.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib.resources import files

from mcagent.http.server import Page, Pages, Public

_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = (
    ("Content-Security-Policy", _POLICY),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)
AT_MOST_EVERY = 1.0  # seconds: however many browsers ask, it is computed once


def browser_pages(topology: Callable[[], Mapping[str, object]]) -> Pages:
    """Return the page's files under /ui, and /topology, by path."""
    return {
        "/ui": Public(partial(_file, "page.html")),
        "/ui/page.css": Public(partial(_file, "page.css")),
        "/ui/page.js": Public(partial(_file, "page.js")),
        "/topology": Recent(topology),
    }


class Recent:
    """A JSON page that is computed at most once in `AT_MOST_EVERY` seconds."""

    def __init__(
        self, topology: Callable[[], Mapping[str, object]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._topology, self._clock = topology, clock
        self._lock = threading.Lock()
        self._made: tuple[float, str] | None = None

    def __call__(self) -> Page:
        """Return the page."""
        with self._lock:
            if self._made is None or self._clock() - self._made[0] >= AT_MOST_EVERY:
                text = json.dumps(self._topology(), separators=(",", ":")) + "\n"
                self._made = (self._clock(), text)
            return Page(body=self._made[1], content_type="application/json")


@cache
def _file(name: str) -> Page:
    text = files(__package__).joinpath("ui", name).read_text(encoding="utf-8")
    kind = _TYPES[name.rpartition(".")[2]]
    return Page(body=text, content_type=f"{kind}; charset=utf-8", headers=_HEADERS)
