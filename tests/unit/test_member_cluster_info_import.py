"""Other clusters' networks, and what keeps two clusters apart; finding the Service CIDR."""

from __future__ import annotations

import base64
import json
import threading
from ipaddress import ip_address
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcagent.controller import discovered
from mcagent.controller.config import ControllerRole, ControllerSettings
from mcagent.controller.contract.conditions import time_text
from mcagent.controller.discovered import complete
from mcagent.controller.machinery.reconciler import Side
from mcagent.controller.member import member_reconcilers
from mcagent.controller.member.networks.cluster_info_import import ClusterInfoImports
from mcagent.controller.member.networks.discovery import cidr_in_refusal, discover_service_cidr, first_ipv4
from mcagent.controller.run import reconcilers_of
from mcagent.controller.settings import MemberSettings
from mcagent.kube.errors import ApiRefusalError, ApiUnreachableError
from mcagent.kube.source import RawObject
from mcagent.model.errors import SourceError
from mcagent.model.objects import Kind
from mcagent.model.parsing.clusters import SERVICE_CIDR_ANNOTATION
from mcagent.model.parsing.granted import (
    CLAIMS_ANNOTATION,
    PROTECTED_ANNOTATION,
    REFUSED_ANNOTATION,
    REFUSED_PODS_ANNOTATION,
    read_granted,
)
from tests.worlds.control_view import Controller, MemoryView, change_of
from tests.worlds.core_inputs import networks
from tests.worlds.leader_imports import cluster_info
from tests.worlds.member_refusals import REFUSALS
from tests.worlds.member_world import (
    AREA,
    HOME,
    SET,
    Answers,
    conditions_of,
    leader,
    member,
    names_of,
    node,
    north_of,
    settings,
)
from tests.worlds.memory_objects import typed

KEY = base64.b64encode(bytes(range(32))).decode()


def info(
    cluster_id: str = "west", service_cidr: str = "10.97.0.0/16", *pod_cidrs: str, **changes: Any
) -> RawObject:
    """Return the ResourceImport of a cluster with a gateway."""
    raw = cluster_info(cluster_id, service_cidr, *pod_cidrs)
    raw["spec"]["clusterinfo"] |= {"gatewayInfos": [{"gatewayIP": "192.0.2.7"}]} | changes
    return raw


def world(*imports: RawObject, **wanted: Any) -> tuple[MemoryView, Controller]:
    """Return a member whose leader has these."""
    view = member()
    for raw in imports:
        north_of(view).put(raw)
        north_of(view).clock.forward(10)
    controller = Controller(view, [ClusterInfoImports(settings(**wanted))])
    controller.settle()
    return view, controller


def found(view: MemoryView, name: str = "west-clusterinfo") -> RawObject:
    """Return a ClusterInfoImport."""
    raw = view.local.get(Kind.CLUSTER_INFO_IMPORT, HOME, name)
    assert raw is not None
    return raw


def test_other_clusters_are_imported_and_the_own_one_is_not() -> None:
    """The copy has all known fields and is Ready; the own cluster's information is passed over."""
    keys = {"publicKey": KEY, "nextPublicKey": KEY, "port": 51900}
    gateways = [{"gatewayIP": "192.0.2.7", "wireGuard": keys}, {"gatewayIP": "192.0.2.8"}]
    view, controller = world(
        info(
            "west", "10.97.0.0/16", "10.20.0.0/16", "", gatewayInfos=gateways, wireGuard={"publicKey": KEY}, more=1
        ),
        info("east", "10.96.0.0/16"),
    )
    assert names_of(view.local, Kind.CLUSTER_INFO_IMPORT) == ["west-clusterinfo"]
    assert found(view)["spec"] == {
        "clusterID": "west",
        "serviceCIDR": "10.97.0.0/16",
        "podCIDRs": ["10.20.0.0/16"],
        "gatewayInfos": gateways,
        "wireGuard": {"publicKey": KEY},
    }
    assert conditions_of(found(view)) == {"Ready": ("True", "Imported")}
    assert controller.all_events() == []


def test_a_gateway_change_is_one_update_in_place() -> None:
    """A failover elsewhere changes the object that is there."""
    view, controller = world(info(), info("south", "10.98.0.0/16", gatewayInfos=[{"gatewayIP": "192.0.2.8"}]))
    uid = found(view)["metadata"]["uid"]
    view.local.writes.clear()
    north_of(view).put(info(gatewayInfos=[{"gatewayIP": "192.0.2.9"}]))
    controller.run()
    assert view.local.writes == [f"update ClusterInfoImport {HOME}/west-clusterinfo"]
    assert found(view)["metadata"]["uid"] == uid


def test_imports_go_with_the_cluster_and_what_people_made_stays() -> None:
    """Only ClusterInfoImports with our mark are deleted."""
    view, controller = world(info())
    view.local.put({"kind": "ClusterInfoImport", "metadata": {"name": "static", "namespace": HOME}, "spec": {}})
    north_of(view).remove(Kind.RESOURCE_IMPORT, AREA, "west-clusterinfo")
    controller.run()
    controller.settle()
    assert names_of(view.local, Kind.CLUSTER_INFO_IMPORT) == ["static"]


@pytest.mark.parametrize(
    "changes",
    [
        {"serviceCIDR": "10.97.0.0"},
        {"serviceCIDR": 7},
        {"podCIDRs": "x"},
        {"podCIDRs": ["nonsense"]},
        {"gatewayInfos": [{"gatewayIP": "me"}]},
        {"clusterID": "north"},
        {"clusterID": None},
    ],
)
def test_unreadable_information_keeps_the_last_good_version(changes: dict[str, Any]) -> None:
    """What cannot be used is told, and changes nothing."""
    view, controller = world(info())
    before = found(view)
    north_of(view).put(info(**changes))
    controller.run()
    assert found(view) == before
    assert [event.reason for event in controller.all_events()] == ["InvalidClusterInfo"]


def test_overlaps_are_told_to_the_younger_cluster_with_names() -> None:
    """Two clusters with one CIDR: the later one is not Ready, and recovers by the event alone."""
    view, controller = world(info("west", "10.97.0.0/16"))
    north_of(view).clock.forward(1)
    gateways = [{"gatewayIP": "192.0.2.8"}]
    north_of(view).put(info("south", "10.98.0.0/16", "10.97.4.0/24", gatewayInfos=gateways))
    controller.run()
    assert conditions_of(found(view)) == {"Ready": ("True", "Imported")}
    assert conditions_of(found(view, "south-clusterinfo")) == {"Ready": ("False", "OverlappingCIDR")}
    (event,) = controller.all_events()
    assert event.message == (
        "10.97.4.0/24 of cluster south overlaps 10.97.0.0/16 of cluster west, which was first"
    )
    north_of(view).put(info("west", "10.99.0.0/16"))
    controller.run()
    assert conditions_of(found(view, "south-clusterinfo")) == {"Ready": ("True", "Imported")}


def test_overlaps_with_this_cluster_are_told() -> None:
    """Service and Pod CIDRs of this cluster count, whoever was first."""
    view, controller = world(info("west", "10.96.128.0/17", "10.10.1.0/24"), pod_cidrs=("10.10.0.0/16",))
    assert conditions_of(found(view)) == {"Ready": ("False", "OverlappingCIDR")}
    assert len(controller.all_events()) == 2


def test_what_the_leader_does_not_grant_this_cluster_is_told() -> None:
    """The Event of the ClusterSet names each refused claim, the first eight of many, and none that is granted."""
    own = info("east", "10.96.0.0/16")
    claims = {"10.96.0.0/16": "2026-01-01T00:00:00Z", "10.10.0.0/16": "", "192.0.2.7": ""}
    own["metadata"]["annotations"] = {CLAIMS_ANNOTATION: json.dumps(claims)}
    view, controller = world(own)
    assert names_of(view.local, Kind.CLUSTER_INFO_IMPORT) == []
    (event,) = controller.all_events()
    assert (event.subject, event.reason) == (f"ClusterSet {HOME}/{SET}", "ClaimRefused")
    assert event.message == (
        "the leader does not grant this cluster 10.10.0.0/16, 192.0.2.7; "
        "the status of its ResourceExport there says why"
    )
    many = {f"10.{number}.0.0/16": "" for number in range(10, 20)}
    own["metadata"]["annotations"] = {CLAIMS_ANNOTATION: json.dumps(many)}
    north_of(view).put(own)
    controller.run()
    (event,) = controller.all_events()
    assert "10.17.0.0/16 and 2 more" in event.message
    assert "10.18.0.0/16" not in event.message
    own["metadata"]["annotations"] = {CLAIMS_ANNOTATION: json.dumps(dict.fromkeys(many, "2026-01-01T00:00:00Z"))}
    north_of(view).put(own)
    controller.run()
    assert controller.all_events() == []


def test_mismatched_settings_are_told() -> None:
    """Another endpointIPType, and encryption on one side only, are named."""
    raw = info()
    raw["metadata"]["annotations"] = {
        "mcagent.io/setting-endpoint-ip-type": "PodIP",
        "mcagent.io/setting-tunnel-type": "vxlan",
        "mcagent.io/setting-tunnel-port": "8472",
    }
    view, controller = world(raw, tunnel_type="geneve")
    assert conditions_of(found(view)) == {"Ready": ("False", "SettingsMismatch")}
    assert {event.message for event in controller.all_events()} == {
        'endpointIPType is "PodIP" in cluster west and "ClusterIP" here',
        'tunnelType is "vxlan" in cluster west and "geneve" here',
    }
    north_of(view).put(info(wireGuard={"publicKey": KEY}))
    view.local.put({"kind": "Gateway", "metadata": {"name": "n1", "namespace": HOME}, "gatewayIP": "10.0.0.1"})
    controller.settle()
    assert conditions_of(found(view)) == {"Ready": ("False", "EncryptionMismatch")}
    view.local.change(Kind.GATEWAY, HOME, "n1", {"wireGuard": {"publicKey": KEY}})
    controller.run()
    assert conditions_of(found(view)) == {"Ready": ("True", "Imported")}


# --- the Service CIDR ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "expected"), REFUSALS)
def test_the_refusals_of_api_servers_are_understood(text: str, expected: str | None) -> None:
    """The first IPv4 CIDR in the text of the refusal, if there is one."""
    assert cidr_in_refusal(text) == expected


def test_the_service_cidr_object_tells() -> None:
    """On dual-stack the IPv4 CIDR counts, wherever it stands."""
    client = Answers({"spec": {"cidrs": ["fd00::/108", "10.96.0.0/16"]}})
    assert discover_service_cidr(client) == "10.96.0.0/16"
    assert [method for method, _, _ in client.requests] == ["GET"]


def test_older_api_servers_are_asked_by_a_dry_run() -> None:
    """Where there are no ServiceCIDR objects an invalid Service is tried, which is never created."""
    client = Answers(ApiRefusalError("no", code=404), ApiRefusalError(REFUSALS[0][0], code=422))
    assert discover_service_cidr(client) == "10.96.0.0/12"
    assert client.requests[1] == ("POST", "/api/v1/namespaces/default/services", {"dryRun": "All"})


@pytest.mark.parametrize("last", [ApiRefusalError("forbidden", code=403), {"kind": "Service"}])
def test_what_cannot_be_found_out_says_what_to_configure(last: Any) -> None:
    """The error names the key."""
    with pytest.raises(SourceError, match="set serviceCIDR"):
        discover_service_cidr(Answers(ApiRefusalError("no", code=404), last))


def test_a_member_asks_for_its_service_cidr_once_and_does_without() -> None:
    """What is configured is not asked for; a refusal leaves the member without; one that is away is waited for."""
    stop, client = threading.Event(), Answers()
    configured = ControllerSettings(member=MemberSettings(service_cidr="10.96.0.0/16"))
    assert complete(ControllerRole.MEMBER, configured, client, stop) == configured
    assert client.requests == []
    no_gateways: dict[str, Any] = {"items": []}
    refused = Answers(ApiRefusalError("no", code=404), ApiRefusalError("forbidden", code=403), no_gateways)
    without = complete(ControllerRole.MEMBER, ControllerSettings(), refused, stop)
    names = {reconciler.name for reconciler in reconcilers_of(ControllerRole.MEMBER, without, HOME)}
    assert {"membership", "gateway-election", "service-export", "service-import"} <= names
    responses = (ApiRefusalError("no", code=404), ApiRefusalError(REFUSALS[0][0], code=422))
    away = Answers(ApiUnreachableError("away"), *responses)
    assert complete(ControllerRole.MEMBER, ControllerSettings(), away, stop).member.service_cidr == "10.96.0.0/12"


@pytest.mark.parametrize("code", [401, 429, 500, 503, 504])
def test_an_api_server_that_fails_for_a_moment_is_asked_again(code: int) -> None:
    """It has not said that its Service CIDR cannot be found: a webhook of others may not run yet."""
    missing, failed = ApiRefusalError("no", code=404), ApiRefusalError("later", code=code)
    client = Answers(missing, failed, missing, ApiRefusalError(REFUSALS[0][0], code=422))
    completed = complete(ControllerRole.MEMBER, ControllerSettings(), client, threading.Event())
    assert completed.member.service_cidr == "10.96.0.0/12"


REAL = {SERVICE_CIDR_ANNOTATION: "10.97.0.0/16"}  # where the cluster has an export range


@pytest.mark.parametrize(
    ("gateways", "cidr"),
    [
        (ApiRefusalError("no CRD", code=404), None),
        ({"items": [{"metadata": {}}, {"metadata": {}, "serviceCIDR": "10.96.0.0/16"}]}, "10.96.0.0/16"),
        ({"items": [{"metadata": {"annotations": REAL}, "serviceCIDR": "172.30.0.0/20"}]}, "10.97.0.0/16"),
    ],
)
def test_a_webhook_that_never_runs_does_not_keep_a_member_from_starting(
    gateways: Any, cidr: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It publishes the Service CIDR that its gateways have: other clusters use its Services by that."""
    monkeypatch.setattr(discovered, "PATIENCE", 0.0, raising=False)
    failed = ApiRefusalError("failed calling webhook", code=500)
    client = Answers(ApiRefusalError("no", code=404), failed, gateways)
    completed = complete(ControllerRole.MEMBER, ControllerSettings(), client, threading.Event())
    assert completed.member.service_cidr == cidr
    assert client.requests[2][1].endswith("/namespaces/kube-system/gateways")


def test_the_first_usable_cidr_counts() -> None:
    """Texts that are none, IPv6 and special ranges are passed over; host bits are masked."""
    assert first_ipv4(["", "x", "fd00::/64", "127.0.0.0/8", "10.96.3.4/16"]) == "10.96.0.0/16"


# --- any JSON --------------------------------------------------------------------------------------------

TEXTS = st.text(max_size=8)
LEAVES = st.none() | st.booleans() | st.integers() | TEXTS | st.sampled_from(["10.97.0.0/16", "ClusterInfo"])
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=12,
)
FIELDS = st.sampled_from(
    [
        "spec",
        "status",
        "endpoints",
        "ports",
        "metadata.labels",
        "metadata.annotations",
        "metadata.finalizers",
        "spec.kind",
        "spec.name",
        "spec.namespace",
        "spec.clusterID",
        "spec.leaders",
        "spec.ports",
        "spec.clusterinfo",
        "spec.serviceImport",
        "spec.endpoints",
        "spec.endpoints.subsets",
        "status.conditions",
        "status.addresses",
    ]
)
KINDS = st.sampled_from(
    [(Side.LOCAL, kind) for kind in (Kind.NODE, Kind.GATEWAY, Kind.CLUSTER_SET, Kind.CLUSTER_CLAIM, Kind.SERVICE,
     Kind.SERVICE_EXPORT, Kind.SERVICE_IMPORT, Kind.ENDPOINT_SLICE, Kind.CLUSTER_INFO_IMPORT, Kind.NAMESPACE)]
    + [(Side.LEADER, Kind.RESOURCE_IMPORT), (Side.LEADER, Kind.RESOURCE_EXPORT)]
)  # fmt: skip


NAMES = st.sampled_from(["web", "shop-web-service", "shop-web-endpoints", "west-clusterinfo", "set", "east-x"])
SPEC_KINDS = st.sampled_from(["Service", "ServiceImport", "Endpoints", "ClusterInfo"])


@given(KINDS, NAMES, st.lists(st.tuples(FIELDS, JSON), max_size=4), SPEC_KINDS)
def test_no_json_makes_a_reconciler_raise(
    where: tuple[Side, Kind], name: str, changes: list[tuple[str, Any]], spec_kind: str
) -> None:
    """Whatever an object holds, keys, indexes and desired of all reconcilers return."""
    side, kind = where
    view = member()
    reconcilers = member_reconcilers(settings())
    Controller(view, reconcilers)
    raw: RawObject = {
        "kind": str(kind),
        "metadata": {"name": name, "namespace": AREA if side is Side.LEADER else HOME},
        "spec": {"kind": spec_kind, "namespace": "shop", "name": "web", "clusterID": "east"},
    }
    for path, value in changes:
        place = raw
        *steps, last = path.split(".")
        for step in steps:
            inner = place.get(step)
            place[step] = place = inner if isinstance(inner, dict) else {}
        place[last] = value
    api = view.local if side is Side.LOCAL else north_of(view)
    api.put(raw)
    keys = {r.name: set(r.all_keys(view)) for r in reconcilers}
    for r in reconcilers:
        if kind in r.reads.on(side):
            for old, new in ((None, raw), (raw, None), (raw, dict(raw))):
                keys[r.name] |= set(r.keys(change_of(kind, old, new, side), view))
        for index in r.indexes:
            if index.kind is kind:
                assert all(isinstance(value, str) for value in index.values(typed(raw)))
        for key in keys[r.name]:
            r.desired(key, view, 1.7e9)


def notes_of(view: MemoryView, name: str) -> dict[str, str]:
    """Return the annotations of the ClusterInfoImport of a cluster."""
    notes: dict[str, str] = found(view, f"{name}-clusterinfo")["metadata"]["annotations"]
    return notes


def test_pod_cidrs_are_imported_without_api_servers_and_keep_their_time() -> None:
    """The parts have the time of the CIDR that the leader granted; where it grants none, the time when it came."""
    for granted in ({"10.20.0.0/28": "2026-01-05T00:00:00.000000Z"}, None):
        view = member()
        view.leader = leader(addresses=("10.20.0.3",))
        west = info("west", "10.97.0.0/16", "10.20.0.0/28", "10.21.0.0/16")
        if granted is not None:
            west["metadata"]["annotations"] = {CLAIMS_ANNOTATION: json.dumps(granted)}
        north_of(view).put(west)
        controller = Controller(view, [ClusterInfoImports(settings())])
        controller.settle()
        parts = ["10.20.0.0/31", "10.20.0.2/32", "10.20.0.4/30", "10.20.0.8/29"]
        assert sorted(found(view)["spec"]["podCIDRs"]) == sorted([*parts, "10.21.0.0/16"])
        assert conditions_of(found(view)) == {"Ready": ("True", "Imported")}
        times = read_granted(notes_of(view, "west")[CLAIMS_ANNOTATION])
        assert len({times[text] for text in (*parts, "10.20.0.0/28")}) == 1
        if granted is not None:
            assert times[parts[0]] == granted["10.20.0.0/28"]
        north_of(view).clock.forward(100)
        controller.settle()
        assert read_granted(notes_of(view, "west")[CLAIMS_ANNOTATION]) == times


GRANTED, LATER = "2026-01-05T00:00:00.000000Z", "2026-01-06T00:00:00.000000Z"
PARTS = ["10.20.0.0/31", "10.20.0.2/32", "10.20.0.4/30", "10.20.0.8/29"]  # of 10.20.0.0/28 without 10.20.0.3


def claiming(*pod_cidrs: str, time: str = "") -> RawObject:
    """Return what the leader says of west: each CIDR granted at `time`, or without times, as Antrea's does."""
    west = info("west", "10.97.0.0/16", *pod_cidrs)
    west["metadata"]["annotations"] = (
        {CLAIMS_ANNOTATION: json.dumps(dict.fromkeys(pod_cidrs, time))} if time else {}
    )
    return west


def settled(view: MemoryView) -> list[str]:
    """Return the Pod CIDRs that a new controller imports, sorted."""
    Controller(view, [ClusterInfoImports(settings())]).settle()
    return sorted(found(view)["spec"].get("podCIDRs", []))


@pytest.mark.parametrize("time", [GRANTED, ""], ids=["ledger", "Antrea's leader"])
def test_a_node_that_appears_takes_only_its_address_from_a_pod_cidr_in_use(time: str) -> None:
    """Each controller is a new process; the parts keep their time. The CIDR is whole again without the Node."""
    view, _ = world(claiming("10.20.0.0/28", time=time))
    before = read_granted(notes_of(view, "west")[CLAIMS_ANNOTATION])["10.20.0.0/28"]
    north_of(view).clock.forward(100)
    view.local.put(node("n1", "10.20.0.3"))
    for _ in range(2):
        assert settled(view) == PARTS
    times = read_granted(notes_of(view, "west")[CLAIMS_ANNOTATION])
    assert {times[text] for text in (*PARTS, "10.20.0.0/28")} == {before}
    (ready,) = found(view)["status"]["conditions"]
    message = "Pod CIDR 10.20.0.0/28 is imported without 10.20.0.3 (an address of Node n1 of this cluster)"
    assert (ready["status"], ready["message"]) == ("True", message)
    view.local.put(node("n2", "10.20.0.2"))
    assert settled(view) == [part for part in PARTS if part != "10.20.0.2/32"]
    view.local.remove(Kind.NODE, "", "n1")
    view.local.remove(Kind.NODE, "", "n2")
    assert settled(view) == ["10.20.0.0/28"]


@pytest.mark.parametrize("time", [GRANTED, ""], ids=["ledger", "Antrea's leader"])
def test_a_pod_cidr_that_is_claimed_after_a_node_is_refused_as_a_whole(time: str) -> None:
    """Also beside an API server, and if the cluster has used a part of it before."""
    view, _ = world(claiming("10.20.0.0/30", time=time))
    view.local.put(node("n1", "10.20.0.9"))
    north_of(view).put(claiming("10.20.0.0/30", "10.20.0.0/28", time=time))
    for _ in range(2):
        assert settled(view) == ["10.20.0.0/30"]
        assert conditions_of(found(view)) == {"Ready": ("False", "ProtectedAddress")}
    view.leader = leader(addresses=("10.20.0.12",))
    for _ in range(2):  # the part with the Node, 10.20.0.8/30, is refused as a whole
        assert settled(view) == ["10.20.0.0/29", "10.20.0.0/30", "10.20.0.13/32", "10.20.0.14/31"]


@pytest.mark.parametrize("seen", [True, False], ids=["seen", "while no controller ran"])
def test_a_pod_cidr_that_is_claimed_anew_is_refused_for_the_node_inside(seen: bool) -> None:
    """Its claim comes after the Node then; the leader's time tells, if nobody saw the CIDR withdrawn."""
    view, _ = world(claiming("10.20.0.0/28", time=GRANTED))
    view.local.put(node("n1", "10.20.0.3"))
    assert settled(view) == PARTS
    if seen:
        north_of(view).put(claiming())
        assert settled(view) == []
    north_of(view).put(claiming("10.20.0.0/28", time=GRANTED if seen else LATER))
    for _ in range(2):
        assert settled(view) == []
        assert notes_of(view, "west")[PROTECTED_ANNOTATION] == "10.20.0.0/28"


def test_the_parts_around_nodes_are_no_more_than_a_cluster_may_have() -> None:
    """All claims of the cluster are examined, whatever number of its CIDRs Nodes appear in."""
    cidrs = [f"10.20.{number}.0/24" for number in range(200)]
    view, _ = world(claiming(*cidrs))
    for number in range(200):
        view.local.put(node(f"n{number}", f"10.20.{number}.9"))
    view.local.put(node("gateway", "192.0.2.7"))
    parts = networks(*settled(view))
    assert 800 < len(parts) <= 1024
    nodes = [ip_address(f"10.20.{number}.9") for number in range(200)]
    assert not any(node_address in part for node_address in nodes for part in parts)
    assert found(view)["spec"]["gatewayInfos"] == []


def test_a_pod_cidr_that_needs_too_many_parts_is_left_out() -> None:
    """The number of parts is bounded; the agents learn that this cluster's controller leaves it out."""
    view = member()
    view.leader = leader(addresses=tuple(f"10.20.{number}.9" for number in range(0, 256, 16)))
    north_of(view).put(info("west", "10.97.0.0/16", "10.20.0.0/16"))
    Controller(view, [ClusterInfoImports(settings())]).settle()
    assert "podCIDRs" not in found(view)["spec"]
    assert conditions_of(found(view)) == {"Ready": ("False", "ProtectedAddress")}
    assert notes_of(view, "west")[PROTECTED_ANNOTATION] == "10.20.0.0/16"


def test_imports_name_the_pod_cidrs_of_this_cluster_that_are_refused() -> None:
    """By the leader: on all ClusterInfoImports, as soon as it says so; by a cluster: on its own alone."""
    pods = ("10.10.0.0/16", "10.11.0.0/16")
    south = info("south", "10.98.0.0/16", gatewayInfos=[{"gatewayIP": "192.0.2.8"}])
    refused = {"east": ["10.11.0.0/16", "10.9.0.0/16"], "south": ["10.10.0.0/16"]}
    west = info("west", "10.97.0.0/16")
    west["metadata"]["annotations"] = {REFUSED_ANNOTATION: json.dumps(refused)}
    view, controller = world(west, south, info("east", "10.96.0.0/16", *pods), pod_cidrs=pods)
    assert notes_of(view, "west")[REFUSED_PODS_ANNOTATION] == "10.11.0.0/16"
    assert REFUSED_PODS_ANNOTATION not in notes_of(view, "south")
    own = info("east", "10.96.0.0/16", pods[1])
    own["metadata"]["annotations"] = {CLAIMS_ANNOTATION: json.dumps({pods[0]: ""})}
    north_of(view).put(own)
    controller.run()
    assert notes_of(view, "west")[REFUSED_PODS_ANNOTATION] == "10.10.0.0/16,10.11.0.0/16"
    assert notes_of(view, "south")[REFUSED_PODS_ANNOTATION] == "10.10.0.0/16"
    north_of(view).put(info("east", "10.96.0.0/16", *pods))
    controller.run()
    assert REFUSED_PODS_ANNOTATION not in notes_of(view, "south")


def messages(*imports: RawObject, view: MemoryView | None = None, **values: Any) -> dict[str, str]:
    """Return the messages of the conditions of all imported clusters, by cluster; no condition is True."""
    view = view or member()
    for raw in imports:
        north_of(view).put(raw)
        Controller(view, [ClusterInfoImports(settings(**values))]).settle()
        north_of(view).clock.forward(10)
    texts = {}
    for raw in view.local.list(Kind.CLUSTER_INFO_IMPORT, HOME):
        (ready,) = raw["status"]["conditions"]
        texts[raw["spec"]["clusterID"]] = ready.get("message", "")
    return texts


def test_the_condition_of_an_imported_cluster_has_the_time_of_its_last_change() -> None:
    """Another message does not change it."""
    view, controller = world(info())
    (ready,) = found(view)["status"]["conditions"]
    begin = ready["lastTransitionTime"]
    assert begin == time_text(view.local.clock())
    view.local.clock.forward(100)
    view.local.put(node("n1", "192.0.2.7"))
    controller.run()
    (ready,) = found(view)["status"]["conditions"]
    assert (ready["status"], ready["lastTransitionTime"]) == ("False", time_text(view.local.clock()))
    view.local.clock.forward(100)
    view.local.change(Kind.NODE, "", "n1", {"status": {"addresses": []}})
    north_of(view).put(info("west", "10.96.0.0/16"))
    controller.run()
    (ready,) = found(view)["status"]["conditions"]
    assert (ready["status"], ready["lastTransitionTime"]) == ("False", time_text(view.local.clock() - 100))


def test_an_overlap_names_both_networks_and_clusters() -> None:
    """Of this cluster in the order of its networks; of another cluster the younger one."""
    first = info("west", "10.97.0.0/16", "10.96.128.0/17")
    second = info("south", "10.97.128.0/17", gatewayInfos=[{"gatewayIP": "192.0.2.8"}])
    assert messages(first, second, pod_cidrs=("10.97.0.0/24",)) == {
        "west": (
            "10.96.128.0/17 of cluster west overlaps 10.96.0.0/16 of this cluster; "
            "10.97.0.0/16 of cluster west overlaps 10.97.0.0/24 of this cluster"
        ),
        "south": "10.97.128.0/17 of cluster south overlaps 10.97.0.0/16 of cluster west, which was first",
    }
    gateways = [
        info(name, f"10.{number}.0.0/16", gatewayInfos=[{"gatewayIP": "192.0.2.7"}])
        for number, name in enumerate(("west", "south"), 97)
    ]
    assert messages(*gateways) == {
        "west": "",
        "south": "192.0.2.7 of cluster south overlaps 192.0.2.7 of cluster west, which was first",
    }


def test_protected_addresses_name_whose_they_are() -> None:
    """Of the leader, this cluster's API servers and Nodes; the leader's own cluster may have its address."""
    view = member()
    view.leader = leader(addresses=("192.0.2.7",))
    view.local.put(node("n1", "192.0.2.8", "fd00::8"))
    servers = {
        "kind": "EndpointSlice",
        "metadata": {"name": "k", "namespace": "default", "labels": {"kubernetes.io/service-name": "kubernetes"}},
        "endpoints": [{"addresses": ["192.0.2.9"]}],
        "addressType": "IPv4",
    }
    view.local.put(servers)
    gateways = [{"gatewayIP": text} for text in ("192.0.2.7", "192.0.2.8", "192.0.2.9", "192.0.2.10")]
    west = info("west", "10.97.0.0/16", gatewayInfos=gateways)
    north = info("north", "10.98.0.0/16", gatewayInfos=gateways[:1])
    ignored, leaders = "of cluster west is ignored", "which only cluster north may have as a gateway"
    texts = messages(west, north, view=view)
    assert texts["west"].split("; ") == [
        f"gateway 192.0.2.7 {ignored}: 192.0.2.7 is the leader's API server, {leaders}",
        f"gateway 192.0.2.8 {ignored}: 192.0.2.8 is an address of Node n1 of this cluster",
        f"gateway 192.0.2.9 {ignored}: 192.0.2.9 is an API server of this cluster",
    ]
    assert texts["north"] == ""
    assert [item["gatewayIP"] for item in found(view)["spec"]["gatewayInfos"]] == ["192.0.2.10"]


def test_encryption_on_one_side_names_the_other() -> None:
    """Not where there is no gateway yet."""
    encrypted = info(wireGuard={"publicKey": KEY})
    assert messages(encrypted) == {"west": ""}
    view = member()
    view.local.put({"kind": "Gateway", "metadata": {"name": "n1", "namespace": HOME}, "gatewayIP": "10.0.0.1"})
    text = "traffic between gateways is encrypted in cluster west and not here"
    assert messages(encrypted, view=view) == {"west": text}
    view.local.change(Kind.GATEWAY, HOME, "n1", {"wireGuard": {"publicKey": KEY}})
    text = "traffic between gateways is encrypted here and not in cluster west"
    assert messages(info(), view=view) == {"west": text}
    assert messages(info(gatewayInfos=[]), view=view) == {"west": ""}


def test_a_cluster_without_valid_information_is_an_event() -> None:
    """It names the field; so does one whose name is another cluster's."""
    view = member()
    north_of(view).put(info(gatewayInfos=[{"gatewayIP": "x"}]))
    controller = Controller(view, [ClusterInfoImports(settings())])
    controller.settle()
    (event,) = controller.all_events()
    assert (event.subject, event.reason) == (f"ClusterSet {HOME}/{SET}", "InvalidClusterInfo")
    assert event.message.startswith("west-clusterinfo is ignored while invalid: spec.")
    renamed = info("west")
    renamed["metadata"]["name"] = "south-clusterinfo"
    north_of(view).remove(Kind.RESOURCE_IMPORT, AREA, "west-clusterinfo")
    north_of(view).put(renamed)
    controller.settle()
    (event,) = (event for event in controller.all_events() if "south" in event.message)
    assert event.message == (
        "south-clusterinfo is ignored while invalid: spec.clusterinfo.clusterID: does not match its name"
    )


def test_claims_that_an_early_version_imported_have_the_time_of_the_object() -> None:
    """Times that cannot be read count as none."""
    view = member()
    created = "2020-01-03T00:00:00Z"
    meta: dict[str, Any] = {"name": "west-clusterinfo", "namespace": HOME, "creationTimestamp": created}
    present = {
        "kind": "ClusterInfoImport",
        "metadata": meta,
        "spec": {"clusterID": "west", "serviceCIDR": "10.97.0.0/16"},
    }
    view.local.put(present, created=created)
    north_of(view).put(info())
    Controller(view, [ClusterInfoImports(settings())]).settle()
    times = read_granted(notes_of(view, "west")[CLAIMS_ANNOTATION])
    assert times["10.97.0.0/16"] == "2020-01-03T00:00:00.000000Z"
    assert times["192.0.2.7"] > times["10.97.0.0/16"]
    broken = info()
    broken["metadata"]["annotations"] = {CLAIMS_ANNOTATION: "{"}
    north_of(view).put(broken)
    Controller(view, [ClusterInfoImports(settings())]).settle()
    assert read_granted(notes_of(view, "west")[CLAIMS_ANNOTATION]) == times
