"""Downloads in a lab: connections on which only the server sends, so that nothing but data tells how they are."""

from __future__ import annotations

import contextlib
import itertools
import select
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address

from devtools.lab.lab import Lab
from devtools.lab.topology import Service, Topology
from devtools.nodes import netns

DOWNLOAD_PORT = 9100
DOWNLOADS = 8
CHUNK = 4096  # bytes, each filled with its own number
PERIOD = 0.01  # seconds between chunks


@dataclass(slots=True)
class Downloads:
    """Connections on which only the server sends: numbered chunks at a steady rate."""

    connections: list[socket.socket]
    arrivals: list[list[float]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    ended: dict[int, tuple[float, str]] = field(default_factory=dict)  # when and how, by connection

    def read(self, stop: threading.Event) -> None:
        """Read all connections until told to stop; note when something came, what ended and what was wrong."""
        self.arrivals = [[time.monotonic()] for _ in self.connections]
        buffers = [bytearray() for _ in self.connections]
        numbers = [0] * len(self.connections)
        by_socket = {connection: number for number, connection in enumerate(self.connections)}
        while not stop.is_set() and not self.wrong:
            going = [connection for connection in self.connections if by_socket[connection] not in self.ended]
            for connection in select.select(going, [], [], 0.1)[0]:
                index = by_socket[connection]
                try:
                    data = connection.recv(65536)
                except OSError as error:
                    self.ended[index] = (time.monotonic(), str(error))
                    continue
                if not data:
                    self.ended[index] = (time.monotonic(), "closed")
                    continue
                self.arrivals[index].append(time.monotonic())
                buffers[index] += data
                while len(buffers[index]) >= CHUNK:
                    if bytes(buffers[index][:CHUNK]) != chunk(numbers[index]):
                        self.wrong.append(f"connection {index}: chunk {numbers[index]} is not what was sent")
                        return
                    del buffers[index][:CHUNK]
                    numbers[index] += 1

    def silence(self, since: float, until: float) -> float:
        """Return the longest time without data on any connection that touches this span."""
        longest = 0.0
        for moments in self.arrivals:
            moments_until = [*moments, until]
            gaps = [b - a for a, b in itertools.pairwise(moments_until) if b >= since and a <= until]
            longest = max(longest, *gaps)
        return longest


def chunk(number: int) -> bytes:
    """Return what is sent as the chunk of that number."""
    return number.to_bytes(8, "big") * (CHUNK // 8)


def send_for_ever(listener: socket.socket, stop: threading.Event) -> None:
    """Accept connections and send numbered chunks on each."""
    listener.settimeout(0.1)
    while not stop.is_set():
        with contextlib.suppress(OSError):  # nobody came, or it was closed: then it is told to stop
            connection, _ = listener.accept()
            threading.Thread(target=_send, args=(connection, stop), daemon=True).start()


def _send(connection: socket.socket, stop: threading.Event) -> None:
    connection.settimeout(60)
    number = 0
    with contextlib.suppress(OSError), connection:
        while not stop.wait(PERIOD):
            connection.sendall(chunk(number))
            number += 1


def with_download(plain: Topology) -> Topology:
    """Add a Service of each cluster behind which only downloads are."""
    clusters = []
    for cluster in plain.clusters:
        service = Service(
            name="files",
            cluster_ip=IPv4Address(int(cluster.service_cidr.network_address) + 90),
            pods=cluster.services[0].pods,
            target_port=DOWNLOAD_PORT,
            protocols=("TCP",),
        )
        clusters.append(replace(cluster, services=(*cluster.services, service)))
    return replace(plain, clusters=tuple(clusters))


@contextlib.contextmanager
def downloading(lab: Lab, *, straight: bool = False) -> Iterator[Downloads]:
    """Downloads from the Service of the second cluster by a Pod of the first one; or `straight` from one Pod."""
    east, west = lab.topology.clusters
    service = next(one for one in west.services if one.name == "files")
    client = lab.namespace(east.workers[0].pods[0])
    address = (str(service.cluster_ip), service.port)
    if straight:
        address = (str(lab.topology.pod(service.pods[0])[2].address), DOWNLOAD_PORT)
    stop = threading.Event()
    with contextlib.ExitStack() as stack:
        for name in service.pods:
            namespace = lab.namespace(lab.topology.pod(name)[2])
            listener = netns.call(namespace, lambda: socket.create_server(("0.0.0.0", DOWNLOAD_PORT)))
            stack.enter_context(listener)
            server = threading.Thread(target=send_for_ever, args=(listener, stop), daemon=True)
            stack.callback(server.join, 5)  # as long as it accepts, the port is taken
            server.start()
        connections = [
            stack.enter_context(netns.call(client, lambda: socket.create_connection(address, timeout=5)))
            for _ in range(DOWNLOADS)
        ]
        downloads = Downloads(connections)
        reader = threading.Thread(target=downloads.read, args=(stop,), daemon=True)
        reader.start()
        try:
            yield downloads
        finally:
            stop.set()
            reader.join(5)
