"""Several WireGuard devices of a gateway: they share connections, and one whose port is closed is not used."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from ipaddress import IPv4Address
from typing import Any

import pytest

from devtools.errors import LabError
from devtools.lab.lab import Lab
from devtools.lab.topology import POD_PORT, Node, generate
from devtools.nodes import netns
from devtools.traffic.traffic import TcpClient
from devtools.waiting import wait_until
from mcagent.model.config import TrafficEncryption
from mcagent.model.dataplane.facts import DatapathType
from tests.lab.encryption import encryption, established

pytestmark = pytest.mark.datapath

DEVICES = 4
FIRST_PORT = 51821
ROUTE_TABLE = 28003
STREAMS = 100
UNUSED = 90  # seconds until a closed device is not used any more: about 30 on an idle machine (docs/encryption.md)


@pytest.fixture(scope="module")
def lab(make_lab: Callable[..., Lab], datapath: DatapathType) -> Iterator[Lab]:
    """Return two clusters of a gateway and a worker; all gateways have four devices."""
    if datapath is not DatapathType.SYSTEM:
        pytest.skip("tunnels of the userspace datapath cannot be encrypted: this runs in the kernel lane")
    shape = generate(encryption=TrafficEncryption.WIREGUARD)
    config: dict[str, object] = {"wireGuard": {"devices": DEVICES, "keepalive": 1}}
    shape = replace(shape, clusters=tuple(replace(cluster, config=config) for cluster in shape.clusters))
    with make_lab(shape) as running:
        gateways = [gateway for cluster in shape.clusters for gateway in cluster.gateways]
        for gateway in gateways:
            wait_sessions(running, gateway, DEVICES)
        yield running


def peer_of(lab: Lab, gateway: Node) -> dict[str, Any]:
    """Return what the agent of a gateway reports of the other gateway."""
    (peer,) = encryption(lab, gateway.name)["peers"]
    assert isinstance(peer, dict)
    return peer


def devices_in_use(lab: Lab, gateway: Node) -> int:
    """Return the number of devices by which a gateway sends to the other one."""
    tables = range(ROUTE_TABLE + 1, ROUTE_TABLE + DEVICES)
    routes = netns.ip(lab.namespace(gateway), "route", "show", "table", "all")
    return 1 + sum(f"table {table} " in routes for table in tables)


def wait_sessions(lab: Lab, gateway: Node, count: int) -> None:
    """Wait until a gateway has a session on so many devices, and uses them."""

    def complete() -> bool:
        sessions = int(peer_of(lab, gateway)["sessions"]) if established(lab, gateway.name) else 0
        return sessions == count == devices_in_use(lab, gateway)

    wait_until(complete, f"{count} devices of {gateway.name}", timeout=UNUSED, interval=0.2)


def sent_packets(lab: Lab, gateway: Node) -> list[int]:
    """Return the packets that each device sent, as the kernel counts them."""
    links = json.loads(netns.ip(lab.namespace(gateway), "-json", "-statistics", "link"))
    counts = {link["ifname"]: int(link["stats64"]["tx"]["packets"]) for link in links}
    return [counts[name] for name in encryption(lab, gateway.name)["devices"]]


def test_connections_are_shared(lab: Lab) -> None:
    """Of 100 connections each device carries a part, in both directions; each connection has one device.

    The parts are random: with 4 devices the busiest has 1.1 to 1.3 times the mean, and rarely more than 1.6.
    """
    east, west = lab.topology.clusters
    gateways = east.gateways[0], west.gateways[0]
    client, server = east.workers[0].pods[0], west.workers[0].pods[0]
    before = [sent_packets(lab, gateway) for gateway in gateways]
    with ExitStack() as stack:
        streams = [
            stack.enter_context(TcpClient(lab.namespace(client), str(server.address), POD_PORT))
            for _ in range(STREAMS)
        ]
        for _ in range(10):
            for stream in streams:
                stream.exchange(b"a part")
        for gateway, counts in zip(gateways, before, strict=True):
            sent = [now - then for now, then in zip(sent_packets(lab, gateway), counts, strict=True)]
            print(f"{gateway.name}: {sent}, busiest {max(sent) * DEVICES / sum(sent):.2f} times the mean")
            assert sum(sent) > 10 * STREAMS
            assert max(sent) < 1.6 * sum(sent) / DEVICES
        counts = sent_packets(lab, gateways[0])
        for _ in range(200):
            streams[0].exchange(b"one device")
        sent = sorted(now - then for now, then in zip(sent_packets(lab, gateways[0]), counts, strict=True))
        assert sent[-1] >= 200
        assert sum(sent[:-1]) < 100  # BFD, probes and keepalives


@contextmanager
def closed_ports(lab: Lab, gateway: Node, *ports: int) -> Iterator[None]:
    """Drop what arrives at a gateway from or for UDP ports."""
    namespace, numbers = lab.namespace(gateway), ", ".join(map(str, ports))
    rules = (
        "table inet closed { chain closed { type filter hook prerouting priority -400; "
        f"udp dport {{ {numbers} }} drop; udp sport {{ {numbers} }} drop; }}; }}"
    )
    netns.execute(namespace, ["nft", rules])
    try:
        yield
    finally:
        netns.execute(namespace, ["nft", "delete table inet closed"])


def answered(pod: str, target: IPv4Address, count: int) -> int:
    """Return how many of so many new connections are answered."""
    answers = 0
    for _ in range(count):
        try:
            TcpClient(pod, str(target), POD_PORT, timeout=0.5).socket.close()
        except LabError:
            continue
        answers += 1
    return answers


def test_closed_ports_take_devices(lab: Lab) -> None:
    """New connections take another device, people see 2/4 and the ports; afterwards all four are used.

    The first device is among the closed ones: BFD's packets may take another one, and then notice nothing.
    """
    east, west = lab.topology.clusters
    gateways = east.gateways[0], west.gateways[0]
    pod, target = lab.namespace(east.workers[0].pods[0]), west.workers[0].pods[0].address
    with closed_ports(lab, gateways[1], FIRST_PORT, FIRST_PORT + 2):
        wait_until(lambda: answered(pod, target, 50) == 50, "all connections", timeout=UNUSED)
        for gateway in gateways:
            wait_sessions(lab, gateway, DEVICES - 2)
        peer = peer_of(lab, gateways[0])
        assert peer["state"] == "established"
        assert f"UDP ports {FIRST_PORT} to {FIRST_PORT + 3}" in peer["causes"][0]
    for gateway in gateways:
        wait_sessions(lab, gateway, DEVICES)
    assert answered(pod, target, 50) == 50
