"""A member's ResourceExports: common fields, the quota that namespaces share, conditions of ServiceExports."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from mcagent.controller.contract import names
from mcagent.controller.contract.conditions import time_text
from mcagent.controller.contract.names import ExportKind
from mcagent.controller.contract.services import EndpointPort
from mcagent.controller.machinery.reconciler import Ref, Side
from mcagent.controller.member.exports import (
    export_ref,
    is_export_of,
    max_exports,
    published,
    published_settings,
    resource_export,
)
from mcagent.controller.member.services.backends import cluster_ip_subsets
from mcagent.controller.member.services.export_conditions import export_status, leaders_conditions, withdrawn
from mcagent.controller.member.services.service_export import QUOTA, ServiceExports
from mcagent.controller.settings import EndpointIpType
from mcagent.kube.source import RawObject
from mcagent.model.api.base import Condition
from mcagent.model.api.kubernetes import ApiService, ApiServicePort
from mcagent.model.api.multicluster import ApiServiceExport, ResourceExport, ResourceExportSpec
from mcagent.model.api.patches import patch
from mcagent.model.objects import IpProtocol, Kind, WireGuardInfo
from mcagent.model.parsing.clusters import ADDRESS_CONDITION
from mcagent.model.parsing.field import printable
from tests.worlds.control_view import Controller, MemoryView
from tests.worlds.leader_imports import cluster_info
from tests.worlds.member_world import (
    AREA,
    conditions_of,
    export_of,
    leader,
    member,
    north_of,
    service,
    settings,
    slice_of,
)
from tests.worlds.memory_objects import typed

LEADER = leader()


# --- the quota


def limited(limit: str | None, *exports: str) -> MemoryView:
    """Return the view of a member with a limit of exports that has these ("namespace/name"), oldest first."""
    view = member()
    copy = cluster_info("east", "10.96.0.0/16")
    copy["metadata"]["annotations"] = {} if limit is None else {names.MAX_EXPORTS_ANNOTATION: limit}
    north_of(view).put(copy)
    for number, key in enumerate(exports):
        namespace, _, name = key.partition("/")
        export(view, namespace, name, f"2026-01-01T00:00:{number:02}Z")
    return view


def export(view: MemoryView, namespace: str, name: str, created: str, **spec: Any) -> RawObject:
    """Put the Service export of a Service on the leader."""
    fields = {"clusterID": "east", "kind": "Service", "namespace": namespace, "name": name, **spec}
    meta = {
        "name": f"{fields['clusterID']}-{namespace}-{name}-service",
        "namespace": AREA,
        "creationTimestamp": created,
    }
    return north_of(view).put({"kind": "ResourceExport", "metadata": meta, "spec": fields})


def placed(view: MemoryView, key: str) -> str:
    """Return what becomes of an export: "" (a place), "refused", or the name of the export that it replaces."""
    namespace, _, name = key.partition("/")
    place = QUOTA.place(view, LEADER, f"east-{namespace}-{name}-service", namespace)
    assert not (place.refusal and place.replaced)
    return "refused" if place.refusal else "" if place.replaced is None else place.replaced.spec.name


@pytest.mark.parametrize(
    ("limit", "exports", "key", "outcome"),
    [
        (None, ("a/1", "a/2"), "a/3", ""),
        ("x", ("a/1", "a/2"), "a/3", ""),
        ("3", ("a/1", "a/2"), "a/3", ""),
        ("2", ("a/1", "a/2"), "a/2", ""),
        ("2", ("a/1", "a/2"), "a/3", "refused"),
        ("2", ("a/1", "a/2"), "b/3", "2"),
        ("3", ("a/1", "b/1", "a/2"), "b/2", "refused"),
        ("3", ("a/1", "a/2", "a/3"), "b/1", "3"),
        ("3", ("b/1", "a/1", "a/2", "a/3"), "b/2", "3"),
        ("4", ("a/1", "a/2", "a/3", "b/1"), "b/2", "3"),
        ("4", ("a/1", "b/1", "a/2", "b/2"), "b/3", "refused"),
        ("2", ("a/1", "a/2", "a/3"), "a/1", ""),
        ("2", ("a/1", "a/2", "a/3"), "a/2", ""),
        ("2", ("a/1", "a/2", "a/3"), "a/3", "refused"),
        ("0", ("a/1",), "a/1", "refused"),
        ("0", (), "a/1", "refused"),
    ],
)
def test_namespaces_share_the_exports_that_the_leader_accepts(
    limit: str | None, exports: tuple[str, ...], key: str, outcome: str
) -> None:
    """A namespace with less than its share takes the place of the youngest export of one with more."""
    assert placed(limited(limit, *exports), key) == outcome


def test_exports_of_others_and_those_being_deleted_have_no_place() -> None:
    """Nor have exports of another kind; a deleted export still counts until it is gone, but demands nothing."""
    view = limited("2", "a/1")
    export(view, "a", "x", "2026-01-01T00:00:00Z", clusterID="west")
    export(view, "a", "y", "2026-01-01T00:00:00Z", kind="Endpoints")
    assert placed(view, "a/2") == ""
    full = limited("2", "a/1", "a/2")
    finalizer = {"metadata": {"finalizers": ["x"]}}
    north_of(full).change(Kind.RESOURCE_EXPORT, AREA, "east-a-1-service", finalizer)
    north_of(full).remove(Kind.RESOURCE_EXPORT, AREA, "east-a-1-service")
    assert placed(full, "b/1") == ""


def test_a_refusal_names_the_share_and_what_can_change_it() -> None:
    """The limit, the namespace, and two settings of the leader."""
    view = limited("3", "a/1", "a/2", "b/1")
    assert QUOTA.place(view, LEADER, "east-a-3-service", "a").refusal == (
        "cluster east may export 3 Services, and namespace a has a share of 2, whose oldest stay: "
        "members.maxExports of the leader, or annotation mcagent.io/max-exports of the cluster's ServiceAccount "
        "there, can allow more"
    )


def test_an_export_that_the_leader_refuses_takes_no_place() -> None:
    """Unless it was refused for the quota, which the replaced export still fills."""
    view = limited("2", "a/1", "a/2")
    ref = export_ref(LEADER, "east-b-1-service")
    view.failures[ref] = "its name is invalid"
    place = QUOTA.place(view, LEADER, ref.name, "b")
    why = "it takes no other export's place, because the leader refused it: its name is invalid"
    assert (place.refusal, place.replaced) == (why, None)
    view.failures[ref] = "cluster east may export 2 Services"
    assert placed(view, "b/1") == "2"


@pytest.mark.parametrize(
    ("text", "limit"), [("0", 0), ("17", 17), ("1000000", None), ("-1", None), ("", None), (None, None)]
)
def test_the_limit_is_in_this_clusters_cluster_info(text: str | None, limit: int | None) -> None:
    """Antrea's leader has none."""
    assert max_exports(limited(text), LEADER) == limit
    assert max_exports(member(), LEADER) is None


def test_a_service_without_a_place_has_it_in_its_condition() -> None:
    """And replaces another namespace's youngest, whose two exports are deleted."""
    view = limited("2", "a/1", "a/2")
    for namespace, name in (("a", "3"), ("b", "1")):
        view.local.put(service(name, namespace=namespace))
        view.local.put(export_of(name, namespace))
        view.local.put(slice_of(name, "10.10.1.1", namespace=namespace))
    reconciler = ServiceExports(settings())
    refused = reconciler.desired("a-3", view, 0.0)
    assert refused.again == 60.0
    assert [event.reason for event in refused.events] == ["TooManyExports"]
    assert all(not isinstance(step, Ref) for step in refused.steps)
    view.local.put(service("2", namespace="a"))
    view.local.put(export_of("2", "a"))
    view.local.put(slice_of("2", "10.10.1.2", namespace="a"))
    kept_place = reconciler.desired("a-2", view, 0.0)
    assert (kept_place.again, list(kept_place.events)) == (None, [])
    accepted = reconciler.desired("b-1", view, 0.0)
    assert accepted.again is None
    assert [step.name for step in accepted.steps if isinstance(step, Ref)] == ["east-a-2-service"]


# --- ResourceExports


def present(raw: RawObject) -> ResourceExport:
    """Return a ResourceExport as it is read."""
    obj = typed(raw, Kind.RESOURCE_EXPORT)
    assert isinstance(obj, ResourceExport)
    return obj


def test_an_export_has_the_labels_of_its_source() -> None:
    """That of a cluster's networks has no Service; other finalizers stay, and so does the own one, once."""
    ref = export_ref(LEADER, "x")
    assert (ref.side, ref.kind, ref.namespace, ref.name) == (Side.LEADER, Kind.RESOURCE_EXPORT, AREA, "x")
    spec = patch(ResourceExportSpec, cluster_id="east", kind=ExportKind.SERVICE, namespace="shop", name="web")
    metadata = resource_export(ref, spec, None, {"a": None}).body.metadata  # type: ignore[union-attr]
    assert metadata.labels == {
        "sourceKind": "Service",
        "sourceClusterID": "east",
        "sourceNamespace": "shop",
        "sourceName": "web",
    }
    assert metadata.annotations == {"a": None}
    (finalizer,) = metadata.finalizers
    cluster = patch(ResourceExportSpec, cluster_id="east", kind=ExportKind.CLUSTER_INFO, namespace="x", name="y")
    before = present(
        {
            "kind": "ResourceExport",
            "metadata": {"name": "x", "namespace": AREA, "finalizers": ["other", finalizer]},
        }
    )
    metadata = resource_export(ref, cluster, before).body.metadata  # type: ignore[union-attr]
    assert metadata.labels == {"sourceKind": "ClusterInfo", "sourceClusterID": "east"}
    assert sorted(metadata.finalizers) == sorted(("other", finalizer))


@pytest.mark.parametrize("field", ["cluster_id", "namespace", "name", "kind"])
def test_an_export_is_of_a_service_by_four_fields(field: str) -> None:
    """By its spec, not by its name."""
    fields: dict[str, Any] = {"cluster_id": "east", "namespace": "shop", "name": "web", "kind": ExportKind.SERVICE}

    def is_of(spec: ResourceExportSpec) -> bool:
        return is_export_of(ResourceExport(spec=spec), LEADER, "shop", "web", ExportKind.SERVICE)

    assert is_of(ResourceExportSpec(**fields))
    assert not is_of(ResourceExportSpec(**{**fields, field: "other"}))


def test_a_wireguard_device_is_published_as_far_as_it_is_known() -> None:
    """One device is the default."""
    assert published(None) is None
    full = published(WireGuardInfo(public_key="a", next_public_key="b", port=51820, devices=2))
    assert full is not None
    assert (full.public_key, full.next_public_key, full.port, full.devices) == ("a", "b", 51820, 2)
    bare = published(WireGuardInfo(public_key="a"))
    assert bare is not None
    assert (bare.port, bare.devices) == (None, None)


def test_settings_that_must_be_equal_are_published() -> None:
    """Those that are not configured are not."""
    own = settings(endpoint_ip_type=EndpointIpType.POD_IP, tunnel_type="vxlan", tunnel_port=4789)
    assert published_settings(own) == {
        names.ENDPOINT_IP_TYPE_ANNOTATION: "PodIP",
        names.TUNNEL_TYPE_ANNOTATION: "vxlan",
        names.TUNNEL_PORT_ANNOTATION: "4789",
    }
    assert published_settings(settings()) == {
        names.ENDPOINT_IP_TYPE_ANNOTATION: "ClusterIP",
        names.TUNNEL_TYPE_ANNOTATION: None,
        names.TUNNEL_PORT_ANNOTATION: None,
    }


def test_cluster_ips_are_exported_with_all_ports() -> None:
    """Or the export address in their place."""
    raw = service("web") | {"spec": {"clusterIP": "10.96.7.7", "clusterIPs": ["10.96.7.7", "fd00::7"]}}
    web = typed(raw, Kind.SERVICE)
    assert isinstance(web, ApiService)
    ports: list[EndpointPort] = [("b", "TCP", 81), ("a", "TCP", 80)]
    ordered = (("a", "TCP", 80), ("b", "TCP", 81))
    assert cluster_ip_subsets(web, ports) == {ordered: ("10.96.7.7",)}
    assert cluster_ip_subsets(web, ports, "100.64.0.7") == {ordered: ("100.64.0.7",)}
    assert cluster_ip_subsets(web, []) == {}


# --- the conditions of a ServiceExport


def service_export(*conditions: RawObject) -> ApiServiceExport:
    """Return a ServiceExport of generation 3 with these conditions."""
    raw = export_of("web") | {"status": {"conditions": [*conditions]}}
    raw["metadata"] |= {"generation": 3}
    obj = typed(raw, Kind.SERVICE_EXPORT)
    assert isinstance(obj, ApiServiceExport)
    return obj


def leaders_export(kind: str, *conditions: RawObject) -> ResourceExport:
    """Return a ResourceExport with conditions of the leader."""
    meta = {"name": f"east-shop-web-{kind.lower()}", "namespace": AREA}
    spec = {"kind": kind, "clusterID": "east", "namespace": "shop", "name": "web"}
    return present(
        {"kind": "ResourceExport", "metadata": meta, "spec": spec, "status": {"conditions": [*conditions]}}
    )


def said(kind: str, status: str = "True", reason: str = "", message: str = "") -> RawObject:
    """Return a condition of the leader."""
    return {"type": kind, "status": status, "reason": reason, "message": message}


PORTS = (ApiServicePort(name="http", port=80),)
GOOD = said("Succeeded")


def judged(
    *exports: ResourceExport | None, ports: Iterable[ApiServicePort] = PORTS, **values: Any
) -> list[tuple[str, str, str, str]]:
    """Return the conditions of a ServiceExport with these exports."""
    view = values.pop("view", None) or member()
    conditions = leaders_conditions(service_export(), exports, ports, view, 0.0, **values)
    return [(c.type, c.status, c.reason, c.message) for c in conditions]


NO_CONFLICT = ("Conflict", "False", "NoConflicts", "")


def test_an_export_is_ready_when_the_leader_has_processed_it() -> None:
    """With what the leader leaves out; without an answer only Ready is written."""
    pending = [("Ready", "False", "Pending", "the leader has not processed it yet")]
    assert judged(None, None) == pending
    assert judged(leaders_export("Service"), leaders_export("Endpoints", said("Succeeded", "False"))) == pending
    exported = ("Ready", "True", "Exported", "")
    assert judged(leaders_export("Service", GOOD), None) == [exported, NO_CONFLICT]
    with_notes = (
        leaders_export("Service", said("Succeeded", message="a")),
        leaders_export("Endpoints", said("Succeeded", message="b" * 600)),
    )
    notes = f"leader: a; leader: {printable('b' * 600, 512)}"
    assert judged(*with_notes) == [("Ready", "True", "Exported", notes), NO_CONFLICT]
    assert judged(leaders_export("Service", GOOD), not_ready="none is ready") == [
        ("Ready", "False", "NoUsableEndpoint", "none is ready"),
        NO_CONFLICT,
    ]


def test_a_refused_service_is_in_conflict() -> None:
    """With the leader's words, whatever it says of the endpoints; without an answer of a leader not."""
    failed = leaders_export("Service", said("Failure", "False", "TypeConflict", "it is headless elsewhere"))
    assert judged(failed, leaders_export("Endpoints", GOOD)) == [
        ("Ready", "False", "Failed", "it is headless elsewhere"),
        ("Conflict", "True", "TypeConflict", "it is headless elsewhere"),
    ]


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        ("TypeConflict", "TypeConflict"),
        ("a" * 64, "a" * 64),
        ("a" * 65, "ConvergeFailure"),
        ("", "ConvergeFailure"),
        ("not a reason", "ConvergeFailure"),
        ("Grün", "ConvergeFailure"),
    ],
)
def test_a_reason_that_is_no_word_is_antreas(reason: str, shown: str) -> None:
    """A condition's reason is a word of at most 64 characters."""
    failed = leaders_export("Service", said("Failure", "False", reason))
    assert judged(failed)[1][2] == shown
    conflict = leaders_export("Service", said("Conflict", reason=reason, message="m"), GOOD)
    assert judged(conflict) == [("Ready", "True", "Exported", ""), ("Conflict", "True", shown, "m")]


def test_other_ports_than_the_imported_ones_are_a_port_conflict() -> None:
    """Name, protocol and number count, not the order."""
    view = member()
    ports = [{"name": "http", "port": 80, "protocol": "TCP"}, {"name": "dns", "port": 53, "protocol": "UDP"}]
    imported = {
        "kind": "ResourceImport",
        "metadata": {"name": names.service_import("shop", "web"), "namespace": AREA},
        "spec": {"kind": "ServiceImport", "serviceImport": {"spec": {"ports": ports}}},
    }
    north_of(view).put(imported)
    failed = leaders_export("Service", said("Failure", "False", "TypeConflict", "m"))
    same = (ApiServicePort(name="dns", port=53, protocol=IpProtocol.UDP), *PORTS)
    for own, reason in (
        (same, "TypeConflict"),
        (PORTS, "PortConflict"),
        ((ApiServicePort(name="dns", port=53), *PORTS), "PortConflict"),
        ((ApiServicePort(name="dns", port=54, protocol=IpProtocol.UDP), *PORTS), "PortConflict"),
        ((ApiServicePort(name="x", port=53, protocol=IpProtocol.UDP), *PORTS), "PortConflict"),
    ):
        assert judged(failed, ports=own, view=view)[1][2] == reason
    view.leader = None
    assert judged(failed, view=view)[1][2] == "TypeConflict"


def test_refused_endpoints_are_no_conflict() -> None:
    """They are refused for what they are; with what to do, if that is known. A conflict of the Service stays."""
    failed = leaders_export("Endpoints", said("Failure", "False", "Refused", "outside of its CIDRs"))
    good = leaders_export("Service", GOOD)
    assert judged(good, failed) == [("Ready", "False", "Failed", "outside of its CIDRs"), NO_CONFLICT]
    assert judged(good, failed, outside="create it anew")[0][3] == "outside of its CIDRs; create it anew"
    conflicting = leaders_export("Service", said("Conflict", reason="PortConflict", message="m"), GOOD)
    assert judged(conflicting, failed)[1] == ("Conflict", "True", "PortConflict", "m")


def status_of(step: Any) -> dict[str, Condition | None]:
    """Return the conditions that a write sets or removes, by type."""
    assert (step.ref.kind, step.ref.namespace, step.ref.name) == (Kind.SERVICE_EXPORT, "shop", "web")
    assert step.create is False
    conditions: dict[str, Condition | None] = dict(step.conditions)
    return conditions


def test_a_service_that_is_not_exported_has_no_other_conditions() -> None:
    """Those of the leader and the address are removed; an exported one has its address."""
    ready = Condition(type="Ready", status="True", reason="Exported", last_transition_time="then")
    refused = status_of(
        export_status(service_export(), ("NoService", "w"), "", [ready], 0.0, address="100.64.0.7")
    )
    assert {kind: entry and (entry.status, entry.reason, entry.message) for kind, entry in refused.items()} == {
        "Valid": ("False", "NoService", "w"),
        "Ready": ("False", "Failed", "w"),
        "Conflict": None,
        ADDRESS_CONDITION: None,
    }
    exported = status_of(export_status(service_export(), None, "notes", [ready], 0.0, address="100.64.0.7"))
    assert {kind: entry and (entry.status, entry.reason, entry.message) for kind, entry in exported.items()} == {
        "Valid": ("True", "Valid", "notes"),
        "Ready": ("True", "Exported", ""),
        "Conflict": None,
        ADDRESS_CONDITION: ("True", "Assigned", "100.64.0.7"),
    }
    assert {entry.observed_generation for entry in exported.values() if entry is not None} == {3}
    valid, copied = exported["Valid"], exported["Ready"]
    assert valid is not None
    assert copied is not None
    assert (valid.last_transition_time, copied.last_transition_time) == (time_text(0.0), "then")
    assert status_of(export_status(service_export(), None, "", [ready], 0.0))[ADDRESS_CONDITION] is None


def test_an_export_of_a_cluster_that_left_is_not_ready() -> None:
    """Once; one that was never judged has no condition."""
    judged_export = service_export(said("Ready", reason="Exported"))
    step = withdrawn(judged_export, 0.0)
    conditions = status_of(step)
    ready = conditions["Ready"]
    assert ready is not None
    assert (ready.status, ready.reason, ready.observed_generation) == ("False", "NoClusterSet", 3)
    assert ready.message == "this cluster is in no ClusterSet: the Service is not exported"
    assert (conditions["Conflict"], conditions[ADDRESS_CONDITION]) == (None, None)
    assert withdrawn(service_export(), 0.0) is None
    assert withdrawn(service_export(said("Ready", "False", "NoClusterSet")), 0.0) is None


# --- what is not exported


@pytest.mark.parametrize(
    ("raw", "reason", "message"),
    [
        (None, "NoService", "there is no Service shop/web"),
        (
            service("web", type="ExternalName"),
            "InvalidServiceType",
            "a Service of type ExternalName has no endpoints",
        ),
        (
            service("web", cluster_ip="fd00::7"),
            "ServiceNoClusterIP",
            "the Service has no IPv4 ClusterIP (endpointIPType is ClusterIP)",
        ),
        (service("web", ports=[]), "ServiceWithoutPorts", "a Service without ports has nothing to export"),
    ],
)
def test_a_service_that_cannot_be_exported_has_the_reason(
    raw: RawObject | None, reason: str, message: str
) -> None:
    """In its condition and in an Event."""
    view = member()
    if raw is not None:
        view.local.put(raw)
    view.local.put(export_of("web"))
    controller = Controller(view, [ServiceExports(settings())])
    controller.settle()
    written = view.local.get(Kind.SERVICE_EXPORT, "shop", "web")
    assert conditions_of(written)["Valid"] == ("False", reason)
    (event,) = controller.all_events()
    assert (event.subject, event.reason) == ("ServiceExport shop/web", reason)
    assert event.message == f"not exported: {message}"


def test_an_imported_service_or_a_long_name_is_not_exported() -> None:
    """The name of an import has a prefix; cluster, namespace and name are parts of an export's name."""
    long_name = "a" * 54
    view = member()
    imported = service("web")
    imported["metadata"]["annotations"] = {names.IMPORTED_SERVICE_ANNOTATION: "true"}
    for raw in (imported, export_of("web"), service(long_name), export_of(long_name)):
        view.local.put(raw)
    fits = "a" * 53
    for raw in (service(fits), slice_of(fits, "10.10.1.1"), export_of(fits)):
        view.local.put(raw)
    controller = Controller(view, [ServiceExports(settings())])
    controller.settle()
    messages = {event.subject: event.message for event in controller.all_events()}
    assert messages == {
        "ServiceExport shop/web": "not exported: an imported Service cannot be exported",
        f"ServiceExport shop/{long_name}": (
            "not exported: too long: the name may have 53 characters; cluster ID, namespace and name together "
            "about 241"
        ),
    }
