"""Changes from sources become snapshots."""

from __future__ import annotations

import pytest

from mcagent.agent.inbox import Inbox
from mcagent.core import snapshot as snapshot_module
from mcagent.model.objects import Kind, Snapshot
from mcagent.model.parse import Parsed, parse_object
from mcagent.model.problem import Problem
from tests.unit.agentworld import cluster, gateway, node, watch_event

INFO = Kind.CLUSTER_INFO_IMPORT


def filled() -> Inbox:
    """Return an inbox with two clusters taken in."""
    inbox = Inbox(lambda: None)
    inbox.replace(INFO, [cluster(1), cluster(2)])
    inbox.take()
    return inbox


def test_a_list_makes_a_kind_synced() -> None:
    """Only the kinds that were listed count as synced."""
    inbox = Inbox(lambda: None)
    inbox.apply(Kind.NODE, watch_event("ADDED", node()))
    assert inbox.take().synced == frozenset()
    inbox.replace(INFO, [cluster(1)])
    assert inbox.take().synced == {INFO}


def test_of_many_changes_the_last_one_counts() -> None:
    """Whatever happened in between, the snapshot is that of the end."""
    inbox = filled()
    for _ in range(100):
        inbox.apply(INFO, watch_event("DELETED", cluster(1)))
        inbox.apply(INFO, watch_event("ADDED", cluster(1)))
        inbox.apply(INFO, watch_event("ADDED", cluster(3)))
        inbox.apply(INFO, watch_event("DELETED", cluster(3)))
    assert set(inbox.take().cluster_infos) == {"kube-system/c1", "kube-system/c2"}


def test_a_list_overrules_changes_that_came_before_it() -> None:
    """What is not in the list is gone, even when it was just added; what comes after counts."""
    inbox = filled()
    inbox.apply(INFO, watch_event("ADDED", cluster(3)))
    inbox.replace(INFO, [cluster(1)])
    inbox.apply(INFO, watch_event("ADDED", cluster(4)))
    assert set(inbox.take().cluster_infos) == {"kube-system/c1", "kube-system/c4"}


def test_a_kind_that_is_read_no_longer_is_forgotten() -> None:
    """Its objects and problems go, and it is no longer synced; other kinds stay."""
    inbox = filled()
    bad = cluster(5)
    bad["spec"]["serviceCIDR"] = "x"
    inbox.apply(INFO, watch_event("ADDED", bad))
    inbox.replace(Kind.GATEWAY, [gateway()])
    assert inbox.take().problems
    inbox.forget(INFO)
    snapshot = inbox.take()
    assert snapshot.cluster_infos == {}
    assert snapshot.problems == ()
    assert snapshot.synced == {Kind.GATEWAY}
    inbox.forget(Kind.GATEWAY)
    inbox.replace(Kind.GATEWAY, [gateway()])
    assert inbox.take().synced == {Kind.GATEWAY}


def test_without_changes_the_snapshot_is_the_very_same() -> None:
    """Compile tells by identity that there is nothing to do."""
    inbox = filled()
    before = inbox.take()
    assert inbox.take() is before
    inbox.apply(INFO, watch_event("MODIFIED", cluster(1)))
    assert inbox.take() is before


def test_problems_of_the_source_are_told_while_they_last() -> None:
    """A file that cannot be read shows beside the objects' own problems, and goes when it is mended."""
    inbox = filled()
    problem = Problem(subject="file a.yaml", path="", reason="NotYAML", message="no")
    inbox.source_problems = lambda: (problem,)
    told = inbox.take()
    assert told.problems == (problem,)
    assert inbox.take() is told
    inbox.source_problems = tuple
    assert inbox.take().problems == ()
    assert isinstance(told, Snapshot)


def test_an_object_that_nobody_thought_of_costs_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug in reading one object loses none of the others that came with it, by list or by event."""

    def fragile(raw: object, kind: Kind | None = None) -> Parsed:
        parsed = parse_object(raw, kind)
        if parsed.meta.name == "poison":
            raise RuntimeError(parsed.meta.name)
        return parsed

    monkeypatch.setattr(snapshot_module, "parse_object", fragile)
    inbox = Inbox(lambda: None)
    inbox.replace(Kind.NODE, [node(name) for name in ("a1", "poison", "a2")])
    inbox.apply(Kind.GATEWAY, watch_event("ADDED", gateway("poison")))
    inbox.apply(Kind.GATEWAY, watch_event("ADDED", gateway("a1")))
    found = inbox.take()
    assert set(found.nodes) == {"a1", "a2"}
    assert set(found.gateways) == {"kube-system/a1"}
    assert found.synced == {Kind.NODE}
