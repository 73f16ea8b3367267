"""The reconciler of this cluster's export range: the CIDR that it publishes instead of its Service CIDR."""

from __future__ import annotations

from msgspec.structs import replace

from mcagent.controller.contract.export_ranges import (
    ALWAYS,
    AUTO,
    NEVER,
    RANGE_ANNOTATION,
    UsedRange,
    read_assigned,
    read_used,
)
from mcagent.controller.machinery.reconciler import Leader, View
from mcagent.controller.member.membership import own_cluster_info
from mcagent.controller.member.networks.ranges import (
    RangeReconciler,
    occupant,
    old_agents,
    without_answer,
)
from mcagent.controller.member.published import AGENTS_TOO_OLD, ASSIGNED, CONFIGURED, EXHAUSTED, IN_USE, WITHDRAWN
from mcagent.model.api.multicluster import ApiGateway, ClusterSet


class ExportRange(RangeReconciler[UsedRange]):
    """Decides on the export range of this cluster."""

    name = "export-range"
    annotation = RANGE_ANNOTATION

    @staticmethod
    def is_able(gateway: ApiGateway) -> bool:
        """Tell whether the agent of a gateway serves export addresses."""
        return gateway.status.export_addresses

    def chosen(self, view: View, leader: Leader, cluster_set: ClusterSet) -> UsedRange | None:
        """Return the range to use; None while that is not decided."""
        mode, present = self._settings.export_cidr, read_used(cluster_set) or UsedRange()
        if mode == NEVER:
            return UsedRange()
        if mode in (AUTO, ALWAYS):
            chosen = self._answered(view, leader, present)
            if chosen is None or not chosen.cidr:
                return chosen
        else:
            chosen = UsedRange(cidr=mode, reason=CONFIGURED, why="exportCIDR of this cluster's configuration")
        if why := occupant(view, self._settings, chosen.cidr):
            return UsedRange(reason=IN_USE, why=f"{chosen.cidr} cannot be this cluster's export range: {why}")
        if chosen.cidr != present.cidr and (old := old_agents(view, self.is_able)):
            why = f"{chosen.cidr} is not used yet: the agents of gateways {old} do not serve export addresses"
            return replace(present, reason=AGENTS_TOO_OLD, why=why)
        return chosen

    def _answered(self, view: View, leader: Leader, present: UsedRange) -> UsedRange | None:
        """Return the range that the leader assigns, maybe none; None while it has not answered."""
        own_import = own_cluster_info(view, leader)
        if own_import is None:
            return None
        answer = read_assigned(own_import)
        if answer is None:
            return without_answer(own_import, present, self._settings.export_cidr, "no ranges: set exportCIDR")
        if answer.service_cidr != self._settings.service_cidr:
            return None
        if answer.cidr:
            return UsedRange(cidr=answer.cidr, reason=ASSIGNED, why=answer.why)
        if not answer.why:
            return UsedRange()
        had_range = present.reason == WITHDRAWN or (present.reason == ASSIGNED and bool(present.cidr))
        withdrawn = "the range was withdrawn, and " if had_range else ""
        why = f"{answer.why}, but {withdrawn}exportCIDRs of the leader has no free range"
        return UsedRange(reason=WITHDRAWN if had_range else EXHAUSTED, why=why)
