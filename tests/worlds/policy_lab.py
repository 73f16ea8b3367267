"""A lab with policies between clusters: clients, good and bad, in the first cluster, and servers in the other."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from devtools.lab.api import Json
from devtools.lab.lab import Lab
from devtools.lab.topology import POD_PORT, Pod, Topology
from devtools.nodes import netns
from devtools.waiting import wait_until
from mcagent.model.parsing import labels
from tests.worlds.antrea_crds import ANTREA, definition

IDENTITIES = {"web": 11, "good": 12, "bad": 13}
REPEATS = 12  # packets or connections that show a verdict
IN_TIME = 15.0  # seconds until a policy counts
SILENCE = 0.6  # seconds without an answer that count as "silent"
Target = tuple[str, int]  # an address and a port


def bring_up(make_lab: Callable[..., Lab], shape: Topology) -> Lab:
    """Make a lab with policies, identities, and clients of both labels on each Node of the first cluster."""
    on = {"enableStretchedNetworkPolicy": True}
    shape = replace(shape, clusters=tuple(replace(cluster, config=on) for cluster in shape.clusters))
    lab = make_lab(shape, agents=False, liveness=False)
    for cluster in lab.topology.clusters:
        api = lab.api(cluster.name)
        api.apply_crds([definition(kind) for kind in ANTREA])
        api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}})
        for app, number in IDENTITIES.items():
            label = labels.normalised("default", {}, {"app": app})
            owner = lab.topology.clusters[app == "web"].name
            api.create(
                {
                    "apiVersion": "multicluster.crd.antrea.io/v1alpha1",
                    "kind": "LabelIdentity",
                    "metadata": {"name": labels.label_hash(label), "annotations": {"mcagent.io/exporters": owner}},
                    "spec": {"label": label, "id": number},
                }
            )
    for place, app in enumerate(("good", "bad")):
        for node in lab.topology.clusters[0].nodes:
            change: Json = {"metadata": {"labels": {"app": app}}}
            lab.api("east").patch("Pod", node.pods[place].name, change)
    for _, node in lab.topology.nodes():
        lab.start_agent(node.name)
    lab.wait_ready(timeout=60)
    return lab


@pytest.fixture
def policy(lab: Lab) -> Iterator[Callable[[str, Json], None]]:
    """Apply policies to a cluster, and take them away at the end: everybody gets through then."""
    applied: list[tuple[str, str, str]] = []

    def apply(cluster: str, raw: Json) -> None:
        metadata = raw["metadata"]
        assert isinstance(metadata, dict)
        applied.append((cluster, str(raw["kind"]), str(metadata["name"])))
        lab.api(cluster).apply(raw)

    yield apply
    for cluster, kind, name in dict.fromkeys(applied):
        lab.api(cluster).delete(kind, name)
    for app in ("good", "bad"):
        becomes(lab, app, "open")


def network_policy(name: str, *rules: Json) -> Json:
    """Return a NetworkPolicy that isolates all servers but for these rules."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "podSelector": {"matchLabels": {"app": "web"}},
            "policyTypes": ["Ingress"],
            "ingress": list(rules),
        },
    }


def of_east(app: str) -> Json:
    """Return the peer "Pods of cluster east with this label", of a NetworkPolicy."""
    cluster = {"key": "multicluster.kubernetes.io/cluster", "operator": "In", "values": ["east"]}
    return {"namespaceSelector": {"matchExpressions": [cluster]}, "podSelector": {"matchLabels": {"app": app}}}


def clients(lab: Lab, app: str) -> list[str]:
    """Return the namespaces of all clients with a label: on gateways and on the worker."""
    return [lab.namespace(node.pods[("good", "bad").index(app)]) for node in lab.topology.clusters[0].nodes]


def servers(lab: Lab) -> list[Pod]:
    """Return the servers' Pods."""
    return [pod for node in lab.topology.clusters[1].nodes for pod in node.pods]


def web(lab: Lab) -> str:
    """Return the address of the servers' Service."""
    return str(lab.topology.clusters[1].services[0].cluster_ip)


def everywhere(lab: Lab) -> list[Target]:
    """Return the servers' Service, and a server on each Node: each Node enforces a policy at a time of its own.

    Where Pods are not published, connections to the Service that the hash spreads over the Nodes.
    """
    west = lab.topology.clusters[1]
    if not west.publish_pods:
        return [(web(lab), 80)] * REPEATS
    return [(web(lab), 80), *((str(node.pods[0].address), POD_PORT) for node in west.nodes)]


def tried(namespace: str, address: str, port: int = 80, *, within: float) -> str:
    """Open a TCP connection; return "open", "refused", or "silent" when nothing came within so many seconds."""
    try:
        netns.call(namespace, lambda: socket.create_connection((address, port), within)).close()
    except OSError as error:
        return "refused" if isinstance(error, ConnectionRefusedError) else "silent"
    return "open"


def verdicts(lab: Lab, app: str, *targets: Target, within: float) -> set[str]:
    """Return what all clients with a label meet at the same time, by default at the servers' Service.

    `within`: seconds; SILENCE where no answer is expected.
    """
    ways = [(client, *target) for client in clients(lab, app) for target in targets or [(web(lab), 80)]]
    with ThreadPoolExecutor(len(ways)) as pool:
        return set(pool.map(lambda way: tried(*way, within=within), ways))


def becomes(lab: Lab, app: str, verdict: str, *targets: Target) -> None:
    """Wait until all clients with a label meet this, by default everywhere."""
    targets = targets or tuple(everywhere(lab))
    condition = f"{app} to be {verdict}"
    wait_until(lambda: verdicts(lab, app, *targets, within=SILENCE) == {verdict}, condition, timeout=IN_TIME)


def cluster_policy(name: str, priority: float, spec: Json, app: str = "web", tier: str = "application") -> Json:
    """Return an Antrea ClusterNetworkPolicy for Pods with a label."""
    return {
        "apiVersion": "crd.antrea.io/v1beta1",
        "kind": "ClusterNetworkPolicy",
        "metadata": {"name": name},
        "spec": {
            "priority": priority,
            "tier": tier,
            "appliedTo": [{"podSelector": {"matchLabels": {"app": app}}}],
            **spec,
        },
    }
