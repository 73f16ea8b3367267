"""The input of the pipeline: the topology of one Node's bridge as plain values. Must not know Kubernetes.

Port numbers are OpenFlow ports of the bridge (ofports); port 1 is the Node's own kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from flows.declare import Zone
from flows.fields import Address, Network
from flows.flow import Flow, Group
from flows.pipeline.prefixes import VirtualPrefix


@dataclass(frozen=True, slots=True, kw_only=True)
class Env:
    """The values that all parts of the pipeline depend on. A change rebuilds all flows."""

    gateway: bool  # this Node is a gateway
    ct_zone_base: int  # the first of the conntrack zones
    local_gateways: tuple[int, ...]  # ports of the tunnels to the other gateways of this cluster, sorted
    # The addresses of this Node in remote clusters; the first of a family is the SNAT address.
    own_gateway_ips: tuple[Address, ...] = ()
    service_cidrs: tuple[Network, ...] = ()  # of this cluster
    # Pods that remote clusters may reach and see, with the addresses of the bridge; empty: no Pod-to-Pod.
    published_pods: tuple[Network, ...] = ()
    prefixes: tuple[VirtualPrefix, ...] = ()  # disjoint; other values of the pipeline have the real addresses
    identities: bool = False  # tunnels carry label identities (else the unknown identity)
    userspace_conntrack: bool = False  # may change clients' ports, and checks TCP more strictly than the kernel
    # First and last source port of SNATed connections; None: conntrack chooses.
    snat_ports: tuple[int | None, int | None] = (None, None)
    mtu: int | None = None  # bytes of the largest packet that tunnels take, if packets of the host may be larger
    # Limits packets of ended connections that go to the agent, of this cluster's servers and of clusters that have
    # no `ask_meter`; None: no limit.
    ended_meter: int | None = None
    # Limit the fragments that this Node sends, by the last bits of the source address; a power of two, or none.
    fragment_meters: tuple[int, ...] = ()
    fingerprint: int | None = None  # source MAC of answers to probes, which says whose gateway answers

    @property
    def connections_limited(self) -> bool:
        """Whether new connections of remote clusters are limited; then each has a `meter`."""
        return self.ended_meter is not None

    def zone(self, zone: Zone) -> int:
        """Return the number of a conntrack zone."""
        return self.ct_zone_base + zone.offset


@dataclass(frozen=True, slots=True, kw_only=True)
class NextHop:
    """A tunnel to a gateway, as a candidate of a selection.

    `watched`: BFD has been up once, so the tunnel is used only while BFD is up; other tunnels count as live.
    `standby`: used only while no next hop without this flag is live.
    """

    ofport: int
    watched: bool = True
    standby: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NextHopGroup:
    """The gateways of this cluster. `ordered`: the first live one is used; else a hash selects one."""

    next_hops: tuple[NextHop, ...]
    ordered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteGateway:
    """A gateway of a remote cluster, and the tunnel to it; None on workers."""

    address: Address
    next_hop: NextHop | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteCluster:
    """A remote cluster. `id` (1..2^24-1) is the same on every Node of this cluster.

    `snat`: connections to the cluster are SNATed to the address of the gateway that sends them, or to
    `snat_address` (one of `Env.own_gateway_ips`) if that cluster uses another address of the gateway.
    `ordered`: see `NextHopGroup`.
    `mapped`: (source of connections that it translates, the address in its place in this cluster's kernels).
    `meter`: limits the connections that the cluster opens to this one; None: no limit.
    `probe_meter`: limits probes through the tunnels to it; None: probes and their answers are dropped.
    `fragment_meter`: limits its fragments; None: no limit.
    `ask_meter`: limits its packets that query the Nodes of all endpoints, and those of its ended connections that
    go to the agent; None: no limit of its own.
    `by`: port of the tunnel to the only gateway of this cluster that sends to it; None: this Node may send.
    """

    id: int
    cidrs: tuple[Network, ...]
    gateways: tuple[RemoteGateway, ...]
    snat: bool
    snat_address: Address | None = None
    ordered: bool = False
    mapped: tuple[tuple[Address, Address], ...] = ()
    meter: int | None = None
    probe_meter: int | None = None
    ask_meter: int | None = None
    fragment_meter: int | None = None
    by: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalNode:
    """A Node of this cluster. Port 1 is this Node itself.

    `networks`: Pod CIDRs, Pods and the Node's own addresses: its valid sources and its destinations.
    """

    id: int
    ofport: int
    gateway: bool
    networks: tuple[Network, ...]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class ServiceEndpoint:
    """An endpoint of a Service. `ofport`: of the tunnel to its Node if BFD watches it; None: it counts as live."""

    address: Address
    port: int
    ofport: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalService:
    """A port of an exported Service of this cluster. `protocol`: the IP protocol number of TCP, UDP or SCTP.

    `endpoints` get new connections. `old_endpoints` (not ready, terminating) get none, but keep existing ones.
    `shares_endpoints`: another exported port of the same protocol has one of these endpoints.
    """

    id: int
    address: Address
    protocol: int
    port: int
    client_ip_affinity: bool
    endpoints: tuple[ServiceEndpoint, ...]
    old_endpoints: tuple[ServiceEndpoint, ...] = ()
    shares_endpoints: bool = False


class PolicyDirection(Enum):
    """The direction of a request, seen from the Pod."""

    INGRESS = "ingress"
    EGRESS = "egress"


class PolicyVerdict(Enum):
    """The effect of a rule on a request. PASS: NetworkPolicies decide."""

    ALLOW = "allow"
    DROP = "drop"
    REJECT = "reject"
    PASS = "pass"  # noqa: S105 - no password


class PolicyStage(Enum):
    """The stages of rules in order: tiers, NetworkPolicies, the Baseline tier."""

    TIERS = "tiers"
    NETWORK_POLICY = "networkpolicy"
    BASELINE = "baseline"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPort:
    """The ports `low` to `high` of an IP protocol number; for ICMP type and code, None: any."""

    protocol: int
    low: int = 0
    high: int = 65535
    icmp_type: int | None = None
    icmp_code: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPeers:
    """The peers of a rule: the union of the fields; without any, the rule matches no peer.

    `identities`: (ID of a remote cluster or 0 for any, label identity). `clusters`: IDs of remote clusters, whose
    label identities all match. `services`: (address, IP protocol, port).
    """

    any_peer: bool = False
    identities: tuple[tuple[int, int], ...] = ()
    clusters: tuple[int, ...] = ()
    networks: tuple[Network, ...] = ()
    services: tuple[tuple[Address, int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRule:
    """A rule for Pods of this Node. `id`: 1..2^24-1.

    Lower levels are evaluated first; all rules of a level have the same verdict. `ports`: the union; (): all
    ports.
    """

    id: int
    direction: PolicyDirection
    stage: PolicyStage
    level: int
    verdict: PolicyVerdict
    pods: tuple[Address, ...]
    peers: PolicyPeers
    ports: tuple[PolicyPort, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPolicies:
    """Pods of this Node whose requests are dropped unless a NetworkPolicy allows them, by direction.

    `unknown_dropped`: Pods to which requests of unknown label identity are dropped unless a rule allows them.
    """

    isolated_ingress: tuple[Address, ...] = ()
    isolated_egress: tuple[Address, ...] = ()
    unknown_dropped: tuple[Address, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Entries:
    """The flows and groups of one owner."""

    flows: tuple[Flow, ...]
    groups: tuple[Group, ...] = ()
