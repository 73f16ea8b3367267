"""Check `kubernetes`: mcagent supports the API server's version."""

from __future__ import annotations

from collections.abc import Iterator

from mcagent.api.doctor import CheckFinding
from mcagent.doctor.check import DoctorCheck, failed
from mcagent.doctor.examined import TIMEOUT, ExaminedCluster
from mcagent.kube.version import OLDEST, is_supported, server_version

_OLDEST = f"{OLDEST[0]}.{OLDEST[1]}"

CHECK = DoctorCheck(
    name="kubernetes",
    order=205,
    summary="mcagent supports the API server's version",
    causes={
        "KubernetesOld": failed(
            f"mcagent needs Kubernetes {_OLDEST} or newer: older API servers have no ValidatingAdmissionPolicies, "
            "and their tokens do not name the Node of a Pod",
            f"upgrade the cluster to Kubernetes {_OLDEST} or newer",
        ),
    },
)


def version(cluster: ExaminedCluster) -> str:
    """Return the API server's version. Raises SourceError."""
    cluster.progress("version")
    return server_version(cluster.client, TIMEOUT)


def examine(cluster: ExaminedCluster) -> Iterator[CheckFinding]:
    """Compare the version with the oldest that is supported."""
    text = cluster.read(version)
    if is_supported(text):
        yield CHECK.passed(f"version {text}")
    else:
        yield CHECK.finding("KubernetesOld", f"version {text}")
