"""Check `pod-path`: packets between a Pod's network namespace and the host port; only with `--probe`."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address
from itertools import islice

from mcagent.api.doctor import CheckFinding
from mcagent.doctor.check import DoctorCheck, failed, warning
from mcagent.doctor.checks.node.routes import lookups
from mcagent.doctor.examined import ExaminedNode
from mcagent.doctor.readings.pod_path import PodPath, from_bridge, probe_pod

CHECK = DoctorCheck(
    name="pod-path",
    order=128,
    summary="with `--probe`: packets between a Pod's network namespace and the host port, in both directions",
    causes={
        "PodPacketsElsewhere": failed(
            "what this Pod sends to another cluster does not come to {port}: a rule, a policy or an eBPF program "
            "takes or drops it",
            "a NetworkPolicy of the Pod; ip route get {remote} from {pod} iif DEVICE; the settings of the CNI "
            "(docs/cni.md)",
        ),
        "PodSourceTranslated": failed(
            "something translates sources after netfilter, which mcagent cannot prevent: the other cluster drops "
            "such packets",
            "the masquerade of the CNI: exclude {port} (docs/cni.md)",
        ),
        "PodNotReached": warning(
            "packets of another cluster do not reach this Pod: a policy forbids it, or something drops them",
            "a NetworkPolicy of the Pod; nft monitor trace; the settings of the CNI (docs/cni.md)",
        ),
        "PodAnswersElsewhere": failed(
            "this Pod's answers to other clusters do not return to {port}: connections to it get no answer",
            "the CNI forwards replies by another way, perhaps in eBPF: its settings are in docs/cni.md",
        ),
    },
)
_MOST = 4  # networks of other clusters


def pod_paths(node: ExaminedNode) -> tuple[PodPath, ...]:
    """Probe the Pod of `--probe` with an address of each of a few networks. Raises BackendError."""
    node.progress("packets of the Pod")
    config, directory = node.config, node.settings.ovsdb.removeprefix("unix:").rpartition("/")[0]
    results = (result for result in node.read(lookups).lookups if result.device == config.host_port)
    addresses = [result.address for result in islice(results, _MOST) if isinstance(result.address, IPv4Address)]
    inject = from_bridge(f"unix:{directory}/{config.bridge}.mgmt")
    return probe_pod(node.probed_pod, config.host_port, addresses, inject)


def examine(node: ExaminedNode) -> Iterator[CheckFinding]:
    """Evaluate each way."""
    if not node.probed_pod:
        return
    paths = node.read(pod_paths)
    findings = [finding for path in paths for finding in _findings(path, node.config.host_port)]
    yield from findings
    if not paths:
        yield CHECK.skipped("no network of another cluster is routed to this Node's bridge")
    elif not findings:
        yield CHECK.passed(f"{paths[0].pod} sends to {len(paths)} networks of other clusters, and answers them")


def _findings(path: PodPath, port: str) -> Iterator[CheckFinding]:
    def finding(reason: str, detail: str) -> CheckFinding:
        text = f"{path.pod} and {path.remote}: {detail}"
        return CHECK.finding(reason, text, port=port, remote=path.remote, pod=path.pod)

    if path.source is None:
        yield finding("PodPacketsElsewhere", f"nothing of the Pod comes to {port}")
    elif path.source != path.pod:
        yield finding("PodSourceTranslated", f"the source at {port} is {path.source}")
    if not path.delivered:
        yield finding("PodNotReached", f"a packet from {port} does not reach the Pod")
    elif path.answer_source is None:
        yield finding("PodAnswersElsewhere", f"the Pod's answer does not come to {port}")
    elif path.answer_source != path.pod and path.source == path.pod:
        yield finding("PodSourceTranslated", f"the source of the Pod's answer is {path.answer_source}")
