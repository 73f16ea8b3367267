"""Check `rp-filter`: strict reverse path filters on the underlay, and packets that they drop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from mcagent.api.doctor import CheckFinding
from mcagent.dataplane.netlink.connection import NetlinkSocket
from mcagent.dataplane.netlink.links import read_links
from mcagent.dataplane.netlink.routes import route_to
from mcagent.doctor.check import DoctorCheck, warning
from mcagent.doctor.examined import ExaminedNode
from mcagent.doctor.readings.underlay import peers, read_file, underlay
from mcagent.model.errors import BackendError
from mcagent.model.net import Address

CHECK = DoctorCheck(
    name="rp-filter",
    order=100,
    summary="strict reverse path filters, and packets that they dropped during the check",
    causes={
        "RpFilterStrict": warning(
            "tunnel packets arrive by one device and the return route is by another: a strict filter drops them",
            "sysctl -w net.ipv4.conf.{device}.rp_filter=2 (and in /etc/sysctl.d)",
        ),
        "RpFilterDrops": warning(
            "the kernel drops packets because the return route to their source is by another device",
            "nstat -az TcpExtIPReversePathFilter; sysctl -w net.ipv4.conf.all.log_martians=1 names them in the "
            "kernel's log",
        ),
    },
)
_NETSTAT = Path("/proc/thread-self/net/netstat")  # of this thread's namespace; /proc/net is the process'


def begin(_: ExaminedNode) -> int:
    """Read the counter of dropped packets at the start. Raises BackendError."""
    return dropped_packets()


def dropped(node: ExaminedNode) -> int:
    """Return the number of packets dropped since the start. Raises BackendError."""
    return max(dropped_packets() - node.read(begin), 0)


def dropped_packets() -> int:
    """Read the counter TcpExt IPReversePathFilter. Raises BackendError."""
    lines = [line.split() for line in read_file(_NETSTAT).splitlines() if line.startswith("TcpExt:")]
    values = dict(zip(*lines, strict=False)) if len(lines) == 2 else {}
    if not values.get("IPReversePathFilter", "").isdecimal():
        raise BackendError("kernel", "read", str(_NETSTAT), "it has no counter IPReversePathFilter")
    return int(values["IPReversePathFilter"])


def return_devices(node: ExaminedNode) -> tuple[tuple[Address, str], ...]:
    """Return the device of the return route to each IPv4 peer that has one. Raises BackendError."""
    with closing(NetlinkSocket()) as netlink:
        names = {link.index: link.state.name for link in read_links(netlink)}
        routes = [(peer, route_to(netlink, peer)) for peer in node.read(peers) if peer.version == 4]
    return tuple((peer, names.get(route.oif, "")) for peer, route in routes if route is not None)


def examine(node: ExaminedNode) -> Iterator[CheckFinding]:
    """Evaluate the uplink's filter and the counter."""
    reading, wrong = node.read(underlay), False
    for address, device in node.read(return_devices) if reading.strict else ():
        if device not in {reading.uplink, ""}:
            wrong = True
            text = f"{reading.uplink} has rp_filter=1, and the route to {address} is by {device}"
            yield CHECK.finding("RpFilterStrict", text, subject=str(address), device=reading.uplink)
    if drops := node.read(dropped):
        wrong = True
        yield CHECK.finding("RpFilterDrops", f"{drops} packets during the check")
    if not wrong:
        yield CHECK.passed("drops nothing")
