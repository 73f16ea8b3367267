"""Parser of the output of `ovs-ofctl -O OpenFlow15 dump-flows` and `dump-groups`.

Accepts lines with or without statistics, and port names if the ports' numbers are given. To compare text only,
`flows.text` is sufficient and ten times faster.
"""

from __future__ import annotations

from collections.abc import Mapping

from flows.errors import FlowError
from flows.fields import BY_SET_NAME, ETH_TYPE, FIELDS, IP_PROTO, PORTS_DST, PORTS_SRC, HashField, Term
from flows.flow import Bucket, Flow, Group, GroupType, Match
from flows.parse_actions import number, parse_actions, parse_port, parse_value, split_top
from flows.text import SHORTHAND, parse_flow_line, parse_group_line

_WORDS = {word: key for key, word in SHORTHAND.items()}
_NAMED = {field.name: field for field in reversed(FIELDS)}  # the first declared field of each name
_ICMP6 = {"icmp_type": BY_SET_NAME["icmpv6_type"], "icmp_code": BY_SET_NAME["icmpv6_code"]}


def parse_match(text: str, ports: Mapping[str, int] | None = None) -> Match:
    """Parse a match; FlowError names the invalid part."""
    terms: list[Term] = []
    conditions: list[tuple[str, str]] = []
    protocol = 0
    for part in text.split(",") if text else ():
        name, equals, value = part.partition("=")
        if not equals:
            if name not in _WORDS:
                raise FlowError("", name, "is no field")
            ether, proto = _WORDS[name]
            terms.append(Term(ETH_TYPE, ether, 0xFFFF))
            if proto is not None:
                protocol = proto
                terms.append(Term(IP_PROTO, proto, 0xFF))
            continue
        if name == "nw_proto":
            protocol = number(name, value)
        conditions.append((name, value))
    for name, value in conditions:
        if name in ("tp_src", "tp_dst"):
            field = (PORTS_SRC if name == "tp_src" else PORTS_DST).get(protocol)
        elif name in _ICMP6 and protocol == 58:
            field = _ICMP6[name]
        else:
            field = _NAMED.get(name)
        if field is None:
            raise FlowError("", name, "is no field here")
        terms.append(Term(field, *parse_value(field, value, ports or {})))
    return Match.of(*terms)


def parse_flow(line: str, ports: Mapping[str, int] | None = None) -> Flow:
    """Parse a line of a dump. `ports`: numbers of ports by name. FlowError if the line is no flow."""
    table, priority, match, cookie, actions = parse_flow_line(line)
    return Flow(table, priority, parse_match(match, ports), parse_actions(actions, ports), cookie)


def _bucket(text: str, ports: Mapping[str, int]) -> Bucket:
    head, separator, actions = text.partition("actions=")
    if not separator:
        raise FlowError("", "bucket", f'no actions in "{text}"')
    options = {"bucket_id": "0", "weight": "1"}
    for option in filter(None, head.split(",")):
        name, _, value = option.partition(":")
        options[name] = value
    if unknown := options.keys() - {"bucket_id", "weight", "watch_port", "watch_group"}:
        raise FlowError("", "bucket", f"{', '.join(sorted(unknown))}: not understood")
    port, group = options.get("watch_port"), options.get("watch_group")
    return Bucket(
        bucket_id=number("bucket_id", options["bucket_id"]),
        actions=parse_actions(actions.rstrip(","), ports),
        weight=number("weight", options["weight"]),
        watch_port=None if port is None else parse_port(port, ports),
        watch_group=None if group is None else number("watch_group", group),
    )


def parse_group(line: str, ports: Mapping[str, int] | None = None) -> Group:
    """Parse a line of a dump; FlowError if it is no group."""
    group_id, body = parse_group_line(line)
    head, *buckets = body.split(",bucket=")
    options: dict[str, str] = {}
    for option in split_top(head):
        name, _, value = option.partition("=")
        if option.startswith("fields("):
            name, value = "fields", option[7:-1]
        options[name] = value
    try:
        kind = GroupType(options.get("type", ""))
        fields = tuple(_hash_field(text) for text in options.get("fields", "").split(",") if text)
    except (KeyError, ValueError) as error:
        raise FlowError("", f"group {group_id}", f"not understood: {error}") from None
    return Group(
        group_id=group_id,
        type=kind,
        buckets=tuple(_bucket(bucket, ports or {}) for bucket in buckets),
        fields=fields,
    )


def _hash_field(text: str) -> HashField:
    name, _, mask = text.partition("=")
    field = _NAMED[name] if name == "nw_proto" else BY_SET_NAME[name]
    return HashField(field, parse_value(field, mask, {})[0] if mask else field.full_mask)
