"""A small client of one cluster's API server: HTTP and JSON over a socket opened inside a namespace.

Owns that one connection. The lab and its tests are the users and the control plane of the cluster: they create,
change and delete objects through it, and switch the embedded server's faults. Address of the authority and token
of the administrator are read from the kubeconfig that the server wrote.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import threading
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

from devtools.errors import LabError
from devtools.nodes import netns
from devtools.waiting import wait_until
from mcagent.kube.sources.manifests import FastLoader

Json = dict[str, object]
PORT = 6443
TIMEOUT = 10.0  # seconds

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
CRDS = DEPLOY / "helm/mcagent/files/crds"


class ApiKind(StrEnum):
    """What serves the API of a lab's clusters."""

    EMBEDDED = "embedded"  # devtools.apiserver, one Python process
    REAL = "real"  # kube-apiserver, etcd and kube-controller-manager


_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
# kind -> (API prefix, plural, namespaced, is the status a subresource that a create does not fill)
_RESOURCES = {
    "Node": ("/api/v1", "nodes", False, False),
    "Pod": ("/api/v1", "pods", True, True),
    "Service": ("/api/v1", "services", True, False),
    "ConfigMap": ("/api/v1", "configmaps", True, False),
    "EndpointSlice": ("/apis/discovery.k8s.io/v1", "endpointslices", True, False),
    "ServiceExport": ("/apis/multicluster.x-k8s.io/v1alpha1", "serviceexports", True, False),
    "Gateway": ("/apis/multicluster.crd.antrea.io/v1alpha1", "gateways", True, False),
    "ClusterSet": ("/apis/multicluster.crd.antrea.io/v1alpha2", "clustersets", True, False),
    "ClusterInfoImport": ("/apis/multicluster.crd.antrea.io/v1alpha1", "clusterinfoimports", True, False),
    "ResourceExport": ("/apis/multicluster.crd.antrea.io/v1alpha1", "resourceexports", True, False),
    "ResourceImport": ("/apis/multicluster.crd.antrea.io/v1alpha1", "resourceimports", True, False),
    "MemberClusterAnnounce": ("/apis/multicluster.crd.antrea.io/v1alpha1", "memberclusterannounces", True, False),
    "ServiceImport": ("/apis/multicluster.x-k8s.io/v1alpha1", "serviceimports", True, False),
    "Namespace": ("/api/v1", "namespaces", False, False),
    "LabelIdentity": ("/apis/multicluster.crd.antrea.io/v1alpha1", "labelidentities", False, False),
    "NetworkPolicy": ("/apis/networking.k8s.io/v1", "networkpolicies", True, False),
    "ClusterNetworkPolicy": ("/apis/crd.antrea.io/v1beta1", "clusternetworkpolicies", False, False),
    "ServiceAccount": ("/api/v1", "serviceaccounts", True, False),
    "Secret": ("/api/v1", "secrets", True, False),
    "ValidatingWebhookConfiguration": (_ADMISSION, "validatingwebhookconfigurations", False, False),
    "MutatingWebhookConfiguration": (_ADMISSION, "mutatingwebhookconfigurations", False, False),
    "ValidatingAdmissionPolicy": (_ADMISSION, "validatingadmissionpolicies", False, False),
    "ValidatingAdmissionPolicyBinding": (_ADMISSION, "validatingadmissionpolicybindings", False, False),
    "Lease": ("/apis/coordination.k8s.io/v1", "leases", True, False),
    "Role": (_RBAC, "roles", True, False),
    "RoleBinding": (_RBAC, "rolebindings", True, False),
    "ClusterRole": (_RBAC, "clusterroles", False, False),
    "ClusterRoleBinding": (_RBAC, "clusterrolebindings", False, False),
}


class ApiClient:
    """Requests to the API server at `address`, made from inside `namespace`. May be used from several threads.

    `kubeconfig` need not be there before the first request.
    """

    def __init__(self, namespace: str, address: str, kubeconfig: Path, port: int = PORT) -> None:
        self._namespace, self._address, self._port = namespace, address, port
        self._kubeconfig = kubeconfig
        self._headers: dict[str, str] = {}
        self._connection: http.client.HTTPConnection | None = None
        self._lock = threading.Lock()

    def request(
        self, method: str, path: str, body: object = None, *, content_type: str = "application/json"
    ) -> tuple[int, Json]:
        """Make one request; return status and decoded body. Raises LabError when there is no answer.

        A kube-apiserver says in plain text that it does not serve a path (yet): that comes as a message.
        """
        data = None if body is None else json.dumps(body).encode()
        status, text = self._exchange(method, path, data, content_type)
        try:
            document = json.loads(text)
        except ValueError:
            if status >= 400:
                return status, {"message": text.decode(errors="replace").strip()}
            raise LabError(f"API server {self._address}: {method} {path}: not JSON: {text[:80]!r}") from None
        return status, document

    def _exchange(self, method: str, path: str, data: bytes | None, content_type: str) -> tuple[int, bytes]:
        with self._lock:
            for last in (False, True):
                fresh = self._connection is None
                try:
                    connection = self._connection = self._connection or self._connect()
                    connection.request(
                        method, path, body=data, headers={"Content-Type": content_type, **self._headers}
                    )
                    answer = connection.getresponse()
                    text = answer.read()
                except (OSError, http.client.HTTPException) as error:
                    self.close()
                    if last or fresh:  # an old connection may have been closed by the server: once more
                        raise LabError(f"API server {self._address}: {method} {path}: {error!r}") from None
                    continue
                return answer.status, text
        raise AssertionError("unreachable")

    def _connect(self) -> http.client.HTTPConnection:
        config = json.loads(self._kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        if token := user.get("token"):
            self._headers = {"Authorization": f"Bearer {token}"}
        plain = netns.call(
            self._namespace, lambda: socket.create_connection((self._address, self._port), timeout=TIMEOUT)
        )
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if cluster["server"].startswith("http:"):
            connection = http.client.HTTPConnection(self._address, self._port, timeout=TIMEOUT)
            connection.sock = plain
            return connection
        context = ssl.create_default_context(cafile=cluster["certificate-authority"])
        secure = http.client.HTTPSConnection(self._address, self._port, timeout=TIMEOUT, context=context)
        try:
            plain.getpeername()  # wrap_socket would leave a socket open that the peer has reset (ssl.py, _create)
        except OSError:
            plain.close()
            raise
        secure.sock = context.wrap_socket(plain, server_hostname=self._address)
        return secure

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def ready(self) -> bool:
        """Tell whether the server answers, and serves all that it has."""
        with contextlib.suppress(LabError):
            return self._exchange("GET", "/readyz", None, "")[0] == 200
        return False

    def _ask(self, method: str, path: str, body: object = None, content_type: str = "application/json") -> Json:
        status, answer = self.request(method, path, body, content_type=content_type)
        if status >= 300:
            raise LabError(
                f"API server {self._address}: {method} {path}: {status} {answer.get('message', answer)}"
            )
        return answer

    def apply_crds(self, crds: Sequence[Any] = ()) -> None:
        """Apply CRDs, those of the repository if none are given, and return when they are served."""
        base = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        plurals = []
        for crd in crds or [yaml.load(file.read_text(), FastLoader) for file in sorted(CRDS.glob("*.yaml"))]:  # noqa: S506 - it is safe
            query = "?fieldManager=mcagent-lab&force=true"
            self._ask("PATCH", f"{base}/{crd['metadata']['name']}{query}", crd, "application/apply-patch+yaml")
            version = crd["spec"]["versions"][0]["name"]
            plurals.append(f"/apis/{crd['spec']['group']}/{version}/{crd['spec']['names']['plural']}")
        if not plurals:
            raise LabError(f"there are no CRDs in {CRDS}: the lab runs from a clone of the repository")
        wait_until(
            lambda: all(self.request("GET", f"{path}?limit=1")[0] == 200 for path in plurals),
            f"API server {self._address} to serve the CRDs",
            timeout=30,
        )

    def get(self, kind: str, name: str, namespace: str = "default") -> Json | None:
        """Return an object, None if there is none."""
        status, answer = self.request("GET", f"{_collection(kind, namespace)}/{name}")
        return answer if status == 200 else None

    def items(self, kind: str, namespace: str = "default") -> list[Any]:
        """Return the objects of a kind in a namespace."""
        items: list[Any] = self._ask("GET", _collection(kind, namespace)).get("items") or []  # type: ignore[assignment]
        return items

    def create(self, raw: Json) -> Json:
        """Create an object, with its status where that is a subresource."""
        kind, name, namespace = _identity(raw)
        created = self._ask("POST", _collection(kind, namespace), raw)
        if _RESOURCES[kind][3] and "status" in raw:
            path = f"{_collection(kind, namespace)}/{name}/status"
            return self._ask("PATCH", path, {"status": raw["status"]}, "application/merge-patch+json")
        return created

    def create_all(self, objects: Sequence[Json]) -> None:
        """Create many."""
        for raw in objects:
            self.create(raw)

    def apply(self, raw: Json) -> Json:
        """Create an object or make it as given (server-side apply)."""
        kind, name, namespace = _identity(raw)
        path = f"{_collection(kind, namespace)}/{name}?fieldManager=mcagent-lab&force=true"
        return self._ask("PATCH", path, raw, "application/apply-patch+yaml")

    def account_token(self, namespace: str, name: str) -> str:
        """Return a token of a ServiceAccount, good for a day (TokenRequest)."""
        path = f"{_collection('ServiceAccount', namespace)}/{name}/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
        status = self._ask("POST", path, {**body, "spec": {"expirationSeconds": 86400}})["status"]
        assert isinstance(status, dict)
        return str(status["token"])

    def patch(self, kind: str, name: str, change: Json, namespace: str = "default") -> Json:
        """Change an object by a JSON merge patch (RFC 7386)."""
        path = f"{_collection(kind, namespace)}/{name}"
        return self._ask("PATCH", path, change, "application/merge-patch+json")

    def patch_status(self, kind: str, name: str, status: Json, namespace: str = "default") -> Json:
        """Change an object's status by a JSON merge patch, by its subresource."""
        path = f"{_collection(kind, namespace)}/{name}/status"
        return self._ask("PATCH", path, {"status": status}, "application/merge-patch+json")

    def delete(self, kind: str, name: str, namespace: str = "default") -> None:
        """Delete an object."""
        self._ask("DELETE", f"{_collection(kind, namespace)}/{name}")

    def add_fault(self, **fault: object) -> None:
        """Make the server misbehave (fields of `devtools.apiserver.Fault`)."""
        self._ask("POST", "/_admin/faults", fault)

    def clear_faults(self) -> None:
        """Let it answer rightly again."""
        self._ask("DELETE", "/_admin/faults")

    def drop_connections(self) -> None:
        """Cut every connection of the server, watches included."""
        with contextlib.suppress(LabError):  # ours is one of them
            self._ask("POST", "/_admin/drop")


def _identity(raw: Json) -> tuple[str, str, str]:
    metadata = raw["metadata"]
    assert isinstance(metadata, dict)
    return str(raw["kind"]), str(metadata["name"]), str(metadata.get("namespace", "default"))


def _collection(kind: str, namespace: str) -> str:
    prefix, plural, namespaced, _ = _RESOURCES[kind]
    return f"{prefix}/namespaces/{namespace}/{plural}" if namespaced else f"{prefix}/{plural}"
