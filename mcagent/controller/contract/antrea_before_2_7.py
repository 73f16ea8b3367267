"""What controllers of Antrea before 2.7 write and expect otherwise than later ones. Pure.

All such differences stand here, each with the version that ended it. Knows no decisions of ours.

- Before 1.13 a ClusterSet has no `spec.clusterID`: a ClusterClaim named `id.k8s.io` says which cluster this is.

- Before 2.2 a leader removes only the finalizer `resourceexport.finalizers.antrea.io` from an export that is being
  deleted: one with `resourceexport.antrea.io/finalizer` stays for ever. Leaders since then remove both.
- Up to 2.4 a leader stores `targetPort: 0`, Go's zero, where a port of an export has none.
- Before 2.7 a member's ClusterInfo export has no labels at all. Name and spec say whose it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mcagent.controller.contract.names import (
    EXPORT_FINALIZER,
    LABEL_SOURCE_CLUSTER_ID,
    LABEL_SOURCE_KIND,
    LEGACY_EXPORT_FINALIZER,
    ExportKind,
)
from mcagent.model.api.multicluster import ClusterClaim, ResourceExport

EXPORT_FINALIZERS = frozenset({EXPORT_FINALIZER, LEGACY_EXPORT_FINALIZER})
"""Every version's; a leader of ours removes both."""


NO_TARGET_PORT = 0
_CLUSTER_ID_CLAIM = "id.k8s.io"


def claimed(claims: Iterable[ClusterClaim]) -> str:
    """Return the cluster's ID that a ClusterClaim holds, "" if none does."""
    return next((c.value for c in claims if (c.claim_name or c.name) == _CLUSTER_ID_CLAIM), "")


def held_finalizers(held: Sequence[str]) -> list[str]:
    """Return the finalizers of a member's export: `held`, with the one that every leader removes if it has none.

    One that is there stays: a leader refuses exports that lose theirs.
    """
    return [*held] if EXPORT_FINALIZERS & {*held} else [*held, LEGACY_EXPORT_FINALIZER]


def may_lack_labels(export: ResourceExport) -> bool:
    """Tell whether an export has none of the labels that repeat its spec, as old members write a ClusterInfo."""
    labelled = {LABEL_SOURCE_CLUSTER_ID, LABEL_SOURCE_KIND} & export.labels.keys()
    return export.spec.kind == ExportKind.CLUSTER_INFO and not labelled
