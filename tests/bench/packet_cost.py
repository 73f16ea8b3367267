"""Processor time per packet, byte and connection. Run as root.

    python -m tests.bench.packet_cost [--datapath netdev|system] [--seconds S] [--rounds N] [--json]

The paths of tests.bench.throughput, in its lab. On the userspace datapath (netdev) ovs-vswitchd does all the work
of bridges and tunnels, so the sum of its processor time on all Nodes is what a packet costs; other load of the
machine, which changes throughput, hardly changes it.

On the kernel datapath (system, in a test kernel where this kernel has no openvswitch) the work is done in soft
interrupts, which belong to no process and no Node. There it is the busy time of all CPUs, clients and servers
included, so only differences between paths are about Nodes; they are printed, too.

The time that idle Nodes take (BFD) is subtracted. Values are medians of the rounds: nanoseconds per byte of TCP in
one stream, microseconds per datagram of 64 bytes and per TCP connection.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from devtools.lab.lab import Lab
from devtools.waiting import wait_until
from mcagent.dataplane.facts import kernel_datapath_exists
from mcagent.model.config import DatapathChoice
from tests.bench import throughput
from tests.bench.idle import processor_time
from tests.bench.in_kernel import run_in_kernel
from tests.bench.throughput import SMALL, Way

PATHS = (
    "kernel-geneve",
    "gateway-gateway",
    "worker-worker",
    "gateway-gateway+service",
    "worker-worker+service",
    "worker-worker+snat",
)
RATE = "2M"  # bit/s of datagrams: less than a busy machine forwards


DIFFERENCES = {  # what a path does more than another one
    "Open vSwitch instead of a kernel tunnel": ("gateway-gateway", "kernel-geneve"),
    "two gateways between, and two more tunnels": ("worker-worker", "gateway-gateway"),
    "translated Service, the gateway has its endpoint": ("gateway-gateway+service", "gateway-gateway"),
    "translated Service, the gateway is between": ("worker-worker+service", "worker-worker"),
    "translated source": ("worker-worker+snat", "worker-worker"),
}


class Clock:
    """The processor time that packets take: without the time that is spent while there is no traffic.

    `read` returns the seconds of processor time so far.
    """

    def __init__(self, read: Callable[[], float], seconds: float) -> None:
        self._read = read
        self._idle = 0.0
        self._idle = self.spent(partial(time.sleep, seconds)) / seconds

    def spent(self, traffic: Callable[[], object]) -> float:
        """Return the seconds of processor time that traffic takes."""
        before, began = self._read(), time.monotonic()
        traffic()
        elapsed = time.monotonic() - began
        return self._read() - before - self._idle * elapsed


def clock_of(lab: Lab, seconds: float) -> Clock:
    """Return the clock for a lab's datapath. `seconds`: for how long idle Nodes are measured."""
    if not lab.userspace:
        return Clock(busy_seconds, seconds)
    pids = [lab.ovs(node.name).pids["ovs-vswitchd"] for _, node in lab.topology.nodes()]
    return Clock(lambda: sum(map(processor_time, pids)), seconds)


def busy_seconds() -> float:
    """Return for how long all CPUs together have not been idle since some moment in the past.

    The kernel measures idle time, and only samples user and system time (get_idle_time in fs/proc/stat.c).
    """
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    idle = (float(words[4]) + float(words[5])) / os.sysconf("SC_CLK_TCK")  # and iowait (proc_stat(5))
    return time.monotonic() * (os.cpu_count() or 1) - idle


def measure(clock: Clock, way: Way, seconds: float) -> dict[str, float]:
    """Return the costs of one path."""
    counts: list[float] = []

    def tcp() -> None:
        report = throughput.iperf(way, seconds)["sum_received"]
        assert isinstance(report, dict)
        counts.append(float(report["bytes"]))

    def udp() -> None:
        report = throughput.iperf(way, seconds, "-u", "-b", RATE, "-l", str(SMALL))["sum"]
        assert isinstance(report, dict)
        counts.append(float(report["packets"] - report["lost_packets"]))

    def connect() -> None:
        counts.append(float(throughput.connections(way, seconds)))

    spent = [clock.spent(traffic) for traffic in (tcp, udp, connect)]
    names = (("tcp_ns_per_byte", 1e9), ("udp_us_per_datagram", 1e6), ("us_per_connection", 1e6))
    return {
        f"{way.name}.{name}": scale * seconds_spent / max(count, 1.0)
        for (name, scale), seconds_spent, count in zip(names, spent, counts, strict=True)
    }


def differences(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the medians of the differences between paths."""
    medians: dict[str, float] = {}
    for label, (path, base) in DIFFERENCES.items():
        names = [name.removeprefix(f"{path}.") for name in rounds[0] if name.startswith(f"{path}.")]
        for name in names:
            if f"{base}.{name}" in rounds[0]:
                values = (numbers[f"{path}.{name}"] - numbers[f"{base}.{name}"] for numbers in rounds)
                medians[f"{label}: {name}"] = statistics.median(values)
    return medians


def run(args: argparse.Namespace) -> list[dict[str, float]]:
    """Measure in a lab of its own; return the costs of all paths by round."""
    geneve = throughput.TunnelType.GENEVE
    shape = throughput.topology(geneve, DatapathChoice(args.datapath))
    rounds: list[dict[str, float]] = []
    with Lab.up(shape) as lab, throughput.servers(lab):
        all_paths = throughput.paths(lab)
        if args.datapath == "system":
            throughput.build_tunnels(lab)
            all_paths += throughput.kernel_paths(lab)
        ways = [way for way in all_paths if way.name in PATHS]
        for way in ways:
            wait_until(lambda way=way: throughput.works(way), f"{way.name} to work", timeout=60)  # type: ignore[misc]
        clock = clock_of(lab, 2 * args.seconds)
        for number in range(args.rounds):
            rounds.append({})
            for way in ways if number % 2 == 0 else reversed(ways):
                rounds[-1] |= measure(clock, way, args.seconds)
    return rounds


def main(argv: list[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datapath", choices=["system", "netdev"], default="netdev")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement [%(default)s]")
    parser.add_argument("--rounds", type=int, default=2, help="[%(default)s]")
    parser.add_argument("--json", action="store_true", help="print the numbers for a program")
    args = parser.parse_args(argv)
    if args.datapath == "system" and not kernel_datapath_exists():
        return run_in_kernel("packet_cost", argv)
    rounds = run(args)
    results = {name: statistics.median(numbers[name] for numbers in rounds) for name in rounds[0]}
    if args.json:
        print(json.dumps(results))
        return 0
    if args.datapath == "system":
        results |= differences(rounds)
    for name, value in results.items():
        print(f"{name:<72} {value:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
