"""What `mcagent membertoken get` shows of tokens: states and times, from Secrets of the leader."""

from __future__ import annotations

from typing import Any

import pytest

from mcagent.controller.admin.token_life import KEY, cells, connected_clusters, life_of
from mcagent.controller.contract.conditions import time_text
from mcagent.controller.contract.names import CREATED_BY_COMMAND_ANNOTATION
from mcagent.model.api.multicluster import ClusterSet
from mcagent.model.parsing.decode import read_as

DAY = 86400
CREATED = 1_800_000_000.0
RANDOM = "a" * 20


def secret(name: str, created: float = CREATED, annotation: str = "", value: str = "true") -> dict[str, Any]:
    """Return a Secret of the Common Area."""
    annotations = {annotation: value} if annotation else {}
    metadata = {"name": name, "creationTimestamp": time_text(created), "annotations": annotations}
    return {"metadata": metadata, "data": {"token": "c2VjcmV0"}}


def anchor(account: str, days: int, created: float = CREATED) -> dict[str, Any]:
    """Return an anchor as `membertoken create` creates it."""
    return secret(f"{account}.{days * DAY}.{RANDOM}", created, CREATED_BY_COMMAND_ANNOTATION)


SECRETS = [anchor("east", 90), anchor("east-1", 30)]


@pytest.mark.parametrize(
    ("days", "connected", "shown"),
    [
        (10, False, ("Valid", "10d", "in 50d", "in 80d")),
        (59, True, ("Valid", "59d", "in 24h", "in 31d")),
        (61, True, ("Valid", "61d", "~in 59d", "~in 89d")),
        (130, True, ("Valid", "130d", "~in 50d", "~in 80d")),
        (89, False, ("Valid", "89d", "~in 31d", "~in 61d")),
        (95, False, ("MayBeExpired", "95d", "35d ago", "5d ago")),
    ],
)
def test_the_life_of_a_token_follows_from_its_anchor(days: int, connected: bool, shown: tuple[str, ...]) -> None:
    """Exact until the first renewal; afterwards as a member that is connected must have renewed it."""
    now = CREATED + days * DAY
    life = life_of("east", SECRETS, connected=connected, now=now)
    assert cells({KEY: life}, now) == shown
    assert (life["lifeSeconds"], life["estimated"]) == (90 * DAY, shown[2].startswith("~"))
    assert "c2VjcmV0" not in str(life)


def test_the_newest_anchor_counts_and_only_one_of_a_command() -> None:
    """`rotate` leaves the earlier one for a moment; a member could not create one, but others could."""
    later, foreign = anchor("east", 30, CREATED + DAY), secret(f"east.{DAY}.{RANDOM}", CREATED + 2 * DAY)
    life = life_of("east", [later, *SECRETS, foreign], connected=True, now=CREATED + DAY)
    assert (life["lifeSeconds"], life["created"]) == (30 * DAY, time_text(CREATED + DAY))


def test_a_token_without_an_end_is_shown_as_such() -> None:
    """One that Kubernetes wrote into a Secret; and an account without any Secret."""
    stored = [*SECRETS, secret("token-of-west", CREATED, "kubernetes.io/service-account.name", "west")]
    for account, state in (("west", "NeverExpires"), ("north", "NoToken")):
        life = life_of(account, stored, connected=True, now=CREATED)
        assert cells({KEY: life}, CREATED) == (state, "-", "-", "-")
    assert cells({}, CREATED)[0] == "Unknown"


def test_the_leader_sees_members_that_are_ready() -> None:
    """By its own ClusterSet, not by one in which it is a member itself."""
    ready, away = ({"type": "Ready", "status": status} for status in ("True", "False"))
    clusters = [{"clusterID": "east", "conditions": [ready]}, {"clusterID": "west", "conditions": [away]}]
    status = {"clusterStatuses": clusters}
    own, other = {"clusterID": "north"}, {"clusterID": "south", "server": "https://192.0.2.1"}
    for leader, connected in ((own, {"east"}), (other, set())):
        cluster_set = {"spec": {"clusterID": "north", "leaders": [leader]}, "status": status}
        assert connected_clusters([read_as(ClusterSet, cluster_set)]) == connected
