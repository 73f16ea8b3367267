"""The snapshot builder: bad objects keep their last good version, and what did not change stays the same value."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcagent.core.addresses.underlay import usable_tunnel_addresses
from mcagent.core.snapshot import Change, Delete, Relist, Upsert, apply_changes
from mcagent.model.objects import Kind, Snapshot
from mcagent.model.problem import Severity

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


def raw_node(name: str, address: str = "", cidr: str = "") -> dict[str, Any]:
    """Return a raw Node with at most one InternalIP and one Pod CIDR."""
    addresses = [{"type": "Hostname", "address": name}]
    if address:
        addresses.append({"type": "InternalIP", "address": address})
    return {
        "metadata": {"name": name},
        "spec": {"podCIDRs": [cidr] if cidr else []},
        "status": {"addresses": addresses},
    }


def test_a_node_keeps_its_last_address_and_pod_cidr_while_its_object_has_none() -> None:
    """Each lost field is a warning that names Node, field and value, until the Node has a value again."""
    good = apply_changes(Snapshot(), [Upsert(kind=Kind.NODE, raw=raw_node("n1", "10.0.0.1", "10.1.0.0/24"))])
    assert good.problems == ()
    after_loss = apply_changes(good, [Upsert(kind=Kind.NODE, raw=raw_node("n1"))])
    assert after_loss.nodes is good.nodes
    assert [(p.subject, p.path, p.reason, p.severity) for p in after_loss.problems] == [
        ("Node n1", "spec.podCIDRs", "LastValueUsed", Severity.WARNING),
        ("Node n1", "status.addresses", "LastValueUsed", Severity.WARNING),
    ]
    assert "10.1.0.0/24" in after_loss.problems[0].message
    assert "10.0.0.1" in after_loss.problems[1].message
    listed = apply_changes(after_loss, [Relist(kind=Kind.NODE, items=[raw_node("n1", "169.254.0.1")])])
    assert (listed.nodes, len(listed.problems)) == (good.nodes, 2)
    back = apply_changes(listed, [Upsert(kind=Kind.NODE, raw=raw_node("n1", "10.0.0.7", "10.1.7.0/24"))])
    assert back.problems == ()
    assert [str(address) for address in back.nodes["n1"].internal_ips] == ["10.0.0.7"]


def test_the_service_cidrs_of_the_last_gateways_stay() -> None:
    """They are unknown before the first Gateway, and stay after the last one."""

    def raw(name: str, cidr: str | None) -> dict[str, Any]:
        addresses = {"gatewayIP": "10.0.0.1", "internalIP": "10.0.0.1"}
        cidrs = {"serviceCIDR": cidr} if cidr else {}
        return {"metadata": {"name": name, "namespace": "mc"}, **addresses, **cidrs}

    assert apply_changes(Snapshot(), [Relist(kind=Kind.GATEWAY, items=[])]).service_cidrs is None
    first = apply_changes(Snapshot(), [Upsert(kind=Kind.GATEWAY, raw=raw("n1", None))])
    assert first.service_cidrs == ()
    snapshot = apply_changes(
        first, [Upsert(kind=Kind.GATEWAY, raw=raw(n, cidr)) for n, cidr in (("n1", "10.96.0.0/16"), ("n2", None))]
    )
    assert [str(cidr) for cidr in snapshot.service_cidrs or ()] == ["10.96.0.0/16"]
    gone = apply_changes(snapshot, [Relist(kind=Kind.GATEWAY, items=[])])
    assert (gone.gateways, gone.service_cidrs) == ({}, snapshot.service_cidrs)


def test_a_node_that_never_had_an_address_has_none() -> None:
    """There is nothing to keep, also after the object was deleted: its address and CIDR may be another Node's."""
    new = apply_changes(Snapshot(), [Upsert(kind=Kind.NODE, raw=raw_node("n1"))])
    assert (new.nodes["n1"].internal_ips, new.nodes["n1"].pod_cidrs, new.problems) == ((), (), ())
    good = apply_changes(new, [Upsert(kind=Kind.NODE, raw=raw_node("n1", "10.0.0.1", "10.1.0.0/24"))])
    gone = apply_changes(good, [Delete(kind=Kind.NODE, key="n1")])
    assert gone.nodes == {}
    again = apply_changes(gone, [Upsert(kind=Kind.NODE, raw=raw_node("n1"))])
    assert (again.nodes["n1"].internal_ips, again.nodes["n1"].pod_cidrs, again.problems) == ((), (), ())


@pytest.mark.parametrize("gone", [Delete(kind=Kind.NODE, key="n1"), Relist(kind=Kind.NODE, items=[])])
def test_the_own_node_stays_while_its_object_is_deleted(gone: Change) -> None:
    """The agent's own Node stays with a warning, and goes on from its last values when it is registered again."""
    nodes = [raw_node(name, f"10.0.0.{number}", f"10.1.{number}.0/24") for number, name in ((1, "n1"), (2, "n2"))]
    before = apply_changes(Snapshot(), [Relist(kind=Kind.NODE, items=nodes)], "n1")
    after = apply_changes(before, [gone, Delete(kind=Kind.NODE, key="n2")], "n1")
    assert set(after.nodes) == {"n1"}
    assert after.nodes["n1"] is before.nodes["n1"]
    assert [(p.subject, p.reason, p.severity) for p in after.problems] == [
        ("Node n1", "NodeDeleted", Severity.WARNING)
    ]
    registered = apply_changes(after, [Upsert(kind=Kind.NODE, raw=raw_node("n1"))], "n1")
    assert [p.reason for p in registered.problems] == ["LastValueUsed", "LastValueUsed"]
    assert apply_changes(registered, [Upsert(kind=Kind.NODE, raw=nodes[0])], "n1").problems == ()
    assert apply_changes(before, [gone], "n2").nodes.keys() == {"n2"}


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


NODES = st.builds(
    raw_node, NAMES, st.sampled_from(["10.0.0.1", "10.0.0.2", "fe80::1", ""]), st.sampled_from(["10.1.0.0/24", ""])
)
NODE_CHANGES = st.one_of(
    st.builds(Upsert, kind=st.just(Kind.NODE), raw=NODES),
    st.builds(Delete, kind=st.just(Kind.NODE), key=NAMES),
    st.builds(Relist, kind=st.just(Kind.NODE), items=st.lists(NODES, max_size=4)),
)


@given(st.lists(NODE_CHANGES, max_size=12))
def test_no_change_takes_the_addresses_of_a_node_that_stays(changes: list[Change]) -> None:
    """A Node that stays never loses its usable addresses or its Pod CIDRs, and the own Node always stays."""
    snapshot = Snapshot()
    for change in changes:
        before, snapshot = snapshot, apply_changes(snapshot, [change], "a")
        assert "a" in snapshot.nodes or "a" not in before.nodes
        for name in before.nodes.keys() & snapshot.nodes.keys():
            old, new = before.nodes[name], snapshot.nodes[name]
            assert usable_tunnel_addresses(new.internal_ips) or not usable_tunnel_addresses(old.internal_ips)
            assert new.pod_cidrs or not old.pod_cidrs
    assert apply_changes(Snapshot(), changes, "a") == snapshot
