"""Failover tried and measured: the lab, the load on it, and every fault of the table. For tests and benchmark."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from mcagent.lab import faults
from mcagent.lab.faults import Fault, Settled
from mcagent.lab.lab import Lab
from mcagent.lab.load import Kind, Load, Report, Stream
from mcagent.lab.topology import POD_PORT, Cluster, Topology, generate
from mcagent.lab.waiting import wait_until
from mcagent.model.config import DatapathChoice

DRAIN = "mcagent.io/drain"
PAIRS = 12  # of Pods that send datagrams to each other: by all gateways
ON_THE_WAY = 0.3  # seconds: an answer that takes longer is not waited for
REQUEST_INTERVAL = 0.05  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """BFD intervals in milliseconds, inside a cluster and between clusters; three packets missed mean gone."""

    name: str
    local: int
    remote: int
    bound: float  # seconds: the longest silence of a TCP connection that the issue allows


INTERVALS = {
    one.name: one
    for one in (
        Intervals(name="100x3", local=100, remote=100, bound=0.6),
        Intervals(name="33x3", local=33, remote=33, bound=0.35),
        Intervals(name="defaults", local=100, remote=200, bound=1.2),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """How much is sent: datagrams a second each way, TCP connections, seconds between their messages."""

    datagrams: float = 1000.0
    connections: int = 200
    interval: float = 0.02

    def less(self) -> Volume:
        """Return half of it."""
        if self.connections > 40:
            return replace(self, connections=self.connections // 2, datagrams=max(100.0, self.datagrams / 2))
        return replace(self, interval=self.interval * 2, datagrams=max(100.0, self.datagrams / 2))

    def __str__(self) -> str:
        tcp = f"{self.connections} TCP connections, a message every {1000 * self.interval:.0f} ms"
        return f"{self.datagrams:.0f} datagrams/s each way, {tcp}"


def topology(
    intervals: Intervals,
    *,
    gateways: int = 3,
    workers: int = 2,
    datapath: DatapathChoice = DatapathChoice.AUTO,
    name: str = "failover",
) -> Topology:
    """Return two clusters whose Pods are on workers only: with a gateway no endpoint goes."""
    plain = generate(name=name, gateways=gateways, workers=workers, pods=2, datapath=datapath)
    config = {
        "bfd": {
            "local": {"interval": f"{intervals.local}ms", "multiplier": 3},
            "remote": {"interval": f"{intervals.remote}ms", "multiplier": 3},
        },
        # Damping, too, is tried many times over: rounds are no flapping.
        "damping": {"initial": "200ms", "max": "1s"},
    }

    def only_workers(cluster: Cluster) -> Cluster:
        nodes = tuple(replace(one, pods=()) if one.gateway else one for one in cluster.nodes)
        pods = tuple(pod.name for one in nodes for pod in one.pods)
        services = (replace(cluster.services[0], pods=pods),)
        return replace(cluster, nodes=nodes, services=services, config=config)

    return replace(plain, clusters=tuple(only_workers(cluster) for cluster in plain.clusters))


def streams(lab: Lab, volume: Volume) -> list[Stream]:
    """Return the load: datagrams both ways, connections to Pods and to a Service, requests to the Service.

    Datagrams go between many pairs of Pods: a gateway is chosen by addresses and, with TCP, ports.
    """
    east, west = lab.topology.clusters
    here = [pod for one in east.workers for pod in one.pods]
    there = [pod for one in west.workers for pod in one.pods]
    pairs = [(here[n % len(here)], there[n // len(here) % len(there)]) for n in range(PAIRS)]
    found = [
        Stream(
            kind=Kind.UDP,
            name=f"udp from {source.name} to {to.name}",
            namespace=lab.namespace(source),
            address=str(to.address),
            port=POD_PORT,
            interval=PAIRS / volume.datagrams,
        )
        for one, other_one in pairs
        for source, to in ((one, other_one), (other_one, one))
    ]
    half = volume.connections // 2
    pods = Stream(
        kind=Kind.TCP,
        name="pods",
        namespace=lab.namespace(here[0]),
        address=str(there[0].address),
        port=POD_PORT,
        count=half,
        interval=volume.interval,
    )
    service = str(west.services[0].cluster_ip)
    services = replace(pods, name="service", address=service, port=80, count=volume.connections - half)
    requests = replace(services, kind=Kind.HTTP, name="requests", count=1, interval=REQUEST_INTERVAL)
    return [*found, pods, services, requests]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of the table: a fault of the Node whose name is given, how long it lasts, and what must come of it.

    `lossless`: no packet may be lost, neither at the beginning nor at the end. `bound`: seconds, the longest
    silence; None: that of the intervals. `from_heal`: silence is counted from the end of the fault. `must`: words
    in place of a time, where none is set.
    """

    name: str
    make: Callable[[Lab, str], Fault]
    lossless: bool = False
    bound: float | None = None
    from_heal: bool = False
    worker: bool = False  # of a worker instead of a gateway
    spell: float = 2.0
    must: str = ""


def other(lab: Lab, name: str) -> Cluster:
    """Return the cluster that a Node does not belong to."""
    mine = lab.topology.node(name)[0].name
    return next(cluster for cluster in lab.topology.clusters if cluster.name != mine)


def drain(lab: Lab, name: str) -> Fault:
    """Ask a gateway to hand over, and take it back."""
    cluster = lab.topology.node(name)[0].name

    def annotate(value: str | None) -> None:
        lab.api(cluster).patch("Node", name, {"metadata": {"annotations": {DRAIN: value}}})

    return Fault(name="drained", inject=lambda: annotate("true"), heal=lambda: annotate(None))


def upgrade(lab: Lab, name: str) -> Fault:
    """A gateway's agent makes place for another."""
    return Fault(name="agent upgraded", inject=lambda: faults.upgrade_agent(lab, name), heal=lambda: None)


def api_and_link(lab: Lab, name: str) -> Fault:
    """A gateway's link is cut while the API server of its cluster is gone."""
    cluster = lab.topology.node(name)[0]
    api, link = faults.api_gone(lab, cluster), faults.link_cut(lab, name)

    def heal() -> None:
        link.heal()
        api.heal()

    def inject() -> None:
        if lab.state.process(f"api-{cluster.name}") is not None:
            api.inject()
        link.inject()

    return Fault(name="link cut, API server gone", inject=inject, heal=heal)


def all_gateways(lab: Lab, name: str) -> Fault:
    """The links of all gateways of a cluster are cut; the fault ends with the return of one."""
    names = [one.name for one in lab.topology.node(name)[0].gateways]
    every, first = faults.link_cut(lab, *names), faults.link_cut(lab, name)
    return Fault(name="all gateways gone, one returns", inject=every.inject, heal=first.heal)


def worker_restarted(lab: Lab, name: str) -> Fault:
    """A worker's ovs-vswitchd is killed and started again at once."""
    fault = faults.vswitchd_killed(lab, name)
    return Fault(name="worker's vswitchd restarted", inject=fault.inject, heal=fault.heal)


ROWS: Mapping[str, Row] = {
    row.name: row
    for row in (
        Row(name="link cut", make=faults.link_cut),
        Row(name="vswitchd killed", make=faults.vswitchd_killed),
        Row(name="Node gone", make=faults.node_gone),
        Row(
            name="one remote gateway lost",
            make=lambda lab, name: faults.loses(lab, name, other(lab, name).gateways[0].name),
        ),
        Row(
            name="remote cluster lost",
            make=lambda lab, name: faults.loses_cluster(lab, name, other(lab, name)),
        ),
        Row(name="what it sends lost", make=lambda lab, name: faults.one_way(lab, name, outgoing=True)),
        Row(name="what is sent to it lost", make=lambda lab, name: faults.one_way(lab, name, outgoing=False)),
        Row(name="30 % loss", make=faults.lossy, spell=4.0, must="leaves it"),
        Row(name="link cut, API server gone", make=api_and_link),
        Row(name="drained", make=drain, lossless=True),
        Row(name="agent killed", make=faults.agent_killed, lossless=True),
        Row(name="agent upgraded", make=upgrade, lossless=True),
        Row(
            name="worker's vswitchd restarted",
            make=worker_restarted,
            worker=True,
            from_heal=True,
            bound=2.0,
            spell=0.5,
        ),
        Row(name="all gateways gone, one returns", make=all_gateways, from_heal=True, bound=2.0, spell=1.0),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One fault once: on which Node, what became of the load during it, and at its end."""

    row: str
    node: str
    side: str  # "client" or "serving": of the connections
    during: Report
    after: Report
    healed: float  # seconds from the end of the fault until an answer came on every connection


def pause(seconds: float) -> None:
    """Let a time pass that is part of what is tried."""
    moment = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= moment, "a moment", timeout=seconds + 5)


def target(lab: Lab, row: Row, number: int) -> str:
    """Return the Node of a round: all of both clusters in turn, the clusters alternating."""
    cluster = lab.topology.clusters[number % 2]
    nodes = cluster.workers[:1] if row.worker else cluster.gateways
    return nodes[number // 2 % len(nodes)].name


def play(lab: Lab, load: Load, settled: Settled, row: Row, number: int) -> Round:
    """Make the fault, let it last, end it, and wait until everything is as it was."""
    name = target(lab, row, number)
    side = "client" if lab.topology.node(name)[0] is lab.topology.clusters[0] else "serving"
    settled.wait()
    # TCP tries ever more seldom what did not work before: nothing of an earlier round is left.
    wait_until(lambda: _answers(load), "an answer on every connection", timeout=90)
    pause(0.5)
    fault = row.make(lab, name)
    begin = time.monotonic()
    try:
        fault.inject()
        pause(row.spell)
        until = time.monotonic()
        pause(ON_THE_WAY)
        during = load.report(begin, until)
    finally:
        end = time.monotonic()
        fault.heal()
    back = time.monotonic() if row.from_heal else end
    if row.from_heal:
        wait_until(lambda: _answers(load), "an answer on every connection", timeout=30)
    healed = time.monotonic() - back
    if row.name.startswith("all gateways"):
        names = [one.name for one in lab.topology.node(name)[0].gateways]
        faults.link_cut(lab, *names).heal()
    settled.wait()
    until = time.monotonic()
    pause(ON_THE_WAY)
    after = load.report(end, until)
    return Round(row=row.name, node=name, side=side, during=during, after=after, healed=healed)


def _answers(load: Load) -> bool:
    """Whether every TCP connection has been answered within the last fifth of a second."""
    now = time.monotonic()
    found = load.report(now, now).streams
    return all(silence < 0.2 for name in ("pods", "service") for silence in found[name].silences)


def calm(load: Load, seconds: float = 2.0) -> Report:
    """Return what becomes of the load when nothing is done."""
    begin = time.monotonic()
    pause(seconds)
    until = time.monotonic()
    pause(ON_THE_WAY)
    return load.report(begin, until)


def carries(report: Report) -> bool:
    """Whether the machine carries the load: nothing lost, no long silence without a fault."""
    found = report.streams
    silent = max(one.longest for one in found.values() if one.kind is not Kind.HTTP)
    return not any(one.lost or one.broken for one in found.values()) and silent < 0.15


def tcp_silences(report: Report) -> list[float]:
    """Return the longest silence of each TCP connection."""
    return [silence for name in ("pods", "service") for silence in report.streams[name].silences]


def datagrams_lost(report: Report) -> int:
    """Return how many datagrams were not answered."""
    return sum(one.lost for one in report.streams.values())


def datagram_gap(report: Report) -> float:
    """Return the longest time without an answer between any two Pods."""
    return max(one.longest for one in report.streams.values() if one.kind is Kind.UDP)


def broken(report: Report) -> int:
    """Return how many TCP connections ended."""
    return sum(report.streams[name].broken for name in ("pods", "service"))


def random_pair(lab: Lab, chance: random.Random) -> tuple[Fault, Fault, str]:
    """Return two faults of two gateways at once, and words for them."""
    names = [row for row in ROWS if not ROWS[row].worker and not ROWS[row].from_heal]
    nodes = [one.name for cluster in lab.topology.clusters for one in cluster.gateways]
    first, second = chance.sample(nodes, 2)
    rows: Sequence[str] = [chance.choice(names), chance.choice(names)]
    words = f"{rows[0]} of {first} and {rows[1]} of {second}"
    return ROWS[rows[0]].make(lab, first), ROWS[rows[1]].make(lab, second), words
