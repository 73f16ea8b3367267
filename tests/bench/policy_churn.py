"""Labels that change all the time: 1,000 Pods in a minute, under traffic that a policy lets through by label.

Two clusters with real controllers and agents, a Pod whose labels change so that it is let in, then not, to labels
that are known already and to new ones; one that is let in all the time. Prints how long after each change packets
were still let in, or not yet, and what the steady one lost: `python -m tests.bench.policy_churn [--seconds 60]`,
as root. It judges nothing.
"""

from __future__ import annotations

import argparse
import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from devtools.lab.api import ApiClient, Json
from devtools.lab.lab import Lab
from devtools.lab.topology import Node, generate
from devtools.traffic import traffic
from devtools.waiting import wait_until
from mcagent.model.config import DatapathChoice

PODS, BATCHES = 1000, 50
INTERVAL = 0.005  # seconds between two datagrams
SETTLE = 3.0  # seconds that a change is watched for
POLICY: Json = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "good", "namespace": "default"},
    "spec": {
        "podSelector": {},
        "policyTypes": ["Ingress"],
        "ingress": [
            {
                "from": [
                    {
                        "namespaceSelector": {"matchLabels": {"multicluster.kubernetes.io/cluster": "east"}},
                        "podSelector": {"matchLabels": {"app": "good"}},
                    }
                ]
            }
        ],
    },
}


class Stream:
    """Datagrams from a Pod to a Service; which were answered, by the time when they were sent."""

    def __init__(self, namespace: str, address: str) -> None:
        self._stop = threading.Event()
        self.sent: list[float] = []
        self.answered: set[int] = set()
        self._socket = traffic.udp_socket(namespace, address, 80)
        self._threads = [threading.Thread(target=self._send), threading.Thread(target=self._receive)]

    def start(self) -> None:
        """Begin."""
        self._socket.settimeout(0.2)
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._socket.close()

    def _send(self) -> None:
        while not self._stop.wait(INTERVAL):
            number = len(self.sent)
            self.sent.append(time.monotonic())
            try:
                self._socket.send(number.to_bytes(8))
            except OSError:
                continue

    def _receive(self) -> None:
        while not self._stop.is_set():
            try:
                self.answered.add(int.from_bytes(self._socket.recv(2048).partition(b"\n")[2]))
            except OSError:
                continue

    def between(self, first: float, last: float) -> tuple[list[float], list[float]]:
        """Return when datagrams were sent that were answered, and that were not."""
        during = [(number, at) for number, at in enumerate(self.sent[:]) if first <= at < last]
        return (
            [at for number, at in during if number in self.answered],
            [at for number, at in during if number not in self.answered],
        )


def extra_pod(number: int, node: Node) -> Json:
    """Return a Pod that nobody runs; only its labels matter."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"extra-{number}",
            "namespace": "default",
            "labels": {"batch": f"b{number % BATCHES}"},
        },
        "spec": {"nodeName": node.name, "containers": [{"name": "c", "image": "c"}]},
        "status": {
            "phase": "Running",
            "podIPs": [{"ip": f"10.250.{number // 250}.{number % 250 + 1}"}],
            "podIP": f"10.250.{number // 250}.{number % 250 + 1}",
        },
    }


@contextmanager
def churning(api: ApiClient, seconds: float) -> Iterator[None]:
    """Change the labels of all extra Pods, one after the other, evenly over the time."""
    stop = threading.Event()

    def change() -> None:
        for number in range(PODS):
            if stop.wait(seconds / PODS):
                return
            labels = {"batch": f"b{(number + 7) % BATCHES}"}
            api.patch("Pod", f"extra-{number}", {"metadata": {"labels": labels}})

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def measure(lab: Lab, seconds: float) -> None:
    """Measure and print."""
    east, west = lab.topology.clusters
    api, address = lab.api(east.name), str(west.services[0].cluster_ip)
    mover, steady = east.workers[0].pods
    for pod in (mover, steady):
        api.patch("Pod", pod.name, {"metadata": {"labels": {"app": "good"}}})
    api.create_all([extra_pod(number, east.nodes[number % len(east.nodes)]) for number in range(PODS)])
    lab.api(west.name).apply(POLICY)
    streams = [Stream(lab.namespace(pod), address) for pod in (mover, steady)]
    for stream in streams:
        stream.start()
    moving, streams_kept = streams
    try:
        for stream in streams:
            wait_until(lambda s=stream: s.answered, "answers", timeout=60)  # type: ignore[misc]
        time.sleep(SETTLE)  # the policy counts, and the first labels have numbers
        began = time.monotonic()
        delays: dict[str, list[float]] = {"let in for": [], "known labels": [], "new labels": []}
        with churning(api, seconds):
            for number in itertools.count():
                if time.monotonic() - began > seconds - 2 * SETTLE:
                    break
                at = time.monotonic()
                api.patch("Pod", mover.name, {"metadata": {"labels": {"app": "bad", "round": None}}})
                time.sleep(SETTLE)
                answered, _ = moving.between(at, at + SETTLE)
                delays["let in for"].append(max((one - at for one in answered), default=0.0))
                at = time.monotonic()
                new = number % 2
                labels = {"app": "good", "round": f"r{number}" if new else None}
                api.patch("Pod", mover.name, {"metadata": {"labels": labels}})
                time.sleep(SETTLE)
                _, lost = moving.between(at, at + SETTLE - 0.5)
                delays["new labels" if new else "known labels"].append(
                    max((one - at for one in lost), default=0.0)
                )
        ended = time.monotonic()
    finally:
        for stream in streams:
            stream.stop()
    _, lost = streams_kept.between(began, ended)
    for name, values in delays.items():
        text = ", ".join(f"{1000 * value:.0f}" for value in sorted(values))
        print(f"{name:14} ms after the change: {text}")
    total = len([at for at in streams_kept.sent if began <= at < ended])
    print(f"the Pod whose labels stay lost {len(lost)} of {total} datagrams")


def main() -> int:
    """Measure on a lab of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    args = parser.parse_args()
    shape = generate(name="polchurn", gateways=1, workers=1, pods=2, datapath=DatapathChoice.NETDEV)
    on = {"enableStretchedNetworkPolicy": True}
    clusters = tuple(replace(cluster, config=on) for cluster in shape.clusters)
    lab = Lab.up(replace(shape, clusters=clusters), control_plane=True)
    try:
        measure(lab, args.seconds)
    finally:
        lab.down()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
