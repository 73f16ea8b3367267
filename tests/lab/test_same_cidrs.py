"""Three clusters with kubeadm's Service and Pod CIDRs join unprepared, and use each other's Services."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from devtools.lab import story
from devtools.lab.control import LEADER_NAMESPACE, MEMBER_NAMESPACE, ControlPlane
from devtools.lab.lab import Lab
from devtools.lab.topology import KUBEADM_SERVICES, generate
from devtools.traffic import matrix, traffic
from mcagent.controller.contract.export_ranges import is_export_address
from tests.worlds.labs import MakeLab

pytestmark = pytest.mark.datapath


@pytest.fixture(scope="module")
def lab(make_lab: MakeLab) -> Iterator[Lab]:
    """A leader, which is a member, and two more members."""
    with make_lab(generate(clusters=3, gateways=1, workers=1, same_cidrs=True), control_plane=True) as lab:
        yield lab


def ranges(lab: Lab) -> dict[str, str]:
    """Return the ranges that `mcagent get clusterset -o wide` lists on the leader, by cluster."""
    plane = ControlPlane(lab)
    table = plane.command(plane.leader, "get", "clusterset", "-n", LEADER_NAMESPACE, "-o", "wide")
    rows = re.findall(
        r"^ +(\w+) .*export range (\S+): its Service CIDR 10\.96\.0\.0/12 overlaps", table, re.MULTILINE
    )
    return dict(rows)


def test_every_way_between_clusters_with_identical_cidrs(lab: Lab) -> None:
    """By export addresses and imported Services, TCP and UDP, one copy; no other address answers."""
    addresses, prefixes = story.export_addresses(lab), story.pod_prefixes(lab)
    assert len({pair.virtual for pairs in prefixes.values() for pair in pairs}) == 3
    assert len(set(addresses.values())) == 3
    all_cases = list(matrix.cases(lab.topology, story.imported_addresses(lab), addresses, prefixes))
    assert {case.closed for case in all_cases} == {False, True}
    results = [matrix.run(lab, case) for case in all_cases]
    assert [f"{r.case.source.name} -> {r.case.target}: {r.problem}" for r in results if not r.ok] == []
    for cluster in lab.topology.clusters:
        address = ControlPlane(lab).imported_address(cluster, "web")
        replies = [traffic.tcp(lab.namespace(cluster.workers[0].pods[0]), address, 80) for _ in range(24)]
        assert {reply.pod.split("-")[0] for reply in replies} == {c.name for c in lab.topology.clusters}


def test_the_ranges_are_listed(lab: Lab) -> None:
    """On the leader those of all members, in each member its own; addresses of Services lie in them."""
    listed = ranges(lab)
    assert set(listed) == {cluster.name for cluster in lab.topology.clusters}
    plane = ControlPlane(lab)
    for cluster in lab.topology.clusters:
        own = plane.command(cluster, "get", "clusterset", "-n", MEMBER_NAMESPACE, "-o", "wide")
        assert f"export range {listed[cluster.name]}: its Service CIDR" in own
        assert is_export_address(str(plane.export_address(cluster, "web")), listed[cluster.name])
        gateway = lab.api(cluster.name).get("Gateway", cluster.gateways[0].name, MEMBER_NAMESPACE)
        assert gateway is not None
        assert gateway["serviceCIDR"] == listed[cluster.name] != str(KUBEADM_SERVICES)


def test_a_cluster_that_returns_has_its_addresses_again(lab: Lab) -> None:
    """The leader keeps its range, and the hash of a Service's name its address; `join` prints the range."""
    plane, cluster = ControlPlane(lab), lab.topology.clusters[2]
    before, listed = plane.export_address(cluster, "web"), ranges(lab)
    plane.leave(cluster)
    assert set(ranges(lab)) == set(listed) - {cluster.name}
    reported = plane.join(cluster)
    plane.wait_joined()
    assert ranges(lab) == listed
    assert f"its exported Services have addresses of {listed[cluster.name]} in other clusters" in reported
    assert plane.export_address(cluster, "web") == before
