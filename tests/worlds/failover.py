"""Failover tried and measured: the lab, the load on it, and every fault of the table. For tests and benchmark."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from devtools.lab import faults, story
from devtools.lab.faults import Fault, Settled
from devtools.lab.lab import Lab
from devtools.lab.topology import DIRECT_PORT, POD_PORT, Cluster, Cni, Pod, Topology, generate
from devtools.traffic import matrix
from devtools.traffic.load import Kind, Load, Report, Stream
from devtools.waiting import wait_until
from mcagent.model.config import DatapathChoice, TrafficEncryption
from tests.worlds import failover

DRAIN = "mcagent.io/drain"
PAIRS = 12  # of Pods that send datagrams to each other: by all gateways
ON_THE_WAY = 0.3  # seconds: an answer that takes longer is not waited for
REQUEST_INTERVAL = 0.05  # seconds
PASSED = 0.5  # seconds since its last datagram for which a pair of Pods counts as connected
MEASURED = 8  # messages after which a connection's round-trip time is what it was
FRESH = 0.2  # seconds since its last answer for which a connection counts as answered


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
        Intervals(name="200x3", local=100, remote=200, bound=1.2),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """How much is sent: datagrams a second each way, TCP connections, seconds between their messages.

    `to_service`: so many of the connections are to a Service, the others to Pods; None: half of them.
    """

    datagrams: float = 1000.0
    connections: int = 200
    interval: float = 0.02
    to_service: int | None = None

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
    cni: Cni = Cni.FLANNEL,
    encryption: TrafficEncryption = TrafficEncryption.NONE,
    same_cidrs: bool = False,
    adapt: bool = False,
    name: str = "failover",
) -> Topology:
    """Return two clusters whose Pods are on workers only: with a gateway no endpoint goes.

    With `same_cidrs` they have the same Pod and Service CIDRs, and the lab needs its control plane.
    `adapt`: BFD adapts to the path, as by default outside labs.
    """
    plain = generate(
        name=name,
        gateways=gateways,
        workers=workers,
        pods=2,
        cni=cni,
        datapath=datapath,
        encryption=encryption,
        same_cidrs=same_cidrs,
    )
    config = {
        "bfd": {
            "local": {"interval": f"{intervals.local}ms", "multiplier": 3},
            "remote": {"interval": f"{intervals.remote}ms", "multiplier": 3, "adapt": adapt},
        },
        # Damping, too, is tried many times over: rounds are no flapping.
        "damping": {"initial": "200ms", "max": "1s"},
    }

    def only_workers(cluster: Cluster) -> Cluster:
        nodes = tuple(replace(node, pods=()) if node.gateway else node for node in cluster.nodes)
        pods = tuple(pod.name for node in nodes for pod in node.pods)
        services = (replace(cluster.services[0], pods=pods),)
        return replace(cluster, nodes=nodes, services=services, config={**cluster.config, **config})

    return replace(plain, clusters=tuple(only_workers(cluster) for cluster in plain.clusters))


def await_handshakes(lab: Lab) -> None:
    """Wait until gateways have shaken hands with all those of the other cluster, where that is encrypted."""
    if lab.topology.encryption is TrafficEncryption.NONE:
        return
    names = [gateway.name for cluster in lab.topology.clusters for gateway in cluster.gateways]
    pairs = [(name, len(other(lab, name).gateways)) for name in names]

    def shaken(name: str, count: int) -> bool:
        encryption = lab.status(name)["encryption"]
        assert isinstance(encryption, dict)
        return [peer["state"] for peer in encryption["peers"]] == ["established"] * count

    wait_until(lambda: all(shaken(*pair) for pair in pairs), "handshakes", timeout=60, interval=0.2)


def streams(lab: Lab, volume: Volume) -> list[Stream]:
    """Return the load: datagrams both ways, connections to Pods and to a Service, requests to the Service.

    Datagrams go between many pairs of Pods: a gateway is chosen by addresses and, with TCP, ports. All addresses
    are those that other clusters use: with identical CIDRs the virtual ones.
    """
    east, west = lab.topology.clusters
    prefixes, exported = story.pod_prefixes(lab), story.export_addresses(lab)

    def remote_address(pod: Pod) -> str:
        return str(matrix.remote_address(lab.topology.pod(pod.name)[0], pod, prefixes))

    near_pods = [pod for worker in east.workers for pod in worker.pods]
    far_pods = [pod for worker in west.workers for pod in worker.pods]
    pairs = [(near_pods[n % len(near_pods)], far_pods[n // len(near_pods) % len(far_pods)]) for n in range(PAIRS)]
    datagrams = [
        Stream(
            kind=Kind.UDP,
            name=f"udp {number} from {source.name} to {to.name}",
            namespace=lab.namespace(source),
            address=remote_address(to),
            port=POD_PORT,
            interval=PAIRS / volume.datagrams,
        )
        for number, (pod, other_pod) in enumerate(pairs)
        for source, to in ((pod, other_pod), (other_pod, pod))
    ]
    to_service = volume.connections - volume.connections // 2 if volume.to_service is None else volume.to_service
    pods = Stream(
        kind=Kind.TCP,
        name="pods",
        namespace=lab.namespace(near_pods[0]),
        address=remote_address(far_pods[0]),
        port=DIRECT_PORT,
        count=volume.connections - to_service,
        interval=volume.interval,
    )
    web = west.services[0]
    service = str(exported.get((west.name, web.name), web.cluster_ip))
    services = replace(pods, name="service", address=service, port=80, count=to_service)
    requests = replace(services, kind=Kind.HTTP, name="requests", count=1, interval=REQUEST_INTERVAL)
    return [*datagrams, pods, services, requests]


class Whose(StrEnum):
    """What a fault befalls."""

    GATEWAY = "gateway"
    WORKER = "worker"
    PAIR = "pair"  # two gateways, drawn at random


class Counted(StrEnum):
    """What is held against the bound."""

    SILENCE = "silence"  # the longest of each connection
    HEAL = "heal"  # from the end of the fault until every connection is answered
    WAY = "way"  # from the end of the fault until datagrams pass between all Pods again
    FAULT = "fault"  # from the beginning of the fault until every connection is answered


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of the table: a fault of the Node whose name is given, how long it lasts, and what must come of it.

    `lossless`: no packet may be lost, neither at the beginning nor at the end. `bound`: seconds; None: that of the
    intervals. `must`: words in place of a time, where none is set. `rounds`: in a full run.
    """

    name: str
    make: Callable[[Lab, str], Fault]
    lossless: bool = False
    bound: float | None = None
    counted: Counted = Counted.SILENCE
    whose: Whose = Whose.GATEWAY
    spell: float = 2.0
    must: str = ""
    rounds: int = 30


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

    def runs() -> bool:  # of two faults at once both may be this one
        process = lab.state.process(f"api-{cluster.name}")
        return process is not None and process.alive

    def heal() -> None:
        link.heal()
        if not runs():
            api.heal()

    def inject() -> None:
        if runs():
            api.inject()
        link.inject()

    return Fault(name="link cut, API server gone", inject=inject, heal=heal)


def all_gateways(lab: Lab, name: str) -> Fault:
    """The links of all gateways of a cluster are cut; the fault ends with the return of one."""
    names = [gateway.name for gateway in lab.topology.node(name)[0].gateways]
    cut, first = faults.link_cut(lab, *names), faults.link_cut(lab, name)
    return Fault(name="all gateways gone, one returns", inject=cut.inject, heal=first.heal)


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
            whose=Whose.WORKER,
            counted=Counted.HEAL,
            bound=2.0,
            spell=0.5,
        ),
        Row(
            name="all gateways gone, one returns",
            make=all_gateways,
            counted=Counted.WAY,  # TCP tries next 3.0 s after the loss, whenever the way is there
            bound=2.0,
            spell=1.0,
        ),
        Row(
            name="two faults at once",
            make=lambda lab, name: two_faults(lab, name),  # noqa: PLW0108 - it is below, and uses this table
            whose=Whose.PAIR,
            counted=Counted.FAULT,
            bound=5.0,
            spell=6.0,
            rounds=50,
        ),
    )
}


def two_faults(lab: Lab, seed: str) -> Fault:
    """Two faults of two gateways at once, drawn by the seed. The name says which.

    A way is left: with fewer than three gateways one of each cluster is drawn. A link that loses some is not
    drawn: no state is the right one for it.
    """
    chance = random.Random(seed)
    names = [row.name for row in ROWS.values() if is_plain(row)]
    gateways = [[gateway.name for gateway in cluster.gateways] for cluster in lab.topology.clusters]
    if min(map(len, gateways)) < 3:
        nodes = [chance.choice(some) for some in gateways]
    else:
        nodes = chance.sample([name for some in gateways for name in some], 2)
    # A drain needs the API server: where that goes, it goes last and comes first.
    pairs = sorted(((chance.choice(names), node) for node in nodes), key=lambda pair: "API" in pair[0])
    faults_made = [ROWS[row].make(lab, node) for row, node in pairs]

    def inject() -> None:
        for fault in faults_made:
            fault.inject()

    def heal() -> None:
        for fault in reversed(faults_made):
            fault.heal()

    words = " and ".join(f"{row} of {node}" for row, node in pairs)
    return Fault(name=f"{words} (seed {seed})", inject=inject, heal=heal)


def is_plain(row: Row) -> bool:
    """Tell whether it befalls one gateway, and packets find another way meanwhile."""
    return row.whose is Whose.GATEWAY and row.counted is Counted.SILENCE and not row.must


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One fault once: on which Node, what became of the load during it, and at its end."""

    row: str
    node: str  # or what was drawn
    side: str  # "client" or "serving": of the connections; "" for a pair
    during: Report
    after: Report
    healed: float  # seconds until an answer came on every connection: see Counted


def pause(seconds: float) -> None:
    """Let a time pass that is part of what is tried."""
    moment = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= moment, "a moment", timeout=seconds + 5)


def target(lab: Lab, row: Row, number: int, seed: int = 0) -> str:
    """Return the Node of a round: all of both clusters in turn, the clusters alternating; of a pair, its seed."""
    if row.whose is Whose.PAIR:
        return f"{seed}-{number}"
    cluster = lab.topology.clusters[number % 2]
    nodes = cluster.workers[:1] if row.whose is Whose.WORKER else cluster.gateways
    return nodes[number // 2 % len(nodes)].name


def play(
    lab: Lab,
    load: Load,
    settled: Settled,
    row: Row,
    number: int,
    *,
    seed: int = 0,
    look: Callable[[Report], object] = lambda _: None,
    watch: Callable[[Report], object] = lambda _: None,
) -> Round:
    """Make the fault, let it last, end it, and wait until everything is as it was.

    `look` is given what became of the load, while the fault still lasts; its own time does not count. After the
    fault, `watch` is given what is silent at the moment, again and again.
    """
    name = target(lab, row, number, seed)
    settled.wait()
    # TCP tries ever more seldom what did not work before: nothing of an earlier round is left.
    wait_until(lambda: _answers(load), "an answer on every connection", timeout=90)
    # Nor is what TCP measured in it: where requests arrived and only answers were lost, it takes the time until
    # the first answer for the round-trip time, and its next retransmission waits several times as long (RFC 6298).
    pause(max(0.5, MEASURED * _message_interval(load)))
    fault = row.make(lab, name)
    side = ""
    if row.whose is Whose.PAIR:
        name = fault.name
    else:
        side = "client" if lab.topology.node(name)[0] is lab.topology.clusters[0] else "serving"
    healed = 0.0
    begin = time.monotonic()
    load.forget(begin)
    try:
        fault.inject()
        if row.counted is Counted.FAULT:
            healed = _until_answered(load, name)
        pause(max(0.0, begin + row.spell - time.monotonic()))
        until = time.monotonic()
        pause(ON_THE_WAY)
        during = load.report(begin, until)
        look(during)
    finally:
        end = time.monotonic()
        fault.heal()
    if row.counted is Counted.HEAL:
        healed = _until_answered(load, name)
    elif row.counted is Counted.WAY:
        wait_until(lambda: _passes(load), f"datagrams between all Pods after {name}", timeout=30, interval=0.02)
        healed = time.monotonic() - end
    if row.name.startswith("all gateways"):
        names = [gateway.name for gateway in lab.topology.node(name)[0].gateways]
        faults.link_cut(lab, *names).heal()
    settled.wait(watch=lambda: watch(_now(load)))
    until = time.monotonic()
    pause(ON_THE_WAY)
    after = load.report(end, until)
    return Round(row=row.name, node=name, side=side, during=during, after=after, healed=healed)


def _until_answered(load: Load, condition: str) -> float:
    """Return how many seconds passed until every connection was answered."""
    begin = time.monotonic()
    # What was answered a moment before the fault does not count.
    pause(FRESH + _message_interval(load))
    wait_until(lambda: _answers(load), f"an answer on every connection after {condition}", timeout=30)
    return time.monotonic() - begin


def _now(load: Load) -> Report:
    """Return what is silent at this moment, and for how long."""
    now = time.monotonic()
    return load.report(now, now)


def _answers(load: Load) -> bool:
    """Whether every TCP connection has been answered within the last moment, or since its last message."""
    return max(tcp_silences(_now(load))) < FRESH + _message_interval(load)


def _message_interval(load: Load) -> float:
    """Return the seconds between two messages of a TCP connection."""
    return max(load.streams[name].interval for name in ("pods", "service"))


def _passes(load: Load) -> bool:
    """Whether between each two Pods a datagram has been answered within the last while."""
    outcomes = _now(load).streams.values()
    return all(silence < PASSED for stream in outcomes if stream.kind is Kind.UDP for silence in stream.silences)


def calm(load: Load, seconds: float = 2.0) -> Report:
    """Return what becomes of the load when nothing is done."""
    begin = time.monotonic()
    pause(seconds)
    until = time.monotonic()
    pause(ON_THE_WAY)
    return load.report(begin, until)


def overload(report: Report, interval: float) -> str:
    """Return why the machine does not carry the load, or nothing: packets lost, or a long silence without a fault.

    `interval`: seconds between two messages of a connection. An answer may be 0.13 s late.
    """
    lost_count = sum(stream.lost for stream in report.streams.values())
    broken = sum(stream.broken for stream in report.streams.values())
    silence = max(stream.longest for stream in report.streams.values() if stream.kind is not Kind.HTTP)
    if lost_count or broken or silence >= interval + 0.13:
        return f"{lost_count} lost, {broken} broken, silent for {silence:.2f} s"
    return ""


def tcp_silences(report: Report) -> list[float]:
    """Return the longest silence of each TCP connection."""
    return [silence for name in ("pods", "service") for silence in report.streams[name].silences]


def datagrams_lost(report: Report) -> int:
    """Return how many datagrams were not answered."""
    return report.lost


def datagram_gap(report: Report) -> float:
    """Return the longest time without an answer between any two Pods."""
    return max(stream.longest for stream in report.streams.values() if stream.kind is Kind.UDP)


def broken(report: Report) -> int:
    """Return how many TCP connections ended."""
    return sum(report.streams[name].broken for name in ("pods", "service"))


def words(report: Report) -> str:
    """Return what became of the load, for people."""
    lines = [
        f"{stream.name}: sent {stream.sent}, lost {stream.lost}, broken {stream.broken} {stream.reasons}, "
        f"{stream.longest:.2f} s"
        for stream in report.streams.values()
    ]
    return "\n".join([f"the sending process was late by {report.stall:.2f} s at most", *lines])


STALLED = 0.1  # seconds: a machine that stops for so long loses datagrams by itself


def lost(report: Report) -> int:
    """Return how many datagrams were lost, by a machine that was there all the time."""
    return failover.datagrams_lost(report) if report.stall < STALLED else 0
