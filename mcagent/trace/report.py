"""A traced path as text of 100 columns, and as a JSON value. Decides nothing."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from mcagent.api.codec import to_json
from mcagent.api.status import Status
from mcagent.api.trace import NodeTrace, TraceOutcome
from mcagent.core.fragments.own_endpoints import CHAIN
from mcagent.trace.drops import CAUSES
from mcagent.trace.path import Hop, Origin, answered, delivered
from mcagent.trace.probe import Probe
from mcagent.trace.probing import ProbeReport
from mcagent.trace.targets import TraceTarget
from mcagent.trace.topology import cluster_of

WIDTH = 100
_INDENT, _COLUMN = 3, 12
_SHOWN = 6  # endpoints of a Service


@dataclass(frozen=True, slots=True, kw_only=True)
class PathReport:
    """A traced path. `status`: of the first Node; `back`: the hops of the answer; `live`: of real probes."""

    target: TraceTarget
    status: Status
    hops: Sequence[Hop]
    back: Sequence[Hop]
    live: ProbeReport | None = None

    @property
    def answered(self) -> bool:
        """Whether the answer comes back, as far as is known."""
        return answered(self.hops, self.back)

    @property
    def local(self) -> bool:
        """Whether the packet goes to a ready endpoint of this cluster, which mcagent has no part in."""
        return self.hops[0].local and not self.hops[0].closed and bool(self.target.choices)

    def as_json(self) -> dict[str, Any]:
        """Return the JSON value."""
        shares = [
            {"address": str(choice.address), "port": choice.port, "share": choice.share}
            for choice in self.target.choices
        ]
        return {
            "delivered": delivered(self.hops),
            "local": self.local,
            "answered": self.answered,
            "service": {"name": self.target.name, "chosen_by": self.target.by, "endpoints": shares},
            "hops": [_hop_json(hop) for hop in self.hops],
            "answer": [_hop_json(hop) for hop in self.back],
            "live": None if self.live is None else {**asdict(self.live), "last_seen": self.live.last_seen},
        }

    def as_text(self) -> str:
        """Return a block of lines for each hop, and the verdict."""
        parts = ["\n".join(self._head()), _blocks(self.hops, 1)]
        if self.back:
            explained = {hop.node for hop in self.hops if hop.origin is Origin.SIMULATOR}
            back = [replace(hop, why="as above") if hop.node in explained else hop for hop in self.back]
            parts += ["the answer:", _blocks(back, len(self.hops) + 1)]
        parts.append("\n".join(self._verdict()))
        if self.live is not None:
            parts.append("\n".join(_live(self.live)))
        return "\n\n".join(parts)

    def _head(self) -> Iterator[str]:
        """Yield the packet and, for a Service, its endpoints with their shares of new connections."""
        probe, target = self.hops[0].probe, self.target
        assert probe is not None
        ends = _end(probe.source, probe.source_port, probe), _end(probe.destination, probe.port, probe)
        yield f"{probe.protocol} from {ends[0]} to {ends[1]}"
        if not target.choices:
            return
        named = f"{target.name}, {target.address}" if target.name else str(target.address)
        yield from _wrapped(f"of the Service {named}:{target.port}, whose new connections {target.by} gives", "")
        by_share = sorted(target.choices, key=lambda choice: -choice.share)
        for choice in by_share[:_SHOWN]:
            cluster = cluster_of(self.status, choice.address) or f"{self.status.cluster_id}, this one"
            traced = "  <- traced" if (choice.address, choice.port) == (probe.destination, probe.port) else ""
            yield f"   {choice.share:>4.0%}  {choice.address}:{choice.port} (cluster {cluster}){traced}"
        if len(by_share) > _SHOWN:
            yield f"   and {len(by_share) - _SHOWN} more"

    def _verdict(self) -> Iterator[str]:
        if delivered(self.hops):
            verdict = f"delivered to the kernel of the Node{_passing_size(self.hops)}"
        elif self.local:
            verdict = "the endpoint is of this cluster: kube-proxy and the CNI deliver it, without mcagent"
        elif self.hops[0].closed:
            verdict = (
                f"NOT delivered: policies about Services drop it on {self.hops[0].node} (nft chain {CHAIN}); "
                f"mcagent policy explain --from POD --to {self.target.name or self.target.address} names the rule"
            )
            verdict += ", if chains are as simulated" if self.hops[0].origin is Origin.SIMULATOR else ""
        elif self.hops[0].local:
            verdict = "not known: no other cluster has this address; within this cluster the CNI delivers packets"
        elif self.hops[-1].trace is None:
            sent = "".join(f"{hop.node} sends it to " for hop in self.hops[-2:-1])
            verdict = f"not known: {sent}{self.hops[-1].node}, which was not asked"
        elif self.hops[-1].trace.outcome in (TraceOutcome.DROPPED, TraceOutcome.REJECTED):
            verdict = f"NOT delivered: it ends at {self.hops[-1].node}"
        else:
            verdict = f"not known: {self.hops[-1].node} is the last Node that could be traced"
        yield from _wrapped(f"verdict: {verdict}", " " * 9)
        simulated = dict.fromkeys(hop.node for hop in (*self.hops, *self.back) if hop.trace and not hop.asked)
        if simulated:
            yield from _wrapped(f"{'':9}if flows are as simulated: {', '.join(simulated)}", " " * 9)
        if self.back:
            yield f"answer:  {'comes back' if self.answered else 'does NOT come back, or is not known to'}"


def _passing_size(hops: Sequence[Hop]) -> str:
    """Return which packets pass, by the MTU of Nodes and the probes of tunnels; "" if no MTU is known."""
    mtus = {hop.node: hop.trace.mtu for hop in hops if hop.trace is not None and hop.trace.mtu}
    smallest = min(mtus.values(), default=0)
    stopped = {
        hop.node: hop.gateway.probes.full_size_bytes
        for hop in hops
        if hop.gateway is not None
        and hop.gateway.probes is not None
        and hop.gateway.probes.full_size_passes is False
    }
    if stopped and min(stopped.values()) <= smallest:
        return f"; {min(stopped.values())} bytes do NOT pass a tunnel of {', '.join(stopped)}: mcagent doctor"
    named = f" (MTU of {', '.join(node for node, mtu in mtus.items() if mtu == smallest)})"
    return f"; packets up to {smallest} bytes{named if len(set(mtus.values())) > 1 else ''}" if smallest else ""


def _hop_json(hop: Hop) -> dict[str, Any]:
    tunnel = hop.tunnel
    return {
        "node": hop.node,
        "cluster": hop.cluster,
        "role": hop.role,
        "asked": hop.asked,
        "from": None if hop.trace is None else str(hop.origin),
        "packet": None if hop.probe is None else _packet(hop.probe),
        "walk": None if hop.trace is None else to_json(hop.trace),
        "tunnel": None
        if tunnel is None
        else {"name": tunnel.name, "peer": tunnel.peer, "remoteIP": tunnel.remote_ip},
        "encrypted": hop.encrypted,
        "why": hop.why,
        "text": [f"{name}: {text}" if name else text for name, text in _lines(hop)],
    }


def _blocks(hops: Sequence[Hop], first: int) -> str:
    return "\n\n".join("\n".join(_block(number, hop)) for number, hop in enumerate(hops, first))


def _live(live: ProbeReport) -> Iterator[str]:
    words = {True: "seen", False: "not seen", None: "not asked"}
    yield f"{live.sent} real probes:"
    for sight in live.sights:
        text = words[sight.seen]
        text += ", dropped" if sight.dropped else ""
        text += ", answered" if sight.answered else ""
        text += f" ({sight.why})" if sight.why else ""
        yield from _wrapped(f"   {sight.node:<24} {text}", " " * 28)
    yield from _wrapped(f"live:    {live.verdict}", " " * 9)
    if live.command:
        yield from _wrapped(f"next:    {live.command}", " " * 9)


def _block(number: int, hop: Hop) -> Iterator[str]:
    role = f", {hop.role}" if hop.role else ""
    yield f"{number}. Node {hop.node} (cluster {hop.cluster or '?'}{role})"
    if hop.trace is None:
        yield from _wrapped(f"{'':{_INDENT}}{hop.why}", " " * _INDENT)
        return
    for name, text in _lines(hop):
        yield from _wrapped(f"{'':{_INDENT}}{name:<{_COLUMN - 1}} {text}", " " * (_INDENT + _COLUMN))


def _lines(hop: Hop) -> Iterator[tuple[str, str]]:
    """Yield the lines of a hop, as pairs of name and text."""
    if hop.trace is None or hop.probe is None:
        yield "", hop.why
        return
    trace, probe = hop.trace, hop.probe
    if hop.origin is Origin.SIMULATOR:
        yield "simulated", hop.why.removeprefix("simulated: ")
    source, destination = _end(probe.source, probe.source_port, probe), _end(probe.destination, probe.port, probe)
    yield "packet", f"{source} > {destination}"
    yield "tables", " > ".join(trace.tables)
    for rule in trace.policies:
        if rule.verdict not in ("drop", "reject"):
            yield "policy", f"{rule.policy}, rule {rule.rule or '-'} ({rule.direction}): {rule.verdict}"
    for name, before, after in (
        ("source", source, _end(trace.source, trace.source_port, probe)),
        ("destination", destination, _end(trace.destination, trace.port, probe)),
    ):
        if before != after:
            by_conntrack = " (as conntrack knows it)" if probe.reply else ""
            yield "translated", f"{name} {before} to {after}{by_conntrack}"
    for port in trace.exports:
        export = port.rpartition(":")[0]
        counter = "" if probe.reply else f'; counter mcagent_exported_connections_total{{export="{export}"}}'
        yield "Service", f"{port}, exported{counter}"
    yield from _outcome(hop, trace, probe)
    if trace.mtu and trace.outcome in (TraceOutcome.HOST, TraceOutcome.TUNNEL):
        yield "mtu", f"{trace.mtu} bytes{_full_size(hop)}"


def _outcome(hop: Hop, trace: NodeTrace, probe: Probe) -> Iterator[tuple[str, str]]:
    tunnel = hop.tunnel
    if trace.outcome == TraceOutcome.TUNNEL and tunnel is None:
        yield "sent", f"to port {trace.out_port}, which is no tunnel of its /status"
    elif trace.outcome == TraceOutcome.TUNNEL and tunnel is not None:
        kind = {"gateway": "gateway", "node": "Node"}.get(tunnel.peer_kind, "a gateway of cluster")
        yield "sent", f"to {kind} {tunnel.peer} at {tunnel.remote_ip}, tunnel {tunnel.name}"
        yield from _gateways(hop)
        within = "no: within the cluster"
        yield "encrypted", within if hop.encrypted is None else "by WireGuard" if hop.encrypted else "no"
        yield "counter", f'mcagent_tunnel_transmit_packets_total{{tunnel="{tunnel.name}"}}'
    elif trace.outcome == TraceOutcome.HOST:
        yield "delivered", "to the kernel of this Node, by mc-gw0"
    elif trace.outcome == TraceOutcome.UNKNOWN:
        yield "unknown", f"the trace of table {trace.table or '?'} ends without output or drop"
    else:
        yield trace.outcome, f"in table {trace.table}: {trace.reason}"
        yield from _why(trace, probe)


def _why(trace: NodeTrace, probe: Probe) -> Iterator[tuple[str, str]]:
    """Yield the policies behind a drop, the likely cause, the next command and the counter."""
    cause, command = CAUSES.get(trace.reason, ("", ""))
    counter = f'mcagent_dropped_packets_total{{reason="{trace.reason}"}}'
    for rule in trace.policies:
        if rule.verdict in ("drop", "reject"):
            yield "policy", f"{rule.policy}, rule {rule.rule or '-'} ({rule.direction}): {rule.verdict}"
            counter = f'mcagent_policy_rule_packets_total{{policy="{rule.policy}",rule="{rule.rule}"}}'
    if trace.isolated_by:
        yield "policy", f"isolated by {', '.join(trace.isolated_by)}, and no NetworkPolicy allows this"
    if cause:
        yield "because", cause
    if trace.reason in ("policy", "isolated", "unknown-identity"):
        port = "ICMP" if probe.protocol == "icmp" else f"{trace.port}/{probe.protocol.upper()}"
        command = f"mcagent policy explain --from {trace.source} --to {trace.destination} --port {port}"
    if command:
        yield "next", command
    yield "counter", counter


def _gateways(hop: Hop) -> Iterator[tuple[str, str]]:
    for gateway in hop.gateways:
        if gateway is hop.gateway:
            yield "gateway", f"{gateway.name}: {gateway.why}{_choice(hop)}"
        elif not gateway.live:
            since = f", since {gateway.since}" if gateway.since else ""
            yield "not by", f"{gateway.name}: {gateway.why}{since}"


def _full_size(hop: Hop) -> str:
    """Return the result of the gateway's probes with the largest packets, "" without one."""
    probes = hop.gateway.probes if hop.gateway is not None else None
    if probes is None or probes.full_size_passes is None:
        return ""
    if probes.full_size_passes:
        return f"; {probes.full_size_bytes} pass this tunnel"
    return f"; {probes.full_size_bytes} do NOT pass this tunnel: mcagent doctor"


def _choice(hop: Hop) -> str:
    """Return how the gateway was chosen, "" if there was no choice."""
    assert hop.trace is not None
    assert hop.probe is not None
    live = sum(gateway.live for gateway in hop.gateways)
    if live < 2 or hop.trace.table not in ("Departure", "Route", "Exit"):
        return ""
    if hop.trace.table == "Departure" and hop.probe.reply:
        return "; an answer takes its connection's gateway while that is live"
    return f"; chosen by a hash of the connection, of {live} that are live"


def _packet(probe: Probe) -> dict[str, str]:
    names = ("source", "destination", "protocol", "source_port", "port")
    ends = {name: str(getattr(probe, name)) for name in names}
    return {**ends, "in_port": str(probe.in_port), "mac": probe.mac, "reply": str(probe.reply).lower()}


def _end(address: object, port: int, probe: Probe) -> str:
    return str(address) if probe.protocol == "icmp" else f"{address}:{port}"


def _wrapped(line: str, indent: str) -> list[str]:
    wrapped = textwrap.wrap(line, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return wrapped or [line]
