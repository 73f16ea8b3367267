"""How a path is measured: the servers, one function for each number, and all numbers of a path.

Knows no names of paths and no ratios.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from devtools.errors import LabError
from devtools.lab.lab import Lab
from devtools.lab.topology import POD_PORT
from devtools.nodes import netns
from devtools.traffic import traffic
from devtools.waiting import wait_until
from tests.bench.packets.paths import IPERF_PORT, Way

ROOT = Path(__file__).resolve().parents[3]
SMALL = 64  # bytes of UDP payload


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
MEASUREMENTS = ("tcp1", "tcp8", "udp", "rr", "connect")  # rr: with p50 and p99; connect: with upcalls
Numbers = dict[str, float]  # by measure


@contextlib.contextmanager
def servers(lab: Lab) -> Iterator[None]:
    """iperf3 in the serving Pods and on the serving gateway Node, and the echo server on that Node too."""
    serving = lab.topology.clusters[1::2]
    gateway = serving[0].gateways[0]
    pods = [pod for cluster in serving for node in cluster.nodes for pod in node.pods]
    targets = [lab.namespace(thing) for thing in (gateway, *pods)]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mcagent-bench.")))
        (folder / "spec").write_text(json.dumps({"node": lab.namespace(gateway)}))
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


@contextlib.contextmanager
def stopped_control_planes(labs: Iterable[Lab]) -> Iterator[None]:
    """Stop agents, controllers and API servers while paths are measured; Open vSwitch continues to forward."""
    started = [item for lab in labs for item in lab.state.processes().items()]
    processes = [process for key, process in started if key != "servers" and process.alive]  # of Pods

    def send(signal_number: int) -> None:
        for process in processes:
            os.kill(process.pid, signal_number)

    send(signal.SIGSTOP)
    try:
        yield
    finally:
        send(signal.SIGCONT)


def _listens(namespace: str) -> bool:
    return bool(netns.execute(namespace, ["ss", "-Hltn", f"sport = :{IPERF_PORT}"]).stdout)


def iperf(way: Way, seconds: float, *flags: str) -> dict[str, object]:
    """Run iperf3 along a path and return its report. Raises LabError."""
    whole = str(math.ceil(seconds))  # iperf3 ignores fractions, and 0 is without end
    argv = ["iperf3", "-c", way.address, "-p", str(IPERF_PORT), "-t", whole, "-J"]
    report: dict[str, object] = {}

    def ran() -> bool:  # between two tests the server does not listen for a moment
        done = netns.execute(way.client, [*argv, "--connect-timeout", "5000", *flags], check=False, timeout=60)
        report.update({"error": ""}, **json.loads(done.stdout))
        return "Connection refused" not in str(report["error"])

    wait_until(ran, f"{way.name}: iperf3", timeout=20)
    if report["error"]:
        raise LabError(f"{way.name}: iperf3: {report['error']}")
    end = report["end"]
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
            with socket.create_connection((way.server, POD_PORT), timeout=5) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # no TIME-WAIT
            count += 1
        return count

    return netns.call(way.client, run, timeout=seconds + 10)


def upcalls(lab: Lab, nodes: Iterable[str]) -> int:
    """Return how many packets the datapaths of these Nodes have passed to ovs-vswitchd so far."""
    shown = (lab.ovs(node).appctl("dpctl/show") for node in nodes)
    return sum(int(number) for text in shown for number in re.findall(r"missed:(\d+)", text))


def busy() -> tuple[float, float]:
    """Return the ticks that all CPUs have worked, and all ticks (proc_stat(5))."""
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    ticks = [float(word) for word in words]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def measure(lab: Lab, way: Way, seconds: float, names: Container[str]) -> Numbers:
    """Return the numbers of a path with these names, once."""
    numbers: Numbers = {}
    if "tcp1" in names:
        worked, idle_share = busy()
        numbers["tcp1"] = tcp(way, seconds, 1)
        after, later = busy()
        numbers["cpu"] = (after - worked) / max(later - idle_share, 1)
    if "tcp8" in names:
        numbers["tcp8"] = tcp(way, seconds, 8)
    if "udp" in names:
        numbers["udp"] = udp(way, seconds)
    if "rr" in names:
        numbers |= request_response(way, seconds / 2)
    if "connect" in names:
        before = upcalls(lab, way.nodes)
        began = time.monotonic()
        count = connections(way, seconds / 2)
        numbers["connect"] = count / (time.monotonic() - began)
        numbers["upcalls"] = (upcalls(lab, way.nodes) - before) / max(count, 1)
    return numbers


def works(way: Way) -> bool:
    """Tell whether a connection along a path can be opened."""
    try:
        return connections(way, 0.1) > 0
    except OSError:
        return False
