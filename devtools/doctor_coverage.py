"""What the agent sets and needs on a Node, and the checks that examine it: the table of docs/doctor.md.

Every type of resource of the dataplane model is here; the check `plan` examines all of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from mcagent.model.dataplane.resources import (
    Bridge,
    FlowEntry,
    GroupEntry,
    HostPort,
    Link,
    LinkAddress,
    MeterEntry,
    Neighbour,
    NftChain,
    NftSet,
    Resource,
    Route,
    Rule,
    TunnelPort,
)
from mcagent.model.dataplane.wireguard import WireGuardDevice, WireGuardPeer

Checks = tuple[str, ...]

SET: Mapping[type[Resource], tuple[str, Checks]] = {
    Bridge: ("the bridge and its datapath", ("plan", "openvswitch", "datapath")),
    HostPort: ("the host port `mc-gw0`", ("plan", "path-mtu")),
    TunnelPort: ("tunnels, with BFD", ("plan", "tunnels")),
    FlowEntry: ("flows", ("plan", "openvswitch")),
    GroupEntry: ("groups", ("plan",)),
    MeterEntry: ("meters", ("plan",)),
    Link: ("state, MTU, `forwarding` and `rp_filter` of `mc-gw0`", ("plan", "forwarding", "path-mtu")),
    LinkAddress: ("addresses of `mc-gw0`", ("plan",)),
    Neighbour: ("neighbour entries of `mc-gw0`", ("plan",)),
    Route: ("routes to other clusters", ("plan", "routes")),
    Rule: ("rules of policy routing", ("plan", "routes")),
    NftChain: ("chains of the nft table", ("plan",)),
    NftSet: ("sets of the nft table", ("plan",)),
    WireGuardDevice: ("WireGuard devices", ("plan", "wireguard")),
    WireGuardPeer: ("WireGuard peers", ("plan", "wireguard")),
}

NEEDED: Mapping[str, Checks] = {
    "the agent's process, and other gateways while this Node drains": ("agent",),
    "ovsdb-server and ovs-vswitchd": ("openvswitch",),
    "Open vSwitch's datapath in the kernel": ("datapath",),
    "the API server, and a clock that agrees with it": ("api",),
    "permissions at the API server": ("permissions",),
    "Gateways, ClusterInfoImports and configuration as they can be used": ("input", "cidrs"),
    "exported Services and their endpoints as they can be served": ("services", "pod-routing"),
    "the tunnels' UDP port, between this Node and its peers": ("tunnels", "firewall", "tunnel-nat"),
    "WireGuard's UDP ports": ("wireguard", "tunnel-nat"),
    "a path that passes the tunnels' largest packets": ("path-mtu",),
    "no foreign rule or route before those to other clusters": ("routes",),
    "a reverse path filter on the uplink that accepts tunnel packets": ("rp-filter",),
    "devices of Pods and foreign chains that forward": ("forwarding", "firewall"),
    "room in the connection tracking table": ("conntrack",),
    "a CNI that leaves packets of `mc-gw0` alone, and keeps the sources of Pods": (
        "cni",
        "masquerade",
        "pod-path",
    ),
}
