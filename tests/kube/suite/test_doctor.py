"""The doctor's questions to an API server: rights of the agent's account, the clock, a whole cluster."""

from __future__ import annotations

import pytest
import yaml

from mcagent.api.doctor import FindingLevel
from mcagent.controller.admin import manifests
from mcagent.controller.admin.manifests import Part, Site
from mcagent.doctor.catalogue import Scope, examine
from mcagent.doctor.check import NOT_READ
from mcagent.doctor.checks.cluster.permissions import reviews
from mcagent.doctor.checks.node.api import ask, needs
from mcagent.doctor.examined import ExaminedCluster
from mcagent.model.config import Config
from tests.worlds.apiservers import Cluster


@pytest.mark.real_only
def test_the_shipped_role_is_all_that_the_agent_needs(cluster: Cluster) -> None:
    """Without it every right is named as missing; with it none is; the clock is told."""
    accounts = cluster.path("serviceaccounts")
    cluster.client.request("POST", accounts, body={"metadata": {"name": "mcagent-agent"}})
    token_request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": 3600},
    }
    answer = cluster.client.request("POST", f"{accounts}/mcagent-agent/token", body=token_request)
    config = yaml.safe_load(cluster.server.kubeconfig.read_text())
    for user in config["users"]:
        user["user"] = {"token": answer["status"]["token"]}
    before = ask(config, policies=True)
    assert (before.error, before.review_error) == ("", "")
    assert len(before.forbidden) == before.checked == len(list(needs(policies=True)))
    assert before.clock is not None
    assert abs(before.clock) < 5
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    shipped = manifests.objects({Part.AGENT}, Site(namespace=cluster.namespace))
    (role,) = (rule for rule in shipped if rule["kind"] == "ClusterRole")
    (binding,) = (rule for rule in shipped if rule["kind"] == "ClusterRoleBinding")
    name = f"{cluster.namespace}-agent"
    role["metadata"]["name"] = binding["metadata"]["name"] = binding["roleRef"]["name"] = name
    cluster.client.request("POST", f"{rbac}/clusterroles", body=role)
    cluster.client.request("POST", f"{rbac}/clusterrolebindings", body=binding)
    try:
        assert ask(config, policies=True).forbidden == ()
    finally:
        cluster.client.request("DELETE", f"{rbac}/clusterrolebindings/{name}")
        cluster.client.request("DELETE", f"{rbac}/clusterroles/{name}")


@pytest.mark.real_only
def test_a_cluster_is_read(cluster: Cluster) -> None:
    """Every list is answered, CRDs are of this version, and a Deployment's account without its role is named."""
    labels = {"app.kubernetes.io/name": "mcagent", "app.kubernetes.io/component": "member"}
    container = {"name": "member", "image": "mcagent:0"}
    spec = {"containers": [container], "serviceAccountName": "mcagent-controller"}  # as the chart has it
    template = {"metadata": {"labels": labels}, "spec": spec}
    path = cluster.path("deployments", group="apps")
    cluster.client.request(
        "POST",
        path,
        body={
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "mcagent-member", "labels": labels},
            "spec": {"selector": {"matchLabels": labels}, "template": template},
        },
    )
    try:
        examined = ExaminedCluster(cluster.client, Config(node_name="any"))
        findings = examine(Scope.CLUSTER, examined)
    finally:
        cluster.client.request("DELETE", f"{path}/mcagent-member")
    assert not [finding for finding in findings if finding.reason == NOT_READ], findings
    findings_by_check = {finding.check: finding for finding in findings}
    assert findings_by_check["crds"].level == FindingLevel.OK, findings_by_check["crds"]
    assert findings_by_check["permissions"].reason == "AccountForbidden"
    assert (
        f"system:serviceaccount:{cluster.namespace}:mcagent-controller" in findings_by_check["permissions"].subject
    )
    assert findings_by_check["controller"].reason == "ControllerAway"
    assert examined.read(reviews).checked > 50
