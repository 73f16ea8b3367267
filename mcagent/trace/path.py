"""The path of a packet and of its answer: the trace of each Node, and the next Node.

Reads agents' pages (/status, /trace) by the functions that it is given. A Node whose agent cannot be asked is
simulated, if its objects can be read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from ipaddress import IPv4Address, ip_address
from typing import Any

from msgspec import structs

from flows.pipeline.registers import HOST_OFPORT
from mcagent.api.codec import from_json
from mcagent.api.status import GatewayStatus, Status, TunnelStatus
from mcagent.api.trace import NodeTrace, TraceOutcome
from mcagent.core.addresses.underlay import ENDPOINTS
from mcagent.model.errors import McagentError
from mcagent.trace.probe import Probe
from mcagent.trace.topology import (
    Statuses,
    address_of_peer,
    alternatives,
    is_remote,
    next_node,
    port_to,
    virtual_address,
)

MAX_HOPS = 8
_UNKNOWN = "no agent of it is known"


class Origin(StrEnum):
    """The source of a hop's trace."""

    SWITCH = "switch"
    SIMULATOR = "simulator"


@dataclass(frozen=True, slots=True, kw_only=True)
class HopTracer:
    """Traces packets on one Node: by its switch, or by the simulator with what is `assumed` of the Node."""

    node: str
    status: Status
    trace: Callable[[Probe], NodeTrace]  # raises McagentError
    assumed: tuple[str, ...] = ()


Simulate = Callable[[str, str, Statuses], HopTracer | None]
"""Takes a cluster ("": that of the first Node), a Node's name or a gateway's address, and all known /status.

Returns None if that cluster cannot be read. Raises McagentError.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """One Node. `trace` has the packet as it leaves, translated by conntrack; None: `why` is the reason.

    `unasked`: why the Node's agent has not traced it.
    """

    node: str
    cluster: str
    role: str
    probe: Probe | None = None
    trace: NodeTrace | None = None
    origin: Origin = Origin.SWITCH  # of `trace`
    tunnel: TunnelStatus | None = None  # by which the packet leaves
    gateways: tuple[GatewayStatus, ...] = ()  # the candidates for the tunnel's gateway
    unasked: str = ""
    why: str = ""
    local: bool = False  # no other cluster has the destination: the packet is left to this cluster's own network
    closed: bool = False  # policies of the Node drop it on the way to an endpoint of this cluster

    @property
    def asked(self) -> bool:
        """Whether the Node's own switch has traced it."""
        return self.trace is not None and self.origin is Origin.SWITCH

    @property
    def gateway(self) -> GatewayStatus | None:
        """The gateway at the other end of the tunnel that it leaves by."""
        name = self.tunnel.name if self.tunnel is not None else None
        return next((gateway for gateway in self.gateways if gateway.tunnel == name), None)

    @property
    def encrypted(self) -> bool | None:
        """Whether the tunnel is encrypted; None: it is none between clusters, and not encrypted."""
        if self.tunnel is None:
            return None
        if not self.tunnel.remote:
            return (self.tunnel.remote_ip != "" and ip_address(self.tunnel.remote_ip) in ENDPOINTS) or None
        return self.gateway is not None and self.gateway.encrypted


@dataclass(frozen=True, slots=True, kw_only=True)
class PathTracer:
    """Traces hop by hop. `statuses`: /status of all agents that answer; `errors`: of the others."""

    statuses: Statuses
    ask: Callable[[str, str], Mapping[str, Any]]
    errors: Mapping[str, str] = field(default_factory=dict)
    simulate: Simulate = lambda *_: None
    _simulated: dict[str, tuple[HopTracer, str]] = field(default_factory=dict)  # and why it is simulated

    def require(self, start: str) -> None:
        """Check that the first Node can be traced. Raises McagentError."""
        if start not in self.statuses:
            self._simulate("", start, self.errors.get(start, _UNKNOWN))

    def status(self, node: str) -> Status:
        """Return the page /status of a Node, real or simulated."""
        return self._simulated[node][0].status if node in self._simulated else self.statuses[node]

    def trace_at(self, node: str, probe: Probe) -> tuple[NodeTrace, HopTracer, str]:
        """Return a trace, its tracer, and why the Node is simulated ("": it is not). Raises McagentError."""
        if node not in self._simulated:
            tracer = HopTracer(node=node, status=self.statuses[node], trace=partial(self._ask, node))
            try:
                return tracer.trace(probe), tracer, ""
            except McagentError as error:
                self._simulate(tracer.status.cluster_id, node, str(error))
        simulated, why = self._simulated[node]
        return simulated.trace(probe), simulated, why

    def _ask(self, node: str, probe: Probe) -> NodeTrace:
        """Request the page /trace of a Node's agent. Raises McagentError."""
        return from_json(NodeTrace, self.ask(node, f"/trace?{probe.query()}"), f"the agent of {node}")

    def forward(self, start: str, probe: Probe) -> Iterator[Hop]:
        """Yield the hops of the first packet of a connection from Node `start`."""
        if not is_remote(self.status(start), probe.destination):
            why = "no other cluster has this address: the packet is left to this cluster's own network"
            hop = replace(_hop(start, self.status(start), probe), why=why, local=True)
            with contextlib.suppress(McagentError):  # the Node cannot be traced: nothing is known of its policies
                trace, tracer, unasked = self.trace_at(start, probe)
                hop = replace(hop, closed=trace.own_endpoint_closed)
                hop = _as_simulated(hop, tracer, unasked) if hop.closed and unasked else hop
            yield hop
            return
        yield from self._hops(start, probe, {})

    def reverse(self, hops: Sequence[Hop]) -> Iterator[Hop]:
        """Yield the hops of the answer to a delivered packet, by the connections that its trace committed."""
        last = hops[-1]
        if last.probe is None or last.trace is None or not delivered(hops):
            return
        outgoing = _leaving(last.probe, last.trace)
        answer = replace(
            outgoing,
            source=outgoing.destination,
            destination=outgoing.source,
            source_port=outgoing.port,
            port=outgoing.source_port,
            in_port=HOST_OFPORT,
            mac="plain",
            service=0,
            identity=0,
        )
        yield from self._hops(last.node, answer, {hop.node: hop for hop in hops})

    def _hops(self, node: str, probe: Probe, forward: Mapping[str, Hop]) -> Iterator[Hop]:
        for _ in range(MAX_HOPS):
            status, before = self.status(node), forward.get(node)
            probe = _as_answer(probe, before)
            hop = _hop(node, status, probe)
            try:
                trace, tracer, why = self.trace_at(node, probe)
            except McagentError as error:
                yield replace(hop, why=f"not asked: {error}")
                return
            if why:
                hop = _as_simulated(hop, tracer, why)
            trace = _translated_back(trace, before, status)
            tunnel = next((tunnel for tunnel in status.tunnels if tunnel.ofport == trace.out_port), None)
            yield replace(hop, trace=trace, tunnel=tunnel, gateways=alternatives(status, tunnel))
            if trace.outcome != TraceOutcome.TUNNEL or tunnel is None:
                return
            try:
                following = self._next(status, tunnel)
            except McagentError as error:
                yield _unknown(hop, status, tunnel, str(error))
                return
            in_port = port_to(self.status(following), status, node)
            if in_port is None:
                why = f"it has no tunnel from {node}, and drops the packet: does it know this cluster's gateways?"
                yield replace(_hop(following, self.status(following), None), why=why)
                return
            probe = replace(_leaving(probe, trace), in_port=in_port)
            node = following

    def _next(self, status: Status, tunnel: TunnelStatus) -> str:
        """Return the Node at the other end of a tunnel. Raises McagentError if it is unknown."""
        simulated = {node: tracer.status for node, (tracer, _) in self._simulated.items()}
        statuses = {**self.statuses, **simulated}
        node = next_node(status, tunnel, statuses)
        if node is not None:
            return node
        if tunnel.remote and any(tunnel.peer in other.summary.antrea_clusters for other in statuses.values()):
            raise McagentError(f"cluster {tunnel.peer} runs Antrea, whose flows are not known")
        peer = address_of_peer(status, tunnel) if tunnel.remote else tunnel.peer
        return self._simulate(tunnel.peer if tunnel.remote else status.cluster_id, peer, self._why_unasked(tunnel))

    def _simulate(self, cluster: str, peer: str, why: str) -> str:
        """Simulate a Node, which is not asked because of `why`; return its name. Raises McagentError."""
        try:
            simulated = self.simulate(cluster, peer, self.statuses)
        except McagentError as error:
            raise McagentError(f"{why}; nor can it be simulated: {error}") from None
        if simulated is None:
            raise McagentError(why)
        node = simulated.node
        own_status = self.statuses.get(node)
        if own_status is not None and own_status.cluster_id != simulated.status.cluster_id:
            raise McagentError(
                f"{why}; nor can it be simulated: cluster {own_status.cluster_id} has a Node {node}, too"
            )
        if peer == node:
            self._simulated[node] = simulated, why
        elif node not in self.statuses:
            self._simulated[node] = simulated, self.errors.get(node, _UNKNOWN)
        return node

    def _why_unasked(self, tunnel: TunnelStatus) -> str:
        """Return the reason why the Node at the other end of a tunnel is not asked."""
        if not tunnel.remote and tunnel.peer in self.errors:
            return self.errors[tunnel.peer]
        if (
            tunnel.remote
            and self.errors
            and any(status.cluster_id == tunnel.peer for status in self.statuses.values())
        ):
            errors = "; ".join(f"{node}: {error}" for node, error in sorted(self.errors.items()))
            return f"no agent that answers has this address ({errors})"
        return "give --remote-context NAME, or list its agent in --agents FILE"


def delivered(hops: Sequence[Hop]) -> bool:
    """Tell whether the packet reaches the kernel of its Node, as far as is known."""
    return bool(hops) and hops[-1].trace is not None and hops[-1].trace.outcome == TraceOutcome.HOST


def answered(forward: Sequence[Hop], reverse: Sequence[Hop]) -> bool:
    """Tell whether the answer reaches the kernel of the packet's first Node, as far as is known."""
    return delivered(reverse) and reverse[-1].node == forward[0].node


def _hop(node: str, status: Status, probe: Probe | None) -> Hop:
    return Hop(node=node, cluster=status.cluster_id, role=status.summary.role, probe=probe)


def _as_simulated(hop: Hop, tracer: HopTracer, unasked: str) -> Hop:
    why = f"{unasked}; what its flows should be, not what they are. Assumed: {'; '.join(tracer.assumed)}"
    return replace(hop, origin=Origin.SIMULATOR, unasked=unasked, why=f"simulated: {why}")


def _unknown(before: Hop, status: Status, tunnel: TunnelStatus, why: str) -> Hop:
    """Return a hop without a trace for the other end of a tunnel."""
    return Hop(
        node=address_of_peer(status, tunnel) if tunnel.remote else tunnel.peer,
        cluster=tunnel.peer if tunnel.remote else before.cluster,
        role="gateway" if tunnel.peer_kind in ("remote", "gateway") else "",
        why=f"not asked: {why}",
    )


def _leaving(probe: Probe, trace: NodeTrace) -> Probe:
    """Return the packet as it leaves a Node."""
    return replace(
        probe,
        source=IPv4Address(trace.source),
        destination=IPv4Address(trace.destination),
        source_port=trace.source_port,
        port=trace.port,
        mac=trace.mac,
        service=trace.service,
        identity=trace.identity,
    )


def _as_answer(probe: Probe, before: Hop | None) -> Probe:
    """Return an answer as a Node receives it: with the mark and label of its connection, if it was committed."""
    if before is None or before.trace is None or not before.trace.committed:
        return replace(probe, reply=False, mark=0, label=0)
    # An answer passes the zones in reverse order, and only the first one's mark and label are matched.
    last = before.trace.committed[-1]
    return replace(probe, reply=True, mark=last.mark, label=last.label)


def _translated_back(trace: NodeTrace, before: Hop | None, status: Status) -> NodeTrace:
    """Return an answer's trace with conntrack's reverse translation, which a trace does not show.

    An endpoint on this Node has sent it from its real address, and the trace has the virtual one.
    """
    if before is None or before.probe is None or before.trace is None:
        return trace
    sent, outgoing = before.probe, before.trace
    server = virtual_address(status, outgoing.destination)
    if "UnDnat" in trace.tables and (trace.source, trace.source_port) == (server, outgoing.port):
        trace = structs.replace(trace, source=str(sent.destination), source_port=sent.port)
    if "UnSnat" in trace.tables and (trace.destination, trace.port) == (outgoing.source, outgoing.source_port):
        trace = structs.replace(trace, destination=str(sent.source), port=sent.source_port)
    return trace
