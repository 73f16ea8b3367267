"""The MCS API's conformance suite, unmodified, as far as no packet is sent: two real API servers, our controllers.

Deployments, ReplicaSets and EndpointSlices are those of kube-controller-manager; the Pods' status is written here
(`tests.kube.pods`). The tests that run commands in Pods are those of `make conformance`, on real Nodes.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from devtools.errors import LabError
from devtools.k8s import mcs_suite
from devtools.realapi import find
from devtools.realapi.binaries import HINT
from devtools.waiting import wait_until
from tests.antrea.clusters import AREA, OURS, Cluster
from tests.antrea.running import Controllers
from tests.kube.pods import Pods
from tests.worlds.apiservers import leave_out

CONTROLLERS = ("deployment-controller", "replicaset-controller", "endpointslice-controller")
# Of the suite's 27 tests, those that neither resolve names nor send packets. Most of what they do is waiting, each
# in namespaces of its own, so two halves that take about as long run at the same time.
HALVES = ("!DNS && !ClusterIP && Required", "!DNS && (ClusterIP || Optional)")
TESTS = 16


@pytest.fixture
def suite(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Give the suite's program; leave the test out, loudly, where it or a program is missing."""
    binaries = find()
    if binaries is None or binaries.kube_controller_manager is None:
        leave_out(request, f"no kube-apiserver, etcd and kube-controller-manager on this machine: {HINT}")
    try:
        return mcs_suite.unpack(mcs_suite.find(None), tmp_path)
    except LabError as error:
        leave_out(request, str(error))
        raise


@pytest.fixture
def pair(suite: Path, tmp_path: Path) -> Iterator[tuple[Cluster, Cluster]]:
    """Give clusters "east", which leads, and "west", joined by our controllers, whose Pods count as running."""
    assert suite
    with ExitStack() as stack:
        clusters = tuple(Cluster(number, tmp_path / name, CONTROLLERS) for number, name in enumerate("ab"))
        for cluster in clusters:
            stack.callback(cluster.stop)
            cluster.start()
        east, west = clusters
        for cluster, roles in ((east, ("leader", "member")), (west, ("member",))):
            controllers = Controllers(cluster)
            stack.callback(controllers.end_all)
            for role in roles:
                controllers.install(OURS, role)
                controllers.run(OURS, role)
            host = f"192.168.{cluster.number}.1"
            cluster.node("node-1", host, gateway=True)
            stack.enter_context(Pods(cluster.client, "node-1", host, IPv4Network(cluster.pod_cidr)))
        east.put_set(AREA, {"clusterID": "north", "leaders": [{"clusterID": "north"}]})
        for name, cluster in (("east", east), ("west", west)):
            cluster.grant(f"member-{name}")
            cluster.join(east, name, f"member-{name}", annotated=True)
        for cluster, other in ((east, "west"), (west, "east")):
            wait_until(partial(cluster.gateways_of, other), f"the gateways of {other}", timeout=60, interval=0.2)
        yield east, west


def test_suite(suite: Path, pair: tuple[Cluster, Cluster], tmp_path: Path) -> None:
    """All tests of the suite pass that neither resolve names nor send packets."""
    configs = {f"c{number}": cluster.api.kubeconfig() for number, cluster in enumerate(pair, start=1)}
    both = tmp_path / "both.json"
    both.write_text(json.dumps(mcs_suite.kubeconfig(configs)))
    command = [str(suite), "--ginkgo.v", "--ginkgo.no-color", "--ginkgo.skip=Connectivity", "--ginkgo.timeout=4m"]
    command += ["--ginkgo.json-report=results.json", f"--kubeconfig={both}", f"--contexts={','.join(configs)}"]
    results: list[mcs_suite.Result] = []
    with ThreadPoolExecutor() as pool:
        for half in pool.map(partial(_run, command), HALVES, [tmp_path / "1", tmp_path / "2"]):
            results += half
    summary = "\n".join(mcs_suite.summary(results))
    assert all(result.passed or result.state == "skipped" for result in results), summary
    assert sum(result.passed for result in results) == TESTS, summary


def _run(command: Sequence[str], labels: str, place: Path) -> tuple[mcs_suite.Result, ...]:
    """Run the suite's tests of these labels; its reports go to a directory. Returns what came of all."""
    place.mkdir()
    argv = [*command, f"--ginkgo.label-filter={labels}"]
    done = subprocess.run(
        argv, cwd=place, capture_output=True, text=True, errors="replace", timeout=270, check=False
    )
    results = place / "results.json"
    assert results.exists(), done.stdout[-3000:] + done.stderr[-3000:]
    return mcs_suite.results(results.read_text(encoding="utf-8"))
