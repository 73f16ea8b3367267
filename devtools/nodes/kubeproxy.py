"""kube-proxy's rules: destination NAT from ClusterIPs to what is behind them, and what comes with it.

They do what those of kube-proxy 1.35 do on the Nodes of devtools/mck8s (pkg/proxy/nftables/proxier.go; the drop of
invalid packets: pkg/proxy/iptables/proxier.go): clients outside of the Pod CIDR and Pods that reach themselves are
masqueraded; packets to ClusterIPs of no Service, or that conntrack takes for invalid, are dropped.

Owns the table `ip kube-proxy` of a Node. Services of the cluster itself lead to their Pods; imported Services
lead to the ClusterIPs of the clusters that export them, as the EndpointSlices of `antrea-mc-NAME` say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Any

from devtools.lab.topology import Cluster, Cni, Topology
from devtools.nodes import netns

MASQUERADE = "0x4000"  # kube-proxy's `--iptables-masquerade-bit`


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Proxied:
    """One port of a ClusterIP and what is behind it: addresses with their ports."""

    address: IPv4Address
    port: int
    protocol: str
    backends: tuple[tuple[IPv4Address, int], ...]


def install(namespace: str, topology: Topology, cluster: Cluster) -> None:
    """Program a Node of the cluster, or a Pod where sockets translate."""
    netns.execute(namespace, ["nft", "-f", "-"], stdin=ruleset(of_topology(topology, cluster), cluster))


def at_sockets(cluster: Cluster) -> bool:
    """Tell whether Services are translated where a connection begins, as an eBPF program does at the socket.

    In the lab, rules of the Pod's own namespace do it: a packet has the address of the endpoint when it leaves the
    Pod. Netfilter of the Node sees at most one direction of a connection.
    """
    return cluster.cni is Cni.EBPF


def ruleset(proxied: Iterable[Proxied], cluster: Cluster) -> str:
    """Return the table as nft(8) text; loading it again replaces the rules."""
    # With a CNI that gives Nodes no Pod CIDRs kube-proxy does not know who is outside (`--cluster-cidr`).
    outside = "" if cluster.cni is Cni.AWS_VPC or at_sockets(cluster) else f"ip saddr != {cluster.pod_cidr}"
    lines = "\n".join(
        f"    {line}" for service in proxied if service.backends for line in _rules(service, outside)
    )
    own = ", ".join(f"{pod.address} . {pod.address}" for node in cluster.nodes for pod in node.pods)
    if at_sockets(cluster):
        return f"""\
table ip kube-proxy {{
}}
flush table ip kube-proxy
table ip kube-proxy {{
  chain services {{
{lines}
  }}
  chain nat-output {{
    type nat hook output priority -100;
    jump services
  }}
}}
"""
    # A Pod that reached itself by a ClusterIP would answer itself directly.
    hairpin = f"ct status dnat ip saddr . ip daddr {{ {own} }} masquerade fully-random" if own else ""
    return f"""\
table ip kube-proxy {{
}}
flush table ip kube-proxy
table ip kube-proxy {{
  chain services {{
{lines}
  }}
  chain nat-prerouting {{
    type nat hook prerouting priority dstnat;
    jump services
  }}
  chain nat-output {{
    type nat hook output priority -100;
    jump services
  }}
  chain nat-postrouting {{
    type nat hook postrouting priority srcnat;
    {hairpin}
    meta mark & {MASQUERADE} == 0 return
    meta mark set meta mark ^ {MASQUERADE}
    masquerade fully-random
  }}
  chain filter-forward {{
    type filter hook forward priority filter;
    ct state invalid drop
    ct state new ip daddr {cluster.service_cidr} drop
  }}
  chain filter-output {{
    type filter hook output priority filter;
    ct state new ip daddr {cluster.service_cidr} drop
  }}
}}
"""


def of_topology(topology: Topology, cluster: Cluster) -> Iterator[Proxied]:
    """Yield the Services of a cluster, and what it imports, as the lab's plan has them."""
    pods = {pod.name: pod.address for _, _, pod in topology.pods()}
    for service in cluster.services:
        backends = tuple((pods[name], service.target_port) for name in service.pods)
        for protocol in service.protocols:
            yield Proxied(address=service.cluster_ip, port=service.port, protocol=protocol, backends=backends)
    for imported in topology.imports(cluster):
        backends = tuple((address, imported.service.port) for address in imported.backends)
        for protocol in imported.service.protocols:
            yield Proxied(
                address=imported.cluster_ip, port=imported.service.port, protocol=protocol, backends=backends
            )


def of_objects(services: Sequence[Mapping[str, Any]], slices: Sequence[Mapping[str, Any]]) -> list[Proxied]:
    """Return the Services that an API server's Services and EndpointSlices make up, sorted."""
    by_service: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for endpoint_slice in slices:
        if endpoint_slice.get("addressType") != "IPv4":  # of a dual-stack Service, or FQDN
            continue
        meta = endpoint_slice["metadata"]
        name = meta.get("labels", {}).get("kubernetes.io/service-name", "")
        by_service.setdefault((meta["namespace"], name), []).append(endpoint_slice)
    proxied = []
    for service in services:
        address = service["spec"].get("clusterIP")
        if not address or address == "None" or ":" in address:
            continue
        own_slices = by_service.get((service["metadata"]["namespace"], service["metadata"]["name"]), [])
        for port in service["spec"].get("ports") or []:
            protocol = port.get("protocol", "TCP")
            name = port.get("name", "")
            backends = {pair for own_slice in own_slices for pair in _backends(own_slice, name, protocol)}
            proxied.append(
                Proxied(
                    address=IPv4Address(address),
                    port=port["port"],
                    protocol=protocol,
                    backends=tuple(sorted(backends)),
                )
            )
    return sorted(proxied)


def _backends(endpoint_slice: Mapping[str, Any], name: str, protocol: str) -> Iterator[tuple[IPv4Address, int]]:
    for port in endpoint_slice.get("ports") or []:
        if port.get("name", "") == name and port.get("protocol", "TCP") == protocol:
            for endpoint in endpoint_slice.get("endpoints") or []:
                if endpoint.get("conditions", {}).get("ready") is not False:
                    for address in endpoint["addresses"]:
                        yield IPv4Address(address), port["port"]


def _rules(one: Proxied, outside: str) -> Iterator[str]:
    choice = ", ".join(f"{n} : {address} . {port}" for n, (address, port) in enumerate(one.backends))
    match = f"ip daddr {one.address} {one.protocol.lower()} dport {one.port}"
    if outside:
        yield f"{match} {outside} meta mark set meta mark | {MASQUERADE}"
    yield f"{match} dnat ip to numgen random mod {len(one.backends)} map {{ {choice} }}"
