"""`mcagent migrate check` on an API server: what it reads, says and answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from devtools.apiserver import ApiServer
from devtools.lab import certificates
from devtools.waiting import wait_until
from mcagent.cli.main import main
from mcagent.kube.client import Client
from mcagent.kube.errors import ApiRefusalError
from mcagent.model.kinds import object_path
from mcagent.model.objects import Kind
from tests.worlds.crds import create_crds

AREA = "antrea-multicluster"


def made(client: Client, body: dict[str, Any]) -> bool:
    """Create an announcement, as soon as the kind is served."""
    try:
        client.request("POST", object_path(Kind.MEMBER_CLUSTER_ANNOUNCE, AREA), body=body)
    except ApiRefusalError as error:
        if error.code != 404:
            raise
        return False
    return True


def test_it_says_what_is_left_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An account without annotation has to be annotated; then the answer is yes. Nothing is written."""
    identity = certificates.server_identity(tmp_path / "pki", ["127.0.0.1", "localhost"])
    kubeconfig = tmp_path / "kubeconfig"
    with ApiServer(tls=identity, tokens=frozenset({"admin"})) as api:
        api.write_kubeconfig(kubeconfig)
        client = Client(str(kubeconfig), user_agent="tests")
        assert main(["migrate", "check", "leader", "--kubeconfig", str(kubeconfig)]) == 0
        create_crds(client)
        client.request("POST", object_path(Kind.NAMESPACE, ""), body={"metadata": {"name": AREA}})
        path = object_path(Kind.SERVICE_ACCOUNT, AREA)
        client.request("POST", path, body={"metadata": {"name": "member-west"}})
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "antrea-mc-member-cluster-role"}
        subject = {"kind": "ServiceAccount", "name": "member-west", "namespace": AREA}
        binding = {"metadata": {"name": "member-west"}, "roleRef": role, "subjects": [subject]}
        client.request("POST", object_path(Kind.ROLE_BINDING, AREA), body=binding)
        announce: dict[str, Any] = {"clusterID": "west", "clusterSetID": "blue", "leaderClusterID": "north"}
        body = {"apiVersion": "multicluster.crd.antrea.io/v1alpha1", "kind": "MemberClusterAnnounce", **announce}
        body |= {"metadata": {"name": "member-announce-from-west"}}
        wait_until(lambda: made(client, body), "the CRDs to be served")
        capsys.readouterr()
        assert main(["migrate", "check", "leader", "--kubeconfig", str(kubeconfig)]) == 1
        assert "must     ServiceAccount antrea-multicluster/member-west" in capsys.readouterr().out
        note = {"metadata": {"annotations": {"multicluster.antrea.io/cluster-id": "west"}}}
        kind = "application/merge-patch+json"
        client.request("PATCH", f"{path}/member-west", body=note, content_type=kind)
        assert main(["migrate", "check", "leader", "-o", "json", "--kubeconfig", str(kubeconfig)]) == 0
        assert "must" not in {item["level"] for item in json.loads(capsys.readouterr().out)}
        export: dict[str, Any] = {
            "spec": {"clusterID": "west", "kind": "\x1b[31mred", "name": "a", "namespace": "b"}
        }
        export |= {"apiVersion": "multicluster.crd.antrea.io/v1alpha1", "kind": "ResourceExport"}
        export |= {"metadata": {"name": "west-red"}}
        client.request("POST", object_path(Kind.RESOURCE_EXPORT, AREA), body=export)
        assert main(["migrate", "check", "leader", "--kubeconfig", str(kubeconfig)]) == 0
        out = capsys.readouterr().out
        assert "1 of kind \\x1b[31mred" in out
        assert "\x1b" not in out  # it would act on the administrator's terminal
        client.close()
