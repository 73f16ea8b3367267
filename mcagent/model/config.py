"""The agent's configuration as a frozen value. Reading it (file, environment, flags) is `mcagent.agent.config`.

The names in YAML are the camel-case ones in the comments; those shared with Antrea's `multicluster.*` keep
its names and meaning.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from mcagent.model.dataplane.resources import Bfd, TunnelType
from mcagent.model.net import Network
from mcagent.model.traffic import OTHERS


class SourceNat(StrEnum):
    """When the source gateway translates source addresses to its own gatewayIP."""

    AUTO = "auto"  # only where routing needs it: Pod CIDRs overlap or are not published by both
    ALWAYS = "always"  # towards every remote cluster, as Antrea does


class PodRouting(StrEnum):
    """How a gateway learns which Node has a Pod."""

    AUTO = "auto"  # each Node by its Pod CIDRs where it has some, else by its Pods
    NODE_CIDR = "nodeCIDR"  # Node.spec.podCIDRs
    PER_POD = "perPod"  # one flow per Pod of another Node


class DatapathChoice(StrEnum):
    """Which Open vSwitch datapath the bridge uses."""

    AUTO = "auto"  # the kernel's where it exists, else userspace
    SYSTEM = "system"
    NETDEV = "netdev"


class GatewayMode(StrEnum):
    """How traffic is shared by several gateways of one cluster."""

    ACTIVE_ACTIVE = "active-active"  # each connection by a hash over all of them
    ACTIVE_STANDBY = "active-standby"  # all by the first that is live


class GatewaySelection(StrEnum):
    """Which Nodes of this cluster are gateways."""

    API = "api"  # those that have a Gateway object: the controller elects
    READINESS = "readiness"  # those with the gateway annotation, the Ready ones first: no controller is needed


class TrafficEncryption(StrEnum):
    """How traffic between gateways of different clusters is protected."""

    NONE = "none"
    WIREGUARD = "wireGuard"


class EncryptionFallback(StrEnum):
    """What becomes of traffic to another cluster that cannot be encrypted."""

    DENY = "deny"
    ALLOW_CLEAR = "allowClear"


class PolicyFailureMode(StrEnum):
    """What becomes of requests where a policy's rule cannot be enforced."""

    CLOSED = "closed"
    OPEN = "open"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What `compile` needs of the configuration. Everything has a default but the Node's name."""

    node_name: str  # nodeName
    cluster_id: str = ""  # clusterID: of this cluster, so that its own ClusterInfoImport is passed over
    namespace: str = ""  # namespace: of Gateway and ClusterInfoImport objects; "" means all
    enable_gateway: bool = True  # enableGateway
    enable_pod_to_pod: bool = False  # enablePodToPodConnectivity
    stretched_network_policy: bool = False  # enableStretchedNetworkPolicy
    policy_failure_mode: PolicyFailureMode = PolicyFailureMode.CLOSED  # policyFailureMode
    max_policy_flows: int = 10_000  # maxPolicyFlows: of one policy on this Node
    max_namespace_policy_flows: int = 20_000  # maxNamespacePolicyFlows: of a Namespace's policies on this Node
    pod_cidrs: tuple[Network, ...] = ()  # podCIDRs: of this cluster, as published in its ClusterInfo
    source_nat: SourceNat = SourceNat.AUTO  # sourceNAT
    pod_routing: PodRouting = PodRouting.AUTO  # podRouting
    allowed_remote_cidrs: tuple[Network, ...] = ()  # allowedRemoteCIDRs: empty means private ranges
    protected_cidrs: tuple[Network, ...] = ()  # protectedCIDRs: no other cluster may ever have an address of these
    tunnel_type: TunnelType = TunnelType.GENEVE  # tunnelType
    tunnel_port: int = 0  # tunnelPort: 0 means the default of the encapsulation
    tunnel_source_check: bool = True  # tunnelSourceCheck: of packets that claim to come from a tunnel's peer
    mtu: int = 0  # mtu of the host port: 0 means uplink MTU less the encapsulation's overhead
    bridge: str = "br-mc"  # bridge
    host_port: str = "mc-gw0"  # hostPort
    datapath: DatapathChoice = DatapathChoice.AUTO  # datapath
    ct_zone_base: int = 28003  # conntrackZoneBase: four zones from here
    ct_mark_bit: int = 12  # connectionMarkBit: of the kernel's connection and packet mark; 16-31 are Calico's
    route_table: int = 28003  # routeTable: routes to remote clusters
    reply_table: int = 28004  # replyTable: the way back of connections that came in
    route_protocol: int = 111  # routeProtocol
    rule_priority: int = 300  # rulePriority: two rules from here
    nft_table: str = "mcagent"  # nftTable
    bfd_enable: bool = True  # bfd.enable
    bfd_local_interval: float = 0.1  # bfd.local.interval: seconds, between Nodes of this cluster
    bfd_local_multiplier: int = 3  # bfd.local.multiplier
    bfd_remote_interval: float = 0.1  # bfd.remote.interval: seconds, between clusters
    bfd_remote_multiplier: int = 3  # bfd.remote.multiplier
    bfd_max_nodes: int = 200  # bfd.maxNodes: with more workers, BFD is between gateways only
    gateways: GatewayMode = GatewayMode.ACTIVE_ACTIVE  # gateways
    failback: bool = False  # failback: active-standby only; a returning gateway takes its traffic back
    gateway_selection: GatewaySelection = GatewaySelection.API  # gatewaySelection
    service_cidrs: tuple[Network, ...] = ()  # serviceCIDRs: of this cluster, where no Gateway object tells it
    new_connections: int = 10_000  # newConnections: of each other cluster to this Node, a second; 0: any number
    fragments: int = 30  # fragments: of each other cluster to this Node, a second; 0: any number
    imported_traffic: str = OTHERS  # importedTraffic: which clusters get it (model.traffic); "": nothing is read
    expose_nodes: bool = False  # exposeNodes: other clusters may open connections to this Node's own addresses

    encryption: TrafficEncryption = TrafficEncryption.NONE  # trafficEncryptionMode
    encryption_fallback: EncryptionFallback = EncryptionFallback.DENY  # encryptionFallback
    wireguard_port: int = 51821  # wireGuard.port: UDP; of a peer, too, that publishes none
    wireguard_mtu: int = 0  # wireGuard.mtu of the device: 0 means uplink MTU less WireGuard's overhead
    wireguard_device: str = "mc-wg0"  # wireGuard.deviceName
    wireguard_keepalive: int = 15  # wireGuard.keepalive: seconds

    @property
    def encrypts(self) -> bool:
        """Whether traffic to other clusters is to be encrypted."""
        return self.encryption is not TrafficEncryption.NONE

    @property
    def steers(self) -> bool:
        """Tell whether the agent chooses the clusters of new connections to imported Services."""
        return bool(self.imported_traffic and self.cluster_id)

    @property
    def bfd_local(self) -> Bfd | None:
        """BFD between Nodes of this cluster."""
        return _bfd(self.bfd_local_interval, self.bfd_local_multiplier) if self.bfd_enable else None

    @property
    def bfd_remote(self) -> Bfd | None:
        """BFD between gateways of different clusters."""
        return _bfd(self.bfd_remote_interval, self.bfd_remote_multiplier) if self.bfd_enable else None


def _bfd(interval: float, multiplier: int) -> Bfd:
    milliseconds = round(1000 * interval)
    return Bfd(min_tx=milliseconds, min_rx=milliseconds, mult=multiplier)
