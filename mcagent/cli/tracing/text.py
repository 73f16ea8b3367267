"""A trace for people, in 100 columns, and as values for JSON. Decides nothing."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from mcagent.cli.tracing.ends import Target
from mcagent.cli.tracing.live import Live
from mcagent.cli.tracing.peers import Page, cluster_of
from mcagent.cli.tracing.way import Hop, Origin, answered, delivered
from mcagent.core.trace import CAUSES, Outcome, Probe

WIDTH = 100
_INDENT, _COLUMN = 3, 12
_SHOWN = 6  # endpoints of a Service


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """A trace. `status`: /status of the first Node; `back`: the hops of the answer."""

    target: Target
    status: Page
    hops: Sequence[Hop]
    back: Sequence[Hop]
    live: Live | None = None

    @property
    def answered(self) -> bool:
        """Whether the answer comes back, as far as was asked."""
        return answered(self.hops, self.back)

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        shares = [
            {"address": str(one.address), "port": one.port, "share": one.share} for one in self.target.choices
        ]
        return {
            "delivered": delivered(self.hops),
            "answered": self.answered,
            "service": {"name": self.target.name, "chosen_by": self.target.by, "endpoints": shares},
            "hops": list(map(_plain, self.hops)),
            "answer": list(map(_plain, self.back)),
            "live": None if self.live is None else {**asdict(self.live), "last_seen": self.live.last_seen},
        }

    def as_text(self) -> str:
        """Return a block for each hop, and what becomes of the packet."""
        parts = ["\n".join(self._head()), _blocks(self.hops, 1)]
        if self.back:
            told = {hop.node for hop in self.hops if hop.origin is Origin.SIMULATOR}
            back = [replace(hop, why="as above") if hop.node in told else hop for hop in self.back]
            parts += ["the answer:", _blocks(back, len(self.hops) + 1)]
        parts.append("\n".join(self._verdict()))
        if self.live is not None:
            parts.append("\n".join(_live(self.live)))
        return "\n\n".join(parts)

    def _head(self) -> Iterator[str]:
        """Yield what packet is traced and, for a Service, who gives its connections which endpoint."""
        probe, target = self.hops[0].probe, self.target
        assert probe is not None
        ends = _end(probe.source, probe.source_port, probe), _end(probe.destination, probe.port, probe)
        yield f"{probe.protocol} from {ends[0]} to {ends[1]}"
        if not target.choices:
            return
        named = f"{target.name}, {target.address}" if target.name else str(target.address)
        yield from _wrapped(f"of the Service {named}:{target.port}, whose new connections {target.by} gives", "")
        by_share = sorted(target.choices, key=lambda one: -one.share)
        for one in by_share[:_SHOWN]:
            cluster = cluster_of(self.status, one.address) or f"{self.status['clusterID']}, this one"
            traced = "  <- traced" if (one.address, one.port) == (probe.destination, probe.port) else ""
            yield f"   {one.share:>4.0%}  {one.address}:{one.port} (cluster {cluster}){traced}"
        if len(by_share) > _SHOWN:
            yield f"   and {len(by_share) - _SHOWN} more"

    def _verdict(self) -> Iterator[str]:
        mtus = {hop.node: hop.walk["mtu"] for hop in self.hops if hop.walk is not None and hop.walk.get("mtu")}
        smallest = min(mtus.values(), default=0)
        size = f"; packets up to {smallest} bytes" if smallest else ""
        if len(set(mtus.values())) > 1:
            size += f" (MTU of {', '.join(node for node, mtu in mtus.items() if mtu == smallest)})"
        good = delivered(self.hops)
        there = f"delivered to the kernel of the Node{size}" if good else "NOT delivered, or not known to be"
        yield from _wrapped(f"verdict: {there}", " " * 9)
        simulated = dict.fromkeys(one.node for one in (*self.hops, *self.back) if one.walk and not one.asked)
        if simulated:
            yield from _wrapped(f"{'':9}if flows are as simulated: {', '.join(simulated)}", " " * 9)
        if self.back:
            yield f"answer:  {'comes back' if self.answered else 'does NOT come back, or is not known to'}"


def _plain(hop: Hop) -> dict[str, Any]:
    tunnel = None if hop.tunnel is None else {key: hop.tunnel[key] for key in ("name", "peer", "remoteIP")}
    return {
        "node": hop.node,
        "cluster": hop.cluster,
        "role": hop.role,
        "asked": hop.asked,
        "from": None if hop.walk is None else str(hop.origin),
        "packet": None if hop.probe is None else _packet(hop.probe),
        "walk": hop.walk,
        "tunnel": tunnel,
        "encrypted": hop.encrypted,
        "why": hop.why,
        "text": [f"{name}: {what}" if name else what for name, what in _said(hop)],
    }


def _blocks(hops: Sequence[Hop], first: int) -> str:
    return "\n\n".join("\n".join(_block(number, hop)) for number, hop in enumerate(hops, first))


def _live(live: Live) -> Iterator[str]:
    words = {True: "seen", False: "not seen", None: "not asked"}
    yield f"{live.sent} real probes:"
    for one in live.sights:
        more = ", dropped" if one.dropped else ""
        more += ", answered" if one.answered else ""
        more += f" ({one.why})" if one.why else ""
        yield from _wrapped(f"   {one.node:<24} {words[one.seen]}{more}", " " * 28)
    yield from _wrapped(f"live:    {live.verdict}", " " * 9)
    if live.command:
        yield from _wrapped(f"next:    {live.command}", " " * 9)


def _block(number: int, hop: Hop) -> Iterator[str]:
    role = f", {hop.role}" if hop.role else ""
    yield f"{number}. Node {hop.node} (cluster {hop.cluster or '?'}{role})"
    if hop.walk is None:
        yield from _wrapped(f"{'':{_INDENT}}{hop.why}", " " * _INDENT)
        return
    for name, what in _said(hop):
        yield from _wrapped(f"{'':{_INDENT}}{name:<{_COLUMN - 1}} {what}", " " * (_INDENT + _COLUMN))


def _said(hop: Hop) -> Iterator[tuple[str, str]]:
    """Yield what there is to say of a hop, each with its name."""
    if hop.walk is None or hop.probe is None:
        yield "", hop.why
        return
    walk, probe = hop.walk, hop.probe
    if hop.origin is Origin.SIMULATOR:
        yield "simulated", hop.why.removeprefix("simulated: ")
    yield (
        "packet",
        f"{_end(probe.source, probe.source_port, probe)} > {_end(probe.destination, probe.port, probe)}",
    )
    yield "tables", " > ".join(walk["tables"])
    for one in walk.get("policies", ()):
        if one["verdict"] not in ("drop", "reject"):
            yield "policy", f"{one['policy']}, rule {one['rule'] or '-'} ({one['direction']}): {one['verdict']}"
    for what, was, now in (
        ("source", _end(probe.source, probe.source_port, probe), _end(walk["source"], walk["source_port"], probe)),
        (
            "destination",
            _end(probe.destination, probe.port, probe),
            _end(walk["destination"], walk["port"], probe),
        ),
    ):
        if was != now:
            yield "translated", f"{what} {was} to {now}{' (as conntrack knows it)' if probe.reply else ''}"
    for one in walk.get("exports", ()):
        export = one.rpartition(":")[0]
        counter = "" if probe.reply else f'; counter mcagent_exported_connections_total{{export="{export}"}}'
        yield "Service", f"{one}, exported{counter}"
    yield from _end_of(hop, walk, probe)
    if walk.get("mtu") and walk["outcome"] in (Outcome.HOST, Outcome.TUNNEL):
        yield "mtu", f"{walk['mtu']} bytes{_probed(hop)}"


def _end_of(hop: Hop, walk: Page, probe: Probe) -> Iterator[tuple[str, str]]:
    outcome = walk["outcome"]
    if outcome == Outcome.TUNNEL and hop.tunnel is not None:
        tunnel = hop.tunnel
        kind = {"gateway": "gateway", "node": "Node"}.get(tunnel["peerKind"], "a gateway of cluster")
        yield "sent", f"to {kind} {tunnel['peer']} at {tunnel['remoteIP']}, tunnel {tunnel['name']}"
        yield from _gateways(hop)
        within = "no: never within a cluster"
        yield "encrypted", within if hop.encrypted is None else "by WireGuard" if hop.encrypted else "no"
        yield "counter", f'mcagent_tunnel_transmit_packets_total{{tunnel="{tunnel["name"]}"}}'
    elif outcome == Outcome.HOST:
        yield "delivered", "to the kernel of this Node, by mc-gw0"
    elif outcome == Outcome.UNKNOWN:
        yield "unknown", f"the trace of table {walk['table'] or '?'} ends without output or drop"
    else:
        yield outcome, f"in table {walk['table']}: {walk['reason']}"
        yield from _why(walk, probe)


def _why(walk: Page, probe: Probe) -> Iterator[tuple[str, str]]:
    """Yield who decided on a drop, the likely cause, the next command and the counter."""
    cause, command = CAUSES.get(walk["reason"], ("", ""))
    counter = f'mcagent_dropped_packets_total{{reason="{walk["reason"]}"}}'
    for one in (each for each in walk.get("policies", ()) if each["verdict"] in ("drop", "reject")):
        yield "policy", f"{one['policy']}, rule {one['rule'] or '-'} ({one['direction']}): {one['verdict']}"
        counter = f'mcagent_policy_rule_packets_total{{policy="{one["policy"]}",rule="{one["rule"]}"}}'
    if isolating := walk.get("isolatedBy"):
        yield "policy", f"isolated by {', '.join(isolating)}, and no NetworkPolicy allows this"
    yield "because", cause
    if walk["reason"] in ("policy", "isolated", "unknown-identity"):
        port = "ICMP" if probe.protocol == "icmp" else f"{walk['port']}/{probe.protocol.upper()}"
        command = f"mcagent policy explain --from {walk['source']} --to {walk['destination']} --port {port}"
    yield "next", command
    yield "counter", counter


def _gateways(hop: Hop) -> Iterator[tuple[str, str]]:
    assert hop.tunnel is not None
    for one in hop.gateways:
        if one["tunnel"] == hop.tunnel["name"]:
            yield "gateway", f"{one['name']}: {one['why']}{_chosen(hop)}"
        elif not one["live"]:
            since = f", since {one['since']}" if one["since"] else ""
            yield "not by", f"{one['name']}: {one['why']}{since}"


def _probed(hop: Hop) -> str:
    """Return whether a tunnel between clusters lets the largest packets pass, if its gateway has tried."""
    for one in hop.gateways:
        probes = one.get("probes") if hop.tunnel is not None and one["tunnel"] == hop.tunnel["name"] else None
        if probes is not None and probes["fullSizePasses"] is not None:
            size, passes = probes["fullSizeBytes"], probes["fullSizePasses"]
            return f"; {size} pass this tunnel" if passes else f"; {size} do NOT pass this tunnel: mcagent doctor"
    return ""


def _chosen(hop: Hop) -> str:
    """Return how a gateway was chosen where there are several."""
    assert hop.walk is not None
    assert hop.probe is not None
    live = sum(each["live"] for each in hop.gateways)
    if live < 2 or hop.walk["table"] not in ("Departure", "Route", "Exit"):
        return ""
    if hop.walk["table"] == "Departure" and hop.probe.reply:
        return "; an answer takes its connection's gateway while that is live"
    return f"; chosen by a hash of the connection, of {live} that are live"


def _packet(probe: Probe) -> dict[str, str]:
    found = {key: str(getattr(probe, key)) for key in ("source", "destination", "protocol", "source_port", "port")}
    return {**found, "in_port": str(probe.in_port), "mac": probe.mac, "reply": str(probe.reply).lower()}


def _end(address: object, port: int, probe: Probe) -> str:
    return str(address) if probe.protocol == "icmp" else f"{address}:{port}"


def _wrapped(line: str, indent: str) -> list[str]:
    wrapped = textwrap.wrap(line, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return wrapped or [line]
