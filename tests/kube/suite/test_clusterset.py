"""A cluster that is leader and member at once: all that both controllers write, on a real API server too."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from devtools.waiting import wait_until
from mcagent.controller.admin import manifests
from mcagent.controller.admin.manifests import Part, Site
from mcagent.controller.leader import leader_reconcilers
from mcagent.controller.machinery.engine import Engine, EngineTiming
from mcagent.controller.machinery.informers import OPTIONAL
from mcagent.controller.machinery.reconciler import Reconciler
from mcagent.controller.member import member_reconcilers
from mcagent.controller.member.networks.discovery import discover_service_cidr
from mcagent.controller.settings import LeaderSettings, MemberSettings, WriteEndpoints
from mcagent.kube.client import Client
from mcagent.kube.errors import ApiRefusalError
from mcagent.model.kinds import object_path
from mcagent.model.objects import Kind
from tests.worlds.apiservers import SERVICE_CIDR, Cluster, collection
from tests.worlds.objects import Objects
from tests.worlds.settled import settled

MEMBER_EXAMPLE = Path(__file__).parents[3] / "deploy/examples/member-east-clusterset.yaml"
RIGHTS = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "Lease")
HOST = "192.168.77.1"
RULES = [
    {
        "apiGroups": ["multicluster.crd.antrea.io"],
        "resources": ["memberclusterannounces", "resourceexports"],
        "verbs": ["get", "list", "watch", "create", "update", "patch", "delete"],
    },
    {
        "apiGroups": ["multicluster.crd.antrea.io"],
        "resources": ["resourceimports"],
        "verbs": ["get", "list", "watch"],
    },
]  # what the contract's Role of members has, as far as ours need it


def names(world: Objects, kind: Kind, namespace: str) -> list[str]:
    """Return the names of the objects of a namespace."""
    return [item["metadata"]["name"] for item in world.items(kind, namespace)]


class World(Objects):
    """One API server; the namespaces of the leader (`area`), of the member (`home`) and of a Service (`shop`)."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.client = cluster, cluster.client
        self.home = cluster.namespace
        self.area, self.shop = (f"{cluster.namespace}-{word}" for word in ("area", "shop"))
        self.node = f"node-{uuid.uuid4().hex[:8]}"
        self.kubeconfig = str(cluster.server.kubeconfig)
        self.engines: dict[str, Engine] = {}  # by the namespace of their ClusterSet
        self.tokens: dict[str, str] = {}  # of controllers with the shipped rights, by namespace
        self.cluster_scoped: list[str] = []  # paths of what is in no namespace
        for name in (self.area, self.shop):
            self.put(Kind.NAMESPACE, name)
        self.put(
            Kind.NODE,
            self.node,
            metadata={"annotations": {"multicluster.antrea.io/gateway": "true"}},
        )
        self.patch(Kind.NODE, self.node, "", {"status": self.node_status("True")}, part="/status")
        self.put(
            Kind.CLUSTER_SET, "set", self.area, spec={"clusterID": "north", "leaders": [{"clusterID": "north"}]}
        )
        annotations = {"multicluster.antrea.io/cluster-id": "north"}
        self.put(Kind.SERVICE_ACCOUNT, "member", self.area, metadata={"annotations": annotations})
        role = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": {"name": "member"},
            "rules": RULES,
        }
        rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{self.area}"
        self.client.request("POST", f"{rbac}/roles", body=role)
        account = {"kind": "ServiceAccount", "name": "member", "namespace": self.area}
        self.bind(Kind.ROLE_BINDING, "member", self.area, account, "member")

    def node_status(self, ready: str) -> dict[str, Any]:
        """Return the status of a Node."""
        return {
            "addresses": [{"type": "InternalIP", "address": HOST}],
            "conditions": [{"type": "Ready", "status": ready}],
        }

    def start(self, namespace: str, reconcilers: Sequence[Reconciler], *, member: bool) -> Engine:
        """Start a controller."""
        token = self.tokens.get(namespace)
        engine = Engine(
            reconcilers,
            self.cluster.server.as_token(token) if token else Client(self.kubeconfig),
            namespace=namespace,
            home=namespace if token else "default",
            member=member,
            timing=EngineTiming(workers=2, look=0.1),
        )
        self.engines[namespace] = engine
        engine.start()
        return engine

    def settled(self) -> bool:
        """Tell whether every controller has seen all objects and has nothing to do now."""

        def listed(kind: Kind, namespace: str) -> list[Any]:
            try:
                return self.items(kind, namespace)
            except ApiRefusalError as err:
                if err.code == 404:  # not served
                    return []
                raise

        return all(settled(engine, namespace, listed, listed) for namespace, engine in self.engines.items())

    def use_shipped_rights(self) -> None:
        """Let both controllers, and the member at the leader, have the rights of the manifests and no more."""
        self.delete(Kind.ROLE_BINDING, "member", self.area)
        account = {"kind": "ServiceAccount", "name": "member", "namespace": self.area}
        self.bind(Kind.ROLE_BINDING, "member", self.area, account, "antrea-mc-member-cluster-role")
        site = Site(namespace=self.home, leader_namespace=self.area)
        for part in (Part.LEADER, Part.MEMBER):
            for manifest in manifests.objects({part}, site):
                if manifest["kind"] in RIGHTS:
                    self.create(manifest)
            self.tokens[site.home(part)] = self.token(site.home(part), "mcagent-controller")
        for manifest in yaml.safe_load_all(MEMBER_EXAMPLE.read_text()):  # as `mcagent clusterset join` makes it
            if manifest["kind"] in RIGHTS:
                manifest["metadata"]["namespace"] = self.home
                for rule in manifest.get("rules", ()):
                    rule["resourceNames"] = ["token"]
                for subject in manifest.get("subjects", ()):
                    subject["namespace"] = self.home
                self.create(manifest)

    def create(self, manifest: Any) -> None:
        """Create an object of the manifests; one in no namespace gets a name of this test's own."""
        meta = manifest["metadata"]
        path = collection(self.client, manifest)
        if "namespace" not in meta:
            meta["name"] = f"{self.home}-{meta['name']}"
            self.cluster_scoped.append(f"{path}/{meta['name']}")
        if manifest.get("roleRef", {}).get("kind") == "ClusterRole":
            manifest["roleRef"]["name"] = f"{self.home}-{manifest['roleRef']['name']}"
        self.client.request("POST", path, body=manifest)

    def token(self, namespace: str, name: str) -> str:
        """Return a token of a ServiceAccount."""
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        path = object_path(Kind.SERVICE_ACCOUNT, namespace, name) + "/token"
        return str(self.client.request("POST", path, body=body)["status"]["token"])

    def bind(self, kind: Kind, name: str, namespace: str, subject: Any, role: str) -> None:
        """Bind a Role."""
        ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": role}
        self.put(kind, name, namespace, roleRef=ref, subjects=[subject])

    def start_both(self, **changes: Any) -> None:
        """Start the leader's controller and the member's."""
        self.start(self.area, leader_reconcilers(LeaderSettings(namespace=self.area)), member=False)
        given: dict[str, Any] = {"service_cidr": str(SERVICE_CIDR), "heartbeat_period": 2.0}
        settings = MemberSettings(namespace=self.home, **(given | changes))
        self.start(self.home, member_reconcilers(settings), member=True)

    def join(self) -> None:
        """Make Secret and ClusterSet of the member."""
        token = self.token(self.area, "member")
        config = yaml.safe_load(Path(self.kubeconfig).read_text())["clusters"][0]["cluster"]
        ca = config.get("certificate-authority-data")
        ca = ca or base64.b64encode(Path(config["certificate-authority"]).read_bytes()).decode()
        data = {"ca.crt": ca, "token": base64.b64encode(token.encode()).decode()}
        self.put(Kind.SECRET, "token", self.home, data=data)
        leader = {"clusterID": "north", "server": config["server"], "secret": "token"}
        spec = {"clusterID": "north", "namespace": self.area, "leaders": [leader]}
        self.put(Kind.CLUSTER_SET, "set", self.home, spec=spec)

    def serve(self, name: str, ready: bool = True) -> None:
        """Make a Service with an endpoint, and its ServiceExport."""
        ports = [{"name": "http", "port": 80, "targetPort": 8080}]
        self.put(Kind.SERVICE, name, self.shop, spec={"ports": ports, "sessionAffinity": "ClientIP"})
        self.put(
            Kind.ENDPOINT_SLICE,
            f"{name}-slice",
            self.shop,
            metadata={"labels": {"kubernetes.io/service-name": name}},
            addressType="IPv4",
            endpoints=[{"addresses": ["10.10.1.1"], "conditions": {"ready": ready}}],
            ports=[{"name": "http", "port": 8080, "protocol": "TCP"}],
        )
        self.put(Kind.SERVICE_EXPORT, name, self.shop)

    def address(self, name: str) -> str:
        """Return the ClusterIP of a Service."""
        return str(self.get(Kind.SERVICE, name, self.shop)["spec"]["clusterIP"])

    def slices(self) -> list[Any]:
        """Return the EndpointSlices that the member made."""
        query = {"labelSelector": "endpointslice.kubernetes.io/managed-by=controller.mcagent.io"}
        slices: list[Any] = self.client.request("GET", object_path(Kind.ENDPOINT_SLICE, self.shop), query)["items"]
        return slices

    def conditions(self, kind: Kind, name: str, namespace: str) -> dict[str, str]:
        """Return the status of each condition of an object."""
        raw = self.get(kind, name, namespace)
        conditions = raw.get("status", {}).get("conditions", []) if raw else []
        return {item["type"]: item["status"] for item in conditions}


GOOD = {"Valid": "True", "Ready": "True", "Conflict": "False"}  # conditions of a ServiceExport


@pytest.fixture
def world(cluster: Cluster) -> Iterator[World]:
    """Give the namespaces; afterwards all that was made in them, and the Node, goes."""
    world = World(cluster)
    yield world
    for engine in world.engines.values():
        assert engine.stop()
        assert not engine.dead()
    world.delete(Kind.NODE, world.node)
    for name in (world.area, world.shop):
        world.delete(Kind.NAMESPACE, name)
    for path in world.cluster_scoped:
        world.client.request("DELETE", path)


def soon(condition: Callable[[], object], what: str) -> None:
    """Wait for something that the controllers bring about."""
    wait_until(lambda: bool(condition()), what, timeout=20)


@pytest.mark.real_only
def test_the_rights_of_the_manifests_suffice(world: World) -> None:
    """From nothing to an imported Service and back, with the manifests' rights: nothing is refused."""
    world.use_shipped_rights()
    there_and_back(world)
    for engine in world.engines.values():
        assert not [key for key in engine.worker.statistics.requests() if key[2] in ("403", "401")]
        states = [state for states in engine.informers().values() for state in states]
        assert not [state for state in states if state.error and state.kind not in OPTIONAL]


def test_from_export_to_import_and_back(world: World) -> None:
    """Join, gateway, export, import, withdraw, leave: each object is as the API server keeps it, and then gone."""
    there_and_back(world)


def there_and_back(world: World) -> None:
    """Join, export, import, withdraw and leave."""
    world.start_both(write_endpoints=WriteEndpoints.ALWAYS)
    world.join()
    member = ("set", world.home)
    soon(lambda: world.conditions(Kind.CLUSTER_SET, *member).get("Ready") == "True", "the member to join")
    soon(lambda: names(world, Kind.GATEWAY, world.home) == [world.node], "the gateway")
    soon(lambda: world.get(Kind.RESOURCE_IMPORT, "north-clusterinfo", world.area), "the cluster information")
    world.serve("web")
    soon(world.slices, "the import")
    soon(lambda: world.conditions(Kind.SERVICE_EXPORT, "web", world.shop) == GOOD, "the leader's verdict")
    imported = world.get(Kind.SERVICE, "antrea-mc-web", world.shop)
    assert imported["spec"]["ports"] == [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 80}]
    assert imported["spec"]["sessionAffinity"] == "ClientIP"
    (slices,) = world.slices()
    assert [item["addresses"] for item in slices["endpoints"]] == [["10.10.1.1"]]  # its own Pod, see own_endpoints

    def told() -> tuple[list[str], list[dict[str, str]]]:
        service_import = world.get(Kind.SERVICE_IMPORT, "web", world.shop)
        return service_import["spec"]["ips"], service_import.get("status", {}).get("clusters", [])

    expected = ([world.address("antrea-mc-web")], [{"cluster": "north"}])
    soon(lambda: told() == expected, "the ServiceImport to have the address, and its status the cluster")
    soon(lambda: world.get(Kind.ENDPOINTS, "antrea-mc-web", world.shop), "the Endpoints")
    subsets = world.get(Kind.ENDPOINTS, "antrea-mc-web", world.shop)["subsets"]
    assert subsets[0]["addresses"] == [{"ip": "10.10.1.1"}]

    world.delete(Kind.SERVICE_EXPORT, "web", world.shop)
    soon(lambda: world.get(Kind.SERVICE, "antrea-mc-web", world.shop) is None and not world.slices(), "it to go")
    world.delete(Kind.CLUSTER_SET, "set", world.home)
    soon(lambda: world.get(Kind.CLUSTER_SET, "set", world.home) is None, "the member to leave")
    assert names(world, Kind.GATEWAY, world.home) == []
    soon(lambda: names(world, Kind.RESOURCE_EXPORT, world.area) == [], "its exports to go")
    soon(lambda: names(world, Kind.MEMBER_CLUSTER_ANNOUNCE, world.area) == [], "its announcement to go")


def test_what_a_service_is_reaches_the_service_import(world: World) -> None:
    """Headless or not, and all other fields, as the API server keeps them; a change of type makes it anew."""
    world.start_both()
    world.join()
    fields = {"internalTrafficPolicy": "Local", "trafficDistribution": "PreferClose"}
    ports = [{"name": "http", "port": 80, "protocol": "TCP"}]
    export = {"exportedLabels": {"team": "shop"}, "exportedAnnotations": {"example.org/owner": "shop"}}
    world.put(Kind.SERVICE_EXPORT, "db", world.shop, spec=export)
    for headless in (True, False, True):
        world.delete(Kind.SERVICE, "db", world.shop)
        spec = {"ports": ports, **fields} | ({"clusterIP": "None"} if headless else {})
        world.put(Kind.SERVICE, "db", world.shop, spec=spec)
        kind = "Headless" if headless else "ClusterSetIP"

        def shown() -> Any:
            return (world.get(Kind.SERVICE_IMPORT, "db", world.shop) or {}).get("spec", {})

        soon(lambda kind=kind: shown().get("type") == kind, f"the type {kind}")  # type: ignore[misc]
        soon(lambda: world.get(Kind.SERVICE, "antrea-mc-db", world.shop), "the Service")
        ips = [] if headless else [world.address("antrea-mc-db")]
        soon(lambda ips=ips: shown().get("ips", []) == ips, "its addresses")  # type: ignore[misc]
        assert (world.address("antrea-mc-db") == "None") is headless
        assert shown()["ipFamilies"] == ["IPv4"]
        assert {key: shown()[key] for key in fields} == fields
    meta = world.get(Kind.SERVICE_IMPORT, "db", world.shop)["metadata"]
    assert meta["labels"]["team"] == "shop"
    assert meta["annotations"]["example.org/owner"] == "shop"


def test_a_second_look_writes_nothing(world: World) -> None:
    """What the API server fills in by itself is no reason to write: after a restart every version stays."""
    world.start_both()
    world.join()
    world.serve("web")
    soon(lambda: world.conditions(Kind.SERVICE_EXPORT, "web", world.shop) == GOOD, "the leader's verdict")
    soon(lambda: (world.get(Kind.SERVICE_IMPORT, "web", world.shop) or {}).get("status"), "the import")

    def exported() -> set[str]:
        exports = world.client.request("GET", object_path(Kind.RESOURCE_EXPORT, world.area))["items"]
        return {item["spec"].get("name", "") for item in exports} - {"north"}

    soon(lambda: exported() <= {"web"}, "the exports of earlier tests to be removed")
    soon(world.settled, "all to have seen everything and to have nothing to do")
    for engine in world.engines.values():
        assert engine.stop()
    world.engines.clear()

    def versions() -> dict[str, str]:
        all_versions = {}
        for kind, namespace in (
            (Kind.SERVICE, world.shop),
            (Kind.ENDPOINT_SLICE, world.shop),
            (Kind.SERVICE_IMPORT, world.shop),
            (Kind.SERVICE_EXPORT, world.shop),
            (Kind.GATEWAY, world.home),
            (Kind.RESOURCE_EXPORT, world.area),
            (Kind.RESOURCE_IMPORT, world.area),
        ):
            for item in world.client.request("GET", object_path(kind, namespace))["items"]:
                all_versions[f"{kind} {item['metadata']['name']}"] = item["metadata"]["resourceVersion"]
        return all_versions

    before = versions()
    world.start_both()

    def announced() -> Any:
        return world.get(Kind.MEMBER_CLUSTER_ANNOUNCE, "member-announce-from-north", world.area)["metadata"]

    beat = announced()
    soon(lambda: announced() != beat, "the next heartbeat")
    soon(world.settled, "all to have seen everything and to have nothing to do")
    assert versions() == before


def test_the_service_cidr_is_found(cluster: Cluster) -> None:
    """By the ServiceCIDR object, or by the refusal of a Service that is never made."""
    try:
        assert discover_service_cidr(cluster.client, cluster.namespace) == str(SERVICE_CIDR)
    finally:
        items = cluster.client.request("GET", cluster.path("services"))["items"]
    assert items == []
