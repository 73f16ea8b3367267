"""What users do with a Service of another cluster, on real Kubernetes."""

from __future__ import annotations

import pytest

from devtools.k8s import workloads
from devtools.k8s.demo import URL
from tests.e2e.world import World, until

ASKED = 60


@pytest.mark.parametrize("app", ["client", "host-client"])
def test_a_service_of_the_other_cluster_answers_by_its_name(world: World, app: str) -> None:
    """From Pods on every Node, and from processes with the Node's own network."""
    for client in world.clients(app):
        reply = client.ask(ASKED, URL)
        assert (reply.answered, dict(reply.errors)) == (ASKED, {}), client.node
        assert len(reply.answers) == 2


def test_pods_reach_pods_with_their_own_addresses(world: World) -> None:
    """Pod-to-Pod: the server sees the client's address."""
    addresses = {
        pod["spec"]["nodeName"]: pod["status"]["podIP"]
        for pod in world.get(world.asking, "pods", "-l", "app=client")
    }
    for client in world.clients():
        for server in world.servers():
            reply = client.ask(5, f"http://{server['status']['podIP']}:{workloads.PORT}/")
            assert dict(reply.sources) == {addresses[client.node]: 5}, (client.node, dict(reply.errors))


@pytest.mark.parametrize("size", [64_000, 1_000_000])
def test_large_answers_come_whole(world: World, size: int) -> None:
    """MTU and MSS are right in Pods of either CNI, by Service and by Pod address."""
    (server, *_) = world.servers()
    for client in (*world.clients(), *world.clients("host-client")):
        for host in (world.cluster_ip(), f"{server['status']['podIP']}:{workloads.PORT}"):
            if host.startswith(world.cluster_ip()) or client in world.clients():
                reply = client.fetch(f"http://{host}/bytes?count={size}")
                assert (reply.bytes, dict(reply.errors)) == (size, {}), (client.node, host)


@pytest.mark.timing
def test_datagrams_to_a_service_come_back(world: World) -> None:
    """None is lost while nothing happens."""
    with world.traffic() as traffic:
        assert not world.clients()[0].ask(20, URL).broken
    assert traffic.lost == 0, str(traffic)
    assert traffic.connections.broken == 0, str(traffic)


def test_a_deployment_is_scaled_and_rolled(world: World) -> None:
    """New Pods answer, Pods that are gone are not asked any more."""
    (client, *_) = world.clients()
    for count in (4, 1, 2):
        world.lab.kubectl(world.serving, "scale", "deployment/web", f"--replicas={count}")
        world.lab.rolled_out(world.serving, "default", "deployment/web")
        until(lambda n=count: len(client.ask(40, URL).answers) == n, f"answers of {count} Pods")  # type: ignore[misc]
    before = {pod["metadata"]["name"] for pod in world.servers()}
    world.lab.kubectl(world.serving, "rollout", "restart", "deployment/web")
    world.lab.rolled_out(world.serving, "default", "deployment/web")
    until(lambda: not client.ask(20, URL).broken, "answers after a rollout")
    assert before.isdisjoint(client.ask(40, URL).answers)


def test_a_pod_that_is_killed_is_replaced(world: World) -> None:
    """Its replacement answers."""
    (client, *_) = world.clients()
    (server, *_) = world.servers()
    world.lab.kubectl(world.serving, "delete", "pod", server["metadata"]["name"], "--grace-period=0", "--force")
    world.lab.rolled_out(world.serving, "default", "deployment/web")
    until(lambda: len(client.ask(40, URL).answers) == 2, "answers of both Pods")
    assert server["metadata"]["name"] not in client.ask(40, URL).answers


def test_an_endpoint_that_is_not_ready_is_not_asked(world: World) -> None:
    """By the Pod's own readiness probe, as Kubernetes sees it."""
    (client, *_) = world.clients()
    (server, *_) = world.servers()
    name = server["metadata"]["name"]
    client.fetch(f"http://{server['status']['podIP']}:{workloads.PORT}/unready")
    until(lambda: set(client.ask(20, URL).answers) == _others(world, name), f"no answers of {name}")
    reply = client.ask(ASKED, URL)
    assert (reply.broken, reply.answers.get(name)) == (0, None)
    world.lab.kubectl(world.serving, "delete", "pod", name)
    world.lab.rolled_out(world.serving, "default", "deployment/web")
    until(lambda: len(client.ask(40, URL).answers) == 2, "answers of both Pods")


def test_session_affinity_holds_across_clusters(world: World) -> None:
    """A client stays with the Pod that answered it first."""
    objects = workloads.service("sticky", "web", sessionAffinity="ClientIP")
    world.lab.kubectl(world.serving, "apply", "-f", "-", objects=objects)
    until(lambda: world.imported("antrea-mc-sticky"), "the import of sticky")
    for client in world.clients():
        url = f"http://{world.cluster_ip('antrea-mc-sticky')}/"
        until(lambda c=client, u=url: c.ask(1, u).answered, "an answer of sticky")  # type: ignore[misc]
        assert len(client.ask(ASKED, url).answers) == 1
    world.lab.kubectl(world.serving, "delete", "serviceexport/sticky", "service/sticky")
    until(
        lambda: not world.get(world.asking, "services", "--field-selector", "metadata.name=antrea-mc-sticky"),
        "its end",
    )


def test_a_node_port_leads_to_a_service_of_the_other_cluster(world: World) -> None:
    """A NodePort Service over the imported ClusterIP answers on every Node's address."""
    name = "web-outside"
    port = {"name": "http", "port": 80, "protocol": "TCP"}
    objects = [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"type": "NodePort", "ports": [{**port, "nodePort": 30080}]},
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": name,
                "namespace": "default",
                "labels": {"kubernetes.io/service-name": name},
            },
            "addressType": "IPv4",
            "ports": [port],
            "endpoints": [{"addresses": [world.get(world.serving, "service", "web")[0]["spec"]["clusterIP"]]}],
        },
    ]
    world.lab.kubectl(world.asking, "apply", "-f", "-", objects=objects)
    for node in world.asking.nodes:
        for client in world.clients():
            url = f"http://{node.address}:30080/"
            until(lambda c=client, u=url: c.ask(1, u).answered, f"an answer at {url}")  # type: ignore[misc]
            reply = client.ask(20, url)
            assert (reply.answered, dict(reply.errors)) == (20, {}), (client.node, url)
    world.lab.kubectl(world.asking, "delete", f"service/{name}", f"endpointslice/{name}")


def test_a_service_of_another_type_is_refused_with_a_reason(world: World) -> None:
    """The ServiceExport says why it is not served."""
    objects = workloads.service("elsewhere", "web", type="ExternalName", externalName="example.org")
    world.lab.kubectl(world.serving, "apply", "-f", "-", objects=objects)

    def reasons() -> list[str]:
        (export,) = world.get(world.serving, "serviceexport", "elsewhere")
        conditions = export.get("status", {}).get("conditions", [])
        return [condition.get("reason", "") for condition in conditions if condition["status"] == "False"]

    until(lambda: "InvalidServiceType" in reasons(), "a condition of ServiceExport elsewhere")
    assert not world.get(world.asking, "services", "--field-selector", "metadata.name=antrea-mc-elsewhere")
    world.lab.kubectl(world.serving, "delete", "serviceexport/elsewhere", "service/elsewhere")


def test_a_headless_service_is_its_pods(world: World) -> None:
    """Other clusters have the Pods' addresses, and no ClusterIP."""
    objects = workloads.service("headless", "web", clusterIP="None")
    world.lab.kubectl(world.serving, "apply", "-f", "-", objects=objects)

    def addresses() -> set[str]:
        slices = world.get(
            world.asking, "endpointslices", "-l", "multicluster.kubernetes.io/service-name=headless"
        )
        return {address for server in slices for end in server["endpoints"] or () for address in end["addresses"]}

    pods = {str(server["status"]["podIP"]) for server in world.servers()}
    until(lambda: addresses() == pods, f"the addresses {pods}")
    (found,) = world.get(world.asking, "serviceimport", "headless")
    assert found["spec"]["type"] == "Headless"
    world.lab.kubectl(world.serving, "delete", "serviceexport/headless", "service/headless")
    until(lambda: not addresses(), "no addresses any more")


def test_a_network_policy_counts_between_clusters(world: World) -> None:
    """Beside a CNI that enforces none: the other cluster's Pods get in by their labels, its Nodes do not."""
    cluster = {"matchLabels": {"multicluster.kubernetes.io/cluster": world.asking.name}}
    peer = {"namespaceSelector": cluster, "podSelector": {"matchLabels": {"app": "client"}}}
    metadata = {"name": "clients-only", "namespace": "default"}
    spec = {"podSelector": {"matchLabels": {"app": "web"}}, "ingress": [{"from": [peer]}]}
    policy = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec}
    world.lab.kubectl(world.serving, "apply", "-f", "-", objects=[policy])
    try:
        for node in world.clients("host-client"):
            until(lambda c=node: not c.ask(1, URL).answered, f"no answers on {node.node}")  # type: ignore[misc]
        for client in world.clients():
            reply = client.ask(ASKED, URL)
            assert (reply.answered, dict(reply.errors)) == (ASKED, {}), client.node
    finally:
        world.lab.kubectl(world.serving, "delete", "networkpolicy", "clients-only")
    for node in world.clients("host-client"):
        until(lambda c=node: c.ask(1, URL).answered, f"answers on {node.node}")  # type: ignore[misc]


def test_the_open_vswitch_of_a_node_is_used(world: World) -> None:
    """The container that brings one along finds it, starts none, and is ready."""
    for cluster in world.lab.topology.clusters:
        world.lab.rolled_out(cluster, "kube-system", "daemonset/mcagent-openvswitch")
        log = world.guide.run(cluster, "kubectl logs -n kube-system daemonset/mcagent-openvswitch")
        assert "using the Node's own Open vSwitch" in log


def test_agents_say_how_they_do(world: World) -> None:
    """By the commands that docs/deploy.md has for it, in the agents' own Pods."""
    world.settled()
    pods = world.guide.run(world.asking, "kubectl get pods -A -l app.kubernetes.io/name=mcagent -o wide")
    for name in ("mcagent-agent", "mcagent-member", "mcagent-leader", "mcagent-openvswitch"):
        assert name in pods
    agent = "kubectl exec -n kube-system daemonset/mcagent-agent -- mcagent"
    # Its exit code is 1 while what the test before has changed is being applied.
    until(lambda: world.serving.name in world.guide.run(world.asking, f"{agent} status"), "a ready agent")
    assert str(world.demo.victim.address) in world.guide.run(world.asking, f"{agent} gateways")
    world.guide.run(world.asking, f"{agent} plan")
    assert world.serving.name in world.guide.run(world.asking, f"mcagent status --context {world.asking.name}")
    cidrs = world.guide.run(world.asking, world.guide.find("kubectl get clusterinfoimports"))
    assert str(world.serving.service_cidr) in cidrs
    world.guide.run(world.asking, "kubectl get events -A --field-selector reportingComponent=mcagent-agent")


def test_a_node_lists_its_own_rules(world: World) -> None:
    """What the image's nft wrote, the Node's own nft reads."""
    for node in world.lab.nodes():
        assert "mcagent" in node.machine.run(["nft", "list", "ruleset"])


def _others(world: World, name: str) -> set[str]:
    return {pod["metadata"]["name"] for pod in world.servers()} - {name}
