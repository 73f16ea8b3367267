"""Deletion of connections whose reason is gone: which, each once, whatever fails."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from ipaddress import IPv4Address

import pytest

from devtools.waiting import wait_until
from mcagent.agent import ended_connections
from mcagent.agent.ended_connections import MOST, EndedConnections, EndedImports, IsEnded, Socket, ended_endpoints
from mcagent.core.compile import compile_desired
from mcagent.core.imported_services import ImportInput, listed_endpoints
from mcagent.model.backoff import Backoff
from mcagent.model.dataplane.conntrack import OriginalTuple
from mcagent.model.dataplane.facts import Facts
from mcagent.model.errors import BackendError
from mcagent.model.node_state import ImportedPort
from mcagent.model.objects import EndpointPort, EndpointSlice, IpProtocol, ServicePort
from tests.worlds.core_inputs import HOME, addresses, config, endpoint, imported_slice, service_import, snapshot


def connection(port: int) -> OriginalTuple:
    """Return a connection of a client's port."""
    return OriginalTuple(17, IPv4Address("10.1.1.2"), port, IPv4Address("10.102.0.80"), 80)


def test_each_connection_is_deleted_once_and_no_more_wait_than_fit() -> None:
    """Many packets of one connection may arrive before it is deleted. One that is gone hinders no other."""
    deleted: list[int] = []

    def delete(ended: OriginalTuple) -> None:
        deleted.append(ended.source_port)
        if ended.source_port == 1:
            raise BackendError("openflow", "dpctl/flush-conntrack", "socket", "No such file or directory")

    ended = EndedConnections(delete)
    for number in [*range(MOST + 5), 0, 1, 2]:
        ended.add(connection(number))
    ended.start()
    try:
        wait_until(lambda: len(deleted) == MOST, "all that fit")
        ended.add(connection(MOST + 7))
        wait_until(lambda: deleted[-1] == MOST + 7, "a later one")
    finally:
        ended.stop()
    assert deleted == [*range(MOST), MOST + 7]


DNS: ImportedPort = ("udp", IPv4Address("10.96.200.1"), 53)
EAST, WEST = (IPv4Address("10.97.0.1"), 53), (IPv4Address("10.98.0.1"), 53)


def slice_of(cluster: str, address: str, *, ready: bool = True) -> EndpointSlice:
    """Return a slice of Service dns with a UDP and a TCP port."""
    ports = tuple(
        EndpointPort(name=protocol.lower(), port=53, protocol=protocol)
        for protocol in (IpProtocol.UDP, IpProtocol.TCP)
    )
    return replace(imported_slice(f"dns-{cluster}", "dns", cluster, [endpoint(address, ready=ready)]), ports=ports)


IMPORT = replace(
    service_import("dns"),
    ports=(
        ServicePort(name="udp", port=53, protocol=IpProtocol.UDP),
        ServicePort(name="tcp", port=53, protocol=IpProtocol.TCP),
    ),
)


def test_endpoints_of_imports_are_those_that_are_listed() -> None:
    """Ready or not, by ClusterIP, without TCP; not at an address that is no ClusterIP of the Service."""
    slices = (slice_of("east", "10.97.0.1"), slice_of("west", "10.98.0.1", ready=False))
    endpoints = listed_endpoints(ImportInput(object=IMPORT, slices=slices, cluster_ips=frozenset(IMPORT.ips)))
    assert endpoints == {DNS: frozenset({EAST, WEST})}
    foreign = ImportInput(object=IMPORT, slices=slices, cluster_ips=frozenset(addresses("10.96.0.99")))
    assert listed_endpoints(foreign) == {}


def test_a_node_without_a_role_does_not_say_that_imports_are_gone() -> None:
    """Then nobody knows the endpoints, and connections stay."""
    assert compile_desired(snapshot(*HOME, IMPORT), Facts(), config("w1")).desired.state.imported == {}
    assert compile_desired(snapshot(IMPORT), Facts(), config("w1")).desired.state.imported is None


def test_endpoints_that_are_gone() -> None:
    """With their Service, too."""
    both, east_alone = {DNS: frozenset({EAST, WEST})}, {DNS: frozenset({EAST})}
    assert ended_endpoints(both, east_alone) == {(DNS, WEST)}
    assert ended_endpoints(both, {}) == {(DNS, EAST), (DNS, WEST)}
    assert ended_endpoints({}, both) == ended_endpoints(east_alone, both) == set()


class Table:
    """Connections as the kernel has them, and how often they were walked."""

    def __init__(self) -> None:
        self.connections: set[tuple[ImportedPort, Socket]] = set()
        self.walks = 0
        self.failures = 0  # that are to come

    def delete(self, is_ended: IsEnded) -> int:
        """Delete those that have ended."""
        self.walks += 1
        if self.failures:
            self.failures -= 1
            raise BackendError("conntrack", "dump", "table", "No buffer space available")
        ended = {connection for connection in self.connections if is_ended(*connection)}
        self.connections -= ended
        return len(ended)


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Table, EndedImports]]:
    """Give a table, and the started deletion."""
    monkeypatch.setattr(ended_connections, "DELAY", 0.0)
    connections = Table()
    imports = EndedImports(connections.delete)
    imports.start()
    try:
        yield connections, imports
    finally:
        imports.stop()


def test_connections_of_imports_end_with_their_endpoint(table: tuple[Table, EndedImports]) -> None:
    """At the start all that are not listed, later those that were; a change without an end walks no table."""
    kernel, imports = table
    other: tuple[ImportedPort, Socket] = (("udp", IPv4Address("10.96.0.10"), 53), WEST)  # of no import
    kernel.connections = {(DNS, EAST), (DNS, WEST), other}
    imports.update({})
    both = {DNS: frozenset({EAST, WEST})}
    east_alone = {DNS: frozenset({EAST})}
    imports.update(east_alone)
    wait_until(lambda: kernel.connections == {(DNS, EAST), other}, "the endpoint that is not listed to go")
    kernel.connections.add((DNS, WEST))
    imports.update(both)
    imports.update(dict(both))
    assert kernel.walks == 1
    imports.update({})
    wait_until(lambda: kernel.connections == {other}, "the endpoints of the import to go")
    assert kernel.walks == 2


def test_a_failed_walk_is_repeated(table: tuple[Table, EndedImports], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for endpoints of a Service that is gone, and for those that end in the meantime."""
    monkeypatch.setattr(ended_connections, "RETRIES", Backoff(first=0.01, most=0.02))
    kernel, imports = table
    kernel.connections, kernel.failures = {(DNS, EAST), (DNS, WEST)}, 2
    imports.update({DNS: frozenset({EAST})})
    wait_until(lambda: kernel.connections == {(DNS, EAST)}, "the endpoint of before the start to go")
    assert kernel.walks == 3
    kernel.failures = 2
    imports.update({})
    wait_until(lambda: not kernel.connections, "the endpoint of the Service that is gone to go")
    assert kernel.walks == 6


def test_an_endpoint_that_is_back_keeps_its_connections() -> None:
    """Its end was not carried out yet."""
    kernel = Table()
    kernel.connections = {(DNS, EAST), (DNS, WEST)}
    imports = EndedImports(kernel.delete)
    for sockets in ((EAST, WEST), (WEST,), (EAST,)):
        imports.update({DNS: frozenset(sockets)})
    imports.start()
    try:
        wait_until(lambda: kernel.walks, "the walk")
    finally:
        imports.stop()
    assert (kernel.walks, kernel.connections) == (1, {(DNS, EAST)})
