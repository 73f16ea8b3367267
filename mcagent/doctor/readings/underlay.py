"""The underlay: addresses of tunnel peers, the device to them (the kernel's route lookup), packets that pass."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from ipaddress import ip_address
from pathlib import Path

from mcagent.api.status import Status
from mcagent.core.fragments.kernel import OVERHEAD, WIREGUARD_OVERHEAD, largest_mtu
from mcagent.dataplane.netlink.connection import NetlinkSocket
from mcagent.dataplane.netlink.links import RawLink, read_addresses, read_link
from mcagent.dataplane.netlink.routes import RawRoute, route_to
from mcagent.doctor.examined import ExaminedNode
from mcagent.doctor.readings.probe import ProbedPath, probe_paths
from mcagent.doctor.readings.switch import switch
from mcagent.model.dataplane.resources import PeerKind
from mcagent.model.errors import BackendError
from mcagent.model.net import Address

SYSCTL = Path("/proc/sys/net/ipv4")
_TUNNEL_ENDS = 240  # least first byte of addresses outside of the underlay (mcagent.core.addresses.underlay)


@dataclass(frozen=True, slots=True, kw_only=True)
class Underlay:
    """The host port and the device to the peers. `wanted_mtu`: the largest for every tunnel; 0: unknown."""

    host_mtu: int = 0  # of the routes by it; 0: there is no such device
    wanted_mtu: int = 0
    uplink: str = ""
    uplink_mtu: int = 0
    strict: bool = False  # rp_filter=1


def gateway_addresses(status: Status) -> dict[Address, Address]:
    """Return the peer's address of each tunnel endpoint that differs from it: inside WireGuard, or mapped."""
    encrypted = status.encryption.peers if status.encryption is not None else ()
    addresses = {
        ip_address(peer.tunnel_endpoint): ip_address(peer.gateway)
        for peer in encrypted
        if peer.node and peer.tunnel_endpoint not in {"", peer.gateway}
    }
    gateways = status.gateways_by_tunnel
    for tunnel in status.tunnels:
        gateway = gateways.get(tunnel.name)
        try:
            end, address = ip_address(tunnel.remote_ip), ip_address(gateway.address if gateway else "")
        except ValueError:
            continue
        if end != address:
            addresses[end] = address
    return addresses


def peers(node: ExaminedNode) -> dict[Address, bool]:
    """Return peers' underlay addresses, other clusters' first, and whether WireGuard encrypts to them.

    Raises BackendError if Open vSwitch does not answer: it has the tunnels.
    """
    if node.read(switch).error:
        raise BackendError("ovsdb", "read", "tunnels", "Open vSwitch does not answer")
    outer = gateway_addresses(node.status)
    addresses: dict[Address, bool] = {}
    for tunnel in sorted(node.read(switch).tunnels, key=lambda tunnel: tunnel.port.peer_kind != PeerKind.REMOTE):
        end = tunnel.port.remote_ip
        address = outer.get(end, end)
        if address.version == 6 or address.packed[0] < _TUNNEL_ENDS:
            addresses.setdefault(address, address != end)
    return addresses


def underlay(node: ExaminedNode) -> Underlay:
    """Read the devices of the calling thread's namespace. Raises BackendError."""
    node.progress("the kernel")
    addresses, config = node.read(peers), node.config
    with closing(NetlinkSocket()) as netlink:
        host = read_link(netlink, config.host_port)
        route = next(filter(None, (route_to(netlink, address) for address in addresses)), None)
        link = _uplink(netlink, route) if route is not None else None
    if link is None:
        return Underlay(host_mtu=config.mtu or host.state.mtu if host is not None else 0)
    ports = (tunnel.port for tunnel in node.read(switch).tunnels)
    outer = gateway_addresses(node.status)
    to_nodes = (port.remote_ip for port in ports if port.peer_kind != PeerKind.REMOTE)
    wanted_mtu = largest_mtu(
        link.state.mtu,
        replace(config, mtu=0),
        within=max((outer.get(end, end).version for end in to_nodes), default=4),
        between=max((address.version for address in addresses), default=4),
    )
    return Underlay(
        host_mtu=(config.mtu or wanted_mtu) if host is not None else 0,
        wanted_mtu=wanted_mtu,
        uplink=link.state.name,
        uplink_mtu=link.state.mtu,
        strict=max(_rp_filter_of_all(), link.state.rp_filter) == 1,
    )


def paths(node: ExaminedNode) -> tuple[ProbedPath, ...]:
    """Probe every peer with the largest packets that tunnels send to it."""
    reading = node.read(underlay)
    if not reading.host_mtu:
        return ()
    node.progress("paths to other gateways and Nodes")
    sizes = []
    for address, encrypted in node.read(peers).items():
        size = reading.host_mtu + OVERHEAD[4 if encrypted else address.version]
        size += WIREGUARD_OVERHEAD[address.version] if encrypted else 0
        sizes.append((address, min(size, reading.uplink_mtu or size)))
    return probe_paths(sizes)


def read_file(path: Path) -> str:
    """Return the text of a file of /proc. Raises BackendError."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError as error:
        raise BackendError("kernel", "read", str(path), error.strerror or str(error)) from None


def _rp_filter_of_all() -> int:
    text = read_file(SYSCTL / "conf/all/rp_filter")
    return int(text) if text.isdecimal() else 0


def _uplink(netlink: NetlinkSocket, route: RawRoute) -> RawLink | None:
    """Return the device with the source address of a route, else that of the route. Raises BackendError."""
    own = (entry.index for entry in read_addresses(netlink) if entry.address == route.source)
    index = next(own, route.oif)
    return read_link(netlink, index=index) if index else None
