"""Services of others: who may export what, and where its endpoints may lie.

A leader's and a member's reconcilers, as they run, over API servers in memory. `owner` is the member for which an
administrator has named the namespace `pay`; `evil` is bounded by nothing but the defaults.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from ipaddress import ip_address
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcagent.controller.contract import names
from mcagent.controller.member.services.service_import import ServiceImports
from mcagent.controller.settings import LeaderSettings
from mcagent.core.compile import compile_desired
from mcagent.core.fragments.imported import SLOTS
from mcagent.kube.source import RawObject
from mcagent.model.dataplane.facts import DatapathType, Facts
from mcagent.model.dataplane.resources import NftChain
from mcagent.model.objects import Kind, ServiceImport
from mcagent.model.traffic import READY_ANNOTATION, TRAFFIC_ANNOTATION, read_ready, read_traffic
from tests.attacks.catalogue import Attacker, Group, attack
from tests.worlds import core_inputs, member_world
from tests.worlds.control_view import Controller
from tests.worlds.leader_world import AREA, Leader, account, cluster_info, endpoints, export, service

by_member = partial(attack, Group.SERVICES, Attacker.MEMBER)

NETWORKS = {"owner": "10.96.0.0/16", "evil": "10.97.0.0/16"}
THEIRS = ["10.96.0.80"]
PAY = "pay/api"


def world(*, published: Sequence[str] = ("owner", "evil"), allowed: Sequence[str] = ()) -> Leader:
    """Return a leader with both members; `published` have told their networks."""
    leader = Leader(*NETWORKS, settings=LeaderSettings(namespace="", allowed_endpoint_cidrs=tuple(allowed)))
    leader.put(account("owner", allowed_namespaces="pay"), account("evil"))
    for cluster in published:
        leader.put(cluster_info(cluster, NETWORKS[cluster]))
    return leader


def the_owner(leader: Leader) -> None:
    """Let the owner export its Service, after all that was there before."""
    leader.clock.forward(60)
    leader.put(service("owner", PAY, 443), endpoints("owner", THEIRS, PAY, 443))


def theirs(leader: Leader) -> tuple[list[int], list[str]]:
    """Return ports and endpoints of what all members import as pay/api."""
    spec = leader.imported("pay-api-service")
    ports = [port["port"] for port in spec["serviceImport"]["spec"]["ports"]] if spec else []
    return ports, leader.addresses("pay-api-endpoints")


def refused(leader: Leader, name: str, reason: str) -> str:
    """Check that an export is refused for a reason; return what its member reads."""
    verdict = leader.verdict(name)
    assert (verdict["type"], verdict["status"], verdict.get("reason")) == ("Failure", "False", reason)
    return str(verdict["message"])


# --- whose Service it is -----------------------------------------------------------------------------------


@by_member(
    wants="block the owner of a Service by exporting its name first, with other ports",
    stopped_by="namespaces that an administrator reserves for a member",
)
def test_being_first_blocks_no_owner() -> None:
    """Who comes first does not count in a reserved namespace; the intruder reads why."""
    leader = world()
    leader.put(service("evil", PAY, 6666), endpoints("evil", ["10.97.0.66"], PAY, 6666))
    assert theirs(leader) == ([], [])
    the_owner(leader)
    assert theirs(leader) == ([443], THEIRS)
    assert "reserved" in refused(leader, "evil-pay-api-service", "NamespaceNotAllowed")
    assert leader.verdict("owner-pay-api-service")["type"] == "Succeeded"


@by_member(
    wants="take nearly all connections to another member's Service with 1,000 endpoints of its own",
    stopped_by="reserved namespaces: who is not named for one has no endpoint in it",
)
def test_a_thousand_endpoints_take_no_traffic() -> None:
    """The same definition and endpoints in networks of its own, and still not one of them is imported."""
    leader = world()
    the_owner(leader)
    many = [f"10.97.{i // 250}.{i % 250}" for i in range(1000)]
    leader.put(service("evil", PAY, 443), endpoints("evil", many, PAY, 443))
    assert theirs(leader) == ([443], THEIRS)
    refused(leader, "evil-pay-api-endpoints", "NamespaceNotAllowed")


@by_member(
    wants="hold the ResourceImport's name of another's Service by a namespace and a name with other dashes",
    stopped_by="reserved namespaces: they have the name, also against an older export",
)
def test_dashes_take_no_name() -> None:
    """`pay`/`api-v1` and `pay-api`/`v1` want one name; the reserved namespace has it."""
    leader = world()
    leader.put(service("evil", "pay-api/v1"), endpoints("evil", ["10.97.0.66"], "pay-api/v1"))
    assert leader.addresses("pay-api-v1-endpoints") == ["10.97.0.66"]
    leader.clock.forward(60)
    leader.put(service("owner", "pay/api-v1"), endpoints("owner", THEIRS, "pay/api-v1"))
    assert leader.addresses("pay-api-v1-endpoints") == THEIRS
    assert leader.imported("pay-api-v1-service")["namespace"] == "pay"
    assert "stands for Service pay/api-v1" in leader.verdict("evil-pay-api-v1-service")["message"]


@by_member(
    wants="move an export that was accepted into another's namespace by changing spec.namespace",
    stopped_by="the export's name, which must follow from its spec, and the same look at every change",
)
@pytest.mark.parametrize("renamed", [False, True], ids=["same name", "new name"])
def test_an_export_does_not_move(renamed: bool) -> None:
    """With its old name it is none; under the name that would be right it is in a reserved namespace."""
    leader = world()
    leader.put(service("evil", "shop/api"), endpoints("evil", ["10.97.0.66"], "shop/api"))
    the_owner(leader)
    moved = service("evil", PAY, 443)
    if not renamed:
        moved["metadata"]["name"] = "evil-shop-api-service"
    leader.put(moved, endpoints("evil", ["10.97.0.66"], PAY, 443))
    assert theirs(leader) == ([443], THEIRS)
    assert leader.verdict(moved["metadata"]["name"])["type"] == "Failure"


@by_member(
    wants="export a namespace that its administrator's bounds do not name",
    stopped_by="the annotation `mcagent.io/allowed-namespaces` of its ServiceAccount",
)
def test_a_bounded_member_stays_in_its_namespaces() -> None:
    """Shared namespaces are none of its own then."""
    leader = world()
    leader.put(account("evil", allowed_namespaces="lab"))
    leader.put(service("evil", "shop/web"), endpoints("evil", ["10.97.0.66"], "shop/web"))
    assert leader.imported("shop-web-service") is None
    assert names.ALLOWED_NAMESPACES_ANNOTATION in refused(leader, "evil-shop-web-service", "NamespaceNotAllowed")
    leader.put(service("evil", "lab/web"), endpoints("evil", ["10.97.0.66"], "lab/web"))
    assert leader.addresses("lab-web-endpoints") == ["10.97.0.66"]


@by_member(
    wants="keep what it exported of a namespace that an administrator took from it",
    stopped_by="another look at all its exports when its ServiceAccount changes",
)
def test_what_is_taken_away_goes() -> None:
    """Reserving a namespace for somebody ends what others have exported of it, at once."""
    leader = Leader(*NETWORKS, settings=LeaderSettings(namespace=""))
    leader.put(account("owner"), account("evil"))
    for cluster, cidr in NETWORKS.items():
        leader.put(cluster_info(cluster, cidr))
    leader.put(service("evil", PAY, 443), endpoints("evil", ["10.97.0.66"], PAY, 443))
    the_owner(leader)
    assert theirs(leader)[1] == [*THEIRS, "10.97.0.66"]  # a shared namespace: not promised otherwise
    leader.put(account("owner", allowed_namespaces="pay"))
    assert theirs(leader) == ([443], THEIRS)
    refused(leader, "evil-pay-api-service", "NamespaceNotAllowed")


@by_member(
    wants="profit from a slip in the annotations that bound it",
    stopped_by="annotations that fail closed: one that cannot be read allows nothing",
)
@pytest.mark.parametrize(
    "slip", [{"allowed_namespaces": "Lab"}, {"allowed_cidrs": "10.97.0.0"}, {"max_exports": "ten"}]
)
def test_a_slip_opens_nothing(slip: dict[str, str]) -> None:
    """Its exports are refused, and its member, and so its administrator, reads which annotation it is."""
    leader = world()
    leader.put(account("evil", **slip))
    leader.put(service("evil", "shop/web"), endpoints("evil", ["10.97.0.66"], "shop/web"))
    assert leader.imported("shop-web-service") is None
    (key,) = slip
    assert key.replace("_", "-") in refused(leader, "evil-shop-web-service", "NamespaceNotAllowed")


# --- where endpoints may lie ----------------------------------------------------------------------------------


def endpoints_taken(leader: Leader, ips: Sequence[str]) -> list[str]:
    """Let `evil` export a Service with one endpoint of its own and others; return which are imported."""
    leader.put(service("evil", "shop/web"), endpoints("evil", ["10.97.0.80", *ips], "shop/web"))
    return leader.addresses("shop-web-endpoints")


@by_member(
    wants="send others' Pods to addresses that are none of its networks",
    stopped_by="the leader: an endpoint lies in a CIDR that was granted to its exporter",
)
def test_endpoints_lie_in_ones_own_networks() -> None:
    """What lies elsewhere is left out and told; the rest serves."""
    leader = world()
    assert endpoints_taken(leader, ["192.168.0.10", "8.8.8.8"]) == ["10.97.0.80"]
    assert "2 endpoints are left out" in leader.verdict("evil-shop-web-endpoints")["message"]


@by_member(
    wants="have any endpoints taken by publishing no CIDRs at all",
    stopped_by="the leader: who publishes none has only what its ServiceAccount or the configuration allows",
)
def test_publishing_nothing_allows_nothing() -> None:
    """Without CIDRs an endpoint lies in what an administrator named, or nowhere."""
    leader = world(published=["owner"])
    assert endpoints_taken(leader, ["192.168.0.10"]) == []
    assert "publishes no Pod CIDRs" in leader.verdict("evil-shop-web-endpoints")["message"]
    leader.put(account("evil", allowed_cidrs="10.97.0.0/24"))
    assert endpoints_taken(leader, ["192.168.0.10", "10.97.9.9"]) == ["10.97.0.80"]


@by_member(
    wants="name another member's Pods or Services as its own endpoints",
    stopped_by="the leader: never an address of a CIDR that was granted to another",
)
@pytest.mark.parametrize("published", [("owner", "evil"), ("owner",)], ids=["publishing", "publishing nothing"])
def test_endpoints_never_lie_in_anothers_network(published: tuple[str, ...]) -> None:
    """Not even where the configuration opens the whole range for flat networks."""
    leader = world(published=published, allowed=["10.0.0.0/8"])
    assert endpoints_taken(leader, [THEIRS[0], "10.96.7.7"]) == ["10.97.0.80"]
    assert "CIDR of cluster owner" in leader.verdict("evil-shop-web-endpoints")["message"]


@by_member(
    wants="keep endpoints in a range that was granted to another member meanwhile",
    stopped_by="another look at all endpoints of a range when it is granted",
)
def test_endpoints_go_when_their_range_is_granted_to_another() -> None:
    """An exporter on a flat network loses what somebody publishes as its own."""
    leader = world(published=[], allowed=["10.0.0.0/8"])
    assert endpoints_taken(leader, ["10.96.0.99"]) == ["10.96.0.99", "10.97.0.80"]
    leader.put(cluster_info("owner", NETWORKS["owner"]))
    assert leader.addresses("shop-web-endpoints") == ["10.97.0.80"]


@by_member(
    wants="turn others' Pods against their own Nodes with loopback, link-local or multicast endpoints",
    stopped_by="leader and members: no special address is an endpoint",
)
@pytest.mark.parametrize(
    "address", ["127.0.0.1", "169.254.169.254", "224.0.0.1", "255.255.255.255", "0.0.0.0", "::1", "fe80::1"]
)
def test_special_addresses_are_no_endpoints(address: str) -> None:
    """Whatever its bounds or the configuration say."""
    leader = world(published=[], allowed=["10.0.0.0/8"])
    leader.put(account("evil", allowed_cidrs="0.0.0.0/0,::/0"))
    assert endpoints_taken(leader, [address]) == ["10.97.0.80"]


# --- where connections go ---------------------------------------------------------------------------------------


def shares(objects: Sequence[object]) -> dict[str, float]:
    """Return the share of each endpoint of imported Service `web` on a Node, by its nft rule; {}: kube-proxy's."""
    facts = Facts(datapath=DatapathType.SYSTEM)
    snapshot = core_inputs.snapshot(*core_inputs.HOME, *objects)  # type: ignore[arg-type]
    fragment = compile_desired(snapshot, facts, core_inputs.config("w1")).desired.fragments.get("imported")
    chains = [chain for chain in fragment.resources if isinstance(chain, NftChain)] if fragment else []
    rules = [rule for chain in chains if not chain.hook for rule in chain.rules]
    parts = re.findall(r"(\d+)(?:-(\d+))? : (\S+) \.", " ".join(rules))
    return {address: (int(last or first) - int(first) + 1) / SLOTS for first, last, address in parts}


def imported_web(**changes: Any) -> ServiceImport:
    """Return ServiceImport default/web, changed."""
    return replace(core_inputs.service_import("web"), **changes)


OWN = core_inputs.imported_slice("own", "web", "home", [core_inputs.endpoint("10.10.3.5")])
FAR = replace(core_inputs.imported_slice("far", "web", "east", [core_inputs.endpoint("10.97.0.1")]), told_ready=3)
WEB = core_inputs.service("antrea-mc-web", "10.96.200.1", 80)


@attack(
    Group.SERVICES,
    Attacker.USER,
    wants="take the connections to another Service, by its ClusterIP in a ServiceImport of its own namespace",
    stopped_by="every agent: an import has the ClusterIP of the Service that its slices are of, and nothing else",
)
def test_an_import_takes_no_other_services_connections() -> None:
    """Neither of another namespace, nor of its own; what is right beside it counts."""
    dns = core_inputs.service("dns", "10.96.0.10", 80)
    elsewhere = replace(dns, meta=replace(dns.meta, namespace="kube-system", name="dns"))
    ips = tuple(map(ip_address, ("10.96.0.10", "192.0.2.7", "10.96.200.1")))
    for victim in (dns, elsewhere):
        stolen = compile_desired(
            core_inputs.snapshot(*core_inputs.HOME, WEB, victim, imported_web(ips=ips), OWN, FAR),
            Facts(datapath=DatapathType.SYSTEM),
            core_inputs.config("w1"),
        ).desired.fragments["imported"]
        assert "10.96.200.1" in str(stolen)
        assert not re.search(r"10\.96\.0\.10|192\.0\.2\.7", str(stolen))


@by_member(
    wants="draw all connections to a shared Service to itself, by a huge number of ready endpoints",
    stopped_by="leader and agents: it counts as no more endpoints than a member may export one by one",
)
def test_a_number_of_ready_endpoints_is_bounded() -> None:
    """`members.maxEndpoints` of the leader, at most 1,000; what is no such number counts as not said."""
    leader = world()
    leader.put(account("owner", allowed_namespaces="pay"), service("owner"), endpoints("owner", THEIRS))
    for text, carried in (("999999", "evil=1000"), ("1e99", None), ("9" * 5000, None), ("-5", None)):
        mine = endpoints("evil", ["10.97.0.80"])
        mine["metadata"]["annotations"] = {READY_ANNOTATION: text}
        leader.put(service("evil"), mine)
        resource_import = leader.api.get(Kind.RESOURCE_IMPORT, AREA, "default-nginx-endpoints")
        assert resource_import is not None
        assert resource_import["metadata"]["annotations"].get(READY_ANNOTATION) == carried
    evil = core_inputs.imported_slice("evil", "web", "evil", [core_inputs.endpoint("10.97.0.80")])
    told = replace(evil, told_ready=read_ready("999999"))
    assert shares([WEB, imported_web(), OWN, told])["10.10.3.5"] == pytest.approx(1 / 1001, abs=1e-4)
    weighed = imported_web(traffic=read_traffic("local=3, *=1"))
    assert shares([WEB, weighed, OWN, told])["10.10.3.5"] == 0.75


@by_member(
    wants="draw all connections to a shared Service to itself, by the traffic that its export asks for",
    stopped_by="the leader: only exports of a reserved namespace name clusters; and importers have the last word",
)
def test_an_exporter_names_no_clusters_in_shared_namespaces() -> None:
    """Though it exported first; what may be said says no more than that importers prefer themselves."""
    leader = world()
    for text in ("evil", "evil > *", "evil=1000, *=0", "evil" * 3000, "local > evil > *"):
        mine = service("evil")
        mine["metadata"]["annotations"] = {TRAFFIC_ANNOTATION: text}
        leader.put(mine)
        resource_import = leader.api.get(Kind.RESOURCE_IMPORT, AREA, "default-nginx-service")
        assert resource_import is not None
        assert TRAFFIC_ANNOTATION not in (resource_import["metadata"].get("annotations") or {})
        assert TRAFFIC_ANNOTATION in leader.verdict("evil-default-nginx-service")["message"]
    evil = core_inputs.imported_slice("evil", "web", "evil", [core_inputs.endpoint("10.97.0.80")])
    imported = imported_web(exported_traffic=read_traffic("evil > *"), traffic=read_traffic("local > *"))
    assert shares([WEB, imported, OWN, evil]) == {"10.10.3.5": 1.0}


# --- the same, looked at again by a member ----------------------------------------------------------------------


def importing(address: str, *, exporters: str = "evil", **changes: object) -> tuple[set[str], str]:
    """Return the endpoints that `east` takes of an import with one good address and another, and what it tells."""
    view = member_world.member()
    view.leader = member_world.leader(addresses=("192.0.2.1",))
    view.local.put(member_world.node("n1", "10.97.255.1"))
    view.local.put(member_world.slice_of("kubernetes", "10.97.255.2", name="kubernetes", namespace="default"))
    north = member_world.north_of(view)
    for cluster, cidr in (*NETWORKS.items(), ("east", "10.95.0.0/16")):
        info = {"kind": "ClusterInfo", "clusterinfo": {"clusterID": cluster, "serviceCIDR": cidr}}
        north.put(resource_import(names.cluster_info(cluster), info))
    ports = [{"name": "http", "port": 80, "protocol": "TCP"}]
    target = {"namespace": "shop", "name": "web"}
    definition = {"kind": "ServiceImport", "serviceImport": {"spec": {"ports": ports, "type": "ClusterSetIP"}}}
    north.put(resource_import("shop-web-service", target | definition))
    subsets = [{"addresses": [{"ip": ip} for ip in ("10.97.0.80", address)], "ports": ports}]
    endpoints_import = resource_import(
        "shop-web-endpoints", target | {"kind": "Endpoints", "endpoints": {"subsets": subsets}}
    )
    endpoints_import["metadata"]["annotations"] = {names.EXPORTERS_ANNOTATION: exporters}
    north.put(endpoints_import)
    controller = Controller(view, [ServiceImports(member_world.settings(service_cidr="10.95.0.0/16", **changes))])
    controller.settle()
    slices = view.local.list(Kind.ENDPOINT_SLICE, "shop")
    addresses = {
        ip for endpoint_slice in slices for item in endpoint_slice["endpoints"] for ip in item["addresses"]
    }
    return addresses, " ".join(event.message for event in controller.all_events())


def resource_import(name: str, spec: RawObject) -> RawObject:
    """Return a ResourceImport as the leader keeps it."""
    return {"kind": "ResourceImport", "metadata": {"name": name, "namespace": member_world.AREA}, "spec": spec}


@by_member(
    wants="make the leader's API server an endpoint, inside a CIDR of its own",
    stopped_by="every member: no address that the leader's name leads to is an endpoint",
)
def test_the_leader_is_no_endpoint() -> None:
    """Even where the range is allowed."""
    accepted, message = importing("192.0.2.1", allowed_endpoint_cidrs=("192.0.2.0/24",))
    assert accepted == {"10.97.0.80"}
    assert "API server of the leader" in message


@by_member(
    wants="make another cluster's API server, Node or Service an endpoint, inside a CIDR of its own",
    stopped_by="every member: nothing of its own is another's endpoint",
)
@pytest.mark.parametrize("address", ["10.97.255.2", "10.97.255.1", "10.95.0.1"], ids=["server", "Node", "Service"])
def test_what_is_ones_own_is_no_endpoint_of_others(address: str) -> None:
    """Though it lies in what the exporter publishes."""
    accepted, message = importing(address)
    assert accepted == {"10.97.0.80"}
    assert "of this cluster" in message


@by_member(
    wants="have a member take endpoints of a cluster that does not export the Service",
    stopped_by="every member: an endpoint belongs to a cluster that the ResourceImport names as exporter",
)
def test_endpoints_belong_to_an_exporter() -> None:
    """It lies in a network that is announced, but not by who exports."""
    assert importing("10.96.0.80", exporters="evil,owner")[0] == {"10.97.0.80", "10.96.0.80"}
    accepted, message = importing("10.96.0.80", allowed_endpoint_cidrs=("10.0.0.0/8",))
    assert accepted == {"10.97.0.80"}
    assert "does not export the Service" in message


@by_member(
    wants="pass objects of other clusters off as another owner's by labels and annotations that it exports",
    stopped_by="keys of Kubernetes and of our own, which are never exported; leader and importers check each",
)
@pytest.mark.parametrize(
    "key",
    [
        names.MANAGED_BY_LABEL,
        names.IMPORTED_SERVICE_ANNOTATION,
        "mcagent.io/traffic",
        "kubectl.kubernetes.io/last-applied-configuration",
        "x.mcagent.io/y",
        "no key",
    ],
)
def test_exported_labels_mark_nothing(key: str) -> None:
    """Neither the leader passes them on, nor would a member take them from a leader that does."""
    leader = world()
    said = {
        names.EXPORTED_LABELS_ANNOTATION: json.dumps({key: "theirs", "team": "evil"}),
        names.EXPORTED_ANNOTATIONS_ANNOTATION: json.dumps({key: "theirs"}),
    }
    mine = service("evil", "shop/web", 80)
    mine["metadata"]["annotations"] = said
    leader.put(mine)
    passed_on = leader.api.get(Kind.RESOURCE_IMPORT, AREA, "shop-web-service")
    assert passed_on is not None
    assert passed_on["metadata"]["annotations"] == {names.EXPORTED_LABELS_ANNOTATION: '{"team": "evil"}'}
    view = member_world.member()
    member_world.north_of(view).put(
        passed_on | {"metadata": {"name": "shop-web-service", "namespace": member_world.AREA, "annotations": said}}
    )
    Controller(view, [ServiceImports(member_world.settings())]).settle()
    service_import = view.local.get(Kind.SERVICE_IMPORT, "shop", "web")
    assert service_import is not None
    assert service_import["metadata"]["labels"] == {names.MANAGED_BY_LABEL: names.MANAGED_BY, "team": "evil"}
    assert key not in service_import["metadata"]["annotations"]


# --- whatever it does -----------------------------------------------------------------------------------------

_TARGETS = st.sampled_from([PAY, "pay/api-v1", "pay-api/v1", "pa/y-api", "shop/web", "pay/db"])
_PORTS = st.sampled_from([443, 80, 6666, [], [{"port": "x"}], [{"name": "A", "port": 1}], None, "x"])
_IPS = st.lists(
    st.sampled_from(["10.96.0.80", "10.96.9.9", "10.97.0.1", "127.0.0.1", "10.1.1.1", "x"]), max_size=6
)
_SPECS: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {},
        {"clusterIP": "None"},
        {"trafficDistribution": 7, "ipFamilies": "IPv4"},
        {"internalTrafficPolicy": "Local"},
    ]
)
_NOTES = st.dictionaries(
    st.sampled_from([names.EXPORTED_LABELS_ANNOTATION, names.EXPORTED_ANNOTATIONS_ANNOTATION]),
    st.sampled_from(['{"team": "evil"}', "{", "[1]", '{"a": {}}', "9" * 5000, '{"a": "\\ud800"}']),
)


@st.composite
def _hostile(draw: st.DrawFn) -> RawObject:
    """Return some export of `evil`, or one that says it were the owner's."""
    target = draw(_TARGETS)
    kind = draw(st.sampled_from(["service", "endpoints", "info", "other"]))
    if kind == "service":
        made = service("evil", target, draw(_PORTS), **draw(_SPECS))
        made["metadata"]["annotations"] = draw(_NOTES)
    elif kind == "endpoints":
        made = endpoints("evil", draw(_IPS), target, draw(st.sampled_from([443, 80])))
    elif kind == "info":
        made = cluster_info("evil", draw(st.sampled_from(["10.97.0.0/16", "10.98.0.0/16", "10.0.0.0/8", "x"])))
    else:
        made = export("evil", draw(st.sampled_from(["LabelIdentity", "X", ""])), "evil-other", {"name": "x"})
    if draw(st.booleans()):
        made["spec"]["namespace"] = draw(st.sampled_from(["pay", "shop", "", "PAY"]))
    return made


@by_member(
    wants="change in any other way what members import of a reserved namespace",
    stopped_by="the merge, in which exports that may not take part are not even looked at",
)
@given(st.lists(_hostile(), max_size=8), st.integers(0, 8))
def test_no_exports_change_a_reserved_namespace(hostile: list[RawObject], first: int) -> None:
    """Any exports of a hostile member, before and after, leave the imports as they are without it."""
    results = []
    for intruders in ([], hostile):
        leader = world()
        for raw in intruders[:first]:
            leader.put(raw)
        leader.clock.forward(60)
        for target in (PAY, "pay/api-v1"):
            leader.put(service("owner", target, 443), endpoints("owner", THEIRS, target, 443))
        for raw in intruders[first:]:
            leader.put(raw)
        imports = {
            raw["metadata"]["name"]: {"spec": raw["spec"], "annotations": raw["metadata"].get("annotations")}
            for raw in leader.api.list(Kind.RESOURCE_IMPORT, AREA)
            if raw["spec"].get("namespace") == "pay" and raw["spec"]["kind"] != "ClusterInfo"
        }
        own = ("owner-pay-api-service", "owner-pay-api-v1-endpoints")
        verdicts = [leader.verdict(name)["type"] for name in own]
        results.append((json.dumps(imports, sort_keys=True), verdicts))
    assert results[0] == results[1]
