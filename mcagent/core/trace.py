"""What `ofproto/trace` (ovs-vswitchd(8)) says of a packet, mapped back to the words of our pipeline. Pure.

Owns the reading of that text and the likely causes of drops. A trace does not look into conntrack: the packet is
the first of its connection, or an answer to it, with the mark and label that the first one's trace has committed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address

from flows.declare import Category
from flows.pipeline import declaration as d
from flows.pipeline import registers as r
from flows.pipeline import tables as t
from flows.text import mac_text

_FLOW = re.compile(r" *(\d+)\. (?:(.*), )?priority \d+(?:, cookie (0x[0-9a-f]+))?$")
_OUTPUT = re.compile(r" +(?:output:|-> output port is )(\d+)$")
_BRIDGE = re.compile(r' *bridge\("(.*)"\)$')
_STATE = re.compile(r" *(?:Modified flow|Flow): (.*)$")
_ETH_DST = re.compile(r" +set_field:(\S+)->eth_dst$")
_FINAL = re.compile(r"Final flow: (.*)$")
_ACTIONS = re.compile(r"Datapath actions: (.*)$")
_COMMIT = re.compile(
    r"ct\((?:force_)?commit,zone=(\d+)(?:,mark=(0x[0-9a-f]+|0)/(0x[0-9a-f]+))?(?:,label=(0x[0-9a-f]+|0)/(0x[0-9a-f]+))?"
)
TABLES = {table.number: table.name for table in t.TABLES}
_CATEGORIES = {category.number: category for category in d.PIPELINE.categories}
_REJECTS = {t.EGRESS_REJECT.number, t.REJECT_STATE.number}
SERVICES = 1 << 24  # numbers of them; the MACs beyond are others'
_ENDS = {"nw_src", "nw_dst", "tp_src", "tp_dst"}  # what a flow itself can write, beside conntrack
_PASSES = 4  # through conntrack, of a reply; more than there are zones
MACS = {"plain": r.MAC_PLAIN, "translated": r.MAC_TRANSLATED, "reply": r.MAC_REPLY}

# What is probably wrong, and what to look at next, by the reason of a drop.
CAUSES: Mapping[str, tuple[str, str]] = {
    "miss": ("no rule matches this packet: is the agent ready?", "mcagent status"),
    "spoofed": ("the source is not the sender's own: is it in the Node's podCIDR?", "kubectl get nodes -o yaml"),
    "spoofed-remote": (
        "the source is in no CIDR that its cluster has announced, or one was refused",
        "kubectl get clusterinfoimports -A -o yaml",
    ),
    "not-published": ("Pod-to-Pod traffic is off (enablePodToPodConnectivity)", "mcagent config show"),
    "not-exported": ("no ServiceExport of this Service, or of another port", "kubectl get serviceexports -A"),
    "no-endpoint": ("the exported Service has no ready endpoint", "kubectl get endpointslices -A"),
    "no-state": ("a reply of a connection unknown to this gateway", "mcagent gateways --history"),
    "invalid": ("conntrack does not match the packet to a connection", "mcagent status"),
    "no-route": ("no other cluster has this address", "kubectl get clusterinfoimports -A -o yaml"),
    "no-gateway": ("no gateway of that cluster can be used", "mcagent gateways --history"),
    "no-node": ("no Node of this cluster has this address", "kubectl get pods -A -o wide"),
    "refused": ("the reset of a client that the agent probed", "mcagent status"),
    "policy": ("a policy rule forbids it", "mcagent policy explain --from WHO --to WHO --port PORT"),
    "isolated": ("a NetworkPolicy isolates the Pod, and none allows this", "mcagent policy list"),
    "unknown-identity": (
        "policies select this Pod's clients by labels, and the sender's are not known",
        "kubectl get labelidentities",
    ),
    "no-connection": (
        "a TCP packet of a connection to a Service that no endpoint has: it is over, or its Pod is gone",
        "kubectl get endpointslices -A",
    ),
}  # fmt: skip


class Outcome(StrEnum):
    """What becomes of a packet on one Node."""

    HOST = "to this Node's kernel"
    TUNNEL = "to a tunnel"
    REJECTED = "rejected"
    DROPPED = "dropped"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A packet as it comes in by a port of the bridge. `mac`: what our tunnels say of it (`MACS`).

    `service` is the ID of the Service that was translated, `identity` the tunnel's VNI (0: it came by none).
    `reply`: it answers a connection that this Node knows, with `mark` and `label` (`Committed`).
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
        known: tuple[str, ...] = ()
        if self.reply:
            parts += f",ct_mark={self.mark:#x},ct_label={self.label:#x}"
            known = ("--ct-next", "trk,est,rpl") * _PASSES
        if self.protocol == "icmp":
            return f"{parts},icmp_type={0 if self.reply else 8},icmp_code=0", *known
        flags = f",tcp_flags=syn{'|ack' if self.reply else ''}" if self.protocol == "tcp" else ""
        return f"{parts},{self.protocol}_src={self.source_port},{self.protocol}_dst={self.port}{flags}", *known


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """What conntrack keeps of the connection in a zone."""

    zone: int
    mark: int
    label: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """The way through one bridge. `reason` is the drop's name, `number` what its cookie tells beside it.

    `rules` and `services` are the numbers in the cookies of flows of policies and exported Services that it met.
    `committed`: the zone that was committed to last comes last.
    """

    tables: tuple[str, ...]
    outcome: Outcome
    out_port: int | None = None
    reason: str = ""
    table: str = ""  # where it was decided
    rule: str = ""  # what the deciding flow matches
    number: int = 0
    source: str = ""
    destination: str = ""
    source_port: int = 0
    port: int = 0
    mac: str = "plain"
    service: int = 0
    identity: int = 0
    rules: tuple[int, ...] = ()
    services: tuple[int, ...] = ()
    committed: tuple[Committed, ...] = ()


def read(text: str, bridge: str, probe: Probe) -> Walk:
    """Return what a trace of the probe says. Total: whatever the text, there is a verdict."""
    ours, tables, rule, cookies = True, list[int](), "", list[int]()
    outputs, state, mac, dead = list[int](), dict[str, str](), probe.mac, False
    final, committed = dict[str, str](), dict[int, Committed]()
    for line in text.splitlines():
        if found := _BRIDGE.match(line):
            ours = found[1] == bridge  # the tunnel's own packets pass other bridges
        elif found := _STATE.match(line):
            state |= fields_of(found[1])
        elif found := _FINAL.match(line):
            final |= fields_of(found[1])
            state |= {key: value for key, value in fields_of(found[1]).items() if key in _ENDS}
        elif found := _ACTIONS.match(line):
            _commit(committed, found[1])
        elif not ours:
            continue
        elif found := _FLOW.match(line):
            tables.append(int(found[1]))
            rule = found[2] or ""
            cookies.append(int(found[3] or "0", 16))
        elif found := _OUTPUT.match(line):
            outputs.append(int(found[1]))
        elif found := _ETH_DST.match(line):
            named = {f"{number:012x}": name for name, number in MACS.items()}
            mac = named.get(found[1].replace(":", ""), mac)
        elif "no live bucket" in line:
            dead = True
    outcome, reason, number = verdict_of(tables, outputs, cookies, dead=dead)
    return Walk(
        tables=tuple(TABLES.get(one, str(one)) for one in tables),
        outcome=outcome,
        out_port=outputs[-1] if outputs else None,
        reason=reason,
        table=TABLES.get(tables[-1], str(tables[-1])) if tables else "",
        rule=rule,
        number=number,
        source=state.get("nw_src", str(probe.source)),
        destination=state.get("nw_dst", str(probe.destination)),
        source_port=_number(state.get("tp_src"), probe.source_port),
        port=_number(state.get("tp_dst"), probe.port),
        mac=mac,
        service=service_of(final["dl_src"]) if "dl_src" in final else probe.service,
        identity=_hex(final.get("tun_id"), probe.identity),
        rules=numbers_of(cookies, d.FOR_POLICY, d.DROP_POLICY),
        services=numbers_of(cookies, d.FOR_SERVICE),
        committed=tuple(committed.values()),
    )


def verdict_of(
    tables: Sequence[int], outputs: Sequence[int], cookies: Sequence[int], *, dead: bool
) -> tuple[Outcome, str, int]:
    """Return what became of a packet, with the reason of a drop and the number beside it.

    `tables` and `cookies` are those of the flows that it met, `dead`: it met a group without a live bucket.
    """
    parts = d.COOKIES.split(cookies[-1]) if cookies else None
    category = _CATEGORIES.get(parts[0]) if parts is not None else None
    if tables and tables[-1] in _REJECTS:
        rules = numbers_of(cookies, d.FOR_POLICY)
        return Outcome.REJECTED, "policy", rules[-1] if rules else 0
    if outputs:
        return (Outcome.HOST if outputs[-1] == r.HOST_OFPORT else Outcome.TUNNEL), "", 0
    if category is not None and category.drops and parts is not None:
        return Outcome.DROPPED, category.name, parts[1]
    if dead:
        return Outcome.DROPPED, d.DROP_NO_GATEWAY.name, 0
    return Outcome.UNKNOWN, "", 0


def numbers_of(cookies: Iterable[int], *categories: Category) -> tuple[int, ...]:
    """Return the numbers in the cookies of these categories."""
    found = (parts for cookie in cookies if (parts := d.COOKIES.split(cookie)) is not None)
    wanted = {category.number for category in categories}
    return tuple(number for category, number in found if category in wanted and number)


def _commit(known: dict[int, Committed], actions: str) -> None:
    for found in _COMMIT.finditer(actions):
        zone, *values = (int(one or "0", 0) for one in found.groups())
        mark, mark_mask, label, label_mask = values
        before = known.pop(zone, Committed(zone=zone, mark=0, label=0))
        mark |= before.mark & ~mark_mask
        known[zone] = Committed(zone=zone, mark=mark, label=label | before.label & ~label_mask)


def fields_of(text: str) -> dict[str, str]:
    """Return the fields of "key=value,key=value"."""
    return dict(part.partition("=")[::2] for part in text.split(","))


def service_of(mac: str) -> int:
    """Return the ID of the Service that a sender's MAC tells in our tunnels; 0 if none."""
    number = _hex("0x" + mac.replace(":", ""), 0) - r.MAC_SERVICE
    return number if 0 < number < SERVICES else 0


def _hex(text: str | None, otherwise: int) -> int:
    try:
        return int(text or "", 0)
    except ValueError:
        return otherwise


def _number(text: str | None, otherwise: int) -> int:
    return int(text) if text is not None and text.isdecimal() and len(text) < 6 else otherwise
