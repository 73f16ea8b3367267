"""Problems of `mcagent status --context` beside a status of Ready: a second cluster, refused endpoints."""

from __future__ import annotations

from typing import Any

import pytest

from mcagent.cli.common.overview_text import text
from mcagent.controller.admin.overview import OverviewInput, overview
from mcagent.model.api.multicluster import ApiServiceExport, ClusterSet
from mcagent.model.parsing.decode import read_as


def problems(objects: OverviewInput) -> list[tuple[str, bool]]:
    """Return message and level of the problems that an object has."""
    subjects = {str(item.subject) for item in (*objects.cluster_sets, *objects.service_exports)}
    return [(p.message, p.error) for p in overview(objects).problems if p.subject in subjects]


def condition(kind: str, status: str, reason: str = "", message: str = "") -> dict[str, str]:
    """Return a condition."""
    return {"type": kind, "status": status, "reason": reason, "message": message}


def test_the_leader_shows_a_second_cluster_with_the_id_of_a_member() -> None:
    """Also while the member is Ready."""
    conditions = [
        condition("Ready", "True"),
        condition("UniqueClusterID", "False", "DuplicateClusterID", "a copy"),
    ]
    spec = {"clusterID": "north", "leaders": [{"clusterID": "north"}]}
    status: Any = {
        "conditions": conditions[:1],
        "clusterStatuses": [{"clusterID": "east", "conditions": conditions}],
    }
    leaders = read_as(ClusterSet, {"metadata": {"name": "set"}, "spec": spec, "status": status})
    assert problems(OverviewInput(cluster_sets=[leaders])) == [("east: a copy", True)]


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        (condition("LeaderToken", "True", "TokenValid", "expires at …"), []),
        (condition("LeaderToken", "False", "TokenNotRenewed", "is not renewed"), [("is not renewed", False)]),
        (condition("LeaderToken", "False", "TokenExpired", "expired"), [("expired", True)]),
    ],
)
def test_a_member_shows_the_life_of_its_token(token: dict[str, str], expected: list[tuple[str, bool]]) -> None:
    """Always when it ends; as a problem from the first renewal that fails."""
    ready = condition("Ready", "True")
    status: Any = {"conditions": [ready, token], "clusterStatuses": [{"clusterID": "east", "conditions": [ready]}]}
    spec = {"clusterID": "east", "leaders": [{"clusterID": "north", "server": "https://192.0.2.1"}]}
    member = read_as(ClusterSet, {"metadata": {"name": "set"}, "spec": spec, "status": status})
    objects = OverviewInput(cluster_sets=[member])
    assert problems(objects) == expected
    shown = overview(objects)
    assert shown.cluster_sets[0].token == token["message"]
    assert f"set         {token['message']}" in text(shown, 0.0).splitlines()


@pytest.mark.parametrize(
    ("ready", "expected"),
    [
        (condition("Ready", "True", "Exported"), []),
        (condition("Ready", "True", "Exported", "leader: 10 endpoints"), [("leader: 10 endpoints", False)]),
        (condition("Ready", "False", "Failed", "refused"), [("refused", True)]),
        (condition("Ready", "False", "Pending", "not yet"), []),
        (condition("Ready", "False", "NoUsableEndpoint", "none is ready"), [("none is ready", False)]),
    ],
)
def test_an_export_that_is_refused_or_reduced_is_shown(
    ready: dict[str, str], expected: list[tuple[str, bool]]
) -> None:
    """Valid and without a conflict: what the leader leaves out is a warning, a refusal an error."""
    conditions = [condition("Valid", "True", "Valid"), condition("Conflict", "False", "NoConflicts"), ready]
    export = read_as(ApiServiceExport, {"metadata": {"name": "db"}, "status": {"conditions": conditions}})
    assert problems(OverviewInput(service_exports=[export])) == expected
