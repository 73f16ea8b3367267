"""Parser of actions and field values, used by `flows.parse`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from ipaddress import ip_address

from flows import actions as act
from flows.errors import FlowError
from flows.fields import BY_NXM, BY_SET_NAME, FLAG_BITS, Bits, MatchField, ValueFormat, flags
from flows.text import FRAGS, RESERVED_PORTS

_FRAG_WORDS = {word: key for key, word in FRAGS.items()}
_PORT_WORDS = {word: number for number, word in RESERVED_PORTS.items()}
_BITS = re.compile(r"([A-Z0-9_]+)\[(?:(\d+)(?:\.\.(\d+))?)?\]$")


# --- values ---------------------------------------------------------------------------------------------


def number(field: str, text: str) -> int:
    """Parse a decimal or hexadecimal number; FlowError names the field."""
    try:
        return int(text, 0)
    except ValueError:
        raise FlowError("", field, f'"{text}" is no number') from None


def parse_value(field: MatchField, text: str, ports: Mapping[str, int]) -> tuple[int, int]:
    """Parse the text of a field into (value, mask)."""
    form = field.form
    if form in FLAG_BITS:
        term = flags(field, text)
        return term.value, term.mask
    if form is ValueFormat.FRAG:
        if text not in _FRAG_WORDS:
            raise FlowError("", field.name, f'"{text}" is none of {", ".join(_FRAG_WORDS)}')
        return _FRAG_WORDS[text]
    if form is ValueFormat.PORT:
        return parse_port(text, ports), field.full_mask
    value, _, mask = text.partition("/")
    if form is ValueFormat.MAC:
        return _mac(value), _mac(mask) if mask else field.full_mask
    if form in (ValueFormat.IPV4, ValueFormat.IPV6):
        return _ip(field, value), _ip_mask(field, mask)
    return number(field.name, value), number(field.name, mask) if mask else field.full_mask


def parse_port(text: str, ports: Mapping[str, int]) -> int:
    """Parse a port number, a reserved name or a name in `ports`; FlowError if the name is unknown."""
    name = text.strip('"')
    if name.isdecimal():
        return int(name)
    number = _PORT_WORDS.get(name) or ports.get(name)
    if number is None:
        raise FlowError("", "port", f'"{name}" is not known')
    return number


def _mac(text: str) -> int:
    octets = text.split(":")
    if len(octets) != 6:
        raise FlowError("", "MAC", f'"{text}" is no MAC address')
    return number("MAC", "0x" + "".join(octet.zfill(2) for octet in octets))


def _ip(field: MatchField, text: str) -> int:
    try:
        address = ip_address(text)
    except ValueError:
        raise FlowError("", field.name, f'"{text}" is no IP address') from None
    if address.max_prefixlen != field.width:
        raise FlowError("", field.name, f'"{text}" is of the other family')
    return int(address)


def _ip_mask(field: MatchField, text: str) -> int:
    if not text:
        return field.full_mask
    if text.isdecimal():
        return field.full_mask ^ (field.full_mask >> int(text))
    return _ip(field, text)


# --- actions --------------------------------------------------------------------------------------------


def split_top(text: str) -> Iterator[str]:
    """Split a text at the commas that are outside of brackets."""
    depth = start = 0
    for index, char in enumerate(text):
        if char in "([":
            depth += 1
        elif char in ")]":
            depth -= 1
        elif char == "," and depth == 0:
            yield text[start:index]
            start = index + 1
    if start < len(text):
        yield text[start:]


def _bits(text: str) -> Bits:
    match = _BITS.match(text)
    field = BY_NXM.get(match[1]) if match else None
    if match is None or field is None:
        raise FlowError("", text, "is no range of bits of a known field")
    low = int(match[2]) if match[2] else 0
    high = int(match[3]) if match[3] else (low if match[2] else field.width - 1)
    return Bits(text, field, low, high)


def _set_field(text: str) -> act.SetField:
    value, _, name = text.partition("->")
    field = BY_SET_NAME.get(name)
    if field is None:
        raise FlowError("", name, "is no field to set")
    return act.SetField(field, *parse_value(field, value, {}))


def _load(text: str) -> act.SetField:
    value, _, target = text.partition("->")
    bits = _bits(target)
    return act.SetField(bits.field, bits.shifted(number("load", value)), bits.mask)


def _move(text: str) -> act.Move:
    source, _, destination = text.partition("->")
    return act.Move(_bits(source), _bits(destination))


def _nat(text: str) -> act.Nat:
    if not text:
        return act.Nat()
    kind, _, arguments = text.partition("=")
    if kind not in ("src", "dst") or "," in arguments:
        raise FlowError("", "nat", f'"{text}" is not understood (one address, at most one range of ports)')
    if not arguments:
        return act.Nat(kind)
    host, ports = arguments, ""
    if arguments.startswith("["):
        host, _, ports = arguments[1:].partition("]:")
    elif arguments.count(":") == 1:
        host, _, ports = arguments.partition(":")
    first, _, last = ports.partition("-")
    try:
        return act.Nat(kind, ip_address(host), int(first) if first else None, int(last) if last else None)
    except ValueError:
        raise FlowError("", "nat", f'"{text}" is not understood') from None


def _ct(text: str) -> act.Ct:
    table: int | None = None
    zone, commit, force = 0, False, False
    nat: act.Nat | None = None
    exec_: list[act.SetField | act.Move] = []
    for part in split_top(text):
        name, _, value = part.partition("=")
        if part == "commit":
            commit = True
        elif part == "force":
            force = True
        elif name == "table":
            table = number("ct table", value)
        elif name == "zone":
            zone = number("ct zone", value)
        elif part == "nat":
            nat = act.Nat()
        elif part.startswith("nat("):
            nat = _nat(part[4:-1])
        elif part.startswith("exec("):
            for inner in split_top(part[5:-1]):
                action = _action(inner, {})
                if not isinstance(action, act.SetField | act.Move):
                    raise FlowError("", "ct", f'"{inner}" cannot stand in exec')
                exec_.append(action)
        else:
            raise FlowError("", "ct", f'"{part}" is not understood')
    return act.Ct(zone, table, commit, force, nat, tuple(exec_))


def _action(text: str, ports: Mapping[str, int]) -> act.Action:
    if text.startswith("ct("):
        return _ct(text[3:-1])
    if text.startswith("conjunction("):
        conj_id, clause, of = re.split("[,/]", text[12:-1])
        return act.Conjunction(int(conj_id), int(clause), int(of))
    if text.startswith("resubmit(,"):
        return act.Resubmit(number("resubmit", text[10:-1]))
    if text.startswith("check_pkt_larger("):
        length, _, bit = text[17:].partition(")->")
        return act.CheckLarger(number("check_pkt_larger", length), _bits(bit))
    name, _, value = text.partition(":")
    if name == "set_field":
        return _set_field(value)
    if name == "output":
        return act.OutputBits(_bits(value)) if "[" in value else act.Output(parse_port(value, ports))
    if name == "group":
        return act.ToGroup(number(name, value))
    if name == "meter":
        return act.Meter(number(name, value))
    if name == "CONTROLLER":
        return act.ToController(number(name, value))
    if name == "goto_table":
        return act.Goto(number(name, value))
    if name == "load":
        return _load(value)
    if name == "move":
        return _move(value)
    if text == "dec_ttl":
        return act.DecTtl()
    if text == "ct_clear":
        return act.CtClear()
    if text in _PORT_WORDS:
        return act.Output(_PORT_WORDS[text])
    raise FlowError("", text, "is no known action")


def parse_actions(text: str, ports: Mapping[str, int] | None = None) -> act.Actions:
    """Parse a list of actions; FlowError names the invalid part."""
    return () if text == "drop" else tuple(_action(part, ports or {}) for part in split_top(text))
