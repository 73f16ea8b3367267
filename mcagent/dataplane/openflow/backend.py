"""The OpenFlow backend: flows and groups of the agent's bridge by ovs-ofctl(8), meters and packets by messages.

Owns the flows with the agent's cookie and all groups of its bridge. Must not know the purpose of flows: their text
is that of the `flows` library.
"""

from __future__ import annotations

import errno
import os
import re
import struct
from collections.abc import Callable, Mapping, Sequence

from flows.errors import FlowError
from flows.fields import PORT_CONTROLLER
from mcagent.dataplane.openflow import observe as printed
from mcagent.dataplane.openflow.apply import (
    Placed,
    bundle_line,
    failure,
    in_bundle_order,
    name_of,
    refused_step,
    without_users,
)
from mcagent.dataplane.openflow.connection import (
    ERROR,
    Message,
    OpenFlowConnection,
    count_request,
    meter_message,
    meters,
    meters_request,
    packet_count,
    packet_out,
)
from mcagent.dataplane.openflow.observe import OURS
from mcagent.dataplane.openflow.ofctl import TIMEOUT, Ofctl
from mcagent.dataplane.openflow.watch import BridgeWatch, OnConnection, OnPacket
from mcagent.model.dataplane.backend import Backend
from mcagent.model.dataplane.resources import GroupEntry, MeterEntry, OpenFlowResource, Resource, ResourceKey
from mcagent.model.errors import BackendError
from mcagent.model.plan import ApplyResult, Op, Step

STEPS_PER_SECOND = 1000  # lines for which the time-out of ovs-ofctl is one second longer
PORTS_AT_ONCE = 100  # of one packet-out, whose actions are limited to 64 KiB
REFUSALS_MAX = 32  # refused steps of one stage after which the others are not attempted
_NO_METERS = re.compile(r"\bmax_meter:0\b")
_FLOWS = re.compile(r"\bflow_count=[1-9]")
_NO_SUCH_FILE = f"({os.strerror(errno.ENOENT)})"
_REFUSED = f"({os.strerror(errno.ECONNREFUSED)})"  # the socket of a process that has ended


class OpenFlowBackend:
    """Flows and groups of the bridge whose management socket is `socket` ("unix:PATH/BRIDGE.mgmt")."""

    name = Backend.OPENFLOW

    def __init__(self, socket: str) -> None:
        self.socket = socket
        self._ofctl = Ofctl(socket)
        self._watch: BridgeWatch | None = None

    def observe(self) -> Mapping[ResourceKey, Resource]:
        """Read the agent's flows, groups and meters; none without a bridge. BackendError: no ovs-vswitchd."""
        try:
            resources: list[OpenFlowResource] = [
                *printed.parse_groups(self._dump("dump-groups")),
                *printed.parse_flows(self._dump("dump-flows", OURS)),
                *self._read_meters(),
            ]
        except FlowError as error:
            raise BackendError("openflow", "read", self.socket, str(error)) from None
        return {resource.key: resource for resource in resources}

    def has_flows(self) -> bool:
        """Return whether the agent's bridge has flows, without dumping them. Raises BackendError."""
        return _FLOWS.search(self._dump("dump-aggregate", OURS, options=())) is not None

    def apply(self, steps: Sequence[Step]) -> ApplyResult:
        """Apply the steps in one atomic bundle: packets meet all of them or none.

        Steps that Open vSwitch refuses are left out, with those that depend on them, and reported with its
        message; the others take effect together. Raises BackendError when ovs-vswitchd cannot be reached.
        """
        failed: dict[int, BackendError] = {}
        placed = list(enumerate(steps))
        meters = [item for item in placed if isinstance(item[1].resource, MeterEntry)]
        # Meters are added before the flows that use them and deleted after them: OVS deletes the flows of a meter.
        cause = self._meters([item for item in meters if item[1].new is not None], failed)
        # Without the flows of a refused meter, their packets match the flows of lower priority.
        without = {name_of(steps[place].new) for place in failed}
        remaining = without_users(in_bundle_order(placed), without, failed, cause)
        while remaining:
            refusal = self._bundle([step for _, step in remaining])
            if refusal is None:
                break
            position, reason = refusal
            if position is None or len(failed) >= REFUSALS_MAX:
                failed.update({at: failure(step, f"not attempted after {reason}") for at, step in remaining})
                break
            place, step = remaining.pop(position)
            failed[place] = failure(step, reason, retryable=False)
            if isinstance(step.new, GroupEntry):
                remaining = without_users(remaining, {name_of(step.new)}, failed)
        self._meters([item for item in meters if item[1].op is Op.DELETE], failed)
        return ApplyResult.of(steps, failed)

    def _meters(self, steps: Sequence[Placed], failed: dict[int, BackendError]) -> BackendError | None:
        """Apply steps on meters; return the common error of all of them if the datapath has no meters."""
        errors = self._change("apply", [meter_message(step, xid) for xid, (_, step) in enumerate(steps, 1)])
        cause = None
        if errors and _NO_METERS.search(self._dump("meter-features", options=())):
            reason = "this datapath has no meters: set newConnections and fragments to 0 (clusters unlimited)"
            cause = BackendError("openflow", "apply", "meters of other clusters", reason, retryable=False)
        for error in errors:
            place, step = steps[error.xid - 1]
            kind, code = struct.unpack_from("!HH", error.body)
            reason = f"Open vSwitch refuses it (error {kind}/{code}): newConnections: 0 and fragments: 0 avoid it"
            failed[place] = cause or failure(step, reason, retryable=False)
        return cause

    def _read_meters(self) -> list[MeterEntry]:
        """Read all meters of the bridge; none while there is no such bridge. Raises BackendError."""
        try:
            with OpenFlowConnection(self.socket.removeprefix("unix:")) as connection:
                answers = connection.request([meters_request()])
                return [meter for answer in answers if answer.kind != ERROR for meter in meters(answer)]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise BackendError("openflow", "read", self.socket, str(error)) from None

    def _request(self, operation: str, requests: Sequence[bytes]) -> list[Message]:
        """Send messages on a new connection; return the answers. Raises BackendError."""
        if not requests:
            return []
        path = self.socket.removeprefix("unix:")
        try:
            with OpenFlowConnection(path) as connection:
                return connection.request(requests)
        except OSError as error:
            raise BackendError("openflow", operation, path, str(error)) from None

    def _change(self, operation: str, requests: Sequence[bytes]) -> list[Message]:
        """Send messages on a new connection; return the error messages. Raises BackendError."""
        return [answer for answer in self._request(operation, requests) if answer.kind == ERROR]

    def packet_counts(self, table: int, cookies: Sequence[int]) -> Mapping[int, int]:
        """Read packets of a table's flows by cookie, without a process; any thread. Raises BackendError."""
        requests = [count_request(table, cookie, xid) for xid, cookie in enumerate(cookies)]
        answers = self._request("read", requests)
        try:
            return {cookies[answer.xid]: packet_count(answer) for answer in answers}
        except OSError as error:
            raise BackendError("openflow", "read", self.socket, str(error)) from None

    def flow_stats(self, cookies: str = OURS) -> Mapping[int, int]:
        """Read packets by cookie, from any thread; empty while there is no such bridge.

        `cookies` ("cookie=VALUE/MASK") selects flows. Raises BackendError when ovs-vswitchd cannot be reached.
        """
        return printed.parse_packets(self._dump("dump-flows", cookies, options=("--no-names",)))

    def over_limit(self) -> int:
        """Read the number of packets that meters dropped, from any thread. Raises BackendError."""
        return printed.parse_dropped(self._dump("meter-stats", options=()))

    def send(self, in_port: int, frames: Sequence[bytes]) -> None:
        """Send frames through the flows with `in_port` as input port, from any thread. Raises BackendError."""
        errors = self._change("send packets", [packet_out(in_port, frame) for frame in frames])
        if errors:
            reason = f"{len(errors)} of {len(frames)} were refused"
            raise BackendError("openflow", "send packets", self.socket, reason)

    def send_out(self, ports: Sequence[int], frame: bytes) -> None:
        """Send a frame out by each of these ports, without the flows; from any thread. Raises BackendError."""
        batches = (ports[at : at + PORTS_AT_ONCE] for at in range(0, len(ports), PORTS_AT_ONCE))
        if self._change("send packets", [packet_out(PORT_CONTROLLER, frame, batch) for batch in batches]):
            raise BackendError("openflow", "send packets", self.socket, "some ports were refused")

    def send_each(self, frames: Sequence[tuple[int, bytes]]) -> None:
        """Send each frame out by its port, without the flows, on the watch's connection; from any thread.

        Errors of Open vSwitch are not reported. Raises BackendError when there is no connection, or ovs-vswitchd
        does not read it.
        """
        sent = b"".join(packet_out(PORT_CONTROLLER, frame, (port,)) for port, frame in frames)
        if self._watch is None or not self._watch.send(sent):
            raise BackendError("openflow", "send packets", self.socket, "not connected, or not read")

    def watch(
        self,
        on_change: Callable[[], None],
        on_restart: Callable[[], None],
        *,
        on_packet: OnPacket = lambda *_: None,
        on_ended: OnConnection = lambda _: None,
    ) -> None:
        """Call `on_change`, in a thread, when flows or groups differ from those last applied. Call this once.

        `on_change` is also called when the bridge first answers, `on_restart` when ovs-vswitchd or the bridge
        disappears or returns, `on_packet` for packets that flows send to the agent, `on_ended` for the connections
        whose packets flows send to it. From now on a process is prepared for the next bundle.
        """
        path = self.socket.removeprefix("unix:")
        self._watch = BridgeWatch(
            path, on_change, on_restart, self._ofctl.prepare, on_packet=on_packet, on_ended=on_ended
        )

    def close(self) -> None:
        """End the watch; flows and groups stay."""
        if self._watch is not None:
            self._watch.close()
        self._ofctl.close()

    def _dump(self, command: str, *args: str, options: Sequence[str] = ("--no-names", "--no-stats")) -> str:
        """Return the output of ovs-ofctl; empty while there is no such bridge."""
        done = self._ofctl.run(*options, command, self.socket, *args)
        if done.returncode and _NO_SUCH_FILE not in done.stderr:
            gone = _REFUSED in done.stderr
            raise BackendError("openflow", "read", self.socket, _last_line(done.stderr), gone=gone)
        return done.stdout

    def _bundle(self, steps: Sequence[Step]) -> tuple[int | None, str] | None:
        """Send one bundle; None: it was applied, else the refused step's index (None: unknown) and the reason."""
        text = "\n".join(map(bundle_line, steps)) + "\n"
        applied = 0
        if self._watch is not None:
            self._watch.begin()
        try:
            done = self._ofctl.bundle(text, TIMEOUT + len(steps) // STEPS_PER_SECOND)
            applied = len(steps) if done.returncode == 0 else 0
        finally:
            if self._watch is not None:
                self._watch.end(applied)
        if done.returncode == 0:
            return None
        refusal = refused_step(done.stderr, steps)
        if refusal is None:
            raise BackendError("openflow", "apply", self.socket, _last_line(done.stderr))
        return refusal


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].removeprefix("ovs-ofctl: ") if lines else "ovs-ofctl failed silently"
