"""The types of values of configuration keys: how each is parsed, validated and described. Knows no key.

A type parses a YAML value (`parse`) or the text of an environment variable or flag (`parse_text`). Both raise
ValueError with the error and the allowed values; the caller adds the source.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from mcagent.model.net import Network, parse_network
from mcagent.model.traffic import read_traffic

_DNS_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_NUMBER, _UNIT = r"\d+(?:\.\d+)?", "(ms|s|m|h)"
_OCTET = r"(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
# what `safe_network` accepts; 169.254.0.0/16 is link-local, a larger network around it is not
_CIDR = (
    rf"((([1-9]\d?|1[01]\d|12[0-689]|1[3-57-9]\d|16[0-8]|2[01]\d|22[0-3])(\.{_OCTET}){{3}}"
    rf"|169\.(25[0-35]|2[0-4]\d|1\d\d|[1-9]?\d)(\.{_OCTET}){{2}})/(0?[89]|[12]\d|3[0-2])"
    rf"|169\.254(\.{_OCTET}){{2}}/(0?[89]|1[0-5]))"
)
# the form alone: that each cluster is named once is no pattern
_SHARE = r"\s*([a-z0-9.-]{1,253}|\*)\s*(=\s*\d{1,4}\s*)?"
_TRAFFIC = rf"|\s*any\s*|{_SHARE}([>,]{_SHARE})*"
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def did_you_mean(word: str, candidates: Collection[str]) -> str:
    """Return ' (did you mean "x"?)' for the candidate nearest to `word`; "" if none is near."""
    by_lower = {name.lower(): name for name in candidates}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return f' (did you mean "{by_lower[close[0]]}"?)' if close else ""


def _quoted(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def _wrong(allowed: str, value: object, hint: str = "") -> ValueError:
    return ValueError(f"must be {allowed}, not {_quoted(value)}{hint}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A type of value. `allowed` describes the valid values for users."""

    allowed: str
    parse: Callable[[Any], Any]
    parse_text: Callable[[str], Any]
    show: Callable[[Any], str] = _quoted  # formats the value for YAML
    switch: bool = False  # the flag alone, without a value, means true
    remark: Callable[[Any], str] = lambda _raw: ""  # a remark about a valid value, or ""
    schema: Mapping[str, Any]  # JSON Schema (draft 7) of the value in YAML; accepts every valid value


def boolean() -> Value:
    """Make the type of true or false."""
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
        allowed=allowed,
        parse=parse,
        parse_text=parse_text,
        show=lambda value: str(value).lower(),
        switch=True,
        schema={"type": "boolean"},
    )


def integer(low: int, high: int, *, also: tuple[int, ...] = (), never: Iterable[tuple[int, str]] = ()) -> Value:
    """Make the type of a whole number from `low` to `high`.

    `also` allows further numbers; `never` forbids some, each with its user.
    """
    extra = "".join(f"{number} or " for number in also if not low <= number <= high)
    allowed = f"{extra}a whole number from {low} to {high}"
    reserved = dict(never)

    def parse(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise _wrong(allowed, value)
        if value in reserved:
            raise ValueError(f"{value} is used by {reserved[value]}: choose another")
        if value not in also and not low <= value <= high:
            raise _wrong(allowed, value)
        return value

    def parse_text(text: str) -> int:
        if re.fullmatch(r"-?\d+|0x[0-9a-fA-F]+", text) is None:
            raise _wrong(allowed, text)
        return parse(int(text, 16 if text.startswith("0x") else 10))

    bounds: dict[str, Any] = {"type": "integer", "minimum": low, "maximum": high}
    if reserved:
        bounds["not"] = {"enum": sorted(reserved)}
    schema = {"anyOf": [{"enum": list(also)}, bounds]} if also else bounds
    return Value(allowed=allowed, parse=parse, parse_text=parse_text, schema=schema)


def text(pattern: str, allowed: str, *, never: Iterable[tuple[str, str]] = (), max_length: int = 4096) -> Value:
    """Make the type of a text that matches `pattern`; `never` forbids some, each with its meaning."""
    reserved = dict(never)

    def parse(value: object) -> str:
        if not isinstance(value, str) or len(value) > max_length or not re.fullmatch(pattern, value, re.ASCII):
            raise _wrong(allowed, value)
        if value in reserved:
            raise ValueError(f'"{value}" is {reserved[value]}: choose another')
        return value

    schema = _matching(pattern) | {"maxLength": max_length}
    if reserved:
        schema["not"] = {"enum": sorted(reserved)}
    return Value(allowed=allowed, parse=parse, parse_text=parse, schema=schema)


def _matching(pattern: str) -> dict[str, Any]:
    """Return the JSON Schema of a text that matches the whole pattern."""
    return {"type": "string", "pattern": f"^({pattern})$"}


def choice(enum: type[StrEnum], *, aliases: Iterable[tuple[str, str]] = ()) -> Value:
    """Make the type of a member of an enumeration, case-insensitive as in Antrea.

    `aliases` are further words, each with the member's value.
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

    return Value(
        allowed=allowed, parse=parse, parse_text=parse, show=str, schema=_matching(f"(?i:{'|'.join(words)})")
    )


def duration(low: float, high: float) -> Value:
    """Make the type of a duration, in Go's format: 500ms, 90s, 1m30s; a bare number is seconds."""
    allowed = f"a duration from {_span(low)} to {_span(high)}"

    def parse(value: object) -> float:
        seconds = _seconds(value)
        if seconds is None:
            raise _wrong("a duration such as 30s or 1m30s", value)
        if not low <= seconds <= high:
            raise _wrong(allowed, value)
        return seconds

    schema = {
        "anyOf": [{"type": "number", "minimum": low, "maximum": high}, _matching(f"{_NUMBER}|({_NUMBER}{_UNIT})+")]
    }
    return Value(allowed=allowed, parse=parse, parse_text=parse, show=_span, schema=schema)


def _span(seconds: float) -> str:
    return f"{1000 * seconds:g}ms" if 0 < seconds < 1 else f"{seconds:g}s"


def _seconds(value: object) -> float | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, str):
        return None
    if re.fullmatch(_NUMBER, value):
        return float(value)
    if not re.fullmatch(f"({_NUMBER}{_UNIT})+", value):
        return None
    parts = re.findall(f"({_NUMBER}){_UNIT}", value)
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def networks() -> Value:
    """Make the type of a list of CIDRs for Pods or Services; "" is dropped, as in Antrea. Host bits are masked."""
    listed = _list_of("a list of CIDRs", f"|{_CIDR}", lambda entry: None if entry == "" else safe_network(entry))
    return replace(listed, remark=_masked)


def as_text(networks: Value) -> Value:
    """Make the type of the same lists whose entries are text."""
    return replace(
        networks,
        parse=lambda value: tuple(map(str, networks.parse(value))),
        parse_text=lambda line: tuple(map(str, networks.parse_text(line))),
    )


def _masked(raw: Any) -> str:
    texts = raw.split(",") if isinstance(raw, str) else raw
    networks = [(text.strip(), *parse_network(text.strip())) for text in texts if text.strip()]
    return "; ".join(
        f"{text} has host bits set: used as {network}" for text, network, masked in networks if masked
    )


def names(
    pattern: str = _DNS_LABEL,
    form: str = "a DNS label (lower-case letters, digits, -)",
    allowed: str = "a list of namespaces",
) -> Value:
    """Make the type of a list of names that match `pattern`; default: DNS labels, as of namespaces."""

    def read_name(entry: object) -> str:
        if not isinstance(entry, str) or not re.fullmatch(pattern, entry, re.ASCII):
            raise ValueError(f"not {form}: {_quoted(entry)}")
        return entry

    return _list_of(allowed, pattern, read_name, unique=True)


def _list_of(allowed: str, pattern: str, read: Callable[[object], Any], *, unique: bool = False) -> Value:
    """Make the type of a list of texts of this pattern; `read` parses an entry, and returns None to drop it."""

    def parse(value: object) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise _wrong(allowed, value)
        entries = []
        for index, entry in enumerate(value):
            try:
                entries.append(read(entry))
            except ValueError as error:
                raise ValueError(f"[{index}]: {error}") from None
        values = [entry for entry in entries if entry is not None]
        return tuple(dict.fromkeys(values) if unique else values)

    return Value(
        allowed=allowed,
        parse=parse,
        parse_text=lambda line: parse([entry for part in line.split(",") if (entry := part.strip())]),
        show=lambda value: f"[{', '.join(map(str, value))}]",
        schema={"type": "array", "items": _matching(pattern)},
    )


def cidr(*words: str) -> Value:
    """Make the type of one CIDR for Pods or Services, or one of `words`; without any also "", which is None."""

    def parse(value: object) -> str | None:
        if value in words:
            return str(value)
        return None if value == "" and not words else str(safe_network(value))

    return Value(
        allowed=f"{', '.join(words)}, or a CIDR" if words else 'a CIDR or ""',
        parse=parse,
        parse_text=parse,
        show=lambda value: value if words else _quoted(value or ""),
        schema=_matching(f"{'|'.join(words)}|{_CIDR}"),
        remark=lambda raw: "" if raw in words else _masked(raw),
    )


def cidrs(*words: str) -> Value:
    """Make the type of one of `words`, or of CIDRs for Pods, separated by commas; the value is text."""

    def parse(value: object) -> str:
        if value in words:
            return str(value)
        texts = value.split(",") if isinstance(value, str) else [value]
        return ",".join(str(safe_network(text.strip() if isinstance(text, str) else text)) for text in texts)

    return Value(
        allowed=f"{', '.join(words)}, or CIDRs separated by commas",
        parse=parse,
        parse_text=parse,
        show=str,
        schema=_matching(f"{'|'.join(words)}|{_CIDR}(,{_CIDR})*"),
    )


def traffic() -> Value:
    """Make the type of a traffic policy (`mcagent.model.traffic`), or ""; the value is text."""

    def parse(value: object) -> str:
        if not isinstance(value, str):
            raise _wrong(allowed, value)
        return str(read_traffic(value)) if value else ""

    allowed = '"", "any", or clusters in order and with weights, as "local > east=3, west=1"'
    return Value(allowed=allowed, parse=parse, parse_text=parse, schema=_matching(_TRAFFIC))


def _certificates() -> Value:
    """Make the type of certificates in PEM. Its errors do not repeat the text, which may be a key by mistake."""
    allowed = 'PEM certificates ("-----BEGIN CERTIFICATE-----") or ""'
    pattern = r"|(-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----\s*)+"

    def parse(value: object) -> str:
        if not isinstance(value, str) or not re.fullmatch(pattern, value, re.ASCII):
            raise ValueError(f"must be {allowed}")
        return value

    return Value(allowed=allowed, parse=parse, parse_text=parse, schema=_matching(pattern))


def safe_network(value: object) -> Network:
    """Parse an IPv4 CIDR of unicast addresses, /8 or longer; host bits are masked. Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError(f"not a CIDR: {_quoted(value)}")
    network, _ = parse_network(value)
    if network.version != 4:
        raise ValueError(f"IPv6 is not available in this version: {value}")
    unsafe = {
        "loopback": network.is_loopback,
        "multicast": network.is_multicast,
        "link-local": network.is_link_local,
        "reserved": network.is_reserved,
        '"this network"': network.network_address.packed[0] == 0,
    }
    for kind, applies in unsafe.items():
        if applies:
            raise ValueError(f"{value} holds {kind} addresses")
    if network.prefixlen < 8:
        raise ValueError(f"{value} is shorter than /8: it would cover others' addresses")
    return network


DNS_LABEL = text(rf"|{_DNS_LABEL}", "a DNS label (lower-case letters, digits, -)", max_length=63)
ACCOUNTS = names(
    rf"{_DNS_LABEL}/{_DNS_LABEL}(\.{_DNS_LABEL})*",
    "namespace/name",
    "a list of ServiceAccounts, each as namespace/name",
)
DNS_NAME = text(
    rf"|{_DNS_LABEL}(\.{_DNS_LABEL})*", "a DNS name (lower-case letters, digits, - and .)", max_length=253
)
HOST_NAMES = names(
    rf"{_DNS_LABEL}(\.{_DNS_LABEL})*", "a DNS name (lower-case letters, digits, - and .)", "a list of DNS names"
)
COMMON_NAMES = names(
    "[A-Za-z0-9][A-Za-z0-9:._@/-]{0,63}",
    "a common name of a certificate",
    "a list of common names of certificates",
)
CERTIFICATES = _certificates()
DEVICE_NAME = text(
    r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,14}",
    "a device name of at most 15 letters, digits, _ . -",
    never=(("lo", "the loopback"),),
)
_PORT = r"(6553[0-5]|655[0-2]\d|65[0-4]\d\d|6[0-4]\d{3}|[0-5]?\d{1,4})"
_WORD = "[0-9a-fA-F]{1,4}"
_IPV6 = "|".join(
    (
        f"({_WORD}:){{7}}({_WORD}|:)",
        *(f"({_WORD}:){{{before}}}((:{_WORD}){{1,{7 - before}}}|:)" for before in range(1, 7)),
        f":((:{_WORD}){{1,7}}|:)",
    )
)
_LISTEN = rf"({_OCTET}(\.{_OCTET}){{3}}|\[({_IPV6})\]|localhost)?:{_PORT}"
IP_ADDRESS = text(rf"|{_OCTET}(\.{_OCTET}){{3}}|{_IPV6}", "an IP address")
LISTEN = text(_LISTEN, "address:port")
LISTEN_OR_OFF = text(rf"0|{_LISTEN}", 'address:port, or "0" for none')
ABSOLUTE_PATH = text(r"|/[A-Za-z0-9_./@:+-]*", "an absolute path")


def listen_address(address: str) -> tuple[str, int]:
    """Split a valid "address:port" into host and port."""
    host, _, port = address.rpartition(":")
    return host.strip("[]") or "0.0.0.0", int(port)
