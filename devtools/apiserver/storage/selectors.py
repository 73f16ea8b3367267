"""Label and field selectors: text to a predicate over an object.

Label selector grammar: k8s.io/apimachinery/pkg/labels/selector.go. Field selectors know `=`, `==` and `!=` on the
fields that the real server has for a kind; a field that the object lacks counts as empty text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from devtools.apiserver.errors import Json, bad_request
from devtools.apiserver.objects.resources import ResourceType

Predicate = Callable[[Json], bool]

_SET = re.compile(r"^\s*([^\s!=(),]+)\s+(in|notin)\s*\(([^()]*)\)\s*$")
_EQUAL = re.compile(r"^\s*([^\s!=(),]+)\s*(==|=|!=)\s*([^\s!=(),]*)\s*$")
_EXISTS = re.compile(r"^\s*(!?)\s*([^\s!=(),]+)\s*$")

# k8s.io/kubernetes, pkg/apis/core/v1/conversion.go
_FIELDS: dict[str, frozenset[str]] = {
    "Namespace": frozenset({"status.phase"}),
    "Node": frozenset({"spec.unschedulable"}),
    "Pod": frozenset(
        {"spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName"}
        | {"spec.hostNetwork", "status.phase", "status.podIP", "status.podIPs", "status.nominatedNodeName"}
    ),
    "Secret": frozenset({"type"}),
    "Service": frozenset({"spec.clusterIP", "spec.type"}),
    "Event": frozenset(
        {
            f"involvedObject.{word}"
            for word in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion")
        }
        | {"involvedObject.fieldPath", "reason", "reportingComponent", "source", "type"}
    ),
}


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


def field_selector(rt: ResourceType, text: str) -> Predicate:
    """Return the predicate of a field selector; empty text selects everything. Raises ApiError 400."""
    if not text.strip():
        return _everything
    checks: list[tuple[list[str], bool, str]] = []
    for part in text.split(","):
        found = _EQUAL.match(part)
        if found is None:
            raise bad_request(f'invalid field selector: "{part}"')
        path, operator, value = found.groups()
        fields = frozenset() if rt.group else _FIELDS.get(rt.kind, frozenset())
        if path not in ("metadata.name", "metadata.namespace") and path not in fields:
            raise bad_request(f"field label not supported: {path}")
        checks.append((path.split("."), operator != "!=", value))
    return lambda obj: all((_field(obj, path) == value) == same for path, same, value in checks)


def selector(rt: ResourceType, labels: str, fields: str) -> Predicate:
    """Return the predicate of both selectors together. Raises ApiError 400."""
    by_label, by_field = label_selector(labels), field_selector(rt, fields)
    if by_label is _everything and by_field is _everything:
        return _everything
    return lambda obj: by_label(obj) and by_field(obj)


def object_selector(wanted: Json) -> Predicate:
    """Return the predicate of a metav1.LabelSelector; an empty one selects everything. Raises ApiError 400."""
    texts = [f"{key}={value}" for key, value in (wanted.get("matchLabels") or {}).items()]
    for part in wanted.get("matchExpressions") or ():
        key, operator, values = part.get("key"), part.get("operator"), ",".join(part.get("values") or ())
        known = {
            "In": f"{key} in ({values})",
            "NotIn": f"{key} notin ({values})",
            "Exists": str(key),
            "DoesNotExist": f"!{key}",
        }
        if operator not in known:
            raise bad_request(f"{operator!r} is not a valid label selector operator")
        texts.append(known[operator])
    requirements = [_requirement(text) for text in texts]
    return lambda obj: all(requirement(obj) for requirement in requirements)
