"""The paths that benchmarks of packets measure, and the labs with these paths.

Knows addresses and Nodes; not how a path is measured (`measuring`), or what its numbers mean (`report`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from devtools.lab.lab import Lab
from devtools.lab.topology import POD_PORT, Service, Topology, generate
from mcagent.model.config import DatapathChoice, TrafficEncryption
from mcagent.model.dataplane.resources import TunnelType
from tests.bench.packets import kernel_tunnels

IPERF_PORT = 5201
BASE = "gateway-gateway"  # what ratios refer to


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to measure: from a namespace to an address; the Nodes whose switches it goes through.

    `echo`: where the echo server is reached, if not at the same address: Services have one for each.
    """

    name: str
    client: str
    address: str
    nodes: tuple[str, ...]
    echo: str = ""

    @property
    def server(self) -> str:
        """The address of the echo server."""
        return self.echo or self.address


def topology(
    tunnel: TunnelType, datapath: DatapathChoice, gateways: int = 1, *, translated: bool = True
) -> Topology:
    """Return the three clusters; the serving one exports what the servers of this benchmark listen on.

    `translated`: with the third cluster, whose sources are translated.
    """
    name = f"bench-{os.getpid()}-{gateways}"
    plain = generate(name=name, clusters=3, gateways=gateways, tunnel=tunnel, datapath=datapath)
    east, west, north = plain.clusters
    services = tuple(
        Service(
            name=f"{what}-{role}",
            cluster_ip=west.service_cidr[number + place],
            pods=(pod.name,),
            port=port,
            target_port=port,
        )
        for number, (what, port) in ((10, ("iperf", IPERF_PORT)), (20, ("echo", POD_PORT)))
        for place, (role, pod) in enumerate(
            (("gateway", west.gateways[0].pods[0]), ("worker", west.workers[0].pods[0]))
        )
    )
    north = replace(north, config={"sourceNAT": "always"}, services=())
    east, west = replace(east, services=()), replace(west, services=services)
    if datapath is DatapathChoice.SYSTEM:
        east, west = (kernel_tunnels.with_pods(c, index) for index, c in enumerate((east, west)))
    return replace(plain, clusters=(east, west, north) if translated else (east, west))


PAIRS: dict[str, dict[str, object]] = {  # what each pair of clusters adds to its agents' configuration
    "": {"trafficEncryptionMode": "none"},
    "+wireguard": {"wireGuard": {"implementation": "kernel"}},
    "+wireguard-go": {"wireGuard": {"implementation": "userspace"}},
}


def encrypted_topology(tunnel: TunnelType) -> Topology:
    """Return a pair of clusters for each kind of encryption."""
    plain = generate(
        name=f"bench-{os.getpid()}-encrypted",
        clusters=2 * len(PAIRS),
        workers=0,
        tunnel=tunnel,
        datapath=DatapathChoice.SYSTEM,
        encryption=TrafficEncryption.WIREGUARD,
    )
    configs = [config for config in PAIRS.values() for _ in range(2)]
    clusters = [
        replace(cluster, services=(), config=config)
        for cluster, config in zip(plain.clusters, configs, strict=True)
    ]
    clusters[:2] = [kernel_tunnels.with_pods(c, index) for index, c in enumerate(clusters[:2])]
    return replace(plain, clusters=tuple(clusters))


def encrypted_paths(lab: Lab) -> list[Way]:
    """Return the ways between the Nodes of each pair, and the underlay."""
    gates = [cluster.gateways[0] for cluster in lab.topology.clusters]
    ways = [Way(name="underlay", client=lab.namespace(gates[0]), address=str(gates[1].address), nodes=())]
    for place, suffix in enumerate(PAIRS):
        first, last = gates[2 * place : 2 * place + 2]
        ways.append(
            Way(
                name=f"{BASE}{suffix}",
                client=lab.namespace(first.pods[0]),
                address=str(last.pods[0].address),
                nodes=(first.name, last.name),
            )
        )
    return ways


def kernel_paths(lab: Lab) -> list[Way]:
    """Return the paths through the kernel's own tunnels, if the lab has them."""
    return [
        Way(name=f"kernel-{chain.name}", client=lab.namespace(first), address=str(last.address), nodes=())
        for chain, (first, last) in kernel_tunnels.ends(lab).items()
    ]


def paths(lab: Lab) -> list[Way]:
    """Return the paths of the benchmark in the order of the table."""
    east, west = lab.topology.clusters[:2]
    ways: list[Way] = []

    def add(name: str, client: object, address: object, *nodes: str, echo: object = "") -> None:
        ends = {"client": lab.namespace(client), "address": str(address), "echo": str(echo)}
        ways.append(Way(name=name, **ends, nodes=nodes))

    def add_service(name: str, client: object, place: int, *nodes: str) -> None:
        iperf_at, echo_at = (service.cluster_ip for service in west.services[place::2])
        add(f"{name}+service", client, iperf_at, *nodes, echo=echo_at)

    gateway, worker = west.gateways[0], west.workers[0]
    add("underlay", east.gateways[0], gateway.address)
    for suffix, source in zip(("", "+snat"), (east, *lab.topology.clusters[2:]), strict=False):
        first, last = source.gateways[0], source.workers[0]
        gates = tuple(node.name for node in (*source.gateways, *west.gateways))
        all_paths = (last.name, *gates, worker.name)
        add(f"{BASE}{suffix}", first.pods[0], gateway.pods[0].address, *gates)
        add(f"worker-worker{suffix}", last.pods[0], worker.pods[0].address, *all_paths)
        add_service(f"{BASE}{suffix}", first.pods[0], 0, *gates)
        add_service(f"worker-worker{suffix}", last.pods[0], 1, *all_paths)
    return ways
