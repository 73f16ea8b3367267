"""The ServiceImport of an imported Service: what is in it. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from mcagent.controller.contract import names
from mcagent.controller.contract.exported_metadata import Texts
from mcagent.controller.contract.raw import annotation, text_at, texts_at
from mcagent.controller.contract.services import (
    CLUSTER_SET_IP,
    HEADLESS,
    ServiceSpec,
    service_fields,
    service_ports,
    session_affinity,
)
from mcagent.controller.machinery.reconciler import Wanted
from mcagent.controller.member.services.imported import ImportedService
from mcagent.kube.source import RawObject
from mcagent.model.traffic import EXPORTED_TRAFFIC_ANNOTATION


def service_import_of(
    target: ImportedService,
    wanted: ServiceSpec,
    service: RawObject | None,
    clusters: Iterable[str],
    there: RawObject | None,
) -> Wanted:
    """Return the ServiceImport, with the addresses of the Service once there are some. `there`: as it is."""
    ips = [] if wanted.headless else _addresses(service)
    families = ["IPv4"] if wanted.headless else ["IPv6" if ":" in text else "IPv4" for text in ips]
    spec = {
        "type": HEADLESS if wanted.headless else CLUSTER_SET_IP,
        "ips": ips,
        "ports": service_ports(wanted),
        **session_affinity(wanted.affinity_seconds, "None"),
        **service_fields(wanted),
        "ipFamilies": families or None,  # what is here: slices are IPv4, and Services have the cluster's families
    }
    return Wanted(
        ref=target.service_import,
        body={"metadata": _metadata(wanted, there), "spec": spec},
        status={"clusters": [{"cluster": cluster} for cluster in clusters]},
    )


def _addresses(service: RawObject | None) -> list[str]:
    first = text_at(service, "spec", "clusterIP")
    return texts_at(service, "spec", "clusterIPs") or ([first] if first else [])


def _metadata(wanted: ServiceSpec, there: RawObject | None) -> RawObject:
    """Return labels and annotations. What was exported and is no more goes; what others have added stays."""
    before = _keys_before(there)
    keys = {"labels": [key for key, _ in wanted.labels], "annotations": [key for key, _ in wanted.annotations]}
    labels = _changed(before.get("labels"), wanted.labels) | {names.MANAGED_BY_LABEL: names.MANAGED_BY}
    annotations = _changed(before.get("annotations"), wanted.annotations)
    annotations[EXPORTED_TRAFFIC_ANNOTATION] = wanted.traffic or None
    annotations[names.EXPORTED_KEYS_ANNOTATION] = json.dumps(keys) if any(keys.values()) else None
    return {"labels": labels, "annotations": annotations}


def _keys_before(there: RawObject | None) -> Mapping[str, object]:
    try:
        found = json.loads(annotation(there, names.EXPORTED_KEYS_ANNOTATION) or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _changed(before: object, wanted: Texts) -> dict[str, str | None]:
    gone = [key for key in before if isinstance(key, str)] if isinstance(before, list) else []
    return {**dict.fromkeys(gone), **dict(wanted)}
