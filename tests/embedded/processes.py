"""A cluster whose controllers run as processes, as units and manifests start them."""

from __future__ import annotations

import base64
import copy
import json
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import yaml

from devtools.apiserver import ApiServer
from devtools.ports import free_port
from mcagent.controller.config import ControllerRole, ControllerSettings
from mcagent.controller.run import Controller
from mcagent.controller.settings import MemberSettings
from mcagent.kube.client import Client
from mcagent.kube.credentials import token_kubeconfig
from mcagent.kube.sources.manifests import FastLoader
from mcagent.model.kinds import object_path
from mcagent.model.objects import Kind
from tests.embedded.controlworld import CA, Objects

DEPLOY = Path(__file__).parents[2] / "deploy"
COMMON_AREA = "antrea-multicluster"
MEMBER_HOME = "kube-system"
_LEFT_OUT = ("MutatingWebhookConfiguration", "NetworkPolicy", "PodDisruptionBudget", "CustomResourceDefinition")


class Cluster:
    """An API server with the manifests of a role applied."""

    def __init__(self, role: ControllerRole, path: Path, cidr: str = "10.96.0.0/16") -> None:
        self.role, self.path = role, path
        self.home = COMMON_AREA if role is ControllerRole.LEADER else MEMBER_HOME
        self.api = ApiServer(service_cidr=IPv4Network(cidr), tokens=frozenset({"admin"})).start()
        self.objects = Objects(self.api)
        self.admin = Client(token_kubeconfig(self.api.url, b"", "admin"))
        self.port = free_port()
        self.controllers: list[Controller] = []
        for manifest in yaml.load_all((DEPLOY / f"{role}.yaml").read_text(), FastLoader):
            self.apply(copy.deepcopy(manifest))

    def apply(self, manifest: dict[str, Any]) -> None:
        """Create an object of the manifests, as far as this server knows its kind."""
        kind = manifest["kind"]
        if kind in _LEFT_OUT:
            return
        if kind == "ValidatingWebhookConfiguration":
            for hook in manifest["webhooks"]:
                hook.pop("matchConditions", None)  # so that our own requests are reviewed, too
                hook["clientConfig"] = copy.deepcopy(hook["clientConfig"])
                hook["clientConfig"]["service"]["port"] = self.port
        if kind == "Service":  # leads to this machine
            manifest["spec"] = {"type": "ExternalName", "externalName": "127.0.0.1"}
        group, _, version = manifest["apiVersion"].rpartition("/")
        (rt,) = [t for t in self.api.registry.all() if (t.group, t.kind) == (group, kind)]
        base = f"/apis/{group}/{version}" if group else f"/api/{version}"
        scope = f"/namespaces/{manifest['metadata']['namespace']}" if rt.namespaced else ""
        if kind != "Namespace" or self.objects.get(Kind.NAMESPACE, manifest["metadata"]["name"]) is None:
            self.admin.request("POST", f"{base}{scope}/{rt.plural}", body=manifest)

    def token(self, name: str) -> str:
        """Return a token of a ServiceAccount."""
        return self.api.accounts.issue(self.home, name)

    def start(self, member: MemberSettings = MemberSettings(), **values: Any) -> Controller:  # noqa: B008 (frozen)
        """Start a controller with its own rights."""
        file = self.path / f"{self.role}-{self.port}-{len(self.controllers)}"
        file.write_text(json.dumps(token_kubeconfig(self.api.url, b"", self.token("mcagent-controller"))))
        settings = ControllerSettings(
            kubeconfig=str(file),
            pod_namespace=self.home,
            listen="127.0.0.1:0",
            webhook_host="127.0.0.1",
            webhook_port=self.port,
            member=member,
            **values,
        )
        controller = Controller(self.role, settings)
        self.controllers.append(controller)
        controller.start()
        return controller

    def bind_member(self, cluster: str) -> str:
        """Make what `mcagent membertoken create` makes; return the token."""
        meta = {"name": cluster, "namespace": COMMON_AREA}
        annotated = {**meta, "annotations": {"multicluster.antrea.io/cluster-id": cluster}}
        self.admin.request("POST", object_path(Kind.SERVICE_ACCOUNT, COMMON_AREA), body={"metadata": annotated})
        self.admin.request(
            "POST",
            object_path(Kind.ROLE_BINDING, COMMON_AREA),
            body={
                "metadata": meta,
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "Role",
                    "name": "antrea-mc-member-cluster-role",
                },
                "subjects": [{"kind": "ServiceAccount", "name": cluster, "namespace": COMMON_AREA}],
            },
        )
        return self.token(cluster)

    def join(self, leader: Cluster, cluster: str, token: str, address: str = "192.168.7.1") -> None:
        """Make Secret and ClusterSet of a member, and a Node that can be a gateway."""
        data = {"ca.crt": base64.b64encode(CA).decode(), "token": base64.b64encode(token.encode()).decode()}
        self.objects.put(Kind.SECRET, "leader-access", data=data)
        self.objects.put(
            Kind.NODE,
            "node-1",
            metadata={"annotations": {"multicluster.antrea.io/gateway": "true"}},
            spec={},
            status={
                "addresses": [{"type": "InternalIP", "address": address}],
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        )
        spec = {
            "clusterID": cluster,
            "namespace": COMMON_AREA,
            "leaders": [{"clusterID": "north", "server": leader.api.url, "secret": "leader-access"}],
        }
        self.objects.put(Kind.CLUSTER_SET, "blue", spec=spec)

    def close(self) -> None:
        """Stop everything."""
        for controller in self.controllers:
            controller.stop()
        self.admin.close()
        self.api.stop()
