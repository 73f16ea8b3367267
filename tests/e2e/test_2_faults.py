"""What happens to Nodes and control planes of real Kubernetes, and what connections and datagrams notice of it."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from devtools.k8s import addons
from tests.e2e.guide import UPGRADE
from tests.e2e.world import World, until

NOT_READY = 80.0  # seconds: after 40 Kubernetes says so of a Node whose kubelet is silent
API_AWAY = 60.0  # seconds: longer than the 40 after which a Node would not be Ready
# Of 100 datagrams a second: Open vSwitch's userspace datapath may lose one or two when a Pod's device comes or
# goes on a gateway (docs/failover.md), and Pods come and go unasked. A dataplane that stops loses more.
STRAY = 4
SILENCE = 1.5  # seconds that a lost gateway may cost on a busy machine; what is promised is in docs/failover.md


def _moment(seconds: float) -> None:
    end = time.monotonic() + seconds
    until(lambda: time.monotonic() >= end, "a moment", timeout=seconds + 5)


def _kube_proxy_restarted(world: World) -> None:
    for node in world.lab.nodes():
        world.lab.restart(node.node.name, "kube-proxy")
    _moment(3)


def _containerd_restarted(world: World) -> None:
    for node in world.serving.nodes:  # not where clients run: `kubectl exec` goes through containerd
        world.lab.restart(node.name, "containerd")
    _moment(3)


def _no_dns(world: World) -> None:
    for cluster in world.lab.topology.clusters:
        world.lab.kubectl(cluster, "-n", "kube-system", "delete", "pod", "-l", "k8s-app=kube-dns")
        world.lab.rolled_out(cluster, "kube-system", "deployment/coredns")


def _chart_upgraded(world: World) -> None:
    for cluster in world.lab.topology.clusters:
        world.guide.run(cluster, UPGRADE, "--set", "agent.podAnnotations.upgraded=yes")
        world.lab.rolled_out(cluster, "kube-system", "daemonset/mcagent-agent")


def _chart_rolled_back(world: World) -> None:
    world.guide.run(world.serving, "helm rollback mcagent -n kube-system")
    world.lab.rolled_out(world.serving, "kube-system", "daemonset/mcagent-agent")


def _controllers_killed(world: World) -> None:
    for cluster in world.lab.topology.clusters:
        world.lab.kubectl(
            cluster,
            "-n",
            "kube-system",
            "delete",
            "pod",
            "-l",
            "app.kubernetes.io/component=member",
            "--grace-period=1",
        )
        world.lab.rolled_out(cluster, "kube-system", "deployment/mcagent-member")


def _no_api_server(world: World) -> None:
    world.lab.stop_control_plane(world.serving)
    _moment(API_AWAY)
    world.lab.start_control_plane(world.serving)


HARMLESS = {
    "kube-proxy restarted": _kube_proxy_restarted,
    "containerd restarted": _containerd_restarted,
    "CoreDNS replaced": _no_dns,
    "chart upgraded": _chart_upgraded,
    "chart rolled back": _chart_rolled_back,
    "controllers killed": _controllers_killed,
    "API server gone": _no_api_server,
}


@pytest.mark.timing
@pytest.mark.parametrize("act", HARMLESS.values(), ids=HARMLESS.keys())
def test_what_does_not_carry_packets_costs_none(world: World, act: Callable[[World], None]) -> None:
    """No connection breaks and no datagram is lost, but those that Open vSwitch loses when Pods come and go."""
    with world.traffic() as traffic:
        act(world)
    assert traffic.connections.broken == 0, str(traffic)
    assert traffic.lost <= STRAY, str(traffic)
    world.settled()


@pytest.mark.timing
def test_a_gateway_node_is_drained(world: World) -> None:
    """`kubectl drain` moves its traffic before anything ends; its Pods start elsewhere meanwhile."""
    victim = world.demo.victim.name
    options = ("--ignore-daemonsets", "--delete-emptydir-data", "--force")
    with world.traffic() as traffic:
        world.lab.kubectl(world.serving, "drain", victim, *options, timeout=120.0)
        until(lambda: "GatewayDrained" in world.events(world.serving, victim), f"{victim} to be drained")
        _moment(3)
        world.lab.kubectl(world.serving, "uncordon", victim)
        _moment(8)
    assert traffic.connections.broken == 0, str(traffic)
    assert traffic.lost <= STRAY, str(traffic)
    world.settled()


@pytest.mark.timing
def test_a_kubelet_that_stops_ends_no_connection(world: World) -> None:
    """Its Node is NotReady after 40 s; the dataplane of the Node is well."""
    victim = world.demo.victim.name
    with world.traffic() as traffic:
        world.lab.machine(world.demo.victim).end("kubelet")
        until(lambda: world.ready(world.serving, victim) != "True", f"{victim} to be NotReady", timeout=NOT_READY)
        _moment(3)
        world.lab.restart(victim, "kubelet")
        until(lambda: world.ready(world.serving, victim) == "True", f"{victim} to be Ready")
        _moment(3)
    assert traffic.connections.broken == 0, str(traffic)
    assert traffic.lost <= STRAY, str(traffic)
    world.settled()


@pytest.mark.timing
def test_a_gateway_node_loses_its_power_and_comes_back(world: World) -> None:
    """No connection breaks, the silence is short, and the Node is a gateway again when it is back."""
    victim = world.demo.victim.name
    with world.traffic() as traffic:
        world.lab.power_off(victim)
        _moment(8)
    assert traffic.connections.broken == 0, str(traffic)
    assert max(traffic.connections.longest, traffic.datagrams.longest) < SILENCE, str(traffic)
    with world.traffic() as traffic:
        world.lab.power_on(victim)
        until(lambda: world.ready(world.serving, victim) == "True", f"{victim} to be Ready", timeout=120.0)
        _moment(5)
    assert traffic.connections.broken == 0, str(traffic)
    world.settled()


@pytest.mark.timing
def test_a_node_is_deleted_and_added_again(world: World) -> None:
    """The cluster goes on with the other gateway, and takes the Node back."""
    victim = world.demo.victim
    with world.traffic() as traffic:
        world.lab.machine(victim).end("kubelet")
        world.lab.kubectl(world.serving, "delete", "node", victim.name)
        until(lambda: victim.name not in world.gateways(world.serving), f"{victim.name} to be no gateway")
        _moment(3)
        world.lab.kubectl(world.serving, "apply", "-f", "-", objects=[addons.node(victim)])
        world.lab.restart(victim.name, "kubelet")
        annotation = "multicluster.antrea.io/gateway=true"
        world.lab.kubectl(world.serving, "annotate", "node", victim.name, annotation, "--overwrite")
        until(lambda: victim.name in world.gateways(world.serving), f"{victim.name} to be a gateway again")
    assert traffic.connections.broken == 0, str(traffic)
    world.settled()
