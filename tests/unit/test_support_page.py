"""docs/support.md claims what tests run: its versions are those that the tests' sources and constants name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mcagent.doctor.checks.node import openvswitch
from mcagent.kube import version as kubernetes
from tests.antrea.programs import VERSIONS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/support.md").read_text()


def pinned(file: str, module: str) -> str:
    """Return the version of a module that a go.mod pins."""
    (version,) = re.findall(rf"^(?:require )?\s*{module} v(\S+)", (ROOT / file).read_text(), flags=re.MULTILINE)
    return str(version)


@pytest.mark.parametrize("file", ["devtools/k8s/programs/node/go.mod", "tests/kube/apiserver/go.mod"])
def test_kubernetes_is_the_one_that_runs(file: str) -> None:
    """API server and kubelets of the tests are of the version that the page calls tested."""
    version = pinned(file, "k8s.io/kubernetes")
    assert f"kube-controller-manager {version}:" in PAGE
    assert f"| {version.rpartition('.')[0]} | tested |" in PAGE


def test_cnis_are_those_that_run() -> None:
    """flannel by its module, Antrea by the versions of its tests, the test kernel by its source package."""
    flannel = pinned("devtools/k8s/programs/flannel/go.mod", "github.com/flannel-io/flannel")
    assert f"| flannel {flannel.rpartition('.')[0]} (vxlan) | tested |" in PAGE
    assert f"| Antrea {' and '.join(version.removeprefix('v') for version in VERSIONS)} | tested |" in PAGE
    (kernel,) = re.findall(r"linux-source-([0-9.]+)", (ROOT / "tests/kernel/build-kernel").read_text())
    assert f"| Linux {kernel} |" in PAGE


def test_the_oldest_versions_are_those_that_are_refused_or_reported() -> None:
    """Of Kubernetes and Open vSwitch the page names the limits of the program."""
    assert f"| older than {'.'.join(map(str, kubernetes.OLDEST))} | refused |" in PAGE
    assert f"| older than {'.'.join(map(str, openvswitch.OLDEST))} | not supported |" in PAGE
    chart = (ROOT / "deploy/helm/mcagent/Chart.yaml").read_text()
    assert f">={'.'.join(map(str, kubernetes.OLDEST))}." in chart


def test_evidence_is_a_target_of_the_makefile() -> None:
    """The command of each row exists."""
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert set(re.findall(r"\bmake ([\w-]+)", PAGE)) <= targets
