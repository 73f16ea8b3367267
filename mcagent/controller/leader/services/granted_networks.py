"""Where a member's endpoints may lie: in its own networks, never in another member's. Pure.

Its own are the CIDRs that were granted to it, as its ResourceImport of kind ClusterInfo has them. A cluster that
publishes no Pod CIDRs (its Pods are reached without tunnels) also has what an administrator allows it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

from mcagent.controller.contract import names
from mcagent.controller.contract.names import ExportKind
from mcagent.controller.contract.ranges import Networks, networks_of, range_of
from mcagent.controller.leader.exports.bounds import Bounds
from mcagent.controller.leader.exports.payloads import published
from mcagent.controller.machinery.reconciler import Index, Ref, Side, View
from mcagent.controller.settings import LeaderSettings
from mcagent.core.addresses.rules import prefix_range, refuse_address
from mcagent.model.api.multicluster import ResourceImport
from mcagent.model.net import Address
from mcagent.model.objects import Kind


def _infos(obj: ResourceImport) -> Sequence[str]:
    return [obj.namespace] if obj.spec.kind == ExportKind.CLUSTER_INFO else []


# ResourceImports of kind ClusterInfo, under the area.
GRANTS = Index("granted-networks", ResourceImport, Side.LOCAL, _infos)


class GrantedNetworks:
    """The CIDRs of all members of an area, and what is allowed without.

    All exports ask the same, so the last answer for an area is kept, with the very objects that it was made from.
    """

    def __init__(self, settings: LeaderSettings) -> None:
        self._allowed = networks_of(settings.allowed_endpoint_cidrs)
        self._last: dict[str, tuple[Sequence[ResourceImport], Networks]] = {}

    def read(self, view: View, area: str) -> Networks:
        """Return all granted CIDRs, owned by clusters' IDs."""
        infos = view.indexed(GRANTS, area)
        last = self._last.get(area)
        if last is not None and len(last[0]) == len(infos) and all(map(operator.is_, last[0], infos)):
            return last[1]
        found = Networks(
            (*bounds, info.cluster_id)
            for info in infos
            for network in published(info) or ()
            if (bounds := range_of(str(network))) is not None
        )
        self._last[area] = (infos, found)
        return found

    def judge(self, view: View, area: str, cluster_id: str, bounds: Bounds) -> Callable[[Address], str]:
        """Return what says why an address cannot be an endpoint of a cluster; "" if it can."""
        granted, allowed = self.read(view, area), self._allowed
        ref = Ref(kind=Kind.RESOURCE_IMPORT, namespace=area, name=names.cluster_info(cluster_id))
        own = view.get(ref, ResourceImport)
        has_pods = own is not None and own.spec.cluster_info is not None and bool(own.spec.cluster_info.pod_cidrs)
        bounded = (
            None
            if bounds.cidrs is None
            else Networks((*prefix_range(n)[1:], "") for n in bounds.cidrs if n.version == 4)
        )

        def refuse(address: Address) -> str:
            refusal = refuse_address(address)
            if refusal is not None:
                return refusal.message
            number = int(address)
            owners = granted.owners(number)
            if cluster_id not in owners and owners:
                return f"{address} is not used: it lies in a CIDR of cluster {owners[0]}"
            if bounded is not None and not bounded.owners(number):
                return f"{address} is not used: it lies in no CIDR that its cluster may claim"
            if not owners and has_pods:
                return f"{address} is not used: it lies in none of the CIDRs that its cluster publishes"
            if not owners and bounded is None and not allowed.owners(number):
                return (
                    f"{address} is not used: its cluster publishes no Pod CIDRs, and neither "
                    "allowedEndpointCIDRs of the leader nor annotation "
                    f"{names.ALLOWED_CIDRS_ANNOTATION} of its ServiceAccount holds it"
                )
            return ""

        return refuse
