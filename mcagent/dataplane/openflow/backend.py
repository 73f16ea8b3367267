"""The OpenFlow backend: flows and groups of our bridge, through ovs-ofctl(8).

Owns the flows with our cookie and all groups of our bridge, which is ours alone. Must not know what the
flows are for: their text comes from the `flows` library and goes back as it came.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Mapping, Sequence

from flows.errors import FlowError
from mcagent.dataplane.openflow import meters, packet_out
from mcagent.dataplane.openflow import text as openflow_text
from mcagent.dataplane.openflow.ofctl import TIMEOUT, Ofctl
from mcagent.dataplane.openflow.text import FlowStatistics
from mcagent.dataplane.openflow.watch import BridgeWatch
from mcagent.model.errors import BackendError
from mcagent.model.plan import ApplyResult, Op, Step
from mcagent.model.resources import (
    Backend,
    FlowEntry,
    GroupEntry,
    MeterEntry,
    OpenFlowResource,
    Resource,
    ResourceKey,
)

STEPS_PER_SECOND = 1000  # a run of ovs-ofctl may take one second longer for each so many lines
REFUSALS_MAX = 32  # steps found bad in one stage before the rest is given up
_NO_FLOWS = re.compile(r"\bflow_count=0\b")
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
        """Return our flows and groups; none while there is no such bridge.

        Raises BackendError when ovs-vswitchd cannot be reached.
        """
        flows = self._dump("dump-flows", openflow_text.OURS)
        if flows is None:
            return {}
        groups = self._dump("dump-groups")
        if groups is None:
            return {}
        try:
            found: list[OpenFlowResource] = [
                *meters.parse(self._dump("dump-meters", options=()) or ""),
                *openflow_text.parse_groups(groups),
                *openflow_text.parse_flows(flows),
            ]
        except FlowError as error:
            raise BackendError("openflow", "read", self.socket, str(error)) from None
        return {resource.key: resource for resource in found}

    def has_flows(self) -> bool:
        """Tell whether there is any flow of ours, at little cost. Raises BackendError."""
        found = self._dump("dump-aggregate", openflow_text.OURS, options=())
        return found is not None and not _NO_FLOWS.search(found)

    def apply(self, steps: Sequence[Step]) -> ApplyResult:
        """Apply the steps in one atomic bundle: packets meet all of them or none.

        Steps that OVS refuses are left out, with what depends on them, and reported with its words; the
        others then take effect together. Raises BackendError when ovs-vswitchd cannot be reached.
        """
        failed: dict[int, BackendError] = {}
        # Those that flows use are there before them and go after them: OVS would delete these flows.
        self._meters(steps, failed, deleted=False)
        refused = {
            step.new.meter_id for step in map(steps.__getitem__, failed) if isinstance(step.new, MeterEntry)
        }
        rest = [(n, step) for n, step in enumerate(steps) if not isinstance(step.new or step.old, MeterEntry)]
        remaining = openflow_text.in_bundle_order(_without_meters(rest, refused, failed))
        while remaining:
            refusal = self._bundle([step for _, step in remaining])
            if refusal is None:
                break
            position, reason = refusal
            if position is None or len(failed) >= REFUSALS_MAX:
                failed.update(
                    {index: _failure(step, f"not tried any more after {reason}") for index, step in remaining}
                )
                break
            index, step = remaining.pop(position)
            failed[index] = _failure(step, reason, retryable=False)
            if isinstance(step.new, GroupEntry):
                remaining = _without_users(remaining, step.new.group_id, failed)
        self._meters(steps, failed, deleted=True)
        return ApplyResult(
            done=tuple(step for index, step in enumerate(steps) if index not in failed),
            failed=tuple((steps[index], error) for index, error in sorted(failed.items())),
        )

    def _meters(self, steps: Sequence[Step], failed: dict[int, BackendError], *, deleted: bool) -> None:
        """Make the steps on meters so, of one kind; what is refused goes into `failed` by place."""
        places = [
            place
            for place, step in enumerate(steps)
            if isinstance(step.new or step.old, MeterEntry) and (step.op is Op.DELETE) == deleted
        ]
        if places:
            errors = meters.apply(self.socket.removeprefix("unix:"), [steps[place] for place in places])
            failed.update((places[index], error) for index, error in errors.items())

    def flow_stats(self, cookies: str = openflow_text.OURS) -> dict[int, FlowStatistics]:
        """Return packets and bytes by cookie, from any thread; empty while there is no such bridge.

        `cookies` ("cookie=VALUE/MASK") asks for some only.
        Raises BackendError when ovs-vswitchd cannot be reached.
        """
        text = self._dump("dump-flows", cookies, options=("--no-names",))
        return openflow_text.parse_statistics(text) if text is not None else {}

    def over_limit(self) -> int:
        """Return how many packets meters dropped, from any thread. Raises BackendError."""
        return meters.dropped(self._dump("meter-stats", options=()) or "")

    def send(self, in_port: int, frames: Sequence[bytes]) -> None:
        """Give frames to the flows as if they had come in by a port, from any thread. Raises BackendError."""
        packet_out.send(self.socket.removeprefix("unix:"), in_port, frames)

    def watch(self, on_change: Callable[[], None], on_restart: Callable[[], None] | None = None) -> None:
        """Call `on_change`, in a thread, when flows or groups are no longer as last applied. Once only.

        Also when the bridge first answers: nothing was noticed before that. And `on_restart` when ovs-vswitchd or
        the bridge went away or came back. From now on a process is held ready for the next bundle.
        """
        if self._watch is not None:
            raise RuntimeError("watched already")
        self._watch = BridgeWatch(
            self.socket.removeprefix("unix:"),
            on_change,
            on_restart or on_change,
            self._ofctl.hold,
            ours=openflow_text.is_ours,
        )

    def close(self) -> None:
        """End the watch; flows and groups stay."""
        if self._watch is not None:
            self._watch.close()
        self._ofctl.close()

    def _dump(self, command: str, *args: str, options: Sequence[str] = ("--no-names", "--no-stats")) -> str | None:
        """Return what ovs-ofctl prints, or None if there is no such bridge."""
        done = self._ofctl.run(*options, command, self.socket, *args)
        if done.returncode == 0:
            return done.stdout
        if _NO_SUCH_FILE in done.stderr:
            return None
        gone = _REFUSED in done.stderr
        raise BackendError("openflow", "read", self.socket, _last_line(done.stderr), gone=gone)

    def _bundle(self, steps: Sequence[Step]) -> tuple[int | None, str] | None:
        """Send one bundle; None if it was taken, else which step was refused, and why."""
        text = "\n".join(map(openflow_text.line, steps)) + "\n"
        taken = 0
        if self._watch is not None:
            self._watch.begin()
        try:
            done = self._ofctl.bundle(text, TIMEOUT + len(steps) // STEPS_PER_SECOND)
            taken = len(steps) if done.returncode == 0 else 0
        finally:
            if self._watch is not None:
                self._watch.end(taken)
        if done.returncode == 0:
            return None
        refusal = openflow_text.refused(done.stderr, steps)
        if refusal is None:
            raise BackendError("openflow", "apply", self.socket, _last_line(done.stderr))
        return refusal


def _failure(step: Step, reason: str, *, retryable: bool = True) -> BackendError:
    resource = step.new or step.old
    if isinstance(resource, GroupEntry):
        obj = f"group {resource.group_id:#x}"
    else:
        assert isinstance(resource, FlowEntry)
        obj = f"flow table={resource.table},priority={resource.priority},{resource.match}"
    return BackendError("openflow", str(step.op), obj, reason, retryable=retryable)


def _without_meters(
    steps: list[tuple[int, Step]], refused: set[int], failed: dict[int, BackendError]
) -> list[tuple[int, Step]]:
    """Take out the flows that use a refused meter: what they let pass then passes by the flow below them."""
    kept = []
    for place, step in steps:
        used = openflow_text.meter_used(step.new) if refused and isinstance(step.new, FlowEntry) else None
        if used in refused:
            failed[place] = _failure(step, f"meter {used}, which it needs, was refused", retryable=False)
        else:
            kept.append((place, step))
    return kept


def _without_users(
    steps: list[tuple[int, Step]], group_id: int, failed: dict[int, BackendError]
) -> list[tuple[int, Step]]:
    """Take out the steps that point to a refused group, and in turn what points to those."""
    refused = {group_id}
    while refused:
        kept: list[tuple[int, Step]] = []
        more: set[int] = set()
        for index, step in steps:
            new = step.new
            used = (
                refused.intersection(openflow_text.groups_used(new))
                if isinstance(new, FlowEntry | GroupEntry)
                else None
            )
            if not used:
                kept.append((index, step))
                continue
            failed[index] = _failure(step, f"group {min(used):#x}, which it needs, was refused")
            if isinstance(new, GroupEntry):
                more.add(new.group_id)
        steps, refused = kept, more
    return steps


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].removeprefix("ovs-ofctl: ") if lines else "ovs-ofctl failed without a word"
