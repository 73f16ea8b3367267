"""A Service that two clusters of a lab export and the first one imports, and new connections to it, told apart.

Owns the objects that a member's controller would have made, and how connections are opened and counted.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections import Counter
from dataclasses import dataclass
from itertools import cycle

from devtools.lab.api import Json
from devtools.lab.lab import Lab
from devtools.lab.topology import POD_PORT, Cluster, Pod, generate
from devtools.nodes import netns
from devtools.traffic import traffic
from mcagent.model.traffic import READY_ANNOTATION

ADDRESS = str(generate().clusters[0].service_cidr[200])  # of the imported Service: no kube-proxy knows it
PORT = 8053
_PORTS = cycle(range(10_000, 32_768))  # the kernel gives none of these to anybody


@dataclass(frozen=True, slots=True)
class Connection:
    """When a connection began (monotonic seconds), and the cluster that answered; "": none has."""

    began: float
    cluster: str


def import_service(lab: Lab) -> None:
    """Import Service `both` into the first cluster: its own Pods, and the ClusterIP of the second one."""
    east, west = lab.topology.clusters
    api = lab.api(east.name)
    ports = [{"name": "udp", "protocol": "UDP", "port": PORT}]
    api.create(
        {
            "apiVersion": "multicluster.x-k8s.io/v1alpha1",
            "kind": "ServiceImport",
            "metadata": {"name": "both", "namespace": "default"},
            "spec": {"type": "ClusterSetIP", "ips": [ADDRESS], "ports": ports},
        }
    )
    labels = {"app.kubernetes.io/managed-by": "mcagent"}
    api.create(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "antrea-mc-both", "namespace": "default", "labels": labels},
            "spec": {"clusterIP": ADDRESS, "ports": ports},
        }
    )
    api.create(endpoint_slice("east", [str(pod.address) for pod in pods(east)], POD_PORT))
    there = [str(west.services[0].cluster_ip)]
    api.create(endpoint_slice("west", there, west.services[0].port, told=len(pods(east))))  # half of all


def pods(cluster: Cluster) -> list[Pod]:
    """Return the Pods of a cluster."""
    return [pod for node in cluster.nodes for pod in node.pods]


def endpoint_slice(cluster: str, addresses: list[str], port: int, *, ready: bool = True, told: int = 0) -> Json:
    """Return the EndpointSlice of a cluster's endpoints; `told`: how many are behind them, 0: it is not told."""
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
            "annotations": {READY_ANNOTATION: str(told)} if told else {},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address], "conditions": {"ready": ready}} for address in addresses],
        "ports": [{"name": "udp", "protocol": "UDP", "port": port}],
    }


def answered(lab: Lab, client: str, number: int, timeout: float | None = None) -> Counter[str]:
    """Ask the Service from a namespace, each time by another port; return how often each cluster has answered.

    Raises LabError when one has not. `timeout`: as of `traffic.exchange`.
    """

    def ask() -> Counter[str]:
        counts: Counter[str] = Counter()
        for _ in range(number):
            with _connect() as sock:
                pod = traffic.exchange(sock, b"x", timeout=timeout).pod
            counts[lab.topology.pod(pod)[0].name] += 1
        return counts

    return netns.call(client, ask, timeout=60.0 + number * (timeout or traffic.TIMEOUT))


def _connect() -> socket.socket:
    """Return a socket with a port that was not used a moment ago: conntrack would remember that connection."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("", next(_PORTS)))
    sock.connect((ADDRESS, PORT))
    return sock


class Opening:
    """Opens a connection every `interval` seconds from a namespace, from `start` to `stop`."""

    def __init__(self, lab: Lab, client: str, interval: float, patience: float = 1.0) -> None:
        self._lab, self._client, self._interval, self._patience = lab, client, interval, patience
        self._stopping = threading.Event()
        self._found: list[Connection] = []
        self._thread = threading.Thread(target=lambda: netns.call(client, self._open, timeout=3600.0), daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def found(self) -> list[Connection]:
        """Return the connections about which something is known, in the order in which they began."""
        return sorted(self._found, key=lambda connection: connection.began)

    def stop(self) -> list[Connection]:
        """Return all connections."""
        self._stopping.set()
        self._thread.join()
        return self.found()

    def _open(self) -> None:
        waiting: dict[socket.socket, float] = {}
        due = time.monotonic()
        with selectors.DefaultSelector() as ready:
            while not self._stopping.is_set() or waiting:
                now = time.monotonic()
                if now >= due and not self._stopping.is_set():
                    due = max(due + self._interval, now)
                    sock = _connect()
                    sock.send(b"x")
                    waiting[sock] = now
                    ready.register(sock, selectors.EVENT_READ)
                for key, _ in ready.select(max(0.0, min(due - time.monotonic(), 0.05))):
                    socket_ = key.fileobj
                    assert isinstance(socket_, socket.socket)
                    self._settle(ready, socket_, waiting.pop(socket_), self._whose(socket_))
                for late in [sock for sock, began in waiting.items() if now - began > self._patience]:
                    self._settle(ready, late, waiting.pop(late), "")

    def _settle(self, ready: selectors.BaseSelector, sock: socket.socket, began: float, cluster: str) -> None:
        ready.unregister(sock)
        sock.close()
        self._found.append(Connection(began, cluster))

    def _whose(self, sock: socket.socket) -> str:
        try:
            pod = traffic.read_reply(sock.recv(65536)).pod
        except OSError:  # refused: nobody's
            return ""
        return self._lab.topology.pod(pod)[0].name
