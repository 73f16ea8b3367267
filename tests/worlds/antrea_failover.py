"""The loss of this cluster's first gateway, as a cluster that runs Antrea meets it: how long is it silent?

Controllers run in the cluster of mcagent, which is leader and member. Antrea's controller and agents are played:
its ClusterInfo is written once, and its flows follow `gatewayInfos` of the ResourceImport. Nodes stay Ready
throughout, so only the reports of gateways change the order.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from devtools.errors import LabError
from devtools.lab import control, objects
from devtools.lab.api import ApiClient
from devtools.lab.control import LEADER_NAMESPACE, ControlPlane
from devtools.lab.faults import link_cut
from devtools.lab.lab import Lab
from devtools.lab.topology import POD_PORT, Cluster, Cni, Node, Topology, generate
from devtools.nodes import antrea
from devtools.traffic.traffic import UdpStream, tcp
from devtools.waiting import wait_until
from mcagent.model.net import Address

EXPORT = "{}-clusterinfo"
RATE = 50.0  # datagrams per second and direction
LONGEST = 10.0  # seconds on an idle machine until a round is given up


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The loss of a gateway. In seconds: the longest gap between answers, and the time from the loss to events."""

    gateway: str
    to_antrea: float
    from_antrea: float
    published: float  # other clusters see another first gateway
    programmed: float  # Antrea's flows use it


def shape() -> Topology:
    """Return a cluster of mcagent with two gateways and a worker, and one of Antrea."""
    return generate(cni=Cni.ANTREA, gateways=2)


def _member(lab: Lab, plane: ControlPlane, cluster: Cluster) -> ApiClient:
    """Return a client of the leader with a member's token, as the webhook wants it for what a member writes."""
    leader, account = plane.leader, f"member-{cluster.name}"
    create = ("membertoken", "create", account, "-n", LEADER_NAMESPACE, "--cluster-id", cluster.name)
    plane.command(leader, *create, "--expires", "never")
    config = json.loads(lab.kubeconfig(leader.name).read_text())
    config["users"][0]["user"] = {"token": lab.api(leader.name).account_token(LEADER_NAMESPACE, account)}
    path = lab.state.directory / f"{account}.kubeconfig"
    path.touch(mode=0o600)
    path.write_text(json.dumps(config))
    return ApiClient(lab.api_namespace(leader), str(leader.api_address), path)


def run_controllers(lab: Lab) -> None:
    """Let east join its own ClusterSet, and west be a member of it."""
    east, west = lab.topology.clusters
    api, plane = lab.api(east.name), ControlPlane(lab)
    for node in east.gateways:
        api.patch("Node", node.name, {"metadata": {"annotations": {control.GATEWAY_ANNOTATION: "true"}}})
    plane.start()
    plane.init()
    plane.join(east)
    imported: Any = objects.import_object(west)
    group = {"apiVersion": "multicluster.crd.antrea.io/v1alpha1"}
    announce = {"clusterID": west.name, "clusterSetID": control.CLUSTER_SET, "leaderClusterID": east.name}
    name = f"member-announce-from-{west.name}"
    meta = {"name": name, "namespace": LEADER_NAMESPACE}
    labels = {"sourceKind": "ClusterInfo", "sourceClusterID": west.name}
    spec = {"clusterID": west.name, "name": west.name, "namespace": "kube-system", "kind": "ClusterInfo"}
    exported = {"name": EXPORT.format(west.name), "namespace": LEADER_NAMESPACE, "labels": labels}
    info = {"metadata": exported, "spec": {**spec, "clusterInfo": imported["spec"]}}
    with contextlib.closing(_member(lab, plane, west)) as member:
        member.create({**group, "kind": "MemberClusterAnnounce", "metadata": meta, **announce})
        member.create({**group, "kind": "ResourceExport", **info})
    wait_until(lambda: first_gateway(lab) is not None, "east's gateways at the leader", timeout=60)
    wait_until(
        lambda: api.get("ResourceImport", EXPORT.format(west.name), LEADER_NAMESPACE), "west's import", timeout=60
    )


def first_gateway(lab: Lab) -> Address | None:
    """Return the first gateway of east as other clusters see it."""
    imported: Any = lab.api("east").get("ResourceImport", EXPORT.format("east"), LEADER_NAMESPACE)
    infos = imported["spec"]["clusterinfo"]["gatewayInfos"] if imported else []
    return ip_address(infos[0]["gatewayIP"]) if infos else None


class AntreaAgents:
    """Program west's flows as its agents would: whenever east's first gateway changes.

    A process for each Node waits for the next flows, as an agent does: starting one takes long on a busy machine.
    """

    def __init__(self, lab: Lab) -> None:
        self._lab, self._stop = lab, threading.Event()
        self._thread = threading.Thread(target=self._run, name="antrea-agents", daemon=True)
        self.first: Address | None = None
        self.published_at = self.programmed_at = 0.0
        self._writers: dict[str, subprocess.Popen[str]] = {}

    def __enter__(self) -> AntreaAgents:
        self._thread.start()
        wait_until(lambda: self.programmed_at, "Antrea's flows")
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stop.set()
        self._thread.join()
        for writer in self._writers.values():
            writer.kill()
            writer.communicate()

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            first = None
            with contextlib.suppress(LabError):
                first = first_gateway(self._lab)
            if first is not None and first != self.first:
                self.published_at = time.monotonic()
                self._program(antrea.Settings(first={"east": first}))
                self.first, self.programmed_at = first, time.monotonic()
                self._writers = self._waiting()

    def _program(self, settings: antrea.Settings) -> None:
        """Program all Nodes at the same time. Raises LabError."""
        west = self._lab.topology.cluster("west")
        writers, self._writers = self._writers or self._waiting(), {}
        for node in west.nodes:
            stdin = writers[node.name].stdin
            assert stdin is not None
            stdin.write("\n".join(antrea.flows(self._lab.topology, west, node, settings)) + "\n")
            stdin.close()
        if {writer.wait() for writer in writers.values()} != {0}:
            raise LabError("ovs-ofctl: west's flows were not replaced")

    def _waiting(self) -> dict[str, subprocess.Popen[str]]:
        """Start a process for each Node of west that replaces its flows by those that it reads."""
        bridges = {
            node.name: self._lab.ovs(node.name).mgmt(antrea.BRIDGE)
            for node in self._lab.topology.cluster("west").nodes
        }
        return {
            name: subprocess.Popen(
                ["ovs-ofctl", "-vconsole:off", "-O", "OpenFlow15", "replace-flows", bridge, "-"],
                stdin=subprocess.PIPE,
                text=True,
            )
            for name, bridge in bridges.items()
        }


def settled(lab: Lab) -> bool:
    """Tell whether all tunnels of east are up, and no gateway reports another one."""
    for node in lab.topology.cluster("east").nodes:
        status: Any = lab.status(node.name)
        if not all(g["live"] for group in status["gateways"] for g in group["gateways"] if not g["gone"]):
            return False
    api = lab.api("east")
    gateways: list[Any] = [
        api.get("Gateway", n.name, objects.NAMESPACE) for n in lab.topology.cluster("east").gateways
    ]
    return not any(gateway["status"].get("unreachableGateways") for gateway in gateways)


def lose_first_gateway(lab: Lab, agents: AntreaAgents) -> Round:
    """Cut the link of east's first gateway until traffic flows again both ways, then return it."""
    wait_until(lambda: settled(lab), "all gateways to be live", timeout=60)
    east, west = lab.topology.clusters
    gateway = next(node for node in east.gateways if node.tunnel_address == agents.first)
    client, server = east.workers[0].pods[0], west.workers[0].pods[0]
    fault = link_cut(lab, gateway.name)
    requests = UdpStream(lab.namespace(client), server.address, POD_PORT, rate=RATE)
    back = UdpStream(lab.namespace(server), client.address, POD_PORT, rate=RATE)
    with requests, back:
        wait_until(lambda: requests.received > RATE and back.received > RATE, "datagrams both ways", timeout=30)
        cut = time.monotonic()
        fault.inject()
        try:
            _flows_again(agents, requests, back, gateway)
        finally:
            fault.heal()
    assert requests.result is not None
    assert back.result is not None
    return Round(
        gateway=gateway.name,
        to_antrea=requests.result.longest_gap,
        from_antrea=back.result.longest_gap,
        published=agents.published_at - cut,
        programmed=agents.programmed_at - cut,
    )


def _flows_again(agents: AntreaAgents, stream: UdpStream, back: UdpStream, gateway: Node) -> None:
    """Return when traffic flows both ways by another gateway. Raises LabError."""
    wait_until(lambda: agents.first != gateway.tunnel_address, "another first gateway", timeout=LONGEST)
    before = stream.received, back.received
    enough = (before[0] + RATE, before[1] + RATE)
    wait_until(lambda: stream.received > enough[0] and back.received > enough[1], "traffic", timeout=LONGEST)


def new_connections(lab: Lab) -> list[str]:
    """Return the sources that servers of west see of new connections from all Nodes of east. Raises LabError."""
    east, west = lab.topology.clusters
    clients = [lab.namespace(node.pods[0]) for node in east.nodes]
    return [tcp(client, west.services[0].cluster_ip, west.services[0].port).source for client in clients]


@contextlib.contextmanager
def rounds(lab: Lab) -> Iterator[AntreaAgents]:
    """Run controllers and Antrea's agents in a lab; the gateways of east know what west is."""
    run_controllers(lab)
    with AntreaAgents(lab) as agents:
        wait_until(lambda: _judged(lab), "the verdict on west", timeout=60)
        yield agents


def _judged(lab: Lab) -> bool:
    statuses: list[Any] = [lab.status(gateway.name) for gateway in lab.topology.cluster("east").gateways]
    return all(status["summary"]["clusters"].get("west", {}).get("antrea") for status in statuses)
