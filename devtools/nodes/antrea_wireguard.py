"""WireGuard on the gateway of an Antrea cluster, as Antrea's agent sets it up (`antrea-contract.md`, 3).

One device on the one gateway, with the first address of the cluster's Service CIDR; a peer for each other cluster,
by that one's only key, at its first gateway and this cluster's own port, without keepalive.
"""

from __future__ import annotations

from devtools.lab.topology import Cluster
from devtools.nodes import netns
from mcagent.model.net import Address

DEVICE, PORT = "antrea-mc-wg0", 51821
OVERHEAD = 60  # bytes that the device's MTU is smaller by than the uplink's


def make(namespace: str, cluster: Cluster, uplink_mtu: int) -> str:
    """Make the device with a new key; return the public one."""
    key = netns.run(["wg", "genkey"]).stdout
    netns.ip_batch(
        namespace,
        [
            f"link add {DEVICE} mtu {uplink_mtu - OVERHEAD} type wireguard",
            f"address add {cluster.service_cidr.network_address}/32 dev {DEVICE}",
            f"link set {DEVICE} up",
        ],
    )
    netns.execute(
        namespace, ["wg", "set", DEVICE, "listen-port", str(PORT), "private-key", "/dev/stdin"], stdin=key
    )
    return netns.run(["wg", "pubkey"], stdin=key).stdout.strip()


def add_peer(namespace: str, remote: Cluster, key: str, gateway_ip: Address) -> None:
    """Make another cluster the peer of that key, the only one of its endpoint, and lead its endpoint there."""
    end = f"{remote.service_cidr.network_address}/32"
    for line in netns.execute(namespace, ["wg", "show", DEVICE, "allowed-ips"]).stdout.splitlines():
        peer_key, _, ends = line.partition("\t")
        if end in ends and peer_key != key:
            netns.execute(namespace, ["wg", "set", DEVICE, "peer", peer_key, "remove"])
    endpoint = ["endpoint", f"{gateway_ip}:{PORT}"]
    netns.execute(namespace, ["wg", "set", DEVICE, "peer", key, "allowed-ips", end, *endpoint])
    netns.ip(namespace, "route", "replace", end, "dev", DEVICE, "scope", "link")
