"""The differences of Antrea's controllers before 2.7, each with the version that ended it. Pure.

- Before 1.13 a ClusterSet has no `spec.clusterID`: a ClusterClaim named `id.k8s.io` has the cluster's ID.
- Before 2.2 a leader removes only the finalizer `resourceexport.finalizers.antrea.io` from an export that is being
  deleted, so one with `resourceexport.antrea.io/finalizer` is never deleted. Later leaders remove both.
- Up to 2.4 a leader stores `targetPort: 0`, Go's zero, where a port of an export has none.
- Before 2.7 a member's ClusterInfo export has no labels, which the admission policies permit. Name and spec
  identify its cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mcagent.controller.contract.names import EXPORT_FINALIZER, LEGACY_EXPORT_FINALIZER
from mcagent.model.api.multicluster import ClusterClaim

EXPORT_FINALIZERS = frozenset({EXPORT_FINALIZER, LEGACY_EXPORT_FINALIZER})
"""The finalizers of all versions; mcagent's leader removes both."""

NO_TARGET_PORT = 0
_CLUSTER_ID_CLAIM = "id.k8s.io"


def claimed(claims: Iterable[ClusterClaim]) -> str:
    """Return the cluster ID in the ClusterClaim `id.k8s.io`; "" if there is none."""
    return next((c.value for c in claims if (c.claim_name or c.name) == _CLUSTER_ID_CLAIM), "")


def with_finalizer(finalizers: Sequence[str]) -> list[str]:
    """Return the finalizers of a member's export, with the one that all leaders remove if it has neither.

    A present one stays, because a leader refuses exports that lose theirs.
    """
    return [*finalizers] if EXPORT_FINALIZERS & {*finalizers} else [*finalizers, LEGACY_EXPORT_FINALIZER]
