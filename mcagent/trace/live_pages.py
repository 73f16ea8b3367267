"""The pages /trace/live, which sends probes from a Pod's address, and /trace/seen, which lists their traces.

A probe enters the bridge as if the Pod had sent it, from a port of which conntrack has no connection (the client
chooses one below Linux' ephemeral ports). A TCP connection that it opens is reset. Sources that are no Pod of this
Node are refused, and so are more than a few probes a second.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from ipaddress import IPv4Address

from flows.pipeline import declaration as d
from flows.pipeline.registers import HOST_MAC, HOST_OFPORT, MAC_PLAIN, TOS_TRACE, ZONES
from mcagent.api.trace import SeenProbes, SentProbes
from mcagent.dataplane import packets
from mcagent.http.server import Page
from mcagent.model.errors import BackendError
from mcagent.supervised import Supervised
from mcagent.trace.datapath import MARKED, MOST, NUMBERS, datapath_of, in_use, marked_flows, tracked
from mcagent.trace.pages import RateLimit, VswitchdControl, answer, json_page
from mcagent.trace.probe import Probe, read_number, read_packet, read_pairs, read_query

PER_SECOND, _BURST = 0.5, 3.0
APART = 0.2  # seconds between probes: the first installs datapath flows, which count the others
RESET_AFTER = 5.0
_POLL_PAUSES = (0.2, 0.4, 0.8)  # seconds before each read of conntrack for an answer
_DATA = b"mcagent trace --live"


class LivePage:
    """Sends probes: by `send` into the bridge. `lives_here`: whether an address is a Pod's of this Node."""

    def __init__(
        self,
        switch: VswitchdControl,
        lives_here: Callable[[IPv4Address], bool],
        send: Callable[[int, Sequence[bytes]], None],
    ) -> None:
        self._switch, self._lives_here, self._send = switch, lives_here, send
        self._limit = RateLimit(PER_SECOND, _BURST, time.monotonic)

    def __call__(self, query: str) -> Page:
        """Send the probes of a query and wait for an answer; statuses 403 and 409 refuse the Pod and the port."""
        busy = "probes are sent every two seconds at most: ask again"
        return answer(lambda: _read_request(query), self._probe, self._limit, busy)

    def _probe(self, request: tuple[Probe, int]) -> Page:
        probe, count = request
        traced = self._switch.trace(probe)
        if traced.reason == d.DROP_SPOOFED.name or not self._lives_here(probe.source):
            return Page(body=f"{probe.source} is not a Pod of this Node: nothing sent\n", status=403)
        # Conntrack of the bridge has the virtual address of a Pod, where it has one.
        in_bridge = replace(probe, source=IPv4Address(traced.source or probe.source))
        if in_use(connections := _connections(self._switch), probe) or in_use(connections, in_bridge):
            text = f"port {probe.source_port} of {probe.source} is in use: nothing is sent\n"
            return Page(body=text, status=409)
        sequence = secrets.randbits(32)
        for number in range(count):
            time.sleep(APART if number else 0)
            self._send(HOST_OFPORT, [_frame(probe, sequence, number)])
        if probe.protocol == "tcp":
            Supervised(self._reset, args=(probe, sequence), name="trace-reset").start()
        answered = self._answered(probe, in_bridge)
        return json_page(SentProbes(node=self._switch.config.node_name, sent=count, answered=answered))

    def _reset(self, probe: Probe, sequence: int) -> None:
        """Reset the TCP connection after the client has had time to query all Nodes about it."""
        time.sleep(RESET_AFTER)
        with contextlib.suppress(BackendError):
            self._send(HOST_OFPORT, [_reset(probe, sequence)])

    def _answered(self, *sent: Probe) -> bool:
        for pause in _POLL_PAUSES:
            time.sleep(pause)
            dump = _connections(self._switch)
            if any(connection.answered for probe in sent for connection in tracked(dump, probe)):
                return True
        return False


class SeenPage:
    """Lists datapath flows of this Node that matched probes, and conntrack's entries of their connection."""

    def __init__(self, switch: VswitchdControl) -> None:
        self._switch = switch
        self._limit = RateLimit(4 * PER_SECOND, 4 * _BURST, time.monotonic)

    def __call__(self, query: str) -> Page:
        """Return flows and connections as JSON."""
        return answer(lambda: _read_probe(query), self._search, self._limit, "asked too often: ask again")

    def _search(self, probe: Probe) -> Page:
        dump = self._switch.call("dpctl/dump-flows", _datapath(self._switch), f"filter={MARKED}")
        entries = tracked(_connections(self._switch, whole=True), probe)
        node = self._switch.config.node_name
        return json_page(SeenProbes(node=node, flows=marked_flows(dump, probe), tracked=entries))


def _read_request(query: str) -> tuple[Probe, int]:
    """Parse a query into a probe and the number of packets. Raises ValueError."""
    pairs = read_pairs(query, frozenset({"count"}))
    probe, count = read_packet(pairs), read_number({"count": "3", **pairs}, "count", MOST)
    if probe != _as_sent(probe) or probe.protocol not in NUMBERS:
        raise ValueError(f"a probe is a Pod's first packet (in_port 1, mac plain), {', '.join(NUMBERS)}")
    return probe, count


def _read_probe(query: str) -> Probe:
    """Parse a query into a probe. Raises ValueError."""
    probe = read_query(query)
    if probe.protocol not in NUMBERS:
        raise ValueError(f"protocol is one of {', '.join(NUMBERS)}")
    return probe


def _as_sent(probe: Probe) -> Probe:
    return Probe(
        in_port=HOST_OFPORT,
        source=probe.source,
        destination=probe.destination,
        protocol=probe.protocol,
        source_port=probe.source_port,
        port=probe.port,
    )


def _datapath(switch: VswitchdControl) -> str:
    """Return the datapath of our bridge, by dpctl(8)'s name. Raises BackendError."""
    datapath = datapath_of(switch.call("dpif/show"), switch.config.bridge)
    if not datapath:
        raise BackendError("openflow", "find the datapath of", switch.config.bridge, "Open vSwitch names none")
    return datapath


def _connections(switch: VswitchdControl, *, whole: bool = False) -> str:
    """Dump zone ARRIVAL, which has all connections of this Node's Pods; `whole`: all our zones."""
    base, datapath = switch.config.ct_zone_base, _datapath(switch)
    zones = [base + zone.offset for zone in ZONES] if whole else [base]
    dumps = (switch.call("dpctl/dump-conntrack", "-m", "-s", datapath, f"zone={zone}") for zone in zones)
    return "\n".join(dumps)


def _frame(probe: Probe, sequence: int, number: int) -> bytes:
    ends = _ends(probe)
    if probe.protocol == "icmp":
        payload = packets.echo(probe.source_port, number, _DATA)
    elif probe.protocol == "udp":
        payload = packets.udp(ends, _DATA)
    else:
        payload = packets.tcp(ends, packets.SYN, sequence)
    return packets.frame(MAC_PLAIN, HOST_MAC, packets.ipv4(ends, NUMBERS[probe.protocol], payload, TOS_TRACE))


def _reset(probe: Probe, sequence: int) -> bytes:
    ends = _ends(probe)
    segment = packets.tcp(ends, packets.RST, (sequence + 1) & 0xFFFFFFFF)
    return packets.frame(MAC_PLAIN, HOST_MAC, packets.ipv4(ends, packets.TCP, segment))


def _ends(probe: Probe) -> packets.Ends:
    return packets.Ends(int(probe.source), int(probe.destination), (probe.source_port, probe.port))
