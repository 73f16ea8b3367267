"""Virtual Pod CIDRs on Gateways, without controllers: Pods at virtual addresses, on both datapaths."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from ipaddress import IPv4Network

import pytest

from devtools.errors import LabError
from devtools.lab.lab import Lab
from devtools.lab.objects import NAMESPACE
from devtools.lab.topology import POD_PORT, Cluster, Pod, generate
from devtools.nodes import netns
from devtools.traffic import matrix, traffic
from devtools.waiting import wait_until
from mcagent.model.net import PodPrefix
from mcagent.model.parsing.prefixes import PREFIXES_ANNOTATION, prefixes_text
from tests.lab.traces import trace
from tests.worlds.antrea_crds import ANTREA, definition
from tests.worlds.labs import MakeLab
from tests.worlds.policy_lab import SILENCE, cluster_policy, network_policy, tried

pytestmark = [pytest.mark.packets, pytest.mark.datapath]

SCTP_PORT = 7001
POLICY_TIME = 15.0  # seconds until a policy applies
VIRTUAL = {"east": IPv4Network("100.72.0.0/16"), "west": IPv4Network("100.73.0.0/16")}


@pytest.fixture(scope="module")
def lab(make_lab: MakeLab) -> Iterator[Lab]:
    """Two clusters with a gateway and a worker, whose Gateways get virtual Pod CIDRs; policies can be applied."""
    shape = generate(clusters=2, gateways=1, workers=1)
    policies = {"enableStretchedNetworkPolicy": True}
    shape = replace(shape, clusters=tuple(replace(cluster, config=policies) for cluster in shape.clusters))
    with make_lab(shape, agents=False, liveness=False) as lab:
        for cluster in lab.topology.clusters:
            lab.api(cluster.name).apply_crds([definition(kind) for kind in ANTREA])
            pairs = prefixes_text(prefixes(lab)[cluster.name])
            note: dict[str, object] = {"metadata": {"annotations": {PREFIXES_ANNOTATION: pairs}}}
            lab.api(cluster.name).patch("Gateway", cluster.gateways[0].name, note, NAMESPACE)
            for other in lab.topology.clusters:
                if other.name != cluster.name:
                    info: dict[str, object] = {"spec": {"podCIDRs": [str(VIRTUAL[cluster.name])]}}
                    lab.api(other.name).patch("ClusterInfoImport", f"{cluster.name}-clusterinfo", info, NAMESPACE)
        for _, node in lab.topology.nodes():
            lab.start_agent(node.name)
        lab.wait_ready(timeout=60)
        yield lab


def worker_pod(cluster: Cluster) -> Pod:
    """Return a Pod that is on no gateway."""
    return cluster.workers[0].pods[0]


def virtual(lab: Lab, cluster: Cluster) -> str:
    """Return the address of a worker's Pod in other clusters."""
    return str(matrix.remote_address(cluster, worker_pod(cluster), prefixes(lab)))


def prefixes(lab: Lab) -> dict[str, tuple[PodPrefix, ...]]:
    """Return the virtual Pod CIDRs by cluster."""
    clusters = lab.topology.clusters
    return {c.name: (PodPrefix(real=c.pod_cidr, virtual=VIRTUAL[c.name]),) for c in clusters}


def is_reached(lab: Lab, case: matrix.Case) -> bool:
    """Tell whether an answer comes."""
    try:
        return traffic.tcp(lab.namespace(case.source), case.address, case.port, timeout=2.0).pod != ""
    except LabError:
        return False


def test_every_way_by_virtual_addresses(lab: Lab) -> None:
    """Pods and Services, from gateways and workers, TCP and UDP, one copy; servers see virtual addresses."""
    cases = list(matrix.cases(lab.topology, prefixes=prefixes(lab)))
    to_pods = [case for case in cases if case.port == POD_PORT]
    for case in to_pods:
        wait_until(partial(is_reached, lab, case), f"{case.source.name} to reach {case.target}", timeout=60)
    results = [matrix.run(lab, case) for case in cases]
    assert [f"{r.case.source.name} -> {r.case.target}: {r.problem}" for r in results if not r.ok] == []
    assert {case.address in VIRTUAL["east"] or case.address in VIRTUAL["west"] for case in to_pods} == {True}


def _sctp() -> socket.socket:
    """Return a one-to-one socket (RFC 6458, section 4). Raises OSError where the kernel has no SCTP."""
    sctp = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_SCTP)
    sctp.settimeout(5)
    return sctp


def test_sctp_by_virtual_addresses(lab: Lab) -> None:
    """An association with real sockets: its checksum does not cover addresses (RFC 9260, section 6.8)."""
    try:
        _sctp().close()
    except OSError as error:
        pytest.skip(f"this kernel has no SCTP: {error}")
    east, west = lab.topology.clusters
    listener = netns.call(lab.namespace(worker_pod(west)), _sctp)
    with closing(listener), closing(netns.call(lab.namespace(worker_pod(east)), _sctp)) as client:
        listener.bind(("", SCTP_PORT))
        listener.listen()
        client.connect((virtual(lab, west), SCTP_PORT))
        server, (source, _) = listener.accept()
        with closing(server):
            assert source == virtual(lab, east)
            for size in (5, 1200, 4000):  # the last one takes several packets
                client.sendall(bytes(size))
                received = 0
                while received < size:
                    received += len(server.recv(size))
                server.sendall(b"all")
                assert client.recv(16) == b"all"


@pytest.mark.parametrize("direction", ["egress", "ingress"])
def test_rules_about_addresses_apply_to_virtual_ones(lab: Lab, direction: str) -> None:
    """A rule about the peer's real address does not apply to its packets, and the next one does."""
    east, west = lab.topology.clusters
    subject, peer = (east, west) if direction == "egress" else (west, east)
    client, server = lab.namespace(worker_pod(east)), virtual(lab, west)
    change: dict[str, object] = {"metadata": {"labels": {"app": "translated"}}}
    lab.api(subject.name).patch("Pod", worker_pod(subject).name, change)
    end = "to" if direction == "egress" else "from"
    blocks = [{"ipBlock": {"cidr": f"{address}/32"}} for address in (worker_pod(peer).address, virtual(lab, peer))]
    rules = [{"action": action, end: [block]} for action, block in zip(("Drop", "Reject"), blocks, strict=True)]
    lab.api(subject.name).apply(cluster_policy("by-address", 5, {direction: rules}, app="translated"))
    try:
        wait_until(
            lambda: tried(client, server, POD_PORT, within=SILENCE) == "refused",
            "the policy to apply",
            timeout=POLICY_TIME,
        )
    finally:
        lab.api(subject.name).delete("ClusterNetworkPolicy", "by-address")
    wait_until(
        lambda: tried(client, server, POD_PORT, within=SILENCE) == "open",
        "no policy to apply",
        timeout=POLICY_TIME,
    )


def test_trace_names_what_isolates_a_pod_with_a_virtual_address(lab: Lab) -> None:
    """The policy is known by the Pod's real address, the packet has the virtual one."""
    east, west = lab.topology.clusters
    change: dict[str, object] = {"metadata": {"labels": {"app": "web"}}}
    lab.api(west.name).patch("Pod", worker_pod(west).name, change)
    lab.api(west.name).apply(network_policy("closed"))

    def isolated_by() -> list[str]:
        target = f"{virtual(lab, west)}:{POD_PORT}"
        hops = trace(lab, east.workers[0].name, worker_pod(east).address, target)[0]["hops"]
        return list(hops[-1]["walk"]["isolatedBy"])

    try:
        wait_until(
            lambda: isolated_by() == ["NetworkPolicy default/closed"],
            "the policy in the trace",
            timeout=POLICY_TIME,
        )
    finally:
        lab.api(west.name).delete("NetworkPolicy", "closed", "default")
    wait_until(lambda: not isolated_by(), "no policy in the trace", timeout=POLICY_TIME)


def test_trace_shows_the_services_address_in_the_answer(lab: Lab) -> None:
    """From an endpoint on the gateway, too, which replaces the Service's address and the prefix."""
    east, west = lab.topology.clusters
    service = next(service for service in west.services if service.exported)
    servers = set()
    for source_port in range(20000, 20020):
        target = f"{service.cluster_ip}:{service.port}"
        arguments = ("--source-port", str(source_port))
        traced, shown = trace(lab, east.workers[0].name, worker_pod(east).address, target, *arguments)
        assert traced["answered"], shown
        servers.add(traced["hops"][-1]["node"])
        assert traced["answer"][-1]["walk"]["source"] == str(service.cluster_ip), shown
        if len(servers) == len(west.nodes):
            break
    assert west.gateways[0].name in servers
