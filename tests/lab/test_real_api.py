"""A lab whose clusters have real kube-apiserver and etcd processes."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from devtools.lab import story
from devtools.lab.api import ApiKind
from devtools.lab.state import marked
from devtools.lab.topology import generate
from devtools.nodes import netns
from devtools.realapi import find
from devtools.realapi.binaries import HINT
from devtools.traffic import matrix
from devtools.waiting import wait_until
from mcagent.model.dataplane.facts import DatapathType
from tests.worlds.labs import MakeLab


@pytest.fixture(autouse=True)
def _programs(datapath: DatapathType) -> None:
    if datapath is not DatapathType.NETDEV:
        pytest.skip("the API is the same on any datapath")
    if find() is None:
        pytest.skip(f"NOT RUN: no kube-apiserver and etcd on this machine: {HINT}")


def test_packets_with_real_api_servers(make_lab: MakeLab) -> None:
    """Every way between two clusters works; the API goes and comes with its objects; nothing is left running."""
    with make_lab(generate(workers=1), api=ApiKind.REAL) as lab:
        results = [matrix.run(lab, case) for case in matrix.cases(lab.topology)]
        assert [result for result in results if not result.ok] == []
        cluster = lab.topology.clusters[0]
        other = lab.topology.clusters[1].name
        lab.stop_api(cluster.name)
        assert all(matrix.run(lab, case).ok for case in list(matrix.cases(lab.topology))[:1])
        lab.start_api(cluster)
        name = f"{other}-clusterinfo"
        assert lab.api(cluster.name).get("ClusterInfoImport", name, "kube-system") is not None
        lab.api(cluster.name).delete("ClusterInfoImport", name, "kube-system")
        show = ["ip", "route", "show", "table", "28003"]
        gateway, gone = lab.namespace(cluster.gateways[0]), str(lab.topology.clusters[1].service_cidr)
        wait_until(lambda: gone not in netns.execute(gateway, show).stdout, "the route to go", timeout=30)
        directory = lab.state.directory
    assert marked(directory) == []


def test_controllers_with_kube_apiserver_and_etcd_alone(
    make_lab: MakeLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without kube-controller-manager, as with envtest's assets, clusters join all the same."""
    binaries = find()
    assert binaries is not None
    for program in (binaries.kube_apiserver, binaries.etcd):
        (tmp_path / program.name).symlink_to(program)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    with make_lab(generate(workers=0), api=ApiKind.REAL, control_plane=True) as lab:
        programs = {Path(process.argv[0]).name for process in marked(lab.state.directory)}
        assert "kube-apiserver" in programs
        assert "kube-controller-manager" not in programs
        cases = list(matrix.cases(lab.topology, story.imported_addresses(lab)))
        assert cases
        assert [result for result in (matrix.run(lab, case) for case in cases) if not result.ok] == []


def test_an_api_server_whose_parent_is_killed_leaves_nothing(make_lab: MakeLab) -> None:
    """etcd and kube-apiserver end with the process that started them, and start again with their objects."""
    with make_lab(generate(clusters=1, workers=0), api=ApiKind.REAL, agents=False) as lab:
        cluster = lab.topology.clusters[0]
        parent = lab.state.process(f"api-{cluster.name}")
        assert parent is not None
        assert len(marked(lab.state.directory)) >= 3
        os.kill(parent.pid, signal.SIGKILL)
        servers = ("etcd", "kube-apiserver")
        wait_until(
            lambda: not any(Path(p.argv[0]).name in servers for p in marked(lab.state.directory)), "both to end"
        )
        lab.stop_api(cluster.name)
        lab.start_api(cluster)
        assert lab.api(cluster.name).get("Gateway", cluster.gateways[0].name, "kube-system") is not None
