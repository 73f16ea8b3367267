"""Two clusters, each a real API server, and controllers of both projects with the rights of their own manifests.

The leader is in the first cluster, and a member in both: "east" and "west". Who runs as what is the test's matter.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import urllib.request
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml

from devtools.realapi import RealApiServer
from devtools.realapi.server import CONTROLLERS
from devtools.waiting import wait_until
from mcagent.controller.contract import names
from mcagent.kube.client import Client
from mcagent.kube.errors import ApiRefusalError, ApiUnreachableError
from mcagent.model.kinds import KINDS, object_path
from mcagent.model.objects import Kind
from tests.antrea.programs import manifests
from tests.apiservers import collection
from tests.controllers import Controller, controller, free_port

Json = dict[str, Any]
OURS = "ours"
AREA, HOME, SET = "antrea-multicluster", "kube-system", "blue"
NAMESPACE = {"leader": AREA, "member": HOME}
READ, TOKEN_ROLE = ("get", "list", "watch"), "mcagent-leader-token"
DEPLOY = Path(__file__).parents[2] / "deploy"
CRD = "CustomResourceDefinition"
FIRST = ("Namespace", CRD)
NOT_APPLIED = ("ConfigMap", "Deployment", "PodDisruptionBudget")
_HOOKS = ("validatingwebhookconfigurations", "mutatingwebhookconfigurations")


class Cluster:
    """A cluster: its API server, its objects, and the controllers that run in it, by role.

    `controllers` of Kubernetes run beside those that it needs in any case.
    """

    def __init__(self, number: int, directory: Path, controllers: Iterable[str] = ()) -> None:
        self.number, self.directory = number, directory
        directory.mkdir(parents=True, exist_ok=True)
        self.service_cidr, self.pod_cidr = f"10.{96 + number}.0.0/16", f"10.{200 + number}.0.0/16"
        # A cluster mirrors Endpoints, which Antrea writes, and collects garbage.
        more = ("endpointslice-mirroring-controller", "garbage-collector-controller")
        self.api = RealApiServer(
            directory / "api", service_cidr=self.service_cidr, controllers=(*CONTROLLERS, *more, *controllers)
        )
        self._running: dict[str, ExitStack] = {}
        self.ours: dict[str, Controller] = {}  # those of our controllers that have run last

    def start(self) -> None:
        """Start the API server."""
        self.api.start()
        self.kubeconfig = self.directory / "kubeconfig"
        self.api.write_kubeconfig(self.kubeconfig)
        self.client = Client(str(self.kubeconfig), user_agent="admin")

    def stop(self) -> None:
        """End everything."""
        for role in list(self._running):
            self.end(role)
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

    def patch(self, kind: Kind, name: str, namespace: str, body: Json, part: str = "") -> Any:
        """Merge something into an object and return it."""
        path = object_path(kind, namespace, name) + part
        return self.client.request("PATCH", path, body=body, content_type="application/merge-patch+json")

    def get(self, kind: Kind, name: str, namespace: str = "") -> Any:
        """Return an object, None if there is none."""
        try:
            return self.client.request("GET", object_path(kind, namespace, name))
        except ApiRefusalError as err:
            if err.code == 404:
                return None
            raise

    def items(self, kind: Kind, namespace: str = "") -> list[Json]:
        """Return all objects of a kind in a namespace."""
        found: list[Json] = self.client.request("GET", object_path(kind, namespace))["items"]
        return found

    def delete(self, kind: Kind, name: str, namespace: str = "") -> None:
        """Delete an object if it is there."""
        if self.get(kind, name, namespace) is not None:
            self.client.request("DELETE", object_path(kind, namespace, name))

    # --- controllers --------------------------------------------------------------------------------------

    def install(self, who: str, role: str, port: int, *, crds: bool = True) -> None:
        """Apply what a project ships for a role; its webhooks are asked on a port of this machine."""
        if role == "leader":
            self.put(Kind.NAMESPACE, AREA)  # Antrea's guide makes it by hand
        files = [f"{role}.yaml", *(["admission-policies.yaml"] if role == "leader" else [])]
        ours = [
            found for file in files if who == OURS for found in yaml.safe_load_all((DEPLOY / file).read_text())
        ]
        found = ours or manifests(who, role)
        for manifest in sorted(found, key=lambda manifest: manifest["kind"] not in FIRST):
            if manifest["kind"] in NOT_APPLIED or (manifest["kind"] == CRD and not crds):
                continue
            if manifest["kind"] == "Service":  # leads to this machine
                manifest["spec"] = {"type": "ExternalName", "externalName": "127.0.0.1"}
            for hook in manifest.get("webhooks") or ():
                hook["clientConfig"] = {"service": {**hook["clientConfig"]["service"], "port": port}}
            manifest.pop("status", None)
            self.apply(manifest)

    def uninstall(self) -> None:
        """Remove what would refuse objects without a controller: all webhooks and policies."""
        kinds = (*_HOOKS, "validatingadmissionpolicybindings", "validatingadmissionpolicies")
        for base in (f"/apis/admissionregistration.k8s.io/v1/{kind}" for kind in kinds):
            for found in self.client.request("GET", base)["items"]:
                self.client.request("DELETE", f"{base}/{found['metadata']['name']}")

    def run(self, who: str, role: str, port: int, program: Path | None = None) -> None:
        """Run a controller and return when it is ready."""
        namespace = NAMESPACE[role]
        name = "mcagent-controller" if who == OURS else "antrea-mc-controller"
        config = self.api.kubeconfig()
        config["users"][0]["user"] = {"token": self.token(name, namespace)}
        kubeconfig = self.directory / f"kubeconfig-{who}-{role}"
        kubeconfig.write_text(json.dumps(config))
        kubeconfig.chmod(0o600)
        settings: Json = {"podCIDRs": [self.pod_cidr]} if role == "member" else {}
        webhook = {"host": "127.0.0.1", "port": port}
        with ExitStack() as stack:
            if program is None:
                settings |= {"podNamespace": namespace, "webhook": webhook, "logLevel": "info"}
                self.ours[role] = stack.enter_context(
                    controller(role, kubeconfig, namespace, self.directory, **settings)
                )
            else:
                settings |= {"webhook": webhook} | ({"serviceCIDR": self.service_cidr} if settings else {})
                self._run_theirs(stack, role, program, kubeconfig, settings)
            self._running[role] = stack.pop_all()

    def _run_theirs(self, stack: ExitStack, role: str, program: Path, kubeconfig: Path, settings: Json) -> None:
        health = f"127.0.0.1:{free_port()}"
        config = {
            "apiVersion": "multicluster.crd.antrea.io/v1alpha1",
            "kind": "MultiClusterConfig",
            "health": {"healthProbeBindAddress": health},
            "metrics": {"bindAddress": "0"},
            **({"leaderElection": {"leaderElect": False}} if "mc-v1." in program.name else {}),
            **settings,
        }
        file, log = self.directory / f"antrea-{role}.yaml", self.directory / f"antrea-{role}.log"
        file.write_text(yaml.safe_dump(config))
        # The directory of its certificates is fixed: each has a /run of its own.
        script = 'mount -t tmpfs tmpfs /run && mkdir /run/antrea && exec "$@"'
        argv = ["setpriv", "--pdeathsig", "KILL", "--", "unshare", "-m", "sh", "-c", script, "sh"]
        environ = {"KUBECONFIG": str(kubeconfig), "POD_NAMESPACE": NAMESPACE[role], "POD_NAME": f"mc-{role}"}
        with log.open("ab") as out:
            process = subprocess.Popen(
                [*argv, str(program), role, f"--config={file}"],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environ},
            )
        stack.callback(_end, process)

        def ready() -> bool:
            assert process.poll() is None, log.read_text()[-3000:]
            try:
                with urllib.request.urlopen(f"http://{health}/readyz", timeout=5) as answer:
                    return bool(answer.status == 200)
            except OSError:
                return False

        wait_until(ready, f"Antrea's {role} to be ready", timeout=60, interval=0.1)

    def end(self, role: str) -> None:
        """End the controller of a role."""
        self._running.pop(role).close()

    def token(self, account: str, namespace: str) -> str:
        """Return a token of a ServiceAccount."""
        path = object_path(Kind.SERVICE_ACCOUNT, namespace, account) + "/token"
        return str(
            self.client.request("POST", path, body={"spec": {"expirationSeconds": 7200}})["status"]["token"]
        )

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
        self.patch(Kind.NODE, name, "", {"status": status}, "/status")

    def service(self, name: str, addresses: Iterable[str], port: int = 80) -> str:
        """Make a Service with these Pods and return its ClusterIP."""
        ports = [{"name": "http", "port": port, "targetPort": 8080, "protocol": "TCP"}]
        made = self.put(Kind.SERVICE, name, "default", spec={"ports": ports})
        self.put(
            Kind.ENDPOINT_SLICE,
            f"{name}-1",
            "default",
            metadata={"labels": {names.SERVICE_NAME_LABEL: name, names.SLICE_MANAGED_BY_LABEL: "tests"}},
            addressType="IPv4",
            ports=[{"name": "http", "port": 8080, "protocol": "TCP"}],
            endpoints=[{"addresses": [address], "conditions": {"ready": True}} for address in addresses],
        )
        return str(made["spec"]["clusterIP"])

    def export(self, name: str) -> None:
        """Export a Service."""
        self.put(Kind.SERVICE_EXPORT, name, "default")

    def imported(self, name: str) -> tuple[int, frozenset[str]] | None:
        """Return port and endpoints of an imported Service; None if it is not there."""
        found = self.get(Kind.SERVICE, names.imported(name), "default")
        if found is None or self.get(Kind.SERVICE_IMPORT, name, "default") is None:
            return None
        slices = [
            address
            for item in self.items(Kind.ENDPOINT_SLICE, "default")
            if item["metadata"].get("labels", {}).get(names.SERVICE_NAME_LABEL) == names.imported(name)
            for endpoint in item.get("endpoints") or ()
            for address in endpoint["addresses"]
        ]
        return int(found["spec"]["ports"][0]["port"]), frozenset(slices)

    def gateways_of(self, cluster_id: str) -> list[str]:
        """Return the gateways that this cluster knows of another."""
        found = self.get(Kind.CLUSTER_INFO_IMPORT, names.cluster_info(cluster_id), HOME)
        return [gateway["gatewayIP"] for gateway in found["spec"].get("gatewayInfos") or ()] if found else []

    def join(self, leader: Cluster, cluster_id: str) -> None:
        """Join the ClusterSet of a leader, with an account as the guides have it."""
        account = f"member-{cluster_id}"
        note = {"annotations": {names.CLUSTER_ID_ANNOTATION: cluster_id}}
        leader.put(Kind.SERVICE_ACCOUNT, account, AREA, metadata=note)
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "antrea-mc-member-cluster-role"}
        subject = {"kind": "ServiceAccount", "name": account, "namespace": AREA}
        leader.put(Kind.ROLE_BINDING, account, AREA, roleRef=role, subjects=[subject])
        values = {"ca.crt": leader.api.ca.read_bytes(), "token": leader.token(account, AREA).encode()}
        data = {key: base64.b64encode(value).decode() for key, value in values.items()}
        self.put(Kind.SECRET, account, HOME, data=data, type="Opaque")
        leaders = [{"clusterID": "north", "server": leader.api.url, "secret": account}]
        self.put_set(HOME, {"clusterID": cluster_id, "namespace": AREA, "leaders": leaders})

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


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(10)
