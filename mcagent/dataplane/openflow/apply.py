"""Steps on flows, groups and meters -> messages in an order that Open vSwitch takes; what depends on a refusal.

Pure. What is refused is left out with all that needs it; the rest goes on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from mcagent.dataplane.openflow import messages
from mcagent.dataplane.openflow.observe import OURS
from mcagent.model.errors import BackendError
from mcagent.model.plan import Op, Step
from mcagent.model.resources import FlowEntry, GroupEntry, MeterEntry, Resource

Placed = tuple[int, Step]  # a step, and its place in the stage
_METER_COMMANDS = {
    Op.ADD: messages.METER_ADD,
    Op.REPLACE: messages.METER_MODIFY,
    Op.DELETE: messages.METER_DELETE,
}
_NEEDS = re.compile(r"\b(?:watch_)?((?:group|meter):\d+)")


def in_bundle_order(steps: Iterable[Placed]) -> list[Placed]:
    """Sort so that each message of a bundle is valid when its turn comes.

    Groups are added before the flows that point to them and deleted after; deleting a group would take
    flows that still point to it along. Among new groups those that others point to come first.
    """
    ordered = sorted(steps, key=lambda item: _rank(item[1]))
    groups = {name_of(step.new): (place, step) for place, step in ordered if isinstance(step.new, GroupEntry)}
    first: dict[str, Placed] = {}
    visiting: set[str] = set()

    def visit(name: str) -> None:
        if name in groups and name not in visiting:
            visiting.add(name)  # a loop is OVS' to refuse
            for needed in _needs(groups[name][1].new):
                visit(needed)
            first[name] = groups[name]

    for name in groups:
        visit(name)
    return [*first.values(), *(item for item in ordered if not isinstance(item[1].new, GroupEntry))]


def _rank(step: Step) -> int:
    group = isinstance(step.new or step.old, GroupEntry)
    if step.op is Op.DELETE:
        return 3 if group else 2
    return 0 if group else 1


def without_users(
    steps: list[Placed], refused: set[str], failed: dict[int, BackendError], cause: BackendError | None = None
) -> list[Placed]:
    """Take out the steps that need a refused group or meter ("group:1"), and in turn what needs those.

    `cause`: the error of all of them, in place of one each.
    """
    while refused:
        kept: list[Placed] = []
        more: set[str] = set()
        for place, step in steps:
            needed = min(_needs(step.new) & refused, default="")
            if not needed:
                kept.append((place, step))
                continue
            reason = f"{needed}, which it needs, was refused"
            failed[place] = cause or failure(step, reason, retryable=needed.startswith("group"))
            if isinstance(step.new, GroupEntry):
                more.add(name_of(step.new))
        steps, refused = kept, more
    return steps


def name_of(resource: Resource | None) -> str:
    """Return what others refer to a group or meter by; "" for a flow."""
    match resource:
        case GroupEntry(group_id=number):
            return f"group:{number}"
        case MeterEntry(meter_id=number):
            return f"meter:{number}"
    return ""


def _needs(resource: Resource | None) -> set[str]:
    match resource:
        case GroupEntry(body=text) | FlowEntry(actions=text):
            return set(_NEEDS.findall(text))
    return set()


def bundle_line(step: Step) -> str:
    """Return the step as one line of a bundle file (ovs-ofctl(8), "OpenFlow Switch Bundle Command")."""
    resource = step.new or step.old
    if isinstance(resource, GroupEntry):
        if step.op is Op.DELETE:
            return f"group delete group_id={resource.group_id}"
        # Modifying keeps the group, and with it the flows that point to it.
        return f"group add_or_mod group_id={resource.group_id},{resource.body}"
    assert isinstance(resource, FlowEntry)
    match = f"table={resource.table},priority={resource.priority}"
    if resource.match:
        match += f",{resource.match}"
    if step.op is Op.DELETE:
        return f"flow delete_strict {OURS},{match}"
    return f"flow add cookie={resource.cookie:#x},{match} actions={resource.actions}"


def meter_message(step: Step, xid: int) -> bytes:
    """Return the step on a meter as a message: bundles take none."""
    meter = step.new or step.old
    assert isinstance(meter, MeterEntry)
    return messages.meter_mod(_METER_COMMANDS[step.op], meter.meter_id, meter.rate, meter.burst, xid)


def failure(step: Step, reason: str, *, retryable: bool = True) -> BackendError:
    """Return the error that says why a step could not be done."""
    match step.new or step.old:
        case GroupEntry(group_id=number):
            obj = f"group {number:#x}"
        case MeterEntry(meter_id=number):
            obj = f"meter {number}"
        case FlowEntry(table=table, priority=priority, match=match):
            obj = f"flow table={table},priority={priority},{match}"
        case other:
            raise AssertionError(other)
    return BackendError("openflow", str(step.op), obj, reason, retryable=retryable)
