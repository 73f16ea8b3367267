"""The text form of flows and groups, as in `ovs-ofctl dump-flows` and `dump-groups` (OVS 3.1 to 3.5).

Rendering follows match_format() in OVS' lib/match.c, ofpacts_format() in lib/ofp-actions.c and the group printer
in lib/ofp-group.c, so that an unchanged flow has equal text. Lines of a dump are split into their parts without
parsing these. That is enough to compare them, and fast: 10,000 flows in well under 0.1 s. `flows.parse` parses
them fully.
"""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING

from flows import actions as act
from flows.errors import FlowError
from flows.fields import (
    ETH_DST,
    ETH_TYPE,
    FLAG_BITS,
    FRAG_ANY,
    FRAG_LATER,
    IP_PROTO,
    IPV6_DST,
    PORT_CONTROLLER,
    PORT_IN_PORT,
    PORT_LOCAL,
    HashField,
    MatchField,
    Term,
    ValueFormat,
)

if TYPE_CHECKING:
    from flows.flow import Bucket, Group, Match

# (Ethernet type, IP protocol or None) -> the keyword for both.
SHORTHAND: dict[tuple[int, int | None], str] = {
    (0x0800, None): "ip",
    (0x0800, 1): "icmp",
    (0x0800, 6): "tcp",
    (0x0800, 17): "udp",
    (0x0800, 132): "sctp",
    (0x86DD, None): "ipv6",
    (0x86DD, 58): "icmp6",
    (0x86DD, 6): "tcp6",
    (0x86DD, 17): "udp6",
    (0x86DD, 132): "sctp6",
    (0x0806, None): "arp",
}
FRAGS = {
    (0, FRAG_ANY | FRAG_LATER): "no",
    (FRAG_ANY, FRAG_ANY): "yes",
    (FRAG_ANY, FRAG_ANY | FRAG_LATER): "first",
    (FRAG_ANY | FRAG_LATER, FRAG_ANY | FRAG_LATER): "later",
    (0, FRAG_LATER): "not_later",
}
RESERVED_PORTS = {PORT_IN_PORT: "IN_PORT", PORT_CONTROLLER: "CONTROLLER", PORT_LOCAL: "LOCAL"}


# --- values ---------------------------------------------------------------------------------------------


def hex_text(value: int) -> str:
    """Format a number as C's %#x, which gives zero no prefix."""
    return f"{value:#x}" if value else "0"


def mac_text(value: int) -> str:
    """Format a 48-bit integer as a MAC address."""
    return value.to_bytes(6).hex(":")


def _ipv4_text(value: int) -> str:
    # In a quarter of the time of IPv4Address: there are tens of thousands of addresses.
    return f"{value >> 24}.{value >> 16 & 255}.{value >> 8 & 255}.{value & 255}"


def _ipv6_text(value: int) -> str:
    return str(IPv6Address(value))


def _address(value: int, mask: int, field: MatchField) -> str:
    text = _ipv4_text if field.form is ValueFormat.IPV4 else _ipv6_text
    if mask == field.full_mask:
        return text(value)
    outside = mask ^ field.full_mask
    is_prefix = outside & (outside + 1) == 0
    return f"{text(value)}/{field.width - outside.bit_length() if is_prefix else text(mask)}"


def value_text(field: MatchField, value: int, mask: int) -> str:
    """Format value and mask of a field for a match or a set_field."""
    form = field.form
    if form in (ValueFormat.IPV4, ValueFormat.IPV6):
        return _address(value, mask, field)
    whole = mask == field.full_mask
    if form is ValueFormat.HEX:
        return hex_text(value) if whole else f"{hex_text(value)}/{hex_text(mask)}"
    if form is ValueFormat.DECIMAL:
        return str(value) if whole else f"{value:#x}/{mask:#x}"  # format_be16_masked: zero has a prefix
    if form is ValueFormat.MAC:
        return mac_text(value) if whole else f"{mac_text(value)}/{mac_text(mask)}"
    if form in FLAG_BITS:
        signs = (f"{'+' if value & bit else '-'}{name}" for name, bit in FLAG_BITS[form].items() if mask & bit)
        return "".join(signs)
    if form is ValueFormat.FRAG:
        return FRAGS[value, mask]
    return RESERVED_PORTS.get(value) or str(value)


# --- matches --------------------------------------------------------------------------------------------


def _term_text(term: Term) -> str:
    return f"{term.field.name}={value_text(term.field, term.value, term.mask)}"


def match_text(match: Match) -> str:
    """Format a match as `ovs-ofctl dump-flows` prints it, without the priority."""
    parts: list[str] = []
    ether = 0
    kind = ""  # an Ethernet type without a keyword follows the MAC addresses
    protocol = ""  # a protocol without a keyword follows the IP addresses
    for term in match.terms:
        field = term.field
        if kind and field.order > ETH_DST.order:
            parts.append(kind)
            kind = ""
        if field is ETH_TYPE:
            ether = term.value
            if word := SHORTHAND.get((ether, None)):
                parts.append(word)
            else:
                kind = f"dl_type=0x{ether:04x}"
            continue
        if field is IP_PROTO:
            word = SHORTHAND.get((ether, term.value))
            if word:
                parts[-1] = word  # replaces the Ethernet type, which precedes directly in the order of fields
            else:
                protocol = f"nw_proto={term.value}"
            continue
        if protocol and field.order > IPV6_DST.order:
            parts.append(protocol)
            protocol = ""
        parts.append(_term_text(term))
    if kind:
        parts.append(kind)
    if protocol:
        parts.append(protocol)
    return ",".join(parts)


# --- actions --------------------------------------------------------------------------------------------


def _nat(nat: act.Nat) -> str:
    if not nat.kind or nat.address is None:
        return "nat" if not nat.kind else f"nat({nat.kind})"
    if nat.port is None:
        return f"nat({nat.kind}={nat.address})"
    host = str(nat.address) if isinstance(nat.address, IPv4Address) else f"[{nat.address}]"
    last = "" if nat.last_port is None else f"-{nat.last_port}"
    return f"nat({nat.kind}={host}:{nat.port}{last})"


def _ct(action: act.Ct) -> str:
    parts: list[str] = []
    if action.commit:
        parts.append("commit")
    if action.force:
        parts.append("force")
    if action.table is not None:
        parts.append(f"table={action.table}")
    if action.zone:
        parts.append(f"zone={action.zone}")
    if action.nat is not None:
        parts.append(_nat(action.nat))
    if action.exec_:
        parts.append(f"exec({','.join(_action_text(inner) for inner in action.exec_)})")
    return f"ct({','.join(parts)})"


_RENDER: dict[type, Callable[..., str]] = {
    act.Output: lambda a: RESERVED_PORTS.get(a.port) or f"output:{a.port}",
    act.OutputBits: lambda a: f"output:{a.bits.text}",
    act.Goto: lambda a: f"goto_table:{a.table}",
    act.Resubmit: lambda a: f"resubmit(,{a.table})",
    act.SetField: lambda a: f"set_field:{value_text(a.field, a.value, a.mask)}->{a.field.set_name}",
    act.Move: lambda a: f"move:{a.source.text}->{a.destination.text}",
    act.DecTtl: lambda _: "dec_ttl",
    act.Ct: _ct,
    act.CtClear: lambda _: "ct_clear",
    act.ToGroup: lambda a: f"group:{a.group_id}",
    act.Meter: lambda a: f"meter:{a.meter_id}",
    act.CheckLarger: lambda a: f"check_pkt_larger({a.length})->{a.bit.text}",
    act.ToController: lambda a: f"CONTROLLER:{a.length}",
    act.Conjunction: lambda a: f"conjunction({a.conj_id},{a.clause}/{a.of})",
}


def _action_text(action: act.Action) -> str:
    return _RENDER[type(action)](action)


def actions_text(actions: act.Actions) -> str:
    """Format actions as `ovs-ofctl dump-flows` prints them; no actions are "drop"."""
    return ",".join([_action_text(action) for action in actions]) or "drop"


# --- groups ---------------------------------------------------------------------------------------------


def _bucket(bucket: Bucket) -> str:
    parts = [f"bucket=bucket_id:{bucket.bucket_id}"]
    if bucket.weight != 1:
        parts.append(f"weight:{bucket.weight}")
    if bucket.watch_port is not None:
        parts.append(f"watch_port:{bucket.watch_port}")
    if bucket.watch_group is not None:
        parts.append(f"watch_group:{bucket.watch_group}")
    parts.append(f"actions={actions_text(bucket.actions)}")
    return ",".join(parts)


def _hash_field(hashed: HashField) -> str:
    field, mask = hashed
    name = field.set_name if field is not IP_PROTO else "nw_proto"
    return name if mask == field.full_mask else f"{name}={value_text(field, mask, field.full_mask)}"


def group_text(group: Group) -> str:
    """Format a group as `ovs-ofctl dump-groups` prints it, without the group_id."""
    parts = [f"type={group.type}"]
    if group.fields:
        names = ",".join(map(_hash_field, group.fields))
        parts += ("selection_method=hash", f"fields({names})" if len(group.fields) > 1 else f"fields={names}")
    parts.extend(_bucket(bucket) for bucket in group.buckets)
    return ",".join(parts)


# --- lines of a dump ------------------------------------------------------------------------------------

DEFAULT_PRIORITY = 32768  # OFP_DEFAULT_PRIORITY; OVS does not print it


def parse_flow_line(line: str) -> tuple[int, int, str, int, str]:
    """Split a line of a dump into (table, priority, match text, cookie, actions text); FlowError if it is no flow.

    The dump must be made with --no-names.
    """
    head, separator, actions = line.partition("actions=")
    if not separator:
        raise FlowError("", "flow", f'no "actions=" in "{line.strip()}"')
    table = cookie = 0
    priority = DEFAULT_PRIORITY
    # "cookie=0x1, duration=1s, table=2, n_packets=0, priority=10,ip,nw_dst=1.2.3.4 actions=...": all parts before
    # the match end in ", "; the priority (absent if it is the default) is part of the last word.
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
    """Split a line of a dump into (group ID, body text); FlowError if it is no group."""
    head, _, body = line.strip().partition(",")
    if not head.startswith("group_id=") or not body:
        raise FlowError("", "group", f'"{line.strip()}" is no group')
    return int(head[9:]), body


def is_group_line(line: str) -> bool:
    """Tell whether a line of a dump is a group, not a heading."""
    return line.lstrip().startswith("group_id=")
