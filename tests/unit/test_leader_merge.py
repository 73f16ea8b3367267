"""What several clusters export of one Service becomes what all import; and their networks, copied."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mcagent.controller.contract import names
from mcagent.controller.leader.services.reconciler import ServiceMerge
from mcagent.controller.settings import LeaderSettings, MemberLimits
from mcagent.kube.source import RawObject
from mcagent.model.objects import Kind
from tests.properties import COSTLY
from tests.worlds.leader_world import (
    AREA,
    FLAT,
    Leader,
    account,
    announce,
    cluster_info,
    endpoints,
    export,
    gateway_of,
    service,
)

FAILED = "ResourceExport can't be converged to ResourceImport"
KEY = "IRfSjVAaO0TJMcSZSGRCzRRBGD7h5yFXtxrRFCRJJ0A="


def two() -> Leader:
    """Return a leader with the members east and west."""
    return Leader("east", "west")


def refusing() -> Leader:
    """Return one that refuses exports whose ports differ."""
    limits = MemberLimits(refuse_conflicts=True)
    settings = LeaderSettings(namespace="", allowed_endpoint_cidrs=FLAT, limits=limits)
    return Leader("east", "west", settings=settings)


def events_of(leader: Leader, name: str) -> list[tuple[str, str]]:
    """Return reason and message of the Events of a ResourceExport."""
    subject = f"ResourceExport {AREA}/{name}"
    return [(event.reason, event.message) for event in leader.controller.all_events() if event.subject == subject]


def port(name: str, number: int, protocol: str = "TCP", **fields: str) -> RawObject:
    """Return a port of a Service or of endpoints."""
    return {"name": name, "port": number, "protocol": protocol} | fields


# --- Service and Endpoints ----------------------------------------------------------------------------------


def test_one_export_becomes_two_imports_of_the_contracts_form() -> None:
    """Names, kinds and fields are those that any member reads."""
    leader = two()
    leader.put(service("east"), endpoints("east", ["10.1.0.1"]))
    assert leader.imported("default-nginx-service") == {
        "namespace": "default",
        "name": "nginx",
        "kind": "ServiceImport",
        "serviceImport": {
            "spec": {"type": "ClusterSetIP", "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]}
        },
    }
    assert leader.imported("default-nginx-endpoints") == {
        "namespace": "default",
        "name": "nginx",
        "kind": "Endpoints",
        "endpoints": {
            "subsets": [
                {
                    "addresses": [{"ip": "10.1.0.1"}],
                    "ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
                }
            ]
        },
    }
    assert leader.verdict("east-default-nginx-service")["type"] == "Succeeded"
    assert leader.verdict("east-default-nginx-endpoints")["status"] == "True"
    resource_import = leader.api.get(Kind.RESOURCE_IMPORT, AREA, "default-nginx-service")
    assert resource_import is not None
    assert [s["clusterID"] for s in resource_import["status"]["clusterStatuses"]] == ["east"]


def test_endpoints_of_all_clusters_together_without_duplicates() -> None:
    """The union is sorted, and an address that two clusters name is there once."""
    leader = two()
    leader.put(service("east"), service("west"))
    leader.put(endpoints("west", ["10.2.0.9", "10.2.0.10"]), endpoints("east", ["10.1.0.1", "10.2.0.9"]))
    assert leader.addresses() == ["10.1.0.1", "10.2.0.9", "10.2.0.10"]


def test_a_leader_can_refuse_conflicts() -> None:
    """members.refuseConflicts: a later export with another port is refused, with field and cluster."""
    leader = refusing()
    leader.put(service("west", ports=80), endpoints("west", ["10.2.0.1"]))
    leader.clock.forward(5)
    leader.put(service("east", ports=8080), endpoints("east", ["10.1.0.1"], port=8080))
    verdict = leader.verdict("east-default-nginx-service")
    assert (verdict["type"], verdict["status"], verdict["reason"]) == ("Failure", "False", "ConvergeFailure")
    assert verdict["message"] == (
        f"{FAILED}: conflict with cluster west, which exported it first: "
        'port "http" is 8080/TCP here and 80/TCP there'
    )
    assert leader.verdict("east-default-nginx-endpoints")["type"] == "Failure"
    assert leader.addresses() == ["10.2.0.1"]


def test_the_next_defines_when_the_first_has_gone() -> None:
    """A refused export takes over once the one before it is no more."""
    leader = refusing()
    leader.put(service("west", ports=80), endpoints("west", ["10.2.0.1"]))
    leader.clock.forward(5)
    leader.put(service("east", ports=8080), endpoints("east", ["10.1.0.1"], port=8080))
    leader.leave("west")
    assert leader.imported("default-nginx-service")["serviceImport"]["spec"]["ports"][0]["port"] == 8080
    assert leader.addresses() == ["10.1.0.1"]
    assert leader.verdict("east-default-nginx-service")["type"] == "Succeeded"


def test_exports_of_the_same_second_are_decided_by_cluster_id() -> None:
    """With equal times the lesser cluster ID defines."""
    leader = two()
    leader.put(service("west", ports=81), created="2026-01-01T00:00:00Z")
    leader.put(service("east", ports=80), created="2026-01-01T00:00:00Z")
    assert leader.imported("default-nginx-service")["serviceImport"]["spec"]["ports"][0]["port"] == 80


@pytest.mark.parametrize(
    ("ports", "message"),
    [
        ([{"name": "web", "port": 80}], 'port "http" of the other definition is missing'),
        ([{"name": "http", "port": 80, "protocol": "UDP"}], 'port "http" is 80/UDP here and 80/TCP there'),
        ([{"name": "http", "port": 80}, {"name": "x", "port": 9}], 'port "x" is not in the other definition'),
    ],
)
def test_each_kind_of_conflict_names_its_field(ports: list[RawObject], message: str) -> None:
    """The message says which port differs, and how."""
    leader = refusing()
    leader.put(service("east"))
    leader.clock.forward(1)
    leader.put(service("west", ports=ports))
    assert message in leader.verdict("west-default-nginx-service")["message"]


def test_ports_are_put_together_and_the_conflict_is_told_to_all() -> None:
    """Each cluster's endpoints serve its own ports; whose ports differ reads that, the oldest too."""
    leader = two()
    ports = [port("http", 80), port("admin", 90)]
    leader.put(service("west"), endpoints("west", ["10.2.0.1"]))
    leader.clock.forward(5)
    leader.put(service("east", ports=ports), endpoints("east", ["10.1.0.1"], port=ports))
    assert leader.imported("default-nginx-service")["serviceImport"]["spec"]["ports"] == ports
    assert leader.subsets() == {("east", "admin", 90): ["10.1.0.1"], ("east", "http", 80): ["10.1.0.1"]} | {
        ("west", "http", 80): ["10.2.0.1"]
    }
    conflict = (
        "PortConflict",
        "ports: [http 80/TCP] in cluster west, which was first, but [admin 90/TCP, http 80/TCP] in cluster east",
    )
    for cluster in ("east", "west"):
        assert leader.verdict(f"{cluster}-default-nginx-service")["type"] == "Succeeded"
        assert leader.conflict(f"{cluster}-default-nginx-service") == conflict
    leader.put(service("east"))
    assert (
        leader.conflict("east-default-nginx-service") == leader.conflict("west-default-nginx-service") == ("", "")
    )
    assert leader.subsets() == {("east", "http", 80): ["10.1.0.1"], ("west", "http", 80): ["10.2.0.1"]}


@pytest.mark.parametrize(
    ("other_ports", "expected"),
    [
        ([port("http", 8080), port("admin", 90)], ["admin"]),  # the same name, another number
        ([port("web", 80), port("admin", 90)], ["admin"]),  # the same number, another name
        ([port("http", 80, "UDP"), port("admin", 90)], ["admin"]),
        ([port("", 90)], []),  # of several ports each has a name
        ([port("http", 80, appProtocol="http"), port("admin", 90)], ["admin", "http"]),
    ],
)
def test_of_ports_that_exclude_each_other_the_oldest_exports_stay(
    other_ports: list[RawObject], expected: list[str]
) -> None:
    """The younger cluster does not serve the port that differs, and all its others."""
    leader = two()
    leader.put(service("west"), endpoints("west", ["10.2.0.1"]))
    leader.clock.forward(5)
    leader.put(service("east", ports=other_ports), endpoints("east", ["10.1.0.1"], port=other_ports))
    ports = leader.imported("default-nginx-service")["serviceImport"]["spec"]["ports"]
    assert ports == [port("http", 80), *(p for p in other_ports if p["name"] in expected and p["name"] != "http")]
    served = leader.subsets()
    assert sorted(name for cluster, name, _ in served if cluster == "east") == expected
    assert served["west", "http", 80] == ["10.2.0.1"]
    assert leader.conflict("east-default-nginx-service")[0] == "PortConflict"
    leader.leave("west")
    assert leader.imported("default-nginx-service")["serviceImport"]["spec"]["ports"] == [
        {key: value for key, value in port_number.items() if value} for port_number in other_ports
    ]
    assert leader.conflict("east-default-nginx-service") == ("", "")


ALL: dict[str, Any] = {
    "sessionAffinity": "ClientIP",
    "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
    "internalTrafficPolicy": "Local",
    "trafficDistribution": "PreferClose",
    "ipFamilies": ["IPv4", "IPv6"],
}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, "SessionAffinityConflict"),
        ({**ALL, "clusterIP": "None"}, "TypeConflict"),
        ({**ALL, "sessionAffinityConfig": None}, "SessionAffinityConfigConflict"),
        ({**ALL, "internalTrafficPolicy": "Cluster"}, "InternalTrafficPolicyConflict"),
        ({**ALL, "trafficDistribution": None}, "TrafficDistributionConflict"),
        ({**ALL, "ipFamilies": ["IPv4"]}, "IPFamilyConflict"),
        ({**ALL, "ipFamilies": None}, ""),  # it does not say
        ({**ALL, "clusterIP": "10.96.0.7", "type": "LoadBalancer"}, ""),  # does not matter to others
        (ALL, ""),
    ],
)
def test_everything_else_is_the_oldest_exports(change: RawObject, reason: str) -> None:
    """The import has the oldest export's settings, and what differs is told with KEP-1645's reason."""
    leader = two()
    leader.put(service("west", **ALL))
    leader.clock.forward(5)
    leader.put(service("east", **change), endpoints("east", ["10.1.0.1"]))
    spec = leader.imported("default-nginx-service")["serviceImport"]["spec"]
    assert spec == {"type": "ClusterSetIP", "ports": [port("http", 80)], **ALL}
    assert leader.conflict("east-default-nginx-service")[0] == reason
    assert leader.conflict("west-default-nginx-service")[0] == reason
    assert leader.addresses() == ["10.1.0.1"]


def test_the_oldest_export_says_whether_it_is_headless() -> None:
    """A headless Service is imported as one, with the hostnames of its endpoints."""
    leader = two()
    mine = endpoints("east", ["10.1.0.1", "10.1.0.2"])
    mine["spec"]["endpoints"]["subsets"][0]["addresses"][1]["hostname"] = "db-0"
    mine["spec"]["endpoints"]["subsets"][0]["addresses"][0]["hostname"] = "no hostname"
    leader.put(service("east", clusterIP="None"), mine)
    assert leader.imported("default-nginx-service")["serviceImport"]["spec"]["type"] == "Headless"
    (subset,) = leader.imported("default-nginx-endpoints")["endpoints"]["subsets"]
    assert subset["addresses"] == [{"ip": "10.1.0.1"}, {"ip": "10.1.0.2", "hostname": "db-0"}]


def test_exported_labels_and_annotations_are_the_oldest_exports() -> None:
    """They are carried as annotations; keys that are Kubernetes' or ours, and what is none, are left out."""
    leader = two()
    mine, other_export = service("west"), service("east")
    labels = {
        "team": "pay",
        "mcagent.io/x": "1",
        "app.kubernetes.io/managed-by": "us",
        "no value": "",
        "long": "-",
    }
    mine["metadata"]["annotations"] = {
        names.EXPORTED_LABELS_ANNOTATION: json.dumps(labels),
        names.EXPORTED_ANNOTATIONS_ANNOTATION: json.dumps({"example.org/owner": "any text", "n": 7}),
    }
    other_export["metadata"]["annotations"] = {names.EXPORTED_LABELS_ANNOTATION: "{"}
    leader.put(mine)
    leader.clock.forward(5)
    leader.put(other_export)
    resource_import = leader.api.get(Kind.RESOURCE_IMPORT, AREA, "default-nginx-service")
    assert resource_import is not None
    assert resource_import["metadata"]["annotations"] == {
        names.EXPORTED_LABELS_ANNOTATION: '{"team": "pay"}',
        names.EXPORTED_ANNOTATIONS_ANNOTATION: '{"example.org/owner": "any text"}',
    }
    reason, message = leader.conflict("east-default-nginx-service")
    assert reason == "LabelsConflict"
    assert "exportedAnnotations: {example.org/owner: any text} in cluster west" in message


def note(leader: Leader, name: str, key: str) -> str | None:
    """Return one of our annotations of a ResourceImport."""
    resource_import = leader.api.get(Kind.RESOURCE_IMPORT, AREA, name)
    assert resource_import is not None
    return (resource_import["metadata"].get("annotations") or {}).get(f"mcagent.io/{key}")


def annotated(raw: RawObject, key: str, text: str) -> RawObject:
    """Return an export with one of our annotations."""
    raw["metadata"]["annotations"] = {f"mcagent.io/{key}": text}
    return raw


@pytest.mark.parametrize(
    ("expected", "carried"),
    [("12", "west=12"), ("99999", "west=1000"), ("1234567", None), ("-1", None), ("³", None), ("0", None)],
)
def test_the_numbers_of_ready_endpoints_are_carried_by_cluster(expected: str, carried: str | None) -> None:
    """Up to what the leader takes of one Service; what is no number is told, and the endpoints are used."""
    leader = two()
    other_export = annotated(endpoints("west", ["10.2.0.1"]), "ready-endpoints", expected)
    leader.put(service("east"), endpoints("east", ["10.1.0.1"]), service("west"), other_export)
    assert note(leader, "default-nginx-endpoints", "ready-endpoints") == carried
    assert leader.addresses() == ["10.1.0.1", "10.2.0.1"]
    message = leader.verdict("west-default-nginx-endpoints").get("message", "")
    assert ("must be a whole number" in message) == (carried is None and expected != "0")


def test_where_connections_go_is_the_oldest_exports() -> None:
    """Else the ClusterSet's; clusters are named by those only for whom the namespace is reserved."""
    settings = LeaderSettings(namespace="", allowed_endpoint_cidrs=FLAT, imported_traffic="*=1")
    leader = Leader("east", "west", settings=settings)
    leader.put(service("east"))
    assert note(leader, "default-nginx-service", "traffic") == "*=1"
    leader.clock.forward(5)
    leader.put(annotated(service("west"), "traffic", "local > *"))
    assert note(leader, "default-nginx-service", "traffic") == "*=1"
    assert leader.conflict("east-default-nginx-service")[0] == "TrafficConflict"
    leader.put(annotated(service("east"), "traffic", "local > *"))
    assert note(leader, "default-nginx-service", "traffic") == "local > *"
    for text, why in (("east > *", "names clusters"), ("east=", "must have weights")):
        leader.put(annotated(service("east"), "traffic", text))
        assert note(leader, "default-nginx-service", "traffic") == "*=1"
        assert why in leader.verdict("east-default-nginx-service")["message"]
    leader.put(account("east", allowed_namespaces="default"), annotated(service("east"), "traffic", "east > *"))
    assert note(leader, "default-nginx-service", "traffic") == "east > *"


def test_a_name_that_two_services_have_belongs_to_that_of_a_reserved_namespace() -> None:
    """Names are concatenated: default/a-b and default-a/b have one. If neither is reserved, the first has it."""
    leader = two()
    leader.put(service("west", "default/a-b"))
    leader.clock.forward(5)
    leader.put(service("east", "default-a/b"))
    assert leader.imported("default-a-b-service")["namespace"] == "default"
    assert "stands for Service default/a-b" in leader.verdict("east-default-a-b-service")["message"]
    leader.put(account("east", allowed_namespaces="default-a"))
    assert leader.imported("default-a-b-service")["namespace"] == "default-a"
    assert "stands for Service default-a/b" in leader.verdict("west-default-a-b-service")["message"]


def test_a_conflict_of_affinity_says_who_has_which() -> None:
    """By the values of the API."""
    leader = two()
    leader.put(service("west", sessionAffinity="ClientIP"))
    leader.clock.forward(5)
    leader.put(service("east"))
    assert leader.conflict("east-default-nginx-service") == (
        "SessionAffinityConflict",
        "sessionAffinity: ClientIP in cluster west, which was first, but None in cluster east",
    )


def test_ports_in_another_order_are_no_conflict() -> None:
    """The same ports are the same definition."""
    ports: list[RawObject] = [{"name": "a", "port": 1}, {"name": "b", "port": 2, "protocol": "UDP"}]
    leader = two()
    leader.put(service("east", ports=ports), service("west", ports=ports[::-1]))
    assert leader.verdict("west-default-nginx-service")["type"] == "Succeeded"


def test_the_import_follows_its_definition() -> None:
    """When the first cluster changes its Service the import changes, and who then differs is told."""
    leader = refusing()
    leader.put(service("east"))
    leader.clock.forward(1)
    leader.put(service("west"))
    leader.put(service("east", ports=81))
    assert leader.imported("default-nginx-service")["serviceImport"]["spec"]["ports"][0]["port"] == 81
    assert leader.verdict("west-default-nginx-service")["type"] == "Failure"


def test_one_endpoint_change_is_one_write() -> None:
    """However many Services and clusters there are, one change of endpoints writes one object."""
    leader = two()
    for number in range(50):
        for cluster in ("east", "west"):
            target = f"default/s{number}"
            leader.put(service(cluster, target), endpoints(cluster, ["10.1.0.1"], target))
    leader.api.writes.clear()
    leader.put(endpoints("east", ["10.1.0.1", "10.1.0.2"], "default/s7"))
    assert leader.api.writes == [f"update ResourceImport {AREA}/default-s7-endpoints"]


def test_endpoints_without_their_service_wait() -> None:
    """Endpoints alone are refused, and taken as soon as the Service is exported."""
    leader = two()
    leader.put(endpoints("east", ["10.1.0.1"]))
    assert "does not export the Service itself" in leader.verdict("east-default-nginx-endpoints")["message"]
    assert leader.api.list(Kind.RESOURCE_IMPORT) == []
    leader.put(service("east"))
    assert leader.addresses() == ["10.1.0.1"]


def test_a_deleted_export_leaves_the_import_then_loses_its_finalizers() -> None:
    """The import is right before the export may vanish; the finalizer of old members goes as well."""
    leader = two()
    old = service("east")
    old["metadata"]["finalizers"] = [names.LEGACY_EXPORT_FINALIZER, names.EXPORT_FINALIZER, "example.com/other"]
    leader.put(old, endpoints("east", ["10.1.0.1"]))
    leader.remove("east-default-nginx-endpoints")
    assert leader.imported("default-nginx-endpoints") is None
    assert leader.imported("default-nginx-service") is not None
    leader.remove("east-default-nginx-service")
    assert leader.imported("default-nginx-service") is None
    remaining = leader.api.get(Kind.RESOURCE_EXPORT, AREA, "east-default-nginx-service")
    assert remaining is not None
    assert remaining["metadata"]["finalizers"] == ["example.com/other"]


def test_an_import_without_exports_is_removed() -> None:
    """What is left over from before a restart goes; ResourceImports that are none of ours stay."""
    leader = two()
    leader.put(service("east"))
    for name in ("default-old-service", "by-hand"):
        spec = {"namespace": "default", "name": "old", "kind": "ServiceImport"}
        leader.api.put({"kind": "ResourceImport", "metadata": {"name": name, "namespace": AREA}, "spec": spec})
    leader.settle()
    assert [o["metadata"]["name"] for o in leader.api.list(Kind.RESOURCE_IMPORT)] == [
        "by-hand",
        "default-nginx-service",
    ]


def test_a_tampered_import_is_mended() -> None:
    """Whoever changes a ResourceImport, the leader writes it as it should be."""
    leader = two()
    leader.put(service("east"), endpoints("east", ["10.1.0.1"]))
    patch: RawObject = {"spec": {"endpoints": {"subsets": []}}}
    leader.api.change(Kind.RESOURCE_IMPORT, AREA, "default-nginx-endpoints", patch)
    leader.controller.run()
    assert leader.addresses() == ["10.1.0.1"]
    leader.api.remove(Kind.RESOURCE_IMPORT, AREA, "default-nginx-service")
    leader.controller.run()
    assert leader.imported("default-nginx-service") is not None


def test_names_that_run_together_are_kept_apart() -> None:
    """`a-b`/`c` and `a`/`b-c` want one ResourceImport: the older has it, the other is told and gets it later."""
    leader = two()
    leader.put(service("east", "a-b/c"), endpoints("east", ["10.1.0.1"], "a-b/c"))
    leader.clock.forward(1)
    leader.put(service("west", "a/b-c", 81), endpoints("west", ["10.2.0.1"], "a/b-c", 81))
    assert leader.imported("a-b-c-service")["namespace"] == "a-b"
    assert leader.addresses("a-b-c-endpoints") == ["10.1.0.1"]
    for kind in ("service", "endpoints"):
        message = leader.verdict(f"west-a-b-c-{kind}")["message"]
        assert "a-b-c-service, stands for Service a-b/c, which cluster east exported first" in message
    leader.remove("east-a-b-c-endpoints")
    leader.remove("east-a-b-c-service")
    assert leader.imported("a-b-c-service")["namespace"] == "a"
    assert leader.addresses("a-b-c-endpoints") == ["10.2.0.1"]
    assert leader.verdict("west-a-b-c-service")["type"] == "Succeeded"


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"service": None}, "spec.service: is missing"),
        ({"service": {"serviceSpec": {"ports": []}}}, "spec.service.serviceSpec.ports: is empty"),
        ({"service": {"serviceSpec": {"ports": "x"}}}, "must be a list"),
        ({"service": {"serviceSpec": {"ports": [{"port": 0}]}}}, "must be from 1 to 65535"),
        ({"service": {"serviceSpec": {"ports": [{"port": 1, "protocol": "ICMP"}]}}}, "TCP, UDP or SCTP"),
        ({"service": {"serviceSpec": {"ports": [{"port": 1, "name": "A b"}]}}}, "DNS-1123 label"),
        ({"service": {"serviceSpec": {"ports": [{"port": 1}, {"port": 2}]}}}, "another port"),
        ({"namespace": "De/fault"}, "spec.namespace: must be a DNS-1123 label"),
        ({"name": None}, "spec.name: is missing"),
        ({"name": "other"}, "must be east-default-other-service"),
        ({"clusterID": "west"}, "must be west-default-nginx-service"),
        ({"clusterID": 5}, "spec.clusterID: must be a string"),
        ({"kind": "ExternalEntity"}, 'does not merge exports of kind "ExternalEntity"'),
        ({"kind": None}, 'does not merge exports of kind ""'),
    ],
)
def test_a_bad_export_is_told_and_stops_nobody(spec: RawObject, told: str) -> None:
    """Each fault of one cluster's export stands in its status; the other clusters' are merged."""
    leader = two()
    bad = service("east")
    bad["spec"] |= spec
    leader.put(bad, service("west"))
    message = leader.verdict("east-default-nginx-service")["message"]
    assert told in message
    assert leader.imported("default-nginx-service") is not None
    # without a kind that is merged, a namespace and a name, it is of no Service: its status alone says so
    of_a_service = not told.startswith(("does not merge", "spec.namespace", "spec.name"))
    note = message.removeprefix(f"{FAILED}: ")
    assert events_of(leader, "east-default-nginx-service") == ([("NotMerged", note)] if of_a_service else [])
    assert events_of(leader, "west-default-nginx-service") == []
    leader.remove("east-default-nginx-service")
    assert leader.api.get(Kind.RESOURCE_EXPORT, AREA, "east-default-nginx-service") is None


def test_an_export_without_endpoints_payload_is_passed_over() -> None:
    """A nil payload is told, and the others' endpoints stay."""
    leader = two()
    leader.put(service("east"), service("west"), endpoints("west", ["10.2.0.1"]))
    bad = endpoints("east", [])
    bad["spec"]["endpoints"] = None
    leader.put(bad)
    assert "spec.endpoints: is missing" in leader.verdict("east-default-nginx-endpoints")["message"]
    assert leader.addresses() == ["10.2.0.1"]


@pytest.mark.parametrize(
    "ip", ["127.0.0.1", "169.254.169.254", "0.0.0.0", "224.0.0.1", "255.255.255.255", "fe80::1", "x", 7, None]
)
def test_endpoints_that_are_none_are_left_out_and_told(ip: Any) -> None:
    """No cluster can make others talk to their own loopback or metadata service."""
    leader = two()
    leader.put(service("east"), endpoints("east", ["10.1.0.1", ip]))
    assert leader.addresses() == ["10.1.0.1"]
    verdict = leader.verdict("east-default-nginx-endpoints")
    assert verdict["type"] == "Succeeded"
    assert verdict["message"].startswith("1 endpoints are left out: ")


def test_endpoints_must_lie_in_what_their_cluster_publishes() -> None:
    """Once a cluster publishes Pod CIDRs, an endpoint elsewhere is nobody's to export."""
    leader = two()
    leader.put(service("east"), endpoints("east", ["10.1.0.1", "192.168.0.10"]))
    assert leader.addresses() == ["10.1.0.1"]  # no gateway: where it is allowed by configuration
    leader.put(cluster_info("east", "10.7.0.0/16"))
    assert leader.addresses() == ["10.1.0.1"]  # Pods that are reached without its gateway: the same
    assert "allowedEndpointCIDRs of the leader" in leader.verdict("east-default-nginx-endpoints")["message"]
    leader.put(cluster_info("east", "10.1.0.0/16", ["192.168.0.0/24"]))
    assert leader.addresses() == ["10.1.0.1", "192.168.0.10"]
    leader.put(cluster_info("east", "10.7.0.0/16", ["192.168.1.0/24"]))
    assert leader.addresses() == []
    assert leader.verdict("east-default-nginx-endpoints")["type"] == "Failure"


@pytest.mark.costly
def test_an_import_never_grows_beyond_what_an_object_may_be() -> None:
    """Endpoints of the youngest export that do not fit are left out and told."""
    members = ["c0", "c1", "c2"]
    limits = MemberLimits(max_endpoints=20_000, max_export_bytes=1_000_000)
    leader = Leader(
        *members, settings=LeaderSettings(namespace="", limits=limits, allowed_endpoint_cidrs=("10.0.0.0/8",))
    )
    for number, member in enumerate(members):
        leader.clock.forward(1)
        ips = [f"10.{number}.{a}.{b}" for a in range(60) for b in range(250)]
        leader.put(service(member), endpoints(member, ips))
    resource_import = leader.api.get(Kind.RESOURCE_IMPORT, AREA, "default-nginx-endpoints")
    assert 900_000 < len(json.dumps(resource_import)) < 1_100_000
    assert "message" not in leader.verdict("c0-default-nginx-endpoints")
    assert "would be larger than an object may be" in leader.verdict("c2-default-nginx-endpoints")["message"]
    assert leader.addresses()[:15_000] == sorted(
        (f"10.0.{a}.{b}" for a in range(60) for b in range(250)),
        key=lambda ip: tuple(map(int, ip.split("."))),
    )


def test_names_at_the_length_limit() -> None:
    """63 characters of namespace and name are imported as any."""
    target = f"{'n' * 63}/{'s' * 63}"
    leader = two()
    leader.put(service("east", target), endpoints("east", ["10.1.0.1"], target))
    assert leader.addresses(f"{'n' * 63}-{'s' * 63}-endpoints") == ["10.1.0.1"]


def test_session_affinity_is_carried() -> None:
    """A Service that keeps a client on one endpoint does so for other clusters."""
    leader = two()
    export = service("east")
    export["spec"]["service"]["serviceSpec"]["sessionAffinity"] = "ClientIP"
    leader.put(export)
    spec = leader.imported("default-nginx-service")["serviceImport"]["spec"]
    assert spec["sessionAffinityConfig"] == {"clientIP": {"timeoutSeconds": 10800}}
    leader.put(service("east"))
    assert "sessionAffinity" not in leader.imported("default-nginx-service")["serviceImport"]["spec"]


# --- ClusterInfo --------------------------------------------------------------------------------------------


def test_cluster_info_is_copied_with_known_fields_only() -> None:
    """Every member gets the network of every other one, and nothing that this leader does not know."""
    leader = two()
    info = cluster_info("east", "10.1.0.0/16", ["10.128.0.0/14", ""], key=KEY)
    info["spec"]["clusterInfo"]["surprise"] = {"a": 1}
    info["spec"]["clusterInfo"]["gatewayInfos"].append(
        {"gatewayIP": "192.168.1.2", "wireGuard": {"publicKey": KEY}, "x": 1}
    )
    leader.put(info)
    assert leader.imported("east-clusterinfo") == {
        "namespace": "kube-system",
        "name": "east",
        "kind": "ClusterInfo",
        "clusterinfo": {
            "clusterID": "east",
            "serviceCIDR": "10.1.0.0/16",
            "podCIDRs": ["10.128.0.0/14"],
            "gatewayInfos": [
                {"gatewayIP": gateway_of("east")},
                {"gatewayIP": "192.168.1.2", "wireGuard": {"publicKey": KEY}},
            ],
            "wireGuard": {"publicKey": KEY},
        },
    }
    assert leader.verdict("east-clusterinfo")["type"] == "Succeeded"


def test_cluster_info_is_changed_in_place() -> None:
    """A gateway that changes never deletes the import, and fields that go do go."""
    leader = two()
    leader.put(cluster_info("east", "10.1.0.0/16", ["10.128.0.0/14"], key=KEY))
    leader.api.writes.clear()
    leader.put(cluster_info("east", "10.1.0.0/16"))
    assert leader.api.writes == [f"update ResourceImport {AREA}/east-clusterinfo"]
    assert leader.imported("east-clusterinfo")["clusterinfo"].keys() == {
        "clusterID",
        "serviceCIDR",
        "gatewayInfos",
    }


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"clusterID": "west"}, "must be the exporting cluster's"),
        ({"serviceCIDR": "10.1.0.0"}, "not a CIDR"),
        ({"serviceCIDR": "0.0.0.0/0"}, "prefix shorter"),
        ({"podCIDRs": ["127.0.0.0/8"]}, "loopback"),
        ({"gatewayInfos": [{"gatewayIP": "nowhere"}]}, "not an IP address"),
        ({"gatewayInfos": [{"gatewayIP": "127.0.0.1"}]}, "loopback"),
        ({"gatewayInfos": {}}, "must be a list"),
        ({"wireGuard": {"publicKey": "short"}}, "not a WireGuard public key"),
        ({"wireGuard": {"publicKey": "A" * 43 + "="}}, "not a WireGuard public key"),
    ],
)
def test_bad_cluster_info_keeps_the_last_good_copy(change: RawObject, told: str) -> None:
    """A cluster that publishes nonsense is told, and stays reachable as it was."""
    leader = two()
    leader.put(cluster_info("east", "10.1.0.0/16"))
    before = leader.imported("east-clusterinfo")
    bad = cluster_info("east", "10.9.0.0/16")
    bad["spec"]["clusterInfo"] |= change
    leader.put(bad)
    message = leader.verdict("east-clusterinfo")["message"]
    assert told in message
    assert leader.imported("east-clusterinfo") == before
    assert events_of(leader, "east-clusterinfo") == [("NotMerged", message.removeprefix(f"{FAILED}: "))]
    leader.put(cluster_info("east", "10.1.0.0/16"))
    assert events_of(leader, "east-clusterinfo") == []


def test_what_is_not_granted_is_told_to_who_asks() -> None:
    """Whose CIDR overlaps another cluster's reads it in its export, and no more once that is mended."""
    leader = two()
    leader.put(cluster_info("west", "10.1.0.0/16"))
    leader.clock.forward(1)
    leader.put(cluster_info("east", "10.1.128.0/17"))
    message = leader.verdict("east-clusterinfo")["message"]
    assert message == (
        "Service CIDR 10.1.128.0/17 is not granted: cluster west has had Service CIDR 10.1.0.0/16 "
        "since 2023-11-14T22:13:20.000000Z"
    )
    assert leader.verdict("east-clusterinfo")["type"] == "Succeeded"
    assert "serviceCIDR" not in leader.imported("east-clusterinfo")["clusterinfo"]
    assert events_of(leader, "east-clusterinfo") == [("ClaimRefused", message)]
    assert "message" not in leader.verdict("west-clusterinfo")
    assert events_of(leader, "west-clusterinfo") == []
    leader.put(cluster_info("west", "10.2.0.0/16"))
    assert "message" not in leader.verdict("east-clusterinfo")
    assert leader.imported("east-clusterinfo")["clusterinfo"]["serviceCIDR"] == "10.1.128.0/17"
    assert events_of(leader, "east-clusterinfo") == []


def test_cluster_info_goes_with_its_export() -> None:
    """The import is deleted before the export loses its finalizer."""
    leader = two()
    leader.put(cluster_info("east", "10.1.0.0/16"))
    leader.remove("east-clusterinfo")
    assert leader.imported("east-clusterinfo") is None
    assert leader.api.get(Kind.RESOURCE_EXPORT, AREA, "east-clusterinfo") is None


def test_kinds_that_are_not_merged_are_told_and_let_go() -> None:
    """An export of another kind says so in its status, and can be deleted."""
    leader = two()
    leader.put(export("east", "ExternalEntity", "policy", {}))
    assert "does not merge exports of kind" in leader.verdict("policy")["message"]
    leader.remove("policy")
    assert leader.api.get(Kind.RESOURCE_EXPORT, AREA, "policy") is None


# --- whatever happens, in whatever order --------------------------------------------------------------------

CLUSTERS = ("east", "west", "south")
TARGETS = ("default/web", "a-b/c", "a/b-c")
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


class AnyOrder(RuleBasedStateMachine):
    """Members join, leave, export and unexport while the leader works, rests or restarts."""

    def __init__(self) -> None:
        super().__init__()
        self.leader = Leader()
        self.merge = ServiceMerge(self.leader.settings)  # it never restarts

    @rule(cluster=st.sampled_from(CLUSTERS))
    def join(self, cluster: str) -> None:
        self.leader.put(announce(cluster, self.leader.clock.now))

    @rule(cluster=st.sampled_from(CLUSTERS))
    def leave(self, cluster: str) -> None:
        self.leader.leave(cluster)

    @rule(cluster=st.sampled_from(CLUSTERS), kind=st.sampled_from(TARGETS), ports=st.sampled_from([80, 81, "x"]))
    def export_service(self, cluster: str, kind: str, ports: Any) -> None:
        self.leader.put(service(cluster, kind, ports))

    @rule(
        cluster=st.sampled_from(CLUSTERS),
        kind=st.sampled_from(TARGETS),
        ips=st.lists(st.sampled_from(["10.1.0.1", "10.2.0.1", "10.3.0.1", "127.0.0.1"]), max_size=3),
    )
    def export_endpoints(self, cluster: str, kind: str, ips: list[str]) -> None:
        self.leader.put(endpoints(cluster, ips, kind))

    @rule(cluster=st.sampled_from(CLUSTERS), cidr=st.sampled_from(["10.1.0.0/16", "10.0.0.0/8", "bad"]))
    def export_info(self, cluster: str, cidr: str) -> None:
        self.leader.put(cluster_info(cluster, cidr))

    @rule(
        cluster=st.sampled_from(CLUSTERS),
        bounds=st.sampled_from(
            [{}, {"allowed_namespaces": "a"}, {"allowed_cidrs": "10.2.0.0/16"}, {"max_exports": "1"}]
        ),
    )
    def bound(self, cluster: str, bounds: dict[str, str]) -> None:
        self.leader.put(account(cluster, **bounds))

    @rule(data=st.data())
    def unexport(self, data: st.DataObject) -> None:
        names = [o["metadata"]["name"] for o in self.leader.api.list(Kind.RESOURCE_EXPORT)]
        if names:
            self.leader.remove(data.draw(st.sampled_from(names)))

    @rule(spec=JSON)
    def export_junk(self, spec: Any) -> None:
        metadata = {"name": "junk", "namespace": AREA}
        self.leader.api.put({"kind": "ResourceExport", "metadata": metadata, "spec": spec})
        self.leader.controller.run()

    @rule(seconds=st.sampled_from([1.0, 40.0, 90_000.0]))
    def wait(self, seconds: float) -> None:
        self.leader.clock.forward(seconds)
        self.leader.controller.due()
        self.leader.controller.run()

    @rule()
    def restart(self) -> None:
        self.leader.start()
        self.leader.settle()

    @invariant()
    def as_a_fresh_start_would_have_it(self) -> None:
        """Whatever came before, starting anew finds nothing to write."""
        before = list(self.leader.api.writes)
        self.leader.settle()
        assert self.leader.api.writes == before

    @invariant()
    def what_is_kept_of_exports_changes_nothing(self) -> None:
        """A reconciler that has read earlier versions of the exports decides as a new one does."""
        view, now = self.leader.view, self.leader.clock.now
        for key in self.merge.all_keys(view):
            new = ServiceMerge(self.leader.settings)
            assert self.merge.desired(key, view, now) == new.desired(key, view, now)

    @invariant()
    def only_members_endpoints(self) -> None:
        """No address is imported that no present export has, and none that never may be."""
        exported = json.dumps([o.get("spec") for o in self.leader.api.list(Kind.RESOURCE_EXPORT)])
        for target in ("default-web", "a-b-c"):
            for ip in self.leader.addresses(f"{target}-endpoints"):
                assert ip in exported
                assert ip != "127.0.0.1"


AnyOrder.TestCase.settings = settings(COSTLY, stateful_step_count=20)
test_any_order = pytest.mark.costly(AnyOrder.TestCase)


@pytest.mark.costly
@given(
    order=st.permutations(range(6)),
    ports=st.lists(st.sampled_from([80, 81]), min_size=3, max_size=3),
    seconds=st.lists(st.integers(0, 2), min_size=3, max_size=3),
)
def test_the_order_of_arrival_says_nothing(order: list[int], ports: list[int], seconds: list[int]) -> None:
    """The same exports, with the same creation times, become the same imports in whatever order they are seen."""

    def world(sequence: list[int]) -> list[RawObject]:
        leader = Leader(*CLUSTERS)
        for number in sequence:
            which, cluster = divmod(number, 3)
            obj = (
                endpoints(CLUSTERS[cluster], [f"10.{cluster}.0.1", "10.9.0.1"], port=ports[cluster])
                if which
                else service(CLUSTERS[cluster], ports=ports[cluster])
            )
            leader.put(obj, created=f"2026-01-01T00:00:0{seconds[cluster]}Z")
        return [{"spec": o["spec"], "name": o["metadata"]["name"]} for o in leader.api.list(Kind.RESOURCE_IMPORT)]

    assert world(order) == world(list(range(6)))


@pytest.mark.costly
@given(obj=st.dictionaries(st.sampled_from(["spec", "status", "clusterID", "clusterSetID"]), JSON, max_size=4))
def test_any_json_is_survived(obj: dict[str, Any]) -> None:
    """No reconciler raises on any object that an API server could hold."""
    leader = Leader("east")
    leader.put(service("east"), endpoints("east", ["10.1.0.1"]))
    for kind in ("ResourceExport", "ResourceImport", "MemberClusterAnnounce", "ClusterSet"):
        leader.api.put({**obj, "kind": kind, "metadata": {"name": "junk", "namespace": AREA}})
    leader.settle()
    assert leader.addresses() == ["10.1.0.1"]
