"""The API server that the suite runs against: the embedded one, or a real one.

MCAGENT_TEST_KUBECONFIG names the kubeconfig of a cluster whose namespaces `mcagent-test-*` may be made and
removed, and into which the CRDs of `deploy/crds` may be applied.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from mcagent.kube.client import ApiRefusalError, Client
from mcagent.lab.apiserver import ApiServer

CRDS = Path(__file__).parents[3] / "deploy/crds"


@dataclass
class Cluster:
    """A cluster to test, and a namespace of the test's own in it."""

    client: Client
    namespace: str

    @property
    def configmaps(self) -> str:
        """Return the path of the namespace's ConfigMaps."""
        return f"/api/v1/namespaces/{self.namespace}/configmaps"

    @property
    def gateways(self) -> str:
        """Return the path of the namespace's Gateways."""
        return f"/apis/multicluster.crd.antrea.io/v1alpha1/namespaces/{self.namespace}/gateways"

    def create(self, path: str, name: str, **fields: Any) -> Any:
        """Create an object and return it. ConfigMaps and Gateways only."""
        kind = {"configmaps": ("v1", "ConfigMap"), "gateways": ("multicluster.crd.antrea.io/v1alpha1", "Gateway")}
        api_version, word = kind[path.rpartition("/")[2]]
        metadata = {"name": name, **fields.pop("metadata", {})}
        body = {"apiVersion": api_version, "kind": word, "metadata": metadata, **fields}
        return self.client.request("POST", path, body=body)

    def patch(self, path: str, body: Any, kind: str = "merge", **query: str) -> Any:
        """Patch an object and return it. `kind`: merge, json, strategic-merge or apply."""
        types = {"apply": "application/apply-patch+yaml"}
        return self.client.request(
            "PATCH", path, query, body=body, content_type=types.get(kind, f"application/{kind}-patch+json")
        )

    def refused(self, method: str, path: str, body: Any = None, **query: str) -> ApiRefusalError:
        """Make a request that must be refused, and return how."""
        with pytest.raises(ApiRefusalError) as caught:
            self.client.request(method, path, query, body=body)
        return caught.value


@pytest.fixture(scope="session")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Give a client of the server under test, with the CRDs in it."""
    if real := os.environ.get("MCAGENT_TEST_KUBECONFIG"):
        made = Client(real)
        _apply_crds(made)
        yield made
        made.close()
        return
    with ApiServer(bookmark_interval=0.5) as server:
        file = tmp_path_factory.mktemp("kube") / "kubeconfig"
        server.write_kubeconfig(file)
        made = Client(str(file))
        _apply_crds(made)
        yield made
        made.close()


def _apply_crds(client: Client) -> None:
    base = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    for file in sorted(CRDS.glob("*.yaml")):
        crd = yaml.safe_load(file.read_text())
        client.request(
            "PATCH",
            f"{base}/{crd['metadata']['name']}",
            {"fieldManager": "tests", "force": "true"},
            body=crd,
            content_type="application/apply-patch+yaml",
        )
    end = time.monotonic() + 30
    while True:
        found = client.request("GET", base, {"labelSelector": "app.kubernetes.io/part-of=mcagent"})["items"]
        established = [
            crd
            for crd in found
            for condition in crd.get("status", {}).get("conditions", [])
            if condition["type"] == "Established" and condition["status"] == "True"
        ]
        if len(established) == len(list(CRDS.glob("*.yaml"))):
            return
        assert time.monotonic() < end, "the CRDs were not established"
        time.sleep(0.1)


@pytest.fixture
def cluster(client: Client) -> Iterator[Cluster]:
    """Give a cluster with a namespace that is made for the test and removed after it."""
    name = f"mcagent-test-{uuid.uuid4().hex[:8]}"
    client.request(
        "POST", "/api/v1/namespaces", body={"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    )
    yield Cluster(client, name)
    client.request("DELETE", f"/api/v1/namespaces/{name}")
