"""Connections to an exported Service end with their reason: the endpoint, or the export."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from ipaddress import IPv4Address
from typing import Any

import pytest

from devtools.errors import LabError
from devtools.lab import objects
from devtools.lab.lab import Lab
from devtools.lab.topology import generate
from devtools.nodes import netns
from devtools.traffic import traffic
from devtools.waiting import wait_until
from tests.attacks import packets

pytestmark = pytest.mark.datapath

SILENCE = 1.0  # seconds


@pytest.fixture(scope="module")
def lab(make_lab: Callable[..., Lab]) -> Lab:
    """Two clusters of a gateway and a worker, with a Service of two Pods each."""
    return make_lab(generate(gateways=1, workers=1, pods=2), liveness=False)


class Served:
    """The Service of cluster west, as it is changed, and as its gateway has it."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self.east, self.west = lab.topology.clusters
        self.service = self.west.services[0]
        (endpoint_slice,) = objects.endpoint_slices(lab.topology, self.service)
        endpoints: Any = endpoint_slice["endpoints"]
        self.endpoints: list[Any] = list(endpoints)
        self.addresses = {pod.name: str(pod.address) for node in self.west.nodes for pod in node.pods}
        self.client = lab.namespace(self.east.workers[0].pods[0])

    def _used(self) -> int | None:
        exports: Any = self._lab.status(self.west.gateways[0].name)["exports"]
        export = exports.get(f"{self.service.namespace}/{self.service.name}")
        return None if export is None else export["endpoints"]

    def put(self, endpoints: list[Any], *, wait: bool = True) -> None:
        """Replace the endpoints in the slice."""
        api = self._lab.api(self.west.name)
        name = f"{self.service.name}-1"
        api.patch("EndpointSlice", name, {"endpoints": endpoints}, self.service.namespace)
        if wait:
            ready = [endpoint for endpoint in endpoints if endpoint.get("conditions", {}).get("ready", True)]
            number = len(self.service.protocols) * len(ready)
            wait_until(lambda: self._used() == number, "the gateway to know its endpoints")

    def without(self, pod: str) -> list[Any]:
        """Return the endpoints without a Pod's."""
        return [endpoint for endpoint in self.endpoints if endpoint["addresses"] != [self.addresses[pod]]]

    def unexport(self) -> None:
        """Delete the ServiceExport."""
        self._lab.api(self.west.name).delete("ServiceExport", self.service.name, self.service.namespace)
        wait_until(lambda: self._used() is None, "the gateway to know that nothing is exported")

    def export(self) -> None:
        """Create the ServiceExport."""
        self._lab.api(self.west.name).create(objects.export_object(self.service))
        wait_until(self._used, "the gateway to know that the Service is exported")

    def stream(self) -> Any:
        """Return a UDP socket that is connected to the Service."""
        return traffic.udp_socket(self.client, self.service.cluster_ip, self.service.port)


@pytest.fixture
def served(lab: Lab) -> Iterator[Served]:
    """Give the Service, and put everything back."""
    served_service = Served(lab)
    try:
        yield served_service
    finally:
        served_service.put(served_service.endpoints, wait=False)


def test_a_udp_client_leaves_an_endpoint_that_is_in_no_slice(served: Served) -> None:
    """It keeps its port, and the Pod lives on. What is listed, ready or not, keeps its clients."""
    with served.stream() as stream:
        pod = traffic.exchange(stream, b"first").pod
        endpoints = served.without(pod)
        (own,) = (endpoint for endpoint in served.endpoints if endpoint not in endpoints)
        served.put([*endpoints, own | {"conditions": {"ready": False, "serving": False}}])
        served.put([*endpoints, own | {"conditions": {"ready": True}}])
        assert traffic.exchange(stream, b"second").pod == pod
        served.put(endpoints)
        assert traffic.exchange(stream, b"third").pod != pod


def test_after_the_agent_s_absence_too(lab: Lab, served: Served) -> None:
    """The endpoint goes while the gateway's agent is down: nobody searches the table when it is back."""
    gateway = served.west.gateways[0].name
    with served.stream() as stream:
        pod = traffic.exchange(stream, b"first").pod
        lab.stop_agent(gateway)
        served.put(served.without(pod), wait=False)
        assert traffic.exchange(stream, b"second").pod == pod
        lab.start_agent(gateway)
        served.put(served.without(pod))
        assert traffic.exchange(stream, b"third").pod != pod


def test_an_export_that_is_gone_ends_connections(served: Served) -> None:
    """UDP and TCP: silence. A new export takes both up again."""
    tcp = traffic.TcpClient(served.client, str(served.service.cluster_ip), served.service.port)
    with served.stream() as stream, tcp as connection:
        assert traffic.exchange(stream, b"first").pod
        connection.exchange(b"first")
        served.unexport()
        try:
            with pytest.raises(LabError):
                traffic.exchange(stream, b"second", timeout=SILENCE)
            connection.socket.settimeout(SILENCE)
            with pytest.raises(LabError):
                connection.exchange(b"second")
        finally:
            served.export()
        assert traffic.exchange(stream, b"third").pod


def test_a_server_that_goes_on_sending_is_not_heard_after_the_unexport(lab: Lab, served: Served) -> None:
    """A client that only listens: the server's datagrams keep the entry alive, and neither side has an end."""
    with served.stream() as stream:
        pod = traffic.exchange(stream, b"first").pod
        (server,) = (item for node in served.west.nodes for item in node.pods if item.name == pod)
        local: tuple[str, int] = stream.getsockname()

        def push() -> None:
            payload = packets.udp(served.service.target_port, local[1], b"push")
            datagram = packets.ipv4(server.address, IPv4Address(local[0]), socket.IPPROTO_UDP, payload)
            with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as sender:
                sender.sendto(datagram, (local[0], 0))

        def hears() -> bool:
            stream.settimeout(SILENCE)
            netns.call(lab.namespace(server), push)
            try:
                return bytes(stream.recv(100)) == b"push"
            except TimeoutError:
                return False

        assert hears()
        served.unexport()
        try:
            wait_until(lambda: not hears(), "silence")
            assert not hears()
        finally:
            served.export()
        assert traffic.exchange(stream, b"second").pod


def test_tcp_connections_outlive_their_endpoint(served: Served) -> None:
    """As with kube-proxy: a Pod that is no endpoint any more finishes its work."""
    with traffic.TcpClient(served.client, str(served.service.cluster_ip), served.service.port) as connection:
        connection.exchange(b"first")
        served.put(served.without(connection.hello.pod))
        connection.exchange(b"second")
