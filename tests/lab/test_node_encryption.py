"""Encrypted between the Nodes of a cluster: everything works, and no tunnel packet is on the wire unencrypted."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from devtools.errors import LabError
from devtools.lab import faults
from devtools.lab.lab import Lab
from devtools.lab.topology import POD_PORT, Node, Topology, Underlay, generate
from devtools.nodes import netns, underlay
from devtools.traffic import matrix, traffic
from devtools.traffic.capture import ETH_P_IP, ETH_P_IPV6, ETHERNET_HEADER, Capture
from devtools.waiting import wait_until
from mcagent.model.config import NodeTrafficEncryption, TrafficEncryption
from mcagent.model.dataplane.facts import DatapathType
from mcagent.model.dataplane.resources import DEFAULT_PORTS, TunnelType

pytestmark = pytest.mark.datapath

WIREGUARD = 51821
UDP = 17  # IANA protocol number
ETH_P_ALL = 3  # linux/if_ether.h
BFD = {where: {"interval": "500ms"} for where in ("local", "remote")}
_SHAPES = [  # encapsulation, underlay
    (TunnelType.GENEVE, Underlay.IPV4),
    (TunnelType.VXLAN, Underlay.IPV6),
]


def shape(mode: NodeTrafficEncryption, tunnel: TunnelType, family: Underlay) -> Topology:
    """Return a cluster of two gateways and a worker, and one of a gateway, with WireGuard between the clusters."""
    shape = generate(gateways=2, tunnel=tunnel, underlay=family, encryption=TrafficEncryption.WIREGUARD)
    config: dict[str, object] = {"bfd": BFD, "nodeTrafficEncryption": str(mode)}
    east, west = (replace(cluster, config=config) for cluster in shape.clusters)
    nodes = west.gateways[:1]
    pods = tuple(pod.name for node in nodes for pod in node.pods)
    services = tuple(replace(service, pods=pods) for service in west.services)
    return replace(shape, clusters=(east, replace(west, nodes=nodes, services=services)))


@pytest.fixture(scope="module", params=_SHAPES, ids=lambda one: "-".join(map(str, one)))
def lab(request: pytest.FixtureRequest, make_lab: Callable[..., Lab], datapath: DatapathType) -> Iterator[Lab]:
    """Clusters whose Nodes encrypt to each other."""
    if datapath is not DatapathType.SYSTEM:
        pytest.skip("tunnels of the userspace datapath cannot be encrypted: this runs in the kernel lane")
    with make_lab(shape(NodeTrafficEncryption.REQUIRED, *request.param)) as lab:
        settle(lab)
        yield lab


def settle(lab: Lab) -> None:
    """Return when every Node has a session with each of its peers, and BFD is up."""
    nodes = [node for _, node in lab.topology.nodes()]
    wait_until(lambda: all(established(lab, node) for node in nodes), "handshakes", timeout=60, interval=0.2)
    faults.Settled(lab)


def states(lab: Lab, node: Node) -> dict[str, str]:
    """Return the state of the encryption to each Node of the own cluster, by name."""
    encryption = lab.status(node.name)["encryption"]
    assert isinstance(encryption, dict)
    return {peer["node"]: peer["state"] for peer in encryption["peers"] if peer["node"]}


def established(lab: Lab, node: Node) -> bool:
    """Tell whether a Node has a session with all Nodes that it has tunnels to."""
    cluster, _ = lab.topology.node(node.name)
    peers = {shown_node.name for shown_node in cluster.nodes if node.gateway or shown_node.gateway} - {node.name}
    encryption_states = states(lab, node)
    return encryption_states.keys() == peers and all(
        state == "established" for state in encryption_states.values()
    )


class Wire:
    """What the Nodes of the first cluster send: tunnel packets and WireGuard packets, counted at their ports."""

    def __init__(self, lab: Lab) -> None:
        nodes, port = lab.topology.clusters[0].nodes, DEFAULT_PORTS[lab.topology.tunnel]
        self._tunnel = port
        # A bridge takes the packets of its ports before others but those of ETH_P_ALL see them (packet(7)).
        self._captures = [
            Capture(lab.underlay, underlay.port(1, number), ethertype=ETH_P_ALL)
            for number, _ in enumerate(nodes, start=1)
        ]
        self.tunnel = self.encrypted = self.longest = 0

    def look(self) -> None:
        """Count what has come."""
        for capture in self._captures:
            frames = capture.frames()
            for frame in frames:
                self._count(frame)
            frames.clear()

    def _count(self, frame: bytes) -> None:
        (ethertype,) = struct.unpack("!H", frame[12:ETHERNET_HEADER])
        packet = frame[ETHERNET_HEADER:]
        if ethertype not in (ETH_P_IP, ETH_P_IPV6):
            return
        protocol, header = (packet[9], 4 * (packet[0] & 15)) if ethertype == ETH_P_IP else (packet[6], 40)
        if protocol != UDP:
            return
        (port,) = struct.unpack("!H", packet[header + 2 : header + 4])
        self.tunnel += port == self._tunnel
        if port == WIREGUARD:
            self.encrypted += 1
            self.longest = max(self.longest, len(packet))

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.look()
        for capture in self._captures:
            capture.__exit__(None, None, None)


@pytest.fixture
def wire(lab: Lab) -> Iterator[Wire]:
    """Watch the wire during a test: at its end no tunnel packet has been on it, and WireGuard packets have."""
    with Wire(lab) as watching:
        yield watching
    assert watching.tunnel == 0
    assert watching.encrypted > 0


def test_every_way_of_the_matrix(lab: Lab, wire: Wire) -> None:
    """Pods and exported Services are reached, one copy each, with the right source; nothing else is."""
    results = [matrix.run(lab, case) for case in matrix.cases(lab.topology)]
    assert [f"{r.case.source.name} -> {r.case.target}: {r.problem}" for r in results if not r.ok] == []


def test_the_largest_packet_of_a_worker_fills_the_wire(lab: Lab, wire: Wire) -> None:
    """What the host port takes fits between worker and gateway, too; one byte more is refused."""
    east, west = lab.topology.clusters
    source = lab.namespace(east.workers[0].pods[0])
    mtu = 1500 - (60 if east.subnet6 is None else 80) - 50

    def ping(size: int) -> int:
        """Send echo requests until two are answered or refused."""
        argv = ["ping", "-n", "-q", "-c", "2", "-i", "0.2", "-w", "15", "-M", "do", "-s", str(size - 28)]
        return netns.execute(source, [*argv, str(west.gateways[0].pods[0].address)], check=False).returncode

    assert ping(mtu) == 0
    wire.look()
    assert wire.longest == 1500
    assert ping(mtu + 1) != 0


def test_without_its_device_a_worker_sends_nothing(lab: Lab, wire: Wire) -> None:
    """With its agent killed and its device gone, packets stay on the Node until both are back."""
    east, west = lab.topology.clusters
    worker = east.workers[0]
    pod, target = lab.namespace(worker.pods[0]), west.gateways[0].pods[0].address
    traffic.udp(pod, target, POD_PORT, b"before")
    lab.stop_agent(worker.name, kill=True)
    device = next(
        line.split()[0].split("@")[0]
        for line in netns.ip(lab.namespace(worker), "-br", "link").splitlines()
        if line.startswith("mc-wg")
    )
    netns.ip(lab.namespace(worker), "link", "delete", device)
    for _ in range(10):
        with pytest.raises(LabError):
            traffic.udp(pod, target, POD_PORT, b"nobody", timeout=0.1)
    lab.start_agent(worker.name)
    lab.wait_ready(worker.name)
    settle(lab)
    wait_until(lambda: answers(lab, worker, west.gateways[0]), "answers", timeout=30)


def answers(lab: Lab, client: Node, server: Node) -> bool:
    """Tell whether a Pod of a Node answers one of another."""
    try:
        traffic.udp(lab.namespace(client.pods[0]), server.pods[0].address, POD_PORT, b"again", timeout=0.5)
    except LabError:
        return False
    return True


def test_a_worker_changes_its_key(lab: Lab, wire: Wire) -> None:
    """`mcagent wireguard rotate` on a worker: its gateways have the announced key, and follow."""
    east, west = lab.topology.clusters
    worker = east.workers[0]
    before = lab.status(worker.name)["encryption"]
    flags = lab.agent_flags(worker.name)
    rotate = lab.agent_command("wireguard", *flags, "rotate", "--settle", "2", "--timeout", "60")
    netns.execute(lab.namespace(worker), rotate, timeout=150.0)
    after = lab.status(worker.name)["encryption"]
    assert isinstance(before, dict)
    assert isinstance(after, dict)
    assert before["publicKey"] != after["publicKey"]
    settle(lab)
    assert answers(lab, worker, west.gateways[0])


def test_the_agents_find_nothing_left_to_do(lab: Lab) -> None:
    """Every dataplane equals the desired state, without problems, and `show` lists the Nodes."""
    for cluster, node in lab.topology.nodes():
        lab.wait_ready(node.name)
        lab.mcagent(node.name, "plan", "--exit-code")
        assert lab.status(node.name)["problems"] == []
        shown = lab.mcagent(node.name, "wireguard", "show")
        assert "Likely causes" not in shown
        assert all(f"Node {gateway.name}" in shown for gateway in cluster.gateways if gateway.name != node.name)


def test_changing_over_a_running_cluster(make_lab: Callable[..., Lab], datapath: DatapathType) -> None:
    """From none by `preferred` to `required`, one agent after the other, and back: Pods stay reachable."""
    if datapath is not DatapathType.SYSTEM:
        pytest.skip("tunnels of the userspace datapath cannot be encrypted: this runs in the kernel lane")
    no_encryption, preferred, required = NodeTrafficEncryption
    with make_lab(shape(no_encryption, TunnelType.GENEVE, Underlay.IPV4)) as lab:
        faults.Settled(lab)
        east, west = lab.topology.clusters
        for mode in (preferred, required, preferred, no_encryption):
            for node in east.nodes:
                restart(lab, node, mode)
                wait_until(lambda: answers(lab, east.workers[0], west.gateways[0]), "answers", timeout=30)
            if mode is not no_encryption:
                wait_until(
                    lambda: all(established(lab, node) for node in east.nodes),
                    "sessions",
                    timeout=60,
                    interval=0.2,
                )
            faults.Settled(lab)
            with Wire(lab) as watching:
                assert answers(lab, east.workers[0], west.gateways[0])
            assert (watching.tunnel == 0) is (mode is not no_encryption)
        lab.mcagent(east.workers[0].name, "plan", "--exit-code")
        assert "mcagent.io/wireguard" not in str(lab.api(east.name).get("Node", east.workers[0].name))


def restart(lab: Lab, node: Node, mode: NodeTrafficEncryption) -> None:
    """Restart a Node's agent with another value of the key."""
    lab.stop_agent(node.name)
    lab.start_agent(node.name, {"nodeTrafficEncryption": str(mode)})
    lab.wait_ready(node.name)
