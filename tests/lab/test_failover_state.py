"""Connections for which gateways hold state: to Services, downloads among them, and those that are SNATed."""

from __future__ import annotations

import contextlib
import itertools
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address

import pytest

from mcagent.lab import faults, netns
from mcagent.lab.faults import Fault, Settled
from mcagent.lab.lab import Lab
from mcagent.lab.load import Kind, Load, Stream
from mcagent.lab.topology import Cni, Service, Topology
from tests import failover
from tests.failover import INTERVALS, words

pytestmark = pytest.mark.failover

MakeLab = Callable[[Topology], Lab]
DOWNLOAD_PORT = 9100
DOWNLOADS = 8
CHUNK = 4096  # bytes, each filled with its own number
PERIOD = 0.01  # seconds between chunks
SPELL = 3.0  # seconds that a fault lasts
SILENCE = 2.0
RESET = 1.0  # seconds in which a client must know that its connection cannot go on


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
        found = [bytearray() for _ in self.connections]
        numbers = [0] * len(self.connections)
        by_socket = {one: number for number, one in enumerate(self.connections)}
        while not stop.is_set() and not self.wrong:
            going = [one for one in self.connections if by_socket[one] not in self.ended]
            for one in select.select(going, [], [], 0.1)[0]:
                index = by_socket[one]
                try:
                    data = one.recv(65536)
                except OSError as error:
                    self.ended[index] = (time.monotonic(), str(error))
                    continue
                if not data:
                    self.ended[index] = (time.monotonic(), "closed")
                    continue
                self.arrivals[index].append(time.monotonic())
                found[index] += data
                while len(found[index]) >= CHUNK:
                    if bytes(found[index][:CHUNK]) != chunk(numbers[index]):
                        self.wrong.append(f"connection {index}: chunk {numbers[index]} is not what was sent")
                        return
                    del found[index][:CHUNK]
                    numbers[index] += 1

    def silence(self, since: float, until: float) -> float:
        """Return the longest time without data on any connection that touches this span."""
        longest = 0.0
        for moments in self.arrivals:
            every = [*moments, until]
            gaps = [b - a for a, b in itertools.pairwise(every) if b >= since and a <= until]
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
            one, _ = listener.accept()
            threading.Thread(target=_send, args=(one, stop), daemon=True).start()


def _send(one: socket.socket, stop: threading.Event) -> None:
    one.settimeout(60)
    number = 0
    with contextlib.suppress(OSError), one:
        while not stop.wait(PERIOD):
            one.sendall(chunk(number))
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


@pytest.fixture(scope="module")
def lab(make_lab: MakeLab) -> Lab:
    """Two clusters of two gateways and a worker, each with a Service of downloads."""
    return make_lab(with_download(failover.topology(INTERVALS["100x3"], gateways=2, workers=1)))


@pytest.fixture(scope="module")
def settled(lab: Lab) -> Settled:
    """How the lab is when all is well."""
    return Settled(lab)


@contextlib.contextmanager
def downloading(lab: Lab) -> Iterator[Downloads]:
    """Downloads from the Service of the second cluster by a Pod of the first one."""
    east, west = lab.topology.clusters
    service = next(one for one in west.services if one.name == "files")
    client = lab.namespace(east.workers[0].pods[0])
    address = (str(service.cluster_ip), service.port)
    stop = threading.Event()
    with contextlib.ExitStack() as stack:
        for name in service.pods:
            namespace = lab.namespace(lab.topology.pod(name)[2])
            listener = netns.call(namespace, lambda: socket.create_server(("0.0.0.0", DOWNLOAD_PORT)))
            stack.enter_context(listener)
            threading.Thread(target=send_for_ever, args=(listener, stop), daemon=True).start()
        connections = [
            stack.enter_context(netns.call(client, lambda: socket.create_connection(address, timeout=5)))
            for _ in range(DOWNLOADS)
        ]
        made = Downloads(connections)
        reader = threading.Thread(target=made.read, args=(stop,), daemon=True)
        reader.start()
        try:
            yield made
        finally:
            stop.set()
            reader.join(5)


@pytest.fixture
def downloads(lab: Lab, settled: Settled) -> Iterator[Downloads]:
    """Downloads that go on through a test."""
    settled.wait()
    with downloading(lab) as made:
        yield made


FAULTS: dict[str, Callable[[Lab, str], Fault]] = {
    "link cut": faults.link_cut,
    "vswitchd killed": faults.vswitchd_killed,
}


@pytest.mark.parametrize("side", [0, 1], ids=["client", "serving"])
@pytest.mark.parametrize("name", FAULTS)
def test_a_download_goes_on(lab: Lab, downloads: Downloads, settled: Settled, name: str, side: int) -> None:
    """The client has nothing to say but that it got it: data comes on, by another gateway, and as it was sent."""
    gateway = lab.topology.clusters[side].gateways[list(FAULTS).index(name)].name
    fault = FAULTS[name](lab, gateway)
    failover.pause(0.5)
    begin = time.monotonic()
    try:
        fault.inject()
        failover.pause(SPELL)
        until = time.monotonic()
    finally:
        fault.heal()
    settled.wait()
    failover.pause(0.5)
    assert not downloads.wrong
    assert not downloads.ended
    assert downloads.silence(begin, until) < SILENCE
    assert downloads.silence(until, time.monotonic()) < SILENCE


@pytest.mark.parametrize("side", [0, 1], ids=["client", "serving"])
def test_a_snated_connection_goes_on_or_is_reset(make_lab: MakeLab, side: int) -> None:
    """Where Pod CIDRs overlap: none hangs, nor downloads; the serving side's gateways break none."""
    plain = failover.topology(INTERVALS["100x3"], gateways=2, workers=1, cni=Cni.OVERLAP)
    with make_lab(with_download(plain)) as lab:
        settled = Settled(lab)
        east, west = lab.topology.clusters
        stream = Stream(
            kind=Kind.TCP,
            name="service",
            namespace=lab.namespace(east.workers[0].pods[0]),
            address=str(west.services[0].cluster_ip),
            port=80,
            count=24,
            interval=0.02,
        )
        for gateway in lab.topology.clusters[side].gateways:
            settled.wait()
            with Load([stream]) as load, downloading(lab) as downloads:
                failover.pause(1.0)
                fault = faults.link_cut(lab, gateway.name)
                begin = time.monotonic()
                try:
                    fault.inject()
                    failover.pause(SPELL)
                    until = time.monotonic()
                    during = load.report(begin)
                    ended = dict(downloads.ended)
                finally:
                    fault.heal()
                found = during.streams["service"]
                told = f"{gateway.name}: {words(during)}\ndownloads that ended: {ended}"
                print(told)
                assert found.longest < RESET + during.stall, told
                assert not downloads.wrong, told
                if side:
                    assert not found.broken, told
                    assert not ended, told
                    assert downloads.silence(begin, until) < SILENCE, told
                else:
                    reasons = [*found.reasons, *(reason for _, reason in ended.values())]
                    assert all("reset" in reason.lower() for reason in reasons), told
                    waited = [
                        ended.get(number, (until, ""))[0] - max(moment for moment in moments if moment <= until)
                        for number, moments in enumerate(downloads.arrivals)
                    ]
                    assert max(waited) < RESET + during.stall, told
