"""The doctor's rules of a cluster's API: values in, findings out."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from mcagent.agent.config import Settings
from mcagent.api.codec import to_json
from mcagent.api.doctor import CheckFinding, ClusterReport, FindingLevel, NodeReport
from mcagent.api.status import ProblemStatus
from mcagent.cli.common import agent_config, agents
from mcagent.cli.common.agents import Answer
from mcagent.cli.inspect import doctor as command
from mcagent.controller.admin.fields import name_of
from mcagent.controller.admin.manifests import InstalledRole
from mcagent.controller.contract.conditions import time_text
from mcagent.doctor import diagnose as doctor_diagnose
from mcagent.doctor.catalogue import Scope, examine, names
from mcagent.doctor.check import worst
from mcagent.doctor.checks.cluster import (
    admission_policies,
    cidrs,
    cluster_ids,
    controller,
    crds,
    dns,
    exports,
    kubernetes,
    leader,
    neighbours,
    permissions,
    pod_routing,
    tunnel_services,
    webhooks,
)
from mcagent.doctor.checks.cluster import agents as agent_check
from mcagent.doctor.checks.cluster.admission_policies import InstalledPolicies, shipped_policies
from mcagent.doctor.checks.cluster.crds import expected_crds
from mcagent.doctor.checks.cluster.leader import LeaderServer
from mcagent.doctor.checks.cluster.permissions import Account, Reviews
from mcagent.doctor.checks.cluster.tunnel_services import ClaimedSocket, claims_of
from mcagent.doctor.checks.node import openvswitch
from mcagent.doctor.diagnose import diagnose_cluster
from mcagent.doctor.examined import ExaminedCluster
from mcagent.kube.source import RawObject
from mcagent.kube.version import is_supported
from mcagent.model.api.base import Metadata
from mcagent.model.api.kubernetes import ApiNode
from mcagent.model.api.multicluster import ApiServiceExport, ClusterSet
from mcagent.model.config import Config
from mcagent.model.errors import SourceError
from mcagent.model.parsing.decode import read_as

NOW = 1_800_000_000.0
LEADER = "https://leader:6443"


def labelled(component: str, name: str, namespace: str = "kube-system") -> RawObject:
    """Return the metadata of an object of ours."""
    labels = {"app.kubernetes.io/name": "mcagent", "app.kubernetes.io/component": component}
    return {"metadata": {"name": name, "namespace": namespace, "labels": labels}}


def condition(kind: str, status: str = "True", **message: str) -> RawObject:
    """Return a status with one condition."""
    return {"conditions": [{"type": kind, "status": status, **message}]}


def agent(node: str, *, ready: bool = True, image: str = "mcagent:1") -> RawObject:
    """Return a Pod of an agent."""
    spec = {"nodeName": node, "containers": [{"name": "agent", "image": image}]}
    status: Mapping[str, Any] = {"phase": "Running"} | condition("Ready", str(ready))
    return labelled("agent", f"agent-{node}") | {"spec": spec, "status": status}


def served(crd: RawObject) -> RawObject:
    """Return a CRD as an API server has it."""
    return deepcopy(crd) | {"status": condition("Established")}


HOOK: RawObject = {
    "name": "gateways.mcagent.io",
    "clientConfig": {
        "caBundle": "eA==",
        "service": {"name": "mcagent-member", "namespace": "kube-system"},
    },
}


def cluster_set(
    *, connected: bool = True, message: str = "", reason: str = "", cluster_id: str = "", token: str = ""
) -> ClusterSet:
    """Return the ClusterSet of a member. `reason`: why not Ready, with `message`; `token`: of LeaderToken."""
    spec = {"clusterID": cluster_id, "leaders": [{"clusterID": "l", "server": LEADER}]}
    reason = reason or ("" if connected else "Disconnected")
    status = condition("Ready", "False", reason=reason, message=message) if reason else condition("Ready")
    if token:
        bad = {"type": "LeaderToken", "status": "False", "reason": token, "message": "it expires at …"}
        status = {"conditions": [*status["conditions"], bad]}
    meta = {"name": "cs", "namespace": "kube-system"}
    return read_as(ClusterSet, {"metadata": meta, "spec": spec, "status": status})


def leading(*, away: str = "", unlimited: str = "") -> ClusterSet:
    """Return the ClusterSet of a leader with two members.

    `away`: the message of the one that is not Ready. `unlimited`: of the condition CIDRsLimited.
    """
    lost = {"type": "Ready", "status": "False", "reason": "Disconnected", "message": away}
    limited = {"type": "CIDRsLimited", "status": "False" if unlimited else "True", "message": unlimited}
    status = {
        "conditions": [limited],
        "clusterStatuses": [
            {"clusterID": "east", **condition("Ready")},
            {"clusterID": "west", "conditions": [lost]} if away else {"clusterID": "west", **condition("Ready")},
        ],
    }
    spec = {"clusterID": "l", "leaders": [{"clusterID": "l"}]}
    return read_as(ClusterSet, {"metadata": {"name": "cs", "namespace": "area"}, "spec": spec, "status": status})


def leaders_set(reason: str) -> ClusterSet:
    """Return the ClusterSet of a leader, with the condition UniqueClusterID of a member."""
    conditions = (
        condition("Ready")["conditions"] + condition("UniqueClusterID", "False", reason=reason)["conditions"]
    )
    member = {"clusterID": "east", "conditions": conditions}
    spec = {"clusterID": "l", "leaders": [{"clusterID": "l"}]}
    return read_as(ClusterSet, {"metadata": {"name": "cs"}, "spec": spec, "status": {"clusterStatuses": [member]}})


def led_twice() -> ClusterSet:
    """Return the ClusterSet of a leader with controllers in two namespaces."""
    notes = {"mcagent.io/controller": "area", "mcagent.io/refused-controller": "other"}
    meta = {"name": "cs", "namespace": "area", "annotations": notes}
    return read_as(ClusterSet, {"metadata": meta, "spec": {"clusterID": "l", "leaders": [{"clusterID": "l"}]}})


def duplicate(name: str) -> RawObject:
    """Return an Event about a second cluster with the ID of the ClusterSet's member."""
    involved = {"kind": "ClusterSet", "namespace": "kube-system", "name": name}
    return {"message": "another cluster announced itself", "involvedObject": involved}


def node(name: str) -> ApiNode:
    """Return a Node."""
    return ApiNode(metadata=Metadata(name=name))


NO_RANGE = condition("ExportRange", "False", reason="RangeExhausted", message="exportCIDRs has no free range")
NO_PODS = condition("PodExportRange", "False", reason="RangeExhausted")
READERS = {
    "nodes": agent_check.nodes,
    "pods": agent_check.pods,
    "workloads": neighbours.workloads,
    "version": kubernetes.version,
    "deployments": controller.deployments,
    "crds": crds.crds,
    "policies": admission_policies.installed_policies,
    "webhooks": webhooks.webhooks,
    "endpoints": webhooks.ready_endpoints,
    "leases": controller.leases,
    "cluster_sets": leader.cluster_sets,
    "imports": leader.imports,
    "duplicates": cluster_ids.duplicates,
    "exports": exports.exports,
    "refusals": exports.refusals,
    "reviews": permissions.reviews,
    "leaders": leader.leader_servers,
    "problems": cidrs.input_problems,
    "claims": tunnel_services.claimed_sockets,
    "ends": tunnel_services.tunnel_ends,
    "placed": pod_routing.placed_pods,
    "corefiles": dns.config_maps,
}
CRDS = {name_of(crd): served(crd) for crd in expected_crds(InstalledRole.MEMBER)}
POLICIES = InstalledPolicies(
    policies={name_of(policy): policy for policy in shipped_policies()},
    bindings={name_of(policy): {"spec": {"validationActions": ["Deny"]}} for policy in shipped_policies()},
)
READINGS: Mapping[str, Any] = {
    "nodes": [node("n1")],
    "pods": [agent("n1")],
    "workloads": [("DaemonSet", "kube-system", "kube-proxy")],
    "deployments": [labelled("member", "mcagent-member") | {"status": {"readyReplicas": 1}}],
    "version": "v1.30.2",
    "crds": CRDS,
    "policies": POLICIES,
    "webhooks": [HOOK],
    "endpoints": {("kube-system", "mcagent-member"): 1},
    "leases": {("kube-system", "mcagent-member"): {"spec": {"renewTime": time_text(NOW - 5)}}},
    "cluster_sets": [cluster_set()],
    "imports": [],
    "duplicates": [],
    "exports": [],
    "refusals": [],
    "reviews": Reviews(checked=40),
    "leaders": [LeaderServer(server=LEADER, expires=NOW + 300 * 86400, clock=0.2)],
    "problems": (),
    "claims": (),
    "ends": frozenset({"192.168.1.11"}),
    "placed": (),
    "corefiles": [],
}


class NoServer:
    """A client of an API server that is not there."""

    server = "https://api:6443"

    def __init__(self, *args: object, **fields: object) -> None:
        """Connect to nothing."""

    def clock(self, *, timeout: float) -> float:
        """Say nothing."""
        raise SourceError("refused")

    def close(self) -> None:
        """Have nothing to close."""


def cluster(*, answered: tuple[str, ...] = (), cluster_id: str = "", **readings: Any) -> ExaminedCluster:
    """Return a cluster that is well but for these values; no API server is asked. `cluster_id`: of its agents."""
    read: dict[Any, Any] = {READERS[name]: value for name, value in {**READINGS, **readings}.items()}
    client: Any = NoServer()
    config = Config(node_name="n1", cluster_id=cluster_id)
    return ExaminedCluster(client, config, answered, readings=read, clock=0.0, now=NOW)


def findings(examined: ExaminedCluster) -> tuple[CheckFinding, ...]:
    """Return what is found in a cluster."""
    return examine(Scope.CLUSTER, examined)


def told(examined: ExaminedCluster) -> dict[str, str]:
    """Return the reasons of all findings that are not fine."""
    return {
        finding.reason or finding.check: finding.level
        for finding in findings(examined)
        if finding.level != FindingLevel.OK
    }


def gateway_crd(change: RawObject | None) -> ExaminedCluster:
    """Return a cluster whose CRD of gateways is another one, or not there."""
    name = "gateways.multicluster.crd.antrea.io"
    other_crds = {crd_name: crd for crd_name, crd in CRDS.items() if crd_name != name}
    return cluster(crds=other_crds | ({name: change} if change is not None else {}))


def older(*, fields: bool) -> RawObject:
    """Return the CRD of gateways without a version, or without a field."""
    crd = deepcopy(dict(CRDS["gateways.multicluster.crd.antrea.io"]))
    if fields:
        for version in crd["spec"]["versions"]:
            del version["schema"]["openAPIV3Schema"]["properties"]["gatewayIP"]
    else:
        crd["spec"]["versions"] = []
    return crd


def test_a_good_cluster_is_fine() -> None:
    """There is a line for each check."""
    results = findings(cluster())
    assert [finding.check for finding in results] == list(names(Scope.CLUSTER))
    assert worst(results) is FindingLevel.OK, results


EXPORTS, OF_AGENTS = "resourceexports.mcagent.io", "gateways-of-agents.mcagent.io"


def without(objects: Mapping[str, RawObject], name: str) -> dict[str, RawObject]:
    """Return the objects but one."""
    return {other: obj for other, obj in objects.items() if other != name}


def with_spec(objects: Mapping[str, RawObject], name: str, **fields: Any) -> dict[str, RawObject]:
    """Return the objects, one of them with other fields of its spec."""
    return {**objects, name: {**objects[name], "spec": {**objects[name]["spec"], **fields}}}


HOOKS = {"name": "x", "clientConfig": {"service": {"name": "s", "namespace": "n"}}}
IGNORED = dict(HOOK) | {"name": "resourceexports.mcagent.io", "failurePolicy": "Ignore"}


def claim(address: str, port: int) -> ClaimedSocket:
    """Return what Service shop/web claims."""
    return ClaimedSocket(namespace="shop", service="web", address=address, port=port)


FAULTS = {
    "a Service at a tunnel port": (cluster(claims=(claim("192.168.1.11", 6081),)), {"ServiceClaimsTunnel"}),
    "two controllers of one ClusterSet": (cluster(cluster_sets=[led_twice()]), {"SecondController"}),
    "a Service at a BFD port": (cluster(claims=(claim("192.168.1.11", 3784),)), {"ServiceClaimsTunnel"}),
    "a node port that is the tunnel port": (cluster(claims=(claim("", 6081),)), {"ServiceClaimsTunnel"}),
    "no agents": (cluster(pods=[]), {"NoAgents"}),
    "a Node without one": (cluster(nodes=[node("n1"), node("n2")]), {"AgentMissing"}),
    "an agent that is not ready": (cluster(pods=[agent("n1", ready=False)]), {"AgentMissing"}),
    "two versions": (
        cluster(nodes=[node("n1"), node("n2")],
            pods=[agent("n1"), agent("n2", image="b")],
        ),
        {"VersionsDiffer"},
    ),
    "an API server that is too old": (cluster(version="v1.29.14-gke.100"), {"KubernetesOld"}),
    "no CRD": (gateway_crd(None), {"CrdMissing"}),
    "a CRD without our version": (gateway_crd(older(fields=False)), {"CrdVersion"}),
    "a CRD without a field": (gateway_crd(older(fields=True)), {"CrdFields"}),
    "a CRD that is not established": (
        gateway_crd(dict(CRDS["gateways.multicluster.crd.antrea.io"]) | {"status": {}}), {"CrdVersion"}
    ),
    "a right that is missing": (
        cluster(reviews=Reviews(forbidden=((Account("agent", "k", "a"), "k", "list", "nodes"),), checked=1)),
        {"AccountForbidden"},
    ),
    "a webhook without endpoints": (cluster(endpoints={}), {"WebhookAway"}),
    "a webhook without CA": (
        cluster(webhooks=[HOOKS]), {"WebhookNoCa"}
    ),
    "a webhook that may be missed": (
        cluster(webhooks=[IGNORED]), {"WebhookIgnored"}
    ),
    "no admission policies": (
        cluster(policies=InstalledPolicies(policies={}, bindings={})), {"PolicyMissing", "AgentsWithoutNode"}
    ),
    "an admission policy without binding": (
        cluster(policies=replace(POLICIES, bindings=without(POLICIES.bindings, EXPORTS))), {"PolicyMissing"}
    ),
    "an admission policy that only warns": (
        cluster(
            policies=replace(POLICIES, bindings=with_spec(POLICIES.bindings, EXPORTS, validationActions=["Warn"]))
        ),
        {"PolicyNotEnforced"},
    ),
    "an admission policy that may be missed": (
        cluster(
            policies=replace(POLICIES, policies=with_spec(POLICIES.policies, EXPORTS, failurePolicy="Ignore"))
        ),
        {"PolicyNotEnforced"},
    ),
    "an admission policy of another version": (
        cluster(policies=replace(POLICIES, policies=with_spec(POLICIES.policies, EXPORTS, validations=[]))),
        {"PolicyDiffers"},
    ),
    "agents whose tokens name no Node": (
        cluster(policies=replace(POLICIES, policies=without(POLICIES.policies, OF_AGENTS))), {"AgentsWithoutNode"}
    ),
    "a controller that is not ready": (
        cluster(deployments=[labelled("member", "mcagent-member")]), {"ControllerAway"}
    ),
    "a Lease that nobody renews": (
        cluster(leases={("kube-system", "mcagent-member"): {"spec": {"renewTime": time_text(NOW - 300)}}}),
        {"ControllerAway"},
    ),
    "a leader that is away": (
        cluster(cluster_sets=[cluster_set(connected=False)]),
        {"LeaderAway"},
    ),
    "a leader that refuses the token": (
        cluster(cluster_sets=[cluster_set(connected=False, message="from leader: Unauthorized")]),
        {"LeaderRefusesToken"},
    ),
    "a token that expired": (
        cluster(cluster_sets=[cluster_set(connected=False, message="Unauthorized", token="TokenExpired")]),
        {"TokenExpired"},
    ),
    "a token that is not renewed": (
        cluster(cluster_sets=[cluster_set(token="TokenNotRenewed")]),
        {"TokenNotRenewed"},
    ),
    "a member that the leader has lost": (
        cluster(cluster_sets=[leading(away="No MemberClusterAnnounce update after 2026")]),
        {"MemberAway"},
    ),
    "a leader whose members are connected": (cluster(cluster_sets=[leading()]), set()),
    "a leader whose members may claim any private network": (
        cluster(cluster_sets=[leading(unlimited="no list for east")]),
        {"AnyPrivateNetwork"},
    ),
    "a cluster ID that another cluster holds": (
        cluster(cluster_sets=[cluster_set(reason="DuplicateClusterID")]),
        {"ClusterIDInUse"},
    ),
    "a cluster ID that two clusters use, on the leader": (
        cluster(cluster_sets=[leaders_set("DuplicateClusterID")]),
        {"ClusterIDInUse"},
    ),
    "a copy of this cluster that the leader refuses": (cluster(duplicates=[duplicate("cs")]), {"ClusterCopied"}),
    "a copy of a member of this leader": (cluster(duplicates=[duplicate("led")]), set()),
    "agents with another cluster ID": (
        cluster(cluster_sets=[cluster_set(cluster_id="east")], cluster_id="west"),
        {"ClusterIDDiffers"},
    ),
    "an export that the leader refuses": (
        cluster(exports=[read_as(ApiServiceExport, {"status": condition("Ready", "False", reason="Failed")})]),
        {"ExportRefused"},
    ),
    "an export of which the leader leaves out endpoints": (
        cluster(exports=[read_as(ApiServiceExport, {"status": condition("Ready", message="200 endpoints")})]),
        {"PartLeftOut"},
    ),
    "an export of which this cluster leaves out endpoints": (
        cluster(exports=[read_as(ApiServiceExport, {"status": condition("Valid", message="200 endpoints")})]),
        {"PartLeftOut"},
    ),
    "an export range that is not used": (
        cluster(cluster_sets=[cluster_set(), read_as(ClusterSet, {"status": NO_RANGE})]),
        {"NoExportRange"},
    ),
    "virtual Pod CIDRs that are not used": (
        cluster(cluster_sets=[cluster_set(), read_as(ClusterSet, {"status": NO_PODS})]),
        {"NoVirtualPodCIDR"},
    ),
    "endpoints that are not used": (
        cluster(refusals=[{"message": "x", "involvedObject": {"kind": "Service", "name": "antrea-mc-web"}}]),
        {"EndpointsRefused"},
    ),
    "a certificate that ends": (
        cluster(leaders=[LeaderServer(server=LEADER, expires=NOW + 86400, clock=0.0)]),
        {"CertificateExpiring"},
    ),
    "a certificate that has ended": (
        cluster(leaders=[LeaderServer(server=LEADER, expires=NOW - 86400)]), {"CertificateExpired"}
    ),
    "a leader's clock": (
        cluster(leaders=[LeaderServer(server=LEADER, expires=NOW + 9e6, clock=99.0)]), {"LeaderClockOff"}
    ),
    "a leader not reached from here": (
        cluster(leaders=[LeaderServer(server=LEADER, error="timed out")]), {"leader"}
    ),
    "in no ClusterSet": (cluster(cluster_sets=[], leaders=[]), {"NotJoined"}),
    "Submariner": (
        cluster(workloads=[("DaemonSet", "submariner-operator", "submariner-gateway")]), {"OtherSystem"}
    ),
    "CRDs that may not be read": (cluster(crds=SourceError("not allowed")), {"NotRead"}),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_named_and_nothing_beside_it(fault: str) -> None:
    """One fault in a good cluster gives its reason, and no other."""
    examined, reasons = FAULTS[fault]
    assert set(told(examined)) == reasons


@pytest.mark.parametrize(
    ("version", "supported"),
    [
        ("v1.30.0", True),
        ("v1.31.4+k3s1", True),
        ("1.30", True),
        ("v2.0.0", True),
        ("v1.29.9", False),
        ("v1.3", False),
    ],
)
def test_versions_of_kubernetes(version: str, supported: bool) -> None:
    """1.30 is the oldest, with any suffix."""
    assert is_supported(version) == supported


def test_agents_outside_of_pods_count() -> None:
    """A Node whose agent answers needs no Pod."""
    results = findings(cluster(pods=[], answered=("n1",)))
    assert worst(results) is FindingLevel.OK, results


def test_a_cluster_that_is_away_is_one_finding() -> None:
    """Nothing else can be said of it."""
    client: Any = NoServer()
    report = diagnose_cluster(client, "east", Config(node_name="n1"), (), lambda _: None)
    assert [(finding.reason, finding.seen) for finding in report.findings] == [("ClusterAway", "refused")]
    assert (report.cluster, report.server) == ("east", "https://api:6443")


def examined(
    monkeypatch: pytest.MonkeyPatch, *answers: Answer
) -> tuple[ClusterReport, dict[str, tuple[CheckFinding, ...]]]:
    """Return what the doctor finds in a cluster whose agents answer this, and on its Nodes."""
    nodes = [node(answer.node) for answer in answers]
    pods = [agent(answer.node) for answer in answers]
    problem = ProblemStatus(
        subject="Node n1",
        path="spec.podCIDRs[0]",
        reason="DuplicatePodCIDR",
        message='10.1.0.0/24 belongs to Node "n0" already',
    )

    def diagnosed(client: Any, name: str, config: Config, answered: Any, progress: Any) -> ClusterReport:
        examined_cluster = cluster(nodes=nodes, pods=pods, problems=(problem,), answered=tuple(answered))
        return ClusterReport(cluster=name, findings=findings(examined_cluster))

    by_node = {answer.node: answer for answer in answers}
    monkeypatch.setattr(doctor_diagnose, "diagnose_cluster", diagnosed)
    monkeypatch.setattr(agents, "ask_nodes", lambda agents, page, timeout: by_node)
    monkeypatch.setattr(agent_config, "read_config_map", lambda client: None)
    client: Any = NoServer()
    report, reports = command._cluster(
        client, "east", None, Settings(core=Config(node_name="n1")), lambda text: None
    )
    return report, {node_report.node: node_report.findings for node_report in reports}


OPEN_VSWITCH = openvswitch.CHECK.passed("version 3.1.0")
UNANSWERED = Answer(node="n1", error="no agent answers at 192.0.2.1:10351")
EMPTY = Answer(node="n1", page={"findings": [{"check": "<script>"}]})
ODD = Answer(node="n1", page={"findings": [7]})
ANSWERED = Answer(node="n2", page=to_json(NodeReport(findings=(OPEN_VSWITCH,))))


@pytest.mark.parametrize(
    ("answer", "subject"),
    [
        (UNANSWERED, UNANSWERED.error),
        (EMPTY, "its answer holds no findings"),
        (ODD, "its answer: Expected `object`, got `int` - at `$.findings[0]`"),
    ],
)
def test_a_node_whose_agent_does_not_answer_is_named(
    monkeypatch: pytest.MonkeyPatch, answer: Answer, subject: str
) -> None:
    """A warning with the cause and what to do stands for the Node's own findings; other Nodes keep theirs."""
    report, by_node = examined(monkeypatch, answer, ANSWERED)
    (finding,) = by_node["n1"]
    assert (finding.check, finding.reason, finding.level) == ("agents", "AgentNotAsked", "warning")
    assert finding.seen == subject
    assert "mcagent doctor" in finding.do
    assert by_node["n2"] == (OPEN_VSWITCH,)
    assert "cidrs" not in {finding.check for finding in report.findings}


def test_the_input_is_judged_where_no_agent_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only then: an agent that answers judges it by its own configuration."""
    report, _ = examined(monkeypatch, UNANSWERED)
    judged = {finding.check: finding for finding in report.findings}
    assert (judged["cidrs"].reason, judged["cidrs"].level) == ("DuplicatePodCIDR", "failed")
    assert judged["input"].level == "ok"


def test_a_leader_is_judged_as_one() -> None:
    """It has other CRDs, and follows no leader."""
    examined = cluster(
        deployments=[labelled("leader", "mcagent-leader", "mcs") | {"status": {"readyReplicas": 1}}],
        crds={name_of(crd): served(crd) for crd in expected_crds(InstalledRole.LEADER)},
        cluster_sets=[ClusterSet(metadata=Metadata(name="cs", namespace="mcs"))],
        leaders=[],
    )
    assert told(examined) == {}


def test_addresses_and_udp_ports_of_a_service_are_read() -> None:
    """External addresses, those of a load balancer, and node ports; other protocols and host names are none."""
    ports = [{"port": 6081, "protocol": "UDP", "nodePort": 30081}, {"port": 80, "protocol": "TCP"}, {"port": "x"}]
    ingress = [{"ip": "192.0.2.1"}, {"hostname": "lb.example"}]
    service = {
        "metadata": {"namespace": "shop", "name": "web"},
        "spec": {"externalIPs": ["192.0.2.2"], "ports": ports},
        "status": {"loadBalancer": {"ingress": ingress}},
    }
    assert list(claims_of(service)) == [claim("192.0.2.2", 6081), claim("192.0.2.1", 6081), claim("", 30081)]
    assert list(claims_of({"spec": {"externalIPs": 7, "ports": {}}, "status": None})) == []


@pytest.mark.parametrize("socket", [("192.168.1.12", 6081), ("192.168.1.11", 51821), ("", 30081)])
def test_other_addresses_and_ports_are_not_reported(socket: tuple[str, int]) -> None:
    """Another address with the tunnel's port, and another port of the gateway."""
    assert told(cluster(claims=(claim(*socket),))) == {}
