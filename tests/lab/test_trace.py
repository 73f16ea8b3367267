"""`mcagent trace` agrees with real packets: where they arrive, where they end, and by which gateway they go."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from devtools.errors import LabError
from devtools.lab.faults import BRIDGE
from devtools.lab.lab import Lab
from devtools.lab.running import environment
from devtools.lab.topology import POD_PORT, SERVICE_PORT, Topology, generate
from devtools.nodes import netns
from devtools.traffic import traffic
from devtools.waiting import wait_until


@pytest.fixture(scope="module")
def lab(make_lab: Callable[[Topology], Lab]) -> Iterator[Lab]:
    """Two clusters with two gateways and a worker each."""
    with make_lab(generate(name="trace", clusters=2, gateways=2, workers=1, pods=1)) as made:
        yield made


def trace(lab: Lab, node: str, source: object, target: str, *more: str) -> tuple[dict[str, Any], str]:
    """Return what the command says as JSON, and as text; its exit code says the same."""
    argv = ["trace", "--from", str(source), "--to", target, "--node", node, *more]
    argv = lab.agent_command(*argv, "--agents", str(lab.agents_file()))
    told = netns.execute(lab.namespace(node), [*argv, "-o", "json"], check=False, env=environment())
    found: dict[str, Any] = json.loads(told.stdout)
    assert told.returncode == (0 if found["delivered"] else 1)
    return found, netns.execute(lab.namespace(node), argv, check=False, env=environment()).stdout


def nodes_of(found: dict[str, Any]) -> list[str]:
    """Return the Nodes of the way."""
    return [hop["node"] for hop in found["hops"]]


def answers(lab: Lab, pod: str, target: object, port: int) -> bool:
    """Tell whether a real connection gets an answer."""
    try:
        traffic.tcp(lab.namespace(pod), target, port, timeout=2.0)
    except LabError:
        return False
    return True


def test_trace_agrees_with_packets(lab: Lab) -> None:
    """Pods and Services are reached as the trace says, and what is dropped ends there."""
    east, west = lab.topology.clusters
    worker, far = east.nodes[-1], west.nodes[-1]
    (pod,), (peer,) = worker.pods, far.pods

    assert answers(lab, pod.name, peer.address, POD_PORT)
    found, shown = trace(lab, worker.name, pod.address, f"{peer.address}:{POD_PORT}")
    way = nodes_of(found)
    assert (way[0], way[-1], len(way)) == (worker.name, far.name, 4), shown
    assert found["delivered"]

    service = next(one for one in west.services if one.exported)
    assert answers(lab, pod.name, service.cluster_ip, SERVICE_PORT)
    found, shown = trace(lab, worker.name, pod.address, f"{service.cluster_ip}:{SERVICE_PORT}")
    assert found["delivered"], shown
    assert "translated  destination" in shown

    closed = next(one for one in west.services if not one.exported)
    assert not answers(lab, pod.name, closed.cluster_ip, SERVICE_PORT)
    found, shown = trace(lab, worker.name, pod.address, f"{closed.cluster_ip}:{SERVICE_PORT}")
    assert "not-exported" in shown
    assert nodes_of(found)[-1] in {node.name for node in west.gateways}

    found, shown = trace(lab, worker.name, "10.99.99.99", str(peer.address))
    assert nodes_of(found) == [worker.name]
    assert "spoofed" in shown


def test_a_dead_gateway_is_named_and_passed_by(lab: Lab) -> None:
    """When a gateway is lost the trace goes by the other one and says why, as packets do."""
    east, west = lab.topology.clusters
    worker, (peer,) = east.nodes[-1], west.nodes[-1].pods
    (pod,) = worker.pods
    dead = east.gateways[0]
    ovs = lab.ovs(dead.name)
    lab.stop_agent(dead.name)
    ovs.stop_vswitchd()
    try:

        def by_other() -> bool:
            found, shown = trace(lab, worker.name, pod.address, f"{peer.address}:{POD_PORT}")
            return bool(found["delivered"]) and f"not by      {dead.name}" in shown

        wait_until(by_other, "the trace to go by the other gateway", timeout=30, interval=0.5)
        assert answers(lab, pod.name, peer.address, POD_PORT)
        found, _ = trace(lab, worker.name, pod.address, f"{peer.address}:{POD_PORT}")
        assert dead.name not in nodes_of(found)
    finally:
        lab.restart_vswitchd(dead.name, kill=False)
        lab.start_agent(dead.name)
        lab.wait_ready(dead.name)
    assert BRIDGE in ovs.vsctl("list-br")
