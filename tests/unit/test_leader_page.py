"""What a leader shows and knows of its clusters: the topology page, granted claims, and proofs of gateways."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mcagent.api.topology import Change, ShownCluster, ShownLink, ShownProblem, Topology
from mcagent.controller.contract import names
from mcagent.controller.contract.pod_ranges import POD_CIDRS_ANNOTATION, POD_RANGES_ANNOTATION, AssignedPodCidrs
from mcagent.controller.leader.claims import (
    ClusterClaims,
    claims_of_cluster,
    granted_in,
    publishes_key,
    read_claims,
    times_in,
    times_text,
)
from mcagent.controller.leader.exports.bounds import annotation_errors, over_quota, size_limit, too_large
from mcagent.controller.leader.proofs import link_report
from mcagent.controller.leader.topology import topologies
from mcagent.kube.source import RawObject
from mcagent.model.api.multicluster import MemberClusterAnnounce, ResourceExport, ResourceImport
from mcagent.model.net import cluster_fingerprint
from mcagent.model.parsing import links
from mcagent.model.parsing.decode import read_as
from mcagent.model.parsing.links import ClusterLink
from tests.worlds.control_view import MemoryView
from tests.worlds.leader_world import AREA, SET, announce, cluster_info, cluster_set, export, gateway_of, service
from tests.worlds.memory_objects import Clock, MemoryObjects

SINCE, LATER = "2026-11-20T10:00:00Z", "2026-11-21T10:00:00Z"
WIREGUARD_KEY = "A" * 43 + "="


def view_of(*objects: RawObject) -> MemoryView:
    """Return a view of a leader's objects."""
    api = MemoryObjects(Clock(), namespaces=[AREA])
    for obj in objects:
        api.put(obj)
    return MemoryView(api, namespace=AREA)


def announced(cluster: str, *reported: ClusterLink, **fields: str) -> RawObject:
    """Return a member's announcement with its links."""
    raw = announce(cluster) | fields
    raw["metadata"]["annotations"] = {links.ANNOTATION: links.as_text(reported)}
    return raw


def ready(cluster: str, status: str, message: str = "") -> RawObject:
    """Return the status of a cluster in a ClusterSet."""
    condition = {"type": "Ready", "status": status, "lastTransitionTime": SINCE, "message": message}
    return {"clusterID": cluster, "conditions": [condition]}


def with_status(raw: RawObject, **status: Any) -> RawObject:
    """Return an object with a status."""
    return raw | {"status": status}


def failed(raw: RawObject, kind: str, status: str, reason: str) -> RawObject:
    """Return an export with a condition."""
    condition = {"type": kind, "status": status, "reason": reason, "message": f"{reason}\n"}
    return with_status(raw, conditions=[condition])


def shown(*objects: RawObject) -> Topology:
    """Return the only ClusterSet of the page."""
    (topology,) = topologies(view_of(*objects), AREA)
    return topology


# --- the topology page ------------------------------------------------------------------------------------


def test_clusters_of_the_page() -> None:
    """Members in order, with state, networks, gateways and the number of Services."""
    conditions = [
        ready("east", "True", "fine"),
        ready("west", "False", "no heartbeats\n"),
        ready("south", "Unknown", "?"),
    ]
    info = cluster_info("east", "10.96.0.0/16", ["10.1.0.0/16", "10.2.0.0/16"])
    topology = shown(
        with_status(cluster_set(), clusterStatuses=conditions),
        announced("west"),
        announced("east"),
        announced("south"),
        announced("other", clusterSetID="another"),
        info,
        service("east"),
        service("east", "default/web"),
        service("west"),
        export("east", "AntreaClusterNetworkPolicy", "p1", {"name": "p1"}),
        export("east", "KubernetesPolicy", "p2", {"name": "p2"}),
    )
    assert (topology.name, topology.policies) == (SET, 2)
    assert topology.clusters == (
        ShownCluster(
            id="east",
            ready=True,
            since=SINCE,
            gateways=(gateway_of("east"),),
            networks=("10.96.0.0/16", "10.1.0.0/16", "10.2.0.0/16"),
            services=2,
        ),
        ShownCluster(id="south", ready=None, since=SINCE, why="?", services=0),
        ShownCluster(id="west", ready=False, since=SINCE, why="no heartbeats\\n", services=1),
    )
    assert topology.problems == (
        ShownProblem(subject=f"ClusterSet {AREA}/{SET}", reason="Disconnected", message="west: no heartbeats\\n"),
    )
    assert topology.problem_count == 1


def test_real_and_virtual_pod_cidrs_of_the_page() -> None:
    """A virtual Pod CIDR is shown with the one that it stands for; an export range is shown alone."""
    raw = cluster_set()
    pods = AssignedPodCidrs(pod_cidrs="10.244.0.0/16", prefixes="10.244.0.0/16=100.72.0.0/16", why="overlaps west")
    raw["metadata"]["annotations"] = {POD_RANGES_ANNOTATION: msgspec.json.encode({"east": pods}).decode()}
    info = cluster_info("east", "100.64.0.0/20", ["100.72.0.0/16", "10.5.0.0/16"])
    (cluster,) = shown(raw, announced("east"), info).clusters
    assert cluster.networks == ("100.64.0.0/20", "100.72.0.0/16 (10.244.0.0/16 in the cluster)", "10.5.0.0/16")


@pytest.mark.parametrize(
    ("reported", "shown_cidrs"),
    [
        ("10.244.0.0/16,10.5.0.0/16", ("172.30.0.0/16 (10.244.0.0/16 in the cluster)", "10.5.0.0/16")),
        ("10.244.0.0/16", ("172.30.0.0/16", "10.5.0.0/16")),
        ("none,10.5.0.0/16", ("172.30.0.0/16", "10.5.0.0/16")),
    ],
    ids=["in order", "another number", "invalid"],
)
def test_configured_virtual_pod_cidrs_of_the_page(reported: str, shown_cidrs: tuple[str, ...]) -> None:
    """The leader has not assigned them: the member's Pod CIDRs, in the order of the published ones, tell."""
    info = cluster_info("east", "10.96.0.0/16", ["172.30.0.0/16", "10.5.0.0/16"])
    info["metadata"].setdefault("annotations", {})[POD_CIDRS_ANNOTATION] = reported
    (cluster,) = shown(cluster_set(), announced("east"), info).clusters
    assert cluster.networks == ("10.96.0.0/16", *shown_cidrs)


def test_long_lists_of_a_cluster() -> None:
    """16 gateways and 16 Pod CIDRs are shown."""
    info = cluster_info("east", "10.96.0.0/16", [f"10.{number}.0.0/16" for number in range(20)])
    info["spec"]["clusterInfo"]["gatewayInfos"] = [{"gatewayIP": f"192.0.2.{number}"} for number in range(20)]
    (cluster,) = shown(cluster_set(), announced("east"), info).clusters
    assert cluster.gateways == tuple(f"192.0.2.{number}" for number in range(16))
    assert cluster.networks == ("10.96.0.0/16", *(f"10.{number}.0.0/16" for number in range(16)))


def test_links_of_the_page() -> None:
    """Links between members, the last changes first; a link without a live tunnel is a problem."""
    up = ClusterLink(cluster="west", live=2, tunnels=2, since=SINCE, bytes_per_second=7)
    down = ClusterLink(cluster="east", live=0, tunnels=2, since=LATER, why="no answer")
    partly = ClusterLink(cluster="south", live=1, tunnels=2, since="2026-11-19T10:00:00Z")
    silent_link = ClusterLink(cluster="south", live=0, tunnels=0)
    other_links = [ClusterLink(cluster=name, live=0, tunnels=1, since=LATER) for name in ("east", "elsewhere")]
    topology = shown(
        cluster_set(),
        announced("east", up, partly, *other_links),
        announced("west", down, silent_link),
        announced("south"),
    )
    assert topology.links == (
        ShownLink(source="east", target="west", live=2, tunnels=2, since=SINCE, bytes_per_second=7),
        ShownLink(
            source="east",
            target="south",
            live=1,
            tunnels=2,
            since="2026-11-19T10:00:00Z",
            bytes_per_second=0,
        ),
        ShownLink(
            source="west",
            target="east",
            live=0,
            tunnels=2,
            since=LATER,
            why="no answer",
            bytes_per_second=0,
            lost=True,
        ),
        ShownLink(source="west", target="south", live=0, tunnels=0, bytes_per_second=0),
    )
    assert topology.changes == (
        Change(at=LATER, source="west", target="east", good=False, text="no answer"),
        Change(at=SINCE, source="east", target="west", good=True, text="2 of 2 tunnels are live"),
        Change(
            at="2026-11-19T10:00:00Z", source="east", target="south", good=False, text="1 of 2 tunnels are live"
        ),
    )
    assert topology.problems == (
        ShownProblem(
            subject=f"ClusterSet {AREA}/{SET}",
            reason="LinkDegraded",
            message="1 of 2 tunnels from east to south are live",
            error=False,
        ),
        ShownProblem(
            subject=f"ClusterSet {AREA}/{SET}",
            reason="ClusterUnreachable",
            message="west has no live tunnel to east: no answer",
        ),
    )


def test_problems_of_the_page() -> None:
    """Those of the ClusterSet, then of exports: failures and conflicts; text of others is printable."""
    conditions = [
        {"type": "Overlap", "status": "False", "reason": "", "message": "m1"},
        {"type": "Other", "status": "False", "reason": "R\n", "message": "m2"},
        {"type": "Fine", "status": "True", "reason": "R", "message": "m3"},
    ]
    subject = f"ClusterSet {AREA}/{SET}"
    topology = shown(
        with_status(cluster_set(), conditions=conditions),
        failed(service("east", "a/a"), "Failure", "False", "Bad"),
        failed(service("east", "a/b"), "Failure", "True", "Fine"),
        failed(service("east", "a/c"), "Conflict", "True", "Ports"),
        failed(service("east", "a/d"), "Conflict", "False", "Fine"),
        failed(service("east", "a/e"), "Succeeded", "True", "Fine"),
    )
    assert topology.problems == (
        ShownProblem(subject=subject, reason="Overlap", message="m1"),
        ShownProblem(subject=subject, reason="R\\n", message="m2"),
        ShownProblem(
            subject=f"ResourceExport {AREA}/east-a-a-service", reason="Bad", message="Bad\\n", error=True
        ),
        ShownProblem(
            subject=f"ResourceExport {AREA}/east-a-c-service", reason="Ports", message="Ports\\n", error=False
        ),
    )
    many = [failed(service("east", f"a/s{number}"), "Failure", "False", "Bad") for number in range(110)]
    topology = shown(cluster_set(), *many)
    assert (len(topology.problems), topology.problem_count) == (100, 110)


def test_cluster_sets_of_the_page() -> None:
    """Those that this cluster leads, and that are not being deleted."""
    members = cluster_set(name="members")
    members["spec"]["leaders"][0]["server"] = "https://leader:6443"
    leaving = cluster_set(name="leaving")
    leaving["metadata"] |= {"deletionTimestamp": SINCE, "finalizers": ["a/b"]}
    view = view_of(cluster_set(), members, leaving)
    assert [topology.name for topology in topologies(view, None)] == [SET]
    assert topologies(view, "other") == ()


# --- claims -----------------------------------------------------------------------------------------------


def granted(cluster: str, claims: str, *pod_cidrs: str, proved: str = "") -> RawObject:
    """Return the ResourceImport that grants claims."""
    info = {"clusterID": cluster, "podCIDRs": list(pod_cidrs), "gatewayInfos": [{"gatewayIP": "192.0.2.1"}]}
    notes = {"mcagent.io/claims": claims, "mcagent.io/proved-gateways": proved}
    return {
        "kind": "ResourceImport",
        "metadata": {
            "name": f"{cluster}-clusterinfo",
            "namespace": AREA,
            "creationTimestamp": SINCE,
            "annotations": {name: text for name, text in notes.items() if text},
        },
        "spec": {"kind": "ClusterInfo", "clusterinfo": info},
    }


def times(raw: RawObject) -> dict[str, str]:
    """Return the times of grants, by claim."""
    return {str(claim): time for claim, time in granted_in(read_as(ResourceImport, raw)).items()}


def test_times_of_grants() -> None:
    """They are in an annotation; without it, or with an invalid one, the time is that of the object."""
    created = "2026-11-20T10:00:00.000000Z"
    assert times(granted("east", '{"10.1.0.0/16":"2025-01-01T00:00:00Z"}', "10.1.0.0/16", "10.2.0.0/16")) == {
        "Pod CIDR 10.1.0.0/16": "2025-01-01T00:00:00.000000Z",
        "Pod CIDR 10.2.0.0/16": created,
        "gateway 192.0.2.1": created,
    }
    for text in ("", "[]"):
        assert times(granted("east", text)) == {"gateway 192.0.2.1": created}
    assert granted_in(None) == {}


def test_times_of_proofs() -> None:
    """By address; early versions wrote none, and an invalid one is none."""
    assert times_in(None, names.PROVED_ANNOTATION) == {}
    assert times_in(read_as(ResourceImport, granted("east", "")), names.PROVED_ANNOTATION) == {}
    ended = "2026-11-20T10:00:00.000000Z"
    record = read_as(ResourceImport, granted("east", "", proved=f"a,b=x,,c={ended}"))
    times_by_address = times_in(record, names.PROVED_ANNOTATION)
    assert times_by_address == {"a": "", "b": "", "c": ended}
    assert times_text(times_by_address) == f"a,b,c={ended}"
    assert times_text({}) is None


def test_claims_of_a_member() -> None:
    """Granted and requested claims; an invalid export keeps what was granted, one of no member has none."""
    info = cluster_info("east", "10.96.0.0/16", ["10.1.0.0/16"], key=WIREGUARD_KEY)
    info["spec"]["clusterInfo"]["wireGuard"]["publicKey"] = ""
    record = granted("east", "", "10.1.0.0/16", "10.9.0.0/16", proved="192.0.2.1")
    view = view_of(announced("east"), info, record)
    claims = claims_of_cluster(view, AREA, "east")
    assert claims.cluster_id == "east"
    assert [str(claim) for claim in claims.granted] == ["Pod CIDR 10.1.0.0/16"]
    assert [str(claim) for claim in claims.requested] == [
        "Service CIDR 10.96.0.0/16",
        f"gateway {gateway_of('east')}",
    ]
    assert claims.proved == {"192.0.2.1": ""}
    assert claims.created
    assert not claims.encrypts
    info["spec"]["clusterInfo"]["podCIDRs"] = ["x"]
    page_claims = claims_of_cluster(view_of(announced("east"), info, record), AREA, "east")
    assert [str(claim) for claim in page_claims.granted] == [
        "Pod CIDR 10.1.0.0/16",
        "Pod CIDR 10.9.0.0/16",
        "gateway 192.0.2.1",
    ]
    assert page_claims.requested == []
    nothing = ClusterClaims(cluster_id="east", created="", granted={}, requested=())
    assert claims_of_cluster(view_of(info, record), AREA, "east") == nothing
    assert claims_of_cluster(view_of(announced("east"), record), AREA, "east") == nothing


@pytest.mark.parametrize(
    ("common", "own", "expected"),
    [
        (None, None, False),
        ({"publicKey": "k"}, None, True),
        (None, {"publicKey": "k"}, True),
        ({"port": 7}, {"port": 7}, False),
    ],
)
def test_clusters_that_publish_a_key(common: RawObject | None, own: RawObject | None, expected: bool) -> None:
    """One key, of all gateways or of one, is sufficient."""
    info = {
        "clusterID": "east",
        "wireGuard": common,
        "gatewayInfos": [{"gatewayIP": "192.0.2.1", "wireGuard": own}],
    }
    raw = export("east", "ClusterInfo", "east-clusterinfo", {"clusterInfo": info})
    assert publishes_key(read_as(ResourceExport, raw)) is expected
    assert not publishes_key(read_as(ResourceExport, service("east")))


def test_claims_of_invalid_exports() -> None:
    """An export with an invalid header or payload has none, which is not the same as no claims."""
    assert read_claims(read_as(ResourceExport, cluster_info("east", ""))) != ()
    assert read_claims(read_as(ResourceExport, cluster_info("east", "x"))) is None
    wrong_name = cluster_info("east", "10.96.0.0/16")
    wrong_name["metadata"]["name"] = "other"
    assert read_claims(read_as(ResourceExport, wrong_name)) is None


# --- proofs -----------------------------------------------------------------------------------------------


def test_reports_of_answers() -> None:
    """By address, from all links; an announcement that announces no member reports nothing."""
    first, second = (links.fingerprint_text(cluster_fingerprint(name)) for name in ("east", "west"))
    full = tuple((f"192.0.2.{number}", second) for number in range(2, 10))
    raw = announced(
        "a",
        ClusterLink(cluster="east", live=1, tunnels=1, answers=(("192.0.2.1", first),)),
        ClusterLink(cluster="west", live=1, tunnels=8, answers=full),
        ClusterLink(cluster="none", live=0, tunnels=0),
    )
    report = link_report(read_as(MemberClusterAnnounce, raw))
    assert report.names("east", "192.0.2.1")
    assert not report.names("west", "192.0.2.1")
    assert not report.names("east", "192.0.2.20")
    assert report.has_tunnels("east", "192.0.2.20")
    assert not report.has_tunnels("none", "192.0.2.1")
    # A report has at most eight answers of a cluster, so it cannot tell about further gateways.
    assert report.has_tunnels("west", "192.0.2.2")
    assert not report.has_tunnels("west", "192.0.2.20")
    nothing = link_report(None)
    assert report.changed(nothing) == (["192.0.2.1", *sorted(address for address, _ in full)], ["east", "west"])
    silent = announced("a", ClusterLink(cluster="east", live=1, tunnels=1))
    for other in (raw | {"clusterID": "b"}, announce("a"), silent):
        assert link_report(read_as(MemberClusterAnnounce, other)) == nothing


def test_two_answers_at_one_address_name_nobody() -> None:
    """Neither cluster is confirmed by such a report."""
    prints = [links.fingerprint_text(cluster_fingerprint(name)) for name in ("east", "west")]
    reported = (
        ClusterLink(cluster=c, live=1, tunnels=1, answers=(("192.0.2.1", p),))
        for c, p in zip("ab", prints, strict=True)
    )
    report = link_report(read_as(MemberClusterAnnounce, announced("a", *reported)))
    assert not report.names("east", "192.0.2.1")
    assert not report.names("west", "192.0.2.1")


# --- limits -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotations", "errors"),
    [
        ({"mcagent.io/max-exports": "7", "mcagent.io/allowed-cidrs": "*"}, ""),
        (
            {"mcagent.io/allowed-cidrs": "10.0.0.1/8"},
            "annotation mcagent.io/allowed-cidrs has 10.0.0.1/8 with host bits set: did you mean 10.0.0.0/8?",
        ),
        (
            {"mcagent.io/allowed-gateways": "x\n", "mcagent.io/allowed-namespaces": "A"},
            (
                'annotation mcagent.io/allowed-gateways has "x", which is no CIDR; '
                'annotation mcagent.io/allowed-namespaces has "A", which is no namespace'
            ),
        ),
        (
            {"mcagent.io/allowed-namespaces": ",".join(f"n{number}" for number in range(4097))},
            "annotation mcagent.io/allowed-namespaces has 4097 entries, at most 4096 allowed",
        ),
        (
            {"mcagent.io/max-exports": "-1"},
            'annotation mcagent.io/max-exports must be a whole number of at most 6 digits, not "-1"',
        ),
    ],
)
def test_errors_in_annotations(annotations: dict[str, str], errors: str) -> None:
    """All are named, each with its annotation and what is valid."""
    assert annotation_errors(annotations) == errors


def test_sizes_of_exports() -> None:
    """Endpoints have the configured limit; other kinds, which are smaller, at most 65,536 bytes."""
    assert (size_limit("Endpoints", 100_000), size_limit("Service", 100_000), size_limit("Service", 100)) == (
        100_000,
        65_536,
        100,
    )
    assert too_large("x" * 98, "Service", 100) == ""
    assert too_large("x" * 99, "Service", 100) == (
        "it is larger than 100 bytes of JSON, the limit for exports of its kind "
        "(members.maxExportBytes of the leader)"
    )
    assert too_large("x" * 65_535, "Service", 100_000) == (
        "it is larger than 65536 bytes of JSON, the limit for exports of its kind"
    )
    assert over_quota("east", 7) == (
        "cluster east may export 7 Services, and the oldest stay: members.maxExports of the leader, or annotation "
        "mcagent.io/max-exports of the cluster's ServiceAccount, can allow more"
    )
