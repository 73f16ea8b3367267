"""Orders steps on flows and groups for a bundle of Open vSwitch, and finds the step that it refuses.

Pure. A refused step is left out together with the steps that depend on it; the others are applied. ovs-ofctl
quotes the refused message: as text (table, match, cookie, group), or as bytes where it cannot be decoded. This
identifies the step in every version; where several steps look alike, the transaction number of the message does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from graphlib import TopologicalSorter

from mcagent.dataplane.openflow.observe import OURS
from mcagent.model.dataplane.resources import FlowEntry, GroupEntry, MeterEntry, Resource
from mcagent.model.errors import BackendError
from mcagent.model.plan import Op, Step

Placed = tuple[int, Step]  # a step, and its place in the stage
# ovs-ofctl 3.1 sends the hello, the protocol set-up and the opening of the bundle with transaction numbers 1 to
# 5, then line n with n + 5. If another version differs, the first step that looks alike is taken.
_XID_BEFORE_FIRST_LINE = 5
_ERROR = re.compile(r"^Error (OFP\w+) for: (?P<message>.*)", re.MULTILINE)
_XID = re.compile(r"\(xid=0x([0-9a-f]+)\)")
_SYNTAX = re.compile(r"^ovs-ofctl: -:(?P<line>\d+): (?P<reason>.*)", re.MULTILINE)
_MESSAGE_BYTES = re.compile(r"^000000[01]0 ((?:[ -][0-9a-f]{2}){16})", re.MULTILINE)
_QUOTE = 300  # characters of a refused message in an error
_NEEDS = re.compile(r"\b(?:watch_)?((?:group|meter):\d+)")


def in_bundle_order(steps: Sequence[Placed]) -> list[Placed]:
    """Order the steps on groups and flows so that each message of a bundle is valid after those before it.

    Groups are added before the flows that use them and deleted after them, because deleting a group deletes the
    flows that use it. Among new groups those that others use come first.
    """
    groups = {name_of(item[1].new): item for item in steps if isinstance(item[1].new, GroupEntry)}
    needed = {name: sorted(_needs(step.new) & groups.keys()) for name, (_, step) in groups.items()}
    flows = [item for item in steps if isinstance(item[1].resource, FlowEntry)]
    deleted = [item for item in steps if item[1].new is None and isinstance(item[1].old, GroupEntry)]
    return [*(groups[name] for name in TopologicalSorter(needed).static_order()), *flows, *deleted]


def without_users(
    steps: list[Placed], refused: set[str], failed: dict[int, BackendError], cause: BackendError | None = None
) -> list[Placed]:
    """Remove the steps that use a refused group or meter ("group:1"), and those that use removed groups.

    `failed` gets their errors: `cause` for all of them, if given.
    """
    if not refused:
        return steps
    remaining: list[Placed] = []
    for place, step in steps:
        if needed := min(_needs(step.new) & refused, default=""):
            reason = f"{needed}, which it needs, was refused"
            failed[place] = cause or failure(step, reason, retryable=needed.startswith("group"))
            refused = refused | {name_of(step.new)}
        else:
            remaining.append((place, step))
    return remaining


def name_of(resource: Resource | None) -> str:
    """Return the name by which flows and groups refer to a group or meter; "" for a flow."""
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
    resource = step.resource
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


def failure(step: Step, reason: str, *, retryable: bool = True) -> BackendError:
    """Make the error of a step."""
    match step.resource:
        case GroupEntry(group_id=number):
            obj = f"group {number:#x}"
        case MeterEntry(meter_id=number):
            obj = f"meter {number}"
        case FlowEntry(table=table, priority=priority, match=match):
            obj = f"flow table={table},priority={priority},{match}"
        case other:
            raise AssertionError(other)
    return BackendError("openflow", str(step.op), obj, reason, retryable=retryable)


def refused_step(stderr: str, steps: Sequence[Step]) -> tuple[int | None, str] | None:
    """Find the step of a bundle that was refused: its index (None: unknown) and Open vSwitch's message.

    None if `stderr` has no refusal: then the bridge could not be reached.
    """
    syntax = _SYNTAX.search(stderr)
    if syntax:
        return int(syntax["line"]) - 1, syntax["reason"]
    error = _ERROR.search(stderr)
    if error is None:
        return None
    # The message continues over lines until the next error, which is about the whole bundle.
    quoted = stderr[error.start("message") :].split("\nError ", 1)[0].split("\novs-ofctl: ", 1)[0]
    message = f"{error[1]}: {' '.join(quoted.split())[:_QUOTE]}"
    alike = [index for index, step in enumerate(steps) if _quotes(quoted, step)]
    xid = _XID.search(quoted)
    index_by_xid = int(xid[1], 16) - _XID_BEFORE_FIRST_LINE - 1 if xid else -1
    return (index_by_xid if index_by_xid in alike else next(iter(alike), None)), message


def _quotes(quoted: str, step: Step) -> bool:
    resource = step.resource
    if isinstance(resource, GroupEntry):
        number = f"group_id={resource.group_id}," in f"{quoted},"
        return "OFPT_GROUP_MOD" in quoted and (number or resource.group_id.to_bytes(4) == _bytes(quoted)[12:16])
    assert isinstance(resource, FlowEntry)
    if "OFPT_FLOW_MOD" not in quoted:
        return False
    if undecoded := _bytes(quoted):
        return resource.cookie.to_bytes(8) == undecoded[8:16]
    # OVS omits table 0, the default priority and an empty cookie; all flows of the agent have a cookie.
    table = not resource.table or f" table:{resource.table} " in quoted
    match = not resource.match or f"{resource.match} " in quoted
    return table and match and f"cookie:{resource.cookie:#x} " in f"{quoted} "


def _bytes(quoted: str) -> bytes:
    """Return the first bytes of a message that could not be decoded, which contain its cookie or group."""
    _, _, dump = quoted.rpartition("decode error")
    return bytes.fromhex("".join(_MESSAGE_BYTES.findall(dump)).replace("-", " "))
