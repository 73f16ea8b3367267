"""What the translation of Pod CIDRs costs: a lab with identical Pod CIDRs beside one with different Pod CIDRs.

    python -m tests.bench.same_cidrs [--datapath system|netdev] [--seconds S] [--rounds N] [--json FILE]

Both labs have two clusters of one gateway and one worker, with controllers, and run at the same time. A round
takes each measurement in both labs, one directly after the other, and the next round in the opposite order.
Meanwhile agents, controllers and API servers are stopped, since they would share the CPU. A ratio is the geometric
mean of the rounds' own ratios, with its 95 % confidence interval. On the userspace datapath (netdev) the processor
time per packet is measured, which varies less. Where this kernel has no openvswitch, `system` runs in a test
kernel (tests/kernel/run-in-kernel); otherwise it needs root.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from devtools.lab import story
from devtools.lab.lab import Lab
from devtools.lab.topology import Cluster, Node, generate
from devtools.traffic import matrix
from devtools.waiting import wait_until
from mcagent.dataplane.facts import kernel_datapath_exists
from mcagent.model.config import DatapathChoice
from tests.bench import packet_cost
from tests.bench.in_kernel import run_in_kernel
from tests.bench.packets import measuring
from tests.bench.packets.measuring import Measure, Numbers
from tests.bench.packets.paths import BASE, Way

LABS = ("different", "same")  # by their Pod CIDRs
RATES = tuple(item for item in measuring.MEASURES if item.name in {"tcp1", "tcp8", "udp", "connect", "upcalls"})
COSTS = (
    Measure(name="tcp_ns_per_byte", unit="ns/byte", scale=1, more=False),
    Measure(name="udp_us_per_datagram", unit="us/datagram", scale=1, more=False),
    Measure(name="us_per_connection", unit="us/connection", scale=1, more=False),
)

Round = dict[str, dict[str, Numbers]]  # by path and lab


def ways(lab: Lab) -> list[Way]:
    """Return the paths between Pods of the two clusters, at the addresses that other clusters use."""
    east, west = lab.topology.clusters
    prefixes = story.pod_prefixes(lab)

    def way(name: str, client: Node, serving: Cluster, server: Node, *between: Node) -> Way:
        return Way(
            name=name,
            client=lab.namespace(client.pods[0]),
            address=str(matrix.remote_address(serving, server.pods[0], prefixes)),
            nodes=tuple(node.name for node in (client, *between, server)),
        )

    gates = (east.gateways[0], west.gateways[0])
    return [
        way(BASE, gates[0], west, gates[1]),
        way("worker-worker", east.workers[0], west, west.workers[0], *gates),
    ]


def tcp_connections(lab: Lab, way: Way, seconds: float) -> Numbers:
    """Return the new connections per second of a path, and the upcalls of each."""
    before, began = measuring.upcalls(lab, way.nodes), time.monotonic()
    count = measuring.connections(way, seconds)
    elapsed = time.monotonic() - began
    upcalls = (measuring.upcalls(lab, way.nodes) - before) / max(count, 1)
    return {"connect": count / elapsed, "upcalls": upcalls}


Measurement = Callable[[Way, float], Numbers]  # of a path, for some seconds


def rates(lab: Lab) -> list[Measurement]:
    """Return the measurements of what passes per second."""
    return [
        lambda way, seconds: {"tcp1": measuring.tcp(way, seconds, 1)},
        lambda way, seconds: {"tcp8": measuring.tcp(way, seconds, 8)},
        lambda way, seconds: {"udp": measuring.udp(way, seconds)},
        partial(tcp_connections, lab),
    ]


def costs(lab: Lab) -> list[Measurement]:
    """Return the measurement of the processor time of ovs-vswitchd, which does all the work on that datapath."""
    clock = packet_cost.clock_of(lab, 2.0)

    def measure(way: Way, seconds: float) -> Numbers:
        numbers = packet_cost.measure(clock, way, seconds)
        return {name.removeprefix(f"{way.name}."): value for name, value in numbers.items()}

    return [measure]


def ratio(rounds: Sequence[Round], path: str, measure_name: str) -> tuple[float, float]:
    """Return the geometric mean of the rounds' ratios (identical to different), and its 95 % interval (±)."""
    pairs = [[numbers[path][lab][measure_name] for lab in LABS] for numbers in rounds]
    logs = [math.log(same / different) for different, same in pairs]
    mean = math.exp(statistics.fmean(logs))
    deviation = statistics.stdev(logs) if len(logs) > 1 else math.inf
    return mean, mean * 1.96 * deviation / math.sqrt(len(logs))


def table(rounds: Sequence[Round], measures: Sequence[Measure]) -> Iterator[str]:
    """Yield the table: medians of both labs, and the ratio; upcalls have none, because they can be zero."""
    yield "| path | measure | different Pod CIDRs | identical Pod CIDRs | ratio |"
    yield "|---|---|---|---|---|"
    for path in rounds[0]:
        for item in measures:
            different, same = (
                statistics.median(numbers[path][lab][item.name] for numbers in rounds) / item.scale for lab in LABS
            )
            last = ""
            if item.name != "upcalls":
                mean, interval = ratio(rounds, path, item.name)
                last = f"{mean:.3f} ± {interval:.3f}"
            yield f"| {path} | {item.name}, {item.unit} | {different:.3f} | {same:.3f} | {last} |"


@contextlib.contextmanager
def labs(datapath: DatapathChoice) -> Iterator[dict[str, Lab]]:
    """Both labs, with their servers."""
    with contextlib.ExitStack() as stack:
        labs: dict[str, Lab] = {}
        for name in LABS:
            shape = generate(name=f"{name}-{os.getpid()}", datapath=datapath, same_cidrs=name == "same")
            labs[name] = stack.enter_context(Lab.up(shape, control_plane=True))
            stack.enter_context(measuring.servers(labs[name]))
        yield labs


def run(args: argparse.Namespace) -> Iterator[Round]:
    """Yield the rounds, measured in labs of their own."""
    with labs(DatapathChoice(args.datapath)) as by_name:
        paths = {name: ways(lab) for name, lab in by_name.items()}
        for way in (
            way for path in paths.values() for way in path
        ):  # neighbours are known before anything is timed
            wait_until(lambda way=way: measuring.works(way), f"{way.name} to work", timeout=60)  # type: ignore[misc]
        with measuring.stopped_control_planes(by_name.values()):
            measurements_of = costs if args.datapath == "netdev" else rates
            measurements = {name: measurements_of(lab) for name, lab in by_name.items()}
            for number in range(args.rounds):
                yield {
                    way.name: both(measurements, {name: paths[name][place] for name in LABS}, args.seconds, number)
                    for place, way in enumerate(paths[LABS[0]])
                }


def both(
    measurements: dict[str, list[Measurement]], ways: dict[str, Way], seconds: float, number: int
) -> dict[str, Numbers]:
    """Return the numbers of a path by lab; each round begins with the other lab."""
    numbers: dict[str, Numbers] = {name: {} for name in LABS}
    for index in range(len(measurements[LABS[0]])):
        for name in LABS if (number + index) % 2 == 0 else reversed(LABS):
            numbers[name] |= measurements[name][index](ways[name], seconds)
    return numbers


def main(argv: list[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datapath", choices=["system", "netdev"], default="system")
    parser.add_argument("--seconds", type=int, default=1, help="of each measurement [%(default)s]")
    parser.add_argument("--rounds", type=int, default=6, help="[%(default)s]")
    parser.add_argument("--cpus", type=int, default=1, help="of a test kernel [%(default)s]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there, too")
    args = parser.parse_args(argv)
    if args.datapath == "system" and not kernel_datapath_exists():
        return run_in_kernel("same_cidrs", argv, files=[args.json], cpus=args.cpus)
    about = {"datapath": args.datapath, "kernel": os.uname().release, "load before": os.getloadavg()[0]}
    about |= {"seconds": args.seconds, "rounds": args.rounds}
    print(", ".join(f"{key} {value}" for key, value in about.items()), flush=True)
    rounds: list[Round] = []
    for row in run(args):
        rounds.append(row)
        print(f"round {len(rounds)} of {args.rounds}", file=sys.stderr, flush=True)
        if args.json:  # after every round: a run may be cut short
            args.json.write_text(json.dumps({"about": about, "rounds": rounds}, indent=1))
    print(*table(rounds, COSTS if args.datapath == "netdev" else RATES), sep="\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
