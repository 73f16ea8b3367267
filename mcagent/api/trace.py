"""The pages /trace, /trace/live and /trace/seen of an agent: the trace of a packet on a Node, and real probes.

Addresses are text. The query has the packet (`mcagent.trace.probe`).
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import field

from mcagent.api.codec import VERSION, Record


class TraceOutcome(StrEnum):
    """The outcome of a packet on one Node."""

    HOST = "to this Node's kernel"
    TUNNEL = "to a tunnel"
    REJECTED = "rejected"
    DROPPED = "dropped"
    UNKNOWN = "unknown"


class Committed(Record, frozen=True):
    """Mark and label that conntrack commits for the connection in a zone."""

    zone: int = 0
    mark: int = 0
    label: int = 0  # of 128 bits


class TracedRule(Record, frozen=True):
    """A policy's rule that matched the packet."""

    policy: str = ""
    rule: str = ""
    direction: str = ""
    verdict: str = ""


class EndpointShare(Record, frozen=True):
    """An endpoint of an imported Service, and its share of new connections (0 to 1)."""

    address: str = ""
    port: int = 0
    share: float = 0.0


class NodeTrace(Record, frozen=True):
    """The trace of a packet through a Node's flows, with the packet's addresses and ports as it leaves.

    `reason` is the drop's name, `number` the number in its cookie, `table` and `rule` (the flow's match) the flow
    that decided. `rules` and `services` are the numbers in the cookies of matched flows of policies and exported
    Services; the names from `policies` on need a desired state. `committed` is in the order of commits. `mtu` is 0
    if unknown. `own_endpoint_closed`: policies of the Node drop the packet to its destination in the own cluster.
    """

    api_version: str = field(name="apiVersion", default=VERSION)
    node: str = ""
    tables: tuple[str, ...] = ()
    outcome: str = TraceOutcome.UNKNOWN
    out_port: int | None = None
    reason: str = ""
    table: str = ""
    rule: str = ""
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
    policies: tuple[TracedRule, ...] = ()
    isolated_by: tuple[str, ...] = field(name="isolatedBy", default=())
    exports: tuple[str, ...] = ()
    mtu: int = 0
    shares: tuple[EndpointShare, ...] = ()
    own_endpoint_closed: bool = field(name="ownEndpointClosed", default=False)


class MarkedFlow(Record, frozen=True):
    """A datapath flow that matched probes; it counts all but the first. `age`: seconds since the last one."""

    match: str = ""
    packets: int = 0
    age: float | None = None
    dropped: bool = False


class Tracked(Record, frozen=True):
    """A connection's entry of conntrack in a zone."""

    zone: int = 0
    answered: bool = False


class SentProbes(Record, frozen=True):
    """The page /trace/live: the number of sent probes, and whether an answer came back."""

    node: str = ""
    sent: int = 0
    answered: bool = False


class SeenProbes(Record, frozen=True):
    """The page /trace/seen: flows that matched probes, and conntrack's entries of their connection."""

    node: str = ""
    flows: tuple[MarkedFlow, ...] = ()
    tracked: tuple[Tracked, ...] = ()
