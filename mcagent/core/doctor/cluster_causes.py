"""Causes that are seen in a cluster's API: why each matters, what to type next. Data of the catalogue."""

from __future__ import annotations

from collections.abc import Mapping

from mcagent.core.doctor.words import Cause

CLUSTER_CAUSES: Mapping[str, Cause] = {
    "ClusterAway": Cause(
        "agents", "failed", "nothing can be said of the cluster",
        "kubectl cluster-info; is the kubeconfig's context the right one?",
    ),
    "AgentMissing": Cause(
        "agents", "failed", "Pods of that Node reach no other cluster, and are not reached",
        "kubectl -n {namespace} get pods -l app.kubernetes.io/component=agent -o wide; kubectl -n "
        "{namespace} describe daemonset mcagent-agent",
    ),
    "AgentNotAsked": Cause(
        "agents", "warning", "of that Node only the API's side is known",
        "kubectl exec in the agent's Pod, or on the Node itself: mcagent doctor",
    ),
    "NoAgents": Cause(
        "agents", "failed", "no Node of this cluster takes part", "mcagent deploy member --apply",
    ),
    "VersionsDiffer": Cause(
        "agents", "warning",
        "agents of two versions run side by side: fine during a roll-out, not for longer",
        "kubectl -n {namespace} rollout status daemonset mcagent-agent",
    ),
    "CrdMissing": Cause(
        "crds", "failed", "the API server does not know objects that mcagent reads and writes",
        "mcagent deploy {role} --apply",
    ),
    "CrdVersion": Cause(
        "crds", "failed", "that version is not served: everything that reads or writes it fails",
        "mcagent deploy {role} --apply",
    ),
    "CrdFields": Cause(
        "crds", "warning",
        "the API server throws fields away that this version writes (another version's CRD was applied)",
        "mcagent deploy {role} --apply; then look who applies the other one",
    ),
    "AccountForbidden": Cause(
        "permissions", "failed", "that account cannot do what its role needs",
        "kubectl auth can-i {verb} {resource} --as={account} -n {namespace}; then mcagent deploy {role} "
        "--apply",
    ),
    "WebhookAway": Cause(
        "webhooks", "failed", "writes of the objects that it judges are refused while nobody answers",
        "kubectl -n {namespace} get endpointslices -l kubernetes.io/service-name={service}; kubectl -n "
        "{namespace} get pods",
    ),
    "WebhookNoCa": Cause(
        "webhooks", "failed", "API servers cannot verify the webhook, and refuse what it should judge",
        "kubectl -n {namespace} logs deploy/{service}: the controller writes its CA when it runs",
    ),
    "WebhookIgnored": Cause(
        "webhooks", "warning",
        "while nobody answers, members can write in each other's name: for the takeover from Antrea's leader "
        "only",
        "mcagent deploy --role leader --apply; with Helm leader.webhook.failurePolicy=Fail",
    ),
    "ControllerAway": Cause(
        "controller", "failed",
        "gateways are not elected, exports and imports stand still; what is programmed goes on",
        "kubectl -n {namespace} get pods -l app.kubernetes.io/name=mcagent; kubectl -n {namespace} get "
        "lease {lease} -o yaml",
    ),
    "LeaderAway": Cause(
        "leader", "failed", "nothing new comes from or gets to other clusters; what is known goes on",
        "curl -k {server}/readyz from this cluster; mcagent get clusterset",
    ),
    "ExportRefused": Cause(
        "exports", "failed", "other clusters do not have this Service, or none of its endpoints",
        "kubectl describe serviceexport; for Pods that are reached without gateways: allowedEndpointCIDRs of the "
        "leader's controller and all members' (docs/antrea.md)",
    ),
    "EndpointsRefused": Cause(
        "exports", "warning", "no connection of this cluster goes there (an Event of the last hour)",
        "podCIDRs of the exporting cluster's controller; for Pods that are reached without gateways: "
        "allowedEndpointCIDRs of the leader's controller and all members' (docs/antrea.md)",
    ),
    "NotJoined": Cause(
        "leader", "warning", "the cluster is in no ClusterSet", "mcagent clusterset join --help",
    ),
    "LeaderClockOff": Cause(
        "leader", "warning", "tokens and certificates of one cluster may not count in the other",
        "chronyc tracking, or timedatectl, on the machines of both API servers",
    ),
    "CertificateExpiring": Cause(
        "leader", "warning", "when it ends, members lose their leader",
        "renew the certificate of that API server (kubeadm certs renew apiserver)",
    ),
    "CertificateExpired": Cause(
        "leader", "failed", "members that verify it do not connect any more",
        "renew the certificate of that API server (kubeadm certs renew apiserver)",
    ),
    "OtherSystem": Cause(
        "neighbours", "warning",
        "two systems may claim the same networks, ServiceImports, routes or UDP ports; which objects each"
        " acts on is in docs/doctor.md",
        "if it is no longer used, uninstall it with its own command",
    ),
}  # fmt: skip
