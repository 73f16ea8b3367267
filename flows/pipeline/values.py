"""What the pipeline is built from: the topology of one Node's bridge as plain values. Knows no Kubernetes.

Port numbers are OpenFlow ports of the bridge (ofports); 1 is always the Node's own kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from flows.declare import Zone
from flows.fields import Address, Network
from flows.flow import Flow, Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Env:
    """What all parts of the pipeline share. A change of it means that everything is built anew."""

    gateway: bool  # this Node is a gateway
    ct_zone_base: int  # the first of the conntrack zones
    local_gateways: tuple[int, ...]  # ports of the tunnels to the (other) gateways of this cluster, sorted
    # Of this Node, as remote clusters know it; the first of a family SNATs.
    own_gateway_ips: tuple[Address, ...] = ()
    service_cidrs: tuple[Network, ...] = ()  # this cluster's
    published_pods: tuple[Network, ...] = ()  # Pods that remote clusters may reach and see; empty: no Pod to Pod
    identities: bool = False  # tunnels carry label identities (else, that they are unknown)
    userspace_conntrack: bool = False  # it may move clients' ports, and is stricter about TCP than the kernel's
    # First and last source port of connections that are SNATed; None: as conntrack chooses.
    snat_ports: tuple[int | None, int | None] = (None, None)

    def zone(self, zone: Zone) -> int:
        """Return the number of a conntrack zone."""
        return self.ct_zone_base + zone.offset


@dataclass(frozen=True, slots=True, kw_only=True)
class NextHop:
    """A tunnel to a gateway, as one of several that can be chosen.

    `watched`: liveness detection knows the peer, so the tunnel counts only while it is up; others are trusted.
    `standby`: used only while none of those that are not on standby is live.
    """

    ofport: int
    watched: bool = True
    standby: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NextHopGroup:
    """The gateways of this cluster to choose from; `ordered`: the first live one has all, else a hash decides."""

    next_hops: tuple[NextHop, ...]
    ordered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteGateway:
    """A gateway of a remote cluster, and the tunnel to it if there is one: not on workers."""

    address: Address
    next_hop: NextHop | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteCluster:
    """A remote cluster. `id` (1..2^24-1) is the same on every Node of this cluster.

    `snat`: connections from here to there take the address of the gateway they leave by, or `snat_address`
    (one of `Env.own_gateway_ips`) where that cluster knows the gateway by another one.
    `ordered`: see `NextHopGroup`.
    `meter`: that of the connections which it opens here; None: there is no limit. `probe_meter`: of probes through
    the tunnels to it; None: no probe is answered, and no answer heard.
    `ask_meter`: of its packets for which the Nodes of all endpoints are asked; None: there is no limit.
    `by`: port of the tunnel to the gateway of this cluster that alone sends there; None: this one may.
    """

    id: int
    cidrs: tuple[Network, ...]
    gateways: tuple[RemoteGateway, ...]
    snat: bool
    snat_address: Address | None = None
    ordered: bool = False
    meter: int | None = None
    probe_meter: int | None = None
    ask_meter: int | None = None
    by: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalNode:
    """A Node of this cluster. Port 1 is this Node itself.

    `networks` (Pod CIDRs, Pods, the Node's own addresses) are delivered to it, and are what may come from it.
    """

    id: int
    ofport: int
    gateway: bool
    networks: tuple[Network, ...]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class ServiceEndpoint:
    """One endpoint of a Service.

    `ofport` of the tunnel to its Node, where liveness detection watches that; None: it is trusted.
    """

    address: Address
    port: int
    ofport: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalService:
    """One port of an exported Service of this cluster; `protocol` is IP's number of TCP, UDP or SCTP.

    `endpoints` get new connections. `old_endpoints` (not ready, terminating) get none, but keep those they have.
    `shares_endpoints`: another exported port of the same protocol leads to one of these endpoints.
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
    """From the Pod's point of view."""

    INGRESS = "ingress"
    EGRESS = "egress"


class PolicyVerdict(Enum):
    """What a rule does with a request. PASS: NetworkPolicies decide."""

    ALLOW = "allow"
    DROP = "drop"
    REJECT = "reject"
    PASS = "pass"  # noqa: S105 - no password


class PolicyStage(Enum):
    """Which rules come first: those of tiers, of NetworkPolicies, of the Baseline tier."""

    TIERS = "tiers"
    NETWORK_POLICY = "networkpolicy"
    BASELINE = "baseline"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPort:
    """Ports of a protocol (IP's number), `low` to `high`; of ICMP type and code, None: any."""

    protocol: int
    low: int = 0
    high: int = 65535
    icmp_type: int | None = None
    icmp_code: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPeers:
    """The other side, any of these; nobody, if there is none.

    `identities`: a remote cluster's ID, 0 for any, and a label identity. `services`: address, IP protocol, port.
    """

    any_peer: bool = False
    identities: tuple[tuple[int, int], ...] = ()
    networks: tuple[Network, ...] = ()
    services: tuple[tuple[Address, int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRule:
    """One rule for Pods of this Node. `id`: 1..2^24-1.

    Lower levels come first; rules of a level agree in the verdict. `ports`: any of these; without one every port.
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
    """Pods of this Node that are isolated unless a NetworkPolicy allows something.

    To those of `unknown_dropped` nothing gets whose label identity is unknown, unless a rule allows it.
    """

    isolated_ingress: tuple[Address, ...] = ()
    isolated_egress: tuple[Address, ...] = ()
    unknown_dropped: tuple[Address, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Entries:
    """Flows and groups that follow from one cause."""

    flows: tuple[Flow, ...]
    groups: tuple[Group, ...] = ()
