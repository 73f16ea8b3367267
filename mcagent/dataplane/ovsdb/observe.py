"""Reads the agent's bridge in the replica: ports as resources, their OpenFlow port numbers, their liveness.

Owns a cache of each port, valid until one of its rows changes: a change of one tunnel does not cause a thousand to
be read. The connection's lock is held for every call.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from mcagent.dataplane.ovsdb.connection import Replica
from mcagent.dataplane.ovsdb.rows import DRAIN, OWNER, read_bridge, read_ofport, read_port
from mcagent.model.dataplane.resources import OvsdbResource, Resource, ResourceKey, TunnelPort


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeState:
    """The tunnels sorted by name, and the bridge's external_ids. The same object until a value changes.

    Each tunnel has its column bfd_status (ovs-vswitchd.conf.db(5)), empty where BFD is off. ovs-vswitchd writes
    the column only after a change, at most every 100 ms (vswitchd/bridge.c, run_status_update); so it is part of
    the replica, unlike counters.
    """

    tunnels: tuple[tuple[TunnelPort, Mapping[str, str]], ...] = ()
    active_order: tuple[str, ...] = ()
    drain: bool = False


class _Port(NamedTuple):
    resource: OvsdbResource | None  # None: not the agent's
    ofports: Mapping[str, int]  # by interface
    bfd_status: Mapping[str, str]
    error: str = ""


class Observer:
    """Reads the bridge of one name in a replica."""

    def __init__(self, replica: Replica, bridge: str) -> None:
        self._replica, self._name = replica, bridge
        self._ports: dict[uuid.UUID, _Port] = {}
        self._port_of: dict[uuid.UUID, uuid.UUID] = {}  # interface -> port
        self._all: list[_Port] | None = None  # ports of the bridge
        self._state: BridgeState | None = None
        replica.forget = self._forget

    def bridge(self) -> Any:  # a row of the IDL
        """Return the bridge's row; None if there is none with the agent's tag."""
        row = self._replica.find("Bridge", self._name)
        return row if row is not None and row.external_ids.get(OWNER) == self._name else None

    def resources(self) -> dict[ResourceKey, Resource]:
        """Return the agent's bridge and ports."""
        row = self.bridge()
        if row is None:
            return {}
        candidates = (read_bridge(row), *(port.resource for port in self._on_bridge()))
        return {resource.key: resource for resource in candidates if resource is not None}

    def ofports(self) -> dict[str, int]:
        """Return all OpenFlow port numbers of the bridge by interface, also without the agent's tag."""
        return {name: number for port in self._on_bridge() for name, number in port.ofports.items()}

    def errors(self) -> dict[str, str]:
        """Return the error messages of ovs-vswitchd for the agent's ports, by name."""
        return {port.resource.name: port.error for port in self._on_bridge() if port.resource and port.error}

    def state(self) -> BridgeState:
        """Return tunnels with their BFD status, and the flags of the agent's bridge."""
        if self._state is None:
            self._state = self._read_state()
        return self._state

    def _read_state(self) -> BridgeState:
        row = self.bridge()
        if row is None:
            return BridgeState()
        ports = ((port.resource, port.bfd_status) for port in self._on_bridge())
        tunnels = [(port, status) for port, status in ports if isinstance(port, TunnelPort)]
        return BridgeState(
            tunnels=tuple(sorted(tunnels, key=lambda tunnel: tunnel[0].name)),
            active_order=read_bridge(row).active_order,
            drain=row.external_ids.get(DRAIN) == "true",
        )

    def _on_bridge(self) -> list[_Port]:
        if self._all is None:
            row = self._replica.find("Bridge", self._name)
            self._all = [self._port(port) for port in (row.ports if row is not None else ())]
        return self._all

    def _port(self, row: Any) -> _Port:  # a row of the IDL
        if row.uuid not in self._ports:
            cached = _Port(None, {}, {})
            port_tags = row.external_ids
            for interface in row.interfaces:
                self._port_of[interface.uuid] = row.uuid
                name, number = interface.name, read_ofport(interface)
                resource = read_port(self._name, interface, number, port_tags) if name != self._name else None
                ofports = {**cached.ofports, name: number} if number > 0 else cached.ofports
                error = "".join(interface.error) or cached.error
                cached = _Port(resource or cached.resource, ofports, interface.bfd_status, error)
            self._ports[row.uuid] = cached
        return self._ports[row.uuid]

    def _forget(self, row: uuid.UUID) -> None:
        self._all = self._state = None
        self._ports.pop(row, None)
        if (port := self._port_of.pop(row, None)) is not None:
            self._ports.pop(port, None)
