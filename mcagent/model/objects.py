"""The API objects that a Node's dataplane follows from, as frozen values with exactly the fields used.

Field names are the API's in snake case. Which paths they are read from, and how bad input is reported, is
`mcagent.model.parsing.parse`'s business; who wins a conflict is `mcagent.core`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from mcagent.model.net import Address, Network, PodPrefix
from mcagent.model.policies import Policy, Tier
from mcagent.model.problem import Problem, Severity
from mcagent.model.traffic import Traffic


class Kind(StrEnum):
    """The kinds that agent and controller read, by their API names. The agent's are `kinds.AGENT_KINDS`."""

    GATEWAY = "Gateway"
    CLUSTER_INFO_IMPORT = "ClusterInfoImport"
    NODE = "Node"
    POD = "Pod"
    SERVICE = "Service"
    ENDPOINT_SLICE = "EndpointSlice"
    SERVICE_EXPORT = "ServiceExport"
    CLUSTER_SET = "ClusterSet"
    CLUSTER_CLAIM = "ClusterClaim"
    MEMBER_CLUSTER_ANNOUNCE = "MemberClusterAnnounce"
    RESOURCE_EXPORT = "ResourceExport"
    RESOURCE_IMPORT = "ResourceImport"
    SERVICE_IMPORT = "ServiceImport"
    LABEL_IDENTITY = "LabelIdentity"
    CLUSTER_NETWORK_POLICY = "ClusterNetworkPolicy"
    TIER = "Tier"
    ENDPOINTS = "Endpoints"
    NETWORK_POLICY = "NetworkPolicy"
    ADMIN_NETWORK_POLICY = "AdminNetworkPolicy"
    BASELINE_ADMIN_NETWORK_POLICY = "BaselineAdminNetworkPolicy"
    UPSTREAM_CLUSTER_NETWORK_POLICY = "UpstreamClusterNetworkPolicy"  # its kind is ClusterNetworkPolicy
    ANTREA_NETWORK_POLICY = "AntreaNetworkPolicy"  # its kind is NetworkPolicy, too
    NAMESPACE = "Namespace"
    SECRET = "Secret"  # noqa: S105 - the kind's name
    SERVICE_ACCOUNT = "ServiceAccount"
    ROLE = "Role"
    ROLE_BINDING = "RoleBinding"
    CONFIG_MAP = "ConfigMap"
    LEASE = "Lease"
    EVENT = "Event"
    SERVICE_CIDR = "ServiceCIDR"
    VALIDATING_WEBHOOK_CONFIGURATION = "ValidatingWebhookConfiguration"
    MUTATING_WEBHOOK_CONFIGURATION = "MutatingWebhookConfiguration"
    CUSTOM_RESOURCE_DEFINITION = "CustomResourceDefinition"


class IpProtocol(StrEnum):
    """Transport protocols of Service ports."""

    TCP = "TCP"
    UDP = "UDP"
    SCTP = "SCTP"


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """The part of ObjectMeta that decisions rest on. `created` is RFC 3339 text in UTC, so it sorts."""

    kind: Kind
    name: str
    namespace: str = ""
    created: str = ""
    resource_version: str = ""

    @property
    def key(self) -> str:
        """Return "namespace/name", or just the name of a cluster-scoped object."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @property
    def subject(self) -> str:
        """Return how messages name the object: "Gateway kube-system/node-1"."""
        return f"{self.kind} {self.key}"

    def problem(self, path: str, reason: str, message: str, severity: Severity = Severity.ERROR) -> Problem:
        """Return a finding about the object."""
        return Problem(subject=self.subject, path=path, reason=reason, message=message, severity=severity)


@dataclass(frozen=True, slots=True, kw_only=True)
class WireGuardInfo:
    """What a gateway publishes of its WireGuard device: public keys in the base64 text of wg(8).

    `publicKey` is Antrea's; `nextPublicKey` (the key that follows on this one), `port` and `devices` are additions
    of ours. Further devices have the ports that follow on `port`.
    """

    public_key: str
    next_public_key: str = ""
    port: int = 0  # UDP; 0: the configured one
    devices: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """multicluster.crd.antrea.io/v1alpha1 Gateway: fields at top level; the name is the Node's.

    `demotions`: gateways with a higher number come later in the cluster's order. `antrea_clusters`: the clusters
    that its agent calls Antrea's.
    """

    meta: Meta
    gateway_ip: Address
    internal_ip: Address
    service_cidr: Network | None = None  # as other clusters use it
    real_service_cidr: Network | None = None  # of the ClusterIPs, if it is another one
    prefixes: tuple[PodPrefix, ...] = ()  # Pod CIDRs that other clusters know by a virtual one
    wireguard: WireGuardInfo | None = None
    demotions: int = 0
    antrea_clusters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterInfoImport:
    """multicluster.crd.antrea.io/v1alpha1 ClusterInfoImport: fields under `spec`.

    `granted` says when the leader granted each claim (`mcagent.model.parsing.granted`); empty: not known.
    `our_agents`: the cluster says that its gateways run mcagent. `protected_cidrs`: what this cluster's
    controller left out of the spec. `refused_pod_cidrs`: the Pod CIDRs of this cluster that the other cluster or
    the leader does not use, so that packets from there need a translated source. `mtu`: of the cluster's tunnels,
    in bytes; 0: not announced.
    """

    meta: Meta
    cluster_id: str
    service_cidr: Network | None
    gateway_ips: tuple[Address, ...]
    pod_cidrs: tuple[Network, ...] = ()
    wireguard: WireGuardInfo | None = None  # of the first gateway: all that Antrea has
    gateway_wireguard: tuple[tuple[Address, WireGuardInfo], ...] = ()  # by gatewayIP: an addition of ours
    granted: Mapping[str, str] = field(default_factory=dict)
    our_agents: bool = False
    protected_cidrs: tuple[Network, ...] = ()
    refused_pod_cidrs: tuple[Network, ...] = ()
    mtu: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """v1 Node: where it is reached, which Pod CIDRs it owns, whether it is Ready."""

    meta: Meta
    internal_ips: tuple[Address, ...] = ()
    external_ips: tuple[Address, ...] = ()  # only its own; tunnels do not end there
    pod_cidrs: tuple[Network, ...] = ()
    ready: bool = True
    unschedulable: bool = False
    gateway_annotation: bool = False  # multicluster.antrea.io/gateway
    gateway_ip: Address | None = None  # multicluster.antrea.io/gateway-ip; None: the first InternalIP
    drain: bool = False  # mcagent.io/drain
    zone: str = ""  # topology.kubernetes.io/zone
    wireguard: WireGuardInfo | None = None  # mcagent.io/wireguard: its agent encrypts between Nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """v1 Pod with addresses (finished Pods are left out when read).

    `ips`: its own. A Pod in the host network has `host_ips`, those of its Node, and no `ips`, labels and ports.
    """

    meta: Meta
    node_name: str
    ips: tuple[Address, ...] = ()
    host_ips: tuple[Address, ...] = ()
    labels: str = ""  # as text, as `mcagent.model.parsing.labels` writes it
    ports: tuple[tuple[str, int, int], ...] = ()  # those of containers that have a name: name, IP protocol, number


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePort:
    """One port of a Service."""

    name: str
    port: int
    protocol: IpProtocol = IpProtocol.TCP


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """v1 Service: its ClusterIPs and ports. A headless or ExternalName Service has no ClusterIPs."""

    meta: Meta
    cluster_ips: tuple[Address, ...] = ()
    ports: tuple[ServicePort, ...] = ()
    client_ip_affinity: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One endpoint of an EndpointSlice. `pod`: the Pod of its namespace that it refers to, by name, or ""."""

    addresses: tuple[Address, ...]
    ready: bool = True
    serving: bool = True
    terminating: bool = False
    node_name: str = ""
    zone: str = ""
    pod: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointPort:
    """One port of an EndpointSlice; `port` is None where the API leaves it out (all ports)."""

    name: str
    port: int | None
    protocol: IpProtocol = IpProtocol.TCP


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSlice:
    """discovery.k8s.io/v1 EndpointSlice of one Service (label kubernetes.io/service-name).

    One of an imported Service says whose ServiceImport it serves, and which cluster its endpoints are of (labels
    multicluster.kubernetes.io/service-name and source-cluster). Where these are one ClusterIP, `told_ready` is how
    many ready endpoints that cluster says are behind it; None where it does not say.
    """

    meta: Meta
    service_name: str
    imported_name: str = ""
    source_cluster: str = ""
    told_ready: int | None = None
    endpoints: tuple[Endpoint, ...] = ()
    ports: tuple[EndpointPort, ...] = ()

    def numbers_of(self, port: ServicePort) -> list[int]:
        """Return the numbers of a Service's port: joined by its name, since target ports may differ per Pod."""
        return [
            own.port
            for own in self.ports
            if own.port is not None and own.name == port.name and own.protocol == port.protocol
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceExport:
    """multicluster.x-k8s.io/v1alpha1 ServiceExport: exports the Service of its own name.

    `address`: its export address, as this cluster's controller decided; None: it has none.
    """

    meta: Meta
    address: Address | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceImport:
    """multicluster.x-k8s.io/v1alpha1 ServiceImport: the addresses and ports of an imported Service.

    Which clusters get its connections: `traffic` as this cluster's users say, `exported_traffic` as its exporters;
    None where they do not.
    """

    meta: Meta
    ips: tuple[Address, ...] = ()  # none: it is headless, or has no address yet
    ports: tuple[ServicePort, ...] = ()
    client_ip_affinity: bool = False
    distribution: str = ""  # trafficDistribution: whether near endpoints are preferred
    traffic: Traffic | None = None
    exported_traffic: Traffic | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    """v1 Namespace: its labels, as text."""

    meta: Meta
    labels: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelIdentity:
    """multicluster.crd.antrea.io/v1alpha1 LabelIdentity: the number of a Pod's labels with its Namespace's.

    `clusters` have such Pods; None: not known.
    """

    meta: Meta
    label: str
    id: int
    clusters: frozenset[str] | None = None


ApiObject = (
    Gateway
    | ClusterInfoImport
    | Node
    | Pod
    | Service
    | EndpointSlice
    | ServiceExport
    | ServiceImport
    | Namespace
    | LabelIdentity
    | Policy
    | Tier
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything the API says at one moment. Replaced whole, never changed.

    Per kind: objects by `Meta.key`. `problems` are those of reading (parsing) the objects; an object that
    became unreadable keeps its last good version in the mapping. `synced` holds the kinds that have been
    listed completely once: nothing may be removed from a dataplane before all needed kinds are in it. `leaving`
    are gateways that the API has no more but that stay for a while, last in order, until all peers have moved
    (`mcagent.core.linger`).
    """

    gateways: dict[str, Gateway] = field(default_factory=dict)
    cluster_infos: dict[str, ClusterInfoImport] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    pods: dict[str, Pod] = field(default_factory=dict)
    services: dict[str, Service] = field(default_factory=dict)
    endpoint_slices: dict[str, EndpointSlice] = field(default_factory=dict)
    service_exports: dict[str, ServiceExport] = field(default_factory=dict)
    service_imports: dict[str, ServiceImport] = field(default_factory=dict)
    namespaces: dict[str, Namespace] = field(default_factory=dict)
    label_identities: dict[str, LabelIdentity] = field(default_factory=dict)
    network_policies: dict[str, Policy] = field(default_factory=dict)
    antrea_network_policies: dict[str, Policy] = field(default_factory=dict)
    cluster_network_policies: dict[str, Policy] = field(default_factory=dict)
    tiers: dict[str, Tier] = field(default_factory=dict)
    leaving: tuple[Gateway, ...] = ()
    service_cidrs: tuple[Network, ...] | None = None  # all of the last Gateways; None: there was none yet
    problems: tuple[Problem, ...] = ()
    synced: frozenset[Kind] = frozenset()
    selected: frozenset[Kind] = frozenset()  # kinds of which only what labels select is read
