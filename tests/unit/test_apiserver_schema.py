"""Schemas of the embedded API server: pruning, defaults and validation as pure functions of values."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devtools.apiserver.objects import schema

TYPES: dict[str, Any] = {
    "text": {"type": "string"},
    "number": {"type": "integer", "default": 7},
    "list": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}}}},
    "map": {"type": "object", "additionalProperties": {"type": "string"}},
    "any": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    "nested": {"type": "object", "properties": {"on": {"type": "boolean", "default": True}}},
}
SCHEMA: dict[str, Any] = {"type": "object", "properties": TYPES, "required": ["text"]}
LEAVES = st.none() | st.booleans() | st.integers(-5, 5) | st.text("abc", max_size=3)
NAMES = st.sampled_from([*TYPES, "a", "on", "kind", "metadata", "other"])
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4), max_leaves=12
)


@given(st.dictionaries(NAMES, VALUES, max_size=6))
def test_pruning_and_defaults_settle_at_once(value: dict[str, Any]) -> None:
    """Both done twice give the same as once, and defaults add nothing that pruning would take away."""
    dropped: list[str] = []
    once = schema.default(schema.prune(value, SCHEMA, dropped), SCHEMA)
    assert schema.default(schema.prune(once, SCHEMA), SCHEMA) == once
    left: list[str] = []
    schema.prune(once, SCHEMA, left)
    assert left == []
    assert schema.prune(value, SCHEMA) == value or dropped


@given(st.dictionaries(NAMES, VALUES, max_size=6))
def test_what_is_wrong_is_at_its_path(value: dict[str, Any]) -> None:
    """Each cause of a wrong type names a path at which there is something."""
    for cause in schema.validate(value, SCHEMA):
        if "must be of type" in cause.why and '"null"' not in cause.why:
            assert schema.at_path(value, cause.field) is not None


@pytest.mark.parametrize(
    ("part", "value", "words"),
    [
        ({"type": "string", "maxLength": 2}, "abc", "Too long: may not be more than 2 bytes"),
        ({"type": "string", "minLength": 1}, "", "should be at least 1 chars long"),
        ({"type": "string", "pattern": "^a+$"}, "b", "should match '^a+$'"),
        ({"type": "string", "format": "date-time"}, "today", "must be of type date-time"),
        ({"type": "integer", "minimum": 0}, -1, "should be greater than or equal to 0"),
        ({"type": "integer", "maximum": 3}, 4, "should be less than or equal to 3"),
        ({"type": "integer"}, True, 'must be of type integer: "boolean"'),
        ({"type": "array", "maxItems": 1, "items": {}}, [1, 2], "Too many: 2: must have at most 1 item"),
        ({"type": "array", "x-kubernetes-list-type": "set", "items": {}}, [1, 1], "Duplicate value: 1"),
        ({"x-kubernetes-int-or-string": True}, [], "must be of type integer,string"),
        ({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, {"a": 1, "b": 1}, "must validate oneOf"),
        ({"not": {"required": ["a"]}}, {"a": 1}, "must not validate the schema"),
    ],
)
def test_keywords(part: dict[str, Any], value: Any, words: str) -> None:
    """Each keyword refuses what it is there for."""
    whole = {"type": "object", "properties": {"x": part}}
    causes = list(schema.validate({"x": value}, whole))
    assert [words in cause.why for cause in causes] == [True]


def test_good_values_have_no_causes() -> None:
    """Numbers that are whole, null where it is allowed, times with and without fractions."""
    whole = {
        "type": "object",
        "properties": {
            "whole": {"type": "integer"},
            "none": {"type": "string", "nullable": True},
            "time": {"type": "string", "format": "date-time"},
        },
    }
    for time in ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00.123456+01:00"):
        assert list(schema.validate({"whole": 2.0, "none": None, "time": time}, whole)) == []
