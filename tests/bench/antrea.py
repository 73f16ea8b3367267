"""How long traffic with a cluster that runs Antrea is silent after the loss of this cluster's first gateway.

    python -m tests.bench.antrea [--rounds N] [--datapath netdev|system]

The gateways of a cluster lose their link in turn; datagrams pass both ways between Pods. Needs root.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace

from devtools.lab.lab import Lab
from mcagent.model.config import DatapathChoice
from tests.worlds import antrea_failover as failover


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--datapath", choices=["netdev", "system"], default="netdev")
    args = parser.parse_args()
    shape = failover.shape()
    east, west = shape.clusters
    east = replace(east, config={"damping": {"max": "2s"}})  # else each round counts as a flap of its gateway
    topology = replace(shape, name="bench-antrea", datapath=DatapathChoice(args.datapath), clusters=(east, west))
    results: list[failover.Round] = []
    with Lab.up(topology) as lab, failover.rounds(lab) as agents:
        for number in range(1, args.rounds + 1):
            result = failover.lose_first_gateway(lab, agents)
            results.append(result)
            silent = f"to Antrea {result.to_antrea:.2f} s, from Antrea {result.from_antrea:.2f} s"
            events = f"published after {result.published:.2f} s, flows after {result.programmed:.2f} s"
            print(f"{number:3} {result.gateway}: {silent}; {events}", flush=True)
    for title, values in (
        ("to Antrea", [result.to_antrea for result in results]),
        ("from Antrea", [result.from_antrea for result in results]),
        ("published", [result.published for result in results]),
    ):
        ordered = sorted(values)
        p50, p99 = (ordered[math.ceil(part * len(ordered)) - 1] for part in (0.5, 0.99))
        print(f"{title}: p50 {p50:.2f} s, p99 {p99:.2f} s, longest {ordered[-1]:.2f} s ({len(ordered)} rounds)")


if __name__ == "__main__":
    main()
