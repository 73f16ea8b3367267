"""Processor time of agents and of Open vSwitch while nothing changes, in a lab that is ready. Run as root.

    python -m tests.bench.idle [--datapath system|netdev] [--gateways N] [--workers N] [--seconds S] [--json]

Two clusters with real agents; the tunnels are up, and no Pod sends anything. Prints milliseconds of processor time
per second and Node: of the agent with the processes that it started, of ovs-vswitchd, and of ovsdb-server.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

from devtools.lab.lab import Lab
from mcagent.model.config import DatapathChoice
from tests.worlds import failover

SETTLING = 15.0  # seconds from the lab's start: first probes, handshakes and the reports of Gateways
Json = dict[str, object]


def processor_time(pid: int) -> float:
    """Return seconds of processor time of a process and its children that ended (proc(5), stat)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def spent(pids: dict[str, list[int]]) -> dict[str, float]:
    """Return the processor time of each group of processes."""
    return {name: sum(map(processor_time, group)) for name, group in pids.items()}


def measure(args: argparse.Namespace) -> Json:
    """Return the processor time of one Node in milliseconds per second, by program."""
    shape = failover.topology(
        failover.INTERVALS["100x3"],
        gateways=args.gateways,
        workers=args.workers,
        datapath=DatapathChoice(args.datapath),
        name=f"idle-{os.getpid()}",
    )
    with Lab.up(shape) as lab:
        nodes = [node.name for _, node in lab.topology.nodes()]
        agents = [lab.state.process(f"agent-{name}") for name in nodes]
        pids: dict[str, list[int]] = {"agent": [agent.pid for agent in agents if agent is not None]}
        for program in ("ovs-vswitchd", "ovsdb-server"):
            pids[program] = [lab.ovs(name).pids[program] for name in nodes]
        time.sleep(SETTLING)
        before, began = spent(pids), time.monotonic()
        time.sleep(args.seconds)
        after, seconds = spent(pids), time.monotonic() - began
    per_node = seconds * len(nodes) / 1000
    return {f"{name}_ms_per_s": (after[name] - before[name]) / per_node for name in pids}


def main(argv: list[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datapath", choices=["system", "netdev"], default="netdev")
    parser.add_argument("--gateways", type=int, default=3, help="of each cluster [%(default)s]")
    parser.add_argument("--workers", type=int, default=2, help="of each cluster [%(default)s]")
    parser.add_argument("--seconds", type=float, default=60.0, help="[%(default)s]")
    parser.add_argument("--json", action="store_true", help="print the numbers for a program")
    args = parser.parse_args(argv)
    results = measure(args)
    if args.json:
        print(json.dumps(results))
        return 0
    for name, value in results.items():
        print(f"{name:<24} {value:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
