"""The control plane of a lab: a leader and a member of every cluster, joined as the user guide says.

Owns the controllers' processes, credentials (the ServiceAccounts and roles of `deploy/`) and webhooks, and
the admin commands that make the ClusterSet. The first cluster is the leader, and a member as the others. Gateways,
ClusterInfoImports and imported Services are the controllers' then, and no object of the lab's.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import yaml

from devtools.errors import LabError
from devtools.lab import objects
from devtools.lab.api import DEPLOY, Json
from devtools.lab.running import RunningLab, environment, get
from devtools.lab.topology import Cluster
from devtools.nodes import netns
from devtools.waiting import wait_until
from mcagent.kube.sources.manifests import FastLoader
from mcagent.model.net import PodPrefix
from mcagent.model.parsing.clusters import ADDRESS_CONDITION
from mcagent.model.parsing.prefixes import PREFIXES_ANNOTATION, read_prefixes

CLUSTER_SET = "lab"
LEADER_NAMESPACE = "antrea-multicluster"  # of deploy/leader.yaml
MEMBER_NAMESPACE = objects.NAMESPACE
POLICIES = "enableStretchedNetworkPolicy"
POD_EXPORT_CIDR = "podExportCIDR"  # of members
ACCOUNT = "mcagent-controller"
LOOPBACK = "127.0.0.1"  # API server and controllers of a cluster share a namespace
_PORTS = {"leader": 10361, "member": 10362}
_RIGHTS = (
    *("Namespace", "ServiceAccount", "Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"),
    *("Lease", "Secret"),  # the Secret of the webhook's certificate
)
_WEBHOOKS = ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration")
_WEBHOOK_PORTS = {"leader": 9443, "member": 9444}  # both on one loopback address in the leader's cluster
GATEWAY_ANNOTATION = "multicluster.antrea.io/gateway"
_JOIN_TIMEOUT = 90.0  # seconds, on a busy machine
# What the chart adds to a member's rights where policies are on.
_PODS: tuple[Json, ...] = (
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "mcagent-member-pods"},
        "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}],
    },
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "mcagent-member-pods"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "mcagent-member-pods"},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": MEMBER_NAMESPACE}],
    },
)


def cluster_objects(lab: RunningLab, cluster: Cluster) -> Iterator[Json]:
    """Yield what a cluster holds before it joins: annotated Nodes, Pods, Services, ServiceExports."""
    for node in cluster.nodes:
        raw: dict[str, Any] = objects.node_object(node)
        if node.gateway:
            raw["metadata"]["annotations"] = {GATEWAY_ANNOTATION: "true"}
        yield raw
        yield from (objects.pod_object(node, pod) for pod in node.pods)
    for service in cluster.services:
        yield objects.service_object(service)
        yield from objects.endpoint_slices(lab.topology, service)
        if service.exported:
            yield objects.export_object(service)


class ControlPlane:
    """The controllers of a lab's clusters."""

    def __init__(self, lab: RunningLab) -> None:
        self._lab = lab

    @property
    def leader(self) -> Cluster:
        """The cluster that is the leader."""
        return self._lab.topology.clusters[0]

    def roles(self) -> Iterator[tuple[Cluster, str]]:
        """Yield each controller: its cluster and its role. Antrea's clusters have none here."""
        yield self.leader, "leader"
        for cluster in self._lab.topology.clusters:
            if not cluster.antrea:
                yield cluster, "member"

    def start(self) -> None:
        """Give the controllers their rights and start them; return when all are ready."""
        for cluster, role in self.roles():
            self._grant(cluster, role)
            self.start_controller(cluster, role)
        for cluster, role in self.roles():
            self.wait_controller(cluster, role)

    def start_controller(self, cluster: Cluster, role: str) -> None:
        """Start a controller; it need not be ready when this returns."""
        lab, directory = self._lab, self.directory(cluster, role)
        (directory / "controller.yaml").write_text(yaml.safe_dump(self._config(cluster, role)))
        argv = lab.agent_command("controller", role, "--config", str(directory / "controller.yaml"))
        lab.state.spawn(
            *(_key(cluster, role), lab.api_namespace(cluster), argv),
            log=directory / "controller.log",
            env=environment(),
        )

    def stop_controller(self, cluster: Cluster, role: str) -> None:
        """End a controller in an orderly way."""
        self._lab.state.stop(_key(cluster, role))

    def wait_controller(self, cluster: Cluster, role: str) -> None:
        """Return when a controller is ready. Raises LabError."""
        name = f"{role} controller of {cluster.name}"
        log = self.directory(cluster, role) / "controller.log"
        self._lab.wait_process(lambda: self._ready(cluster, role), _key(cluster, role), log, name, 60)

    def _ready(self, cluster: Cluster, role: str) -> bool:
        namespace = self._lab.api_namespace(cluster)
        return netns.call(namespace, lambda: get(_PORTS[role], "/readyz"))[0] == 200

    def directory(self, cluster: Cluster, role: str) -> Path:
        """Return the directory of a controller's files."""
        path = self._lab.state.directory / "control" / f"{cluster.name}-{role}"
        path.mkdir(parents=True, exist_ok=True)
        return path

    def _config(self, cluster: Cluster, role: str) -> Json:
        home = LEADER_NAMESPACE if role == "leader" else MEMBER_NAMESPACE
        own: Json = {
            "podNamespace": home,
            "kubeconfig": str(self.directory(cluster, role) / "kubeconfig"),
            "health": {"healthProbeBindAddress": f"127.0.0.1:{_PORTS[role]}"},
            "webhook": {"host": LOOPBACK, "port": _WEBHOOK_PORTS[role]},
        }
        if POLICIES in cluster.config:  # one key for agents and controllers
            own[POLICIES] = cluster.config[POLICIES]
        if POD_EXPORT_CIDR in cluster.config and role == "member":
            own[POD_EXPORT_CIDR] = cluster.config[POD_EXPORT_CIDR]
        if role == "member":
            own["podCIDRs"] = [str(cluster.pod_cidr)] if cluster.publish_pods else []
            own["maxActiveGateways"] = max(1, len(cluster.gateways))
        return own

    def _grant(self, cluster: Cluster, role: str) -> None:
        """Apply accounts, roles and webhooks of `deploy/`; write a kubeconfig with the account's own token."""
        api = self._lab.api(cluster.name)
        for raw in self._rights_and_admission(role):
            api.apply(raw)
        for raw in _PODS if POLICIES in cluster.config and role == "member" else ():
            api.apply(raw)
        home = LEADER_NAMESPACE if role == "leader" else MEMBER_NAMESPACE
        token = api.account_token(home, ACCOUNT)
        config = yaml.safe_load(self._lab.kubeconfig(cluster.name).read_text())
        if authority := config["clusters"][0]["cluster"].get("certificate-authority"):
            # As kube-controller-manager does in each namespace. Where it does not run, tokens of members need it.
            published = {"name": "kube-root-ca.crt", "namespace": home}
            data = {"ca.crt": Path(authority).read_text()}
            api.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": published, "data": data})
        config["users"][0]["user"] = {"token": token}
        path = self.directory(cluster, role) / "kubeconfig"
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(config))

    def _rights_and_admission(self, role: str) -> Iterator[Json]:
        """Yield a controller's rights and webhook, and admission policies, which a real API server evaluates."""
        yield from _manifests("admission-policies")
        for raw in _manifests(role):
            if raw["kind"] in _RIGHTS:
                yield raw
            elif raw["kind"] == "Service":
                yield raw | {"spec": {"type": "ExternalName", "externalName": LOOPBACK}}
            elif raw["kind"] in _WEBHOOKS:
                for hook in raw["webhooks"]:
                    hook["clientConfig"]["service"]["port"] = _WEBHOOK_PORTS[role]
                yield raw

    # --- the ClusterSet -----------------------------------------------------------------------------------

    def command(self, cluster: Cluster, *words: str, timeout: float = _JOIN_TIMEOUT + 30) -> str:
        """Run an mcagent command as a cluster's administrator; return its output. Raises LabError."""
        return self._run(cluster, *words, timeout=timeout).stdout

    def _run(self, cluster: Cluster, *words: str, timeout: float) -> subprocess.CompletedProcess[str]:
        env = {**environment(), "KUBECONFIG": str(self._lab.kubeconfig(cluster.name))}
        argv = self._lab.agent_command(*words)
        return netns.execute(self._lab.api_namespace(cluster), argv, env=env, timeout=timeout)

    def init(self) -> None:
        """Make the ClusterSet on the leader; members may claim the CIDRs of the lab's clusters."""
        clusters = self._lab.topology.clusters
        cidrs = dict.fromkeys(
            str(cidr) for cluster in clusters for cidr in (cluster.service_cidr, cluster.pod_cidr)
        )
        self.command(
            *(self.leader, "clusterset", "init", "-n", LEADER_NAMESPACE, "--clusterset", CLUSTER_SET),
            *("--clusterid", self.leader.name, "-j", str(self._join_file)),
            *(word for cidr in cidrs for word in ("--allow-cidr", cidr)),
        )

    def join(self, cluster: Cluster) -> str:
        """Let a cluster join: a token from the leader, then the join; return what that reports.

        Raises LabError with the command's words.
        """
        token = self.directory(cluster, "member") / "token.yaml"
        self.command(
            *(self.leader, "membertoken", "create", f"member-{cluster.name}", "-n", LEADER_NAMESPACE),
            *("--cluster-id", cluster.name, "-o", str(token)),
            *("--expires", "never"),  # the embedded API server evaluates no policy, as the one that limits renewal
        )
        words = ("clusterset", "join", "-f", str(self._join_file), "--clusterid", cluster.name)
        flags = ("-n", MEMBER_NAMESPACE, "--token-secret-file", str(token), "--timeout", str(_JOIN_TIMEOUT))
        return self._run(cluster, *words, *flags, timeout=_JOIN_TIMEOUT + 30).stderr

    def leave(self, cluster: Cluster) -> None:
        """Let a cluster leave, and take its token back."""
        self.command(cluster, "clusterset", "leave", "-n", MEMBER_NAMESPACE, "--clusterset", CLUSTER_SET, "--yes")
        self.command(
            self.leader, "membertoken", "delete", f"member-{cluster.name}", "-n", LEADER_NAMESPACE, "--yes"
        )
        (self.directory(cluster, "member") / "token.yaml").unlink(missing_ok=True)

    @property
    def _join_file(self) -> Path:
        return self._lab.state.directory / "control" / "join.yaml"

    def wait_joined(self) -> None:
        """Return when every cluster knows all others and their Services. Raises LabError naming what lacks."""
        for cluster in self._lab.topology.clusters:
            for missing in self._missing(cluster):
                wait_until(
                    lambda cluster=cluster, missing=missing: missing not in self._missing(cluster),  # type: ignore[misc]
                    f"cluster {cluster.name} to have {missing}",
                    timeout=60,
                    interval=0.25,  # a look is a dozen requests, and what is waited for needs the processor, too
                )

    def _missing(self, cluster: Cluster) -> list[str]:
        topology, api = self._lab.topology, self._lab.api(cluster.name)
        desired = [("Gateway", node.name, MEMBER_NAMESPACE) for node in cluster.gateways]
        desired += [
            ("ClusterInfoImport", f"{other.name}-clusterinfo", MEMBER_NAMESPACE)
            for other in topology.clusters
            if other.name != cluster.name
        ]
        desired += [("Service", f"antrea-mc-{name}", namespace) for namespace, name in self.exported()]
        missing = [f"{kind} {name}" for kind, name, namespace in desired if api.get(kind, name, namespace) is None]
        if not missing and topology.same_cidrs:
            missing += self._missing_addresses(cluster)
        return missing

    def _missing_addresses(self, cluster: Cluster) -> list[str]:
        """Return the virtual Pod CIDRs and export addresses of other clusters that a cluster does not import."""
        api = self._lab.api(cluster.name)
        namespaces = {namespace for namespace, _ in self.exported()}
        slices: list[Any] = [item for name in sorted(namespaces) for item in api.items("EndpointSlice", name)]
        imported = {text for item in slices for e in item["endpoints"] for text in e["addresses"]}
        missing = [
            f"the virtual Pod CIDR of {other.name}"
            for other in self._lab.topology.clusters
            if other.name != cluster.name and other.publish_pods and not self._has_pods(cluster, other)
        ]
        return missing + [
            f"the export address of Service {service.name} of {other.name}"
            for other in self._lab.topology.clusters
            for service in other.services
            if other.name != cluster.name
            and service.exported
            and str(self.export_address(other, service.name, service.namespace)) not in imported
        ]

    def _has_pods(self, cluster: Cluster, other: Cluster) -> bool:
        """Tell whether a cluster has imported the virtual Pod CIDR of another one."""
        name = f"{other.name}-clusterinfo"
        info: Any = self._lab.api(cluster.name).get("ClusterInfoImport", name, MEMBER_NAMESPACE) or {}
        virtual = [str(prefix.virtual) for prefix in self.pod_prefixes(other)]
        return bool(virtual) and info.get("spec", {}).get("podCIDRs") == virtual

    def pod_prefixes(self, cluster: Cluster) -> tuple[PodPrefix, ...]:
        """Return the virtual Pod CIDRs of a cluster, by its first Gateway."""
        name = cluster.gateways[0].name
        gateway: Any = self._lab.api(cluster.name).get("Gateway", name, MEMBER_NAMESPACE) or {"metadata": {}}
        return read_prefixes(gateway["metadata"].get("annotations", {}).get(PREFIXES_ANNOTATION, ""))

    def export_address(self, cluster: Cluster, name: str, namespace: str = "default") -> IPv4Address | None:
        """Return the address at which other clusters reach a Service of a cluster; None: it has none yet."""
        export: Any = self._lab.api(cluster.name).get("ServiceExport", name, namespace) or {}
        conditions = export.get("status", {}).get("conditions", [])
        texts = (item["message"] for item in conditions if item["type"] == ADDRESS_CONDITION)
        return next(map(IPv4Address, texts), None)

    def exported(self) -> list[tuple[str, str]]:
        """Return namespace and name of every Service that some cluster exports."""
        services = [s for cluster in self._lab.topology.clusters for s in cluster.services if s.exported]
        return sorted({(service.namespace, service.name) for service in services})

    def imported_address(self, cluster: Cluster, name: str, namespace: str = "default") -> IPv4Address:
        """Return the ClusterIP of an imported Service. Raises LabError if it is not there."""
        service: Any = self._lab.api(cluster.name).get("Service", f"antrea-mc-{name}", namespace)
        if service is None:
            raise LabError(f"cluster {cluster.name} has no Service {namespace}/antrea-mc-{name}")
        return IPv4Address(service["spec"]["clusterIP"])


def _manifests(name: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file of `deploy/`."""
    yield from filter(None, yaml.load_all((DEPLOY / f"{name}.yaml").read_text(), FastLoader))


def _key(cluster: Cluster, role: str) -> str:
    return f"controller-{cluster.name}-{role}"
