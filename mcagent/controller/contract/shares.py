"""What clusters say of where the connections to their Services go: annotations that Antrea's controllers ignore.

`mcagent.io/ready-endpoints`: how many endpoints stand behind a cluster's ClusterIP. An Endpoints ResourceExport
has the number, as EndpointSlices do, the ResourceImport that of each cluster ("east=12,west=3").
`mcagent.io/traffic` of a ServiceExport, its ResourceExport and the ResourceImport: see `mcagent.model.traffic`.
Other clusters are not trusted: what cannot be read counts as not said. Pure. Never raises.
"""

from __future__ import annotations

from collections.abc import Mapping

from mcagent.controller.contract import names
from mcagent.model.api.base import ApiObject
from mcagent.model.traffic import READY_ANNOTATION, TRAFFIC_ANNOTATION, read_ready, read_traffic


def ready_of(raw: ApiObject | None) -> int | None:
    """Return how many ready endpoints an export says its cluster has; None where it does not say."""
    return read_ready_of(raw)[0]


def read_ready_of(raw: ApiObject | None) -> tuple[int | None, str]:
    """Return the same, and what is wrong with it; "" if nothing."""
    text = None if raw is None else raw.annotation(READY_ANNOTATION)
    if text is None:
        return None, ""
    try:
        return read_ready(text), ""
    except ValueError as error:
        return None, f"annotation {READY_ANNOTATION} {error}: the endpoints are counted instead"


def ready_annotation(ready: Mapping[str, int]) -> str | None:
    """Return the annotation of a ResourceImport; None: there must be none."""
    return ",".join(f"{cluster}={number}" for cluster, number in sorted(ready.items())) or None


def ready_by_cluster(raw: ApiObject) -> dict[str, int]:
    """Return how many ready endpoints each cluster has, as far as a ResourceImport says."""
    found: dict[str, int] = {}
    for entry in (raw.annotation(READY_ANNOTATION) or "").split(","):
        cluster, _, text = entry.partition("=")
        try:
            number = read_ready(text)
        except ValueError:
            continue
        if names.is_cluster_id(cluster):
            found[cluster] = number
    return found


def traffic_of(raw: ApiObject, *, may_name: bool = True) -> tuple[str, str]:
    """Return what an object says of where connections go, "" if nothing; and what is wrong with it.

    Who may not name clusters can only say whether importing clusters are to prefer themselves: nobody is to draw
    all connections to itself.
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
