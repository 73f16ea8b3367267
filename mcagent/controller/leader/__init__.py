"""The control plane of a leader: members, and ResourceExports of all members to ResourceImports."""

from __future__ import annotations

from mcagent.controller.leader.area_holder import AreaHolder, Guarded
from mcagent.controller.leader.cluster_infos import ClusterInfoCopy
from mcagent.controller.leader.cluster_set import ClusterSetStatus
from mcagent.controller.leader.export_ranges import ExportRanges
from mcagent.controller.leader.label_identities import LabelIdentities
from mcagent.controller.leader.members import Members
from mcagent.controller.leader.other_exports import OtherExports
from mcagent.controller.leader.policies import ANTREA, KUBERNETES, PolicyCopies
from mcagent.controller.leader.services.reconciler import ServiceMerge
from mcagent.controller.machinery.reconciler import Reconciler
from mcagent.controller.settings import LeaderSettings


def leader_reconcilers(settings: LeaderSettings) -> list[Reconciler]:
    """Return all reconcilers of a leader, in no particular order."""
    reconcilers: list[Reconciler] = [
        Members(settings),
        ClusterSetStatus(settings),
        ExportRanges(settings),
        ClusterInfoCopy(settings),
        ServiceMerge(settings),
        LabelIdentities(settings),
        PolicyCopies(ANTREA),
        PolicyCopies(KUBERNETES),
        OtherExports(),
    ]
    return [AreaHolder(settings), *(Guarded(reconciler, settings.home) for reconciler in reconcilers)]
