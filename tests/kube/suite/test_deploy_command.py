"""`mcagent deploy` and `mcagent uninstall` on real servers: what is applied, applied again, checked, removed."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from devtools.waiting import wait_until
from mcagent.cli.main import main
from mcagent.kube.errors import ApiRefusalError
from mcagent.kube.source import RawObject
from mcagent.model.kinds import KINDS, object_path
from mcagent.model.objects import Kind
from tests.worlds.apiservers import Cluster, collection

pytestmark = pytest.mark.real_only  # the embedded server reads no CEL, which the webhooks have
ONE_IMAGE = "registry.example/mcagent:2"


@pytest.fixture
def area(cluster: Cluster) -> Iterator[str]:
    """Give the name of a namespace for the leader, which the command makes."""
    name = f"{cluster.namespace}-area"
    yield name
    run(cluster, "uninstall", "--yes", "--role", "all", "--leader-namespace", name, "--timeout", "30")
    wait_until(lambda: not is_policy_enforced(cluster), "the server to forget the removed policies", timeout=30)


def is_policy_enforced(cluster: Cluster) -> bool:
    """Tell whether a policy still refuses a Gateway: an API server reads its policies once a second."""
    body = {"apiVersion": KINDS[Kind.GATEWAY].api_version, "kind": "Gateway", "metadata": {"name": "n1"}}
    try:
        path = object_path(Kind.GATEWAY, cluster.namespace)
        cluster.client.request("POST", path, {"dryRun": "All"}, body={**body, "gatewayIP": "10.0.0.1"})
    except ApiRefusalError as err:
        return "ValidatingAdmissionPolicy" in str(err)
    return False


def run(cluster: Cluster, *arguments: str) -> int:
    """Run a command against the server, in the test's namespace."""
    return main([*arguments, "-n", cluster.namespace, "--kubeconfig", str(cluster.server.kubeconfig)])


def deploy(cluster: Cluster, area: str, *arguments: str) -> int:
    """Deploy a leader and member."""
    role = ("--role", "all", "--leader-namespace", area, "--clusterid", "east")
    return run(cluster, "deploy", *role, *arguments)


def printed(cluster: Cluster, area: str, capsys: pytest.CaptureFixture[str]) -> list[RawObject]:
    """Return the objects that are printed."""
    capsys.readouterr()
    assert deploy(cluster, area, "-o", "json") == 0
    return list(json.loads(capsys.readouterr().out)["items"])


def names(objects: list[RawObject]) -> list[str]:
    """Return what objects are called; but for CRDs and Namespaces, which tests share or a controller ends."""
    return [
        f"{obj['kind']} {obj['metadata']['name']}"
        for obj in objects
        if obj["kind"] not in ("CustomResourceDefinition", "Namespace")
    ]


def there(cluster: Cluster, objects: list[RawObject]) -> list[str]:
    """Return which of these objects the server has."""
    have = []
    for obj in objects:
        items = cluster.client.request("GET", collection(cluster.client, obj))["items"]
        have += [obj for item in items if item["metadata"]["name"] == obj["metadata"]["name"]]
    return names(have)


def test_what_is_printed_is_applied_and_removed(
    cluster: Cluster, area: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """All is stored; applied again nothing changes, with another image four; after uninstall nothing is left."""
    objects = printed(cluster, area, capsys)
    all_names = names(objects)
    assert deploy(cluster, area, "--apply", "--no-wait") == 0
    assert there(cluster, objects) == all_names
    capsys.readouterr()
    assert deploy(cluster, area, "--apply", "--no-wait") == 0
    assert {line.split()[-1] for line in capsys.readouterr().err.splitlines() if " kept" not in line} == {
        "unchanged"
    }
    assert deploy(cluster, area, "--apply", "--no-wait", "--image", ONE_IMAGE) == 0
    output = capsys.readouterr().err.splitlines()
    assert sorted(line.split()[0] for line in output if line.endswith("changed") and "unchanged" not in line) == [
        *("DaemonSet", "DaemonSet", "Deployment", "Deployment")
    ]
    assert run(cluster, "uninstall", "--role", "all", "--leader-namespace", area, "--dry-run") == 0
    assert there(cluster, objects) == all_names
    assert run(cluster, "uninstall", "--yes", "--role", "all", "--leader-namespace", area, "--timeout", "30") == 0
    assert there(cluster, objects) == []


def test_a_dry_run_stores_nothing(cluster: Cluster, area: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The server checks every object; those in a Namespace that is not there yet cannot be checked."""
    objects = printed(cluster, area, capsys)
    assert deploy(cluster, area, "--dry-run") == 0
    output = capsys.readouterr().err
    assert f"Deployment {cluster.namespace}/mcagent-member created (dry run)" in output
    assert f"Deployment {area}/mcagent-leader not checked: its Namespace is not there yet" in output
    assert there(cluster, objects) == []


@pytest.mark.usefixtures("area")
def test_fields_that_others_set_are_not_taken_over(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """A conflict names object and field; --force takes it over."""
    assert run(cluster, "deploy", "--clusterid", "east", "--apply", "--no-wait") == 0
    path = f"/apis/apps/v1/namespaces/{cluster.namespace}/deployments/mcagent-member"
    cluster.patch(path, {"spec": {"replicas": 3}})
    capsys.readouterr()
    assert run(cluster, "deploy", "--clusterid", "east", "--apply", "--no-wait") == 1
    output = capsys.readouterr().err
    assert f"Deployment {cluster.namespace}/mcagent-member has fields set by other managers" in output
    assert ".spec.replicas" in output
    assert run(cluster, "deploy", "--clusterid", "east", "--apply", "--no-wait", "--force") == 0
    assert cluster.client.request("GET", path)["spec"]["replicas"] == 2


def test_a_namespace_of_others_is_not_removed(cluster: Cluster, area: str) -> None:
    """The test's own Namespace was there before: it stays, and only what was installed in it goes."""
    config = cluster.create(cluster.configmaps, "theirs")
    assert run(cluster, "deploy", "--clusterid", "east", "--apply", "--no-wait", "--leader-namespace", area) == 0
    assert run(cluster, "uninstall", "--yes", "--timeout", "30") == 0
    assert (
        cluster.client.request("GET", f"{cluster.configmaps}/theirs")["metadata"]["uid"]
        == config["metadata"]["uid"]
    )
    assert not cluster.client.request("GET", f"/api/v1/namespaces/{cluster.namespace}")["metadata"].get(
        "deletionTimestamp"
    )
