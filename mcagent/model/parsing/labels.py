"""Label identities as text: what a Namespace's and a Pod's labels are together, and which numbers stand for them.

Pure. The text is that of Antrea Multi-cluster, to the byte: members, leaders and agents compare it and its hash.
Reading is strict, for the text comes from other clusters.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from mcagent.model.errors import InputError
from mcagent.model.parsing.field import Field

FIRST, LAST = 1, 0xFFFFFE  # numbers that are given; they are carried in the 24 bits of a tunnel's VNI
UNKNOWN = 0xFFFFFF  # what a packet carries whose sender has no number
MAX_TEXT = 8192  # characters of one identity
NAMESPACE_NAME = "kubernetes.io/metadata.name"

_SHAPE = re.compile(r"ns:([^&]*)&pod:([^&]*)")
_PART = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_KEY = re.compile(rf"([a-z0-9][-a-z0-9.]{{0,252}}/)?{_PART}")
_VALUE = re.compile(rf"({_PART})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """The labels that an identity stands for."""

    namespace: Mapping[str, str]
    pod: Mapping[str, str]


def joined(labels: Mapping[str, str]) -> str:
    """Return labels as sorted `key=value,...`; "" for none (old versions of Antrea wrote `<none>`).

    Whole entries are sorted, as Kubernetes' `labels.Set` does it: `a-b=1` is before `a=1`.
    """
    return ",".join(sorted(f"{key}={value}" for key, value in labels.items()))


def namespace_part(name: str, labels: Mapping[str, str]) -> str:
    """Return a Namespace's labels as text. The name is always among them, as the API server sees to since 1.21."""
    return joined({NAMESPACE_NAME: name, **labels})


def identity(namespace: str, pod: str) -> str:
    """Return the text of an identity of its two parts."""
    return f"ns:{namespace}&pod:{pod}"


def normalised(namespace: str, namespace_labels: Mapping[str, str], pod_labels: Mapping[str, str]) -> str:
    """Return the identity of a Pod's labels in a Namespace of that name."""
    return identity(namespace_part(namespace, namespace_labels), joined(pod_labels))


def label_hash(text: str) -> str:
    """Return the name of an identity's ResourceImport and LabelIdentity."""
    return hashlib.sha1(text.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()[:16]


def read_labels(field: Field) -> Labels:
    """Return the labels of an identity. Raises InputError for a text that `normalised` cannot have made."""
    text = field.text()
    if len(text) > MAX_TEXT:
        raise field.error(f"has {len(text)} characters, at most {MAX_TEXT} allowed", "TooLarge")
    match = _SHAPE.fullmatch(text)
    if match is None:
        raise field.error("must be ns:<labels>&pod:<labels>")
    namespace, pod = (_read(field, part) for part in match.groups())
    if not namespace.get(NAMESPACE_NAME):
        raise field.error(f"has no {NAMESPACE_NAME} among the labels of the Namespace")
    return Labels(namespace=namespace, pod=pod)


def split(text: str) -> Labels:
    """Return the labels of a text that `identity` has made, or that `parsed` has found right."""
    namespace, _, pod = text.removeprefix("ns:").partition("&pod:")
    return Labels(namespace=_entries(namespace), pod=_entries(pod))


def _entries(part: str) -> dict[str, str]:
    return dict(item.split("=", 1) for item in part.split(",")) if part else {}


def parsed(text: str) -> Labels | None:
    """Return the labels of an identity, None if the text is none."""
    try:
        return read_labels(Field("LabelIdentity", text))
    except InputError:
        return None


def _read(field: Field, part: str) -> dict[str, str]:
    labels: dict[str, str] = {}
    items = part.split(",") if part else []
    for item in items:
        key, equals, value = item.partition("=")
        if not equals or not _KEY.fullmatch(key) or not _VALUE.fullmatch(value):
            raise field.error("has something that is no label: each is key=value, as Kubernetes takes them")
        labels[key] = value
    if len(labels) < len(items) or items != sorted(items):
        raise field.error("must have its labels sorted, each once")
    return labels
