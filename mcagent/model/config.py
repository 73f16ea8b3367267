"""The agent's configuration as far as decisions depend on it: its keys, each declared at the field that it sets.

Reading it (file, environment, flags) is `mcagent.agent.config`, which declares the keys of the process. Names
shared with Antrea's `multicluster.*` keep their meaning.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from mcagent.model.dataplane.resources import Bfd, TunnelType
from mcagent.model.dataplane.wireguard import MAX_DEVICES
from mcagent.model.keys import reserved
from mcagent.model.keys import values as kinds
from mcagent.model.keys.key import Key
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


class NodeTrafficEncryption(StrEnum):
    """How tunnels between the Nodes of this cluster are protected."""

    NONE = "none"
    PREFERRED = "preferred"  # encrypted to Nodes that publish a key, to others unencrypted
    REQUIRED = "required"


class PolicyFailureMode(StrEnum):
    """What becomes of requests where a policy's rule cannot be enforced."""

    CLOSED = "closed"
    OPEN = "open"


class UnverifiedLabels(StrEnum):
    """What tunnel packets carry of Pods whose source address nothing verifies."""

    SEND = "send"  # the label identity of the Pod with the source address
    WITHHOLD = "withhold"  # the unknown identity


# The tables of further WireGuard devices follow on it.
_TABLE = kinds.integer(
    1,
    2**32 - MAX_DEVICES,
    never=(
        (table - number, f"{name} (routeTable + {number})" if number else name)
        for number in reversed(range(MAX_DEVICES))
        for table, name in reserved.ROUTE_TABLES
    ),
)
_BFD_INTERVAL = kinds.duration(0.01, 10)
_BFD_MULTIPLIER = kinds.integer(1, 255)
_NFT_NAME = kinds.text(
    r"[A-Za-z_][A-Za-z0-9_]{0,62}", "a name of letters, digits and _", never=reserved.NFT_TABLES
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The keys of the agent's configuration on which `compile` depends. Times in seconds."""

    # fmt: off
    enable_gateway: Annotated[bool, Key("enableGateway", kinds.boolean(),
        "Take part in multi-cluster networking: a Node for which there is a Gateway object is a gateway, every "
        "other a worker. false: this Node has no tunnels and no routes. (Antrea's "
        "default is false.)", antrea=True, reloadable=True)] = True
    namespace: Annotated[str, Key("namespace", kinds.DNS_LABEL,
        'Namespace of the Gateway and ClusterInfoImport objects. "" means all namespaces.', antrea=True)] = ""
    enable_pod_to_pod: Annotated[bool, Key("enablePodToPodConnectivity", kinds.boolean(),
        "Pods of remote clusters may reach Pods of this cluster directly, and "
        "see their addresses.", antrea=True, reloadable=True)] = False
    stretched_network_policy: Annotated[bool, Key("enableStretchedNetworkPolicy", kinds.boolean(),
        "Enforce policies between clusters. Tunnel packets then carry the label identity of the sending Pod "
        "([policies.md](policies.md)). The same in all clusters.", antrea=True)] = False
    policy_failure_mode: Annotated[PolicyFailureMode, Key("policyFailureMode", kinds.choice(PolicyFailureMode),
        "Connections between clusters to which a policy rule applies that cannot be enforced. closed: drop them. "
        "open: ignore the rule; a rule of a NetworkPolicy counts "
        "as allowing everything.")] = PolicyFailureMode.CLOSED
    max_policy_flows: Annotated[int, Key("maxPolicyFlows", kinds.integer(100, 1_000_000),
        "Limit of the flows of one policy on this Node, without those of label identities and of endpoints of "
        "Services. A policy above it cannot be enforced (`policyFailureMode`).")] = 10_000
    max_namespace_policy_flows: Annotated[int, Key("maxNamespacePolicyFlows", kinds.integer(100, 1_000_000),
        "Limit of the flows of all policies of a Namespace on this Node, of which the oldest come first. The "
        "label identities and endpoints of clusters share the rest "
        "([policies.md](policies.md#rules-that-cannot-be-enforced)).")] = 20_000
    encryption: Annotated[TrafficEncryption, Key("trafficEncryptionMode", kinds.choice(TrafficEncryption),
        "Encryption between gateways of different clusters. The same "
        "in all clusters.", antrea=True)] = TrafficEncryption.NONE
    wireguard_port: Annotated[int, Key("wireGuard.port", kinds.integer(1, 65535),
        "UDP port of WireGuard on this Node, and of gateways that publish none.", antrea=True)] = 51821
    wireguard_mtu: Annotated[int, Key("wireGuard.mtu", kinds.integer(626, 65535, also=(0,)),
        "MTU of the WireGuard device. 0: that of the uplink less 60 bytes, or 80 on an IPv6 underlay.")] = 0
    wireguard_device: Annotated[str, Key("wireGuard.deviceName", kinds.DEVICE_NAME,
        "Name of the WireGuard device.")] = "mc-wg0"
    wireguard_devices: Annotated[int, Key("wireGuard.devices", kinds.integer(0, MAX_DEVICES),
        "Number of WireGuard devices of a gateway, which share the connections: each uses a processor for the "
        "packets of one peer. They listen on the ports that follow on `wireGuard.port`. 0: one for each "
        "processor, at most 4. Where two gateways differ, the smaller number counts; wireguard-go, Antrea and "
        "the tunnels between Nodes use one.")] = 0
    wireguard_keepalive: Annotated[int, Key("wireGuard.keepalive", kinds.integer(1, 3600),
        "Interval of WireGuard's keepalives in seconds. They reach a gateway that returns, and keep the state of "
        "an address translation on the path.")] = 15
    encryption_fallback: Annotated[EncryptionFallback, Key("encryptionFallback", kinds.choice(EncryptionFallback),
        "Traffic to another cluster that cannot be encrypted, because this Node has no WireGuard or the other "
        "cluster publishes no key. deny: drop it. allowClear: send it unencrypted.")] = EncryptionFallback.DENY
    node_encryption: Annotated[NodeTrafficEncryption,
        Key("nodeTrafficEncryption", kinds.choice(NodeTrafficEncryption),
        "Encryption of the tunnels between the Nodes of this cluster; needs trafficEncryptionMode: wireGuard. "
        "preferred: to Nodes that publish a key, and unencrypted to others (to change over a running cluster). "
        "required: no packets to or from Nodes without a key "
        "([encryption.md](encryption.md#encrypt-between-the-nodes)).")] = NodeTrafficEncryption.NONE
    pod_cidrs: Annotated[tuple[Network, ...], Key("podCIDRs", kinds.networks(),
        "Pod CIDRs of this cluster, as in its ClusterInfo (Antrea has the key in the configuration of its "
        "multi-cluster controller). []: those of its Nodes (Node.spec.podCIDRs).", reloadable=True)] = ()
    node_name: Annotated[str, Key("nodeName", kinds.DNS_NAME, "Name of this Node object. Required.")]
    cluster_id: Annotated[str, Key("clusterID", kinds.DNS_NAME,
        "ID of this cluster in the ClusterSet, so that its own "
        "ClusterInfoImport is ignored.", reloadable=True)] = ""
    source_nat: Annotated[SourceNat, Key("sourceNAT", kinds.choice(SourceNat),
        "When the gateway translates source addresses to its gatewayIP. auto: only where routing needs it. "
        "always: towards every remote cluster, as Antrea does.", reloadable=True)] = SourceNat.AUTO
    expose_nodes: Annotated[bool, Key("exposeNodes", kinds.boolean(),
        "Let other clusters open connections to this Node's own addresses inside podCIDRs (or the Node's Pod "
        "CIDR): kubelet, NodePorts, Pods on the host's network. false: only by "
        "an exported Service.", reloadable=True)] = False
    imported_traffic: Annotated[str, Key("importedTraffic", kinds.traffic(),
        "Clusters that get new connections to imported Services, where neither ServiceImport nor exporter chooses "
        "([traffic.md](traffic.md)). `*`: all, by their ready endpoints. any: as "
        'kube-proxy chooses. Clusters that no gateway reaches get no new connections. "", or no clusterID: '
        "kube-proxy alone chooses, and the objects for this are not read.")] = OTHERS
    new_connections: Annotated[int, Key("newConnections", kinds.integer(0, 1_000_000),
        "Rate limit per remote cluster: new connections per second to this Node (burst: twice that). Excess is "
        "dropped. 0: no limit.", reloadable=True)] = 10_000
    fragments: Annotated[int, Key("fragments", kinds.integer(0, 1_000_000),
        "Rate limit per remote cluster: IP fragments per second to this Node (burst: four times that). A Pod of "
        "this Node may send half to other clusters. Excess is dropped. Raise it in all clusters, and only with "
        "the limits for fragments of the Nodes ([underlay.md](underlay.md#fragments)). 0: no limit.",
        reloadable=True)] = 45
    pod_routing: Annotated[PodRouting, Key("podRouting", kinds.choice(PodRouting),
        "How a gateway finds the Node of a Pod. nodeCIDR: by Node.spec.podCIDRs. perPod: by watching Pods. auto: "
        "by the Node's Pod CIDRs if it has any, else by Pods.", reloadable=True)] = PodRouting.AUTO
    allowed_remote_cidrs: Annotated[tuple[Network, ...], Key("allowedRemoteCIDRs", kinds.networks(),
        "Accept only CIDRs of remote clusters that are inside these. []: the private ones, 10.0.0.0/8, "
        "172.16.0.0/12, 192.168.0.0/16 and 100.64.0.0/10. A CIDR that overlaps a network to which this Node has a "
        "route is accepted only inside an entry that is smaller than these ranges "
        "([ownership.md](ownership.md#networks-of-nodes)).", reloadable=True)] = ()
    protected_cidrs: Annotated[tuple[Network, ...], Key("protectedCIDRs", kinds.networks(),
        "Reject CIDRs and gateway addresses of other clusters that overlap these: the leader's API server, "
        "resolvers behind a name, … (API servers, resolvers, default gateways and Nodes that the agent observes "
        "are always protected).", reloadable=True)] = ()
    tunnel_type: Annotated[TunnelType, Key("tunnelType", kinds.choice(TunnelType),
        "Encapsulation of every tunnel. The same in all clusters.")] = TunnelType.GENEVE
    tunnel_port: Annotated[int, Key("tunnelPort", kinds.integer(0, 65535),
        "UDP port of the encapsulation. 0: its default (geneve 6081, vxlan 4789).")] = 0
    tunnel_source_check: Annotated[bool, Key("tunnelSourceCheck", kinds.boolean(),
        "Drop a tunnel packet with a peer's source address that arrives on a device of a kind that Pods use "
        "(veth, netkit, bridge, openvswitch), unless the route to the peer leads there or the device has the "
        "destination address: a Pod forged the source. false: for Nodes with several bridges as uplinks and an "
        "address on another device, where packets of peers arrive by another device than replies leave. Also drop "
        "tunnel packets of Nodes of this cluster that do not come from the local link any more "
        "([operations.md](operations.md#packets-that-nft-drops)).", reloadable=True)] = True
    pod_source_check: Annotated[bool, Key("podSourceCheck", kinds.boolean(),
        "Drop a packet to another cluster with the address of a Pod as its source, if it arrives by another "
        "device than that of the Node's route to this Pod: another Pod forged it. Only where each Pod has a "
        "device of its own ([policies.md](policies.md#verified-labels)). false: for CNIs whose Pods send by "
        "another device than they receive.", reloadable=True)] = True
    unverified_labels: Annotated[UnverifiedLabels, Key("unverifiedLabels", kinds.choice(UnverifiedLabels),
        "Label identities of this Node's Pods where nothing verifies their source addresses (`LabelsUnverified`, "
        "[policies.md](policies.md#verified-labels)). send: that of the Pod with the source address. withhold: "
        "the unknown identity, so policies of other clusters that select by labels do not take these Pods for "
        "clients.", reloadable=True)] = UnverifiedLabels.SEND
    mtu: Annotated[int, Key("mtu", kinds.integer(576, 65485, also=(0,)),
        "MTU of the routes to other clusters. 0: that of the uplink less the overhead of the encapsulation.",
        reloadable=True)] = 0
    bridge: Annotated[str, Key("bridge", kinds.DEVICE_NAME, "Name of the agent's Open vSwitch bridge.")] = "br-mc"
    host_port: Annotated[str, Key("hostPort", kinds.DEVICE_NAME,
        "Name of the device by which the Node's kernel and the bridge exchange packets.")] = "mc-gw0"
    datapath: Annotated[DatapathChoice, Key("datapath", kinds.choice(DatapathChoice),
        "Open vSwitch datapath. auto: the kernel's where it exists, "
        "else userspace (netdev).")] = DatapathChoice.AUTO
    ct_zone_base: Annotated[int, Key("conntrackZoneBase", kinds.integer(1, 65532),
        "First of four connection tracking zones. Zone 0 is the kernel's.")] = 28003
    route_table: Annotated[int, Key("routeTable", _TABLE,
        "Routing table of the routes to remote clusters. The next three are of further "
        "WireGuard devices.")] = 28003
    route_protocol: Annotated[int, Key("routeProtocol", kinds.integer(5, 255, never=reserved.ROUTE_PROTOCOLS),
        "Protocol number of the agent's routes and rules.")] = 111
    rule_priority: Annotated[int, Key("rulePriority", kinds.integer(1, 32764),
        "Priority of the routing rule that sends all packets through `routeTable`. The rules of further WireGuard "
        "devices have the priority before it; with 1 there are none.")] = 300
    nft_table: Annotated[str, Key("nftTable", _NFT_NAME,
        "Name of the agent's nftables table (family ip).")] = "mcagent"
    gateways: Annotated[GatewayMode, Key("gateways", kinds.choice(GatewayMode),
        "How several gateways of a cluster share its traffic. active-active: by a hash of each connection. "
        "active-standby: the first live one, in the order of the API, takes all.")] = GatewayMode.ACTIVE_ACTIVE
    failback: Annotated[bool, Key("failback", kinds.boolean(),
        "With active-standby: give traffic back to a preferred gateway when it returns.")] = False
    gateway_selection: Annotated[GatewaySelection, Key("gatewaySelection", kinds.choice(GatewaySelection),
        "Which Nodes of this cluster are gateways. api: those with a Gateway object. readiness: those with the "
        "annotation `multicluster.antrea.io/gateway`, without any controller (address: the annotation "
        "`multicluster.antrea.io/gateway-ip`, else the Node's InternalIP). A Node that is not Ready or is "
        "cordoned is used only while there is no other.")] = GatewaySelection.API
    service_cidrs: Annotated[tuple[Network, ...], Key("serviceCIDRs", kinds.networks(),
        "Service CIDR of this cluster, where no Gateway has it: for `gatewaySelection: readiness`, and to refuse "
        "overlapping CIDRs of other clusters while an agent has seen no Gateway.")] = ()
    bfd_enable: Annotated[bool, Key("bfd.enable", kinds.boolean(),
        "Run bidirectional forwarding detection on every tunnel: Open vSwitch stops using a dead gateway without "
        "the agent. A peer that never answered (Antrea) is used without it.")] = True
    bfd_local_interval: Annotated[float, Key("bfd.local.interval", _BFD_INTERVAL,
        "Interval of BFD packets between Nodes of this cluster.")] = 0.1
    bfd_local_multiplier: Annotated[int, Key("bfd.local.multiplier", _BFD_MULTIPLIER,
        "Between Nodes of this cluster: number of consecutive missed packets after which a peer is down.")] = 3
    bfd_remote_interval: Annotated[float, Key("bfd.remote.interval", _BFD_INTERVAL,
        "Interval of BFD packets between gateways of different clusters.")] = 0.1
    bfd_remote_multiplier: Annotated[int, Key("bfd.remote.multiplier", _BFD_MULTIPLIER,
        "Between gateways of different clusters: as `bfd.local.multiplier`.")] = 3
    bfd_remote_adapt: Annotated[bool, Key("bfd.remote.adapt", kinds.boolean(),
        "Between gateways of different clusters: multiply `bfd.remote.multiplier` by 2, 4 or 8, up to a detection "
        "time of 3s, where round trips are longer than `bfd.remote.interval` or BFD gave false alarms.")] = True
    bfd_max_nodes: Annotated[int, Key("bfd.maxNodes", kinds.integer(0, 65000),
        "With more workers than this in the cluster, run BFD between gateways only; workers then rely on the "
        "Ready condition of the gateways' Nodes.")] = 200
    # fmt: on

    @property
    def encrypts(self) -> bool:
        """Whether traffic to other clusters is to be encrypted."""
        return self.encryption is not TrafficEncryption.NONE

    @property
    def encrypts_nodes(self) -> bool:
        """Whether tunnels between the Nodes of this cluster are to be encrypted."""
        return self.encrypts and self.node_encryption is not NodeTrafficEncryption.NONE

    @property
    def wireguard_ports(self) -> range:
        """UDP ports on which this Node may listen as a gateway; none without encryption."""
        most = (self.wireguard_devices or MAX_DEVICES) if self.encrypts else 0
        return range(self.wireguard_port, min(self.wireguard_port + most, 65536))

    @property
    def route_tables(self) -> range:
        """The routing table of all routes, and those of further WireGuard devices."""
        return range(self.route_table, self.route_table + MAX_DEVICES)

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
