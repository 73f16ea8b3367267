"""What this cluster may export, shared fairly (max-min) among its namespaces. Pure.

The leader says on its copy of this cluster's ClusterInfo how many exports of a kind it accepts. Below that, each
key has a place. Above, an export of a namespace with less than its share takes the place of the youngest export of
a namespace with more. Demands that have no place are not counted: each of them makes this decision itself, so that
the places become max-min fair one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mcagent.controller.contract import names
from mcagent.controller.contract.names import ExportKind
from mcagent.controller.machinery.reconciler import Index, Leader, Side, View
from mcagent.controller.member.exports import export_ref
from mcagent.controller.member.membership import import_ref
from mcagent.core.shares import max_min_shares
from mcagent.model.api.multicluster import ResourceExport, ResourceImport

REASON = "TooManyExports"
_OVER_QUOTA = "may export"  # in the leader's refusal, while the export that gave way is not gone
RETRY = 60.0  # seconds after which an export without a place is decided again: places become free


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Whether an export has a place. `gives_way`: the export that it replaces."""

    refusal: str = ""
    gives_way: ResourceExport | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """The quota of one kind of export. `what`: in messages; `namespace_of`: the namespace that an export is of."""

    kind: ExportKind
    what: str
    namespace_of: Callable[[ResourceExport], str]

    def place(self, view: View, leader: Leader, name: str, namespace: str) -> Place:
        """Return whether the export `name`, of `namespace`, has a place among this cluster's exports."""
        limit = max_exports(view, leader)
        ref = export_ref(leader, name)
        is_new = view.get(ref, ResourceExport) is None
        value = f"{leader.cluster_id}/{self.kind}"
        if limit is None or view.count(OWN_BY_KIND, value) + is_new <= limit:
            return Place()
        staying = (export for export in view.indexed(OWN_BY_KIND, value) if not export.is_deleting)
        exports = sorted(staying, key=lambda export: export.age)
        demands = Counter(map(self.namespace_of, exports))
        demands[namespace] += is_new
        shares = max_min_shares(demands, limit)
        places: Counter[str] = Counter()  # by namespace, those of older exports
        without_place: ResourceExport | None = None
        rank = None
        for export in exports:
            owner = self.namespace_of(export)
            if export.name == name:
                rank = places[owner]
            if places[owner] >= shares[owner]:
                without_place = export
            places[owner] += 1
        if (places[namespace] if rank is None else rank) >= shares[namespace]:
            return Place(refusal=self._refusal(leader, limit, namespace, shares[namespace]))
        if not is_new or len(exports) < limit:
            return Place()
        failure = view.failure(ref)
        if failure and _OVER_QUOTA not in failure:
            return Place(refusal=f"it takes no other export's place, because the leader refused it: {failure}")
        return Place(gives_way=without_place)

    def _refusal(self, leader: Leader, limit: int, namespace: str, share: int) -> str:
        return (
            f"cluster {leader.cluster_id} may export {limit} {self.what}, and namespace {namespace} has a share "
            f"of {share}, whose oldest stay: members.maxExports of the leader, or annotation "
            f"{names.MAX_EXPORTS_ANNOTATION} of the cluster's ServiceAccount there, can allow more"
        )


def max_exports(view: View, leader: Leader) -> int | None:
    """Return how many exports of a kind the leader accepts of this cluster; None: it does not say."""
    copy = view.get(import_ref(leader, names.cluster_info(leader.cluster_id)), ResourceImport)
    text = (copy.annotation(names.MAX_EXPORTS_ANNOTATION) if copy is not None else None) or ""
    return int(text) if names.is_export_limit(text) else None


def _by_kind(export: ResourceExport) -> Iterable[str]:
    return [f"{export.spec.cluster_id}/{export.spec.kind}"]


# Under "cluster ID/kind".
OWN_BY_KIND = Index("own-exports-by-kind", ResourceExport, Side.LEADER, _by_kind)
