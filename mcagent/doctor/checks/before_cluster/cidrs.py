"""Check `pre-cidrs`: this cluster's CIDRs against those of clusters that it will be connected to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network, collapse_addresses
from itertools import product

from mcagent.api.doctor import CheckFinding
from mcagent.controller.member.networks.discovery import UnknownCidrError, discover_service_cidr
from mcagent.core.addresses.rules import PRIVATE
from mcagent.doctor.check import DoctorCheck, warning
from mcagent.doctor.examined import ExaminedCluster, Progress, Readings
from mcagent.kube.client import Client
from mcagent.model.api.kubernetes import ApiNode
from mcagent.model.api.multicluster import ApiClusterInfoImport, ClusterInfo, ClusterSet, ResourceImport
from mcagent.model.config import Config
from mcagent.model.net import network_or_none

CHECK = DoctorCheck(
    name="pre-cidrs",
    order=370,
    summary="before the installation: Service and Pod CIDRs, compared with clusters that are connected, or given",
    causes={
        "ServiceCIDROverlaps": warning(
            "the leader assigns export ranges, by which other clusters reach Services; without one (exportCIDR: "
            "never, or Antrea's leader) the cluster that claims the CIDR later is refused",
            "nothing; with Antrea's leader, exportCIDR: CIDR of the controller (docs/identical-cidrs.md)",
        ),
        "PodCIDROverlaps": warning(
            "clusters that publish Pod CIDRs get virtual ones; else Pods do not reach each other directly, and "
            "servers see the address of the client's gateway",
            "nothing (docs/identical-cidrs.md)",
        ),
        "CIDRNotPrivate": warning(
            "other clusters use only private networks of a cluster, unless they are configured otherwise",
            "list {cidr}, and the private networks in use, in allowedRemoteCIDRs of the other clusters and in "
            "allowedClusterCIDRs of the leader",
        ),
    },
)

_SHOWN = 4  # overlaps with one cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterCidrs:
    """The networks of a cluster."""

    services: tuple[IPv4Network, ...] = ()
    pods: tuple[IPv4Network, ...] = ()


class PlannedCluster(ExaminedCluster):
    """A cluster before the installation. `remotes`: CIDRs of clusters that it will be connected to, by name."""

    def __init__(
        self,
        client: Client,
        config: Config,
        remotes: Mapping[str, ClusterCidrs],
        progress: Progress = lambda _: None,
        readings: Readings | None = None,
    ) -> None:
        super().__init__(client, config, progress=progress, readings=readings)
        self.remotes = remotes


def own_cidrs(cluster: ExaminedCluster) -> ClusterCidrs:
    """Return the Service CIDR, and the Pod CIDRs of the configuration, else of the Nodes. Raises SourceError."""
    cluster.progress("CIDRs")
    try:
        services = [discover_service_cidr(cluster.client)]
    except UnknownCidrError as error:
        if error.passing:
            raise
        services = []
    pods = [str(cidr) for cidr in cluster.config.pod_cidrs]
    pods = pods or [cidr for node in cluster.objects(ApiNode) for cidr in node.spec.pod_cidrs]
    return ClusterCidrs(services=networks(services), pods=tuple(collapse_addresses(networks(pods))))


def connected(cluster: ExaminedCluster) -> dict[str, ClusterCidrs]:
    """Return the CIDRs of other clusters of its ClusterSet, as a member or as the leader. Raises SourceError."""
    own = {cluster_set.spec.cluster_id for cluster_set in cluster.objects(ClusterSet)}
    infos: list[ClusterInfo | None] = [item.spec for item in cluster.objects(ApiClusterInfoImport)]
    infos += [item.spec.cluster_info for item in cluster.objects(ResourceImport)]
    return {
        f"cluster {info.cluster_id}": ClusterCidrs(
            services=networks([info.service_cidr]), pods=networks(info.pod_cidrs)
        )
        for info in infos
        if info is not None and info.cluster_id not in own
    }


def networks(texts: Iterable[str]) -> tuple[IPv4Network, ...]:
    """Return the valid IPv4 networks of these texts."""
    return tuple(network for network in map(network_or_none, texts) if isinstance(network, IPv4Network))


def examine(cluster: PlannedCluster) -> Iterator[CheckFinding]:
    """Compare the cluster with each other one."""
    own, remotes = cluster.read(own_cidrs), {**cluster.read(connected), **cluster.remotes}
    wrong = list(_overlaps(own, remotes))
    wrong += [
        CHECK.finding("CIDRNotPrivate", f"{cidr} is not private", cidr=cidr)
        for cidr in (*own.services, *own.pods)
        if not any(cidr.subnet_of(private) for private in PRIVATE)
    ]
    yield from wrong
    if not own.services:
        yield CHECK.skipped("the Service CIDR of this cluster is unknown: set serviceCIDR")
    elif not wrong:
        text = ", ".join(map(str, (*own.services, *own.pods)))
        yield CHECK.passed(f"{text}: no overlap with {len(remotes)} other clusters")


def _overlaps(own: ClusterCidrs, remotes: Mapping[str, ClusterCidrs]) -> Iterator[CheckFinding]:
    for name, other in sorted(remotes.items()):
        pairs = product((*own.services, *own.pods), (*other.services, *other.pods))
        overlaps = [(mine, cidr) for mine, cidr in pairs if mine.overlaps(cidr)]
        for mine, cidr in overlaps[:_SHOWN]:
            pods = mine in own.pods and cidr in other.pods
            reason = "PodCIDROverlaps" if pods else "ServiceCIDROverlaps"
            yield CHECK.finding(reason, f"{mine} overlaps {cidr} of {name}")
