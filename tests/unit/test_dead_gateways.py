"""The gateways of its cluster that a gateway reports as dead: only what it observed itself, and can tell."""

from __future__ import annotations

import math

from mcagent.core.failover.siblings import CONFIRMED_AFTER
from mcagent.model.dataplane.resources import PeerKind
from tests.worlds.failover_steps import DOWN, UP, Place, tunnel

DRAINED = {
    "state": "up",
    "forwarding": "false",
    "flap_count": "1",
    "remote_diagnostic": "Concatenated Path Down",
}
HALF_UP = {"state": "init", "forwarding": "false", "flap_count": "0"}


def place(*siblings: int) -> Place:
    """Return gateway g1 with sibling g2, and workers whose tunnels have these numbers."""
    place = Place()
    place.tunnels = {2: place.tunnels[2]} | {n: tunnel(n, f"w{n}", PeerKind.NODE, UP) for n in siblings}
    place.facts()
    return place


def reported(place: Place, after: float = 0.0) -> frozenset[str]:
    """Return the reported gateways after the next pass."""
    place.facts(after)
    return place.live.report.dead_gateways


def test_a_lost_sibling_is_reported_when_it_stays_lost() -> None:
    """The loop is woken for it; the report ends with the return of the sibling."""
    observer = place(3)
    observer.say(2, DOWN)
    assert reported(observer, 1.0) == frozenset()
    assert observer.live.wake <= observer.now + CONFIRMED_AFTER
    assert reported(observer, CONFIRMED_AFTER) == {"g2"}
    observer.say(2, UP)
    assert reported(observer, 5.0) == frozenset()
    assert observer.live._state.dead_wake == math.inf


def test_a_short_loss_is_not_reported() -> None:
    """The session is up again before the loss is confirmed."""
    observer = place(3)
    observer.say(2, DOWN)
    reported(observer, 1.0)
    observer.say(2, UP)
    assert reported(observer, CONFIRMED_AFTER) == frozenset()


def test_a_sibling_that_flaps_is_reported_later() -> None:
    """Each loss soon after the last one doubles the time, as it doubles the hold-down time."""
    observer = place(3)
    for losses in (1, 2, 3):
        observer.say(2, DOWN)
        reported(observer, 1.0)
        assert reported(observer, CONFIRMED_AFTER * 2 ** (losses - 1) - 0.01) == frozenset()
        assert reported(observer, 0.02) == {"g2"}
        observer.say(2, UP)
        assert reported(observer, 1.0) == frozenset()


def test_a_new_sibling_that_stays_half_up_is_reported_without_another_event() -> None:
    """Its packets arrive, ours do not: time alone decides that BFD is down, and the report follows in time."""
    observer = place(3)
    observer.tunnels[5] = tunnel(5, "g3", PeerKind.GATEWAY, HALF_UP)
    assert reported(observer) == frozenset()
    while not observer.live.report.peers["mc-5"].transitions:
        assert reported(observer, observer.live.wake - observer.now) == frozenset()
    assert observer.live.wake <= observer.now + CONFIRMED_AFTER
    assert reported(observer, CONFIRMED_AFTER) == {"g3"}


def test_a_gateway_that_is_cut_off_reports_nothing() -> None:
    """It lost all peers; those that return before the sibling do not count, since they were lost as well."""
    observer = place(3, 4)
    for number in (2, 3, 4):
        observer.say(number, DOWN)
    reported(observer, 1.0)
    assert reported(observer, CONFIRMED_AFTER) == frozenset()
    observer.say(3, UP)
    assert reported(observer, 30.0) == frozenset()
    assert reported(observer, 70.0) == frozenset()


def test_one_peer_that_answers_is_enough() -> None:
    """A worker died together with the sibling, another one did not."""
    observer = place(3, 4)
    observer.say(2, DOWN)
    observer.say(4, DOWN)
    reported(observer, 1.0)
    assert reported(observer, CONFIRMED_AFTER) == {"g2"}


def test_a_gateway_without_other_peers_reports() -> None:
    """A cluster of two Nodes: nothing else could tell."""
    observer = place()
    observer.say(2, DOWN)
    reported(observer, 1.0)
    assert reported(observer, CONFIRMED_AFTER) == {"g2"}


def test_a_loss_before_the_start_is_not_reported() -> None:
    """After a restart of the Node BFD starts again everywhere: the sibling has not answered yet."""
    place = Place()
    place.tunnels = {
        2: tunnel(2, "g2", PeerKind.GATEWAY, DOWN, has_answered=True),
        3: tunnel(3, "w1", PeerKind.NODE, UP),
    }
    assert reported(place) == frozenset()
    assert reported(place, 10.0) == frozenset()


def test_a_drained_sibling_is_not_dead() -> None:
    """It signals path down, and forwards what Antrea's gateways send to it; it may die meanwhile."""
    observer = place(3)
    observer.say(2, DRAINED)
    assert reported(observer, 10.0) == frozenset()
    observer.say(2, DOWN)
    reported(observer, 1.0)
    assert reported(observer, CONFIRMED_AFTER) == {"g2"}


def test_workers_and_gateways_of_other_clusters_are_not_reported() -> None:
    """Only the order of this cluster's gateways depends on the report."""
    observer = place(3)
    observer.tunnels[4] = tunnel(4, "east", PeerKind.REMOTE, UP)
    observer.facts()
    observer.say(3, DOWN)
    observer.say(4, DOWN)
    reported(observer, 1.0)
    assert reported(observer, CONFIRMED_AFTER) == frozenset()
