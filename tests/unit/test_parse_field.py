"""One field of an untyped value: accepted values, and the exact error of each value that is refused."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest

from mcagent.model.api.base import Metadata
from mcagent.model.api.kubernetes import ApiNode
from mcagent.model.errors import InputError
from mcagent.model.parsing.field import MAX_ITEMS, SHOWN, Field, describe, printable
from mcagent.model.parsing.fields import (
    addresses,
    annotation,
    bounded,
    network,
    networks,
    optional_address,
    optional_network,
    problem_of,
    read_or,
)
from mcagent.model.problem import Problem, Severity

KEY = base64.b64encode(bytes(range(32))).decode()
INVALID, MISSING, PORT, TIME = "InvalidValue", "Missing", "InvalidPort", "InvalidTime"
NO_KEY = "not a WireGuard public key (base64 of 32 bytes)"
NO_PORT = "not a port: must be from 1 to 65535"

Read = Callable[[Field], object]


def each(field: Field) -> list[tuple[str, object]]:
    """Return path and value of each item."""
    return [(item.path, item.value) for item in field.each(3)]


@pytest.mark.parametrize(
    ("text", "limit", "expected"),
    [
        ("a" * SHOWN, SHOWN, "a" * SHOWN),
        ("a" * (SHOWN + 1), SHOWN, "a" * SHOWN + "..."),
        ("abc", 3, "abc"),
        ("abcd", 3, "abc..."),
        ("a\nb", 4, "a\\nb"),
        ("a\nb", 3, "a\\n..."),
        ("\x1b[31m", SHOWN, "\\x1b[31m"),
        ("\ud800", SHOWN, "\\ud800"),
    ],
)
def test_printable(text: str, limit: int, expected: str) -> None:
    """Control characters are escaped; what exceeds the limit, escapes included, is replaced by three dots."""
    assert printable(text, limit) == expected
    assert printable(text) == printable(text, SHOWN)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "missing"),
        (True, "a boolean"),
        ("", "a string"),
        (1, "a number"),
        (1.5, "a number"),
        ({}, "a mapping"),
        ([], "a list"),
        ((), "a list"),
        (b"", "a bytes"),
        (type("\x1b[31m", (), {})(), "a \\x1b[31m"),
    ],
)
def test_describe(value: object, expected: str) -> None:
    """Messages name the JSON type of a value."""
    assert describe(value) == expected


@pytest.mark.parametrize(
    ("read", "value", "expected"),
    [
        (lambda field: field.absent, None, True),
        (lambda field: field.absent, "", False),
        (lambda field: (field.get("a").path, field.get("a").value), {"a": 7}, ("spec.x.a", 7)),
        (lambda field: (field.get("a").path, field.get("a").value), {}, ("spec.x.a", None)),
        (lambda field: (field.get("a").path, field.get("a").value), None, ("spec.x.a", None)),
        (lambda field: field.get("a").subject, {"a": 7}, "Kind name"),
        (each, None, []),
        (each, [], []),
        (each, ["a", None, 7], [("spec.x[0]", "a"), ("spec.x[1]", None), ("spec.x[2]", 7)]),
        (each, ("a",), [("spec.x[0]", "a")]),
        (lambda field: next(field.each()).subject, [1], "Kind name"),
        (lambda field: len(list(field.each())), [0] * MAX_ITEMS, MAX_ITEMS),
        (Field.text, "", ""),
        (lambda field: field.text("other"), "a", "a"),
        (lambda field: field.text("other"), None, "other"),
        (Field.name, "a", "a"),
        (Field.name, "a.b-c_D9", "a.b-c_D9"),
        (Field.name, "a" * 253, "a" * 253),
        (lambda field: field.name(""), None, ""),
        (lambda field: field.name(""), "", ""),
        (lambda field: field.name(""), "a", "a"),
        (Field.flag, None, False),
        (Field.flag, False, False),
        (Field.flag, True, True),
        (lambda field: field.integer(3, 5), 3, 3),
        (lambda field: field.integer(3, 5), 5, 5),
        (Field.port, 1, 1),
        (Field.port, 65535, 65535),
        (Field.public_key, None, ""),
        (Field.public_key, "", ""),
        (Field.public_key, KEY, KEY),
        (Field.address, "192.0.2.1", ip_address("192.0.2.1")),
        (Field.address, "2001:db8::1", ip_address("2001:db8::1")),
        (Field.network, "10.0.0.0/8", (ip_network("10.0.0.0/8"), False)),
        (Field.network, "10.1.0.0/8", (ip_network("10.0.0.0/8"), True)),
        (Field.timestamp, None, ""),
        (Field.timestamp, "2026-11-20T10:00:00", "2026-11-20T10:00:00Z"),
        (Field.timestamp, "2026-11-20T10:00:00.75Z", "2026-11-20T10:00:00Z"),
        (Field.timestamp, "2026-11-20T12:00:00+02:00", "2026-11-20T10:00:00Z"),
    ],
)
def test_accepted_values(read: Read, value: object, expected: object) -> None:
    """Each reader returns the value in its one form; null is an absent value."""
    assert read(Field("Kind name", value, "spec.x")) == expected


@pytest.mark.parametrize(
    ("read", "value", "code", "reason"),
    [
        (lambda field: field.get("a"), "x", INVALID, "must be a mapping, is a string"),
        (each, {}, INVALID, "must be a list, is a mapping"),
        (each, "abc", INVALID, "must be a list, is a string"),
        (each, [1, 2, 3, 4], "TooMany", "has 4 entries, at most 3 allowed"),
        (Field.text, None, MISSING, "is missing"),
        (Field.text, 7, INVALID, "must be a string, is a number"),
        (lambda field: field.text("other"), 7, INVALID, "must be a string, is a number"),
        (Field.name, None, MISSING, "is missing"),
        (Field.name, "", MISSING, "is empty"),
        (lambda field: field.name("x"), "", MISSING, "is empty"),
        (Field.name, "a/b", "InvalidName", 'not a name (RFC 1123 subdomain): "a/b"'),
        (Field.name, "-a", "InvalidName", 'not a name (RFC 1123 subdomain): "-a"'),
        (Field.name, "a" * 254, "InvalidName", f'not a name (RFC 1123 subdomain): "{"a" * SHOWN}..."'),
        (Field.flag, 1, INVALID, "must be true or false, is a number"),
        (lambda field: field.integer(3, 5), True, INVALID, "must be an integer, is a boolean"),
        (lambda field: field.integer(3, 5), "4", INVALID, "must be an integer, is a string"),
        (lambda field: field.integer(3, 5), 4.0, INVALID, "must be an integer, is a number"),
        (lambda field: field.integer(3, 5), None, INVALID, "must be an integer, is missing"),
        (lambda field: field.integer(3, 5), 2, INVALID, "must be from 3 to 5, is 2"),
        (lambda field: field.integer(3, 5), 6, INVALID, "must be from 3 to 5, is 6"),
        (Field.port, True, PORT, "must be a port number, is a boolean"),
        (Field.port, "80", PORT, "must be a port number, is a string"),
        (Field.port, 0, PORT, NO_PORT),
        (Field.port, 65536, PORT, NO_PORT),
        (Field.public_key, 7, INVALID, "must be a string, is a number"),
        (Field.public_key, "not base64", "InvalidKey", NO_KEY),
        (Field.public_key, "é", "InvalidKey", NO_KEY),
        (Field.public_key, KEY + "\n", "InvalidKey", NO_KEY),
        (Field.public_key, base64.b64encode(bytes(range(31))).decode(), "InvalidKey", NO_KEY),
        (Field.public_key, base64.b64encode(bytes(32)).decode(), "InvalidKey", NO_KEY),
        (Field.address, None, MISSING, "is missing"),
        (Field.address, "x\n", "InvalidAddress", 'not an IP address: "x\\n"'),
        (Field.address, "fe80::1%eth0", "InvalidAddress", 'an address with a zone: "fe80::1%eth0"'),
        (Field.network, None, MISSING, "is missing"),
        (Field.network, "10.0.0.0", "InvalidCIDR", 'not a CIDR: "10.0.0.0"'),
        (Field.timestamp, 7, TIME, "must be a time (RFC 3339), is a number"),
        (Field.timestamp, "soon\n", TIME, 'not a time (RFC 3339): "soon\\n"'),
    ],
)
def test_refused_values(read: Read, value: object, code: str, reason: str) -> None:
    """The error names object and field, has a stable code, and says what is valid."""
    with pytest.raises(InputError) as info:
        read(Field("Kind name", value, "spec.x"))
    error = info.value
    assert (error.subject, error.path, error.code, error.reason) == ("Kind name", "spec.x", code, reason)


def test_the_field_at_the_top_has_no_path() -> None:
    """A field of a document has its name as path; the document itself has none."""
    assert Field("Kind name", {"a": {"b": 7}}).get("a").get("b").path == "a.b"
    with pytest.raises(InputError) as info:
        Field("Kind name", []).get("a")
    assert str(info.value) == "Kind name: must be a mapping, is a list"


# --- fields of several kinds ------------------------------------------------------------------------------

HOST_BITS = Problem(
    "Kind name", "spec.x", "HostBitsSet", 'host bits are set in "10.1.0.0/8": used as 10.0.0.0/8', Severity.WARNING
)


@pytest.mark.parametrize("read", [network, optional_network])
def test_host_bits_are_masked_and_reported(read: Callable[[Field, list[Problem]], object]) -> None:
    """The network is used, and the warning has both forms."""
    problems: list[Problem] = []
    assert read(Field("Kind name", "10.0.0.0/8", "spec.x"), problems) == ip_network("10.0.0.0/8")
    assert problems == []
    assert read(Field("Kind name", "10.1.0.0/8", "spec.x"), problems) == ip_network("10.0.0.0/8")
    assert problems == [HOST_BITS]


def test_lists_of_networks_and_addresses() -> None:
    """Entries are distinct and in order; empty ones are skipped, unless an address must not be empty."""
    problems: list[Problem] = []
    texts = ["10.2.0.0/16", "", "10.1.0.0/16", "10.2.0.9/16"]
    expected = (ip_network("10.2.0.0/16"), ip_network("10.1.0.0/16"))
    assert networks(texts, "Kind name", "spec.x", problems) == expected
    assert [(problem.subject, problem.path) for problem in problems] == [("Kind name", "spec.x[3]")]
    ips = (ip_address("192.0.2.2"), ip_address("192.0.2.1"))
    assert addresses(["192.0.2.2", "", "192.0.2.1", "192.0.2.2"], "Kind name", "spec.x") == ips
    with pytest.raises(InputError) as info:
        addresses(["192.0.2.2", ""], "Kind name", "spec.x", allow_empty=False)
    assert str(info.value) == 'Kind name: spec.x[1]: not an IP address: ""'


@pytest.mark.parametrize(
    "read",
    [
        lambda texts: networks(texts, "Kind name", "spec.x", []),
        lambda texts: addresses(texts, "Kind name", "spec.x"),
        lambda texts: bounded(texts, "Kind name", "spec.x"),
    ],
)
def test_lists_are_bounded(read: Callable[[list[str]], object]) -> None:
    """A list of 1024 entries is read; a longer one is an error of the list, not of an entry."""
    read([""] * MAX_ITEMS)
    with pytest.raises(InputError) as info:
        read([""] * (MAX_ITEMS + 1))
    assert str(info.value) == "Kind name: spec.x: has 1025 entries, at most 1024 allowed"
    assert info.value.code == "TooMany"


def test_numbers_of_items() -> None:
    """A bounded list has the items with their numbers from 0."""
    assert list(bounded(["a", "b"], "Kind name", "spec.x", 2)) == [(0, "a"), (1, "b")]


def test_optional_values() -> None:
    """An absent or empty value is None without a problem; an invalid address is a warning and None."""
    problems: list[Problem] = []
    for value in (None, ""):
        assert optional_network(Field("Kind name", value, "spec.x"), problems) is None
        assert optional_address(Field("Kind name", value, "spec.x"), problems) is None
    assert optional_address(Field("Kind name", "192.0.2.1", "spec.x"), problems) == ip_address("192.0.2.1")
    assert problems == []
    assert optional_address(Field("Kind name", "x", "spec.x"), problems) is None
    assert problems == [
        Problem("Kind name", "spec.x", "InvalidAddress", 'not an IP address: "x"', Severity.WARNING)
    ]


def test_annotations() -> None:
    """A valid annotation is read; an invalid one is a warning at its path, and counts as absent."""
    node = ApiNode(metadata=Metadata(name="n1", annotations={"a/b": "7", "c": "x"}))
    problems: list[Problem] = []
    assert read_or(annotation(node, "a/b"), problems, int, 5) == 7
    assert read_or(annotation(node, "absent"), problems, int, 5) == 5
    assert problems == []
    assert read_or(annotation(node, "c"), problems, int, 5) == 5
    invalid = Problem(
        "Node n1",
        "metadata.annotations.c",
        "InvalidValue",
        "invalid literal for int() with base 10: 'x'",
        Severity.WARNING,
    )
    assert problems == [invalid]

    def refuse(text: str) -> int:
        raise InputError("Node n1", "metadata.annotations.c.port", f"not {text}", code="InvalidPort")

    problems.clear()
    assert read_or(annotation(node, "c"), problems, refuse, 5) == 5
    inner = replace(invalid, path="metadata.annotations.c.port", reason="InvalidPort", message="not x")
    assert problems == [inner]


def test_an_error_becomes_a_problem() -> None:
    """The problem has all parts of the error, and takes the object away."""
    error = InputError("Kind name", "spec.x", "is missing", code="Missing")
    assert problem_of(error) == Problem("Kind name", "spec.x", "Missing", "is missing", Severity.ERROR)
