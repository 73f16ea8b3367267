"""Complete objects of each kind: every field of the value, and the exact error of each invalid field."""

from __future__ import annotations

import base64
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from mcagent.model.errors import InputError
from mcagent.model.objects import (
    ApiObject,
    ClusterInfoImport,
    Endpoint,
    EndpointPort,
    EndpointSlice,
    Gateway,
    IpProtocol,
    Kind,
    LabelIdentity,
    Meta,
    Namespace,
    Node,
    Pod,
    Service,
    ServiceExport,
    ServiceImport,
    ServicePort,
    WireGuardInfo,
)
from mcagent.model.parsing.decode import read_object
from mcagent.model.parsing.node_key import NODE_KEY_ANNOTATION, node_key_text, read_node_key
from mcagent.model.parsing.parse import parse_object
from mcagent.model.policies import Tier
from mcagent.model.problem import Problem, Severity
from mcagent.model.traffic import Share, Traffic

KEY, NEXT_KEY = (base64.b64encode(bytes(range(first, first + 32))).decode() for first in (0, 1))
LABEL = "ns:kubernetes.io/metadata.name=shop&pod:app=db"

Raw = dict[str, Any]


def meta(kind: Kind, *, namespaced: bool = True) -> Meta:
    """Return the metadata of the objects in CASES."""
    return Meta(
        kind=kind,
        name="it",
        namespace="space" if namespaced else "",
        created="2026-11-20T10:00:00Z",
        resource_version="7",
    )


def raw_of(value: ApiObject, fields: Raw) -> Raw:
    """Return the JSON of an object; annotations and labels of `fields` are those of its metadata."""
    fields = dict(fields)
    metadata = {
        "name": value.meta.name,
        "namespace": value.meta.namespace or None,
        "creationTimestamp": "2026-11-20T12:00:00+02:00",
        "resourceVersion": value.meta.resource_version,
        "annotations": fields.pop("annotations", None),
        "labels": fields.pop("labels", None),
    }
    return {"metadata": metadata, **fields}


GATEWAY = Gateway(
    meta=meta(Kind.GATEWAY),
    gateway_ip=ip_address("192.0.2.1"),
    internal_ip=ip_address("192.0.2.2"),
    service_cidr=ip_network("10.96.0.0/12"),
    wireguard=WireGuardInfo(public_key=KEY, next_public_key=NEXT_KEY, port=51820),
)
CLUSTER = ClusterInfoImport(
    meta=meta(Kind.CLUSTER_INFO_IMPORT),
    cluster_id="east",
    service_cidr=ip_network("10.97.0.0/16"),
    gateway_ips=(ip_address("192.0.2.1"), ip_address("192.0.2.2"), ip_address("192.0.2.3")),
    pod_cidrs=(ip_network("10.20.0.0/16"), ip_network("10.10.0.0/16")),
    wireguard=WireGuardInfo(public_key=KEY),
    gateway_wireguard=(
        (ip_address("192.0.2.1"), WireGuardInfo(public_key=KEY)),
        (ip_address("192.0.2.3"), WireGuardInfo(public_key=NEXT_KEY, port=1)),
    ),
    granted={"10.97.0.0/16": "2026-01-01T00:00:00.000000Z", "10.9.0.0/16": ""},
    our_agents=True,
    protected_cidrs=(ip_network("10.0.0.0/16"), ip_network("10.1.0.0/16")),
    refused_pod_cidrs=(ip_network("10.2.0.0/16"),),
)
NODE = Node(
    meta=meta(Kind.NODE, namespaced=False),
    internal_ips=(ip_address("192.0.2.1"), ip_address("fd00::1")),
    external_ips=(ip_address("198.51.100.7"),),
    pod_cidrs=(ip_network("10.1.0.0/24"), ip_network("fd01::/64")),
    ready=False,
    unschedulable=True,
    gateway_annotation=True,
    gateway_ip=ip_address("10.9.0.7"),
    drain=True,
    zone="zone-a",
    wireguard=WireGuardInfo(public_key=KEY, port=51821),
)
POD = Pod(
    meta=meta(Kind.POD),
    node_name="n1",
    ips=(ip_address("10.1.0.5"), ip_address("fd00::5")),
    labels="app=db,tier=1",
    ports=(("http", 6, 80), ("dns", 17, 53), ("sig", 132, 9)),
)
SERVICE = Service(
    meta=meta(Kind.SERVICE),
    cluster_ips=(ip_address("10.96.0.7"), ip_address("fd00::7")),
    ports=(
        ServicePort(name="http", port=80, protocol=IpProtocol.TCP),
        ServicePort(name="dns\\n", port=53, protocol=IpProtocol.UDP),
    ),
    client_ip_affinity=True,
)
SLICE = EndpointSlice(
    meta=meta(Kind.ENDPOINT_SLICE),
    service_name="web",
    imported_name="web-imported",
    source_cluster="east",
    told_ready=12,
    endpoints=(
        Endpoint(addresses=(ip_address("10.1.0.5"),), node_name="n1", zone="zone-a", pod="web-1"),
        Endpoint(addresses=(ip_address("10.1.0.6"),), ready=False, serving=True, terminating=True, pod="web-2"),
        Endpoint(addresses=(ip_address("10.1.0.7"),), ready=False, serving=False),
        Endpoint(addresses=(ip_address("10.1.0.8"),), ready=True, serving=False),
    ),
    ports=(EndpointPort(name="http", port=8080, protocol=IpProtocol.UDP), EndpointPort(name="all", port=None)),
)
IMPORT = ServiceImport(
    meta=meta(Kind.SERVICE_IMPORT),
    ips=(ip_address("10.96.0.9"),),
    ports=(ServicePort(name="http", port=80, protocol=IpProtocol.SCTP),),
    client_ip_affinity=True,
    distribution="PreferClose",
    traffic=Traffic(((Share("local"),), (Share("*"),))),
    exported_traffic=Traffic(((Share("east", 3), Share("west", 1)),)),
)

CASES: list[tuple[ApiObject, Raw]] = [
    (
        GATEWAY,
        {
            "gatewayIP": "192.0.2.1",
            "internalIP": "192.0.2.2",
            "serviceCIDR": "10.96.0.0/12",
            "wireGuard": {"publicKey": KEY, "nextPublicKey": NEXT_KEY, "port": 51820},
        },
    ),
    (
        CLUSTER,
        {
            "spec": {
                "clusterID": "east",
                "serviceCIDR": "10.97.0.0/16",
                "podCIDRs": ["10.20.0.0/16", "10.10.0.0/16"],
                "gatewayInfos": [
                    {"gatewayIP": "192.0.2.1", "wireGuard": {"publicKey": KEY}},
                    {"gatewayIP": "192.0.2.2", "wireGuard": {"publicKey": ""}},
                    {"gatewayIP": "192.0.2.3", "wireGuard": {"publicKey": NEXT_KEY, "port": 1}},
                    {"gatewayIP": "192.0.2.1", "wireGuard": {"publicKey": NEXT_KEY}},  # the first one counts
                ],
                "wireGuard": {"publicKey": KEY},
            },
            "annotations": {
                "mcagent.io/claims": '{"10.97.0.0/16":"2026-01-01T00:00:00Z","10.9.0.0/16":""}',
                "mcagent.io/agents": "mcagent",
                "mcagent.io/protected-claims": "10.1.0.0/16,10.0.0.0/16,192.0.2.9",
                "mcagent.io/refused-pod-cidrs": "10.2.0.0/16",
            },
        },
    ),
    (
        NODE,
        {
            "spec": {"podCIDR": "10.9.0.0/24", "podCIDRs": ["10.1.0.0/24", "fd01::/64"], "unschedulable": True},
            "status": {
                "addresses": [
                    {"type": "InternalIP", "address": "192.0.2.1"},
                    {"type": "Hostname", "address": "n1"},
                    {"type": "ExternalIP", "address": "198.51.100.7"},
                    {"type": "InternalIP", "address": "fd00::1"},
                ],
                "conditions": [{"type": "Ready", "status": "Unknown"}, {"type": "Other", "status": "True"}],
            },
            "annotations": {
                "multicluster.antrea.io/gateway": "",
                "multicluster.antrea.io/gateway-ip": "10.9.0.7",
                "mcagent.io/drain": "true",
                "mcagent.io/wireguard": f'{{"publicKey":"{KEY}","port":51821}}',
            },
            "labels": {"topology.kubernetes.io/zone": "zone-a"},
        },
    ),
    (
        POD,
        {
            "spec": {
                "nodeName": "n1",
                "containers": [
                    {"ports": [{"name": "http", "containerPort": 80}, {"containerPort": 81}]},
                    {},
                    {
                        "ports": [
                            {"name": "dns", "containerPort": 53, "protocol": "UDP"},
                            {"name": "sig", "containerPort": 9, "protocol": "SCTP"},
                        ]
                    },
                ],
            },
            "status": {"phase": "Running", "podIP": "10.1.0.5", "podIPs": [{"ip": "10.1.0.5"}, {"ip": "fd00::5"}]},
            "labels": {"tier": "1", "app": "db"},
        },
    ),
    (
        SERVICE,
        {
            "spec": {
                "clusterIP": "10.96.0.7",
                "clusterIPs": ["10.96.0.7", "fd00::7"],
                "ports": [{"name": "http", "port": 80}, {"name": "dns\n", "port": 53, "protocol": "UDP"}],
                "sessionAffinity": "ClientIP",
            }
        },
    ),
    (
        SLICE,
        {
            "addressType": "IPv4",
            "endpoints": [
                {
                    "addresses": ["10.1.0.5"],
                    "nodeName": "n1",
                    "zone": "zone-a",
                    "targetRef": {"kind": "Pod", "name": "web-1", "namespace": "space"},
                },
                {
                    "addresses": ["10.1.0.6"],
                    "conditions": {"ready": False, "serving": True, "terminating": True},
                    "targetRef": {"kind": "Pod", "name": "web-2"},
                },
                {
                    "addresses": ["10.1.0.7"],
                    "conditions": {"ready": False},
                    "targetRef": {"kind": "Pod", "name": "web-3", "namespace": "other"},
                },
                {
                    "addresses": ["10.1.0.8"],
                    "conditions": {"ready": True, "serving": False, "terminating": False},
                    "targetRef": {"kind": "ExternalEntity", "name": "web-4", "namespace": "space"},
                },
            ],
            "ports": [{"name": "http", "port": 8080, "protocol": "UDP"}, {"name": "all"}],
            "labels": {
                "kubernetes.io/service-name": "web",
                "multicluster.kubernetes.io/service-name": "web-imported",
                "multicluster.kubernetes.io/source-cluster": "east",
            },
            "annotations": {"mcagent.io/ready-endpoints": "12"},
        },
    ),
    (ServiceExport(meta=meta(Kind.SERVICE_EXPORT)), {"spec": {"exportedLabels": {"a": 1}}}),
    (
        IMPORT,
        {
            "spec": {
                "ips": ["10.96.0.9"],
                "ports": [{"name": "http", "port": 80, "protocol": "SCTP"}],
                "sessionAffinity": "ClientIP",
                "trafficDistribution": "PreferClose",
            },
            "annotations": {"mcagent.io/traffic": "local > *", "mcagent.io/exported-traffic": "east=3, west=1"},
        },
    ),
    (
        Namespace(meta=meta(Kind.NAMESPACE, namespaced=False), labels="kubernetes.io/metadata.name=it,team=a"),
        {"labels": {"team": "a"}},
    ),
    (
        LabelIdentity(
            meta=meta(Kind.LABEL_IDENTITY, namespaced=False),
            label=LABEL,
            id=7,
            clusters=frozenset({"east", "west"}),
        ),
        {"spec": {"label": LABEL, "id": 7}, "annotations": {"mcagent.io/exporters": "east,,west"}},
    ),
    (Tier(meta=meta(Kind.TIER, namespaced=False), priority=50), {"spec": {"priority": 50}}),
]
RAW = {value.meta.kind: raw_of(value, fields) for value, fields in CASES}


def changed(kind: Kind, path: str, replacement: object) -> Raw:
    """Return the JSON of a kind with another value at a path such as `spec.ports.0.port`."""

    def put(value: Any, steps: list[str]) -> Any:
        step, *inner = steps
        if isinstance(value, list):
            number = int(step)
            return [*value[:number], put(value[number], inner) if inner else replacement, *value[number + 1 :]]
        return {**value, step: put(value.get(step) or {}, inner) if inner else replacement}

    result: Raw = put(RAW[kind], path.replace("[", ".").replace("]", "").split("."))
    return result


@pytest.mark.parametrize(
    ("value", "fields"), CASES, ids=lambda case: getattr(getattr(case, "meta", 0), "kind", "")
)
def test_complete_objects(value: ApiObject, fields: Raw) -> None:
    """Each field of the API becomes its field of the value, from JSON and from a decoded struct."""
    raw = raw_of(value, fields)
    for source in (raw, read_object(value.meta.kind, raw)):
        parsed = parse_object(source, value.meta.kind)
        assert parsed.value == value
        assert parsed.meta == value.meta
        assert parsed.problems == ()


@pytest.mark.parametrize(
    ("kind", "path", "replacement", "attribute", "expected"),
    [
        (Kind.GATEWAY, "serviceCIDR", None, "service_cidr", None),
        (Kind.GATEWAY, "wireGuard", None, "wireguard", None),
        (Kind.GATEWAY, "wireGuard", {"publicKey": KEY}, "wireguard", WireGuardInfo(public_key=KEY)),
        (Kind.CLUSTER_INFO_IMPORT, "metadata.annotations", None, "granted", {}),
        (Kind.CLUSTER_INFO_IMPORT, "metadata.annotations", {"mcagent.io/claims": ""}, "granted", {}),
        (Kind.CLUSTER_INFO_IMPORT, "metadata.annotations", {"mcagent.io/agents": "other"}, "our_agents", False),
        (Kind.CLUSTER_INFO_IMPORT, "metadata.annotations", None, "protected_cidrs", ()),
        (Kind.CLUSTER_INFO_IMPORT, "metadata.annotations", None, "refused_pod_cidrs", ()),
        (
            Kind.CLUSTER_INFO_IMPORT,
            "spec.gatewayInfos",
            [{"gatewayIP": f"192.0.2.{number}"} for number in range(64)],
            "gateway_wireguard",
            (),
        ),
        (Kind.NODE, "spec.podCIDRs", None, "pod_cidrs", (ip_network("10.9.0.0/24"),)),
        (Kind.NODE, "spec", None, "pod_cidrs", ()),
        (Kind.NODE, "status.conditions", [{"type": "Ready", "status": "True"}], "ready", True),
        (Kind.NODE, "status.conditions", None, "ready", True),
        (Kind.NODE, "metadata.annotations", {"mcagent.io/drain": "yes"}, "drain", False),
        (Kind.NODE, "metadata.annotations", None, "gateway_annotation", False),
        (Kind.NODE, "metadata.annotations", None, "gateway_ip", None),
        (Kind.NODE, "metadata.annotations", None, "wireguard", None),
        (Kind.NODE, "metadata.labels", None, "zone", ""),
        (Kind.NODE, "metadata.labels", {"topology.kubernetes.io/zone": "\x1b"}, "zone", "\\x1b"),
        (Kind.POD, "status.podIPs", None, "ips", (ip_address("10.1.0.5"),)),
        (Kind.SERVICE, "spec.clusterIPs", None, "cluster_ips", (ip_address("10.96.0.7"),)),
        (Kind.SERVICE, "spec.clusterIPs", ["None"], "cluster_ips", ()),
        (Kind.SERVICE, "spec.type", "ExternalName", "cluster_ips", ()),
        (Kind.SERVICE, "spec.sessionAffinity", "None", "client_ip_affinity", False),
        (Kind.ENDPOINT_SLICE, "metadata.annotations", None, "told_ready", None),
        (Kind.SERVICE_IMPORT, "spec.sessionAffinity", "None", "client_ip_affinity", False),
        (Kind.SERVICE_IMPORT, "spec.trafficDistribution", "\n", "distribution", "\\n"),
        (Kind.SERVICE_IMPORT, "metadata.annotations", None, "traffic", None),
        (Kind.SERVICE_IMPORT, "metadata.annotations", None, "exported_traffic", None),
        (Kind.LABEL_IDENTITY, "metadata.annotations", None, "clusters", None),
        (Kind.LABEL_IDENTITY, "metadata.annotations", {"mcagent.io/exporters": ""}, "clusters", frozenset()),
        (Kind.LABEL_IDENTITY, "spec.id", 1, "id", 1),
        (Kind.LABEL_IDENTITY, "spec.id", 0xFFFFFE, "id", 0xFFFFFE),
        (Kind.TIER, "spec.priority", 0, "priority", 0),
        (Kind.TIER, "spec.priority", 255, "priority", 255),
    ],
)
def test_other_values_of_a_field(
    kind: Kind, path: str, replacement: object, attribute: str, expected: object
) -> None:
    """Absent fields have their default, and values at a limit are accepted; nothing is reported."""
    parsed = parse_object(changed(kind, path, replacement), kind)
    assert getattr(parsed.value, attribute) == expected
    assert parsed.problems == ()


def test_a_pod_in_the_host_network_has_the_addresses_of_its_node() -> None:
    """Its labels and ports are not read: no policy can select it."""
    parsed = parse_object(changed(Kind.POD, "spec.hostNetwork", True), Kind.POD)
    assert parsed.value == Pod(
        meta=POD.meta, node_name="n1", host_ips=(ip_address("10.1.0.5"), ip_address("fd00::5"))
    )


def test_a_sidecar_names_ports_and_an_init_container_that_ends_does_not() -> None:
    """As for Services: kubernetes/pkg/api/v1/pod/util.go, FindPort."""
    init_containers = [
        {"ports": [{"name": "metrics", "containerPort": 8099}], "restartPolicy": "Always"},
        {"ports": [{"name": "setup", "containerPort": 8100}]},
    ]
    parsed = parse_object(changed(Kind.POD, "spec.initContainers", init_containers), Kind.POD)
    assert isinstance(parsed.value, Pod)
    assert parsed.value.ports == (*POD.ports, ("metrics", 6, 8099))


def test_slices_without_a_service_or_with_host_names_are_skipped() -> None:
    """They have a name, and no value."""
    for path, replacement in (("metadata.labels", None), ("addressType", "FQDN")):
        parsed = parse_object(changed(Kind.ENDPOINT_SLICE, path, replacement), Kind.ENDPOINT_SLICE)
        assert (parsed.value, parsed.meta, parsed.problems) == (None, SLICE.meta, ())


@pytest.mark.parametrize(
    ("kind", "path", "replacement", "code", "reason"),
    [
        (Kind.GATEWAY, "gatewayIP", "x", "InvalidAddress", 'not an IP address: "x"'),
        (Kind.GATEWAY, "gatewayIP", "", "Missing", "is missing"),
        (Kind.GATEWAY, "internalIP", "", "Missing", "is missing"),
        (Kind.GATEWAY, "internalIP", "x", "InvalidAddress", 'not an IP address: "x"'),
        (Kind.GATEWAY, "serviceCIDR", "x", "InvalidCIDR", 'not a CIDR: "x"'),
        (Kind.CLUSTER_INFO_IMPORT, "spec.clusterID", "", "Missing", "is missing"),
        (Kind.CLUSTER_INFO_IMPORT, "spec.gatewayInfos[1].gatewayIP", "", "Missing", "is missing"),
        (Kind.CLUSTER_INFO_IMPORT, "spec.podCIDRs[1]", "x", "InvalidCIDR", 'not a CIDR: "x"'),
        (Kind.CLUSTER_INFO_IMPORT, "spec.serviceCIDR", "x", "InvalidCIDR", 'not a CIDR: "x"'),
        (Kind.NODE, "status.addresses[3].address", "x", "InvalidAddress", 'not an IP address: "x"'),
        (Kind.NODE, "spec.podCIDRs[0]", "x", "InvalidCIDR", 'not a CIDR: "x"'),
        (Kind.NODE, "status.conditions", {}, "InvalidValue", "must be a list, is a mapping"),
        (Kind.POD, "spec.nodeName", "a b", "InvalidName", 'not a name (RFC 1123 subdomain): "a b"'),
        (Kind.POD, "status.podIPs[1]", {"ip": "x"}, "InvalidAddress", 'not an IP address: "x"'),
        (Kind.POD, "status.podIPs", 7, "InvalidValue", "must be a list, is a number"),
        (Kind.SERVICE, "spec.clusterIPs[1]", "x", "InvalidAddress", 'not an IP address: "x"'),
        (Kind.ENDPOINT_SLICE, "endpoints[2].addresses[0]", "", "InvalidAddress", 'not an IP address: ""'),
        (
            Kind.ENDPOINT_SLICE,
            "endpoints[2].nodeName",
            "a b",
            "InvalidName",
            'not a name (RFC 1123 subdomain): "a b"',
        ),
        (Kind.SERVICE_IMPORT, "spec.ips[0]", "x", "InvalidAddress", 'not an IP address: "x"'),
        (Kind.LABEL_IDENTITY, "spec.label", "x", "InvalidValue", "must be ns:<labels>&pod:<labels>"),
        (Kind.LABEL_IDENTITY, "spec.id", 0, "InvalidValue", "must be from 1 to 16777214, is 0"),
        (Kind.LABEL_IDENTITY, "spec.id", 2**24 - 1, "InvalidValue", "must be from 1 to 16777214, is 16777215"),
        (Kind.TIER, "spec.priority", -1, "InvalidValue", "must be from 0 to 255, is -1"),
        (Kind.TIER, "spec.priority", 256, "InvalidValue", "must be from 0 to 255, is 256"),
        (Kind.TIER, "spec.priority", None, "InvalidValue", "must be an integer, is missing"),
    ],
)
def test_invalid_fields_refuse_the_object(
    kind: Kind, path: str, replacement: object, code: str, reason: str
) -> None:
    """The error names the object and the field, and says what is wrong."""
    with pytest.raises(InputError) as info:
        parse_object(changed(kind, path, replacement), kind)
    error = info.value
    namespaced = kind not in (Kind.NODE, Kind.LABEL_IDENTITY, Kind.TIER)
    assert (error.subject, error.path) == (f"{kind} space/it" if namespaced else f"{kind} it", path)
    assert (error.code, error.reason) == (code, reason)


@pytest.mark.parametrize(
    ("kind", "changes", "path", "reason"),
    [
        (Kind.POD, {"podIPs": None, "podIP": "x"}, "status.podIP", 'not an IP address: "x"'),
        (Kind.SERVICE, {"clusterIPs": None, "clusterIP": "x"}, "spec.clusterIP[0]", 'not an IP address: "x"'),
        (Kind.NODE, {"podCIDRs": None, "podCIDR": "x"}, "spec.podCIDR", 'not a CIDR: "x"'),
        (Kind.NODE, {"addresses": [{}] * 1025}, "status.addresses", "has 1025 entries, at most 1024 allowed"),
        (Kind.SERVICE, {"ports": [{"port": 1}] * 1025}, "spec.ports", "has 1025 entries, at most 1024 allowed"),
    ],
)
def test_the_older_field_of_two(kind: Kind, changes: Raw, path: str, reason: str) -> None:
    """Where a list is absent, its single predecessor counts, and is named in the error; lists are bounded."""
    part = path.partition(".")[0]
    raw = {**RAW[kind], part: {**RAW[kind][part], **changes}}
    with pytest.raises(InputError) as info:
        parse_object(raw, kind)
    assert (info.value.path, info.value.reason) == (path, reason)


@pytest.mark.parametrize("name", ["endpoints", "ports"])
def test_slices_are_bounded(name: str) -> None:
    """The API server accepts 1,000 endpoints; more than 1,024 entries are an error."""
    with pytest.raises(InputError) as info:
        parse_object(changed(Kind.ENDPOINT_SLICE, name, [{}] * 1025), Kind.ENDPOINT_SLICE)
    assert (info.value.path, info.value.code) == (name, "TooMany")


@pytest.mark.parametrize(
    ("kind", "annotation", "text", "message", "attribute"),
    [
        (
            Kind.NODE,
            "multicluster.antrea.io/gateway-ip",
            "x",
            'not an IP address: "x"',
            "gateway_ip",
        ),
        (Kind.NODE, NODE_KEY_ANNOTATION, "{", "not JSON", "wireguard"),
        (Kind.NODE, NODE_KEY_ANNOTATION, "7" * 1025, "has 1025 characters, at most 1024 allowed", "wireguard"),
        (Kind.NODE, NODE_KEY_ANNOTATION, "7", "must be a mapping, is a number", "wireguard"),
        (
            Kind.SERVICE_IMPORT,
            "mcagent.io/traffic",
            "a=2000",
            'must have weights from 0 to 1000, "a=2000" has not',
            "traffic",
        ),
        (
            Kind.SERVICE_IMPORT,
            "mcagent.io/exported-traffic",
            "a, a",
            'must name each cluster once, has "a" 2 times',
            "exported_traffic",
        ),
        (
            Kind.ENDPOINT_SLICE,
            "mcagent.io/ready-endpoints",
            "many",
            "must be a whole number of at most 6 digits, of which 1000 count",
            "told_ready",
        ),
    ],
)
def test_an_invalid_annotation_is_a_warning(
    kind: Kind, annotation: str, text: str, message: str, attribute: str
) -> None:
    """The object is used as without the annotation."""
    parsed = parse_object(changed(kind, "metadata.annotations", {annotation: text}), kind)
    assert getattr(parsed.value, attribute) is None
    (problem,) = parsed.problems
    assert problem.subject == parsed.meta.subject
    assert problem.path == f"metadata.annotations.{annotation}"
    assert (problem.message, problem.severity) == (message, Severity.WARNING)


@pytest.mark.parametrize(
    ("kind", "path", "refused"),
    [
        (Kind.GATEWAY, "status.links", False),
        (Kind.GATEWAY, "wireGuard.publicKey", False),
        (Kind.CLUSTER_INFO_IMPORT, "spec.wireGuard.publicKey", False),
        (Kind.CLUSTER_INFO_IMPORT, "spec.gatewayInfos[0].wireGuard.publicKey", False),
        (Kind.CLUSTER_INFO_IMPORT, "metadata.annotations", False),
        (Kind.CLUSTER_INFO_IMPORT, "metadata.finalizers", False),
        (Kind.CLUSTER_INFO_IMPORT, "metadata.uid", False),
        (Kind.CLUSTER_INFO_IMPORT, "metadata.generation", False),
        (Kind.CLUSTER_INFO_IMPORT, "metadata.deletionTimestamp", False),
        (Kind.CLUSTER_INFO_IMPORT, "metadata.labels", True),
        (Kind.CLUSTER_INFO_IMPORT, "spec.gatewayInfos[0].gatewayIP", True),
        (Kind.SERVICE, "spec.sessionAffinityConfig", False),
        (Kind.SERVICE, "spec.sessionAffinity", True),
        (Kind.NODE, "status.addresses", True),
        (Kind.POD, "status.podIP", True),
        (Kind.SERVICE_EXPORT, "spec.exportedLabels", False),
        (Kind.SERVICE_EXPORT, "metadata.labels", False),
        (Kind.SERVICE_IMPORT, "status.clusters", False),
    ],
)
def test_wrong_types_of_fields(kind: Kind, path: str, refused: bool) -> None:
    """A wrong type in a field that forwarding does not need is reported only; any other refuses the object."""
    raw = changed(kind, path, {"a": 7} if path in ("metadata.annotations", "metadata.labels") else True)
    if refused:
        with pytest.raises(InputError) as info:
            parse_object(raw, kind)
        assert info.value.path.startswith(path)
    else:
        parsed = parse_object(raw, kind)
        assert parsed.value is not None
        (problem,) = parsed.problems
        assert problem.path.startswith(path)
        assert problem.subject == parsed.meta.subject


@pytest.mark.parametrize(
    ("metadata", "path", "code", "reason"),
    [
        ({"name": None}, "metadata.name", "Missing", "is missing"),
        ({"name": ""}, "metadata.name", "Missing", "is missing"),
        ({"name": 7}, "metadata.name", "InvalidValue", "must be a string, is a number"),
        ({"name": "a b"}, "metadata.name", "InvalidName", 'not a name (RFC 1123 subdomain): "a b"'),
        ({"namespace": []}, "metadata.namespace", "InvalidValue", "must be a string, is a list"),
        ({"namespace": "/"}, "metadata.namespace", "InvalidName", 'not a name (RFC 1123 subdomain): "/"'),
    ],
)
def test_an_object_without_a_usable_name(metadata: Raw, path: str, code: str, reason: str) -> None:
    """The kind alone is named, since no other object is meant."""
    raw = {**RAW[Kind.GATEWAY], "metadata": RAW[Kind.GATEWAY]["metadata"] | metadata}
    with pytest.raises(InputError) as info:
        parse_object(raw, Kind.GATEWAY)
    error = info.value
    assert (error.subject, error.path, error.code, error.reason) == ("Gateway", path, code, reason)


@pytest.mark.parametrize(
    ("raw", "kind", "subject", "path", "reason"),
    [
        ([], None, "object", "", "must be a mapping, is a list"),
        (None, Kind.NODE, "Node", "", "must be a mapping, is missing"),
        ({"metadata": 7}, Kind.NODE, "Node", "metadata", "must be a mapping, is a number"),
        (
            {"apiVersion": "v1", "kind": "\x1b" + "K" * 100},
            None,
            "object",
            "kind",
            "not a kind that is read here: v1 \\x1b" + "K" * 60 + "...",
        ),
    ],
)
def test_what_is_no_object(raw: object, kind: Kind | None, subject: str, path: str, reason: str) -> None:
    """The error says what is expected; text of others is short and printable."""
    with pytest.raises(InputError) as info:
        parse_object(raw, kind)
    assert (info.value.subject, info.value.path, info.value.reason) == (subject, path, reason)


def test_the_resource_version_is_printable() -> None:
    """It occurs in logs."""
    raw = changed(Kind.GATEWAY, "metadata.resourceVersion", "\x1b" * 100)
    assert parse_object(raw, Kind.GATEWAY).meta.resource_version == "\\x1b" * 16 + "..."


@pytest.mark.parametrize("label", ["kubernetes.io/service-name", "multicluster.kubernetes.io/source-cluster"])
def test_labels_of_a_slice_are_names(label: str) -> None:
    """A label that is no name refuses the slice; the path is that of the label."""
    labels = RAW[Kind.ENDPOINT_SLICE]["metadata"]["labels"] | {label: "a b"}
    with pytest.raises(InputError) as info:
        parse_object(changed(Kind.ENDPOINT_SLICE, "metadata.labels", labels), Kind.ENDPOINT_SLICE)
    assert (info.value.subject, info.value.path) == ("EndpointSlice space/it", f"metadata.labels.{label}")


# --- the key of a Node ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("info", "text"),
    [
        (WireGuardInfo(public_key=KEY), f'{{"publicKey":"{KEY}"}}'),
        (
            WireGuardInfo(public_key=KEY, next_public_key=NEXT_KEY, port=7),
            f'{{"publicKey":"{KEY}","nextPublicKey":"{NEXT_KEY}","port":7}}',
        ),
    ],
)
def test_the_key_of_a_node(info: WireGuardInfo, text: str) -> None:
    """The annotation has the fields of a Gateway's `wireGuard`, and is read as it is written."""
    assert node_key_text(info) == text
    assert read_node_key(text, "Node n1") == info
    assert read_node_key(text.ljust(1024), "Node n1") == info


@pytest.mark.parametrize("text", ["", "{}", '{"publicKey":""}', '{"port":7}', "null"])
def test_a_node_without_a_key(text: str) -> None:
    """A port alone is no key."""
    assert read_node_key(text, "Node n1") is None


@pytest.mark.parametrize(
    ("fields", "path", "code"),
    [
        ('"publicKey":"x"', "publicKey", "InvalidKey"),
        (f'"publicKey":"{KEY}","nextPublicKey":"x"', "nextPublicKey", "InvalidKey"),
        (f'"publicKey":"{KEY}","port":0', "port", "InvalidPort"),
        (f'"publicKey":"{KEY}","port":"7"', "port", "InvalidPort"),
    ],
)
def test_an_invalid_key_of_a_node(fields: str, path: str, code: str) -> None:
    """The error names the Node, the annotation and the field in it."""
    with pytest.raises(InputError) as info:
        read_node_key(f"{{{fields}}}", "Node n1")
    error = info.value
    assert (error.subject, error.code) == ("Node n1", code)
    assert error.path == f"metadata.annotations.mcagent.io/wireguard.{path}"


def test_an_invalid_key_is_reported_beside_the_object() -> None:
    """The problem of a gateway's key names the field; the object has no key."""
    raw = changed(Kind.GATEWAY, "wireGuard.nextPublicKey", "x")
    parsed = parse_object(raw, Kind.GATEWAY)
    assert isinstance(parsed.value, Gateway)
    assert parsed.value.wireguard is None
    assert parsed.problems == (
        Problem(
            "Gateway space/it",
            "wireGuard.nextPublicKey",
            "InvalidKey",
            "not a WireGuard public key (base64 of 32 bytes)",
        ),
    )
