"""The matrix: a pair of clusters for each module, in which every version of Antrea's controllers runs in turn."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from devtools.realapi import find
from devtools.realapi.binaries import HINT as API_HINT
from devtools.waiting import wait_until
from mcagent.model.objects import Kind
from tests.antrea import programs
from tests.antrea.clusters import AREA, OURS, SET, Cluster
from tests.apiservers import leave_out, pytest_configure, pytest_terminal_summary
from tests.controllers import free_port

__all__ = ["pytest_configure", "pytest_terminal_summary"]

UNPROVEN = pytest.mark.skipif(
    not os.environ.get("MCAGENT_ANTREA_ALL"),
    reason="has not run to its end yet, and shows nothing until it has: MCAGENT_ANTREA_ALL=1 runs it",
)
READY = 60.0  # seconds; Antrea's leaders look every 30 s who is there
GATEWAY = 60.0  # seconds; its members look every 30 s whether they have a ClusterSet


@dataclass
class World:
    """Leader and member "east" in cluster `a`, member "west" in `b`: `west` and `leader` are OURS or a version."""

    a: Cluster
    b: Cluster
    leader: str
    east: str
    west: str

    def ready(self) -> tuple[int, int]:
        """Return how many members the leader counts as ready, of how many."""
        found = (self.a.get(Kind.CLUSTER_SET, SET, AREA) or {}).get("status", {})
        return found.get("readyClusters", 0), found.get("totalClusters", 0)

    def joined(self, *who: str) -> None:
        """Let members join and wait until they are, and know each other's gateways."""
        for member in who:
            cluster, whose = (self.a, self.east) if member == "east" else (self.b, self.west)
            if whose == OURS:
                cluster.grant(f"member-{member}")
            cluster.join(self.a, member)
        wait_until(lambda: self.ready() == (2, 2), f"two members: {self.ready()}", timeout=READY, interval=0.2)
        for cluster, other in ((self.a, "west"), (self.b, "east")):
            wait_until(
                partial(cluster.gateways_of, other), f"the gateways of {other}", timeout=GATEWAY, interval=0.2
            )

    def on_leader(self, text: str) -> list[str]:
        """Return the names of exports and imports on the leader that contain a text."""
        kinds = (Kind.RESOURCE_EXPORT, Kind.RESOURCE_IMPORT)
        found = [item["metadata"]["name"] for kind in kinds for item in self.a.items(kind, AREA)]
        return [name for name in found if text in name]


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Give what unpacks a version's program, once."""
    there: dict[str, Path] = {}

    def unpacked(version: str) -> Path:
        if version not in there:
            there[version] = programs.unpack(version, tmp_path_factory.mktemp("antrea"))
        return there[version]

    return unpacked


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, Cluster]]:
    """Give two running API servers."""
    directory = tmp_path_factory.mktemp("pair")
    pair = Cluster(0, directory / "a"), Cluster(1, directory / "b")
    try:
        for cluster in pair:
            cluster.start()
        yield pair
    finally:
        for cluster in pair:
            cluster.stop()


def needed(request: pytest.FixtureRequest, version: str) -> None:
    """Leave a test out, loudly, where something that it needs is not there."""
    if os.geteuid() != 0:
        leave_out(request, "Antrea's controllers need root here: each has a /run of its own")
    binaries = find()
    if binaries is None or binaries.kube_controller_manager is None:
        leave_out(request, f"no kube-apiserver, etcd and kube-controller-manager on this machine: {API_HINT}")
    if programs.packed(version) is None:
        leave_out(request, f"no multicluster-controller {version} of Antrea in this place: {programs.HINT}")


@pytest.fixture(scope="module", params=programs.VERSIONS)
def world(request: pytest.FixtureRequest, program: Callable[[str], Path]) -> Iterator[World]:
    """Give a ClusterSet with both members in it. The module's LEADER says whose the leader is, ours or theirs."""
    version = request.param
    needed(request, version)
    a, b = request.getfixturevalue("pair")
    theirs = request.module.LEADER == "theirs"
    leader, east, west = (version, version, OURS) if theirs else (OURS, OURS, version)
    found = World(a, b, leader, east, west)
    for cluster, roles in ((a, {"leader": leader, "member": east}), (b, {"member": west})):
        for role, who in roles.items():
            port = free_port()
            cluster.install(who, role, port)
            cluster.run(who, role, port, None if who == OURS else program(version))
        cluster.node("node-1", f"192.168.{cluster.number}.1", gateway=True)
        cluster.node("node-2", f"192.168.{cluster.number}.2", gateway=False)
    a.put_set(AREA, {"clusterID": "north", "leaders": [{"clusterID": "north"}]})
    found.joined("east", "west")
    yield found
    for cluster in (b, a):
        cluster.leave()
    wait_until(lambda: not a.items(Kind.MEMBER_CLUSTER_ANNOUNCE, AREA), "the announcements to be gone", timeout=30)
    for cluster in (b, a):
        cluster.end("member")
    a.delete(Kind.CLUSTER_SET, SET, AREA)
    a.end("leader")
    for cluster in (a, b):
        cluster.uninstall()
