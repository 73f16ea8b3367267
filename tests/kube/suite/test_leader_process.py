"""`mcagent controller leader` as a process: its webhook over HTTPS, and what members and faults may do to it."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from devtools.lab import certificates
from devtools.ports import free_port
from devtools.waiting import wait_until
from mcagent.controller.contract import names
from mcagent.kube.client import Client
from mcagent.kube.errors import ApiRefusalError
from mcagent.model.kinds import KINDS, object_path
from mcagent.model.objects import Kind
from tests.kube.access import grant, rule, token_of
from tests.worlds.apiservers import Cluster, refusal
from tests.worlds.controllers import Controller, controller
from tests.worlds.leader_world import announce, cluster_info, endpoints, service
from tests.worlds.objects import Objects

WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"


class Area(Objects):
    """A Common Area in the test's namespace, and how a leader's controller is run for it."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self.cluster, self.directory, self.client = cluster, directory, cluster.client
        spec = {"clusterID": "north", "leaders": [{"clusterID": "north"}]}
        self.put(Kind.CLUSTER_SET, "set", cluster.namespace, spec=spec)

    def run(self, **settings: Any) -> Any:
        """Run a controller; a context manager."""
        kubeconfig, namespace = self.cluster.server.kubeconfig, self.cluster.namespace
        return controller("leader", kubeconfig, namespace, self.directory, podNamespace=namespace, **settings)

    def write(self, obj: dict[str, Any], client: Client | None = None) -> ApiRefusalError | None:
        """Create an object as a member does; return how it was refused."""
        kind, meta = Kind(obj["kind"]), {k: v for k, v in obj["metadata"].items() if k != "namespace"}
        if kind is Kind.RESOURCE_EXPORT:
            spec = obj["spec"]
            labels = {names.LABEL_SOURCE_KIND: spec["kind"], names.LABEL_SOURCE_CLUSTER_ID: spec["clusterID"]}
            if spec["kind"] != "ClusterInfo":
                labels |= {names.LABEL_SOURCE_NAMESPACE: spec["namespace"], names.LABEL_SOURCE_NAME: spec["name"]}
            meta["labels"] = labels
        body = {**obj, "apiVersion": KINDS[kind].api_version, "metadata": meta}
        return refusal(client or self.client, "POST", object_path(kind, self.cluster.namespace), body)

    def write_all(self, *objects: dict[str, Any]) -> None:
        """Create objects as members do."""
        for obj in objects:
            refused = self.write(obj)
            assert refused is None, str(refused)

    def ready(self) -> int:
        """Return how many members are Ready."""
        cluster_set = self.get(Kind.CLUSTER_SET, "set", self.cluster.namespace) or {}
        return int(cluster_set.get("status", {}).get("readyClusters", -1))

    def addresses(self, target: str) -> list[str]:
        """Return the imported endpoints of "namespace-name"."""
        resource_import = self.get(Kind.RESOURCE_IMPORT, f"{target}-endpoints", self.cluster.namespace)
        return (
            [a["ip"] for s in resource_import["spec"]["endpoints"]["subsets"] for a in s["addresses"]]
            if resource_import
            else []
        )

    def verdict(self, name: str) -> dict[str, Any]:
        """Return the condition of an export, {} while there is none."""
        export = self.get(Kind.RESOURCE_EXPORT, name, self.cluster.namespace) or {}
        conditions = export.get("status", {}).get("conditions")
        return dict(conditions[0]) if conditions else {}

    def imports(self) -> dict[str, str]:
        """Return the version of each ResourceImport."""
        path = object_path(Kind.RESOURCE_IMPORT, self.cluster.namespace)
        items = self.cluster.client.request("GET", path)["items"]
        return {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in items}


FLAT = {"allowedEndpointCIDRs": ["10.0.0.0/8"]}  # of clusters that publish no CIDRs


@pytest.fixture
def area(cluster: Cluster, tmp_path: Path) -> Area:
    """Give a Common Area."""
    return Area(cluster, tmp_path)


def joining(cluster: str) -> dict[str, Any]:
    """Return the announcement of a cluster."""
    return announce(cluster, time.time(), cluster_set="set")


def soon(condition: Callable[[], object], what: str) -> None:
    """Wait for something that the controller brings about."""
    wait_until(lambda: bool(condition()), what, timeout=60, interval=0.1)


@contextmanager
def with_webhook(area: Area) -> Iterator[Controller]:
    """Run a controller whose webhook the API server asks about announcements and exports."""
    identity = certificates.server_identity(area.directory / "pki", ["127.0.0.1"])
    (area.directory / "pki/tls.crt").write_bytes(identity.certificate.read_bytes())
    (area.directory / "pki/tls.key").write_bytes(identity.key.read_bytes())
    port = free_port()
    name = f"{area.cluster.namespace}.leader.mcagent"
    hook = {
        "name": name,
        "clientConfig": {
            "url": f"https://127.0.0.1:{port}/validate",
            "caBundle": base64.b64encode(identity.ca.read_bytes()).decode(),
        },
        "rules": [
            {
                "apiGroups": ["multicluster.crd.antrea.io"],
                "apiVersions": ["v1alpha1"],
                "resources": ["memberclusterannounces", "resourceexports"],
                "operations": ["CREATE", "UPDATE", "DELETE"],
            }
        ],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": area.cluster.namespace}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "failurePolicy": "Fail",
    }
    head = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration"}
    settings = {"host": "127.0.0.1", "port": port, "certDir": str(area.directory / "pki")}
    with ExitStack() as stack:
        process = stack.enter_context(area.run(webhook=settings, **FLAT))
        body = {**head, "metadata": {"name": name}, "webhooks": [hook]}
        area.cluster.client.request("POST", WEBHOOKS, body=body)
        stack.callback(area.cluster.client.request, "DELETE", f"{WEBHOOKS}/{name}")
        yield process


def test_a_member_cannot_claim_anothers_identity(area: Area) -> None:
    """With rights to write exports, its token writes its own only: others are refused over HTTPS, by name."""
    cluster = area.cluster
    for name in ("east", "west"):
        annotations = {"annotations": {"multicluster.antrea.io/cluster-id": name}}
        cluster.create(cluster.path("serviceaccounts"), name, metadata=annotations)
    verbs = ("get", "list", "watch", "create", "update", "patch", "delete")
    for name in ("east", "west"):
        grant(cluster, name, rule(*verbs, resources="memberclusterannounces resourceexports"))
    with (
        with_webhook(area) as leader,
        closing(cluster.server.as_token(token_of(cluster, "east"))) as east,
        closing(cluster.server.as_token(token_of(cluster, "west"))) as west,
    ):

        def asked() -> bool:
            refused = area.write(joining("west"), east)
            assert refused is not None, "the API server does not ask the webhook"
            return refused.code == 403 and "cluster" in str(refused)

        assert area.write(joining("west"), west) is None
        # The real server learns of a configuration by a watch; until then the name is taken, and no more.
        soon(asked, "the webhook to refuse")
        assert area.write(joining("east"), east) is None
        soon(lambda: area.ready() == 2, "both to be members")
        for wrong in (service("west"), endpoints("west", ["10.2.0.1"]), cluster_info("west", "10.2.0.0/16")):
            refused = area.write(wrong, east)
            assert refused is not None, wrong["metadata"]["name"]
            assert refused.code == 403
            assert "must be east, the caller's" in str(refused)
        for right in (service("east"), endpoints("east", ["10.1.0.1"])):
            refused = area.write(right, east)
            assert refused is None, str(refused)
        assert area.write(service("west"), west) is None
        for name, member in ((names.announce("west"), east), (names.announce("east"), west)):
            path = object_path(Kind.MEMBER_CLUSTER_ANNOUNCE, cluster.namespace, name)
            assert (refusal(member, "DELETE", path) or ApiRefusalError("", code=0)).code == 403
        path = object_path(Kind.RESOURCE_EXPORT, cluster.namespace, "west-default-nginx-service")
        taken_over = {"spec": {"clusterID": "east"}}
        with pytest.raises(ApiRefusalError, match="denied the request"):
            east.request("PATCH", path, body=taken_over, content_type="application/merge-patch+json")
        soon(lambda: area.addresses("default-nginx") == ["10.1.0.1"], "the import")
        assert leader.metric("mcagent_controller_webhook_requests_total") >= 8


def test_sizes_and_names_at_their_limits(area: Area) -> None:
    """Of exports that do not fit into one object the oldest is passed on; long names do no harm."""
    long = {"namespace": "n" * 63, "name": "s" * 53}
    cluster_id = "c" * 63
    target = f"{long['namespace']}/{long['name']}"
    ips = {f"c{n}": [f"10.{n}.{a}.{b}" for a in range(130 - 20 * n) for b in range(250)] for n in (1, 2)}
    with area.run(members={"maxEndpoints": 65536, "maxExportBytes": 1_000_000}, **FLAT) as leader:
        area.write_all(*map(joining, [*ips, cluster_id]))
        for name, addresses in ips.items():
            area.write_all(service(name), endpoints(name, addresses))
            soon(partial(area.verdict, f"{name}-default-nginx-endpoints"), f"the verdict on {name}")
        area.write_all(service(cluster_id, target), endpoints(cluster_id, ["10.3.0.1"], target))
        soon(lambda: area.addresses(f"{long['namespace']}-{long['name']}") == ["10.3.0.1"], "the long name")
        soon(lambda: "message" in area.verdict("c2-default-nginx-endpoints"), "the younger to be told")
        message = area.verdict("c2-default-nginx-endpoints")["message"]
        assert "would be larger than an object may be" in message
        assert set(ips["c1"]) <= set(area.addresses("default-nginx"))
        soon(leader.idle, "it to come to rest")
        assert leader.metric("mcagent_controller_refused_objects") == 0


def test_killed_while_fifty_members_join(area: Area) -> None:
    """A leader that was killed in the middle gets to the end after a restart; the next one writes only its claim.

    A leader that stops gives up the ClusterSet, for a controller of another namespace (`area_holder`).
    """
    members = [f"c{number:02}" for number in range(50)]
    with area.run() as first:
        for number, name in enumerate(members):
            area.write_all(joining(name), cluster_info(name, f"100.64.{number}.0/24"))
            if number % 5 == 0:
                area.write_all(service(name), endpoints(name, [f"100.64.{number}.1"]))
            if number == 25:
                soon(area.imports, "it to be at work")
                first.process.kill()
        first.process.wait(10)
    with area.run() as second:
        soon(lambda: area.ready() == 50, "all to be members")
        soon(lambda: len(area.addresses("default-nginx")) == 10, "all endpoints")
        soon(lambda: len(area.imports()) == 52, "all cluster information")
        exports = [f"{name}-clusterinfo" for name in members]
        exports += [f"{name}-default-nginx-{kind}" for name in members[::5] for kind in ("service", "endpoints")]
        for export in exports:
            soon(partial(area.verdict, export), f"the verdict on {export}")
        soon(second.idle, "it to come to rest")
    before = area.imports()
    with area.run() as third:
        soon(third.idle, "it to have looked at all")
        soon(lambda: third.metric("mcagent_controller_reconciles_total") > 50, "it to have looked at all")
        soon(third.idle, "it to come to rest")
        assert third.writes() == 1, third.log.read_text()[-4000:]
    assert area.imports() == before
