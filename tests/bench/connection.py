"""From a ServiceExport to a working connection in another cluster, with real controllers, agents and packets.

    python -m tests.bench.connection [--api embedded|real] [--exports N] [--json]

Services are exported one at a time. Told of each: when the importing cluster has the Service; when a Pod there,
trying to connect every 10 ms, has its first answer from the exporting cluster's ClusterIP, for which agents are
enough; when it has one from the imported Service's ClusterIP. The last needs kube-proxy, and the lab's looks for
changes every 0.1 s: that is part of the time. On the datapath that there is. Needs root.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import select
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from ipaddress import IPv4Address

from devtools.errors import LabError
from devtools.lab import objects
from devtools.lab.api import ApiKind
from devtools.lab.control import ControlPlane
from devtools.lab.lab import Lab
from devtools.lab.topology import SERVICE_PORT, Service, generate
from devtools.nodes import netns
from devtools.realapi import find
from devtools.traffic.load import percentile
from devtools.waiting import wait_until

KNOCK = 0.01  # seconds between two attempts
PATIENCE = 30.0  # seconds for one export
FIRST = 1000  # number of the first ClusterIP in its CIDR


def knock(address: IPv4Address, patience: float) -> None:
    """Return when somebody there has answered; begins a connection every `KNOCK`. Raises LabError."""
    with contextlib.ExitStack() as stack:
        waiting: list[socket.socket] = []
        until = time.monotonic() + patience
        while time.monotonic() < until:
            sock = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK))
            sock.connect_ex((str(address), SERVICE_PORT))
            waiting.append(sock)
            for ready in select.select(waiting, [], [], KNOCK)[0]:
                with contextlib.suppress(OSError):
                    if ready.recv(1):
                        return
                waiting.remove(ready)
    raise LabError(f"no answer from {address} within {patience:g} s")


def export(lab: Lab, number: int) -> dict[str, float]:
    """Export a Service of the second cluster to the first; return after how many seconds what was there."""
    client, serving = lab.topology.clusters
    name = f"bench-{number}"
    pods = (serving.workers[0].pods[0].name,)
    service = Service(name=name, cluster_ip=serving.service_cidr[FIRST + number], pods=pods, protocols=("TCP",))
    own, hops = lab.api(client.name), lab.api(serving.name)
    hops.create_all([objects.service_object(service), *objects.endpoint_slices(lab.topology, service)])
    namespace = lab.namespace(client.workers[0].pods[0])
    begun = time.monotonic()

    def answered(address: IPv4Address) -> float:
        netns.call(namespace, partial(knock, address, PATIENCE), timeout=PATIENCE + 5)
        return time.monotonic() - begun

    with ThreadPoolExecutor(1) as pool:
        hops.create(objects.export_object(service))
        way = pool.submit(answered, service.cluster_ip)
        wait_until(
            lambda: own.get("Service", f"antrea-mc-{name}") is not None,
            "the import",
            timeout=PATIENCE,
            interval=KNOCK,
        )
        imported = time.monotonic() - begun
        connected = answered(ControlPlane(lab).imported_address(client, name))
        return {"imported": imported, "way": way.result(), "connected": connected}


def measure(kind: ApiKind, exports: int) -> dict[str, float]:
    """Return milliseconds: median and 99th percentile of each."""
    with Lab.up(generate(name="connection", gateways=1, workers=1), api=kind, control_plane=True) as lab:
        print(f"{kind}: a lab of two clusters is up; {exports} exports", file=sys.stderr, flush=True)
        exported = [export(lab, number) for number in range(exports)]
    return {
        f"{what}_p{share}_ms": 1000
        * percentile([service_export[what] for service_export in exported], share / 100)
        for what in exported[0]
        for share in (50, 99)
    }


def main(argv: list[str]) -> int:
    """Measure and tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--api", choices=[str(kind) for kind in ApiKind], help="[both, where both are there]")
    parser.add_argument("--exports", type=int, default=30)
    parser.add_argument("--json", action="store_true", help="print the numbers for a program")
    args = parser.parse_args(argv)
    kinds = [ApiKind(args.api)] if args.api else [kind for kind in ApiKind if kind is not ApiKind.REAL or find()]
    results = {str(kind): measure(kind, args.exports) for kind in kinds}
    if args.json:
        print(json.dumps(results))
        return 0
    words = {"imported": "imported", "way": "by the exporting ClusterIP", "connected": "by the imported ClusterIP"}
    for name, found in results.items():
        for what, text in words.items():
            print(f"{name}: {text}: p50 {found[f'{what}_p50_ms']:.0f} ms, p99 {found[f'{what}_p99_ms']:.0f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
