"""Gateways move: Antrea's to another Node, and a second one of this cluster comes. No connection breaks."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from devtools.errors import LabError
from devtools.lab import objects
from devtools.lab.api import Json
from devtools.lab.lab import Lab
from devtools.lab.topology import DIRECT_PORT, Cni, Node, Pod, generate
from devtools.nodes import antrea
from devtools.traffic import matrix, traffic
from devtools.traffic.traffic import TcpClient
from devtools.waiting import wait_until
from mcagent.core.failover.liveness import PATIENCE
from mcagent.model.dataplane.facts import DatapathType
from tests.lab.antrea_gateways import SOON, taken_for_antrea
from tests.waiting import allowed
from tests.worlds.failover import pause

pytestmark = pytest.mark.datapath

IMPORT = "west-clusterinfo"
# Antrea commits direct connections without NAT. So one that has the source port of another connection to the same
# Pod's port by a Service in the last two minutes gets no answer: direct connections go to `DIRECT_PORT`, behind no
# Service. Ports that a client's kernel chooses repeat after some hundred connections. On the kernel datapath the
# gateway keeps them; the userspace datapath chooses one of `snat_ports` by a hash.
SOURCE_PORTS = itertools.cycle(range(10000, 32768))
ROUND = 0.05  # seconds between rounds of connections, so that SOURCE_PORTS last for two minutes (TIME_WAIT)
RETRANSMITTED = 3.0  # seconds in which TCP repeats a lost packet: a busy machine loses some
AT_ONCE = PATIENCE / 2  # seconds in which connections work again, before BFD can have judged a new tunnel


@pytest.fixture(scope="module")
def lab(make_lab: Callable[..., Lab], datapath: DatapathType) -> Iterator[Lab]:
    """Return cluster east of mcagent, with two gateways and a worker, and west of Antrea, with two Nodes."""
    shape = generate(cni=Cni.ANTREA, gateways=2)
    with make_lab(shape) as running:
        wait_until(lambda: judged(running), "the verdict on west", timeout=SOON)
        yield running


def judged(lab: Lab) -> bool:
    """Tell whether both gateways of east call west Antrea's."""
    return all(taken_for_antrea(lab, gateway.name) for gateway in lab.topology.cluster("east").gateways)


def place(lab: Lab, node: Node, *, pod_to_pod: bool) -> None:
    """Make a Node the gateway of west, as Antrea does: flows of all Nodes, then its ClusterInfo is a new one."""
    lab.program_antrea(antrea.Settings(pod_to_pod=pod_to_pod, active={"west": node.name}))
    api = lab.api("east")
    imported: Json = objects.import_object(lab.topology.cluster("west"))
    spec = imported["spec"]
    assert isinstance(spec, dict)
    spec["gatewayInfos"] = [{"gatewayIP": str(node.tunnel_address)}]
    api.delete("ClusterInfoImport", IMPORT, objects.NAMESPACE)
    api.create(imported)


def clients(lab: Lab) -> list[Pod]:
    """Return a Pod of each Node of east."""
    return [node.pods[0] for node in lab.topology.cluster("east").nodes]


def answer(lab: Lab, client: Pod, address: object, port: int, *, timeout: float = 1.0) -> str:
    """Return the source that the server sees of a new connection, "" if it gets no answer."""
    try:
        reply = traffic.tcp(lab.namespace(client), address, port, timeout=timeout, source_port=next(SOURCE_PORTS))
    except LabError:
        return ""
    return reply.source


def failures_of(lab: Lab, targets: Sequence[tuple[object, int]], until: Callable[[], bool]) -> list[str]:
    """Open connections from all Nodes, again and again until `until`; return those without the right answer."""
    right = str(lab.topology.cluster("east").gateways[0].tunnel_address)
    begin, failures = time.monotonic(), []
    while not until():
        for client in clients(lab):
            for address, port in targets:
                source = answer(lab, client, address, port, timeout=RETRANSMITTED)
                if source != right:
                    after = time.monotonic() - begin
                    failures.append(f"after {after:.1f} s: {client.name} -> {address}: {source or 'no answer'}")
        pause(ROUND)
    return failures


def after(seconds: float) -> Callable[[], bool]:
    """Return a condition that is true after so many seconds from now."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


@pytest.mark.timing
@pytest.mark.parametrize("pod_to_pod", [False, True])
def test_antreas_gateway_moves(lab: Lab, pod_to_pod: bool) -> None:
    """New connections work at once, from the gateway's address; none of them breaks when BFD has judged."""
    east, west = lab.topology.clusters
    first, second = west.nodes
    lab.program_antrea(antrea.Settings(pod_to_pod=pod_to_pod))
    service = str(west.services[0].cluster_ip)
    targets = [(service, 80), *((str(node.pods[0].address), DIRECT_PORT) for node in west.nodes if pod_to_pod)]
    for node in (second, first):
        place(lab, node, pod_to_pod=pod_to_pod)
        begin = time.monotonic()
        wait_until(lambda: all(answer(lab, client, service, 80) for client in clients(lab)), "answers", timeout=5)
        seconds = time.monotonic() - begin
        with ExitStack() as stack:
            opened = [
                stack.enter_context(
                    TcpClient(lab.namespace(client), str(address), port, source_port=next(SOURCE_PORTS))
                )
                for client in clients(lab)
                for address, port in targets
            ]
            assert failures_of(lab, targets, after(PATIENCE + 2)) == []
            for connection in opened:
                connection.exchange(b"not reset")
        sources = {answer(lab, peer.pods[0], east.services[0].cluster_ip, 80) for peer in west.nodes}
        assert sources == {str(matrix.seen_as(node))}
        assert seconds < allowed(AT_ONCE)
        assert judged(lab)


@pytest.mark.timing
def test_agents_that_start_during_a_move(lab: Lab) -> None:
    """They have the verdict from their Gateway: the new tunnel did not exist when they ended."""
    first, second = lab.topology.cluster("west").nodes
    gateways = [gateway.name for gateway in lab.topology.cluster("east").gateways]
    service = str(lab.topology.cluster("west").services[0].cluster_ip)

    def published(name: str) -> bool:
        gateway: Any = lab.api("east").get("Gateway", name, objects.NAMESPACE)
        return bool(gateway.get("status", {}).get("antreaClusters") == ["west"])

    wait_until(lambda: all(map(published, gateways)), "the verdicts in the Gateways", timeout=SOON)
    for name in gateways:
        lab.stop_agent(name, kill=True)
    try:
        place(lab, second, pod_to_pod=False)
    finally:
        for name in gateways:
            lab.start_agent(name)
    lab.wait_ready(*gateways)
    assert judged(lab)
    wait_until(lambda: all(answer(lab, client, service, 80) for client in clients(lab)), "answers", timeout=5)
    assert failures_of(lab, [(service, 80)], after(3.0)) == []
    place(lab, first, pod_to_pod=False)
    wait_until(lambda: all(answer(lab, client, service, 80) for client in clients(lab)), "answers", timeout=5)


@pytest.mark.timing
def test_a_second_gateway_comes(lab: Lab) -> None:
    """It has the verdict of the first one: connections by it are handed over, and none fails."""
    second = lab.topology.cluster("east").gateways[1]
    service = str(lab.topology.cluster("west").services[0].cluster_ip)
    lab.program_antrea(antrea.Settings(pod_to_pod=False))
    api = lab.api("east")

    def role() -> object:
        summary = lab.status(second.name)["summary"]
        assert isinstance(summary, dict)
        return summary["role"]

    api.delete("Gateway", second.name, objects.NAMESPACE)
    wait_until(lambda: role() == "worker", f"{second.name} to be a worker", timeout=SOON)
    api.create(objects.gateway_object(lab.topology.cluster("east"), second))
    wait_until(lambda: role() == "gateway", f"{second.name} to be a gateway", timeout=SOON)
    assert failures_of(lab, [(service, 80)], after(PATIENCE + 2)) == []
