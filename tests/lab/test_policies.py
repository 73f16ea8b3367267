"""Policies between clusters in real packets: who gets through, who is dropped or refused, and what of it stays."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from devtools.errors import LabError
from devtools.lab import faults
from devtools.lab.api import Json
from devtools.lab.lab import Lab
from devtools.lab.topology import POD_PORT, Cni, generate
from devtools.traffic import traffic
from devtools.traffic.capture import Capture
from devtools.traffic.traffic import PATIENCE
from devtools.waiting import wait_until
from mcagent.dataplane.facts import kernel_datapath_exists
from mcagent.model.dataplane.resources import TunnelType
from mcagent.model.parsing import labels
from tests.lab.traces import trace
from tests.worlds.policy_lab import (
    IN_TIME,
    REPEATS,
    SILENCE,
    becomes,
    bring_up,
    clients,
    cluster_policy,
    everywhere,
    network_policy,
    of_east,
    policy,
    servers,
    tried,
    verdicts,
    web,
)
from tests.worlds.profiles import translated

__all__ = ["policy"]  # fixtures
pytestmark = [pytest.mark.packets, pytest.mark.datapath]


LARGE = 2900  # bytes of a datagram that is sent in fragments
IP_MTU_DISCOVER, IP_PMTUDISC_DONT = 10, 0  # ip(7)


@pytest.fixture(scope="module")
def lab(make_lab: Callable[..., Lab]) -> Lab:
    """Two clusters of two gateways and a worker; one has clients, good and bad, the other servers."""
    return bring_up(make_lab, generate(gateways=2, pods=2))


def ingress(action: str, app: str, **fields: object) -> Json:
    """Return an ingress section of one rule about Pods of any cluster with a label."""
    peer = {"scope": "ClusterSet", "podSelector": {"matchLabels": {"app": app}}}
    return {"ingress": [{"action": action, "from": [peer], **fields}]}


@contextlib.contextmanager
def counted(
    lab: Lab, client: str, address: str, port: int
) -> Iterator[tuple[socket.socket, Callable[[bytes], int]]]:
    """Give a client's UDP socket, and what tells how often a datagram of it has arrived at any server."""
    with contextlib.ExitStack() as stack:
        wires = [stack.enter_context(Capture(lab.namespace(pod))) for pod in servers(lab)]
        sock = stack.enter_context(traffic.udp_socket(client, address, port))
        sock.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DONT)  # larger datagrams are fragmented
        yield sock, lambda token: sum(wire.count(token) for wire in wires)


def assert_arrives_once(lab: Lab, client: str, address: str, port: int, size: int = 12) -> None:
    """Fail unless each of many datagrams is answered, and arrives at most as often as it was sent."""
    with counted(lab, client, address, port) as (sock, arrivals):
        tokens = [os.urandom(12) for _ in range(REPEATS)]
        sent = {token: traffic.exchange(sock, token.ljust(size)).sent for token in tokens}
        traffic.exchange(sock, b"the end")  # a copy that came after its original has come before this answer
        copies = [(arrivals(token), number) for token, number in sent.items()]
        assert all(1 <= arrived <= number for arrived, number in copies), copies


def assert_never_arrives(lab: Lab, client: str, address: str, port: int, size: int = 12) -> None:
    """Fail if one of many datagrams, sent for as long as an answer would take, arrives at any server."""
    tokens = [os.urandom(12) for _ in range(REPEATS)]
    with counted(lab, client, address, port) as (sock, arrivals):
        for token in tokens:
            with contextlib.suppress(LabError):
                traffic.exchange(sock, token.ljust(size), timeout=0.15)
        assert [arrivals(token) for token in tokens] == [0] * REPEATS


def rule_packets(lab: Lab, name: str) -> int:
    """Return the packets that all Nodes of the servers say rules of a policy decided on."""
    count = 0
    for node in lab.topology.clusters[1].nodes:
        text = lab.http(node.name, "/metrics")[1]
        for line in re.findall(rf"^mcagent_policy_rule_packets_total\{{.*{name}.*\}} (\S+)$", text, re.MULTILINE):
            count += int(float(line))
    return count


def decided(lab: Lab, app: str, address: str) -> list[str]:
    """Return why `mcagent trace` says that a client's packet does not arrive, and the policies that it names."""
    node = lab.topology.clusters[0].nodes[-1]
    client = node.pods[("good", "bad").index(app)]
    found, shown = trace(lab, node.name, client.address, f"{address}:{POD_PORT}")
    walk = found["hops"][-1]["walk"]
    assert not found["delivered"], shown
    return [walk["reason"], *(policy["policy"] for policy in walk["policies"]), *walk["isolatedBy"]]


def test_default_deny_and_allow_by_labels_of_the_other_cluster(
    lab: Lab, policy: Callable[[str, Json], None]
) -> None:
    """Every packet of the good arrives once, none of the bad or of a client without identity."""
    for app in ("good", "bad"):
        assert verdicts(lab, app, *everywhere(lab), within=PATIENCE) == {"open"}
    policy("west", network_policy("deny"))
    becomes(lab, "good", "silent")
    becomes(lab, "bad", "silent")
    policy("west", network_policy("some", {"from": [of_east("good")]}))
    becomes(lab, "good", "open")
    assert verdicts(lab, "bad", *everywhere(lab), within=SILENCE) == {"silent"}
    to_pod = str(servers(lab)[-1].address)
    for address, port in ((web(lab), 80), (to_pod, POD_PORT)):
        assert_arrives_once(lab, clients(lab, "good")[-1], address, port)
        assert_never_arrives(lab, clients(lab, "bad")[-1], address, port)
        assert tried(lab.namespace(lab.topology.clusters[0].nodes[-1]), address, port, within=SILENCE) == "silent"
    assert rule_packets(lab, "some") >= 2 * REPEATS
    assert decided(lab, "bad", to_pod) == ["isolated", "NetworkPolicy default/deny", "NetworkPolicy default/some"]


def test_tiers_decide_before_network_policies(lab: Lab, policy: Callable[[str, Json], None]) -> None:
    """Reject is heard at once, through the Service too; then NetworkPolicies decide, if a tier passes it on."""
    policy("west", cluster_policy("no-bad", 5, ingress("Reject", "bad")))
    becomes(lab, "bad", "refused")
    with pytest.raises(LabError, match="No route to host"):
        traffic.udp(clients(lab, "bad")[-1], web(lab), 80, b"x")
    assert verdicts(lab, "good", *everywhere(lab), within=PATIENCE) == {"open"}
    assert decided(lab, "bad", str(servers(lab)[-1].address)) == ["policy", "ClusterNetworkPolicy/no-bad"]
    policy("west", cluster_policy("pass-bad", 1, ingress("Pass", "bad")))
    becomes(lab, "bad", "open")
    policy("west", network_policy("deny"))
    becomes(lab, "bad", "silent")
    policy("west", cluster_policy("let-bad", 9, ingress("Allow", "bad"), tier="securityops"))
    becomes(lab, "bad", "open")


def test_rules_are_about_ports(lab: Lab, policy: Callable[[str, Json], None]) -> None:
    """One protocol and port is dropped, another is not."""
    tcp = {"protocol": "TCP", "port": POD_PORT}
    policy("west", cluster_policy("no-tcp", 5, ingress("Drop", "good", ports=[tcp])))
    becomes(lab, "good", "silent")
    assert_arrives_once(lab, clients(lab, "good")[-1], web(lab), 80)


def test_the_port_of_a_datagram_decides_its_fragments(lab: Lab, policy: Callable[[str, Json], None]) -> None:
    """Large datagrams to a port arrive if a rule allows the port, and not if one drops it."""
    tcp, udp = ({"protocol": protocol, "port": POD_PORT} for protocol in ("TCP", "UDP"))
    to_pod = str(servers(lab)[-1].address)
    policy("west", cluster_policy("no-bad-port", 5, ingress("Drop", "bad", ports=[tcp, udp])))
    becomes(lab, "bad", "silent")
    assert_never_arrives(lab, clients(lab, "bad")[-1], to_pod, POD_PORT, LARGE)
    policy("west", network_policy("udp", {"from": [of_east("good")], "ports": [udp]}))
    becomes(lab, "good", "silent")  # by TCP
    assert_arrives_once(lab, clients(lab, "good")[-1], to_pod, POD_PORT, LARGE)


def test_egress_to_a_service_of_the_cluster_set(lab: Lab, policy: Callable[[str, Json], None]) -> None:
    """Dropped on the client's Node for those selected; others and other ways are not touched."""
    imported = lab.topology.imports(lab.topology.clusters[0])[0]
    service = {"name": imported.service.name, "namespace": imported.service.namespace, "scope": "ClusterSet"}
    rule: Json = {"egress": [{"action": "Reject", "toServices": [service]}]}
    policy("east", cluster_policy("stay", 5, rule, app="bad"))
    becomes(lab, "bad", "refused", (web(lab), 80))
    assert verdicts(lab, "bad", (str(imported.cluster_ip), 80), within=PATIENCE) == {"refused"}
    assert verdicts(lab, "bad", (str(servers(lab)[-1].address), POD_PORT), within=PATIENCE) == {"open"}
    assert verdicts(lab, "good", within=PATIENCE) == {"open"}


def test_egress_to_a_service_with_endpoints_in_this_cluster(lab: Lab, policy: Callable[[str, Json], None]) -> None:
    """Clients that a policy selects reach no endpoint of their own cluster either; others do, and it is undone."""
    east = lab.topology.clusters[0]
    imported = lab.topology.imports(east)[0]
    name, namespace = f"antrea-mc-{imported.service.name}", imported.service.namespace
    backend = east.nodes[0].pods[0]
    labels = {"kubernetes.io/service-name": name, "multicluster.kubernetes.io/source-cluster": east.name}
    lab.api("east").apply(
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": "own-endpoints", "namespace": namespace, "labels": labels},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [str(backend.address)], "conditions": {"ready": True}}],
            "ports": [{"name": "tcp", "protocol": "TCP", "port": POD_PORT}],
        }
    )
    other_clients = {
        app: [lab.namespace(node.pods[i]) for node in east.nodes[1:]] for i, app in enumerate(("good", "bad"))
    }

    def met(app: str, *, within: float) -> set[str]:
        return {tried(client, str(backend.address), POD_PORT, within=within) for client in other_clients[app]}

    try:
        assert met("good", within=PATIENCE) == met("bad", within=PATIENCE) == {"open"}
        service = {"name": imported.service.name, "namespace": namespace, "scope": "ClusterSet"}
        rule: Json = {"egress": [{"action": "Drop", "toServices": [service]}]}
        policy("east", cluster_policy("stay", 5, rule, app="bad"))
        wait_until(
            lambda: met("bad", within=SILENCE) == {"silent"}, "the own endpoint to be closed", timeout=IN_TIME
        )
        assert verdicts(lab, "bad", (str(imported.cluster_ip), 80), within=SILENCE) == {"silent"}
        assert met("good", within=PATIENCE) == {"open"}
        counter = r'^mcagent_nft_dropped_packets_total\{reason="policy-own-endpoint"\} [1-9]'
        texts = [lab.http(node.name, "/metrics")[1] for node in east.nodes[1:]]
        assert [bool(re.search(counter, text, re.MULTILINE)) for text in texts] == [True] * len(texts)
        policy("east", cluster_policy("stay", 5, rule, app="nobody"))
        wait_until(
            lambda: met("bad", within=SILENCE) == {"open"}, "the own endpoint to be open again", timeout=IN_TIME
        )
    finally:
        lab.api("east").delete("EndpointSlice", "own-endpoints", namespace)


def test_a_policy_ends_open_connections_that_it_forbids(lab: Lab, policy: Callable[[str, Json], None]) -> None:
    """The others do not break; gateways and agents that come and go change no verdict, and no flow."""
    east, west = lab.topology.clusters
    with contextlib.ExitStack() as stack:
        good, bad = (
            [
                stack.enter_context(traffic.TcpClient(client, web(lab), 80, timeout=10))
                for client in clients(lab, app)
            ]
            for app in ("good", "bad")
        )
        policy("west", cluster_policy("no-bad", 5, ingress("Drop", "bad")))
        becomes(lab, "bad", "silent")
        for client in bad:
            client.socket.settimeout(0.5)
            with pytest.raises(LabError):
                client.exchange(b"x")
        for client in good:
            client.exchange(b"x" * 100)
        cut = faults.link_cut(lab, east.gateways[1].name)
        cut.inject()
        try:
            for connection, node in zip(good, east.nodes, strict=True):
                if node is not east.gateways[1]:
                    connection.exchange(b"x" * 100)
                    assert tried(lab.namespace(node.pods[1]), web(lab), within=SILENCE) == "silent"
        finally:
            cut.heal()
        for node in west.nodes:
            lab.stop_agent(node.name, kill=True)
        assert verdicts(lab, "bad", *everywhere(lab), within=SILENCE) == {"silent"}
        for client in good:
            client.exchange(b"x" * 100)
        flows = {node.name: _flows(lab, node.name) for node in west.nodes}
        for node in west.nodes:
            lab.start_agent(node.name)
        lab.wait_ready()
        assert verdicts(lab, "bad", *everywhere(lab), within=SILENCE) == {"silent"}
        assert {node.name: _flows(lab, node.name) for node in west.nodes} == flows
        for node in west.nodes:
            text = lab.http(node.name, "/metrics")[1]
            change_counts = re.findall(r'^mcagent_changes_total\{kind="FlowEntry".*\} (\S+)$', text, re.MULTILINE)
            assert change_counts
            assert not any(map(float, change_counts)), node.name
        for client in good:
            client.exchange(b"x" * 100)


@pytest.mark.skipif(kernel_datapath_exists(), reason="the kernel datapath changes the flow that is meant")
def test_a_datapath_flow_with_old_actions_goes_after_a_change_of_policies(
    lab: Lab, policy: Callable[[str, Json], None]
) -> None:
    """Open vSwitch does not look at such a flow again; here its actions are changed without its knowledge."""
    node = lab.topology.clusters[1].nodes[0]
    client, switch = clients(lab, "bad")[-1], lab.ovs(node.name)
    address = str(node.pods[1].address)
    policy("west", cluster_policy("other", 5, ingress("Drop", "other")))
    wait_until(lambda: _rule_flows(lab, node.name), "the policy", timeout=IN_TIME)

    def met() -> set[str]:
        """Return what connections to a Pod meet; they come by both gateways of their cluster."""
        with ThreadPoolExecutor(REPEATS) as pool:
            return set(pool.map(lambda _: tried(client, address, POD_PORT, within=SILENCE), range(REPEATS)))

    def dropped() -> bool:
        """Let the flows of new connections to the Pod drop; tell whether they do."""
        met()
        for line in switch.appctl("dpctl/dump-flows", "-m").splitlines():
            if f"dst={address}," in line and "ct_state(0x21/" in line:
                switch.appctl("dpctl/mod-flow", line.partition(", packets:")[0], "drop")
        return met() == {"silent"}

    wait_until(dropped, "flows that drop", timeout=IN_TIME)
    policy("west", cluster_policy("other", 5, ingress("Drop", "another")))
    wait_until(lambda: met() == {"open"}, "new flows", timeout=IN_TIME)


def _rule_flows(lab: Lab, node: str) -> bool:
    return any("conj_id" in flow for flow in _flows(lab, node))


def _flows(lab: Lab, node: str) -> list[str]:
    return sorted(lab.ovs(node).ofctl("--no-stats", "dump-flows", lab.ovs(node).mgmt(faults.BRIDGE)).splitlines())


def test_an_identity_that_the_sender_does_not_own_is_nobodys(
    lab: Lab, policy: Callable[[str, Json], None]
) -> None:
    """Where the other cluster is not said to have such Pods any more, they are unknown, and not let in."""
    policy("west", network_policy("some", {"from": [of_east("good")]}))
    becomes(lab, "good", "open")
    becomes(lab, "bad", "silent")
    label = labels.label_hash(labels.normalised("default", {}, {"app": "good"}))
    owners: Json = {"metadata": {"annotations": {"mcagent.io/exporters": "north"}}}
    lab.api("west").patch("LabelIdentity", label, owners)
    becomes(lab, "good", "silent")
    owners = {"metadata": {"annotations": {"mcagent.io/exporters": "east"}}}
    lab.api("west").patch("LabelIdentity", label, owners)
    becomes(lab, "good", "open")


@pytest.mark.parametrize("cni", [Cni.OVERLAP, Cni.EBPF], ids=str)
def test_who_hides_behind_a_gateway_is_known_by_labels(make_lab: Callable[..., Lab], cni: Cni) -> None:
    """Clients that have the gateway's address are told apart, also where eBPF forwards what Pods send."""
    lab = bring_up(make_lab, translated(generate(cni=cni, tunnel=TunnelType.VXLAN, pods=2)))
    lab.api("west").apply(network_policy("some", {"from": [of_east("good")]}))
    lab.api("west").apply(cluster_policy("no-bad", 5, ingress("Reject", "bad")))
    becomes(lab, "bad", "refused")
    becomes(lab, "good", "open")
    assert_arrives_once(lab, clients(lab, "good")[-1], web(lab), 80)
    # Who is not known may be whomever a rule rejects.
    assert tried(lab.namespace(lab.topology.clusters[0].nodes[-1]), web(lab), within=PATIENCE) == "refused"
