"""Objects of a Common Area as members write them, and a leader over an API server in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from zlib import crc32

from mcagent.controller.contract import names
from mcagent.controller.leader import leader_reconcilers
from mcagent.controller.settings import LeaderSettings
from mcagent.kube.source import RawObject
from mcagent.model.net import cluster_fingerprint
from mcagent.model.objects import Kind
from mcagent.model.parsing.links import ANNOTATION, ClusterLink, as_text
from tests.worlds.control_view import Controller, MemoryView
from tests.worlds.memory_objects import START, Clock, MemoryObjects, timestamp

AREA = "mcs"
SET = "clusterset1"
FLAT = ("10.0.0.0/8",)  # endpoints of clusters that publish no CIDRs may lie here


def cluster_set(area: str = AREA, name: str = SET, leader: str = "north") -> RawObject:
    """Return the leader's own ClusterSet."""
    return {
        "kind": "ClusterSet",
        "metadata": {"name": name, "namespace": area},
        "spec": {"clusterID": leader, "leaders": [{"clusterID": leader}]},
    }


def announce(cluster: str, beat: float | None = None, area: str = AREA, cluster_set: str = SET) -> RawObject:
    """Return a member's MemberClusterAnnounce. `beat`: the member's own idea of the time."""
    meta: RawObject = {"name": names.announce(cluster), "namespace": area}
    if beat is not None:
        meta["annotations"] = {names.HEARTBEAT_ANNOTATION: timestamp(beat)}
    return {
        "kind": "MemberClusterAnnounce",
        "metadata": meta,
        "clusterID": cluster,
        "clusterSetID": cluster_set,
        "leaderClusterID": "north",
    }


def reporting(member: str, answers: Mapping[str, str], tunnels: Iterable[str] = ()) -> RawObject:
    """Return a member's announcement with a report of the cluster that answers at each gateway's address.

    `tunnels`: clusters to which it has tunnels beside those that answer.
    """
    raw = announce(member, START)
    by_cluster: dict[str, list[tuple[str, str]]] = {cluster: [] for cluster in (*answers.values(), *tunnels)}
    for address, cluster in answers.items():
        by_cluster[cluster].append((address, f"{cluster_fingerprint(cluster):012x}"))
    reported = [
        ClusterLink(cluster=cluster, live=1, tunnels=1, answers=tuple(rows))
        for cluster, rows in by_cluster.items()
    ]
    raw["metadata"]["annotations"][ANNOTATION] = as_text(reported)
    return raw


def account(cluster: str, area: str = AREA, **bounds: str) -> RawObject:
    """Return a member's ServiceAccount; bounds by the last part of their annotations, "_" for "-"."""
    notes = {f"mcagent.io/{key.replace('_', '-')}": text for key, text in bounds.items()}
    notes[names.CLUSTER_ID_ANNOTATION] = cluster
    return {"kind": "ServiceAccount", "metadata": {"name": cluster, "namespace": area, "annotations": notes}}


def export(cluster: str, kind: str, name: str, spec: RawObject, area: str = AREA) -> RawObject:
    """Return a ResourceExport with a payload."""
    return {
        "kind": "ResourceExport",
        "metadata": {"name": name, "namespace": area, "finalizers": [names.EXPORT_FINALIZER]},
        "spec": {"clusterID": cluster, "kind": kind, **spec},
    }


def service(
    cluster: str, target: str = "default/nginx", ports: Any = 80, area: str = AREA, **spec: Any
) -> RawObject:
    """Return a Service export; `ports` is a number, or the list of ports."""
    namespace, name = target.split("/")
    listed = [{"name": "http", "port": ports, "protocol": "TCP"}] if isinstance(ports, int) else ports
    payload = {"namespace": namespace, "name": name, "service": {"serviceSpec": {"ports": listed} | spec}}
    return export(cluster, "Service", names.service_export(cluster, namespace, name), payload, area)


def endpoints(
    cluster: str, ips: Sequence[str], target: str = "default/nginx", port: Any = 80, area: str = AREA
) -> RawObject:
    """Return an Endpoints export of one subset; `port` is a number, or the list of ports."""
    namespace, name = target.split("/")
    listed = [{"name": "http", "port": port, "protocol": "TCP"}] if isinstance(port, int) else port
    subset = {"addresses": [{"ip": ip} for ip in ips], "ports": listed}
    payload = {"namespace": namespace, "name": name, "endpoints": {"subsets": [subset]}}
    return export(cluster, "Endpoints", names.endpoints_export(cluster, namespace, name), payload, area)


def gateway_of(cluster: str) -> str:
    """Return the address of a cluster's gateway."""
    return f"192.168.{crc32(cluster.encode()) % 256}.1"


def cluster_info(
    cluster: str, service_cidr: str, pod_cidrs: Sequence[str] = (), key: str = "", area: str = AREA
) -> RawObject:
    """Return a ClusterInfo export with one gateway, whose address follows from the cluster's name."""
    info: RawObject = {
        "clusterID": cluster,
        "serviceCIDR": service_cidr,
        "gatewayInfos": [{"gatewayIP": gateway_of(cluster)}],
    }
    info |= {"podCIDRs": list(pod_cidrs)} if pod_cidrs else {}
    info |= {"wireGuard": {"publicKey": key}} if key else {}
    payload = {"namespace": "kube-system", "name": cluster, "clusterInfo": info}
    return export(cluster, "ClusterInfo", names.cluster_info(cluster), payload, area)


class Leader:
    """A leader's API server and its reconcilers."""

    def __init__(self, *members: str, settings: LeaderSettings | None = None) -> None:
        self.clock = Clock()
        self.api = MemoryObjects(self.clock, namespaces=[AREA])
        self.settings = settings or LeaderSettings(namespace="", allowed_endpoint_cidrs=FLAT)
        self.start()
        self.api.put(cluster_set())
        for member in members:
            self.api.put(announce(member, START))
        self.settle()

    def start(self) -> None:
        """Start the controller anew: what it knew is gone."""
        self.view = MemoryView(self.api, namespace=AREA)
        self.controller = Controller(self.view, leader_reconcilers(self.settings))

    def put(self, *objects: RawObject, created: str | None = None) -> None:
        """Write objects as members do, and let the leader follow. Objects that are there keep what it wrote."""
        for obj in objects:
            meta = obj["metadata"]
            old = self.api.get(Kind(obj["kind"]), meta["namespace"], meta["name"])
            if old is None:
                self.api.put(obj, created=created)
            else:
                self.api.put({**old, **obj, "metadata": {**old["metadata"], **meta}})
        self.controller.run()

    def settle(self) -> None:
        """Work on everything."""
        self.controller.settle()

    def forward(self, seconds: float, *beating: str) -> None:
        """Let time pass in steps of ten seconds, with heartbeats of some members."""
        end = self.clock.now + seconds
        while self.clock.now < end:
            self.clock.forward(min(10.0, end - self.clock.now))
            for member in beating:
                self.put(announce(member, self.clock.now))
            self.controller.due()
            self.controller.run()

    def imported(self, name: str, area: str = AREA) -> Any:
        """Return the spec of a ResourceImport, None if there is none."""
        resource_import = self.api.get(Kind.RESOURCE_IMPORT, area, name)
        return resource_import["spec"] if resource_import else None

    def addresses(self, name: str = "default-nginx-endpoints", area: str = AREA) -> list[str]:
        """Return the addresses in an Endpoints import, in order; [] if there is none."""
        spec = self.imported(name, area)
        ips = [a["ip"] for s in spec["endpoints"]["subsets"] for a in s["addresses"]] if spec else []
        return sorted(ips, key=lambda text: tuple(map(int, text.split("."))))

    def subsets(self, name: str = "default-nginx-endpoints") -> dict[tuple[str, str, int], list[str]]:
        """Return the addresses in an Endpoints import by whose they are, and by a port that they serve."""
        resource_import = self.api.get(Kind.RESOURCE_IMPORT, AREA, name)
        assert resource_import is not None
        clusters = resource_import["metadata"]["annotations"][names.SUBSET_CLUSTERS_ANNOTATION].split(",")
        return {
            (cluster, port["name"], port["port"]): [item["ip"] for item in subset["addresses"]]
            for cluster, subset in zip(clusters, resource_import["spec"]["endpoints"]["subsets"], strict=True)
            for port in subset["ports"]
        }

    def verdict(self, name: str, area: str = AREA) -> RawObject:
        """Return what became of an export: its condition Succeeded or Failure."""
        resource_export = self.api.get(Kind.RESOURCE_EXPORT, area, name)
        assert resource_export is not None
        return dict(resource_export["status"]["conditions"][0])

    def conflict(self, name: str, area: str = AREA) -> tuple[str, str]:
        """Return reason and message of an export's condition Conflict, "" if it has none."""
        resource_export = self.api.get(Kind.RESOURCE_EXPORT, area, name)
        assert resource_export is not None
        conditions = {item["type"]: item for item in resource_export["status"]["conditions"]}
        condition = conditions.get("Conflict", {"reason": "", "message": ""})
        return condition["reason"], condition["message"]

    def status(self, area: str = AREA, name: str = SET) -> Any:
        """Return the ClusterSet's status."""
        cluster_set = self.api.get(Kind.CLUSTER_SET, area, name)
        assert cluster_set is not None
        return cluster_set["status"]

    def ready(self, cluster: str) -> RawObject:
        """Return a member's Ready condition."""
        (status,) = [item for item in self.status()["clusterStatuses"] if item["clusterID"] == cluster]
        return dict(status["conditions"][0])

    def leave(self, cluster: str) -> None:
        """Delete a member's announcement."""
        self.api.remove(Kind.MEMBER_CLUSTER_ANNOUNCE, AREA, names.announce(cluster))
        self.controller.run()

    def remove(self, name: str, area: str = AREA) -> None:
        """Delete an export as its member does."""
        self.api.remove(Kind.RESOURCE_EXPORT, area, name)
        self.controller.run()
