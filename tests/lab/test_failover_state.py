"""Connections for which gateways hold state: to Services, downloads among them, and those that are SNATed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import pytest

from devtools.lab import faults
from devtools.lab.faults import Fault, Settled
from devtools.lab.lab import Lab
from devtools.lab.topology import Cni, Topology
from devtools.traffic.load import Kind, Load, Stream
from devtools.traffic.traffic import TIMEOUT, TcpClient
from tests.worlds import failover
from tests.worlds.downloads import Downloads, downloading, with_download
from tests.worlds.failover import INTERVALS, words

MakeLab = Callable[[Topology], Lab]
SPELL = 3.0  # seconds that a fault lasts
SILENCE = 2.0
RESET = 1.0  # seconds in which a client must know that its connection cannot go on


@pytest.fixture(scope="module")
def lab(make_lab: MakeLab) -> Lab:
    """Two clusters of two gateways and a worker, each with a Service of downloads."""
    return make_lab(with_download(failover.topology(INTERVALS["100x3"], gateways=2, workers=1)))


@pytest.fixture
def downloads(lab: Lab, settled: Settled) -> Iterator[Downloads]:
    """Downloads that go on through a test."""
    settled.wait()
    with downloading(lab) as downloads:
        yield downloads


FAULTS: dict[str, Callable[[Lab, str], Fault]] = {
    "link cut": faults.link_cut,
    "vswitchd killed": faults.vswitchd_killed,
}


@pytest.mark.timing
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


@pytest.mark.timing
def test_a_client_that_uses_its_port_again(lab: Lab, settled: Settled) -> None:
    """Connections from ports that a moment ago were those of others, to the same Service, go on by any gateway.

    Clients' kernels come back to a port soon: Linux begins elsewhere every 10 s (secure_ipv4_port_ephemeral).
    """
    east, west = lab.topology.clusters
    where = (lab.namespace(east.workers[0].pods[0]), str(west.services[0].cluster_ip), 80)
    settled.wait()
    with contextlib.ExitStack() as stack:
        clients = []
        for port in range(40_000, 40_040, 2):
            TcpClient(*where, source_port=port).reset()
            # Not longer: what is left of the last connection would be forgotten after 10 s.
            clients.append(stack.enter_context(TcpClient(*where, source_port=port, timeout=TIMEOUT)))
        assert [client.hello.port for client in clients] == list(range(40_000, 40_040, 2))
        for gateway in west.gateways:
            settled.wait()
            fault = failover.drain(lab, gateway.name)
            try:
                fault.inject()
                failover.pause(1.0)
                for client in clients:
                    client.exchange(b"still there?")
            finally:
                fault.heal()


@pytest.mark.timing
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
                service_stream = during.streams["service"]
                description = f"{gateway.name}: {words(during)}\ndownloads that ended: {ended}"
                print(description)
                assert service_stream.longest < RESET + during.stall, description
                assert not downloads.wrong, description
                if side:
                    assert not service_stream.broken, description
                    assert not ended, description
                    assert downloads.silence(begin, until) < SILENCE, description
                else:
                    reasons = [*service_stream.reasons, *(reason for _, reason in ended.values())]
                    assert all("reset" in reason.lower() for reason in reasons), description
                    waited = [
                        ended.get(number, (until, ""))[0] - max(moment for moment in moments if moment <= until)
                        for number, moments in enumerate(downloads.arrivals)
                    ]
                    assert max(waited) < RESET + during.stall, description
