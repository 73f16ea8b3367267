"""The page /trace: what this Node's flows would do with a packet. Asked strictly, and not too often."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from ipaddress import IPv4Address
from pathlib import Path
from urllib.parse import parse_qsl

from mcagent.core.trace import MACS, Probe, read
from mcagent.dataplane.openflow.unixctl import call
from mcagent.http.server import Page
from mcagent.model.errors import BackendError

_PROTOCOLS = ("tcp", "udp", "sctp", "icmp")
_KEYS = {"in_port", "source", "destination", "protocol", "source_port", "port", "mac"}
PER_SECOND = 10.0
_BURST = 20.0


class TracePage:
    """Answers the page; `ovsdb` and `bridge` of the configuration say which switch is asked."""

    def __init__(self, node: str, ovsdb: str, bridge: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._node, self._bridge, self._clock = node, bridge, clock
        self._directory = Path(ovsdb.removeprefix("unix:")).parent
        self._lock = threading.Lock()
        self._left, self._at = _BURST, clock()

    def __call__(self, query: str) -> Page:
        """Return the page: JSON, or what is wrong with the question."""
        try:
            probe = read_query(query)
        except ValueError as error:
            return Page(body=f"{error}\n", status=400)
        if not self._may():
            return Page(body=f"more than {PER_SECOND:g} traces a second: ask again\n", status=429)
        try:
            text = call(self._directory, "ofproto/trace", self._bridge, probe.text())
        except BackendError as error:
            return Page(body=f"{error}\n", status=503)
        walk = asdict(read(text, self._bridge, probe))
        return Page(body=json.dumps({"node": self._node, **walk}) + "\n", content_type="application/json")

    def _may(self) -> bool:
        with self._lock:
            now = self._clock()
            self._left = min(_BURST, self._left + (now - self._at) * PER_SECOND)
            self._at = now
            if self._left < 1:
                return False
            self._left -= 1
            return True


def read_query(query: str) -> Probe:
    """Return the packet that a query means: every key once, nothing else. Raises ValueError, for the client."""
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True, max_num_fields=len(_KEYS))
    except ValueError:
        raise ValueError(f"the query must be {'&'.join(f'{key}=…' for key in sorted(_KEYS))}") from None
    found = dict(pairs)
    if len(pairs) != len(found) or set(found) != _KEYS:
        raise ValueError(f"the query must have each of {', '.join(sorted(_KEYS))} once")
    if found["protocol"] not in _PROTOCOLS or found["mac"] not in MACS:
        raise ValueError(f"protocol is one of {', '.join(_PROTOCOLS)}, mac one of {', '.join(MACS)}")
    return Probe(
        in_port=_port(found, "in_port"),
        source=IPv4Address(found["source"]),
        destination=IPv4Address(found["destination"]),
        protocol=found["protocol"],
        source_port=_port(found, "source_port"),
        port=_port(found, "port"),
        mac=found["mac"],
    )


def _port(found: dict[str, str], key: str) -> int:
    text = found[key]
    if not (text.isascii() and text.isdecimal() and len(text) < 6 and int(text) < 65536):
        raise ValueError(f"{key} must be a number from 0 to 65535")
    return int(text)
