"""The annotations of ResourceExports and ResourceImports that their schemas have no field for. Pure. Never raises.

Exported labels and annotations of a ServiceImport (KEP-1645), as JSON. Exporter, leader and importer check them,
and leave out invalid ones.

`mcagent.io/ready-endpoints`: the number of endpoints behind a cluster's ClusterIP. An Endpoints ResourceExport and
EndpointSlices have the number, the ResourceImport that of each cluster ("east=12,west=3").

`mcagent.io/traffic` of a ServiceExport, its ResourceExport and the ResourceImport: see `mcagent.model.traffic`.
Invalid values are ignored. Antrea's controllers ignore all of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mcagent.controller.contract import names
from mcagent.model.api.base import ApiObject
from mcagent.model.api.multicluster import ApiServiceExport
from mcagent.model.traffic import READY_ANNOTATION, TRAFFIC_ANNOTATION, read_ready, read_traffic

MAX_ENTRIES = 64  # of labels, and of annotations
MAX_TEXT = 16 * 1024  # bytes of all labels, and of all annotations
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
# Domains of Kubernetes and of labels that identify owners, which other clusters must not write.
_RESERVED = ("kubernetes.io", "k8s.io", "x-k8s.io", "mcagent.io", "antrea.io")
_FREE = "app.kubernetes.io"  # recommended labels, except MANAGED_BY_LABEL, which identifies mcagent's objects

Texts = tuple[tuple[str, str], ...]  # keys and values, sorted


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedMetadata:
    """The labels and annotations of the ServiceImport, and the keys that are left out."""

    labels: Texts = ()
    annotations: Texts = ()
    left_out: tuple[str, ...] = ()


def asked_for(export: ApiServiceExport) -> ExportedMetadata:
    """Return the exported labels and annotations of a ServiceExport."""
    return _checked(export.spec.exported_labels, export.spec.exported_annotations)


def carried_by(raw: ApiObject) -> ExportedMetadata:
    """Return the labels and annotations in a ResourceExport or ResourceImport."""
    keys = (names.EXPORTED_LABELS_ANNOTATION, names.EXPORTED_ANNOTATIONS_ANNOTATION)
    return _checked(*(_parsed(raw.annotation(key) or "") for key in keys))


def as_annotations(labels: Texts, annotations: Texts) -> dict[str, str | None]:
    """Return the annotations of a ResourceExport or ResourceImport with them; None: it must be absent."""
    return {
        names.EXPORTED_LABELS_ANNOTATION: _json(labels) if labels else None,
        names.EXPORTED_ANNOTATIONS_ANNOTATION: _json(annotations) if annotations else None,
    }


def _json(texts: Texts) -> str:
    return json.dumps(dict(texts), ensure_ascii=False)


def _parsed(text: str) -> object:
    if len(text) > 8 * MAX_TEXT:  # of JSON with escapes
        return None
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None


def _checked(labels: object, annotations: object) -> ExportedMetadata:
    left_out: list[str] = []
    valid_labels = tuple(_valid(labels, left_out, is_label=True))
    valid_annotations = tuple(_valid(annotations, left_out, is_label=False))
    return ExportedMetadata(labels=valid_labels, annotations=valid_annotations, left_out=tuple(left_out))


def _valid(value_of_json: object, left_out: list[str], *, is_label: bool) -> Iterable[tuple[str, str]]:
    """Yield the valid entries up to the limits, and add the keys of others to `left_out`."""
    room, count = MAX_TEXT, 0
    entries = value_of_json if isinstance(value_of_json, Mapping) else {}
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
    """Tell whether an API server stores a text unchanged: JSON can have lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_value(text: str) -> bool:
    return not text or _NAME.fullmatch(text) is not None


# --- shares of connections ------------------------------------------------------------------------------------


def ready_of(raw: ApiObject | None) -> int | None:
    """Return the number of ready endpoints in an export's annotation; None if it has no valid one."""
    return read_ready_of(raw)[0]


def read_ready_of(raw: ApiObject | None) -> tuple[int | None, str]:
    """Return the number of ready endpoints, and the error in the annotation; "" if it has none."""
    text = None if raw is None else raw.annotation(READY_ANNOTATION)
    if text is None:
        return None, ""
    try:
        return read_ready(text), ""
    except ValueError as error:
        return None, f"annotation {READY_ANNOTATION} {error}: the endpoints are counted instead"


def ready_annotation(ready: Mapping[str, int]) -> str | None:
    """Return the annotation of a ResourceImport; None: it must be absent."""
    return ",".join(f"{cluster}={number}" for cluster, number in sorted(ready.items())) or None


def ready_by_cluster(raw: ApiObject) -> dict[str, int]:
    """Return the number of ready endpoints by cluster ID, from the annotation of a ResourceImport."""
    numbers: dict[str, int] = {}
    for entry in (raw.annotation(READY_ANNOTATION) or "").split(","):
        cluster, _, text = entry.partition("=")
        try:
            number = read_ready(text)
        except ValueError:
            continue
        if names.is_cluster_id(cluster):
            numbers[cluster] = number
    return numbers


def traffic_of(raw: ApiObject, *, may_name: bool = True) -> tuple[str, str]:
    """Return the traffic annotation of an object, and its error; "" if there is none.

    Without `may_name`, a value that names clusters is ignored, so that no cluster can direct all connections to
    itself.
    """
    text = raw.annotation(TRAFFIC_ANNOTATION)
    if text is None:
        return "", ""
    try:
        traffic = read_traffic(text)
    except ValueError as error:
        return "", f"annotation {TRAFFIC_ANNOTATION} {error}: ignored"
    if not may_name and traffic.names_clusters:
        return "", (
            f"annotation {TRAFFIC_ANNOTATION} names clusters: ignored unless the namespace is reserved "
            f"for its clusters (annotation {names.ALLOWED_NAMESPACES_ANNOTATION} of ServiceAccounts on the leader)"
        )
    return str(traffic), ""
