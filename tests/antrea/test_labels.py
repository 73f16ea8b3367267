"""Label identities (enableStretchedNetworkPolicy) of clusters with controllers of both projects, whoever leads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from mcagent.controller.contract import names
from mcagent.model.objects import Kind
from mcagent.model.parsing import labels
from tests.antrea.clusters import AREA, OURS, Cluster, Json
from tests.antrea.worlds import World, running, soon

POLICY = "isolation"
V1, V2 = "v1.14.3", "v2.4.0"


def text(pod: Json) -> str:
    """Return the identity of a Pod's labels in the namespace "default"."""
    return labels.normalised("default", {}, pod)


def numbers(cluster: Cluster) -> dict[str, int]:
    """Return the label identities that a cluster knows, with their numbers."""
    return {item["spec"]["label"]: item["spec"]["id"] for item in cluster.items(Kind.LABEL_IDENTITY)}


def known(world: World, *pods: Json) -> bool:
    """Tell whether all clusters know these labels, by the same numbers."""
    numbers_known = [[numbers(member.cluster).get(text(pod)) for pod in pods] for member in world.members]
    return None not in numbers_known[0] and numbers_known.count(numbers_known[0]) == len(numbers_known)


def exported(world: World, cluster_id: str, pod: Json) -> bool:
    """Tell whether a cluster tells its leader that it has Pods with these labels."""
    name = names.label_export(cluster_id, labels.label_hash(text(pod)))
    return world.area.get(Kind.RESOURCE_EXPORT, name, AREA) is not None


@pytest.mark.parametrize(
    ("leader", "whose"), [(OURS, (OURS, V1, V2)), (V1, (V1, OURS)), (V2, (V2, OURS))], ids=["ours", V1, V2]
)
def test_labels_and_policies_go_both_ways(
    leader: str, whose: Sequence[str], program: Callable[[str], Path], tmp_path: Path
) -> None:
    """Labels of all clusters' Pods have one number everywhere and follow the Pods; a policy is copied to all."""
    with running(leader, whose, tmp_path, program, enableStretchedNetworkPolicy=True) as world:
        world.lead()
        world.join(world.members)
        shared, other = {"app": "shared"}, {"app": "other", "tier": "x"}
        for member in world.members:
            member.cluster.pod("own", {"app": member.name})
            member.cluster.pod("shared", shared)
            member.cluster.pod("bare", {})
        everything = [shared, {}, *({"app": member.name} for member in world.members)]
        soon(partial(known, world, *everything), "all labels to be known everywhere")
        ids = numbers(world.area)
        assert len({ids[text(pod)] for pod in everything}) == len(everything)

        for member in world.members:
            member.cluster.pod("own", other)
        soon(partial(known, world, *everything[:1], other), "the other labels to be known everywhere")
        for member in world.members:
            old = {"app": member.name}
            soon(lambda m=member, o=old: not exported(world, m.name, o), "labels that are gone not to be exported")  # type: ignore[misc]
            member.cluster.delete_pod("shared")
            assert exported(world, member.name, other)
        for member in world.members:
            soon(lambda m=member: not exported(world, m.name, shared), "labels without Pods not to be exported")  # type: ignore[misc]
        assert numbers(world.area)[text(other)] == numbers(world.members[-1].cluster)[text(other)]

        peers = [{"podSelector": {}, "scope": "ClusterSet"}]
        rule = {"action": "Drop", "from": peers}
        policy = {"tier": "application", "priority": 1.0, "appliedTo": [{"podSelector": {}}], "ingress": [rule]}
        for member in world.members:
            member.cluster.put(Kind.TIER, "application", spec={"priority": 250})
        spec = {"name": POLICY, "kind": names.POLICY, "clusterNetworkPolicy": policy}
        world.area.put(Kind.RESOURCE_EXPORT, f"{POLICY}-export", AREA, spec=spec)
        for member in world.members:
            there = partial(member.cluster.get, Kind.CLUSTER_NETWORK_POLICY, names.imported(POLICY))
            soon(there, f"{member.name} to have the policy")
            assert there()["spec"]["ingress"][0]["from"] == peers
