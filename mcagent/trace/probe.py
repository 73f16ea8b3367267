"""The packet that is traced: as a value, as arguments of ofproto/trace, and as the query of an agent's pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address
from urllib.parse import parse_qsl, urlencode

from flows.pipeline import registers as r
from flows.text import mac_text

PROTOCOLS = ("tcp", "udp", "sctp", "icmp")
MACS = {"plain": r.MAC_PLAIN, "translated": r.MAC_TRANSLATED, "reply": r.MAC_REPLY}
SERVICES = 1 << 24  # numbers of them; the MACs beyond have other meanings
_CONNTRACK_PASSES = 4  # of a reply; more than there are zones
_REQUIRED = ("in_port", "source", "destination", "protocol", "source_port", "port", "mac")
# The largest values of the numbers that may be left out: 0 then.
_LIMITS = {"service": SERVICES - 1, "identity": 0xFFFFFF, "reply": 1, "mark": 2**32 - 1, "label": 2**128 - 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A packet as it comes in by a port of the bridge. `mac`: what our tunnels say of it (`MACS`).

    `service` is the ID of the Service that was translated, `identity` the tunnel's VNI (0: it came by none).
    `reply`: it answers a connection that this Node knows, with `mark` and `label` (`mcagent.api.trace.Committed`).
    """

    in_port: int
    source: IPv4Address
    destination: IPv4Address
    protocol: str
    source_port: int
    port: int
    mac: str = "plain"
    service: int = 0
    identity: int = 0
    reply: bool = False
    mark: int = 0
    label: int = 0

    @property
    def macs(self) -> tuple[str, str]:
        """The packet's MAC addresses: of its sender and of its receiver."""
        sender = r.MAC_SERVICE | self.service if self.service else r.HOST_MAC
        return mac_text(sender), mac_text(MACS[self.mac])

    def arguments(self) -> tuple[str, ...]:
        """Return it as ofproto/trace takes it: made of numbers and known words alone."""
        sender, receiver = self.macs
        parts = f"in_port={self.in_port},{self.protocol},dl_src={sender},dl_dst={receiver}"
        parts += f",nw_src={self.source},nw_dst={self.destination},nw_ttl=64"
        if self.identity:
            parts += f",tun_id={self.identity:#x}"
        conntrack: tuple[str, ...] = ()
        if self.reply:
            parts += f",ct_mark={self.mark:#x},ct_label={self.label:#x}"
            conntrack = ("--ct-next", "trk,est,rpl") * _CONNTRACK_PASSES
        if self.protocol == "icmp":
            return f"{parts},icmp_type={0 if self.reply else 8},icmp_code=0", *conntrack
        flags = f",tcp_flags=syn{'|ack' if self.reply else ''}" if self.protocol == "tcp" else ""
        return f"{parts},{self.protocol}_src={self.source_port},{self.protocol}_dst={self.port}{flags}", *conntrack

    def query(self) -> str:
        """Return it as the agent's pages take it."""
        values = {name: str(getattr(self, name)) for name in _REQUIRED}
        values |= {name: str(int(number)) for name in _LIMITS if (number := getattr(self, name))}
        return urlencode(values)


def read_query(query: str) -> Probe:
    """Parse a query into a packet: every key once, no other key. Raises ValueError with a text for the client."""
    return read_packet(read_pairs(query))


def read_pairs(query: str, optional: frozenset[str] = frozenset()) -> dict[str, str]:
    """Parse a query into keys and values; `optional` keys are allowed besides a packet's. Raises ValueError."""
    allowed = {*_REQUIRED, *optional, *_LIMITS}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True, max_num_fields=len(allowed))
    except ValueError:
        raise ValueError(f"the query must be {'&'.join(f'{key}=…' for key in sorted(_REQUIRED))}") from None
    values = dict(pairs)
    if len(pairs) != len(values) or not set(_REQUIRED) <= values.keys() <= allowed:
        raise ValueError(f"the query must have each of {', '.join(sorted(_REQUIRED))} once")
    return values


def read_packet(values: Mapping[str, str]) -> Probe:
    """Make a packet from keys and values of a query. Raises ValueError."""
    if values["protocol"] not in PROTOCOLS or values["mac"] not in MACS:
        raise ValueError(f"protocol is one of {', '.join(PROTOCOLS)}, mac one of {', '.join(MACS)}")
    numbers = {key: read_number(values, key, maximum) for key, maximum in _LIMITS.items() if key in values}
    return Probe(
        in_port=read_number(values, "in_port"),
        source=IPv4Address(values["source"]),
        destination=IPv4Address(values["destination"]),
        protocol=values["protocol"],
        source_port=read_number(values, "source_port"),
        port=read_number(values, "port"),
        mac=values["mac"],
        reply=bool(numbers.pop("reply", 0)),
        **numbers,
    )


def read_number(values: Mapping[str, str], key: str, maximum: int = 65535) -> int:
    """Parse the value of `key` as a decimal number from 0 to `maximum`. Raises ValueError."""
    text = values[key]
    if not (text.isascii() and text.isdecimal() and len(text) < 40 and int(text) <= maximum):
        raise ValueError(f"{key} must be a number from 0 to {maximum}")
    return int(text)
