"""An imported Service: what its ResourceImports say, and what is in its ServiceImport. Pure.

A leader may pass on what any member wrote, so what is read is checked. Raises only InputError.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from mcagent.controller.contract import names
from mcagent.controller.contract.exported_metadata import Texts, carried_by
from mcagent.controller.contract.services import (
    CLUSTER_SET_IP,
    HEADLESS,
    Group,
    Groups,
    Hostnames,
    ServiceSpec,
    hostname_of,
    read_service_spec,
    read_subsets,
    service_fields,
    service_ports,
    session_affinity,
)
from mcagent.controller.contract.shares import ready_by_cluster, traffic_of
from mcagent.controller.machinery.reconciler import Json, Wanted
from mcagent.controller.member.services.imported import ImportedService
from mcagent.model.api.kubernetes import ApiService
from mcagent.model.api.multicluster import ApiServiceImport, ResourceImport
from mcagent.model.traffic import EXPORTED_TRAFFIC_ANNOTATION

# --- reading ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenEndpoints:
    """The endpoints of a ResourceImport: addresses as they were written, by whose they are and what they serve."""

    groups: Groups = field(default_factory=dict)
    hostnames: Hostnames = field(default_factory=dict)
    ready: Mapping[str, int] = field(default_factory=dict)  # endpoints behind the ClusterIPs of clusters


def read_service(resource_import: ResourceImport) -> ServiceSpec:
    """Return the Service of a ResourceImport of kind ServiceImport. Raises InputError."""
    carried = carried_by(resource_import)
    spec = read_service_spec(resource_import.spec.service_import.spec, resource_import, "spec.serviceImport.spec")
    traffic, _ = traffic_of(resource_import)  # the leader has told the exporter what is wrong with it
    return replace(spec, labels=carried.labels, annotations=carried.annotations, traffic=traffic)


def read_endpoints(resource_import: ResourceImport) -> GivenEndpoints:
    """Return what is in a ResourceImport of kind Endpoints. Raises InputError.

    Addresses stay in their order, each once for its cluster and ports. Whose a subset is an annotation says, one
    word for each; where it says anything else (Antrea's leader writes none) that is not known.
    """
    subsets = list(read_subsets(resource_import.spec.endpoints, resource_import, "spec.endpoints"))
    cluster_ids = (resource_import.annotation(names.SUBSET_CLUSTERS_ANNOTATION) or "").split(",")
    clusters = (
        cluster_ids
        if len(cluster_ids) == len(subsets) and all(map(names.is_cluster_id, cluster_ids))
        else [""] * len(subsets)
    )
    groups: dict[Group, dict[str, None]] = {}
    hostnames: dict[str, str] = {}
    for cluster, (_, ports, addresses) in zip(clusters, subsets, strict=True):
        group = groups.setdefault((cluster, ports), {}) if ports else {}
        for item in addresses:
            group[item.ip] = None
            if hostname := hostname_of(item):
                hostnames.setdefault(item.ip, hostname)
    return GivenEndpoints(
        groups={group: tuple(addresses) for group, addresses in groups.items()},
        hostnames=hostnames,
        ready=ready_by_cluster(resource_import),
    )


# --- writing ----------------------------------------------------------------------------------------------------


def service_import_of(
    target: ImportedService,
    definition: ServiceSpec,
    service: ApiService | None,
    clusters: Iterable[str],
    present: ApiServiceImport | None,
) -> Wanted:
    """Return the ServiceImport, with the addresses of the Service once there are some. `present`: as it is."""
    ips = [] if definition.headless else _addresses(service)
    families = ["IPv4"] if definition.headless else ["IPv6" if ":" in text else "IPv4" for text in ips]
    spec = {
        "type": HEADLESS if definition.headless else CLUSTER_SET_IP,
        "ips": ips,
        "ports": service_ports(definition),
        **session_affinity(definition.affinity_seconds, "None"),
        **service_fields(definition),
        "ipFamilies": families or None,  # what is here: slices are IPv4, and Services have the cluster's families
    }
    return Wanted(
        ref=target.service_import,
        body={"metadata": _metadata(definition, present), "spec": spec},
        status={"clusters": [{"cluster": cluster} for cluster in clusters]},
    )


def _addresses(service: ApiService | None) -> list[str]:
    if service is None:
        return []
    return list(service.spec.cluster_ips) or [*filter(None, (service.spec.cluster_ip,))]


def _metadata(definition: ServiceSpec, present: ApiServiceImport | None) -> Json:
    """Return labels and annotations. What was exported and is no more goes; what others have added stays."""
    before = _keys_before(present)
    keys = {
        "labels": [key for key, _ in definition.labels],
        "annotations": [key for key, _ in definition.annotations],
    }
    labels = _changed(before.get("labels"), definition.labels) | {names.MANAGED_BY_LABEL: names.MANAGED_BY}
    annotations = _changed(before.get("annotations"), definition.annotations)
    annotations[EXPORTED_TRAFFIC_ANNOTATION] = definition.traffic or None
    annotations[names.EXPORTED_KEYS_ANNOTATION] = json.dumps(keys) if any(keys.values()) else None
    return {"labels": labels, "annotations": annotations}


def _keys_before(present: ApiServiceImport | None) -> Mapping[str, object]:
    text = present.annotation(names.EXPORTED_KEYS_ANNOTATION) if present is not None else None
    try:
        keys = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return keys if isinstance(keys, dict) else {}


def _changed(before: object, exported: Texts) -> dict[str, str | None]:
    gone = [key for key in before if isinstance(key, str)] if isinstance(before, list) else []
    return {**dict.fromkeys(gone), **dict(exported)}
