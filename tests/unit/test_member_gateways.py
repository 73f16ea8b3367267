"""Gateway election and the ClusterInfo that follows from it."""

from __future__ import annotations

import base64
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mcagent.controller.member.cluster_set import MemberClusterSet
from mcagent.controller.member.networks.cluster_info import ClusterInfoExport
from mcagent.controller.member.networks.election import GatewayCandidate, Standing, elect
from mcagent.controller.member.networks.gateways import GatewayElection
from mcagent.controller.settings import IpPrecedence, MemberSettings
from mcagent.core.causes import remedy
from mcagent.model.net import parse_address
from mcagent.model.objects import Kind
from mcagent.model.parsing.granted import REFUSED_ANNOTATION
from tests.worlds.control_view import Controller, MemoryView
from tests.worlds.member_gateways import add, gateway, info, ready
from tests.worlds.member_world import AREA, HOME, leader, member, names_of, node, north_of, settings


def run(view: MemoryView, new_settings: MemberSettings | None = None) -> Controller:
    """Reconcile until nothing changes."""
    new_settings = new_settings or settings()
    controller = Controller(view, [GatewayElection(new_settings), ClusterInfoExport(new_settings)])
    controller.settle()
    return controller


def gateways(view: MemoryView) -> list[str]:
    """Return the names of the Gateway objects."""
    return names_of(view.local, Kind.GATEWAY)


def test_the_first_candidate_by_name_becomes_the_gateway() -> None:
    """Of annotated, Ready Nodes the first by name gets a Gateway; others and un-annotated ones none."""
    view = member()
    add(view, node("n3", "10.0.0.3"), node("n2", "10.0.0.2"), node("n1", "10.0.0.1", annotated=False))
    run(view)
    assert gateways(view) == ["n2"]
    elected = gateway(view, "n2")
    assert (elected["gatewayIP"], elected["internalIP"], elected["serviceCIDR"]) == (
        "10.0.0.2",
        "10.0.0.2",
        "10.96.0.0/16",
    )


def test_a_gateway_that_is_refused_holds_up_no_other_one() -> None:
    """As by a policy of the cluster on addresses: the cluster would have no gateway."""
    view = member()
    add(view, node("n1", "10.0.0.1"), node("n2", "10.0.0.2"))
    view.local.refuse = lambda kind, _old, new: (
        "not allowed" if kind is Kind.GATEWAY and new is not None and new["metadata"]["name"] == "n1" else ""
    )
    controller = run(view, settings(max_active_gateways=2))
    controller.settle()  # after a back-off
    assert gateways(view) == ["n2"]


def test_a_gateway_that_works_stays() -> None:
    """A candidate that comes later takes nothing from a gateway that works, whatever its name."""
    view = member()
    add(view, node("n2", "10.0.0.2"))
    controller = run(view)
    add(view, node("n1", "10.0.0.1"))
    controller.run()
    assert gateways(view) == ["n2"]


def test_a_failed_gateway_is_replaced_by_the_event_alone_and_without_the_leader() -> None:
    """The Node's readiness alone replaces the gateway: first the new one is made, then the old one goes."""
    view = member()
    add(view, node("n1", "10.0.0.1"), node("n2", "10.0.0.2"))
    controller = run(view)
    view.leader = leader(connected=False)
    view.local.writes.clear()
    ready(view, "n1", "Unknown")
    controller.run()
    assert view.local.writes == ["create Gateway kube-system/n2", "delete Gateway kube-system/n1"]
    assert info(view)["gatewayInfos"] == [{"gatewayIP": "10.0.0.1"}]
    view.leader = leader()
    controller.settle()
    assert info(view)["gatewayInfos"] == [{"gatewayIP": "10.0.0.2"}]


def test_cluster_info_is_written_once_for_a_failover_and_in_place() -> None:
    """A failover takes one update of the ResourceExport: it is never empty, and never made anew."""
    view = member()
    add(view, node("n1", "10.0.0.1"), node("n2", "10.0.0.2"))
    controller = run(view)
    uid = north_of(view).list(Kind.RESOURCE_EXPORT)[0]["metadata"]["uid"]
    north_of(view).writes.clear()
    ready(view, "n1", "False")
    controller.run()
    assert north_of(view).writes == [f"update ResourceExport {AREA}/east-clusterinfo"]
    assert north_of(view).list(Kind.RESOURCE_EXPORT)[0]["metadata"]["uid"] == uid


def test_cluster_info_keeps_the_failed_gateway_until_its_successor_is_there() -> None:
    """Between a gateway's failure and the next Gateway object the old one is still published: never none."""
    view = member()
    add(view, node("n1", "10.0.0.1"), node("n2", "10.0.0.2"))
    run(view)
    ready(view, "n1", "False")
    north_of(view).writes.clear()
    Controller(view, [ClusterInfoExport(settings())]).settle()  # the election has not run yet
    assert north_of(view).writes == []
    assert info(view)["gatewayInfos"] == [{"gatewayIP": "10.0.0.1"}]


def test_the_last_gateway_stays_while_nobody_can_replace_it() -> None:
    """With no other candidate a gateway whose Node is not Ready stays; it goes with its annotation."""
    view = member()
    add(view, node("n1", "10.0.0.1"))
    controller = run(view)
    ready(view, "n1", "Unknown")
    controller.run()
    assert gateways(view) == ["n1"]
    view.local.change(Kind.NODE, "", "n1", {"metadata": {"annotations": None}})
    controller.run()
    assert gateways(view) == []
    assert names_of(north_of(view), Kind.RESOURCE_EXPORT) == ["east-clusterinfo"]  # its finalizer holds it
    assert "deletionTimestamp" in north_of(view).list(Kind.RESOURCE_EXPORT)[0]["metadata"]


def test_a_node_that_was_deleted_is_no_gateway() -> None:
    """The Gateway of a Node that is gone goes, with or without a replacement."""
    view = member()
    add(view, node("n1", "10.0.0.1"))
    controller = run(view)
    view.local.remove(Kind.NODE, "", "n1")
    controller.run()
    assert gateways(view) == []


def test_draining_and_cordoned_nodes_hand_over_if_they_can() -> None:
    """A draining gateway is replaced by another candidate, but stays while there is none."""
    view = member()
    add(view, node("n1", "10.0.0.1"))
    controller = run(view)
    view.local.change(Kind.NODE, "", "n1", {"metadata": {"annotations": {"mcagent.io/drain": "true"}}})
    controller.run()
    assert gateways(view) == ["n1"]
    add(view, node("n3", "10.0.0.3", cordoned=True))
    controller.run()
    assert gateways(view) == ["n1"]
    add(view, node("n2", "10.0.0.2"))
    controller.run()
    assert gateways(view) == ["n2"]


def test_a_cordoned_node_is_better_than_no_gateway() -> None:
    """A cordoned Node is chosen when there is nobody else, a draining one is not."""
    view = member()
    add(view, node("n1", "10.0.0.1", drain="true"), node("n2", "10.0.0.2", cordoned=True))
    run(view)
    assert gateways(view) == ["n2"]


def test_the_ipv4_address_of_a_dual_stack_node_is_used() -> None:
    """The first IPv4 InternalIP counts, wherever IPv6 stands in the list."""
    view = member()
    add(view, node("n1", "fd00::1", "10.0.0.1", "10.0.0.9", "fd00::2"))
    run(view)
    assert gateway(view, "n1")["gatewayIP"] == gateway(view, "n1")["internalIP"] == "10.0.0.1"


def test_precedence_and_annotation_choose_the_gateway_ip() -> None:
    """External precedence takes the ExternalIP, the annotation overrides; internalIP stays the Node's."""
    view = member()
    add(view, node("n1", "10.0.0.1", external=("192.0.2.1",)))
    controller = run(view, settings(gateway_ip_precedence=IpPrecedence.EXTERNAL))
    assert (gateway(view, "n1")["gatewayIP"], gateway(view, "n1")["internalIP"]) == ("192.0.2.1", "10.0.0.1")
    add(view, node("n1", "10.0.0.1", external=("192.0.2.1",), gateway_ip="198.51.100.1"))
    controller.run()
    assert gateway(view, "n1")["gatewayIP"] == "198.51.100.1"
    assert info(view)["gatewayInfos"] == [{"gatewayIP": "198.51.100.1"}]


def test_an_address_in_use_stays_while_the_node_lists_it() -> None:
    """A virtual address that is listed first later moves no gateway; one that is listed no more is replaced."""
    view = member()
    external = settings(gateway_ip_precedence=IpPrecedence.EXTERNAL)
    for new_settings, address in ((settings(), "10.0.0.1"), (external, "192.0.2.1")):
        add(view, node("n1", "10.0.0.1", external=("192.0.2.1",)))
        controller = run(view, new_settings)
        add(view, node("n1", "10.0.0.200", "10.0.0.1", external=("192.0.2.200", "192.0.2.1")))
        controller.run()
        elected = gateway(view, "n1")
        assert (elected["gatewayIP"], elected["internalIP"]) == (address, "10.0.0.1")
        run(view, new_settings)  # a controller that starts now
        assert gateway(view, "n1") == elected
        add(view, node("n1", "10.0.0.200", external=("192.0.2.200",)))
        controller.run()
        assert gateway(view, "n1")["internalIP"] == "10.0.0.200"
        assert gateway(view, "n1")["gatewayIP"].endswith(".200")
        view.local.remove(Kind.NODE, "", "n1")
        controller.run()


def test_a_missing_external_ip_has_its_own_reason() -> None:
    """The advice of an Event follows from its reason: an InternalIP, which the Node has, would not help."""
    view = member()
    add(view, node("n1", "10.0.0.1"))
    controller = run(view, settings(gateway_ip_precedence=IpPrecedence.EXTERNAL))
    reasons = [event.reason for event in controller.all_events() if event.subject == "Node n1"]
    assert reasons == ["NoExternalIP"]
    assert "it needs an ExternalIP" in remedy("NoExternalIP")
    assert "InternalIP" not in remedy("NoExternalIP")


def test_a_wrong_annotation_is_told_and_keeps_a_gateway_as_it_was() -> None:
    """An invalid gateway-ip makes a Node unfit; its Gateway keeps its address while nobody replaces it."""
    view = member()
    add(view, node("n1", "10.0.0.1"))
    controller = run(view)
    add(view, node("n1", "10.0.0.1", gateway_ip="10.0.0.256"))
    controller.run()
    assert gateway(view, "n1")["gatewayIP"] == "10.0.0.1"
    assert [event.reason for event in controller.all_events()] == ["InvalidGatewayIP"]
    add(view, node("n2", "10.0.0.2"))
    controller.run()
    assert gateways(view) == ["n2"]


def test_a_node_with_ipv6_only_becomes_a_gateway() -> None:
    """Its first unicast InternalIP is published, in the canonical form."""
    view = member()
    add(view, node("n1", "fe80::1", "FD00:0:0::1", "fd00::2"))
    controller = run(view)
    assert gateway(view, "n1")["gatewayIP"] == gateway(view, "n1")["internalIP"] == "fd00::1"
    assert info(view)["gatewayInfos"] == [{"gatewayIP": "fd00::1"}]
    assert controller.all_events() == []


def test_the_annotation_may_give_a_dual_stack_node_an_ipv6_gateway_ip() -> None:
    """IPv4 between the Nodes of the cluster, IPv6 to other clusters."""
    view = member()
    add(view, node("n1", "10.0.0.1", "fd00::1", gateway_ip="2001:db8::1"))
    run(view)
    assert (gateway(view, "n1")["gatewayIP"], gateway(view, "n1")["internalIP"]) == ("2001:db8::1", "10.0.0.1")


def test_a_node_without_a_unicast_address_is_told() -> None:
    """A candidate with nothing but link-local and loopback addresses is no gateway, and an Event says so."""
    view = member()
    add(view, node("n1", "fe80::1", "::1", "169.254.0.1", "::ffff:10.0.0.1"))
    controller = run(view)
    assert gateways(view) == []
    assert {event.reason for event in controller.all_events()} == {"NoUsableAddress", "NoGateway"}


def test_a_gateway_without_an_address_for_a_moment_stays() -> None:
    """An empty address list takes no Ready Node out of the pool: its Gateway keeps its addresses. Others wait."""
    view = member()
    add(view, node("n1", "10.0.0.1"), node("n2", "10.0.0.2"))
    controller = run(view)
    add(view, node("n1"))
    controller.run()
    assert gateways(view) == ["n1"]
    assert (gateway(view, "n1")["gatewayIP"], gateway(view, "n1")["internalIP"]) == ("10.0.0.1", "10.0.0.1")
    assert info(view)["gatewayInfos"] == [{"gatewayIP": "10.0.0.1"}]
    event, waiting = controller.all_events()
    assert (waiting.subject, waiting.reason) == ("Node n2", "GatewayWaiting")
    assert (event.subject, event.reason) == ("Node n1", "NoUsableAddress")
    assert event.message == "has no InternalIP that other Nodes can reach: its Gateway keeps its addresses"
    ready(view, "n1", "False")
    controller.run()
    assert gateways(view) == ["n2"]
    add(view, node("n1"))
    controller.run()
    assert gateways(view) == ["n2"]


def test_the_wireguard_key_of_the_agent_stays_and_is_published() -> None:
    """A changed address leaves the key in the Gateway; ClusterInfo has each key, and the first one at its top."""
    view = member()
    add(view, node("n1", "10.0.0.1"), node("n2", "10.0.0.2"))
    controller = run(view, settings(max_active_gateways=2))
    key = base64.b64encode(bytes(range(32))).decode()
    view.local.change(Kind.GATEWAY, HOME, "n1", {"wireGuard": {"publicKey": key}})
    add(view, node("n1", "10.0.0.7"))
    controller.run()
    assert gateway(view, "n1")["wireGuard"] == {"publicKey": key}
    assert info(view)["wireGuard"] == {"publicKey": key}
    assert info(view)["gatewayInfos"] == [
        {"gatewayIP": "10.0.0.7", "wireGuard": {"publicKey": key}},
        {"gatewayIP": "10.0.0.2"},
    ]


def test_gateway_infos_are_in_order_of_service() -> None:
    """With several active gateways the longest-serving one stands first, whatever its name."""
    view = member()
    add(view, node("n2", "10.0.0.2"))
    controller = run(view, settings(max_active_gateways=3, pod_cidrs=("10.10.0.0/16",)))
    view.local.clock.forward(10)
    add(view, node("n1", "10.0.0.1"), node("n3", "10.0.0.3"))
    controller.run()
    assert [item["gatewayIP"] for item in info(view)["gatewayInfos"]] == ["10.0.0.2", "10.0.0.1", "10.0.0.3"]
    assert info(view)["podCIDRs"] == ["10.10.0.0/16"]


def test_the_export_is_as_the_leaders_webhook_wants_it() -> None:
    """Labels repeat the spec, the finalizer is there, and the name follows from the cluster ID."""
    view = member()
    add(view, node("n1", "10.0.0.1"))
    run(view)
    raw = north_of(view).list(Kind.RESOURCE_EXPORT)[0]
    assert raw["metadata"]["name"] == "east-clusterinfo"
    assert raw["metadata"]["finalizers"] == ["resourceexport.finalizers.antrea.io"]
    assert raw["metadata"]["labels"] == {"sourceKind": "ClusterInfo", "sourceClusterID": "east"}
    assert (raw["spec"]["kind"], raw["spec"]["clusterID"], raw["spec"]["name"]) == ("ClusterInfo", "east", "east")
    assert raw["spec"]["clusterInfo"]["clusterID"] == "east"


def test_an_unknown_service_cidr_is_told_and_the_rest_is_published() -> None:
    """The gateway and Pod CIDRs are published without a Service CIDR; an Event of the ClusterSet says so."""
    view = member()
    add(view, node("n1", "10.0.0.1"))
    controller = run(view, settings(service_cidr=None, pod_cidrs=("10.10.0.0/16",)))
    assert "serviceCIDR" not in {name for name, value in info(view).items() if value}
    assert info(view)["gatewayInfos"] == [{"gatewayIP": "10.0.0.1"}]
    assert info(view)["podCIDRs"] == ["10.10.0.0/16"]
    (event,) = controller.all_events()
    assert (event.subject, event.reason) == (f"ClusterSet {HOME}/set", "NoServiceCIDR")
    assert event.message == (
        "the Service CIDR of this cluster is unknown: other clusters cannot reach its ClusterIPs"
    )
    assert run(view).all_events() == []
    assert info(view)["serviceCIDR"] == "10.96.0.0/16"


def test_other_changes_of_nodes_touch_nothing() -> None:
    """Heartbeats of Nodes are no work: neither for candidates nor for others."""
    view = member()
    add(view, node("n1", "10.0.0.1"), node("n2", "10.0.0.2", annotated=False))
    controller = run(view)
    view.local.change(Kind.NODE, "", "n1", {"status": {"images": [{"names": ["x"]}]}})
    ready(view, "n2", "False")
    assert not controller.step()


def test_agents_with_another_cluster_id_are_reported() -> None:
    """The Event names both cluster IDs and the gateways; agents without one are as well as those with the same."""
    view = member("east")
    add(view, *(node(f"n{number}", f"10.0.0.{number}") for number in (1, 2, 3)))
    run(view, settings(max_active_gateways=3))
    controller = Controller(view, [MemberClusterSet()])
    for name, cluster_id in (("n1", "west"), ("n2", "east")):
        view.local.change(Kind.GATEWAY, HOME, name, {"status": {"clusterID": cluster_id}})
    controller.settle()
    (event,) = controller.all_events()
    assert event.reason == "ClusterIDDiffers"
    assert '"west" in the configuration of the agents of n1, and "east"' in event.message
    view.local.change(Kind.GATEWAY, HOME, "n1", {"status": {"clusterID": "east"}})
    controller.settle()
    assert not controller.all_events()


def test_nodes_that_wait_have_an_event() -> None:
    """It names the limit and who serves; Nodes that cannot serve, and gateways, have none."""
    view = member()
    add(view, node("n1", "10.0.0.1"), node("n2", "10.0.0.2"), node("n3", "10.0.0.3", ready=False))
    (event,) = run(view).all_events()
    assert (event.subject, event.reason, event.warning) == ("Node n2", "GatewayWaiting", False)
    assert "maxActiveGateways is 1, and there are n1" in event.message
    assert run(view, settings(max_active_gateways=2)).all_events() == []


def test_a_settled_election_writes_nothing() -> None:
    """Looking at everything once more takes no write."""
    view = member()
    add(view, node("n1", "10.0.0.1"), node("n2", "10.0.0.2"))
    controller = run(view, settings(max_active_gateways=2))
    view.local.writes.clear()
    north_of(view).writes.clear()
    controller.settle()
    assert view.local.writes == north_of(view).writes == []


# --- the election alone ----------------------------------------------------------------------------------

ADDRESS = parse_address("10.0.0.1")
NAMES = st.sampled_from([f"n{number}" for number in range(6)])


def candidates() -> st.SearchStrategy[list[GatewayCandidate]]:
    """Return lists of candidates of any standing."""
    return st.dictionaries(NAMES, st.sampled_from(Standing)).map(
        lambda candidate: [
            GatewayCandidate(name=name, standing=standing, internal_ip=ADDRESS, gateway_ip=ADDRESS)
            for name, standing in candidate.items()
        ]
    )


@given(candidates(), st.lists(NAMES, unique=True), st.integers(1, 4), st.randoms())
def test_election_properties(found: list[GatewayCandidate], serving: list[str], most: int, random: Any) -> None:
    """The election is deterministic, stable, and never leaves out a better candidate for a worse one."""
    chosen = elect(found, serving, most)
    standing = {c.name: c.standing for c in found}
    shuffled = list(found)
    random.shuffle(shuffled)
    assert elect(shuffled, serving, most) == chosen
    assert len(set(chosen)) == len(chosen) <= most
    assert set(chosen) <= set(standing)
    after = [name for name in serving if name in chosen] + [name for name in chosen if name not in serving]
    assert elect(found, after, most) == tuple(after)  # what was elected is elected again, in the same order
    fit = [name for name in standing if standing[name] is Standing.FIT]
    assert sum(standing[name] is Standing.FIT for name in chosen) == min(most, len(fit))
    kept_names = [name for name in serving if standing.get(name) is Standing.FIT][:most]
    assert set(kept_names) <= set(chosen)  # a gateway that works is kept
    if any(standing.get(name) is not None for name in serving):
        assert chosen  # never empty while a gateway is a candidate


def test_pod_cidrs_that_gateways_do_not_use_are_published() -> None:
    """The ClusterInfo names them by cluster, from the links of all Gateways; otherwise it has no annotation."""
    view = member()
    add(view, node("n1", "10.0.0.1"), node("n2", "10.0.0.2"))
    controller = run(view, settings(max_active_gateways=2))

    def annotation() -> str | None:
        export = north_of(view).get(Kind.RESOURCE_EXPORT, AREA, "east-clusterinfo")
        assert export is not None
        text: str | None = export["metadata"]["annotations"].get(REFUSED_ANNOTATION)
        return text

    assert annotation() is None
    link = {"clusterID": "west", "live": 1, "tunnels": 1}
    reports = {"n1": {"refused": ["10.20.0.0/16"]}, "n2": {"refused": ["10.20.0.0/16", "10.21.0.0/16"]}}
    for name, report in reports.items():
        view.local.change(Kind.GATEWAY, HOME, name, {"status": {"links": [link | report]}})
    controller.run()
    assert annotation() == '{"west":["10.20.0.0/16","10.21.0.0/16"]}'
    for name in reports:
        view.local.change(Kind.GATEWAY, HOME, name, {"status": {"links": [link]}})
    controller.run()
    assert annotation() is None
