"""How long 1,000 tunnels and 10,000 flows take through the OVSDB and OpenFlow backends: run it as root.

Prints seconds and memory; it judges nothing.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import TypeVar

from devtools.nodes import netns
from devtools.nodes.ovs import OvsInstance
from mcagent.dataplane.base import DataplaneBackend
from mcagent.dataplane.openflow.backend import OpenFlowBackend
from mcagent.dataplane.ovsdb.backend import OvsdbBackend
from mcagent.model.dataplane.facts import DatapathType
from mcagent.model.dataplane.resources import (
    Bfd,
    Bridge,
    FlowEntry,
    GroupEntry,
    HostPort,
    PeerKind,
    Resource,
    TunnelPort,
    TunnelType,
)
from mcagent.model.plan import Op, Step

T = TypeVar("T")
COOKIE = 0x6D63 << 48


def measure(title: str, function: Callable[[], T]) -> T:
    """Run `function`, print what it took and the memory of this process, and return what it returns."""
    start = time.perf_counter()
    result = function()
    took = time.perf_counter() - start
    status = Path("/proc/self/status").read_text()
    resident = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    print(f"{title:<44} {took:7.3f} s   {resident / 1024:5.1f} MiB resident", flush=True)
    return result


def steps(op: Op, resources: Sequence[Resource]) -> list[Step]:
    """Return one step for each resource."""
    return [
        Step(old=None if op is Op.ADD else resource, new=None if op is Op.DELETE else resource)
        for resource in resources
    ]


def do(title: str, backend: DataplaneBackend, op: Op, resources: Sequence[Resource]) -> None:
    """Apply one step for each resource, all of which have to succeed."""
    result = measure(title, lambda: backend.apply(steps(op, resources)))
    assert not result.failed, str(result.failed[0][1])


def tunnel(number: int) -> TunnelPort:
    """Return a tunnel to a remote gateway."""
    return TunnelPort(
        bridge="br-mc",
        name=f"mcr-{number:011x}",
        type=TunnelType.GENEVE,
        remote_ip=ip_address(0x0A000000 + number),
        dst_port=0,
        ofport=number,
        peer_kind=PeerKind.REMOTE,
        peer=f"cluster-{number}",
        bfd=Bfd(min_tx=1000, min_rx=1000),
    )


def flow(number: int, actions: str = "group:1") -> FlowEntry:
    """Return a flow for one /32."""
    match = f"ip,nw_dst=11.{number >> 16}.{number >> 8 & 255}.{number & 255}"
    return FlowEntry(table=40, priority=100, match=match, cookie=COOKIE | number, actions=actions)


def run(ovs: OvsInstance, tunnel_count: int, flow_count: int) -> None:
    """Measure both backends on a running Open vSwitch."""
    ovsdb = OvsdbBackend(ovs.socket)
    openflow = OpenFlowBackend(ovs.mgmt("br-mc"))
    base: list[Resource] = [
        Bridge(name="br-mc", datapath=DatapathType.NETDEV),
        HostPort(bridge="br-mc", name="mc-gw0", ofport=1, mac="0a:6d:63:00:00:01"),
    ]
    tunnels = [tunnel(number) for number in range(2, tunnel_count + 2)]
    flows = [flow(number) for number in range(flow_count)]
    groups = [GroupEntry(group_id=1, body="type=select,bucket=bucket_id:2,actions=output:2")]
    do("OVSDB: bridge and host port", ovsdb, Op.ADD, base)
    do(f"OVSDB: {tunnel_count} tunnels, until numbered", ovsdb, Op.ADD, tunnels)
    measure("OVSDB: observe, first", ovsdb.observe)
    measure("OVSDB: observe, again", ovsdb.observe)
    measure("OVSDB: port numbers", ovsdb.ofports)
    measure("OVSDB: statistics of all ports", ovsdb.statistics)
    do("OVSDB: one tunnel changed", ovsdb, Op.REPLACE, [replace(tunnels[0], remote_ip=ip_address("10.9.9.9"))])
    again = OvsdbBackend(ovs.socket)
    measure("OVSDB: a new connection, connect and observe", again.observe)
    again.close()
    do(f"OpenFlow: {flow_count} flows", openflow, Op.ADD, [*groups, *flows])
    measure("OpenFlow: observe", openflow.observe)
    measure("OpenFlow: counters by cookie", openflow.flow_stats)
    do("OpenFlow: one flow changed", openflow, Op.REPLACE, [flow(0, "drop")])
    do(f"OpenFlow: {flow_count // 200} flows removed", openflow, Op.DELETE, flows[: flow_count // 200])
    do("OVSDB: all tunnels removed", ovsdb, Op.DELETE, tunnels)
    ovsdb.close()
    openflow.close()


def main() -> None:
    """Make a namespace with an Open vSwitch, measure, remove both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tunnels", type=int, default=1000)
    parser.add_argument("--flows", type=int, default=10_000)
    arguments = parser.parse_args()
    namespace = f"mcbo{os.getpid()}"
    netns.create(namespace)
    try:
        with tempfile.TemporaryDirectory(prefix="mcbo-") as directory:
            ovs = OvsInstance.start(namespace, Path(directory))
            try:
                run(ovs, arguments.tunnels, arguments.flows)
            finally:
                ovs.stop()
    finally:
        netns.delete(namespace)


if __name__ == "__main__":
    main()
