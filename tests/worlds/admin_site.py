"""An embedded API server, and the admin commands run against it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path

import pytest
import yaml

from devtools.apiserver import ApiServer
from devtools.lab import certificates
from devtools.waiting import wait_until
from mcagent.cli.main import main
from mcagent.controller.admin import tokens
from mcagent.kube.client import Client
from mcagent.kube.errors import ApiRefusalError
from mcagent.kube.source import RawObject
from mcagent.model.kinds import KINDS, object_path
from mcagent.model.objects import Kind
from tests.worlds.crds import create_crds

AREA = "mcs"
ROLES = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{AREA}/roles"


@dataclass
class Site:
    """An API server, a kubeconfig for it, and `mcagent` run against it."""

    server: ApiServer
    kubeconfig: Path
    client: Client
    capsys: pytest.CaptureFixture[str]

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Run a command line; return exit code, stdout and stderr."""
        self.capsys.readouterr()
        code = main([*arguments, "--kubeconfig", str(self.kubeconfig)])
        out, err = self.capsys.readouterr()
        return code, out, err

    def get(self, kind: Kind, name: str, namespace: str = AREA) -> RawObject | None:
        """Return an object, None if there is none."""
        try:
            obj: RawObject = self.client.request("GET", object_path(kind, namespace, name))
        except ApiRefusalError as error:
            if error.code != 404:
                raise
            return None
        return obj

    def put(self, kind: Kind, name: str, content: RawObject, namespace: str = AREA) -> None:
        """Create an object."""
        meta = {"name": name, "namespace": namespace, **content.get("metadata", {})}
        body = {"apiVersion": KINDS[kind].api_version, "kind": str(kind)} | content | {"metadata": meta}
        self.client.request("POST", object_path(kind, namespace), body=body)

    def names(self, kind: Kind, namespace: str = AREA) -> list[str]:
        """Return the names of all objects of a kind."""
        items = self.client.request("GET", object_path(kind, namespace))["items"]
        return [item["metadata"]["name"] for item in items]


KINDS_MADE = (
    Kind.GATEWAY,
    Kind.MEMBER_CLUSTER_ANNOUNCE,
    Kind.CLUSTER_SET,
    Kind.MEMBER_CLUSTER_ANNOUNCE,
    Kind.RESOURCE_EXPORT,
    Kind.RESOURCE_IMPORT,
    Kind.SECRET,
    Kind.ROLE_BINDING,
    Kind.SERVICE_ACCOUNT,
    Kind.CONFIG_MAP,
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ApiServer, Path]]:
    """Give an API server with the CRDs, two namespaces, and the members' Role; and a kubeconfig for it."""
    directory = tmp_path_factory.mktemp("admin")
    identity = certificates.server_identity(directory / "pki", ["127.0.0.1", "localhost"])
    cidr = IPv4Network("10.96.0.0/16")
    with ApiServer(tls=identity, service_cidr=cidr, tokens=frozenset({"admin-token"})) as server:
        server.write_kubeconfig(directory / "kubeconfig")
        client = Client(str(directory / "kubeconfig"))
        create_crds(client)
        have = {item["metadata"]["name"] for item in client.request("GET", "/api/v1/namespaces")["items"]}
        for namespace in {AREA, "kube-system"} - have:
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
            client.request("POST", "/api/v1/namespaces", body=body)
        role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "rules": []}
        client.request("POST", ROLES, body=role | {"metadata": {"name": tokens.MEMBER_ROLE, "namespace": AREA}})
        client.close()
        yield server, directory / "kubeconfig"


@pytest.fixture
def site(server: tuple[ApiServer, Path], capsys: pytest.CaptureFixture[str]) -> Iterator[Site]:
    """Give the server, and take away afterwards what the test left in it."""
    site = Site(server[0], server[1], Client(str(server[1])), capsys)
    yield site
    for kind in KINDS_MADE:
        for namespace in (AREA, "kube-system"):
            for name in site.names(kind, namespace):
                path = object_path(kind, namespace, name)
                off = {"metadata": {"finalizers": None}}
                site.client.request("PATCH", path, body=off, content_type="application/merge-patch+json")
                site.client.request("DELETE", path)
    site.client.close()


INIT = ("clusterset", "init", "-n", AREA, "--clusterid", "north", "--clusterset")


def make_token(site: Site, name: str = "east", *arguments: str, cluster_id: str = "") -> tuple[int, str, str]:
    """Run `membertoken create`, by default for a token that does not expire."""
    arguments = arguments if "--expires" in arguments else (*arguments, "--expires", "never")
    return site.run("membertoken", "create", name, "-n", AREA, "--cluster-id", cluster_id or name, *arguments)


SECRET = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {"name": "east-token"},
    "type": "Opaque",
    "data": {"ca.crt": "Y2E=", "token": "c2VjcmV0LXRva2Vu"},
}
CONFIG = {
    "apiVersion": "multicluster.antrea.io/v1alpha1",
    "kind": "ClusterSetJoinConfig",
    "clusterSetID": "blue",
    "clusterID": "east",
    "leaderClusterID": "north",
    "leaderNamespace": AREA,
    "leaderAPIServer": "https://10.0.0.1:6443",
}


def config_file(path: Path, *documents: RawObject) -> Path:
    """Write a join config."""
    path.write_text(yaml.safe_dump_all(documents))
    return path


def controller(
    site: Site, status: str, message: str, namespace: str = "kube-system", reason: str = "Test"
) -> Callable[[], None]:
    """Play the member's controller: set the ClusterSet's Ready condition once it is there; return its end."""

    def play() -> None:
        wait_until(lambda: site.get(Kind.CLUSTER_SET, "blue", namespace) is not None, "a ClusterSet", timeout=20)
        conditions = [{"type": "Ready", "status": status, "message": message, "reason": reason}]
        path = object_path(Kind.CLUSTER_SET, namespace, "blue") + "/status"
        body = {"status": {"conditions": conditions}}
        site.client.request("PATCH", path, body=body, content_type="application/merge-patch+json")

    thread = threading.Thread(target=play)
    thread.start()
    return thread.join
