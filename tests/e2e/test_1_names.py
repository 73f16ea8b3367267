"""Names under clusterset.local, and the MCS API's conformance suite, which needs them, on real Kubernetes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from devtools.k8s import chart, mcs_suite
from devtools.k8s.conformance import REPORTS, Conformance, Wanted
from devtools.lab.progress import Progress
from tests.e2e.world import Suite, World, until

ASKED = 60
NAMED = "http://web.default.svc.clusterset.local"


@pytest.fixture(scope="module", autouse=True)
def names(world: World) -> Iterator[None]:
    """Let CoreDNS of both clusters answer these names for as long as the tests of this module run."""
    clusters = world.lab.topology.clusters
    before = {cluster.name: world.corefile(cluster) for cluster in clusters}
    try:
        for cluster in clusters:
            world.demo.mcagent(cluster, "dns", "apply", "--coredns-version", chart.coredns_version())
            world.lab.kubectl(cluster, "-n", "kube-system", "rollout", "restart", "deployment/coredns")
        for cluster in clusters:
            world.lab.rolled_out(cluster, "kube-system", "deployment/coredns")
        yield
    finally:
        for cluster in clusters:
            world.demo.mcagent(cluster, "dns", "remove")
    assert {cluster.name: world.corefile(cluster) for cluster in clusters} == before


def test_names_of_the_mcs_api_are_answered_by_coredns(world: World) -> None:
    """Names under cluster.local stay those of the cluster's own Services."""
    for client in world.clients():
        until(lambda c=client: c.ask(1, NAMED).answered, f"an answer of {NAMED}")  # type: ignore[misc]
        reply = client.ask(ASKED, NAMED)
        assert (reply.answered, dict(reply.errors)) == (ASKED, {}), client.node
        assert not client.ask(1, NAMED.replace("clusterset.local", "cluster.local")).answered


@pytest.mark.timeout(900)
def test_the_conformance_suite_passes(world: World, suite: Suite) -> None:
    """All 27 tests of kubernetes-sigs/mcs-api, unmodified; `MCS_CONFORMANCE` names its program."""
    if suite.program is None:
        pytest.skip(suite.missing)
    run = Conformance(lab=world.lab, helm=world.guide.helm, say=Progress())
    results = run.run(Wanted(program=suite.program))
    assert len(results) == 27
    assert all(result.passed for result in results), "\n".join([*mcs_suite.summary(results), str(REPORTS)])
