"""What a ResourceImport says, checked: a leader may pass on what any member wrote, so nothing in it is trusted.

Pure: raw objects to frozen values with known fields only. Raises only InputError, whatever the value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from mcagent.controller.contract import names
from mcagent.controller.contract.exported_metadata import carried_by
from mcagent.controller.contract.raw import annotation
from mcagent.controller.contract.services import (
    Group,
    Groups,
    Hostnames,
    ServiceSpec,
    hostname_of,
    read_service_spec,
    read_subsets,
)
from mcagent.controller.contract.shares import ready_by_cluster, traffic_of
from mcagent.kube.source import RawObject
from mcagent.model.field import Field, printable
from mcagent.model.objects import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenEndpoints:
    """The endpoints of a ResourceImport: addresses as they were written, by whose they are and what they serve."""

    groups: Groups = field(default_factory=dict)
    hostnames: Hostnames = field(default_factory=dict)
    ready: Mapping[str, int] = field(default_factory=dict)  # endpoints behind the ClusterIPs of clusters


def field_of(raw: RawObject) -> Field:
    """Return a ResourceImport as a Field, named for messages."""
    metadata = raw.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else ""
    return Field(f"{Kind.RESOURCE_IMPORT} {printable(str(name))}", raw)


def read_service(raw: RawObject) -> ServiceSpec:
    """Return the Service of a ResourceImport of kind ServiceImport. Raises InputError."""
    carried = carried_by(raw)
    spec = read_service_spec(field_of(raw).get("spec").get("serviceImport").get("spec"))
    traffic, _ = traffic_of(raw)  # the leader has told the exporter what is wrong with it
    return replace(spec, labels=carried.labels, annotations=carried.annotations, traffic=traffic)


def read_endpoints(raw: RawObject) -> GivenEndpoints:
    """Return what is in a ResourceImport of kind Endpoints. Raises InputError.

    Addresses stay in their order, each once for its cluster and ports. Whose a subset is an annotation says, one
    word for each; where it says anything else (Antrea's leader writes none) that is not known.
    """
    subsets = list(read_subsets(field_of(raw).get("spec").get("endpoints")))
    said = (annotation(raw, names.SUBSET_CLUSTERS_ANNOTATION) or "").split(",")
    clusters = said if len(said) == len(subsets) and all(map(names.is_cluster_id, said)) else [""] * len(subsets)
    found: dict[Group, dict[str, None]] = {}
    hostnames: dict[str, str] = {}
    for cluster, (_, ports, addresses) in zip(clusters, subsets, strict=True):
        kept = found.setdefault((cluster, ports), {}) if ports else {}
        for item in addresses:
            text = item.get("ip").text()
            kept[text] = None
            if hostname := hostname_of(item):
                hostnames.setdefault(text, hostname)
    groups = {group: tuple(addresses) for group, addresses in found.items()}
    return GivenEndpoints(groups=groups, hostnames=hostnames, ready=ready_by_cluster(raw))
