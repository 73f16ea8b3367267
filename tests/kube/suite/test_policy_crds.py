"""`mcagent deploy --with-policies` on a real API server: policies as Antrea Multi-cluster's guides write them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from devtools.waiting import wait_until
from mcagent.cli.main import main
from mcagent.core.policies.rules import TIERS
from mcagent.kube.errors import ApiRefusalError
from mcagent.kube.source import RawObject
from mcagent.model.parsing.parse import parse_object
from mcagent.model.policies import Policy, Verdict
from tests.worlds.apiservers import Cluster, refusal

pytestmark = pytest.mark.real_only  # the embedded server prunes and validates less
GROUP = "/apis/crd.antrea.io/v1beta1"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
ALL_PARTS = ("crds", "admission-policies", "metrics-reader", "member", "openvswitch", "agent")

# The policies of the chapters on egress to Services, on ingress, and on replication, with their fields and values.
TO_SERVICE, FROM_TENANTS, FROM_CLIENTS, ISOLATION = yaml.safe_load_all("""
apiVersion: crd.antrea.io/v1beta1
kind: ClusterNetworkPolicy
metadata: {name: drop-tenant-to-service}
spec:
  priority: 1
  tier: securityops
  appliedTo: [{podSelector: {matchLabels: {role: tenant}}}]
  egress:
    - action: Drop
      toServices: [{name: secured-service, namespace: svcNamespace, scope: ClusterSet}]
---
apiVersion: crd.antrea.io/v1beta1
kind: ClusterNetworkPolicy
metadata: {name: drop-tenants}
spec:
  appliedTo: [{namespaceSelector: {matchLabels: {role: admin}}}]
  priority: 1
  tier: securityops
  ingress:
    - action: Deny
      from: [{scope: ClusterSet, namespaceSelector: {matchLabels: {role: tenant}}}]
---
apiVersion: crd.antrea.io/v1beta1
kind: NetworkPolicy
metadata: {name: clients-only, namespace: NAMESPACE}
spec:
  appliedTo: [{podSelector: {matchLabels: {app: db}}}]
  priority: 1
  tier: application
  ingress:
    - action: Allow
      from: [{scope: ClusterSet, podSelector: {matchLabels: {app: client}}}]
    - action: Deny
---
apiVersion: crd.antrea.io/v1beta1
kind: ClusterNetworkPolicy
metadata: {name: antrea-mc-strict-namespace-isolation}
spec:
  priority: 1
  tier: securityops
  appliedTo: [{namespaceSelector: {}}]
  ingress:
    - action: Pass
      from: [{namespaces: {match: Self}}, {podSelector: {matchLabels: {k8s-app: kube-dns}}}]
    - action: Drop
      from: [{namespaceSelector: {}}]
""")


def deploy(cluster: Cluster, *arguments: str) -> int:
    """Deploy the part alone."""
    without = [word for part in ALL_PARTS for word in ("--without", part)]
    server = ("--kubeconfig", str(cluster.server.kubeconfig))
    return main(["deploy", "--clusterid", "east", "--with-policies", *without, "--apply", *arguments, *server])


@pytest.fixture
def kinds(cluster: Cluster) -> Iterator[Cluster]:
    """Give a cluster with the CRDs and Tiers; they are deleted after the test."""
    try:
        assert deploy(cluster) == 0
        yield cluster
    finally:
        for plural in ("clusternetworkpolicies", "networkpolicies", "tiers"):
            cluster.client.request("DELETE", f"{CRDS}/{plural}.crd.antrea.io")
        # Other tests find no kinds of Antrea.
        wait_until(lambda: not served(cluster), "the CRDs to be gone", timeout=30)


def served(cluster: Cluster) -> bool:
    """Tell whether the server serves the group."""
    return refusal(cluster.client, "GET", GROUP) is None


def path_of(policy: RawObject) -> str:
    """Return the path of the collection of a policy."""
    namespace = policy["metadata"].get("namespace")
    return f"{GROUP}/namespaces/{namespace}/networkpolicies" if namespace else f"{GROUP}/clusternetworkpolicies"


def create(cluster: Cluster, policy: RawObject, **query: str) -> Any:
    """Create a policy with strict validation of its fields."""
    return cluster.client.request(
        "POST", path_of(policy), {"fieldValidation": "Strict", **query}, body=in_namespace(policy, cluster)
    )


def in_namespace(policy: RawObject, cluster: Cluster) -> RawObject:
    """Return a policy in the namespace of the test."""
    return json.loads(json.dumps(policy).replace("NAMESPACE", cluster.namespace))  # type: ignore[no-any-return]


def test_policies_of_the_guides_are_stored_as_written(kinds: Cluster) -> None:
    """Nothing is pruned or refused, and agents read every rule, `Deny` as Drop."""
    verdicts = {
        "drop-tenant-to-service": [Verdict.DROP],
        "drop-tenants": [Verdict.DROP],
        "clients-only": [Verdict.ALLOW, Verdict.DROP],
        "antrea-mc-strict-namespace-isolation": [Verdict.PASS, Verdict.DROP],
    }
    for manifest in (TO_SERVICE, FROM_TENANTS, FROM_CLIENTS, ISOLATION):
        policy = in_namespace(manifest, kinds)
        stored = create(kinds, policy)
        assert stored["spec"] == policy["spec"]
        value = parse_object(stored).value
        assert isinstance(value, Policy)
        assert [rule.verdict for rule in value.rules] == verdicts[value.meta.name]


def test_the_default_tiers_are_those_that_agents_know(kinds: Cluster) -> None:
    """A replicated policy may name them."""
    tiers = kinds.client.request("GET", f"{GROUP}/tiers")["items"]
    assert {tier["metadata"]["name"]: tier["spec"]["priority"] for tier in tiers} == TIERS


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"priority": None}, "spec.priority"),
        ({"priority": 0}, "spec.priority"),
        ({"ingress": [{"from": []}]}, "spec.ingress[0].action"),
        ({"ingress": [{"action": "drop"}]}, "spec.ingress[0].action"),
    ],
)
def test_mistakes_are_refused(kinds: Cluster, change: RawObject, message: str) -> None:
    """By field, before an agent reads them."""
    spec = {key: value for key, value in {**FROM_TENANTS["spec"], **change}.items() if value is not None}
    with pytest.raises(ApiRefusalError) as refused:
        create(kinds, {**FROM_TENANTS, "spec": spec}, dryRun="All")
    assert refused.value.code == 422
    assert message in str(refused.value)


def test_objects_of_another_installation_stay(kinds: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """Also with --force. What mcagent has installed is found unchanged."""
    foreign = (f"{GROUP}/tiers/platform", f"{CRDS}/tiers.crd.antrea.io")
    for path in foreign:
        kinds.patch(path, {"metadata": {"labels": {"app.kubernetes.io/part-of": None}}})
    kinds.patch(foreign[0], {"spec": {"priority": 222}})
    before = {path: kinds.client.request("GET", path)["metadata"]["resourceVersion"] for path in foreign}
    capsys.readouterr()
    assert deploy(kinds, "--force") == 0
    reported = capsys.readouterr().err
    assert "Tier platform kept: it exists, and belongs to another installation" in reported
    assert "CustomResourceDefinition tiers.crd.antrea.io kept" in reported
    assert "Tier baseline unchanged" in reported
    assert before == {path: kinds.client.request("GET", path)["metadata"]["resourceVersion"] for path in foreign}


def test_a_dry_run_stores_nothing(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """Tiers cannot be checked before their CRD exists, which the output says."""
    assert deploy(cluster, "--dry-run") == 0
    assert "Tier baseline not checked: its CustomResourceDefinition is not there yet" in capsys.readouterr().err
    assert not served(cluster)
