"""kube-proxy in its nftables form: destination NAT from ClusterIPs to what is behind them.

Owns the table `ip kube-proxy` of a Node. Services of the cluster itself lead to their Pods; imported Services
lead to the ClusterIPs of the clusters that export them, as the Endpoints of `antrea-mc-NAME` say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ipaddress import IPv4Address

from mcagent.lab import netns
from mcagent.lab.topology import Cluster, Topology


def install(namespace: str, topology: Topology, cluster: Cluster) -> None:
    """Program a Node of the cluster."""
    netns.execute(namespace, ["nft", "-f", "-"], stdin=ruleset(topology, cluster))


def ruleset(topology: Topology, cluster: Cluster) -> str:
    """Return the table as nft(8) text; loading it again replaces the rules."""
    lines = "\n".join(f"    {rule}" for rule in _rules(topology, cluster))
    own = ", ".join(f"{pod.address} . {pod.address}" for node in cluster.nodes for pod in node.pods)
    # A Pod that reached itself by a ClusterIP would answer itself directly: as kube-proxy does, translate.
    hairpin = f"ct status dnat ip saddr . ip daddr {{ {own} }} masquerade" if own else ""
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
  }}
}}
"""


def _rules(topology: Topology, cluster: Cluster) -> Iterator[str]:
    pods = {pod.name: pod.address for _, _, pod in topology.pods()}
    for service in cluster.services:
        backends = [pods[name] for name in service.pods]
        for protocol in service.protocols:
            yield from _rule(protocol, service.cluster_ip, service.port, backends, service.target_port)
    for imported in topology.imports(cluster):
        for protocol in imported.service.protocols:
            yield from _rule(
                protocol, imported.cluster_ip, imported.service.port, imported.backends, imported.service.port
            )


def _rule(
    protocol: str, address: IPv4Address, port: int, backends: Sequence[IPv4Address], target_port: int
) -> Iterator[str]:
    if backends:
        choice = ", ".join(f"{number} : {backend} . {target_port}" for number, backend in enumerate(backends))
        match = f"ip daddr {address} {protocol.lower()} dport {port}"
        yield f"{match} dnat ip to numgen random mod {len(backends)} map {{ {choice} }}"
