"""Steps on flows and groups -> lines of an `ovs-ofctl bundle` file; what ovs-ofctl prints -> values and errors.

Owns the ownership mark (the top 16 bits of the cookie) and the order within a bundle. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flows.lines import is_group_line, parse_flow_line, parse_group_line
from mcagent.model.plan import Op, Step
from mcagent.model.resources import FlowEntry, GroupEntry

COOKIE = 0x6D63 << 48  # "mc": every flow of ours
COOKIE_MASK = 0xFFFF << 48
OURS = f"cookie={COOKIE:#x}/{COOKIE_MASK:#x}"

# Messages that ovs-ofctl sends before the first line of a bundle file (hello, protocol set-up, bundle open) take
# transaction numbers 1 to 5, so line n has n + 5. Only a hint: what the error quotes has to agree.
_XID_BEFORE_FIRST_LINE = 5
_ERROR = re.compile(r"^Error (OFP\w+) for: (?P<message>.*)", re.MULTILINE)
_XID = re.compile(r"\(xid=0x([0-9a-f]+)\)")
_SYNTAX = re.compile(r"^ovs-ofctl: -:(?P<line>\d+): (?P<reason>.*)", re.MULTILINE)
_COUNTERS = re.compile(r"cookie=0x([0-9a-f]+), .*?n_packets=(\d+), n_bytes=(\d+)")
_QUOTE = 300  # characters of a refused message that are passed on
_METER = re.compile(r"\bmeter:(\d+)")
_GROUP = re.compile(r"\b(?:group:|watch_group:)(\d+)")


@dataclass(frozen=True, slots=True)
class FlowStatistics:
    """What matched the flows of one cookie since they were added."""

    packets: int
    bytes: int


def is_ours(cookie: int) -> bool:
    """Tell whether a flow with this cookie is ours."""
    return cookie & COOKIE_MASK == COOKIE


def in_bundle_order(steps: Iterable[tuple[int, Step]]) -> list[tuple[int, Step]]:
    """Sort so that each message of a bundle is valid when its turn comes.

    Groups are added before the flows that point to them and deleted after; deleting a group would take
    flows that still point to it along. Among new groups those that others point to come first.
    """
    ordered = sorted(steps, key=lambda item: _rank(item[1]))
    return _groups_after_what_they_use(ordered)


def _rank(step: Step) -> int:
    group = isinstance(step.new or step.old, GroupEntry)
    if step.op is Op.DELETE:
        return 3 if group else 2
    return 0 if group else 1


def _groups_after_what_they_use(steps: list[tuple[int, Step]]) -> list[tuple[int, Step]]:
    groups = {item[1].new.group_id: item for item in steps if isinstance(item[1].new, GroupEntry)}
    rest = [item for item in steps if not isinstance(item[1].new, GroupEntry)]
    ordered: dict[int, tuple[int, Step]] = {}
    visiting: set[int] = set()

    def visit(group_id: int) -> None:
        if group_id in ordered or group_id in visiting or group_id not in groups:
            return
        visiting.add(group_id)  # a loop is OVS' to refuse
        new = groups[group_id][1].new
        assert isinstance(new, GroupEntry)
        for used in groups_used(new):
            visit(used)
        ordered[group_id] = groups[group_id]

    for group_id in groups:
        visit(group_id)
    return [*ordered.values(), *rest]


def groups_used(resource: FlowEntry | GroupEntry) -> list[int]:
    """Return the numbers of the groups that a flow or group points to."""
    text = resource.body if isinstance(resource, GroupEntry) else resource.actions
    return [int(number) for number in _GROUP.findall(text)] if "group:" in text else []


def meter_used(flow: FlowEntry) -> int | None:
    """Return the number of the meter that a flow's packets pass, None if there is none."""
    found = _METER.search(flow.actions) if "meter:" in flow.actions else None
    return int(found[1]) if found else None


def line(step: Step) -> str:
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


def parse_flows(text: str) -> list[FlowEntry]:
    """Return the flows of a dump made with --no-names and --no-stats, those of OURS asked for.

    Raises flows.errors.FlowError on a line that makes no sense.
    """
    found = []
    for row in text.splitlines():
        if "actions=" in row:
            table, priority, match, cookie, actions = parse_flow_line(row)
            found.append(FlowEntry(table=table, priority=priority, match=match, cookie=cookie, actions=actions))
    return found


def parse_groups(text: str) -> list[GroupEntry]:
    """Return the groups of a dump; raises flows.errors.FlowError on a line that makes no sense."""
    found = []
    for row in text.splitlines():
        if is_group_line(row):
            number, body = parse_group_line(row)
            found.append(GroupEntry(group_id=number, body=body))
    return found


def parse_statistics(text: str) -> dict[int, FlowStatistics]:
    """Return packets and bytes by cookie, summed over the flows that share one."""
    totals: dict[int, FlowStatistics] = {}
    for match in _COUNTERS.finditer(text):
        cookie, packets, size = int(match[1], 16), int(match[2]), int(match[3])
        before = totals.get(cookie)
        if before is not None:
            packets, size = packets + before.packets, size + before.bytes
        totals[cookie] = FlowStatistics(packets, size)
    return totals


def refused(stderr: str, steps: Sequence[Step]) -> tuple[int | None, str] | None:
    """Return which step of a bundle was refused (its index, or None if that cannot be told) and OVS' words.

    None if `stderr` tells of no refusal: then the bridge could not be reached.
    """
    syntax = _SYNTAX.search(stderr)
    if syntax:
        return int(syntax["line"]) - 1, syntax["reason"]
    error = _ERROR.search(stderr)
    if error is None:
        return None
    # The message goes on over lines until the next error, the one about the bundle as a whole.
    quoted = stderr[error.start("message") :].split("\nError ", 1)[0].split("\novs-ofctl: ", 1)[0]
    words = f"{error[1]}: {' '.join(quoted.split())[:_QUOTE]}"
    number = _XID.search(quoted)
    if number is not None:
        index = int(number[1], 16) - _XID_BEFORE_FIRST_LINE - 1
        if 0 <= index < len(steps) and _agrees(quoted, steps[index]):
            return index, words
    return next((i for i, step in enumerate(steps) if _quotes(quoted, step)), None), words


def _agrees(quoted: str, step: Step) -> bool:
    # What OVS could not decode it does not quote in text.
    return "decode error" in quoted or _quotes(quoted, step)


def _quotes(quoted: str, step: Step) -> bool:
    resource = step.new or step.old
    if isinstance(resource, GroupEntry):
        return "OFPT_GROUP_MOD" in quoted and f"group_id={resource.group_id}," in f"{quoted},"
    assert isinstance(resource, FlowEntry)
    # OVS leaves out table 0, the default priority and an empty cookie; all of ours have a cookie.
    table = not resource.table or f" table:{resource.table} " in quoted
    match = not resource.match or f"{resource.match} " in quoted
    return "OFPT_FLOW_MOD" in quoted and table and match and f"cookie:{resource.cookie:#x} " in f"{quoted} "
