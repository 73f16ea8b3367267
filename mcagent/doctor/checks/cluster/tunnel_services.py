"""Check `tunnel-services`: Services with the address and UDP port of a tunnel, which proxies would translate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mcagent.api.doctor import CheckFinding
from mcagent.controller.admin.fields import items_at, name_of, namespace_of, text_at, texts_at
from mcagent.core.fragments.tunnel_guard import BFD_PORT, tunnel_port
from mcagent.doctor.check import DoctorCheck, warning
from mcagent.doctor.checks.cluster.agents import nodes
from mcagent.doctor.checks.cluster.leader import imports
from mcagent.doctor.examined import ExaminedCluster
from mcagent.kube.source import RawObject
from mcagent.model.api.multicluster import ApiGateway

CHECK = DoctorCheck(
    name="tunnel-services",
    order=255,
    summary="Services with the address (externalIPs, load balancer, node port) and UDP port of a tunnel",
    causes={
        "ServiceClaimsTunnel": warning(
            "the proxy of each Node would send the tunnel's packets to the Service. mcagent keeps them from "
            "translation by netfilter, but not by IPVS or eBPF",
            "kubectl -n {namespace} get service {name} -o yaml; remove the address; the admission plug-in "
            "DenyServiceExternalIPs forbids externalIPs",
        ),
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedSocket:
    """An address and UDP port that a Service claims; address "": all of Nodes."""

    namespace: str
    service: str
    address: str
    port: int


def claimed_sockets(cluster: ExaminedCluster) -> tuple[ClaimedSocket, ...]:
    """Return the addresses and UDP ports of Services beside their ClusterIPs. Raises SourceError."""
    return tuple(claim for service in cluster.items("/api/v1/services") for claim in claims_of(service))


def claims_of(service: RawObject) -> Iterator[ClaimedSocket]:
    """Yield the addresses and UDP ports of one Service beside its ClusterIPs."""
    ingress = items_at(service, "status", "loadBalancer", "ingress")
    addresses = [*texts_at(service, "spec", "externalIPs"), *(text_at(entry, "ip") for entry in ingress)]
    for port in items_at(service, "spec", "ports"):
        if port.get("protocol") != "UDP":
            continue
        sockets = [
            *((address, port.get("port")) for address in filter(None, addresses)),
            ("", port.get("nodePort")),
        ]
        for address, number in sockets:
            if isinstance(number, int):
                yield ClaimedSocket(
                    namespace=namespace_of(service), service=name_of(service), address=address, port=number
                )


def tunnel_ends(cluster: ExaminedCluster) -> frozenset[str]:
    """Return the addresses at which tunnels may end: of Nodes and gateways. Raises SourceError."""
    own = [
        address for gateway in cluster.objects(ApiGateway) for address in (gateway.gateway_ip, gateway.internal_ip)
    ]
    remote = [gateway.gateway_ip for info in cluster.read(imports) for gateway in info.spec.gateway_infos]
    of_nodes = [entry.address for node in cluster.read(nodes) for entry in node.status.addresses]
    return frozenset((*own, *remote, *of_nodes))


def examine(cluster: ExaminedCluster) -> Iterator[CheckFinding]:
    """Report each Service that claims a tunnel's address and port."""
    config = cluster.config
    ports = {tunnel_port(config), BFD_PORT, *config.wireguard_ports}
    claims = [claim for claim in cluster.read(claimed_sockets) if claim.port in ports]
    ends = cluster.read(tunnel_ends) if claims else frozenset()
    claims = [claim for claim in claims if not claim.address or claim.address in ends]
    for claim in claims:
        text = (
            f"Service {claim.namespace}/{claim.service} has {claim.address or 'all Nodes'}, UDP port {claim.port}"
        )
        yield CHECK.finding(
            "ServiceClaimsTunnel", text, subject=claim.service, namespace=claim.namespace, name=claim.service
        )
    if not claims:
        yield CHECK.passed("no Service has the address and port of a tunnel")
