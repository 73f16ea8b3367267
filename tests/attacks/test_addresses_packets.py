"""Addresses of others, with packets: what east's Pods reach they go on reaching, whatever a member claims."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import count

import pytest

from devtools.errors import LabError
from devtools.lab import objects
from devtools.lab.lab import Lab
from devtools.lab.objects import NAMESPACE
from devtools.lab.topology import OUTSIDE, POD_PORT, generate
from devtools.nodes import netns
from devtools.traffic import traffic
from devtools.waiting import wait_until
from mcagent.model.parsing.granted import CLAIMS_ANNOTATION, granted_text
from tests.attacks.catalogue import Attacker, Group, attack

pytestmark = pytest.mark.datapath

by_member = partial(attack, Group.ADDRESSES, Attacker.MEMBER)

FIRST, SECOND, THIRD = (f"2026-01-0{day}T00:00:00.000000Z" for day in (1, 2, 3))
SILENCE = 1.0  # seconds without an answer that count as none
MARKS = count(60)
NORTH, NORTH_CIDR, NORTH_GATEWAY = "north-clusterinfo", "10.103.0.0/16", "192.168.9.11"


@pytest.fixture(scope="module")
def shared(make_lab: Callable[..., Lab]) -> Lab:
    """East and west; the third member is what the others are told of it."""
    return make_lab(generate(), liveness=False)


@pytest.fixture
def lab(shared: Lab) -> Iterator[Lab]:
    """The lab, working before each test, and without the third member after it."""
    east = shared.topology.clusters[0]
    wait_until(lambda: _reaches(shared), "east's Pods to reach west", timeout=60)
    yield shared
    shared.api(east.name).delete("ClusterInfoImport", NORTH, NAMESPACE)
    wait_until(lambda: not _routed(shared, NORTH_CIDR), "its routes to go", timeout=30)


def _north(lab: Lab, *cidrs: str, gateways: tuple[str, ...] = (), granted: dict[str, str] | None = None) -> None:
    """Tell east of the third member, which asks for these beside its own; wait until that is programmed."""
    mark = f"10.{next(MARKS)}.0.0/16"  # of its own, and new each time
    metadata: dict[str, object] = {"name": NORTH, "namespace": NAMESPACE}
    if granted is not None:
        metadata["annotations"] = {CLAIMS_ANNOTATION: granted_text({**granted, mark: THIRD})}
    spec = {
        "clusterID": "north",
        "serviceCIDR": NORTH_CIDR,
        "podCIDRs": [mark, *cidrs],
        "gatewayInfos": [{"gatewayIP": address} for address in (NORTH_GATEWAY, *gateways)],
    }
    raw = {"apiVersion": "multicluster.crd.antrea.io/v1alpha1", "kind": "ClusterInfoImport"}
    lab.api(lab.topology.clusters[0].name).apply({**raw, "metadata": metadata, "spec": spec})
    wait_until(lambda: _routed(lab, mark), "north to be known", timeout=30)


def _routed(lab: Lab, cidr: str) -> bool:
    """Tell whether all Nodes of east have a route of ours to a CIDR."""
    nodes = lab.topology.clusters[0].nodes
    routes = [netns.ip(lab.namespace(node), "route", "show", "table", "all", "proto", "111") for node in nodes]
    return all(f"{cidr} " in text for text in routes)


def _reaches(lab: Lab) -> bool:
    """Tell whether every Pod of east reaches the Service of west and a Pod behind it."""
    east, west = lab.topology.clusters
    for node in east.nodes:
        client = lab.namespace(node.pods[0])
        try:
            traffic.tcp(client, west.services[0].cluster_ip, 80)
            traffic.tcp(client, west.workers[0].pods[0].address, POD_PORT)
        except (OSError, LabError):
            return False
    return True


@by_member(
    wants="cut all members off from another member's Service by naming its ClusterIP as a second gateway",
    stopped_by="the rule of ownership: an address inside a CIDR that was claimed before is no gateway of others",
)
def test_a_cluster_ip_of_another_member_as_gateway(lab: Lab) -> None:
    """East's Pods go on reaching the Service, on gateway and worker, and the address has no route of its own."""
    address = str(lab.topology.clusters[1].services[0].cluster_ip)
    _north(lab, gateways=(address,))
    assert _reaches(lab)
    for node in lab.topology.clusters[0].nodes:
        routes = netns.ip(lab.namespace(node), "route", "show", "table", "all", "proto", "111")
        assert f"throw {address} " not in routes


@by_member(
    wants="receive a younger member's packets by adding its CIDRs to a ClusterInfo that is older",
    stopped_by="seniority of the claim, not of the object: what is added later is younger",
)
def test_an_older_member_adds_the_cidrs_of_a_younger_one(lab: Lab) -> None:
    """With west's object made anew after north's, what the leader granted west first stays west's."""
    east, west = lab.topology.clusters
    api = lab.api(east.name)
    own = {NORTH_CIDR: FIRST, NORTH_GATEWAY: FIRST}
    _north(lab, granted=own)
    name = f"{west.name}-clusterinfo"
    claims = {
        str(network): SECOND for network in (west.service_cidr, west.pod_cidr, west.gateways[0].tunnel_address)
    }
    api.delete("ClusterInfoImport", name, NAMESPACE)
    fresh = objects.import_object(west)
    metadata = {"name": name, "namespace": NAMESPACE, "annotations": {CLAIMS_ANNOTATION: granted_text(claims)}}
    api.create({**fresh, "metadata": metadata})
    wait_until(lambda: _reaches(lab), "east's Pods to reach west again", timeout=60)
    stolen = (str(west.service_cidr), str(west.pod_cidr))
    _north(lab, *stolen, granted={**own, **dict.fromkeys(stolen, THIRD)})
    assert _reaches(lab)
    wait_until(lambda: _tells(lab, "OverlapsRemote"), "the Nodes to tell", timeout=30)


def _tells(lab: Lab, reason: str, *, by: Callable[[Iterable[bool]], bool] = all) -> bool:
    """Tell whether all Nodes of east, or `any`, tell of a refusal."""
    return by(reason in json.dumps(lab.status(node.name)) for node in lab.topology.clusters[0].nodes)


@by_member(
    wants="receive what all Pods and Nodes of the others send to a part of the Internet by claiming its range",
    stopped_by="private ranges only, unless `allowedRemoteCIDRs` opens more on purpose",
)
def test_a_public_range(lab: Lab) -> None:
    """No Node has a route to 8.8.8.0/24, and what is outside stays reachable from Pods."""
    _north(lab, "8.8.8.0/24", f"{OUTSIDE}/32", "198.51.0.0/16")
    for node in lab.topology.clusters[0].nodes:
        routes = netns.ip(lab.namespace(node), "route", "show", "table", "all", "proto", "111")
        assert "8.8.8.0" not in routes
        assert "198.51" not in routes
        assert traffic.tcp(lab.namespace(node.pods[0]), OUTSIDE, POD_PORT).source == str(node.address)
    wait_until(lambda: _tells(lab, "NotAllowed"), "the Nodes to tell", timeout=30)


ON_PREMISES, DATABASE = "192.168.50.0/24", "192.168.50.1"


@pytest.fixture
def database(lab: Lab) -> Iterator[str]:
    """Return the address of a server in a network behind the router of east's Nodes."""
    netns.ip(lab.underlay, "address", "add", f"{DATABASE}/32", "dev", "lo")
    yield DATABASE
    netns.ip(lab.underlay, "address", "delete", f"{DATABASE}/32", "dev", "lo")


@pytest.fixture
def static_routes(lab: Lab, database: str) -> Iterator[str]:
    """Give each Node of east a static route to this network, which the agents know; return the router.

    An agent reads routes a quarter of a second after a change, and a claim that is sooner was there first: the
    network takes only its own part of it (`PartlyLocal`).
    """
    east = lab.topology.clusters[0]
    for node in east.nodes:
        netns.ip(lab.namespace(node), "route", "add", ON_PREMISES, "via", str(east.router))
    assert all(_database_answers(lab)), database
    _north(lab, ON_PREMISES)
    wait_until(lambda: _tells(lab, "RoutedElsewhere"), "the Nodes to refuse the network itself", timeout=30)
    _north(lab)
    wait_until(lambda: not _tells(lab, "RoutedElsewhere", by=any), "the Nodes to forget the claim", timeout=30)
    yield str(east.router)
    for node in east.nodes:
        netns.ip(lab.namespace(node), "route", "delete", ON_PREMISES, "via", str(east.router))


def _database_answers(lab: Lab, *, within: float = traffic.PATIENCE) -> list[bool]:
    """Tell for each Node of east, and for a Pod of it, whether the database answers within so many seconds."""
    clients = [client for node in lab.topology.clusters[0].nodes for client in (node, node.pods[0])]
    return [_answers(lab.namespace(client), within) for client in clients]


def _answers(client: str, within: float) -> bool:
    try:
        traffic.tcp(client, DATABASE, POD_PORT, timeout=within)
    except (OSError, LabError):
        return False
    return True


@by_member(
    wants="receive what Pods and Nodes of the others send to their on-premises networks by claiming these",
    stopped_by="the Nodes' own routes, which no other cluster replaces without the consent of an administrator",
)
@pytest.mark.parametrize("claim", [ON_PREMISES, "192.168.48.0/20", "192.168.50.0/31"])
def test_a_network_behind_a_router(lab: Lab, static_routes: str, claim: str) -> None:
    """The network itself, one around it and one in it: the database answers as before, and the Nodes say why."""
    _north(lab, claim)
    wait_until(lambda: _tells(lab, "RoutedElsewhere"), "the Nodes to tell", timeout=30)
    for node in lab.topology.clusters[0].nodes:
        routes = netns.ip(lab.namespace(node), "route", "show", "table", "all", "proto", "111")
        assert f"{claim} " not in routes
        assert f"via {static_routes} " in netns.ip(lab.namespace(node), "route", "get", DATABASE)
    assert all(_database_answers(lab))


@by_member(
    wants="go on receiving what others send to a network behind their default route when its claim is withdrawn",
    stopped_by="the agents, which remove the routes with the claim",
)
def test_a_claim_that_is_withdrawn(lab: Lab, database: str) -> None:
    """While it is granted nothing tells the network from a cluster's; when the routes are gone, it answers."""
    _north(lab, ON_PREMISES)
    wait_until(lambda: _routed(lab, ON_PREMISES), "the claim to be granted", timeout=30)
    assert not any(_database_answers(lab, within=SILENCE)), database
    _north(lab)
    wait_until(lambda: not _routed(lab, ON_PREMISES), "the routes to go", timeout=30)
    assert all(_database_answers(lab))
