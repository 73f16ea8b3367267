"""Tunnels of the kernel alone between Nodes, to compare mcagent with: Geneve, VXLAN and WireGuard.

A chain is a Pod at both ends, of a CIDR that mcagent does not know, and a tunnel device and a route for each hop
between the Nodes of the chain. Packets pass the same network stacks as those of other Pods, without Open vSwitch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network
from itertools import pairwise

from devtools.lab.lab import Lab
from devtools.lab.topology import Cluster, Node, Pod
from devtools.nodes import netns


class KernelTunnel(StrEnum):
    """A kind of tunnel device, as ip-link(8) names it."""

    GENEVE = "geneve"
    VXLAN = "vxlan"
    WIREGUARD = "wireguard"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A kind of path. `relayed`: from a worker over both gateways to a worker; else from gateway to gateway."""

    name: str
    kind: KernelTunnel
    relayed: bool = False

    def exists_in(self, cluster: Cluster) -> bool:
        """Tell whether a cluster has the Nodes that the chain passes."""
        return bool(cluster.workers) or not self.relayed

    def nodes_in(self, cluster: Cluster) -> list[Node]:
        """Return the Nodes of a cluster that the chain passes, the one with the Pod first."""
        return [cluster.workers[0], cluster.gateways[0]] if self.relayed else [cluster.gateways[0]]

    def pod_name(self, cluster: Cluster) -> str:
        """Return the name of the Pod in a cluster."""
        return f"{self.nodes_in(cluster)[0].name}-{self.name}"


CHAINS = (
    *(Chain(name=str(kind), kind=kind) for kind in KernelTunnel),
    Chain(name="geneve-relay", kind=KernelTunnel.GENEVE, relayed=True),
)
PODS = IPv4Network("100.64.0.0/16")  # shared address space (RFC 6598)
LINKS = IPv4Network("100.65.0.0/16")  # of the devices themselves
PORT = 6090  # the first UDP port: not Open vSwitch's, because a port has one receiver
OPTIONS = {  # without checksum of the outer UDP, as Open vSwitch's tunnels over IPv4; MTUs: 1500 - headers
    KernelTunnel.GENEVE: "mtu 1450 type geneve id {id} remote {remote} dstport {port} noudpcsum",
    KernelTunnel.VXLAN: "mtu 1450 type vxlan id {id} remote {remote} local {local} dstport {port} noudpcsum",
    KernelTunnel.WIREGUARD: "mtu 1440 type wireguard",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """One end of a tunnel of a chain, and the Pod that is reached through it. `number` is that of the tunnel."""

    chain: Chain
    number: int
    index: int  # of the end: 0 or 1
    node: Node
    namespace: str
    remote: IPv4Address
    pod: IPv4Address

    @property
    def device(self) -> str:
        """Name of the device on the Node."""
        # At most 15 characters (IFNAMSIZ). Chains may pass the same Node.
        return f"kt{CHAINS.index(self.chain)}{self.number}{self.index}-{self.chain.kind}"

    @property
    def port(self) -> int:
        """UDP port of both ends. Tunnels of a chain share it: their identifiers differ."""
        return PORT + CHAINS.index(self.chain)

    def link(self, index: int) -> IPv4Address:
        """Return the address of the device at an end."""
        return LINKS[256 * CHAINS.index(self.chain) + 4 * self.number + index + 1]


def with_pods(cluster: Cluster, index: int) -> Cluster:
    """Return a cluster with a Pod for each chain. `index` of the end of the chains: 0 or 1."""
    chains = [chain for chain in CHAINS if chain.exists_in(cluster)]
    pods: dict[str, list[Pod]] = {}
    for chain in chains:
        pod = Pod(name=chain.pod_name(cluster), address=PODS[256 * index + CHAINS.index(chain) + 2])
        pods.setdefault(chain.nodes_in(cluster)[0].name, []).append(pod)
    return replace(
        cluster,
        nodes=tuple(replace(node, pods=(*node.pods, *pods.get(node.name, ()))) for node in cluster.nodes),
    )


def ends(lab: Lab) -> dict[Chain, tuple[Pod, Pod]]:
    """Return the Pods at both ends of each chain that a lab has Pods for: in its first two clusters."""
    clusters = lab.topology.clusters[:2]
    pods = {pod.name: pod for cluster in clusters for node in cluster.nodes for pod in node.pods}
    chains = [chain for chain in CHAINS if all(map(chain.exists_in, clusters))]
    first, last = ({chain: pods.get(chain.pod_name(cluster)) for chain in chains} for cluster in clusters)
    return {chain: (pod, remote) for chain in chains if (pod := first[chain]) and (remote := last[chain])}


def _hops(lab: Lab, chain: Chain, pods: tuple[Pod, Pod]) -> Iterator[tuple[Hop, Hop]]:
    east, west = (chain.nodes_in(cluster) for cluster in lab.topology.clusters[:2])
    nodes = [*east, *reversed(west)]
    for number, pair in enumerate(pairwise(nodes)):
        first, last = (
            Hop(
                chain=chain,
                number=number,
                index=index,
                node=node,
                namespace=lab.namespace(node),
                remote=pair[1 - index].address,
                pod=pods[1 - index].address,
            )
            for index, node in enumerate(pair)
        )
        yield first, last


def build_tunnels(lab: Lab) -> None:
    """Make the devices and routes for the lab's Pods. Raises LabError if the kernel lacks a kind of device."""
    for chain, pods in ends(lab).items():
        for pair in _hops(lab, chain, pods):
            for hop in pair:
                options = OPTIONS[chain.kind].format(
                    id=hop.number + 7, local=hop.node.address, remote=hop.remote, port=hop.port
                )
                lines = [
                    f"link add {hop.device} {options}",
                    f"address add {hop.link(hop.index)}/30 dev {hop.device}",
                    f"link set {hop.device} up",
                    f"route add {hop.pod}/32 via {hop.link(1 - hop.index)} dev {hop.device}",
                ]
                netns.ip_batch(hop.namespace, lines)
            if chain.kind is KernelTunnel.WIREGUARD:
                _exchange_keys(*pair)


def _exchange_keys(*pair: Hop) -> None:
    keys = [netns.run(["wg", "genkey"]).stdout for _ in pair]
    public_keys = [netns.run(["wg", "pubkey"], stdin=key).stdout.strip() for key in keys]
    for hop in pair:
        peer = 1 - hop.index
        argv = ["wg", "set", hop.device, "listen-port", str(hop.port), "private-key", "/dev/stdin"]
        argv += ["peer", public_keys[peer], "endpoint", f"{hop.remote}:{hop.port}"]
        argv += ["allowed-ips", f"{hop.pod}/32,{hop.link(peer)}/32"]
        netns.execute(hop.namespace, argv, stdin=keys[hop.index])
