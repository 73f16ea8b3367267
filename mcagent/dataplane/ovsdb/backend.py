"""The OVSDB backend: the agent's bridge, its host port and its tunnels in the Open_vSwitch database.

Owns the bridge of the configured name and the rows with its tag (external_ids `mcagent-owner`); other rows are
never changed. Must not know where the resources come from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mcagent.dataplane.ovsdb import statistics
from mcagent.dataplane.ovsdb.apply import Changes, failure
from mcagent.dataplane.ovsdb.connection import OvsdbConnection
from mcagent.dataplane.ovsdb.observe import BridgeState, Observer
from mcagent.dataplane.ovsdb.rows import DRAIN, lost_device
from mcagent.model.dataplane.backend import Backend
from mcagent.model.dataplane.resources import HostPort, PortStatistics, Resource, ResourceKey, TunnelPort
from mcagent.model.errors import BackendError
from mcagent.model.plan import ApplyResult, Step

CONFIGURE_TIMEOUT = 5.0  # seconds for ovs-vswitchd to apply a configuration ...
CONFIGURE_TIMEOUT_PER_PORT = 0.01  # ... and for each port in it


class OvsdbBackend:
    """OVSDB at "unix:PATH", for one bridge and one thread; `statistics` and `ofports` may be called from any."""

    name = Backend.OVSDB

    def __init__(self, socket: str, bridge: str = "br-mc") -> None:
        self.bridge = bridge
        self._connection = OvsdbConnection(socket)
        self._replica = self._connection.replica
        self._observer = Observer(self._replica, bridge)
        self._reported: BridgeState | None = None
        self._expected: dict[ResourceKey, Resource] | None = None

    def observe(self) -> Mapping[ResourceKey, Resource]:
        """Read bridge, host port and tunnels. Raises BackendError when ovsdb-server cannot be reached."""
        with self._connection.current():
            self._expected = self._observer.resources()
            return dict(self._expected)

    def apply(self, steps: Sequence[Step]) -> ApplyResult:
        """Apply the steps in one transaction and wait until ovs-vswitchd has applied them.

        A step that the database or ovs-vswitchd refuses is reported with their message; a step on a bridge or port
        without the agent's tag is refused. Raises BackendError when ovsdb-server cannot be reached.
        """
        with self._connection.current():
            failed: dict[int, BackendError] = {}
            ports = [step.new for step in steps if isinstance(step.new, HostPort)]
            if deviceless := [port for port in ports if self._has_lost_device(port)]:
                # ovs-vswitchd creates a device only for a port that is new to it.
                self._apply([(place, Step(old=port)) for place, port in enumerate(deviceless)], {})
            self._apply(list(enumerate(steps)), failed)
            self._expect(steps, failed)
            return ApplyResult.of(steps, failed)

    def watch(self, on_change: Callable[[], None], on_liveness: Callable[[], None] = lambda: None) -> None:
        """Call `on_change`, in a thread, when bridge or ports differ from those last observed or applied.

        It is also called when the connection is lost or established again. `on_liveness` is called when the result
        of `liveness` changes. Call this once.
        """

        def changes(reconnected: bool) -> list[Callable[[], None]]:
            callbacks: list[Callable[[], None]] = []
            state = self._observer.state()
            if state != self._reported:
                self._reported = state
                callbacks.append(on_liveness)
            if reconnected or (self._expected is not None and self._observer.resources() != self._expected):
                self._expected = None  # reported once, until the next `observe`
                callbacks.append(on_change)
            return callbacks

        self._connection.watch(changes)

    def liveness(self) -> BridgeState:
        """Return the tunnels with their BFD status, and the flags of the bridge; from any thread.

        Reads the replica: while the server cannot be reached, these are the last values received.
        """
        with self._connection.lock:
            return self._observer.state()

    def errors(self) -> dict[str, str]:
        """Return the error messages of ovs-vswitchd for the agent's ports, by name, as last received."""
        with self._connection.lock:
            return self._observer.errors()

    def set_drain(self, drain: bool) -> None:
        """Set or remove the bridge's flag that asks the agent of this Node to drain.

        Raises BackendError without the agent's bridge, or when ovsdb-server cannot be reached.
        """
        with self._connection.current():
            row = self._observer.bridge()
            if row is None:
                raise BackendError("ovsdb", "drain", self.bridge, "no such bridge of ours")
            key = ("external_ids", DRAIN)
            refusal, _ = self._connection.transact(
                lambda _: row.setkey(*key, "true") if drain else row.delkey(*key)
            )
            if refusal is not None:
                raise BackendError("ovsdb", "drain", self.bridge, refusal)

    def ofports(self) -> dict[str, int]:
        """Read all OpenFlow port numbers of the bridge by interface name, also of other programs' ports.

        Raises BackendError when ovsdb-server cannot be reached.
        """
        with self._connection.current():
            return self._observer.ofports()

    def statistics(self) -> dict[str, PortStatistics]:
        """Read the counters of the agent's ports by name. BackendError: ovsdb-server cannot be reached."""
        return statistics.fetch(self._connection.remote, self.bridge)

    def close(self) -> None:
        """Close the connection; rows stay."""
        self._connection.close()

    # --- the connection's lock is held from here on ------------------------------------------------------

    def _expect(self, steps: Sequence[Step], failed: Mapping[int, BackendError]) -> None:
        # Expect only the results of the steps, so that concurrent changes by other programs are still detected.
        if self._expected is not None:
            actual = self._observer.resources() if failed else {}
            for index, step in enumerate(steps):
                outcome = actual.get(step.key) if index in failed else step.new
                self._expected.pop(step.key, None)
                if outcome is not None:
                    self._expected[step.key] = outcome

    def _apply(self, steps: Sequence[tuple[int, Step]], failed: dict[int, BackendError]) -> None:
        included: list[tuple[int, Step]] = []

        def change(transaction: Any) -> bool:
            changes = Changes(self._replica, transaction, self.bridge)
            for index, step in steps:
                try:
                    changes.make(step)
                    included.append((index, step))
                except BackendError as error:
                    failed[index] = error
            return any(_needs_vswitchd(step) for _, step in included)

        refusal, number = self._connection.transact(change)
        if refusal is not None:
            # The server does not name the refused operation: halve the steps until one is left.
            if len(included) == 1:
                index, step = included[0]
                failed[index] = failure(step, refusal)
                return
            middle = len(included) // 2
            self._apply(included[:middle], failed)
            self._apply(included[middle:], failed)
            return
        if not number:  # nothing for ovs-vswitchd
            return
        timeout = CONFIGURE_TIMEOUT + CONFIGURE_TIMEOUT_PER_PORT * len(included)
        applied = self._connection.wait_configured(number, timeout)
        if applied and any(self._port_error(step) for _, step in included):
            # Another port without a requested number may have had this one: ovs-vswitchd assigns it anew, but only
            # with the next configuration.
            _, number = self._connection.transact(lambda _: True)
            applied = self._connection.wait_configured(number, timeout)
        for index, step in included:
            port_error = self._port_error(step) if applied else f"ovs-vswitchd did not apply it in {timeout:g} s"
            if port_error:
                failed[index] = failure(step, port_error)

    def _has_lost_device(self, port: HostPort) -> bool:
        row = self._replica.find("Interface", port.name)
        return row is not None and lost_device(row)

    def _port_error(self, step: Step) -> str:
        """Return why ovs-vswitchd did not add or change a port as requested; "": it did."""
        port = step.new
        if not isinstance(port, HostPort | TunnelPort):
            return ""
        row = self._replica.find("Interface", port.name)
        if row is None:
            return "it was removed again meanwhile"
        if row.error:
            return str(row.error[0])
        if row.ofport != [port.ofport]:
            return f"its OpenFlow port number is {row.ofport or 'not given'}, not {port.ofport}"
        return ""


def _needs_vswitchd(step: Step) -> bool:
    """Return whether to wait for ovs-vswitchd: not if a step changes only BFD or external_ids of a tunnel.

    So peers learn that this Node has no flows while ovs-vswitchd does not run.
    """
    old, new = step.old, step.new
    if isinstance(old, TunnelPort) and isinstance(new, TunnelPort):
        return replace(old, bfd=new.bfd, bfd_seen=new.bfd_seen) != new
    return True
