"""Check `pre-mtu`: the uplink leaves enough for Pods' packets inside tunnels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from mcagent.api.doctor import CheckFinding
from mcagent.core.fragments.kernel import largest_mtu
from mcagent.dataplane.netlink.connection import NetlinkSocket
from mcagent.dataplane.netlink.links import read_link
from mcagent.dataplane.netlink.routes import RT_TABLE_MAIN, devices, read_routes
from mcagent.doctor.check import DoctorCheck, warning
from mcagent.doctor.examined import ExaminedNode

LEAST = 1280
CHECK = DoctorCheck(
    name="pre-mtu",
    order=340,
    summary="before the installation: the MTU that is left for packets between clusters",
    causes={
        "MtuSmall": warning(
            f"Pods' packets to other clusters have fewer than {LEAST} bytes: some programs assume that many",
            "raise the MTU of the Nodes' network (docs/underlay.md)",
        ),
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Uplink:
    """The device of the default route, and its MTU in bytes; 0: there is none."""

    name: str = ""
    mtu: int = 0


def uplink(node: ExaminedNode) -> Uplink:
    """Read the device of the IPv4 default route. Raises BackendError."""
    node.progress("the uplink")
    with closing(NetlinkSocket()) as netlink:
        for route in read_routes(netlink, RT_TABLE_MAIN):
            if route.destination.version == 4 and not route.destination.prefixlen:
                for index in devices(route):
                    if (link := read_link(netlink, index=index)) is not None:
                        return Uplink(name=link.state.name, mtu=link.state.mtu)
    return Uplink()


def examine(node: ExaminedNode) -> Iterator[CheckFinding]:
    """Compute what is left inside tunnels."""
    reading = node.read(uplink)
    if not reading.mtu:
        yield CHECK.skipped("no IPv4 default route shows the uplink")
        return
    mtu = node.config.mtu or largest_mtu(reading.mtu, node.config, within=4, between=4)
    text = f"{reading.name} has {reading.mtu} bytes, packets to other clusters {mtu}"
    yield CHECK.finding("MtuSmall", text) if mtu < LEAST else CHECK.passed(text)
