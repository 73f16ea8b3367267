"""At which addresses an API server is reached: what its URL says, and where connections really went.

Behind a name may be several addresses, which change: those of the last few connections are kept.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from mcagent.model.net import Address, parse_address

KEPT = 16


class ServerAddresses:
    """The addresses of one API server. Safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[Address, None] = {}  # the most recent last

    def note(self, connection: Any) -> None:
        """Note where a connected socket (or None) went."""
        try:
            address = parse_address(connection.getpeername()[0].partition("%")[0])
        except (OSError, AttributeError, ValueError, TypeError, IndexError):
            return  # closed meanwhile, or no socket of IP
        with self._lock:
            self._seen.pop(address, None)
            self._seen[address] = None
            while len(self._seen) > KEPT:
                del self._seen[next(iter(self._seen))]

    def of(self, url: str) -> tuple[Address, ...]:
        """Return the addresses, sorted: equal as long as nothing new was seen."""
        with self._lock:
            addresses = set(self._seen)
        with suppress(ValueError):  # a name
            addresses.add(parse_address(urlsplit(url).hostname or ""))
        return tuple(sorted(addresses, key=lambda address: (address.version, int(address))))
