"""Replicated policies of Kubernetes: from an administrator's ResourceExport to each member's API server."""

from __future__ import annotations

import json

import pytest

from mcagent.controller.contract import names
from mcagent.kube.source import RawObject
from mcagent.model.objects import Kind
from tests.worlds.kubernetes_policies import (
    ADMIN,
    IMPORT,
    NETWORK_POLICY,
    SPEC,
    carried,
    imported,
    joined,
    report,
    spec_of,
)
from tests.worlds.leader_world import AREA, Leader, export
from tests.worlds.member_world import AREA as NORTH
from tests.worlds.member_world import HOME, SET, north_of

BASELINE = {**ADMIN, "kind": "BaselineAdminNetworkPolicy", "metadata": {"name": "default"}}
UPSTREAM = {**ADMIN, "apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy"}


def test_the_leader_passes_a_policy_on_as_it_is() -> None:
    """The import carries the same bytes, follows the export, and goes with it."""
    world = Leader("east")
    for document in (NETWORK_POLICY, ADMIN, BASELINE, UPSTREAM):
        spec = {"name": "deny-all", "raw": carried(document)}
        world.put(export("", names.KUBERNETES_POLICY, "deny-all", spec))
        assert world.imported(IMPORT) == imported(document)["spec"]
        assert world.verdict("deny-all")["type"] == "Succeeded"
    world.api.remove(Kind.RESOURCE_EXPORT, AREA, "deny-all")
    world.controller.run()
    assert world.imported(IMPORT) is None


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (None, "raw: is missing"),
        ({"data": "{}"}, "must be a manifest as JSON, in base64"),
        ({"data": "A" * 100_000}, "has more than 65536 bytes"),
        (carried([]), "must be a mapping"),
        (carried({**ADMIN, "kind": "Role"}), "is not a replicated kind"),
        (carried({**NETWORK_POLICY, "metadata": {"name": "deny"}}), "must be given for a NetworkPolicy"),
        (carried({**ADMIN, "metadata": {"name": "a", "namespace": "b"}}), "must be left out"),
        (carried({**ADMIN, "metadata": {"name": "Not A Name"}}), "not a name"),
        (carried({**ADMIN, "spec": {}}), "must be a non-empty mapping"),
    ],
)
def test_bad_policies_are_refused_with_a_reason(raw: RawObject | None, why: str) -> None:
    """The export names what is wrong, and there is no import."""
    world = Leader("east")
    world.put(export("", names.KUBERNETES_POLICY, "x", {"name": "x", "raw": raw}))
    assert why in world.verdict("x")["message"]
    assert world.api.list(Kind.RESOURCE_IMPORT, AREA) == []


def test_what_a_member_reports_is_an_event() -> None:
    """PolicyImportFailed of the ResourceImport, with the cluster's name."""
    world = Leader("west")
    world.put(export("", names.KUBERNETES_POLICY, "x", {"name": "deny-all", "raw": carried(ADMIN)}))
    notes = {"annotations": {names.POLICY_PROBLEMS_ANNOTATION: json.dumps({IMPORT: "no such kind"})}}
    world.api.change(Kind.MEMBER_CLUSTER_ANNOUNCE, AREA, names.announce("west"), {"metadata": notes})
    world.controller.run()
    (event,) = world.controller.all_events()
    assert (event.subject, event.reason) == (f"ResourceImport {AREA}/{IMPORT}", "PolicyImportFailed")
    assert event.message == "cluster west does not fully apply the policy: no such kind"


@pytest.mark.parametrize(
    ("document", "kind", "name"),
    [
        (NETWORK_POLICY, Kind.NETWORK_POLICY, "antrea-mc-deny"),
        (ADMIN, Kind.ADMIN_NETWORK_POLICY, "antrea-mc-deny"),
        (BASELINE, Kind.BASELINE_ADMIN_NETWORK_POLICY, "default"),
        (UPSTREAM, Kind.UPSTREAM_CLUSTER_NETWORK_POLICY, "antrea-mc-deny"),
    ],
)
def test_a_member_makes_repairs_and_removes_the_policy(document: RawObject, kind: Kind, name: str) -> None:
    """It is just what the leader says: what somebody adds or takes away is undone."""
    view, controller = joined("till")
    north_of(view).put(imported(document))
    controller.run()
    assert spec_of(view, kind, name) == document["spec"]
    place = "till" if kind is Kind.NETWORK_POLICY else ""
    view.local.change(kind, place, name, {"spec": {"egress": [{}]}})
    controller.run()
    assert spec_of(view, kind, name) == document["spec"]
    view.local.remove(kind, place, name)
    controller.run()
    assert spec_of(view, kind, name) == document["spec"]
    assert report(view, controller) == {}
    north_of(view).remove(Kind.RESOURCE_IMPORT, NORTH, IMPORT)
    controller.run()
    assert spec_of(view, kind, name) is None


def test_a_policy_that_becomes_another_object_leaves_nothing_behind() -> None:
    """With another kind or name the new one is made, and the old one goes."""
    view, controller = joined("till")
    north_of(view).put(imported())
    controller.run()
    north_of(view).put(imported(ADMIN))
    controller.run()
    assert spec_of(view) is None
    assert spec_of(view, Kind.ADMIN_NETWORK_POLICY) == ADMIN["spec"]


def test_what_is_no_policy_any_more_leaves_the_last_good_one() -> None:
    """A leader that writes nonsense takes no policy away."""
    view, controller = joined("till")
    north_of(view).put(imported())
    controller.run()
    north_of(view).put(imported({"kind": "Role"}))
    controller.run()
    assert spec_of(view) == SPEC
    assert "apiVersion: is missing" in report(view, controller)[IMPORT]


def test_a_missing_namespace_is_reported_and_what_comes_later_counts() -> None:
    """With the Namespace the policy comes at once."""
    view, controller = joined()
    north_of(view).put(imported())
    controller.run()
    assert report(view, controller) == {IMPORT: "there is no Namespace till"}
    view.local.put({"kind": "Namespace", "metadata": {"name": "till"}})
    controller.run()
    assert (spec_of(view), report(view, controller)) == (SPEC, {})


def test_a_policy_of_somebody_else_stays() -> None:
    """One of the same name is not touched, and that is reported; when it goes, the replicated one comes."""
    view, controller = joined("till")
    own = {
        "kind": "NetworkPolicy",
        "metadata": {"name": "antrea-mc-deny", "namespace": "till"},
        "spec": {"podSelector": {"a": "b"}},
    }
    view.local.put(own)
    north_of(view).put(imported())
    controller.run()
    assert spec_of(view) == own["spec"]
    assert "was not made for this import" in report(view, controller)[IMPORT]
    view.local.remove(Kind.NETWORK_POLICY, "till", "antrea-mc-deny")
    controller.run()
    assert spec_of(view) == SPEC


def test_of_two_imports_of_one_policy_one_has_it() -> None:
    """They do not take it from each other; the other is reported."""
    view, controller = joined("till")
    north_of(view).put(imported())
    controller.run()
    north_of(view).put(imported({**NETWORK_POLICY, "spec": {"podSelector": {"a": "b"}}}, "b-kubernetespolicy"))
    controller.run()
    assert spec_of(view) == SPEC
    assert [*report(view, controller)] == ["b-kubernetespolicy"]


def test_leaving_deletes_imported_policies_only() -> None:
    """Those that were made for an import go."""
    view, controller = joined("till")
    north_of(view).put(imported())
    view.local.put({"kind": "NetworkPolicy", "metadata": {"name": "own", "namespace": "till"}, "spec": {}})
    controller.run()
    view.local.remove(Kind.CLUSTER_SET, HOME, SET)
    view.local.change(Kind.CLUSTER_SET, HOME, SET, {"metadata": {"finalizers": None}})
    controller.settle()
    assert [o["metadata"]["name"] for o in view.local.list(Kind.NETWORK_POLICY)] == ["own"]
