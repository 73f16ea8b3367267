"""Judges what was read of a cluster: one function for each check, values in, findings out. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from mcagent.controller.admin.doctor_view import ClusterSeen, wanted_crds
from mcagent.controller.admin.manifests import Role
from mcagent.controller.contract.conditions import TRUE, find, time_of
from mcagent.controller.contract.raw import items_at, name_of, namespace_of, text_at, value_at
from mcagent.core.doctor.catalogue import CLUSTER_CHECKS
from mcagent.core.doctor.finding import Finding, complete, fine, found, skipped
from mcagent.core.doctor.node import clock
from mcagent.kube.source import RawObject

SOON = 30 * 86400.0  # seconds before its end at which a certificate is told
LEASE_LATE = 60.0  # seconds after which a Lease that nobody renewed is told
# Of a leader, those that tell members apart.
_FAIL_CLOSED = {"memberclusterannounces.mcagent.io", "resourceexports.mcagent.io"}
# Kind, how the name begins, and what it is.
SYSTEMS = (
    ("DaemonSet", "submariner-", "Submariner"),
    ("Deployment", "submariner-", "Submariner"),
    ("Deployment", "clustermesh-apiserver", "Cilium's Cluster Mesh"),
    ("Deployment", "antrea-mc-controller", "Antrea's Multi-cluster"),
    ("Deployment", "skupper-", "Skupper"),
    ("Deployment", "linkerd-service-mirror", "Linkerd's multicluster"),
    ("Deployment", "istio-eastwestgateway", "Istio's multicluster"),
    ("Deployment", "liqo-", "Liqo"),
    ("DaemonSet", "kilo", "Kilo"),
)


def examine_cluster(
    seen: ClusterSeen, more: Iterable[Finding] = (), answered: Collection[str] = ()
) -> list[Finding]:
    """Return all findings of a cluster.

    `more`: of its input, judged by whoever knows its configuration. `answered`: Nodes whose agents answer, which
    need no Pod.
    """
    if seen.error:
        return [found("ClusterAway", seen.error)]
    findings = [
        *_agents(seen, answered),
        *_crds(seen),
        *_permissions(seen),
        *_webhooks(seen),
        *_controller(seen),
        *_leader(seen),
        *_exports(seen),
        *_neighbours(seen),
        *more,
    ]
    unread = {check: seen.unread[what] for what, check in _UNREAD.items() if what in seen.unread}
    findings = [one for one in findings if not (one.check in unread and one.level == "ok")]
    findings += [skipped(check, why) for check, why in unread.items()]
    return complete(findings, CLUSTER_CHECKS)


_UNREAD = {
    "Pods of mcagent": "agents",
    "Nodes": "agents",
    "CRDs": "crds",
    "ValidatingWebhookConfiguration": "webhooks",
    "Deployments of mcagent": "controller",
    "ClusterSets": "leader",
    "ServiceExports": "exports",
    "Events": "exports",
    "Deployments": "neighbours",
    "DaemonSets": "neighbours",
}


def _component(obj: RawObject) -> str:
    return str((value_at(obj, "metadata", "labels") or {}).get("app.kubernetes.io/component", ""))


def _agents(seen: ClusterSeen, answered: Collection[str]) -> Iterator[Finding]:
    agents = [one for one in seen.pods if _component(one) == "agent"]
    if not agents and not answered:
        yield found("NoAgents", "there is no agent Pod, and no agent answers")
        return
    namespace = {"namespace": namespace_of(agents[0]) if agents else "kube-system"}
    running = {text_at(one, "spec", "nodeName") for one in agents if _ready(one)} | set(answered)
    missing = sorted({name_of(node) for node in seen.nodes} - running)
    for node in missing:
        states = [_state(one) for one in agents if text_at(one, "spec", "nodeName") == node]
        yield found(
            "AgentMissing", states[0] if states else "it has no Pod", subject=f"Node {node}", places=namespace
        )
    images = {str(one.get("image", "")) for pod in agents for one in items_at(pod, "spec", "containers")}
    if len(images) > 1:
        yield found("VersionsDiffer", ", ".join(sorted(images)), places=namespace)
    elif not missing:
        yield fine("agents", f"{len(running)} Nodes, {', '.join(images) or 'none in a Pod'}")


def _ready(pod: RawObject) -> bool:
    return find(value_at(pod, "status", "conditions"), "Ready").get("status") == TRUE


def _state(pod: RawObject) -> str:
    waiting = [
        f"{text_at(one, 'state', 'waiting', 'reason')} {text_at(one, 'state', 'waiting', 'message')}".strip()
        for one in items_at(pod, "status", "containerStatuses")
        if value_at(one, "state", "waiting")
    ]
    phase = text_at(pod, "status", "phase") or "unknown"
    return f"Pod {name_of(pod)} is {phase}, not ready{': ' if waiting else ''}{'; '.join(waiting)}"


def _role(seen: ClusterSeen) -> Role:
    roles = {_component(one) for one in seen.deployments}
    return Role.ALL if roles >= {"leader", "member"} else Role.LEADER if "leader" in roles else Role.MEMBER


def _crds(seen: ClusterSeen) -> Iterator[Finding]:
    role = _role(seen)
    wanted = wanted_crds(role)
    places = {"role": role}
    good = 0
    for crd in wanted:
        name, there = name_of(crd), seen.crds.get(name_of(crd))
        if there is None:
            yield found("CrdMissing", "it is missing", subject=name, places=places)
            continue
        served = {text_at(one, "name"): one for one in items_at(there, "spec", "versions") if one.get("served")}
        established = find(value_at(there, "status", "conditions"), "Established").get("status") == TRUE
        missing = [
            text_at(one, "name")
            for one in items_at(crd, "spec", "versions")
            if one.get("served") and text_at(one, "name") not in served
        ]
        if missing or not established:
            text = f"{', '.join(missing)} is not served" if missing else "it is not established"
            yield found("CrdVersion", text, subject=name, places=places)
            continue
        lost = sorted(
            f"{text_at(one, 'name')}: {path}"
            for one in items_at(crd, "spec", "versions")
            if one.get("served")
            for path in _lost(_schema(one), _schema(served[text_at(one, "name")]), "")
        )
        if lost:
            yield found("CrdFields", f"it lacks {', '.join(lost[:8])}", subject=name, places=places)
        else:
            good += 1
    if good == len(wanted):
        yield fine("crds", f"{good} CRDs of this version")


def _schema(version: RawObject) -> Mapping[str, Any]:
    schema = value_at(version, "schema", "openAPIV3Schema")
    return schema if isinstance(schema, dict) else {}


def _lost(ours: Mapping[str, Any], theirs: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield the fields of our schema that theirs would prune."""
    if theirs.get("x-kubernetes-preserve-unknown-fields"):
        return
    inner, other = ours.get("properties") or {}, theirs.get("properties") or {}
    if other or inner:
        for name, schema in inner.items():
            if name in other:
                yield from _lost(schema, other[name], f"{path}.{name}")
            elif name not in {"apiVersion", "kind", "metadata"}:
                yield f"{path}.{name}".removeprefix(".")
    if isinstance(ours.get("items"), dict) and isinstance(theirs.get("items"), dict):
        yield from _lost(ours["items"], theirs["items"], f"{path}[]")


def _permissions(seen: ClusterSeen) -> Iterator[Finding]:
    if why := seen.unread.get("permissions"):
        yield skipped("permissions", why)
    for role, account, namespace, verb, resource in seen.forbidden:
        places = {"role": role, "account": account, "namespace": namespace, "verb": verb, "resource": resource}
        yield found("AccountForbidden", f"may not {verb} {resource}", subject=account, places=places)
    if not seen.forbidden and seen.asked:
        yield fine("permissions", f"all {seen.asked} that the roles installed here need")


def _webhooks(seen: ClusterSeen) -> Iterator[Finding]:
    good = 0
    for configuration in seen.webhooks:
        for hook in items_at(configuration, "webhooks"):
            service = text_at(hook, "clientConfig", "service", "name")
            namespace = text_at(hook, "clientConfig", "service", "namespace")
            places, name = {"namespace": namespace, "service": service}, text_at(hook, "name")
            if not text_at(hook, "clientConfig", "caBundle"):
                yield found("WebhookNoCa", "it has no caBundle", subject=name, places=places)
            elif service and not seen.slices.get((namespace, service)):
                text = f"Service {namespace}/{service} has no ready endpoint"
                yield found("WebhookAway", text, subject=name, places=places)
            elif name in _FAIL_CLOSED and text_at(hook, "failurePolicy") == "Ignore":
                yield found("WebhookIgnored", "its failurePolicy is Ignore", subject=name, places=places)
            else:
                good += 1
    if good == sum(len(items_at(one, "webhooks")) for one in seen.webhooks):
        yield fine("webhooks", f"{good} have a CA and endpoints" if good else "there are none")


def _controller(seen: ClusterSeen) -> Iterator[Finding]:
    roles = [one for one in seen.deployments if _component(one) in {"leader", "member"}]
    good = []
    for deployment in roles:
        role, namespace = _component(deployment), namespace_of(deployment)
        places = {"namespace": namespace, "lease": f"mcagent-{role}"}
        ready = value_at(deployment, "status", "readyReplicas") or 0
        renewed = time_of(value_at(seen.leases.get((namespace, f"mcagent-{role}")), "spec", "renewTime"))
        if not ready:
            yield found("ControllerAway", "no replica is ready", subject=role, places=places)
        elif renewed is not None and seen.now + (seen.clock or 0.0) - renewed > LEASE_LATE:
            text = f"the Lease was last renewed {seen.now - renewed:.0f} s ago"
            yield found("ControllerAway", text, subject=role, places=places)
        else:
            good.append(role)
    if len(good) == len(roles):
        yield fine("controller", f"{', '.join(good)} runs" if good else "no controller Deployment here")


def _server(cluster_set: RawObject) -> str:
    """Return the URL of the leader; "" on the leader itself."""
    return next((text_at(one, "server") for one in items_at(cluster_set, "spec", "leaders")), "")


def _leader(seen: ClusterSeen) -> Iterator[Finding]:
    joined = [one for one in seen.cluster_sets if _server(one)]
    bad = False
    for one in joined:
        ready = find(value_at(one, "status", "conditions"), "Ready")
        subject = f"ClusterSet {namespace_of(one)}/{name_of(one)}"
        if not ready:
            bad = True
            yield skipped("leader", f"{subject} has no condition Ready: not processed yet")
        elif ready.get("status") != TRUE:
            bad = True
            text = f"{ready.get('reason', '')}: {ready.get('message', '')}"
            yield found("LeaderAway", text, subject=subject, places={"server": _server(one)})
    for leader in seen.leaders:
        if leader.error:
            yield skipped("leader", f"{leader.server} is unreachable from this machine: {leader.error}")
            continue
        left = leader.expires - seen.now if leader.expires is not None else SOON
        if left < SOON:
            bad = True
            reason = "CertificateExpiring" if left > 0 else "CertificateExpired"
            text = f"expires in {left / 86400:.0f} days" if left > 0 else f"expired {-left / 86400:.0f} days ago"
            yield found(reason, f"certificate of {leader.server} {text}", subject=leader.server)
        if leader.clock is not None and seen.clock is not None:
            apart = leader.clock - seen.clock
            yield from clock("LeaderClockOff", apart, f"the leader ({leader.server})")
    if not joined and not seen.cluster_sets and not seen.imports:
        yield found("NotJoined", "there is no ClusterSet")
    elif not bad:
        days = [one.expires - seen.now for one in seen.leaders if one.expires is not None]
        ends = f", certificate expires in {min(days) / 86400:.0f} days" if days else ""
        yield fine("leader", f"connected{ends}" if joined else "no leader to connect to")


def _exports(seen: ClusterSeen) -> Iterator[Finding]:
    bad = []
    for one in seen.exports:
        ready = find(value_at(one, "status", "conditions"), "Ready")
        if text_at(ready, "reason") == "Failed":
            subject = f"ServiceExport {namespace_of(one)}/{name_of(one)}"
            bad.append(found("ExportRefused", text_at(ready, "message"), subject=subject))
    for event in seen.refusals:
        about = [text_at(event, "involvedObject", key) for key in ("namespace", "name")]
        subject = f"{text_at(event, 'involvedObject', 'kind')} {'/'.join(about)}"
        bad.append(found("EndpointsRefused", text_at(event, "message"), subject=subject))
    yield from bad
    if not bad:
        yield fine("exports", f"{len(seen.exports)} exported, none is refused")


def _neighbours(seen: ClusterSeen) -> Iterator[Finding]:
    there: dict[str, str] = {}
    for kind, namespace, name in seen.workloads:
        for wanted, prefix, system in SYSTEMS:
            if kind == wanted and name.startswith(prefix):
                there.setdefault(system, f"{kind} {namespace}/{name}")
    for system, workload in sorted(there.items()):
        yield found("OtherSystem", f"{system} is here ({workload})", subject=system)
    if not there:
        yield fine("neighbours", "none found")
