"""Labels and annotations of a ServiceImport that its ServiceExports ask for (KEP-1645). Pure.

ResourceExports and ResourceImports carry them as annotations, in JSON: their schemas have no other place.
Exporter, leader and importer all check them, since each may be handed anything; what is not taken is left out.
Never raises.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mcagent.controller.contract import names
from mcagent.model.api.base import ApiObject
from mcagent.model.api.multicluster import ApiServiceExport

MAX_ENTRIES = 64  # of labels, and of annotations
MAX_TEXT = 16 * 1024  # bytes of all labels, and of all annotations
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
# Of Kubernetes and of what decides whose an object is: nobody's to write in other clusters.
_RESERVED = ("kubernetes.io", "k8s.io", "x-k8s.io", "mcagent.io", "antrea.io")
_FREE = "app.kubernetes.io"  # recommended labels, but the one by which we know what is ours

Texts = tuple[tuple[str, str], ...]  # keys and values, sorted


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedMetadata:
    """What is to stand on the ServiceImport, and the keys that are left out."""

    labels: Texts = ()
    annotations: Texts = ()
    left_out: tuple[str, ...] = ()


def asked_for(export: ApiServiceExport) -> ExportedMetadata:
    """Return what a ServiceExport asks for."""
    return _checked(export.spec.exported_labels, export.spec.exported_annotations)


def carried_by(raw: ApiObject) -> ExportedMetadata:
    """Return what a ResourceExport or ResourceImport carries."""
    keys = (names.EXPORTED_LABELS_ANNOTATION, names.EXPORTED_ANNOTATIONS_ANNOTATION)
    return _checked(*(_parsed(raw.annotation(key) or "") for key in keys))


def as_annotations(labels: Texts, annotations: Texts) -> dict[str, str | None]:
    """Return the annotations by which they are carried; None: there must be none."""
    return {
        names.EXPORTED_LABELS_ANNOTATION: _json(labels) if labels else None,
        names.EXPORTED_ANNOTATIONS_ANNOTATION: _json(annotations) if annotations else None,
    }


def _json(texts: Texts) -> str:
    return json.dumps(dict(texts), ensure_ascii=False)


def _parsed(text: str) -> object:
    if len(text) > 8 * MAX_TEXT:  # with what is escaped
        return None
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None


def _checked(labels: object, annotations: object) -> ExportedMetadata:
    left_out: list[str] = []
    kept = [
        tuple(_kept(found, left_out, is_label=is_label))
        for found, is_label in ((labels, True), (annotations, False))
    ]
    return ExportedMetadata(labels=kept[0], annotations=kept[1], left_out=tuple(left_out))


def _kept(found: object, left_out: list[str], *, is_label: bool) -> Iterable[tuple[str, str]]:
    room, count = MAX_TEXT, 0
    entries = found if isinstance(found, Mapping) else {}
    for key in sorted(key for key in entries if isinstance(key, str)):
        value = entries[key]
        good = (
            isinstance(value, str) and _may_be_written(key) and (_is_value(value) if is_label else _is_text(value))
        )
        room -= len(key) + len(value.encode()) if good else 0
        if not good or room < 0 or count == MAX_ENTRIES:
            left_out.append(key)
            continue
        count += 1
        yield key, value


def _may_be_written(key: str) -> bool:
    prefix, slash, name = key.rpartition("/")
    if _NAME.fullmatch(name) is None or (slash and not names.is_subdomain(prefix)):
        return False
    if prefix == _FREE:
        return key != names.MANAGED_BY_LABEL
    return not any(prefix == domain or prefix.endswith(f".{domain}") for domain in _RESERVED)


def _is_text(text: str) -> bool:
    """Tell whether an API server keeps a text as it is: JSON can have halves of characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_value(text: str) -> bool:
    return not text or _NAME.fullmatch(text) is not None
