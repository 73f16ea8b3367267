"""Raw objects to values: what is read from where, and how bad input is told."""

from __future__ import annotations

import base64
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcagent.core.snapshot import Upsert, apply_changes
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
    Snapshot,
    WireGuardInfo,
)
from mcagent.model.parsing.clusters import MTU_ANNOTATION
from mcagent.model.parsing.decode import read_object
from mcagent.model.parsing.fields import problem_of
from mcagent.model.parsing.granted import CLAIMS_ANNOTATION
from mcagent.model.parsing.parse import parse_object
from mcagent.model.problem import Severity

ANTREA = "multicluster.crd.antrea.io/v1alpha1"


KEY = base64.b64encode(bytes(range(32))).decode()
NEXT_KEY = base64.b64encode(bytes(range(1, 33))).decode()


GATEWAY = "multicluster.antrea.io/gateway"


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
    ("spec", "path", "reason", "message"),
    [
        ({"clusterID": None}, "clusterID", "Missing", "is missing"),
        ({"clusterID": 7}, "clusterID", "InvalidValue", "must be a string, is a number"),
        ({"clusterID": "a b"}, "clusterID", "InvalidName", 'not a name (RFC 1123 subdomain): "a b"'),
        ({"clusterID": ""}, "clusterID", "Missing", "is missing"),
        ({"serviceCIDR": ["10.0.0.0/8"]}, "serviceCIDR", "InvalidValue", "must be a string, is a list"),
        ({"serviceCIDR": "10.96.0.0/255.255.0.0"}, "serviceCIDR", "InvalidCIDR", "not a CIDR"),
        (
            {"gatewayInfos": {"gatewayIP": "192.0.2.1"}},
            "gatewayInfos",
            "InvalidValue",
            "must be a list, is a mapping",
        ),
        ({"gatewayInfos": ["192.0.2.1"]}, "gatewayInfos[0]", "InvalidValue", "must be a mapping, is a string"),
        ({"gatewayInfos": [{"gatewayIP": 1}]}, "gatewayInfos[0].gatewayIP", "InvalidValue", "must be a string"),
        (
            {"gatewayInfos": [{"gatewayIP": "192.0.2.256"}]},
            "gatewayInfos[0].gatewayIP",
            "InvalidAddress",
            'not an IP address: "192.0.2.256"',
        ),
        (
            {"gatewayInfos": [{"gatewayIP": "fe80::1%eth0"}]},
            "gatewayInfos[0].gatewayIP",
            "InvalidAddress",
            'an address with a zone: "fe80::1%eth0"',
        ),
        (
            {"gatewayInfos": [{"gatewayIP": "192.0.2.1"}] * 65},
            "gatewayInfos",
            "TooMany",
            "has 65 entries, at most 64 allowed",
        ),
        ({"podCIDRs": "10.0.0.0/8"}, "podCIDRs", "InvalidValue", "must be a list, is a string"),
        ({"podCIDRs": [None]}, "podCIDRs[0]", "Missing", "is missing"),
        ({"podCIDRs": ["10.0.0.0/33"]}, "podCIDRs[0]", "InvalidCIDR", 'not a CIDR: "10.0.0.0/33"'),
        ({"podCIDRs": ["10.0.0.0/8"] * 1025}, "podCIDRs", "TooMany", "has 1025 entries, at most 1024 allowed"),
    ],
)
def test_wrong_fields(spec: dict[str, Any], path: str, reason: str, message: str) -> None:
    """The whole object is refused: its last good version stays, and the problem names object, field and fault."""
    with pytest.raises(InputError) as info:
        parse_object(cluster_info(**spec))
    problem = problem_of(info.value)
    assert problem.subject == "ClusterInfoImport kube-system/east-clusterinfo"
    assert (problem.path, problem.reason, problem.severity) == (f"spec.{path}", reason, Severity.ERROR)
    assert message in problem.message
    kind = Kind.CLUSTER_INFO_IMPORT
    good = apply_changes(Snapshot(), [Upsert(kind=kind, raw=cluster_info())])
    bad = apply_changes(good, [Upsert(kind=kind, raw=cluster_info(**spec))])
    assert bad.cluster_infos == good.cluster_infos
    assert len(bad.cluster_infos) == 1
    assert bad.problems == (problem,)


@pytest.mark.parametrize(
    ("kind", "body", "path", "reason", "message"),
    [
        (
            Kind.SERVICE,
            {"spec": {"ports": [{"port": 80}, {"port": 70000}]}},
            "spec.ports[1].port",
            "InvalidPort",
            "must be from 1 to 65535",
        ),
        (Kind.SERVICE, {"spec": {"ports": [{"port": 0}]}}, "spec.ports[0].port", "InvalidPort", "from 1 to 65535"),
        (
            Kind.SERVICE,
            {"spec": {"ports": [{"port": "80"}]}},
            "spec.ports[0].port",
            "InvalidPort",
            "must be a port number, is a string",
        ),
        (
            Kind.SERVICE,
            {"spec": {"ports": [{"port": True}]}},
            "spec.ports[0].port",
            "InvalidPort",
            "must be a port number, is a boolean",
        ),
        (
            Kind.SERVICE,
            {"spec": {"ports": [{"port": 80, "protocol": "ICMP"}]}},
            "spec.ports[0].protocol",
            "InvalidProtocol",
            'must be TCP, UDP or SCTP, is "ICMP"',
        ),
        (
            Kind.ENDPOINT_SLICE,
            {"endpoints": [], "ports": [{"port": 80, "protocol": "tcp"}]},
            "ports[0].protocol",
            "InvalidProtocol",
            'must be TCP, UDP or SCTP, is "tcp"',
        ),
    ],
)
def test_wrong_ports(kind: Kind, body: dict[str, Any], path: str, reason: str, message: str) -> None:
    """A port or protocol that is none refuses the Service or EndpointSlice; the message says what is valid."""
    metadata = {"name": "web", "namespace": "d", "labels": {"kubernetes.io/service-name": "web"}}
    with pytest.raises(InputError) as info:
        parse_object({"metadata": metadata} | body, kind)
    problem = problem_of(info.value)
    assert (problem.subject, problem.path, problem.reason) == (f"{kind} d/web", path, reason)
    assert message in problem.message


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
    ("published", "path", "reason"),
    [
        ({"publicKey": "a\nb"}, "publicKey", "InvalidKey"),
        ({"publicKey": "QUJD"}, "publicKey", "InvalidKey"),
        ({"publicKey": KEY[:-2] + "B="}, "publicKey", "InvalidKey"),  # the same bytes, written otherwise
        ({"publicKey": "A" * 43 + "="}, "publicKey", "InvalidKey"),  # no key: all zero
        ({"publicKey": KEY, "nextPublicKey": "QUJD"}, "nextPublicKey", "InvalidKey"),
        ({"publicKey": KEY, "nextPublicKey": 7}, "nextPublicKey", "InvalidValue"),
        ({"publicKey": KEY, "port": 0}, "port", "InvalidPort"),
        ({"publicKey": KEY, "port": "51821"}, "port", "InvalidPort"),
        ("key", "", "InvalidValue"),
    ],
)
def test_a_wrong_key_takes_only_the_encryption_away(published: object, path: str, reason: str) -> None:
    """A key that is none is told; the rest of the object is used, and nothing can be encrypted to it."""
    parsed = parse_object(cluster_info(wireGuard=published))
    assert isinstance(parsed.value, ClusterInfoImport)
    assert parsed.value.wireguard is None
    assert parsed.value.cluster_id == "east"
    assert parsed.value.service_cidr == ip_network("10.97.0.0/16")
    (problem,) = parsed.problems
    assert problem.subject == "ClusterInfoImport kube-system/east-clusterinfo"
    assert (problem.path, problem.reason) == (f"spec.wireGuard.{path}".rstrip("."), reason)
    if reason == "InvalidKey":
        assert problem.message == "not a WireGuard public key (base64 of 32 bytes)"


def test_a_wrong_key_of_one_gateway_leaves_the_others() -> None:
    """The gateway with the invalid key has none; the key of the other gateway is used."""
    infos = [
        {"gatewayIP": "192.0.2.1", "wireGuard": {"publicKey": "QUJD"}},
        {"gatewayIP": "192.0.2.2", "wireGuard": {"publicKey": KEY}},
    ]
    parsed = parse_object(cluster_info(gatewayInfos=infos))
    assert isinstance(parsed.value, ClusterInfoImport)
    assert parsed.value.gateway_ips == (ip_address("192.0.2.1"), ip_address("192.0.2.2"))
    assert parsed.value.gateway_wireguard == ((ip_address("192.0.2.2"), WireGuardInfo(public_key=KEY)),)
    assert [(p.path, p.reason) for p in parsed.problems] == [
        ("spec.gatewayInfos[0].wireGuard.publicKey", "InvalidKey")
    ]


def test_claims_of_a_cluster_info_are_kept_and_read() -> None:
    """What is kept of an object in memory has the annotation, and its times are read to the microsecond."""
    raw = cluster_info()
    text = '{"10.97.0.0/16":"2026-01-01T00:00:00Z","10.9.0.0/16":""}'
    raw["metadata"]["annotations"] = {CLAIMS_ANNOTATION: text, MTU_ANNOTATION: "1390"}
    value = parse_object(read_object(Kind.CLUSTER_INFO_IMPORT, raw)).value
    assert isinstance(value, ClusterInfoImport)
    assert value.granted == {"10.97.0.0/16": "2026-01-01T00:00:00.000000Z", "10.9.0.0/16": ""}
    assert value.mtu == 1390


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "must be a JSON object, is a list"),
        ('{"10.97.0.0/16":"yesterday"}', 'not a time (RFC 3339, in UTC) for claim "10.97.0.0/16"'),
        ('{"10.97.0.0/16":"2026-01-01T00:00:00+01:00"}', 'not a time (RFC 3339, in UTC) for claim "10.97.0.0/16"'),
        ('{"10.97.0.0/16":7}', 'not a time (RFC 3339, in UTC) for claim "10.97.0.0/16"'),
    ],
)
def test_invalid_claims_count_as_none(text: str, message: str) -> None:
    """The rest of the object is used, as if the leader said nothing of its claims; a warning says so."""
    raw = cluster_info()
    raw["metadata"]["annotations"] = {CLAIMS_ANNOTATION: text}
    parsed = parse_object(raw)
    assert isinstance(parsed.value, ClusterInfoImport)
    assert parsed.value.granted == {}
    assert parsed.value.service_cidr == ip_network("10.97.0.0/16")
    (problem,) = parsed.problems
    assert (problem.reason, problem.severity) == ("InvalidValue", Severity.WARNING)
    assert CLAIMS_ANNOTATION in problem.path
    assert message in problem.message


@pytest.mark.parametrize("text", ["575", "65536", "1450.0", "-1450", "+1450", " 1450", "1_450", "١٤٥٠", "9" * 99])
def test_an_invalid_mtu_counts_as_none(text: str) -> None:
    """The rest of the cluster is used."""
    body = cluster_info(serviceCIDR="10.96.0.0/16")
    body["metadata"]["annotations"] = {MTU_ANNOTATION: text}
    parsed = parse_object(body)
    assert isinstance(parsed.value, ClusterInfoImport)
    assert parsed.value.mtu == 0
    (problem,) = parsed.problems
    assert problem.path == f"metadata.annotations.{MTU_ANNOTATION}"
    assert problem.message.endswith("must be a number from 576 to 65535")


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


@pytest.mark.parametrize("text", ["true", "false", ""])
def test_a_gateway_annotation_counts_by_its_presence(text: str) -> None:
    """As Antrea's controller has it; docs/multicluster.md says how to remove it."""
    node = parse_object({"metadata": {"name": "n1", "annotations": {GATEWAY: text}}}, Kind.NODE).value
    assert isinstance(node, Node)
    assert node.gateway_annotation
    page = (Path(__file__).parents[2] / "docs/multicluster.md").read_text()
    assert f"{GATEWAY}-" in page


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
        ({"nodeName": "n1", "hostNetwork": True}, {"podIP": "10.1.0.5", "phase": "Failed"}),
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
    """Creation times with an offset become the same UTC text."""
    raw = cluster_info()
    for written in ("2026-11-20T12:00:00+02:00", "2026-11-20T10:00:00Z"):
        raw["metadata"]["creationTimestamp"] = written
        assert parse_object(raw).meta.created == "2026-11-20T10:00:00Z"


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("yesterday", 'not a time (RFC 3339): "yesterday"'),
        ("2026-13-01T00:00:00Z", 'not a time (RFC 3339): "2026-13-01T00:00:00Z"'),
        ("0001-01-01T00:00:00+23:59", "not a time (RFC 3339)"),
        (7, "must be a time (RFC 3339), is a number"),
    ],
)
def test_a_wrong_time_refuses_the_object(written: object, message: str) -> None:
    """Without its age nothing can say whose claim was first: the problem names object, field and form."""
    raw = cluster_info()
    raw["metadata"]["creationTimestamp"] = written
    with pytest.raises(InputError) as info:
        parse_object(raw)
    problem = problem_of(info.value)
    assert problem.subject == "ClusterInfoImport kube-system/east-clusterinfo"
    assert (problem.path, problem.reason) == ("metadata.creationTimestamp", "InvalidTime")
    assert message in problem.message


def test_kinds() -> None:
    """Every kind has one row; an object of another group or version is none of ours."""
    assert set(KINDS) == set(Kind)
    assert KINDS[Kind.NODE].base_path == "/api/v1"
    assert KINDS[Kind.GATEWAY].base_path == "/apis/multicluster.crd.antrea.io/v1alpha1"
    assert kind_of({"apiVersion": "v1", "kind": "Node"}) is Kind.NODE
    assert kind_of({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway"}) is None
    for raw, shown in (
        ({"apiVersion": "apps/v1", "kind": "Deployment"}, "apps/v1 Deployment"),
        (
            {"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway"},
            "gateway.networking.k8s.io/v1 Gateway",
        ),
        ({"kind": 7}, "missing a number"),
    ):
        with pytest.raises(InputError) as info:
            parse_object(raw)
        problem = problem_of(info.value)
        assert (problem.path, problem.reason) == ("kind", "UnknownKind")
        assert problem.message == f"not a kind that is read here: {shown}"


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
        problems = [str(error)]
    else:
        assert parsed.value is None or parsed.value.meta == parsed.meta
        problems = [str(problem) for problem in parsed.problems]
    for text in problems:
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
