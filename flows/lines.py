"""Cuts a line of `ovs-ofctl dump-flows` or `dump-groups` into its parts without a look inside.

That is enough to compare with text of our own making, and fast: 10,000 flows in well under 0.1 s. The full parse
into values is `devtools.openflow.parse`.
"""

from __future__ import annotations

from flows.errors import FlowError

DEFAULT_PRIORITY = 32768  # OFP_DEFAULT_PRIORITY; OVS does not print it


def parse_flow_line(line: str) -> tuple[int, int, str, int, str]:
    """Return (table, priority, match text, cookie, actions text) of a dumped flow; FlowError if it is none.

    Only numbers are understood: dump with --no-names.
    """
    head, found, actions = line.partition("actions=")
    if not found:
        raise FlowError("", "flow", f'no "actions=" in "{line.strip()}"')
    table = cookie = 0
    priority = DEFAULT_PRIORITY
    # "cookie=0x1, duration=1s, table=2, n_packets=0, priority=10,ip,nw_dst=1.2.3.4 actions=...": what is not the
    # match ends in ", "; priority (absent when it is the default) is part of the last word.
    *options, match = head.strip().split(" ") if not head.endswith(", ") else (*head.split(), "")
    for option in options:
        name, _, value = option.partition("=")
        if name == "cookie":
            cookie = int(value[:-1], 16)
        elif name == "table":
            table = int(value[:-1])
    if match.startswith("priority="):
        number, _, match = match[9:].partition(",")
        priority = int(number)
    return table, priority, match, cookie, actions.rstrip()


def parse_group_line(line: str) -> tuple[int, str]:
    """Return (group id, body text) of a dumped group; FlowError if it is none."""
    head, _, body = line.strip().partition(",")
    if not head.startswith("group_id=") or not body:
        raise FlowError("", "group", f'"{line.strip()}" is no group')
    return int(head[9:]), body


def is_flow_line(line: str) -> bool:
    """Tell a flow from the headings of a dump."""
    return "actions=" in line and "group_id=" not in line


def is_group_line(line: str) -> bool:
    """Tell a group from the headings of a dump."""
    return line.lstrip().startswith("group_id=")
