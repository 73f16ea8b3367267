"""BFD between clusters over five kinds of path: false alarms, and how soon a real failure is detected.

    python -m tests.bench.bfd_paths [--minutes M] [--no-adapt] [--failures N] [--cpus N] [--json FILE]

Six clusters of one gateway each, with real agents and the default configuration; all have tunnels to the first one
only. The uplink of each of the others gets the delay and the loss of a path (netem) for tunnel packets, both ways.
An alarm is a session that goes down while no link is cut, as the logs of ovs-vswitchd of both ends have it; alarms
of both ends within `TOGETHER` are one outage. After `--minutes` the link of each cluster is cut several times: the
time until the first cluster's session is down. Without netem in this kernel the run takes place in a test kernel
(tests/kernel/run-in-kernel); otherwise it needs root.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from devtools.errors import LabError
from devtools.lab import faults
from devtools.lab.lab import Lab
from devtools.lab.objects import NAMESPACE
from devtools.lab.topology import generate
from devtools.nodes import netns, underlay
from devtools.waiting import wait_until
from mcagent.dataplane.facts import kernel_datapath_exists
from mcagent.model.config import DatapathChoice
from tests.bench.in_kernel import run_in_kernel

TUNNEL = "match ip protocol 17 0xff match ip dport 6081 0xffff"  # UDP, Geneve
TOGETHER = 5.0  # seconds within which alarms of both ends, and their repetitions, are one outage
STALL = 0.2  # seconds: a machine that stops for so long, or longer, gives alarms on every path
FIRST = 300.0  # seconds in which agents get to know the paths: their alarms are told apart
LOST = re.compile(
    r"^(\S+)Z\|\d+\|bfd\S*\|INFO\|(\S+): BFD state change: up->down \"[^\"]*\"->\"([^\"]*)\"", re.MULTILINE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PathKind:
    """A kind of path: netem's arguments for each direction; "": none."""

    name: str
    netem: str


PATHS = (
    PathKind(name="LAN", netem=""),
    PathKind(name="metro, round trip 10 ms", netem="delay 5ms 500us"),
    PathKind(name="WAN, round trip 80 ms", netem="delay 40ms 5ms loss 0.1%"),
    PathKind(name="WAN, round trip 200 ms, bursts of loss", netem="delay 100ms 5ms loss gemodel 0.5% 50% 100% 0%"),
    PathKind(name="mobile, round trip 120 ms, long bursts", netem="delay 60ms 40ms loss gemodel 1% 30% 100% 0%"),
)


@dataclass(slots=True, kw_only=True)
class Measured:
    """What was measured of a path. Times in seconds; `alarms` and `detection` from the beginning."""

    path: str
    netem: str
    minutes: float = 0.0
    alarms: list[tuple[float, str, str]] = field(default_factory=list)  # with the Node and its diagnostic
    detection: list[tuple[float, float]] = field(default_factory=list)  # since when, and how long
    round_trip: float | None = None
    loss: float | None = None
    failures: list[float] = field(default_factory=list)

    def outages(self, stalls: Sequence[float] = ()) -> list[float]:
        """Return the beginning of each outage, without those at a stall of the machine."""
        found: list[float] = []
        last = float("-inf")
        for at, _, _ in sorted(self.alarms):
            if at - last > TOGETHER and not any(abs(at - stall) < TOGETHER for stall in stalls):
                found.append(at)
            last = at
        return found


def watch_stalls(stalls: list[float]) -> None:
    """Append the times (seconds since the epoch) at which the machine stopped for longer than `STALL`."""
    while True:
        before = time.monotonic()
        time.sleep(STALL / 4)
        if time.monotonic() - before > 5 * STALL / 4:
            stalls.append(time.time())


def impair(lab: Lab, number: int, netem: str) -> None:
    """Delay and lose tunnel packets of a cluster's gateway, both ways."""
    node = lab.topology.clusters[number - 1].gateways[0]
    for namespace, device in ((lab.underlay, underlay.port(number, 1)), (lab.namespace(node), "eth0")):
        lines = [
            "qdisc add dev {} root handle 1: prio bands 4 priomap 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0",
            "qdisc add dev {} parent 1:4 handle 40: netem limit 10000 " + netem,
            f"filter add dev {{}} parent 1: protocol ip u32 {TUNNEL} flowid 1:4",
        ]
        for line in lines:
            netns.execute(namespace, ["tc", *line.format(device).split()])


def gateway_of(lab: Lab, name: str, cluster: str) -> Any:
    """Return what an agent says of the only gateway of another cluster. It may be too busy to answer at once."""
    answer: list[Any] = []

    def asked() -> bool:
        with contextlib.suppress(LabError):
            answer.append(lab.status(name)["gateways"])
        return bool(answer)

    wait_until(asked, f"the agent of {name}", timeout=120, interval=1.0)
    groups = answer[0]
    return next(group["gateways"][0] for group in groups if group["cluster"] == cluster)


def losses(lab: Lab, name: str) -> list[tuple[float, str, str]]:
    """Return when sessions of a Node went down (seconds since the epoch), of which tunnel, and the diagnostic."""
    text = (lab.ovs(name).directory / "ovs-vswitchd.log").read_text()
    return [
        (datetime.fromisoformat(at).replace(tzinfo=UTC).timestamp(), tunnel, why)
        for at, tunnel, why in LOST.findall(text)
    ]


def measure(lab: Lab, args: argparse.Namespace) -> list[Measured]:
    """Watch the paths, then cut each link."""
    hub, *others = lab.topology.clusters
    name = hub.gateways[0].name
    for cluster in others:  # no tunnels among them: a test kernel has one CPU
        for other in others:
            if other is not cluster:
                lab.api(cluster.name).delete("ClusterInfoImport", f"{other.name}-clusterinfo", NAMESPACE)
    reports = [Measured(path=path.name, netem=path.netem) for path in PATHS]
    for number, path in enumerate(PATHS, 2):
        if path.netem:
            impair(lab, number, path.netem)
    wait_until(
        lambda: all(answers(lab, name, cluster.name) for cluster in others), "BFD", timeout=300, interval=1.0
    )
    tunnels = [
        ((name, gateway_of(lab, name, cluster.name)["tunnel"]), (far, gateway_of(lab, far, hub.name)["tunnel"]))
        for cluster in others
        for far in (cluster.gateways[0].name,)
    ]
    began, started = time.monotonic(), time.time()
    stalls: list[float] = []
    threading.Thread(target=watch_stalls, args=(stalls,), daemon=True).start()
    while True:
        passed = time.monotonic() - began
        lost_probes = {node.name: losses(lab, node.name) for _, node in lab.topology.nodes()}
        for cluster, ends, report in zip(others, tunnels, reports, strict=True):
            gateway = gateway_of(lab, name, cluster.name)
            report.minutes = round(passed / 60, 2)
            probes = gateway["probes"] or {}
            report.round_trip, report.loss = probes.get("roundTripSeconds"), probes.get("lossRatio")
            now = gateway["detectionSeconds"]
            if not report.detection or report.detection[-1][1] != now:
                report.detection.append((round(passed, 1), now))
            report.alarms = [
                (round(at - started, 2), node, why)
                for node, tunnel in ends
                for at, lost_tunnel, why in lost_probes[node]
                if lost_tunnel == tunnel and at >= started
            ]
        args.stalls = [round(at - started, 2) for at in stalls]
        write(args, reports)
        if passed >= 60 * args.minutes:
            break
        time.sleep(min(20.0, max(0.1, began + 60 * args.minutes - time.monotonic())))
    for _ in range(args.failures):
        for cluster, report in zip(others, reports, strict=True):
            report.failures += detect(lab, name, cluster.name, cluster.gateways[0].name)
            write(args, reports)
    return reports


def answers(lab: Lab, name: str, cluster: str) -> bool:
    """Tell whether BFD of the other cluster's gateway answers."""
    return bool(gateway_of(lab, name, cluster)["bfd"] == "answers")


def detect(lab: Lab, name: str, cluster: str, far: str) -> list[float]:
    """Cut the link of a gateway; return the seconds until the session of the Node `name` is down.

    Nothing if it was down already: on a bad path an alarm may come first.
    """
    tunnel = gateway_of(lab, name, cluster)["tunnel"]
    wait_until(lambda: answers(lab, name, cluster), f"BFD of {far}", timeout=120, interval=0.5)
    cut = faults.link_cut(lab, far)
    began = time.time()
    cut.inject()

    def lost() -> list[float]:
        return [at - began for at, lost_tunnel, _ in losses(lab, name) if lost_tunnel == tunnel and at >= began]

    try:
        wait_until(
            lambda: bool(lost()) or not answers(lab, name, cluster), f"the loss of {far}", timeout=20, interval=0.2
        )
    finally:
        time.sleep(max(0.0, began + 6.0 - time.time()))  # no false alarm: an outage of seconds
        cut.heal()
    wait_until(lambda: answers(lab, name, cluster), f"the return of {far}", timeout=120, interval=0.5)
    time.sleep(5.0)  # until its intervals are fast again
    return [round(seconds, 3) for seconds in lost()[:1] if seconds < 6.0]


def write(args: argparse.Namespace, reports: Sequence[Measured]) -> None:
    """Write everything, since a run may be cut short."""
    if args.json:
        about: dict[str, object] = {"adapt": args.adapt, "stalls": args.stalls, "kernel": os.uname().release}
        args.json.write_text(
            json.dumps({"about": about, "paths": [asdict(report) for report in reports]}, indent=1) + "\n"
        )


def table(reports: Sequence[Measured], stalls: Sequence[float]) -> list[str]:
    """Return a table of the results."""
    columns = ("path", "round trip", "probes lost", "detection time", "alarms in 5 minutes", "later", "link cut")
    lines = [
        f"{reports[0].minutes:.0f} minutes, {len(stalls)} stalls of the machine",
        f"| {' | '.join(columns)} |",
        "|---" * len(columns) + "|",
    ]
    for report in reports:
        outages = report.outages(stalls)
        first = sum(at < FIRST for at in outages)
        steps = " → ".join(f"{seconds:.1f}" for _, seconds in report.detection)
        cut = (
            f"{statistics.median(report.failures):.2f} s (longest {max(report.failures):.2f} s)"
            if report.failures
            else "-"
        )
        probes = f"{1000 * (report.round_trip or 0):.0f} ms | {100 * (report.loss or 0):.0f} %"
        lines.append(f"| {report.path} | {probes} | {steps} s | {first} | {len(outages) - first} | {cut} |")
    return lines


def main(argv: list[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0, help="[%(default)s]")
    parser.add_argument("--no-adapt", dest="adapt", action="store_false", help="with bfd.remote.adapt: false")
    parser.add_argument("--failures", type=int, default=3, help="cuts of each link [%(default)s]")
    parser.add_argument("--cpus", type=int, default=1, help="of a test kernel [%(default)s]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there, too")
    args = parser.parse_args(argv)
    if not kernel_datapath_exists():
        limit = int(60 * args.minutes + 1800)
        return run_in_kernel("bfd_paths", argv, files=[args.json], cpus=args.cpus, limit=limit)
    shape = generate(
        name=f"bench-{os.getpid()}", clusters=6, gateways=1, workers=0, datapath=DatapathChoice.SYSTEM
    )
    config = {"bfd": {"remote": {"adapt": args.adapt}}}
    with Lab.up(
        replace(shape, clusters=tuple(replace(cluster, config=config) for cluster in shape.clusters))
    ) as lab:
        reports = measure(lab, args)
    print(*table(reports, args.stalls), sep="\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
