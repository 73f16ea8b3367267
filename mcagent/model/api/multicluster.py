"""The kinds of Antrea Multi-cluster and of the Multi-Cluster Services API.

Source: multicluster.crd.antrea.io/v1alpha1 and v1alpha2, multicluster.x-k8s.io/v1alpha1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from msgspec import Meta, field

from mcagent.model.api.base import NO_FIELDS, ApiObject, ApiPart, Condition, SharedConditions
from mcagent.model.api.kubernetes import ApiServiceSpec, PortNumber, ServiceFields, Subsets
from mcagent.model.objects import Kind

# --- the clusters -----------------------------------------------------------------------------------------


class WireGuard(ApiPart, frozen=True):
    """What a gateway publishes of its WireGuard device. `publicKey` is Antrea's, the others are ours."""

    public_key: str = ""
    next_public_key: str = ""
    port: PortNumber | None = None
    devices: Annotated[int, Meta(ge=1)] | None = None


class ApiGatewayStatus(ApiPart, frozen=True):
    """What an agent reports: its `clusterID`, and what its gateway observes (`mcagent.model.parsing.links`)."""

    cluster_id: str = ""
    export_addresses: bool = False
    pod_prefixes: bool = False
    links: tuple[Mapping[str, Any], ...] = ()
    antrea_clusters: tuple[str, ...] = ()
    unreachable_gateways: tuple[str, ...] = ()
    encryption_error: str = ""
    tunnel_mtu: int = field(default=0, name="tunnelMTU")


class ApiGateway(ApiObject, frozen=True):
    """Gateway: fields at top level; the name is the Node's."""

    KIND: ClassVar[Kind] = Kind.GATEWAY

    gateway_ip: str = ""
    internal_ip: str = ""
    service_cidr: str = ""
    wireguard: WireGuard | None = field(default=None, name="wireGuard")
    status: ApiGatewayStatus = ApiGatewayStatus()


class GatewayInfo(ApiPart, frozen=True):
    """A gateway of another cluster."""

    gateway_ip: str = ""
    wireguard: WireGuard | None = field(default=None, name="wireGuard")


class ClusterInfo(ApiPart, frozen=True):
    """What a cluster publishes of its network."""

    cluster_id: str = ""
    service_cidr: str = ""
    pod_cidrs: tuple[str, ...] = ()
    gateway_infos: tuple[GatewayInfo, ...] = ()
    wireguard: WireGuard | None = field(default=None, name="wireGuard")


class ApiClusterInfoImport(ApiObject, frozen=True):
    """multicluster.crd.antrea.io/v1alpha1 ClusterInfoImport."""

    KIND: ClassVar[Kind] = Kind.CLUSTER_INFO_IMPORT

    spec: ClusterInfo = ClusterInfo()
    status: SharedConditions = SharedConditions()


class LeaderCluster(ApiPart, frozen=True):
    """The leader that a ClusterSet names; a leader's own ClusterSet has neither server nor Secret."""

    cluster_id: str = ""
    server: str = ""
    secret: str = ""
    service_account: str = ""


class ClusterSetSpec(ApiPart, frozen=True):
    """v1alpha2 ClusterSetSpec."""

    cluster_id: str = ""
    namespace: str = ""
    leaders: tuple[LeaderCluster, ...] = ()


class ApiClusterStatus(ApiPart, frozen=True):
    """ClusterStatus: the conditions of one cluster."""

    cluster_id: str = ""
    conditions: tuple[Condition, ...] = ()


class ApiClusterSetStatus(SharedConditions, frozen=True):
    """v1alpha2 ClusterSetStatus."""

    total_clusters: int | None = None
    ready_clusters: int | None = None
    observed_generation: int | None = None
    cluster_statuses: tuple[ApiClusterStatus, ...] = ()


class ClusterSet(ApiObject, frozen=True):
    """multicluster.crd.antrea.io/v1alpha2 ClusterSet."""

    KIND: ClassVar[Kind] = Kind.CLUSTER_SET

    spec: ClusterSetSpec = ClusterSetSpec()
    status: ApiClusterSetStatus = ApiClusterSetStatus()

    @property
    def is_leaders(self) -> bool:
        """Whether it is a leader's: its leader is this cluster, without server and Secret.

        In a cluster that is leader and member, the member's ClusterSet has both.
        """
        own = self.spec.cluster_id
        return any(
            (not own or leader.cluster_id == own) and not leader.server and not leader.secret
            for leader in self.spec.leaders
        )

    @property
    def leader_id(self) -> str:
        """The cluster ID of the leader; "" if none is named."""
        return self.spec.leaders[0].cluster_id if self.spec.leaders else ""

    @property
    def leader_server(self) -> str:
        """The URL of the leader's API server; "" if none is named, as in a leader's own ClusterSet."""
        return self.spec.leaders[0].server if self.spec.leaders else ""

    def conditions_of(self, cluster_id: str) -> tuple[Condition, ...]:
        """Return the conditions of a cluster; none of one that has no status."""
        statuses = self.status.cluster_statuses
        return next((status.conditions for status in statuses if status.cluster_id == cluster_id), ())


class ClusterClaim(ApiObject, frozen=True):
    """v1alpha2 ClusterClaim. One made as v1alpha1 has its real name in a field."""

    KIND: ClassVar[Kind] = Kind.CLUSTER_CLAIM

    claim_name: str = field(default="", name="name")
    value: str = ""


class MemberClusterAnnounce(ApiObject, frozen=True):
    """MemberClusterAnnounce: fields at top level."""

    KIND: ClassVar[Kind] = Kind.MEMBER_CLUSTER_ANNOUNCE

    cluster_id: str = ""
    cluster_set_id: str = ""
    leader_cluster_id: str = ""


# --- exports and imports ----------------------------------------------------------------------------------


class ExportedService(ApiPart, frozen=True):
    """The Service of a ResourceExport."""

    service_spec: ApiServiceSpec = ApiServiceSpec()


class LabelIdentityExport(ApiPart, frozen=True):
    """The label identity of a ResourceExport."""

    normalized_label: str = ""


class LabelIdentitySpec(ApiPart, frozen=True):
    """A label identity and its number, in a ResourceImport or a LabelIdentity."""

    label: str = ""
    id: int | None = None


class RawPayload(ApiPart, frozen=True):
    """A manifest as JSON, in base64."""

    data: str = ""


class ResourceExportSpec(ApiPart, frozen=True):
    """v1alpha1 ResourceExportSpec. A payload that is not there is None."""

    cluster_id: str = ""
    name: str = ""
    namespace: str = ""
    kind: str = ""
    service: ExportedService | None = None
    endpoints: Subsets | None = None
    cluster_info: ClusterInfo | None = None
    label_identity: LabelIdentityExport = LabelIdentityExport()
    cluster_network_policy: Mapping[str, Any] = NO_FIELDS
    raw: RawPayload = RawPayload()


class ResourceExport(ApiObject, frozen=True):
    """ResourceExport: what a member, or an administrator of the leader, offers."""

    KIND: ClassVar[Kind] = Kind.RESOURCE_EXPORT

    spec: ResourceExportSpec = ResourceExportSpec()
    status: SharedConditions = SharedConditions()


class ServiceImportSpec(ServiceFields, frozen=True):
    """multicluster.x-k8s.io/v1alpha1 ServiceImportSpec."""

    ips: tuple[str, ...] = ()


class ImportedServiceImport(ApiPart, frozen=True):
    """The ServiceImport of a ResourceImport."""

    spec: ServiceImportSpec = ServiceImportSpec()


class ResourceImportSpec(ApiPart, frozen=True):
    """v1alpha1 ResourceImportSpec. `clusterID` names the clusters that it is for; none: all."""

    cluster_id: tuple[str, ...] = ()
    name: str = ""
    namespace: str = ""
    kind: str = ""
    service_import: ImportedServiceImport = ImportedServiceImport()
    endpoints: Subsets = Subsets()
    cluster_info: ClusterInfo | None = field(default=None, name="clusterinfo")
    label_identity: LabelIdentitySpec = LabelIdentitySpec()
    cluster_network_policy: Mapping[str, Any] = field(default=NO_FIELDS, name="clusternetworkpolicy")
    raw: RawPayload = RawPayload()


class ResourceImportStatus(ApiPart, frozen=True):
    """v1alpha1 ResourceImportStatus."""

    cluster_statuses: tuple[ApiClusterStatus, ...] = ()


class ResourceImport(ApiObject, frozen=True):
    """ResourceImport: what the leader passes on to all members."""

    KIND: ClassVar[Kind] = Kind.RESOURCE_IMPORT

    spec: ResourceImportSpec = ResourceImportSpec()
    status: ResourceImportStatus = ResourceImportStatus()

    @property
    def cluster_id(self) -> str:
        """The cluster that a ClusterInfo is about; "" in all other imports."""
        return self.spec.cluster_info.cluster_id if self.spec.cluster_info is not None else ""


class ApiLabelIdentity(ApiObject, frozen=True):
    """multicluster.crd.antrea.io/v1alpha1 LabelIdentity."""

    KIND: ClassVar[Kind] = Kind.LABEL_IDENTITY

    spec: LabelIdentitySpec = LabelIdentitySpec()


# --- multicluster.x-k8s.io --------------------------------------------------------------------------------


class ServiceExportSpec(ApiPart, frozen=True):
    """v1alpha1 ServiceExportSpec. Values of other types than texts are named to the user, and left out."""

    exported_labels: Mapping[str, Any] = NO_FIELDS
    exported_annotations: Mapping[str, Any] = NO_FIELDS


class ApiServiceExport(ApiObject, frozen=True):
    """multicluster.x-k8s.io/v1alpha1 ServiceExport."""

    KIND: ClassVar[Kind] = Kind.SERVICE_EXPORT

    spec: ServiceExportSpec = ServiceExportSpec()
    status: SharedConditions = SharedConditions()


class ImportedCluster(ApiPart, frozen=True):
    """A cluster that a Service is imported from."""

    cluster: str = ""


class ServiceImportStatus(ApiPart, frozen=True):
    """v1alpha1 ServiceImportStatus."""

    endpoint_slice_objects: str = ""
    clusters: tuple[ImportedCluster, ...] = ()


class ApiServiceImport(ApiObject, frozen=True):
    """multicluster.x-k8s.io/v1alpha1 ServiceImport."""

    KIND: ClassVar[Kind] = Kind.SERVICE_IMPORT

    spec: ServiceImportSpec = ServiceImportSpec()
    status: ServiceImportStatus = ServiceImportStatus()
