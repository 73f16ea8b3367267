"""mcagent is taken away from real clusters, and the clusters from the machine."""

from __future__ import annotations

from tests.e2e.world import World, dataplane_of, until

GROUPS = ("multicluster.crd.antrea.io", "multicluster.x-k8s.io")


def test_nothing_is_left_on_nodes_and_in_clusters(world: World) -> None:
    """After leaving, `helm uninstall` and `mcagent cleanup` no device, rule, route, table or object is left."""
    for cluster in reversed(world.lab.topology.clusters):
        world.demo.mcagent(cluster, "clusterset", "leave", "--clusterset", "blue", "-n", "kube-system")
    world.demo.mcagent(world.asking, "clusterset", "destroy", "--clusterset", "blue", "-n", "antrea-multicluster")
    for cluster in world.lab.topology.clusters:
        world.lab.kubectl(cluster, "-n", "kube-system", "delete", "daemonset", "mcagent-agent", "--wait")
        until(lambda c=cluster: not _pods(world, c, "mcagent-agent"), "no agents")  # type: ignore[misc]
        for pod in _pods(world, cluster, "mcagent-openvswitch"):
            world.lab.kubectl(cluster, "-n", "kube-system", "exec", pod, "--", "mcagent", "cleanup")
        world.demo.helm(world.helm, cluster, "uninstall")
        until(lambda c=cluster: not _pods(world, c), f"no Pods of ours in {cluster.name}")  # type: ignore[misc]
        crds = [name for name in _names(world, cluster, "crds") if name.partition(".")[2] in GROUPS]
        assert crds  # the chart keeps them, and what users store in them
        world.lab.kubectl(cluster, "delete", "crd", *crds, timeout=60.0)
        left = {kind: [name for name in _names(world, cluster, kind) if "mcagent" in name] for kind in KINDS}
        assert not any(left.values()), left
    for one in world.lab.nodes():
        assert dataplane_of(one.machine) == world.bare[one.node.name]


KINDS = (
    "clusterroles", "clusterrolebindings", "roles", "rolebindings", "serviceaccounts", "configmaps", "secrets",
    "leases",
    "validatingwebhookconfigurations", "mutatingwebhookconfigurations", "validatingadmissionpolicies",
    "validatingadmissionpolicybindings", "networkpolicies", "poddisruptionbudgets",
)  # fmt: skip


def _names(world: World, cluster: object, kind: str) -> list[str]:
    return [one["metadata"]["name"] for one in world.get(cluster, kind, "-A")]  # type: ignore[arg-type]


def _pods(world: World, cluster: object, prefix: str = "mcagent") -> list[str]:
    return [name for name in _names(world, cluster, "pods") if name.startswith(prefix)]
