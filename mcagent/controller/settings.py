"""The settings of reconcilers, as frozen values. `mcagent.controller.config` reads them.

Times are in seconds. Names in YAML are those of Antrea's MultiClusterConfig where it has them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

MAX_EXPORTS = 1000  # Services of one member
MAX_EXPORT_BYTES = 256 * 1024  # of JSON, of one ResourceExport
MAX_ENDPOINTS = 1000  # of one exported Service: as many as Kubernetes puts into an Endpoints object
MAX_IMPORTED = 5000  # Services; a Service CIDR of /19 has 8190 ClusterIPs


class IpPrecedence(StrEnum):
    """The address of a gateway's Node that other clusters use. Antrea's aliases are read as these two."""

    INTERNAL = "internal"  # or "private": the Node's InternalIP
    EXTERNAL = "external"  # or "public": the Node's ExternalIP


class EndpointIpType(StrEnum):
    """The addresses that are exported as endpoints of a Service. Equal in all clusters of a ClusterSet."""

    CLUSTER_IP = "ClusterIP"
    POD_IP = "PodIP"


class WriteEndpoints(StrEnum):
    """Whether imported Services get Endpoints beside EndpointSlices."""

    AUTO = "auto"  # where the cluster needs them (no EndpointSlices of its own, or an old proxy)
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings:
    """The settings of a member's reconcilers."""

    namespace: str  # of this controller: its ClusterSet, the Secret of it, Gateways and ClusterInfoImports
    service_cidr: str | None = None  # None: discover
    pod_cidrs: tuple[str, ...] = ()  # of this cluster, as published in its ClusterInfo
    gateway_ip_precedence: IpPrecedence = IpPrecedence.INTERNAL
    endpoint_ip_type: EndpointIpType = EndpointIpType.CLUSTER_IP
    max_active_gateways: int = 1
    write_endpoints: WriteEndpoints = WriteEndpoints.AUTO
    heartbeat_period: float = 10.0  # one write of the MemberClusterAnnounce each
    tunnel_type: str = ""  # of this cluster's agents, for other clusters to compare; "": not published
    tunnel_port: int = 0  # likewise; 0: not published
    allowed_endpoint_cidrs: tuple[str, ...] = ()  # imported endpoints may lie in these beside the announced CIDRs
    max_imported_services: int = MAX_IMPORTED
    stretched_network_policy: bool = False  # label identities are exported and imported


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberLimits:
    """The limits of each member's claims. Annotations of its ServiceAccount override the first three."""

    max_exports: int = MAX_EXPORTS  # exported Services
    allowed_namespaces: tuple[str, ...] = ()  # of exported Services; none given: any
    allowed_cidrs: tuple[str, ...] = ()  # none given: any
    cluster_cidrs: tuple[str, ...] = ()  # where CIDRs of any member must lie, whatever else; none given: private
    max_export_bytes: int = MAX_EXPORT_BYTES  # of JSON, of one ResourceExport
    max_endpoints: int = MAX_ENDPOINTS  # of one exported Service
    refuse_conflicts: bool = False  # an export whose ports differ from the oldest one's takes no part


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderSettings:
    """The settings of a leader's reconcilers."""

    namespace: str  # the Common Area; "" means every namespace that has a ClusterSet
    heartbeat_timeout: float = 30.0  # a member without a heartbeat for so long is not Ready
    stale_after: float = 86400.0  # a member's exports are deleted after so long without a heartbeat
    limits: MemberLimits = MemberLimits()
    allowed_endpoint_cidrs: tuple[str, ...] = ()  # endpoints of members without Pod CIDRs may lie in these
    imported_traffic: str = ""  # for Services without it in the oldest export (`mcagent.model.traffic`)
    stretched_network_policy: bool = False  # label identities are numbered; else their exports are refused

    def covers(self, namespace: str) -> bool:
        """Tell whether this leader's controller reconciles a namespace."""
        return self.namespace in ("", namespace)
