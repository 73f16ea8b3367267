"""A simulated switch: processes a packet by its flows and groups, and records every step.

Owns the semantics of actions. A walk modifies nothing: it returns the resulting connection table. Must
not know topologies. Semantics: ovs-actions(7), OpenFlow 1.5, ofproto/ofproto-dpif-xlate.c.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from flows import actions as act
from flows.fields import (
    CT_EST,
    CT_LABEL,
    CT_MARK,
    CT_NEW,
    CT_NW_DST,
    CT_NW_SRC,
    CT_RPL,
    CT_STATE,
    CT_ZONE,
    IN_PORT,
    IP_TTL,
    PORT_CONTROLLER,
    PORT_IN_PORT,
    Bits,
    MatchField,
)
from flows.flow import Flow, Group, GroupType
from flows.simulator.conntrack import ConnectionTable, CtRequest, CtResult, MaskedValue
from flows.simulator.groups import MAX_DEPTH, bucket_of
from flows.simulator.packet import Packet
from flows.simulator.table import FlowTable
from flows.simulator.view import State, packet_of, state_of

_ETHERNET = 14  # bytes of the header
_CT_FIELDS = (CT_STATE, CT_ZONE, CT_MARK, CT_LABEL, CT_NW_SRC, CT_NW_DST)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStep:
    """A lookup in a table: the matched flow (None: a miss), notes on its actions, and the resulting fields."""

    table: int
    flow: Flow | None
    notes: tuple[str, ...]
    state: Mapping[MatchField, int]

    def __str__(self) -> str:
        outcome = f"{self.flow.match_text} -> {self.flow.actions_text}" if self.flow else "no flow: drop"
        return "; ".join((f"{self.table}: {outcome}", *self.notes))


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchWalk:
    """The results of a packet in one switch: steps, outputs, reasons of drops, errors in the flows."""

    packet: Packet
    steps: tuple[TableStep, ...]
    outputs: tuple[tuple[int, Packet], ...]
    drops: tuple[str, ...]
    problems: tuple[str, ...]
    connections: ConnectionTable

    def __str__(self) -> str:
        lines = [str(self.packet), *(f"  {step}" for step in self.steps)]
        lines += [f"  => port {port}: {packet}" for port, packet in self.outputs]
        return "\n".join(
            [*lines, *(f"  dropped: {why}" for why in self.drops), *(f"  !! {p}" for p in self.problems)]
        )


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedSwitch:
    """Flows and groups, indexed for lookups. Build with `SimulatedSwitch.of`."""

    flows: tuple[Flow, ...]
    groups: Mapping[int, Group]
    tables: Mapping[int, FlowTable] = field(repr=False)

    @classmethod
    def of(cls, flows: Iterable[Flow], groups: Iterable[Group] = ()) -> SimulatedSwitch:
        """Build a switch from flows and groups."""
        flows = tuple(flows)
        flows_by_table: defaultdict[int, list[Flow]] = defaultdict(list)
        for flow in flows:
            flows_by_table[flow.table].append(flow)
        return cls(flows, {g.group_id: g for g in groups}, {t: FlowTable(fs) for t, fs in flows_by_table.items()})

    def walk(
        self,
        packet: Packet,
        connections: ConnectionTable = ConnectionTable(),  # noqa: B008 - a frozen value
        live: frozenset[int] | None = None,
        *,
        table: int = 0,
        fields: Mapping[MatchField, int] = MappingProxyType({}),
    ) -> SwitchWalk:
        """Process a packet. `live`: the ports that groups consider live; None means all.

        `table`: the first table; `fields`: what earlier tables have set.
        """
        walker = _Walker(self, connections, live)
        walker.table(table, _Copy(packet, {**state_of(packet), **fields}), 0)
        return SwitchWalk(
            packet=packet,
            steps=tuple(walker.steps),
            outputs=tuple(walker.outputs),
            drops=tuple(walker.drops),
            problems=tuple(walker.problems),
            connections=walker.connections,
        )


@dataclass(slots=True)
class _Copy:
    """A copy of the packet: its current fields, and the result of the last ct action."""

    carried: Packet
    state: State
    tracked: CtResult | None = None

    def fork(self) -> _Copy:
        return _Copy(self.carried, dict(self.state), self.tracked)

    def packet(self) -> Packet:
        return packet_of(self.state, self.carried)

    def take(self, packet: Packet) -> None:
        """Set the packet fields after NAT, and keep the registers."""
        self.carried = packet
        self.state.update(state_of(packet))


class _Walker:
    """The running walk of one packet."""

    def __init__(self, switch: SimulatedSwitch, connections: ConnectionTable, live: frozenset[int] | None) -> None:
        self.switch = switch
        self.connections = connections
        self.live = live
        self.steps: list[TableStep] = []
        self.outputs: list[tuple[int, Packet]] = []
        self.drops: list[str] = []
        self.problems: list[str] = []

    def table(self, number: int, copy: _Copy, depth: int) -> None:
        """Look a copy up in a table and do what the flow says."""
        if depth > MAX_DEPTH:
            self.problems.append(f"more than {MAX_DEPTH} tables deep at table {number}: a loop")
            return
        table = self.switch.tables.get(number)
        flows = table.lookup(copy.state) if table is not None else ()
        if len({flow.actions for flow in flows}) > 1:
            texts = " | ".join(f"{flow.match_text} -> {flow.actions_text}" for flow in flows)
            self.problems.append(f"table {number}: flows of equal priority {flows[0].priority}: {texts}")
        flow = flows[0] if flows else None
        notes: list[str] = []
        index = len(self.steps)
        self.steps.append(TableStep(table=number, flow=flow, notes=(), state={}))
        if flow is None or not flow.actions:
            self.drops.append(
                f"table {number}: {'no flow' if flow is None else flow.match_text or 'the last flow'}"
            )
        else:
            self.run(flow.actions, copy, notes, depth)
        self.steps[index] = TableStep(table=number, flow=flow, notes=tuple(notes), state=dict(copy.state))

    def run(self, actions: act.Actions, copy: _Copy, notes: list[str], depth: int) -> None:
        """Do the actions in order; stop where the packet ends."""
        for action in actions:
            match action:
                case act.SetField(target, value, mask):
                    copy.state[target] = copy.state.get(target, 0) & ~mask | value & mask
                case act.Move(source, destination):
                    value = _read(copy.state, source) << destination.low
                    old = copy.state.get(destination.field, 0)
                    copy.state[destination.field] = old & ~destination.mask | value & destination.mask
                case act.CheckLarger(length, bit):
                    larger = copy.carried.size + _ETHERNET > length
                    copy.state[bit.field] = copy.state.get(bit.field, 0) & ~bit.mask | bit.shifted(int(larger))
                case act.DecTtl():
                    if copy.state.get(IP_TTL, 0) <= 1:
                        self.drops.append("TTL is used up")
                        return
                    copy.state[IP_TTL] -= 1
                case act.Meter():
                    pass  # rates have no place in the walk of one packet
                case act.Goto(number) | act.Resubmit(number):
                    self.table(number, copy, depth + 1)
                case act.Output(port):
                    self.output(port, copy)
                case act.ToController():
                    self.output(PORT_CONTROLLER, copy)
                case act.OutputBits(bits):
                    self.output(_read(copy.state, bits), copy)
                case act.ToGroup(number):
                    self.group(number, copy, notes, depth)
                case act.Ct():
                    self.ct(action, copy, notes, depth)
                case act.CtClear():
                    copy.tracked = None
                    for name in _CT_FIELDS:
                        copy.state.pop(name, None)

    def output(self, port: int, copy: _Copy) -> None:
        """Send a copy out. OVS never sends a packet back by its own number of the port it came in."""
        if port == copy.state[IN_PORT]:
            self.drops.append(f"output to port {port}, by which it came in")
        elif port == PORT_IN_PORT:
            self.outputs.append((copy.state[IN_PORT], copy.packet()))
        else:
            self.outputs.append((port, copy.packet()))

    def group(self, number: int, copy: _Copy, notes: list[str], depth: int) -> None:
        """Hand a copy to a group; the packet goes on after it as it was before."""
        group = self.switch.groups.get(number)
        if group is None or depth > MAX_DEPTH:
            self.problems.append(f"group {number} {'does not exist' if group is None else 'is in a loop'}")
            return
        if group.type is GroupType.ALL:
            chosen = list(group.buckets)
        else:
            live = (lambda _: True) if self.live is None else self.live.__contains__
            bucket = bucket_of(self.switch.groups, group, copy.state, live)
            chosen = [bucket] if bucket is not None else []
        if not chosen:
            self.drops.append(f"group {number:#x}: no live bucket")
        for bucket in chosen:
            notes.append(f"group {number:#x}: bucket {bucket.bucket_id}")
            self.run(bucket.actions, copy.fork(), notes, depth + 1)

    def ct(self, action: act.Ct, copy: _Copy, notes: list[str], depth: int) -> None:
        """Pass a copy through connection tracking; with a table, the copy goes on there."""
        marks = {CT_MARK: MaskedValue(), CT_LABEL: MaskedValue()}
        for inner in action.exec_:
            match inner:
                case act.SetField(target, value, mask):
                    pass
                case act.Move(source, destination):
                    target, mask = destination.field, destination.mask
                    value = _read(copy.state, source) << destination.low & mask
            previous = marks[target]
            marks[target] = MaskedValue(value=previous.value & ~mask | value, mask=previous.mask | mask)
        request = CtRequest(
            zone=action.zone,
            commit=action.commit,
            force=action.force,
            nat=action.nat,
            mark=marks[CT_MARK],
            label=marks[CT_LABEL],
        )
        tracked = self.connections.track(copy.packet(), request, copy.tracked)
        self.connections = tracked.table
        notes.append(f"ct {tracked}")
        if tracked.drop:
            self.drops.append(tracked.drop)
            return
        copy.tracked = tracked
        if action.table is not None:
            onward = copy.fork()
            onward.take(tracked.packet)
            onward.state |= {
                CT_STATE: tracked.state,
                CT_ZONE: action.zone,
                CT_MARK: tracked.mark,
                CT_LABEL: tracked.label,
            }
            connection = tracked.table.find(tracked.key) if tracked.key else None
            # Else actions read these fields as 0 (is_ct_valid in lib/flow.h).
            if connection is not None and tracked.state & (CT_NEW | CT_EST | CT_RPL):
                onward.state[CT_NW_SRC] = int(connection.original.src)
                onward.state[CT_NW_DST] = int(connection.original.dst)
            self.table(action.table, onward, depth + 1)
        elif action.nat is not None:
            copy.take(tracked.packet)
        for name in _CT_FIELDS:  # they are known only in the table that the action names
            copy.state.pop(name, None)


def _read(state: State, bits: Bits) -> int:
    return (state.get(bits.field, 0) & bits.mask) >> bits.low
