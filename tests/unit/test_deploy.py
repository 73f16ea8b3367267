"""The manifests to deploy: well-formed, no more rights than used, no more privilege than needed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from mcagent.agent.config import Settings, load
from mcagent.http.listening import Authentication
from mcagent.kube.sources.manifests import FastLoader
from mcagent.model.config import Config
from mcagent.model.kinds import AGENT_KINDS, KINDS

ROOT = Path(__file__).parents[2] / "deploy"
MANIFESTS = list(yaml.load_all((ROOT / "agent.yaml").read_text(), FastLoader))
TOP = {
    "ServiceAccount": set(),
    "ClusterRole": {"rules"},
    "ClusterRoleBinding": {"roleRef", "subjects"},
    "ConfigMap": {"data"},
    "DaemonSet": {"spec"},
}
PORT = 10360


def one(kind: str) -> dict[str, Any]:
    """Return the one manifest of a kind."""
    (matching,) = [manifest for manifest in MANIFESTS if manifest["kind"] == kind]
    return dict(matching)


def pod() -> dict[str, Any]:
    """Return the Pod's spec of the DaemonSet."""
    return dict(one("DaemonSet")["spec"]["template"]["spec"])


def container() -> dict[str, Any]:
    """Return the only container."""
    (container,) = pod()["containers"]
    return dict(container)


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda manifest: manifest["kind"])
def test_manifests_are_well_formed(manifest: dict[str, Any]) -> None:
    """Every manifest has its required fields, no others at the top, names that are right, no namespace."""
    assert manifest.keys() == {"apiVersion", "kind", "metadata"} | TOP[manifest["kind"]]
    assert manifest["metadata"]["name"] == "mcagent-agent"
    assert "namespace" not in manifest["metadata"]
    labels = manifest["metadata"]["labels"]
    assert all(isinstance(value, str) for value in labels.values())


def test_rights_are_those_that_are_used() -> None:
    """Reading what is read, creating Events, a Gateway's key and status: no wildcards, no other writes."""
    allowed = {
        (info.group, info.plural): {"get", "list", "watch"} for kind, info in KINDS.items() if kind in AGENT_KINDS
    }
    allowed |= {("", "events"): {"create", "patch"}}
    allowed |= {("authentication.k8s.io", "tokenreviews"): {"create"}}
    allowed |= {("authorization.k8s.io", "subjectaccessreviews"): {"create"}}
    allowed["multicluster.crd.antrea.io", "gateways"].add("patch")
    allowed |= {("multicluster.crd.antrea.io", "gateways/status"): {"patch"}}
    granted: dict[tuple[str, str], set[str]] = {}
    for rule in one("ClusterRole")["rules"]:
        assert rule.keys() == {"apiGroups", "resources", "verbs"}
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                granted.setdefault((group, resource), set()).update(rule["verbs"])
    assert granted == allowed
    assert not any("secrets" in resource for _, resource in granted)


def test_the_binding_binds_role_and_account() -> None:
    """Role, account and Pod name each other."""
    binding = one("ClusterRoleBinding")
    group = "rbac.authorization.k8s.io"
    assert binding["roleRef"] == {
        "apiGroup": group,
        "kind": "ClusterRole",
        "name": one("ClusterRole")["metadata"]["name"],
    }
    (subject,) = binding["subjects"]
    assert (subject["kind"], subject["name"]) == ("ServiceAccount", one("ServiceAccount")["metadata"]["name"])
    assert pod()["serviceAccountName"] == subject["name"]
    assert yaml.load((ROOT / "kustomization.yaml").read_text(), FastLoader)["namespace"] == subject["namespace"]


def test_nothing_is_privileged() -> None:
    """One capability, on the network; no privileged, no escalation, root file system read-only, no host PIDs."""
    security = container()["securityContext"]
    assert "privileged" not in security
    assert security["allowPrivilegeEscalation"] is False
    assert security["readOnlyRootFilesystem"] is True
    assert security["capabilities"] == {"drop": ["ALL"], "add": ["NET_ADMIN"]}
    assert pod()["hostNetwork"] is True
    assert pod().keys().isdisjoint({"hostPID", "hostIPC", "initContainers"})
    assert pod()["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}


def test_the_host_shares_three_directories() -> None:
    """Open vSwitch's sockets, the lock, the WireGuard key; every mount has its volume and the other way round."""
    volumes = {volume["name"]: volume for volume in pod()["volumes"]}
    paths = {volume["hostPath"]["path"] for volume in volumes.values() if "hostPath" in volume}
    assert paths == {"/run/openvswitch", "/run/mcagent", "/var/lib/mcagent"}
    mounts = {mount["name"]: mount for mount in container()["volumeMounts"]}
    assert mounts.keys() == volumes.keys()
    assert mounts["config"]["readOnly"] is True
    assert volumes["config"]["configMap"]["name"] == one("ConfigMap")["metadata"]["name"]


def test_selectors_choose_the_pods() -> None:
    """The DaemonSet selects what its template makes, on every Linux Node, and replaces it Node by Node."""
    spec = one("DaemonSet")["spec"]
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
    assert pod()["tolerations"] == [{"operator": "Exists"}]
    assert spec["updateStrategy"]["type"] == "RollingUpdate"


def test_probes_ask_where_the_agent_listens() -> None:
    """Probes ask the loopback, where no Pod can occupy what answers; requests and a memory limit are set."""
    (port,) = container()["ports"]
    assert (port["containerPort"], port["hostPort"]) == (PORT, PORT)
    probes = {name: container()[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert {name: probe["path"] for name, probe in probes.items()} == {
        "startup": "/healthz",
        "liveness": "/healthz",
        "readiness": "/readyz",
    }
    health = Settings(core=Config(node_name="x")).health_listen
    assert {f"{probe['host']}:{probe['port']}" for probe in probes.values()} == {health}
    annotations = one("DaemonSet")["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(PORT)
    assert annotations["prometheus.io/scheme"] == "https"
    resources = container()["resources"]
    assert {"cpu", "memory"} <= resources["requests"].keys()
    assert "memory" in resources["limits"]


def test_the_agent_takes_the_configuration(tmp_path: Path) -> None:
    """The ConfigMap's file, with the environment of the DaemonSet, is a configuration that the agent accepts."""
    file = tmp_path / "agent.yaml"
    file.write_text(one("ConfigMap")["data"]["agent.yaml"])
    (variable,) = container()["env"]
    settings = load(file, {variable["name"]: "node-1"}, {})
    assert settings.core.node_name == "node-1"
    assert settings.core.namespace == "kube-system"
    assert settings.listen_address == ("0.0.0.0", PORT)
    assert settings.metrics_authentication is Authentication.TOKEN
    (run,) = [volume["hostPath"]["path"] for volume in pod()["volumes"] if volume["name"] == "run"]
    assert settings.run_dir == run
    assert container()["args"] == ["agent", "--config", "/etc/mcagent/agent.yaml"]


def test_kustomize_finds_its_files() -> None:
    """Everything that the kustomization names is there, and each object once: the CRDs, workloads of a member."""
    resources = yaml.load((ROOT / "kustomization.yaml").read_text(), FastLoader)["resources"]
    objects = [obj for name in resources for obj in yaml.load_all((ROOT / name).read_text(), FastLoader)]
    names = [f"{obj['kind']} {obj['metadata']['name']}" for obj in objects]
    read = [KINDS[kind] for kind in AGENT_KINDS]
    crds = {
        f"CustomResourceDefinition {info.plural}.{info.group}"
        for info in read
        if info.group.startswith("multicluster")
    }
    workloads = {"DaemonSet mcagent-agent", "DaemonSet mcagent-openvswitch", "Deployment mcagent-member"}
    assert crds | workloads <= set(names)
    assert len(names) == len(set(names))


def test_kustomize_builds_the_example_of_the_page(tmp_path: Path) -> None:
    """Its configuration is one that an agent accepts, and all images come from the named registry."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("no kubectl")
    page = (ROOT.parent / "docs/deploy.md").read_text()
    (block,) = (text for text in re.findall(r"^```yaml\n(.*?)^```$", page, re.M | re.S) if "Kustomization" in text)
    example = tmp_path / "kustomization.yaml"
    example.write_text(block.replace("mcagent/deploy", os.path.relpath(ROOT, tmp_path)))
    done = subprocess.run([kubectl, "kustomize", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    text = done.stdout
    objects = {(obj["kind"], obj["metadata"]["name"]): obj for obj in yaml.load_all(text, FastLoader)}
    file = tmp_path / "agent.yaml"
    file.write_text(objects["ConfigMap", "mcagent-agent"]["data"]["agent.yaml"])
    settings = load(file, {"MCAGENT_NODE_NAME": "n1"}, {})
    assert settings.core.cluster_id == "east"
    images = {
        container["image"].rpartition(":")[0]
        for (kind, _), obj in objects.items()
        if kind in ("Deployment", "DaemonSet")
        for container in obj["spec"]["template"]["spec"]["containers"]
    }
    assert images == {f"registry.example.com/net/{name}" for name in ("mcagent", "mcagent-openvswitch")}


def test_open_vswitch_has_the_same_limits() -> None:
    """Nothing privileged either, no token of the API; its database outlives Pods, its sockets are the agent's."""
    account, daemons = yaml.load_all((ROOT / "openvswitch.yaml").read_text(), FastLoader)
    spec = daemons["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    security = container["securityContext"]
    assert (account["automountServiceAccountToken"], spec["automountServiceAccountToken"]) == (False, False)
    assert "privileged" not in security
    assert (security["allowPrivilegeEscalation"], security["readOnlyRootFilesystem"]) == (False, True)
    assert security["capabilities"] == {"drop": ["ALL"], "add": ["NET_ADMIN", "NET_RAW", "SYS_NICE"]}
    assert spec.keys().isdisjoint({"hostPID", "hostIPC", "initContainers"})
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"]}
    agents = {volume["name"]: volume.get("hostPath", {}).get("path") for volume in pod()["volumes"]}
    assert (paths["run"], paths["data"]) == (agents["openvswitch"], "/var/lib/mcagent/openvswitch")


def test_an_upgrade_of_open_vswitch_hands_over() -> None:
    """The new Pod starts while the old one runs, on every Node that has an agent."""
    _, daemons = yaml.load_all((ROOT / "openvswitch.yaml").read_text(), FastLoader)
    spec = daemons["spec"]
    assert spec["updateStrategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    inside = spec["template"]["spec"]
    assert (inside["nodeSelector"], inside["tolerations"]) == (pod()["nodeSelector"], pod()["tolerations"])
    assert "ports" not in inside["containers"][0]  # two Pods on a Node could not both have them
