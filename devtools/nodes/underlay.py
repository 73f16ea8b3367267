"""The lab's physical network: one namespace with a bridge per cluster subnet and a router between them.

Owns that namespace. A packet between subnets passes only between Nodes and API servers (as between peered
networks whose route tables know no Pods); the router's own address `OUTSIDE` plays the internet. In an aws-vpc
subnet every bridge port drops packets whose source, or destination, does not belong to the Node behind it (the
source/destination check of cloud networks).
"""

from __future__ import annotations

import array
import fcntl
import socket
import struct
from pathlib import Path

from devtools.lab.topology import OUTSIDE, Cluster, Cni, Topology
from devtools.nodes import netns

SIOCETHTOOL = 0x8946  # linux/sockios.h
ETHTOOL_STXCSUM = 0x17  # linux/ethtool.h
API_PORT = "api"


def bridge(number: int) -> str:
    """Name of the bridge of the n-th cluster, counted from 1."""
    return f"net{number}"


def port(cluster: int, index: int) -> str:
    """Name of a bridge's port to the n-th Node of a cluster."""
    return f"p{cluster}-{index}"


def mac(cluster: int, index: int) -> str:
    """MAC address of a Node's uplink: locally administered, the same in every run."""
    return f"02:6d:63:{cluster:02x}:00:{index:02x}"


def router_mac(cluster: int) -> str:
    """MAC address of the router in a cluster's subnet."""
    return f"02:6d:63:{cluster:02x}:01:01"


def set_sysctl(namespace: str, values: dict[str, str]) -> None:
    """Write sysctls ("net/ipv4/ip_forward") inside a namespace; one that this kernel lacks is passed over."""

    def write() -> None:
        for name, value in values.items():
            path = Path("/proc/sys") / name
            if path.exists():
                path.write_text(value)

    netns.call(namespace, write)


def ipv6_sysctls(*, on: bool) -> dict[str, str]:
    """Return what switches IPv6 on a namespace's devices off or, with addresses that are ready at once, on."""
    if not on:
        return {"net/ipv6/conf/all/disable_ipv6": "1"}
    quiet = {"accept_dad": "0", "accept_ra": "0", "router_solicitations": "0"}
    return {
        f"net/ipv6/conf/{where}/{name}": value for where in ("all", "default") for name, value in quiet.items()
    }


def checksum_offload_off(namespace: str, *devices: str) -> None:
    """Make the kernel fill in TCP and UDP checksums itself before it sends by these devices.

    A userspace datapath reads packets by AF_PACKET and would otherwise pass them on with the checksum left to
    a network card that does not exist.
    """

    def switch() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            for device in devices:
                value = array.array("B", struct.pack("=II", ETHTOOL_STXCSUM, 0))
                request = struct.pack("16sP", device.encode(), value.buffer_info()[0])
                fcntl.ioctl(control, SIOCETHTOOL, request)

    netns.call(namespace, switch)


def build(namespace: str, topology: Topology, api_namespaces: dict[str, str], *, userspace: bool) -> None:
    """Make the underlay, and in it the way to each API server's namespace (by cluster name).

    `userspace`: Nodes use Open vSwitch's userspace datapath. Otherwise the network offers checksum and
    segmentation offload, as real cards do.
    """
    netns.create(namespace)
    ipv6 = any(cluster.subnet6 is not None for cluster in topology.clusters)
    set_sysctl(
        namespace,
        {
            "net/ipv4/ip_forward": "1",
            **ipv6_sysctls(on=ipv6),
            **({"net/ipv6/conf/all/forwarding": "1"} if ipv6 else {}),
            "net/bridge/bridge-nf-call-iptables": "0",  # what is bridged is not routed: not the router's business
            "net/bridge/bridge-nf-call-ip6tables": "0",
        },
    )
    lines = [f"address add {OUTSIDE}/32 dev lo"]
    for number, cluster in enumerate(topology.clusters, start=1):
        name = bridge(number)
        lines += [
            f"link add {name} address {router_mac(number)} type bridge forward_delay 0 mcast_snooping 0",
            f"link set {name} up",
            f"address add {cluster.router}/{cluster.subnet.prefixlen} dev {name}",
        ]
        if cluster.subnet6 is not None:
            lines.append(f"address add {cluster.router6}/{cluster.subnet6.prefixlen} dev {name} nodad")
    netns.ip_batch(namespace, lines)
    bridges = [bridge(number) for number in range(1, len(topology.clusters) + 1)]
    for number, cluster in enumerate(topology.clusters, start=1):
        _attach_api(namespace, number, cluster, api_namespaces[cluster.name])
    if userspace:
        checksum_offload_off(namespace, *bridges)
        for api in api_namespaces.values():
            checksum_offload_off(api, "eth0")
    netns.execute(namespace, ["nft", "-f", "-"], stdin=_filter(topology))


def _attach_api(namespace: str, number: int, cluster: Cluster, api: str) -> None:
    netns.create(api)
    set_sysctl(api, {"net/ipv6/conf/all/disable_ipv6": "1"})
    name = f"{API_PORT}{number}"
    netns.add_veth("eth0", api, name, namespace)
    netns.ip(namespace, "link", "set", name, "master", bridge(number))
    netns.add_address(api, "eth0", f"{cluster.api_address}/{cluster.subnet.prefixlen}")
    netns.ip(api, "route", "add", "default", "via", str(cluster.router))


def _filter(topology: Topology) -> str:
    nodes = ", ".join(str(node.address) for _, node in topology.nodes())
    nodes6 = ", ".join(str(node.address6) for _, node in topology.nodes() if node.address6 is not None)
    # Where tunnels are to go by IPv6, Nodes of different clusters reach each other by nothing else.
    among = "" if nodes6 else "ip saddr @nodes ip daddr @nodes accept"
    apis = ", ".join(str(cluster.api_address) for cluster in topology.clusters)
    checked: list[str] = []
    for number, cluster in enumerate(topology.clusters, start=1):
        if cluster.cni is Cni.AWS_VPC:
            for index, node in enumerate(cluster.nodes, start=1):
                owned = (node.address, *(pod.address for pod in node.pods))
                checked += [f'"{port(number, index)}" . {address}' for address in owned]
    text = f"""\
table ip underlay {{
  set nodes {{ type ipv4_addr; elements = {{ {nodes} }}; }}
  set apis {{ type ipv4_addr; elements = {{ {apis} }}; }}
  chain between {{
    type filter hook forward priority 0; policy drop;
    {among}
    ip saddr @nodes ip daddr @apis accept
    ip saddr @apis ip daddr @nodes accept
    ip saddr @apis ip daddr @apis accept
  }}
}}
"""
    if nodes6:
        text += f"""\
table ip6 underlay {{
  set nodes {{ type ipv6_addr; elements = {{ {nodes6} }}; }}
  chain between {{
    type filter hook forward priority 0; policy drop;
    ip6 saddr @nodes ip6 daddr @nodes accept
  }}
}}
"""
    if not checked:
        return text
    ports = ", ".join(sorted({entry.split(" ")[0] for entry in checked}))
    return f"""{text}
table bridge sourcecheck {{
  set owned {{ type ifname . ipv4_addr; elements = {{ {", ".join(checked)} }}; }}
  set ports {{ type ifname; elements = {{ {ports} }}; }}
  counter bad-source {{ }}
  counter bad-destination {{ }}
  chain from-node {{
    type filter hook prerouting priority -300;
    meta protocol ip iifname @ports iifname . ip saddr != @owned counter name "bad-source" drop
  }}
  chain to-node {{
    type filter hook postrouting priority 0;
    meta protocol ip oifname @ports oifname . ip daddr != @owned counter name "bad-destination" drop
  }}
}}
"""


def attach(underlay: str, cluster: int, index: int, node: str, *, userspace: bool) -> None:
    """Give a Node's namespace its uplink `eth0`, a port of its cluster's bridge; `userspace` as for `build`."""
    name = port(cluster, index)
    netns.add_veth("eth0", node, name, underlay)
    netns.ip(underlay, "link", "set", name, "master", bridge(cluster))
    netns.ip(node, "link", "set", "eth0", "address", mac(cluster, index))
    if userspace:
        checksum_offload_off(underlay, name)


def set_link(underlay: str, cluster: int, index: int, *, up: bool) -> None:
    """Plug or unplug a Node's cable."""
    netns.ip(underlay, "link", "set", port(cluster, index), "up" if up else "down")
