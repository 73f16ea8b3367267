"""Two clusters of real Kubernetes with different CNIs and kube-proxy modes, joined with the chart; made once.

Each CNI in $MCAGENT_CNI_DIRECTORY gets two more clusters, and the same tests.

`E2E_KEEP=1` leaves them up at the end (`devtools/mck8s down` removes them).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from devtools.errors import LabError
from devtools.k8s import chart, external, mcs_suite, workloads
from devtools.k8s.demo import Demo
from devtools.k8s.lab import STATE, K8sLab, Plan
from devtools.k8s.node import K8sCni, ProxyMode
from devtools.k8s.programs import mcagent_images, require
from devtools.lab.progress import Progress
from tests import alarm
from tests.e2e.guide import INSTALL, Guide
from tests.e2e.world import Suite, World, dataplane_of

ROOT = Path(__file__).parents[2]
EVIDENCE = ROOT / ".cache/e2e"
TIMEOUT = 400  # seconds, of a test with the making of the clusters


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give these tests the time that they take, in the order of their files: what ends a cluster comes last."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(TIMEOUT))


@pytest.fixture(scope="session")
def helm() -> Path:
    """Give Helm."""
    try:
        return chart.helm()
    except LabError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Suite:
    """Give the conformance suite with what its images need."""
    try:
        program = mcs_suite.find(None)
        images = mcs_suite.write_images(tmp_path_factory.mktemp("images"), mcs_suite.tools())
    except LabError as error:
        return Suite(missing=f"LEFT OUT: {error}")
    return Suite(program=program, archives=tuple(map(str, images)))


PROVIDED = ((K8sCni.FLANNEL, K8sCni.BRIDGE), (K8sCni.KUBE_ROUTER, K8sCni.FLANNEL))
OTHERS = tuple((name, K8sCni.FLANNEL) for name in external.names())
NO_OTHERS = pytest.param((), id="others", marks=pytest.mark.skip(reason=f"{external.VARIABLE} names no other CNI"))


@pytest.fixture(scope="session", params=[*PROVIDED, *(OTHERS or (NO_OTHERS,))], ids="-".join)
def world(request: pytest.FixtureRequest, helm: Path, suite: Suite) -> Iterator[World]:
    """Give the clusters: all Nodes gateways, Service web of the last one exported, clients on all other Nodes."""
    if os.geteuid():
        pytest.skip("needs root: it makes namespaces, mounts and cgroups")
    cnis, modes = request.param, (ProxyMode.IPTABLES, ProxyMode.NFTABLES)
    try:
        require()
        archives = (*mcagent_images(), *suite.archives)
    except LabError as error:
        pytest.skip(str(error))
    say = Progress()
    lab = K8sLab(Plan(cnis=cnis, proxy_modes=modes, archives=archives), say)
    lab.require_free()
    try:
        lab.up()
        bare = {node.node.name: dataplane_of(node.machine) for node in lab.nodes()}
        demo, guide = Demo(lab, say), Guide(lab=lab, helm=helm)
        guide.run(lab.topology.clusters[0], "mcagent check --pre --context east --context west")
        for node in lab.nodes():
            guide.run_on_node(node.machine, "mcagent check --pre")
        with say.step("mcagent: leader, members and agents, with Helm"):
            for cluster, command in zip(lab.topology.clusters, INSTALL, strict=True):
                guide.run(cluster, command, *chart.values(cluster))
            demo.installed()
        demo.join()
        demo.share()
        clients = workloads.pods("DaemonSet", "host-client", host_network=True)
        lab.kubectl(demo.others[0], "apply", "-f", "-", objects=[clients])
        lab.rolled_out(demo.others[0], "default", "daemonset/host-client")
        yield World(lab=lab, demo=demo, guide=guide, bare=bare)
    finally:
        if os.environ.get("E2E_KEEP"):
            lab.keep()
        elif STATE.exists():
            lab.down()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """After a failure keep what the clusters say of themselves in .cache/e2e."""
    report = yield
    if report.failed and report.when == "call" and "world" in getattr(item, "funcargs", {}):  # type: ignore[attr-defined]
        place = EVIDENCE / item.name
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        with alarm.time_limit(alarm.EVIDENCE_SECONDS):
            item.funcargs["world"].write_evidence(place)  # type: ignore[attr-defined]
    return report
