"""What metadata may look like: names, labels, annotations, finalizers, owner references. Pure.

Rules: k8s.io/apimachinery/pkg/api/validation and pkg/util/validation (RFC 1123 and 1035 names, qualified names).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from devtools.apiserver.errors import Cause, Json
from devtools.apiserver.objects.resources import RBAC, ResourceType

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_LABEL_1035 = r"[a-z]([-a-z0-9]*[a-z0-9])?"
_WORD = r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
_VALUE = rf"({_WORD})?"

_FINALIZERS = ("kubernetes", "orphan", "foregroundDeletion")
MAX_ANNOTATIONS = 256 * 1024  # bytes of all keys and values


def _quoted(value: Any) -> str:
    return json.dumps(value)


def _name(value: str, pattern: str, most: int, what: str) -> str:
    """Return what is wrong with a name, "" for a good one."""
    if len(value) > most:
        return f"Invalid value: {_quoted(value)}: must be no more than {most} characters"
    if not re.fullmatch(pattern, value):
        return f"Invalid value: {_quoted(value)}: {what} (regex used for validation is '{pattern}')"
    return ""


def subdomain(value: str) -> str:
    """Return what keeps a name from being an RFC 1123 subdomain, "" if nothing does."""
    what = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.'"
    return _name(value, _SUBDOMAIN, 253, what)


def label(value: str) -> str:
    """Return what keeps a name from being an RFC 1123 label, "" if nothing does."""
    if "." in value:
        return f"Invalid value: {_quoted(value)}: must not contain dots"
    what = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-'"
    return _name(value, _LABEL, 63, what)


def label_1035(value: str) -> str:
    """Return what keeps a name from being an RFC 1035 label, "" if nothing does."""
    what = "a DNS-1035 label must consist of lower case alphanumeric characters or '-' and begin with a letter"
    return _name(value, _LABEL_1035, 63, what)


def path_segment(value: str) -> str:
    """Return what keeps a name from being one step of a path, "" if nothing does."""
    if value in (".", "..") or "/" in value or "%" in value:
        return f"Invalid value: {_quoted(value)}: may not contain '/' or '%', nor be '.' or '..'"
    return ""


def qualified_name(value: str) -> str:
    """Return what keeps a key from being a name with an optional DNS prefix, "" if nothing does."""
    prefix, slash, name = value.rpartition("/")
    if slash and (not prefix or subdomain(prefix)):
        return f"Invalid value: {_quoted(value)}: prefix part must be a DNS-1123 subdomain"
    what = "name part must consist of alphanumeric characters, '-', '_' or '.'"
    return _name(name, _WORD, 63, what).replace(_quoted(name), _quoted(value))


def name_rule(rt: ResourceType, name: str) -> str:
    """Return what is wrong with an object's name, by its resource; "" for a good one."""
    if rt.group == RBAC:
        return path_segment(name)
    if not rt.group and rt.plural == "services":
        return label_1035(name)
    if not rt.group and rt.plural == "namespaces":
        return label(name)
    return subdomain(name)


def metadata_causes(rt: ResourceType, meta: Json) -> Iterator[Cause]:
    """Yield what is wrong with an object's metadata."""
    if wrong := name_rule(rt, meta["name"]):
        yield Cause("metadata.name", wrong)
    for key, value in (meta.get("labels") or {}).items():
        if wrong := qualified_name(key) or _name(value, _VALUE, 63, "a valid label must be an empty string or so"):
            yield Cause("metadata.labels", wrong)
    size = 0
    for key, value in (meta.get("annotations") or {}).items():
        size += len(key.encode()) + len(value.encode())
        if wrong := qualified_name(key.lower()):
            yield Cause("metadata.annotations", wrong)
    if size > MAX_ANNOTATIONS:
        yield Cause("metadata.annotations", f"Too long: may not be more than {MAX_ANNOTATIONS} bytes")
    for at, finalizer in enumerate(meta.get("finalizers") or ()):
        if wrong := qualified_name(str(finalizer)):
            yield Cause("metadata.finalizers", wrong)
        elif not rt.custom and "/" not in finalizer and finalizer not in _FINALIZERS:
            why = "name is neither a standard finalizer name nor is it fully qualified"
            yield Cause(f"metadata.finalizers[{at}]", f"Invalid value: {_quoted(finalizer)}: {why}")
    controllers = 0
    for owner in meta.get("ownerReferences") or ():
        given = owner if isinstance(owner, dict) else {}
        controllers += bool(given.get("controller"))
        for field in ("apiVersion", "kind", "name", "uid"):
            if not given.get(field):
                yield Cause(f"metadata.ownerReferences.{field}", "Invalid value: must not be empty")
    if controllers > 1:
        yield Cause(
            "metadata.ownerReferences", "Invalid value: only one reference can have Controller set to true"
        )
