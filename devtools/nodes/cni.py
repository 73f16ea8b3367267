"""What a CNI adds to a Node: routes to other Nodes' Pods, and the address translation for what leaves.

Owns the iptables rules of the imitated CNI, word for word those of flannel and of the AWS VPC CNI (Calico's:
`devtools.nodes.calico`). `rules` and `routes` are pure; `install` applies them. With eBPF
(`devtools.nodes.ebpf`) the rules of flannel remain for what that leaves to the kernel.
"""

from __future__ import annotations

import socket

from devtools.lab.topology import Cluster, Cni, Node, Pod
from devtools.nodes import calico, ebpf, netns, underlay
from devtools.nodes import node as nodes


def routes(cluster: Cluster, node: Node, device: str) -> list[str]:
    """Return the routes of a Node as ip(8) lines: flannel's host-gw backend; a cloud network needs none."""
    if cluster.cni is Cni.AWS_VPC:
        return []
    if cluster.cni is Cni.CALICO:
        return calico.routes(cluster, node, device)
    return [
        f"route add {other.pod_cidr} via {other.address} dev {device}"
        for other in cluster.nodes
        if other.name != node.name and other.pod_cidr is not None
    ]


def rules(cluster: Cluster, node: Node) -> list[list[str]]:
    """Return the Node's iptables commands (arguments after `iptables -t nat`), unless its CNI is Calico."""
    if cluster.cni is Cni.AWS_VPC:
        # amazon-vpc-cni-k8s, pkg/networkutils/network.go: AWS-SNAT-CHAIN-0
        chain = "AWS-SNAT-CHAIN-0"
        comment = ["-m", "comment", "--comment", "AWS, SNAT"]
        return [
            ["-N", chain],
            ["-A", "POSTROUTING", "-m", "comment", "--comment", "AWS SNAT CHAIN", "-j", chain],
            ["-A", chain, "-d", str(cluster.subnet), *comment, "-j", "RETURN"],
            [
                *("-A", chain, "!", "-o", "vlan+", *comment, "-m", "addrtype", "!", "--dst-type", "LOCAL"),
                *("-j", "SNAT", "--to-source", str(node.address), "--random-fully"),
            ],
        ]
    # flannel, pkg/trafficmngr/iptables/iptables.go: FLANNEL-POSTRTG
    chain, pods, own = "FLANNEL-POSTRTG", str(cluster.pod_cidr), str(node.pod_cidr)
    return [
        ["-N", chain],
        ["-A", "POSTROUTING", "-j", chain],
        ["-A", chain, "-m", "mark", "--mark", "0x4000/0x4000", "-j", "RETURN"],  # kube-proxy's
        ["-A", chain, "-s", own, "-d", pods, "-j", "RETURN"],
        ["-A", chain, "-s", pods, "-d", own, "-j", "RETURN"],
        ["-A", chain, "!", "-s", pods, "-d", own, "-j", "RETURN"],
        ["-A", chain, "-s", pods, "!", "-d", "224.0.0.0/4", "-j", "MASQUERADE", "--random-fully"],
        ["-A", chain, "!", "-s", pods, "-d", pods, "-j", "MASQUERADE", "--random-fully"],
    ]


def install(namespace: str, cluster: Cluster, node: Node, device: str) -> None:
    """Apply routes and rules to a Node."""
    lines = routes(cluster, node, device)
    if lines:
        netns.ip_batch(namespace, lines)
    if cluster.cni is Cni.AWS_VPC:
        # The cloud's network knows which Node has an address; here the Node answers ARP for its Pods.
        names = {f"net/ipv4/conf/{device}/proxy_arp": "1", f"net/ipv4/neigh/{device}/proxy_delay": "0"}
        underlay.set_sysctl(namespace, names)
    if cluster.cni is Cni.CALICO:
        netns.execute(namespace, ["iptables-restore", "-w", "--noflush"], stdin=calico.rules(cluster, node))
        return
    for rule in rules(cluster, node):
        netns.execute(namespace, ["iptables", "-w", "-t", "nat", *rule])
    if cluster.cni is Cni.EBPF:
        ebpf.attach(namespace, device, ebpf.program(_index(namespace, device), cluster.pod_cidr))


def attach_pod(namespace: str, cluster: Cluster, node: Node, pod: Pod, *, userspace: bool) -> None:
    """Forward the packets of a new Pod by eBPF, if the CNI does."""
    if cluster.cni is Cni.EBPF:
        uplink = _index(namespace, nodes.uplink(userspace=userspace))
        ebpf.attach(namespace, nodes.pod_device(node, pod), ebpf.program(uplink, cluster.pod_cidr, pod.address))


def _index(namespace: str, device: str) -> int:
    return netns.call(namespace, lambda: socket.if_nametoindex(device))
