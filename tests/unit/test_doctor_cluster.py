"""The doctor's rules of a cluster's API: values in, findings out."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from mcagent.agent.config import Settings
from mcagent.cli.common import doctor_clusters
from mcagent.cli.common.agents import Answer
from mcagent.controller.admin.doctor_rules import examine_cluster
from mcagent.controller.admin.doctor_view import ClusterSeen, LeaderServer, wanted_crds
from mcagent.controller.admin.manifests import Role
from mcagent.controller.contract.conditions import time_text
from mcagent.controller.contract.raw import name_of
from mcagent.core.doctor.catalogue import CLUSTER_CHECKS
from mcagent.core.doctor.finding import Level, fine, worst
from mcagent.kube.source import RawObject
from mcagent.model.config import Config
from mcagent.model.problem import Problem

NOW = 1_800_000_000.0
LEADER = "https://leader:6443"


def labelled(component: str, name: str, namespace: str = "kube-system") -> RawObject:
    """Return the metadata of an object of ours."""
    labels = {"app.kubernetes.io/name": "mcagent", "app.kubernetes.io/component": component}
    return {"metadata": {"name": name, "namespace": namespace, "labels": labels}}


def condition(kind: str, status: str = "True", **more: str) -> RawObject:
    """Return a status with one condition."""
    return {"conditions": [{"type": kind, "status": status, **more}]}


def agent(node: str, *, ready: bool = True, image: str = "mcagent:1") -> RawObject:
    """Return a Pod of an agent."""
    spec = {"nodeName": node, "containers": [{"name": "agent", "image": image}]}
    status: Mapping[str, Any] = {"phase": "Running"} | condition("Ready", str(ready))
    return labelled("agent", f"agent-{node}") | {"spec": spec, "status": status}


def served(crd: RawObject) -> RawObject:
    """Return a CRD as an API server has it."""
    return deepcopy(crd) | {"status": condition("Established")}


HOOK: RawObject = {
    "metadata": {"name": "mcagent-member"},
    "webhooks": [
        {
            "name": "gateways.mcagent.io",
            "clientConfig": {
                "caBundle": "eA==",
                "service": {"name": "mcagent-member", "namespace": "kube-system"},
            },
        }
    ],
}
SET: RawObject = {
    "metadata": {"name": "cs", "namespace": "kube-system"},
    "spec": {"leaders": [{"clusterID": "l", "server": LEADER}]},
    "status": condition("Ready"),
}
GOOD = ClusterSeen(
    server="https://api:6443",
    clock=0.0,
    now=NOW,
    nodes=[{"metadata": {"name": "n1"}}],
    pods=[agent("n1")],
    workloads=[("DaemonSet", "kube-system", "kube-proxy")],
    deployments=[labelled("member", "mcagent-member") | {"status": {"readyReplicas": 1}}],
    crds={name_of(one): served(one) for one in wanted_crds(Role.MEMBER)},
    webhooks=[HOOK],
    slices={("kube-system", "mcagent-member"): 1},
    leases={("kube-system", "mcagent-member"): {"spec": {"renewTime": time_text(NOW - 5)}}},
    cluster_sets=[SET],
    asked=40,
    leaders=[LeaderServer(server=LEADER, expires=NOW + 300 * 86400, clock=0.2)],
)


def told(seen: ClusterSeen) -> dict[str, Level]:
    """Return the reasons of all findings that are not fine."""
    return {one.reason or one.check: one.level for one in examine_cluster(seen) if one.level is not Level.OK}


def crds(change: RawObject | None) -> ClusterSeen:
    """Return a cluster whose CRD of gateways is another one, or not there."""
    name = "gateways.multicluster.crd.antrea.io"
    others = {key: one for key, one in GOOD.crds.items() if key != name}
    return replace(GOOD, crds=others | ({name: change} if change is not None else {}))


def older(*, fields: bool) -> RawObject:
    """Return the CRD of gateways without a version, or without a field."""
    crd = deepcopy(dict(GOOD.crds["gateways.multicluster.crd.antrea.io"]))
    if fields:
        for version in crd["spec"]["versions"]:
            del version["schema"]["openAPIV3Schema"]["properties"]["gatewayIP"]
    else:
        crd["spec"]["versions"] = []
    return crd


def test_a_good_cluster_is_fine() -> None:
    """There is a line for each check that does not need the Nodes' own words."""
    found = examine_cluster(GOOD)
    assert [one.check for one in found] == [c for c in CLUSTER_CHECKS if c not in {"cidrs", "input"}]
    assert worst(found) is Level.OK, found


HOOKS = {"name": "x", "clientConfig": {"service": {"name": "s", "namespace": "n"}}}
IGNORED = deepcopy(HOOK["webhooks"][0]) | {"name": "resourceexports.mcagent.io", "failurePolicy": "Ignore"}
FAULTS = {
    "away": (ClusterSeen(error="refused"), {"ClusterAway"}),
    "no agents": (replace(GOOD, pods=[]), {"NoAgents"}),
    "a Node without one": (replace(GOOD, nodes=[*GOOD.nodes, {"metadata": {"name": "n2"}}]), {"AgentMissing"}),
    "an agent that is not ready": (replace(GOOD, pods=[agent("n1", ready=False)]), {"AgentMissing"}),
    "two versions": (
        replace(
            GOOD,
            nodes=[{"metadata": {"name": n}} for n in ("n1", "n2")],
            pods=[agent("n1"), agent("n2", image="b")],
        ),
        {"VersionsDiffer"},
    ),
    "no CRD": (crds(None), {"CrdMissing"}),
    "a CRD without our version": (crds(older(fields=False)), {"CrdVersion"}),
    "a CRD without a field": (crds(older(fields=True)), {"CrdFields"}),
    "a CRD that is not established": (
        crds(dict(GOOD.crds["gateways.multicluster.crd.antrea.io"]) | {"status": {}}), {"CrdVersion"}
    ),
    "a right that is missing": (
        replace(GOOD, forbidden=[("agent", "system:serviceaccount:k:a", "k", "list", "nodes")]),
        {"AccountForbidden"},
    ),
    "a webhook without endpoints": (replace(GOOD, slices={}), {"WebhookAway"}),
    "a webhook without CA": (
        replace(GOOD, webhooks=[{"metadata": {"name": "m"}, "webhooks": [HOOKS]}]), {"WebhookNoCa"}
    ),
    "a webhook that may be missed": (
        replace(GOOD, webhooks=[{"metadata": {"name": "m"}, "webhooks": [IGNORED]}]), {"WebhookIgnored"}
    ),
    "a controller that is not ready": (
        replace(GOOD, deployments=[labelled("member", "mcagent-member")]), {"ControllerAway"}
    ),
    "a Lease that nobody renews": (
        replace(GOOD, leases={("kube-system", "mcagent-member"): {"spec": {"renewTime": time_text(NOW - 300)}}}),
        {"ControllerAway"},
    ),
    "a leader that is away": (
        replace(GOOD, cluster_sets=[SET | {"status": condition("Ready", "False", reason="Disconnected")}]),
        {"LeaderAway"},
    ),
    "an export that the leader refuses": (
        replace(GOOD, exports=[{"metadata": {}, "status": condition("Ready", "False", reason="Failed")}]),
        {"ExportRefused"},
    ),
    "endpoints that are not used": (
        replace(GOOD, refusals=[{"message": "x", "involvedObject": {"kind": "Service", "name": "antrea-mc-web"}}]),
        {"EndpointsRefused"},
    ),
    "a certificate that ends": (
        replace(GOOD, leaders=[LeaderServer(server=LEADER, expires=NOW + 86400, clock=0.0)]),
        {"CertificateExpiring"},
    ),
    "a certificate that has ended": (
        replace(GOOD, leaders=[LeaderServer(server=LEADER, expires=NOW - 86400)]), {"CertificateExpired"}
    ),
    "a leader's clock": (
        replace(GOOD, leaders=[LeaderServer(server=LEADER, expires=NOW + 9e6, clock=99.0)]), {"LeaderClockOff"}
    ),
    "a leader not reached from here": (
        replace(GOOD, leaders=[LeaderServer(server=LEADER, error="timed out")]), {"leader"}
    ),
    "in no ClusterSet": (replace(GOOD, cluster_sets=[], leaders=[]), {"NotJoined"}),
    "Submariner": (
        replace(GOOD, workloads=[("DaemonSet", "submariner-operator", "submariner-gateway")]), {"OtherSystem"}
    ),
    "CRDs that may not be read": (replace(GOOD, unread={"CRDs": "not allowed"}), {"crds"}),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_named_and_nothing_beside_it(fault: str) -> None:
    """One fault in a good cluster gives its reason, and no other."""
    seen, reasons = FAULTS[fault]
    assert set(told(seen)) == reasons


def test_agents_outside_of_pods_count() -> None:
    """A Node whose agent answers needs no Pod."""
    found = examine_cluster(replace(GOOD, pods=[]), answered=["n1"])
    assert worst(found) is Level.OK, found


def examined(monkeypatch: pytest.MonkeyPatch, *answers: Answer) -> dict[str, list[dict[str, Any]]]:
    """Return what the doctor finds in a cluster whose agents answer this."""

    class NoServer:
        """A client of an API server that is not there."""

        server = "https://api:6443"

        def __init__(self, *args: object, **more: object) -> None:
            """Connect to nothing."""

        def close(self) -> None:
            """Have nothing to close."""

    cluster = replace(GOOD, nodes=[{"metadata": {"name": answer.node}} for answer in answers])
    cluster = replace(cluster, pods=[agent(answer.node) for answer in answers])
    problem = Problem(
        "Node n1", "spec.podCIDRs[0]", "DuplicatePodCIDR", '10.1.0.0/24 belongs to Node "n0" already'
    )
    by_node = {answer.node: answer for answer in answers}
    monkeypatch.setattr(doctor_clusters, "Client", NoServer)
    monkeypatch.setattr(doctor_clusters, "read_cluster", lambda client, progress: cluster)
    monkeypatch.setattr(doctor_clusters, "ask_nodes", lambda agents, page, timeout: by_node)
    monkeypatch.setattr(doctor_clusters, "read_config_map", lambda client: None)
    monkeypatch.setattr(doctor_clusters, "input_problems", lambda client, config: (problem,))
    args = argparse.Namespace(context=["east"], agents="")
    return doctor_clusters.look_at_clusters(args, Settings(core=Config(node_name="n1")), lambda text: None)


UNANSWERED = Answer(node="n1", error="no agent answers at 192.0.2.1:10351")
EMPTY = Answer(node="n1", page={"findings": [{"check": "<script>"}, 7]})
OPEN_VSWITCH = fine("openvswitch", "version 3.1.0").plain()
ANSWERED = Answer(node="n2", page={"findings": [OPEN_VSWITCH]})


@pytest.mark.parametrize(
    ("answer", "seen"), [(UNANSWERED, UNANSWERED.error), (EMPTY, "its answer holds no findings")]
)
def test_a_node_whose_agent_does_not_answer_is_named(
    monkeypatch: pytest.MonkeyPatch, answer: Answer, seen: str
) -> None:
    """A warning with the cause and what to do stands for the Node's own findings; other Nodes keep theirs."""
    report = examined(monkeypatch, answer, ANSWERED)
    by_node = {part["node"]: part["findings"] for part in report["nodes"]}
    (finding,) = by_node["n1"]
    assert (finding["check"], finding["reason"], finding["level"]) == ("agents", "AgentNotAsked", "warning")
    assert finding["seen"] == seen
    assert "mcagent doctor" in finding["do"]
    assert by_node["n2"] == [OPEN_VSWITCH]
    (part,) = report["clusters"]
    assert "cidrs" not in {finding["check"] for finding in part["findings"]}


def test_the_input_is_judged_where_no_agent_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only then: an agent that answers judges it by its own configuration."""
    (part,) = examined(monkeypatch, UNANSWERED)["clusters"]
    judged = {finding["check"]: finding for finding in part["findings"]}
    assert (judged["cidrs"]["reason"], judged["cidrs"]["level"]) == ("DuplicatePodCIDR", "failed")
    assert judged["input"]["level"] == "ok"


def test_a_leader_is_judged_as_one() -> None:
    """It has other CRDs, and follows no leader."""
    seen = replace(
        GOOD,
        deployments=[labelled("leader", "mcagent-leader", "mcs") | {"status": {"readyReplicas": 1}}],
        crds={name_of(one): served(one) for one in wanted_crds(Role.LEADER)},
        cluster_sets=[{"metadata": {"name": "cs", "namespace": "mcs"}, "spec": {}}],
        leaders=[],
    )
    assert told(seen) == {}
