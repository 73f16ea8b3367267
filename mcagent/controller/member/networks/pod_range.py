"""The reconciler of this cluster's virtual Pod CIDRs, which it publishes in the place of its Pod CIDRs."""

from __future__ import annotations

from msgspec.structs import replace

from mcagent.controller.contract.export_ranges import ALWAYS, AUTO, NEVER
from mcagent.controller.contract.pod_ranges import (
    POD_RANGE_ANNOTATION,
    UsedPodCidrs,
    parse_pairs,
    read_assigned_pods,
    read_used_pods,
)
from mcagent.controller.machinery.reconciler import Leader, View
from mcagent.controller.member.membership import own_cluster_info
from mcagent.controller.member.networks.ranges import (
    RangeReconciler,
    occupant,
    old_agents,
    without_answer,
)
from mcagent.controller.member.published import (
    AGENTS_TOO_OLD,
    ASSIGNED,
    CONFIGURED,
    EXHAUSTED,
    IN_USE,
    WITHDRAWN,
    export_cidr,
)
from mcagent.model.api.multicluster import ApiGateway, ClusterSet
from mcagent.model.parsing.field import printable

INVALID = "InvalidCIDR"


class PodRange(RangeReconciler[UsedPodCidrs]):
    """Decides on the virtual Pod CIDRs of this cluster."""

    name = "pod-range"
    annotation = POD_RANGE_ANNOTATION

    @staticmethod
    def is_able(gateway: ApiGateway) -> bool:
        """Tell whether the agent of a gateway translates Pod CIDRs."""
        return gateway.status.pod_prefixes

    def chosen(self, view: View, leader: Leader, cluster_set: ClusterSet) -> UsedPodCidrs | None:
        """Return the virtual CIDRs to use; None while that is not decided."""
        mode, present = self._settings.pod_export_cidr, read_used_pods(cluster_set) or UsedPodCidrs()
        if mode == NEVER or not self._settings.pod_cidrs:
            return UsedPodCidrs()
        chosen = self._answered(view, leader, present) if mode in (AUTO, ALWAYS) else self._configured(mode)
        if chosen is None or not chosen.prefixes:
            return chosen
        export_range = export_cidr(view, self._settings)
        for prefix in chosen.pairs:
            why = occupant(view, self._settings, str(prefix.virtual), also=(export_range,))
            if why:
                why = f"{prefix.virtual} cannot be a virtual Pod CIDR of this cluster: {why}"
                return UsedPodCidrs(reason=IN_USE, why=why)
        is_new = chosen.prefixes != present.prefixes
        if is_new and (old := old_agents(view, self.is_able)):
            why = f"{chosen.prefixes} is not used yet: the agents of gateways {old} do not translate Pod CIDRs"
            return replace(present, reason=AGENTS_TOO_OLD, why=why)
        return chosen

    def _configured(self, text: str) -> UsedPodCidrs:
        pairs = zip(self._settings.pod_cidrs, text.split(","), strict=False)
        prefixes = ",".join(f"{real}={virtual}" for real, virtual in pairs)
        if not parse_pairs(prefixes):
            why = f"{prefixes}: each CIDR of podExportCIDR must be as long as its Pod CIDR, and overlap no other"
            return UsedPodCidrs(reason=INVALID, why=why)
        return UsedPodCidrs(
            prefixes=prefixes, reason=CONFIGURED, why="podExportCIDR of this cluster's configuration"
        )

    def _answered(self, view: View, leader: Leader, present: UsedPodCidrs) -> UsedPodCidrs | None:
        """Return the CIDRs that the leader assigns, maybe none; None while it has not answered."""
        own_import = own_cluster_info(view, leader)
        if own_import is None:
            return None
        answer = read_assigned_pods(own_import)
        if answer is None:
            mode, remedy = self._settings.pod_export_cidr, "no CIDRs: set podExportCIDR"
            return without_answer(own_import, present, mode, remedy)
        if answer.pod_cidrs != ",".join(self._settings.pod_cidrs):
            return None
        if not answer.why:
            return UsedPodCidrs()
        if answer.prefixes and not answer.pairs:
            return UsedPodCidrs(
                reason=INVALID, why=f"the leader assigns {printable(answer.prefixes)}, which is invalid"
            )
        if answer.missing:
            had_range = present.reason == WITHDRAWN or (present.reason == ASSIGNED and not answer.prefixes)
            withdrawn = "they were withdrawn, and " if had_range else ""
            why = f"{answer.why}, but {withdrawn}podExportCIDRs of the leader has none free for {answer.missing}"
            reason = WITHDRAWN if had_range else EXHAUSTED
            return UsedPodCidrs(prefixes=answer.prefixes, reason=reason, why=why)
        return UsedPodCidrs(prefixes=answer.prefixes, reason=ASSIGNED, why=answer.why)
