"""Packets of one tunnel port spread over several WireGuard devices by their UDP source port.

Two Nodes with the kernel datapath, both ends made by the agent's backends, under a strict check of sources.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path

import pytest

from devtools.nodes import netns
from devtools.nodes.ovs import OvsInstance
from devtools.waiting import wait_until
from mcagent.dataplane.netlink.backend import NetlinkBackend
from mcagent.dataplane.ovsdb.backend import OvsdbBackend
from mcagent.model.dataplane.facts import DatapathType
from mcagent.model.dataplane.resources import Link, LinkAddress, Neighbour, Resource, Route, Rule, TunnelType
from mcagent.model.dataplane.wireguard import WireGuardImplementation
from mcagent.model.net import Address, host_network, parse_address
from tests.contract.inside import Inside, make
from tests.contract.ovs_values import BRIDGE, DATAPATH, HOST_PORT, tunnel
from tests.contract.wireguard_nodes import WireGuardNode, connect, missing, two_nodes

pytestmark = [pytest.mark.contract, pytest.mark.datapath]

TABLE, PRIORITY, PROTOCOL = 28003, 299, 111
MARK = 32
FLOWS, PACKETS = 150, 4  # of UDP, each answered by one packet
BUSIEST = 1.6  # times the mean
SOURCE_PORTS = {TunnelType.GENEVE: (1, 65534), TunnelType.VXLAN: (32768, 60999)}
ECHO = 9999  # UDP port
TUNNEL = 2  # OpenFlow port number


@pytest.fixture(scope="module", autouse=True)
def _needs_the_kernels() -> None:
    reason = missing(WireGuardImplementation.KERNEL)
    if not reason and DATAPATH is not DatapathType.SYSTEM:
        reason = "the kernel's datapath decides: see tests/kernel/lane.py"
    if reason:
        pytest.skip(reason)


@dataclass(frozen=True, kw_only=True)
class Gateway:
    """A Node whose bridge has one tunnel port, which leads to the other Node."""

    node: WireGuardNode
    ovs: OvsInstance
    ovsdb: OvsdbBackend
    netlink: Inside
    count: int  # of devices

    @property
    def pod(self) -> Address:
        """Address of what sends and receives, on the host port."""
        return parse_address(f"10.{self.node.number}.0.1")

    def connect(self, other: Gateway, kind: TunnelType, *, mark: int, dst_port: int = 0) -> None:
        """Make devices, peers, routes, rules and the tunnel."""
        indexes = range(self.count)
        peers = [other.node.peer_for(self.node, index) for index in indexes]
        make(self.node.backend, [*(self.node.value(index, loose_source_check=True) for index in indexes), *peers])
        to = tunnel(
            TUNNEL,
            type=kind,
            remote_ip=other.node.inner,
            local_ip=self.node.inner,
            egress_mark=mark,
            dst_port=dst_port,
        )
        make(self.ovsdb, [BRIDGE, HOST_PORT, to])
        self.ovs.ofctl(
            "add-flow", self.ovs.mgmt(BRIDGE.name), f"in_port=1,actions=set_field:7->tun_id,output:{TUNNEL}"
        )
        self.ovs.ofctl("add-flow", self.ovs.mgmt(BRIDGE.name), f"in_port={TUNNEL},actions=output:1")
        make(self.netlink, list(self.desired(other, kind)))
        netns.ip(
            self.node.namespace,
            *("route", "add", str(other.pod), "dev", HOST_PORT.name, "src", str(self.pod)),
        )

    def desired(self, other: Gateway, kind: TunnelType) -> Iterator[Resource]:
        """Yield all of netlink; the first range of ports is left to the table of all, with the first device."""
        yield Link(name=HOST_PORT.name, mtu=HOST_PORT.mtu)
        yield LinkAddress(device=HOST_PORT.name, address=self.pod, prefixlen=32)
        yield Neighbour(device=HOST_PORT.name, address=other.pod, mac=HOST_PORT.mac)
        yield Rule(priority=PRIORITY + 1, table=TABLE)
        first, last = SOURCE_PORTS[kind]
        size = (last - first + 1) // self.count
        for index in range(self.count):
            end = last if index == self.count - 1 else first + (index + 1) * size - 1
            if index:
                yield Rule(
                    priority=PRIORITY,
                    table=TABLE + index,
                    destination=ip_network("240.0.0.0/4"),
                    protocol=socket.IPPROTO_UDP,
                    source_ports=(first + index * size, end),
                )
            yield Route(
                table=TABLE + index,
                destination=host_network(other.node.inner),
                device=self.node.devices[index],
                source=self.node.inner,
            )

    def counters(self) -> list[tuple[int, int]]:
        """Return packets sent and received by each device."""
        names = self.node.devices[: self.count]
        paths = [f"/sys/class/net/{name}/statistics/{way}_packets" for name in names for way in ("tx", "rx")]
        numbers = [int(word) for word in netns.execute(self.node.namespace, ["cat", *paths]).stdout.split()]
        return list(zip(numbers[::2], numbers[1::2], strict=True))

    def open_socket(self, port: int = 0) -> socket.socket:
        """Return a UDP socket on the host port's address."""
        sock = netns.call(self.node.namespace, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        sock.bind((str(self.pod), port))
        sock.settimeout(1.0)
        return sock


@contextmanager
def gateways(directory: Path, count: int, kind: TunnelType, **values: int) -> Iterator[tuple[Gateway, Gateway]]:
    """Give two connected gateways with so many devices each."""
    with two_nodes(directory, WireGuardImplementation.KERNEL, inner="240.168.0.") as nodes:
        gateways: list[Gateway] = []
        try:
            for node in nodes:
                strict = ("net.ipv4.conf.all.rp_filter=1", "net.ipv4.conf.default.rp_filter=1")
                netns.execute(node.namespace, ["sysctl", "-qw", *strict])
                ovs = OvsInstance.start(node.namespace, node.directory / "ovs")
                netlink = NetlinkBackend(
                    route_tables=range(TABLE, TABLE + count),
                    route_protocol=PROTOCOL,
                    devices=(HOST_PORT.name,),
                    route_devices=node.devices,
                )
                ovsdb = OvsdbBackend(ovs.socket)
                backend = Inside(node.namespace, netlink)
                gateways.append(Gateway(node=node, ovs=ovs, ovsdb=ovsdb, netlink=backend, count=count))
            connect(nodes)
            first, second = gateways
            first.connect(second, kind, **values)
            second.connect(first, kind, **values)
            with _clients(first, 1) as client:
                wait_until(lambda: _sent(client, second, 1) == 1, "the first answer", timeout=10)
            yield first, second
        finally:
            for gateway in gateways:
                gateway.ovsdb.close()
                gateway.netlink.close()
                gateway.ovs.stop()


@contextmanager
def _clients(gateway: Gateway, count: int) -> Iterator[list[socket.socket]]:
    """Give so many sockets: each is a flow."""
    with ExitStack() as stack:
        yield [stack.enter_context(gateway.open_socket()) for _ in range(count)]


def _sent(clients: Sequence[socket.socket], to: Gateway, packets: int) -> int:
    """Send packets from each socket one after the other, answer each, and return how many answers came."""
    answers = 0
    with to.open_socket(ECHO) as server:
        for client in clients:
            for number in range(packets):
                client.sendto(number.to_bytes(100, "big"), (str(to.pod), ECHO))
                try:
                    server.sendto(*server.recvfrom(2000))
                    answers += len(client.recv(2000)) == 100
                except TimeoutError:
                    continue
    return answers


def _more(before: Sequence[tuple[int, int]], after: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(new[0] - old[0], new[1] - old[1]) for old, new in zip(before, after, strict=True)]


@pytest.mark.parametrize(
    ("count", "kind", "values"),
    [
        (2, TunnelType.GENEVE, {}),
        (4, TunnelType.GENEVE, {}),
        (4, TunnelType.VXLAN, {}),
        (2, TunnelType.GENEVE, {"dst_port": 50000}),
    ],
    ids=["2-geneve", "4-geneve", "4-vxlan", "a port in the second device's range"],
)
def test_flows_spread_over_all_devices(
    tmp_path: Path, count: int, kind: TunnelType, values: dict[str, int]
) -> None:
    """Nothing is lost, no device has much more than its part, and a flow stays on one device."""
    with gateways(tmp_path, count, kind, mark=MARK, **values) as (one, two), _clients(one, FLOWS) as clients:
        before = one.counters(), two.counters()
        assert _sent(clients, two, PACKETS) == FLOWS * PACKETS
        for gateway, counters in ((one, before[0]), (two, before[1])):
            for way in zip(*_more(counters, gateway.counters()), strict=True):
                assert sum(way) >= FLOWS * PACKETS
                assert 0 < max(way) < BUSIEST * sum(way) / count
        for client in clients[:12]:
            counters = one.counters()
            assert _sent([client], two, 20) == 20
            # Besides, each device may have sent a keepalive.
            assert sorted(sent > 10 for sent, _ in _more(counters, one.counters())) == [
                *[False] * (count - 1),
                True,
            ]


@pytest.mark.parametrize("kind", list(TunnelType))
def test_without_a_mark_all_flows_take_one_device(tmp_path: Path, kind: TunnelType) -> None:
    """Open vSwitch's datapath keeps the first packet's route for all of a datapath flow: hence the mark."""
    with gateways(tmp_path, 2, kind, mark=0) as (one, two), _clients(one, FLOWS) as clients:
        before = one.counters()
        assert _sent(clients, two, PACKETS) == FLOWS * PACKETS
        sent = sorted(sent for sent, _ in _more(before, one.counters()))
        assert sent[0] < FLOWS * PACKETS / 20
        assert sent[1] >= FLOWS * PACKETS


def test_flows_of_a_device_without_a_route_take_the_first_one(tmp_path: Path) -> None:
    """The rules are for all peers: one with fewer devices, or without a session there, has no route in a table."""
    with gateways(tmp_path, 4, TunnelType.GENEVE, mark=MARK) as (one, two), _clients(one, FLOWS) as clients:
        for gateway, other in ((one, two), (two, one)):
            desired = gateway.desired(other, TunnelType.GENEVE)
            absent = {TABLE + 2, TABLE + 3}
            present = (item for item in desired if not isinstance(item, Route) or item.table not in absent)
            make(gateway.netlink, list(present))
        before = one.counters(), two.counters()
        assert _sent(clients, two, PACKETS) == FLOWS * PACKETS
        for gateway, counters in ((one, before[0]), (two, before[1])):
            first, second, *others = (sent for sent, _ in _more(counters, gateway.counters()))
            assert first > second
            assert max(others) < second / 2  # keepalives
