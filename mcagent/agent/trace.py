"""The page /trace: what this Node's flows would do with a packet. Asked strictly, and not too often."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from ipaddress import IPv4Address
from pathlib import Path
from urllib.parse import parse_qsl

from mcagent.core.trace import MACS, SERVICES, Probe, Walk, read
from mcagent.core.trace_names import page_of
from mcagent.dataplane.openflow.unixctl import call
from mcagent.http.server import Page
from mcagent.model.config import Config
from mcagent.model.errors import BackendError
from mcagent.model.plan import Desired

PROTOCOLS = ("tcp", "udp", "sctp", "icmp")
NEEDED = frozenset({"in_port", "source", "destination", "protocol", "source_port", "port", "mac"})
# The largest values of the numbers that may be left out: 0 then.
_BOUNDS = {"service": SERVICES - 1, "identity": 0xFFFFFF, "reply": 1, "mark": 2**32 - 1, "label": 2**128 - 1}
PER_SECOND = 10.0
_BURST = 20.0


class Bounded:
    """How often a page may be asked: so often a second, and so often at once. From any thread."""

    def __init__(self, per_second: float, burst: float, clock: Callable[[], float]) -> None:
        self._per_second, self._burst, self._clock = per_second, burst, clock
        self._lock = threading.Lock()
        self._left, self._at = burst, clock()

    def may(self) -> bool:
        """Tell whether it may be asked now; if so, that counts."""
        with self._lock:
            now = self._clock()
            self._left = min(self._burst, self._left + (now - self._at) * self._per_second)
            self._at = now
            if self._left < 1:
                return False
            self._left -= 1
            return True


class Switch:
    """This Node's ovs-vswitchd, asked by its control socket; `ovsdb` and `config` say which, and which bridge."""

    def __init__(self, ovsdb: str, config: Config) -> None:
        self.config = config
        self._directory = Path(ovsdb.removeprefix("unix:")).parent

    def trace(self, probe: Probe) -> Walk:
        """Return what the flows do with a packet. Raises BackendError."""
        bridge = self.config.bridge
        return read(self.call("ofproto/trace", bridge, *probe.arguments()), bridge, probe)

    def call(self, command: str, *arguments: str) -> str:
        """Return what a command of ovs-appctl(8) prints. Raises BackendError."""
        return call(self._directory, command, *arguments)


class TracePage:
    """Answers the page. `desired` is what the flows were made from, None before anything was computed."""

    def __init__(
        self,
        switch: Switch,
        desired: Callable[[], Desired | None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._switch, self._desired = switch, desired
        self._bound = Bounded(PER_SECOND, _BURST, clock)

    def __call__(self, query: str) -> Page:
        """Return the page: JSON, or what is wrong with the question."""
        try:
            probe = read_query(query)
        except ValueError as error:
            return Page(body=f"{error}\n", status=400)
        if not self._bound.may():
            return Page(body=f"more than {PER_SECOND:g} traces a second: ask again\n", status=429)
        try:
            walk = self._switch.trace(probe)
        except BackendError as error:
            return Page(body=f"{error}\n", status=503)
        return json_page(page_of(walk, probe, self._desired(), self._switch.config))


def json_page(values: Mapping[str, object]) -> Page:
    """Return values as a page."""
    return Page(body=json.dumps(values) + "\n", content_type="application/json")


def read_query(query: str) -> Probe:
    """Return the packet that a query means: every key once, nothing else. Raises ValueError, for the client."""
    return read_packet(read_pairs(query))


def read_pairs(query: str, more: frozenset[str] = frozenset()) -> dict[str, str]:
    """Return the keys and values of a query, of which `more` may be there too. Raises ValueError."""
    known = NEEDED | more | _BOUNDS.keys()
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True, max_num_fields=len(known))
    except ValueError:
        raise ValueError(f"the query must be {'&'.join(f'{key}=…' for key in sorted(NEEDED))}") from None
    found = dict(pairs)
    if len(pairs) != len(found) or not NEEDED <= found.keys() <= known:
        raise ValueError(f"the query must have each of {', '.join(sorted(NEEDED))} once")
    return found


def read_packet(found: Mapping[str, str]) -> Probe:
    """Return the packet that keys and values mean. Raises ValueError."""
    if found["protocol"] not in PROTOCOLS or found["mac"] not in MACS:
        raise ValueError(f"protocol is one of {', '.join(PROTOCOLS)}, mac one of {', '.join(MACS)}")
    numbers = {key: number_of(found, key, most) for key, most in _BOUNDS.items() if key in found}
    return Probe(
        in_port=number_of(found, "in_port"),
        source=IPv4Address(found["source"]),
        destination=IPv4Address(found["destination"]),
        protocol=found["protocol"],
        source_port=number_of(found, "source_port"),
        port=number_of(found, "port"),
        mac=found["mac"],
        service=numbers.get("service", 0),
        identity=numbers.get("identity", 0),
        reply=bool(numbers.get("reply")),
        mark=numbers.get("mark", 0),
        label=numbers.get("label", 0),
    )


def number_of(found: Mapping[str, str], key: str, most: int = 65535) -> int:
    """Return a number of the query. Raises ValueError."""
    text = found[key]
    if not (text.isascii() and text.isdecimal() and len(text) < 40 and int(text) <= most):
        raise ValueError(f"{key} must be a number from 0 to {most}")
    return int(text)
