"""Check `pre-nodes`: operating system and kernel of each Node, as its kubelet reports them."""

from __future__ import annotations

from collections.abc import Iterator

from mcagent.api.doctor import CheckFinding
from mcagent.controller.admin.fields import name_of, text_at
from mcagent.doctor.check import DoctorCheck, failed, warning
from mcagent.doctor.checks.before_node.kernel import OLDEST, numbers
from mcagent.doctor.examined import ExaminedCluster
from mcagent.kube.source import RawObject

CHECK = DoctorCheck(
    name="pre-nodes",
    order=350,
    summary="before the installation: operating systems, kernels and Pod CIDRs of the Nodes",
    causes={
        "NodeKernelOld": failed(
            f"the agent needs Linux {OLDEST[0]}.{OLDEST[1]} or newer",
            "upgrade the kernel, or exclude the Node (the chart's agent.nodeSelector)",
        ),
        "NodeWithoutPodCIDR": warning(
            "where the CNI gives Pods addresses of its own, workers reach only Pods that are already known",
            "set podCIDRs in the agents' and the member's configuration (docs/clouds.md)",
        ),
    },
)
_SHOWN = 3


def nodes(cluster: ExaminedCluster) -> list[RawObject]:
    """Return the Nodes that run Linux. Raises SourceError."""
    items = cluster.items("/api/v1/nodes")
    return [node for node in items if text_at(node, "status", "nodeInfo", "operatingSystem") in {"", "linux"}]


def examine(cluster: ExaminedCluster) -> Iterator[CheckFinding]:
    """Judge each Node."""
    reading = cluster.read(nodes)
    kernels = {name_of(node): text_at(node, "status", "nodeInfo", "kernelVersion") for node in reading}
    old = {name: kernel for name, kernel in kernels.items() if kernel and numbers(kernel) < OLDEST}
    for name, kernel in list(old.items())[:_SHOWN]:
        yield CHECK.finding("NodeKernelOld", f"Linux {kernel}", subject=f"Node {name}")
    without = [name_of(node) for node in reading if not text_at(node, "spec", "podCIDR")]
    if without and not cluster.config.pod_cidrs:
        text = f"{len(without)} Nodes have no Pod CIDR: {', '.join(without[:_SHOWN])}"
        yield CHECK.finding("NodeWithoutPodCIDR", text)
    if not old:
        yield CHECK.passed(f"{len(reading)} Nodes with Linux")
