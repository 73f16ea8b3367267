"""What a lab consists of, as values: clusters, Nodes, Pods, Services, and every address.

Owns the plan on paper: generated from a few numbers, or read from a dict or a small YAML file, so that tests
write their own. Pure values: nothing here makes anything, and nothing knows of namespaces or processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from mcagent.model.config import DatapathChoice, TrafficEncryption
from mcagent.model.dataplane.resources import TunnelType
from mcagent.model.errors import InputError
from mcagent.model.net import Address

MAX_CLUSTERS = 90  # 10.N/16 for Pods, 10.(100+N)/16 for Services, 192.168.N/24 for Nodes
MAX_NODES = 80  # of one cluster: from .11 on, below aws-vpc's Pods
FIRST_VPC_POD = 100
FIRST_CALICO_BLOCK = 128  # third byte of the addresses of Pods: outside of the Nodes' Pod CIDRs
OUTSIDE = IPv4Address("198.51.100.1")  # TEST-NET-2 (RFC 5737): "the internet", behind the router
POD_PORT = 8080  # TCP and UDP, of every Pod
DIRECT_PORT = 8081  # TCP, of every Pod, behind no Service: see "Limits" in docs/pipeline.md
SERVICE_PORT = 80
KUBEADM_PODS, KUBEADM_SERVICES = IPv4Network("10.244.0.0/16"), IPv4Network("10.96.0.0/12")
CLUSTER_NAMES = ("east", "west", "north", "south")


class Cni(StrEnum):
    """How a cluster gives Pods their addresses and lets them out."""

    FLANNEL = "flannel"  # a Pod CIDR per Node, routes between Nodes, masquerade for what leaves
    AWS_VPC = "aws-vpc"  # Pod addresses of the Node's subnet, one route per Pod, SNAT for what leaves the VPC
    CALICO = "calico"  # blocks of a pool instead of Node Pod CIDRs, one route per block, felix's rules
    OVERLAP = "overlap"  # flannel, and every cluster has the same Pod CIDR
    EBPF = "ebpf"  # as flannel, and an eBPF program forwards the packets of Pods past netfilter
    ANTREA = "antrea"  # Antrea's agents in place of ours: the bridge br-int, Pods on its ports


WITH_OUR_AGENTS = tuple(kind for kind in Cni if kind is not Cni.ANTREA)


class Underlay(StrEnum):
    """The family of the addresses that Nodes have in the API, where tunnels and WireGuard end."""

    IPV4 = "ipv4"
    IPV6 = "ipv6"  # beside IPv4, which then is for the API server, the CNI and nothing else


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A Pod: a namespace behind its Node."""

    name: str
    address: IPv4Address


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A Node with its Pods. `pod_cidr`: in the API, None where the CNI gives Nodes none; Calico does not use it.

    `address6`, where there is one, is the one that the API has; `address` always is on the uplink.
    """

    name: str
    address: IPv4Address
    address6: IPv6Address | None = None
    gateway: bool = False
    pod_cidr: IPv4Network | None = None
    pods: tuple[Pod, ...] = ()

    @property
    def tunnel_address(self) -> Address:
        """Where its tunnels end: its InternalIP and, on a gateway, its gatewayIP."""
        return self.address6 or self.address


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A Service with the Pods (by name) behind it. Exported ones are imported by every other cluster."""

    name: str
    cluster_ip: IPv4Address
    pods: tuple[str, ...]
    exported: bool = True
    namespace: str = "default"
    port: int = SERVICE_PORT
    target_port: int = POD_PORT
    protocols: tuple[str, ...] = ("TCP", "UDP")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """One cluster. `publish_pods` is enablePodToPodConnectivity; `config` adds to its agents' configuration."""

    name: str
    cni: Cni
    subnet: IPv4Network  # of its Nodes; the first address is the router, the fifth the API server
    pod_cidr: IPv4Network
    service_cidr: IPv4Network
    nodes: tuple[Node, ...]
    subnet6: IPv6Network | None = None  # of its Nodes, too; the first address is the router
    services: tuple[Service, ...] = ()
    publish_pods: bool = True
    config: Mapping[str, object] = field(default_factory=dict)

    @property
    def router(self) -> IPv4Address:
        """Address of the underlay's router in the Nodes' subnet."""
        return self.subnet[1]

    @property
    def router6(self) -> IPv6Address | None:
        """The router's IPv6 address in the Nodes' subnet."""
        return self.subnet6[1] if self.subnet6 is not None else None

    @property
    def api_address(self) -> IPv4Address:
        """Address of the API server."""
        return self.subnet[5]

    @property
    def antrea(self) -> bool:
        """Whether Antrea's agents run on its Nodes, not ours."""
        return self.cni is Cni.ANTREA

    @property
    def gateways(self) -> tuple[Node, ...]:
        """The gateway Nodes."""
        return tuple(node for node in self.nodes if node.gateway)

    @property
    def workers(self) -> tuple[Node, ...]:
        """The Nodes that are no gateways."""
        return tuple(node for node in self.nodes if not node.gateway)

    def imported_ip(self, number: int) -> IPv4Address:
        """ClusterIP of the n-th Service imported into this cluster (from the upper half of the Service CIDR)."""
        return self.service_cidr[self.service_cidr.num_addresses // 2 + number]


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """An exported Service of other clusters as one cluster sees it: a ClusterIP of its own, theirs behind it."""

    service: Service  # the first exporter's: port and protocols
    cluster_ip: IPv4Address
    backends: tuple[IPv4Address, ...]  # ClusterIPs in the clusters that export it

    @property
    def name(self) -> str:
        """Name of the imported Service (with Antrea's prefix)."""
        return f"antrea-mc-{self.service.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """A whole lab."""

    name: str
    clusters: tuple[Cluster, ...]
    tunnel: TunnelType = TunnelType.GENEVE
    datapath: DatapathChoice = DatapathChoice.AUTO
    encryption: TrafficEncryption = TrafficEncryption.NONE

    def nodes(self) -> Iterator[tuple[Cluster, Node]]:
        """Every Node with its cluster."""
        for cluster in self.clusters:
            for node in cluster.nodes:
                yield cluster, node

    @property
    def same_cidrs(self) -> bool:
        """Whether clusters have one Service CIDR, so that others reach it by other addresses only."""
        cidrs = [cluster.service_cidr for cluster in self.clusters]
        return len(set(cidrs)) < len(cidrs)

    def with_agents(self) -> Iterator[Node]:
        """Every Node that has an agent of ours."""
        return (node for cluster, node in self.nodes() if not cluster.antrea)

    def pods(self) -> Iterator[tuple[Cluster, Node, Pod]]:
        """Every Pod with its Node and cluster."""
        for cluster, node in self.nodes():
            for pod in node.pods:
                yield cluster, node, pod

    def cluster(self, name: str) -> Cluster:
        """Return a cluster by name; InputError if there is none."""
        for cluster in self.clusters:
            if cluster.name == name:
                return cluster
        raise InputError(f"lab {self.name}", "clusters", f"no cluster {name}")

    def node(self, name: str) -> tuple[Cluster, Node]:
        """Return a Node by name; InputError if there is none."""
        for cluster, node in self.nodes():
            if node.name == name:
                return cluster, node
        raise InputError(f"lab {self.name}", "nodes", f"no Node {name}")

    def pod(self, name: str) -> tuple[Cluster, Node, Pod]:
        """Return a Pod by name; InputError if there is none."""
        for cluster, node, pod in self.pods():
            if pod.name == name:
                return cluster, node, pod
        raise InputError(f"lab {self.name}", "pods", f"no Pod {name}")

    def imports(self, cluster: Cluster) -> tuple[Import, ...]:
        """The Services that a cluster imports: one for each namespace and name that others export."""
        exporters: dict[tuple[str, str], list[Service]] = {}
        for other in self.clusters:
            if other.name != cluster.name:
                for service in other.services:
                    if service.exported:
                        exporters.setdefault((service.namespace, service.name), []).append(service)
        return tuple(
            Import(
                service=services[0],
                cluster_ip=cluster.imported_ip(number),
                backends=tuple(service.cluster_ip for service in services),
            )
            for number, services in enumerate(exporters.values(), start=1)
        )


def cluster_name(number: int) -> str:
    """Name of the n-th cluster, counted from 1."""
    return CLUSTER_NAMES[number - 1] if number <= len(CLUSTER_NAMES) else f"c{number}"


def generate(
    *,
    name: str = "demo",
    clusters: int = 2,
    workers: int = 1,
    gateways: int = 1,
    pods: int = 1,
    tunnel: TunnelType = TunnelType.GENEVE,
    cni: Cni = Cni.FLANNEL,
    datapath: DatapathChoice = DatapathChoice.AUTO,
    encryption: TrafficEncryption = TrafficEncryption.NONE,
    underlay: Underlay = Underlay.IPV4,
    same_cidrs: bool = False,
) -> Topology:
    """Return a lab of so many clusters, each with so many gateways and workers and so many Pods per Node.

    Every cluster exports the Service `web` over all its Pods and keeps `private` to itself. With `cni` antrea the
    first cluster is one of ours (flannel), all others are Antrea's and have one gateway, as those do. With
    `same_cidrs` all clusters have kubeadm's Service and Pod CIDRs, and they need controllers.
    Raises InputError for numbers that do not fit the addresses.
    """
    _check("clusters", clusters, 1, MAX_CLUSTERS)
    _check("gateways", gateways, 0, MAX_NODES)
    _check("workers", workers, 0, MAX_NODES)
    _check("nodes per cluster", gateways + workers, 1, MAX_NODES)
    _check("pods per Node", pods, 0, 150 // (gateways + workers))
    if same_cidrs and cni is not Cni.FLANNEL:
        raise InputError("lab", "same_cidrs", "needs cni flannel")
    return Topology(
        name=name,
        clusters=tuple(
            _cluster(n, workers, gateways, pods, cni, underlay, same_cidrs=same_cidrs)
            for n in range(1, clusters + 1)
        ),
        tunnel=tunnel,
        datapath=datapath,
        encryption=encryption,
    )


def _check(what: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InputError("lab", what, f"must be {low} to {high}, is {value}")


def _cluster(  # noqa: PLR0917
    number: int, workers: int, gateways: int, pods: int, cni: Cni, underlay: Underlay, *, same_cidrs: bool
) -> Cluster:
    name = cluster_name(number)
    if cni is Cni.ANTREA:
        cni, gateways = (Cni.FLANNEL, gateways) if number == 1 else (cni, 1)
    subnet = IPv4Network(f"192.168.{number}.0/24")
    pod_cidr = {
        Cni.FLANNEL: IPv4Network(f"10.{number}.0.0/16"),
        Cni.EBPF: IPv4Network(f"10.{number}.0.0/16"),
        Cni.ANTREA: IPv4Network(f"10.{number}.0.0/16"),
        Cni.CALICO: IPv4Network(f"10.{number}.0.0/16"),
        Cni.AWS_VPC: subnet,  # Pods have addresses of the VPC
        Cni.OVERLAP: IPv4Network("10.10.0.0/16"),
    }[cni]
    service_cidr = IPv4Network(f"10.{100 + number}.0.0/16")
    if same_cidrs:
        pod_cidr, service_cidr = KUBEADM_PODS, KUBEADM_SERVICES
    subnet6 = IPv6Network(f"fd00:6d63:{number:x}::/64") if underlay is Underlay.IPV6 else None
    names = [f"gw{i}" for i in range(1, gateways + 1)] + [f"w{i}" for i in range(1, workers + 1)]
    nodes = []
    for index, short in enumerate(names):
        per_node = None if cni is Cni.AWS_VPC else IPv4Network((pod_cidr[256 * (index + 1)], 24))
        first = subnet[FIRST_VPC_POD + index * pods] if per_node is None else per_node[2]
        if cni is Cni.CALICO:
            first = pod_cidr[(FIRST_CALICO_BLOCK + index) * 256 + 2]
        nodes.append(
            Node(
                name=f"{name}-{short}",
                address=subnet[11 + index],
                address6=subnet6[11 + index] if subnet6 is not None else None,
                gateway=short.startswith("gw"),
                pod_cidr=per_node,
                pods=tuple(Pod(name=f"{name}-{short}-p{k + 1}", address=first + k) for k in range(pods)),
            )
        )
    all_pods = tuple(pod.name for node in nodes for pod in node.pods)
    return Cluster(
        name=name,
        cni=cni,
        subnet=subnet,
        pod_cidr=pod_cidr,
        service_cidr=service_cidr,
        subnet6=subnet6,
        nodes=tuple(nodes),
        services=(
            Service(name="web", cluster_ip=service_cidr[80], pods=all_pods),
            Service(name="private", cluster_ip=service_cidr[99], pods=all_pods, exported=False),
        ),
        publish_pods=cni is not Cni.OVERLAP,
        config={"podRouting": "perPod"} if cni is Cni.CALICO else {},
    )
