"""The decisions on a member's export range and virtual Pod CIDRs, in words, and what follows for its addresses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from mcagent.controller.contract.export_ranges import RANGE_ANNOTATION, UsedRange, as_text
from mcagent.controller.contract.pod_ranges import POD_RANGE_ANNOTATION, UsedPodCidrs
from mcagent.controller.contract.services import ImportedEndpoint
from mcagent.controller.member.networks.export_range import ExportRange
from mcagent.controller.member.networks.pod_range import PodRange
from mcagent.controller.member.networks.ranges import occupant
from mcagent.controller.member.published import (
    local_endpoints,
    pod_prefixes,
    published_cidr,
    published_pod_cidrs,
    published_subsets,
    range_conditions,
    unreachable_cluster_ip,
)
from mcagent.kube.source import RawObject
from mcagent.model.api.multicluster import ClusterSet
from mcagent.model.event import Event
from mcagent.model.objects import Kind
from mcagent.model.parsing.granted import CLAIMS_ANNOTATION
from tests.worlds.control_view import MemoryView
from tests.worlds.leader_imports import cluster_info
from tests.worlds.member_world import AREA, HOME, SET, cluster_set, member, node, north_of, settings
from tests.worlds.memory_objects import typed

RANGE, POD = "100.64.16.0/20", "10.244.0.0/16"
PAIR = f"{POD}=100.72.0.0/16"
POOR = {"why": "its Service CIDR overlaps another"}


def answered(answer: object, annotation: str = RANGE_ANNOTATION, *, ready: bool = True) -> MemoryView:
    """Return the view of a member to which the leader has answered this (None: nothing yet), with a gateway."""
    view = member()
    own = cluster_info("east", "10.96.0.0/16")
    notes = {CLAIMS_ANNOTATION: "{}"}
    own["metadata"]["annotations"] = notes if answer is None else {**notes, annotation: json.dumps(answer)}
    north_of(view).put(own)
    view.local.put(gateway("n1", ready=ready))
    return view


def gateway(name: str, namespace: str = HOME, *, ready: bool = True) -> RawObject:
    """Return a Gateway whose agent serves ranges, or not."""
    status = {"exportAddresses": ready, "podPrefixes": ready}
    return {"kind": "Gateway", "metadata": {"name": name, "namespace": namespace}, "status": status}


def used(view: MemoryView, value: UsedRange | UsedPodCidrs) -> MemoryView:
    """Return the view with an earlier decision."""
    annotation = RANGE_ANNOTATION if isinstance(value, UsedRange) else POD_RANGE_ANNOTATION
    view.local.change(Kind.CLUSTER_SET, HOME, SET, {"metadata": {"annotations": {annotation: as_text(value)}}})
    return view


def decided(view: MemoryView, **values: Any) -> tuple[dict[str, str] | None, list[Event]]:
    """Return the range in the annotation that is written, and the Events; None: nothing is decided."""
    pods = "pod_export_cidr" in values
    reconciler = (PodRange if pods else ExportRange)(settings(**values))
    outcome = reconciler.desired(reconciler.name, view, 0.0)
    if not outcome.steps:
        return None, [*outcome.events]
    (step,) = outcome.steps
    text = step.body.metadata.annotations[reconciler.annotation]  # type: ignore[union-attr]
    assert (step.ref.namespace, step.ref.name, step.create) == (HOME, SET, False)  # type: ignore[union-attr]
    return {name: value for name, value in json.loads(text).items() if value}, [*outcome.events]


def refusal(view: MemoryView, **values: Any) -> tuple[str, str]:
    """Return reason and text of a decision without a new range, which an Event repeats."""
    decision, events = decided(view, **values)
    assert decision is not None
    (event,) = events
    assert (event.reason, event.message) == (decision["reason"], decision["why"])
    assert event.subject == f"ClusterSet {HOME}/{SET}"
    return decision["reason"], decision["why"]


# --- export ranges


def test_the_range_of_the_leader_is_used() -> None:
    """With the reason that the leader gives; without need there is none."""
    answer = {"serviceCIDR": "10.96.0.0/16", "cidr": RANGE, **POOR}
    assert decided(answered(answer)) == ({"cidr": RANGE, "reason": "Assigned", "why": POOR["why"]}, [])
    assert decided(answered({"serviceCIDR": "10.96.0.0/16"})) == ({}, [])
    assert decided(answered(answer), export_cidr="never") == ({}, [])


def test_nothing_is_decided_before_the_leader_answers() -> None:
    """It must have this cluster's ClusterInfo, and have answered for this Service CIDR."""
    assert decided(member()) == (None, [])
    answer = {"serviceCIDR": "10.97.0.0/16", "cidr": RANGE, **POOR}
    assert decided(answered(answer)) == (None, [])
    assert decided(answered(None)) == (None, [])


def test_a_leader_that_assigns_no_ranges_is_named_where_one_is_required() -> None:
    """A range that is in use stays."""
    view = answered(None)
    why = "the leader is Antrea's, or of an earlier version, and assigns no ranges: set exportCIDR"
    assert refusal(view, export_cidr="always") == ("NoPool", why)
    used(view, UsedRange(cidr=RANGE, reason="Assigned", why="x"))
    assert decided(view, export_cidr="always")[0] == {"cidr": RANGE, "reason": "NoPool", "why": why}
    unanswered = member()
    north_of(unanswered).put(cluster_info("east", "10.96.0.0/16"))
    assert decided(unanswered) == ({}, [])


@pytest.mark.parametrize(
    ("before", "reason", "withdrawn"),
    [
        (UsedRange(), "RangeExhausted", ""),
        (UsedRange(cidr=RANGE, reason="Assigned", why="x"), "RangeWithdrawn", "the range was withdrawn, and "),
        (UsedRange(reason="RangeWithdrawn", why="x"), "RangeWithdrawn", "the range was withdrawn, and "),
        (UsedRange(cidr=RANGE, reason="Configured", why="x"), "RangeExhausted", ""),
    ],
)
def test_a_cluster_without_a_free_range_is_told_whether_it_had_one(
    before: UsedRange, reason: str, withdrawn: str
) -> None:
    """A range that the configuration gave was not the leader's."""
    view = used(answered({"serviceCIDR": "10.96.0.0/16", **POOR}), before)
    why = f"its Service CIDR overlaps another, but {withdrawn}exportCIDRs of the leader has no free range"
    assert refusal(view) == (reason, why)


def test_a_configured_range_needs_no_leader() -> None:
    """It must be free of this cluster's own networks."""
    configured = {"cidr": RANGE, "reason": "Configured", "why": "exportCIDR of this cluster's configuration"}
    assert decided(answered(None), export_cidr=RANGE) == (configured, [])
    why = "10.96.16.0/20 cannot be this cluster's export range: "
    why += "it overlaps the Service CIDR or a Pod CIDR of this cluster"
    assert refusal(answered(None), export_cidr="10.96.16.0/20") == ("RangeInUse", why)


def test_a_range_waits_for_the_agents_of_all_gateways() -> None:
    """Of this namespace; three of them are named. A range in use stays, and is not given up for an old agent."""
    view = answered(None, ready=False)
    for name in ("n4", "n3", "n2"):
        view.local.put(gateway(name, ready=False))
    view.local.put(gateway("n0", "elsewhere", ready=False))
    view.local.put(gateway("n5"))
    why = f"{RANGE} is not used yet: the agents of gateways n1, n2, n3, ... do not serve export addresses"
    assert refusal(view, export_cidr=RANGE) == ("AgentsTooOld", why)
    view.local.remove(Kind.GATEWAY, HOME, "n4")
    assert "gateways n1, n2, n3 do not" in refusal(view, export_cidr=RANGE)[1]
    other = UsedRange(cidr="100.64.0.0/20", reason="Assigned", why="x")
    decision, _ = decided(used(view, other), export_cidr=RANGE)
    assert decision == {"cidr": other.cidr, "reason": "AgentsTooOld", "why": why.replace(", ...", "")}
    present = UsedRange(cidr=RANGE, reason="Configured", why="x")
    decision, events = decided(used(view, present), export_cidr=RANGE)
    assert (decision and decision["reason"], events) == ("Configured", [])
    without = member()
    north_of(without).put(cluster_info("east", "10.96.0.0/16"))
    assert "gateways (there is none yet) do not" in refusal(without, export_cidr=RANGE)[1]


@pytest.mark.parametrize(
    ("cidr", "why"),
    [
        ("100.64.0.0/20", ""),
        ("10.96.128.0/20", "it overlaps the Service CIDR or a Pod CIDR of this cluster"),
        ("10.244.7.0/24", "it overlaps the Service CIDR or a Pod CIDR of this cluster"),
        ("172.20.0.0/16", "it overlaps the Service CIDR or a Pod CIDR of this cluster"),
        ("192.168.0.0/31", "Node n1 has an address in it"),
        ("192.168.0.0/30", "Node n1 has an address in it"),
        ("192.168.0.2/31", ""),
        ("10.7.0.0/16", "it overlaps the Pod CIDR of Node n2"),
        ("x", "it is no CIDR that can be routed"),
    ],
)
def test_a_range_is_free_of_addresses_of_this_cluster(cidr: str, why: str) -> None:
    """Of its Services, Pods and Nodes, and of further networks."""
    view = member()
    view.local.put(node("n1", "192.168.0.1", "host.example"))
    view.local.put(node("n2", "192.168.9.1") | {"spec": {"podCIDRs": ["10.7.3.0/24"]}})
    own = settings(pod_cidrs=(POD,))
    assert occupant(view, own, cidr, also=("172.20.16.0/20", "")) == why


# --- virtual Pod CIDRs

PODS: dict[str, Any] = {"pod_cidrs": (POD,), "pod_export_cidr": "auto"}


def test_the_pod_cidrs_of_the_leader_are_used() -> None:
    """For these Pod CIDRs, where the cluster needs them."""
    answer = {"podCIDRs": POD, "prefixes": PAIR, "why": "w"}
    view = answered(answer, POD_RANGE_ANNOTATION)
    assert decided(view, **PODS) == ({"prefixes": PAIR, "reason": "Assigned", "why": "w"}, [])
    assert decided(view, **{**PODS, "pod_export_cidr": "never"}) == ({}, [])
    assert decided(view, **{**PODS, "pod_cidrs": ()}) == ({}, [])
    assert decided(view, **{**PODS, "pod_cidrs": ("10.245.0.0/16",)}) == (None, [])
    assert decided(answered({"podCIDRs": POD}, POD_RANGE_ANNOTATION), **PODS) == ({}, [])
    assert decided(answered(None), **PODS) == (None, [])
    assert decided(member(), **PODS) == (None, [])
    invalid = answered({"podCIDRs": POD, "prefixes": "x=y", "why": "w"}, POD_RANGE_ANNOTATION)
    assert refusal(invalid, **PODS) == ("InvalidCIDR", "the leader assigns x=y, which is invalid")
    why = "the leader is Antrea's, or of an earlier version, and assigns no CIDRs: set podExportCIDR"
    assert refusal(answered(None), **{**PODS, "pod_export_cidr": "always"}) == ("NoPool", why)


@pytest.mark.parametrize(
    ("before", "prefixes", "reason", "withdrawn"),
    [
        (UsedPodCidrs(), "", "RangeExhausted", ""),
        (
            UsedPodCidrs(prefixes=PAIR, reason="Assigned", why="x"),
            "",
            "RangeWithdrawn",
            "they were withdrawn, and ",
        ),
        (UsedPodCidrs(reason="RangeWithdrawn", why="x"), "", "RangeWithdrawn", "they were withdrawn, and "),
        (UsedPodCidrs(prefixes=PAIR, reason="Assigned", why="x"), PAIR, "RangeExhausted", ""),
    ],
)
def test_a_cluster_without_free_pod_cidrs_is_told_which_are_missing(
    before: UsedPodCidrs, prefixes: str, reason: str, withdrawn: str
) -> None:
    """Those that it has stay."""
    answer = {"podCIDRs": f"{POD},10.250.0.0/16", "prefixes": prefixes, "missing": "10.250.0.0/16", "why": "w"}
    view = used(answered(answer, POD_RANGE_ANNOTATION), before)
    why = f"w, but {withdrawn}podExportCIDRs of the leader has none free for 10.250.0.0/16"
    values = {**PODS, "pod_cidrs": (POD, "10.250.0.0/16")}
    assert refusal(view, **values) == (reason, why)
    decision, _ = decided(view, **values)
    assert decision is not None
    assert decision.get("prefixes", "") == prefixes


def test_configured_pod_cidrs_are_as_long_as_the_real_ones() -> None:
    """And free of this cluster's networks, its export range included."""
    values = {**PODS, "pod_export_cidr": "100.72.0.0/16"}
    why = "podExportCIDR of this cluster's configuration"
    view = answered(None)
    assert decided(view, **values) == ({"prefixes": PAIR, "reason": "Configured", "why": why}, [])
    why = f"{POD}=100.72.0.0/20: each CIDR of podExportCIDR must be as long as its Pod CIDR, and overlap no other"
    assert refusal(view, **{**values, "pod_export_cidr": "100.72.0.0/20"}) == ("InvalidCIDR", why)
    used(view, UsedRange(cidr="100.72.16.0/20", reason="Assigned", why="x"))
    why = "100.72.0.0/16 cannot be a virtual Pod CIDR of this cluster: "
    why += "it overlaps the Service CIDR or a Pod CIDR of this cluster"
    assert refusal(view, **values) == ("RangeInUse", why)


def test_pod_cidrs_wait_for_the_agents_of_all_gateways() -> None:
    """Those in use stay until then."""
    values = {**PODS, "pod_export_cidr": "100.72.0.0/16"}
    view = answered(None, ready=False)
    why = f"{PAIR} is not used yet: the agents of gateways n1 do not translate Pod CIDRs"
    assert refusal(view, **values) == ("AgentsTooOld", why)
    before = UsedPodCidrs(prefixes=f"{POD}=100.73.0.0/16", reason="Assigned", why="x")
    assert decided(used(view, before), **values)[0] == {
        "prefixes": before.prefixes,
        "reason": "AgentsTooOld",
        "why": why,
    }
    same = UsedPodCidrs(prefixes=PAIR, reason="Configured", why="x")
    decision, events = decided(used(view, same), **values)
    assert (decision and decision["reason"], events) == ("Configured", [])


# --- what is published


def test_services_are_published_in_the_export_range() -> None:
    """Without one in the Service CIDR, unless a range is required."""
    view = member()
    assert published_cidr(view, settings()) == "10.96.0.0/16"
    assert published_cidr(view, settings(service_cidr=None)) == ""
    assert published_cidr(view, settings(export_cidr="always")) == ""
    used(view, UsedRange(cidr=RANGE, reason="Assigned", why="x"))
    assert published_cidr(view, settings()) == published_cidr(view, settings(export_cidr="always")) == RANGE
    assert published_cidr(view, settings(export_cidr="never")) == "10.96.0.0/16"
    used(view, UsedRange(reason="RangeExhausted", why="x"))
    assert published_cidr(view, settings()) == "10.96.0.0/16"


def test_a_cluster_ip_outside_of_the_published_cidr_is_not_reached() -> None:
    """What to do is named; a text that is no address is none."""
    view = member()
    assert unreachable_cluster_ip(view, settings(), "10.96.255.255") == ""
    assert unreachable_cluster_ip(view, settings(), "x") == ""
    assert unreachable_cluster_ip(view, settings(service_cidr=None), "10.97.0.1") == ""
    assert unreachable_cluster_ip(view, settings(), "10.97.0.1") == (
        "ClusterIP 10.97.0.1 lies outside 10.96.0.0/16, the one Service CIDR of this cluster that others reach: "
        "for a Service of a second ServiceCIDR, create it anew with a spec.clusterIP of the first, or set "
        "endpointIPType: PodIP"
    )


def test_pods_are_published_by_their_virtual_cidrs() -> None:
    """Those of present Pod CIDRs; with `always` only these."""
    own = settings(pod_cidrs=(POD, "10.250.0.0/16"))
    view = used(member(), UsedPodCidrs(prefixes=f"{PAIR},10.9.0.0/16=100.80.0.0/16", reason="Assigned", why="x"))
    (prefix,) = prefixes = pod_prefixes(view, own)
    assert (str(prefix.real), str(prefix.virtual)) == (POD, "100.72.0.0/16")
    assert published_pod_cidrs(view, own) == ("100.72.0.0/16", "10.250.0.0/16")
    always = settings(pod_cidrs=(POD, "10.250.0.0/16"), pod_export_cidr="always")
    assert published_pod_cidrs(view, always) == ("100.72.0.0/16",)
    never = settings(pod_cidrs=(POD, "10.250.0.0/16"), pod_export_cidr="never")
    assert (pod_prefixes(view, never), published_pod_cidrs(view, never)) == ((), never.pod_cidrs)
    ports = (("http", "TCP", 80),)
    subsets = published_subsets({ports: ("10.244.1.2", "10.250.0.1")}, prefixes)
    assert subsets == {ports: ("100.72.1.2", "10.250.0.1")}
    endpoints = [
        ImportedEndpoint(address=text, ports=ports, cluster="east") for text in ("100.72.1.2", "100.72.1.3")
    ]
    local_addresses = [
        endpoint.address for endpoint in local_endpoints(endpoints, frozenset({"100.72.1.2"}), prefixes)
    ]
    assert local_addresses == ["10.244.1.2", "100.72.1.3"]
    assert local_endpoints(endpoints, None, prefixes) is endpoints
    assert local_endpoints(endpoints, frozenset({"100.72.1.2"}), ()) is endpoints


def test_the_cluster_set_has_conditions_of_ranges_that_it_has_or_needs() -> None:
    """With the range, if there is one, and the reason."""

    def conditions(*values: UsedRange | UsedPodCidrs) -> list[tuple[str, str, str, str]]:
        view = member()
        for value in values:
            used(view, value)
        raw = view.local.get(Kind.CLUSTER_SET, HOME, SET)
        assert raw is not None
        own_set = typed(raw, Kind.CLUSTER_SET)
        assert isinstance(own_set, ClusterSet)
        return [(c.type, c.status, c.reason, c.message) for c in range_conditions(own_set, 0.0)]

    assert conditions() == conditions(UsedRange(), UsedPodCidrs()) == []
    assert conditions(
        UsedRange(cidr=RANGE, reason="Assigned", why="w"),
        UsedPodCidrs(prefixes=f"{PAIR},10.9.0.0/16=100.80.0.0/16", reason="Configured", why="v"),
    ) == [
        ("ExportRange", "True", "Assigned", f"{RANGE}: w"),
        ("PodExportRange", "True", "Configured", f"100.72.0.0/16 for {POD}, 100.80.0.0/16 for 10.9.0.0/16: v"),
    ]
    exhausted = UsedRange(reason="RangeExhausted", why="w")
    assert conditions(exhausted) == [("ExportRange", "False", "RangeExhausted", "w")]
    old = replace(exhausted, cidr=RANGE, reason="AgentsTooOld")
    assert conditions(old) == [("ExportRange", "False", "AgentsTooOld", f"{RANGE}: w")]


def test_a_cluster_that_is_no_member_has_no_ranges() -> None:
    """Nor does one whose ClusterSet is another's."""
    view = answered({"serviceCIDR": "10.96.0.0/16", "cidr": RANGE, **POOR})
    view.local.put(cluster_set())  # not Ready yet
    assert decided(view) == (None, [])
    assert AREA in {raw["metadata"]["namespace"] for raw in north_of(view).list(Kind.RESOURCE_IMPORT)}
