"""What the demo shows of a ClusterSet at work: a Service is exported and used elsewhere; a gateway is killed.

Owns the steps and what is right for each. Each returns what was claimed, whether it held, and the measured words.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from ipaddress import IPv4Address

from devtools.errors import LabError
from devtools.lab import faults, objects
from devtools.lab.control import ControlPlane
from devtools.lab.lab import Lab
from devtools.lab.topology import Cluster, Pod, Service
from devtools.traffic.load import Kind, Load, Stream
from devtools.traffic.traffic import TcpClient
from devtools.waiting import wait_until
from mcagent.model.net import PodPrefix

EXPORTED = "hello"
CONNECTIONS = 20
FAULT = 3.0  # seconds that a gateway is dead
LONGEST = 2.5  # seconds of silence that a demo on a busy machine forgives; what is promised is in docs/failover.md
REACHED = 30.0  # seconds until an export must be usable elsewhere, likewise


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One thing that was shown."""

    text: str
    ok: bool


def tell(lab: Lab) -> Iterator[Claim]:
    """Show the steps one by one. Raises LabError when one cannot even be tried."""
    serving, client = lab.topology.clusters[:2]
    yield _export(lab, serving, client)
    if len(client.gateways) > 1:
        yield _gateway_killed(lab, client)


def _export(lab: Lab, serving: Cluster, client: Cluster) -> Claim:
    """Export a new Service in one cluster, and wait until a Pod of another has an answer from it."""
    plane = ControlPlane(lab)
    pods = tuple(pod.name for node in serving.nodes for pod in node.pods)
    service = Service(name=EXPORTED, cluster_ip=serving.service_cidr[200], pods=pods, protocols=("TCP",))
    api = lab.api(serving.name)
    api.create(objects.service_object(service))
    api.create_all(list(objects.endpoint_slices(lab.topology, service)))
    begin = time.monotonic()
    api.create(objects.export_object(service))
    source = _sender(client)

    def answered() -> bool:
        try:
            address = plane.imported_address(client, service.name)
            with TcpClient(lab.namespace(source), str(address), service.port, timeout=1.0) as tcp:
                return tcp.hello.pod in pods
        except LabError:
            return False

    try:
        wait_until(answered, "the exported Service to be reached", timeout=REACHED, interval=0.05)
    except LabError:
        text = f"Service {EXPORTED}, exported in {serving.name}, is not reached from {client.name}"
        return Claim(text=text, ok=False)
    duration = time.monotonic() - begin
    text = f"Service {EXPORTED}, exported in {serving.name}, answers a Pod of {client.name} after {duration:.1f} s"
    return Claim(text=text, ok=True)


def _gateway_killed(lab: Lab, client: Cluster) -> Claim:
    """Stop everything of a gateway Node at once, under connections to an imported Service."""
    address = ControlPlane(lab).imported_address(client, EXPORTED)  # whose Pods are all elsewhere
    stream = Stream(
        kind=Kind.TCP,
        name=EXPORTED,
        namespace=lab.namespace(_sender(client)),
        address=str(address),
        port=80,
        count=CONNECTIONS,
    )
    settled = faults.Settled(lab)
    gateway = client.gateways[0].name
    fault = faults.node_gone(lab, gateway)
    with closing(Load([stream])) as load:
        begin = time.monotonic()
        fault.inject()
        moment = time.monotonic() + FAULT
        wait_until(lambda: time.monotonic() >= moment, "a moment", timeout=10)
        outcome = load.report(begin).streams[EXPORTED]
    fault.heal()
    settled.wait()
    how, expected = "", outcome.broken == 0
    if not client.publish_pods:  # docs/failover.md, "What ends a connection"
        how = " by a reset, since that gateway translated their source"
        expected = all("reset" in reason.lower() for reason in outcome.reasons)
    text = (
        f"gateway Node {gateway} dies: of {CONNECTIONS} to antrea-mc-{EXPORTED} {outcome.broken} broke{how}, "
        f"the longest silence was {outcome.longest:.2f} s"
    )
    return Claim(text=text, ok=expected and outcome.longest < LONGEST)


def _sender(cluster: Cluster) -> Pod:
    """Return a Pod that is not on a gateway Node, where there is one."""
    return next(pod for node in (*cluster.workers, *cluster.gateways) for pod in node.pods)


def export_addresses(lab: Lab) -> dict[tuple[str, str], IPv4Address]:
    """Return the export addresses of Services by cluster and name; none where clusters export ClusterIPs."""
    plane = ControlPlane(lab)
    addresses = {
        (cluster.name, service.name): plane.export_address(cluster, service.name, service.namespace)
        for cluster in lab.topology.clusters
        for service in cluster.services
        if service.exported
    }
    return {key: address for key, address in addresses.items() if address is not None}


def pod_prefixes(lab: Lab) -> dict[str, tuple[PodPrefix, ...]]:
    """Return the virtual Pod CIDRs of clusters that have such."""
    plane = ControlPlane(lab)
    by_cluster = {cluster.name: plane.pod_prefixes(cluster) for cluster in lab.topology.clusters}
    return {name: prefixes for name, prefixes in by_cluster.items() if prefixes}


def imported_addresses(lab: Lab) -> dict[tuple[str, str], IPv4Address]:
    """Return the ClusterIPs of imported Services by cluster and name, as they were allocated."""
    plane = ControlPlane(lab)
    return {
        (cluster.name, imported.service.name): plane.imported_address(cluster, imported.service.name)
        for cluster in lab.topology.clusters
        for imported in lab.topology.imports(cluster)
    }
