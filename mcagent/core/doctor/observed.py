"""What the doctor saw of a Node, as frozen values: `mcagent.dataplane.doctor` fills them in, this package judges.

Each part that could not be looked at says why in `error` and is empty otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mcagent.model.net import Address, Network
from mcagent.model.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class HandshakeSeen:
    """What the agent says of a gateway that is encrypted to. `state` is /status's: "established", "never", …"""

    cluster: str
    gateway: str
    state: str
    text: str = ""
    causes: tuple[str, ...] = ()
    port: int = 0  # UDP, of WireGuard


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSeen:
    """What the agent says of itself (/status). `error`: why it does not answer."""

    error: str = ""
    version: str = ""
    role: str = ""
    ready: bool = False
    alive: bool = False
    checks: tuple[tuple[str, str], ...] = ()  # those that fail: name and text
    problems: tuple[Problem, ...] = ()
    missing_tunnels: tuple[tuple[str, str], ...] = ()  # wanted and not there: name, peer
    draining: str = ""
    wireguard: tuple[HandshakeSeen, ...] = ()
    lost_kinds: tuple[str, ...] = ()  # "Node: connection refused"
    antrea: tuple[str, ...] = ()  # clusters whose gateways run Antrea, by ID


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelSeen:
    """A tunnel port as Open vSwitch's database has it. BFD's words are those of column bfd_status."""

    name: str
    peer_kind: str
    peer: str
    remote: Address
    error: str = ""
    bfd: bool = False
    seen: bool = False  # the peer has answered BFD once
    state: str = ""
    forwarding: bool = False
    diagnostic: str = ""
    remote_state: str = ""
    remote_diagnostic: str = ""
    received: int = 0  # packets
    sent: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchSeen:
    """Open vSwitch. `flows` is None where ovs-vswitchd does not answer."""

    error: str = ""  # of the database
    vswitchd_error: str = ""
    version: str = ""
    datapath: str = ""  # of our bridge; "": there is no bridge of ours
    flows: int | None = None
    tunnels: tuple[TunnelSeen, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PathSeen:
    """Probes to an address. `size`: bytes of the IP packet that tunnels make at most.

    `small`, `full`: whether a small packet, and one of that size, were answered; `passes`: the largest that was;
    `told`: the MTU that a router on the way told (ICMP), 0: none. `ways`: what could be sent (icmp, udp).
    """

    address: Address
    size: int
    small: bool = False
    full: bool = False
    passes: int = 0
    told: int = 0
    ways: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteSeen:
    """Where the kernel's lookup leads for an address: the device, and the table that said so."""

    destination: Network
    address: Address
    device: str
    table: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSeen:
    """A policy routing rule of somebody else."""

    priority: int
    table: int
    fwmark: int
    fwmask: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSeen:
    """Devices, routes and switches. `backs`: for each tunnel peer the device by which the way back leads."""

    error: str = ""
    kernel_datapath: bool = False
    host_mtu: int = 0  # 0: there is no such device
    wanted_mtu: int = 0  # the largest that fits into every tunnel
    uplink: str = ""
    uplink_mtu: int = 0
    uplink_strict: bool = False  # rp_filter=1
    ip_forward: bool = True
    routes: tuple[RouteSeen, ...] = ()
    our_rules: int = 0
    rules: tuple[RuleSeen, ...] = ()
    backs: tuple[tuple[Address, str], ...] = ()
    reverse_path_drops: int = 0  # while the doctor looked


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainSeen:
    """A chain of somebody else. `hook` "" where it is no base chain; `nat` may translate sources."""

    family: str
    table: str
    name: str
    type: str = ""
    hook: str = ""
    priority: int = 0
    policy: str = "accept"
    rules: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.family} {self.table} {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterSeen:
    """Others' netfilter chains, and connections to other clusters that somebody translated."""

    error: str = ""
    chains: tuple[ChainSeen, ...] = ()
    conntrack_error: str = ""
    masqueraded: tuple[tuple[Address, Address, Address], ...] = ()  # Pod, remote, the source that it got
    connections: int = 0  # of Pods to other clusters
    pods: tuple[Network, ...] = ()  # whose source our chain keeps


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSeen:
    """This Node's API server. `clock`: how far it is ahead of this Node, in seconds; None: not told.

    `forbidden`: what the agent's account may not, as (verb, resource).
    """

    used: bool = True  # False: objects come from a directory
    server: str = ""
    error: str = ""
    clock: float | None = None
    forbidden: tuple[tuple[str, str], ...] = ()
    asked: int = 0
    review_error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeen:
    """Everything of one Node, and what of its configuration the rules need."""

    node: str
    agent: AgentSeen = field(default_factory=AgentSeen)
    switch: SwitchSeen = field(default_factory=SwitchSeen)
    kernel: KernelSeen = field(default_factory=KernelSeen)
    filters: FilterSeen = field(default_factory=FilterSeen)
    api: ApiSeen = field(default_factory=ApiSeen)
    paths: tuple[PathSeen, ...] = ()
    outer: Mapping[Address, Address] = field(default_factory=dict)  # tunnel endpoint to the gateway's own address
    host_port: str = "mc-gw0"
    tunnel_port: int = 6081
    route_table: int = 0
    rule_priority: int = 300
    mark_bit: int = 12
    encrypts: bool = False
    userspace_chosen: bool = False  # datapath: netdev
