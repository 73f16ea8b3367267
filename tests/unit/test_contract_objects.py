"""What leader, members and Antrea's controllers read and write alike: names, Services, endpoints, and errors."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest

from mcagent.controller.contract import commands, names
from mcagent.controller.contract.annotations import (
    carried_by,
    read_ready_of,
    ready_annotation,
    ready_by_cluster,
    ready_of,
    traffic_of,
)
from mcagent.controller.contract.antrea_before_2_7 import claimed
from mcagent.controller.contract.cluster_uid import is_refusal, is_uid, refuse, uids
from mcagent.controller.contract.conditions import condition, time_of, time_text
from mcagent.controller.contract.policies import Carried, as_stored, read_carried
from mcagent.controller.contract.services import (
    PayloadPort,
    ServiceSpec,
    endpoint_ports,
    endpoint_subsets,
    grouped_subsets,
    hostname_of,
    import_spec,
    import_target,
    read_service_spec,
    read_subsets,
    service_ports,
)
from mcagent.model.api.base import Condition, as_json
from mcagent.model.api.kubernetes import ApiService, EndpointAddress
from mcagent.model.api.multicluster import (
    ApiServiceImport,
    ClusterClaim,
    MemberClusterAnnounce,
    ResourceExport,
    ResourceImport,
)
from mcagent.model.errors import InputError
from mcagent.model.objects import IpProtocol, Kind
from mcagent.model.parsing.decode import read_as
from mcagent.model.parsing.field import Field

Raw = dict[str, Any]
UID, OTHER_UID = "0f1e2d3c-0000-4000-8000-000000000001", "0f1e2d3c-0000-4000-8000-000000000002"


# --- names ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (names.announce("east"), "member-announce-from-east"),
        (names.announce_finalizer("east"), "memberclusterannounce.finalizer.antrea.io/east"),
        (names.service_export("east", "shop", "web"), "east-shop-web-service"),
        (names.endpoints_export("east", "shop", "web"), "east-shop-web-endpoints"),
        (names.cluster_info("east"), "east-clusterinfo"),
        (names.label_export("east", "1a2b"), "east-1a2b"),
        (names.policy_import("deny"), "deny-antreaclusternetworkpolicy"),
        (names.kubernetes_policy_import("deny"), "deny-kubernetespolicy"),
        (names.service_import("shop", "web"), "shop-web-service"),
        (names.endpoints_import("shop", "web"), "shop-web-endpoints"),
        (names.imported("web"), "antrea-mc-web"),
    ],
)
def test_names_of_objects(name: str, expected: str) -> None:
    """They are those of Antrea, so that both implementations find each other's objects."""
    assert name == expected


@pytest.mark.parametrize(
    ("text", "label", "subdomain", "cluster_id"),
    [
        ("a", True, True, True),
        ("a-9", True, True, True),
        ("a" * 63, True, True, True),
        ("a" * 64, False, True, False),
        ("a" * 253, False, True, False),
        ("a" * 254, False, False, False),
        ("a.b-c", False, True, True),
        ("", False, False, False),
        ("-a", False, False, False),
        ("a-", False, False, False),
        ("a..b", False, False, False),
        ("A", False, False, False),
        ("a\n", False, False, False),
    ],
)
def test_valid_names(text: str, label: bool, subdomain: bool, cluster_id: bool) -> None:
    """DNS-1123 labels and subdomains; a cluster ID is a subdomain with the length of a label."""
    assert (names.is_label(text), names.is_subdomain(text), names.is_cluster_id(text)) == (
        label,
        subdomain,
        cluster_id,
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", True), ("999999", True), ("1000000", False), ("", False), ("-1", False), ("٣", False)],
)
def test_valid_limits_of_exports(text: str, expected: bool) -> None:
    """A whole number of at most six digits."""
    assert names.is_export_limit(text) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("resourceexport.antrea.io/finalizer", True),
        ("resourceexport.finalizers.antrea.io", True),
        ("mcagent.io/member", True),
        ("memberclusterannounce.finalizer.antrea.io/east", True),
        ("foregroundDeletion", False),
        ("", False),
    ],
)
def test_finalizers_of_controllers(text: str, expected: bool) -> None:
    """Uninstalling removes these only."""
    assert names.is_finalizer(text) is expected


@pytest.mark.parametrize(
    ("cluster_id", "placeholder", "command"),
    [
        ("east", "", "kubectl -n mcs annotate serviceaccount sa multicluster.antrea.io/cluster-id=east"),
        ("$(x)", "", ""),
        ("$(x)", "ID", "kubectl -n mcs annotate serviceaccount sa multicluster.antrea.io/cluster-id=ID"),
    ],
)
def test_the_command_that_binds_an_account(cluster_id: str, placeholder: str, command: str) -> None:
    """No text of another cluster is part of a command."""
    assert commands.bind_account("mcs", "sa", cluster_id, placeholder=placeholder) == command


def test_the_command_that_lets_read_a_token() -> None:
    """The controller may read one Secret."""
    assert commands.let_read_token("kube-system", "token") == (
        "kubectl -n kube-system create role mcagent-leader-token --verb=get,list,watch,update --resource=secrets "
        "--resource-name=token && kubectl -n kube-system create rolebinding mcagent-leader-token "
        "--role=mcagent-leader-token --serviceaccount=kube-system:mcagent-controller"
    )


@pytest.mark.parametrize(
    ("kind", "namespace", "name", "own_name", "target"),
    [
        ("ServiceImport", "shop", "web", "shop-web-service", "shop/web"),
        ("Endpoints", "shop", "web", "shop-web-endpoints", "shop/web"),
        ("Endpoints", "shop", "web", "shop-web-service", ""),
        ("ServiceImport", "shop", "web", "shop-web-endpoints", ""),
        ("ServiceImport", "shop", "web", "other", ""),
        ("ServiceImport", "Shop", "web", "Shop-web-service", ""),
        ("ServiceImport", "shop", "we.b", "shop-we.b-service", ""),
        ("ClusterInfo", "shop", "web", "shop-web-service", ""),
        ("Service", "shop", "web", "shop-web-service", ""),
    ],
)
def test_the_service_of_an_import(kind: str, namespace: str, name: str, own_name: str, target: str) -> None:
    """Name and spec must agree: names are concatenated, so two Services could share one."""
    spec = {"kind": kind, "namespace": namespace, "name": name}
    assert import_target(read_as(ResourceImport, {"metadata": {"name": own_name}, "spec": spec})) == target
    assert import_target(None) == ""


# --- Services ---------------------------------------------------------------------------------------------


def service(ports: list[Any], **spec: Any) -> ApiService:
    """Return a Service with these ports."""
    return read_as(
        ApiService, {"metadata": {"name": "web", "namespace": "shop"}, "spec": {"ports": ports, **spec}}
    )


def read_service(ports: list[Any], **spec: Any) -> ServiceSpec:
    """Return what is read of a Service."""
    obj = service(ports, **spec)
    return read_service_spec(obj.spec, obj, "spec")


def affinity(kind: str, seconds: int) -> Raw:
    """Return the fields of session affinity."""
    return {"sessionAffinity": kind, "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": seconds}}}


HTTP = {"name": "http", "port": 80}


def test_a_service() -> None:
    """All fields of the payload are read."""
    ports = [HTTP | {"appProtocol": "kubernetes.io/h2c"}, {"name": "dns", "port": 80, "protocol": "UDP"}]
    read = read_service(
        ports,
        clusterIP="None",
        sessionAffinity="ClientIP",
        sessionAffinityConfig={"clientIP": {"timeoutSeconds": 7}},
        internalTrafficPolicy="Local",
        trafficDistribution="PreferClose",
        ipFamilies=["IPv6", "IPv5", "IPv4", "IPv6"],
    )
    assert read == ServiceSpec(
        ports=(
            PayloadPort(name="http", port=80, protocol=IpProtocol.TCP, app_protocol="kubernetes.io/h2c"),
            PayloadPort(name="dns", port=80, protocol=IpProtocol.UDP),
        ),
        affinity_seconds=7,
        headless=True,
        traffic_policy="Local",
        distribution="PreferClose",
        families=("IPv6", "IPv4"),
    )


@pytest.mark.parametrize(
    ("spec", "attribute", "expected"),
    [
        ({}, "affinity_seconds", None),
        (affinity("None", 7), "affinity_seconds", None),
        ({"sessionAffinity": "ClientIP"}, "affinity_seconds", 10800),
        (affinity("ClientIP", 0), "affinity_seconds", 10800),
        (affinity("ClientIP", 1), "affinity_seconds", 1),
        (affinity("ClientIP", 86400), "affinity_seconds", 86400),
        (affinity("ClientIP", 86401), "affinity_seconds", 10800),
        ({"clusterIP": "10.0.0.1"}, "headless", False),
        ({"type": "Headless"}, "headless", False),
        ({"internalTrafficPolicy": "Cluster"}, "traffic_policy", "Cluster"),
        ({"internalTrafficPolicy": "Other"}, "traffic_policy", ""),
        ({"trafficDistribution": "a" * 63}, "distribution", "a" * 63),
        ({"trafficDistribution": "a" * 64}, "distribution", ""),
        ({"trafficDistribution": "9"}, "distribution", ""),
        ({}, "families", ()),
    ],
)
def test_fields_of_a_service(spec: Raw, attribute: str, expected: object) -> None:
    """Values of later versions are ignored, and times outside the API's limits become Kubernetes' default."""
    assert getattr(read_service([HTTP], **spec), attribute) == expected


def test_a_headless_service_import_has_a_type() -> None:
    """A ServiceImport has no clusterIP; its type says that it is headless."""
    for kind, headless in (("Headless", True), ("ClusterSetIP", False)):
        obj = read_as(ApiServiceImport, {"metadata": {"name": "web"}, "spec": {"type": kind, "ports": [HTTP]}})
        assert read_service_spec(obj.spec, obj, "spec").headless is headless


REPEATED = "repeats the name, or number and protocol, of another port of the Service"


@pytest.mark.parametrize(
    ("ports", "path", "code", "reason"),
    [
        ([], "spec.ports", "Missing", "is empty: a Service has at least one port"),
        (
            [{"name": f"p{n}", "port": n + 1} for n in range(101)],
            "spec.ports",
            "TooMany",
            "has 101 entries, at most 100 allowed",
        ),
        ([HTTP, HTTP], "spec.ports[1]", "InvalidValue", REPEATED),
        ([HTTP, {"name": "b", "port": 80}], "spec.ports[1]", "InvalidValue", REPEATED),
        ([HTTP, {"name": "http", "port": 81}], "spec.ports[1]", "InvalidValue", REPEATED),
        ([{"name": "x\n", "port": 1}], "spec.ports[0].name", "InvalidName", 'must be a DNS-1123 label: "x\\n"'),
        (
            [HTTP, {"name": "b", "port": 1, "appProtocol": "a b"}],
            "spec.ports[1].appProtocol",
            "InvalidValue",
            'not an appProtocol: "a b"',
        ),
        (
            [{"port": 1, "appProtocol": "/x"}],
            "spec.ports[0].appProtocol",
            "InvalidValue",
            'not an appProtocol: "/x"',
        ),
        (
            [{"port": 1, "appProtocol": "a/b/c"}],
            "spec.ports[0].appProtocol",
            "InvalidValue",
            'not an appProtocol: "a/b/c"',
        ),
        (
            [{"port": 1, "appProtocol": "A/c"}],
            "spec.ports[0].appProtocol",
            "InvalidValue",
            'not an appProtocol: "A/c"',
        ),
        (
            [{"port": 1, "appProtocol": "a/"}],
            "spec.ports[0].appProtocol",
            "InvalidValue",
            'not an appProtocol: "a/"',
        ),
        ([{"port": "x"}], "spec.ports[0].port", "InvalidPort", "must be a port number, is a string"),
    ],
)
def test_invalid_ports_of_a_service(ports: list[Any], path: str, code: str, reason: str) -> None:
    """The error names the object, the port and the rule."""
    with pytest.raises(InputError) as info:
        read_service(ports)
    error = info.value
    assert (error.subject, error.path, error.code, error.reason) == ("Service shop/web", path, code, reason)


def test_many_ports_of_a_service() -> None:
    """100 ports are read; the same number with another protocol is another port; HTTP is an appProtocol."""
    assert len(read_service([{"name": f"p{number}", "port": number + 1} for number in range(100)]).ports) == 100
    service_with_two_protocols = read_service(
        [{"name": "t", "port": 53}, {"name": "u", "port": 53, "protocol": "UDP"}]
    )
    assert [port.protocol for port in service_with_two_protocols.ports] == ["TCP", "UDP"]
    assert read_service([{"port": 1, "appProtocol": "HTTP"}]).ports[0].app_protocol == "HTTP"


def test_fields_that_are_written() -> None:
    """Fields without a value are None, so that they are removed, or absent from ports."""
    spec = ServiceSpec(
        ports=(
            PayloadPort(name="", port=80, protocol=IpProtocol.TCP),
            PayloadPort(name="a", port=80, protocol=IpProtocol.UDP, app_protocol="h2c"),
        ),
        affinity_seconds=7,
        traffic_policy="Local",
        distribution="PreferClose",
    )
    plain, full = (
        {"port": 80, "protocol": "TCP"},
        {"port": 80, "protocol": "UDP", "name": "a", "appProtocol": "h2c"},
    )
    assert as_json(service_ports(spec.ports)) == (plain, full)
    assert as_json(service_ports(spec.ports[:1], are_targets=True)) == (plain | {"targetPort": 80},)
    assert as_json(import_spec(spec, ["IPv4"])) == {
        "type": "ClusterSetIP",
        "ports": (plain, full),
        "sessionAffinity": "ClientIP",
        "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 7}},
        "internalTrafficPolicy": "Local",
        "trafficDistribution": "PreferClose",
        "ipFamilies": ("IPv4",),
    }
    nothing = ("sessionAffinityConfig", "internalTrafficPolicy", "trafficDistribution", "ipFamilies")
    empty = {"type": "Headless", "ports": (), "sessionAffinity": None} | dict.fromkeys(nothing)
    headless = ServiceSpec(ports=(), headless=True)
    assert as_json(import_spec(headless, ())) == empty
    importing = as_json(import_spec(headless, (), ips=(), no_affinity="None"))
    assert importing == empty | {"sessionAffinity": "None", "ips": ()}


# --- endpoints --------------------------------------------------------------------------------------------


def read_endpoints(subsets: object, most: int = 1024) -> list[tuple[str, Any, list[str]]]:
    """Return path, ports and addresses of each subset of an export."""
    raw = {"metadata": {"name": "e", "namespace": "mcs"}, "spec": {"endpoints": {"subsets": subsets}}}
    export = read_as(ResourceExport, raw)
    assert export.spec.endpoints is not None
    read = read_subsets(export.spec.endpoints, export, "spec.endpoints", most)
    return [(path, ports, [address.ip for address in addresses]) for path, ports, addresses in read]


def test_subsets_of_endpoints() -> None:
    """Ports are sorted and distinct; an address of a wrong type is empty, and does not refuse the others."""
    udp = {"name": "u", "port": 53, "protocol": "UDP"}
    subsets = [
        {"addresses": [{"ip": "10.0.0.2"}, {"ip": 7}], "ports": [udp, {"name": "a", "port": 1}, udp]},
        {"addresses": [{"ip": "10.0.0.1"}], "ports": []},
    ]
    assert read_endpoints(subsets) == [
        ("spec.endpoints.subsets[0]", (("a", "TCP", 1), ("u", "UDP", 53)), ["10.0.0.2", ""]),
        ("spec.endpoints.subsets[1]", (), ["10.0.0.1"]),
    ]


@pytest.mark.parametrize(
    ("subsets", "path", "code", "reason"),
    [
        ([{}] * 4, "spec.endpoints.subsets", "TooMany", "has 4 entries, at most 3 allowed"),
        (
            [{"ports": [{"port": 1}] * 101}],
            "spec.endpoints.subsets[0].ports",
            "TooMany",
            "has 101 entries, at most 100 allowed",
        ),
        (
            [{}, {"ports": [{"name": "a b", "port": 1}]}],
            "spec.endpoints.subsets[1].ports[0].name",
            "InvalidName",
            'must be a DNS-1123 label: "a b"',
        ),
        (
            [{"ports": [{"port": 1}, {"name": "a"}]}],
            "spec.endpoints.subsets[0].ports[1].port",
            "InvalidPort",
            "must be a port number, is missing",
        ),
        (
            [{"addresses": [{"ip": "10.0.0.1"}] * 40_000}] * 2,
            "spec.endpoints",
            "TooMany",
            "has 80000 addresses, at most 65536 allowed",
        ),
        ([{"ports": 7}], "spec.endpoints.subsets[0].ports", "InvalidValue", "must be a list, is a number"),
    ],
)
def test_invalid_endpoints(subsets: object, path: str, code: str, reason: str) -> None:
    """The error names the export, the place and the limit."""
    with pytest.raises(InputError) as info:
        read_endpoints(subsets, 3)
    error = info.value
    assert (error.subject, error.path, error.code, error.reason) == ("ResourceExport mcs/e", path, code, reason)


def test_limits_of_endpoints() -> None:
    """Values at the limits are read."""
    assert len(read_endpoints([{}] * 3, 3)) == 3
    assert len(read_endpoints([{"ports": [{"name": f"p{n}", "port": n + 1} for n in range(100)]}])[0][1]) == 100
    assert len(read_endpoints([{"addresses": [{"ip": "10.0.0.1"}] * 65_536}])[0][2]) == 65_536


def test_endpoints_that_are_written() -> None:
    """Subsets are sorted by cluster and ports; an address has its hostname."""
    first, second = (("", "TCP", 1),), (("b", "UDP", 2), ("c", "TCP", 3))
    written = (
        {"addresses": ({"ip": "10.0.0.2"},), "ports": ({"port": 1, "protocol": "TCP"},)},
        {
            "addresses": ({"ip": "10.0.0.1", "hostname": "h"},),
            "ports": ({"name": "b", "port": 2, "protocol": "UDP"}, {"name": "c", "port": 3, "protocol": "TCP"}),
        },
    )
    hostnames = {"10.0.0.1": "h", "10.0.0.9": "x"}
    assert as_json(endpoint_subsets({second: ["10.0.0.1"], first: ["10.0.0.2"]}, hostnames)) == written
    grouped = grouped_subsets({("b", first): ["10.0.0.2"], ("a", second): ["10.0.0.1"]}, hostnames)
    assert as_json(grouped) == written[::-1]
    assert as_json(endpoint_ports(first)) == written[0]["ports"]
    assert hostname_of(EndpointAddress(ip="", hostname="web-0")) == "web-0"
    assert hostname_of(EndpointAddress(ip="", hostname="a.b")) == ""


# --- annotations ------------------------------------------------------------------------------------------


def noted(**annotations: str) -> ResourceImport:
    """Return a ResourceImport with annotations of mcagent."""
    notes = {f"mcagent.io/{name.replace('_', '-')}": text for name, text in annotations.items()}
    return read_as(ResourceImport, {"metadata": {"annotations": notes}})


def test_numbers_of_ready_endpoints() -> None:
    """A number counts up to 1,000; a text that is none is reported, and endpoints are counted instead."""
    assert read_ready_of(noted(ready_endpoints="12")) == (12, "")
    assert read_ready_of(noted(ready_endpoints="5000")) == (1000, "")
    assert read_ready_of(noted()) == read_ready_of(None) == (None, "")
    assert read_ready_of(noted(ready_endpoints="many")) == (
        None,
        (
            "annotation mcagent.io/ready-endpoints must be a whole number of at most 6 digits, of which 1000 "
            "count: the endpoints are counted instead"
        ),
    )
    assert ready_of(noted(ready_endpoints="12")) == 12
    assert ready_of(noted(ready_endpoints="x")) is None
    assert ready_annotation({"west": 3, "east": 12}) == "east=12,west=3"
    assert ready_annotation({}) is None
    assert ready_by_cluster(noted(ready_endpoints="east=12,west=3")) == {"east": 12, "west": 3}
    assert ready_by_cluster(noted(ready_endpoints="east,A=1,b=x,c=2=3,d=4")) == {"d": 4}
    assert ready_by_cluster(noted()) == {}


@pytest.mark.parametrize(
    ("text", "may_name", "expected"),
    [
        ("local>*", True, ("local > *", "")),
        ("local>*", False, ("local > *", "")),
        ("east = 3 , west=1", True, ("east=3, west=1", "")),
        (
            "east=3, west=1",
            False,
            (
                "",
                (
                    "annotation mcagent.io/traffic names clusters: ignored unless the namespace is reserved for "
                    "its clusters (annotation mcagent.io/allowed-namespaces of ServiceAccounts on the leader)"
                ),
            ),
        ),
        (
            "a, a",
            True,
            ("", 'annotation mcagent.io/traffic must name each cluster once, has "a" 2 times: ignored'),
        ),
    ],
)
def test_traffic_of_an_export(text: str, may_name: bool, expected: tuple[str, str]) -> None:
    """The text has one form; an invalid one, or one that a cluster may not write, is ignored with a reason."""
    assert traffic_of(noted(traffic=text), may_name=may_name) == expected
    assert traffic_of(noted()) == ("", "")


def test_the_length_of_exported_labels() -> None:
    """128 KiB of JSON are read; longer text counts as no labels."""
    text = '{"a":"1"}'.ljust(128 * 1024)
    assert carried_by(noted(exported_labels=text)).labels == (("a", "1"),)
    assert carried_by(noted(exported_labels=text + " ")).labels == ()


# --- cluster IDs ------------------------------------------------------------------------------------------


def test_uids_of_an_announcement() -> None:
    """Only valid UIDs count; Antrea's members have none."""
    for own, refused, expected in (
        (UID, OTHER_UID, (UID, OTHER_UID)),
        (UID, "a b", (UID, "")),
        ("", OTHER_UID, ("", OTHER_UID)),
        ("x" * 64, "x" * 65, ("x" * 64, "")),
    ):
        notes = {"mcagent.io/cluster-uid": own, "mcagent.io/refused-cluster-uid": refused}
        assert uids(read_as(MemberClusterAnnounce, {"metadata": {"annotations": notes}})) == expected
    assert uids(MemberClusterAnnounce()) == uids(None) == ("", "")
    assert is_uid(UID)
    assert not is_uid("")


def test_a_second_cluster_with_one_id() -> None:
    """It is refused, writes its UID only, and is told both UIDs and what to do."""
    raw: Any = {"metadata": {"namespace": "mcs", "annotations": {"mcagent.io/cluster-uid": OTHER_UID}}}
    announce = read_as(MemberClusterAnnounce, raw)
    refusal = refuse(announce, "east", UID)
    assert refusal is not None
    assert as_json(refusal.body) == {"metadata": {"annotations": {"mcagent.io/refused-cluster-uid": UID}}}
    assert refusal.reason == (
        f"cluster ID east is that of the cluster with UID {OTHER_UID}, and this cluster has UID {UID}: give one "
        "of them another cluster ID (mcagent clusterset leave --clusterset NAME, then join with another "
        "--clusterid). If this cluster replaces the other one, on the leader: kubectl delete "
        "memberclusterannounce -n mcs member-announce-from-east"
    )
    assert is_refusal(f"refused: {refusal.reason}")
    assert not is_refusal("cluster ID east is not permitted")
    assert refuse(announce, "east", OTHER_UID) is None
    assert refuse(announce, "east", "") is None
    for notes in (None, {}, {"mcagent.io/cluster-uid": "a b"}):
        assert refuse(read_as(MemberClusterAnnounce, {"metadata": {"annotations": notes}}), "east", UID) is None
    del raw["metadata"]["namespace"]
    no_namespace = refuse(read_as(MemberClusterAnnounce, raw), "east", UID)
    assert no_namespace is not None
    assert no_namespace.reason.endswith("-n  member-announce-from-east")


def test_the_claim_of_a_cluster_id() -> None:
    """A ClusterClaim has its real name in its metadata, or, before 1.13, in a field."""

    def claim(own: str, name: str, value: str) -> ClusterClaim:
        return read_as(ClusterClaim, {"metadata": {"name": own}, "name": name, "value": value})

    assert claimed([claim("x", "", "a"), claim("id.k8s.io", "", "b"), claim("id.k8s.io", "", "c")]) == "b"
    assert claimed([claim("x", "id.k8s.io", "a")]) == "a"
    assert claimed([claim("id.k8s.io", "clusterset.k8s.io", "a")]) == ""
    assert claimed([]) == ""


# --- conditions -------------------------------------------------------------------------------------------


def test_times_of_conditions() -> None:
    """Times are RFC 3339 in UTC to the second; a text without a zone is no time."""
    assert time_text(1_700_000_000.9) == "2023-11-14T22:13:20Z"
    assert time_of("2023-11-14T22:13:20Z") == time_of("2023-11-15T00:13:20+02:00") == 1_700_000_000
    for text in ("2023-11-14T22:13:20", "yesterday", "", None):
        assert time_of(text) is None


def test_the_time_of_a_condition_is_that_of_its_status() -> None:
    """A new message keeps the time; a new status, or a condition without a time, has the present one."""
    before = [
        Condition(type="Other", status="True", last_transition_time="2020-01-01T00:00:00Z", message="kept"),
        Condition(type="Ready", status="True", last_transition_time="2021-01-01T00:00:00Z"),
        Condition(type="Empty", status="True"),
    ]
    now, text = 1_700_000_000, "2023-11-14T22:13:20Z"
    assert as_json(condition(before, "Ready", "True", reason="A", message="b", now=now)) == {
        "type": "Ready",
        "status": "True",
        "lastTransitionTime": "2021-01-01T00:00:00Z",
        "reason": "A",
        "message": "b",
    }
    changed = {"type": "Ready", "status": "False", "lastTransitionTime": text}
    assert as_json(condition(before, "Ready", "False", now=now)) == changed
    assert condition(before, "Empty", "True", now=now).last_transition_time == text
    assert as_json(condition([], "Ready", "False", now=now)) == changed


# --- policies ---------------------------------------------------------------------------------------------


def carried(manifest: object, *, raw: str | None = None) -> Carried:
    """Return the policy that an export carries."""
    text = base64.b64encode(json.dumps(manifest).encode()).decode() if raw is None else raw
    return read_carried(Field("ResourceExport mcs/e", text, "spec.raw.data"))


def policy(kind: str = "NetworkPolicy", **fields: Any) -> Raw:
    """Return the manifest of a NetworkPolicy."""
    metadata = {"name": "deny", "namespace": "shop"}
    return {"apiVersion": "networking.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": {"a": 1}, **fields}


ADMIN: Raw = {"apiVersion": "policy.networking.k8s.io/v1alpha1", "metadata": {"name": "deny"}, "spec": {"a": 1}}


@pytest.mark.parametrize(
    ("manifest", "expected"),
    [
        (
            policy(),
            Carried(kind=Kind.NETWORK_POLICY, namespace="shop", name="antrea-mc-deny", spec={"a": 1}),
        ),
        (
            {**ADMIN, "kind": "AdminNetworkPolicy"},
            Carried(kind=Kind.ADMIN_NETWORK_POLICY, namespace="", name="antrea-mc-deny", spec={"a": 1}),
        ),
        (
            {**ADMIN, "kind": "BaselineAdminNetworkPolicy"},
            Carried(kind=Kind.BASELINE_ADMIN_NETWORK_POLICY, namespace="", name="default", spec={"a": 1}),
        ),
        (
            {**ADMIN, "apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy"},
            Carried(kind=Kind.UPSTREAM_CLUSTER_NETWORK_POLICY, namespace="", name="antrea-mc-deny", spec={"a": 1}),
        ),
    ],
)
def test_policies_that_an_export_carries(manifest: Raw, expected: Carried) -> None:
    """Members create it with the prefix of imported objects; a baseline policy has one possible name."""
    assert carried(manifest) == expected


def metadata(name: object = "deny", namespace: object = "shop") -> Raw:
    """Return a field `metadata`."""
    return {"metadata": {"name": name, "namespace": namespace}}


KINDS = (
    "networking.k8s.io/v1 NetworkPolicy, policy.networking.k8s.io/v1alpha1 AdminNetworkPolicy, "
    "policy.networking.k8s.io/v1alpha1 BaselineAdminNetworkPolicy, policy.networking.k8s.io/v1alpha2 "
    "ClusterNetworkPolicy"
)


@pytest.mark.parametrize(
    ("read", "path", "code", "reason"),
    [
        (lambda: carried([]), "", "InvalidValue", "must be a mapping, is a list"),
        (lambda: carried(policy(kind="")), ".kind", "InvalidValue", "is missing"),
        (lambda: carried(policy(apiVersion="")), ".apiVersion", "InvalidValue", "is missing"),
        (
            lambda: carried(policy(kind="P\n")),
            ".kind",
            "InvalidValue",
            f"is not a replicated kind ({KINDS}): networking.k8s.io/v1 P\\n",
        ),
        (
            lambda: carried(policy() | metadata(namespace=None)),
            ".metadata.namespace",
            "InvalidValue",
            "must be given for a NetworkPolicy",
        ),
        (
            lambda: carried({**ADMIN, "kind": "AdminNetworkPolicy"} | metadata()),
            ".metadata.namespace",
            "InvalidValue",
            "must be left out for a AdminNetworkPolicy",
        ),
        (
            lambda: carried(policy() | metadata(namespace="/")),
            ".metadata.namespace",
            "InvalidName",
            'not a name (RFC 1123 subdomain): "/"',
        ),
        (
            lambda: carried(policy() | metadata("/")),
            ".metadata.name",
            "InvalidName",
            'not a name (RFC 1123 subdomain): "/"',
        ),
        (lambda: carried(policy() | metadata("a" * 244)), ".metadata.name", "InvalidValue", "is too long"),
        (
            lambda: carried(policy() | metadata(7)),
            ".metadata.name",
            "InvalidValue",
            "must be a string, is a number",
        ),
        (lambda: carried(policy(spec={})), ".spec", "InvalidValue", "must be a non-empty mapping"),
        (lambda: carried(policy(spec=[])), ".spec", "InvalidValue", "must be a mapping, is a list"),
        (lambda: carried(None, raw="a" * 87_386), "", "TooLarge", "has more than 65536 bytes"),
        (
            lambda: carried(None, raw="?"),
            "",
            "InvalidValue",
            "must be a manifest as JSON, in base64: Only base64 data is allowed",
        ),
        (
            lambda: carried(None, raw="e3s="),
            "",
            "InvalidValue",
            "must be a manifest as JSON, in base64: Expecting property name",
        ),
        (lambda: read_carried(Field("ResourceExport mcs/e", None, "spec.raw.data")), "", "Missing", "is missing"),
    ],
)
def test_policies_that_cannot_be_carried(read: Callable[[], Carried], path: str, code: str, reason: str) -> None:
    """The error names the export, the field of the manifest and what is valid."""
    with pytest.raises(InputError) as info:
        read()
    error = info.value
    assert (error.subject, error.path, error.code) == ("ResourceExport mcs/e", f"spec.raw.data{path}", code)
    assert error.reason.startswith(reason)


def test_the_largest_policy_that_is_carried() -> None:
    """64 KiB of JSON are read, and the longest name."""
    manifest = policy(spec={"a": ""})
    manifest["spec"]["a"] = "x" * (64 * 1024 - len(json.dumps(manifest)))
    assert len(json.dumps(manifest)) == 64 * 1024
    assert carried(manifest).name == "antrea-mc-deny"
    assert carried(policy() | metadata("a" * 243)).name == "antrea-mc-" + "a" * 243


def test_a_network_policy_as_the_api_server_stores_it() -> None:
    """It lacks what Go leaves out, has the defaults, and keeps empty selectors; other kinds are stored as sent."""
    ports = [{"port": 53}, {"port": 53, "protocol": "UDP"}]
    peers = [
        {"podSelector": {"matchLabels": {}, "matchExpressions": []}, "ipBlock": None},
        {"namespaceSelector": {}},
    ]
    spec = {"ingress": [{"from": [], "ports": ports}, {}], "egress": [{"to": peers}], "policyTypes": []}
    assert as_stored(Kind.NETWORK_POLICY, spec) == {
        "podSelector": {},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"ports": [{"port": 53, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}]}, {}],
        "egress": [{"to": [{"podSelector": {}}, {"namespaceSelector": {}}]}],
    }
    assert as_stored(Kind.NETWORK_POLICY, {"egress": []})["policyTypes"] == ["Ingress"]
    assert as_stored(Kind.ADMIN_NETWORK_POLICY, spec) == spec
