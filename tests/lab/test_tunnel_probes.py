"""What is measured through tunnels: by gateways round trip, loss and MTU; throughput by `mcagent benchmark`."""

from __future__ import annotations

import heapq
import json
import re
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from devtools.lab import faults
from devtools.lab.faults import Settled, place
from devtools.lab.lab import Lab
from devtools.lab.topology import generate
from devtools.nodes import netns, underlay
from devtools.waiting import wait_until

DELAY = 0.02  # seconds, each way
BUSY = 0.25  # seconds that a busy machine takes at most, on the average
ETH_P_ALL, PACKET_OUTGOING = 3, 4  # linux/if_ether.h, linux/if_packet.h


@pytest.fixture(scope="module")
def lab(make_lab: Callable[..., Lab]) -> Iterator[Lab]:
    """Two clusters of one gateway each."""
    with make_lab(generate(gateways=1, workers=1, pods=1)) as lab:
        Settled(lab).wait()
        yield lab


def ends(lab: Lab) -> tuple[str, str]:
    """Return the gateways of both clusters."""
    name, other = (cluster.gateways[0].name for cluster in lab.topology.clusters)
    return name, other


def probed(lab: Lab, name: str) -> Any:
    """Return what a gateway says of the probes to the other one."""
    groups: Any = lab.status(name)["gateways"]
    (probe,) = (tunnel["probes"] for group in groups if not group["own"] for tunnel in group["gateways"])
    return probe


def counted(lab: Lab, name: str, metric: str) -> float:
    """Return a number of probes, or seconds, of a gateway's metrics."""
    match = re.search(rf"^mcagent_tunnel_probe{metric}{{.*}} (\S+)$", lab.http(name, "/metrics")[1], re.MULTILINE)
    return float(match[1]) if match is not None else 0.0


def since(lab: Lab, name: str, first: str, second: str, enough: int) -> float:
    """Return what `first` grew by for each of `second`, once that has grown by `enough`."""
    before = [counted(lab, name, moment) for moment in (first, second)]
    wait_until(lambda: counted(lab, name, second) >= before[1] + enough, "probes", timeout=60, interval=0.2)
    after = [counted(lab, name, moment) for moment in (first, second)]
    return (after[0] - before[0]) / (after[1] - before[1])


@pytest.mark.timing
def test_both_ends_measure_a_healthy_tunnel(lab: Lab) -> None:
    """Nothing is lost, the largest packets pass, and the bridges take little time."""

    def complete() -> bool:
        probes = [probed(lab, name) or {} for name in ends(lab)]
        return all(shown_probe.get("fullSizePasses") and shown_probe["of"] >= 5 for shown_probe in probes)

    wait_until(complete, "probes of all sizes", timeout=30)
    for name in ends(lab):
        probe = probed(lab, name)
        assert probe["answers"]
        assert 0 < probe["roundTripSeconds"] < BUSY
        assert probe["lossRatio"] < 0.2


@pytest.mark.timing
def test_a_benchmark_measures_from_pod_to_pod(lab: Lab) -> None:
    """Its ends, as its Pods run them: no more than the limit is sent, and nearly that; round trips are told."""
    clients, servers = (cluster.workers[0].pods[0] for cluster in lab.topology.clusters)
    mcagent = ["env", "MCAGENT_BENCHMARK_TOKEN=lab", sys.executable, "-m", "mcagent.cli.main", "benchmark"]
    address, bounds = str(servers.address), ["--seconds", "3"]
    server = subprocess.Popen(netns.command(lab.namespace(servers), [*mcagent, "serve", address, *bounds]))
    try:
        argv = [*mcagent, "send", address, *bounds, "--limit", "20Mbit"]
        report = json.loads(netns.execute(lab.namespace(clients), argv).stdout)
    finally:
        server.kill()
        server.wait()
    assert 5e6 < report["bits_per_second"] < 1.2 * 20e6
    assert 0 < report["round_trip_p50"] <= report["round_trip_p99"]


class Slow:
    """Carries the tunnel's packets between the first gateways itself, and each of them late."""

    def __init__(self, lab: Lab) -> None:
        self._lab, self._ends = lab, [place(lab, name) for name in ends(lab)]
        self._nodes = [lab.topology.node(name)[1] for name in ends(lab)]
        self._closed = threading.Event()
        self._sockets = netns.call(lab.underlay, self._open)
        self._thread = threading.Thread(target=self._carry)
        self._fault = faults.port_blocked(lab, *ends(lab))

    def __enter__(self) -> None:
        self._fault.inject()
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join()
        self._fault.heal()
        for sock in self._sockets:
            sock.close()

    def _open(self) -> list[socket.socket]:
        sockets = []
        for end in self._ends:
            sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
            sock.bind((underlay.port(*end), ETH_P_ALL))
            sockets.append(sock)
        return sockets

    def _carry(self) -> None:
        waiting: list[tuple[float, int, bytes]] = []
        tunnel = [b"".join(x.address.packed for x in pair) for pair in (self._nodes, self._nodes[::-1])]
        while not self._closed.is_set():
            for sock in select.select(self._sockets, [], [], 0.001)[0]:
                side = self._sockets.index(sock)
                packet, (*_, kind, _, _) = sock.recvfrom(65536)
                if kind != PACKET_OUTGOING and packet[26:34] == tunnel[side] and packet[23] == socket.IPPROTO_UDP:
                    heapq.heappush(waiting, (time.monotonic() + DELAY, 1 - side, packet[12:]))
            while waiting and waiting[0][0] <= time.monotonic():
                _, side, rest = heapq.heappop(waiting)
                number, index = self._ends[side]
                macs = (underlay.mac(number, index), underlay.router_mac(number))
                self._sockets[side].send(b"".join(bytes.fromhex(sock.replace(":", "")) for sock in macs) + rest)


@pytest.mark.timing
def test_a_longer_way_is_measured(lab: Lab) -> None:
    """The round trip is that of the way, and a little of both Nodes."""
    gateway, _ = ends(lab)
    with Slow(lab):
        since(lab, gateway, "s_lost_total", "s_total", 3)
        mean = since(lab, gateway, "_round_trip_seconds_sum", "_round_trip_seconds_count", 8)
    assert 2 * DELAY <= mean < 2 * DELAY + BUSY


@pytest.mark.timing
def test_loss_is_measured(lab: Lab) -> None:
    """Three of ten packets lost each way: about half of the probes get no answer."""
    gateway, _ = ends(lab)
    fault = faults.lossy(lab, gateway, 0.3)
    fault.inject()
    try:
        since(lab, gateway, "s_lost_total", "s_total", 3)
        lost_share = since(lab, gateway, "s_lost_total", "s_total", 25)
    finally:
        fault.heal()
    assert 0.2 <= lost_share <= 0.8


@pytest.mark.timing
def test_a_narrow_path_is_named(lab: Lab) -> None:
    """A problem says so while only small packets pass, and the metric does; both end with it."""
    gateway, far_gateway = ends(lab)

    def problems() -> list[str]:
        reported: Any = lab.status(gateway)["problems"]
        return [problem["message"] for problem in reported if problem["reason"] == "PathMtu"]

    assert problems() == []
    fault = faults.small_mtu(lab, gateway, far_gateway, 1400)
    fault.inject()
    try:
        lab.stop_agent(gateway)  # at the start nothing is known, and measured at once
        lab.start_agent(gateway)
        lab.wait_ready(gateway)
        wait_until(problems, "a problem", timeout=60, interval=0.5)
        assert "path MTU" in problems()[0]
        assert re.search(
            r"^mcagent_tunnel_full_size_passes\{.*\} 0\.0$", lab.http(gateway, "/metrics")[1], re.MULTILINE
        )
        assert probed(lab, gateway)["lossRatio"] < 0.2
    finally:
        fault.heal()
    wait_until(lambda: not problems(), "the end of the problem", timeout=60, interval=0.5)
    assert probed(lab, gateway)["fullSizePasses"]
