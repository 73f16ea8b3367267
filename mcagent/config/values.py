"""The kinds of value that a configuration key can have: how each is read, checked and described.

A kind reads a YAML value (`parse`) or the text of an environment variable or flag (`parse_text`). Both raise
ValueError whose text says what is wrong and what would be right; the caller adds where it was. Knows no key.
"""

from __future__ import annotations

import difflib
import re
from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from mcagent.model.net import Network, parse_network

_DNS_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def did_you_mean(word: str, known: Collection[str]) -> str:
    """Return ' (did you mean "x"?)' for the known word nearest to `word`, or nothing."""
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return f' (did you mean "{by_lower[close[0]]}"?)' if close else ""


def _span(seconds: float) -> str:
    return f"{1000 * seconds:g}ms" if 0 < seconds < 1 else f"{seconds:g}s"


def _shown(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


class Value(ABC):
    """One kind of value."""

    @abstractmethod
    def parse(self, value: object) -> object:
        """Return the value as the program uses it; ValueError when it is not of this kind."""

    def parse_text(self, text: str) -> object:
        """Read the text of an environment variable or flag."""
        return self.parse(text)

    def show(self, value: object) -> str:
        """Return how the value is written in YAML, for the table of defaults and `config show`."""
        return _shown(value)

    @property
    @abstractmethod
    def allowed(self) -> str:
        """The allowed values, for people."""


@dataclass(frozen=True)
class Bool(Value):
    """true or false."""

    def parse(self, value: object) -> bool:
        """Return the boolean; YAML's own booleans only."""
        if isinstance(value, bool):
            return value
        raise ValueError(f"must be true or false, not {_shown(value)}")

    def parse_text(self, text: str) -> bool:
        """Read "true" or "false"."""
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise ValueError(f'must be true or false, not "{text}"')

    def show(self, value: object) -> str:
        """Return true or false."""
        return "true" if value else "false"

    @property
    def allowed(self) -> str:
        """The allowed values."""
        return "true or false"


@dataclass(frozen=True)
class NotYet(Bool):
    """A boolean of Antrea's that this version cannot do: only false is right (fail closed)."""

    def parse(self, value: object) -> bool:
        """Return False."""
        if super().parse(value):
            raise ValueError("not available in this version: only false is accepted")
        return False

    def parse_text(self, text: str) -> bool:
        """Read "false"."""
        return self.parse(super().parse_text(text))

    @property
    def allowed(self) -> str:
        """The allowed values."""
        return "false"


@dataclass(frozen=True)
class Int(Value):
    """A whole number within bounds; `also` allows values outside of them, `never` forbids some inside."""

    low: int
    high: int
    also: tuple[int, ...] = ()
    never: tuple[tuple[int, str], ...] = ()  # number, whose it is

    def parse(self, value: object) -> int:
        """Return the number."""
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"must be {self.allowed}, not {_shown(value)}")
        for number, owner in self.never:
            if value == number:
                raise ValueError(f"{value} is used by {owner}: choose another")
        if value not in self.also and not self.low <= value <= self.high:
            raise ValueError(f"must be {self.allowed}, not {value}")
        return value

    def parse_text(self, text: str) -> int:
        """Read a decimal number, or a hexadecimal one after 0x."""
        try:
            return self.parse(int(text, 0))
        except ValueError as error:
            if re.fullmatch(r"-?\d+|0x[0-9a-fA-F]+", text):
                raise
            raise ValueError(f'must be {self.allowed}, not "{text}"') from error

    @property
    def allowed(self) -> str:
        """The allowed values."""
        also = "".join(f"{number} or " for number in self.also if not self.low <= number <= self.high)
        return f"{also}a whole number from {self.low} to {self.high}"


@dataclass(frozen=True)
class Text(Value):
    """A text of a certain form; `never` forbids some that others use."""

    pattern: str
    allowed_text: str
    never: tuple[tuple[str, str], ...] = ()
    max_length: int = 4096

    def parse(self, value: object) -> str:
        """Return the text."""
        if (
            not isinstance(value, str)
            or len(value) > self.max_length
            or not re.fullmatch(self.pattern, value, re.ASCII)
        ):
            raise ValueError(f"must be {self.allowed}, not {_shown(value)}")
        for word, owner in self.never:
            if value == word:
                raise ValueError(f'"{value}" is {owner}: choose another')
        return value

    @property
    def allowed(self) -> str:
        """The allowed values."""
        return self.allowed_text


@dataclass(frozen=True)
class Choice(Value):
    """One word of an enumeration, read without regard to case as Antrea does."""

    enum: type[StrEnum]
    aliases: tuple[tuple[str, str], ...] = ()  # other words, and which they stand for
    later: tuple[tuple[str, str], ...] = ()  # word of the API that this version cannot do yet, and why not

    def parse(self, value: object) -> StrEnum:
        """Return the member."""
        if isinstance(value, str):
            for word, why in self.later:
                if value.lower() == word.lower():
                    raise ValueError(why)
            value = dict(self.aliases).get(value.lower(), value)
            for member in self.enum:
                if member.value.lower() == value.lower():
                    return member
        hint = did_you_mean(value, [member.value for member in self.enum]) if isinstance(value, str) else ""
        raise ValueError(f"must be {self.allowed}, not {_shown(value)}{hint}")

    def show(self, value: object) -> str:
        """Return the bare word."""
        return str(value)

    @property
    def allowed(self) -> str:
        """The allowed values."""
        words = [member.value for member in self.enum]
        return " or ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


@dataclass(frozen=True)
class Duration(Value):
    """A time span in seconds, written like Go's: 500ms, 90s, 1m30s, 1h; a bare number is seconds."""

    low: float
    high: float

    def parse(self, value: object) -> float:
        """Return seconds."""
        seconds = self._seconds(value)
        if seconds is None:
            raise ValueError(f"must be a duration such as 30s or 1m30s, not {_shown(value)}")
        if not self.low <= seconds <= self.high:
            raise ValueError(f"must be {self.allowed}, not {_shown(value)}")
        return seconds

    @staticmethod
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
        return sum(float(number) * _UNITS[unit] for number, unit in parts)

    def show(self, value: object) -> str:
        """Return seconds with their unit."""
        return _span(float(value)) if isinstance(value, (int, float)) else _shown(value)

    @property
    def allowed(self) -> str:
        """The allowed values."""
        return f"a duration from {_span(self.low)} to {_span(self.high)}"


@dataclass(frozen=True)
class Networks(Value):
    """A list of CIDRs that Pods or Services may have; empty strings are dropped, as Antrea does."""

    def parse(self, value: object) -> tuple[Network, ...]:
        """Return the networks in the order given; the text names the entry that is wrong."""
        if not isinstance(value, list):
            raise ValueError(f"must be {self.allowed}, not {_shown(value)}")
        found = []
        for index, entry in enumerate(value):
            if entry == "":
                continue
            try:
                found.append(safe_network(entry))
            except ValueError as error:
                raise ValueError(f"[{index}]: {error}") from None
        return tuple(found)

    def parse_text(self, text: str) -> tuple[Network, ...]:
        """Read CIDRs separated by commas."""
        return self.parse([entry.strip() for entry in text.split(",")])

    def show(self, value: object) -> str:
        """Return the list in YAML's flow style."""
        return f"[{', '.join(str(network) for network in value)}]" if isinstance(value, tuple) else "[]"

    @property
    def allowed(self) -> str:
        """The allowed values."""
        return "a list of CIDRs"


@dataclass(frozen=True)
class Labels(Value):
    """A list of names of one form: by default DNS labels, as the names of namespaces are."""

    pattern: str = _DNS_LABEL
    form: str = "a DNS label (lower-case letters, digits, -)"
    allowed_text: str = "a list of namespaces"

    def parse(self, value: object) -> tuple[str, ...]:
        """Return the names, each once; the text names the entry that is wrong."""
        if not isinstance(value, list):
            raise ValueError(f"must be {self.allowed}, not {_shown(value)}")
        for index, entry in enumerate(value):
            if not isinstance(entry, str) or not re.fullmatch(self.pattern, entry, re.ASCII):
                raise ValueError(f"[{index}]: not {self.form}: {_shown(entry)}")
        return tuple(dict.fromkeys(value))

    def parse_text(self, text: str) -> tuple[str, ...]:
        """Read names separated by commas."""
        return self.parse([entry.strip() for entry in text.split(",") if entry.strip()])

    def show(self, value: object) -> str:
        """Return the list in YAML's flow style."""
        return f"[{', '.join(value)}]" if isinstance(value, tuple) else "[]"

    @property
    def allowed(self) -> str:
        """The allowed values."""
        return self.allowed_text


@dataclass(frozen=True)
class Cidr(Value):
    """One CIDR that Pods or Services may have, or ""; kept as text."""

    def parse(self, value: object) -> str:
        """Return its canonical text."""
        return "" if value == "" else str(safe_network(value))

    @property
    def allowed(self) -> str:
        """The allowed values."""
        return 'a CIDR or ""'


def safe_network(value: object) -> Network:
    """Return the CIDR; ValueError unless it is an exact IPv4 network of ordinary addresses, /8 or longer."""
    if not isinstance(value, str):
        raise ValueError(f"not a CIDR: {_shown(value)}")
    network, masked = parse_network(value)
    if network.version != 4:
        raise ValueError(f"IPv6 is not available in this version: {value}")
    if masked:
        raise ValueError(f"{value} has host bits set: did you mean {network}?")
    unsafe = (
        ("loopback", network.is_loopback),
        ("multicast", network.is_multicast),
        ("link-local", network.is_link_local),
        ("reserved", network.is_reserved),
        ('"this network"', network.network_address.packed[0] == 0),
    )
    for what, found in unsafe:
        if found:
            raise ValueError(f"{value} holds {what} addresses")
    if network.prefixlen < 8:
        raise ValueError(f"{value} is shorter than /8: it would take in addresses of everybody else")
    return network


DNS_LABEL = Text(rf"|{_DNS_LABEL}", "a DNS label (lower-case letters, digits, -)", max_length=63)
ACCOUNTS = Labels(
    rf"{_DNS_LABEL}/{_DNS_LABEL}(\.{_DNS_LABEL})*",
    "namespace/name",
    "a list of ServiceAccounts, each as namespace/name",
)
DNS_NAME = Text(
    rf"|{_DNS_LABEL}(\.{_DNS_LABEL})*", "a DNS name (lower-case letters, digits, - and .)", max_length=253
)
DEVICE_NAME = Text(
    r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,14}",
    "a device name of at most 15 letters, digits, _ . -",
    never=(("lo", "the loopback"),),
)
_LISTEN = r"(\d+\.\d+\.\d+\.\d+|\[[0-9a-fA-F:.]+\]|localhost)?:\d{1,5}"
LISTEN = Text(_LISTEN, "address:port")
LISTEN_OR_OFF = Text(rf"0|{_LISTEN}", 'address:port, or "0" for none')
ABSOLUTE_PATH = Text(r"|/[A-Za-z0-9_./@:+-]*", "an absolute path")


def listen_address(text: str) -> tuple[str, int]:
    """Return host and port of an "address:port" that was read."""
    host, _, port = text.rpartition(":")
    return host.strip("[]") or "0.0.0.0", int(port)


def listen_problem(text: str) -> str:
    """Return what is wrong with the numbers of an "address:port" whose form is right; "" if nothing."""
    host, _, port = text.rpartition(":")
    wrong = int(port) > 65535 or any(int(part) > 255 for part in host.split(".") if part.isdigit())
    return f'must be address:port, not "{text}"' if wrong else ""
