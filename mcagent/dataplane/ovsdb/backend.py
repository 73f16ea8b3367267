"""The OVSDB backend: our bridge, its host port and its tunnels in the Open_vSwitch database.

Owns the bridge of the configured name and what carries its tag there (external_ids `mcagent-owner`); the
database and every other bridge and port belong to others. Must not know where the resources come from.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from mcagent.dataplane.ovsdb import statistics as ovsdb_statistics
from mcagent.dataplane.ovsdb.apply import Batch, failure
from mcagent.dataplane.ovsdb.connection import OvsdbConnection
from mcagent.dataplane.ovsdb.liveness import BFD_STATUS, DRAIN, BridgeState, TunnelState
from mcagent.dataplane.ovsdb.rows import NO_OFPORT, OWNER, Interface, read_bridge, read_port
from mcagent.dataplane.ovsdb.statistics import PortStatistics
from mcagent.model.errors import BackendError
from mcagent.model.plan import ApplyResult, Step
from mcagent.model.resources import Backend, HostPort, OvsdbResource, Resource, ResourceKey, TunnelPort

CONFIGURE_TIMEOUT = 5.0  # seconds for ovs-vswitchd to take a configuration ...
CONFIGURE_TIMEOUT_PER_PORT = 0.01  # ... and for each port in it
_BFD_STATUS = f"Interface.{BFD_STATUS}"


class _Port(NamedTuple):
    resource: OvsdbResource | None  # None where it is not ours
    numbers: Mapping[str, int]  # OpenFlow port numbers by interface


class OvsdbBackend:
    """OVSDB at "unix:PATH", for the bridge of one name. One thread uses it at a time.

    `statistics` and `ofports` may be called from any thread.
    """

    name = Backend.OVSDB

    def __init__(self, socket: str, bridge: str = "br-mc") -> None:
        self.bridge = bridge
        self._connection = OvsdbConnection(socket)
        # What was read of each port, until one of its rows changes: a thousand tunnels are not read anew for one.
        self._ports: dict[uuid.UUID, _Port] = {}
        self._port_of: dict[uuid.UUID, uuid.UUID] = {}  # interface -> port
        self._status: dict[uuid.UUID, Mapping[str, str]] = {}  # column bfd_status by interface
        self._state: BridgeState | None = None
        self._told: BridgeState | None = None
        self._connection.on_row(self._forget)
        self._known: dict[ResourceKey, OvsdbResource] | None = None

    def observe(self) -> Mapping[ResourceKey, Resource]:
        """Return our bridge, host port and tunnels. Raises BackendError when ovsdb-server cannot be reached."""
        with self._connection.current():
            self._known = self._read()
            return dict(self._known)

    def apply(self, steps: Sequence[Step]) -> ApplyResult:
        """Apply the steps in one transaction and wait until ovs-vswitchd has taken them.

        A step that the database or ovs-vswitchd refuses is reported with their words; a bridge or port of
        that name that is not ours is refused, never adopted. Raises BackendError when ovsdb-server is away.
        """
        with self._connection.current():
            failed: dict[int, BackendError] = {}
            self._apply(list(enumerate(steps)), failed)
            self._expect(steps, failed)
            return ApplyResult(
                done=tuple(step for index, step in enumerate(steps) if index not in failed),
                failed=tuple((steps[index], error) for index, error in sorted(failed.items())),
            )

    def watch(self, on_change: Callable[[], None], on_liveness: Callable[[], None] = lambda: None) -> None:
        """Call `on_change`, in a thread, whenever something of ours is no longer as last observed or applied.

        Also when the connection is lost or made again. `on_liveness` is called when `liveness` may say something
        new. Once only.
        """

        def judge(changed: set[str]) -> list[Callable[[], None]]:
            tell: list[Callable[[], None]] = []
            state = self.liveness()
            if state != self._told:
                self._told = state
                tell.append(on_liveness)
            if changed == {_BFD_STATUS}:
                return tell
            if "" in changed or (self._known is not None and self._read() != self._known):
                self._known = None  # told once; the next `observe` looks anew
                tell.append(on_change)
            return tell

        self._connection.watch(judge)

    def liveness(self) -> BridgeState:
        """Return our tunnels with their BFD as last heard, and the flags of our bridge; from any thread.

        The server is not asked: what was heard of it last counts, also while it is away.
        """
        with self._connection.lock:
            if self._state is None:
                self._state = self._read_state()
            return self._state

    def set_drain(self, wanted: bool) -> None:
        """Put the flag that asks the agent of this Node to hand over into our bridge, or take it away.

        Raises BackendError when there is no bridge of ours, or ovsdb-server cannot be reached.
        """
        with self._connection.current():
            row = self._connection.find("Bridge", self.bridge)
            if row is None or row.external_ids.get(OWNER) != self.bridge:
                raise BackendError("ovsdb", "drain", self.bridge, "there is no such bridge of ours here")
            where = [["_uuid", "==", ["uuid", str(row.uuid)]]]
            mutations: list[object] = [["external_ids", "delete", ["set", [DRAIN]]]]
            if wanted:
                mutations.append(["external_ids", "insert", ["map", [[DRAIN, "true"]]]])
            operation = {"op": "mutate", "table": "Bridge", "where": where, "mutations": mutations}
            refusal, _ = self._connection.transact([operation], configure=False)
            if refusal is not None:
                raise BackendError("ovsdb", "drain", self.bridge, refusal)

    def ofports(self) -> dict[str, int]:
        """Return the OpenFlow port numbers in use on our bridge by interface name, others' ports included.

        Raises BackendError when ovsdb-server cannot be reached.
        """
        with self._connection.current():
            row = self._connection.find("Bridge", self.bridge)
            numbers: dict[str, int] = {}
            for port in row.ports if row is not None else ():
                numbers |= self._port(port).numbers
            return numbers

    def datapath_types(self) -> frozenset[str]:
        """Return the datapaths that ovs-vswitchd offers ("system", "netdev"); empty if it has never run.

        Raises BackendError when ovsdb-server cannot be reached.
        """
        with self._connection.current():
            return frozenset(name for row in self._connection.rows("Open_vSwitch") for name in row.datapath_types)

    def statistics(self) -> dict[str, PortStatistics]:
        """Return counters and liveness of our ports by name, asked of the server now.

        Raises BackendError when ovsdb-server cannot be reached.
        """
        return ovsdb_statistics.fetch(self._connection.remote, self.bridge)

    def close(self) -> None:
        """Let go of the connection; the database keeps what was written."""
        self._connection.close()

    # --- reading: the connection's lock is held -----------------------------------------------------------

    def _read(self) -> dict[ResourceKey, OvsdbResource]:
        row = self._connection.find("Bridge", self.bridge)
        if row is None or row.external_ids.get(OWNER) != self.bridge:
            return {}
        bridge = read_bridge(row)
        found: dict[ResourceKey, OvsdbResource] = {bridge.key: bridge}
        for port in row.ports:
            resource = self._port(port).resource
            if resource is not None:
                found[resource.key] = resource
        return found

    def _port(self, row: Any) -> _Port:  # a row of the IDL
        if row.uuid not in self._ports:
            self._ports[row.uuid] = self._read_port(row)
        return self._ports[row.uuid]

    def _read_port(self, row: Any) -> _Port:  # a row of the IDL
        resource: OvsdbResource | None = None
        numbers: dict[str, int] = {}
        port_tags = row.external_ids
        for interface_row in row.interfaces:
            self._port_of[interface_row.uuid] = row.uuid
            interface = Interface.of(interface_row)
            number = next(iter([*interface.ofport, *interface.ofport_request]), NO_OFPORT)
            if number > 0:
                numbers[interface.name] = number
            tagged = OWNER in interface.external_ids or OWNER in port_tags
            if tagged and interface.name != self.bridge:
                resource = read_port(self.bridge, interface, port_tags)
        return _Port(resource, numbers)

    def _read_state(self) -> BridgeState:
        row = self._connection.find("Bridge", self.bridge)
        if row is None or row.external_ids.get(OWNER) != self.bridge:
            return BridgeState()
        tunnels = []
        for port in row.ports:
            resource = self._port(port).resource
            if isinstance(resource, TunnelPort):
                interface = self._connection.find("Interface", resource.name)
                if interface is not None:
                    if interface.uuid not in self._status:
                        self._status[interface.uuid] = dict(interface.bfd_status)
                    tunnels.append(TunnelState(port=resource, status=self._status[interface.uuid]))
        return BridgeState(
            tunnels=tuple(sorted(tunnels, key=lambda one: one.port.name)),
            active_order=read_bridge(row).active_order,
            drain=row.external_ids.get(DRAIN) == "true",
        )

    def _forget(self, row: uuid.UUID, columns: frozenset[str]) -> None:
        self._state = None
        self._status.pop(row, None)
        if columns == {BFD_STATUS}:
            return
        self._ports.pop(row, None)
        port = self._port_of.pop(row, None)
        if port is not None:
            self._ports.pop(port, None)

    def _expect(self, steps: Sequence[Step], failed: Mapping[int, BackendError]) -> None:
        # What somebody else changed meanwhile must still be noticed: expect what was done, no more.
        if self._known is None:
            return
        actual = self._read() if failed else {}
        for index, step in enumerate(steps):
            outcome = actual.get(step.key) if index in failed else step.new
            if outcome is None:
                self._known.pop(step.key, None)
            else:
                assert isinstance(outcome, OvsdbResource)
                self._known[step.key] = outcome

    # --- writing: the connection's lock is held -----------------------------------------------------------

    def _apply(self, steps: list[tuple[int, Step]], failed: dict[int, BackendError]) -> None:
        batch = Batch(self._connection)
        for index, step in steps:
            try:
                batch.add(step)
            except BackendError as error:
                failed[index] = error
        wanted = [(index, step) for index, step in steps if index not in failed]
        operations = batch.operations()
        if not operations:
            return
        to_wait_for = any(map(_makes_ports, (step for _, step in wanted)))
        refusal, number = self._connection.transact(operations, configure=to_wait_for)
        if refusal is not None:
            # The server does not say which operation it was: halve until it stands alone.
            if len(wanted) == 1:
                index, step = wanted[0]
                failed[index] = failure(step, refusal)
                return
            middle = len(wanted) // 2
            self._apply(wanted[:middle], failed)
            self._apply(wanted[middle:], failed)
            return
        if not to_wait_for:
            return
        timeout = CONFIGURE_TIMEOUT + CONFIGURE_TIMEOUT_PER_PORT * len(wanted)
        taken = self._connection.wait_configured(number, timeout)
        if taken and any(self._misnumbered(step) for _, step in wanted):
            # The number was taken by a port that did not ask for it: ovs-vswitchd gives it another one, but
            # only when it looks a second time.
            _, number = self._connection.transact([], configure=True)
            taken = self._connection.wait_configured(number, timeout)
        for index, step in wanted:
            trouble = self._trouble(step) if taken else f"ovs-vswitchd has not taken it in {timeout:g} s"
            if trouble:
                failed[index] = failure(step, trouble)

    def _misnumbered(self, step: Step) -> bool:
        port = step.new
        if not isinstance(port, HostPort | TunnelPort):
            return False
        row = self._connection.find("Interface", port.name)
        return row is not None and not row.error and row.ofport != [port.ofport]

    def _trouble(self, step: Step) -> str | None:
        """Say what ovs-vswitchd made of a port that was to be added or changed, if not what was asked for."""
        port = step.new
        if not isinstance(port, HostPort | TunnelPort):
            return None
        row = self._connection.find("Interface", port.name)
        if row is None:
            return "it was removed again meanwhile"
        if row.error:
            return str(row.error[0])
        if row.ofport != [port.ofport]:
            return f"its OpenFlow port number is {row.ofport or 'not given'}, not {port.ofport}"
        return None


def _makes_ports(step: Step) -> bool:
    """Whether ovs-vswitchd may fail to do it, and others stand on it: not where only BFD or our notes change.

    So peers can be told that this Node has no flows while ovs-vswitchd does not run.
    """
    old, new = step.old, step.new
    if isinstance(old, TunnelPort) and isinstance(new, TunnelPort):
        return replace(old, bfd=new.bfd, bfd_seen=new.bfd_seen) != new
    return True
