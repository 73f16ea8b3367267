"""A cluster: a real API server with an audit log, and what its administrator and a member's do in it."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from devtools.realapi import RealApiServer
from devtools.realapi.server import CONTROLLERS
from devtools.waiting import wait_until
from mcagent.controller.contract import names
from mcagent.kube.client import Client
from mcagent.kube.errors import ApiRefusalError, ApiUnreachableError
from mcagent.model.kinds import KINDS, object_path
from mcagent.model.objects import Kind
from tests.antrea.audit import AuditLog
from tests.worlds.apiservers import collection
from tests.worlds.objects import Objects

Json = dict[str, Any]
OURS = "ours"
AREA, HOME, SET = "antrea-multicluster", "kube-system", "blue"
NAMESPACE = {"leader": AREA, "member": HOME}
READ, TOKEN_ROLE = ("get", "list", "watch"), "mcagent-leader-token"
CRD = "CustomResourceDefinition"


class Cluster(Objects):
    """An API server and its objects.

    `controllers` of Kubernetes run beside those that it needs in any case.
    """

    def __init__(self, number: int, directory: Path, controllers: Iterable[str] = ()) -> None:
        self.number, self.directory = number, directory
        directory.mkdir(parents=True, exist_ok=True)
        self.service_cidr, self.pod_cidr = f"10.{96 + number}.0.0/16", f"10.{200 + number}.0.0/16"
        self.audit = AuditLog(directory)
        # A cluster mirrors Endpoints, which Antrea writes, and collects garbage.
        more = ("endpointslice-mirroring-controller", "garbage-collector-controller")
        self.api = RealApiServer(
            directory / "api",
            service_cidr=self.service_cidr,
            controllers=(*CONTROLLERS, *more, *controllers),
            flags=self.audit.flags,
        )

    def start(self) -> None:
        """Start the API server."""
        self.api.start()
        self.kubeconfig = self.directory / "kubeconfig"
        self.api.write_kubeconfig(self.kubeconfig)
        self.client = Client(str(self.kubeconfig), user_agent="admin")

    def stop(self) -> None:
        """End it."""
        if hasattr(self, "client"):
            self.client.close()
        self.api.stop()

    # --- objects ------------------------------------------------------------------------------------------

    def apply(self, manifest: Json) -> Any:
        """Make an object what a manifest says (server-side apply) and return it."""
        return self._apply(f"{collection(self.client, manifest)}/{manifest['metadata']['name']}", manifest)

    def _apply(self, path: str, manifest: Json) -> Any:
        query, kind = {"fieldManager": "tests", "force": "true"}, "application/apply-patch+yaml"
        return self.client.request("PATCH", path, query, body=manifest, content_type=kind)

    def put(self, kind: Kind, name: str, namespace: str = "", **fields: Any) -> Any:
        """Make an object of a kind what the fields say and return it."""
        meta = {"name": name, **({"namespace": namespace} if namespace else {}), **fields.pop("metadata", {})}
        body = {"apiVersion": KINDS[kind].api_version, "kind": str(kind), "metadata": meta, **fields}
        return self._apply(object_path(kind, namespace, name), body)

    def token(self, account: str, namespace: str) -> str:
        """Return a token of a ServiceAccount."""
        path = object_path(Kind.SERVICE_ACCOUNT, namespace, account) + "/token"
        return str(
            self.client.request("POST", path, body={"spec": {"expirationSeconds": 7200}})["status"]["token"]
        )

    def as_account(self, account: str, namespace: str) -> Client:
        """Return a client that is a ServiceAccount."""
        config = self.api.kubeconfig()
        config["users"][0]["user"] = {"token": self.token(account, namespace)}
        return Client(config, user_agent=account)

    # --- what a member's administrator does ---------------------------------------------------------------

    def node(self, name: str, address: str, *, gateway: bool) -> None:
        """Make a Node that is ready, annotated as a gateway or not."""
        self.put(Kind.NODE, name)
        note = "true" if gateway else None
        self.patch(Kind.NODE, name, "", {"metadata": {"annotations": {"multicluster.antrea.io/gateway": note}}})
        status = {
            "addresses": [{"type": "InternalIP", "address": address}],
            "conditions": [{"type": "Ready", "status": "True", "reason": "Test", "message": "of a test"}],
        }
        self.patch(Kind.NODE, name, "", {"status": status}, part="/status")

    def service(self, name: str, addresses: Iterable[str], port: int = 80) -> str:
        """Make a Service with these Pods and return its ClusterIP."""
        ports = [{"name": "http", "port": port, "targetPort": 8080, "protocol": "TCP"}]
        service = self.put(Kind.SERVICE, name, "default", spec={"ports": ports})
        self.put(
            Kind.ENDPOINT_SLICE,
            f"{name}-1",
            "default",
            metadata={"labels": {names.SERVICE_NAME_LABEL: name, names.SLICE_MANAGED_BY_LABEL: "tests"}},
            addressType="IPv4",
            ports=[{"name": "http", "port": 8080, "protocol": "TCP"}],
            endpoints=[{"addresses": [address], "conditions": {"ready": True}} for address in addresses],
        )
        return str(service["spec"]["clusterIP"])

    def pod(self, name: str, labels: Json) -> None:
        """Make a Pod with an address, or give it other labels. There is no kubelet to end it (`delete_pod`)."""
        spec = {"nodeName": "worker", "containers": [{"name": "app", "image": "app"}]}
        self.put(Kind.POD, name, "default", metadata={"labels": labels}, spec=spec)
        status = {"phase": "Running", "podIP": "10.1.0.1", "podIPs": [{"ip": "10.1.0.1"}]}
        self.patch(Kind.POD, name, "default", {"status": status}, part="/status")

    def delete_pod(self, name: str) -> None:
        """Delete a Pod at once, as a kubelet that has ended it."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
        self.client.request("DELETE", object_path(Kind.POD, "default", name), body=body)

    def export(self, name: str) -> None:
        """Export a Service."""
        self.put(Kind.SERVICE_EXPORT, name, "default")

    def imported(self, name: str) -> tuple[int, frozenset[str]] | None:
        """Return port and endpoints of an imported Service; None if it is not there."""
        service = self.get(Kind.SERVICE, names.imported(name), "default")
        if service is None or self.get(Kind.SERVICE_IMPORT, name, "default") is None:
            return None
        slices = [
            address
            for item in self.items(Kind.ENDPOINT_SLICE, "default")
            if item["metadata"].get("labels", {}).get(names.SERVICE_NAME_LABEL) == names.imported(name)
            for endpoint in item.get("endpoints") or ()
            for address in endpoint["addresses"]
        ]
        return int(service["spec"]["ports"][0]["port"]), frozenset(slices)

    def gateways_of(self, cluster_id: str) -> list[str]:
        """Return the gateways that this cluster knows of another."""
        info = self.get(Kind.CLUSTER_INFO_IMPORT, names.cluster_info(cluster_id), HOME)
        return [gateway["gatewayIP"] for gateway in info["spec"].get("gatewayInfos") or ()] if info else []

    def join(self, leader: Cluster, cluster_id: str, account: str, *, annotated: bool) -> None:
        """Join the ClusterSet of a leader, with an account as in the guides (before Antrea 2.7: unannotated)."""
        leaders = [self.access(leader, cluster_id, account, annotated=annotated)]
        self.put_set(HOME, {"clusterID": cluster_id, "namespace": AREA, "leaders": leaders})

    def access(self, leader: Cluster, cluster_id: str, account: str, *, annotated: bool) -> Json:
        """Make account and Secret of a member, and return what its ClusterSet says of the leader."""
        note = {"annotations": {names.CLUSTER_ID_ANNOTATION: cluster_id}} if annotated else {}
        leader.put(Kind.SERVICE_ACCOUNT, account, AREA, metadata=note)
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "antrea-mc-member-cluster-role"}
        subject = {"kind": "ServiceAccount", "name": account, "namespace": AREA}
        leader.put(Kind.ROLE_BINDING, account, AREA, roleRef=role, subjects=[subject])
        values = {"ca.crt": leader.api.ca.read_bytes(), "token": leader.token(account, AREA).encode()}
        data = {key: base64.b64encode(value).decode() for key, value in values.items()}
        self.put(Kind.SECRET, account, HOME, data=data, type="Opaque")
        return {"clusterID": "north", "server": leader.api.url, "secret": account}

    def grant(self, secret: str) -> None:
        """Let our member's controller read the Secret of its ClusterSet, as `mcagent clusterset join` does."""
        rule = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": [secret], "verbs": [*READ]}
        self.put(Kind.ROLE, TOKEN_ROLE, HOME, rules=[rule])
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": TOKEN_ROLE}
        subject = {"kind": "ServiceAccount", "name": "mcagent-controller", "namespace": HOME}
        self.put(Kind.ROLE_BINDING, TOKEN_ROLE, HOME, roleRef=role, subjects=[subject])

    def put_set(self, namespace: str, spec: Json) -> None:
        """Make a ClusterSet, as soon as the webhook has its certificate."""

        def made() -> bool:
            try:
                self.put(Kind.CLUSTER_SET, SET, namespace, spec=spec)
            except (ApiRefusalError, ApiUnreachableError) as err:
                if "failed calling webhook" not in str(err) and getattr(err, "code", 404) != 404:
                    raise
                return False
            return True

        wait_until(made, f"ClusterSet {SET} to be taken", timeout=30, interval=0.2)

    def leave(self) -> None:
        """Leave the ClusterSet, and wait until the ClusterSet is gone."""
        self.delete(Kind.CLUSTER_SET, SET, HOME)
        wait_until(lambda: self.get(Kind.CLUSTER_SET, SET, HOME) is None, "the ClusterSet to be gone", timeout=30)
