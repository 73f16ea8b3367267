"""Traces of real probes in Open vSwitch's dumps of datapath flows and of conntrack. Pure.

A probe carries a type of service of its own (`TOS_TRACE`). Table Classify matches on that field, so the datapath
has separate flows for probes on every Node that receives them (dpctl(8), dump-flows). Later passes, after
conntrack, do not match on it: conntrack's entries show whether a probe passed them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from ipaddress import IPv4Address

from flows.pipeline.registers import TOS_TRACE
from mcagent.api.trace import MarkedFlow, Tracked
from mcagent.trace.ofproto import fields_of
from mcagent.trace.probe import Probe

NUMBERS = {"icmp": 1, "tcp": 6, "udp": 17}
MOST = 5  # probes at once
MARKED = f"ip,nw_tos={TOS_TRACE}"
# The userspace datapath has no flag for answers. For TCP: the server's state before any answer
# (lib/conntrack-tcp.c). Otherwise: the time-out in seconds of an answered entry, which is shorter than of an
# unanswered one (ovs-vswitchd.conf.db(5), udp_first, udp_multiple, icmp_first, icmp_reply).
_UNANSWERED = "CLOSED"
_ANSWERED_FOR = 30

_IPV4 = re.compile(r"eth_type\(0x0800\),ipv4\(([^)]*)\)")
_COUNTS = re.compile(r"packets:(\d+), bytes:\d+, used:(?:never|(\d+(?:\.\d+)?)s), .{0,100}?actions:(.*)")
# Packets of the host are measured first: those that fit the tunnels are dropped.
_DROPS = re.compile(r"^drop|,le\(drop\)\)$")
_TOS = re.compile(r"(0x[0-9a-f]+|0)(?:/(0x[0-9a-f]+))?")
_BRIDGES = re.compile(r"([^\s@]+@\S+): ")
_ZONE, _STATE = re.compile(r"\bzone=(\d+)"), re.compile(r"\bstate_reply=(\w+)")
_STATUS, _LEFT = re.compile(r"\bstatus=([A-Z_|]+)"), re.compile(r"\btimeout=(\d+)")
_ENTRY = re.compile(r"(\w+),orig=\(([^)]*)\),reply=\(([^)]*)\)(.*)")


def datapath_of(shown: str, bridge: str) -> str:
    """Find the datapath of a bridge in the output of `dpif/show`, by dpctl(8)'s name; "" if there is none."""
    datapath = ""
    for line in shown.splitlines():
        if match := _BRIDGES.match(line):
            datapath = match[1]
        elif line == f"  {bridge}:":
            return datapath
    return ""


def marked_flows(dump: str, probe: Probe) -> tuple[MarkedFlow, ...]:
    """Return the datapath flows that match only probes with these addresses."""
    flows = []
    for line in dump.splitlines():
        packet, counts = _IPV4.search(line), _COUNTS.search(line)
        if packet is None or counts is None:
            continue
        fields = fields_of(packet[1])
        if _is_marked(fields.get("tos", "")) and _is_for(fields, probe):
            flows.append(
                MarkedFlow(
                    match=line[: counts.start()].rstrip(", "),
                    packets=int(counts[1]),
                    age=float(counts[2]) if counts[2] else None,
                    dropped=_DROPS.search(counts[3]) is not None,
                )
            )
    return tuple(flows)


def _is_marked(tos: str) -> bool:
    match = _TOS.fullmatch(tos)
    return match is not None and int(match[1], 0) & 0xFC == TOS_TRACE and int(match[2] or "0xff", 0) & 0xFC == 0xFC


def _is_for(fields: Mapping[str, str], probe: Probe) -> bool:
    matches = ((fields.get("src", ""), probe.source), (fields.get("dst", ""), probe.destination))
    try:
        matched = all(_matches(match, address) for match, address in matches)
    except ValueError:
        return False
    return matched and fields.get("proto", "") in ("", str(NUMBERS[probe.protocol]))


def _matches(match: str, address: IPv4Address) -> bool:
    """Tell whether an address fits a match: any, an address, or an address and a mask (odp-util.c, format_ipv4).

    A mask may have gaps: select groups hash single bits of an address. Raises ValueError.
    """
    if not match:
        return True
    value, _, mask = match.partition("/")
    bits = int(IPv4Address(mask or "255.255.255.255"))
    return int(IPv4Address(value)) & bits == int(address) & bits


def tracked(dump: str, probe: Probe) -> tuple[Tracked, ...]:
    """Return the entries of a probe's connection in the output of `dpctl/dump-conntrack -m -s`, by zone."""
    expected = {"src": str(probe.source), "dst": str(probe.destination)}
    if probe.protocol == "icmp":
        expected["id"] = str(probe.source_port)
    else:
        expected |= {"sport": str(probe.source_port), "dport": str(probe.port)}
    entries = []
    for protocol, opened, _, remainder in _entries(dump):
        if protocol == probe.protocol and expected.items() <= opened.items():
            zone = _ZONE.search(remainder)
            entries.append(Tracked(zone=int(zone[1]) if zone else 0, answered=_answered(protocol, remainder)))
    return tuple(entries)


def in_use(dump: str, probe: Probe) -> bool:
    """Tell whether conntrack has a connection with the probe's source and port, in either direction."""
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


def _answered(protocol: str, entry: str) -> bool:
    state, status, timeout = _STATE.search(entry), _STATUS.search(entry), _LEFT.search(entry)
    if status is not None:
        return "SEEN_REPLY" in status[1].split("|")
    if protocol == "tcp":
        return state is not None and state[1] != _UNANSWERED
    return timeout is not None and int(timeout[1]) <= _ANSWERED_FOR
