"""`mcagent trace` agrees with real packets: where they arrive and end, which way they go, how answers return."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from devtools.errors import LabError
from devtools.lab.faults import BRIDGE, Settled, port_blocked
from devtools.lab.lab import Lab
from devtools.lab.objects import NAMESPACE
from devtools.lab.topology import POD_PORT, SERVICE_PORT, Topology, generate
from devtools.nodes import netns
from devtools.traffic import traffic
from devtools.waiting import wait_until
from tests.lab.gateways import wait_for_bfd
from tests.lab.traces import nodes_of, trace

pytestmark = [pytest.mark.packets, pytest.mark.datapath]

SILENCE = 2.0  # seconds without an answer that count as none


@pytest.fixture(scope="module")
def lab(make_lab: Callable[[Topology], Lab]) -> Iterator[Lab]:
    """Two clusters with two gateways and a worker each."""
    with make_lab(generate(name="trace", clusters=2, gateways=2, workers=1, pods=1)) as lab:
        east, west = lab.topology.clusters
        wait_for_bfd(lab, *east.nodes, *west.nodes)  # it chooses the way
        yield lab


def answers(lab: Lab, pod: str, target: object, port: int, *, timeout: float | None = None) -> bool:
    """Tell whether a real connection gets an answer; `timeout`: seconds, where none is expected."""
    try:
        traffic.tcp(lab.namespace(pod), target, port, timeout=timeout)
    except LabError:
        return False
    return True


def test_trace_agrees_with_packets(lab: Lab) -> None:
    """Pods and Services are reached as the trace says, and what is dropped ends there."""
    east, west = lab.topology.clusters
    worker, far = east.nodes[-1], west.nodes[-1]
    (pod,), (peer,) = worker.pods, far.pods

    assert answers(lab, pod.name, peer.address, POD_PORT)
    walk, shown = trace(lab, worker.name, pod.address, f"{peer.address}:{POD_PORT}")
    way = nodes_of(walk)
    assert (way[0], way[-1], len(way)) == (worker.name, far.name, 4), shown
    assert walk["delivered"]
    back = nodes_of(walk, "answer")
    assert (back[:2], back[-1], len(back)) == (way[:1:-1], worker.name, 4), "it prefers the gateway it came by"
    assert walk["answered"]

    service = next(one for one in west.services if one.exported)
    assert answers(lab, pod.name, service.cluster_ip, SERVICE_PORT)
    walk, shown = trace(lab, worker.name, pod.address, f"{service.cluster_ip}:{SERVICE_PORT}")
    assert walk["delivered"], shown
    assert f"translated: destination {service.cluster_ip}" in shown
    assert walk["answered"], shown
    last = walk["answer"][-1]
    assert (last["node"], last["walk"]["source"]) == (worker.name, str(service.cluster_ip))

    closed = next(one for one in west.services if not one.exported)
    assert not answers(lab, pod.name, closed.cluster_ip, SERVICE_PORT, timeout=SILENCE)
    walk, shown = trace(lab, worker.name, pod.address, f"{closed.cluster_ip}:{SERVICE_PORT}")
    assert "not-exported" in shown
    assert nodes_of(walk)[-1] in {node.name for node in west.gateways}

    walk, shown = trace(lab, worker.name, "10.99.99.99", str(peer.address))
    assert nodes_of(walk) == [worker.name]
    assert "spoofed" in shown


@pytest.mark.parametrize("protocol", ["tcp", "udp", "icmp"])
def test_real_probes_are_seen_on_the_whole_way(lab: Lab, protocol: str) -> None:
    """Each Node of the way has seen them, as the trace says it, and an answer came back."""
    east, west = lab.topology.clusters
    worker, far = east.nodes[-1], west.nodes[-1]
    (pod,), (peer,) = worker.pods, far.pods
    target = f"{peer.address}:{POD_PORT}"
    walk, shown = trace(lab, worker.name, pod.address, target, "--live", "--proto", protocol)
    assert walk["live"]["answered"], shown
    assert [(sight["node"], sight["seen"]) for sight in walk["live"]["sights"]] == [
        (node, True) for node in nodes_of(walk)
    ]
    assert walk["live"]["last_seen"] == far.name


def test_lost_probes_are_last_seen_before_the_loss(lab: Lab) -> None:
    """The last to see them is a gateway here if all ways between gateways are closed, and the Pod's Node else."""
    east, west = lab.topology.clusters
    worker, far = east.nodes[-1], west.nodes[-1]
    (pod,), (peer,) = worker.pods, far.pods
    walk, shown = trace(
        lab, worker.name, pod.address, f"{peer.address}:{POD_PORT + 1}", "--live", "--proto", "udp"
    )
    assert walk["live"]["last_seen"] == far.name
    assert "no answer came" in walk["live"]["verdict"], shown
    with contextlib.ExitStack() as faults:
        for gateway in east.gateways:
            for other in west.gateways:
                fault = port_blocked(lab, gateway.name, other.name)
                fault.inject()
                faults.callback(fault.heal)
        walk, shown = trace(lab, worker.name, pod.address, f"{peer.address}:{POD_PORT}", "--live")
        assert walk["live"]["last_seen"] in {node.name for node in east.gateways}, shown
        assert "never arrived" in walk["live"]["verdict"], shown
        # The traced way may lead over both gateways: BFD does not lose all tunnels at the same instant.
        seen_by = [gateway["seen"] for gateway in walk["live"]["sights"]]
        assert seen_by == [True, True] + [False] * (len(seen_by) - 2), shown
    wait_until(lambda: answers(lab, pod.name, peer.address, POD_PORT), "the ways to be open again", timeout=30)


def test_nobody_elses_packets_are_sent(lab: Lab) -> None:
    """Not in the name of a Node, of another Node's Pod, or by a port that the Pod uses."""
    east, west = lab.topology.clusters
    worker, (peer,) = east.nodes[-1], west.nodes[-1].pods
    (pod,) = worker.pods

    def refused(status: int, source: object, port: int = 23000) -> None:
        query = f"in_port=1&source={source}&destination={peer.address}&protocol=tcp&source_port={port}"
        page = f"/trace/live?{query}&port={POD_PORT}&mac=plain"
        wait_until(lambda: lab.post(worker.name, page)[0] == status, f"status {status}", timeout=10, interval=1)

    refused(403, worker.address)
    refused(403, east.gateways[0].pods[0].address)
    with netns.call(
        lab.namespace(pod.name), lambda: socket.create_connection((str(peer.address), POD_PORT))
    ) as sock:
        refused(409, pod.address, sock.getsockname()[1])
        sock.sendall(b"x")
        assert sock.recv(1)


def test_a_dead_gateway_is_named_and_passed_by(lab: Lab) -> None:
    """When a gateway is lost the trace goes by the other one and says why, as packets do."""
    east, west = lab.topology.clusters
    worker, (peer,) = east.nodes[-1], west.nodes[-1].pods
    (pod,) = worker.pods
    dead = east.gateways[0]
    ovs = lab.ovs(dead.name)
    wait_for_bfd(lab, *east.nodes, *west.nodes)
    lab.stop_agent(dead.name)
    ovs.stop_vswitchd()
    try:

        def by_other() -> bool:
            walk, shown = trace(lab, worker.name, pod.address, f"{peer.address}:{POD_PORT}")
            return bool(walk["delivered"]) and f"not by: {dead.name}" in shown

        wait_until(by_other, "the trace to go by the other gateway", timeout=30, interval=0.5)
        assert answers(lab, pod.name, peer.address, POD_PORT)
        walk, _ = trace(lab, worker.name, pod.address, f"{peer.address}:{POD_PORT}")
        assert dead.name not in nodes_of(walk)
    finally:
        lab.restart_vswitchd(dead.name, kill=False)
        lab.start_agent(dead.name)
        lab.wait_ready(dead.name)
    assert BRIDGE in ovs.vsctl("list-br")


SAME = ("tables", "outcome", "reason", "source", "destination", "source_port", "port", "mac", "exports")


def essence(hop: dict[str, Any]) -> dict[str, Any]:
    """Return what a hop says of the way."""
    tunnel = hop["tunnel"] and hop["tunnel"]["name"]
    return {"node": hop["node"], "tunnel": tunnel, **{key: hop["walk"][key] for key in SAME}}


def test_nodes_without_agents_are_simulated(lab: Lab) -> None:
    """What a trace says of them from objects alone is what they said themselves, there and back."""
    east, west = lab.topology.clusters
    worker, far = east.nodes[-1], west.nodes[-1]
    (pod,) = worker.pods
    service = next(one for one in west.services if one.exported)
    target = f"{service.cluster_ip}:{SERVICE_PORT}"
    Settled(lab)  # no gateway of an earlier test is damped: objects do not tell who is
    live_walk, shown = trace(lab, worker.name, pod.address, target)
    assert live_walk["answered"], shown
    config = (lab.directory(far.name) / "agent.yaml").read_text()
    labels = {"app.kubernetes.io/name": "mcagent", "app.kubernetes.io/component": "agent"}
    west_api = lab.api(west.name)
    west_api.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "mcagent-agent", "namespace": NAMESPACE, "labels": labels},
            "data": {"agent.yaml": config},
        }
    )
    flags = ["--kubeconfig", str(lab.kubeconfig(east.name)), *lab.agent_flags(worker.name)]
    there = ["--remote-kubeconfig", str(lab.kubeconfig(west.name))]
    stopped = {node.name for cluster in (east, west) for node in cluster.nodes} - {worker.name}
    for name in stopped:
        lab.stop_agent(name)
    try:
        ended, shown = trace(lab, worker.name, pod.address, target, *flags)
        assert [hop["from"] for hop in ended["hops"]] == ["switch", "simulator", None], shown
        assert "--remote-context" in shown
        walk, shown = trace(lab, worker.name, pod.address, target, *flags, *there)
        assert walk["answered"], shown
        for way in ("hops", "answer"):
            assert list(map(essence, walk[way])) == list(map(essence, live_walk[way])), shown
            origins = [hop["from"] for hop in walk[way]]
            assert origins == ["simulator" if node in stopped else "switch" for node in nodes_of(walk, way)]
        simulated = next(hop for hop in walk["hops"] if hop["cluster"] == west.name)
        assert simulated["why"].startswith("simulated: ")
        assert f"the configuration in ConfigMap {NAMESPACE}/mcagent-agent" in simulated["why"]
    finally:
        for name in stopped:
            lab.start_agent(name)
        lab.wait_ready()
