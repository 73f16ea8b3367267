"""What tests on real Kubernetes share: the clusters, traffic between them, and what is on a Node."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from devtools.errors import LabError
from devtools.k8s.demo import IMPORTED, URL, Demo
from devtools.k8s.lab import K8sLab
from devtools.k8s.machine import Machine
from devtools.k8s.traffic import Client, Counted, clients
from devtools.lab.topology import Cluster
from devtools.traffic import queues
from devtools.waiting import wait_until
from tests.e2e.guide import Guide

HELD = 50  # connections
RATE = 100  # datagrams a second
SOON = 60.0  # seconds
# An API server that ends takes itself out of Service kubernetes. When it is back, kube-proxy may ask it up to 60 s
# later (client-go's reflectors, 30 s and as much jitter), and Pods that come by that Service 30 s after that.
REACHED_AGAIN = 60.0 + 30.0 + SOON
# What tells of a Node's dataplane, for people and for a comparison.
LOOKS = (
    ("ip", "-brief", "link"), ("ip", "rule"), ("ip", "-6", "rule"), ("ip", "route", "show", "table", "28003"),
    ("ip", "route", "show", "table", "28004"), ("nft", "list", "tables"), ("ovs-vsctl", "list-br"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """The MCS API's conformance suite and the archives of its images; or no program, and what is missing."""

    program: Path | None = None
    archives: tuple[str, ...] = ()
    missing: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The clusters as the tests use them. `bare`: what was on each Node before mcagent was installed."""

    lab: K8sLab
    demo: Demo
    guide: Guide
    bare: dict[str, dict[str, tuple[str, ...]]]

    @property
    def asking(self) -> Cluster:
        """The cluster whose Pods ask."""
        return self.demo.others[0]

    @property
    def serving(self) -> Cluster:
        """The cluster whose Service is exported."""
        return self.lab.topology.clusters[-1]

    def clients(self, app: str = "client") -> list[Client]:
        """Return the Pods that ask, by Node."""
        return clients(self.lab, self.asking, app)

    def servers(self, app: str = "web") -> list[dict[str, Any]]:
        """Return the Pods behind the exported Service."""
        return [pod for pod in self.get(self.serving, "pods", "-l", f"app={app}") if not _leaving(pod)]

    def get(self, cluster: Cluster, *arguments: str) -> list[dict[str, Any]]:
        """Return objects."""
        document = json.loads(self.lab.kubectl(cluster, "get", *arguments, "-o", "json"))
        return list(document["items"]) if "items" in document else [document]

    def cluster_ip(self, name: str = IMPORTED) -> str:
        """Return the ClusterIP of an imported Service."""
        return str(self.get(self.asking, "service", name)[0]["spec"]["clusterIP"])

    def corefile(self, cluster: Cluster) -> str:
        """Return what CoreDNS is told."""
        return str(self.get(cluster, "configmap", "coredns", "-n", "kube-system")[0]["data"]["Corefile"])

    def imported(self, name: str) -> bool:
        """Tell whether a Service was imported, and has endpoints."""
        slices = self.get(self.asking, "endpointslices", "-l", f"kubernetes.io/service-name={name}")
        return any(endpoint_slice["endpoints"] for endpoint_slice in slices)

    def gateways(self, cluster: Cluster) -> set[str]:
        """Return the Nodes that are gateways, as the API says."""
        return {gateway["metadata"]["name"] for gateway in self.get(cluster, "gateways", "-n", "kube-system")}

    def ready(self, cluster: Cluster, node: str) -> str:
        """Return the status of a Node's condition Ready."""
        (shown_node,) = self.get(cluster, "node", node)
        return next(
            (
                str(condition["status"])
                for condition in shown_node["status"]["conditions"]
                if condition["type"] == "Ready"
            ),
            "",
        )

    def events(self, cluster: Cluster, node: str) -> set[str]:
        """Return the reasons of the Events about a Node."""
        events = self.get(cluster, "events", "-A", "--field-selector", f"involvedObject.name={node}")
        return {str(event["reason"]) for event in events}

    @contextlib.contextmanager
    def traffic(self) -> Iterator[Traffic]:
        """Keep connections and datagrams to the Service under way for as long as the block runs."""
        client, sent = self.clients()[0], self.clients()[-1]
        before = self._queues()
        with client.holding(HELD, URL) as connections, sent.sending(RATE, f"{self.cluster_ip()}:80") as datagrams:
            traffic = Traffic()
            yield traffic
        traffic.connections, traffic.datagrams = connections.counted, datagrams.counted
        traffic.overflowed = queues.since(before, self._queues())

    def _queues(self) -> dict[tuple[str, str], int]:
        """Return what each queue of each Node has dropped; nothing of a Node that has no power."""
        found = {}
        for node in self.lab.nodes():
            with contextlib.suppress(LabError):
                for cookie, number in queues.of_namespace(node.machine.namespace).items():
                    found[node.node.name, cookie] = number
        return found

    def settled(self) -> None:
        """Return when all Nodes are gateways, all Pods ready and none leaving, and every client has answers."""
        for cluster in self.lab.topology.clusters:
            ready = partial(self._all_steady, cluster)
            until(ready, f"ready Pods of {cluster.name}", timeout=REACHED_AGAIN)
            names = {node.name for node in cluster.nodes}
            until(lambda c=cluster, n=names: self.gateways(c) == n, f"the gateways {names}")  # type: ignore[misc]
            self.lab.rolled_out(cluster, "kube-system", "daemonset/mcagent-agent")
        for client in self.clients():
            until(lambda c=client: not c.ask(10, URL).broken, f"answers on {client.node}")  # type: ignore[misc]

    def _all_steady(self, cluster: Cluster) -> bool:
        return all(map(_steady, self.get(cluster, "pods", "-A")))

    def write_evidence(self, place: Path) -> None:
        """Write what clusters and agents say of themselves."""
        for cluster in self.lab.topology.clusters:
            for name, *command in (
                (
                    "objects",
                    "get",
                    "nodes,pods,gateways,clusterinfoimports,serviceimports,endpointslices",
                    "-A",
                    "-o",
                    "wide",
                ),
                ("events", "get", "events", "-A", "--sort-by=.lastTimestamp"),
                ("controller", "logs", "-n", "kube-system", "deploy/mcagent-member", "--tail=200"),
            ):
                with contextlib.suppress(LabError):
                    (place / f"{cluster.name}-{name}.txt").write_text(self.lab.kubectl(cluster, *command))
            for pod in self.lab.kubectl(cluster, "get", "pods", "-n", "kube-system", "-o", "name").split():
                if "mcagent-agent" in pod:
                    with contextlib.suppress(LabError):
                        log = self.lab.kubectl(cluster, "logs", "-n", "kube-system", pod, "--tail=300")
                        (place / f"{cluster.name}-{Path(pod).name}.txt").write_text(log)


class Traffic:
    """What was counted while something happened; known when it is over."""

    connections = Counted()
    datagrams = Counted()
    overflowed: Mapping[str, int] = {}  # by Node, what full queues of Open vSwitch dropped

    @property
    def lost(self) -> int:
        """How many datagrams had no answer, less those that a machine with two processors could not take.

        They were lost before any flow saw them (docs/failover.md, "Queues of the userspace datapath"): at most as
        many as the queues dropped.
        """
        return max(0, self._unanswered - sum(self.overflowed.values()))

    @property
    def _unanswered(self) -> int:
        return self.datagrams.sent - self.datagrams.returned

    def __str__(self) -> str:
        return (
            f"{self.connections.broken} of {HELD} connections broke {dict(self.connections.errors)}, longest wait "
            f"{self.connections.longest:.2f} s; {self._unanswered} of {self.datagrams.sent} datagrams lost, "
            f"longest gap {self.datagrams.longest:.2f} s; full queues dropped {dict(self.overflowed)}"
        )


def until(condition: Callable[[], object], what: str, timeout: float = SOON) -> None:
    """Return when the condition holds. Raises LabError; kubectl may fail meanwhile."""
    wait_until(condition, what, timeout=timeout, interval=0.5)


def dataplane_of(machine: Machine) -> dict[str, tuple[str, ...]]:
    """Return what is on a Node, less what Pods and Nodes come and go with: of devices just their names."""
    dataplane = {}
    for look in LOOKS:
        try:
            lines = machine.run([*look]).splitlines()
        except LabError:  # no such routing table
            lines = []
        if "link" in look:
            lines = [line.split()[0].partition("@")[0] for line in lines]
        dataplane[" ".join(look)] = tuple(
            sorted(line for line in lines if "veth" not in line and "cni0" not in line)
        )
    return dataplane


def _steady(pod: dict[str, Any]) -> bool:
    status = pod["status"]
    ready = any(
        condition["type"] == "Ready" and condition["status"] == "True"
        for condition in status.get("conditions", ())
    )
    return not _leaving(pod) and (ready or status["phase"] == "Succeeded")


def _leaving(pod: dict[str, Any]) -> bool:
    return "deletionTimestamp" in pod["metadata"]
