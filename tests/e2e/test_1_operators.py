"""What operators ask from their own machine, with a kubeconfig of both clusters; agents answer by their Pods."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest

from devtools.errors import LabError
from devtools.k8s import workloads
from devtools.k8s.demo import IMPORTED, MCAGENT, kubeconfig_of_all
from devtools.k8s.node import K8sCni
from devtools.nodes import netns
from mcagent.cli.benchmarking.pods import LABEL
from mcagent.cli.common import exit_codes
from tests.e2e.world import World, until

Operator = Callable[..., tuple[int, dict[str, Any]]]
RECOGNISED = {
    K8sCni.FLANNEL: "flannel (VXLAN)",
    K8sCni.BRIDGE: "none that is known",
    K8sCni.KUBE_ROUTER: "kube-router",
}


@pytest.fixture(scope="module")
def operator(world: World) -> Operator:
    """Give a function that runs a command of mcagent where no agent is, and returns exit code and JSON."""
    clusters = world.lab.topology.clusters
    kubeconfig = kubeconfig_of_all(world.lab)

    def run(*arguments: str, timeout: float = 120.0) -> tuple[int, dict[str, Any]]:
        command = [*world.lab.beside(clusters[0]), "env", f"KUBECONFIG={kubeconfig}", str(MCAGENT), *arguments]
        done = netns.run([*command, "-o", "json"], timeout=timeout, check=False)
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    return run


def test_doctor_asks_every_node(world: World, operator: Operator) -> None:
    """All agents answer, and nothing is wrong."""
    world.settled()
    findings: dict[str, Any] = {}

    def failed() -> list[dict[str, str]]:
        findings.update(operator("doctor", "--all", "--context", world.serving.name)[1])
        parts = (*findings["clusters"], *findings["nodes"])
        return [finding for part in parts for finding in part["findings"] if finding["level"] == "failed"]

    with contextlib.suppress(LabError):
        until(lambda: not failed(), "a cluster where nothing is wrong")
    assert not failed()
    assert {finding["node"] for finding in findings["nodes"]} == {finding.name for finding in world.serving.nodes}


def test_doctor_recognises_the_cni_of_every_node(world: World, operator: Operator) -> None:
    """By what the real one has made there; of a CNI that this repository does not provide, the name is unknown."""
    for cluster in world.lab.topology.clusters:
        cni = world.lab.cni(cluster)
        if isinstance(cni, K8sCni):
            report = operator("doctor", "--all", "--context", cluster.name)[1]
            detected = {node["node"]: _seen(node, "cni") for node in report["nodes"]}
            assert detected == dict.fromkeys((node.name for node in cluster.nodes), RECOGNISED[cni])


@pytest.mark.parametrize("target", ["pod", "service"])
def test_trace_shows_the_way_and_the_answer(world: World, operator: Operator, target: str) -> None:
    """From a Pod to the other cluster's Pod, or to the imported Service, over the Nodes of both."""
    (client, *_) = world.get(world.asking, "pods", "-l", "app=client")
    (server, *_) = world.servers()
    to = f"{server['status']['podIP']}:{workloads.PORT}" if target == "pod" else f"default/{IMPORTED}:80"
    pod = f"default/{client['metadata']['name']}"
    contexts = ("--context", world.asking.name, "--remote-context", world.serving.name)
    code, found = operator("trace", "--from", pod, "--to", to, *contexts)
    assert (code, found["delivered"], found["answered"]) == (exit_codes.OK, True, True), found
    assert found["hops"][0]["node"] == client["spec"]["nodeName"]
    assert found["hops"][-1]["node"] in {one["spec"]["nodeName"] for one in world.servers()}


def test_benchmark_measures_the_tunnel_beside_the_network_below(world: World, operator: Operator) -> None:
    """Its Pods run the agents' image, send both ways, and are gone at the end."""
    ways = ("--from", world.asking.name, "--to", world.serving.name)
    code, report = operator("benchmark", *ways, "--yes", "--seconds", "2", "--limit", "100Mbit", timeout=200.0)
    assert code == exit_codes.OK, report
    by_pod, by_node = report["ways"]
    assert (by_pod["way"], by_node["way"], by_pod["encrypted"]) == ("pod", "node", "none")
    for way in report["ways"]:
        assert way["bitsPerSecond"] > 1e6, report
        assert 0 < way["roundTripP50Seconds"] <= way["roundTripP99Seconds"]
    for cluster in world.lab.topology.clusters:
        assert not world.get(cluster, "pods", "-n", "kube-system", "-l", LABEL)


def _seen(report: dict[str, Any], check: str) -> str:
    """Return what a Node's report says of a check that gives one finding."""
    (finding,) = (one for one in report["findings"] if one["check"] == check)
    return str(finding["seen"])
