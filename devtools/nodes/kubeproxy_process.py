"""kube-proxy of all Nodes of a lab with a control plane: `python -m devtools.nodes.kubeproxy_process LAB [ROOT]`.

Follows the Services and EndpointSlices of each cluster and programs its Nodes when they change. Runs until
SIGTERM.
"""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path
from typing import Any

from devtools.errors import LabError
from devtools.lab.api import ApiClient
from devtools.lab.running import RunningLab
from devtools.lab.topology import Cluster
from devtools.nodes import kubeproxy, netns

LOOK = 0.1  # seconds
_LISTS = ("/api/v1/services", "/apis/discovery.k8s.io/v1/endpointslices")


class Follower:
    """Keeps the Nodes of one cluster as its API server says."""

    def __init__(self, lab: RunningLab, cluster: Cluster) -> None:
        self._lab, self._cluster = lab, cluster
        self._loaded = ""

    def look(self) -> bool:
        """Program the Nodes if something changed; return whether it did. A silent API server changes nothing."""
        try:
            services, slices = (_items(self._lab.api(self._cluster.name), path) for path in _LISTS)
            text = kubeproxy.ruleset(kubeproxy.of_objects(services, slices), self._cluster)
            if text == self._loaded:
                return False
            for node in self._cluster.nodes:
                for translating in (node, *(node.pods if kubeproxy.at_sockets(self._cluster) else ())):
                    netns.execute(self._lab.namespace(translating), ["nft", "-f", "-"], stdin=text)
        except LabError as error:
            print(f"{self._cluster.name}: {error}", file=sys.stderr, flush=True)  # noqa: T201 - the process's log
            return False
        self._loaded = text
        return True


def _items(api: ApiClient, path: str) -> list[dict[str, Any]]:
    status, answer = api.request("GET", path)
    items = answer.get("items") or []
    if status != 200 or not isinstance(items, list):
        raise LabError(f"GET {path}: {status}")
    return items


def main(argv: list[str]) -> int:
    """Follow all clusters until SIGTERM."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    lab = RunningLab(argv[0], Path(argv[1]) if argv[1:] else None)
    followers = [Follower(lab, cluster) for cluster in lab.topology.clusters]
    while not stop.wait(LOOK):
        for follower in followers:
            follower.look()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
