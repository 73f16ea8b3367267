"""mcagent's chart on clusters of real Kubernetes: Helm, and the values of a release.

Owns what is said of these clusters to the chart. Which commands users are shown is the documentation's.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import yaml

from devtools.errors import LabError
from devtools.lab.topology import Cluster

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy/helm/mcagent"
COREDNS = Path(__file__).parent / "programs/coredns/go.mod"


def helm() -> Path:
    """Return Helm. Raises LabError when there is none."""
    search = subprocess.run([ROOT / "tests/helm/find-helm"], capture_output=True, text=True, check=False)
    if search.returncode:
        raise LabError(search.stderr.strip())
    return Path(search.stdout.strip())


def coredns_version() -> str:
    """Return the version of the CoreDNS that runs here: its image's tag does not say it."""
    (version,) = re.findall(
        r"^require github.com/coredns/coredns v(\S+)$", COREDNS.read_text(), flags=re.MULTILINE
    )
    return str(version)


def version() -> str:
    """Return the version of the chart, which is that of the images."""
    return str(yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))["appVersion"])


def values(cluster: Cluster) -> list[str]:
    """Return the arguments of a release here: all Nodes are gateways, and Pods reach Pods."""
    chart_values = {
        "agent.config.enablePodToPodConnectivity": "true",
        "agent.config.podCIDRs[0]": str(cluster.pod_cidr),
        "agent.maxUnavailable": "1",
        "member.config.podCIDRs[0]": str(cluster.pod_cidr),
        "member.config.maxActiveGateways": str(len(cluster.nodes)),
        "openvswitch.deploy": "auto",  # which finds that these Nodes have theirs
    } | {f"{part}.config.enableStretchedNetworkPolicy": "true" for part in ("agent", "member", "leader")}
    return [word for name, value in chart_values.items() for word in ("--set", f"{name}={value}")]
