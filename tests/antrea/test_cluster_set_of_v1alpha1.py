"""A ClusterSet that was made before Antrea 1.13, as v1alpha1 and with a ClusterClaim, goes on under ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mcagent.model.objects import Kind
from tests.antrea.clusters import AREA, HOME, OURS, SET
from tests.antrea.worlds import READY, running, soon


def test_the_cluster_id_is_filled_in(program: Callable[[str], Path], tmp_path: Path) -> None:
    """The real API server takes the ID of the ClusterClaim where v1alpha2 wants one, and the member is Ready."""
    with running(OURS, (OURS,), tmp_path, program) as world:
        east = world.area
        world.lead()
        access = east.access(east, "east", "member-east", annotated=True)
        east.grant("member-east")
        east.put(Kind.CLUSTER_CLAIM, "id.k8s.io", HOME, value="east")
        east.apply(
            {
                "apiVersion": "multicluster.crd.antrea.io/v1alpha1",
                "kind": "ClusterSet",
                "metadata": {"name": SET, "namespace": HOME},
                "spec": {"namespace": AREA, "leaders": [access], "members": [{"clusterID": "east"}]},
            }
        )
        soon(lambda: world.ready() == (1, 1), "the leader to count it as ready", READY)
        soon(world.members[0].ready, "the member to be ready")
        cluster_set = east.get(Kind.CLUSTER_SET, SET, HOME)
        assert cluster_set["spec"] == {"clusterID": "east", "namespace": AREA, "leaders": [access]}
