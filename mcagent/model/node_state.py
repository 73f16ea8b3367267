"""NodeState: what this Node is, as was decided from the API, the Node's facts and the configuration.

What `compile` decides beside resources, and what status, metrics, probes and the publisher of keys read. Values
only; knows nothing of how they are decided or shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from mcagent.model.config import EncryptionFallback, NodeTrafficEncryption, TrafficEncryption
from mcagent.model.dataplane.wireguard import WireGuardImplementation
from mcagent.model.net import Address, Network, PodPrefix
from mcagent.model.objects import Meta, WireGuardInfo
from mcagent.model.policies import Direction
from mcagent.model.problem import Problem


class NodeRole(StrEnum):
    """What a Node does in the ClusterSet."""

    GATEWAY = "gateway"
    WORKER = "worker"
    NONE = "none"  # nothing but the bare bridge is wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalGateway:
    """A gateway of this cluster that is used."""

    node: str
    gateway_ip: Address  # where other clusters' gateways send to
    internal_ip: Address  # where this cluster's Nodes send to
    source: Address  # of connections that it translates: its gatewayIP, or the IPv4 address that is mapped to it
    service_cidr: Network | None  # as other clusters use it
    real_service_cidr: Network | None = None  # of the ClusterIPs, if it is another one
    prefixes: tuple[PodPrefix, ...] = ()  # Pod CIDRs that other clusters know by a virtual one
    place: int = 0  # in this cluster's order: by demotions, then the oldest first
    standby: str = ""  # why it takes no new connections while another is there; "" if it does


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedCluster:
    """What is used of a remote cluster. `direct` are tunnel endpoints that lie inside one of its own CIDRs.

    `sources` are the addresses of connections that the gateways translate, in the gateways' order. Not every
    gateway is reached from every gateway of ours: both need addresses of one family. `antrea`: its gateways run
    Antrea (`mcagent.core.remote_clusters.implementation`), as far as this Node can tell. `refused_pods`: the Pod
    CIDRs that the cluster publishes and this Node does not use; packets from there are dropped, so the cluster
    has to translate them. `mtu`: of the cluster's tunnels, in bytes; 0: not announced. `mapped`: (source of
    translated connections, the address that replaces it in the kernels of this cluster's Nodes), see
    `mcagent.core.remote_clusters.mapped`.
    """

    cluster_id: str
    cidrs: tuple[Network, ...]
    gateways: tuple[Address, ...]
    snat: bool
    sources: tuple[Address, ...] = ()
    direct: tuple[Address, ...] = ()
    antrea: bool = False
    refused_pods: tuple[Network, ...] = ()
    mtu: int = 0
    mapped: tuple[tuple[Address, Address], ...] = ()

    def reached_from(self, gateway_ip: Address | None) -> tuple[Address, ...]:
        """Return the gateways that a gateway with this gatewayIP has tunnels to."""
        if gateway_ip is None:
            return self.gateways
        return tuple(address for address in self.gateways if address.version == gateway_ip.version)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedPort:
    """One port of an exported Service; `name` is "namespace/name:port/protocol".

    `nodes` has the name of each endpoint's Node, "" where the EndpointSlice does not say.
    `old_endpoints` get no new connections, but may have open ones: they are not ready, or terminating.
    `shares_endpoints`: another one of the same protocol leads to one of these endpoints.
    """

    name: str
    address: Address
    protocol: str  # "tcp", "udp", "sctp"
    port: int
    client_ip_affinity: bool
    endpoints: tuple[tuple[Address, int], ...]
    nodes: tuple[str, ...] = ()
    old_endpoints: tuple[tuple[Address, int], ...] = ()
    shares_endpoints: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteEnd:
    """The other end of a tunnel: without `public_key` unencrypted, at `gateway`.

    `gateway`: the gatewayIP of a gateway of another cluster, or the address of a Node of this one. Without
    `own_key` it has its cluster's only key, and Antrea's addresses; so has this Node towards it.
    """

    gateway: Address
    address: Address  # where the tunnel ends
    public_key: str = ""
    next_public_key: str = ""  # the peer has announced that it will use this one
    port: int = 0  # UDP
    source: Address | None = None  # of this Node's end of the tunnel
    own_key: bool = True
    devices: int = 1  # WireGuard devices of this Node that also the peer has


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """What this Node's Gateway or Node object should say of WireGuard, and what it says."""

    meta: Meta
    published: WireGuardInfo | None
    desired: WireGuardInfo | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EncryptionState:
    """How traffic to other clusters, and between the Nodes of this one, is protected."""

    mode: TrafficEncryption = TrafficEncryption.NONE
    node_mode: NodeTrafficEncryption = NodeTrafficEncryption.NONE
    fallback: EncryptionFallback = EncryptionFallback.DENY
    implementation: WireGuardImplementation | None = None
    public_key: str = ""
    next_public_key: str = ""
    devices: tuple[str, ...] = ()  # names, the first one first; (): there is none
    ends: Mapping[str, tuple[RemoteEnd, ...]] = field(default_factory=dict)  # by cluster ID
    node_ends: Mapping[str, RemoteEnd] = field(default_factory=dict)  # of this cluster, by Node name
    publication: Publication | None = None  # to other clusters
    node_publication: Publication | None = None  # to the other Nodes of this cluster
    own_gateway: Address | None = None  # this Node's gatewayIP
    problems: tuple[Problem, ...] = ()  # what of encryption is not used, and why


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class PolicyRuleName:
    """A rule of a policy in force on this Node: `policy` as "ClusterNetworkPolicy/name", `rule` its name."""

    policy: str
    rule: str
    direction: str
    verdict: str
    log_label: str | None = None  # what it decides is logged, with this text; None: it is not


ImportedPort = tuple[str, Address, int]  # protocol, ClusterIP and port of an imported Service


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """What this Node is. `cluster_ids` and `service_ids` are numeric IDs by cluster ID and by `ExportedPort.name`.

    `services` are known to gateways, and to workers that may have to ask clients how they came
    (`mcagent.dataplane.conntrack`).
    """

    role: NodeRole = NodeRole.NONE
    why: str = ""  # why there is no role, for people
    all_pods: bool = False  # where Pods are read, those of all Nodes
    all_services: bool = False  # where Services and EndpointSlices are read, also those that are not imported
    gateways: tuple[LocalGateway, ...] = ()  # of this cluster, by Node name
    unserved_gateway: Meta | None = None  # the Gateway object of this Node, while this Node is no gateway
    tunnels: int = 0
    mtu: int = 0  # of the host port, in bytes
    clusters: Mapping[str, AcceptedCluster] = field(default_factory=dict)
    cluster_ids: Mapping[str, int] = field(default_factory=dict)
    services: Mapping[str, ExportedPort] = field(default_factory=dict)
    service_ids: Mapping[str, int] = field(default_factory=dict)
    published_pods: tuple[Network, ...] = ()  # with the addresses of this cluster's kernels
    prefixes: tuple[PodPrefix, ...] = ()  # Pod CIDRs that other clusters know by a virtual one
    policy_rules: Mapping[int, PolicyRuleName] = field(default_factory=dict)  # by the number in their cookies
    isolating: Mapping[tuple[Direction, Address], tuple[str, ...]] = field(
        default_factory=dict
    )  # by Pod: policies
    unreachable: tuple[str, ...] = ()  # remote clusters that no gateway of this cluster reaches
    # Endpoints of imported Services, ready or not, without TCP ports; None where kube-proxy alone translates.
    imported: Mapping[ImportedPort, frozenset[tuple[Address, int]]] | None = None
    encryption: EncryptionState = field(default_factory=EncryptionState)
