"""The control plane of a member: membership, gateways, exports to the leader and imports from it."""

from __future__ import annotations

import time
from collections.abc import Callable

from mcagent.controller.machinery.reconciler import Reconciler
from mcagent.controller.member.announce import Announce
from mcagent.controller.member.cleanup import Cleanup
from mcagent.controller.member.cluster_set import MemberClusterSet
from mcagent.controller.member.leave import Leave
from mcagent.controller.member.networks.cluster_info import ClusterInfoExport
from mcagent.controller.member.networks.cluster_info_import import ClusterInfoImports
from mcagent.controller.member.networks.export_range import ExportRange
from mcagent.controller.member.networks.gateways import GatewayElection
from mcagent.controller.member.networks.pod_range import PodRange
from mcagent.controller.member.policies.label_exports import LabelExports
from mcagent.controller.member.policies.label_identities import LabelImports
from mcagent.controller.member.policies.policy_imports import PolicyImports
from mcagent.controller.member.services.service_export import ServiceExports
from mcagent.controller.member.services.service_import import ServiceImports
from mcagent.controller.settings import MemberSettings


def member_reconcilers(settings: MemberSettings, clock: Callable[[], float] = time.monotonic) -> list[Reconciler]:
    """Return all reconcilers of a member, in no particular order. `clock` never steps."""
    return [
        MemberClusterSet(),
        Announce(settings, clock),
        Cleanup(settings),
        Leave(settings),
        ExportRange(settings),
        PodRange(settings),
        GatewayElection(settings),
        ClusterInfoExport(settings),
        ClusterInfoImports(settings),
        ServiceExports(settings),
        ServiceImports(settings),
        LabelExports(settings),
        LabelImports(settings),
        PolicyImports(settings),
    ]
