"""What a Node's flows should do with a packet, by what the API and its configuration say.

For a Node whose switch cannot be asked: compiles what its agent would program, and lets `flows.simulator` walk the
packet. Says it in the words of `mcagent.core.trace`, as the switch's own trace is read. Of an answer's connection
only what the probe says is known, as with a switch. Knows nothing of how objects are read, nor of pages. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from flows.fields import PORT_CONTROLLER
from flows.flow import Flow
from flows.parse import parse_group, parse_match
from flows.parse_actions import parse_actions
from flows.pipeline import declaration as d
from flows.pipeline import registers as r
from flows.simulator import ConnectionTable, ConntrackEntry, Datapath, Packet, SimulatedSwitch
from flows.simulator import SwitchWalk as Simulated
from flows.simulator.conntrack import tuple_of
from flows.simulator.packet import ACK, ECHO_REPLY, ECHO_REQUEST, PROTOCOL_NAMES, SYN
from flows.simulator.view import mac_number, packet_of
from mcagent.core.compile import compile_desired
from mcagent.core.engine import IncrementalEngine
from mcagent.core.trace import MACS, TABLES, Committed, Probe, Walk, numbers_of, service_of, verdict_of
from mcagent.core.whatif.assumptions import World
from mcagent.core.whatif.ways import answered
from mcagent.core.wireguard import publication
from mcagent.model.config import Config
from mcagent.model.facts import DatapathType, Facts
from mcagent.model.objects import Snapshot
from mcagent.model.plan import Desired
from mcagent.model.resources import FlowEntry, GroupEntry, Resource, TunnelPort
from mcagent.model.wireguard import WireGuardImplementation

_PROTOCOLS = {name: number for number, name in PROTOCOL_NAMES.items()}
_NAMES = {mac: name for name, mac in MACS.items()}
_TRACKING = {DatapathType.SYSTEM: Datapath.KERNEL, DatapathType.NETDEV: Datapath.USERSPACE}


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedNode:
    """A Node as its agent should have made it."""

    desired: Desired
    switch: SimulatedSwitch
    datapath: DatapathType
    zones: tuple[int, ...]  # of conntrack

    @property
    def tunnels(self) -> list[TunnelPort]:
        """Its tunnels, by name."""
        found = [one for one in _resources(self.desired) if isinstance(one, TunnelPort)]
        return sorted(found, key=lambda port: port.name)

    def trace(self, probe: Probe, lost: Collection[str] = ()) -> Walk:
        """Return what its flows do with a packet; `lost` are the tunnels that do not count as live."""
        live = {r.HOST_OFPORT, *(port.ofport for port in self.tunnels if port.name not in lost)}
        packet = _packet(probe)
        known = _known(packet, probe, self.zones) if probe.reply else ()
        before = ConnectionTable(datapath=_TRACKING[self.datapath]).knowing(known)
        return read(self.switch.walk(packet, before, frozenset(live)), probe, before)


def simulate(snapshot: Snapshot, facts: Facts, config: Config) -> SimulatedNode:
    """Return the Node `config.node_name` as its agent would make it from these objects.

    Of tunnels that the facts do not know the peers are taken to answer BFD, and WireGuard for there where the
    Node's Gateway has a key of it.
    """
    if config.encrypts and facts.wireguard is None:
        facts = replace(facts, **_wireguard(snapshot, config))
    facts = answered(World(snapshot=snapshot, facts=facts), config, IncrementalEngine())
    desired = compile_desired(snapshot, facts, config).desired
    return SimulatedNode(
        desired=desired,
        switch=switch_of(desired),
        datapath=facts.datapath,
        zones=tuple(config.ct_zone_base + zone.offset for zone in r.ZONES),
    )


def _wireguard(snapshot: Snapshot, config: Config) -> dict[str, Any]:
    there = publication(snapshot.gateways, Facts(), config)
    if there is None or there.there is None:
        return {}
    return {"wireguard": WireGuardImplementation.KERNEL, "wireguard_public_key": there.there.public_key}


def switch_of(desired: Desired) -> SimulatedSwitch:
    """Return the simulator's switch with the flows and groups of a desired state."""
    found = [*_resources(desired)]
    flows = [
        Flow(one.table, one.priority, parse_match(one.match), parse_actions(one.actions), one.cookie)
        for one in found
        if isinstance(one, FlowEntry)
    ]
    groups = [parse_group(f"group_id={one.group_id},{one.body}") for one in found if isinstance(one, GroupEntry)]
    return SimulatedSwitch.of(flows, groups)


def read(seen: Simulated, probe: Probe, before: ConnectionTable) -> Walk:
    """Return what the simulator says of a probe; `before` has the connections that it began with."""
    steps = [(step.table, step.flow) for step in seen.steps if step.flow is not None]
    tables, cookies = [table for table, _ in steps], [flow.cookie for _, flow in steps]
    left = [(port, packet) for port, packet in seen.outputs if port != PORT_CONTROLLER]
    end = left[-1][1] if left else packet_of(dict(seen.steps[-1].state), seen.packet)
    dead = any("no live bucket" in why for why in seen.drops)
    outcome, reason, number = verdict_of(tables, [port for port, _ in left], cookies, dead=dead)
    ports = (probe.source_port, probe.port) if probe.protocol == "icmp" else (end.src_port, end.dst_port)
    return Walk(
        tables=tuple(map(_table, tables)),
        outcome=outcome,
        out_port=left[-1][0] if left else None,
        reason=reason,
        table=_table(tables[-1]) if tables else "",
        rule=steps[-1][1].match_text if steps else "",
        number=number,
        source=str(end.src),
        destination=str(end.dst),
        source_port=ports[0],
        port=ports[1],
        mac=_NAMES.get(mac_number(end.eth_dst), probe.mac),
        service=service_of(end.eth_src),
        identity=end.tun_id,
        rules=numbers_of(cookies, d.FOR_POLICY, d.DROP_POLICY),
        services=numbers_of(cookies, d.FOR_SERVICE),
        committed=tuple(_committed(before, seen.connections)),
    )


def _table(number: int) -> str:
    return TABLES.get(number, str(number))


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


def _known(packet: Packet, probe: Probe, zones: Iterable[int]) -> Iterator[ConntrackEntry]:
    """Yield the connection that a packet answers, as each zone knows it; what NAT would undo is not known."""
    for zone in zones:
        if (answer := tuple_of(packet, zone)) is not None:
            yield ConntrackEntry(
                original=answer.reversed(), reply=answer, mark=probe.mark, label=probe.label, replied=True
            )


def _committed(before: ConnectionTable, after: ConnectionTable) -> Iterator[Committed]:
    for number, one in after.connections.items():
        if before.connections.get(number) != one:
            yield Committed(zone=one.original.zone, mark=one.mark, label=one.label)


def _resources(desired: Desired) -> Iterator[Resource]:
    for fragment in desired.fragments.values():
        yield from fragment.resources
