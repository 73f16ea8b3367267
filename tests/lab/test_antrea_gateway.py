"""Packets between a cluster of ours and one whose gateway is programmed as Antrea's agent does it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from devtools.errors import LabError
from devtools.lab import objects
from devtools.lab.api import Json
from devtools.lab.lab import Lab
from devtools.lab.topology import Cni, Pod, generate
from devtools.nodes import antrea
from devtools.traffic import matrix, traffic
from devtools.traffic.traffic import TcpClient
from devtools.waiting import wait_until
from mcagent.model.dataplane.facts import DatapathType
from mcagent.model.dataplane.resources import TunnelType
from mcagent.model.parsing import labels
from tests.lab.antrea_gateways import SILENCE, SOON, echoed, taken_for_antrea
from tests.worlds.antrea_crds import ANTREA, definition

pytestmark = [pytest.mark.packets, pytest.mark.datapath]

MANY = 16  # connections: the hash gives each of two gateways some, but once in 32,768 times
LARGEST = 1450  # bytes: 1500 less Geneve's or VXLAN's 50
OURS, THEIRS = 11, 21  # label identities
PORTS = itertools.count(10000)  # below net.ipv4.ip_local_port_range: no kernel gives one of them to a client


@pytest.fixture(scope="module", params=list(TunnelType), ids=str)
def lab(request: pytest.FixtureRequest, make_lab: Callable[..., Lab], datapath: DatapathType) -> Iterator[Lab]:
    """Our cluster east, of two gateways and a worker, with policies; and Antrea's, west, of one of each."""
    if datapath is DatapathType.NETDEV and request.param is TunnelType.VXLAN:
        pytest.skip("the kernel lane has both encapsulations")
    shape = generate(cni=Cni.ANTREA, gateways=2, tunnel=request.param)
    east, west = shape.clusters
    east = replace(east, config={"enableStretchedNetworkPolicy": True})
    with make_lab(replace(shape, clusters=(east, west)), agents=False) as lab:
        api = lab.api("east")
        api.apply_crds([definition(kind) for kind in ANTREA])
        api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}})
        for app, number in (("web", OURS), ("theirs", THEIRS)):
            label = labels.normalised("default", {}, {"app": app})
            api.create(
                {
                    "apiVersion": "multicluster.crd.antrea.io/v1alpha1",
                    "kind": "LabelIdentity",
                    "metadata": {"name": labels.label_hash(label)},
                    "spec": {"label": label, "id": number},
                }
            )
        for node in lab.topology.with_agents():
            lab.start_agent(node.name)
        lab.wait_ready()
        wait_until(
            lambda: all(taken_for_antrea(lab, gateway.name) for gateway in east.gateways),
            "the verdict on west",
            timeout=SOON,
        )
        yield lab


def _seen(lab: Lab, client: Pod, address: object) -> set[str]:
    """Return the sources that servers saw of as many connections. Raises LabError when one gets no answer.

    Antrea's conntrack drops a connection to a Service's own address from a port from which the Pod has asked the
    same Service by its imported address within two minutes. So each connection has a port that no other one gets.
    """
    ports = itertools.islice(PORTS, MANY)
    return {traffic.tcp(lab.namespace(client), address, 80, source_port=port).source for port in ports}


def _pods(lab: Lab, cluster: str) -> list[Pod]:
    return [pod for node in lab.topology.cluster(cluster).nodes for pod in node.pods]


def _gets_through(lab: Lab, client: Pod, address: object, port: int, *, within: float) -> bool:
    try:
        traffic.tcp(lab.namespace(client), address, port, timeout=within)
    except LabError:
        return False
    return True


def test_every_way_of_the_matrix(lab: Lab) -> None:
    """Services and Pods are reached both ways, one copy each, from the address of the first gateway."""
    results = [matrix.run(lab, case) for case in matrix.cases(lab.topology)]
    assert [f"{r.case.source.name} -> {r.case.target}: {r.problem}" for r in results if not r.ok] == []


def test_the_largest_packet_passes_both_ways(lab: Lab) -> None:
    """Ours and Antrea's Pods agree: what is let through arrives whole, and one byte more is not let through."""
    assert echoed(lab, LARGEST, within=traffic.PATIENCE) == [True, True]
    assert echoed(lab, LARGEST + 1, within=SILENCE) == [False, False]


def test_every_connection_leaves_by_the_first_gateway(lab: Lab) -> None:
    """Antrea answers nobody else: of many connections, from gateways and the worker, each gets an answer."""
    east, west = lab.topology.clusters
    first = {str(east.gateways[0].tunnel_address)}
    for client in _pods(lab, "east"):
        assert _seen(lab, client, west.services[0].cluster_ip) == first


def test_services_are_reached_where_pods_are_not(lab: Lab) -> None:
    """Without enablePodToPodConnectivity Antrea knows no way to our Pods, whatever its cluster publishes."""
    east, west = lab.topology.clusters
    lab.program_antrea(antrea.Settings(pod_to_pod=False))
    try:
        for client in _pods(lab, "east"):
            assert _seen(lab, client, west.services[0].cluster_ip) == {str(east.gateways[0].tunnel_address)}
        for client in _pods(lab, "west"):
            assert _seen(lab, client, east.services[0].cluster_ip) == {str(matrix.seen_as(west.gateways[0]))}
    finally:
        lab.program_antrea()


@pytest.mark.timing
def test_a_restarted_agent_drops_nothing(lab: Lab) -> None:
    """The verdict is there again before anything is programmed: connections go on, and no flow changes."""
    east, west = lab.topology.clusters
    names = [gateway.name for gateway in east.gateways]

    def flows(name: str) -> list[str]:
        listed = lab.ovs(name).ofctl("--no-stats", "dump-flows", lab.ovs(name).mgmt("br-mc"))
        return sorted(listed.splitlines())

    before = {name: flows(name) for name in names}
    with TcpClient(lab.namespace(_pods(lab, "east")[-1]), str(west.services[0].cluster_ip), 80) as client:
        for name in names:
            lab.stop_agent(name, kill=True)
            lab.start_agent(name)
            lab.wait_ready(name)
            client.exchange(b"still here")
    assert {name: flows(name) for name in names} == before
    assert all(taken_for_antrea(lab, name) for name in names)


def test_the_verdict_is_told(lab: Lab) -> None:
    """`mcagent gateways` says it; that nothing ever comes from west to the second gateway is no problem."""
    second = lab.topology.cluster("east").gateways[1].name
    assert "west's gateways run Antrea" in lab.mcagent(second, "gateways")
    assert lab.status(second)["problems"] == []


def test_policies_by_labels(lab: Lab) -> None:
    """Antrea drops whom it does not know by a label, and knows our Pods by theirs; we know Antrea's likewise."""
    west = lab.topology.cluster("west")
    known, stranger = _pods(lab, "east")[1:]
    lab.api("east").patch("Pod", stranger.name, {"metadata": {"labels": {"app": "stranger"}}})
    guarded = frozenset(pod.name for pod in _pods(lab, "west"))
    (theirs, other), server = _pods(lab, "west"), known
    rule = {"podSelector": {"matchLabels": {"app": "theirs"}}, "scope": "ClusterSet"}
    policy: Json = {
        "apiVersion": "crd.antrea.io/v1beta1",
        "kind": "ClusterNetworkPolicy",
        "metadata": {"name": "theirs"},
        "spec": {
            "priority": 1,
            "appliedTo": [{"podSelector": {"matchLabels": {"app": "web"}}}],
            "ingress": [{"action": "Drop", "from": [rule]}],
        },
    }
    lab.program_antrea(antrea.Settings(guarded=guarded, labels={theirs.name: THEIRS, other.name: OURS}))
    try:
        lab.api("east").apply(policy)

        service = west.services[0].cluster_ip
        let_in = [(known, service, 80), (other, server.address, 8080)]
        dropped = [(stranger, service, 80), (theirs, server.address, 8080)]

        def in_force(within: float) -> bool:
            passes = all(_gets_through(lab, *way, within=within) for way in let_in)
            return passes and not any(_gets_through(lab, *way, within=SILENCE) for way in dropped)

        wait_until(lambda: in_force(SILENCE), "verdicts", timeout=SOON)
        assert [in_force(traffic.PATIENCE) for _ in range(3)] == [True] * 3
    finally:
        lab.api("east").delete("ClusterNetworkPolicy", "theirs")
        lab.api("east").patch("Pod", stranger.name, {"metadata": {"labels": {"app": "web"}}})
        lab.program_antrea()


@pytest.mark.timing
def test_another_first_gateway(lab: Lab) -> None:
    """Drained, the first gateway carries on what nobody else can; taken away, the one that follows is first."""
    east, west = lab.topology.clusters
    gone, left = east.gateways
    clients = _pods(lab, "east")
    with TcpClient(lab.namespace(clients[-1]), str(west.services[0].cluster_ip), 80) as connection:
        lab.mcagent(gone.name, "drain", "--local", "--grace", "0")  # not until `connection` has ended
        assert _seen(lab, clients[-1], west.services[0].cluster_ip) == {str(gone.tunnel_address)}
        connection.exchange(b"still here")
    lab.api("east").delete("Gateway", gone.name, objects.NAMESPACE)
    lab.program_antrea(antrea.Settings(first={"east": left.tunnel_address}))

    def sources() -> set[str]:
        return {source for client in clients for source in _seen(lab, client, west.services[0].cluster_ip)}

    wait_until(lambda: sources() == {str(left.tunnel_address)}, "connections by the other gateway", timeout=60)
    for client in _pods(lab, "west"):
        assert _seen(lab, client, east.services[0].cluster_ip) == {str(matrix.seen_as(west.gateways[0]))}
