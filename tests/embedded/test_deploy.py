"""`mcagent deploy` and `mcagent uninstall` on an API server: what is waited for, in which order, what is refused.

The tests are what Kubernetes is there: they write the status of workloads and Pods. tests/e2e has real kubelets.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml

from devtools.apiserver import ApiServer, discovery
from devtools.lab import certificates
from devtools.waiting import wait_until
from mcagent.cli.main import main
from mcagent.controller.admin import removal
from mcagent.controller.admin.cluster import Cluster
from mcagent.controller.admin.deployment import deploy
from mcagent.controller.admin.manifests import Part, objects
from mcagent.controller.admin.manifests import Site as InstalledSite
from mcagent.kube.client import Client
from mcagent.kube.errors import ApiRefusalError
from mcagent.kube.source import RawObject
from mcagent.model.kinds import KINDS

HOME, AREA = "kube-system", "antrea-multicluster"
DAEMONS = f"/apis/apps/v1/namespaces/{HOME}/daemonsets"
DEPLOYMENTS = "/apis/apps/v1/namespaces/{}/deployments"
PODS = f"/api/v1/namespaces/{HOME}/pods"
GROUP = "multicluster.crd.antrea.io"
OURS = "app.kubernetes.io/name"
COMPONENT = "app.kubernetes.io/component"
AGENTS = ("deploy", "--clusterid", "east", "--without", "member", "--without", "crds")  # the webhooks need CEL


@dataclass
class Site:
    """An API server of a test's own, and `mcagent` run against it."""

    kubeconfig: Path
    client: Client
    capsys: pytest.CaptureFixture[str]

    def run(self, *arguments: str) -> tuple[int, str]:
        """Run a command; return exit code and what it said."""
        self.capsys.readouterr()
        code = main([*arguments, "--kubeconfig", str(self.kubeconfig)])
        return code, self.capsys.readouterr().err

    def post(self, path: str, kind: str, name: str, **content: Any) -> None:
        """Create an object."""
        group = path.removeprefix("/apis/").split("/")
        api_version = f"{group[0]}/{group[1]}" if path.startswith("/apis/") else "v1"
        meta = {"name": name} | content.pop("metadata", {})
        self.client.request(
            "POST", path, body={"apiVersion": api_version, "kind": kind, "metadata": meta, **content}
        )

    def status(self, path: str, **status: Any) -> None:
        """Write an object's status."""
        kind = "application/merge-patch+json"
        self.client.request("PATCH", f"{path}/status", body={"status": status}, content_type=kind)

    def names(self, path: str) -> list[str]:
        """Return the names of objects."""
        return [item["metadata"]["name"] for item in self.client.request("GET", path)["items"]]

    def node(self, name: str, *, ready: bool = True) -> None:
        """Make a Node with an agent's Pod."""
        self.post("/api/v1/nodes", "Node", name)
        self.status(f"/api/v1/nodes/{name}", conditions=[{"type": "Ready", "status": str(ready)}])
        labels = {OURS: "mcagent", COMPONENT: "agent"}
        spec = {"nodeName": name, "containers": [{"name": "agent", "image": "mcagent"}]}
        self.post(PODS, "Pod", f"mcagent-agent-{name}", metadata={"labels": labels}, spec=spec)

    def controller(self, namespace: str, component: str, **annotations: str) -> None:
        """Make the Deployment of a controller."""
        labels = {OURS: "mcagent", COMPONENT: component}
        pod = {
            "metadata": {"labels": labels},
            "spec": {"containers": [{"name": "controller", "image": "mcagent"}]},
        }
        spec = {"selector": {"matchLabels": labels}, "template": pod}
        meta = {"labels": labels, "annotations": annotations}
        self.post(DEPLOYMENTS.format(namespace), "Deployment", f"mcagent-{component}", metadata=meta, spec=spec)


@pytest.fixture
def site(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Site]:
    """Give an API server with both namespaces."""
    identity = certificates.server_identity(tmp_path / "pki", ["127.0.0.1", "localhost"])
    with ApiServer(tls=identity, tokens=frozenset({"admin-token"})) as server:
        server.write_kubeconfig(tmp_path / "kubeconfig")
        site = Site(tmp_path / "kubeconfig", Client(str(tmp_path / "kubeconfig")), capsys)
        for name in {HOME, AREA} - set(site.names("/api/v1/namespaces")):
            site.post("/api/v1/namespaces", "Namespace", name)
        yield site
        site.client.close()


@contextmanager
def meanwhile(act: Callable[[], None]) -> Iterator[None]:
    """Do something again and again beside what runs inside."""
    stopping = threading.Event()

    def loop() -> None:
        while not stopping.wait(0.05):
            with suppress(ApiRefusalError):
                act()

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def kubelets(site: Site, how: Callable[[str], RawObject], log: list[str]) -> Callable[[], None]:
    """Return what kubelets do: agents end with their DaemonSet, then cleaning Pods end as `how` says of a Node."""

    def act() -> None:
        pods = site.client.request("GET", PODS)["items"]
        agents = [pod for pod in pods if pod["metadata"]["labels"].get(COMPONENT) == "agent"]
        if "mcagent-agent" not in site.names(DAEMONS):
            for pod in agents:
                log.append(f"{pod['spec']['nodeName']}: agent ends")
                site.client.request("DELETE", f"{PODS}/{pod['metadata']['name']}")
        for pod in pods:
            node = pod["spec"]["nodeName"]
            waiting = any(agent["spec"]["nodeName"] == node for agent in agents)
            if (
                pod["metadata"]["labels"].get(COMPONENT) == "cleanup"
                and not waiting
                and pod["status"]["phase"] == "Pending"
            ):
                log.append(f"{node}: {' '.join(pod['spec']['containers'][0]['args'][:3])}")
                site.status(f"{PODS}/{pod['metadata']['name']}", **how(node))

    return act


def cleaned(_node: str) -> RawObject:
    """Return the status of a Pod that has cleaned its Node."""
    return {"phase": "Succeeded"}


def failed(_node: str) -> RawObject:
    """Return the status of a Pod that has not."""
    ended = {"exitCode": 1, "message": "ovsdb: connection refused"}
    return {"phase": "Failed", "containerStatuses": [{"name": "agent", "state": {"terminated": ended}}]}


# --- deploy


def test_deploy_waits_until_all_pods_are_ready(site: Site) -> None:
    """It says what is missing meanwhile, and ends when nothing is."""
    ready = 0

    def roll_out() -> None:
        nonlocal ready
        for name in site.names(DAEMONS):
            site.status(
                f"{DAEMONS}/{name}",
                observedGeneration=1,
                desiredNumberScheduled=3,
                updatedNumberScheduled=3,
                numberAvailable=min(3, ready // 10),
            )
        ready += 1

    with meanwhile(roll_out):
        code, output = site.run(*AGENTS, "--apply", "--timeout", "20")
    assert code == 0, output
    assert "DaemonSet kube-system/mcagent-agent created" in output
    assert "DaemonSet kube-system/mcagent-agent: 1 of 3 Pods ready" in output
    assert "DaemonSet kube-system/mcagent-openvswitch is rolled out" in output


def test_deploy_says_why_pods_are_not_ready(site: Site) -> None:
    """At the deadline: the DaemonSet, how many are missing, and what Kubernetes says of a Pod."""
    site.node("east-1")
    why = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "mcagent:0.1.0"'}
    site.status(f"{PODS}/mcagent-agent-east-1", containerStatuses=[{"name": "agent", "state": {"waiting": why}}])
    code, output = site.run(*AGENTS, "--apply", "--timeout", "1")
    assert code == 1
    assert (
        "after 1 s not rolled out: DaemonSet kube-system/mcagent-openvswitch: its controller has not processed"
        in output
    )
    assert 'Pod mcagent-agent-east-1: ImagePullBackOff: Back-off pulling image "mcagent:0.1.0"' in output


def test_deploy_requires_kubernetes_1_30(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has the API server's version and the oldest supported one, and nothing is written."""
    monkeypatch.setitem(discovery.VERSION, "gitVersion", "v1.29.14")
    for arguments in (("--apply", "--no-wait"), ("--apply", "--dry-run")):
        code, output = site.run(*AGENTS, *arguments)
        assert code == 1
        assert "is Kubernetes v1.29.14: mcagent needs 1.30 or newer" in output
    assert site.names(DAEMONS) == []


def test_what_helm_installed_is_helms(site: Site) -> None:
    """`mcagent deploy` does not touch it."""
    annotations = {"meta.helm.sh/release-name": "mesh"}
    site.post(
        f"/api/v1/namespaces/{HOME}/configmaps",
        "ConfigMap",
        "mcagent-agent",
        metadata={"annotations": annotations},
    )
    code, output = site.run(*AGENTS, "--apply", "--no-wait")
    assert code == 1
    assert 'ConfigMap kube-system/mcagent-agent belongs to the Helm release "mesh": use helm upgrade' in output
    assert site.names(DAEMONS) == []


def test_a_second_installation_in_another_namespace_is_refused(site: Site) -> None:
    """It would take the rights of the first one, and its controller work on the same objects."""
    binding = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/mcagent-agent"

    def bound() -> list[str]:
        return [subject["namespace"] for subject in site.client.request("GET", binding)["subjects"]]

    assert site.run(*AGENTS, "--apply", "--no-wait")[0] == 0
    for arguments in (("--apply", "--no-wait"), ("--dry-run",)):
        code, output = site.run(*AGENTS, "-n", "default", *arguments)
        assert code == 1
        assert (
            f"ClusterRoleBinding mcagent-agent is that of namespace {HOME}, where this part is installed" in output
        )
    assert bound() == [HOME]
    assert site.names(DAEMONS.replace(HOME, "default")) == []
    assert site.run(*AGENTS, "-n", "default", "--apply", "--no-wait", "--force")[0] == 0
    assert bound() == ["default"]


def test_what_was_configured_stays_when_it_is_applied_again(site: Site) -> None:
    """An upgrade keeps the cluster's ID and every key that was set; a key that is given again changes alone."""
    again = ("deploy", "--without", "member", "--without", "crds", "--apply", "--no-wait")

    def config() -> dict[str, Any]:
        path = f"/api/v1/namespaces/{HOME}/configmaps/mcagent-agent"
        content = yaml.safe_load(site.client.request("GET", path)["data"]["agent.yaml"])
        return {key: content[key] for key in ("clusterID", "mtu", "logLevel") if key in content}

    def pods() -> dict[str, Any]:
        template: dict[str, Any] = site.client.request("GET", f"{DAEMONS}/mcagent-agent")["spec"]["template"]
        return template

    code, output = site.run(*again)
    assert (code, output.splitlines()[-1]) == (
        2,
        "mcagent deploy: --clusterid: is required: the ID of this cluster in the ClusterSet, such as east",
    )
    sets = ("--set", "agent.config.mtu=1300", "--set", "agent.config.logLevel=debug")
    assert site.run(*again, "--clusterid", "east", *sets)[0] == 0
    before = pods()
    code, output = site.run(*again)
    assert "configuration of agent kept, unless given again: clusterID, logLevel, mtu" in output
    assert (code, config(), pods()) == (0, {"clusterID": "east", "mtu": 1300, "logLevel": "debug"}, before)
    assert site.run(*again, "--set", "agent.config.mtu=1280")[0] == 0
    assert config() == {"clusterID": "east", "mtu": 1280, "logLevel": "debug"}
    assert pods() != before  # the agents are restarted with it
    assert site.run(*again, "--reset-config", "--clusterid", "east")[0] == 0
    assert config() == {"clusterID": "east"}


def test_rights_that_the_configuration_no_longer_needs_are_deleted(site: Site) -> None:
    """Those of mcagent, and not in a dry run; an object of the same name without its labels stays."""
    roles, name = "/apis/rbac.authorization.k8s.io/v1/clusterroles", "mcagent-member-policies"
    rights, messages = objects({Part.MEMBER_POLICIES}, InstalledSite()), list[str]()
    cluster = Cluster(site.client, messages.append)
    deploy(cluster, rights, force=False, dry_run=False, timeout=0)
    deploy(cluster, [], rights, force=False, dry_run=True, timeout=0)
    assert name in site.names(roles)
    assert f"ClusterRole {name} would be deleted (dry run)" in messages
    deploy(cluster, [], rights, force=False, dry_run=False, timeout=0)
    assert name not in site.names(roles)
    assert f"ClusterRole {name} deleted" in messages
    site.post(roles, "ClusterRole", name, rules=[])
    deploy(cluster, [], rights, force=False, dry_run=False, timeout=0)
    assert name in site.names(roles)


def test_a_crd_of_others_is_kept(site: Site) -> None:
    """Antrea's CRDs stay as they are; --force takes them over."""
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    versions = [
        {"name": "v1alpha1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
    ]
    names = {"kind": "Gateway", "plural": "gateways", "singular": "gateway", "listKind": "GatewayList"}
    spec = {"group": GROUP, "scope": "Namespaced", "names": names, "versions": versions}
    site.post(crds, "CustomResourceDefinition", f"gateways.{GROUP}", spec=spec)
    code, output = site.run("deploy", "--clusterid", "east", "--without", "member", "--apply", "--no-wait")
    assert code == 0, output
    message = f"CustomResourceDefinition gateways.{GROUP} kept: it exists, and belongs to another installation"
    assert message in output
    assert f"CustomResourceDefinition clusterinfoimports.{GROUP} created" in output


# --- uninstall


def test_nodes_are_cleaned_before_anything_that_this_needs_goes(site: Site) -> None:
    """Agents end, each Node is cleaned as its agent is configured, then the rest goes; one NotReady is told."""
    site.run(*AGENTS, "--apply", "--no-wait")
    for name in ("east-1", "east-2"):
        site.node(name)
    site.node("east-3", ready=False)
    log: list[str] = []
    with meanwhile(kubelets(site, cleaned, log)):
        code, output = site.run("uninstall", "--yes", "--timeout", "20")
    assert code == 0, output
    for name in ("east-1", "east-2"):
        own = [line for line in log if line.startswith(name)]
        assert own == [f"{name}: agent ends", f"{name}: cleanup --config /etc/mcagent/agent.yaml"]
    assert "Node east-3 is not Ready and is skipped" in output
    assert output.index("2 of 2 Nodes cleaned") < output.index("DaemonSet kube-system/mcagent-openvswitch deleted")
    assert site.names(DAEMONS) == site.names(PODS) == []
    assert site.names(f"/api/v1/namespaces/{HOME}/configmaps") == []
    assert site.run("uninstall", "--yes") == (
        *(0, "nothing of role member is here (--role, --namespace, --leader-namespace say where to look)\n"),
    )


def test_a_node_that_cannot_be_cleaned_stops_it_and_is_tried_again(site: Site) -> None:
    """The error names Node and reason; what the Node needs is still there; repeated, only this Node is cleaned."""
    site.run(*AGENTS, "--apply", "--no-wait")
    for name in ("east-1", "east-2"):
        site.node(name)
    log: list[str] = []
    with meanwhile(kubelets(site, lambda node: failed(node) if node == "east-2" else cleaned(node), log)):
        code, output = site.run("uninstall", "--yes", "--timeout", "20")
    assert code == 1
    assert "not cleaned: Node east-2: ovsdb: connection refused (Pod mcagent-cleanup-east-2)" in output
    assert site.names(DAEMONS) == ["mcagent-openvswitch"]
    log.clear()
    with meanwhile(kubelets(site, cleaned, log)):
        code, output = site.run("uninstall", "--yes", "--timeout", "20")
    assert code == 0, output
    assert log == ["east-2: cleanup --config /etc/mcagent/agent.yaml"]
    assert site.names(DAEMONS) == site.names(PODS) == []


def test_a_node_whose_agent_starts_after_its_clean_up_is_cleaned_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The container of an agent that had ended is started again before the DaemonSet is deleted."""
    site.run(*AGENTS, "--apply", "--no-wait")
    for name in ("east-1", "east-2"):
        site.node(name)
    log: list[str] = []
    remove = Cluster.remove

    def remove_late(cluster: Cluster, obj: RawObject) -> bool:
        is_agents = (obj["kind"], obj["metadata"]["name"]) == ("DaemonSet", "mcagent-agent")
        if is_agents and "mcagent-agent" in site.names(DAEMONS):
            site.status(f"{PODS}/mcagent-cleanup-east-1", **cleaned("east-1"))
        return remove(cluster, obj)

    monkeypatch.setattr(Cluster, "remove", remove_late)
    with meanwhile(kubelets(site, cleaned, log)):
        code, output = site.run("uninstall", "--yes", "--timeout", "20")
    assert code == 0, output
    for name in ("east-1", "east-2"):
        own = [line for line in log if line.startswith(name)]
        assert own == [f"{name}: agent ends", f"{name}: cleanup --config /etc/mcagent/agent.yaml"]
    assert site.names(PODS) == []


def test_uninstall_asks_where_agents_run(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts the Nodes; without consent nothing is removed. A terminal that says yes is consent."""
    site.run(*AGENTS, "--apply", "--no-wait")
    site.node("east-1")
    monkeypatch.setattr("sys.stdin", StringIO())
    code, output = site.run("uninstall", "--timeout", "20")
    assert code == 1
    assert "1 Nodes lose their connections to other clusters. Give --yes" in output
    assert "mcagent-agent" in site.names(DAEMONS)
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    with meanwhile(kubelets(site, cleaned, [])):
        code, output = site.run("uninstall", "--timeout", "20")
    assert code == 0, output
    assert site.names(DAEMONS) == []


def test_uninstall_asks_where_services_are_shared(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the agents are no Pods: the ClusterSet is left, and with it other clusters lose Services."""
    site.controller("kube-system", "member")
    exports = "/apis/multicluster.x-k8s.io/v1alpha1/namespaces/default/serviceexports"
    sets = f"/apis/{GROUP}/v1alpha2/namespaces/kube-system/clustersets"
    leader = {"clusterID": "north", "server": "https://192.0.2.1", "secret": "t"}
    site.post(exports, "ServiceExport", "web")
    site.post(sets, "ClusterSet", "blue", spec={"clusterID": "east", "leaders": [leader]})
    monkeypatch.setattr("sys.stdin", StringIO())
    code, output = site.run("uninstall", "--timeout", "5")
    assert (code, "Other clusters lose 1 Service of this cluster" in output) == (1, True)
    assert site.client.request("GET", sets)["items"]
    code, output = site.run("uninstall", "--timeout", "5", "--yes")
    assert code == 0, output
    assert not site.client.request("GET", sets)["items"]


class Terminal(StringIO):
    """Input from a terminal."""

    def isatty(self) -> bool:
        """Tell that it is one."""
        return True


def test_a_leader_with_members_is_not_removed(site: Site) -> None:
    """The refusal names the members and what to do about one that is gone; --dry-run refuses, too."""
    site.controller(AREA, "leader")
    announces = f"/apis/{GROUP}/v1alpha1/namespaces/{AREA}/memberclusterannounces"
    site.post(announces, "MemberClusterAnnounce", "member-announce-from-west", clusterID="west")
    for arguments in ((), ("--dry-run",)):
        code, output = site.run("uninstall", "--yes", "--role", "leader", *arguments)
        assert code == 1
        assert "this cluster leads west: let each leave first" in output
        assert f"kubectl delete memberclusterannounce -n {AREA} member-announce-from-west" in output
    site.client.request("DELETE", f"{announces}/member-announce-from-west")
    code, output = site.run("uninstall", "--yes", "--role", "leader", "--timeout", "5")
    assert code == 0, output
    assert site.names(DEPLOYMENTS.format(AREA)) == []


def test_the_other_role_keeps_what_it_needs(site: Site) -> None:
    """Beside a leader a member goes, and CRDs and what both share stay; --crds is refused."""
    site.run(*AGENTS, "--apply", "--no-wait")
    site.controller(HOME, "member")
    site.controller(AREA, "leader")
    code, output = site.run("uninstall", "--yes", "--crds")
    assert (code, output) == (
        1,
        f"mcagent uninstall: --crds: the leader in namespace {AREA} needs them (--role all removes both)\n",
    )
    code, output = site.run("uninstall", "--yes", "--timeout", "5")
    assert code == 0, output
    assert site.names(DEPLOYMENTS.format(HOME)) == site.names(DAEMONS) == []
    assert site.names(DEPLOYMENTS.format(AREA)) == ["mcagent-leader"]
    assert "mcagent-metrics-reader" in site.names("/apis/rbac.authorization.k8s.io/v1/clusterroles")


def test_a_helm_release_is_left_to_helm(site: Site) -> None:
    """What it holds stays, but for the agents; the command that removes it is told."""
    site.run(*AGENTS, "--apply", "--no-wait")
    site.controller(HOME, "member", **{"meta.helm.sh/release-name": "mesh"})
    code, output = site.run("uninstall", "--yes", "--timeout", "5")
    assert code == 0, output
    assert (
        "left to Helm, which has installed them: 1 objects (helm uninstall mesh --namespace kube-system)" in output
    )
    assert site.names(DEPLOYMENTS.format(HOME)) == ["mcagent-member"]


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_crds_of_a_helm_release_are_refused_before_anything_goes(site: Site, more: tuple[str, ...]) -> None:
    """The refusal says in which order to remove them."""
    site.run(*AGENTS, "--apply", "--no-wait")
    site.controller(HOME, "member", **{"meta.helm.sh/release-name": "mesh"})
    daemons = site.names(DAEMONS)
    code, output = site.run("uninstall", "--yes", "--crds", "--timeout", "5", *more)
    assert code == 1
    assert "uninstall without --crds, then helm uninstall mesh --namespace kube-system, then --crds" in output
    assert site.names(DAEMONS) == daemons != []


def test_crds_go_last_and_only_when_told(site: Site) -> None:
    """How much is stored under each is told before; one that is somebody else's stays."""
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    site.run("deploy", "--clusterid", "east", "--without", "member", "--apply", "--no-wait")
    assert len(site.names(crds)) == 7
    gateways = f"/apis/{GROUP}/v1alpha1/namespaces/{HOME}/gateways"
    site.post(gateways, "Gateway", "east-1", gatewayIP="192.168.1.1", internalIP="192.168.1.1")
    export = f"/apis/{GROUP}/v1alpha1/namespaces/{HOME}/resourceexports"  # a policy's, which an administrator made
    spec = {"clusterID": "", "kind": "AntreaClusterNetworkPolicy", "name": "strict"}
    held = {"finalizers": ["resourceexport.antrea.io/finalizer"]}
    site.post(export, "ResourceExport", "strict", metadata=held, spec=spec)
    label = {"metadata": {"labels": {"app.kubernetes.io/part-of": None}}}
    theirs = "serviceexports.multicluster.x-k8s.io"
    site.client.request("PATCH", f"{crds}/{theirs}", body=label, content_type="application/merge-patch+json")
    assert site.run("uninstall", "--yes", "--timeout", "5")[0] == 0
    assert len(site.names(crds)) == 7
    code, output = site.run("uninstall", "--yes", "--crds", "--timeout", "5")
    assert code == 0, output
    assert f"CustomResourceDefinition gateways.{GROUP} goes, with all that is stored under it: 1 objects" in output
    wait_until(lambda: site.names(crds) == [theirs], "CRDs to go", timeout=5)


def test_the_page_lists_every_kind_that_a_finalizer_holds() -> None:
    """The command of "A deletion that hangs" in docs/uninstall.md shows all of them."""
    page = (Path(__file__).parents[2] / "docs/uninstall.md").read_text()
    (listed,) = re.findall(r"kubectl get (\S+) -A -o", page)
    assert {KINDS[kind].plural for kind in removal._WITH_FINALIZER} <= set(listed.split(","))
