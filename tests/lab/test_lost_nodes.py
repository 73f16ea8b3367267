"""Nodes whose objects lose their addresses or are deleted, and clusters whose gateways go: nothing leaks."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from devtools.lab import objects
from devtools.lab.faults import Settled
from devtools.lab.lab import Lab
from devtools.lab.topology import POD_PORT, Pod, Topology, generate
from devtools.nodes import underlay
from devtools.traffic import traffic
from devtools.traffic.capture import ETHERNET_HEADER, Capture
from devtools.waiting import wait_until
from tests.attacks import packets

NOWHERE = "10.250.0.1"  # in no cluster: its packets leave by the default route
LEAK = b"leaks?"  # the payload of these packets
REPORTED = 60.0  # seconds
AWAY = 5.0  # seconds without addresses
ALONE = 2.0  # seconds of an agent without API server


@pytest.fixture(scope="module")
def lab(make_lab: Callable[[Topology], Lab]) -> Lab:
    """Two clusters, each with one gateway and one worker."""
    return make_lab(generate(clusters=2, gateways=1, workers=1, pods=1))


@pytest.fixture(autouse=True)
def _at_rest(lab: Lab, settled: Settled) -> Iterator[None]:
    lab.wait_ready()
    settled.wait()
    yield
    settled.wait()


def reasons(lab: Lab, node: str) -> set[str]:
    """Return the reasons of the problems of a Node's agent."""
    problems: Any = lab.status(node)["problems"]
    return {problem["reason"] for problem in problems}


def summary(lab: Lab, node: str) -> tuple[object, object]:
    """Return the role that a Node's agent has, and the number of tunnels."""
    status: Any = lab.status(node)["summary"]
    return status["role"], status["tunnels"]


def pods(lab: Lab) -> tuple[Pod, Pod]:
    """Return a Pod on the worker of each cluster."""
    east, west = lab.topology.clusters
    return east.workers[0].pods[0], west.workers[0].pods[0]


def test_nodes_without_addresses_for_a_moment_lose_no_packet(lab: Lab) -> None:
    """The InternalIPs of gateway and worker are gone for seconds: a warning, the same roles, no lost packet."""
    east = lab.topology.clusters[0]
    api, names = lab.api(east.name), [node.name for node in east.nodes]
    raw: Any = {name: api.get("Node", name, "") for name in names}
    addresses = {name: raw[name]["status"]["addresses"] for name in names}
    roles = {name: summary(lab, name) for name in names}
    client, server = pods(lab)
    with traffic.UdpStream(lab.namespace(client), server.address, POD_PORT, rate=50) as stream:
        for name in names:
            api.patch_status("Node", name, {"addresses": [{"type": "Hostname", "address": name}]}, "")
        wait_until(
            lambda: all("LastValueUsed" in reasons(lab, name) for name in names), "warnings", timeout=REPORTED
        )
        received = stream.received
        wait_until(lambda: stream.received > received + 50 * AWAY, "answers meanwhile", timeout=REPORTED)
        assert {name: summary(lab, name) for name in names} == roles
        for name in names:
            api.patch_status("Node", name, {"addresses": addresses[name]}, "")
        wait_until(lambda: not any(reasons(lab, name) for name in names), "no warning", timeout=REPORTED)
    assert stream.result is not None
    assert stream.result.sent > 50 * AWAY
    assert stream.result.lost == 0


def test_the_agent_of_a_deleted_node_goes_on(lab: Lab) -> None:
    """It keeps its role and tunnels, and says why; other Nodes remove theirs until the object is back."""
    worker = lab.topology.clusters[0].workers[0].name
    api = lab.api(lab.topology.clusters[0].name)
    raw: Any = api.get("Node", worker, "")
    before = summary(lab, worker)
    api.delete("Node", worker, "")
    wait_until(lambda: "NodeDeleted" in reasons(lab, worker), "a warning", timeout=REPORTED)
    assert summary(lab, worker) == before
    with no_leak(lab) as send:
        send()
    metadata = {key: raw["metadata"][key] for key in ("name", "labels", "annotations") if key in raw["metadata"]}
    api.create({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": raw["spec"]})
    api.patch_status("Node", worker, raw["status"], "")
    wait_until(lambda: not reasons(lab, worker), "no warning", timeout=REPORTED)


@contextmanager
def no_leak(lab: Lab) -> Iterator[Callable[[], None]]:
    """Check that no packet for the other cluster leaves outside a tunnel; yield a function that sends some.

    A packet to an address of no cluster shows that the capture sees what leaves by the default route.
    """
    client, server = pods(lab)
    targets = (server.address, lab.topology.clusters[1].services[0].cluster_ip)
    namespace = lab.namespace(client)

    def send_all() -> None:
        for target in (*targets, NOWHERE):
            packets.datagram(namespace, target, POD_PORT, LEAK)

    with Capture(lab.underlay, underlay.bridge(1)) as uplinks:

        def destinations() -> set[str]:
            return {
                socket.inet_ntoa(packet.frame[ETHERNET_HEADER + 16 : ETHERNET_HEADER + 20])
                for packet in uplinks.holding(LEAK)
            }

        yield send_all
        wait_until(lambda: NOWHERE in destinations(), "the packet to nowhere", timeout=REPORTED)
        assert not destinations() & {str(target) for target in targets}


@contextmanager
def without_gateway(lab: Lab) -> Iterator[None]:
    """Delete the only Gateway of the first cluster for a while."""
    east = lab.topology.clusters[0]
    api, gateway = lab.api(east.name), east.gateways[0].name
    raw: Any = api.get("Gateway", gateway, objects.NAMESPACE)
    api.delete("Gateway", gateway, objects.NAMESPACE)
    try:
        yield
    finally:
        metadata = {key: raw["metadata"][key] for key in ("name", "namespace")}
        fields = {key: value for key, value in raw.items() if key not in ("metadata", "status")}
        api.create({**fields, "metadata": metadata})


def test_without_a_gateway_nothing_leaks_to_the_default_route(lab: Lab) -> None:
    """While the last Gateway goes, is gone and returns, packets to the other cluster are dropped."""
    worker = lab.topology.clusters[0].workers[0].name
    with no_leak(lab) as send:

        def has_role(expected: str) -> bool:
            send()
            return summary(lab, worker)[0] == expected

        with without_gateway(lab):
            wait_until(lambda: has_role("none"), "no role", timeout=REPORTED, interval=0.05)
            deadline = time.monotonic() + AWAY
            wait_until(lambda: has_role("none") and time.monotonic() > deadline, "a while", timeout=REPORTED)
            assert "NoRole" in reasons(lab, worker)
        wait_until(lambda: has_role("worker"), "the role", timeout=REPORTED, interval=0.05)
    wait_until(lambda: not reasons(lab, worker), "no problem", timeout=REPORTED)


@pytest.mark.parametrize("api_server", ["present", "away"])
@pytest.mark.parametrize("service_cidr", ["configured", "unknown"])
@pytest.mark.parametrize("gateways", ["present", "gone"])
def test_a_restarted_agent_lets_nothing_leak(lab: Lab, gateways: str, service_cidr: str, api_server: str) -> None:
    """A new process knows nothing of the last: packets to the other cluster go into a tunnel, or are dropped."""
    east = lab.topology.clusters[0]
    worker = east.workers[0].name
    changes = {"serviceCIDRs": [str(east.service_cidr)]} if service_cidr == "configured" else {}
    role = "none" if gateways == "gone" else "worker"
    with no_leak(lab) as send, ExitStack() as repairs:

        def sends_and(condition: Callable[[], object]) -> Callable[[], object]:
            def holds() -> object:
                send()
                return condition()

            return holds

        if gateways == "gone":
            repairs.enter_context(without_gateway(lab))
            wait_until(lambda: summary(lab, worker)[0] == role, "no role", timeout=REPORTED)
        lab.stop_agent(worker, kill=True)
        if api_server == "away":
            lab.stop_api(east.name)
        lab.start_agent(worker, changes)
        if api_server == "away":
            deadline = time.monotonic() + ALONE
            wait_until(sends_and(lambda: time.monotonic() > deadline), "a while", timeout=REPORTED)
            lab.start_api(east)
        has_role = sends_and(lambda: lab.ready(worker) and summary(lab, worker)[0] == role)
        wait_until(has_role, "the agent", timeout=REPORTED, interval=0.05)
        wait_until(
            sends_and(lambda: ("NoRole" in reasons(lab, worker)) is (role == "none")), "NoRole", timeout=REPORTED
        )
    lab.stop_agent(worker)
    lab.start_agent(worker)


def test_a_new_node_without_a_gateway_lets_nothing_leak(lab: Lab) -> None:
    """Its agent has never seen a Gateway, and nothing of mcagent is in its kernel."""
    worker = lab.topology.clusters[0].workers[0].name
    with without_gateway(lab):
        wait_until(lambda: "NoRole" in reasons(lab, worker), "no role", timeout=REPORTED)
        lab.stop_agent(worker)
        lab.mcagent(worker, "cleanup")
        lab.start_agent(worker)
        wait_until(lambda: lab.ready(worker) and "NoRole" in reasons(lab, worker), "no role", timeout=REPORTED)
        with no_leak(lab) as send:
            send()
