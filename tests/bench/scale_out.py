"""How much more several gateways carry than one: throughput of many streams, with a limited link of each gateway.

    python -m tests.bench.scale_out [--datapath system|netdev] [--gateways 1,2,3] [--megabits N] [--streams N]
                                    [--seconds S] [--rounds N] [--encrypted yes|no|only] [--json FILE]

All Nodes of a lab share its CPUs, so more gateways are not faster by themselves. Here the underlay's link to each
gateway has a token bucket (tc-tbf(8)) far below what the CPUs forward, as if it were the gateway's capacity, and a
Pod on a worker sends TCP streams to a Pod on a worker of the other cluster. Each number of gateways has a lab of
its own. Printed: what arrived in all streams, as ratio to the fewest gateways, and how unequal the shares of the
gateways were (busiest to mean). Target: with N times as many gateways, 0.9 N times as much.

`unlimited` is the throughput without limits with the fewest gateways: if it is not far above the others, the CPUs
limit the result. Where this kernel has no openvswitch, the kernel datapath runs in a test kernel.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from devtools.lab.lab import Lab
from devtools.lab.topology import Topology, generate
from devtools.nodes import netns, underlay
from devtools.waiting import wait_until
from mcagent.dataplane.facts import kernel_datapath_exists
from mcagent.model.config import DatapathChoice, TrafficEncryption
from tests.bench.in_kernel import run_in_kernel
from tests.bench.packets.measuring import stopped_control_planes, works
from tests.bench.packets.paths import Way

BUCKET = ("burst", "128kb", "latency", "100ms")  # a bucket holds the largest packets of segmentation offload
SETTLING = 2.0  # seconds of each transfer in which the streams find their rate
PORT, BLOCK = 5300, 65536  # of TCP; bytes of a call
TARGET = 0.9
Json = dict[str, float]


def gateway_links(lab: Lab) -> dict[str, list[str]]:
    """Return, by cluster, the underlay's ports to the gateways."""
    return {
        cluster.name: [
            underlay.port(number, index) for index, node in enumerate(cluster.nodes, start=1) if node.gateway
        ]
        for number, cluster in enumerate(lab.topology.clusters, start=1)
    }


def limit(lab: Lab, megabits: int) -> None:
    """Limit the link to each gateway."""
    for device in (port for ports in gateway_links(lab).values() for port in ports):
        argv = ["tc", "qdisc", "replace", "dev", device, "root", "tbf", "rate", f"{megabits}mbit", *BUCKET]
        netns.execute(lab.underlay, argv)


def sent(lab: Lab) -> dict[str, list[int]]:
    """Return, by cluster, the bytes that the underlay has sent to each gateway."""
    shown = json.loads(netns.run(["ip", "-n", lab.underlay, "-s", "-j", "link", "show"]).stdout)
    counts = {link["ifname"]: int(link["stats64"]["tx"]["bytes"]) for link in shown}
    return {cluster: [counts[port] for port in ports] for cluster, ports in gateway_links(lab).items()}


class Streams:
    """TCP streams between two namespaces that send as fast as they can; a context manager. Counts what arrived.

    iperf3 3.12 sometimes fails with a hundred streams ("select failed: Bad file descriptor").
    """

    def __init__(self, client: str, server: str, address: str, count: int) -> None:
        with netns.call(server, lambda: socket.create_server((address, PORT), backlog=count)) as listener:
            connect = partial(socket.create_connection, (address, PORT), timeout=10)
            self._senders = netns.call(client, lambda: [connect() for _ in range(count)])
            self._receivers = [listener.accept()[0] for _ in self._senders]
        self.received = 0  # bytes
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=target) for target in (self._send, self._receive)]

    def _send(self) -> None:
        block = bytes(BLOCK)
        self._serve(self._senders, selectors.EVENT_WRITE, lambda stream: stream.send(block))

    def _receive(self) -> None:
        def receive(stream: socket.socket) -> None:
            self.received += len(stream.recv(BLOCK))

        self._serve(self._receivers, selectors.EVENT_READ, receive)

    def _serve(self, streams: list[socket.socket], events: int, work: Callable[[socket.socket], object]) -> None:
        by_number = {stream.fileno(): stream for stream in streams}
        with selectors.DefaultSelector() as selector:
            for stream in streams:
                stream.setblocking(False)
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, BLOCK // 2)  # fewer, larger reads
                selector.register(stream, events)
            while not self._stop.is_set():
                for key, _ in selector.select(0.1):
                    work(by_number[key.fd])

    def __enter__(self) -> Streams:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        for stream in (*self._senders, *self._receivers):
            stream.close()


def transfer(lab: Lab, way: Way, args: argparse.Namespace) -> Json:
    """Return bit/s that arrived, and, by cluster, the bytes of the busiest gateway relative to the mean."""
    server = lab.namespace(lab.topology.clusters[1].workers[0].pods[0])
    with Streams(way.client, server, way.address, args.streams) as streams:
        time.sleep(SETTLING)
        before, arrived, began = sent(lab), streams.received, time.monotonic()
        time.sleep(args.seconds)
        elapsed = time.monotonic() - began
        result = {"bits_per_second": 8 * (streams.received - arrived) / elapsed}
        after = sent(lab)
    for cluster, counts in after.items():
        shares = [count - earlier for count, earlier in zip(counts, before[cluster], strict=True)]
        result[f"{cluster}_busiest_to_mean"] = max(shares) / statistics.fmean(shares)
    return result


def shape(args: argparse.Namespace, gateways: int, *, encrypted: bool) -> Topology:
    """Return two clusters of so many gateways and a worker."""
    return generate(
        name=f"scale-{os.getpid()}-{gateways}",
        gateways=gateways,
        datapath=DatapathChoice(args.datapath),
        encryption=TrafficEncryption.WIREGUARD if encrypted else TrafficEncryption.NONE,
    )


def measure(args: argparse.Namespace, *, encrypted: bool) -> dict[str, list[Json]]:
    """Return the transfers of each number of gateways, and of the fewest without limits."""
    results: dict[str, list[Json]] = {}
    for gateways in args.gateways:
        with Lab.up(shape(args, gateways, encrypted=encrypted)) as lab:
            east, west = lab.topology.clusters
            client, server = lab.namespace(east.workers[0].pods[0]), str(west.workers[0].pods[0].address)
            way = Way(name="worker-worker", client=client, address=server, nodes=())
            wait_until(lambda way=way: works(way), f"{way.name} to work", timeout=60)  # type: ignore[misc]
            with stopped_control_planes([lab]):
                if not results:
                    results["unlimited"] = [transfer(lab, way, args) for _ in range(args.rounds)]
                limit(lab, args.megabits)
                results[str(gateways)] = [transfer(lab, way, args) for _ in range(args.rounds)]
        print(f"{gateways} gateways: {median(results[str(gateways)]) / 1e6:.0f} Mbit/s", file=sys.stderr)
    return results


def median(transfers: list[Json]) -> float:
    """Return the median of the bit/s."""
    return statistics.median(transfer["bits_per_second"] for transfer in transfers)


def table(results: dict[str, list[Json]], fewest: int) -> Iterator[str]:
    """Yield a row for each number of gateways."""
    yield "| gateways | Mbit/s | ratio | target | busiest to mean, east, west |"
    yield "|---|---|---|---|---|"
    for name, transfers in results.items():
        megabits, ratio = median(transfers) / 1e6, median(transfers) / median(results[str(fewest)])
        uneven = ", ".join(
            f"{statistics.median(transfer[key] for transfer in transfers):.2f}"
            for key in transfers[0]
            if "busiest" in key
        )
        target = ""
        if name.isdigit() and int(name) > fewest:
            least = TARGET * int(name) / fewest
            target = f"{least:.1f}: {'met' if ratio >= least else 'not met'}"
        yield f"| {name} | {megabits:.0f} | {ratio:.2f} | {target} | {uneven} |"


def main(argv: list[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datapath", choices=["system", "netdev"], default="system")
    parser.add_argument(
        *("--gateways",),
        type=lambda text: [int(n) for n in text.split(",")],
        default="1,2,3",
        help="[%(default)s]",
    )
    parser.add_argument(
        "--megabits", type=int, default=100, help="limit of each gateway, per second [%(default)s]"
    )
    parser.add_argument("--streams", type=int, default=100, help="[%(default)s]")
    parser.add_argument("--seconds", type=int, default=5, help="of each transfer [%(default)s]")
    parser.add_argument("--rounds", type=int, default=3, help="[%(default)s]")
    parser.add_argument("--encrypted", choices=["yes", "no", "only"], default="yes", help="[%(default)s]")
    parser.add_argument("--cpus", type=int, default=1, help="of a test kernel [%(default)s]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there, too")
    args = parser.parse_args(argv)
    if args.datapath == "system" and not kernel_datapath_exists():
        return run_in_kernel("scale_out", argv, files=[args.json], cpus=args.cpus)
    kinds = {"yes": (False, True), "no": (False,), "only": (True,)}[args.encrypted]
    about = {"datapath": args.datapath, "kernel": os.uname().release, "load before": os.getloadavg()[0]}
    about |= {"streams": args.streams, "Mbit/s of each gateway": args.megabits, "rounds": args.rounds}
    print(", ".join(f"{key} {value}" for key, value in about.items()), flush=True)
    documents: dict[str, object] = {}
    for encrypted in kinds:
        name = "encrypted" if encrypted else "clear"
        documents[name] = results = measure(args, encrypted=encrypted)
        print(f"\n{name}: medians", *table(results, args.gateways[0]), sep="\n", flush=True)
        if args.json:
            args.json.write_text(json.dumps({"about": about, "results": documents}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
