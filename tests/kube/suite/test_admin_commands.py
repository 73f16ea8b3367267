"""The admin commands on real servers: the token that is made works, and for what its Role allows only."""

from __future__ import annotations

import base64
import stat
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from devtools.waiting import wait_until
from mcagent.cli.main import main
from mcagent.controller.admin.tokens import MEMBER_ROLE
from mcagent.kube.client import Client
from mcagent.kube.errors import ApiRefusalError
from tests.worlds.apiservers import Cluster

RBAC = "rbac.authorization.k8s.io"
GROUP = "multicluster.crd.antrea.io"


def run(cluster: Cluster, *arguments: str) -> int:
    """Run a command against the server, in the test's namespace."""
    return main([*arguments, "-n", cluster.namespace, "--kubeconfig", str(cluster.server.kubeconfig)])


@pytest.fixture
def leader(cluster: Cluster) -> Cluster:
    """Give a namespace with the members' Role."""
    rules = [{"apiGroups": [GROUP], "resources": ["resourceexports"], "verbs": ["get", "list"]}]
    body = {"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": {"name": MEMBER_ROLE}, "rules": rules}
    cluster.client.request("POST", cluster.path("roles", group=RBAC), body=body)
    return cluster


@pytest.mark.real_only
@pytest.mark.controllers
def test_a_member_token_opens_what_its_role_allows(leader: Cluster, tmp_path: Path) -> None:
    """The token in the file is the ServiceAccount's; after `delete` it is nobody's."""

    def member(cluster_id: str) -> Client:
        file = tmp_path / f"{cluster_id}.yaml"
        create = ("membertoken", "create", cluster_id, "--cluster-id", cluster_id, "--expires", "never")
        assert run(leader, *create, "-o", str(file)) == 0
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        secret = yaml.safe_load(file.read_text())
        assert base64.b64decode(secret["data"]["namespace"]).decode() == leader.namespace
        return leader.server.as_token(base64.b64decode(secret["data"]["token"]).decode())

    def answers(client: Client, code: int) -> bool:
        try:
            client.request("GET", exports)
        except ApiRefusalError as error:
            return error.code == code
        return code == 200

    exports = leader.path("resourceexports", group=GROUP, version="v1alpha1")

    with closing(member("east")) as east, closing(member("west")) as west:
        wait_until(lambda: answers(east, 200), "the member to be let in", timeout=20)
        assert leader.refused("GET", leader.path("secrets"), client=east).code == 403
        # Of a token that was used a real server believes for ten seconds that it is good: west's was not.
        assert run(leader, "membertoken", "delete", "west", "--yes") == 0
        wait_until(lambda: answers(west, 401), "the token to be nobody's", timeout=30)


def test_init_and_destroy(leader: Cluster, tmp_path: Path) -> None:
    """A ClusterSet is made with its join config, refused a second time, and gone after destroy."""
    file = tmp_path / "join.yaml"
    arguments = ("clusterset", "init", "--clusterset", "blue", "--clusterid", "north")
    assert run(leader, *arguments, "-j", str(file)) == 0
    assert yaml.safe_load(file.read_text())["leaderAPIServer"] == leader.client.server
    assert run(leader, *arguments) == 1
    assert run(leader, "get", "clusterset", "blue") == 0
    assert run(leader, "clusterset", "destroy", "--clusterset", "blue") == 0
    sets = leader.path("clustersets", group=GROUP, version="v1alpha2")
    assert leader.client.request("GET", sets)["items"] == []


def test_a_join_that_fails_leaves_nothing(cluster: Cluster, tmp_path: Path) -> None:
    """Nobody answers for the ClusterSet here, so it and its Secret are taken back."""
    data = {"ca.crt": "Y2E=", "token": "dG9rZW4="}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "east"}, "data": data}
    (tmp_path / "secret").write_text(yaml.safe_dump(secret))
    flags: tuple[str, ...] = ("--clusterset", "blue", "--clusterid", "east", "--leader-clusterid", "north")
    flags += ("--leader-namespace", "mcs", "--leader-apiserver", "https://127.0.0.1:1", "--timeout", "1")
    assert run(cluster, "clusterset", "join", *flags, "--token-secret-file", str(tmp_path / "secret")) == 1
    sets = cluster.path("clustersets", group=GROUP, version="v1alpha2")
    assert cluster.client.request("GET", sets)["items"] == []
    names = [item["metadata"]["name"] for item in cluster.client.request("GET", cluster.path("secrets"))["items"]]
    assert "east" not in names
