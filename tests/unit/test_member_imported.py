"""The objects of an imported Service as values: which are this controller's, and what they contain."""

from __future__ import annotations

from typing import Any, cast

import pytest

from mcagent.controller.contract import names
from mcagent.controller.contract.ranges import address_of
from mcagent.controller.contract.services import ImportedEndpoint, ServiceSpec
from mcagent.controller.machinery.reconciler import Ref, Wanted
from mcagent.controller.member.networks.cidr_claims import refused_pod_cidrs
from mcagent.controller.member.services.endpoints import KnownNetworks, exporters_of, own_addresses
from mcagent.controller.member.services.imported import (
    ImportedService,
    endpoints_of,
    is_mirrored,
    is_of_other_type,
    is_our_import,
    removals,
    service_import_of,
    service_object,
    slices,
)
from mcagent.kube.source import RawObject
from mcagent.model.api.kubernetes import ApiEndpoint, ApiService, ApiServicePort
from mcagent.model.api.multicluster import ApiServiceImport, ResourceImport
from mcagent.model.objects import Kind
from mcagent.model.parsing.granted import (
    CLAIMS_ANNOTATION,
    REFUSED,
    REFUSED_ANNOTATION,
    granted_text,
    refused_text,
)
from tests.worlds.control_view import MemoryView
from tests.worlds.leader_imports import WEST, cluster_info
from tests.worlds.member_imports import own_export
from tests.worlds.member_world import AREA, leader, member, north_of, service, settings, slice_of
from tests.worlds.memory_objects import typed

TARGET = ImportedService(namespace="shop", name="web")
HTTP = (("http", "TCP", 80),)
MANAGED = {names.MANAGED_BY_LABEL: names.MANAGED_BY}


def imported(name: str = "antrea-mc-web", **spec: Any) -> RawObject:
    """Return an imported Service."""
    raw = service(name, **spec)
    raw["metadata"]["annotations"] = {names.IMPORTED_SERVICE_ANNOTATION: "true"}
    return raw


def managed_slice(name: str, managed_by: str = names.SLICE_MANAGED_BY) -> RawObject:
    """Return an EndpointSlice of the imported Service."""
    raw = slice_of("antrea-mc-web", "10.97.0.5", name=name)
    raw["metadata"]["labels"][names.SLICE_MANAGED_BY_LABEL] = managed_by
    return raw


def service_import(labels: dict[str, str] | None = None, ips: tuple[str, ...] = ()) -> RawObject:
    """Return a ServiceImport."""
    meta = {"name": "web", "namespace": "shop", "labels": labels or {}}
    return {"kind": "ServiceImport", "metadata": meta, "spec": {"ips": list(ips), "type": "ClusterSetIP"}}


def with_objects(*raws: RawObject) -> MemoryView:
    """Return the view of a member with these objects."""
    view = member()
    for raw in raws:
        view.local.put(raw)
    return view


def removed(*raws: RawObject) -> list[str]:
    """Return kind and name of what is deleted with the import, in order."""
    steps = removals(TARGET, with_objects(*raws))
    return [f"{step.kind} {step.namespace}/{step.name}" for step in steps if isinstance(step, Ref)]


def test_an_import_goes_with_its_own_objects() -> None:
    """The ServiceImport first, as Antrea's is known by its Service; objects of others stay."""
    everything = (service_import(MANAGED), imported(), managed_slice("a"), managed_slice("b"))
    endpoints, own_service = "Endpoints shop/antrea-mc-web", "Service shop/antrea-mc-web"
    own_slices = ["EndpointSlice shop/a", "EndpointSlice shop/b"]
    assert removed(*everything) == ["ServiceImport shop/web", endpoints, own_service, *own_slices]
    assert removed(service_import(), service("antrea-mc-web"), managed_slice("a", "another")) == []
    assert (
        removed(imported(cluster_ip="10.96.7.7"), service_import(ips=("10.96.7.7",)))[0]
        == "ServiceImport shop/web"
    )
    assert removed(imported(cluster_ip="10.96.7.7"), service_import(ips=("10.96.7.8",))) == [
        endpoints,
        own_service,
    ]
    view = with_objects(imported() | {"kind": "Service"}, managed_slice("a"))
    view.local.change(Kind.SERVICE, "shop", "antrea-mc-web", {"metadata": {"finalizers": ["x"]}})
    view.local.remove(Kind.SERVICE, "shop", "antrea-mc-web")
    assert [step.name for step in removals(TARGET, view) if isinstance(step, Ref)] == ["a"]
    assert removed() == []


def as_service(raw: RawObject) -> ApiService:
    """Return a Service as it is read."""
    obj = typed(raw, Kind.SERVICE)
    assert isinstance(obj, ApiService)
    return obj


def as_import(raw: RawObject) -> ApiServiceImport:
    """Return a ServiceImport as it is read."""
    obj = typed(raw, Kind.SERVICE_IMPORT)
    assert isinstance(obj, ApiServiceImport)
    return obj


def test_a_service_import_is_ours_by_its_label_or_the_address_of_its_service() -> None:
    """Antrea's has exactly this address; that of a user's Service does not count."""
    own = as_service(imported(cluster_ip="10.96.7.7"))
    assert is_our_import(as_import(service_import(MANAGED)), None)
    assert is_our_import(as_import(service_import(ips=("10.96.7.7",))), own)
    assert not is_our_import(as_import(service_import(ips=("10.96.7.7", "10.96.7.8"))), own)
    assert not is_our_import(as_import(service_import(ips=("10.96.7.7",))), None)
    assert not is_our_import(as_import(service_import(ips=("10.96.7.7",))), as_service(service("x")))
    assert not is_our_import(as_import(service_import(ips=("",))), as_service(imported(cluster_ip="")))


def test_kubernetes_mirrors_endpoints_of_another_controller() -> None:
    """It marks these slices; slices of another Service do not count."""
    assert is_mirrored(TARGET, with_objects(managed_slice("a"), managed_slice("b", names.SLICE_MIRRORED_BY)))
    assert not is_mirrored(TARGET, with_objects(managed_slice("a")))
    elsewhere = managed_slice("b", names.SLICE_MIRRORED_BY)
    elsewhere["metadata"]["labels"]["kubernetes.io/service-name"] = "antrea-mc-api"
    assert not is_mirrored(TARGET, with_objects(elsewhere))


def definition(**values: Any) -> ServiceSpec:
    """Return the definition of a Service with one port."""
    return ServiceSpec(**{"ports": (ApiServicePort(name="http", port=80),), **values})


@pytest.mark.parametrize(
    ("present", "headless", "is_other"),
    [("None", True, False), ("None", False, True), ("10.96.7.7", True, True), ("10.96.7.7", False, False)],
)
def test_a_headless_service_does_not_become_another(present: str, headless: bool, is_other: bool) -> None:
    """One without an address yet may become either."""
    spec = definition(headless=headless)
    assert is_of_other_type(as_service(imported(cluster_ip=present)), spec) is is_other
    bare = as_service({"kind": "Service", "metadata": {"name": "x", "namespace": "shop"}})
    assert not is_of_other_type(bare, spec)
    assert not is_of_other_type(None, spec)


def body_of(step: Wanted) -> Any:
    """Return the body of a write."""
    return cast("Any", step.body)


@pytest.mark.parametrize(
    ("addresses", "families", "is_other", "written"),
    [
        ((), (), False, ("IPv4",)),
        (("10.96.7.7",), ("IPv4",), False, ("IPv4",)),
        (("10.96.7.7", "fd00::7"), ("IPv4", "IPv6"), False, ("IPv4", "IPv6")),
        (("fd00::7", "10.96.7.7"), ("IPv6", "IPv4"), False, ("IPv6", "IPv4")),
        (("fd00::7",), ("IPv6",), True, None),
    ],
)
def test_an_imported_service_has_an_ipv4_address_also_where_ipv6_is_first(
    addresses: tuple[str, ...], families: tuple[str, ...], is_other: bool, written: tuple[str, ...] | None
) -> None:
    """Its slices are IPv4. Families that an administrator has added stay; one of IPv6 alone is made anew."""
    spec = {"clusterIPs": addresses, "clusterIP": addresses[0] if addresses else "", "ipFamilies": families}
    raw = {"kind": "Service", "metadata": {"name": "x", "namespace": "shop"}, "spec": spec}
    assert is_of_other_type(as_service(raw), definition()) is is_other
    if written is not None:
        assert body_of(service_object(TARGET, definition(), as_service(raw))).spec.ip_families == written
    assert body_of(service_object(TARGET, definition())).spec.ip_families == ("IPv4",)


@pytest.mark.parametrize(
    ("exported", "written"),
    [
        ("PreferClose", "PreferClose"),
        ("PreferSameZone", "PreferClose"),
        ("PreferSameNode", "PreferClose"),
        ("x", None),
    ],
)
def test_near_endpoints_are_preferred_as_all_versions_understand_it(exported: str, written: str | None) -> None:
    """A value that is not known is left out."""
    step = service_object(TARGET, definition(distribution=exported))
    distribution = body_of(step).spec.traffic_distribution
    assert (distribution if isinstance(distribution, str) else None) == written
    assert step.ref == TARGET.service
    assert body_of(step).metadata.labels == MANAGED
    assert body_of(step).metadata.annotations == {names.IMPORTED_SERVICE_ANNOTATION: "true"}


def test_session_affinity_is_of_services_with_an_address() -> None:
    """A headless one has neither."""
    spec = body_of(service_object(TARGET, definition(affinity_seconds=30))).spec
    assert (spec.type, spec.session_affinity) == ("ClusterIP", "ClientIP")
    assert spec.session_affinity_config.client_ip.timeout_seconds == 30
    assert body_of(service_object(TARGET, definition())).spec.session_affinity == "None"
    headless = body_of(service_object(TARGET, definition(affinity_seconds=30, headless=True))).spec
    assert (headless.cluster_ip, headless.session_affinity) == ("None", "None")


def endpoint(address: str, cluster: str = "west", hostname: str = "", ports: Any = HTTP) -> ImportedEndpoint:
    """Return an endpoint."""
    return ImportedEndpoint(address=address, ports=ports, cluster=cluster, hostname=hostname)


def test_endpoints_are_not_mirrored() -> None:
    """Each address once for its ports, with its hostname."""
    other = (("dns", "UDP", 53),)
    endpoints = [
        endpoint("10.97.0.6", "west"),
        endpoint("10.97.0.5", "south", "a"),
        endpoint("10.97.0.6", "south"),
    ]
    step = endpoints_of(TARGET, [*endpoints, endpoint("10.97.0.7", ports=other)])
    assert step.ref == TARGET.endpoints
    assert body_of(step).metadata.labels == {**MANAGED, names.SKIP_MIRROR_LABEL: "true"}
    subsets = {
        tuple((port.name, port.port) for port in subset.ports): [(a.ip, a.hostname) for a in subset.addresses]
        for subset in body_of(step).subsets
    }
    assert subsets == {
        (("http", 80),): [("10.97.0.5", "a"), ("10.97.0.6", "")],
        (("dns", 53),): [("10.97.0.7", "")],
    }


def test_slices_are_of_one_cluster_and_its_ports() -> None:
    """With the number of endpoints behind a ClusterIP, and where own endpoints are."""
    endpoints = [endpoint("10.97.0.6", "west"), endpoint("10.97.0.5", "south", "a"), endpoint("10.97.0.7", "")]
    places = {"10.97.0.5": ApiEndpoint(node_name="n1", zone="z")}
    by_cluster = {
        body.metadata.labels.get(names.MCS_SOURCE_CLUSTER_LABEL, ""): body
        for body in slices(TARGET, endpoints, {"south": 3}, places).values()
    }
    assert set(by_cluster) == {"west", "south", ""}
    south = by_cluster["south"]
    assert south.metadata.labels == {
        names.SERVICE_NAME_LABEL: "antrea-mc-web",
        names.SLICE_MANAGED_BY_LABEL: names.SLICE_MANAGED_BY,
        names.MCS_SERVICE_NAME_LABEL: "web",
        names.MCS_SOURCE_CLUSTER_LABEL: "south",
    }
    assert set(south.metadata.annotations.values()) == {"3"}
    assert set(by_cluster["west"].metadata.annotations.values()) == {None}
    (own,) = south.endpoints
    assert (own.addresses, own.hostname, own.node_name, own.zone) == (("10.97.0.5",), "a", "n1", "z")
    assert own.conditions.ready is True
    (other,) = by_cluster["west"].endpoints
    assert (other.addresses, other.hostname, other.node_name, other.zone) == (("10.97.0.6",), "", "", "")
    assert (south.address_type, [(port.name, port.port) for port in south.ports]) == ("IPv4", [("http", 80)])
    assert all(name.startswith("antrea-mc-web-") for name in slices(TARGET, endpoints, {}, {}))


def test_a_service_import_has_the_addresses_of_its_service() -> None:
    """Keys that are not exported any more are removed; a text that is no list of keys removes none."""
    own = as_service(imported() | {"spec": {"clusterIP": "10.96.7.7", "clusterIPs": ["10.96.7.7", "fd00::7"]}})
    spec = definition(labels=(("a", "1"),), annotations=(("b", "2"),), traffic="t")
    step = service_import_of(TARGET, spec, own, ["west", "south"], None)
    body = body_of(step)
    assert (step.ref, body.spec.ips) == (TARGET.service_import, ("10.96.7.7", "fd00::7"))
    assert [cluster.cluster for cluster in body.status.clusters] == ["west", "south"]
    assert body.status.endpoint_slice_objects == "Present"
    assert body.metadata.labels == {"a": "1", **MANAGED}
    notes = body.metadata.annotations
    assert (notes["b"], notes[names.DERIVED_SERVICE_ANNOTATION]) == ("2", "antrea-mc-web")
    assert notes[names.EXPORTED_KEYS_ANNOTATION] == '{"labels": ["a"], "annotations": ["b"]}'
    for text, removed_labels, removed_notes in (
        (notes[names.EXPORTED_KEYS_ANNOTATION], {"a": None}, {"b": None}),
        ('{"labels": ["a", 7], "annotations": "b"}', {"a": None}, {}),
        ("[]", {}, {}),
        ("{", {}, {}),
    ):
        raw = service_import(MANAGED)
        raw["metadata"]["annotations"] = {names.EXPORTED_KEYS_ANNOTATION: text}
        bare = body_of(service_import_of(TARGET, definition(), own, [], as_import(raw))).metadata
        assert bare.labels == {**removed_labels, **MANAGED}
        assert {key: value for key, value in bare.annotations.items() if key in {"a", "b"}} == removed_notes
        assert bare.annotations[names.EXPORTED_KEYS_ANNOTATION] is None
    assert body_of(service_import_of(TARGET, definition(headless=True), own, [], None)).spec.ips == ()
    assert body_of(service_import_of(TARGET, definition(), None, [], None)).spec.ips == ()
    single_stack = as_service(imported() | {"spec": {"clusterIP": "10.96.7.7"}})
    assert body_of(service_import_of(TARGET, definition(), single_stack, [], None)).spec.ips == ("10.96.7.7",)


# --- whose addresses are


def test_the_networks_of_all_clusters_are_read_once() -> None:
    """Until a ClusterInfo or this cluster's ID changes; own ones are those of the settings and of the leader."""
    view = member()
    all_networks = KnownNetworks(settings(pod_cidrs=("10.244.0.0/16",), allowed_endpoint_cidrs=("10.50.0.0/16",)))
    for raw in (WEST, cluster_info("east", "10.100.0.0/16", "10.101.0.0/16")):
        north_of(view).put(raw)

    def owners(text: str, cluster_id: str = "east") -> tuple[bool, set[str]]:
        own, foreign = all_networks.read(view, leader(cluster_id))
        number = address_of(text)
        assert number is not None
        return bool(own.owners(number)), set(foreign.owners(number))

    for text in ("10.96.0.1", "10.244.0.1", "10.100.0.1", "10.101.0.1"):
        assert owners(text) == (True, set()), text
    assert owners("10.97.0.1") == owners("10.20.0.1") == (False, {"west"})
    assert owners("10.50.0.1") == (False, {""})
    assert owners("10.60.0.1") == (False, set())
    assert all_networks.read(view, leader()) is all_networks.read(view, leader())
    assert owners("10.97.0.1", "west") == (True, set())
    assert owners("10.100.0.1", "west") == (False, {"east"})
    north_of(view).put(cluster_info("south", "10.60.0.0/16"))
    assert owners("10.60.0.1") == (False, {"south"})


def test_own_addresses_are_those_of_the_export_of_this_service() -> None:
    """An export of another Service with this name is none."""
    view = member()
    assert own_addresses(view, leader(), "shop", "web") is None
    north_of(view).put(own_export("10.96.7.7", "10.96.7.8"))
    assert own_addresses(view, leader(), "shop", "web") == frozenset({"10.96.7.7", "10.96.7.8"})
    for fields in ({"clusterID": "west"}, {"namespace": "other"}, {"name": "other"}, {"kind": "Service"}):
        raw = own_export("10.96.7.7")
        raw["spec"] |= fields
        north_of(view).put(raw)
        assert own_addresses(view, leader(), "shop", "web") is None


def resource_import(**annotations: str | None) -> ResourceImport:
    """Return a ResourceImport with these annotations."""
    raw = {"kind": "ResourceImport", "metadata": {"name": "x", "namespace": AREA, "annotations": annotations}}
    obj = typed(raw, Kind.RESOURCE_IMPORT)
    assert isinstance(obj, ResourceImport)
    return obj


def test_exporters_are_known_from_mcagents_leader() -> None:
    """Antrea's has no list; an empty one is of no cluster."""
    assert exporters_of(None) is None
    assert exporters_of(resource_import()) is None
    assert exporters_of(resource_import(**{names.EXPORTERS_ANNOTATION: "west,,east"})) == frozenset(
        {"west", "east"}
    )
    assert exporters_of(resource_import(**{names.EXPORTERS_ANNOTATION: ""})) == frozenset()


def test_refused_pod_cidrs_are_those_of_the_leader_and_of_the_other_cluster() -> None:
    """Of those that this cluster publishes, in its order."""
    own = resource_import(
        **{CLAIMS_ANNOTATION: granted_text(dict.fromkeys(("10.244.0.0/16", "10.9.0.0/16"), REFUSED))}
    )
    refusing = resource_import(
        **{REFUSED_ANNOTATION: refused_text({"east": ["10.246.0.0/16"], "x": ["10.245.0.0/16"]})}
    )
    pod_cidrs = ("10.246.0.0/16", "10.245.0.0/16", "10.244.0.0/16", "x")
    assert refused_pod_cidrs(own, refusing, "east", pod_cidrs) == ["10.246.0.0/16", "10.244.0.0/16"]
    assert refused_pod_cidrs(None, refusing, "east", pod_cidrs) == ["10.246.0.0/16"]
    assert refused_pod_cidrs(own, resource_import(), "east", pod_cidrs) == ["10.244.0.0/16"]
