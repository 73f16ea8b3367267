"""How fast packets go between clusters, path by path, as ratios within one run.

    python -m tests.bench.throughput [--datapath system|netdev] [--tunnels geneve,vxlan] [--seconds S]
                                     [--rounds N] [--paths NAME,...] [--encrypted yes|no|only] [--json FILE]

Three clusters of one gateway and one worker: `east` keeps its source addresses, `north` translates them
(sourceNAT: always), `west` serves. A table of its own is about encryption: pairs of clusters side by side, one in
the clear, one with the kernel's WireGuard, one with wireguard-go. Rounds go over all paths, so that what else the
machine does meets all of them alike; a ratio is the median of the rounds' own ratios. Where this kernel has no
openvswitch, the run takes place in a test kernel (tests/kernel/run-in-kernel); otherwise it needs root.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from devtools.errors import LabError
from devtools.lab.lab import Lab
from devtools.lab.topology import POD_PORT, Service, Topology, generate
from devtools.nodes import netns
from devtools.traffic import traffic
from devtools.waiting import wait_until
from mcagent.dataplane.facts import kernel_datapath_exists
from mcagent.model.config import DatapathChoice, TrafficEncryption
from mcagent.model.dataplane.resources import TunnelType

ROOT = Path(__file__).resolve().parents[2]
IPERF_PORT = 5201
SMALL = 64  # bytes of UDP payload
BASE = "gateway-gateway"  # what ratios refer to


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to measure: from a namespace to an address; the Nodes whose switches it goes through.

    `echo`: where the echo server is reached, if not at the same address: Services have one for each.
    """

    name: str
    client: str
    address: str
    nodes: tuple[str, ...]
    echo: str = ""

    @property
    def server(self) -> str:
        """The address of the echo server."""
        return self.echo or self.address


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One number of a path, the unit it is shown in, and whether more is better."""

    name: str
    unit: str
    scale: float
    more: bool = True


MEASURES = (
    Measure(name="tcp1", unit="Gbit/s", scale=1e9),
    Measure(name="tcp8", unit="Gbit/s", scale=1e9),
    Measure(name="udp", unit="kpacket/s", scale=1e3),
    Measure(name="rr", unit="1/s", scale=1),
    Measure(name="p50", unit="us", scale=1e-6, more=False),
    Measure(name="p99", unit="us", scale=1e-6, more=False),
    Measure(name="connect", unit="1/s", scale=1),
    Measure(name="upcalls", unit="per connection", scale=1, more=False),
    Measure(name="cpu", unit="% busy (tcp1)", scale=0.01, more=False),
)
Numbers = dict[str, float]  # by measure


# --- the lab --------------------------------------------------------------------------------------------


def topology(tunnel: TunnelType, datapath: DatapathChoice) -> Topology:
    """Return the three clusters; the serving one exports what the servers of this benchmark listen on."""
    plain = generate(name=f"bench-{os.getpid()}", clusters=3, tunnel=tunnel, datapath=datapath)
    east, west, north = plain.clusters
    services = tuple(
        Service(
            name=f"{what}-{role}",
            cluster_ip=west.service_cidr[number + place],
            pods=(pod.name,),
            port=port,
            target_port=port,
        )
        for number, (what, port) in ((10, ("iperf", IPERF_PORT)), (20, ("echo", POD_PORT)))
        for place, (role, pod) in enumerate(
            (("gateway", west.gateways[0].pods[0]), ("worker", west.workers[0].pods[0]))
        )
    )
    north = replace(north, config={"sourceNAT": "always"}, services=())
    return replace(plain, clusters=(replace(east, services=()), replace(west, services=services), north))


PAIRS: dict[str, dict[str, object]] = {  # what each pair of clusters adds to its agents' configuration
    "": {"trafficEncryptionMode": "none"},
    "+wireguard": {"wireGuard": {"implementation": "kernel"}},
    "+wireguard-go": {"wireGuard": {"implementation": "userspace"}},
}


def encrypted_topology(tunnel: TunnelType) -> Topology:
    """Return a pair of clusters for each kind of encryption."""
    plain = generate(
        name=f"bench-{os.getpid()}",
        clusters=2 * len(PAIRS),
        workers=0,
        tunnel=tunnel,
        datapath=DatapathChoice.SYSTEM,
        encryption=TrafficEncryption.WIREGUARD,
    )
    configs = [config for config in PAIRS.values() for _ in range(2)]
    clusters = zip(plain.clusters, configs, strict=True)
    return replace(plain, clusters=tuple(replace(one, services=(), config=config) for one, config in clusters))


def encrypted_paths(lab: Lab) -> list[Way]:
    """Return the ways between the Nodes of each pair, and the underlay."""
    gates = [cluster.gateways[0] for cluster in lab.topology.clusters]
    ways = [Way(name="underlay", client=lab.namespace(gates[0]), address=str(gates[1].address), nodes=())]
    for place, suffix in enumerate(PAIRS):
        first, last = gates[2 * place : 2 * place + 2]
        ways.append(
            Way(
                name=f"{BASE}{suffix}",
                client=lab.namespace(first.pods[0]),
                address=str(last.pods[0].address),
                nodes=(first.name, last.name),
            )
        )
    return ways


def paths(lab: Lab) -> list[Way]:
    """Return the paths of the benchmark in the order of the table."""
    east, west, north = lab.topology.clusters
    ways: list[Way] = []

    def add(name: str, client: object, address: object, *nodes: str, echo: object = "") -> None:
        found = {"client": lab.namespace(client), "address": str(address), "echo": str(echo)}
        ways.append(Way(name=name, **found, nodes=nodes))

    def add_service(name: str, client: object, place: int, *nodes: str) -> None:
        iperf_at, echo_at = (service.cluster_ip for service in west.services[place::2])
        add(f"{name}+service", client, iperf_at, *nodes, echo=echo_at)

    gateway, worker = west.gateways[0], west.workers[0]
    add("underlay", east.gateways[0], gateway.address)
    for suffix, source in (("", east), ("+snat", north)):
        first, last = source.gateways[0], source.workers[0]
        gates = (first.name, gateway.name)
        every = (last.name, *gates, worker.name)
        add(f"{BASE}{suffix}", first.pods[0], gateway.pods[0].address, *gates)
        add(f"worker-worker{suffix}", last.pods[0], worker.pods[0].address, *every)
        add_service(f"{BASE}{suffix}", first.pods[0], 0, *gates)
        add_service(f"worker-worker{suffix}", last.pods[0], 1, *every)
    return ways


@contextlib.contextmanager
def servers(lab: Lab) -> Iterator[None]:
    """iperf3 in the serving Pods and on the serving gateway Node, and the echo server on that Node too."""
    serving = lab.topology.clusters[1::2]
    node = serving[0].gateways[0]
    targets = [lab.namespace(node), *(lab.namespace(n.pods[0]) for one in serving for n in one.nodes)]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mcagent-bench.")))
        (folder / "spec").write_text(json.dumps({"node": lab.namespace(node)}))
        echo = [sys.executable, "-m", "devtools.traffic.traffic_server", f"{folder}/spec", f"{folder}/ready"]
        commands = [*(netns.command(t, ["iperf3", "-s", "-p", str(IPERF_PORT)]) for t in targets), echo]
        for argv in commands:
            process = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.terminate)
        wait_until((folder / "ready").exists, "the echo server", timeout=20)
        for target in targets:
            wait_until(lambda target=target: _listens(target), f"iperf3 in {target}", timeout=20)  # type: ignore[misc]
        yield


def _listens(namespace: str) -> bool:
    return bool(netns.execute(namespace, ["ss", "-Hltn", f"sport = :{IPERF_PORT}"]).stdout)


# --- one number -----------------------------------------------------------------------------------------


def iperf(way: Way, seconds: float, *flags: str) -> dict[str, object]:
    """Run iperf3 along a path and return its report. Raises LabError."""
    argv = ["iperf3", "-c", way.address, "-p", str(IPERF_PORT), "-t", f"{seconds:g}", "-J"]
    found: dict[str, object] = {}

    def ran() -> bool:  # between two tests the server does not listen for a moment
        done = netns.execute(way.client, [*argv, "--connect-timeout", "5000", *flags], check=False, timeout=60)
        found.update({"error": ""}, **json.loads(done.stdout))
        return "Connection refused" not in str(found["error"])

    wait_until(ran, f"{way.name}: iperf3", timeout=20)
    if found["error"]:
        raise LabError(f"{way.name}: iperf3: {found['error']}")
    end = found["end"]
    assert isinstance(end, dict)
    return end


def tcp(way: Way, seconds: float, streams: int) -> float:
    """Return bit/s that arrived."""
    return float(iperf(way, seconds, "-P", str(streams))["sum_received"]["bits_per_second"])  # type: ignore[index]


def udp(way: Way, seconds: float) -> float:
    """Return small datagrams that arrived per second while the sender sends as fast as it can."""
    end = iperf(way, seconds, "-u", "-b", "0", "-l", str(SMALL))["sum"]
    return float((end["packets"] - end["lost_packets"]) / end["seconds"])  # type: ignore[index]


def request_response(way: Way, seconds: float) -> Numbers:
    """Send a byte and wait for it to come back, again and again on one TCP connection."""
    times: list[float] = []
    with traffic.TcpClient(way.client, way.server, POD_PORT) as client:
        stop = time.monotonic() + seconds
        while time.monotonic() < stop:
            times.append(client.exchange(b"x"))
    times.sort()
    return {
        "rr": len(times) / sum(times),
        "p50": times[len(times) // 2],
        "p99": times[len(times) * 99 // 100],
    }


def connections(way: Way, seconds: float) -> int:
    """Open and reset TCP connections one after the other; return how many."""

    def run() -> int:
        count = 0
        stop = time.monotonic() + seconds
        while time.monotonic() < stop:
            with socket.create_connection((way.server, POD_PORT), timeout=5) as one:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # no TIME-WAIT
            count += 1
        return count

    return netns.call(way.client, run, timeout=seconds + 10)


def upcalls(lab: Lab, way: Way) -> int:
    """Return how many packets the switches on a path have asked ovs-vswitchd about so far."""
    shown = (lab.ovs(node).appctl("dpctl/show") for node in way.nodes)
    return sum(int(number) for text in shown for number in re.findall(r"missed:(\d+)", text))


def busy() -> tuple[float, float]:
    """Return the ticks that all CPUs have worked, and all ticks (proc_stat(5))."""
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    ticks = [float(word) for word in words]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def measure(lab: Lab, way: Way, seconds: float) -> Numbers:
    """Return all numbers of a path, once."""
    worked, every = busy()
    numbers: Numbers = {"tcp1": tcp(way, seconds, 1)}
    after, later = busy()
    numbers["cpu"] = (after - worked) / max(later - every, 1)
    numbers["tcp8"] = tcp(way, seconds, 8)
    numbers["udp"] = udp(way, seconds)
    numbers |= request_response(way, seconds / 2)
    before = upcalls(lab, way)
    began = time.monotonic()
    count = connections(way, seconds / 2)
    numbers["connect"] = count / (time.monotonic() - began)
    numbers["upcalls"] = (upcalls(lab, way) - before) / max(count, 1)
    return numbers


# --- many numbers ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A path's numbers over the rounds, and its ratios to the base path of the same round."""

    path: str
    median: Numbers
    ratio: Numbers
    rounds: list[Numbers]


def summary(rounds: list[dict[str, Numbers]]) -> list[Result]:
    """Return medians and ratios; more is better in every ratio."""
    found = []
    for path in rounds[0]:
        mine = [numbers[path] for numbers in rounds]
        ratios: Numbers = {}
        for one in MEASURES:
            if BASE in rounds[0] and one.name not in ("cpu", "upcalls"):
                pairs = [(numbers[path][one.name], numbers[BASE][one.name]) for numbers in rounds]
                ratios[one.name] = statistics.median(a / b if one.more else b / a for a, b in pairs)
        median = {one.name: statistics.median(numbers[one.name] for numbers in mine) for one in MEASURES}
        found.append(Result(path=path, median=median, ratio=ratios, rounds=mine))
    return found


def table(results: list[Result]) -> Iterator[str]:
    """Yield the table: each cell a median and, after it, the ratio to the base path."""
    shown = [one for one in MEASURES if one.name != "cpu"]
    head = ["", *(f"{one.name}, {one.unit}" for one in (*shown, MEASURES[-1]))]
    rows = [head]
    for result in results:
        cells = [result.path]
        for one in (*shown, MEASURES[-1]):
            value = result.median[one.name] / one.scale
            digits = 2 if value < 10 else 1 if value < 100 else 0
            ratio = f" ({result.ratio[one.name]:.0%})" if one.name in result.ratio else ""
            cells.append(f"{value:.{digits}f}{ratio}")
        rows.append(cells)
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    for row in rows:
        yield "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        if row is head:
            yield "|" + "|".join("-" * (width + 2) for width in widths) + "|"


def run(tunnel: TunnelType, args: argparse.Namespace, *, encrypted: bool = False) -> list[Result]:
    """Measure in a lab of its own."""
    shape = encrypted_topology(tunnel) if encrypted else topology(tunnel, DatapathChoice(args.datapath))
    with Lab.up(shape) as lab, servers(lab):
        every = encrypted_paths(lab) if encrypted else paths(lab)
        ways = [way for way in every if not args.paths or way.name in {*args.paths, BASE}]
        for way in ways:  # every path works, and neighbours are known, before anything is timed
            wait_until(lambda way=way: _works(way), f"{way.name} to work", timeout=60)  # type: ignore[misc]
        rounds: list[dict[str, Numbers]] = []
        for number in range(args.rounds):
            rounds.append({})
            for way in ways:
                rounds[-1][way.name] = measure(lab, way, args.seconds)
                print(f"\r{tunnel}: round {number + 1} of {args.rounds}: {way.name:40}", end="", file=sys.stderr)
        print(file=sys.stderr)
        return summary(rounds)


def _works(way: Way) -> bool:
    try:
        return connections(way, 0.1) > 0
    except OSError:
        return False


def in_test_kernel(args: argparse.Namespace, argv: list[str]) -> int:
    """Run the same command in a test kernel; its result file is written through."""
    out = args.json.resolve().parent if args.json else Path(tempfile.gettempdir()) / f"mcagent-bench.{os.getpid()}"
    command: list[str | Path] = [ROOT / "tests/kernel/run-in-kernel", "-m", "3072", "-t", "3600", "-o", out]
    command += ["-c", str(args.cpus)] + (["-p", "none"] if args.cpus > 1 else [])
    print(f"this machine's kernel has no openvswitch: in a test kernel, {args.cpus} CPU", file=sys.stderr)
    return subprocess.run(
        [*command, "--", sys.executable, "-m", "tests.bench.throughput", *argv], cwd=ROOT, check=False
    ).returncode


def main(argv: list[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datapath", choices=["system", "netdev"], default="system")
    parser.add_argument(
        "--tunnels", type=lambda text: [TunnelType(t) for t in text.split(",")], default="geneve,vxlan"
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement [%(default)s]")
    parser.add_argument("--rounds", type=int, default=3, help="[%(default)s]")
    parser.add_argument("--paths", type=lambda text: text.split(","), default=[], help="only these, and the base")
    parser.add_argument("--encrypted", choices=["yes", "no", "only"], default="yes", help="[%(default)s]")
    parser.add_argument("--cpus", type=int, default=1, help="of a test kernel [%(default)s]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there, too")
    args = parser.parse_args(argv)
    if args.datapath == "system" and not kernel_datapath_exists():
        return in_test_kernel(args, argv)
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
    found: dict[str, object] = {}
    tables = [(tunnel, False) for tunnel in args.tunnels if args.encrypted != "only"]
    if args.encrypted != "no" and args.datapath == "system":
        tables.append((args.tunnels[0], True))
    for tunnel, encrypted in tables:
        results = run(tunnel, args, encrypted=encrypted)
        name = f"{tunnel}, encrypted" if encrypted else str(tunnel)
        print(f"\n{name}: medians (ratio to {BASE}; more is better)", *table(results), sep="\n", flush=True)
        found[name] = {r.path: {"median": r.median, "ratio": r.ratio, "rounds": r.rounds} for r in results}
    if args.json:
        args.json.write_text(json.dumps({"about": about, "results": found}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
