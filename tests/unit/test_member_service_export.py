"""ServiceExports: what is exported, what is told, and what a change writes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcagent.controller.contract.services import endpoint_subsets
from mcagent.controller.member.cleanup import Cleanup
from mcagent.controller.member.services.backends import MAX_SIZE, cluster_ip_subsets, limited, pod_ip_subsets
from mcagent.controller.member.services.service_export import ServiceExports
from mcagent.controller.settings import EndpointIpType, MemberSettings
from mcagent.kube.source import RawObject
from mcagent.model.api.base import as_json
from mcagent.model.objects import Kind
from tests.worlds.control_view import Controller
from tests.worlds.exporting_member import exports, release, run, subsets, told_of, valid, world
from tests.worlds.member_world import (
    AREA,
    HOME,
    SET,
    conditions_of,
    export_of,
    member,
    names_of,
    node,
    north_of,
    service,
    settings,
    slice_of,
)
from tests.worlds.memory_objects import typed

POD_IP = settings(endpoint_ip_type=EndpointIpType.POD_IP)


WEB = (
    service("web", ("http", 80), ("dns", 53)),
    slice_of("web", "10.10.1.1", "10.10.1.2", ports=(("http", 8080), ("dns", 5353))),
    export_of("web"),
)


def test_a_service_becomes_two_exports() -> None:
    """Names, labels, finalizer and payload are those of the contract; the ClusterIP is the endpoint."""
    view = world(*WEB)
    run(view)
    assert exports(view) == ["east-shop-web-endpoints", "east-shop-web-service"]
    raw = north_of(view).get(Kind.RESOURCE_EXPORT, AREA, "east-shop-web-service")
    assert raw is not None
    ports = [{"name": "http", "port": 80, "protocol": "TCP"}, {"name": "dns", "port": 53, "protocol": "TCP"}]
    assert raw["spec"] == {
        "clusterID": "east",
        "namespace": "shop",
        "name": "web",
        "kind": "Service",
        "service": {"serviceSpec": {"ports": ports}},
    }
    assert raw["metadata"]["labels"] == {
        "sourceKind": "Service",
        "sourceClusterID": "east",
        "sourceNamespace": "shop",
        "sourceName": "web",
    }
    assert raw["metadata"]["finalizers"] == ["resourceexport.finalizers.antrea.io"]
    assert subsets(view) == [
        {"addresses": [{"ip": "10.96.7.7"}], "ports": sorted(ports, key=lambda p: str(p["name"]))}
    ]
    found = view.local.get(Kind.SERVICE_EXPORT, "shop", "web")
    assert found is not None
    assert conditions_of(found) == {"Valid": ("True", "Valid"), "Ready": ("False", "Pending")}
    assert [condition["observedGeneration"] for condition in found["status"]["conditions"]] == [1, 1]


@pytest.mark.parametrize(
    ("objects", "reason"),
    [
        ([], "NoService"),
        ([service("web", type="ExternalName")], "InvalidServiceType"),
        ([service("web", cluster_ip="fd00::1")], "ServiceNoClusterIP"),
        ([service("web", ports=[]), slice_of("web", "10.10.1.1")], "ServiceWithoutPorts"),
        (
            [
                service("web")
                | {
                    "metadata": {
                        "name": "web",
                        "namespace": "shop",
                        "annotations": {"multicluster.antrea.io/imported-service": "true"},
                    }
                }
            ],
            "ImportedService",
        ),
    ],
)
def test_what_cannot_be_exported_says_why(objects: list[RawObject], reason: str) -> None:
    """The condition Valid is False with the contract's reason, and nothing is exported."""
    view = world(export_of("web"), *objects)
    controller = run(view)
    assert conditions_of(view.local.get(Kind.SERVICE_EXPORT, "shop", "web")) == {
        "Valid": ("False", reason),
        "Ready": ("False", "Failed"),
    }
    assert exports(view) == []
    assert [event.reason for event in controller.all_events()] == [reason]


@pytest.mark.parametrize("wanted", [settings(), POD_IP])
def test_a_headless_service_is_exported_by_its_pods(wanted: MemberSettings) -> None:
    """It has no ClusterIP, so its Pods are the endpoints in any case, with their hostnames."""
    pods = slice_of("web", "10.10.1.1", "10.10.1.2")
    pods["endpoints"][1]["hostname"] = "web-0"
    view = world(service("web", cluster_ip="None"), pods, export_of("web"))
    run(view, wanted)
    assert valid(view) == ("True", "Valid")
    raw = north_of(view).get(Kind.RESOURCE_EXPORT, AREA, "east-shop-web-service")
    assert raw is not None
    assert raw["spec"]["service"]["serviceSpec"]["clusterIP"] == "None"
    assert subsets(view) == [
        {
            "addresses": [{"ip": "10.10.1.1"}, {"ip": "10.10.1.2", "hostname": "web-0"}],
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        }
    ]


@pytest.mark.parametrize(
    "other", [slice_of("web", "fd00::1"), slice_of("web", "a.example") | {"addressType": "FQDN"}]
)
def test_a_headless_service_of_two_families_is_exported_by_its_ipv4_addresses(other: RawObject) -> None:
    """Pods of a StatefulSet have their hostnames in the slices of both."""
    pods = slice_of("web", "10.10.1.1", name="four")
    pods["endpoints"][0]["hostname"] = other["endpoints"][0]["hostname"] = "web-0"
    view = world(service("web", cluster_ip="None"), pods, other, export_of("web"))
    run(view)
    assert valid(view) == ("True", "Valid")
    assert [subset["addresses"] for subset in subsets(view)] == [[{"ip": "10.10.1.1", "hostname": "web-0"}]]


def test_an_endpoints_export_under_the_name_of_another_cluster_ends_the_export() -> None:
    """Cluster "east-shop" may well have that name. Nothing is exported, once: the Service export comes no more."""
    view = world(*WEB)
    foreign = north_of(view).put(
        {
            "kind": "ResourceExport",
            "metadata": {"name": "east-shop-web-endpoints", "namespace": AREA},
            "spec": {"clusterID": "east-shop", "namespace": "web", "name": "x", "kind": "Endpoints"},
        }
    )
    controller = run(view)
    for _ in range(2):
        release(view)
        north_of(view).writes.clear()
        controller.run()
    assert north_of(view).writes == []
    assert exports(view) == ["east-shop-web-endpoints"]
    assert north_of(view).get(Kind.RESOURCE_EXPORT, AREA, "east-shop-web-endpoints") == foreign
    messages = [event.message for event in controller.all_events() if event.reason == "ExportFailed"]
    assert messages == ['the name east-shop-web-endpoints is taken by cluster "east-shop"']


@pytest.mark.parametrize("wanted", [settings(), POD_IP])
@pytest.mark.parametrize("pods", [[], [slice_of("web", "10.10.1.1", ready=False)]])
def test_a_service_without_ready_endpoints_is_exported_without_endpoints(
    wanted: MemberSettings, pods: list[RawObject]
) -> None:
    """The export is valid: other clusters have the Service, and nobody is behind it here."""
    view = world(service("web"), export_of("web"), *pods)
    run(view, wanted)
    assert valid(view) == ("True", "Valid")
    assert exports(view) == ["east-shop-web-endpoints", "east-shop-web-service"]
    assert subsets(view) == []


def test_what_kind_of_service_it_is_goes_along() -> None:
    """Session affinity, traffic policy, distribution and families are exported, and leave with the Service's."""
    config = {"clientIP": {"timeoutSeconds": 60}}
    fields: dict[str, Any] = {
        "sessionAffinity": "ClientIP",
        "sessionAffinityConfig": config,
        "internalTrafficPolicy": "Local",
        "trafficDistribution": "PreferClose",
        "ipFamilies": ["IPv4"],
    }
    view = world(service("web", **fields), export_of("web"))
    controller = run(view)
    for wanted in (fields, {}):
        view.local.put(service("web", **wanted))
        controller.run()
        raw = north_of(view).get(Kind.RESOURCE_EXPORT, AREA, "east-shop-web-service")
        assert raw is not None
        spec = raw["spec"]["service"]["serviceSpec"]
        assert {key: value for key, value in spec.items() if key != "ports"} == wanted


def test_labels_and_annotations_that_are_asked_for_go_along() -> None:
    """What may not be written elsewhere is left out and told."""
    export = export_of("web")
    export["spec"] = {
        "exportedLabels": {"team": "shop", "mcagent.io/x": "1"},
        "exportedAnnotations": {"example.org/owner": "any text"},
    }
    view = world(service("web"), export)
    controller = run(view)
    raw = north_of(view).get(Kind.RESOURCE_EXPORT, AREA, "east-shop-web-service")
    assert raw is not None
    assert raw["metadata"]["annotations"] == {
        "mcagent.io/exported-labels": '{"team": "shop"}',
        "mcagent.io/exported-annotations": '{"example.org/owner": "any text"}',
    }
    (event,) = controller.all_events()
    assert event.reason == "MetadataLeftOut"
    assert "mcagent.io/x" in event.message
    view.local.put(export_of("web"))
    controller.run()
    raw = north_of(view).get(Kind.RESOURCE_EXPORT, AREA, "east-shop-web-service")
    assert raw is not None
    assert not raw["metadata"].get("annotations")


def test_several_slices_make_subsets_without_duplicates() -> None:
    """Addresses of several slices, of both families, with ports by name, are grouped by the ports they serve."""
    view = world(
        service("web", ("http", 80), ("admin", 90)),
        slice_of("web", "10.10.1.2", "10.10.1.1", name="a", ports=(("http", 8080), ("admin", 9090))),
        slice_of("web", "10.10.1.1", "10.10.1.10", name="b", ports=(("http", 8080), ("admin", 9090))),
        slice_of("web", "10.10.1.3", name="c", ports=(("http", 8081), ("other", 1))),
        slice_of("web", "fd00::1", name="d", ports=(("http", 8080),)),
        slice_of("web", "10.10.1.4", name="e", ready=False),
        export_of("web"),
    )
    run(view, POD_IP)
    both = [{"name": "admin", "port": 9090, "protocol": "TCP"}, {"name": "http", "port": 8080, "protocol": "TCP"}]
    assert subsets(view) == [
        {"addresses": [{"ip": "10.10.1.1"}, {"ip": "10.10.1.2"}, {"ip": "10.10.1.10"}], "ports": both},
        {"addresses": [{"ip": "10.10.1.3"}], "ports": [{"name": "http", "port": 8081, "protocol": "TCP"}]},
    ]


def test_serving_endpoints_count_for_each_port() -> None:
    """As on gateways: an endpoint that is ready for another port, or for none, is none of this port."""
    web = typed(service("web", ("http", 80), ("admin", 90)))
    slices = [
        typed(slice_of("web", "10.10.1.1")),
        typed(slice_of("web", "10.10.1.2", name="portless", ports=())),
        typed(slice_of("web", "10.10.1.3", name="old", ports=(("admin", 9090),), ready=False, serving=True)),
        typed(slice_of("web", "10.10.1.4", name="older", ports=(("http", 8080),), ready=False, serving=True)),
    ]
    assert pod_ip_subsets(web, slices) == {
        (("admin", "TCP", 9090),): ("10.10.1.3",),
        (("http", "TCP", 8080),): ("10.10.1.1",),
    }


def test_serving_endpoints_count_while_none_is_ready() -> None:
    """Endpoints that terminate but still serve are exported only while no ready one is there."""
    view = world(
        service("web"),
        slice_of("web", "10.10.1.1", ready=False, serving=True, terminating=True),
        export_of("web"),
    )
    controller = run(view, POD_IP)
    assert subsets(view)[0]["addresses"] == [{"ip": "10.10.1.1"}]
    view.local.put(slice_of("web", "10.10.1.2", name="second"))
    controller.run()
    assert subsets(view)[0]["addresses"] == [{"ip": "10.10.1.2"}]


def test_one_endpoint_change_is_one_write_with_pod_ips_and_few_change_anything_with_cluster_ips() -> None:
    """What a change writes does not grow with the number of Services.

    Behind a ClusterIP only their number counts, and that is told when it is off by more than an eighth.
    """
    for wanted, writes in ((POD_IP, [f"update ResourceExport {AREA}/east-shop-s7-endpoints"]), (settings(), [])):
        objects = [
            raw
            for number in range(20)
            for raw in (
                service(f"s{number}"),
                slice_of(f"s{number}", *(f"10.10.{one}.{number}" for one in range(8))),
                export_of(f"s{number}"),
            )
        ]
        view = world(*objects)
        controller = run(view, wanted)
        north_of(view).writes.clear()
        view.local.writes.clear()
        view.local.put(slice_of("s7", *(f"10.10.{one}.7" for one in range(9))))
        controller.run()
        assert north_of(view).writes == writes
        assert view.local.writes == []


def test_the_number_of_ready_endpoints_behind_a_cluster_ip_is_told() -> None:
    """IPv4 endpoints alone count; not endpoints that are exported themselves, nor none."""
    slices = [
        slice_of("web", *(f"10.10.1.{one}" for one in range(1, 12)), name="a"),
        slice_of("web", "10.10.1.1", "10.10.1.12", name="b"),
        slice_of("web", "fd00::1", "fd00::2", name="c"),
        slice_of("web", "10.10.1.13", name="d", ready=False, serving=True),
    ]
    view = world(service("web"), *slices, export_of("web"))
    controller = run(view)
    assert told_of(view) == "12"
    view.local.put(slice_of("web", "10.10.1.1", "10.10.1.2", name="a"))
    controller.run()
    assert told_of(view) == "3"
    for name in ("a", "b", "c"):
        view.local.remove(Kind.ENDPOINT_SLICE, "shop", name)
    controller.run()
    assert told_of(view) == "1"  # those that still serve
    view.local.remove(Kind.ENDPOINT_SLICE, "shop", "d")
    controller.run()
    assert (told_of(view), subsets(view)) == (None, [])
    by_pods = world(service("web"), *slices, export_of("web"))
    run(by_pods, POD_IP)
    assert told_of(by_pods) is None


def test_an_export_says_where_connections_are_to_go() -> None:
    """What its ServiceExport says is carried; what makes no sense is told there, and carried nowhere."""
    wanted = export_of("web")
    wanted["metadata"]["annotations"] = {"mcagent.io/traffic": "local>*"}
    view = world(*WEB[:2], wanted)
    controller = run(view)

    def carried() -> str | None:
        raw = north_of(view).get(Kind.RESOURCE_EXPORT, AREA, "east-shop-web-service")
        assert raw is not None
        return (raw["metadata"].get("annotations") or {}).get("mcagent.io/traffic")

    assert carried() == "local > *"
    view.local.change(
        Kind.SERVICE_EXPORT, "shop", "web", {"metadata": {"annotations": {"mcagent.io/traffic": "!"}}}
    )
    controller.run()
    assert carried() is None
    (told,) = [one for one in controller.all_events() if "mcagent.io/traffic" in one.message]
    assert (told.reason, told.subject) == ("MetadataLeftOut", "ServiceExport shop/web")
    assert '"!" is not a cluster' in told.message
    assert valid(view)[0] == "True"


def test_exports_go_with_the_service_and_with_the_export() -> None:
    """Both exports are deleted, the endpoints first, by the event alone, and come back."""
    view = world(*WEB)
    controller = run(view)
    for remove, restore in (
        ((Kind.SERVICE, "shop", "web"), WEB[0]),
        ((Kind.SERVICE_EXPORT, "shop", "web"), WEB[2]),
    ):
        north_of(view).writes.clear()
        view.local.remove(*remove)
        controller.run()
        assert north_of(view).writes == [
            f"delete ResourceExport {AREA}/east-shop-web-endpoints",
            f"delete ResourceExport {AREA}/east-shop-web-service",
        ]
        release(view)
        controller.run()
        assert names_of(north_of(view), Kind.RESOURCE_EXPORT) == []
        view.local.put(restore)
        controller.run()
        assert exports(view) == ["east-shop-web-endpoints", "east-shop-web-service"]


def test_an_export_is_not_ready_after_the_cluster_has_left() -> None:
    """Ready becomes False, Conflict goes, Valid and foreign conditions stay; nothing is written twice."""
    view = world(*WEB)
    run(view)
    present = [
        {"type": kind, "status": status, "reason": reason, "message": ""}
        for kind, status, reason in (
            ("Valid", "True", "Valid"),
            ("Ready", "True", "Exported"),
            ("Conflict", "False", "NoConflicts"),
            ("Foreign", "True", "Reason"),
        )
    ]
    view.local.change(Kind.SERVICE_EXPORT, "shop", "web", {"status": {"conditions": present}})
    controller = Controller(view, [Cleanup(settings())])
    controller.settle()
    assert conditions_of(view.local.get(Kind.SERVICE_EXPORT, "shop", "web"))["Ready"] == ("True", "Exported")
    view.local.remove(Kind.CLUSTER_SET, HOME, SET)
    view.local.change(Kind.CLUSTER_SET, HOME, SET, {"metadata": {"finalizers": None}})
    controller.run()
    assert conditions_of(view.local.get(Kind.SERVICE_EXPORT, "shop", "web")) == {
        "Valid": ("True", "Valid"),
        "Ready": ("False", "NoClusterSet"),
        "Foreign": ("True", "Reason"),
    }
    view.local.writes.clear()
    controller.settle()
    assert view.local.writes == []


def test_what_was_exported_while_the_controller_was_down_goes() -> None:
    """An export on the leader that nothing here stands for any more is deleted; other clusters' are left alone."""
    view = world()
    for cluster in ("east", "west"):
        for kind in ("Service", "Endpoints"):
            north_of(view).put(
                {
                    "kind": "ResourceExport",
                    "metadata": {"name": f"{cluster}-shop-old-{kind.lower()}", "namespace": AREA},
                    "spec": {"clusterID": cluster, "namespace": "shop", "name": "old", "kind": kind},
                }
            )
    run(view)
    assert exports(view) == ["west-shop-old-endpoints", "west-shop-old-service"]


def test_of_two_services_with_one_export_name_the_first_is_exported() -> None:
    """`a-b/c` and `a/b-c` have the same name on the leader: the older export has it, the other one is told."""
    view = world()
    for namespace, name, created in (("a-b", "c", "2024-01-02T00:00:00Z"), ("a", "b-c", "2024-01-01T00:00:00Z")):
        view.local.put({"kind": "Namespace", "metadata": {"name": namespace}})
        view.local.put(service(name, namespace=namespace))
        view.local.put(slice_of(name, "10.10.1.1", namespace=namespace))
        view.local.put(export_of(name, namespace), created=created)
    controller = run(view)
    raw = north_of(view).get(Kind.RESOURCE_EXPORT, AREA, "east-a-b-c-service")
    assert raw is not None
    assert (raw["spec"]["namespace"], raw["spec"]["name"]) == ("a", "b-c")
    assert valid(view, "b-c", "a") == ("True", "Valid")
    assert valid(view, "c", "a-b") == ("False", "AmbiguousName")
    view.local.remove(Kind.SERVICE_EXPORT, "a", "b-c")
    north_of(view).writes.clear()
    controller.run()
    assert north_of(view).writes == [  # what an export is of may not be changed, so it is made anew
        f"delete ResourceExport {AREA}/east-a-b-c-endpoints",
        f"delete ResourceExport {AREA}/east-a-b-c-service",
    ]
    release(view)
    controller.run()
    raw = north_of(view).get(Kind.RESOURCE_EXPORT, AREA, "east-a-b-c-service")
    assert raw is not None
    assert (raw["spec"]["namespace"], raw["spec"]["name"]) == ("a-b", "c")
    assert valid(view, "c", "a-b") == ("True", "Valid")


def test_a_name_that_is_too_long_to_import_is_told() -> None:
    """`antrea-mc-` and the name must fit into the 63 characters of a Service name."""
    for length, verdict in ((53, ("True", "Valid")), (54, ("False", "NameTooLong"))):
        name = "s" * length
        view = world(service(name), slice_of(name, "10.10.1.1"), export_of(name))
        run(view)
        assert valid(view, name) == verdict


def test_the_leaders_verdict_is_copied() -> None:
    """What the leader writes about the export becomes the condition Conflict, and goes away again."""
    view = world(*WEB)
    controller = run(view)
    ref = (Kind.RESOURCE_EXPORT, AREA, "east-shop-web-service")
    failure = {"type": "Failure", "status": "False", "reason": "ConvergeFailure", "message": "not\nconverged"}
    north_of(view).change(*ref, {"status": {"conditions": [failure]}})
    controller.run()
    raw = view.local.get(Kind.SERVICE_EXPORT, "shop", "web")
    assert raw is not None
    assert conditions_of(raw) == {
        "Valid": ("True", "Valid"),
        "Ready": ("False", "Failed"),
        "Conflict": ("True", "ConvergeFailure"),
    }
    assert raw["status"]["conditions"][2]["message"] == "not\\nconverged"
    ports = [{"name": "http", "port": 81, "protocol": "TCP"}]
    north_of(view).put(
        {
            "kind": "ResourceImport",
            "metadata": {"name": "shop-web-service", "namespace": AREA},
            "spec": {"kind": "ServiceImport", "serviceImport": {"spec": {"ports": ports}}},
        }
    )
    controller.settle()
    assert conditions_of(view.local.get(Kind.SERVICE_EXPORT, "shop", "web"))["Conflict"] == (
        "True",
        "PortConflict",
    )
    good = {"type": "Succeeded", "status": "True"}
    told = {"type": "Conflict", "status": "True", "reason": "TypeConflict", "message": "type: ..."}
    for conditions, expected in (
        ([good, told], ("True", "TypeConflict")),
        ([good, {**told, "reason": "no word"}], ("True", "ConvergeFailure")),
        ([good], ("False", "NoConflicts")),
    ):
        north_of(view).change(*ref, {"status": {"conditions": conditions}})
        controller.run()
        assert conditions_of(view.local.get(Kind.SERVICE_EXPORT, "shop", "web")) == {
            "Valid": ("True", "Valid"),
            "Ready": ("True", "Exported"),
            "Conflict": expected,
        }


def test_conditions_of_others_stay_and_a_second_look_writes_nothing() -> None:
    """Types that are not ours are kept; with nothing new there is nothing to write."""
    view = world(*WEB)
    other = {
        "type": "Other",
        "status": "True",
        "reason": "X",
        "message": "",
        "lastTransitionTime": "2024-01-01T00:00:00Z",
    }
    view.local.change(Kind.SERVICE_EXPORT, "shop", "web", {"status": {"conditions": [other]}})
    controller = run(view)
    found = conditions_of(view.local.get(Kind.SERVICE_EXPORT, "shop", "web"))
    assert set(found) == {"Valid", "Ready", "Other"}
    view.local.writes.clear()
    north_of(view).writes.clear()
    controller.settle()
    assert view.local.writes == north_of(view).writes == []


def test_a_refused_export_is_told_with_the_leaders_words() -> None:
    """When the leader refuses a write the Event on the ServiceExport says what it said."""
    view = world(*WEB)
    north_of(view).refuse = lambda kind, old, new: "no rights"
    controller = run(view)
    controller.settle()
    assert [(event.reason, event.message) for event in controller.all_events()] == [
        ("ExportFailed", "east-shop-web-service: no rights")
    ]


def test_large_services_are_cut_and_told() -> None:
    """More endpoints than an object can hold are left out, by order of address, and the count is told."""
    addresses = [f"10.{a}.{b}.{c}" for a in range(2) for b in range(100) for c in range(1, 101)]
    many = [slice_of("web", *addresses[i : i + 1000], name=f"s{i}") for i in range(0, len(addresses), 1000)]
    view = world(service("web"), export_of("web"), *many)
    controller = run(view, POD_IP)
    assert valid(view) == ("True", "Valid")
    assert [event.reason for event in controller.all_events()] == ["EndpointsLeftOut"]
    assert 10_000 < len(subsets(view)[0]["addresses"]) < len(addresses)


# --- values ----------------------------------------------------------------------------------------------

ADDRESSES = st.integers(1, 60).map(lambda number: f"10.10.1.{number}")
PORTS = st.lists(
    st.tuples(st.sampled_from(["http", "admin", ""]), st.integers(8000, 8003)),
    unique_by=lambda p: p[0],
    max_size=3,
)
SLICES = st.lists(st.tuples(st.lists(ADDRESSES, unique=True, max_size=8), PORTS), max_size=6)


@given(SLICES)
def test_subsets_hold_each_address_and_port_once(found: list[tuple[list[str], list[tuple[str, int]]]]) -> None:
    """Every pair of address and port of the slices is in exactly one subset, whatever the order of the slices."""
    web = typed(service("web", ("http", 80), ("admin", 90), ("", 70)))
    slices = [typed(slice_of("web", *addresses, ports=tuple(ports))) for addresses, ports in found]
    made = pod_ip_subsets(web, slices)
    assert made == pod_ip_subsets(web, slices[::-1])
    pairs = [(text, name, port) for ports, texts in made.items() for text in texts for name, _, port in ports]
    assert len(set(pairs)) == len(pairs)
    assert set(pairs) == {(a, name, port) for addresses, ports in found for a in addresses for name, port in ports}
    addresses_made = [text for texts in made.values() for text in texts]
    assert len(set(addresses_made)) == len(addresses_made)


def test_limits_count_what_is_written() -> None:
    """What is kept is smaller than the limit as JSON, and nearly as large."""
    import json

    ports = (("", "TCP", 80),)
    addresses = [f"10.{a}.{b}.{c}" for a in range(5) for b in range(100) for c in range(100)]
    hostnames = {text: f"web-{number}" for number, text in enumerate(addresses) if number % 2}
    kept, dropped = limited({ports: addresses}, hostnames)
    assert 0.95 * MAX_SIZE < len(json.dumps(as_json(endpoint_subsets(kept, hostnames)))) <= MAX_SIZE
    assert dropped == 50_000 - len(kept[ports])
    assert cluster_ip_subsets(typed(service("web", cluster_ip="None")), [("", "TCP", 80)]) == {}


def endpoints_of(slice_name: str, *endpoints: RawObject, port: int = 8080, namespace: str = "shop") -> RawObject:
    """Return an IPv4 EndpointSlice of Service web with these endpoints."""
    raw = slice_of("web", name=slice_name, namespace=namespace, ports=(("http", port),))
    return raw | {"addressType": "IPv4", "endpoints": list(endpoints)}


def at(address: str, *, pod_namespace: str = "", node_name: str = "") -> RawObject:
    """Return an endpoint; with `pod_namespace` it refers to a Pod there."""
    endpoint: RawObject = {"addresses": [address], "conditions": {"ready": True}}
    if pod_namespace:
        endpoint["targetRef"] = {"kind": "Pod", "namespace": pod_namespace, "name": "web-0"}
    return endpoint | ({"nodeName": node_name} if node_name else {})


@pytest.mark.parametrize(
    ("endpoint", "port", "ready"),
    [
        (at("10.10.1.9"), 8080, "3"),  # in a Node's Pod CIDR
        (at("10.11.0.9"), 8080, "3"),  # in podCIDRs
        (at("203.0.113.9"), 8080, "2"),
        (at("203.0.113.9", pod_namespace="shop"), 8080, "3"),
        (at("203.0.113.9", pod_namespace="other"), 8080, "2"),
        (at("203.0.113.9", node_name="n1"), 8080, "3"),
        (at("192.0.2.7"), 8080, "2"),  # a Node
        (at("192.0.2.7", pod_namespace="shop"), 8080, "3"),
        (at("192.0.2.7", pod_namespace="shop"), 10250, "2"),
        (at("not an address"), 8080, "2"),
    ],
)
def test_endpoints_that_gateways_do_not_serve_are_not_ready(endpoint: RawObject, port: int, ready: str) -> None:
    """Other clusters are told how many endpoints take their connections, and the exporter why one does not."""
    view = member()
    worker = node("n1", "192.0.2.7") | {"spec": {"podCIDRs": ["10.10.0.0/16"]}}
    view.local.put(worker)
    pods = endpoints_of("a", at("10.10.1.1", pod_namespace="shop"), at("10.10.1.2", node_name="n1"))
    for raw in (service("web"), export_of("web"), pods, endpoints_of("b", endpoint, port=port)):
        view.local.put(raw)
    controller = Controller(view, [ServiceExports(settings(pod_cidrs=("10.11.0.0/16",)))])
    controller.settle()
    assert told_of(view) == ready
    refusals = [event.message for event in controller.all_events() if event.reason == "EndpointsLeftOut"]
    assert bool(refusals) == (ready == "2")
    view.local.put(worker | {"spec": {"podCIDRs": ["10.10.0.0/16", "203.0.113.0/24"]}})
    controller.run()
    in_new_cidr = endpoint["addresses"] == ["203.0.113.9"]
    assert told_of(view) == ("3" if in_new_cidr else ready)


def test_without_known_pod_cidrs_pods_may_have_any_address() -> None:
    """No settings and no Node tells where Pods are; IPv6 addresses of a dual-stack Service do not count."""
    view = member()
    dual = slice_of("web", "fd00::1", "fd00::2", "fd00::3", name="six")
    for raw in (service("web"), export_of("web"), endpoints_of("a", at("203.0.113.9")), dual):
        view.local.put(raw)
    controller = Controller(view, [ServiceExports(settings())])
    controller.settle()
    assert told_of(view) == "1"
    assert controller.all_events() == []
