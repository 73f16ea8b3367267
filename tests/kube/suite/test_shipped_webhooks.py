"""The webhooks that `deploy/` configures, on a real API server: by Service, with the certificate in the Secret.

Leader and member run with the rights of their manifests; the Service leads to this machine. The embedded server
has neither mutating webhooks nor CEL: what it has is in tests/embedded/test_controller_process.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from devtools.waiting import wait_until
from mcagent.controller.config import ControllerRole
from mcagent.controller.contract import names
from mcagent.model.kinds import object_path
from mcagent.model.objects import Kind
from tests.kube.access import grant, rule, token_of
from tests.kube.shipped_webhooks import Shipped, cluster_set, gateway, join, standing_for
from tests.worlds.apiservers import Cluster, leave_out, refusal
from tests.worlds.controllers import Controller
from tests.worlds.leader_world import announce, export, service

pytestmark = pytest.mark.real_only


@pytest.fixture
def shipped(
    request: pytest.FixtureRequest, cluster: Cluster, role: ControllerRole, tmp_path: Path
) -> Iterator[Shipped]:
    """Give a role's manifests in the test's namespace."""
    if cluster.server.kind != "real":
        leave_out(request, "the API server of MCAGENT_TEST_KUBECONFIG cannot ask a webhook of this machine")
    shipped = Shipped(cluster, role, tmp_path)
    with shipped.stack:
        yield shipped


def reviews(leader: Controller) -> float:
    """Return how many reviews of ResourceExports there were, of both webhooks."""
    return leader.metric("mcagent_controller_webhook_requests_total", 'kind="ResourceExport"')


@pytest.mark.parametrize("role", [ControllerRole.LEADER])
def test_the_leaders_webhooks(shipped: Shipped) -> None:
    """Policies are completed, and only they; members are checked; the leader does without its own webhook."""
    exports = object_path(Kind.RESOURCE_EXPORT, shipped.cluster.namespace)
    policy = export("east", "AntreaClusterNetworkPolicy", "acnp", {"name": "acnp"})
    policy["metadata"] = {"name": "acnp", "labels": {"mine": "1"}, "finalizers": ["example.org/held"]}
    complete = {
        "mine": "1",
        "sourceName": "acnp",
        "sourceNamespace": "",
        "sourceKind": "AntreaClusterNetworkPolicy",
    }
    by_hand = service("east") | {"metadata": {"name": "by-hand"}}
    east = shipped.stack.enter_context(closing(shipped.cluster.server.as_token(join(shipped, "east"))))
    assert shipped.write(cluster_set("set")) == ""  # failurePolicy Ignore: nobody answers yet
    assert "failed calling webhook" in shipped.write(by_hand)

    def in_force() -> bool:
        return (
            "has a ClusterSet already" in shipped.write(cluster_set("second"), dryRun="All")
            and "must be a ServiceAccount" in shipped.write(announce("east", cluster_set="set"), dryRun="All")
            and "denied" in shipped.write(service("west"), east, dryRun="All")
        )

    with shipped.running() as leader:
        wait_until(in_force, "the webhooks to be asked", timeout=30)
        before = reviews(leader)
        assert shipped.write(by_hand) == ""
        assert reviews(leader) == before + 1  # not by /mutate: matchConditions
        meta = shipped.get(Kind.RESOURCE_EXPORT, "by-hand")["metadata"]
        assert not {"labels", "finalizers"} & set(meta)

        assert shipped.write(policy) == ""
        assert reviews(leader) == before + 3
        meta = shipped.get(Kind.RESOURCE_EXPORT, "acnp")["metadata"]
        assert meta["labels"] == complete
        assert meta["finalizers"] == ["example.org/held", names.EXPORT_FINALIZER]
        changed = shipped.change(Kind.RESOURCE_EXPORT, "acnp", {"metadata": {"labels": {"sourceKind": "other"}}})
        assert changed["metadata"]["labels"] == complete

        assert "403" in shipped.write(announce("west", cluster_set="set"), east)
        assert shipped.write(announce("east", cluster_set="set"), east) == ""
        path = object_path(Kind.CLUSTER_SET, shipped.cluster.namespace, "set")

        def kept_for_its_member() -> bool:
            refused = refusal(shipped.cluster.client, "DELETE", path, dryRun="All")
            return "1 clusters are still members" in str(refused)

        wait_until(kept_for_its_member, "the leader to list the member", timeout=30)
    # Its process has ended: members cannot write, while it, or another replica of it, can.
    assert "failed calling webhook" in shipped.write(service("east"), east)
    assert shipped.change(Kind.RESOURCE_EXPORT, "acnp", {"metadata": {"finalizers": None}}, shipped.own)
    shipped.own.request("DELETE", f"{exports}/acnp")


@pytest.mark.parametrize("role", [ControllerRole.MEMBER])
def test_the_members_webhooks(shipped: Shipped) -> None:
    """A second ClusterSet is refused while the controller runs; Gateways need no webhook."""
    assert shipped.write(cluster_set("set", "east")) == ""

    def in_force() -> bool:
        return "has a ClusterSet already" in shipped.write(cluster_set("second"), dryRun="All")

    with shipped.running():
        wait_until(in_force, "the webhook to be asked", timeout=30)
    assert shipped.write(gateway("node-1"), shipped.own) == ""


@pytest.mark.parametrize("role", [ControllerRole.LEADER])
def test_a_leader_of_all_namespaces(shipped: Shipped) -> None:
    """In another Common Area it has the rights to work, and its webhook checks who is who."""
    shipped.apply("leader-all-namespaces.yaml")
    client, home = shipped.cluster.client, shipped.cluster.namespace
    shipped.cluster.namespace = other = f"{home}-other"
    client.request("POST", "/api/v1/namespaces", body={"metadata": {"name": other}})
    shipped.stack.callback(client.request, "DELETE", f"/api/v1/namespaces/{other}")
    shipped.cluster.create(shipped.cluster.path("serviceaccounts"), "east", metadata=standing_for("east"))
    verbs = ["get", "list", "watch", "create", "update", "patch", "delete"]
    grant(shipped.cluster, "east", rule(*verbs, resources="memberclusterannounces resourceexports"))
    east = shipped.stack.enter_context(closing(shipped.cluster.server.as_token(token_of(shipped.cluster, "east"))))
    assert shipped.write(cluster_set("set")) == ""

    def in_force() -> bool:
        return "is not permitted" in shipped.write(announce("west", cluster_set="set"), east, dryRun="All")

    shipped.cluster.namespace = home
    with shipped.running("*"):
        shipped.cluster.namespace = other
        wait_until(in_force, "the webhook to be asked", timeout=30)
        assert shipped.write(announce("east", cluster_set="set"), east) == ""

        def joined() -> bool:
            return bool(shipped.get(Kind.CLUSTER_SET, "set").get("status", {}).get("readyClusters") == 1)

        wait_until(joined, "the member to be Ready", timeout=30)
    shipped.cluster.namespace = home
