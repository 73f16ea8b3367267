"""The CIDRs that this cluster publishes for Services and Pods: its own, or others in their place. Pure.

`networks.export_range` and `networks.pod_range` decide on these, and store them in annotations of the ClusterSet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from ipaddress import IPv4Address

from flows.pipeline.prefixes import address_in_bridge, address_in_kernel, network_in_bridge
from mcagent.controller.contract.conditions import FALSE, TRUE, condition
from mcagent.controller.contract.export_ranges import ALWAYS, NEVER, UsedRange, read_used
from mcagent.controller.contract.pod_ranges import UsedPodCidrs, read_used_pods
from mcagent.controller.contract.services import ImportedEndpoint, PortSubsets
from mcagent.controller.machinery.reconciler import View
from mcagent.controller.member.membership import cluster_set_of
from mcagent.controller.settings import MemberSettings
from mcagent.model.api.base import Condition
from mcagent.model.api.multicluster import ClusterSet
from mcagent.model.net import PodPrefix, address_or_none, contains, network_or_none, parse_network

EXPORT_RANGE, POD_RANGE = "ExportRange", "PodExportRange"  # conditions of the ClusterSet
ASSIGNED, CONFIGURED = "Assigned", "Configured"
EXHAUSTED, WITHDRAWN, NO_POOL = "RangeExhausted", "RangeWithdrawn", "NoPool"
AGENTS_TOO_OLD, IN_USE = "AgentsTooOld", "RangeInUse"

Prefixes = tuple[PodPrefix, ...]


def export_cidr(view: View, settings: MemberSettings) -> str:
    """Return the export range that this cluster uses; "" if it uses none."""
    cluster_set = cluster_set_of(view)
    own_range = read_used(cluster_set) if cluster_set is not None and settings.export_cidr != NEVER else None
    return own_range.cidr if own_range is not None else ""


def published_cidr(view: View, settings: MemberSettings) -> str:
    """Return the CIDR that other clusters use for this cluster's Services; "" if there is none yet."""
    own = "" if settings.export_cidr == ALWAYS else settings.service_cidr or ""
    return export_cidr(view, settings) or own


def unreachable_cluster_ip(view: View, settings: MemberSettings, cluster_ip: str) -> str:
    """Return what to do about a ClusterIP outside the CIDR that other clusters use; "" if it lies inside."""
    cidr, address = network_or_none(published_cidr(view, settings)), address_or_none(cluster_ip)
    if cidr is None or address is None or contains(cidr, address):
        return ""
    return (
        f"ClusterIP {cluster_ip} lies outside {cidr}, the one Service CIDR of this cluster that others reach: for "
        "a Service of a second ServiceCIDR, create it anew with a spec.clusterIP of the first, or set "
        "endpointIPType: PodIP"
    )


def pod_prefixes(view: View, settings: MemberSettings) -> Prefixes:
    """Return the virtual CIDRs that this cluster uses, for its present Pod CIDRs."""
    cluster_set = cluster_set_of(view)
    in_use = read_used_pods(cluster_set) if cluster_set is not None and settings.pod_export_cidr != NEVER else None
    return tuple(p for p in in_use.pairs if str(p.real) in settings.pod_cidrs) if in_use is not None else ()


def published_pod_cidrs(view: View, settings: MemberSettings) -> tuple[str, ...]:
    """Return the CIDRs that other clusters use for this cluster's Pods."""
    prefixes = pod_prefixes(view, settings)
    published = {text: str(network_in_bridge(parse_network(text)[0], prefixes)) for text in settings.pod_cidrs}
    if settings.pod_export_cidr == ALWAYS:
        return tuple(text for real, text in published.items() if text != real)
    return tuple(published.values())


def published_address(address: str, prefixes: Prefixes) -> str:
    """Return the address of a Pod of this cluster as other clusters use it."""
    return str(address_in_bridge(IPv4Address(address), prefixes))


def published_subsets(subsets: PortSubsets, prefixes: Prefixes) -> PortSubsets:
    """Return the endpoints of a Service with the addresses that other clusters use."""
    return {
        ports: tuple(published_address(text, prefixes) for text in addresses)
        for ports, addresses in subsets.items()
    }


def local_endpoints(
    endpoints: Sequence[ImportedEndpoint], own: frozenset[str] | None, prefixes: Prefixes
) -> Sequence[ImportedEndpoint]:
    """Return endpoints of an imported Service, those of this cluster with the addresses that its Nodes use.

    `own`: the addresses that this cluster exports.
    """
    if not own or not prefixes:
        return endpoints
    return [
        replace(e, address=str(address_in_kernel(IPv4Address(e.address), prefixes))) if e.address in own else e
        for e in endpoints
    ]


def range_conditions(cluster_set: ClusterSet, now: float) -> list[Condition]:
    """Return the conditions on export range and virtual Pod CIDRs, each unless this cluster has and needs none."""
    own_range, pods = read_used(cluster_set), read_used_pods(cluster_set)
    decisions: list[tuple[str, UsedRange | UsedPodCidrs, str]] = []
    if own_range is not None:
        decisions.append((EXPORT_RANGE, own_range, own_range.cidr))
    if pods is not None:
        decisions.append((POD_RANGE, pods, ", ".join(f"{pair.virtual} for {pair.real}" for pair in pods.pairs)))
    return [
        condition(
            cluster_set.status.conditions,
            kind,
            TRUE if decision.reason in (ASSIGNED, CONFIGURED) else FALSE,
            reason=decision.reason,
            message=f"{shown}: {decision.why}" if shown else decision.why,
            now=now,
        )
        for kind, decision, shown in decisions
        if decision.reason
    ]
