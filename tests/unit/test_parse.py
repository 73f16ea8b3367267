"""Raw objects to values: what is read from where, and how bad input is told."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcagent.kube.trim import trim
from mcagent.model.errors import InputError
from mcagent.model.kinds import AGENT_KINDS, KINDS, kind_of
from mcagent.model.objects import (
    ClusterInfoImport,
    EndpointSlice,
    Gateway,
    IpProtocol,
    Kind,
    Node,
    Pod,
    Service,
    WireGuardInfo,
)
from mcagent.model.parsing.fields import problem_of
from mcagent.model.parsing.granted import CLAIMS_ANNOTATION
from mcagent.model.parsing.parse import parse_object
from mcagent.model.problem import Severity

ANTREA = "multicluster.crd.antrea.io/v1alpha1"


KEY = base64.b64encode(bytes(range(32))).decode()
NEXT_KEY = base64.b64encode(bytes(range(1, 33))).decode()


def cluster_info(**spec: Any) -> dict[str, Any]:
    """Return a raw ClusterInfoImport with these fields of its spec."""
    return {
        "apiVersion": ANTREA,
        "kind": "ClusterInfoImport",
        "metadata": {
            "name": "east-clusterinfo",
            "namespace": "kube-system",
            "creationTimestamp": "2026-11-20T10:00:00Z",
            "resourceVersion": "7",
        },
        "spec": {
            "clusterID": "east",
            "serviceCIDR": "10.97.0.0/16",
            "gatewayInfos": [{"gatewayIP": "192.0.2.1"}, {"gatewayIP": "192.0.2.2"}],
            "podCIDRs": ["10.20.0.0/16"],
            **spec,
        },
    }


def test_cluster_info() -> None:
    """A ClusterInfoImport is read from `spec`, with every gateway and CIDR."""
    value = parse_object(cluster_info(wireGuard={"publicKey": KEY})).value
    assert isinstance(value, ClusterInfoImport)
    assert value.meta.subject == "ClusterInfoImport kube-system/east-clusterinfo"
    assert value.cluster_id == "east"
    assert value.service_cidr == ip_network("10.97.0.0/16")
    assert value.gateway_ips == (ip_address("192.0.2.1"), ip_address("192.0.2.2"))
    assert value.pod_cidrs == (ip_network("10.20.0.0/16"),)
    assert value.wireguard == WireGuardInfo(public_key=KEY)
    assert value.meta.created == "2026-11-20T10:00:00Z"


def test_bad_cidr_is_named_by_object_and_path() -> None:
    """The message names the object, the path with its index, and what was found."""
    with pytest.raises(InputError) as info:
        parse_object(cluster_info(podCIDRs=["10.20.0.0/16", "10.1"]))
    assert str(info.value) == (
        'ClusterInfoImport kube-system/east-clusterinfo: spec.podCIDRs[1]: not a CIDR: "10.1"'
    )
    assert problem_of(info.value).reason == "InvalidCIDR"
    assert problem_of(info.value).severity is Severity.ERROR


def test_host_bits_are_masked_with_a_warning() -> None:
    """Host bits in a CIDR are masked away, and a warning says so."""
    parsed = parse_object(cluster_info(serviceCIDR="10.97.3.4/16"))
    assert isinstance(parsed.value, ClusterInfoImport)
    assert parsed.value.service_cidr == ip_network("10.97.0.0/16")
    (problem,) = parsed.problems
    assert (problem.path, problem.reason, problem.severity) == (
        "spec.serviceCIDR",
        "HostBitsSet",
        Severity.WARNING,
    )


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"clusterID": None}, "spec.clusterID"),
        ({"clusterID": 7}, "spec.clusterID"),
        ({"clusterID": "a b"}, "spec.clusterID"),
        ({"serviceCIDR": ["10.0.0.0/8"]}, "spec.serviceCIDR"),
        ({"serviceCIDR": "10.96.0.0/255.255.0.0"}, "spec.serviceCIDR"),
        ({"gatewayInfos": {"gatewayIP": "192.0.2.1"}}, "spec.gatewayInfos"),
        ({"gatewayInfos": ["192.0.2.1"]}, "spec.gatewayInfos[0]"),
        ({"gatewayInfos": [{"gatewayIP": 1}]}, "spec.gatewayInfos[0].gatewayIP"),
        ({"gatewayInfos": [{"gatewayIP": "192.0.2.256"}]}, "spec.gatewayInfos[0].gatewayIP"),
        ({"gatewayInfos": [{"gatewayIP": "192.0.2.1"}] * 65}, "spec.gatewayInfos"),
        ({"podCIDRs": "10.0.0.0/8"}, "spec.podCIDRs"),
        ({"podCIDRs": [None]}, "spec.podCIDRs[0]"),
        ({"podCIDRs": ["10.0.0.0/33"]}, "spec.podCIDRs[0]"),
    ],
)
def test_wrong_fields(spec: dict[str, Any], path: str) -> None:
    """Wrong types and values are refused at the path where they stand."""
    with pytest.raises(InputError) as info:
        parse_object(cluster_info(**spec))
    assert info.value.path == path


def test_each_gateway_may_publish_a_key_of_its_own() -> None:
    """Key, the key that follows, and port are read from each entry of gatewayInfos."""
    published = {"publicKey": KEY, "nextPublicKey": NEXT_KEY, "port": 51999}
    infos = [{"gatewayIP": "192.0.2.1", "wireGuard": published}, {"gatewayIP": "192.0.2.2"}]
    value = parse_object(cluster_info(gatewayInfos=infos)).value
    assert isinstance(value, ClusterInfoImport)
    expected = WireGuardInfo(public_key=KEY, next_public_key=NEXT_KEY, port=51999)
    assert value.gateway_wireguard == ((ip_address("192.0.2.1"), expected),)
    assert value.wireguard is None


@pytest.mark.parametrize(
    ("published", "path"),
    [
        ({"publicKey": "a\nb"}, "publicKey"),
        ({"publicKey": "QUJD"}, "publicKey"),
        ({"publicKey": KEY[:-2] + "B="}, "publicKey"),  # the same bytes, written otherwise
        ({"publicKey": "A" * 43 + "="}, "publicKey"),  # no key: all zero
        ({"publicKey": KEY, "nextPublicKey": 7}, "nextPublicKey"),
        ({"publicKey": KEY, "port": 0}, "port"),
        ({"publicKey": KEY, "port": "51821"}, "port"),
        ("key", ""),
    ],
)
def test_a_wrong_key_takes_only_the_encryption_away(published: object, path: str) -> None:
    """A key that is none is told; the rest of the object is used, and nothing can be encrypted to it."""
    parsed = parse_object(cluster_info(wireGuard=published))
    assert isinstance(parsed.value, ClusterInfoImport)
    assert parsed.value.wireguard is None
    assert parsed.value.cluster_id == "east"
    assert [p.path for p in parsed.problems] == [f"spec.wireGuard.{path}".rstrip(".")]


def test_claims_of_a_cluster_info_are_kept_and_read() -> None:
    """What is kept of an object in memory has the annotation, and its times are read to the microsecond."""
    raw = cluster_info()
    text = '{"10.97.0.0/16":"2026-01-01T00:00:00Z","10.9.0.0/16":""}'
    raw["metadata"]["annotations"] = {CLAIMS_ANNOTATION: text}
    value = parse_object(trim(Kind.CLUSTER_INFO_IMPORT, raw)).value
    assert isinstance(value, ClusterInfoImport)
    assert value.granted == {"10.97.0.0/16": "2026-01-01T00:00:00.000000Z", "10.9.0.0/16": ""}


def test_cluster_info_without_optional_fields() -> None:
    """Only the cluster ID is needed; empty and null fields mean that there is nothing."""
    value = parse_object(cluster_info(serviceCIDR="", gatewayInfos=None, podCIDRs=[""])).value
    assert isinstance(value, ClusterInfoImport)
    assert (value.service_cidr, value.gateway_ips, value.pod_cidrs) == (None, (), ())


def test_gateway_has_its_fields_at_top_level() -> None:
    """A Gateway's fields stand beside its metadata; IPv6 is well-formed too."""
    raw = {
        "apiVersion": ANTREA,
        "kind": "Gateway",
        "metadata": {"name": "node-1", "namespace": "kube-system"},
        "gatewayIP": "2001:db8::1",
        "internalIP": "192.0.2.10",
        "serviceCIDR": "10.96.0.0/12",
    }
    value = parse_object(raw).value
    assert isinstance(value, Gateway)
    assert value.gateway_ip == ip_address("2001:db8::1")
    assert value.internal_ip == ip_address("192.0.2.10")
    assert value.service_cidr == ip_network("10.96.0.0/12")
    with pytest.raises(InputError, match=r"Gateway kube-system/node-1: internalIP: is missing"):
        parse_object({**raw, "internalIP": None})


def test_node() -> None:
    """A Node's internal addresses, Pod CIDRs, readiness and gateway annotation are read."""
    raw = {
        "metadata": {"name": "n1", "annotations": {"multicluster.antrea.io/gateway": ""}},
        "spec": {"podCIDR": "10.1.0.0/24", "unschedulable": True},
        "status": {
            "addresses": [
                {"type": "Hostname", "address": "n1"},
                {"type": "InternalIP", "address": "192.0.2.1"},
                {"type": "ExternalIP", "address": "198.51.100.7"},
                {"type": "ExternalIP", "address": "none"},
            ],
            "conditions": [{"type": "Ready", "status": "Unknown"}],
        },
    }
    parsed = parse_object(raw, Kind.NODE)
    value = parsed.value
    assert isinstance(value, Node)
    assert value.internal_ips == (ip_address("192.0.2.1"),)
    assert value.external_ips == (ip_address("198.51.100.7"),)
    assert [(p.path, p.severity) for p in parsed.problems] == [("status.addresses[3].address", Severity.WARNING)]
    assert value.pod_cidrs == (ip_network("10.1.0.0/24"),)
    assert (value.ready, value.unschedulable, value.gateway_annotation) == (False, True, True)


def test_annotations_of_a_gateway_node() -> None:
    """The gateway's address and the wish to drain are read; a wrong address is told and does not take the Node."""
    annotations = {"multicluster.antrea.io/gateway-ip": "10.9.0.7", "mcagent.io/drain": "true"}
    raw = {"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n1", "annotations": annotations}}
    value = parse_object(raw).value
    assert isinstance(value, Node)
    assert (str(value.gateway_ip), value.drain) == ("10.9.0.7", True)
    annotations["multicluster.antrea.io/gateway-ip"] = "east"
    parsed = parse_object(raw)
    assert isinstance(parsed.value, Node)
    assert parsed.value.gateway_ip is None
    assert [problem.severity for problem in parsed.problems] == [Severity.WARNING]


@pytest.mark.parametrize(
    ("spec", "status"),
    [
        ({"nodeName": "n1", "hostNetwork": True}, {"podIP": "10.1.0.5"}),
        ({"nodeName": "n1"}, {"podIP": "10.1.0.5", "phase": "Succeeded"}),
        ({"nodeName": "n1"}, {"podIP": "10.1.0.5", "phase": "Failed"}),
        ({"nodeName": "n1"}, {}),
        ({}, {"podIP": "10.1.0.5"}),
    ],
)
def test_pods_of_no_interest(spec: dict[str, Any], status: dict[str, Any]) -> None:
    """Pods without an address of their own are no error and no value."""
    parsed = parse_object({"metadata": {"name": "p", "namespace": "d"}, "spec": spec, "status": status}, Kind.POD)
    assert parsed.value is None
    assert parsed.meta.key == "d/p"


def test_pod() -> None:
    """A running Pod has its Node and all its addresses."""
    raw = {
        "metadata": {"name": "p", "namespace": "d"},
        "spec": {"nodeName": "n1"},
        "status": {"podIP": "10.1.0.5", "podIPs": [{"ip": "10.1.0.5"}, {"ip": "fd00::5"}]},
    }
    value = parse_object(raw, Kind.POD).value
    assert isinstance(value, Pod)
    assert (value.node_name, value.ips) == ("n1", (ip_address("10.1.0.5"), ip_address("fd00::5")))


def test_service() -> None:
    """ClusterIPs, ports with the default protocol, and session affinity are read."""
    raw: dict[str, Any] = {
        "metadata": {"name": "web", "namespace": "d"},
        "spec": {
            "clusterIP": "10.96.0.7",
            "ports": [{"port": 80}, {"name": "dns", "port": 53, "protocol": "UDP"}],
            "sessionAffinity": "ClientIP",
        },
    }
    value = parse_object(raw, Kind.SERVICE).value
    assert isinstance(value, Service)
    assert value.cluster_ips == (ip_address("10.96.0.7"),)
    assert [(p.name, p.port, p.protocol) for p in value.ports] == [
        ("", 80, IpProtocol.TCP),
        ("dns", 53, IpProtocol.UDP),
    ]
    assert value.client_ip_affinity
    for spec in ({"clusterIP": "None"}, {"type": "ExternalName", "externalName": "x"}, {"clusterIPs": ["None"]}):
        headless = parse_object({**raw, "spec": spec}, Kind.SERVICE).value
        assert isinstance(headless, Service)
        assert headless.cluster_ips == ()
    with pytest.raises(InputError, match=r"Service d/web: spec.ports\[0\].port: not a port"):
        parse_object({**raw, "spec": {"ports": [{"port": 70000}]}}, Kind.SERVICE)


def test_endpoint_slice() -> None:
    """Unknown conditions mean ready and serving; null lists are empty; slices of no Service are passed over."""
    meta = {"name": "web-x", "namespace": "d", "labels": {"kubernetes.io/service-name": "web"}}
    raw = {
        "metadata": meta,
        "addressType": "IPv4",
        "endpoints": [
            {"addresses": ["10.1.0.5"]},
            {"addresses": ["10.1.0.6"], "conditions": {"ready": False, "serving": True, "terminating": True}},
        ],
        "ports": [{"name": "http", "port": 8080}, {"name": "all"}],
    }
    value = parse_object(raw, Kind.ENDPOINT_SLICE).value
    assert isinstance(value, EndpointSlice)
    assert [(e.ready, e.serving, e.terminating) for e in value.endpoints] == [
        (True, True, False),
        (False, True, True),
    ]
    assert [(p.name, p.port) for p in value.ports] == [("http", 8080), ("all", None)]
    empty = parse_object({"metadata": meta, "endpoints": None, "ports": None}, Kind.ENDPOINT_SLICE).value
    assert isinstance(empty, EndpointSlice)
    assert empty.endpoints == ()
    assert parse_object({"metadata": {"name": "x", "namespace": "d"}}, Kind.ENDPOINT_SLICE).value is None


def test_times_sort_whatever_way_they_were_written() -> None:
    """Creation times with an offset, or read from YAML as datetime, become the same UTC text."""
    raw = cluster_info()
    for written in ("2026-11-20T12:00:00+02:00", datetime(2026, 11, 20, 10, tzinfo=UTC), "2026-11-20T10:00:00Z"):
        raw["metadata"]["creationTimestamp"] = written
        assert parse_object(raw).meta.created == "2026-11-20T10:00:00Z"
    raw["metadata"]["creationTimestamp"] = "yesterday"
    with pytest.raises(InputError, match=r"metadata\.creationTimestamp"):
        parse_object(raw)


def test_kinds() -> None:
    """Every kind has one row; an object of another group or version is none of ours."""
    assert set(KINDS) == set(Kind)
    assert KINDS[Kind.NODE].base_path == "/api/v1"
    assert KINDS[Kind.GATEWAY].base_path == "/apis/multicluster.crd.antrea.io/v1alpha1"
    assert kind_of({"apiVersion": "v1", "kind": "Node"}) is Kind.NODE
    assert kind_of({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway"}) is None
    with pytest.raises(InputError, match="not a kind that is read here"):
        parse_object({"apiVersion": "apps/v1", "kind": "Deployment"})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = """
metadata name namespace labels annotations kubernetes.io/service-name creationTimestamp resourceVersion spec status
clusterID serviceCIDR podCIDRs podCIDR gatewayInfos gatewayIP internalIP wireGuard publicKey addresses address type
conditions nodeName hostNetwork phase podIPs podIP ip clusterIP clusterIPs ports port protocol sessionAffinity
endpoints addressType ready serving terminating unschedulable
"""
KEYS = st.sampled_from(FIELDS.split())
WORDS = st.sampled_from(
    ["10.1.0.0/16", "10.1.2.3/16", "192.0.2.1", "fd00::/64", "::1", "10.1", "InternalIP", "Ready", "True", "UDP",
     "None", "n1", "x" * 5000, "\x1b[31m", "\ud800", "1" * 5000, "10.0.0.0/" + "9" * 5000, "fe80::1%eth0",
     "2026-11-20T10:00:00Z", "0001-01-01T00:00:00+23:59"]
)  # fmt: skip
OBJECTS = st.recursive(
    WORDS | st.none() | st.booleans() | st.integers(-1, 70000),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=30,
)


def check_total(raw: object, kind: Kind | None) -> None:
    """Nothing but a value or an InputError comes out, and what is told is short and printable."""
    try:
        parsed = parse_object(raw, kind)
    except InputError as error:
        told = [str(error)]
    else:
        assert parsed.value is None or parsed.value.meta == parsed.meta
        told = [str(problem) for problem in parsed.problems]
    for text in told:
        assert text.isprintable()
        assert len(text) < 600


@given(JSON, st.sampled_from([*sorted(AGENT_KINDS), None]))
def test_any_json_is_a_value_or_an_input_error(raw: object, kind: Kind | None) -> None:
    """Arbitrary JSON never raises anything but InputError."""
    check_total(raw, kind)


@given(
    st.dictionaries(KEYS, OBJECTS, max_size=6),
    st.sampled_from(sorted(AGENT_KINDS)),
    st.fixed_dictionaries({}, optional={"labels": OBJECTS, "annotations": OBJECTS, "creationTimestamp": OBJECTS}),
)
def test_nearly_right_objects_are_a_value_or_an_input_error(
    body: dict[str, Any], kind: Kind, metadata: dict[str, Any]
) -> None:
    """Objects with real field names and wrong content never raise anything but InputError."""
    check_total({**body, "metadata": {"name": "x", "namespace": "d", **metadata}}, kind)


@given(JSON, st.sampled_from(["clusterID", "serviceCIDR", "podCIDRs", "gatewayInfos", "wireGuard"]))
def test_one_wrong_field_of_a_cluster_info(value: object, name: str) -> None:
    """Any JSON in one field of an otherwise right ClusterInfoImport is read or refused, nothing else."""
    check_total(cluster_info(**{name: value}), None)
