"""The snapshot builder: bad objects keep their last good version, and what did not change stays the same value."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mcagent.core.snapshot import Change, Delete, Relist, Upsert, apply_changes
from mcagent.model.objects import Kind, Snapshot

INFO = Kind.CLUSTER_INFO_IMPORT


def info(name: str, cidr: object = "10.20.0.0/16", **metadata: Any) -> dict[str, Any]:
    """Return a raw ClusterInfoImport."""
    return {
        "metadata": {"name": name, "namespace": "mc", **metadata},
        "spec": {"clusterID": name, "serviceCIDR": cidr, "gatewayInfos": [{"gatewayIP": "192.0.2.1"}]},
    }


def test_a_bad_object_keeps_its_last_good_version_and_is_told() -> None:
    """An update that cannot be read leaves the old version and adds a problem; a good one takes it away."""
    good = apply_changes(Snapshot(), [Upsert(kind=INFO, raw=info("east"))])
    bad = apply_changes(good, [Upsert(kind=INFO, raw=info("east", "10.1"))])
    assert bad.cluster_infos["mc/east"] is good.cluster_infos["mc/east"]
    assert [str(p) for p in bad.problems] == ['ClusterInfoImport mc/east: spec.serviceCIDR: not a CIDR: "10.1"']
    mended = apply_changes(bad, [Upsert(kind=INFO, raw=info("east", "10.21.0.0/16"))])
    assert mended.problems == ()
    assert str(mended.cluster_infos["mc/east"].service_cidr) == "10.21.0.0/16"


def test_a_deleted_object_goes_with_its_problems() -> None:
    """After a delete nothing is left, also of an object that was bad from the start."""
    bad = apply_changes(
        Snapshot(), [Upsert(kind=INFO, raw=info("east", "x")), Upsert(kind=INFO, raw=info("west"))]
    )
    assert set(bad.cluster_infos) == {"mc/west"}
    assert len(bad.problems) == 1
    gone = apply_changes(bad, [Delete(kind=INFO, key="mc/east"), Delete(kind=INFO, key="mc/west")])
    assert (gone.cluster_infos, gone.problems) == ({}, ())


def test_a_relist_replaces_the_kind_and_marks_it_synced() -> None:
    """What a list does not hold is gone; what it holds but cannot be read keeps its last good version."""
    before = apply_changes(Snapshot(), [Upsert(kind=INFO, raw=info(n)) for n in ("a", "b", "c")])
    assert before.synced == frozenset()
    after = apply_changes(before, [Relist(kind=INFO, items=[info("a"), info("b", 7), "rubbish"])])
    assert set(after.cluster_infos) == {"mc/a", "mc/b"}
    assert after.synced == {INFO}
    assert [p.subject for p in after.problems] == ["ClusterInfoImport", "ClusterInfoImport mc/b"]
    again = apply_changes(after, [Relist(kind=INFO, items=[info("a"), info("b")])])
    assert again.problems == ()


def test_what_says_the_same_stays_the_same_value() -> None:
    """A write that changes nothing we read gives back the very snapshot; other kinds keep their dicts."""
    raw = info("east", resourceVersion="1")
    before = apply_changes(Snapshot(), [Relist(kind=INFO, items=[raw])])
    assert apply_changes(before, [Upsert(kind=INFO, raw=info("east", resourceVersion="2"))]) is before
    assert apply_changes(before, [Relist(kind=INFO, items=[raw])]) is before
    assert apply_changes(before, [Delete(kind=INFO, key="mc/other")]) is before
    node = {"metadata": {"name": "n1"}}
    after = apply_changes(before, [Upsert(kind=Kind.NODE, raw=node)])
    assert after.cluster_infos is before.cluster_infos
    recreated = apply_changes(
        before, [Upsert(kind=INFO, raw=info("east", creationTimestamp="2026-01-01T00:00:00Z"))]
    )
    assert recreated.cluster_infos["mc/east"].meta.created == "2026-01-01T00:00:00Z"


def test_a_pod_that_finished_is_gone() -> None:
    """A Pod that is of no interest any more leaves the snapshot."""
    raw: dict[str, Any] = {
        "metadata": {"name": "p", "namespace": "d"},
        "spec": {"nodeName": "n"},
        "status": {"podIP": "10.1.0.5"},
    }
    before = apply_changes(Snapshot(), [Upsert(kind=Kind.POD, raw=raw)])
    assert set(before.pods) == {"d/p"}
    raw["status"] = {**raw["status"], "phase": "Succeeded"}
    assert apply_changes(before, [Upsert(kind=Kind.POD, raw=raw)]).pods == {}


NAMES = st.sampled_from(["a", "b", "c"])
RAWS = st.builds(info, NAMES, st.sampled_from(["10.20.0.0/16", "10.30.0.1/16", "bad", None]))
CHANGES = st.one_of(
    st.builds(Upsert, kind=st.just(INFO), raw=RAWS),
    st.builds(Delete, kind=st.just(INFO), key=NAMES.map(lambda n: f"mc/{n}")),
    st.builds(Relist, kind=st.just(INFO), items=st.lists(RAWS, max_size=4)),
)


@given(st.lists(CHANGES, max_size=12))
def test_a_burst_equals_its_events_one_by_one(changes: list[Change]) -> None:
    """How changes are cut into bursts makes no difference."""
    one_by_one = Snapshot()
    for change in changes:
        one_by_one = apply_changes(one_by_one, [change])
    assert apply_changes(Snapshot(), changes) == one_by_one
    assert all(p.subject.startswith("ClusterInfoImport") for p in one_by_one.problems)
