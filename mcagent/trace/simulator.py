"""A simulated Node: its desired state, and a simulated switch with these flows. Pure.

For a Node whose switch cannot be asked, and for forecasts (`mcagent.trace.whatif`): compiles the desired state;
`flows.simulator` processes packets. An answer's connection has only the probe's mark and label, as with a real
switch. Must not know how objects are read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from flows.fields import PORT_CONTROLLER
from flows.flow import Flow, Group
from flows.parse import parse_group, parse_match
from flows.parse_actions import parse_actions
from flows.pipeline import declaration as d
from flows.pipeline import registers as r
from flows.pipeline.prefixes import address_in_bridge
from flows.simulator import ConnectionTable, ConntrackEntry, Datapath, Packet, SimulatedSwitch, SwitchWalk
from flows.simulator.conntrack import tuple_of
from flows.simulator.packet import ACK, ECHO_REPLY, ECHO_REQUEST, PROTOCOL_NAMES, SYN
from flows.simulator.view import mac_number, packet_of
from mcagent.api.trace import Committed, NodeTrace
from mcagent.core.compile import compile_desired
from mcagent.core.engine import IncrementalEngine
from mcagent.core.forwarding import forwarding
from mcagent.core.node_encryption import node_publication
from mcagent.core.wireguard import publication
from mcagent.model.config import Config
from mcagent.model.dataplane.facts import DatapathType, Facts
from mcagent.model.dataplane.resources import FlowEntry, GroupEntry, TunnelPort
from mcagent.model.dataplane.wireguard import WireGuardImplementation
from mcagent.model.objects import Snapshot
from mcagent.model.plan import Desired
from mcagent.trace.names import with_names
from mcagent.trace.ofproto import mac_name, numbers_of, service_of, table_name, verdict_of
from mcagent.trace.probe import Probe

T = TypeVar("T")
_PROTOCOLS = {name: number for number, name in PROTOCOL_NAMES.items()}
_TRACKING = {DatapathType.SYSTEM: Datapath.KERNEL, DatapathType.NETDEV: Datapath.USERSPACE}


@dataclass(frozen=True, kw_only=True)
class SimulatedNode:
    """The Node `config.node_name` with its desired state."""

    config: Config
    desired: Desired
    datapath: DatapathType

    @cached_property
    def tunnels(self) -> Mapping[str, TunnelPort]:
        """Its tunnels by name, in order."""
        return {port.name: port for port in sorted(_all(self.desired, TunnelPort), key=lambda port: port.name)}

    @cached_property
    def groups(self) -> Mapping[int, Group]:
        """The groups of its bridge by number."""
        parsed = (parse_group(f"group_id={g.group_id},{g.body}") for g in _all(self.desired, GroupEntry))
        return {group.group_id: group for group in parsed}

    @cached_property
    def switch(self) -> SimulatedSwitch:
        """The simulator's switch with its flows and groups."""
        flows = (
            Flow(flow.table, flow.priority, parse_match(flow.match), parse_actions(flow.actions), flow.cookie)
            for flow in _all(self.desired, FlowEntry)
        )
        return SimulatedSwitch.of(flows, self.groups.values())

    def trace(self, probe: Probe, lost: Collection[str] = ()) -> NodeTrace:
        """Trace a packet through its flows; `lost` are the tunnels that are not live."""
        live = {r.HOST_OFPORT, *(port.ofport for name, port in self.tunnels.items() if name not in lost)}
        packet = _packet(probe)
        connections = _connections(self._in_bridge(packet), probe, self.config) if probe.reply else ()
        before = ConnectionTable(datapath=_TRACKING[self.datapath]).knowing(connections)
        walk = self.switch.walk(packet, before, frozenset(live))
        return with_names(read(walk, probe, before), probe, self.desired, self.config)

    def _in_bridge(self, answer: Packet) -> Packet:
        """Return an answer with the addresses that conntrack of the bridge knows."""
        clusters = self.desired.state.clusters.values()
        sources = {mapped: source for cluster in clusters for source, mapped in cluster.mapped}
        assert answer.src is not None
        assert answer.dst is not None
        source = address_in_bridge(answer.src, self.desired.state.prefixes)
        return replace(answer, src=source, dst=sources.get(answer.dst, answer.dst))


def simulate(snapshot: Snapshot, facts: Facts, config: Config) -> SimulatedNode:
    """Simulate the Node `config.node_name`; new tunnels are assumed to be live, with BFD."""
    desired = compile_desired(snapshot, with_live_tunnels(snapshot, facts, config), config).desired
    return SimulatedNode(config=config, desired=desired, datapath=facts.datapath)


def with_live_tunnels(snapshot: Snapshot, facts: Facts, config: Config) -> Facts:
    """Return the facts, with the assumption that peers of new tunnels will answer BFD."""
    engine = IncrementalEngine()
    with engine.one_pass():
        forwards = forwarding(engine, snapshot, facts, config)
    peers = (*forwards.tunnels_to_nodes.values(), *forwards.tunnels_to_clusters.values())
    names = {tunnel.name for tunnels in peers for tunnel in tunnels}
    return replace(facts, bfd_seen=facts.bfd_seen | (names - facts.ofports.keys()))


def with_assumed_wireguard(snapshot: Snapshot, facts: Facts, config: Config) -> Facts:
    """Add WireGuard to the facts of a Node that was not observed, if its Gateway or Node publishes a key."""
    if not config.encrypts:
        return facts
    of_gateway = publication(snapshot.gateways, Facts(), config)
    of_node = node_publication(snapshot.nodes.get(config.node_name), Facts(), config)
    published = (source.published for source in (of_gateway, of_node) if source is not None)
    key = next((info.public_key for info in published if info is not None), "")
    if not key:
        return facts
    return replace(facts, wireguard=WireGuardImplementation.KERNEL, wireguard_public_key=key)


def read(walk: SwitchWalk, probe: Probe, before: ConnectionTable) -> NodeTrace:
    """Convert the simulator's result for a probe; `before` has the connections at its start."""
    flows = [(step.table, step.flow) for step in walk.steps if step.flow is not None]
    tables, cookies = [table for table, _ in flows], [flow.cookie for _, flow in flows]
    outputs = [(port, packet) for port, packet in walk.outputs if port != PORT_CONTROLLER]
    end = outputs[-1][1] if outputs else packet_of(dict(walk.steps[-1].state), walk.packet)
    dead = any("no live bucket" in why for why in walk.drops)
    outcome, reason, number = verdict_of(tables, [port for port, _ in outputs], cookies, dead=dead)
    ports = (probe.source_port, probe.port) if probe.protocol == "icmp" else (end.src_port, end.dst_port)
    return NodeTrace(
        tables=tuple(map(table_name, tables)),
        outcome=outcome,
        out_port=outputs[-1][0] if outputs else None,
        reason=reason,
        table=table_name(tables[-1]) if tables else "",
        rule=flows[-1][1].match_text if flows else "",
        number=number,
        source=str(end.src),
        destination=str(end.dst),
        source_port=ports[0],
        port=ports[1],
        mac=mac_name(mac_number(end.eth_dst), probe.mac),
        service=service_of(end.eth_src),
        identity=end.tun_id,
        rules=numbers_of(cookies, d.FOR_POLICY, d.DROP_POLICY),
        services=numbers_of(cookies, d.FOR_SERVICE),
        committed=tuple(_committed(before, walk.connections)),
    )


def _packet(probe: Probe) -> Packet:
    sender, receiver = probe.macs
    icmp = probe.protocol == "icmp"
    return Packet(
        in_port=probe.in_port,
        src=probe.source,
        dst=probe.destination,
        proto=_PROTOCOLS[probe.protocol],
        src_port=probe.source_port,
        dst_port=0 if icmp else probe.port,
        icmp_type=ECHO_REPLY if icmp and probe.reply else ECHO_REQUEST if icmp else 0,
        tcp_flags=SYN | ACK if probe.reply else SYN,
        eth_src=sender,
        eth_dst=receiver,
        tun_id=probe.identity,
    )


def _connections(packet: Packet, probe: Probe, config: Config) -> Iterator[ConntrackEntry]:
    """Yield the connection that a packet answers in each zone; NAT's reverse translation is not known."""
    for zone in r.ZONES:
        if (answer := tuple_of(packet, config.ct_zone_base + zone.offset)) is not None:
            yield ConntrackEntry(
                original=answer.reversed(), reply=answer, mark=probe.mark, label=probe.label, replied=True
            )


def _committed(before: ConnectionTable, after: ConnectionTable) -> Iterator[Committed]:
    for number, entry in after.connections.items():
        if before.connections.get(number) != entry:
            yield Committed(zone=entry.original.zone, mark=entry.mark, label=entry.label)


def _all(desired: Desired, kind: type[T]) -> Iterable[T]:
    for fragment in desired.fragments.values():
        yield from (resource for resource in fragment.resources if isinstance(resource, kind))
