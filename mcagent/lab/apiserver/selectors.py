"""Label and field selectors: text to a predicate over an object.

Label selector grammar: k8s.io/apimachinery/pkg/labels/selector.go. Field selectors know `=`, `==` and `!=` on
any dotted path; a path that the object lacks counts as empty text, as in the real server.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from mcagent.lab.apiserver.errors import Json, bad_request

Predicate = Callable[[Json], bool]

_SET = re.compile(r"^\s*([^\s!=(),]+)\s+(in|notin)\s*\(([^()]*)\)\s*$")
_EQUAL = re.compile(r"^\s*([^\s!=(),]+)\s*(==|=|!=)\s*([^\s!=(),]*)\s*$")
_EXISTS = re.compile(r"^\s*(!?)\s*([^\s!=(),]+)\s*$")


def _everything(_obj: Json) -> bool:
    return True


def _split(text: str) -> list[str]:
    """Split at commas that stand outside brackets."""
    parts, depth, start = [], 0, 0
    for at, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    parts.append(text[start:])
    return parts


def _labels(obj: Json) -> Json:
    return obj.get("metadata", {}).get("labels") or {}


def _requirement(text: str) -> Predicate:
    if found := _SET.match(text):
        key, operator, listed = found.groups()
        values = {value.strip() for value in listed.split(",")}
        if operator == "in":
            return lambda obj: _labels(obj).get(key) in values
        return lambda obj: _labels(obj).get(key) not in values
    if found := _EQUAL.match(text):
        key, operator, value = found.groups()
        if operator == "!=":
            return lambda obj: _labels(obj).get(key) != value
        return lambda obj: _labels(obj).get(key) == value
    if found := _EXISTS.match(text):
        absent, key = bool(found.group(1)), found.group(2)
        return lambda obj: (key in _labels(obj)) != absent
    raise bad_request(f'unable to parse requirement: "{text}"')


def label_selector(text: str) -> Predicate:
    """Return the predicate of a label selector; empty text selects everything. Raises ApiError 400."""
    if not text.strip():
        return _everything
    requirements = [_requirement(part) for part in _split(text)]
    return lambda obj: all(requirement(obj) for requirement in requirements)


def _field(obj: Any, path: list[str]) -> str:
    for step in path:
        obj = obj.get(step) if isinstance(obj, dict) else None
    if obj is None:
        return ""
    return str(obj).lower() if isinstance(obj, bool) else str(obj)


def field_selector(text: str) -> Predicate:
    """Return the predicate of a field selector; empty text selects everything. Raises ApiError 400."""
    if not text.strip():
        return _everything
    checks: list[tuple[list[str], bool, str]] = []
    for part in text.split(","):
        found = _EQUAL.match(part)
        if found is None:
            raise bad_request(f'invalid field selector: "{part}"')
        path, operator, value = found.groups()
        checks.append((path.split("."), operator != "!=", value))
    return lambda obj: all((_field(obj, path) == value) == same for path, same, value in checks)


def selector(labels: str, fields: str) -> Predicate:
    """Return the predicate of both selectors together. Raises ApiError 400."""
    by_label, by_field = label_selector(labels), field_selector(fields)
    if by_label is _everything and by_field is _everything:
        return _everything
    return lambda obj: by_label(obj) and by_field(obj)
