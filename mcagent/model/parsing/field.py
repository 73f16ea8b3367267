"""Reading untyped values (decoded JSON or YAML) one field at a time, with errors that name the place.

Owns: type checks, limits, and messages that stay short and printable whatever another cluster wrote.
Knows no kind of object.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from mcagent.model.errors import InputError
from mcagent.model.net import Address, Network, parse_address, parse_network

SHOWN = 64  # characters of a foreign text that a message may carry
KEY_BYTES = 32  # of a WireGuard key (Curve25519)
MAX_ITEMS = 1024  # entries of a list; an EndpointSlice has at most 1000 endpoints

# RFC 1123 subdomain as the API server checks names; upper case and "_" are let pass, they do no harm here.
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,251}[A-Za-z0-9])?")


def escaped(text: str) -> str:
    """Return the text with unprintable characters escaped, line breaks too: one line for a log or a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable(text: str, limit: int = SHOWN) -> str:
    """Return the text with at most `limit` characters, unprintable ones escaped, fit for a log or a terminal."""
    shown = escaped(text[: limit + 1])
    return shown if len(text) <= limit and len(shown) <= limit else shown[:limit] + "..."


def listed(items: Sequence[str], most: int) -> str:
    """Return the first `most` items, and the number of the others: "a, b and 3 more"."""
    omitted = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + omitted


def describe(value: object) -> str:
    """Name the JSON type of a value, for "must be a string, is a list"."""
    if value is None:
        return "missing"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, str):
        return "a string"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return "a list"
    return "a " + printable(type(value).__name__)


class Field:
    """A value and where it stands. `None` (JSON null) and a missing key are the same, as in the API."""

    __slots__ = ("path", "subject", "value")

    def __init__(self, subject: str, value: object, path: str = "") -> None:
        self.subject = subject
        self.path = path
        self.value = value

    def error(self, reason: str, code: str = "InvalidValue") -> InputError:
        """Return the error for this place; the caller raises it."""
        return InputError(self.subject, self.path, reason, code=code)

    @property
    def absent(self) -> bool:
        """Tell whether there is no value here."""
        return self.value is None

    def get(self, name: str) -> Field:
        """Return a field of this mapping (absent when this is absent). InputError when this is no mapping."""
        if self.value is None:
            value: object = None
        elif isinstance(self.value, Mapping):
            value = self.value.get(name)
        else:
            raise self.error(f"must be a mapping, is {describe(self.value)}")
        return Field(self.subject, value, f"{self.path}.{name}" if self.path else name)

    def each(self, limit: int = MAX_ITEMS) -> Iterator[Field]:
        """Yield the items of this list (none when absent). InputError when this is no list, or too long."""
        if self.value is None:
            return
        if not isinstance(self.value, (list, tuple)):
            raise self.error(f"must be a list, is {describe(self.value)}")
        if len(self.value) > limit:
            raise self.error(f"has {len(self.value)} entries, at most {limit} allowed", "TooMany")
        for index, item in enumerate(self.value):
            yield Field(self.subject, item, f"{self.path}[{index}]")

    def text(self, default: str | None = None) -> str:
        """Return the string; `default` when absent; InputError when absent without a default or no string."""
        if isinstance(self.value, str):
            return self.value
        if self.value is None and default is not None:
            return default
        if self.value is None:
            raise self.error("is missing", "Missing")
        raise self.error(f"must be a string, is {describe(self.value)}")

    def name(self, default: str | None = None) -> str:
        """Return a name as the API server takes them (RFC 1123, at most 253 characters)."""
        text = self.text(default)
        if text == default or _NAME.fullmatch(text):
            return text
        if not text:
            raise self.error("is empty", "Missing")
        raise self.error(f'not a name (RFC 1123 subdomain): "{printable(text)}"', "InvalidName")

    def flag(self) -> bool:
        """Return the boolean; False when absent."""
        if self.value is None:
            return False
        if isinstance(self.value, bool):
            return self.value
        raise self.error(f"must be true or false, is {describe(self.value)}")

    def integer(self, first: int, last: int) -> int:
        """Return the integer, which is in this range."""
        if isinstance(self.value, bool) or not isinstance(self.value, int):
            raise self.error(f"must be an integer, is {describe(self.value)}")
        if not first <= self.value <= last:
            raise self.error(f"must be from {first} to {last}, is {self.value}")
        return self.value

    def port(self) -> int:
        """Return a transport port, 1 to 65535."""
        if isinstance(self.value, bool) or not isinstance(self.value, int):
            raise self.error(f"must be a port number, is {describe(self.value)}", "InvalidPort")
        if not 1 <= self.value <= 65535:
            raise self.error("not a port: must be from 1 to 65535", "InvalidPort")
        return self.value

    def public_key(self) -> str:
        """Return a WireGuard public key in base64, "" if there is none."""
        text = self.text("")
        try:
            key = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            key = b""
        # Only one text for a key: else one key would pass as two.
        if text and (len(key) != KEY_BYTES or not any(key) or base64.b64encode(key).decode() != text):
            raise self.error(f"not a WireGuard public key (base64 of {KEY_BYTES} bytes)", "InvalidKey")
        return text

    def address(self) -> Address:
        """Return the IP address."""
        text = self.text()
        try:
            address = parse_address(text)
        except ValueError:
            raise self.error(f'not an IP address: "{printable(text)}"', "InvalidAddress") from None
        if "%" in text:
            raise self.error(f'an address with a zone: "{printable(text)}"', "InvalidAddress")
        return address

    def network(self) -> tuple[Network, bool]:
        """Return the CIDR and whether host bits were set in it (it is masked)."""
        text = self.text()
        try:
            return parse_network(text)
        except ValueError:
            raise self.error(f'not a CIDR: "{printable(text)}"', "InvalidCIDR") from None

    def timestamp(self) -> str:
        """Return an RFC 3339 time as text in UTC to the second ("" when absent): such texts sort by time."""
        if self.value is None:
            return ""
        if not isinstance(self.value, str):
            raise self.error(f"must be a time (RFC 3339), is {describe(self.value)}", "InvalidTime")
        try:
            time = datetime.fromisoformat(self.value)
            time = time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
        except (ValueError, OverflowError):
            raise self.error(f'not a time (RFC 3339): "{printable(self.value)}"', "InvalidTime") from None
        return time.isoformat(timespec="seconds").replace("+00:00", "Z")
