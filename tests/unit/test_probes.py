"""Which connections are asked whether they go on after the loss of a gateway, and with what packet."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devtools.waiting import wait_until
from flows.pipeline.registers import TOS_PROBE
from mcagent.dataplane import conntrack
from mcagent.dataplane.conntrack import Prober, TrackedConnection, client_probes, may_be_translated, probe
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

    def connections() -> list[TrackedConnection]:
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
