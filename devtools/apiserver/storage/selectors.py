"""Label and field selectors: text to a predicate over an object.

Label selector grammar: k8s.io/apimachinery/pkg/labels/selector.go. Field selectors know `=`, `==` and `!=` on any
field of a kind; a field that the object lacks counts as empty text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from devtools.apiserver.errors import Json, bad_request

Predicate = Callable[[Json], bool]

_SET = re.compile(r"^\s*([^\s!=(),]+)\s+(in|notin)\s*\(([^()]*)\)\s*$")
_EQUAL = re.compile(r"^\s*([^\s!=(),]+)\s*(==|=|!=)\s*([^\s!=(),]*)\s*$")
_EXISTS = re.compile(r"^\s*(!?)\s*([^\s!=(),]+)\s*$")
_COMMA = re.compile(r",(?![^()]*\))")  # that stands outside brackets


def _labels(obj: Json) -> Json:
    return obj.get("metadata", {}).get("labels") or {}


def _requirement(text: str) -> Predicate:
    if match := _SET.match(text):
        key, operator, listed = match.groups()
        values = {value.strip() for value in listed.split(",")}
        return lambda obj: (_labels(obj).get(key) in values) == (operator == "in")
    if match := _EQUAL.match(text):
        key, operator, value = match.groups()
        return lambda obj: (_labels(obj).get(key) == value) == (operator != "!=")
    if match := _EXISTS.match(text):
        absent, key = bool(match.group(1)), match.group(2)
        return lambda obj: (key in _labels(obj)) != absent
    raise bad_request(f'unable to parse requirement: "{text}"')


def _field_requirement(text: str) -> Predicate:
    match = _EQUAL.match(text)
    if match is None:
        raise bad_request(f'invalid field selector: "{text}"')
    path, operator, value = match.groups()
    return lambda obj: (_field(obj, path) == value) == (operator != "!=")


def _field(obj: Any, path: str) -> str:
    for step in path.split("."):
        obj = obj.get(step) if isinstance(obj, dict) else None
    if obj is None:
        return ""
    return str(obj).lower() if isinstance(obj, bool) else str(obj)


def selector(labels: str, fields: str) -> Predicate:
    """Return the predicate of both selectors together; empty text selects everything. Raises ApiError 400."""
    requirements = [_requirement(part) for part in _COMMA.split(labels) if labels.strip()]
    requirements += [_field_requirement(part) for part in fields.split(",") if fields.strip()]
    return lambda obj: all(requirement(obj) for requirement in requirements)
