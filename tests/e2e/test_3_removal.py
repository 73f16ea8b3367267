"""mcagent is taken away from real clusters, installed again without Helm, and taken away again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from devtools.errors import LabError
from devtools.k8s.demo import CLUSTERSET, COMMON_AREA
from devtools.lab.topology import Cluster
from tests.e2e.world import World, dataplane_of, until

ALL = "mcagent uninstall --role all"


def test_a_leader_with_members_stays(world: World) -> None:
    """The refusal names who is still there, and nothing has happened."""
    with pytest.raises(LabError, match=f"this cluster leads {world.serving.name}: let each leave first"):
        world.guide.run(world.asking, ALL)
    world.settled()


def test_nothing_is_left_on_nodes_and_in_clusters(world: World) -> None:
    """After `mcagent uninstall` and `helm uninstall` no device, rule, route, table or object is left, but CRDs."""
    assert "mcagent-agent would be deleted" not in world.guide.run(world.serving, "mcagent uninstall --dry-run")
    world.guide.run(world.serving, "mcagent uninstall", "--yes")
    world.guide.run(world.asking, ALL, "--yes")
    for node in world.lab.nodes():
        assert dataplane_of(node.machine) == world.bare[node.node.name]
    for cluster in world.lab.topology.clusters:
        world.guide.run(cluster, "helm uninstall mcagent -n kube-system")
        until(lambda c=cluster: not _pods(world, c), f"no Pods of ours in {cluster.name}")  # type: ignore[misc]
        assert _left(world, cluster) == []


def test_a_deletion_without_its_controller_is_found_and_ended(world: World) -> None:
    """What nobody takes a finalizer away from any more is listed, and goes when an administrator does."""
    stuck: dict[str, dict[str, Any]] = {
        "MemberClusterAnnounce/member-announce-from-west": {"clusterID": "west", "clusterSetID": CLUSTERSET},
        "ResourceExport/west-clusterinfo": {"spec": {"kind": "ClusterInfo"}},
    }
    for name, content in stuck.items():
        world.lab.kubectl(world.asking, "apply", "-f", "-", objects=[_with_finalizer(name) | content])
        world.lab.kubectl(world.asking, "delete", "-n", COMMON_AREA, name, "--wait=false")
    listed = world.guide.find("kubectl get clustersets,")
    result = world.guide.run(world.asking, listed)
    for name in stuck:
        kind, _, metadata_name = name.partition("/")
        assert f"{kind} {COMMON_AREA}/{metadata_name}" in result
        world.guide.run(world.asking, world.guide.find(f"kubectl patch {kind.lower()}"))
    until(lambda: not world.guide.run(world.asking, listed), "the end of both")


def test_crds_go_when_they_are_told_to(world: World) -> None:
    """With all that is stored under them, and the leader's Namespace."""
    for cluster in world.lab.topology.clusters:
        world.guide.run(cluster, f"{ALL} --crds", "--yes")
        assert not [name for name in _names(world, cluster, "crds") if "multicluster" in name]
        assert COMMON_AREA not in _names(world, cluster, "namespaces")


def test_without_helm_the_same_is_installed_and_removed(world: World) -> None:
    """`mcagent deploy` ends when all Pods are ready; after `mcagent uninstall` everything is as it was before."""
    east, west = world.lab.topology.clusters
    assert "kind: DaemonSet" in world.guide.run(west, "mcagent deploy --clusterid west")
    assert "(dry run)" in world.guide.run(west, "mcagent deploy --clusterid west --apply --dry-run")
    assert not _pods(world, west)
    world.guide.run(east, "mcagent deploy --clusterid east --role all --apply")
    world.guide.run(west, "mcagent deploy --clusterid west --apply")
    for cluster in (east, west):
        for name in ("deployment/mcagent-member", "daemonset/mcagent-agent", "daemonset/mcagent-openvswitch"):
            world.lab.rolled_out(cluster, "kube-system", name, timeout=1)
        world.guide.run(cluster, f"{ALL} --crds", "--yes")
        assert _left(world, cluster) == _pods(world, cluster) == []
    for node in world.lab.nodes():
        assert dataplane_of(node.machine) == world.bare[node.node.name]


def test_every_command_of_the_pages_was_run(world: World, request: pytest.FixtureRequest) -> None:
    """docs/deploy.md, upgrade.md and uninstall.md have no command that these tests did not run."""
    files = {item.path.name for item in request.session.items}
    if not files >= {file.name for file in Path(__file__).parent.glob("test_*.py")}:
        pytest.skip("not all of these tests were asked for")
    assert world.guide.left == []


KINDS = (
    "clusterroles", "clusterrolebindings", "roles", "rolebindings", "serviceaccounts", "configmaps", "secrets",
    "leases",
    "validatingwebhookconfigurations", "mutatingwebhookconfigurations", "validatingadmissionpolicies",
    "validatingadmissionpolicybindings", "networkpolicies", "poddisruptionbudgets",
)  # fmt: skip


def _with_finalizer(name: str) -> dict[str, Any]:
    """Return the beginning of an object "KIND/NAME" of the leader that nobody's controller will let go."""
    kind, _, metadata_name = name.partition("/")
    metadata = {
        "name": metadata_name,
        "namespace": COMMON_AREA,
        "finalizers": ["resourceexport.antrea.io/finalizer"],
    }
    return {"apiVersion": "multicluster.crd.antrea.io/v1alpha1", "kind": kind, "metadata": metadata}


def _left(world: World, cluster: Cluster) -> list[str]:
    return [name for kind in KINDS for name in _names(world, cluster, kind) if "mcagent" in name]


def _names(world: World, cluster: Cluster, kind: str) -> list[str]:
    return [obj["metadata"]["name"] for obj in world.get(cluster, kind, "-A")]


def _pods(world: World, cluster: Cluster, prefix: str = "mcagent") -> list[str]:
    return [name for name in _names(world, cluster, "pods") if name.startswith(prefix)]
