"""What the engine counts, and the Events that there should be now."""

from __future__ import annotations

from mcagent.controller.machinery.apply import Verb, Write
from mcagent.controller.machinery.current_events import CurrentEvents
from mcagent.controller.machinery.reconciler import Ref, Side
from mcagent.controller.machinery.statistics import BUCKETS, Durations, Statistics
from mcagent.model.event import Event
from mcagent.model.objects import Kind

REF = Ref(side=Side.LEADER, kind=Kind.RESOURCE_EXPORT, namespace="area", name="x")


def test_results_and_durations_are_counted_by_reconciler() -> None:
    """A duration on a bound belongs to that bound's bucket; one above all counts in the last."""
    statistics = Statistics()
    for seconds in (0.0001, 0.0005, 0.0006, 0.25, 11.0):
        statistics.worked("imports", "changed", seconds)
    statistics.worked("imports", "failed", 0.25)
    statistics.worked("exports", "changed", 1.0)
    statistics.bug("exports")
    statistics.bug("exports")
    assert statistics.results() == {
        ("imports", "changed"): 5,
        ("imports", "failed"): 1,
        ("exports", "changed"): 1,
        ("exports", "bug"): 2,
    }
    durations = statistics.durations()
    assert sorted(durations) == ["exports", "imports"]
    assert durations["imports"].total == 0.0001 + 0.0005 + 0.0006 + 0.25 + 11.0 + 0.25
    buckets = dict(durations["imports"].buckets())
    assert list(buckets) == [*map(str, BUCKETS), "+Inf"]
    assert (buckets["0.0005"], buckets["0.001"], buckets["0.1"], buckets["0.25"]) == (2, 3, 3, 5)
    assert (buckets["10.0"], buckets["+Inf"]) == (5, 6)


def test_writes_and_requests_are_counted_by_side() -> None:
    """With the kind and verb of the write, and the code of the answer."""
    statistics = Statistics()
    for verb in (Verb.CREATE, Verb.PATCH, Verb.PATCH):
        statistics.wrote("exports", Write(verb=verb, ref=REF, body={}))
    statistics.requested(Side.LOCAL, "get", "404")
    statistics.requested(Side.LEADER, "get", "ok")
    statistics.requested(Side.LEADER, "get", "ok")
    assert statistics.writes() == {
        ("exports", "leader", "ResourceExport", "create"): 1,
        ("exports", "leader", "ResourceExport", "patch"): 2,
    }
    assert statistics.requests() == {("local", "get", "404"): 1, ("leader", "get", "ok"): 2}


def test_what_was_read_does_not_change() -> None:
    """A page shows numbers of one moment."""
    statistics = Statistics()
    statistics.worked("imports", "changed", 0.25)
    results, durations = statistics.results(), statistics.durations()
    statistics.worked("imports", "changed", 0.25)
    assert results == {("imports", "changed"): 1}
    assert durations["imports"] == Durations([0] * 8 + [1] + [0] * 6, 0.25)


LEFT, RIGHT = (Event(subject="Service a/b", reason="Refused", message=text) for text in ("left", "right"))


def test_events_are_those_of_the_last_call_for_each_key() -> None:
    """They are taken once after each change; a key without Events has no entry."""
    events = CurrentEvents()
    assert events.take() is None
    events.remember(("imports", "1"), frozenset())
    assert events.take() is None
    events.remember(("imports", "1"), frozenset({LEFT}))
    events.remember(("exports", "1"), frozenset({LEFT, RIGHT}))
    events.remember(("imports", "2"), frozenset({RIGHT}))
    assert events.of("imports") == {"1": frozenset({LEFT}), "2": frozenset({RIGHT})}
    assert events.of("exports") == {"1": frozenset({LEFT, RIGHT})}
    assert events.of("other") == {}
    assert events.take() == frozenset({LEFT, RIGHT})
    assert events.take() is None
    events.remember(("imports", "1"), frozenset({LEFT}))
    assert events.take() is None
    events.remember(("exports", "1"), frozenset())
    events.remember(("imports", "1"), frozenset({RIGHT}))
    assert events.of("exports") == {}
    assert events.take() == frozenset({RIGHT})
    events.remember(("imports", "1"), frozenset())
    events.remember(("imports", "2"), frozenset())
    assert events.take() == frozenset()
