"""How many exports of a kind a member may have, and how large each may be. Pure.

The oldest exports stay. `bounds` has the number, which an administrator may set for each member.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from mcagent.controller.contract import names
from mcagent.controller.contract.names import ExportKind
from mcagent.controller.leader.exports.header import BY_KIND, by_kind
from mcagent.controller.machinery.reconciler import ObjectChange, View
from mcagent.model.api.multicluster import ResourceExport

PLAIN_BYTES = 64 * 1024  # of an export that holds no endpoints


def size_limit(kind: str, max_bytes: int) -> int:
    """Return how many bytes an export of a kind may have."""
    return max_bytes if kind == ExportKind.ENDPOINTS else min(max_bytes, PLAIN_BYTES)


def too_large(content: Any, kind: str, max_bytes: int) -> str:
    """Return why an export with this content is too large to be looked into, "" if it is not."""
    limit = size_limit(kind, max_bytes)
    with suppress(RecursionError):  # nested deeper than anything that is read
        if len(msgspec.json.encode(content)) <= limit:
            return ""
    key = " (members.maxExportBytes of the leader)" if limit == max_bytes else ""
    return f"it is larger than {limit} bytes of JSON, the limit for exports of its kind{key}"


def over_quota(cluster_id: str, limit: int, what: str = "Services") -> str:
    """Return the message for exports that are more than a member may have."""
    return (
        f"cluster {cluster_id} may export {limit} {what}, and the oldest stay: members.maxExports of the leader, "
        f"or annotation {names.MAX_EXPORTS_ANNOTATION} of the cluster's ServiceAccount, can allow more"
    )


def at_the_limit(
    view: View, change: ObjectChange, kind: ExportKind, limit_of: Callable[[str], int]
) -> Sequence[ResourceExport]:
    """Return the exports about which a coming or going decides: the last that stays, the first that goes.

    `limit_of` says how many exports of the kind a cluster may have.
    """
    old, new = change.of(ResourceExport)
    export = new or old
    same = old is not None and new is not None and old.is_deleting == new.is_deleting
    if export is None or same or export.spec.kind != kind:
        return ()
    value, limit = by_kind(export.namespace, export.spec.cluster_id, kind), limit_of(export.spec.cluster_id)
    if view.count(BY_KIND, value) < limit:
        return ()
    by_age = sorted((e for e in view.indexed(BY_KIND, value) if not e.is_deleting), key=lambda e: e.age)
    return by_age[max(0, limit - 1) : limit + 1]


def is_over(view: View, export: ResourceExport, limit: int) -> bool:
    """Tell whether `limit` older exports of its cluster and kind stay; False for one that is being deleted."""
    value = by_kind(export.namespace, export.spec.cluster_id, export.spec.kind)
    if export.is_deleting or view.count(BY_KIND, value) <= limit:
        return False
    ages = (other.age for other in view.indexed(BY_KIND, value) if not other.is_deleting)
    return export.age not in heapq.nsmallest(limit, ages)
