"""Encrypted between clusters: everything works as in the clear, and nothing but WireGuard is on the wire, ever."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest

from devtools.errors import LabError
from devtools.lab import faults
from devtools.lab.lab import Lab
from devtools.lab.objects import wireguard_device
from devtools.lab.topology import DIRECT_PORT, POD_PORT, Cluster, Cni, Node, Underlay, generate
from devtools.nodes import netns, underlay
from devtools.traffic import matrix, traffic
from devtools.traffic.capture import ETH_P_IP, ETH_P_IPV6, Capture
from devtools.traffic.load import Kind, Load, Outcome, Stream
from devtools.waiting import wait_until
from mcagent.model.config import TrafficEncryption
from mcagent.model.dataplane.facts import DatapathType
from mcagent.model.dataplane.resources import TunnelType
from tests.lab.encryption import PORT, ROAMED, Wire, encryption, established
from tests.lab.traces import nodes_of, trace
from tests.waiting import allowed

pytestmark = pytest.mark.datapath

_SHAPES = [  # CNI, encapsulation, WireGuard's implementation, gateways of each cluster, underlay, devices
    (Cni.FLANNEL, TunnelType.GENEVE, "auto", 1, Underlay.IPV6, 2),
    (Cni.AWS_VPC, TunnelType.VXLAN, "userspace", 1, Underlay.IPV6, 1),
    (Cni.AWS_VPC, TunnelType.VXLAN, "auto", 2, Underlay.IPV4, 2),
]


@pytest.fixture(scope="module", params=_SHAPES, ids=lambda shape: "-".join(map(str, shape)))
def lab(request: pytest.FixtureRequest, make_lab: Callable[..., Lab], datapath: DatapathType) -> Iterator[Lab]:
    """Two clusters of one or two gateways and a worker."""
    if datapath is not DatapathType.SYSTEM:
        pytest.skip("tunnels of the userspace datapath cannot be encrypted: this runs in the kernel lane")
    cni, tunnel, implementation, gateways, family, devices = request.param
    wireguard = TrafficEncryption.WIREGUARD
    shape = generate(cni=cni, tunnel=tunnel, gateways=gateways, encryption=wireguard, underlay=family)
    config: dict[str, object] = {"wireGuard": {"implementation": implementation, "devices": devices}}
    clusters = (_served_by_workers(cluster) for cluster in shape.clusters)
    shape = replace(shape, clusters=tuple(replace(cluster, config=config) for cluster in clusters))
    with make_lab(shape, liveness=gateways > 1) as lab:  # of one gateway there is nothing to change over to
        wait_until(
            lambda: all(established(lab, g.name) for c in shape.clusters for g in c.gateways),
            "handshakes",
            timeout=60,
            interval=0.2,
        )
        faults.Settled(lab)
        yield lab


def _served_by_workers(cluster: Cluster) -> Cluster:
    """Return it with endpoints on workers only: those on a gateway are lost with it, whoever else takes over."""
    pods = tuple(pod.name for node in cluster.workers for pod in node.pods)
    return replace(cluster, services=tuple(replace(service, pods=pods) for service in cluster.services))


@pytest.fixture
def wire(lab: Lab) -> Iterator[Wire]:
    """Watch the wire during a test: at its end nothing in the clear has been on it, and something encrypted."""
    with Wire(lab) as watching:
        yield watching
    assert watching.clear == []
    assert watching.encrypted > 0


@pytest.fixture
def load(lab: Lab) -> Iterator[Load]:
    """Streams both ways: UDP and TCP to Pods, and connections to the exported Service."""
    streams = []
    for source, target in (lab.topology.clusters, reversed(lab.topology.clusters)):
        namespace = lab.namespace(source.workers[0].pods[0])
        pod = str(target.workers[0].pods[0].address)
        service = str(target.services[0].cluster_ip)
        udp = Stream(kind=Kind.UDP, name=f"{source.name} udp", namespace=namespace, address=pod, port=POD_PORT)
        tcp = replace(udp, kind=Kind.TCP, name=f"{source.name} pod", port=DIRECT_PORT, count=4, interval=0.05)
        streams += [udp, tcp, replace(tcp, name=f"{source.name} service", address=service, port=80)]
    with Load(streams) as running:
        yield running


def lost(load: Load, since: float) -> dict[str, Outcome]:
    """Return the streams that lost or broke anything since then, by name."""
    time.sleep(0.5)  # what is under way is not lost
    report = load.report(since, time.monotonic() - 0.5)
    return {name: outcome for name, outcome in report.streams.items() if outcome.lost or outcome.broken}


def silence(load: Load, since: float) -> float:
    """Return the longest time without an answer since then, of any stream."""
    return max(stream.longest for stream in load.report(since).streams.values())


def test_every_way_of_the_matrix(lab: Lab, wire: Wire) -> None:
    """Pods and exported Services are reached, one copy each, with the right source; nothing else is."""
    results = [matrix.run(lab, case) for case in matrix.cases(lab.topology)]
    assert [f"{r.case.source.name} -> {r.case.target}: {r.problem}" for r in results if not r.ok] == []


def test_connections_of_nodes_themselves_are_answered(lab: Lab, wire: Wire) -> None:
    """Replies to translated sources pass the rules that keep other packets from the encrypted endpoints."""
    for source, target in (lab.topology.clusters, reversed(lab.topology.clusters)):
        for node in source.nodes:
            reply = traffic.tcp(lab.namespace(node), target.services[0].cluster_ip, 80)
            assert reply.pod in target.services[0].pods, node.name


def test_nothing_that_is_said_can_be_read(lab: Lab, wire: Wire) -> None:
    """A text that a Pod sends arrives, and is in no packet between the clusters."""
    east, west = lab.topology.clusters
    token = os.urandom(16)
    target = west.workers[0].pods[0]
    ethertype = ETH_P_IP if east.subnet6 is None else ETH_P_IPV6
    with (
        Capture(lab.underlay, underlay.bridge(1), ethertype=ethertype) as between,
        Capture(lab.namespace(target)) as arrived,
    ):
        traffic.udp(lab.namespace(east.gateways[0].pods[0]), target.address, POD_PORT, token)
        assert arrived.count(token) == 1
        assert between.frames()
        assert between.count(token) == 0


def test_the_largest_packet_fills_the_wire_and_is_not_cut(lab: Lab, wire: Wire) -> None:
    """What the host port takes is exactly what the underlay carries; one byte more is refused. Trace knows it."""
    east, west = lab.topology.clusters
    source = lab.namespace(east.workers[0].pods[0])
    mtu = 1500 - (60 if east.subnet6 is None else 80) - 50

    def ping(size: int) -> int:
        """Send echo requests until two are answered or refused."""
        argv = ["ping", "-n", "-q", "-c", "2", "-i", "0.2", "-w", "15", "-M", "do", "-s", str(size - 28)]
        return netns.execute(source, [*argv, str(west.workers[0].pods[0].address)], check=False).returncode

    assert ping(mtu) == 0
    wire.look()
    assert wire.longest == 1500
    assert ping(mtu + 1) != 0
    worker, far = east.workers[0], west.workers[0]
    walk, shown = trace(lab, worker.name, worker.pods[0].address, f"{far.pods[0].address}:{POD_PORT}", "--live")
    assert nodes_of(walk)[-1] == walk["live"]["last_seen"] == far.name, shown
    assert walk["live"]["answered"]
    assert True in [hop["encrypted"] for hop in walk["hops"]], shown
    assert {hop["walk"]["mtu"] for hop in walk["hops"]} == {mtu}


def test_probes_measure_the_encrypted_way(lab: Lab) -> None:
    """Each gateway's probes are answered through WireGuard, the largest ones as well."""

    def passing() -> bool:
        pages: list[Any] = [lab.status(g.name)["gateways"] for c in lab.topology.clusters for g in c.gateways]
        far = [
            tunnel["probes"]
            for page in pages
            for group in page
            if not group["own"]
            for tunnel in group["gateways"]
        ]
        return all(tunnel and tunnel["fullSizePasses"] and tunnel["lossRatio"] < 0.5 for tunnel in far)

    wait_until(passing, "answered probes of all sizes", timeout=60)


@pytest.mark.timing
def test_a_device_that_somebody_removes_comes_back(lab: Lab, wire: Wire, load: Load) -> None:
    """Without the device nothing leaves; the agent makes it again, with the same key, in seconds."""
    east = lab.topology.clusters[0]
    gateway = east.gateways[0]
    before = encryption(lab, gateway.name)["publicKey"]
    began = time.monotonic()
    netns.ip(lab.namespace(gateway), "link", "delete", _device_name(lab, gateway))
    wait_until(lambda: _device(lab, gateway), "the device", timeout=10)
    assert time.monotonic() - began < allowed(5)
    wait_until(lambda: established(lab, gateway.name), "sessions", timeout=40, interval=0.2)
    assert encryption(lab, gateway.name)["publicKey"] == before
    assert not any(outcome.broken for outcome in lost(load, began).values())
    faults.Settled(lab)


def _device(lab: Lab, node: Node) -> bool:
    return _device_name(lab, node) in netns.ip(lab.namespace(node), "-br", "link")


def _device_name(lab: Lab, node: Node) -> str:
    cluster, _ = lab.topology.node(node.name)
    return wireguard_device(lab.topology, cluster, node)


@pytest.fixture(params=["", "rules", "nft"])
def more(request: pytest.FixtureRequest, lab: Lab) -> str:
    """What goes besides the device. Rules and nft tables are the same with one gateway as with two."""
    case: str = request.param
    if case and len(lab.topology.clusters[0].gateways) > 1:
        pytest.skip("labs of one gateway say it")
    return case


def test_without_agent_and_device_nothing_leaves(lab: Lab, more: str, wire: Wire) -> None:
    """With agents killed, devices gone, and rules or the nft table too, packets stay in until all is back."""
    east, west = lab.topology.clusters
    pod, target = lab.namespace(east.workers[0].pods[0]), west.workers[0].pods[0].address
    traffic.udp(pod, target, POD_PORT, b"before")
    names = [gateway.name for gateway in east.gateways]
    for gateway in east.gateways:
        devices = encryption(lab, gateway.name)["devices"]
        lab.stop_agent(gateway.name, kill=True)
        for device in devices:
            netns.ip(lab.namespace(gateway), "link", "delete", device)
        if more == "rules":
            netns.ip(lab.namespace(gateway), "rule", "delete", "table", "28003")
        elif more == "nft":
            for family in ("ip",) if gateway.address6 is None else ("ip", "ip6"):
                netns.execute(lab.namespace(gateway), ["nft", "delete", "table", family, "mcagent"])
    for _ in range(10):
        with pytest.raises(LabError):
            traffic.udp(pod, target, POD_PORT, b"nobody", timeout=0.1)
    for name in names:
        lab.start_agent(name)
    lab.wait_ready(*names)
    wait_until(lambda: all(established(lab, name) for name in names), "sessions", timeout=40, interval=0.2)
    wait_until(lambda: _answers(pod, target), "answers", timeout=30)
    faults.Settled(lab)


def _answers(pod: str, target: IPv4Address) -> bool:
    try:
        traffic.udp(pod, target, POD_PORT, b"again", timeout=0.5)
    except LabError:
        return False
    return True


@pytest.mark.timing
def test_a_killed_agent_changes_nothing(lab: Lab, wire: Wire, load: Load) -> None:
    """SIGKILL of the agents on both sides and their return: not one packet is lost."""
    names = [cluster.gateways[0].name for cluster in lab.topology.clusters]
    began = time.monotonic()
    for name in names:
        lab.stop_agent(name, kill=True)
    for name in names:
        lab.start_agent(name)
    lab.wait_ready(*names)
    assert lost(load, began) == {}


@pytest.mark.timing
@pytest.mark.failover
def test_a_peer_that_restarts_is_back_at_once(lab: Lab, wire: Wire, load: Load) -> None:
    """The device (or the process of wireguard-go) dies on a gateway: the silence is short."""
    gateway = lab.topology.clusters[1].gateways[0]
    began = time.monotonic()
    pids = _processes(lab, gateway)
    for pid in pids:
        os.kill(pid, 9)
    if not pids:
        netns.ip(lab.namespace(gateway), "link", "delete", _device_name(lab, gateway))
    wait_until(lambda: not pids or set(_processes(lab, gateway)) - set(pids), "another process", timeout=10)
    wait_until(lambda: established(lab, gateway.name), "sessions", timeout=40, interval=0.2)
    assert silence(load, began) < allowed(1)
    faults.Settled(lab)


def _processes(lab: Lab, node: Node) -> list[int]:
    """Return the wireguard-go processes of a Node."""
    pids = netns.run(["ip", "netns", "pids", lab.namespace(node)]).stdout.split()
    processes = []
    for pid in pids:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().strip() == "wireguard-go":
                processes.append(int(pid))
    return processes


@pytest.mark.timing
@pytest.mark.failover
@pytest.mark.parametrize("sides", [(0,), (1,), (0, 1)], ids=["one", "other", "both"])
def test_rotation(lab: Lab, wire: Wire, load: Load, sides: tuple[int, ...]) -> None:
    """A new key on either side, or on both at once, under traffic.

    With two gateways not one packet is lost; one that is alone loses what it sends for a moment.
    """
    names = [lab.topology.clusters[side].gateways[0].name for side in sides]
    before = {name: encryption(lab, name)["publicKey"] for name in names}
    began = time.monotonic()
    rotate = ["rotate", "--settle", "4", "--timeout", "90"]
    threads = [
        threading.Thread(
            target=netns.execute,
            args=(lab.namespace(name), lab.agent_command("wireguard", *lab.agent_flags(name), *rotate)),
            kwargs={"timeout": 200.0},
        )
        for name in names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in names:
        assert encryption(lab, name)["publicKey"] != before[name]
    wait_until(
        lambda: all(established(lab, g.name) for c in lab.topology.clusters for g in c.gateways),
        "sessions",
        timeout=40,
        interval=0.2,
    )
    missing = lost(load, began)
    if len(lab.topology.clusters[0].gateways) > 1:
        assert missing == {}
    assert not any(outcome.broken for outcome in missing.values())
    assert silence(load, began) < allowed(1.0) * len(
        sides
    )  # on a busy machine; docs/encryption.md has measurements


@pytest.mark.timing
def test_a_peer_whose_address_changes_is_followed(lab: Lab, wire: Wire, load: Load) -> None:
    """Behind an address translation that changes its mind WireGuard follows, and the agent leaves it alone."""
    east, west = lab.topology.clusters
    gateway = east.gateways[0]
    address = gateway.tunnel_address
    ip, shown = ("ip", f"{address}") if address.version == 4 else ("ip6", f"[{address}]")
    rules = (  # without connection tracking: which side speaks first makes no difference
        f"add table {ip} roam; add chain {ip} roam c {{ type filter hook forward priority 0; }}; "
        f"add rule {ip} roam c {ip} saddr {address} udp sport {PORT} udp sport set {ROAMED}; "
        f"add rule {ip} roam c {ip} daddr {address} udp dport {ROAMED} udp dport set {PORT}"
    )
    corrections = lab.status(west.gateways[0].name)["driftCorrections"]
    netns.execute(lab.underlay, ["nft", rules])
    try:
        began = time.monotonic()
        wait_until(
            lambda: (
                f"{shown}:{ROAMED}" in [p["endpoint"] for p in encryption(lab, west.gateways[0].name)["peers"]]
            ),
            "the peer at its new endpoint",
            timeout=20,
            interval=0.2,
        )
        assert silence(load, began) < allowed(1)
        assert lab.status(west.gateways[0].name)["driftCorrections"] == corrections
    finally:
        netns.execute(lab.underlay, ["nft", f"delete table {ip} roam"])
    faults.Settled(lab)


@pytest.mark.timing
@pytest.mark.failover
def test_a_lost_gateway_is_left(lab: Lab, wire: Wire, load: Load) -> None:
    """A gateway without its cable: the other takes over within the time of the clear, no connection breaks."""
    if len(lab.topology.clusters[1].gateways) < 2:
        pytest.skip("only one gateway")
    gateway = lab.topology.clusters[1].gateways[0]
    settled = faults.Settled(lab)
    began = time.monotonic()
    fault = faults.link_cut(lab, gateway.name)
    fault.inject()
    try:
        time.sleep(3)  # the span that is judged
        report = load.report(began, began + 3)
        assert {n: stream.broken for n, stream in report.streams.items() if stream.broken} == {}
        assert {n: round(stream.longest, 2) for n, stream in report.streams.items() if stream.longest >= 2} == {}
    finally:
        fault.heal()
    settled.wait()


def test_the_agents_find_nothing_left_to_do(lab: Lab) -> None:
    """After all that every dataplane equals what should be, and nothing is wrong in the input."""
    for _, node in lab.topology.nodes():
        lab.wait_ready(node.name)
        lab.mcagent(node.name, "plan", "--exit-code")
        assert lab.status(node.name)["problems"] == []
    for cluster in lab.topology.clusters:
        for gateway in cluster.gateways:
            shown = lab.mcagent(gateway.name, "wireguard", "show")
            assert "established" in shown
            assert "Likely causes" not in shown
