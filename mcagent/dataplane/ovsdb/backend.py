"""The OVSDB backend: our bridge, its host port and its tunnels in the Open_vSwitch database.

Owns the bridge of the configured name and what carries its tag there (external_ids `mcagent-owner`); the
database and every other bridge and port belong to others. Must not know where the resources come from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mcagent.dataplane.ovsdb import statistics
from mcagent.dataplane.ovsdb.apply import Changes, failure
from mcagent.dataplane.ovsdb.connection import OvsdbConnection
from mcagent.dataplane.ovsdb.observe import BridgeState, Observer
from mcagent.dataplane.ovsdb.rows import DRAIN
from mcagent.model.errors import BackendError
from mcagent.model.plan import ApplyResult, Step
from mcagent.model.resources import Backend, HostPort, PortStatistics, Resource, ResourceKey, TunnelPort

CONFIGURE_TIMEOUT = 5.0  # seconds for ovs-vswitchd to take a configuration ...
CONFIGURE_TIMEOUT_PER_PORT = 0.01  # ... and for each port in it


class OvsdbBackend:
    """OVSDB at "unix:PATH", for the bridge of one name. One thread uses it at a time.

    `statistics` and `ofports` may be called from any thread.
    """

    name = Backend.OVSDB

    def __init__(self, socket: str, bridge: str = "br-mc") -> None:
        self.bridge = bridge
        self._connection = OvsdbConnection(socket)
        self._replica = self._connection.replica
        self._observer = Observer(self._replica, bridge)
        self._reported: BridgeState | None = None
        self._known: dict[ResourceKey, Resource] | None = None

    def observe(self) -> Mapping[ResourceKey, Resource]:
        """Return our bridge, host port and tunnels. Raises BackendError when ovsdb-server cannot be reached."""
        with self._connection.current():
            self._known = self._observer.resources()
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
            return ApplyResult.of(steps, failed)

    def watch(self, on_change: Callable[[], None], on_liveness: Callable[[], None] = lambda: None) -> None:
        """Call `on_change`, in a thread, whenever something of ours is no longer as last observed or applied.

        Also when the connection is lost or made again. `on_liveness` is called when `liveness` may say something
        new. Once only.
        """

        def judge(reconnected: bool) -> list[Callable[[], None]]:
            callbacks: list[Callable[[], None]] = []
            state = self._observer.state()
            if state != self._reported:
                self._reported = state
                callbacks.append(on_liveness)
            if reconnected or (self._known is not None and self._observer.resources() != self._known):
                self._known = None  # reported once; the next `observe` looks anew
                callbacks.append(on_change)
            return callbacks

        self._connection.watch(judge)

    def liveness(self) -> BridgeState:
        """Return our tunnels with their BFD as last heard, and the flags of our bridge; from any thread.

        The server is not asked: what was heard of it last counts, also while it is away.
        """
        with self._connection.lock:
            return self._observer.state()

    def set_drain(self, wanted: bool) -> None:
        """Put the flag that asks the agent of this Node to hand over into our bridge, or take it away.

        Raises BackendError when there is no bridge of ours, or ovsdb-server cannot be reached.
        """
        with self._connection.current():
            row = self._observer.bridge()
            if row is None:
                raise BackendError("ovsdb", "drain", self.bridge, "no such bridge of ours")
            key = ("external_ids", DRAIN)
            refusal, _ = self._connection.transact(
                lambda _: row.setkey(*key, "true") if wanted else row.delkey(*key)
            )
            if refusal is not None:
                raise BackendError("ovsdb", "drain", self.bridge, refusal)

    def ofports(self) -> dict[str, int]:
        """Return the OpenFlow port numbers in use on our bridge by interface name, others' ports included.

        Raises BackendError when ovsdb-server cannot be reached.
        """
        with self._connection.current():
            return self._observer.ofports()

    def statistics(self) -> dict[str, PortStatistics]:
        """Return counters of our ports by name, asked of the server now.

        Raises BackendError when ovsdb-server cannot be reached.
        """
        return statistics.fetch(self._connection.remote, self.bridge)

    def close(self) -> None:
        """Let go of the connection; the database keeps what was written."""
        self._connection.close()

    # --- the connection's lock is held from here on ------------------------------------------------------

    def _expect(self, steps: Sequence[Step], failed: Mapping[int, BackendError]) -> None:
        # What somebody else changed meanwhile must still be noticed: expect what was done, no more.
        if self._known is not None:
            actual = self._observer.resources() if failed else {}
            for index, step in enumerate(steps):
                outcome = actual.get(step.key) if index in failed else step.new
                self._known.pop(step.key, None)
                if outcome is not None:
                    self._known[step.key] = outcome

    def _apply(self, steps: Sequence[tuple[int, Step]], failed: dict[int, BackendError]) -> None:
        wanted: list[tuple[int, Step]] = []

        def change(transaction: Any) -> bool:
            changes = Changes(self._replica, transaction, self.bridge)
            for index, step in steps:
                try:
                    changes.make(step)
                    wanted.append((index, step))
                except BackendError as error:
                    failed[index] = error
            return any(_makes_ports(step) for _, step in wanted)

        refusal, number = self._connection.transact(change)
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
        if not number:  # nothing for ovs-vswitchd
            return
        timeout = CONFIGURE_TIMEOUT + CONFIGURE_TIMEOUT_PER_PORT * len(wanted)
        taken = self._connection.wait_configured(number, timeout)
        if taken and any(self._trouble(step) for _, step in wanted):
            # Perhaps the number was taken by a port that did not ask for it: ovs-vswitchd gives it another one,
            # but only when it looks a second time.
            _, number = self._connection.transact(lambda _: True)
            taken = self._connection.wait_configured(number, timeout)
        for index, step in wanted:
            trouble = self._trouble(step) if taken else f"ovs-vswitchd did not apply it in {timeout:g} s"
            if trouble:
                failed[index] = failure(step, trouble)

    def _trouble(self, step: Step) -> str:
        """Say what ovs-vswitchd made of a port that was to be added or changed; "" if what was asked for."""
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


def _makes_ports(step: Step) -> bool:
    """Whether ovs-vswitchd may fail to do it, and others stand on it: not where only BFD or our notes change.

    So peers learn that this Node has no flows while ovs-vswitchd does not run.
    """
    old, new = step.old, step.new
    if isinstance(old, TunnelPort) and isinstance(new, TunnelPort):
        return replace(old, bfd=new.bfd, bfd_seen=new.bfd_seen) != new
    return True
