"""One Node of the lab: a namespace with its uplink, its Open vSwitch, and its Pods' namespaces.

Owns what the machine itself and the distribution would have set up; the CNI's rules are `devtools.nodes.cni`'s,
Services `devtools.nodes.kubeproxy`'s, everything of mcagent's own is the agent's.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from devtools.lab.topology import Cluster, Node, Pod
from devtools.nodes import netns, underlay
from devtools.nodes.ovs import OvsInstance
from devtools.waiting import wait_until

PHYSICAL_BRIDGE = "br-phy"
UPLINK_MTU = 1500
NEIGHBOUR_AGING = 3600  # seconds, the most there is (ovs-vswitchd(8), tnl/neigh/aging)
POD_NEXT_HOP = "169.254.1.1"


# Open vSwitch reads the uplink by AF_PACKET, before this hook; without it the kernel would take every packet too.
_UPLINK_FILTER = """\
table netdev uplink {
  chain to-kernel {
    type filter hook ingress device "eth0" priority 0; policy drop;
  }
}
"""


def sysctls(*, ipv6: bool = False) -> dict[str, str]:
    """Return a Node's sysctls: strict reverse path filtering (RFC 3704) as RHEL sets it, the hard case."""
    return {
        "net/ipv4/ip_forward": "1",
        "net/ipv4/conf/all/rp_filter": "1",
        "net/ipv4/conf/default/rp_filter": "1",
        **underlay.ipv6_sysctls(on=ipv6),
    }


def uplink(*, userspace: bool) -> str:
    """Name of the device with the Node's address."""
    return PHYSICAL_BRIDGE if userspace else "eth0"


def build(
    namespace: str,
    under: str,
    directory: Path,
    cluster: Cluster,
    node: Node,
    *,
    cluster_number: int,
    userspace: bool,
) -> OvsInstance:
    """Make the Node: namespace, uplink, Open vSwitch, its address and default route."""
    index = cluster.nodes.index(node) + 1
    netns.create(namespace)
    underlay.set_sysctl(namespace, sysctls(ipv6=node.address6 is not None))
    underlay.attach(under, cluster_number, index, namespace, userspace=userspace)
    ovs = OvsInstance.start(namespace, directory)
    if userspace:
        # Tunnels of the userspace datapath leave only through a bridge of its own: it takes over uplink and MAC.
        ovs.vsctl(
            *("add-br", PHYSICAL_BRIDGE, "--", "set", "bridge", PHYSICAL_BRIDGE, "datapath_type=netdev"),
            *("fail-mode=standalone", f'other_config:hwaddr="{underlay.mac(cluster_number, index)}"'),
            *("--", "add-port", PHYSICAL_BRIDGE, "eth0"),
        )
        prime_neighbours(ovs, cluster, cluster_number=cluster_number)
        netns.execute(namespace, ["nft", "-f", "-"], stdin=_UPLINK_FILTER)
    device = uplink(userspace=userspace)
    lines = [
        f"address add {node.address}/{cluster.subnet.prefixlen} dev {device}",
        f"link set {device} up",
        f"route add default via {cluster.router} dev {device}",
    ]
    if node.address6 is not None and cluster.subnet6 is not None:
        lines += [
            f"address add {node.address6}/{cluster.subnet6.prefixlen} dev {device} nodad",
            f"route add default via {cluster.router6} dev {device}",
        ]
    netns.ip_batch(namespace, lines)
    return ovs


def prime_neighbours(ovs: OvsInstance, cluster: Cluster, *, cluster_number: int) -> None:
    """Tell the userspace datapath the MAC addresses of the other Nodes and of the router.

    It keeps a neighbour table of its own for tunnels and drops the packet for which it has to ask, where the
    kernel would keep it. In the lab, Nodes have spoken to each other before, so that every lost packet counts.
    """
    routers = (cluster.router, cluster.router6)
    neighbours = [(address, underlay.router_mac(cluster_number)) for address in routers if address is not None]
    for index, node in enumerate(cluster.nodes, start=1):
        mac = underlay.mac(cluster_number, index)
        neighbours += [(address, mac) for address in {node.address, node.tunnel_address}]
    ovs.appctl("tnl/neigh/aging", str(NEIGHBOUR_AGING))
    for address, mac in neighbours:
        ovs.appctl("tnl/neigh/set", PHYSICAL_BRIDGE, str(address), mac)


def wait_for_router(namespace: str, cluster: Cluster) -> None:
    """Return when the Node reaches the router, so that what follows starts on a working network."""
    for router in (cluster.router, cluster.router6):
        if router is not None:
            argv = ["ping", "-n", "-q", "-c", "1", "-W", "1", str(router)]
            wait_until(
                partial(_answered, namespace, argv),
                f"{namespace} to reach its router {router}",
                timeout=20,
            )


def _answered(namespace: str, argv: list[str]) -> bool:
    return netns.execute(namespace, argv, check=False).returncode == 0


def pod_device(node: Node, pod: Pod) -> str:
    """Name of the Node's end of a Pod's veth."""
    return f"pod{node.pods.index(pod) + 1}"


def add_pod(node_namespace: str, pod_namespace: str, node: Node, pod: Pod) -> None:
    """Make a Pod: a namespace behind a veth, a /32 address, and its next hop as a permanent neighbour.

    So do Calico and the AWS VPC CNI: no subnet on the veth, no broadcast.
    """
    device = pod_device(node, pod)
    netns.create(pod_namespace)
    underlay.set_sysctl(pod_namespace, {"net/ipv6/conf/all/disable_ipv6": "1"})
    netns.add_veth(device, node_namespace, "eth0", pod_namespace)
    node_mac, pod_mac = _pod_macs(pod)
    netns.ip_batch(
        pod_namespace,
        [
            f"link set eth0 address {pod_mac}",
            f"address add {pod.address}/32 dev eth0",
            f"route add {POD_NEXT_HOP} dev eth0 scope link",
            f"route add default via {POD_NEXT_HOP} dev eth0",
            f"neighbour add {POD_NEXT_HOP} lladdr {node_mac} dev eth0 nud permanent",
        ],
    )
    netns.ip_batch(
        node_namespace,
        [
            f"link set {device} address {node_mac}",
            f"route add {pod.address}/32 dev {device} scope link",
            f"neighbour add {pod.address} lladdr {pod_mac} dev {device} nud permanent",
        ],
    )


def _pod_macs(pod: Pod) -> tuple[str, str]:
    tail = ":".join(f"{octet:02x}" for octet in pod.address.packed)
    return f"0e:01:{tail}", f"0e:02:{tail}"
