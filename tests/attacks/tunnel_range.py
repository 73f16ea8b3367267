"""Labs in which tunnels are attacked, and what is looked at meanwhile: Pods, and the wire of a Node."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv6Address

import pytest

from devtools.lab.lab import Lab
from devtools.lab.topology import POD_PORT, Node, Pod, Underlay, generate
from devtools.nodes import netns, underlay
from devtools.nodes import node as node_module
from devtools.traffic import traffic
from devtools.traffic.capture import Capture
from devtools.waiting import wait_until
from mcagent.model.config import NodeTrafficEncryption, TrafficEncryption
from mcagent.model.dataplane.facts import DatapathType
from mcagent.model.dataplane.resources import TunnelType
from mcagent.model.net import Address
from tests.attacks import tunnel_packets as packets
from tests.attacks.tunnel_packets import GENEVE, VXLAN
from tests.worlds.labs import MakeLab

Send = Callable[[bytes], None]

ETH_P_ALL = 3  # linux/if_ether.h: a bridge takes the packets of its ports before others see them (packet(7))
TRIES = 3  # of each attack: one packet could be lost on a busy machine, and look like one that was stopped


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an attack's packets: how many reached a Pod (or a stand-in), how many left the Node."""

    arrived: int
    left: int


NOTHING = Outcome(0, 0)


class Range:
    """A lab with two clusters, and what is looked at while an attack is tried."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.east, self.west = lab.topology.clusters
        self.gateway, self.worker = self.east.gateways[0], self.east.workers[0]
        self.far_gateway, self.far_worker = self.west.gateways[0], self.west.workers[0]
        self.is_vxlan = lab.topology.tunnel is TunnelType.VXLAN

    def pod(self, node: Node) -> str:
        """Namespace of a Node's Pod."""
        return self.lab.namespace(node.pods[0])

    def attempt(
        self, node: Node, send: Callable[[bytes], None], *, count: Callable[[bytes], int] = lambda _: 0
    ) -> Outcome:
        """Let `send` attack with a token in its packets, from `node` or through it. `count`: more arrivals of it.

        An honest packet follows each: it has been answered, so what was sent before it has gone its way.
        """
        arrived = left = 0
        with contextlib.ExitStack() as stack:
            pods = [
                stack.enter_context(Capture(self.lab.namespace(pod))) for _, _, pod in self.lab.topology.pods()
            ]
            wire = stack.enter_context(Capture(*self.port(node), ethertype=ETH_P_ALL))
            for _ in range(TRIES):
                token = os.urandom(16)
                send(token)
                self.honest(node)
                arrived += sum(capture.count(token) for capture in pods) + count(token)
                left += sum(token in frame for frame in wire.frames())
        return Outcome(arrived, left)

    def honest(self, node: Node) -> None:
        """Reach the other cluster from a Node's Pod, as everybody may."""
        traffic.udp(self.pod(node), self.west.services[0].cluster_ip, 80, b"honest")

    def port(self, node: Node) -> tuple[str, str]:
        """Return the namespace and the name of the device by which the underlay reaches a Node."""
        for number, cluster in enumerate(self.lab.topology.clusters, start=1):
            if node in cluster.nodes:
                return self.lab.underlay, underlay.port(number, cluster.nodes.index(node) + 1)
        raise AssertionError(node.name)

    def dropped(self, node: Node, reason: str) -> int:
        """Return how many packets the agent of a Node says that nft dropped."""
        drops = self.lab.status(node.name)["nftDrops"]
        assert isinstance(drops, dict)
        return int(drops.get(reason, 0))

    def flaps(self, node: Node) -> int:
        """Return how often the sessions of a gateway with other clusters, when all are up, changed their state."""
        tunnels = self.lab.status(node.name)["tunnels"]
        assert isinstance(tunnels, list)
        names = [tunnel["name"] for tunnel in tunnels if tunnel["peerKind"] == "remote"]
        vsctl = self.lab.ovs(node.name).vsctl

        def up() -> bool:
            return all(
                "remote_state=up, state=up" in vsctl("get", "Interface", name, "bfd_status") for name in names
            )

        wait_until(up, f"the BFD sessions of {node.name} with other clusters")
        counts = [vsctl("get", "Interface", name, "bfd_status:flap_count") for name in names]
        return sum(int(count.strip().strip('"')) for count in counts)

    @contextlib.contextmanager
    def counting(self, node: Node, reason: str) -> Iterator[None]:
        """See that what is dropped meanwhile is counted under a reason."""
        before = self.dropped(node, reason)
        yield
        assert self.dropped(node, reason) >= before + TRIES

    @contextlib.contextmanager
    def loose(self, node: Node) -> Iterator[None]:
        """Have no reverse path filtering on a Node: many have none, and for IPv6 the kernel has none."""
        namespace = self.lab.namespace(node)
        devices = [one["ifname"] for one in netns_links(namespace)]
        old = {f"net/ipv4/conf/{name}/rp_filter": "1" for name in ("all", *devices)}
        underlay.set_sysctl(namespace, dict.fromkeys(old, "0"))
        try:
            yield
        finally:
            underlay.set_sysctl(namespace, old)

    @contextlib.contextmanager
    def listener(self, node: Node, port: int) -> Iterator[Callable[[bytes], int]]:
        """Count what reaches a Node's own tunnel port, where no tunnel of the kernel listens (netdev datapath)."""
        if not self.lab.userspace:
            yield lambda _: 0  # the tunnel is there, and what it takes arrives at Pods
            return

        def listen() -> socket.socket:
            sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            sock.bind(("::", port))
            sock.setblocking(False)
            return sock

        def count(token: bytes) -> int:
            found = 0
            with contextlib.suppress(BlockingIOError):
                while True:
                    found += token in sock.recv(65536)
            return found

        with netns.call(self.lab.namespace(node), listen) as sock:
            yield count

    def forging(self, sender: Node, to: Address, source: Node, victim: Node, *, port: int = 0) -> Send:
        """Return an attack: a Pod of `sender` sends tunnel packets for `victim` in the name of a Pod of `source`.

        `port`: 0 is the tunnels' own.
        """
        kind, default = (packets.vxlan, VXLAN) if self.is_vxlan else (packets.geneve, GENEVE)

        def send(token: bytes) -> None:
            payload = kind(self.datagram(source.pods[0].address, victim.pods[0], token))
            packets.send(self.pod(sender), to, port or default, payload)

        return send

    def datagram(self, source: IPv4Address, pod: Pod, token: bytes) -> bytes:
        """Return the inside of a tunnel packet: a datagram from a Pod that is somebody else."""
        return packets.inner(source, pod.address, POD_PORT, token)


def netns_links(namespace: str) -> list[dict[str, str]]:
    """Return the devices of a namespace whose sysctls can be set."""
    lines = netns.ip(namespace, "-br", "link").splitlines()
    return [{"ifname": line.split()[0].split("@")[0]} for line in lines]


@pytest.fixture(scope="module")
def plain(make_lab: MakeLab) -> Iterator[Range]:
    """Two clusters of one gateway and one worker, Geneve over IPv4, a CNI that masquerades."""
    with make_lab(generate(), liveness=False) as lab:
        yield Range(lab)


@pytest.fixture(scope="module")
def six(make_lab: MakeLab) -> Iterator[Range]:
    """The same with VXLAN over IPv6; the Pods of the first cluster have IPv6 addresses, too, masqueraded."""
    with make_lab(generate(tunnel=TunnelType.VXLAN, underlay=Underlay.IPV6), liveness=False) as lab:
        for number, node in enumerate(lab.topology.clusters[0].nodes, start=1):
            _give_ipv6(lab, node, number)
        yield Range(lab)


def _give_ipv6(lab: Lab, node: Node, number: int) -> None:
    """Make the first Pod of a Node dual-stack, as a CNI with IPv6 masquerade does."""
    pod, device = node.pods[0], node_module.pod_device(node, node.pods[0])
    own_address, neighbour, prefix = f"fd00:10:{number}::1", f"fd00:10:{number}::2", f"fd00:10:{number}::/64"
    underlay.set_sysctl(lab.namespace(node), {"net/ipv6/conf/all/forwarding": "1"})
    underlay.set_sysctl(lab.namespace(pod), {f"net/ipv6/conf/{n}/disable_ipv6": "0" for n in ("all", "eth0")})
    netns.ip(lab.namespace(node), "address", "add", f"{own_address}/64", "dev", device, "nodad")
    netns.ip(lab.namespace(pod), "address", "add", f"{neighbour}/64", "dev", "eth0", "nodad")
    netns.ip(lab.namespace(pod), "route", "add", "default", "via", own_address, "dev", "eth0")
    rule = f"ip6 saddr {prefix} ip6 daddr != {prefix} masquerade"
    table = f"table ip6 cni {{ chain post {{ type nat hook postrouting priority 100; {rule}; }}\n}}"
    netns.execute(lab.namespace(node), ["nft", "-f", "-"], stdin=table)


@pytest.fixture(scope="module")
def encrypted(make_lab: MakeLab, datapath: DatapathType) -> Iterator[Range]:
    """Two clusters with encryption between them."""
    if datapath is not DatapathType.SYSTEM:
        pytest.skip("tunnels of the userspace datapath cannot be encrypted: this runs in the kernel lane")
    shape = generate(encryption=TrafficEncryption.WIREGUARD)
    with make_lab(shape, liveness=False) as lab:
        wait_until(lambda: _encrypts(lab), "handshakes", timeout=60, interval=0.2)
        yield Range(lab)


@pytest.fixture(scope="module")
def encrypted_nodes(make_lab: MakeLab, datapath: DatapathType) -> Iterator[Range]:
    """The same with encryption between the Nodes of each cluster."""
    if datapath is not DatapathType.SYSTEM:
        pytest.skip("tunnels of the userspace datapath cannot be encrypted: this runs in the kernel lane")
    shape = generate(encryption=TrafficEncryption.WIREGUARD)
    config: dict[str, object] = {"nodeTrafficEncryption": str(NodeTrafficEncryption.REQUIRED)}
    shape = replace(shape, clusters=tuple(replace(cluster, config=config) for cluster in shape.clusters))
    with make_lab(shape, liveness=False) as lab:
        wait_until(lambda: _encrypts(lab, workers=True), "handshakes", timeout=60, interval=0.2)
        yield Range(lab)


def _encrypts(lab: Lab, *, workers: bool = False) -> bool:
    nodes = [node.name for cluster in lab.topology.clusters for node in cluster.nodes if node.gateway or workers]
    states = [lab.status(name)["encryption"] for name in nodes]
    return all(
        isinstance(state, dict)
        and state["peers"]
        and all(peer["state"] == "established" for peer in state["peers"])
        for state in states
    )


def v4(address: Address) -> IPv4Address:
    """Return the address of an IPv4 underlay."""
    assert isinstance(address, IPv4Address)
    return address


def v6(node: Node) -> IPv6Address:
    """Return the IPv6 address of a Node."""
    assert node.address6 is not None
    return node.address6
