"""Fixtures of the API servers that tests run against: the embedded one, and real kube-apiserver and etcd.

Every test that takes `server` (or `cluster`) runs once for each. MCAGENT_TEST_KUBECONFIG names a cluster to run
against instead: namespaces `mcagent-test-*` are made and removed in it, the CRDs of the chart applied.
A conftest imports the hooks and fixtures.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest
import yaml

from devtools.apiserver import ApiServer
from devtools.errors import LabError
from devtools.lab import certificates
from devtools.realapi import RealApiServer, find
from devtools.realapi.binaries import HINT
from devtools.waiting import wait_until
from mcagent.kube.client import Client
from mcagent.kube.errors import ApiRefusalError
from tests.worlds.crds import crds

SERVICE_CIDR = IPv4Network("10.96.0.0/16")
LEFT_OUT = pytest.StashKey[dict[str, list[str]]]()


def pytest_configure(config: pytest.Config) -> None:
    """Make the place where tests that are left out are noted."""
    config.stash[LEFT_OUT] = {}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test of the suite against every kind of server."""
    if "kind" in metafunc.fixturenames:
        kinds = ["cluster"] if os.environ.get("MCAGENT_TEST_KUBECONFIG") else ["embedded", "real"]
        if metafunc.definition.get_closest_marker("real_only"):
            kinds = [kind for kind in kinds if kind != "embedded"]
        metafunc.parametrize("kind", kinds, scope="session")


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say loudly which tests did not run for want of a program."""
    for reason, tests in config.stash[LEFT_OUT].items():
        terminalreporter.write_sep("*", f"NOT RUN: {len(tests)} tests", red=True)
        terminalreporter.write_line(f"*** {reason}", red=True)
        for name in tests:
            terminalreporter.write_line(f"***   {name}")


def leave_out(request: pytest.FixtureRequest, reason: str) -> None:
    """Skip a test, and tell about it at the end of the run."""
    request.config.stash[LEFT_OUT].setdefault(reason, []).append(request.node.name)
    pytest.skip(reason)


@dataclass
class Server:
    """A server under test. `kind` is embedded, real or cluster."""

    kind: str
    kubeconfig: Path
    directory: Path  # for files of the tests
    embedded: ApiServer | None = None
    real: RealApiServer | None = None
    client: Client = field(init=False)

    def __post_init__(self) -> None:
        self.client = Client(str(self.kubeconfig), user_agent="admin")

    def as_token(self, token: str) -> Client:
        """Return a client that is known by a bearer token only."""
        config = json.loads(json.dumps(yaml.safe_load(self.kubeconfig.read_text())))
        for user in config["users"]:
            user["user"] = {"token": token} if token else {}
        file = self.directory / f"kubeconfig-{uuid.uuid4().hex[:8]}"
        file.write_text(json.dumps(config))
        file.chmod(0o600)
        return Client(str(file), user_agent="member")


@pytest.fixture(scope="session")
def _servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    """Keep the servers that were started."""
    running: dict[str, Server] = {}
    yield running
    for server in running.values():
        server.client.close()
        for process in (server.embedded, server.real):
            if process is not None:
                process.stop()


def _start(kind: str, directory: Path) -> Server:
    file = directory / "kubeconfig"
    if kind == "cluster":
        return Server(kind, Path(os.environ["MCAGENT_TEST_KUBECONFIG"]), directory)
    if kind == "embedded":
        api = ApiServer(
            bookmark_interval=0.5,
            tls=certificates.server_identity(directory / "pki", ["127.0.0.1", "localhost"]),
            service_cidr=SERVICE_CIDR,
            tokens=frozenset({"admin-token"}),
        ).start()
        api.write_kubeconfig(file)
        return Server(kind, file, directory, embedded=api)
    real = RealApiServer(directory / "real", service_cidr=str(SERVICE_CIDR)).start()
    real.write_kubeconfig(file)
    return Server(kind, file, directory, real=real)


@pytest.fixture
def server(
    request: pytest.FixtureRequest,
    kind: str,
    _servers: dict[str, Server],
    tmp_path_factory: pytest.TempPathFactory,
) -> Server:
    """Give a server with the CRDs in it, the same one for all tests."""
    if kind not in _servers:
        try:
            if kind == "real" and find() is None:
                leave_out(request, f"no kube-apiserver and etcd on this machine: {HINT}")
        except LabError as error:
            pytest.fail(str(error))
        _servers[kind] = _start(kind, tmp_path_factory.mktemp(kind))
        _apply_crds(_servers[kind].client)
    server = _servers[kind]
    if (
        server.real is not None
        and not server.real.has_controllers
        and request.node.get_closest_marker("controllers")
    ):
        leave_out(request, "no kube-controller-manager on this machine (envtest's assets have none)")
    return server


def _apply_crds(client: Client) -> None:
    base = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    for crd in crds():
        client.request(
            "PATCH",
            f"{base}/{crd['metadata']['name']}",
            {"fieldManager": "tests", "force": "true"},
            body=crd,
            content_type="application/apply-patch+yaml",
        )

    def established() -> bool:
        items = client.request("GET", base, {"labelSelector": "app.kubernetes.io/part-of=mcagent"})["items"]
        good = [
            crd
            for crd in items
            for condition in (crd.get("status", {}).get("conditions") or ())
            if condition["type"] == "Established" and condition["status"] == "True"
        ]
        return len(good) == len(crds()) and all(map(served, good))

    def served(crd: Any) -> bool:
        try:
            client.request("GET", f"/apis/{crd['spec']['group']}/v1alpha1/{crd['spec']['names']['plural']}")
        except ApiRefusalError:
            return False
        return True

    wait_until(established, "the CRDs to be established and served", timeout=30)


def refusal(client: Client, method: str, path: str, body: Any = None, **query: str) -> ApiRefusalError | None:
    """Make a request and return how it was refused, None if it was not."""
    apply = method == "APPLY"
    kind = "application/apply-patch+yaml" if apply else "application/json"
    try:
        client.request("PATCH" if apply else method, path, query, body=body, content_type=kind)
    except ApiRefusalError as error:
        return error
    return None


def collection(client: Client, manifest: dict[str, Any]) -> str:
    """Return the path to which an object of any kind that the server has is posted."""
    group, _, version = manifest["apiVersion"].rpartition("/")
    base = f"/apis/{group}/{version}" if group else f"/api/{version}"
    resources = client.request("GET", base)["resources"]
    (plural,) = [
        item["name"] for item in resources if item["kind"] == manifest["kind"] and "/" not in item["name"]
    ]
    namespace = manifest["metadata"].get("namespace")
    return f"{base}/namespaces/{namespace}/{plural}" if namespace else f"{base}/{plural}"


@dataclass
class Cluster:
    """A server to test, and a namespace of the test's own in it."""

    server: Server
    namespace: str

    @property
    def client(self) -> Client:
        """Return the administrator's client."""
        return self.server.client

    def path(self, plural: str, name: str = "", *, group: str = "", version: str = "v1") -> str:
        """Return the path of a resource of the test's namespace, or of one object of it."""
        start = f"/apis/{group}/{version}" if group else f"/api/{version}"
        return f"{start}/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")

    @property
    def configmaps(self) -> str:
        """Return the path of the namespace's ConfigMaps."""
        return self.path("configmaps")

    @property
    def gateways(self) -> str:
        """Return the path of the namespace's Gateways."""
        return self.path("gateways", group="multicluster.crd.antrea.io", version="v1alpha1")

    def create(self, path: str, name: str, **fields: Any) -> Any:
        """Create an object and return it. ConfigMaps, Gateways and whatever `kind` and `apiVersion` say."""
        kinds = {"configmaps": ("v1", "ConfigMap"), "services": ("v1", "Service"), "secrets": ("v1", "Secret")}
        kinds |= {"gateways": ("multicluster.crd.antrea.io/v1alpha1", "Gateway")}
        kinds |= {"serviceaccounts": ("v1", "ServiceAccount")}
        api_version, word = kinds.get(path.rpartition("/")[2], ("", ""))
        metadata = {"name": name, **fields.pop("metadata", {})}
        body = {"apiVersion": api_version, "kind": word, "metadata": metadata, **fields}
        return self.client.request("POST", path, body=body)

    def patch(self, path: str, body: Any, kind: str = "merge", **query: str) -> Any:
        """Patch an object and return it. `kind`: merge, json, strategic-merge or apply."""
        types = {"apply": "application/apply-patch+yaml"}
        return self.client.request(
            "PATCH", path, query, body=body, content_type=types.get(kind, f"application/{kind}-patch+json")
        )

    def refused(
        self, method: str, path: str, body: Any = None, *, client: Client | None = None, **query: str
    ) -> ApiRefusalError:
        """Make a request that must be refused, and return how."""
        with pytest.raises(ApiRefusalError) as caught:
            (client or self.client).request(method, path, query, body=body)
        return caught.value


@pytest.fixture
def cluster(server: Server) -> Iterator[Cluster]:
    """Give a server with a namespace that is made for the test and removed after it."""
    name = f"mcagent-test-{uuid.uuid4().hex[:8]}"
    server.client.request(
        "POST", "/api/v1/namespaces", body={"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    )
    yield Cluster(server, name)
    server.client.request("DELETE", f"/api/v1/namespaces/{name}")
