"""Claims of a hostile cluster beside one that was first, and what an agent makes of both."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mcagent.core.compile import Compiled, compile_desired
from mcagent.model.dataplane.facts import Facts
from mcagent.model.objects import ApiObject, ClusterInfoImport
from tests.worlds.core_inputs import HOME, cluster, config, snapshot

NO_FACTS = Facts()
OLD, NEW = "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"
WEST = cluster("west", "10.102.0.0/16", "10.20.0.0/16", gateways=("192.168.2.11",), created=OLD)


def decide(
    *objects: ApiObject,
    on: str = "g1",
    home: Iterable[ApiObject] = HOME,
    facts: Facts = NO_FACTS,
    **values: object,
) -> Compiled:
    """Compile a Node of home with these objects."""
    values = {"enable_pod_to_pod": True, **values}
    return compile_desired(snapshot(*home, *objects), facts, config(on, **values))


def has(compiled: Compiled, cluster_id: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the CIDRs and gateways that a cluster is given."""
    remote = compiled.state.clusters[cluster_id]
    return tuple(map(str, remote.cidrs)), tuple(map(str, remote.gateways))


def problems(compiled: Compiled, cluster_id: str) -> set[tuple[str, str]]:
    """Return the (path, reason) of what is told of a cluster's object."""
    return {(p.path, p.reason) for p in compiled.desired.problems if f"{cluster_id}-clusterinfo" in p.subject}


def unharmed(victim: ClusterInfoImport, *attackers: ClusterInfoImport, **values: Any) -> Compiled:
    """Return what is decided, once everything of the victim's is as if there were no attacker."""
    decision = None
    for on in ("g1", "w1"):
        alone, decision = decide(victim, on=on, **values), decide(victim, *attackers, on=on, **values)
        assert has(decision, victim.cluster_id) == has(alone, victim.cluster_id)
        name = f"cluster/{victim.cluster_id}"
        assert [r.key for r in decision.desired.fragments[name].resources] == [
            r.key for r in alone.desired.fragments[name].resources
        ]
        assert problems(decision, victim.cluster_id) == problems(alone, victim.cluster_id)
    assert decision is not None
    return decision


RAW = {
    "apiVersion": "multicluster.crd.antrea.io/v1alpha1",
    "kind": "ClusterInfoImport",
    "metadata": {"name": "north-clusterinfo", "namespace": "mc", "creationTimestamp": NEW},
}
