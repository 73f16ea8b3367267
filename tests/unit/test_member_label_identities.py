"""Label identities on a member: what of its Pods is exported, and what is imported."""

from __future__ import annotations

from typing import Any

import pytest

from mcagent.controller.contract import names
from mcagent.controller.machinery.reconciler import Ref, Side, Wanted
from mcagent.controller.member.cleanup import Cleanup
from mcagent.controller.member.policies.label_exports import LabelExports
from mcagent.controller.member.policies.label_identities import LabelImports
from mcagent.kube.source import RawObject
from mcagent.model.objects import Kind
from mcagent.model.parsing import labels
from tests.worlds.control_view import Controller, MemoryView
from tests.worlds.member_labels import WEB, pod, resource_import
from tests.worlds.member_world import AREA, HOME, SET, member, north_of, settings

ON = settings(stretched_network_policy=True)


def exporting(view: MemoryView | None = None) -> tuple[MemoryView, Controller]:
    """Return a member that exports what its Pods have, and has looked once."""
    view = view or member()
    controller = Controller(view, [LabelExports(ON)])
    controller.settle()
    return view, controller


def exported(view: MemoryView) -> set[str]:
    """Return the identities on the leader."""
    exports = north_of(view).list(Kind.RESOURCE_EXPORT)
    return {raw["spec"]["labelIdentity"]["normalizedLabel"] for raw in exports}


def importing() -> tuple[MemoryView, Controller]:
    """Return a member that imports identities."""
    view = member()
    return view, Controller(view, [LabelImports(ON), Cleanup(ON)])


def imported(view: MemoryView) -> dict[str, int]:
    """Return the numbers here by labels."""
    return {raw["spec"]["label"]: raw["spec"]["id"] for raw in view.local.list(Kind.LABEL_IDENTITY)}


def test_an_export_is_what_antreas_members_write() -> None:
    """Name, labels and payload are those that the leader's admission asks for."""
    view, controller = exporting()
    view.local.put(pod("a"))
    controller.run()
    (export,) = north_of(view).list(Kind.RESOURCE_EXPORT)
    assert export["metadata"]["name"] == f"east-{labels.label_hash(WEB)}"
    assert export["metadata"]["labels"] == {"sourceKind": "LabelIdentity", "sourceClusterID": "east"}
    assert export["spec"] == {
        "clusterID": "east",
        "kind": "LabelIdentity",
        "labelIdentity": {"normalizedLabel": "ns:kubernetes.io/metadata.name=shop&pod:app=web"},
    }


def test_many_pods_of_few_labellings_are_few_exports() -> None:
    """200 Pods of 5 labellings make 5; another Pod of one of them is not even looked at on the leader."""
    view, controller = exporting()
    for i in range(200):
        view.local.put(pod(f"p{i}", f"app-{i % 5}"))
    controller.run()
    assert len(exported(view)) == 5
    writes = len(north_of(view).writes)
    view.local.put(pod("one-more", "app-1"))
    controller.run()
    assert len(north_of(view).writes) == writes == 5


def test_a_pods_new_labels_are_one_write_or_two() -> None:
    """The new identity comes, the old goes with its last Pod; a change of status is no work at all."""
    view, controller = exporting()
    view.local.put(pod("a"))
    view.local.put(pod("b"))
    controller.run()
    north_of(view).writes.clear()
    view.local.put(pod("b", "db"))
    controller.run()
    assert [write.split()[0] for write in north_of(view).writes] == ["create"]
    view.local.put(pod("a", "db"))
    controller.run()
    assert [write.split()[0] for write in north_of(view).writes] == ["create", "delete"]
    looks = controller.looks
    view.local.change(Kind.POD, "shop", "a", {"status": {"podIP": "10.0.0.9"}})
    controller.run()
    assert controller.looks == looks


@pytest.mark.parametrize(
    "changes",
    [
        {"spec": {"nodeName": "n1", "hostNetwork": True}},
        {"spec": {}},
        {"status": {"phase": "Pending"}},
        {"status": {"phase": "Succeeded", "podIP": "10.1.0.1"}},
        {"status": {"phase": "Failed", "podIP": "10.1.0.1"}},
    ],
)
def test_pods_without_an_address_of_their_own_do_not_count(changes: dict[str, Any]) -> None:
    """Those of the host network, without Node or address, and finished; the export goes with the last other."""
    view, controller = exporting()
    view.local.put(pod("a", **changes))
    controller.run()
    assert exported(view) == set()
    view.local.put(pod("a"))
    controller.run()
    assert exported(view) == {WEB}
    view.local.put(pod("a", **changes))
    controller.run()
    assert exported(view) == set()


def test_labels_of_a_namespace_change_all_of_its_identities() -> None:
    """The exports of the old ones go; without any labels a Pod has the Namespace's alone."""
    view, controller = exporting()
    view.local.put(pod("a"))
    view.local.put(pod("b") | {"metadata": {"name": "b", "namespace": "shop"}})
    controller.run()
    view.local.change(Kind.NAMESPACE, "", "shop", {"metadata": {"labels": {"team": "x"}}})
    controller.run()
    space = "ns:kubernetes.io/metadata.name=shop,team=x"
    assert exported(view) == {f"{space}&pod:app=web", f"{space}&pod:"}


def test_what_was_left_behind_goes_at_start() -> None:
    """Identities without Pods, those of Antrea's old form, and exports that are about nothing."""
    view = member()
    stale = "ns:kubernetes.io/metadata.name=shop&pod:<none>"
    for name, text in ((names.label_export("east", labels.label_hash(stale)), stale), ("east-x", "nothing")):
        spec = {"clusterID": "east", "kind": "LabelIdentity", "labelIdentity": {"normalizedLabel": text}}
        raw = {"kind": "ResourceExport", "metadata": {"name": name, "namespace": AREA}, "spec": spec}
        north_of(view).put(raw)
    north_of(view).put(
        {
            "kind": "ResourceExport",
            "metadata": {"name": "west-x", "namespace": AREA},
            "spec": {"clusterID": "west", "kind": "LabelIdentity", "labelIdentity": {"normalizedLabel": "w"}},
        }
    )
    view.local.put(pod("a"))
    exporting(view)
    assert exported(view) == {WEB, "w"}


def test_an_identity_that_is_too_long_is_told_and_not_exported() -> None:
    """An Event on the Namespace says so; Pods beside it are exported."""
    view, controller = exporting()
    many = {f"label-{i:03}": "v" * 60 for i in range(200)}
    view.local.put(pod("big") | {"metadata": {"name": "big", "namespace": "shop", "labels": many}})
    view.local.put(pod("a"))
    controller.run()
    assert exported(view) == {WEB}
    (event,) = controller.all_events()
    assert (event.subject, event.reason) == ("Namespace shop", "LabelIdentityNotExported")
    assert "at most 8192" in event.message
    assert len(event.message) < 400


def test_a_refusal_of_the_leader_is_an_event() -> None:
    """What the leader wrote on the export is read here, where the Pods are."""
    view, controller = exporting()
    view.local.put(pod("a"))
    controller.run()
    status = {"conditions": [{"type": "Failure", "status": "False", "message": "not you"}]}
    north_of(view).change(Kind.RESOURCE_EXPORT, AREA, f"east-{labels.label_hash(WEB)}", {"status": status})
    controller.run()
    (event,) = controller.all_events()
    assert "not you" in event.message


def test_off_takes_exports_back_and_reads_no_pods() -> None:
    """Without enableStretchedNetworkPolicy the controller needs no right to read Pods."""
    view, _ = exporting()
    view.local.put(pod("a"))
    exporting(view)
    off = LabelExports(settings())
    assert Kind.POD not in off.reads.local
    Controller(view, [off]).settle()
    assert exported(view) == set()


def test_an_import_becomes_a_label_identity() -> None:
    """With labels, number, and who exports it; it follows changes and is repaired."""
    view, controller = importing()
    north_of(view).put(resource_import())
    controller.run()
    (label_identity,) = view.local.list(Kind.LABEL_IDENTITY)
    assert label_identity["metadata"]["name"] == labels.label_hash(WEB)
    assert label_identity["metadata"]["annotations"] == {names.EXPORTERS_ANNOTATION: "east,west"}
    assert label_identity["spec"] == {"label": WEB, "id": 7}
    view.local.change(Kind.LABEL_IDENTITY, "", labels.label_hash(WEB), {"spec": {"id": 8}})
    controller.run()
    assert imported(view) == {WEB: 7}
    north_of(view).remove(Kind.RESOURCE_IMPORT, AREA, labels.label_hash(WEB))
    controller.run()
    assert imported(view) == {}


def test_a_number_never_changes_in_place() -> None:
    """Antrea's controller does not see updates, so the object is made anew."""
    view, controller = importing()
    north_of(view).put(resource_import())
    controller.run()
    view.local.writes.clear()
    north_of(view).put(resource_import(number=9))
    controller.run()
    assert imported(view) == {WEB: 9}
    assert [write.split()[0] for write in view.local.writes] == ["delete", "create"]


def test_of_two_with_one_number_only_the_older_is_imported() -> None:
    """Also when the younger was here first; once the number differs both are."""
    view, controller = importing()
    other = labels.normalised("shop", {}, {"app": "db"})
    young = resource_import(other, creationTimestamp="2030-01-02T00:00:00Z")
    north_of(view).put(young)
    controller.run()
    assert imported(view) == {other: 7}
    north_of(view).put(resource_import(creationTimestamp="2030-01-01T00:00:00Z"))
    controller.run()
    assert imported(view) == {WEB: 7}
    north_of(view).put(resource_import(other, 8, creationTimestamp="2030-01-02T00:00:00Z"))
    controller.run()
    assert imported(view) == {WEB: 7, other: 8}


@pytest.mark.parametrize("number", [0, 0xFFFFFF, -1, "7", 1.5, True, None, [], 2**40])
def test_numbers_that_are_none_are_not_imported(number: object) -> None:
    """0 and 0xffffff mean something else in a packet."""
    view, controller = importing()
    north_of(view).put(resource_import(number=number))
    controller.run()
    assert imported(view) == {}


def test_labels_that_are_none_and_names_that_do_not_follow_are_not_imported() -> None:
    """A leader is trusted with numbers, not with what the labels of an identity are."""
    view, controller = importing()
    wrong = resource_import()
    wrong["metadata"]["name"] = "0123456789abcdef"
    north_of(view).put(wrong)
    north_of(view).put(resource_import("ns:a=b&pod:c=d"))
    controller.run()
    assert imported(view) == {}


@pytest.mark.parametrize("deleted", [True, False])
def test_off_and_leaving_delete_ours_only(deleted: bool) -> None:
    """LabelIdentities that somebody else made stay."""
    view, controller = importing()
    north_of(view).put(resource_import())
    controller.run()
    other = {"kind": "LabelIdentity", "metadata": {"name": "other"}, "spec": {"label": "x", "id": 3}}
    view.local.put(other)
    controller.closed = True
    if deleted:
        Controller(view, [LabelImports(settings())]).settle()
    else:
        view.local.remove(Kind.CLUSTER_SET, HOME, SET)
        view.local.change(Kind.CLUSTER_SET, HOME, SET, {"metadata": {"finalizers": None}})
        Controller(view, [Cleanup(settings())]).settle()
    assert imported(view) == {"x": 3}


# --- decisions on one identity


def export_raw(text: str = WEB, **fields: Any) -> RawObject:
    """Return the ResourceExport of an identity."""
    meta = {"name": names.label_export("east", labels.label_hash(text)), "namespace": AREA}
    spec = {"clusterID": "east", "kind": "LabelIdentity", "labelIdentity": {"normalizedLabel": text}}
    return {"kind": "ResourceExport", "metadata": meta, "spec": spec, **fields}


def limited(limit: int, *exports: str) -> MemoryView:
    """Return a member with a limit of exports, Pods of three applications, and these exports, oldest first."""
    view = member()
    notes = {names.MAX_EXPORTS_ANNOTATION: str(limit)}
    copy = {"metadata": {"name": "east-clusterinfo", "namespace": AREA, "annotations": notes}}
    north_of(view).put({"kind": "ResourceImport", "spec": {"kind": "ClusterInfo", "clusterID": "east"}, **copy})
    view.local.put({"kind": "Namespace", "metadata": {"name": "db"}})
    for app in ("web", "api", "new"):
        view.local.put(pod(app, app))
    view.local.put(pod("other", "x", "db"))
    for number, app in enumerate(exports):
        raw = export_raw(labels.normalised("shop", {}, {"app": app}))
        raw["metadata"]["creationTimestamp"] = f"2026-01-01T00:00:0{number}Z"
        north_of(view).put(raw)
    return view


def test_an_identity_without_a_place_is_an_event_of_its_namespace() -> None:
    """It is decided again each minute; an export that loses its place is deleted."""
    view = limited(2, "web", "api")
    key = labels.normalised("shop", {}, {"app": "new"})
    outcome = LabelExports(ON).desired(key, view, 0.0)
    assert (list(outcome.steps), outcome.again) == ([], 60.0)
    (event,) = outcome.events
    assert (event.subject, event.reason) == ("Namespace shop", "LabelIdentityNotExported")
    start = f"other clusters do not know Pods with these labels, {key}: "
    assert event.message.startswith(f"{start}cluster east may export 2 label identities, and namespace shop has")
    over = limited(1, "web", "api")
    last = labels.normalised("shop", {}, {"app": "api"})
    (ref,) = LabelExports(ON).desired(last, over, 0.0).steps
    assert isinstance(ref, Ref)
    assert ref.name == names.label_export("east", labels.label_hash(last))


def test_an_identity_takes_the_place_of_another_namespaces_youngest() -> None:
    """That one is deleted first."""
    view = limited(2, "web", "api")
    key = labels.normalised("db", {}, {"app": "x"})
    replaced, written = LabelExports(ON).desired(key, view, 0.0).steps
    assert isinstance(replaced, Ref)
    assert isinstance(written, Wanted)
    youngest = names.label_export("east", labels.label_hash(labels.normalised("shop", {}, {"app": "api"})))
    assert (replaced.side, replaced.namespace, replaced.name) == (Side.LEADER, AREA, youngest)
    assert written.ref.name == names.label_export("east", labels.label_hash(key))


def test_the_leaders_refusal_of_an_identity_is_an_event() -> None:
    """Of the write, or in the status of the export; its long text is cut."""
    view = limited(9)
    start = "other clusters do not know Pods with these labels, "

    def messages() -> list[str]:
        return [event.message for event in LabelExports(ON).desired(WEB, view, 0.0).events]

    assert messages() == []
    failure = {"type": "Failure", "status": "False", "message": "no number is free"}
    north_of(view).put(export_raw(status={"conditions": [failure]}))
    assert messages() == [f"{start}{WEB}: no number is free"]
    ref = Ref(
        side=Side.LEADER,
        kind=Kind.RESOURCE_EXPORT,
        namespace=AREA,
        name=names.label_export("east", labels.label_hash(WEB)),
    )
    view.failures[ref] = "forbidden"
    assert messages() == [f"{start}{WEB}: forbidden"]
    north_of(view).put(export_raw(status={"conditions": [failure | {"status": "True"}]}))
    view.failures.clear()
    assert messages() == []
    app = "a" * 63
    view.local.put(pod("long", metadata={"name": "l", "namespace": "shop", "labels": dict.fromkeys("bcde", app)}))
    key = labels.normalised("shop", {}, dict.fromkeys("bcde", app))
    long_ref = Ref(
        side=Side.LEADER,
        kind=Kind.RESOURCE_EXPORT,
        namespace=AREA,
        name=names.label_export("east", labels.label_hash(key)),
    )
    view.failures[long_ref] = "x"
    (event,) = LabelExports(ON).desired(key, view, 0.0).events
    assert event.message == f"{start}{key[:200]}...: x"


def test_an_export_that_is_being_deleted_is_written_when_it_is_gone() -> None:
    """One without Pods, of a Namespace that is gone, or with an old name is deleted."""
    view = limited(9)
    reconciler = LabelExports(ON)
    north_of(view).put(export_raw())
    gone = labels.normalised("shop", {}, {"app": "gone"})
    assert list(reconciler.desired(gone, view, 0.0).steps) == []
    north_of(view).put(export_raw(gone))
    (ref,) = reconciler.desired(gone, view, 0.0).steps
    assert isinstance(ref, Ref)
    assert ref.name == names.label_export("east", labels.label_hash(gone))
    relabelled = labels.normalised("shop", {"team": "x"}, {"app": "web"})
    assert list(reconciler.desired(relabelled, view, 0.0).steps) == []
    nowhere = labels.normalised("nowhere", {}, {"app": "web"})
    assert list(reconciler.desired(nowhere, view, 0.0).steps) == []
    (old,) = reconciler.desired("#east-x", view, 0.0).steps
    assert isinstance(old, Ref)
    assert (old.side, old.name) == (Side.LEADER, "east-x")
    name = names.label_export("east", labels.label_hash(WEB))
    north_of(view).change(Kind.RESOURCE_EXPORT, AREA, name, {"metadata": {"finalizers": ["x"]}})
    north_of(view).remove(Kind.RESOURCE_EXPORT, AREA, name)
    assert list(reconciler.desired(WEB, view, 0.0).steps) == []
    off = LabelExports(settings()).desired(gone, view, 0.0)
    assert [step.name for step in off.steps if isinstance(step, Ref)] == [ref.name]
    view.leader = None
    assert list(reconciler.desired(WEB, view, 0.0).steps) == []


def test_an_imported_identity_is_written_while_it_is_valid() -> None:
    """One that is being deleted is written when it is gone; the exporters are copied."""
    view = member()
    north_of(view).put(resource_import())
    reconciler = LabelImports(ON)
    key = labels.label_hash(WEB)
    (step,) = reconciler.desired(key, view, 0.0).steps
    assert isinstance(step, Wanted)
    metadata = step.body.metadata  # type: ignore[union-attr]
    assert metadata.annotations == {names.EXPORTERS_ANNOTATION: "east,west"}
    assert metadata.labels == {names.MANAGED_BY_LABEL: names.MANAGED_BY}
    for raw in (
        resource_import(number=0),
        resource_import(number=labels.LAST + 1),
        resource_import() | {"spec": {"kind": "Other", "labelIdentity": {"label": WEB, "id": 7}}},
    ):
        north_of(view).put(raw)
        assert list(reconciler.desired(key, view, 0.0).steps) == []
    for number in (labels.FIRST, labels.LAST):
        north_of(view).put(resource_import(number=number))
        assert len(reconciler.desired(key, view, 0.0).steps) == 1
    meta = {"name": key, "finalizers": ["x"]}
    view.local.put({"kind": "LabelIdentity", "metadata": meta, "spec": {"label": WEB, "id": labels.LAST}})
    assert len(reconciler.desired(key, view, 0.0).steps) == 1
    view.local.remove(Kind.LABEL_IDENTITY, "", key)
    assert list(reconciler.desired(key, view, 0.0).steps) == []
    view.leader = None
    assert list(reconciler.desired(key, view, 0.0).steps) == []
