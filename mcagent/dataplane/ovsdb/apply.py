"""Steps on OVSDB resources -> operations of one transaction, and what is refused before it is sent.

Owns the rule that nothing is changed that does not carry our tag. Reads the replica, sends nothing.
"""

from __future__ import annotations

import uuid
from typing import Any

from mcagent.dataplane.ovsdb.connection import Operation, OvsdbConnection
from mcagent.dataplane.ovsdb.rows import OWNER, bridge_columns, interface_columns, tags
from mcagent.model.errors import BackendError
from mcagent.model.plan import Op, Step
from mcagent.model.resources import Bridge, HostPort, OvsdbResource, TunnelPort


def failure(step: Step, reason: str, *, retryable: bool = True) -> BackendError:
    """Return the error that says why a step could not be done."""
    resource = step.new or step.old
    assert isinstance(resource, OvsdbResource)
    kind = {Bridge: "bridge", HostPort: "host port", TunnelPort: "tunnel port"}[type(resource)]
    return BackendError("ovsdb", str(step.op), f"{kind} {resource.name}", reason, retryable=retryable)


class Batch:
    """Turns steps into the operations of one transaction (RFC 7047, section 5.2)."""

    def __init__(self, connection: OvsdbConnection) -> None:
        self._connection = connection
        self._find = connection.find
        self._members: dict[str, frozenset[uuid.UUID]] = {}  # ports of a bridge as it is
        self._operations: list[Operation] = []
        self._new_bridges: dict[str, str] = {}  # name -> UUID within the transaction
        self._new_ports: dict[str, list[list[str]]] = {}  # bridge -> references
        self._old_ports: dict[str, list[list[str]]] = {}

    def operations(self) -> list[Operation]:
        """Return the operations of all steps added."""
        changes = list(self._operations)
        for bridge, ports in self._old_ports.items():
            changes.append(_mutate("Bridge", self._find("Bridge", bridge).uuid, "ports", "delete", ports))
        for bridge, ports in self._new_ports.items():
            if bridge not in self._new_bridges:
                changes.append(_mutate("Bridge", self._find("Bridge", bridge).uuid, "ports", "insert", ports))
        return changes

    def add(self, step: Step) -> None:
        """Add the operations of one step. Raises BackendError where it would touch what is not ours."""
        resource = step.new or step.old
        assert isinstance(resource, OvsdbResource)
        if isinstance(resource, Bridge):
            self._bridge(step, resource)
        else:
            self._port(step, resource)

    def _bridge(self, step: Step, bridge: Bridge) -> None:
        row = self._find("Bridge", bridge.name)
        if row is not None:
            self._check_bridge(step, bridge.name)
        root = next(iter(self._connection.rows("Open_vSwitch")))
        if step.op is Op.DELETE:
            if row is None:
                return
            foreign = sorted(port.name for port in row.ports if port.external_ids.get(OWNER) != bridge.name)
            if foreign:
                raise failure(step, f"others' ports are on it: {', '.join(foreign)}", retryable=False)
            self._operations.append(
                _mutate("Open_vSwitch", root.uuid, "bridges", "delete", [_reference(row.uuid)])
            )
        elif row is not None:
            columns = bridge_columns(bridge, row.external_ids, row.other_config)
            self._operations.append(_update("Bridge", row.uuid, columns))
        else:
            name = _new_name()
            self._new_bridges[bridge.name] = name
            # By convention a bridge has a port of its own name; it appears when the bridge is made.
            columns = {"name": bridge.name, "external_ids": ["map", [[OWNER, bridge.name]]]}
            ports = self._new_ports.setdefault(bridge.name, [])
            ports.append(self._insert_port(bridge.name, columns, columns | {"type": "internal"}))
            columns = bridge_columns(bridge, {}, {}) | {"name": bridge.name, "ports": ["set", ports]}
            self._operations.append(_insert("Bridge", name, columns))
            self._operations.append(
                _mutate("Open_vSwitch", root.uuid, "bridges", "insert", [["named-uuid", name]]),
            )

    def _port(self, step: Step, port: HostPort | TunnelPort) -> None:
        row = self._find("Port", port.name)
        if row is None and step.op is Op.DELETE:
            return
        if port.bridge not in self._new_bridges:
            self._check_bridge(step, port.bridge)
        interface = self._find("Interface", port.name)
        if row is None and interface is None:
            self._add_port(port)
            return
        if row is None or row.uuid not in self._ports_of(port.bridge) or not _is_ours(row, port.bridge):
            raise failure(step, "another port of that name is there already, and not ours", retryable=False)
        if step.op is Op.DELETE:
            self._remove_port(port.bridge, row)
        elif interface is None or row.interfaces != [interface]:
            self._remove_port(port.bridge, row)
            self._add_port(port)
        else:
            columns = interface_columns(port, interface.external_ids)
            self._operations.append(_update("Interface", interface.uuid, columns))
            merged = {**row.external_ids, **tags(port)}
            self._operations.append(
                _update("Port", row.uuid, {"external_ids": ["map", list(map(list, merged.items()))]})
            )

    def _ports_of(self, bridge: str) -> frozenset[uuid.UUID]:
        if bridge not in self._members:
            row = self._find("Bridge", bridge)
            self._members[bridge] = frozenset(port.uuid for port in row.ports) if row is not None else frozenset()
        return self._members[bridge]

    def _check_bridge(self, step: Step, name: str) -> None:
        row = self._find("Bridge", name)
        if row is None:
            raise failure(step, f"there is no bridge {name}")
        if row.external_ids.get(OWNER) != name:
            reason = f"bridge {name} is not ours (external_ids:{OWNER} is missing): it is left alone"
            raise failure(step, reason, retryable=False)

    def _add_port(self, port: HostPort | TunnelPort) -> None:
        columns = {"name": port.name, "external_ids": ["map", list(map(list, tags(port).items()))]}
        reference = self._insert_port(port.name, columns, interface_columns(port, {}))
        self._new_ports.setdefault(port.bridge, []).append(reference)

    def _insert_port(self, name: str, port: Operation, interface: Operation) -> list[str]:
        port_name, interface_name = _new_name(), _new_name()
        self._operations.append(_insert("Interface", interface_name, interface | {"name": name}))
        references = ["set", [["named-uuid", interface_name]]]
        self._operations.append(_insert("Port", port_name, port | {"interfaces": references}))
        return ["named-uuid", port_name]

    def _remove_port(self, bridge: str, row: Any) -> None:
        # Ports and interfaces that nothing refers to are removed by the server.
        self._old_ports.setdefault(bridge, []).append(_reference(row.uuid))


def _is_ours(port_row: Any, bridge: str) -> bool:
    # The tag is on the port and on its interface: one of them may have been taken away by somebody.
    return port_row.external_ids.get(OWNER) == bridge or any(
        interface.external_ids.get(OWNER) == bridge for interface in port_row.interfaces
    )


def _new_name() -> str:
    return f"row{uuid.uuid4().hex}"


def _reference(row: uuid.UUID) -> list[str]:
    return ["uuid", str(row)]


def _insert(table: str, name: str, columns: Operation) -> Operation:
    return {"op": "insert", "table": table, "uuid-name": name, "row": columns}


def _update(table: str, row: uuid.UUID, columns: Operation) -> Operation:
    return {"op": "update", "table": table, "where": [["_uuid", "==", _reference(row)]], "row": columns}


def _mutate(table: str, row: uuid.UUID, column: str, mutator: str, references: list[list[str]]) -> Operation:
    mutation = [column, mutator, ["set", references]]
    return {"op": "mutate", "table": table, "where": [["_uuid", "==", _reference(row)]], "mutations": [mutation]}
