"""How fast packets go between clusters, path by path, as ratios within one run.

    python -m tests.bench.throughput [--datapath system|netdev] [--tunnels geneve,vxlan] [--seconds S] [--rounds N]
                                     [--paths NAME,...] [--measures NAME,...] [--gateways N,...]
                                     [--encrypted yes|no|only] [--json FILE]

Three clusters of one gateway and one worker: `east` keeps its source addresses, `north` translates them
(sourceNAT: always), `west` serves. On the kernel datapath, the kernel's own tunnels between the gateways of `east`
and `west` are measured, too (kernel-geneve, kernel-vxlan, kernel-wireguard). Encryption has a table of its own:
pairs of clusters side by side, one in the clear, one with the kernel's WireGuard, one with wireguard-go. Several
numbers of gateways (`--gateways 1,3`) have a lab each at the same time; the paths of the others end in `@3`.

Rounds go over all paths, the next one in the opposite order, so that other load affects all of them alike; a ratio
is the median of the rounds' own ratios. Meanwhile agents and API servers are stopped. Where this kernel has no
openvswitch, the run takes place in a test kernel (tests/kernel/run-in-kernel); otherwise it needs root.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

from devtools.lab.lab import Lab
from devtools.waiting import wait_until
from mcagent.dataplane.facts import kernel_datapath_exists
from mcagent.model.config import DatapathChoice
from mcagent.model.dataplane.resources import TunnelType
from tests.bench.in_kernel import run_in_kernel
from tests.bench.packets.kernel_tunnels import build_tunnels
from tests.bench.packets.measuring import (
    MEASUREMENTS,
    SMALL,
    Numbers,
    connections,
    iperf,
    measure,
    servers,
    stopped_control_planes,
    works,
)
from tests.bench.packets.paths import BASE, Way, encrypted_paths, encrypted_topology, kernel_paths, paths, topology
from tests.bench.packets.report import Result, summary, table, targets

__all__ = [  # tests.bench.packet_cost takes them from here, because older revisions have them here
    "SMALL",
    "TunnelType",
    "Way",
    "build_tunnels",
    "connections",
    "iperf",
    "kernel_paths",
    "paths",
    "servers",
    "topology",
    "works",
]


def run(tunnel: TunnelType, args: argparse.Namespace, *, encrypted: bool = False) -> list[Result]:
    """Measure in labs of their own: one, or one for each number of gateways."""
    datapath = DatapathChoice(args.datapath)
    translated = not args.paths or any("+snat" in name for name in args.paths)
    shapes = {n: topology(tunnel, datapath, n, translated=translated) for n in args.gateways}
    if encrypted:
        shapes = {1: encrypted_topology(tunnel)}
    with contextlib.ExitStack() as stack:
        ways: list[tuple[Lab, Way]] = []
        for number, shape in shapes.items():
            lab = stack.enter_context(Lab.up(shape))
            stack.enter_context(servers(lab))
            build_tunnels(lab)
            all_paths = [*kernel_paths(lab), *(encrypted_paths(lab) if encrypted else paths(lab))]
            selected = [way for way in all_paths if not args.paths or way.name in {*args.paths, BASE}]
            suffix = f"@{number}" if ways else ""
            ways += [(lab, replace(way, name=way.name + suffix)) for way in selected]
        for _, way in ways:  # every path works, and neighbours are known, before anything is timed
            wait_until(lambda way=way: works(way), f"{way.name} to work", timeout=60)  # type: ignore[misc]
        stack.enter_context(stopped_control_planes({lab for lab, _ in ways}))
        rounds: list[dict[str, Numbers]] = []
        for number in range(args.rounds):
            numbers: dict[str, Numbers] = {}
            for lab, way in ways if number % 2 == 0 else reversed(ways):
                print(f"\r{tunnel}: round {number + 1} of {args.rounds}: {way.name:40}", end="", file=sys.stderr)
                numbers[way.name] = measure(lab, way, args.seconds, args.measures)
            rounds.append({way.name: numbers[way.name] for _, way in ways})
        print(file=sys.stderr)
        return summary(rounds)


def arguments(argv: list[str]) -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datapath", choices=["system", "netdev"], default="system")
    parser.add_argument(
        "--tunnels", type=lambda text: [TunnelType(t) for t in text.split(",")], default="geneve,vxlan"
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement [%(default)s]")
    parser.add_argument("--rounds", type=int, default=3, help="[%(default)s]")
    parser.add_argument(
        *("--gateways",),
        type=lambda text: [int(n) for n in text.split(",")],
        default="1",
        help="of each cluster [1]",
    )
    parser.add_argument("--paths", type=lambda text: text.split(","), default=[], help="only these, and the base")
    parser.add_argument(
        "--measures", type=lambda text: text.split(","), default=list(MEASUREMENTS), help=",".join(MEASUREMENTS)
    )
    parser.add_argument("--encrypted", choices=["yes", "no", "only"], default="yes", help="[%(default)s]")
    parser.add_argument("--cpus", type=int, default=1, help="of a test kernel [%(default)s]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there, too")
    args = parser.parse_args(argv)
    if unknown := {*args.measures} - {*MEASUREMENTS}:
        parser.error(f"no measure {', '.join(sorted(unknown))}")
    return args


def main(argv: list[str]) -> int:
    """Measure and print."""
    args = arguments(argv)
    if args.datapath == "system" and not kernel_datapath_exists():
        memory = 3072 + 1536 * (len(args.gateways) - 1)
        return run_in_kernel("throughput", argv, files=[args.json], cpus=args.cpus, memory=memory)
    about = {
        "datapath": args.datapath,
        "kernel": os.uname().release,
        "cpus": os.cpu_count(),
        "load before": os.getloadavg()[0],
        "seconds": args.seconds,
        "rounds": args.rounds,
        "base": BASE,
    }
    print(", ".join(f"{key} {value}" for key, value in about.items()), flush=True)
    documents: dict[str, object] = {}
    tables = [(tunnel, False) for tunnel in args.tunnels if args.encrypted != "only"]
    if args.encrypted != "no" and args.datapath == "system":
        tables.append((args.tunnels[0], True))
    for tunnel, encrypted in tables:
        results = run(tunnel, args, encrypted=encrypted)
        name = f"{tunnel}, encrypted" if encrypted else str(tunnel)
        print(f"\n{name}: medians (ratio to {BASE}; more is better)", *table(results), "", sep="\n")
        print(*targets(results, str(tunnel)), sep="\n", flush=True)
        documents[name] = {r.path: {"median": r.median, "ratio": r.ratio, "rounds": r.rounds} for r in results}
        if args.json:  # after every table: a run may be cut short
            args.json.write_text(json.dumps({"about": about, "results": documents}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
