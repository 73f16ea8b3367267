"""Which keys of a member's reconcilers a change enqueues, and that objects of other namespaces do not count."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from mcagent.controller.contract import names
from mcagent.controller.contract.health import HEALTHY
from mcagent.controller.machinery.reconciler import Leader, Reconciler, Side
from mcagent.controller.member import member_reconcilers
from mcagent.controller.member.membership import cluster_set_of
from mcagent.controller.settings import ReplicatedPolicies
from mcagent.kube.source import RawObject
from mcagent.model.objects import Kind
from mcagent.model.parsing import labels
from mcagent.model.parsing.granted import CLAIMS_ANNOTATION
from tests.worlds.control_view import Controller, MemoryView, change_of
from tests.worlds.exporting_member import release
from tests.worlds.leader_imports import WEST, cluster_info, endpoints_import, service_import
from tests.worlds.member_changes import changed, gateway, linked
from tests.worlds.member_imports import own_export
from tests.worlds.member_labels import pod
from tests.worlds.member_labels import resource_import as label_import
from tests.worlds.member_world import (
    AREA,
    HOME,
    SET,
    cluster_set,
    export_of,
    leader,
    member,
    names_of,
    node,
    north_of,
    service,
    settings,
    slice_of,
)
from tests.worlds.membership import joined, tick

SETTINGS = settings(
    stretched_network_policy=True,
    replicated_network_policies=ReplicatedPolicies.ALLOW,
    replicated_cluster_policies=ReplicatedPolicies.ALLOW,
    replicated_namespaces=("*",),
)
RECONCILERS: Mapping[str, Reconciler] = {
    reconciler.name: reconciler for reconciler in member_reconcilers(SETTINGS)
}


def keys(
    name: str,
    kind: Kind,
    old: RawObject | None,
    new: RawObject | None,
    *,
    side: Side = Side.LOCAL,
    view: MemoryView | None = None,
) -> set[str]:
    """Return the keys of a reconciler that a change enqueues, in the view of a member."""
    reconciler = RECONCILERS[name]
    return set(reconciler.keys(change_of(kind, old, new, side), view or member()))


def without_leader() -> MemoryView:
    """Return the view of a cluster that is no member yet."""
    view = member()
    view.leader = None
    return view


# --- membership and announcement


def test_links_and_health_are_announced_when_they_change() -> None:
    """Traffic waits for the next heartbeat."""
    assert keys("announce", Kind.GATEWAY, linked(), linked(live=2)) == {"announce"}
    assert keys("announce", Kind.GATEWAY, linked(), linked(tunnels=3)) == {"announce"}
    assert keys("announce", Kind.GATEWAY, linked(), linked(bytesPerSecond=7, why="x")) == set()
    assert keys("announce", Kind.GATEWAY, None, linked()) == {"announce"}
    assert keys("announce", Kind.GATEWAY, gateway(), None) == set()
    health = {"type": HEALTHY, "status": "False", "reason": "Degraded", "message": "cluster west is not reached"}
    sick = changed(cluster_set(), status={"conditions": [health]})
    assert keys("announce", Kind.CLUSTER_SET, cluster_set(), sick) == {"announce"}
    assert keys("announce", Kind.CLUSTER_SET, sick, deepcopy(sick)) == set()
    assert set(RECONCILERS["announce"].all_keys(member())) == {"announce"}


def test_the_cluster_set_is_judged_when_its_cluster_changes() -> None:
    """All ClusterSets of the namespace, of which one is joined; objects on the leader are not its health."""
    view = member()
    view.local.put(cluster_set(name="second"))
    foreign = changed(cluster_set(), metadata={"namespace": "elsewhere"})
    sets = {SET, "second"}
    assert keys("membership", Kind.CLUSTER_SET, None, cluster_set(name="second"), view=view) == sets
    assert keys("membership", Kind.CLUSTER_SET, None, foreign, view=view) == set()
    claim = {"kind": "ClusterClaim", "metadata": {"name": "id.k8s.io", "namespace": HOME}, "value": "east"}
    assert keys("membership", Kind.CLUSTER_CLAIM, None, claim, view=view) == sets
    assert (
        keys("membership", Kind.CLUSTER_CLAIM, None, changed(claim, metadata={"namespace": "x"}), view=view)
        == set()
    )
    for old, new, touched in (
        (linked(), linked(live=2), sets),
        (linked(), linked(why="other"), sets),
        (linked(), linked(bytesPerSecond=7), set()),
        (gateway(), gateway(status={"clusterID": "east"}), sets),
        (gateway(), gateway(status={"encryptionError": "x"}), sets),
        (None, gateway(), sets),
    ):
        assert keys("membership", Kind.GATEWAY, old, new, view=view) == touched
    ready, unready = node("n1", "10.0.0.1"), node("n1", "10.0.0.1", ready=False)
    assert keys("membership", Kind.NODE, ready, unready, view=view) == sets
    assert (
        keys("membership", Kind.NODE, ready, changed(ready, metadata={"labels": {"a": "b"}}), view=view) == set()
    )
    imported = {"kind": "ClusterInfoImport", "metadata": {"name": "w", "namespace": HOME}}
    assert keys("membership", Kind.CLUSTER_INFO_IMPORT, None, imported, view=view) == sets
    assert keys("membership", Kind.CLUSTER_INFO_IMPORT, imported, None, view=view) == sets
    assert keys("membership", Kind.CLUSTER_INFO_IMPORT, imported, deepcopy(imported), view=view) == set()
    assert keys("membership", Kind.GATEWAY, linked(), linked(live=2), side=Side.LEADER, view=view) == set()


def test_only_a_deleted_cluster_set_is_left() -> None:
    """Another object of the membership does not matter: it is looked at each second."""
    view = member()
    assert keys("leave", Kind.CLUSTER_SET, None, cluster_set(), view=view) == set()
    view.local.put(cluster_set(name="gone"))
    view.local.remove(Kind.CLUSTER_SET, HOME, "gone")
    assert keys("leave", Kind.CLUSTER_SET, None, cluster_set(), view=view) == {"gone"}
    assert keys("leave", Kind.GATEWAY, None, gateway(), view=view) == set()


def test_nothing_is_cleaned_up_while_the_cluster_is_a_member() -> None:
    """Without a ClusterSet each object that comes is looked at, and all of them when the ClusterSet has gone."""
    assert keys("cleanup", Kind.GATEWAY, None, gateway()) == set()
    assert keys("cleanup", Kind.CLUSTER_SET, cluster_set(), None) == set()
    view = member()
    view.local.put(export_of("web"))
    view.local.put(changed(gateway(), metadata={"labels": {names.MANAGED_BY_LABEL: names.MANAGED_BY}}))
    view.local.put(gateway("of-a-user"))
    finalizer = {"metadata": {"finalizers": None}}
    view.local.change(Kind.CLUSTER_SET, HOME, SET, finalizer)
    view.local.remove(Kind.CLUSTER_SET, HOME, SET)
    objects = {f"Gateway/{HOME}/n1", "ServiceExport/shop/web"}
    assert keys("cleanup", Kind.CLUSTER_SET, cluster_set(), None, view=view) == objects
    assert keys("cleanup", Kind.GATEWAY, None, gateway("n2"), view=view) == {f"Gateway/{HOME}/n2"}
    assert keys("cleanup", Kind.GATEWAY, gateway("n2"), None, view=view) == set()


@pytest.mark.parametrize(
    ("name", "all_keys"),
    [
        ("gateway-election", {"gateways"}),
        ("cluster-info-export", {"cluster-info"}),
        ("export-range", {"export-range"}),
        ("pod-range", {"pod-range"}),
    ],
)
def test_a_cluster_set_that_is_joined_or_left_touches_everything(name: str, all_keys: set[str]) -> None:
    """Its status alone touches nothing, unless it says that the leader accepts writes again."""
    assert keys(name, Kind.CLUSTER_SET, None, cluster_set()) == all_keys
    assert keys(name, Kind.CLUSTER_SET, cluster_set(), cluster_set("other")) == all_keys
    assert keys(name, Kind.CLUSTER_SET, cluster_set(), deepcopy(cluster_set())) == set()
    with_status = changed(cluster_set(), status={"totalClusters": 1})
    assert keys(name, Kind.CLUSTER_SET, cluster_set(), with_status) == set()
    ready = {"type": "Ready", "status": "True", "reason": "Connected"}
    joined_set = changed(cluster_set(), status={"conditions": [ready]})
    assert keys(name, Kind.CLUSTER_SET, cluster_set(), joined_set) == all_keys
    assert set(RECONCILERS[name].all_keys(member())) == all_keys


# --- networks


def test_gateways_are_elected_by_nodes_and_gateways_of_the_namespace() -> None:
    """Labels of a Node do not matter."""
    fit = node("n1", "10.0.0.1")
    for name in ("gateway-election", "cluster-info-export"):
        (key,) = RECONCILERS[name].all_keys(member())
        assert keys(name, Kind.NODE, fit, node("n1", "10.0.0.2")) == {key}
        assert keys(name, Kind.NODE, fit, changed(fit, metadata={"labels": {"a": "b"}})) == set()
        assert keys(name, Kind.GATEWAY, gateway(), None) == {key}
        assert keys(name, Kind.GATEWAY, None, gateway(namespace="elsewhere")) == set()


def test_the_published_networks_follow_their_export() -> None:
    """Of this cluster only; without a leader there is none."""
    export = {"kind": "ResourceExport", "metadata": {"name": "east-clusterinfo", "namespace": AREA}}
    other = changed(export, metadata={"name": "west-clusterinfo"})
    for raw, view, touched in (
        (export, member(), {"cluster-info"}),
        (other, member(), set()),
        (export, without_leader(), set()),
    ):
        assert keys("cluster-info-export", Kind.RESOURCE_EXPORT, raw, None, side=Side.LEADER, view=view) == touched


@pytest.mark.parametrize(("name", "able"), [("export-range", "exportAddresses"), ("pod-range", "podPrefixes")])
def test_a_range_depends_on_the_leader_nodes_and_able_agents(name: str, able: str) -> None:
    """The leader's answer is in this cluster's own ClusterInfo."""
    own, other = cluster_info("east", "10.96.0.0/16"), WEST

    def of_import(raw: RawObject, view: MemoryView) -> set[str]:
        return keys(name, Kind.RESOURCE_IMPORT, None, raw, side=Side.LEADER, view=view)

    assert of_import(own, member()) == {name}
    assert of_import(other, member()) == set()
    assert of_import(own, without_leader()) == set()
    assert keys(name, Kind.GATEWAY, None, gateway()) == {name}
    assert keys(name, Kind.GATEWAY, gateway(), None) == {name}
    assert keys(name, Kind.GATEWAY, gateway(), gateway(status={able: True})) == {name}
    assert keys(name, Kind.GATEWAY, gateway(status={able: True}), linked()) == {name}
    assert keys(name, Kind.GATEWAY, gateway(), linked()) == set()
    at, elsewhere = node("n1", "10.0.0.1"), node("n1", "10.0.0.2")
    assert keys(name, Kind.NODE, at, elsewhere) == {name}
    assert keys(name, Kind.NODE, None, at) == {name}
    assert keys(name, Kind.NODE, at, changed(at, spec={"podCIDRs": ["10.1.0.0/24"]})) == {name}
    assert keys(name, Kind.NODE, at, node("n1", "10.0.0.1", ready=False)) == set()


def test_a_change_of_networks_touches_clusters_with_overlapping_ones() -> None:
    """The imports of other clusters whose claims collide with old or new ones."""
    view = member()
    south = cluster_info("south", "10.98.0.0/16")
    for raw in (WEST, south):
        north_of(view).put(raw)

    def touched(old: RawObject | None, new: RawObject | None, kind: Kind = Kind.RESOURCE_IMPORT) -> set[str]:
        side = Side.LEADER if kind is Kind.RESOURCE_IMPORT else Side.LOCAL
        return keys("cluster-info-import", kind, old, new, side=side, view=view)

    wide = cluster_info("wide", "10.96.0.0/14")
    assert touched(None, wide) == {"wide-clusterinfo", "west-clusterinfo", "south-clusterinfo"}
    assert touched(wide, None) == {"wide-clusterinfo", "west-clusterinfo", "south-clusterinfo"}
    assert touched(wide, deepcopy(wide)) == {"wide-clusterinfo"}
    assert touched(None, endpoints_import("10.97.0.5")) == set()
    assert touched(None, node("n1", "10.98.0.1"), Kind.NODE) == {"south-clusterinfo"}
    assert touched(node("n1", "10.98.0.1"), node("n1", "10.97.0.1"), Kind.NODE) == {
        "south-clusterinfo",
        "west-clusterinfo",
    }
    assert touched(None, node("n1", "10.0.0.1"), Kind.NODE) == set()
    servers = slice_of("kubernetes", "10.97.0.1", namespace="default")
    assert touched(None, servers, Kind.ENDPOINT_SLICE) == {"west-clusterinfo"}
    assert touched(None, slice_of("web", "10.97.0.1"), Kind.ENDPOINT_SLICE) == set()
    everything = {"west-clusterinfo", "south-clusterinfo"}
    secret = gateway(wireGuard={"publicKey": "x"})
    assert touched(gateway(), secret, Kind.GATEWAY) == everything
    assert touched(gateway(), gateway(wireGuard={"publicKey": ""}), Kind.GATEWAY) == set()
    assert touched(None, cluster_set(), Kind.CLUSTER_SET) == everything
    refused = cluster_info("east", "10.96.0.0/16")
    refused["metadata"]["annotations"] = {CLAIMS_ANNOTATION: '{"10.1.0.0/16": ""}'}
    assert touched(cluster_info("east", "10.96.0.0/16"), refused) == everything
    assert touched(WEST, changed(WEST, metadata=refused["metadata"] | {"name": "west-clusterinfo"})) == {
        "west-clusterinfo"
    }


def test_an_imported_cluster_touches_those_that_its_times_decide() -> None:
    """Only if the times change, and only in this namespace."""
    view = member()
    for raw in (WEST, cluster_info("wide", "10.96.0.0/14")):
        north_of(view).put(raw)
    spec = {"clusterID": "west", "serviceCIDR": "10.97.0.0/16"}
    meta: dict[str, Any] = {"name": "west-clusterinfo", "namespace": HOME}
    before = {"kind": "ClusterInfoImport", "metadata": meta, "spec": spec}
    after = changed(before, metadata={"annotations": {CLAIMS_ANNOTATION: "{}"}})

    def touched(old: RawObject | None, new: RawObject) -> set[str]:
        return keys("cluster-info-import", Kind.CLUSTER_INFO_IMPORT, old, new, view=view)

    assert touched(before, deepcopy(before)) == {"west-clusterinfo"}
    assert touched(before, after) == {"west-clusterinfo", "wide-clusterinfo"}
    assert touched(None, changed(after, metadata={"namespace": "elsewhere"})) == set()


# --- Services


def test_an_exported_service_follows_its_objects() -> None:
    """The Service, its old and new slices, its ResourceExports, and Nodes for all."""
    view = member()
    view.local.put(export_of("web"))

    def touched(kind: Kind, old: RawObject | None, new: RawObject | None, side: Side = Side.LOCAL) -> set[str]:
        return keys("service-export", kind, old, new, side=side, view=view)

    assert touched(Kind.SERVICE_EXPORT, None, export_of("api")) == {"shop-api"}
    assert touched(Kind.SERVICE, None, service("web")) == {"shop-web"}
    assert touched(Kind.SERVICE, None, service("api")) == set()
    assert touched(Kind.SERVICE, None, service("web", namespace="other")) == set()
    web, api = slice_of("web", "10.1.1.1", name="s"), slice_of("api", "10.1.1.1", name="s")
    assert touched(Kind.ENDPOINT_SLICE, web, None) == {"shop-web"}
    assert touched(Kind.ENDPOINT_SLICE, web, api) == {"shop-web"}
    assert touched(Kind.ENDPOINT_SLICE, None, api) == set()
    fit = node("n1", "10.0.0.1")
    assert touched(Kind.NODE, fit, node("n1", "10.0.0.2")) == {"shop-web"}
    assert touched(Kind.NODE, fit, changed(fit, metadata={"labels": {"a": "b"}})) == set()
    assert touched(Kind.RESOURCE_EXPORT, own_export("10.1.1.1"), None, Side.LEADER) == {"shop-web"}
    for fields in ({"clusterID": "west"}, {"kind": "ClusterInfo"}):
        other = changed(own_export("10.1.1.1"), spec=fields)
        assert touched(Kind.RESOURCE_EXPORT, None, other, Side.LEADER) == set()
    for name in ("west-shop-web-endpoints", "east-shop-web-service"):
        renamed = changed(own_export("10.1.1.1"), metadata={"name": name})
        assert touched(Kind.RESOURCE_EXPORT, None, renamed, Side.LEADER) == set()
    assert touched(Kind.CLUSTER_SET, None, cluster_set()) == {"shop-web"}
    north_of(view).put(own_export("10.1.1.1", name="api"))
    assert touched(Kind.CLUSTER_SET, None, cluster_set()) == {"shop-web", "shop-api"}


def test_an_imported_service_follows_its_objects() -> None:
    """By names, marks, endpoints and networks."""
    view = member()
    for raw in (WEST, service_import(), endpoints_import("10.97.0.5"), own_export("10.96.7.7", name="own")):
        north_of(view).put(raw)

    def touched(kind: Kind, old: RawObject | None, new: RawObject | None, side: Side = Side.LOCAL) -> set[str]:
        return keys("service-import", kind, old, new, side=side, view=view)

    web = {"shop/web"}
    assert touched(Kind.RESOURCE_IMPORT, None, service_import(), Side.LEADER) == web
    assert touched(Kind.RESOURCE_IMPORT, WEST, None, Side.LEADER) == web
    assert touched(Kind.RESOURCE_IMPORT, WEST, deepcopy(WEST), Side.LEADER) == set()
    assert touched(Kind.RESOURCE_IMPORT, None, cluster_info("south", "10.98.0.0/16"), Side.LEADER) == set()
    assert touched(Kind.RESOURCE_EXPORT, None, own_export("10.96.7.7"), Side.LEADER) == web
    for fields in ({"clusterID": "west"}, {"kind": "Service"}):
        other = changed(own_export("10.96.7.7"), spec=fields)
        assert touched(Kind.RESOURCE_EXPORT, None, other, Side.LEADER) == set()
    space = {"kind": "Namespace", "metadata": {"name": "shop"}}
    assert touched(Kind.NAMESPACE, None, space) == web
    assert touched(Kind.NAMESPACE, space, None) == web
    assert touched(Kind.NAMESPACE, space, changed(space, metadata={"labels": {"a": "b"}})) == set()
    assert touched(Kind.NAMESPACE, None, changed(space, metadata={"name": "other"})) == set()
    assert touched(Kind.SERVICE, None, service("antrea-mc-web")) == web
    assert touched(Kind.SERVICE, None, service("own")) == {"shop/own"}
    assert touched(Kind.SERVICE, None, service("web")) == set()
    assert touched(Kind.ENDPOINT_SLICE, slice_of("antrea-mc-web"), None) == web
    assert touched(Kind.ENDPOINT_SLICE, None, slice_of("own", "10.1.1.1")) == {"shop/own"}
    assert touched(Kind.NODE, None, node("n1", "10.97.0.5")) == web
    assert touched(Kind.NODE, node("n1", "10.97.0.5"), None) == web
    assert touched(Kind.NODE, None, node("n1", "10.97.0.6")) == set()
    assert touched(Kind.CLUSTER_SET, None, cluster_set()) == web
    servers = slice_of("kubernetes", "10.97.0.5", namespace="default")
    assert touched(Kind.ENDPOINT_SLICE, None, servers) == web


def test_everything_that_was_imported_is_looked_at_at_start() -> None:
    """The oldest imports first; objects that were left behind have a key, too."""
    view = member()
    for number, name in enumerate(("b", "a")):
        raw = service_import()
        raw["metadata"] |= {
            "name": f"shop-{name}-service",
            "creationTimestamp": f"2026-01-0{number + 1}T00:00:00Z",
        }
        raw["spec"]["name"] = name
        north_of(view).put(raw)
    view.local.put(service("antrea-mc-old"))
    view.local.put(slice_of("antrea-mc-older"))
    view.local.put({"kind": "ServiceImport", "metadata": {"name": "oldest", "namespace": "shop"}})
    view.local.put(service("of-a-user"))
    all_keys = list(RECONCILERS["service-import"].all_keys(view))
    assert all_keys == ["shop/b", "shop/a", "shop/old", "shop/oldest", "shop/older"]


# --- policies


def test_label_identities_follow_pods_namespaces_and_exports() -> None:
    """The old and the new labels; a Namespace touches those of all its Pods."""
    view = member()
    view.local.put(pod("a"))
    view.local.put(pod("b", "db"))
    view.local.put(pod("c", "web", "other"))

    def touched(kind: Kind, old: RawObject | None, new: RawObject | None, side: Side = Side.LOCAL) -> set[str]:
        return keys("label-export", kind, old, new, side=side, view=view)

    def label(app: str, **space: str) -> str:
        return labels.normalised("shop", space, {"app": app})

    assert touched(Kind.POD, None, pod("a")) == {label("web")}
    assert touched(Kind.POD, pod("a"), pod("a", "db")) == {label("web"), label("db")}
    assert touched(Kind.POD, pod("a"), pod("a", status={"phase": "Running", "podIP": "10.1.0.9"})) == set()
    assert touched(Kind.POD, None, pod("a", spec={"nodeName": "n1", "hostNetwork": True})) == set()
    space: RawObject = {"kind": "Namespace", "metadata": {"name": "shop"}}
    labelled = changed(space, metadata={"labels": {"team": "x"}})
    assert touched(Kind.NAMESPACE, space, deepcopy(space)) == set()
    assert touched(Kind.NAMESPACE, None, space) == {label("web"), label("db")}
    assert touched(Kind.NAMESPACE, space, labelled) == {
        *(label(app) for app in ("web", "db")),
        *(label(app, team="x") for app in ("web", "db")),
    }
    export: RawObject = {
        "kind": "ResourceExport",
        "metadata": {"name": names.label_export("east", labels.label_hash(label("web"))), "namespace": AREA},
        "spec": {"clusterID": "east", "kind": "LabelIdentity", "labelIdentity": {"normalizedLabel": label("web")}},
    }
    assert touched(Kind.RESOURCE_EXPORT, None, export, Side.LEADER) == {label("web")}
    renamed = changed(export, metadata={"name": "east-x"})
    assert touched(Kind.RESOURCE_EXPORT, None, renamed, Side.LEADER) == {"#east-x"}
    for fields in ({"clusterID": "west"}, {"kind": "Service"}):
        assert touched(Kind.RESOURCE_EXPORT, None, changed(export, spec=fields), Side.LEADER) == set()
    all_labels = {label("web"), label("db")}
    assert touched(Kind.CLUSTER_SET, None, cluster_set()) == all_labels
    north_of(view).put(renamed)
    assert touched(Kind.CLUSTER_SET, None, cluster_set()) == {*all_labels, "#east-x"}


def test_imported_label_identities_follow_those_with_their_number() -> None:
    """Before and after the change."""
    view = member()
    first, second = label_import(), label_import(labels.normalised("shop", {}, {"app": "db"}), 8)
    for raw in (first, second):
        north_of(view).put(raw)
    first_name, second_name = first["metadata"]["name"], second["metadata"]["name"]

    def touched(kind: Kind, old: RawObject | None, new: RawObject | None, side: Side = Side.LEADER) -> set[str]:
        return keys("label-import", kind, old, new, side=side, view=view)

    third = label_import(labels.normalised("shop", {}, {"app": "x"}), 7)
    third_name = third["metadata"]["name"]
    assert touched(Kind.RESOURCE_IMPORT, None, third) == {third_name, first_name}
    changed_number = label_import(labels.normalised("shop", {}, {"app": "x"}), 8)
    assert touched(Kind.RESOURCE_IMPORT, third, changed_number) == {third_name, first_name, second_name}
    assert touched(Kind.RESOURCE_IMPORT, None, WEST) == set()
    identity = {"kind": "LabelIdentity", "metadata": {"name": "abc"}, "spec": {"label": "x", "id": 1}}
    assert touched(Kind.LABEL_IDENTITY, identity, None, Side.LOCAL) == {"abc"}
    view.local.put(identity)
    assert touched(Kind.CLUSTER_SET, None, cluster_set(), Side.LOCAL) == {first_name, second_name, "abc"}


# --- other namespaces


def test_objects_of_other_namespaces_are_no_part_of_the_membership() -> None:
    """A ClusterSet, Gateways and imported clusters of another namespace are another controller's."""
    view, controller = joined()
    published = north_of(view).get(Kind.RESOURCE_EXPORT, AREA, "east-clusterinfo")
    older = changed(cluster_set("other"), metadata={"namespace": "a", "creationTimestamp": "2020-01-01T00:00:00Z"})
    labels_of_ours = {names.MANAGED_BY_LABEL: names.MANAGED_BY}
    elsewhere = (
        older,
        changed(
            gateway("n9", "a"),
            metadata={"labels": labels_of_ours},
            gatewayIP="10.0.0.9",
            status={"tunnelMTU": 1300},
        ),
        {
            "kind": "ClusterInfoImport",
            "metadata": {"name": "south-clusterinfo", "namespace": "a", "labels": labels_of_ours},
            "spec": {"clusterID": "south"},
        },
        {"kind": "ClusterClaim", "metadata": {"name": "id.k8s.io", "namespace": "a"}, "value": "other"},
    )
    for raw in elsewhere:
        view.local.put(raw)
    writes = len(view.local.writes), len(north_of(view).writes)
    controller.settle()
    assert (len(view.local.writes), len(north_of(view).writes)) == writes
    assert north_of(view).get(Kind.RESOURCE_EXPORT, AREA, "east-clusterinfo") == published
    chosen = cluster_set_of(view)
    assert chosen is not None
    assert (chosen.namespace, chosen.name) == (HOME, SET)
    view.local.remove(Kind.CLUSTER_SET, HOME, SET)
    controller.run()
    for _ in range(2):
        tick(view, controller, 1.0)
        release(view)
    tick(view, controller, 1.0)
    assert names_of(view.local, Kind.GATEWAY) == ["n9"]
    assert names_of(view.local, Kind.CLUSTER_INFO_IMPORT) == ["south-clusterinfo"]
    assert [raw["metadata"]["namespace"] for raw in view.local.list(Kind.CLUSTER_SET)] == ["a"]


@pytest.mark.parametrize("value", [None, replace(leader(), cluster_set="another")])
def test_without_the_leader_of_the_cluster_set_nothing_is_written_there(value: Leader | None) -> None:
    """The connection may still be to the leader of an earlier ClusterSet."""
    view = member()
    view.local.put(node("n1", "10.0.0.1"))
    view.leader = value
    Controller(view, member_reconcilers(SETTINGS)).settle()
    assert north_of(view).writes == []
