"""What a failure of a gateway costs, fault by fault: time without packets, datagrams lost, connections broken.

    python -m tests.bench.failover [--datapath system|netdev] [--bfd 100x3,33x3,200x3] [--rounds N | --full]
                                   [--encryption none|wireGuard] [--same-cidrs] [--fault NAME]... [--minutes M]
                                   [--seed N] [--gateways N] [--workers N]
                                   [--datagrams N] [--connections N] [--interval S]
                                   [--json FILE] [--svg FILE] [--from FILE...] [--evidence FOLDER]

Two clusters with real agents, numbered datagrams both ways, TCP connections to Pods and to a Service, requests to
the Service. Rounds go over the gateways of both clusters in turn, and over all faults before the next round.
A machine that does not carry the load without a fault says nothing about faults: the load is halved until it
does, and the table says so; a round in which the sending process itself was late is made again (at most twice),
and counted. Packets that ovs-vswitchd did not read in time are told by round and Node: they
were lost before the dataplane saw them (devtools.traffic.queues).

A run can be cut short at any time (`--minutes` does it): what is in FILE of `--json` is kept, and the same command
makes only the rounds that are missing. Where a connection broke, or was silent for too long in a fault from which
there is another way, logs, flows, conntrack, groups and sockets go to a folder in that of `--evidence`. `--from`
measures nothing and tells what is in one or more such files together. Where this kernel has no openvswitch, the
run takes place in a test kernel (tests/kernel/run-in-kernel); otherwise it needs root.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from devtools.errors import LabError
from devtools.lab.faults import Settled
from devtools.lab.lab import Lab
from devtools.traffic import evidence, queues
from devtools.traffic.load import Load, Report
from mcagent.dataplane.facts import kernel_datapath_exists
from mcagent.model.config import DatapathChoice, TrafficEncryption
from tests.bench.in_kernel import run_in_kernel
from tests.failover_results import Json, Results, list_of, plot, table
from tests.worlds import failover
from tests.worlds.failover import INTERVALS, ROWS, Intervals, Round, Row, Volume

LAGS = 1.0  # seconds without an answer to a datagram, with nothing wrong
LATE = 0.1  # seconds by which the sending process may be late in a round that counts
TRIES = 3
SILENT = 1.0  # seconds without an answer that are explained when the fault is over


def raw(measured_round: Round) -> Json:
    """Return a round as it goes into the file. Times in seconds."""
    during, after = measured_round.during, measured_round.after
    return {
        "node": measured_round.node,
        "side": measured_round.side,
        "tcp": {name: sorted(map(seconds, during.streams[name].silences)) for name in ("pods", "service")},
        "udp": seconds(failover.datagram_gap(during)),
        "request": seconds(during.streams["requests"].longest),
        "requests failed": during.streams["requests"].broken,
        "lost": failover.datagrams_lost(during),
        "duplicates": sum(stream.duplicates for stream in during.streams.values()),
        "broken": failover.broken(during),
        "reasons": _reasons(during),
        "late": seconds(during.stall),
        "healed": seconds(measured_round.healed),
        "after lost": failover.datagrams_lost(after),
        "after broken": failover.broken(after),
        "after reasons": _reasons(after),
        "after tcp": seconds(max(failover.tcp_silences(after))),
        "after late": seconds(after.stall),
    }


def seconds(value: float) -> float:
    """Return a time to the millisecond: more is noise, and fills files."""
    return round(value, 3)


def _reasons(report: Report) -> dict[str, list[str]]:
    """Return why connections and requests ended, by stream."""
    return {name: list(stream.reasons) for name, stream in report.streams.items() if stream.reasons}


def bearable(load_of: Lab, volume: Volume) -> Volume:
    """Return how much of the load the machine carries without a fault. Raises LabError when nearly nothing.

    Each volume is tried twice: just after its start, the lab itself is busy.
    """
    for attempt in range(12):
        try:
            with Load(failover.streams(load_of, volume)) as load:
                failover.pause(1.0)
                overload = failover.overload(failover.calm(load), volume.interval)
            if not overload:
                return volume
        except LabError as error:
            overload = str(error)
        say(f"{volume}: more than this machine carries ({overload})")
        volume = volume.less() if attempt % 2 else volume
    raise LabError("this machine carries no load at all")


def keep_evidence(lab: Lab, row: Row, folder: Path | None, allowed: float, during: Report) -> None:
    """Keep what explains a connection that broke, or was silent for too long though there is another way.

    Too long: for half of the fault, and longer than is `allowed` (seconds). `folder`: of this round.
    """
    longest, broken = max(failover.tcp_silences(during)), failover.broken(during)
    silent = failover.is_plain(row) and longest >= max(row.spell / 2, allowed)
    if folder is None or not (silent or broken):
        return
    say(f"silent for {longest:.2f} s, {broken} broken: {evidence.collect(lab, folder)}")


def keep_evidence_of_the_return(lab: Lab, folder: Path | None, now: Report) -> None:
    """Keep what explains a connection that has been silent for long since the fault was ended, once."""
    longest = max(failover.tcp_silences(now))
    if folder is not None and longest >= SILENT and not folder.exists():
        say(f"silent for {longest:.2f} s after the fault: {evidence.collect(lab, folder)}")


def say(text: str) -> None:
    """Tell how far it is."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def wanted(row: Row, args: argparse.Namespace) -> int:
    """Return how many rounds of a row there are to be."""
    return row.rounds if args.full else int(args.rounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A lab under load, and how its rounds are measured."""

    lab: Lab
    load: Load
    settled: Settled
    intervals: Intervals
    seed: int
    evidence: Path | None  # folder for what explains long silences

    def play(self, row: Row, number: int) -> Json:
        """Return a round as it goes into the file. Raises LabError when the lab does not do as told."""
        began = time.monotonic()
        before = queues.dropped(self.lab)
        name = f"{time.strftime('%H%M%S')}-{row.name.replace(' ', '-')}-{number + 1}"
        folder = self.evidence / name if self.evidence else None
        look = partial(keep_evidence, self.lab, row, folder, self.intervals.bound)
        back = folder.with_name(f"{name}-after") if folder else None
        watch = partial(keep_evidence_of_the_return, self.lab, back)
        played = failover.play(
            self.lab, self.load, self.settled, row, number, seed=self.seed, look=look, watch=watch
        )
        if (gap := failover.datagram_gap(self.load.report(time.monotonic()))) > LAGS:
            raise LabError(f"overload: {gap:.1f} s after the fault, datagrams are still not answered")
        result = raw(played)
        result["seconds"] = seconds(time.monotonic() - began)
        if full := queues.since(before, queues.dropped(self.lab)):
            result["queues"] = full  # packets that ovs-vswitchd could not read in time, by Node
            say(f"{row.name}, round {number + 1}: queues were full, packets lost: {full}")
        return result

    def play_until_it_counts(self, row: Row, number: int, result: Json) -> Json | None:
        """Make a round, again where it failed or the sending process was late; None when it failed to the last.

        `result`: where problems and rounds made again are noted.
        """
        for left in reversed(range(TRIES)):
            try:
                one = self.play(row, number)
            except LabError as error:
                problem = f"{row.name}, round {number + 1}: {error}"
                list_of(result["problems"]).append(problem)
                say(problem)
                self.settled.wait(120)
                continue
            if float(str(one["late"])) <= LATE or not left:
                return one
            result["rounds made again"] = int(str(result["rounds made again"])) + 1
        return None


def measure(intervals: Intervals, args: argparse.Namespace, rows: Sequence[Row], results: Results) -> None:
    """Measure what is missing of every row, in a lab of its own."""
    left = {row.name: wanted(row, args) - len(results.rounds(intervals.name, row.name)) for row in rows}
    if max(left.values()) <= 0 or time.monotonic() > args.deadline:
        return
    topology = failover.topology(
        intervals,
        gateways=args.gateways,
        workers=args.workers,
        datapath=DatapathChoice(args.datapath),
        encryption=TrafficEncryption(args.encryption),
        same_cidrs=args.same_cidrs,
        adapt=True,
    )
    asked = Volume(datagrams=args.datagrams, connections=args.connections, interval=args.interval)
    result = results.of(intervals.name)
    with Lab.up(topology, control_plane=args.same_cidrs) as lab:
        failover.await_handshakes(lab)
        settled = Settled(lab)
        volume = bearable(lab, asked)
        loads = list_of(result["loads"])
        loads += [str(volume)] * (str(volume) not in loads)
        say(f"BFD {intervals.name}: {volume} (asked: {asked})")
        with Load(failover.streams(lab, volume)) as load:
            failover.pause(1.0)
            bench = Bench(
                lab=lab,
                load=load,
                settled=settled,
                intervals=intervals,
                seed=args.seed,
                evidence=args.evidence,
            )
            for number in range(max(wanted(row, args) for row in rows)):
                for row in rows:
                    rounds = results.rounds(intervals.name, row.name)
                    if time.monotonic() > args.deadline or not len(rounds) <= number < wanted(row, args):
                        continue
                    if (one := bench.play_until_it_counts(row, number, result)) is not None:
                        rounds.append(one)
                    results.save()
                say(f"BFD {intervals.name}: round {number + 1} done")


def tell(results: Results, svg: Path | None) -> None:
    """Print tables, draw the picture."""
    for result in results.all:
        print(f"\nBFD {result['intervals']}; {'; '.join(list_of(result['loads']))};")
        print(f"{result['rounds made again']} rounds made again because the machine was late\n")
        print(*table(result), sep="\n", flush=True)
        print(*(f"problem: {problem}" for problem in list_of(result["problems"])), sep="\n")
    if svg:
        svg.write_text(plot(results.all))


def main(argv: list[str]) -> int:
    """Measure and tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datapath", choices=["system", "netdev"], default="system")
    parser.add_argument(
        "--encryption",
        choices=[str(mode) for mode in (TrafficEncryption.NONE, TrafficEncryption.WIREGUARD)],
        default=str(TrafficEncryption.NONE),
        help="between the clusters [%(default)s]",
    )
    parser.add_argument("--same-cidrs", action="store_true", help="identical CIDRs, with controllers")
    parser.add_argument("--bfd", type=lambda text: text.split(","), default=["100x3"], help=", ".join(INTERVALS))
    parser.add_argument("--rounds", type=int, default=4, help="of each fault [%(default)s]")
    parser.add_argument("--full", action="store_true", help="30 rounds of each fault, 50 of two at once")
    parser.add_argument("--fault", action="append", choices=list(ROWS), help="only this one; may be repeated")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no round after so many")
    parser.add_argument("--seed", type=int, default=1, help="of the pairs of faults [%(default)s]")
    parser.add_argument("--gateways", type=int, default=3, help="of each cluster [%(default)s]")
    parser.add_argument("--workers", type=int, default=2, help="of each cluster [%(default)s]")
    parser.add_argument("--datagrams", type=float, default=1000.0, help="a second, each way [%(default)s]")
    parser.add_argument("--connections", type=int, default=200, help="TCP [%(default)s]")
    parser.add_argument("--interval", type=float, default=0.02, help="seconds between messages [%(default)s]")
    parser.add_argument("--limit", type=int, default=14400, help="seconds, of a test kernel [%(default)s]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there, too")
    parser.add_argument("--evidence", type=Path, metavar="FOLDER", help="keep what explains a long silence")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw it")
    parser.add_argument(
        "--from", type=Path, metavar="FILE", dest="sources", nargs="+", help="measure nothing; tell these"
    )
    args = parser.parse_args(argv)
    if args.datapath == "netdev" and args.encryption != "none":
        parser.error("tunnels of the userspace datapath cannot be encrypted: use --datapath system")
    unknown = [name for name in args.bfd if name not in INTERVALS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(INTERVALS)}")
    if args.sources:
        told = Results(None, {})
        for path in args.sources:
            told.add(json.loads(path.read_text()))
        tell(told, args.svg)
        return 0
    if args.datapath == "system" and not kernel_datapath_exists():
        files = [args.json, args.svg, args.evidence]
        return run_in_kernel("failover", argv, files=files, memory=4096, limit=args.limit)
    about: Json = {
        "datapath": args.datapath,
        "encryption": args.encryption,
        "translation of CIDRs": "virtual" if args.same_cidrs else "none",
        "kernel": os.uname().release,
        "load average": os.getloadavg()[0],
        "gateways": args.gateways,
        "workers": args.workers,
        "asked": str(Volume(datagrams=args.datagrams, connections=args.connections, interval=args.interval)),
        "seed": args.seed,
    }
    print(", ".join(f"{key} {value}" for key, value in about.items()), flush=True)
    results = Results(args.json, about)
    args.deadline = time.monotonic() + 60 * args.minutes
    for name in args.bfd:
        measure(INTERVALS[name], args, [ROWS[row] for row in args.fault or ROWS], results)
    tell(results, args.svg)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
