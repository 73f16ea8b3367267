"""Which step of a bundle Open vSwitch refused, and its words: read from what `ovs-ofctl bundle` prints. Pure.

The one place that depends on how versions of ovs-ofctl print errors. It quotes the refused message: in words
(table, match, cookie, group), or as bytes where it cannot be decoded. That names the step in every version. Where
several steps look alike, the transaction number of the message tells which it is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from mcagent.model.plan import Step
from mcagent.model.resources import FlowEntry, GroupEntry

# ovs-ofctl 3.1 sends the hello, the protocol set-up and the opening of the bundle with transaction numbers 1 to
# 5, then line n with n + 5. In a version where this is not so, the first step that looks alike is meant.
_XID_BEFORE_FIRST_LINE = 5
_ERROR = re.compile(r"^Error (OFP\w+) for: (?P<message>.*)", re.MULTILINE)
_XID = re.compile(r"\(xid=0x([0-9a-f]+)\)")
_SYNTAX = re.compile(r"^ovs-ofctl: -:(?P<line>\d+): (?P<reason>.*)", re.MULTILINE)
_MESSAGE_BYTES = re.compile(r"^000000[01]0 ((?:[ -][0-9a-f]{2}){16})", re.MULTILINE)
_QUOTE = 300  # characters of a refused message that are passed on


def refused(stderr: str, steps: Sequence[Step]) -> tuple[int | None, str] | None:
    """Return which step of a bundle was refused (its index, or None if it is not known) and OVS' words.

    None if `stderr` has no refusal: then the bridge could not be reached.
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
    alike = [index for index, step in enumerate(steps) if _quotes(quoted, step)]
    xid = _XID.search(quoted)
    meant = int(xid[1], 16) - _XID_BEFORE_FIRST_LINE - 1 if xid else -1
    return (meant if meant in alike else next(iter(alike), None)), words


def _quotes(quoted: str, step: Step) -> bool:
    resource = step.new or step.old
    if isinstance(resource, GroupEntry):
        number = f"group_id={resource.group_id}," in f"{quoted},"
        return "OFPT_GROUP_MOD" in quoted and (number or resource.group_id.to_bytes(4) == _bytes(quoted)[12:16])
    assert isinstance(resource, FlowEntry)
    if "OFPT_FLOW_MOD" not in quoted:
        return False
    if found := _bytes(quoted):
        return resource.cookie.to_bytes(8) == found[8:16]
    # OVS leaves out table 0, the default priority and an empty cookie; all of ours have a cookie.
    table = not resource.table or f" table:{resource.table} " in quoted
    match = not resource.match or f"{resource.match} " in quoted
    return table and match and f"cookie:{resource.cookie:#x} " in f"{quoted} "


def _bytes(quoted: str) -> bytes:
    """Return the beginning of a message that could not be decoded; its cookie or group is in these bytes."""
    _, _, dump = quoted.rpartition("decode error")
    return bytes.fromhex("".join(_MESSAGE_BYTES.findall(dump)).replace("-", " "))
