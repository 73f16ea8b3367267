"""Which connections are asked whether they go on after the loss of a gateway, and with what packet."""

from __future__ import annotations

import struct
import threading
import time
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devtools.waiting import wait_until
from flows.pipeline.registers import TOS_PROBE
from mcagent.dataplane import conntrack
from mcagent.dataplane.conntrack import (
    Concerns,
    Prober,
    TrackedConnection,
    client_probes,
    may_be_translated,
    open_connections,
    probe,
)
from mcagent.dataplane.netlink import connection as netlink
from mcagent.model.errors import BackendError
from mcagent.model.node_state import AcceptedCluster, ExportedPort, NodeState
from mcagent.model.plan import Desired


def connection(client: str, server: str, port: int = 4000) -> TrackedConnection:
    """Return a connection to port 80."""
    return TrackedConnection(
        client=int(ip_address(client)), client_port=port, server=int(ip_address(server)), server_port=80
    )


def remote(name: str, *cidrs: str, snat: bool) -> AcceptedCluster:
    """Return a cluster as it is used."""
    return AcceptedCluster(cluster_id=name, cidrs=tuple(map(ip_network, cidrs)), gateways=(), snat=snat)


EAST = remote("east", "10.96.0.0/16", snat=True)
WEST = remote("west", "10.97.0.0/16", "10.20.0.0/16", "10.21.3.0/24", snat=False)


def state(*clusters: AcceptedCluster) -> NodeState:
    """Return what a Node is whose cluster shows the others its Pods."""
    return NodeState(
        clusters={cluster.cluster_id: cluster for cluster in clusters},
        published_pods=(ip_network("10.10.0.0/16"),),
    )


def test_only_what_a_gateway_translates_is_asked() -> None:
    """All that goes to a cluster that is SNATed to; elsewhere what is no published Pod; nothing within here."""
    connections = [connection("10.10.1.1", "10.96.0.1"), connection("192.0.2.1", "10.21.3.7")]
    other_connections = [
        connection("10.10.1.1", "10.97.0.1"),
        connection("10.10.1.1", "10.21.4.1"),
        connection("192.0.2.1", "10.10.1.1"),
        connection("10.10.1.1", "198.51.100.1"),
    ]
    assert may_be_translated([*connections, *other_connections], state(EAST, WEST)) == connections
    assert may_be_translated(other_connections, NodeState()) == []


def exported(name: str, *endpoints: tuple[str, int], protocol: str = "tcp") -> ExportedPort:
    """Return a port of an exported Service."""
    return ExportedPort(
        name=name,
        address=ip_address("10.98.0.1"),
        protocol=protocol,
        port=80,
        client_ip_affinity=False,
        endpoints=tuple((ip_address(address), port) for address, port in endpoints),
    )


def test_clients_of_endpoints_are_asked_in_every_way_they_may_have_come() -> None:
    """Those in other clusters, or behind their gateway; by the endpoint's own address and each of its Services."""
    cluster = replace(WEST, sources=(ip_address("192.0.2.9"),))
    ports = {
        service.name: service
        for service in (
            exported("a", ("10.10.1.1", 80), ("10.10.1.2", 80)),
            exported("b", ("10.10.1.1", 80)),
            exported("c", ("10.10.1.3", 80), protocol="udp"),
        )
    }
    gateway_state = replace(state(cluster), services=ports, service_ids={"a": 5, "b": 0x010203, "c": 7})
    connections = [connection("10.20.1.1", "10.10.1.1"), connection("192.0.2.9", "10.10.1.2")]
    other_connections = [
        connection("10.22.1.1", "10.10.1.1"),  # from nowhere that is known
        connection("10.20.1.1", "10.10.1.3"),
        connection("10.20.1.1", "10.10.1.4"),
        replace(connections[0], server_port=81),
    ]
    assert list(client_probes(other_connections, gateway_state)) == []
    twice, once = (list(client_probes([client, *other_connections], gateway_state)) for client in connections)
    assert [frame[:12].hex(":") for frame in twice] == [
        "aa:bb:cc:dd:ee:f9:0a:6d:63:00:00:01",
        "aa:bb:cc:dd:ee:f2:0a:6d:63:00:00:01",
        "aa:bb:cc:dd:ee:f1:0a:6d:00:00:00:05",
        "aa:bb:cc:dd:ee:f1:0a:6d:00:01:02:03",
    ]
    assert len(once) == 3
    assert {frame[12:] for frame in twice[1:]} == {probe(connections[0], tos=TOS_PROBE)[12:]}


def sums_up(data: bytes) -> bool:
    """Tell whether data with its Internet checksum is whole (RFC 1071)."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total == 0xFFFF


@given(
    st.builds(
        TrackedConnection,
        client=st.integers(0, 2**32 - 1),
        client_port=st.integers(1, 65535),
        server=st.integers(0, 2**32 - 1),
        server_port=st.integers(1, 65535),
    )
)
def test_a_probe_is_a_syn_ack_of_the_server(asked: TrackedConnection) -> None:
    """Its checksums are right, whatever the addresses: a wrong one would be dropped without an answer."""
    frame = probe(asked)
    ip, tcp = frame[14:34], frame[34:]
    assert len(frame) == 54
    assert frame[12:14] == b"\x08\x00"
    assert struct.unpack_from("!II", ip, 12) == (asked.server, asked.client)
    assert struct.unpack_from("!HH", tcp) == (asked.server_port, asked.client_port)
    assert tcp[13] == 0x12
    assert sums_up(ip)
    assert sums_up(ip[12:20] + struct.pack("!HH", 6, len(tcp)) + tcp)


@pytest.mark.timing
def test_connections_are_asked_by_a_thread_again_and_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be listed now is tried with the next attempt. Later and ended connections are left out."""
    listed: list[float] = []
    sent: list[tuple[int, list[bytes]]] = []
    caller = threading.get_ident()

    def connections(_: Concerns) -> list[TrackedConnection]:
        assert threading.get_ident() != caller
        listed.append(time.monotonic())
        if len(listed) == 1:
            raise BackendError("netlink", "list", "connections", "busy")
        return [
            connection("10.10.1.1", "10.96.0.1", port) for port in range(3999 + len(listed), 4004 + len(listed))
        ]

    def send(in_port: int, frames: Sequence[bytes]) -> None:
        sent.append((in_port, list(frames)))

    monkeypatch.setattr(conntrack, "PAUSES", (0.0, 0.01, 0.01))
    prober = Prober(connections=connections, send=send)
    prober.gateway_lost(7, None)
    prober.gateway_lost(7, Desired(fragments={}, problems=(), state=state(EAST)))
    wait_until(lambda: len(sent) == 2, "two attempts after one that failed")
    attempts = [
        [probe(connection("10.10.1.1", "10.96.0.1", port)) for port in range(first, 4006)]
        for first in (4001, 4002)
    ]
    assert [(in_port, sorted(frames)) for in_port, frames in sent] == [(7, sorted(frames)) for frames in attempts]


ENTRIES = 20_000  # of the fake kernel's table
PER_MESSAGE = 500


def table_entry(client_port: int) -> bytes:
    """Return an entry of an open TCP connection from 10.10.1.1 to 10.96.0.1:80, as the kernel lists it."""
    client, server = b"\x0a\x0a\x01\x01", b"\x0a\x60\x00\x01"
    port, http = client_port.to_bytes(2), (80).to_bytes(2)

    def direction(kind: int, source: bytes, destination: bytes, ports: tuple[bytes, bytes]) -> bytes:
        ip = netlink.attribute(1, source) + netlink.attribute(2, destination)
        numbers = netlink.attribute(1, b"\x06") + netlink.attribute(2, ports[0]) + netlink.attribute(3, ports[1])
        return netlink.attribute(kind, netlink.attribute(1, ip) + netlink.attribute(2, numbers))

    established = netlink.attribute(4, netlink.attribute(1, netlink.attribute(1, b"\x03")))
    tuples = direction(1, client, server, (port, http)) + direction(2, server, client, (http, port))
    return struct.pack("!BBH", netlink.AF_INET, 0, 0) + tuples + established


class BusyKernel:
    """A netfilter socket of a kernel that tracks ENTRIES connections."""

    def __init__(self) -> None:
        self._sequence = self._listed = 0

    def setsockopt(self, *_: int) -> None:
        """Accept any option."""

    def settimeout(self, _: float) -> None:
        """Answers come at once."""

    def send(self, request: bytes) -> None:
        """Take a request."""
        self._sequence = netlink.NLMSGHDR.unpack_from(request)[3]

    def recv(self, _: int) -> bytes:
        """Return the next answers."""
        first, self._listed = self._listed, self._listed + PER_MESSAGE
        if first >= ENTRIES:
            return netlink.NLMSGHDR.pack(20, netlink.NLMSG_DONE, 2, self._sequence, 0) + bytes(4)
        bodies = [table_entry(port) for port in range(first, self._listed)]
        headers = (netlink.NLMSGHDR.pack(16 + len(body), 0x100, 2, self._sequence, 0) for body in bodies)
        return b"".join(header + body for header, body in zip(headers, bodies, strict=True))

    def close(self) -> None:
        """End."""


@pytest.mark.parametrize("zones", [(0,), (77,)])
def test_connections_that_are_not_probed_need_no_memory(
    monkeypatch: pytest.MonkeyPatch, zones: tuple[int, ...]
) -> None:
    """A busy Node tracks a million connections, few of which lead to other clusters; memory is limited."""
    monkeypatch.setattr(netlink, "_open", lambda *_: BusyKernel())
    ports = (4000, 4001)
    expected = {connection("10.10.1.1", "10.96.0.1", port) for port in ports} if zones == (0,) else set()
    tracemalloc.start()
    try:
        listed = open_connections(zones, lambda tracked: tracked.client_port in ports)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert listed == expected
    assert peak < ENTRIES * 100  # bytes; the entries alone have more


def test_only_connections_that_a_loss_concerns_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a gateway: those to other clusters. Of conntrack: those to endpoints of exported Services."""
    monkeypatch.setattr(conntrack, "PAUSES", (0.0,))
    service = exported("a", ("10.10.1.1", 80))
    node_state = replace(state(EAST, WEST), services={"a": service}, service_ids={"a": 5})
    outgoing, incoming = connection("10.10.1.1", "10.96.0.1"), connection("10.20.1.1", "10.10.1.1")
    candidates = (outgoing, incoming, connection("10.10.1.1", "198.51.100.1"))
    listed: list[list[TrackedConnection]] = []

    def connections(concerns: Concerns) -> list[TrackedConnection]:
        listed.append([candidate for candidate in candidates if concerns(candidate)])
        return []

    prober = Prober(connections=connections, send=lambda *_: None)
    prober.gateway_lost(7, Desired(fragments={}, problems=(), state=node_state))
    wait_until(lambda: listed == [[outgoing]], "a list after the loss of a gateway")
    prober.state_lost(node_state)
    wait_until(lambda: listed == [[outgoing], [incoming]], "a list after the loss of conntrack")
