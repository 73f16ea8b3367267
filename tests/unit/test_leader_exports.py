"""Checked exports on the leader: headers, payloads, status, and their exact errors."""

from __future__ import annotations

import base64
from collections.abc import Callable
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from mcagent.controller.contract.names import ExportKind
from mcagent.controller.contract.services import PayloadPort, ServiceSpec
from mcagent.controller.leader.exports.header import (
    BY_BLOCK,
    BY_CLUSTER,
    BY_IMPORT,
    BY_KIND,
    BY_LABEL,
    BY_NAMESPACE,
    BY_TARGET,
    CLUSTER_INFOS,
    Header,
    announce_ref,
    announces,
    changed_members,
    derived_name,
    heartbeat,
    not_a_member,
    read_header,
    target_key,
)
from mcagent.controller.leader.exports.payloads import (
    Backends,
    granted_networks,
    published,
    read_backends,
    read_cluster_info,
    read_definition,
)
from mcagent.controller.leader.exports.status import Conflict, failed, reason_of, released, succeeded
from mcagent.controller.machinery.reconciler import Ref
from mcagent.kube.source import RawObject
from mcagent.model.api.base import as_json
from mcagent.model.api.multicluster import ClusterInfo, MemberClusterAnnounce, ResourceExport, ResourceImport
from mcagent.model.errors import InputError
from mcagent.model.net import Address
from mcagent.model.objects import IpProtocol, Kind
from mcagent.model.parsing.decode import read_as, read_part
from mcagent.model.parsing.labels import label_hash
from tests.worlds.control_view import change_of
from tests.worlds.leader_world import announce, cluster_info, endpoints, export, service

LABEL = "ns:kubernetes.io/metadata.name=shop&pod:app=web"
KEY, NEXT_KEY = (base64.b64encode(bytes(range(first, first + 32))).decode() for first in (0, 1))
CREATED = "2024-01-01T00:00:00Z"


def typed(raw: RawObject, **metadata: Any) -> ResourceExport:
    """Return an export with further fields of its metadata."""
    return read_as(
        ResourceExport, {**raw, "metadata": {"creationTimestamp": CREATED, **raw["metadata"], **metadata}}
    )


def with_spec(raw: RawObject, **spec: Any) -> ResourceExport:
    """Return an export with other fields of its spec."""
    return typed({**raw, "spec": {**raw["spec"], **spec}})


def label_export(cluster: str = "east", label: str = LABEL) -> RawObject:
    """Return a LabelIdentity export."""
    payload = {"labelIdentity": {"normalizedLabel": label}}
    return export(cluster, "LabelIdentity", f"{cluster}-{label_hash(label)}", payload)


WEB, INFO = service("east", "shop/web"), cluster_info("east", "10.96.0.0/16", ["10.1.0.0/16"])
ENDPOINTS = endpoints("east", ["10.1.0.1", "10.1.0.2"], "shop/web")


# --- headers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "kind", "namespace", "name", "own_name"),
    [
        (WEB, ExportKind.SERVICE, "shop", "web", "east-shop-web-service"),
        (ENDPOINTS, ExportKind.ENDPOINTS, "shop", "web", "east-shop-web-endpoints"),
        (INFO, ExportKind.CLUSTER_INFO, "kube-system", "east", "east-clusterinfo"),
        (label_export(), ExportKind.LABEL_IDENTITY, "", "", f"east-{label_hash(LABEL)}"),
    ],
)
def test_headers(raw: RawObject, kind: ExportKind, namespace: str, name: str, own_name: str) -> None:
    """The header has all that identifies an export; its order is that of creation, then of cluster IDs."""
    header = read_header(typed(raw, creationTimestamp="2024-01-01T02:00:00+02:00"))
    assert header == Header(
        area="mcs",
        export=own_name,
        kind=kind,
        cluster_id="east",
        namespace=namespace,
        name=name,
        created=CREATED,
        deleting=False,
    )
    assert header.order == (CREATED, "east")
    assert header.target == f"{namespace}/{name}"
    assert derived_name(typed(raw)) == own_name
    assert read_header(typed(raw, deletionTimestamp=CREATED)).deleting
    assert read_header(typed(raw, creationTimestamp=None)).created == ""


@pytest.mark.parametrize(
    ("bad", "path", "code", "reason"),
    [
        (with_spec(WEB, kind="Po\nlicy"), "spec.kind", "InvalidValue", 'not a kind that is merged: "Po\\nlicy"'),
        (with_spec(WEB, kind=7), "spec.kind", "InvalidValue", "must be a string, is a number"),
        (with_spec(WEB, clusterID=""), "spec.clusterID", "Missing", "is missing"),
        (with_spec(WEB, clusterID="A"), "spec.clusterID", "InvalidName", 'must be a DNS-1123 subdomain: "A"'),
        (with_spec(WEB, namespace=""), "spec.namespace", "Missing", "is missing"),
        (with_spec(WEB, namespace="a.b"), "spec.namespace", "InvalidName", 'must be a DNS-1123 label: "a.b"'),
        (with_spec(WEB, name=None), "spec.name", "Missing", "is missing"),
        (with_spec(WEB, name="a\n"), "spec.name", "InvalidName", 'must be a DNS-1123 label: "a\\n"'),
        (with_spec(WEB, name=7), "spec.name", "InvalidValue", "must be a string, is a number"),
        (with_spec(WEB, labelIdentity=7), "spec.labelIdentity", "InvalidValue", "must be a mapping, is a number"),
        (
            typed(WEB, name="other"),
            "metadata.name",
            "InvalidValue",
            "must be east-shop-web-service, which follows from its spec",
        ),
        (
            typed(WEB, creationTimestamp="x"),
            "metadata.creationTimestamp",
            "InvalidTime",
            'not a time (RFC 3339): "x"',
        ),
        (typed(WEB, labels=7), "metadata.labels", "InvalidValue", "must be a mapping, is a number"),
    ],
)
def test_invalid_headers(bad: ResourceExport, path: str, code: str, reason: str) -> None:
    """The error names the export, the field and the rule."""
    with pytest.raises(InputError) as info:
        read_header(bad)
    error = info.value
    assert (error.subject, error.path) == (bad.subject, path)
    assert (error.code, error.reason) == (code, reason)


def test_indexes_of_exports() -> None:
    """Each kind of export is found by what it is about."""
    values = {
        "Service": (
            ["mcs/east"],
            ["mcs/shop-web"],
            ["mcs/shop/web"],
            ["mcs/east/Service"],
            ["mcs/shop"],
            [],
            [],
            [],
        ),
        "Endpoints": (
            ["mcs/east"],
            ["mcs/shop-web"],
            ["mcs/shop/web"],
            ["mcs/east/Endpoints"],
            ["mcs/shop"],
            ["mcs/10.1"],
            [],
            [],
        ),
        "ClusterInfo": (["mcs/east"], [], [], ["mcs/east/ClusterInfo"], [], [], ["mcs"], []),
        "LabelIdentity": (
            ["mcs/east"],
            [],
            [],
            ["mcs/east/LabelIdentity"],
            [],
            [],
            [],
            [f"mcs/{label_hash(LABEL)}"],
        ),
    }
    indexes = (BY_CLUSTER, BY_IMPORT, BY_TARGET, BY_KIND, BY_NAMESPACE, BY_BLOCK, CLUSTER_INFOS, BY_LABEL)
    for raw in (WEB, ENDPOINTS, INFO, label_export()):
        indexed_values = tuple(list(index.values(typed(raw))) for index in indexes)
        assert indexed_values == values[raw["spec"]["kind"]]
    blocks = endpoints("east", ["10.1.0.1", "10.2.0.1", "10.1.9.9"])
    assert set(BY_BLOCK.values(typed(blocks))) == {"mcs/10.1", "mcs/10.2"}
    assert list(BY_BLOCK.values(with_spec(ENDPOINTS, endpoints=None))) == []
    assert (
        target_key(with_spec(WEB, name="A"))
        == target_key(with_spec(WEB, namespace=""))
        == "mcs//east-shop-web-service"
    )


def test_announcements() -> None:
    """A cluster announces itself under its own name, and no longer while the announcement is being deleted."""
    raw = announce("east")
    east = read_as(MemberClusterAnnounce, raw)
    assert announces(east)
    assert not announces(None)
    assert not announces(read_as(MemberClusterAnnounce, {**raw, "clusterID": "west"}))
    leaving = {**raw, "metadata": {**raw["metadata"], "deletionTimestamp": CREATED}}
    assert not announces(read_as(MemberClusterAnnounce, leaving))
    kind = Kind.MEMBER_CLUSTER_ANNOUNCE
    assert announce_ref("mcs", "east") == Ref(kind=kind, namespace="mcs", name="member-announce-from-east")
    assert changed_members(change_of(kind, None, raw)) == {"east"}
    assert changed_members(change_of(kind, raw, None)) == {"east"}
    assert changed_members(change_of(kind, raw, leaving)) == {"east"}
    assert changed_members(change_of(kind, raw, raw)) == changed_members(change_of(kind, leaving, None)) == set()
    created = {"name": "x", "creationTimestamp": CREATED}
    assert heartbeat(read_as(MemberClusterAnnounce, {"metadata": created})) == CREATED
    beat = {**created, "annotations": {"touch-ts": "now"}}
    assert heartbeat(read_as(MemberClusterAnnounce, {"metadata": beat})) == "now"
    assert not_a_member("east") == "cluster east has not announced itself to this leader, or is leaving"


# --- payloads ---------------------------------------------------------------------------------------------


def test_the_service_of_an_export() -> None:
    """Labels and annotations of ServiceImports, and the traffic annotation, belong to it."""
    notes = {"mcagent.io/exported-labels": '{"a": "1"}', "mcagent.io/exported-annotations": '{"b": "2"}'}
    assert read_definition(typed(WEB, annotations=notes), "local > *") == ServiceSpec(
        ports=(PayloadPort(name="http", port=80, protocol=IpProtocol.TCP),),
        labels=(("a", "1"),),
        annotations=(("b", "2"),),
        traffic="local > *",
    )
    assert read_definition(typed(WEB)).traffic == ""


def backends(raw: RawObject, refuse: Callable[[Address], str] = lambda _: "", most: int = 100) -> Backends:
    """Return the endpoints of an export."""
    return read_backends(typed(raw), refuse, most)


HTTP = (("http", "TCP", 80),)


def test_endpoints_of_an_export() -> None:
    """Addresses by ports, with hostnames; those that cannot be used are named one by one."""
    raw = endpoints("east", [])
    addresses = [{"ip": "10.1.0.2", "hostname": "b"}, {"ip": "10.1.0.1"}, {"ip": "x"}, {"ip": "10.9.0.1"}]
    raw["spec"]["endpoints"]["subsets"] = [
        {"addresses": addresses, "ports": [{"name": "http", "port": 80}]},
        {"addresses": [{"ip": "10.1.0.1", "hostname": "A"}], "ports": [{"port": 81}]},
        {"addresses": [{"ip": "10.1.0.3"}], "ports": [{"name": "http", "port": 80}]},
    ]

    def refuse(address: Address) -> str:
        return "" if address in ip_network("10.1.0.0/16") else f"{address} is foreign"

    read = backends(raw, refuse)
    first, second, third = (ip_address(f"10.1.0.{number}") for number in (1, 2, 3))
    assert read == Backends(
        subsets={HTTP: frozenset({first, second, third}), (("", "TCP", 81),): frozenset({first})},
        hostnames={second: "b"},
        left_out=(
            'spec.endpoints.subsets[0].addresses[2].ip: not an IP address: "x"',
            "10.9.0.1 is foreign",
        ),
    )
    assert read.count == 4
    limited = backends(raw, refuse, 2)
    assert limited.subsets == {(("", "TCP", 81),): frozenset({first}), HTTP: frozenset({first})}
    assert (limited.over, limited.count) == (2, 2)
    assert (backends(raw, refuse, 4).over, backends(raw, refuse, 3).over) == (0, 1)


@pytest.mark.parametrize(
    ("text", "most", "ready", "remark"),
    [
        (None, 100, None, False),
        ("12", 100, 12, False),
        ("12", 5, 5, False),
        ("x", 100, None, True),
    ],
)
def test_the_number_of_ready_endpoints(text: str | None, most: int, ready: int | None, remark: bool) -> None:
    """It counts up to the limit of endpoints; an invalid annotation is reported."""
    notes = {} if text is None else {"mcagent.io/ready-endpoints": text}
    raw = {**ENDPOINTS, "metadata": {**ENDPOINTS["metadata"], "annotations": notes}}
    read = backends(raw, most=most)
    assert (read.ready, bool(read.remark)) == (ready, remark)


@pytest.mark.parametrize(
    ("read", "path", "code", "reason"),
    [
        (
            lambda: read_definition(with_spec(WEB, service=None)),
            "spec.service",
            "Missing",
            "is missing: an export of kind Service has it",
        ),
        (
            lambda: read_definition(with_spec(WEB, service=7)),
            "spec.service",
            "InvalidValue",
            "must be a mapping, is a number",
        ),
        (
            lambda: read_definition(with_spec(WEB, service={"serviceSpec": {"ports": [{"port": 0}]}})),
            "spec.service.serviceSpec.ports[0].port",
            "InvalidPort",
            "not a port: must be from 1 to 65535",
        ),
        (
            lambda: read_definition(with_spec(WEB, service={})),
            "spec.service.serviceSpec.ports",
            "Missing",
            "is empty: a Service has at least one port",
        ),
        (
            lambda: read_backends(with_spec(ENDPOINTS, endpoints=None), lambda _: "", 9),
            "spec.endpoints",
            "Missing",
            "is missing: an export of kind Endpoints has it",
        ),
        (
            lambda: read_backends(with_spec(ENDPOINTS, endpoints=[]), lambda _: "", 9),
            "spec.endpoints",
            "InvalidValue",
            "must be a mapping, is a list",
        ),
        (
            lambda: read_backends(with_spec(ENDPOINTS, endpoints={"subsets": [{}]}), lambda _: "", 9),
            "spec.endpoints.subsets[0].ports",
            "Missing",
            "is empty: an endpoint is an address and ports",
        ),
        (
            lambda: read_backends(with_spec(ENDPOINTS, endpoints={"subsets": [{}] * 65}), lambda _: "", 9),
            "spec.endpoints.subsets",
            "TooMany",
            "has 65 entries, at most 64 allowed",
        ),
    ],
)
def test_invalid_payloads_of_services(read: Callable[[], object], path: str, code: str, reason: str) -> None:
    """The error names the field and what an export of the kind has there."""
    with pytest.raises(InputError) as info:
        read()
    error = info.value
    assert (error.path, error.code, error.reason) == (path, code, reason)
    assert error.subject.startswith("ResourceExport mcs/east-shop-web-")


def read_info(**fields: Any) -> ClusterInfo:
    """Return the checked ClusterInfo of an export with these fields."""
    return read_cluster_info(with_spec(INFO, clusterInfo={"clusterID": "east", **fields}))


def test_the_network_of_a_cluster() -> None:
    """CIDRs have no host bits, addresses are in canonical form; a gateway without a key has no key."""
    wireguard = {"publicKey": KEY, "nextPublicKey": NEXT_KEY, "port": 7}
    read = read_info(
        serviceCIDR="10.96.0.9/16",
        podCIDRs=["10.2.0.0/16", "", "10.1.0.1/16", "10.2.0.1/16"],
        wireGuard=wireguard,
        gatewayInfos=[
            {"gatewayIP": "2001:DB8::1", "wireGuard": {"port": 7}},
            {"gatewayIP": "192.0.2.1", "wireGuard": wireguard},
        ],
    )
    expected = {
        "clusterID": "east",
        "serviceCIDR": "10.96.0.0/16",
        "podCIDRs": ["10.2.0.0/16", "10.1.0.0/16"],
        "wireGuard": wireguard,
        "gatewayInfos": [{"gatewayIP": "2001:db8::1"}, {"gatewayIP": "192.0.2.1", "wireGuard": wireguard}],
    }
    assert read == read_part(ClusterInfo, expected)
    assert read_info() == read_part(ClusterInfo, {"clusterID": "east"})


NO_KEY = "not a WireGuard public key (base64 of 32 bytes)"


@pytest.mark.parametrize(
    ("fields", "path", "code", "reason"),
    [
        ({"clusterID": "west"}, "clusterID", "Mismatch", "must be the exporting cluster's, as spec.clusterID"),
        ({"podCIDRs": ["10.0.0.0/8"] * 257}, "podCIDRs", "TooMany", "has 257 entries, at most 256 allowed"),
        (
            {"gatewayInfos": [{"gatewayIP": "192.0.2.1"}] * 65},
            "gatewayInfos",
            "TooMany",
            "has 65 entries, at most 64 allowed",
        ),
        ({"podCIDRs": ["", "x"]}, "podCIDRs[1]", "InvalidCIDR", 'not a CIDR: "x"'),
        ({"serviceCIDR": "x"}, "serviceCIDR", "InvalidCIDR", 'not a CIDR: "x"'),
        (
            {"serviceCIDR": "10.0.0.0/7"},
            "serviceCIDR",
            "PrefixTooShort",
            "10.0.0.0/7 is not used: a prefix shorter than /8 covers too much",
        ),
        (
            {"gatewayInfos": [{"gatewayIP": "127.0.0.1"}]},
            "gatewayInfos[0].gatewayIP",
            "NotUnicast",
            "127.0.0.1 is not used: it lies in 127.0.0.0/8 (loopback)",
        ),
        ({"gatewayInfos": [{}]}, "gatewayInfos[0].gatewayIP", "InvalidAddress", 'not an IP address: ""'),
        ({"wireGuard": {"publicKey": "x"}}, "wireGuard.publicKey", "InvalidKey", NO_KEY),
        (
            {"gatewayInfos": [{"gatewayIP": "192.0.2.1", "wireGuard": {"nextPublicKey": "x"}}]},
            "gatewayInfos[0].wireGuard.nextPublicKey",
            "InvalidKey",
            NO_KEY,
        ),
        ({"podCIDRs": 7}, "podCIDRs", "InvalidValue", "must be a list, is a number"),
    ],
)
def test_invalid_networks(fields: dict[str, Any], path: str, code: str, reason: str) -> None:
    """The error names the field in the ClusterInfo."""
    with pytest.raises(InputError) as info:
        read_info(**fields)
    error = info.value
    assert (error.subject, error.path) == ("ResourceExport mcs/east-clusterinfo", f"spec.clusterInfo.{path}")
    assert (error.code, error.reason) == (code, reason)


def test_limits_of_networks() -> None:
    """256 Pod CIDRs and 64 gateways are read; without the payload the export is invalid."""
    assert len(read_info(podCIDRs=[f"10.{number}.0.0/16" for number in range(256)]).pod_cidrs) == 256
    gateways = [{"gatewayIP": f"192.0.2.{number + 1}"} for number in range(64)]
    assert len(read_info(gatewayInfos=gateways).gateway_infos) == 64
    with pytest.raises(InputError) as info:
        read_cluster_info(with_spec(INFO, clusterInfo=None))
    assert (info.value.path, info.value.reason) == (
        "spec.clusterInfo",
        "is missing: an export of kind ClusterInfo has it",
    )


def imported(cluster: str, *pod_cidrs: str, service_cidr: str = "", kind: str = "ClusterInfo") -> ResourceImport:
    """Return the ResourceImport of a ClusterInfo."""
    info = {"clusterID": cluster, "serviceCIDR": service_cidr, "podCIDRs": list(pod_cidrs)}
    return read_as(ResourceImport, {"spec": {"kind": kind, "clusterinfo": info}})


def test_networks_that_the_leader_has_granted() -> None:
    """Service CIDR and Pod CIDRs of imports; one with an invalid CIDR publishes nothing."""
    east = imported("east", "10.1.0.0/16", service_cidr="10.96.0.0/16")
    west = imported("west", "10.2.0.0/16")
    assert published(east) == (ip_network("10.96.0.0/16"), ip_network("10.1.0.0/16"))
    assert published(west) == (ip_network("10.2.0.0/16"),)
    for nothing in (
        None,
        imported("east"),
        imported("east", "10.1.0.0/16", "x"),
        imported("east", "10.1.0.0/16", kind="Endpoints"),
        imported("east", *["10.1.0.0/16"] * 257),
        read_as(ResourceImport, {"spec": {"kind": "ClusterInfo"}}),
        typed(INFO),
    ):
        assert published(nothing) is None
    networks = granted_networks([east, west, imported("north", "x")])
    for text, owners in (
        ("10.96.0.1", ["east"]),
        ("10.1.255.255", ["east"]),
        ("10.2.0.0", ["west"]),
        ("10.3.0.0", []),
    ):
        assert networks.owners(int(ip_address(text))) == owners


# --- status -----------------------------------------------------------------------------------------------

NOW, NOW_TEXT = 1_700_000_000.0, "2023-11-14T22:13:20Z"
REF = Ref(kind=Kind.RESOURCE_EXPORT, namespace="mcs", name="east-shop-web-service")


def test_the_status_of_a_merged_export() -> None:
    """Succeeded comes first, and Conflict follows it; the time is that of the status."""
    success_status = succeeded(typed(WEB), NOW)
    condition = {"type": "Succeeded", "status": "True", "lastTransitionTime": NOW_TEXT}
    assert (success_status.ref, success_status.create, success_status.body) == (REF, False, None)
    assert as_json(success_status.conditions) == {"Succeeded": condition, "Failure": None, "Conflict": None}
    conflict = Conflict(reason="PortConflict", message="ports differ")
    old = {"type": "Conflict", "status": "True", "lastTransitionTime": CREATED}
    before = typed({**WEB, "status": {"conditions": [old]}})
    written = as_json(succeeded(before, NOW, "one is left out", conflict).conditions)
    assert [*filter(None, written.values())] == [
        condition | {"message": "one is left out"},
        old | {"reason": "PortConflict", "message": "ports differ"},
    ]


def test_the_status_of_an_export_that_is_not_merged() -> None:
    """The message begins as that of Antrea's leader; the reason is Antrea's, unless there is a better one."""
    condition = {
        "type": "Failure",
        "status": "False",
        "lastTransitionTime": NOW_TEXT,
        "reason": "ConvergeFailure",
        "message": "ResourceExport can't be converged to ResourceImport: it is invalid",
    }
    failure_status = failed(typed(WEB), "it is invalid", NOW)
    assert (failure_status.ref, failure_status.create) == (REF, False)
    assert as_json(failure_status.conditions) == {"Failure": condition, "Succeeded": None, "Conflict": None}
    refused = failed(typed(WEB), "it is invalid", NOW, "QuotaExceeded").conditions["Failure"]
    assert as_json(refused) == condition | {"reason": "QuotaExceeded"}
    assert reason_of(InputError("x", "spec.a", "is missing")) == "spec.a: is missing"
    assert reason_of(InputError("x", "", "is missing")) == "is missing"


@pytest.mark.parametrize(
    ("finalizers", "remaining"),
    [
        ([], ...),
        (["a/b"], ...),
        (["resourceexport.antrea.io/finalizer"], None),
        (["a/b", "resourceexport.finalizers.antrea.io", "resourceexport.antrea.io/finalizer"], ("a/b",)),
    ],
)
def test_finalizers_that_the_leader_removes(finalizers: list[str], remaining: object) -> None:
    """Both of Antrea's; those of others stay, and without one there is nothing to write."""
    steps = released(typed(WEB, finalizers=finalizers))
    if remaining is ...:
        assert steps == []
        return
    (wanted,) = steps
    assert (wanted.ref, wanted.create) == (REF, False)
    assert as_json(wanted.body) == {"metadata": {"finalizers": remaining}}
