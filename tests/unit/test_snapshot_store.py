"""Changes from sources become snapshots."""

from __future__ import annotations

import pytest

from mcagent.agent.snapshot_store import SnapshotStore
from mcagent.core import snapshot as snapshot_module
from mcagent.model.objects import Kind, Snapshot
from mcagent.model.parsing.parse import Parsed, parse_object
from mcagent.model.problem import Problem
from tests.worlds.agentworld import cluster, gateway, listed, node, watch_event

INFO = Kind.CLUSTER_INFO_IMPORT


def filled() -> SnapshotStore:
    """Return an store with two clusters taken in."""
    store = SnapshotStore(lambda: None)
    listed(store, INFO, [cluster(1), cluster(2)])
    store.take()
    return store


def test_a_list_makes_a_kind_synced() -> None:
    """Only the kinds that were listed count as synced."""
    store = SnapshotStore(lambda: None)
    store.apply(Kind.NODE, watch_event("ADDED", node()))
    assert store.take().synced == frozenset()
    listed(store, INFO, [cluster(1)])
    assert store.take().synced == {INFO}


def test_of_many_changes_the_last_one_counts() -> None:
    """Whatever happened in between, the snapshot is that of the end."""
    store = filled()
    for _ in range(100):
        store.apply(INFO, watch_event("DELETED", cluster(1)))
        store.apply(INFO, watch_event("ADDED", cluster(1)))
        store.apply(INFO, watch_event("ADDED", cluster(3)))
        store.apply(INFO, watch_event("DELETED", cluster(3)))
    assert set(store.take().cluster_infos) == {"kube-system/c1", "kube-system/c2"}


def test_a_list_overrules_changes_that_came_before_it() -> None:
    """What is not in the list is gone, even when it was just added; what comes after counts."""
    store = filled()
    store.apply(INFO, watch_event("ADDED", cluster(3)))
    listed(store, INFO, [cluster(1)])
    store.apply(INFO, watch_event("ADDED", cluster(4)))
    assert set(store.take().cluster_infos) == {"kube-system/c1", "kube-system/c4"}


def test_a_kind_that_is_read_no_longer_is_forgotten() -> None:
    """Its objects and problems go, and it is no longer synced; other kinds stay."""
    store = filled()
    bad = cluster(5)
    bad["spec"]["serviceCIDR"] = "x"
    store.apply(INFO, watch_event("ADDED", bad))
    listed(store, Kind.GATEWAY, [gateway()])
    assert store.take().problems
    store.forget(INFO)
    snapshot = store.take()
    assert snapshot.cluster_infos == {}
    assert snapshot.problems == ()
    assert snapshot.synced == {Kind.GATEWAY}
    store.forget(Kind.GATEWAY)
    listed(store, Kind.GATEWAY, [gateway()])
    assert store.take().synced == {Kind.GATEWAY}


def test_without_changes_the_snapshot_is_the_very_same() -> None:
    """Compile tells by identity that there is nothing to do."""
    store = filled()
    before = store.take()
    assert store.take() is before
    store.apply(INFO, watch_event("MODIFIED", cluster(1)))
    assert store.take() is before


def test_problems_of_the_source_are_told_while_they_last() -> None:
    """A file that cannot be read shows beside the objects' own problems, and goes when it is mended."""
    store = filled()
    problem = Problem(subject="file a.yaml", path="", reason="NotYAML", message="no")
    store.source_problems = lambda: (problem,)
    problems = store.take()
    assert problems.problems == (problem,)
    assert store.take() is problems
    store.source_problems = tuple
    assert store.take().problems == ()
    assert isinstance(problems, Snapshot)


def test_an_object_that_nobody_thought_of_costs_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug in reading one object loses none of the others that came with it, by list or by event."""

    def fragile(raw: object, kind: Kind | None = None) -> Parsed:
        parsed = parse_object(raw, kind)
        if parsed.meta.name == "poison":
            raise RuntimeError(parsed.meta.name)
        return parsed

    monkeypatch.setattr(snapshot_module, "parse_object", fragile)
    store = SnapshotStore(lambda: None)
    listed(store, Kind.NODE, [node(name) for name in ("a1", "poison", "a2")])
    store.apply(Kind.GATEWAY, watch_event("ADDED", gateway("poison")))
    store.apply(Kind.GATEWAY, watch_event("ADDED", gateway("a1")))
    changes = store.take()
    assert set(changes.nodes) == {"a1", "a2"}
    assert set(changes.gateways) == {"kube-system/a1"}
    assert changes.synced == {Kind.NODE}
