"""The dataplane as values: one class per kind of thing that the agent owns on a Node.

Every resource has a `key` (its identity; sorts within its class) and is compared whole: two resources with
equal keys and unequal content mean "replace". The same classes describe what should be (from `compile`)
and what is (from a backend's `observe`), so a backend must hand back exactly the values it was asked for
when the world is right. Texts are normalised where they are made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from mcagent.model.dataplane.backend import Backend
from mcagent.model.dataplane.facts import DatapathType
from mcagent.model.dataplane.wireguard import WireGuardDevice, WireGuardPeer
from mcagent.model.net import Address, Network


class TunnelType(StrEnum):
    """Encapsulations, by the name of the OVS interface type."""

    GENEVE = "geneve"
    VXLAN = "vxlan"


DEFAULT_PORTS = {TunnelType.GENEVE: 6081, TunnelType.VXLAN: 4789}  # UDP, of Open vSwitch


class PeerKind(StrEnum):
    """What a tunnel leads to."""

    NODE = "node"  # a Node of this cluster that is no gateway
    GATEWAY = "gateway"  # a gateway of this cluster
    REMOTE = "remote"  # a gateway of another cluster


# --- OVSDB ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Bridge:
    """Our bridge: fail_mode secure, no controller, external_ids name the owner."""

    name: str
    datapath: DatapathType
    active_order: tuple[str, ...] = ()  # active-standby: see Facts.active_order; kept here over a restart
    intact: bool = True  # False: a detail that no field shows was changed by another program; only `observe` tells

    backend = Backend.OVSDB

    @property
    def key(self) -> tuple[str, ...]:
        """Identity: the name."""
        return ("bridge", self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPort:
    """The internal port by which the Node's kernel and the bridge exchange packets (mc-gw0)."""

    bridge: str
    name: str
    ofport: int
    mac: str
    # Bytes; Open vSwitch sets it, and undoes what others set (ofproto.c, update_mtu_ofproto); 0: its own
    mtu: int = 0
    intact: bool = True  # False: a detail that no field shows was changed by another program; only `observe` tells

    backend = Backend.OVSDB

    @property
    def key(self) -> tuple[str, ...]:
        """Identity: bridge and name."""
        return ("hostport", self.bridge, self.name)


BFD_MAC = "00:23:20:00:00:01"
"""Destination of the BFD packets that OVS sends if nothing else is set (eth_addr_bfd in its lib/packets.h)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bfd:
    """Bidirectional forwarding detection on a tunnel (ovs-vswitchd.conf.db(5), column bfd); milliseconds."""

    min_tx: int
    min_rx: int
    mult: int = 3
    cpath_down: bool = False
    destination_mac: str = BFD_MAC  # that a packet must have to be one of the peer's; "": any


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelPort:
    """A tunnel to one fixed peer. Its key (VNI) is `flow`: a label identity in it survives transit."""

    bridge: str
    name: str
    type: TunnelType
    remote_ip: Address
    local_ip: Address | None = None  # this Node's end; None: any of its addresses
    ttl: int = 0  # of the outer packets; 0: Open vSwitch' default (64)
    dst_port: int  # UDP; 0 means the default of the encapsulation
    ofport: int
    peer_kind: PeerKind
    peer: str  # Node name or cluster ID
    bfd: Bfd | None = None
    bfd_seen: bool = False  # the peer has answered BFD once; kept here over a restart
    egress_mark: int = 0  # of encapsulated packets; 0: none. For the kernel's datapath only: see `rows`
    intact: bool = True  # False: a detail that no field shows was changed by another program; only `observe` tells

    backend = Backend.OVSDB

    @property
    def key(self) -> tuple[str, ...]:
        """Identity: bridge and name (the name follows from peer, address and encapsulation)."""
        return ("tunnel", self.bridge, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class PortStatistics:
    """What Open vSwitch counted on one port, as of its last update (every 5 s by default).

    `counters` are the column `statistics` of ovs-vswitchd.conf.db(5) and start with the port. Of the host port,
    "rx" is what the Node's kernel sent in the userspace datapath, and what the Node's kernel received in the
    kernel's (seen with OVS 3.1 on Linux 7.2): only tunnels' directions are sure.
    """

    counters: Mapping[str, int]
    link_up: bool


# --- OpenFlow -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowEntry:
    """One flow, its match and actions in the normal text form of the `flows` library."""

    table: int
    priority: int
    match: str
    cookie: int
    actions: str

    backend = Backend.OPENFLOW

    @property
    def key(self) -> tuple[int, int, int, str]:
        """Identity as OpenFlow has it: table, priority, match."""
        return (1, self.table, -self.priority, self.match)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEntry:
    """One group, its type, options and buckets in the normal text form of the `flows` library."""

    group_id: int
    body: str  # "type=select,selection_method=hash,fields(...),bucket=..."

    backend = Backend.OPENFLOW

    @property
    def key(self) -> tuple[int, int, int, str]:
        """Identity: the group's number. Groups sort before flows, which may point to them."""
        return (0, self.group_id, 0, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeterEntry:
    """One meter of packets: what is over `rate` a second, when `burst` are used up, is dropped."""

    meter_id: int
    rate: int
    burst: int

    backend = Backend.OPENFLOW

    @property
    def key(self) -> tuple[int, int, int, str]:
        """Identity: the meter's number. Meters sort before flows, which may use them."""
        return (-1, self.meter_id, 0, "")


# --- netlink --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """State of a device that OVSDB created for us: up, MTU, the per-device switches it needs."""

    name: str
    mtu: int
    up: bool = True
    rp_filter: int = 2  # RFC 3704 loose mode: SNATed peers' addresses route elsewhere
    forwarding: bool = True

    backend = Backend.NETLINK

    @property
    def key(self) -> tuple[str, ...]:
        """Identity: the device's name."""
        return ("0link", self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkAddress:
    """An address on one of our devices."""

    device: str
    address: Address
    prefixlen: int

    backend = Backend.NETLINK

    @property
    def key(self) -> tuple[str, ...]:
        """Identity: device, address and prefix length."""
        return ("1address", self.device, f"{self.address}/{self.prefixlen}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """A permanent neighbour entry on one of our devices."""

    device: str
    address: Address
    mac: str

    backend = Backend.NETLINK

    @property
    def key(self) -> tuple[str, ...]:
        """Identity: device and address."""
        return ("2neighbour", self.device, str(self.address))


class RouteType(StrEnum):
    """Route types used (rtnetlink(7))."""

    UNICAST = "unicast"
    THROW = "throw"  # ends the look-up in this table: the next rule decides
    # Ends the look-up altogether. Always of the last metric: it counts only while no other route is there.
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A route with our protocol number, in one of our tables."""

    table: int
    destination: Network
    type: RouteType = RouteType.UNICAST
    device: str = ""
    via: Address | None = None  # always on-link
    source: Address | None = None
    mtu: int = 0  # bytes of the largest IP packet; 0: that of the device
    intact: bool = True  # False: a detail that no field shows was changed by another program; only `observe` tells

    backend = Backend.NETLINK

    @property
    def key(self) -> tuple[str, ...]:
        """Identity: table and destination (the metric follows from the type)."""
        last = ("last",) if self.type is RouteType.UNREACHABLE else ()
        return ("3route", str(self.table), str(self.destination), *last)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A routing policy rule with our protocol number."""

    priority: int
    table: int
    family: int = 4
    fwmark: int = 0
    fwmask: int = 0
    destination: Network | None = None
    protocol: int = 0  # number in the IP header; 0: any
    source_ports: tuple[int, int] | None = None  # first and last, of 1 to 65534: the kernel refuses others
    intact: bool = True  # False: a detail that no field shows was changed by another program; only `observe` tells

    backend = Backend.NETLINK

    @property
    def key(self) -> tuple[str, ...]:
        """Identity: family, priority and table."""
        return ("4rule", str(self.family), str(self.priority), str(self.table))


# --- nft ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NftChain:
    """A chain of our table with its rules, in order, as nft(8) text without comments.

    A base chain has a type and a hook. Without both, and with priority 0, it is one that rules of others jump to.
    """

    table: str
    name: str
    type: str  # filter, nat, route, or ""
    hook: str  # prerouting, forward, output, postrouting
    priority: int
    rules: tuple[str, ...]
    family: str = "ip"
    intact: bool = True  # False: a detail that no field shows was changed by another program; only `observe` tells

    backend = Backend.NFT

    @property
    def key(self) -> tuple[str, ...]:
        """Identity: family, table and name."""
        return ("chain", self.family, self.table, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class NftSet:
    """An interval set of networks. Elements are disjoint and sorted (`ipaddress.collapse_addresses`).

    With `sockets` (not None) it is a set of pairs instead, each an address and a port, sorted; no `elements` then.
    With `learned` rules add the addresses, for a time; no `elements` then.
    """

    table: str
    name: str
    elements: tuple[Network, ...] = ()
    family: str = "ip"
    sockets: tuple[tuple[Address, int], ...] | None = None
    learned: bool = False
    intact: bool = True  # False: a detail that no field shows was changed by another program; only `observe` tells

    backend = Backend.NFT

    @property
    def key(self) -> tuple[str, ...]:
        """Identity: family, table and name. Sets sort before the chains that use them."""
        return ("0set", self.family, self.table, self.name)


OvsdbResource = Bridge | HostPort | TunnelPort
OpenFlowResource = FlowEntry | GroupEntry | MeterEntry
NetlinkResource = Link | LinkAddress | Neighbour | Route | Rule
NftResource = NftChain | NftSet
WireGuardResource = WireGuardDevice | WireGuardPeer
Resource = OvsdbResource | OpenFlowResource | NetlinkResource | NftResource | WireGuardResource
ResourceKey = tuple[object, ...]
