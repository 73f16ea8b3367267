"""The manifests of leader and member: current, no more rights than used, no more privilege than needed."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from mcagent.controller.admin.manifests import PARTS, Part, Site, objects
from mcagent.controller.config import ControllerRole, ControllerSettings, load
from mcagent.controller.member.policies.consent import CLUSTER_KINDS
from mcagent.controller.run import reconcilers_of
from mcagent.controller.settings import MemberSettings, ReplicatedPolicies, WriteEndpoints
from mcagent.http.listening import Authentication
from mcagent.kube.sources.manifests import FastLoader
from mcagent.model.kinds import KINDS
from mcagent.model.objects import Kind

ROOT = Path(__file__).parents[2] / "deploy"
MULTICLUSTER = "multicluster.crd.antrea.io"
HOME = {ControllerRole.LEADER: "antrea-multicluster", ControllerRole.MEMBER: "kube-system"}
WRITES = {"create", "update", "patch", "delete"}
RUNNING = {  # what the controller itself writes: Events, its Lease, its certificate, and questions about tokens
    ("", "events"),
    ("", "secrets"),
    ("coordination.k8s.io", "leases"),
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations"),
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
    ("authentication.k8s.io", "tokenreviews"),
    ("authorization.k8s.io", "subjectaccessreviews"),
}
Manifest = dict[str, Any]


@cache
def manifests(role: ControllerRole) -> list[Manifest]:
    """Return all objects of a role's file."""
    return list(yaml.load_all((ROOT / f"{role}.yaml").read_text(), FastLoader))


def one(role: ControllerRole, kind: str, name: str = "") -> Manifest:
    """Return the one object of a kind (and name)."""
    (manifest,) = [m for m in manifests(role) if m["kind"] == kind and name in ("", m["metadata"]["name"])]
    return manifest


def rules(role: ControllerRole) -> dict[tuple[str, str], set[str]]:
    """Return all that the controller may do, by group and resource."""
    granted: dict[tuple[str, str], set[str]] = {}
    for kind in ("Role", "ClusterRole"):
        for rule in one(role, kind, f"mcagent-{role}")["rules"]:
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    granted.setdefault((group, resource), set()).update(rule["verbs"])
    return granted


def resources(kinds: Iterable[Kind]) -> set[tuple[str, str]]:
    """Return kinds as rules of RBAC name them."""
    return {(KINDS[kind].group, KINDS[kind].plural) for kind in kinds}


def test_the_files_are_current() -> None:
    """deploy/leader.yaml and deploy/member.yaml are what deploy/generate makes."""
    done = subprocess.run(
        [sys.executable, ROOT / "generate", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("role", list(ControllerRole))
def test_every_object_says_its_namespace_and_whose_it_is(role: ControllerRole) -> None:
    """One `kubectl apply -f` needs no -n; accounts, roles and Pods name each other."""
    home = HOME[role]
    for manifest in manifests(role):
        if manifest["kind"] == "CustomResourceDefinition":
            continue
        assert manifest["metadata"]["labels"]["app.kubernetes.io/name"] == "mcagent"
        cluster_scoped = manifest["kind"].startswith("Cluster") or manifest["kind"].endswith(
            "WebhookConfiguration"
        )
        if not cluster_scoped and manifest["kind"] != "Namespace":
            assert manifest["metadata"]["namespace"] == home
        if manifest["kind"].endswith("Binding"):
            assert manifest["roleRef"]["name"] == manifest["metadata"]["name"]
            (subject,) = manifest["subjects"]
            if manifest["metadata"]["name"] == "mcagent-coredns":  # an account of the cluster's own
                assert subject["name"] == "system:serviceaccount:kube-system:coredns"
                continue
            assert (subject["name"], subject["namespace"]) == ("mcagent-controller", home)
    deployment = one(role, "Deployment")
    pod = deployment["spec"]["template"]
    assert pod["spec"]["serviceAccountName"] == one(role, "ServiceAccount")["metadata"]["name"]
    labels = pod["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels
    assert one(role, "Service")["spec"]["selector"] == labels
    assert one(role, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == labels


@pytest.mark.parametrize("role", list(ControllerRole))
def test_rights_are_what_reconcilers_declare(role: ControllerRole) -> None:
    """What they read may be listed and watched, what they write written; of other things only what runs them."""
    granted = rules(role)
    settings = ControllerSettings(member=MemberSettings(write_endpoints=WriteEndpoints.ALWAYS))
    reconcilers = reconcilers_of(role, settings, "x")
    watched = {name for name, verbs in granted.items() if {"get", "list", "watch"} <= verbs}
    written = {(group, name.partition("/")[0]) for (group, name), verbs in granted.items() if verbs & WRITES}
    assert watched == resources({kind for r in reconcilers for kind in r.reads.local})
    assert written - RUNNING == resources({kind for r in reconcilers for kind in r.writes.local})


@pytest.mark.parametrize(
    ("network", "cluster"), [("isolate", "allow"), ("remove", "none"), ("none", "Isolate"), ("none", "none")]
)
def test_rights_on_policies_are_those_that_the_configuration_accepts(network: str, cluster: str) -> None:
    """A member that accepts no policies of the leader gets no right on any; the plain file has all."""
    accepted = {"networkPolicies": network, "clusterPolicies": cluster}
    site = Site(config={Part.MEMBER: {"replicatedPolicies": accepted}})
    roles = [obj for obj in objects([Part.MEMBER], site) if obj["kind"] == "ClusterRole"]
    granted = {
        (group, resource): set(rule["verbs"])
        for role in roles
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    settings = MemberSettings(
        write_endpoints=WriteEndpoints.ALWAYS,
        replicated_network_policies=ReplicatedPolicies(network),
        replicated_cluster_policies=ReplicatedPolicies(cluster.lower()),
    )
    reconcilers = reconcilers_of(ControllerRole.MEMBER, ControllerSettings(member=settings), "x")
    policies = resources({*CLUSTER_KINDS, Kind.NETWORK_POLICY, Kind.TIER})
    read = resources({kind for r in reconcilers for kind in r.reads.local}) & policies
    written = resources({kind for r in reconcilers for kind in r.writes.local}) & policies
    assert granted.keys() & policies == read
    assert {key for key in read if granted[key] & WRITES} == written
    bindings = [obj for obj in objects([Part.MEMBER], site) if obj["kind"] == "ClusterRoleBinding"]
    assert {obj["roleRef"]["name"] for obj in bindings} >= {role["metadata"]["name"] for role in roles}
    (plain,) = (obj for obj in objects([Part.MEMBER_POLICIES], Site()) if obj["kind"] == "ClusterRole")
    in_file = {(g, name) for rule in plain["rules"] for g in rule["apiGroups"] for name in rule["resources"]}
    assert in_file == policies


@pytest.mark.parametrize("value", [None, "none", "preferred", "required"])
def test_agents_write_nodes_only_with_encryption_between_them(value: str | None) -> None:
    """With the value none, too: agents then remove their keys."""
    config = {} if value is None else {"nodeTrafficEncryption": value}
    (role,) = (
        obj for obj in objects([Part.AGENT], Site(config={Part.AGENT: config})) if obj["kind"] == "ClusterRole"
    )
    granted = [rule for rule in role["rules"] if {"nodes", "nodes/status"} & set(rule["resources"])]
    assert {verb for rule in granted for verb in rule["verbs"]} == {"get", "list", "watch"} | (
        set() if value is None else {"patch"}
    )


@pytest.mark.parametrize("role", list(ControllerRole))
def test_secrets_and_leases_by_name(role: ControllerRole) -> None:
    """Nothing is granted by wildcard."""
    granted = rules(role)
    assert not any("*" in text for key, verbs in granted.items() for text in (*key, *verbs))
    assert granted["coordination.k8s.io", "leases"] == granted["", "secrets"] == {"get", "update"}
    for rule in one(role, "ClusterRole", f"mcagent-{role}")["rules"]:
        assert "secrets" not in rule["resources"]
    named = {"secrets": f"mcagent-{role}-webhook", "leases": f"mcagent-{role}"}
    for rule in one(role, "Role", f"mcagent-{role}")["rules"]:
        for resource in named.keys() & set(rule["resources"]):
            assert rule["resourceNames"] == [named[resource]]
    # nobody may create them: the manifests do, with nothing in them that a second `kubectl apply` could take away
    for made, name in (("Secret", named["secrets"]), ("Lease", named["leases"])):
        assert one(role, made, name).keys() == {"apiVersion", "kind", "metadata"}


def test_a_member_writes_announces_and_exports_and_nothing_else() -> None:
    """The Role that tokens are bound to gives no status, no imports, and no deletecollection."""
    role = one(ControllerRole.LEADER, "Role", "antrea-mc-member-cluster-role")
    for rule in role["rules"]:
        resources = set(rule["resources"])
        assert not {name for name in resources if "/" in name}
        if resources == {"memberclusterannounces", "resourceexports"}:
            assert set(rule["verbs"]) == WRITES | {"get", "list", "watch"}
        else:
            assert (resources, set(rule["verbs"])) == ({"resourceimports"}, {"get", "list", "watch"})
    members = reconcilers_of(ControllerRole.MEMBER, ControllerSettings(), "x")
    assert {kind for r in members for kind in r.reads.leader} == {Kind.RESOURCE_EXPORT, Kind.RESOURCE_IMPORT}
    assert {kind for r in members for kind in r.writes.leader} == {
        Kind.RESOURCE_EXPORT,
        Kind.MEMBER_CLUSTER_ANNOUNCE,
    }


@pytest.mark.parametrize("role", list(ControllerRole))
def test_pods_have_no_privilege_and_two_replicas_apart(role: ControllerRole) -> None:
    """No root, no capabilities, nothing writable but /tmp; on two Nodes if there are two."""
    spec = one(role, "Deployment")["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert spec["replicas"] == 2
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "hostNetwork" not in pod
    assert [m["mountPath"] for m in container["volumeMounts"] if not m.get("readOnly")] == ["/tmp"]
    (term,) = pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert term["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"


@pytest.mark.parametrize("role", list(ControllerRole))
def test_command_configuration_and_ports_fit_the_program(role: ControllerRole, tmp_path: Path) -> None:
    """The configuration in the ConfigMap is read without a finding, and the ports are those it listens on."""
    config = one(role, "ConfigMap")
    (name,) = config["data"]
    file = tmp_path / name
    file.write_text(config["data"][name])
    settings = load(role, file, {}, {})
    pod = one(role, "Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"] == ["controller", str(role), "--config", f"/etc/mcagent/{name}"]
    assert pod["volumes"][0]["configMap"]["name"] == config["metadata"]["name"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {
        "health": int(settings.listen.rpartition(":")[2]),
        "metrics": int(settings.metrics_listen.rpartition(":")[2]),
        "webhook": settings.webhook_port,
    }
    assert settings.metrics_authentication is Authentication.TOKEN
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] == "health"
    policy = one(role, "NetworkPolicy")["spec"]
    (opened,) = policy["ingress"]
    assert {rule["port"] for rule in opened["ports"]} == set(ports.values())
    assert policy["podSelector"] == one(role, "Deployment")["spec"]["selector"]
    assert policy["policyTypes"] == ["Ingress"]
    grace = pod["terminationGracePeriodSeconds"]
    assert grace >= settings.renew_deadline + 12  # what is being written, and the Lease


@pytest.mark.parametrize("role", list(ControllerRole))
def test_webhooks_lead_to_the_service_and_identity_fails_closed(role: ControllerRole) -> None:
    """Hooks are for our CRDs in the role's namespace; an absent webhook lets nobody claim an identity."""
    service = one(role, "Service")["metadata"]
    crds = {m["spec"]["names"]["plural"] for m in manifests(role) if m["kind"] == "CustomResourceDefinition"}
    configurations = [m for m in manifests(role) if m["kind"].endswith("WebhookConfiguration")]
    for configuration in configurations:
        assert configuration["metadata"]["name"] == f"mcagent-{role}"
        for hook in configuration["webhooks"]:
            target = hook["clientConfig"]["service"]
            assert (target["name"], target["namespace"]) == (service["name"], service["namespace"])
            assert target["path"] in ("/validate", "/mutate")
            assert hook["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": HOME[role]}
            (rule,) = hook["rules"]
            (resource,) = rule["resources"]
            assert resource in crds
            assert rule["apiGroups"] == [MULTICLUSTER]
            if resource in ("memberclusterannounces", "resourceexports", "gateways"):
                closed = configuration["kind"] == "ValidatingWebhookConfiguration"
                assert hook["failurePolicy"] == ("Fail" if closed else "Ignore")
            assert hook["timeoutSeconds"] <= 5


def test_a_leader_of_all_namespaces_may_do_there_what_it_may_do_at_home() -> None:
    """The same rights but for Lease and Secrets, and the same webhooks for all other namespaces."""
    added = list(yaml.load_all((ROOT / "leader-all-namespaces.yaml").read_text(), FastLoader))
    name = "mcagent-leader-all-namespaces"
    assert {manifest["metadata"]["name"] for manifest in added} == {name}
    role, binding, *configurations = added
    assert (role["kind"], binding["kind"]) == ("ClusterRole", "ClusterRoleBinding")
    assert binding["roleRef"] == {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    assert binding["subjects"] == one(ControllerRole.LEADER, "ClusterRoleBinding")["subjects"]
    rules = [
        rule
        for rule in one(ControllerRole.LEADER, "Role", "mcagent-leader")["rules"]
        if not {"leases", "secrets"} & set(rule["resources"])
    ]
    hooks, *_reviews = one(ControllerRole.LEADER, "ClusterRole")["rules"]
    assert role["rules"] == [*rules, hooks | {"resourceNames": [name]}]
    others = {
        "matchExpressions": [
            {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": [HOME[ControllerRole.LEADER]]}
        ]
    }
    for configuration in configurations:
        shipped = one(ControllerRole.LEADER, configuration["kind"])
        assert configuration["webhooks"] == [hook | {"namespaceSelector": others} for hook in shipped["webhooks"]]
    assert [webhook["kind"] for webhook in configurations] == [
        "ValidatingWebhookConfiguration",
        "MutatingWebhookConfiguration",
    ]


def test_policies_come_with_the_webhooks() -> None:
    """The webhooks leave rules to them: each role is deployed with them, first, and so are agents by kustomize."""
    for parts in PARTS.values():
        kinds = [obj["kind"] for obj in objects(parts, Site())]
        assert kinds.index("ValidatingAdmissionPolicy") < kinds.index("ValidatingWebhookConfiguration")
    assert (
        "admission-policies.yaml" in yaml.load((ROOT / "kustomization.yaml").read_text(), FastLoader)["resources"]
    )


def test_the_policies_know_every_field_of_a_gateway() -> None:
    """An agent could change a field that is neither its own nor compared by the policy."""
    crd = yaml.load((ROOT / "helm/mcagent/files/crds/gateways.yaml").read_text(), FastLoader)
    (version,) = crd["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    assert "x-kubernetes-preserve-unknown-fields" not in schema
    fields = set(schema["properties"]) - {"apiVersion", "kind", "metadata", "status", "wireGuard"}
    compared = fields | {f"metadata.{name}" for name in ("labels", "annotations", "finalizers", "ownerReferences")}
    policies = {
        obj["metadata"]["name"]: obj
        for obj in yaml.load_all((ROOT / "admission-policies.yaml").read_text(), FastLoader)
        if obj["kind"] == "ValidatingAdmissionPolicy"
    }
    policy = " ".join(variable["expression"] for variable in policies["gateways.mcagent.io"]["spec"]["variables"])
    names = set(re.findall(r" object\.((?:metadata\.)?\?\w+)", f" {policy}"))
    assert {name.replace("?", "") for name in names} >= compared
