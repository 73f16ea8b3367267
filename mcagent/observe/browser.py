"""The browser page: static files of the package with their security headers, and /topology with the data.

The files contain nothing about clusters and need no token; they request /topology, which requires one. The browser
loads nothing from other sites, runs no inline script (Content-Security-Policy), and no site can frame the page.
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
AT_MOST_EVERY = 1.0  # seconds for which a result is reused, for any number of browsers


def browser_pages(topology: Callable[[], Mapping[str, object]]) -> Pages:
    """Make the pages by path: files under /ui, and /topology."""
    return {
        "/ui": Public(partial(_file, "page.html")),
        "/ui/page.css": Public(partial(_file, "page.css")),
        "/ui/matrix.js": Public(partial(_file, "matrix.js")),
        "/ui/page.js": Public(partial(_file, "page.js")),
        "/topology": CachedPage(topology),
    }


class CachedPage:
    """A JSON page that is computed at most once in `AT_MOST_EVERY` seconds."""

    def __init__(
        self, topology: Callable[[], Mapping[str, object]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._topology, self._clock = topology, clock
        self._lock = threading.Lock()
        self._cached: tuple[float, str] | None = None

    def __call__(self) -> Page:
        """Return the page, computed again if it is too old."""
        with self._lock:
            if self._cached is None or self._clock() - self._cached[0] >= AT_MOST_EVERY:
                text = json.dumps(self._topology(), separators=(",", ":")) + "\n"
                self._cached = (self._clock(), text)
            return Page(body=self._cached[1], content_type="application/json")


@cache
def _file(name: str) -> Page:
    text = files(__package__).joinpath("ui", name).read_text(encoding="utf-8")
    kind = _TYPES[name.rpartition(".")[2]]
    return Page(body=text, content_type=f"{kind}; charset=utf-8", headers=_HEADERS)
