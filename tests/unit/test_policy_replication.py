"""Replicated policies: from an administrator's ResourceExport over the leader to Antrea's CRDs in a member."""

from __future__ import annotations

import json

import pytest

from mcagent.controller.contract import names
from mcagent.kube.source import RawObject
from mcagent.model.objects import Kind
from tests.worlds.antrea_policies import IMPORT, OURS, POLICY, antrea, imported, policy, spec_of
from tests.worlds.control_view import Controller, MemoryView
from tests.worlds.leader_world import AREA, Leader
from tests.worlds.member_world import AREA as NORTH
from tests.worlds.member_world import HOME, SET, north_of


def report(view: MemoryView, controller: Controller) -> dict[str, str]:
    """Return what the member tells the leader with its next heartbeat."""
    controller.settle()
    announcement = north_of(view).get(Kind.MEMBER_CLUSTER_ANNOUNCE, NORTH, names.announce("east"))
    assert announcement is not None
    text = announcement["metadata"].get("annotations", {}).get(names.POLICY_PROBLEMS_ANNOTATION, "{}")
    return dict(json.loads(text))


def test_the_leader_passes_a_policy_on_and_follows_it() -> None:
    """The import is named and filled as Antrea's members read it; fields that go go there, too; so does all."""
    world = Leader("east")
    world.put(policy())
    assert world.imported(IMPORT) == imported()["spec"]
    assert world.verdict("strict-export")["type"] == "Succeeded"
    less = {key: value for key, value in POLICY.items() if key != "ingress"}
    world.api.put(policy(payload=less))
    world.controller.run()
    assert world.imported(IMPORT)["clusternetworkpolicy"] == less
    world.api.remove(Kind.RESOURCE_EXPORT, AREA, "strict-export")
    world.controller.run()
    assert world.imported(IMPORT) is None
    assert world.api.get(Kind.RESOURCE_EXPORT, AREA, "strict-export") is None


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (policy(payload=None), "clusterNetworkPolicy: is missing"),
        (policy(payload={"tier": "no tier"}), "tier: not a name"),
        (policy(payload={"tier": 7}), "tier: must be a string"),
        (policy(name="Not A Name", export_name="x"), "name: must be a DNS-1123 subdomain"),
    ],
)
def test_bad_policies_are_refused_with_a_reason(raw: RawObject, why: str) -> None:
    """The export names the field, and there is no import."""
    world = Leader("east")
    world.put(raw)
    assert why in world.verdict(raw["metadata"]["name"])["message"]
    assert world.api.list(Kind.RESOURCE_IMPORT, AREA) == []


def test_of_two_exports_of_one_name_the_older_counts() -> None:
    """The other says which one defines it, and takes over when that goes."""
    world = Leader("east")
    world.put(policy(export_name="a"), created="2030-01-01T00:00:00Z")
    world.put(policy(export_name="b", payload={**POLICY, "priority": 9}), created="2030-01-02T00:00:00Z")
    assert world.imported(IMPORT)["clusternetworkpolicy"]["priority"] == 1
    assert "ResourceExport a defines" in world.verdict("b")["message"]
    world.api.remove(Kind.RESOURCE_EXPORT, AREA, "a")
    world.controller.run()
    assert world.imported(IMPORT)["clusternetworkpolicy"]["priority"] == 9


@pytest.mark.parametrize("text", ["{", "[1]", "7", '{"strict": 7}', "[" * 20000, '{"strict": ""}'])
def test_reports_that_are_none_are_no_events(text: str) -> None:
    """A member writes what it likes on its announcement."""
    world = Leader("east")
    world.put(policy())
    notes = {"annotations": {names.POLICY_PROBLEMS_ANNOTATION: text}}
    world.api.change(Kind.MEMBER_CLUSTER_ANNOUNCE, AREA, names.announce("east"), {"metadata": notes})
    world.settle()
    assert world.controller.all_events() == []


def test_what_a_member_reports_is_an_event_with_its_name() -> None:
    """ACNPImportFailed of the ResourceImport, until the report is gone."""
    world = Leader("east", "west")
    world.put(policy())
    for text in ('{"strict": "there is no Tier securityops"}', None):
        notes = {"annotations": {names.POLICY_PROBLEMS_ANNOTATION: text}}
        world.api.change(Kind.MEMBER_CLUSTER_ANNOUNCE, AREA, names.announce("west"), {"metadata": notes})
        world.controller.run()
        events = [(e.subject, e.reason, e.message) for e in world.controller.all_events()]
        message = "cluster west does not fully apply the policy: there is no Tier securityops"
        assert events == ([(f"ResourceImport {AREA}/{IMPORT}", "ACNPImportFailed", message)] if text else [])


def test_a_member_makes_repairs_and_removes_the_policy() -> None:
    """It is just what the leader says: what somebody adds or takes away is undone."""
    view, controller = antrea("securityops")
    north_of(view).put(imported())
    controller.run()
    assert spec_of(view) == POLICY
    policy = view.local.get(Kind.CLUSTER_NETWORK_POLICY, "", OURS)
    assert policy is not None
    assert policy["metadata"]["annotations"] == {names.IMPORTED_POLICY_ANNOTATION: "true"}
    view.local.change(Kind.CLUSTER_NETWORK_POLICY, "", OURS, {"spec": {"egress": [{"action": "Drop"}]}})
    controller.run()
    assert spec_of(view) == POLICY
    view.local.remove(Kind.CLUSTER_NETWORK_POLICY, "", OURS)
    controller.run()
    assert spec_of(view) == POLICY
    assert report(view, controller) == {}
    north_of(view).remove(Kind.RESOURCE_IMPORT, NORTH, IMPORT)
    controller.run()
    assert spec_of(view) is None


def test_a_policy_without_effect_inside_the_cluster_is_reported() -> None:
    """Antrea's controller sets status.phase within a minute; without it only mcagent enforces the policy."""
    view, controller = antrea("securityops")
    north_of(view).put(imported())
    assert report(view, controller) == {}
    view.local.clock.forward(61.0)
    assert "no effect inside the cluster" in report(view, controller)["strict"]
    view.local.change(Kind.CLUSTER_NETWORK_POLICY, "", OURS, {"status": {"phase": "Realized"}})
    assert report(view, controller) == {}


def test_a_policy_without_problems_hides_no_problem_of_the_same_name() -> None:
    """Antrea's policies are reported by their name, those of Kubernetes by that of their ResourceImport."""
    invalid = {
        "kind": "ResourceImport",
        "metadata": {"name": "strict", "namespace": NORTH},
        "spec": {"kind": names.KUBERNETES_POLICY},
    }
    for imports in ((imported(), invalid), (invalid, imported())):
        view, controller = antrea("securityops")
        for resource_import in imports:
            north_of(view).put(resource_import)
            controller.run()
        assert spec_of(view) == POLICY
        assert report(view, controller) == {"strict": "spec.raw.data: is missing"}


def test_a_missing_tier_is_reported_and_what_comes_later_counts() -> None:
    """With the Tier the policy comes at once, and goes with it; the report follows."""
    view, controller = antrea("application")
    north_of(view).put(imported())
    controller.run()
    assert spec_of(view) is None
    assert report(view, controller) == {"strict": "there is no Tier securityops"}
    view.local.put({"kind": "Tier", "metadata": {"name": "securityops"}, "spec": {}})
    controller.run()
    assert (spec_of(view), report(view, controller)) == (POLICY, {})
    view.local.remove(Kind.TIER, "", "securityops")
    controller.run()
    assert spec_of(view) is None


def test_a_cluster_without_antrea_says_so() -> None:
    """Without any Tier there is nobody who could enforce it."""
    view, controller = antrea()
    north_of(view).put(imported())
    controller.run()
    assert "has no Tiers" in report(view, controller)["strict"]


def test_a_policy_of_somebody_else_stays() -> None:
    """One of the same name without Antrea's annotation is not touched, and that is reported."""
    view, controller = antrea("securityops")
    own = {"kind": "ClusterNetworkPolicy", "metadata": {"name": OURS}, "spec": {"priority": 5}}
    view.local.put(own)
    north_of(view).put(imported())
    controller.run()
    assert spec_of(view) == {"priority": 5}
    assert "was not made for this import" in report(view, controller)["strict"]


def test_a_refused_update_does_not_take_the_policy_away() -> None:
    """What Antrea's webhook refuses is reported; the last good policy stays."""
    view, controller = antrea("securityops")
    north_of(view).put(imported())
    controller.run()
    view.local.refuse = lambda kind, old, new: "no" if kind is Kind.CLUSTER_NETWORK_POLICY else ""
    north_of(view).put(imported({**POLICY, "priority": 2}))
    controller.settle()
    assert spec_of(view) == POLICY
    assert report(view, controller) == {"strict": "no"}


def test_leaving_deletes_imported_policies_only() -> None:
    """Those with Antrea's annotation go."""
    view, controller = antrea("securityops")
    north_of(view).put(imported())
    view.local.put({"kind": "ClusterNetworkPolicy", "metadata": {"name": "own"}, "spec": {}})
    controller.run()
    view.local.remove(Kind.CLUSTER_SET, HOME, SET)
    view.local.change(Kind.CLUSTER_SET, HOME, SET, {"metadata": {"finalizers": None}})
    controller.settle()
    assert [o["metadata"]["name"] for o in view.local.list(Kind.CLUSTER_NETWORK_POLICY)] == ["own"]
