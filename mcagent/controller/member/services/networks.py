"""Which addresses imported endpoints may have: those that other clusters announce, none of this cluster. Pure.

Endpoints that name this cluster's API server, a Node or another Service would turn every Pod that uses the
imported Service against it; a loopback or link-local address means another machine on each Node.
"""

from __future__ import annotations

from collections.abc import Iterable

from mcagent.controller.contract.names import ExportKind
from mcagent.controller.contract.ranges import Networks, range_of
from mcagent.model.api.base import ApiObject
from mcagent.model.api.multicluster import ResourceImport

Announced = tuple[tuple[str, tuple[str, ...]], ...]  # cluster ID and CIDRs, of all other clusters


def cidrs_of(obj: ApiObject | None) -> tuple[str, ...]:
    """Return the CIDRs in a ResourceImport of kind ClusterInfo as they are written; none for anything else."""
    if not isinstance(obj, ResourceImport) or obj.spec.kind != ExportKind.CLUSTER_INFO:
        return ()
    info = obj.spec.cluster_info
    return () if info is None else tuple(filter(None, (info.service_cidr, *info.pod_cidrs)))


def networks(announced: Announced, own: Iterable[str], allowed: Iterable[str] = ()) -> tuple[Networks, Networks]:
    """Return this cluster's networks, and the others'.

    What `allowed` holds belongs to "", no cluster in particular.
    """
    mine = [(*bounds, "") for text in own if (bounds := range_of(text)) is not None]
    others = [(*b, cluster) for cluster, cidrs in announced for text in cidrs if (b := range_of(text)) is not None]
    others += [(*bounds, "") for text in allowed if (bounds := range_of(text)) is not None]
    return Networks(mine), Networks(others)
