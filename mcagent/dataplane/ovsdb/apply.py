"""Turns steps on OVSDB resources into changes of rows in one transaction.

Owns the rule that only rows with the agent's tag are changed; other steps are refused before the transaction is
sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcagent.dataplane.ovsdb.connection import Replica
from mcagent.dataplane.ovsdb.rows import OWNER, bridge_columns, interface_columns, tags
from mcagent.model.dataplane.resources import Bridge, HostPort, OvsdbResource, TunnelPort
from mcagent.model.errors import BackendError
from mcagent.model.plan import Op, Step


def failure(step: Step, reason: str, *, retryable: bool = True) -> BackendError:
    """Make the error of a step."""
    resource = step.resource
    assert isinstance(resource, OvsdbResource)
    kind = {Bridge: "bridge", HostPort: "host port", TunnelPort: "tunnel port"}[type(resource)]
    return BackendError("ovsdb", str(step.op), f"{kind} {resource.name}", reason, retryable=retryable)


class Changes:
    """Changes the rows of one bridge in a transaction of the replica."""

    def __init__(self, replica: Replica, transaction: Any, bridge: str) -> None:
        self._replica, self._transaction, self._name = replica, transaction, bridge
        self._bridge = replica.find("Bridge", bridge)
        self._members = {port.uuid for port in self._bridge.ports} if self._bridge is not None else set()

    def make(self, step: Step) -> None:
        """Carry out one step. Raises BackendError, before any change, if a row is not the agent's."""
        resource = step.resource
        if isinstance(resource, Bridge):
            self._make_bridge(step, resource)
        else:
            assert isinstance(resource, HostPort | TunnelPort)
            self._make_port(step, resource)

    def _make_bridge(self, step: Step, bridge: Bridge) -> None:
        if self._bridge is None:
            if step.op is not Op.DELETE:
                # By convention a bridge has a port of its own name, added with the bridge.
                columns = {"external_ids": {OWNER: bridge.name}, "type": "internal"}
                port = self._insert_port(bridge.name, {OWNER: bridge.name}, columns)
                columns = {**bridge_columns(bridge, {}, {}), "ports": [port]}
                self._bridge = self._insert("Bridge", bridge.name, columns)
                self._replica.root.addvalue("bridges", self._bridge)
            return
        row = self._our_bridge(step)
        if step.op is not Op.DELETE:
            _write(row, bridge_columns(bridge, row.external_ids, row.other_config))
        elif foreign := sorted(port.name for port in row.ports if port.external_ids.get(OWNER) != bridge.name):
            raise failure(step, f"it has others' ports: {', '.join(foreign)}", retryable=False)
        else:
            self._replica.root.delvalue("bridges", row)

    def _make_port(self, step: Step, port: HostPort | TunnelPort) -> None:
        row, interface = (self._replica.find(table, port.name) for table in ("Port", "Interface"))
        if row is None and step.op is Op.DELETE:
            return
        bridge = self._our_bridge(step)
        if row is not None or interface is not None:
            if row is None or row.uuid not in self._members or not self._is_ours(row):
                raise failure(step, "a port of that name exists and is not ours", retryable=False)
            if step.op is not Op.DELETE and row.interfaces == [interface]:
                _write(interface, interface_columns(port, interface.external_ids))
                _write(row, {"external_ids": row.external_ids | tags(port)})
                return
            bridge.delvalue("ports", row)  # the server removes rows without references
        if step.op is not Op.DELETE:
            added = self._insert_port(port.name, tags(port), interface_columns(port, {}))
            bridge.addvalue("ports", added)

    def _our_bridge(self, step: Step) -> Any:  # a row of the IDL
        if self._bridge is None:
            raise failure(step, f"there is no bridge {self._name}")
        if self._bridge.external_ids.get(OWNER) != self._name:
            reason = f"bridge {self._name} is not ours (external_ids:{OWNER} is missing): it is left alone"
            raise failure(step, reason, retryable=False)
        return self._bridge

    def _is_ours(self, port: Any) -> bool:
        # The tag is on the port and on its interface: another program may have removed one of them.
        return any(row.external_ids.get(OWNER) == self._name for row in (port, *port.interfaces))

    def _insert_port(self, name: str, external_ids: Mapping[str, str], interface: Mapping[str, object]) -> Any:
        columns = {"external_ids": external_ids, "interfaces": [self._insert("Interface", name, interface)]}
        return self._insert("Port", name, columns)

    def _insert(self, table: str, name: str, columns: Mapping[str, object]) -> Any:
        row = self._transaction.insert(self._replica.tables[table])
        _write(row, {"name": name, **columns})
        return row


def _write(row: Any, columns: Mapping[str, object]) -> None:
    for column, value in columns.items():
        setattr(row, column, value)
