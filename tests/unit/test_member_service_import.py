"""Imported Services: what is made of a ResourceImport, what is refused, and what a change writes."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcagent.controller.contract.services import ImportedEndpoint
from mcagent.controller.member.published import local_endpoints
from mcagent.controller.member.services.endpoints import networks
from mcagent.controller.member.services.imported import MOST, WHOLE, ImportedService, slices
from mcagent.controller.member.services.service_import import ServiceImports
from mcagent.controller.settings import WriteEndpoints
from mcagent.kube.source import RawObject
from mcagent.model.api.kubernetes import ApiEndpointSlice
from mcagent.model.net import PodPrefix
from mcagent.model.objects import Kind
from tests.worlds.control_view import Controller, MemoryView
from tests.worlds.leader_imports import (
    HTTP,
    WEST,
    cluster_info,
    endpoints,
    endpoints_import,
    service_import,
    world,
)
from tests.worlds.member_imports import own_export
from tests.worlds.member_world import AREA, leader, member, names_of, node, north_of, settings, slice_of

DERIVED_SERVICE = "multicluster.kubernetes.io/derived-service"


def service(view: MemoryView, name: str = "antrea-mc-web") -> RawObject:
    """Return an imported Service."""
    found = view.local.get(Kind.SERVICE, "shop", name)
    assert found is not None
    return found


def test_an_import_becomes_service_slice_and_service_import() -> None:
    """The Service has no selector, the slice the endpoints, the ServiceImport the IP of the Service."""
    view, controller = world(service_import(), endpoints_import("10.97.0.5", "10.97.0.6"))
    found = service(view)
    assert found["metadata"]["annotations"] == {"multicluster.antrea.io/imported-service": "true"}
    assert "selector" not in found["spec"]
    assert found["spec"]["ports"] == [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 80}]
    (made,) = view.local.list(Kind.ENDPOINT_SLICE)
    assert made["metadata"]["labels"]["kubernetes.io/service-name"] == "antrea-mc-web"
    assert [item["addresses"] for item in made["endpoints"]] == [["10.97.0.5"], ["10.97.0.6"]]
    assert made["ports"] == [{"name": "http", "port": 80, "protocol": "TCP"}]
    imported = view.local.get(Kind.SERVICE_IMPORT, "shop", "web")
    assert imported is not None
    assert imported["spec"]["ips"] == [found["spec"]["clusterIP"]]
    assert imported["spec"]["type"] == "ClusterSetIP"
    assert imported["status"] == {"endpointSliceObjects": "Present", "clusters": [{"cluster": "west"}]}
    assert names_of(view.local, Kind.ENDPOINTS) == []
    assert controller.all_events() == []


@pytest.mark.parametrize("type_", ["ClusterSetIP", "Headless"])
def test_a_service_import_names_its_service_and_announces_slices(type_: str) -> None:
    """Gateways read both (KEP-1645, GEP-1748). Slices are announced even while no endpoint is ready."""
    view, controller = world(service_import(type=type_))
    controller.settle()
    annotated_import = made(view, Kind.SERVICE_IMPORT)
    named = annotated_import["metadata"]["annotations"][DERIVED_SERVICE]
    assert view.local.get(Kind.SERVICE, "shop", named) is not None
    assert names_of(view.local, Kind.ENDPOINT_SLICE) == []
    assert annotated_import["status"]["endpointSliceObjects"] == "Present"


def test_a_second_look_writes_nothing() -> None:
    """What is as it should be is not written."""
    view, controller = world(service_import(), endpoints_import("10.97.0.5"))
    view.local.writes.clear()
    controller.settle()
    assert view.local.writes == []


def test_everything_goes_with_the_import() -> None:
    """Without the ResourceImport Service, slices and ServiceImport go by the event alone."""
    view, controller = world(service_import(), endpoints_import("10.97.0.5"))
    north_of(view).remove(Kind.RESOURCE_IMPORT, AREA, "shop-web-endpoints")
    controller.run()
    assert endpoints(view) == {}
    assert names_of(view.local, Kind.SERVICE) == ["antrea-mc-web"]
    north_of(view).remove(Kind.RESOURCE_IMPORT, AREA, "shop-web-service")
    controller.run()
    assert [names_of(view.local, kind) for kind in (Kind.SERVICE, Kind.SERVICE_IMPORT, Kind.ENDPOINT_SLICE)] == [
        [],
        [],
        [],
    ]


def test_what_was_imported_while_the_controller_was_down_goes_and_others_stay() -> None:
    """A restart finds what the leader has no more; Services and ServiceImports of others are not touched."""
    view, _ = world(service_import(), endpoints_import("10.97.0.5"))
    for name in ("shop-web-service", "shop-web-endpoints"):
        north_of(view).remove(Kind.RESOURCE_IMPORT, AREA, name)
    view.local.put({"kind": "Service", "metadata": {"name": "antrea-mc-own", "namespace": "shop"}, "spec": {}})
    view.local.put({"kind": "ServiceImport", "metadata": {"name": "other", "namespace": "shop"}, "spec": {}})
    view.local.put(slice_of("antrea-mc-own", "10.10.1.1"))
    Controller(view, [ServiceImports(settings())]).settle()
    assert names_of(view.local, Kind.SERVICE) == ["antrea-mc-own"]
    assert names_of(view.local, Kind.SERVICE_IMPORT) == ["other"]
    assert names_of(view.local, Kind.ENDPOINT_SLICE) == ["antrea-mc-own-abcde"]


def test_endpoints_follow_while_the_service_cannot_be_changed() -> None:
    """A policy of others that refuses the Service's update leaves no connection at an endpoint that is gone."""
    view, controller = world(service_import(), endpoints_import("10.97.0.5"))
    view.local.refuse = lambda kind, _old, _new: "it has no label team" if kind is Kind.SERVICE else ""
    north_of(view).put(service_import(sessionAffinity="ClientIP"))
    north_of(view).put(endpoints_import("10.97.0.6"))
    controller.run()
    assert service(view)["spec"]["sessionAffinity"] == "None"
    assert endpoints(view) == {"10.97.0.6": [80]}
    view.local.refuse = lambda _kind, _old, _new: ""
    controller.settle()
    assert service(view)["spec"]["sessionAffinity"] == "ClientIP"


def test_endpoints_follow_while_another_slice_is_refused() -> None:
    """A quota that leaves no room for slices of more clusters leaves no connection at endpoints that are gone."""
    clusters = cluster_info("north2", "10.99.0.0/16"), cluster_info("south", "10.98.0.0/16")
    view, controller = world(*clusters, service_import(), endpoints_import("10.97.0.5"))
    view.local.refuse = lambda kind, old, _new: "quota" if kind is Kind.ENDPOINT_SLICE and old is None else ""
    north_of(view).put(endpoints_import("10.97.0.6", "10.98.0.5", "10.99.0.5"))
    north_of(view).put(service_import(sessionAffinity="ClientIP"))
    controller.run()
    controller.settle()  # after a back-off
    assert endpoints(view) == {"10.97.0.6": [80]}
    assert service(view)["spec"]["sessionAffinity"] == "ClientIP"
    north_of(view).put(endpoints_import("10.98.0.5"))
    view.local.refuse = lambda kind, old, _new: (
        "quota" if kind is Kind.ENDPOINT_SLICE and old is None and endpoints(view) else ""
    )
    controller.settle()
    controller.settle()
    assert endpoints(view) == {"10.98.0.5": [80]}


def test_ports_of_one_name_are_in_slices_of_their_own() -> None:
    """API servers refuse a slice with two of them: Pods of the host network may have two at the Node's address."""
    named = [{"name": "http", "port": 8080}, {"name": "admin", "port": 9090}, {"name": "http", "port": 8081}]
    view, _ = world(service_import(), endpoints_import("10.97.0.5", "10.97.0.6", ports=named))
    made_slices = view.local.list(Kind.ENDPOINT_SLICE)
    ports = sorted([(port["name"], port["port"]) for port in raw["ports"]] for raw in made_slices)
    assert ports == [[("admin", 9090), ("http", 8080)], [("http", 8081)]]
    assert [len(raw["endpoints"]) for raw in made_slices] == [2, 2]


def test_a_cluster_id_that_no_label_can_have_is_in_none() -> None:
    """API servers refuse the slice otherwise, with the endpoints of all clusters after it."""
    long = "w" * 64
    view, _ = world(cluster_info(long, "10.98.0.0/16"), service_import(), endpoints_import("10.98.0.5"))
    (raw,) = view.local.list(Kind.ENDPOINT_SLICE)
    assert "multicluster.kubernetes.io/source-cluster" not in raw["metadata"]["labels"]
    assert endpoints(view) == {"10.98.0.5": [80]}


def test_a_service_of_that_name_is_never_touched() -> None:
    """Without the annotation a Service is somebody's: an Event says so, and it is taken up when it has gone."""
    view = member()
    view.local.put(
        {"kind": "Service", "metadata": {"name": "antrea-mc-web", "namespace": "shop"}, "spec": {"x": 1}}
    )
    before = service(view)
    for raw in (WEST, service_import(), endpoints_import("10.97.0.5")):
        north_of(view).put(raw)
    controller = Controller(view, [ServiceImports(settings())])
    controller.settle()
    assert service(view) == before
    assert view.local.writes == []
    assert [event.reason for event in controller.all_events()] == ["NotImported"]
    view.local.remove(Kind.SERVICE, "shop", "antrea-mc-web")
    controller.run()
    assert endpoints(view) == {"10.97.0.5": [80]}
    assert controller.all_events() == []


def test_a_service_import_of_somebody_else_is_never_touched() -> None:
    """The Service is made; the ServiceImport that is not ours stays as it is, and that is told."""
    view = member()
    view.local.put(
        {"kind": "ServiceImport", "metadata": {"name": "web", "namespace": "shop"}, "spec": {"ips": []}}
    )
    north_of(view).put(service_import())
    controller = Controller(view, [ServiceImports(settings())])
    controller.settle()
    found = view.local.get(Kind.SERVICE_IMPORT, "shop", "web")
    assert found is not None
    assert found["spec"] == {"ips": []}
    assert names_of(view.local, Kind.SERVICE) == ["antrea-mc-web"]
    assert [event.reason for event in controller.all_events()] == ["NotImported"]


def test_what_antrea_made_is_taken_over() -> None:
    """Antrea's ServiceImport is known by the IP of its annotated Service; its Endpoints, mirrored, are deleted."""
    view = member()
    annotations = {"multicluster.antrea.io/imported-service": "true"}
    spec = {"clusterIP": "10.96.3.3", "ports": [{"port": 80}]}
    view.local.put(
        {
            "kind": "Service",
            "metadata": {"name": "antrea-mc-web", "namespace": "shop", "annotations": annotations},
            "spec": spec,
        }
    )
    view.local.put(
        {"kind": "ServiceImport", "metadata": {"name": "web", "namespace": "shop"}, "spec": {"ips": ["10.96.3.3"]}}
    )
    view.local.put({"kind": "Endpoints", "metadata": {"name": "antrea-mc-web", "namespace": "shop"}})
    mirrored = slice_of("antrea-mc-web", "10.97.0.9")
    mirrored["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"] = (
        "endpointslicemirroring-controller.k8s.io"
    )
    view.local.put(mirrored)
    for raw in (WEST, service_import(), endpoints_import("10.97.0.5")):
        north_of(view).put(raw)
    Controller(view, [ServiceImports(settings())]).settle()
    assert service(view)["spec"]["clusterIP"] == "10.96.3.3"
    found = view.local.get(Kind.SERVICE_IMPORT, "shop", "web")
    assert found is not None
    assert found["metadata"]["labels"] == {"app.kubernetes.io/managed-by": "mcagent"}
    assert names_of(view.local, Kind.ENDPOINTS) == []


def test_a_missing_namespace_is_told_once_and_taken_up_when_it_comes() -> None:
    """Services of a namespace that is not here wait for it: namespaces are never made."""
    view, controller = world(
        service_import(namespace="later"),
        service_import("db", namespace="later"),
        endpoints_import("10.97.0.5", namespace="later"),
    )
    assert len(set(controller.all_events())) == 1
    assert controller.all_events()[0].reason == "NamespaceMissing"
    assert view.local.writes == []
    view.local.put({"kind": "Namespace", "metadata": {"name": "later"}})
    controller.run()
    assert names_of(view.local, Kind.SERVICE, "later") == ["antrea-mc-db", "antrea-mc-web"]
    assert controller.all_events() == []


def test_an_import_for_other_clusters_is_not_for_this_one() -> None:
    """`spec.clusterID` names the clusters that are to import; a change of it adds and removes."""
    view, controller = world(service_import(clusters=["west"]), endpoints_import("10.97.0.5"))
    assert names_of(view.local, Kind.SERVICE) == []
    north_of(view).put(service_import(clusters=["west", "east"]))
    controller.run()
    assert names_of(view.local, Kind.SERVICE) == ["antrea-mc-web"]
    north_of(view).put(service_import(clusters=["west"]))
    controller.run()
    assert names_of(view.local, Kind.SERVICE) == []
    assert endpoints(view) == {}


def test_session_affinity_is_carried_and_taken_back() -> None:
    """ClientIP affinity with its time reaches the Service and the ServiceImport, and leaves both."""
    config = {"clientIP": {"timeoutSeconds": 600}}
    view, controller = world(service_import(sessionAffinity="ClientIP", sessionAffinityConfig=config))
    for kind, name in ((Kind.SERVICE, "antrea-mc-web"), (Kind.SERVICE_IMPORT, "web")):
        found = view.local.get(kind, "shop", name)
        assert found is not None
        assert (found["spec"]["sessionAffinity"], found["spec"]["sessionAffinityConfig"]) == ("ClientIP", config)
    north_of(view).put(service_import())
    controller.run()
    assert service(view)["spec"]["sessionAffinity"] == "None"
    assert "sessionAffinityConfig" not in service(view)["spec"]


@pytest.mark.parametrize(
    "ports",
    [
        [],
        [{"name": "http", "port": 0, "protocol": "TCP"}],
        [{"name": "http", "port": 80, "protocol": "ICMP"}],
        [{"name": "HTTP!", "port": 80}],
        [{"name": "a", "port": 80}, {"name": "b", "port": 80}],
        [{"name": "a", "port": 80}, {"name": "a", "port": 81}],
        "ports",
        [{"port": "80"}],
    ],
)
def test_an_import_that_makes_no_sense_is_told_and_changes_nothing(ports: Any) -> None:
    """A ResourceImport whose ports are none leaves what was made of the last good one."""
    view, controller = world(service_import(), endpoints_import("10.97.0.5"))
    before = view.local.objects()
    raw = service_import()
    raw["spec"]["serviceImport"]["spec"]["ports"] = ports
    north_of(view).put(raw)
    controller.run()
    assert view.local.objects() == before
    assert [event.reason for event in controller.all_events()] == ["InvalidImport"]


def test_an_import_whose_name_is_anothers_is_passed_over() -> None:
    """The name of a ResourceImport must follow from its spec, else two could stand for one Service."""
    raw = service_import()
    raw["metadata"]["name"] = "anything"
    view, _ = world(raw)
    assert names_of(view.local, Kind.SERVICE) == []


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("127.0.0.1", "in no CIDR"),
        ("169.254.169.254", "in no CIDR"),
        ("224.0.0.1", "in no CIDR"),
        ("0.0.0.0", "in no CIDR"),
        ("fd00::1", "in no CIDR"),
        ("not an address", "in no CIDR"),
        ("10.96.0.1", "of this cluster"),  # Service CIDR
        ("10.10.3.4", "of this cluster"),  # Pod CIDR
        ("10.97.255.1", "of this cluster"),  # a Node, in another's CIDR
        ("10.97.255.2", "of this cluster"),  # the API server
        ("192.0.2.1", "API server of the leader"),
        ("192.0.2.2", "in no CIDR"),
    ],
)
def test_endpoints_that_nobody_may_export_are_refused(address: str, why: str) -> None:
    """Addresses of this cluster, special ones, and what no cluster announces never become endpoints."""
    view = member()
    view.leader = leader(addresses=("192.0.2.1",))
    view.local.put(node("n1", "10.97.255.1"))
    api = slice_of("kubernetes", "10.97.255.2", name="kubernetes", namespace="default")
    view.local.put(api)
    for raw in (WEST, service_import(), endpoints_import("10.97.0.5", address)):
        north_of(view).put(raw)
    controller = Controller(view, [ServiceImports(settings(pod_cidrs=("10.10.0.0/16",)))])
    controller.settle()
    assert endpoints(view) == {"10.97.0.5": [80]}
    (event,) = controller.all_events()
    assert event.reason == "EndpointsRefused"
    assert why in event.message
    assert address in event.message


def test_endpoints_that_this_cluster_exports_are_taken() -> None:
    """Of its own addresses a cluster takes those that it exports for that Service, and no other."""
    view, controller = world(service_import(), endpoints_import("10.96.7.7", "10.97.0.5"))
    assert endpoints(view) == {"10.97.0.5": [80]}
    north_of(view).put(own_export("10.96.7.7"))
    controller.run()
    assert endpoints(view) == {"10.96.7.7": [80], "10.97.0.5": [80]}
    found = view.local.get(Kind.SERVICE_IMPORT, "shop", "web")
    assert found is not None
    assert found["status"]["clusters"] == [{"cluster": "east"}, {"cluster": "west"}]
    north_of(view).put(own_export("10.96.8.8", name="other"))
    north_of(view).put(own_export())
    controller.run()
    assert endpoints(view) == {"10.97.0.5": [80]}
    assert controller.all_events() == []  # it was right a moment ago


def test_in_the_exporting_cluster_its_pods_stand_for_its_cluster_ip() -> None:
    """The own ClusterIP is no endpoint here, for kube-proxy translates once; the Pods behind it are."""
    view, controller = world(service_import(), endpoints_import("10.96.7.7", "10.97.0.5"))
    north_of(view).put(own_export("10.96.7.7"))
    exported = {"clusterIP": "10.96.7.7", "ports": [{"name": "http", "port": 80, "targetPort": 8080}]}
    view.local.put({"kind": "Service", "metadata": {"name": "web", "namespace": "shop"}, "spec": exported})
    view.local.put(slice_of("web", "10.10.1.1", "10.10.1.2"))
    controller.run()
    pods = endpoints(view)
    assert pods.pop("10.97.0.5") == [80]
    assert sorted(pods) == ["10.10.1.1", "10.10.1.2"]
    view.local.writes.clear()
    view.local.put(slice_of("web", "10.10.1.2", "10.10.1.3"))
    controller.run()
    assert sorted(endpoints(view)) == ["10.10.1.2", "10.10.1.3", "10.97.0.5"]
    assert len([write for write in view.local.writes if write.startswith(("create", "patch"))]) <= 2


def test_endpoints_come_with_the_cluster_information() -> None:
    """Endpoints that are there before their cluster's CIDRs are taken when these come, and dropped with them."""
    north = cluster_info("north", "10.98.0.0/20")
    view, controller = world(service_import(), endpoints_import("10.98.0.5"))
    assert endpoints(view) == {}
    north_of(view).put(north)
    controller.run()
    assert endpoints(view) == {"10.98.0.5": [80]}
    north_of(view).remove(Kind.RESOURCE_IMPORT, AREA, "north-clusterinfo")
    controller.run()
    assert endpoints(view) == {}


@pytest.mark.parametrize(
    "raw",
    [
        node("n1", "10.97.0.5"),
        slice_of("kubernetes", "10.97.0.5", name="kubernetes", namespace="default"),
    ],
)
def test_an_endpoint_that_becomes_a_node_or_an_api_server_is_refused(raw: RawObject) -> None:
    """At once, not with the next resync, and only until the Node or the API server is gone."""
    view, controller = world(service_import(), endpoints_import("10.97.0.5", "10.97.0.6"))
    assert sorted(endpoints(view)) == ["10.97.0.5", "10.97.0.6"]
    view.local.put(raw)
    controller.run()
    assert sorted(endpoints(view)) == ["10.97.0.6"]
    view.local.remove(Kind(raw["kind"]), raw["metadata"].get("namespace", ""), raw["metadata"]["name"])
    controller.run()
    assert sorted(endpoints(view)) == ["10.97.0.5", "10.97.0.6"]


def test_settings_can_allow_more_endpoints() -> None:
    """Where an underlay joins the Pods of all clusters there are no gateways, and so no announced CIDRs."""
    view, _ = world(
        service_import(),
        endpoints_import("10.30.0.5"),
        own_settings=settings(allowed_endpoint_cidrs=("10.30.0.0/16",)),
    )
    assert endpoints(view) == {"10.30.0.5": [80]}


def test_the_leaders_word_on_the_exporting_clusters_is_used() -> None:
    """With statuses on the ResourceImport these name the clusters, whatever the addresses say."""
    raw = endpoints_import("10.97.0.5")
    raw["status"] = {
        "clusterStatuses": [
            {"clusterID": cluster, "conditions": [{"type": "Succeeded", "status": status}]}
            for cluster, status in (("west", "True"), ("south", "True"), ("bad", "False"))
        ]
    }
    view, _ = world(service_import(), raw)
    found = view.local.get(Kind.SERVICE_IMPORT, "shop", "web")
    assert found is not None
    assert found["status"]["clusters"] == [{"cluster": "south"}, {"cluster": "west"}]


def test_endpoints_objects_are_written_where_they_are_asked_for() -> None:
    """With `always` there are Endpoints too, which Kubernetes is told not to mirror; they go with the Service."""
    wanted = settings(write_endpoints=WriteEndpoints.ALWAYS)
    view, controller = world(service_import(), endpoints_import("10.97.0.5"), own_settings=wanted)
    found = view.local.get(Kind.ENDPOINTS, "shop", "antrea-mc-web")
    assert found is not None
    assert found["subsets"] == [{"addresses": [{"ip": "10.97.0.5"}], "ports": list(HTTP)}]
    assert found["metadata"]["labels"]["endpointslice.kubernetes.io/skip-mirror"] == "true"
    north_of(view).remove(Kind.RESOURCE_IMPORT, AREA, "shop-web-service")
    controller.run()
    assert names_of(view.local, Kind.ENDPOINTS) == []


def test_a_change_of_an_endpoint_writes_one_slice_of_one_service() -> None:
    """Among eight Services of 300 endpoints, one endpoint more is one write (two where a slice is cut)."""
    addresses = [f"10.97.{n // 250}.{n % 250 + 1}" for n in range(300)]
    imports = [
        raw
        for number in range(8)
        for raw in (service_import(f"s{number}"), endpoints_import(*addresses, name=f"s{number}"))
    ]
    view, controller = world(*imports)
    for changed in ([*addresses, "10.97.9.9"], addresses, addresses[1:]):
        view.local.writes.clear()
        north_of(view).put(endpoints_import(*changed, name="s7"))
        controller.run()
        assert 1 <= len(view.local.writes) <= 2
        assert all("antrea-mc-s7-" in write for write in view.local.writes)


def test_new_slices_come_before_old_ones_go() -> None:
    """When ports change, the endpoints are never missing: creation first, deletion last."""
    view, controller = world(service_import(), endpoints_import("10.97.0.5"))
    view.local.writes.clear()
    other = [{"name": "http", "port": 8080, "protocol": "TCP"}]
    north_of(view).put(endpoints_import("10.97.0.5", ports=other))
    controller.run()
    assert [write.split()[0] for write in view.local.writes] == ["create", "delete"]


def made(view: MemoryView, kind: Kind, name: str = "web") -> RawObject:
    """Return an object that must be there."""
    found = view.local.get(kind, "shop", name)
    assert found is not None
    return found


def sources(view: MemoryView) -> dict[str, list[tuple[list[str], list[str]]]]:
    """Return by source cluster the addresses and port names of our slices; each is one of ServiceImport web."""
    found: dict[str, list[tuple[list[str], list[str]]]] = {}
    for raw in view.local.list(Kind.ENDPOINT_SLICE, "shop"):
        labels = raw["metadata"]["labels"]
        if labels["kubernetes.io/service-name"] == "antrea-mc-web":
            assert labels["multicluster.kubernetes.io/service-name"] == "web"
            addresses = [item["addresses"][0] for item in raw["endpoints"]]
            cluster = labels.get("multicluster.kubernetes.io/source-cluster", "")
            found.setdefault(cluster, []).append((addresses, [port["name"] for port in raw["ports"]]))
    return found


NORTH = cluster_info("north", "10.98.0.0/16")


@pytest.mark.parametrize(
    ("said", "owners"),
    [
        ("west,north", {"west": "10.97.0.5", "north": "10.98.0.5"}),
        (None, {"west": "10.97.0.5", "north": "10.98.0.5"}),  # by where they lie: Antrea's leader says nothing
        ("west", {"west": "10.97.0.5", "north": "10.98.0.5"}),
        ("north,west", {"west": "10.97.0.5", "north": "10.98.0.5"}),  # it cannot be
        ("West!,north", {"west": "10.97.0.5", "north": "10.98.0.5"}),
    ],
)
def test_each_clusters_endpoints_are_slices_of_its_own(said: str | None, owners: dict[str, str]) -> None:
    """Slices say whose they are, and have the ports that this cluster serves."""
    raw = endpoints_import("10.97.0.5", **({"subset_clusters": said} if said else {}))
    admin = [*HTTP, {"name": "admin", "port": 90, "protocol": "TCP"}]
    raw["spec"]["endpoints"]["subsets"].append({"addresses": [{"ip": "10.98.0.5"}], "ports": admin})
    view, controller = world(NORTH, service_import(ports=admin), raw)
    assert sources(view) == {
        "west": [([owners["west"]], ["http"])],
        "north": [([owners["north"]], ["admin", "http"])],
    }
    assert made(view, Kind.SERVICE_IMPORT)["status"]["clusters"] == [{"cluster": "north"}, {"cluster": "west"}]
    view.local.writes.clear()
    raw["spec"]["endpoints"]["subsets"][1]["addresses"].append({"ip": "10.98.0.6"})
    north_of(view).put(raw)
    controller.run()
    assert len(view.local.writes) == 1


def test_what_lies_in_nobodys_network_is_whose_the_leader_says() -> None:
    """Where settings allow endpoints that no cluster announces, the leader's word is all there is."""
    view, controller = world(
        service_import(),
        endpoints_import("10.30.0.5", subset_clusters="west"),
        own_settings=settings(allowed_endpoint_cidrs=("10.30.0.0/16",)),
    )
    assert sources(view) == {"west": [(["10.30.0.5"], ["http"])]}
    north_of(view).put(endpoints_import("10.30.0.5"))
    controller.run()
    assert sources(view) == {"": [(["10.30.0.5"], ["http"])]}


def test_in_the_exporting_cluster_its_pods_are_its_slices() -> None:
    """They stand for its ClusterIP, with the ports that this serves in the ClusterSet only."""
    view, controller = world(service_import(), endpoints_import("10.96.7.7", subset_clusters="east"))
    north_of(view).put(own_export("10.96.7.7"))
    ports = [{"name": "http", "port": 80}, {"name": "lost", "port": 81}]
    exported = {"clusterIP": "10.96.7.7", "ports": ports}
    view.local.put({"kind": "Service", "metadata": {"name": "web", "namespace": "shop"}, "spec": exported})
    view.local.put(slice_of("web", "10.10.1.1", ports=(("http", 8080), ("lost", 8081))))
    controller.run()
    assert sources(view) == {"east": [(["10.10.1.1"], ["http"])]}


def test_the_service_import_shows_what_the_service_is() -> None:
    """One IP of each family; the traffic policy is shown, and not put on the Service: it would drop traffic."""
    fields: dict[str, Any] = {
        "internalTrafficPolicy": "Local",
        "trafficDistribution": "PreferSameZone",
        "ipFamilies": ["IPv4"],
    }
    view, controller = world(service_import(**fields), endpoints_import("10.97.0.5"))
    controller.settle()
    spec = made(view, Kind.SERVICE_IMPORT)["spec"]
    assert {key: spec[key] for key in fields} == fields
    found = service(view)["spec"]
    assert spec["ips"] == [found["clusterIP"]]
    assert found["trafficDistribution"] == "PreferClose"
    assert found["internalTrafficPolicy"] == "Cluster"  # the API server's default
    both = {"clusterIPs": ["fd00::7", found["clusterIP"]]}
    view.local.change(Kind.SERVICE, "shop", "antrea-mc-web", {"spec": both})
    north_of(view).put(service_import())
    controller.run()
    spec = made(view, Kind.SERVICE_IMPORT)["spec"]
    assert (spec["ips"], spec["ipFamilies"]) == (both["clusterIPs"], ["IPv6", "IPv4"])
    assert not {"internalTrafficPolicy", "trafficDistribution"} & spec.keys()
    assert "trafficDistribution" not in service(view)["spec"]


def test_an_imported_service_with_an_ipv6_address_alone_is_made_anew() -> None:
    """Earlier versions made such Services where the first family of the cluster is IPv6; nothing answered."""
    view, controller = world(service_import(), endpoints_import("10.97.0.5"))
    former = {"clusterIP": "fd00::7", "clusterIPs": ["fd00::7"], "ipFamilies": ["IPv6"]}
    view.local.change(Kind.SERVICE, "shop", "antrea-mc-web", {"spec": former})
    controller.run()
    controller.settle()
    spec = service(view)["spec"]
    assert spec["ipFamilies"] == ["IPv4"]
    assert ":" not in spec["clusterIP"]
    assert made(view, Kind.SERVICE_IMPORT)["spec"]["ips"] == [spec["clusterIP"]]


def test_exported_labels_and_annotations_are_on_the_service_import() -> None:
    """They come and go with the export; what was added here stays."""
    raw = service_import()
    raw["metadata"]["annotations"] = {
        "mcagent.io/exported-labels": '{"team": "pay", "mcagent.io/evil": "1"}',
        "mcagent.io/exported-annotations": '{"example.org/owner": "pay"}',
    }
    view, controller = world(raw, endpoints_import("10.97.0.5"))
    mine = {"metadata": {"labels": {"mine": "1"}, "annotations": {"mine": "1"}}}
    view.local.change(Kind.SERVICE_IMPORT, "shop", "web", mine)
    controller.settle()
    meta = made(view, Kind.SERVICE_IMPORT)["metadata"]
    assert meta["labels"] == {"app.kubernetes.io/managed-by": "mcagent", "team": "pay", "mine": "1"}
    assert meta["annotations"].items() >= {"example.org/owner": "pay", "mine": "1"}.items()
    north_of(view).put(service_import())
    controller.run()
    meta = made(view, Kind.SERVICE_IMPORT)["metadata"]
    assert meta["labels"] == {"app.kubernetes.io/managed-by": "mcagent", "mine": "1"}
    assert meta["annotations"] == {DERIVED_SERVICE: "antrea-mc-web", "mine": "1"}


def test_what_exporters_say_of_traffic_is_on_the_service_import_under_another_name() -> None:
    """So that who imports can say otherwise; what makes no sense is passed over."""
    raw = service_import()
    raw["metadata"]["annotations"] = {"mcagent.io/traffic": "local>*"}
    view, controller = world(raw, endpoints_import("10.97.0.5"))
    own = {"metadata": {"annotations": {"mcagent.io/traffic": "any"}}}
    view.local.change(Kind.SERVICE_IMPORT, "shop", "web", own)
    controller.settle()
    expected = {DERIVED_SERVICE: "antrea-mc-web", "mcagent.io/traffic": "any"}
    exported = {"mcagent.io/exported-traffic": "local > *"}
    assert made(view, Kind.SERVICE_IMPORT)["metadata"]["annotations"] == expected | exported
    raw["metadata"]["annotations"] = {"mcagent.io/traffic": "!"}
    north_of(view).put(raw)
    controller.run()
    assert made(view, Kind.SERVICE_IMPORT)["metadata"]["annotations"] == expected


def ready_told(view: MemoryView) -> dict[str, str | None]:
    """Return by source cluster how many ready endpoints its slice says it has."""
    return {
        raw["metadata"]["labels"]["multicluster.kubernetes.io/source-cluster"]: raw["metadata"]
        .get("annotations", {})
        .get("mcagent.io/ready-endpoints")
        for raw in view.local.list(Kind.ENDPOINT_SLICE, "shop")
        if raw["metadata"]["labels"]["kubernetes.io/service-name"] == "antrea-mc-web"
    }


def test_slices_of_other_clusters_say_how_many_endpoints_are_behind_them() -> None:
    """Whatever else is said is passed over, and a change of the number alone changes one slice."""
    said = {"subset_clusters": "west,north", "ready_endpoints": "west=12,north=x,east=7,,=3,west"}
    raw = endpoints_import("10.97.0.5", **said)
    raw["spec"]["endpoints"]["subsets"].append({"addresses": [{"ip": "10.98.0.5"}], "ports": list(HTTP)})
    view, controller = world(NORTH, service_import(), raw)
    assert ready_told(view) == {"west": "12", "north": None}
    view.local.writes.clear()
    raw["metadata"]["annotations"]["mcagent.io/ready-endpoints"] = "west=14"
    north_of(view).put(raw)
    controller.run()
    assert (ready_told(view), len(view.local.writes)) == ({"west": "14", "north": None}, 1)
    del raw["metadata"]["annotations"]["mcagent.io/ready-endpoints"]
    north_of(view).put(raw)
    controller.settle()
    assert ready_told(view) == {"west": None, "north": None}


def test_slices_of_this_cluster_say_where_its_endpoints_are() -> None:
    """For kube-proxy and agents that prefer near ones: node, zone and hints, as its own slices have them."""
    view, controller = world(service_import(), endpoints_import("10.96.7.7", subset_clusters="east"))
    north_of(view).put(own_export("10.96.7.7"))
    exported = {"clusterIP": "10.96.7.7", "ports": [{"name": "http", "port": 80}]}
    view.local.put({"kind": "Service", "metadata": {"name": "web", "namespace": "shop"}, "spec": exported})
    own = slice_of("web", "10.10.1.1", "10.10.1.2")
    where = {"nodeName": "n1", "zone": "a", "hints": {"forZones": [{"name": "a"}]}}
    own["endpoints"][0] |= {**where, "targetRef": {"kind": "Pod"}}
    view.local.put(own)
    controller.run()
    (made_of,) = [
        raw for raw in view.local.list(Kind.ENDPOINT_SLICE, "shop") if raw["metadata"]["name"] != "web-abcde"
    ]
    first, second = made_of["endpoints"]
    assert first == {"addresses": ["10.10.1.1"], "conditions": {"ready": True}, **where}
    assert second == {"addresses": ["10.10.1.2"], "conditions": {"ready": True}}


def test_a_headless_import_has_no_ips_and_is_made_anew_when_the_type_changes() -> None:
    """Its Service is headless, its slices have the hostnames; a Service cannot get or lose its ClusterIP."""
    raw = endpoints_import("10.97.0.5", "10.97.0.6", subset_clusters="west")
    raw["spec"]["endpoints"]["subsets"][0]["addresses"][0]["hostname"] = "db-0"
    view, controller = world(service_import(type="Headless"), raw)
    spec = made(view, Kind.SERVICE_IMPORT)["spec"]
    assert (spec["type"], spec["ips"], spec["ipFamilies"]) == ("Headless", [], ["IPv4"])
    assert service(view)["spec"]["clusterIP"] == "None"
    (found,) = view.local.list(Kind.ENDPOINT_SLICE, "shop")
    assert [item.get("hostname") for item in found["endpoints"]] == ["db-0", None]
    for kind, headless in (("ClusterSetIP", False), ("Headless", True)):
        north_of(view).put(service_import(type=kind))
        controller.run()
        spec = made(view, Kind.SERVICE_IMPORT)["spec"]
        assert spec["type"] == kind
        assert (service(view)["spec"]["clusterIP"] == "None") is headless
        assert bool(spec["ips"]) is not headless
        assert sorted(endpoints(view)) == ["10.97.0.5", "10.97.0.6"]


def test_other_changes_touch_nothing() -> None:
    """Changes of Services and slices that are no imports are no work, nor are Nodes at no endpoint's address."""
    view, controller = world(service_import(), endpoints_import("10.97.0.5"))
    view.local.put(node("n1", "10.0.0.1", "10.97.0.6"))
    view.local.put({"kind": "Service", "metadata": {"name": "web", "namespace": "shop"}, "spec": {}})
    view.local.put(slice_of("web", "10.10.1.1"))
    north_of(view).put(own_export("10.96.7.7", name="web") | {"spec": {"clusterID": "west", "kind": "Endpoints"}})
    assert not controller.step()


# --- values ----------------------------------------------------------------------------------------------

SVC = ImportedService(namespace="shop", name="svc")
POOL = [f"10.97.{n // 250}.{n % 250 + 1}" for n in range(3000)]
SETS = st.lists(st.sampled_from(POOL), unique=True, max_size=400)


def slices_of_west(addresses: Iterable[str]) -> dict[str, ApiEndpointSlice]:
    """Return the slices of endpoints of cluster west at these addresses."""
    http = (("http", "TCP", 80),)
    endpoints = [ImportedEndpoint(address=text, ports=http, cluster="west") for text in addresses]
    return slices(SVC, endpoints, {}, {})


def places(found: dict[str, ApiEndpointSlice]) -> dict[str, str]:
    """Return in which slice each address is."""
    return {item.addresses[0]: name for name, body in found.items() for item in body.endpoints}


@given(SETS, st.randoms())
def test_slices_hold_each_address_once_whatever_the_order(addresses: list[str], random: Any) -> None:
    """Every address is in exactly one slice, and the slices are the same for any order of the input."""
    found = slices_of_west(addresses)
    assert sorted(item.addresses[0] for body in found.values() for item in body.endpoints) == sorted(addresses)
    assert len(found) == 1 or len(addresses) > WHOLE or not addresses
    shuffled = list(addresses)
    random.shuffle(shuffled)
    assert slices_of_west(shuffled) == found


@given(st.integers(150, 2999), st.data())
def test_one_address_more_or_less_changes_two_slices_at_most(count: int, data: st.DataObject) -> None:
    """Beyond the size of a single slice, one address changes one slice, or cuts one in two."""
    before = slices_of_west(POOL[:count])
    after = slices_of_west(POOL[: count + 1])
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert 1 <= len(changed) <= 2
    assert all(len(body.endpoints) <= MOST for body in after.values())


def test_large_services_fill_slices_well() -> None:
    """Ten thousand endpoints make slices that the API takes, some sixty addresses each."""
    found = slices_of_west(f"10.97.{n // 250}.{n % 250 + 1}" for n in range(10_000))
    assert 100 < len(found) < 250
    assert max(len(body.endpoints) for body in found.values()) < MOST


CIDRS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 255), st.integers(0, 255), st.integers(9, 30)),
    max_size=8,
)


@given(CIDRS, st.integers(0, 255), st.integers(0, 255), st.integers(0, 255))
def test_networks_find_all_owners(found: list[tuple[str, int, int, int]], x: int, y: int, z: int) -> None:
    """Looking an address up says the same as asking each CIDR."""
    from ipaddress import ip_address, ip_network

    announced = tuple((owner, (f"10.{a}.{b}.0/{length}",)) for owner, a, b, length in found)
    address = ip_address(f"10.{x}.{y}.{z}")
    expected = sorted({owner for owner, cidrs in announced if address in ip_network(cidrs[0], strict=False)})
    assert networks(announced, ())[1].owners(int(address)) == expected


def test_an_address_of_the_own_export_that_is_none_is_passed_over() -> None:
    """The leader has the text; the endpoints of this cluster beside it have the addresses that its Nodes use."""
    prefix = PodPrefix(real=ip_network("10.1.0.0/24"), virtual=ip_network("100.72.0.0/24"))
    endpoints = [ImportedEndpoint(address=text, ports=()) for text in ("100.72.0.5", "100.72.0.6")]
    local = local_endpoints(endpoints, frozenset({"100.72.0.5", "no address"}), (prefix,))
    assert [endpoint.address for endpoint in local] == ["10.1.0.5", "100.72.0.6"]
