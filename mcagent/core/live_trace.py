"""Where real probes were seen: what Open vSwitch says of its datapath's flows and of conntrack, read. Pure.

A probe carries a type of service that nothing else has (`TOS_TRACE`). Table Classify looks at that field of every
packet, so the datapath has flows of its own for probes, on every Node that they come to (dpctl(8), dump-flows).
Later passes, after conntrack, do not show it: whether a probe got through those, conntrack says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network

from flows.pipeline.registers import TOS_TRACE
from mcagent.core.trace import Probe, fields_of

NUMBERS = {"icmp": 1, "tcp": 6, "udp": 17}
MOST = 5  # probes at once
MARKED = f"ip,nw_tos={TOS_TRACE}"
# On the userspace datapath, which does not say whether an answer was seen: of TCP the server's state before any
# (lib/conntrack-tcp.c); of all else how long an entry stays in seconds once there was one, which is shorter than
# before (ovs-vswitchd.conf.db(5), udp_first, udp_multiple, icmp_first, icmp_reply).
_UNANSWERED = "CLOSED"
_ANSWERED_FOR = 30

_IPV4 = re.compile(r"eth_type\(0x0800\),ipv4\(([^)]*)\)")
_COUNTS = re.compile(r"packets:(\d+), bytes:\d+, used:(?:never|(\d+(?:\.\d+)?)s), .*?actions:(.*)$")
_TOS = re.compile(r"(0x[0-9a-f]+|0)(?:/(0x[0-9a-f]+))?")
_BRIDGES = re.compile(r"(\S+@\S+): ")
_ZONE, _STATE = re.compile(r"\bzone=(\d+)"), re.compile(r"\bstate_reply=(\w+)")
_STATUS, _LEFT = re.compile(r"\bstatus=([A-Z_|]+)"), re.compile(r"\btimeout=(\d+)")
_ENTRY = re.compile(r"(\w+),orig=\(([^)]*)\),reply=\(([^)]*)\)(.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedFlow:
    """A flow of the datapath that took probes; it counts all but the first. `age`: seconds since the last one."""

    match: str
    packets: int
    age: float | None
    dropped: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracked:
    """What conntrack knows of a connection in a zone."""

    zone: int
    answered: bool


def datapath_of(shown: str, bridge: str) -> str:
    """Return the datapath that a bridge is of, as dpctl(8) names it, from `dpif/show`; "" if there is none."""
    datapath = ""
    for line in shown.splitlines():
        if found := _BRIDGES.match(line):
            datapath = found[1]
        elif line == f"  {bridge}:":
            return datapath
    return ""


def marked_flows(dump: str, probe: Probe) -> tuple[MarkedFlow, ...]:
    """Return the flows of the datapath that only probes with these addresses go by."""
    found = []
    for line in dump.splitlines():
        packet, counts = _IPV4.search(line), _COUNTS.search(line)
        if packet is None or counts is None:
            continue
        fields = fields_of(packet[1])
        if _is_marked(fields.get("tos", "")) and _is_for(fields, probe):
            found.append(
                MarkedFlow(
                    match=line[: counts.start()].rstrip(", "),
                    packets=int(counts[1]),
                    age=float(counts[2]) if counts[2] else None,
                    dropped=counts[3].strip() == "drop",
                )
            )
    return tuple(found)


def _is_marked(tos: str) -> bool:
    said = _TOS.fullmatch(tos)
    return said is not None and int(said[1], 0) & 0xFC == TOS_TRACE and int(said[2] or "0xff", 0) & 0xFC == 0xFC


def _is_for(fields: Mapping[str, str], probe: Probe) -> bool:
    try:
        ends = (
            (probe.source, fields.get("src", "0.0.0.0/0")),
            (probe.destination, fields.get("dst", "0.0.0.0/0")),
        )
        within = all(address in IPv4Network(network, strict=False) for address, network in ends)
    except ValueError:
        return False
    return within and fields.get("proto", "") in ("", str(NUMBERS[probe.protocol]))


def tracked(dump: str, probe: Probe) -> tuple[Tracked, ...]:
    """Return what `dpctl/dump-conntrack -m -s` says of the connection that a probe opens, by zone."""
    wanted = {"src": str(probe.source), "dst": str(probe.destination)}
    if probe.protocol == "icmp":
        wanted["id"] = str(probe.source_port)
    else:
        wanted |= {"sport": str(probe.source_port), "dport": str(probe.port)}
    found = []
    for protocol, opened, _, more in _entries(dump):
        if protocol == probe.protocol and wanted.items() <= opened.items():
            zone = _ZONE.search(more)
            found.append(Tracked(zone=int(zone[1]) if zone else 0, answered=_answered(protocol, more)))
    return tuple(found)


def in_use(dump: str, probe: Probe) -> bool:
    """Tell whether conntrack has a connection with the probe's source and port, whoever opened it."""
    port = {"id" if probe.protocol == "icmp" else "sport": str(probe.source_port)}
    end = {"src": str(probe.source), **port}.items()
    return any(
        protocol == probe.protocol and (end <= opened.items() or end <= back.items())
        for protocol, opened, back, _ in _entries(dump)
    )


def _entries(dump: str) -> Iterator[tuple[str, dict[str, str], dict[str, str], str]]:
    for line in dump.splitlines():
        if entry := _ENTRY.match(line.strip()):
            yield entry[1], fields_of(entry[2]), fields_of(entry[3]), entry[4]


def _answered(protocol: str, said: str) -> bool:
    state, status, left = _STATE.search(said), _STATUS.search(said), _LEFT.search(said)
    if status is not None:
        return "SEEN_REPLY" in status[1].split("|")
    if protocol == "tcp":
        return state is not None and state[1] != _UNANSWERED
    return left is not None and int(left[1]) <= _ANSWERED_FOR
