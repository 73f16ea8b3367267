"""The kinds of value that a configuration key can have: how each is read, checked and described. Knows no key.

A kind reads a YAML value (`parse`) or the text of an environment variable or flag (`parse_text`). Both raise
ValueError, whose text says what is wrong and what is allowed; the caller adds where it was.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from mcagent.model.net import Network, parse_network
from mcagent.model.traffic import read_traffic

_DNS_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def did_you_mean(word: str, known: Collection[str]) -> str:
    """Return ' (did you mean "x"?)' for the known word nearest to `word`, or nothing."""
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return f' (did you mean "{by_lower[close[0]]}"?)' if close else ""


def _quoted(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def _wrong(allowed: str, value: object, hint: str = "") -> ValueError:
    return ValueError(f"must be {allowed}, not {_quoted(value)}{hint}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One kind of value. `allowed` says for people what may be given."""

    allowed: str
    parse: Callable[[Any], Any]
    parse_text: Callable[[str], Any]
    show: Callable[[Any], str] = _quoted  # as the value is written in YAML
    switch: bool = False  # the flag alone, without a value, means true
    remark: Callable[[Any], str] = lambda _raw: ""  # what to say about a value that is taken, if anything


def boolean() -> Value:
    """true or false."""
    allowed = "true or false"

    def parse(value: object) -> bool:
        if isinstance(value, bool):
            return value
        raise _wrong(allowed, value)

    def parse_text(text: str) -> bool:
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise _wrong(allowed, text)

    return Value(
        allowed=allowed, parse=parse, parse_text=parse_text, show=lambda value: str(value).lower(), switch=True
    )


def integer(low: int, high: int, *, also: tuple[int, ...] = (), never: Iterable[tuple[int, str]] = ()) -> Value:
    """Return the kind of a whole number from `low` to `high`.

    `also` allows numbers outside of them; `never` forbids some inside, each with whose it is.
    """
    others = "".join(f"{number} or " for number in also if not low <= number <= high)
    allowed = f"{others}a whole number from {low} to {high}"
    taken = dict(never)

    def parse(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise _wrong(allowed, value)
        if value in taken:
            raise ValueError(f"{value} is used by {taken[value]}: choose another")
        if value not in also and not low <= value <= high:
            raise _wrong(allowed, value)
        return value

    def parse_text(text: str) -> int:
        if re.fullmatch(r"-?\d+|0x[0-9a-fA-F]+", text) is None:
            raise _wrong(allowed, text)
        return parse(int(text, 16 if text.startswith("0x") else 10))

    return Value(allowed=allowed, parse=parse, parse_text=parse_text)


def text(pattern: str, allowed: str, *, never: Iterable[tuple[str, str]] = (), longest: int = 4096) -> Value:
    """Return the kind of a text of a certain form; `never` forbids some, each with what it is already."""
    taken = dict(never)

    def parse(value: object) -> str:
        if not isinstance(value, str) or len(value) > longest or not re.fullmatch(pattern, value, re.ASCII):
            raise _wrong(allowed, value)
        if value in taken:
            raise ValueError(f'"{value}" is {taken[value]}: choose another')
        return value

    return Value(allowed=allowed, parse=parse, parse_text=parse)


def choice(enum: type[StrEnum], *, aliases: Iterable[tuple[str, str]] = ()) -> Value:
    """Return the kind of a word of an enumeration, read without regard to case as Antrea does.

    `aliases` are other words, each with the one it stands for.
    """
    words = {member.value.lower(): member for member in enum}
    words |= {alias: words[word] for alias, word in aliases}
    *first, last = (member.value for member in enum)
    allowed = " or ".join([", ".join(first), last]) if first else last

    def parse(value: object) -> StrEnum:
        if isinstance(value, str) and value.lower() in words:
            return words[value.lower()]
        hint = did_you_mean(value, [member.value for member in enum]) if isinstance(value, str) else ""
        raise _wrong(allowed, value, hint)

    return Value(allowed=allowed, parse=parse, parse_text=parse, show=str)


def duration(low: float, high: float) -> Value:
    """Return the kind of a time span, written like Go's: 500ms, 90s, 1m30s; a bare number is seconds."""
    allowed = f"a duration from {_span(low)} to {_span(high)}"

    def parse(value: object) -> float:
        seconds = _seconds(value)
        if seconds is None:
            raise _wrong("a duration such as 30s or 1m30s", value)
        if not low <= seconds <= high:
            raise _wrong(allowed, value)
        return seconds

    return Value(allowed=allowed, parse=parse, parse_text=parse, show=_span)


def _span(seconds: float) -> str:
    return f"{1000 * seconds:g}ms" if 0 < seconds < 1 else f"{seconds:g}s"


def _seconds(value: object) -> float | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, str):
        return None
    if re.fullmatch(r"\d+(\.\d+)?", value):
        return float(value)
    if not re.fullmatch(r"(\d+(\.\d+)?(ms|s|m|h))+", value):
        return None
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h)", value)
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def networks() -> Value:
    """Return the kind of a list of CIDRs that Pods or Services may have; "" is dropped, as Antrea does."""
    return _list_of("a list of CIDRs", lambda entry: None if entry == "" else safe_network(entry))


def masked_networks() -> Value:
    """Return the kind of a list of such CIDRs that may have host bits, as in Antrea's samples: they are masked."""
    return replace(
        _list_of("a list of CIDRs", lambda entry: None if entry == "" else safe_network(entry, mask=True)),
        remark=_masked,
    )


def _masked(raw: Any) -> str:
    texts = raw.split(",") if isinstance(raw, str) else raw
    found = [(text.strip(), *parse_network(text.strip())) for text in texts if text.strip()]
    return "; ".join(f"{text} has host bits set: used as {network}" for text, network, masked in found if masked)


def names(
    pattern: str = _DNS_LABEL,
    form: str = "a DNS label (lower-case letters, digits, -)",
    allowed: str = "a list of namespaces",
) -> Value:
    """Return the kind of a list of names of one form: by default DNS labels, as the names of namespaces are."""

    def one(entry: object) -> str:
        if not isinstance(entry, str) or not re.fullmatch(pattern, entry, re.ASCII):
            raise ValueError(f"not {form}: {_quoted(entry)}")
        return entry

    return _list_of(allowed, one, unique=True)


def _list_of(allowed: str, read: Callable[[object], Any], *, unique: bool = False) -> Value:
    """Return the kind of a list; `read` reads an entry, and returns None for one that is dropped."""

    def parse(value: object) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise _wrong(allowed, value)
        found = []
        for index, entry in enumerate(value):
            try:
                found.append(read(entry))
            except ValueError as error:
                raise ValueError(f"[{index}]: {error}") from None
        kept = [entry for entry in found if entry is not None]
        return tuple(dict.fromkeys(kept) if unique else kept)

    return Value(
        allowed=allowed,
        parse=parse,
        parse_text=lambda line: parse([entry for part in line.split(",") if (entry := part.strip())]),
        show=lambda value: f"[{', '.join(map(str, value))}]",
    )


def cidr() -> Value:
    """Return the kind of one CIDR that Pods or Services may have, or ""; kept as text."""

    def parse(value: object) -> str:
        return "" if value == "" else str(safe_network(value))

    return Value(allowed='a CIDR or ""', parse=parse, parse_text=parse)


def traffic() -> Value:
    """Return the kind of what says which clusters get connections (`mcagent.model.traffic`), or ""; as text."""

    def parse(value: object) -> str:
        if not isinstance(value, str):
            raise _wrong(allowed, value)
        return str(read_traffic(value)) if value else ""

    allowed = '"", "any", or clusters in order and with weights, as "local > east=3, west=1"'
    return Value(allowed=allowed, parse=parse, parse_text=parse)


def safe_network(value: object, *, mask: bool = False) -> Network:
    """Return the CIDR; ValueError unless it is an IPv4 network of ordinary addresses, /8 or longer, and exact."""
    if not isinstance(value, str):
        raise ValueError(f"not a CIDR: {_quoted(value)}")
    network, masked = parse_network(value)
    if network.version != 4:
        raise ValueError(f"IPv6 is not available in this version: {value}")
    if masked and not mask:
        raise ValueError(f"{value} has host bits set: did you mean {network}?")
    unsafe = {
        "loopback": network.is_loopback,
        "multicast": network.is_multicast,
        "link-local": network.is_link_local,
        "reserved": network.is_reserved,
        '"this network"': network.network_address.packed[0] == 0,
    }
    for what, found in unsafe.items():
        if found:
            raise ValueError(f"{value} holds {what} addresses")
    if network.prefixlen < 8:
        raise ValueError(f"{value} is shorter than /8: it would cover others' addresses")
    return network


DNS_LABEL = text(rf"|{_DNS_LABEL}", "a DNS label (lower-case letters, digits, -)", longest=63)
ACCOUNTS = names(
    rf"{_DNS_LABEL}/{_DNS_LABEL}(\.{_DNS_LABEL})*",
    "namespace/name",
    "a list of ServiceAccounts, each as namespace/name",
)
DNS_NAME = text(
    rf"|{_DNS_LABEL}(\.{_DNS_LABEL})*", "a DNS name (lower-case letters, digits, - and .)", longest=253
)
DEVICE_NAME = text(
    r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,14}",
    "a device name of at most 15 letters, digits, _ . -",
    never=(("lo", "the loopback"),),
)
_LISTEN = r"(\d+\.\d+\.\d+\.\d+|\[[0-9a-fA-F:.]+\]|localhost)?:\d{1,5}"
LISTEN = text(_LISTEN, "address:port")
LISTEN_OR_OFF = text(rf"0|{_LISTEN}", 'address:port, or "0" for none')
ABSOLUTE_PATH = text(r"|/[A-Za-z0-9_./@:+-]*", "an absolute path")


def listen_address(address: str) -> tuple[str, int]:
    """Return host and port of an "address:port" that was read."""
    host, _, port = address.rpartition(":")
    return host.strip("[]") or "0.0.0.0", int(port)


def listen_problem(address: str) -> str:
    """Return what is wrong with the numbers of an "address:port" whose form is right; "" if nothing."""
    host, _, port = address.rpartition(":")
    wrong = int(port) > 65535 or any(int(part) > 255 for part in host.split(".") if part.isdigit())
    return f'must be address:port, not "{address}"' if wrong else ""
