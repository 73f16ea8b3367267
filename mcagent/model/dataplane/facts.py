"""Facts: what the Node itself says, which `compile` needs beside the API's objects and the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from mcagent.model.dataplane.wireguard import WireGuardImplementation
from mcagent.model.net import Address, Network

# Kinds of devices (IFLA_INFO_KIND) that lead to one Pod, and all kinds that lead to Pods
SINGLE_DEVICES = ("veth", "netkit")
POD_DEVICES = (*SINGLE_DEVICES, "bridge", "openvswitch")


class DatapathType(StrEnum):
    """The two datapaths of Open vSwitch (column datapath_type of table Bridge)."""

    SYSTEM = "system"  # the kernel's openvswitch module
    NETDEV = "netdev"  # userspace


class Drain(StrEnum):
    """How far this Node has signalled to its peers to send nothing more (BFD, concatenated path down)."""

    NONE = "none"
    REMOTE = "remote"  # gateways of other clusters: they move first, so that connections that a gateway translates
    # are known by another one before replies have to go there
    ALL = "all"  # the Nodes of this cluster, too


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What was observed of the Node.

    `ofports` are the OpenFlow port numbers in use on our bridge by interface name: a number once given
    stays, also over a restart, because it is read back from OVSDB. `uplink_mtu` is the MTU of the device
    that carries the tunnels. `addresses` are the Node's own, on devices that are not ours; `connected` the
    networks it reaches directly through such devices, `routed` the IPv4 networks to which its main routing table
    has another route than the default one. `resolvers`, `default_gateways` (of any of its main routing
    table's default routes) and `api_servers` are what it cannot do without, on whatever network. A remote cluster
    may take none of these, of `routed` only with an administrator's consent.

    `in_use` are the CIDRs of each other cluster that the last desired state used, or, in a new process, those to
    which the kernel has routes, under "".

    `shared_devices` are the IPv4 networks behind a device of a kind that leads to Pods (a bridge, say) with the
    device's name: the Node cannot tell which of the Pods there has sent a packet.
    `checks_forwarded`: the kernel can look up
    the reverse path of a packet that it forwards. `ipvs`: kube-proxy translates by IPVS.

    `bfd_seen` are the tunnel ports whose peer has ever answered BFD (others are used without it), `bfd_unanswered`
    those whose peer had the time to and never did, `antrea` the clusters that ran Antrea before, or by another
    gateway of this cluster (`mcagent.core.remote_clusters.verdicts`), `damped` the tunnel ports that flap damping
    keeps on standby, `bfd_begins` those whose session is half up while they are badly needed: no other gateway
    that could stand in is live; `bfd_factors` those with a longer detection time than configured, with the factor
    (`mcagent.core.failover.detection`); `silent` those of peers from which nothing ever came, though packets were
    sent, `idle` those of them whose cluster got hardly any traffic, `unheard` those of Nodes of this cluster from
    which nothing came yet, silent or new. `uplink_outside` is the uplink's name where a
    userspace datapath cannot send by it: no bridge of Open vSwitch has it. `drain` is of this very Node.
    `isolated`: it reaches no other cluster (as every worker), and another gateway of this cluster is there.
    `active_order` counts with active-standby: gateways (Node names of this cluster, addresses of other clusters')
    in the order in which they are tried, so that one that returns does not take its traffic back; those not in it
    come after, in the API's order.

    `unreachable` are the clusters that no gateway of this cluster reaches, as numbers
    (`mcagent.core.failover.reachability`). `narrow` are the tunnel ports that small packets pass and the largest
    do not (`mcagent.core.tunnel_probes`).

    `wireguard` is what this Node can encrypt with (None: nothing, or encryption is off), `wireguard_public_key`
    the key it does so with, and `wireguard_next_key` the one it has announced to use next ("": none).
    With several devices, `wireguard_ready` are the peers in a session that answer, as device and public key.
    `processors` is the number of this Node's processors.
    """

    datapath: DatapathType = DatapathType.SYSTEM
    uplink_mtu: int = 1500
    addresses: tuple[Address, ...] = ()
    connected: tuple[Network, ...] = ()
    routed: tuple[Network, ...] = ()
    in_use: Mapping[str, tuple[Network, ...]] = field(default_factory=dict)
    shared_devices: tuple[tuple[Network, str], ...] = ()
    checks_forwarded: bool = True
    ipvs: bool = False
    resolvers: tuple[Address, ...] = ()
    default_gateways: tuple[Address, ...] = ()
    api_servers: tuple[Address, ...] = ()
    ofports: Mapping[str, int] = field(default_factory=dict)
    bfd_seen: frozenset[str] = frozenset()
    bfd_unanswered: frozenset[str] = frozenset()
    antrea: frozenset[str] = frozenset()
    damped: frozenset[str] = frozenset()
    bfd_begins: frozenset[str] = frozenset()
    bfd_factors: Mapping[str, int] = field(default_factory=dict)
    silent: frozenset[str] = frozenset()
    unheard: frozenset[str] = frozenset()
    uplink_outside: str = ""
    drain: Drain = Drain.NONE
    isolated: bool = False
    active_order: tuple[str, ...] = ()
    unreachable: frozenset[int] = frozenset()
    idle: frozenset[str] = frozenset()
    narrow: frozenset[str] = frozenset()
    wireguard: WireGuardImplementation | None = None
    wireguard_public_key: str = ""
    wireguard_next_key: str = ""
    processors: int = 1
    wireguard_ready: frozenset[tuple[str, str]] = frozenset()
