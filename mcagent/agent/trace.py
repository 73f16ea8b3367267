"""The page /trace: what this Node's flows would do with a packet. Validates the query and limits its rate."""

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


class RateLimit:
    """A token bucket: `per_second` requests, and bursts of `burst`. Thread-safe."""

    def __init__(self, per_second: float, burst: float, clock: Callable[[], float]) -> None:
        self._per_second, self._burst, self._clock = per_second, burst, clock
        self._lock = threading.Lock()
        self._left, self._at = burst, clock()

    def take(self) -> bool:
        """Take a token; return whether there was one."""
        with self._lock:
            now = self._clock()
            self._left = min(self._burst, self._left + (now - self._at) * self._per_second)
            self._at = now
            if self._left < 1:
                return False
            self._left -= 1
            return True


class VswitchdControl:
    """Commands to ovs-vswitchd by its control socket, in the directory of the database's socket `ovsdb`."""

    def __init__(self, ovsdb: str, config: Config) -> None:
        self.config = config
        self._directory = Path(ovsdb.removeprefix("unix:")).parent

    def trace(self, probe: Probe) -> Walk:
        """Run ofproto/trace for a packet on our bridge. Raises BackendError."""
        bridge = self.config.bridge
        return read(self.call("ofproto/trace", bridge, *probe.arguments()), bridge, probe)

    def call(self, command: str, *arguments: str) -> str:
        """Run a command of ovs-appctl(8) and return its output. Raises BackendError."""
        return call(self._directory, command, *arguments)


class TracePage:
    """The page /trace. `desired` is the desired state behind the flows, None before the first pass."""

    def __init__(
        self,
        switch: VswitchdControl,
        desired: Callable[[], Desired | None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._switch, self._desired = switch, desired
        self._limit = RateLimit(PER_SECOND, _BURST, clock)

    def __call__(self, query: str) -> Page:
        """Return the trace as JSON; statuses 400 (query), 429 (rate) and 503 (Open vSwitch)."""
        try:
            probe = read_query(query)
        except ValueError as error:
            return Page(body=f"{error}\n", status=400)
        if not self._limit.take():
            return Page(body=f"more than {PER_SECOND:g} traces a second: ask again\n", status=429)
        try:
            walk = self._switch.trace(probe)
        except BackendError as error:
            return Page(body=f"{error}\n", status=503)
        return json_page(page_of(walk, probe, self._desired(), self._switch.config))


def json_page(values: Mapping[str, object]) -> Page:
    """Return values as a page of JSON."""
    return Page(body=json.dumps(values) + "\n", content_type="application/json")


def read_query(query: str) -> Probe:
    """Parse a query into a packet: every key once, no other key. Raises ValueError with a text for the client."""
    return read_packet(read_pairs(query))


def read_pairs(query: str, optional: frozenset[str] = frozenset()) -> dict[str, str]:
    """Parse a query into keys and values; `optional` keys are allowed besides a packet's. Raises ValueError."""
    allowed = NEEDED | optional | _BOUNDS.keys()
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True, max_num_fields=len(allowed))
    except ValueError:
        raise ValueError(f"the query must be {'&'.join(f'{key}=…' for key in sorted(NEEDED))}") from None
    values = dict(pairs)
    if len(pairs) != len(values) or not NEEDED <= values.keys() <= allowed:
        raise ValueError(f"the query must have each of {', '.join(sorted(NEEDED))} once")
    return values


def read_packet(values: Mapping[str, str]) -> Probe:
    """Make a packet from keys and values of a query. Raises ValueError."""
    if values["protocol"] not in PROTOCOLS or values["mac"] not in MACS:
        raise ValueError(f"protocol is one of {', '.join(PROTOCOLS)}, mac one of {', '.join(MACS)}")
    numbers = {key: number_of(values, key, maximum) for key, maximum in _BOUNDS.items() if key in values}
    return Probe(
        in_port=number_of(values, "in_port"),
        source=IPv4Address(values["source"]),
        destination=IPv4Address(values["destination"]),
        protocol=values["protocol"],
        source_port=number_of(values, "source_port"),
        port=number_of(values, "port"),
        mac=values["mac"],
        service=numbers.get("service", 0),
        identity=numbers.get("identity", 0),
        reply=bool(numbers.get("reply")),
        mark=numbers.get("mark", 0),
        label=numbers.get("label", 0),
    )


def number_of(values: Mapping[str, str], key: str, maximum: int = 65535) -> int:
    """Parse the value of `key` as a decimal number from 0 to `maximum`. Raises ValueError."""
    text = values[key]
    if not (text.isascii() and text.isdecimal() and len(text) < 40 and int(text) <= maximum):
        raise ValueError(f"{key} must be a number from 0 to {maximum}")
    return int(text)
