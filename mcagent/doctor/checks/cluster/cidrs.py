"""Check `cidrs` in a cluster, and the reading of check `input`: the problems that a gateway's agent would report.

Only if no agent answers, because agents check the input by their own configuration.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mcagent.api.codec import converted
from mcagent.api.doctor import CheckFinding
from mcagent.api.status import ProblemStatus
from mcagent.core.compile import compile_desired
from mcagent.core.snapshot import apply_changes
from mcagent.doctor.checks.node.cidrs import CHECK
from mcagent.doctor.checks.problems import findings_of_problems
from mcagent.doctor.examined import ExaminedCluster
from mcagent.kube.sources.once import relist
from mcagent.model.dataplane.facts import Facts
from mcagent.model.objects import Kind, Snapshot

__all__ = ["CHECK", "examine", "input_problems"]
_OF_THIS_NODE = frozenset({"AddressNotHere", "UplinkOutside", "PodCIDRsMissing", "EncryptionUnavailable"})


def input_problems(cluster: ExaminedCluster) -> tuple[ProblemStatus, ...]:
    """Return the problems of Gateways, Nodes, ClusterInfoImports as a gateway sees them. Raises SourceError."""
    kinds, config = (Kind.GATEWAY, Kind.NODE, Kind.CLUSTER_INFO_IMPORT), cluster.config
    snapshot = apply_changes(Snapshot(), [relist(cluster.client, kind, config.namespace) for kind in kinds])
    gateway = next((gateway.meta.name for gateway in snapshot.gateways.values()), config.node_name)
    problems = compile_desired(snapshot, Facts(), replace(config, node_name=gateway)).desired.problems
    return converted(
        tuple[ProblemStatus, ...], [problem for problem in problems if problem.reason not in _OF_THIS_NODE]
    )


def examine(cluster: ExaminedCluster) -> Iterator[CheckFinding]:
    """Yield the problems of networks."""
    if not cluster.answered:
        yield from findings_of_problems(CHECK, cluster.read(input_problems), "no network is refused")
