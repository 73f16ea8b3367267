"""Carries WireGuard keys between a lab's clusters: `python -m devtools.traffic.exchange LAB [ROOT]`.

Does what member and leader controllers do with them: from the Gateway objects of each cluster into the
ClusterInfoImports of all others, into the entries that are there already. Everything else of these objects
belongs to the lab and its tests. Runs until SIGTERM.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from devtools.errors import LabError
from devtools.lab.api import ApiClient
from devtools.lab.objects import NAMESPACE
from devtools.lab.running import RunningLab
from devtools.lab.topology import Cluster

LOOK = 0.4  # seconds


def carried(spec: Mapping[str, Any], keys: Mapping[str, Any], *, antrea: bool = False) -> dict[str, Any]:
    """Return the part of a ClusterInfoImport's spec that is about keys, given those of each gateway by address.

    `antrea`: the cluster is Antrea's, which publishes one key for all of it.
    """
    if antrea:
        return {"wireGuard": keys.get(spec["gatewayInfos"][0]["gatewayIP"])}
    infos = []
    for entry in spec.get("gatewayInfos") or []:
        key = keys.get(entry.get("gatewayIP"))
        other_fields = {name: value for name, value in entry.items() if name != "wireGuard"}
        infos.append({**other_fields, "wireGuard": key} if key else other_fields)
    first = infos[0].get("wireGuard") if infos else None
    return {"gatewayInfos": infos, "wireGuard": first}


def exchange(lab: RunningLab) -> int:
    """Carry keys once; return how many objects were changed. A server that does not answer is passed over."""
    keys: dict[str, Any] = {}
    changed = 0
    for cluster in lab.topology.clusters:
        try:
            for gateway in _gateways(lab.api(cluster.name)):
                keys[gateway["gatewayIP"]] = gateway.get("wireGuard")
        except LabError:
            return 0  # what is not known must not be taken for gone
    for cluster in lab.topology.clusters:
        for other in lab.topology.clusters:
            if other.name != cluster.name:
                changed += _carry(lab.api(cluster.name), other, keys)
    return changed


def _gateways(api: ApiClient) -> list[dict[str, Any]]:
    status, answer = api.request(
        "GET", f"/apis/multicluster.crd.antrea.io/v1alpha1/namespaces/{NAMESPACE}/gateways"
    )
    items = answer.get("items")
    if status != 200 or not isinstance(items, list):
        raise LabError(f"no list of Gateways: {status}")
    return items


def _carry(api: ApiClient, cluster: Cluster, keys: Mapping[str, Any]) -> int:
    name = f"{cluster.name}-clusterinfo"
    try:
        raw: Any = api.get("ClusterInfoImport", name, NAMESPACE)
        if raw is None:
            return 0
        spec = carried(raw["spec"], keys, antrea=cluster.antrea)
        if all(raw["spec"].get(field) == value for field, value in spec.items()):
            return 0
        version = raw["metadata"]["resourceVersion"]  # a test may be changing it, too
        change: dict[str, object] = {"metadata": {"resourceVersion": version}, "spec": spec}
        api.patch("ClusterInfoImport", name, change, NAMESPACE)
    except LabError:
        return 0
    return 1


def main(argv: list[str]) -> int:
    """Carry keys until SIGTERM."""
    done = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: done.set())
    lab = RunningLab(argv[0], Path(argv[1]) if len(argv) > 1 else None)
    while not done.wait(LOOK):
        exchange(lab)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
