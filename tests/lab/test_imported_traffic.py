"""Which clusters get the connections to an imported Service, in real packets, as its ServiceImport says."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from devtools.errors import LabError
from devtools.lab import faults
from devtools.lab.api import Json
from devtools.lab.lab import Lab
from devtools.lab.topology import POD_PORT, Cluster, Pod, generate
from devtools.nodes import netns
from devtools.traffic import traffic
from devtools.waiting import wait_until
from mcagent.model.traffic import TRAFFIC_ANNOTATION
from tests.lab.traces import trace

ADDRESS = str(generate().clusters[0].service_cidr[200])  # of the imported Service: no kube-proxy knows it
PORT = 8053
CONNECTIONS = 400  # a share of 3/4 is off by 0.1 in less than one of 100,000 runs
IN_TIME = 15.0  # seconds until a change counts


@pytest.fixture(scope="module")
def lab(make_lab: Callable[..., Lab]) -> Lab:
    """Two clusters with a gateway and a worker each; a Service of both is imported by the first one."""
    shape = generate(pods=2)
    on = {"importedTraffic": "any"}
    made = make_lab(replace(shape, clusters=tuple(replace(c, config=on) for c in shape.clusters)))
    east, west = made.topology.clusters
    api = made.api(east.name)
    api.create(
        {
            "apiVersion": "multicluster.x-k8s.io/v1alpha1",
            "kind": "ServiceImport",
            "metadata": {"name": "both", "namespace": "default"},
            "spec": {
                "type": "ClusterSetIP",
                "ips": [ADDRESS],
                "ports": [{"name": "udp", "protocol": "UDP", "port": PORT}],
            },
        }
    )
    api.create(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "antrea-mc-both", "namespace": "default"},
            "spec": {"clusterIP": ADDRESS, "ports": [{"name": "udp", "protocol": "UDP", "port": PORT}]},
        }
    )
    api.create(endpoint_slice("east", [str(pod.address) for pod in pods(east)], POD_PORT))
    api.create(endpoint_slice("west", [str(west.services[0].cluster_ip)], west.services[0].port))
    made.wait_ready()
    return made


def pods(cluster: Cluster) -> list[Pod]:
    """Return the Pods of a cluster."""
    return [pod for node in cluster.nodes for pod in node.pods]


def endpoint_slice(cluster: str, addresses: list[str], port: int, *, ready: bool = True) -> Json:
    """Return the EndpointSlice of a cluster's endpoints."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"both-{cluster}",
            "namespace": "default",
            "labels": {
                "kubernetes.io/service-name": "antrea-mc-both",
                "multicluster.kubernetes.io/service-name": "both",
                "multicluster.kubernetes.io/source-cluster": cluster,
            },
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [one], "conditions": {"ready": ready}} for one in addresses],
        "ports": [{"name": "udp", "protocol": "UDP", "port": port}],
    }


def say(lab: Lab, text: str, **spec: object) -> None:
    """Annotate the ServiceImport."""
    change: Json = {"metadata": {"annotations": {TRAFFIC_ANNOTATION: text}}, "spec": spec}
    lab.api(lab.topology.clusters[0].name).patch("ServiceImport", "both", change)


def answered(lab: Lab, client: str, number: int, timeout: float = 3.0) -> Counter[str]:
    """Ask the Service from a namespace, each time by another port; return how often each cluster has answered."""
    found: Counter[str] = Counter()
    for _ in range(number):
        pod = traffic.udp(client, ADDRESS, PORT, b"x", timeout=timeout).pod
        found[lab.topology.pod(pod)[0].name] += 1
    return found


def becomes(lab: Lab, client: str, *clusters: str) -> None:
    """Wait until these clusters, and no others, answer a client."""

    def right() -> bool:
        try:
            return set(answered(lab, client, 12, timeout=0.5)) == set(clusters)
        except LabError:  # nobody's yet
            return False

    wait_until(right, f"{' and '.join(clusters)} to answer", timeout=IN_TIME)


def shares_told(lab: Lab) -> dict[str, float]:
    """Return the share of each endpoint as `mcagent trace` tells it, and traces the other cluster's."""
    worker = lab.topology.clusters[0].workers[0]
    found, shown = trace(lab, worker.name, worker.pods[0].address, f"{ADDRESS}:{PORT}", "--proto", "udp")
    assert found["answered"], shown
    assert found["service"]["chosen_by"] == f"the agent of {worker.name}"
    return {one["address"]: one["share"] for one in found["service"]["endpoints"]}


def test_connections_follow_weights_ranks_and_readiness(lab: Lab) -> None:
    """Shared 3 : 1, whatever the numbers of endpoints; or here first, and there while nothing is ready here."""
    east = lab.topology.clusters[0]
    api = lab.api(east.name)
    own = [str(pod.address) for pod in pods(east)]
    west_web = str(lab.topology.clusters[1].services[0].cluster_ip)
    for place in (
        east.workers[0].pods[0],
        east.gateways[0].pods[0],
        east.workers[0],
    ):  # a process of the Node, too
        client = lab.namespace(place)
        say(lab, "local=3, west=1")
        becomes(lab, client, "east", "west")
        share = answered(lab, client, CONNECTIONS)["east"] / CONNECTIONS
        assert 0.65 < share < 0.85
        told = shares_told(lab)
        assert sum(part for address, part in told.items() if address in own) == pytest.approx(0.75, abs=0.001)
        assert told[west_web] == pytest.approx(0.25, abs=0.001)
        say(lab, "local > *")
        becomes(lab, client, "east")
    api.apply(endpoint_slice("east", own, POD_PORT, ready=False))
    becomes(lab, client, "west")
    api.apply(endpoint_slice("east", own, POD_PORT))
    becomes(lab, client, "east")


def test_an_endpoint_reaches_itself_and_affinity_holds(lab: Lab) -> None:
    """A Pod that the Service leads to itself gets its own answer; with affinity every client has one endpoint."""
    east = lab.topology.clusters[0]
    client = lab.namespace(east.workers[0].pods[1])
    say(lab, "local")
    becomes(lab, client, "east")
    found = {traffic.udp(client, ADDRESS, PORT, b"x").pod for _ in range(60)}
    assert {one.name for one in pods(east)} <= found  # by a port of before, perhaps that connection's, too
    say(lab, "local", sessionAffinity="ClientIP")
    wait_until(
        lambda: len({traffic.udp(client, ADDRESS, PORT, b"x").pod for _ in range(20)}) == 1,
        "one endpoint for the client",
        timeout=IN_TIME,
    )


def test_a_cluster_that_no_gateway_reaches_is_left_in_the_time_of_bfd_and_returns(lab: Lab) -> None:
    """Its objects stay what they are; who has lost it gets its connections elsewhere, and nobody else notices."""
    east, west = lab.topology.clusters
    client, node = lab.namespace(east.workers[0].pods[0]), east.workers[0].name
    say(lab, "*")
    becomes(lab, client, "east", "west")
    lost = faults.link_cut(lab, *(one.name for one in west.gateways))
    lost.inject()
    try:
        began = time.monotonic()
        there = str(west.services[0].cluster_ip)
        wait_until(lambda: there not in listed(lab, node), "the cluster to be left", timeout=5.0)
        print(f"\nleft {time.monotonic() - began:.2f} s after its loss")
        assert set(answered(lab, client, 40)) == {"east"}
        assert "no gateway of this cluster reaches them" in lab.mcagent(node, "status", check=False)
    finally:
        lost.heal()
    becomes(lab, client, "east", "west")


def test_what_is_left_to_kube_proxy_has_no_rules(lab: Lab) -> None:
    """ "any" takes the chains away, and a wrong text counts as nothing said."""
    east = lab.topology.clusters[0]
    node = east.workers[0].name
    say(lab, "local")
    wait_until(lambda: "mct_import_pre" in listed(lab, node), "the chains", timeout=IN_TIME)
    say(lab, "any")
    wait_until(lambda: "mct_import" not in listed(lab, node), "the chains to go", timeout=IN_TIME)
    say(lab, "local")
    wait_until(lambda: "mct_import_pre" in listed(lab, node), "the chains", timeout=IN_TIME)
    say(lab, "Local!")
    wait_until(lambda: "mct_import" not in listed(lab, node), "the chains to go", timeout=IN_TIME)
    assert "is not a cluster" in lab.mcagent(node, "status", check=False)


def listed(lab: Lab, node: str) -> str:
    """Return the Node's nft table."""

    return netns.execute(
        lab.namespace(lab.topology.node(node)[1]), ["nft", "-s", "list", "table", "ip", "mcagent"]
    ).stdout
