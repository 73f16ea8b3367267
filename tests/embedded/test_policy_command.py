"""`mcagent policy` against the API servers of two clusters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from devtools.apiserver import ApiServer
from mcagent.cli.main import main
from mcagent.kube.client import Client
from mcagent.model.kinds import object_path
from mcagent.model.objects import Kind
from mcagent.model.parsing.labels import label_hash, normalised
from tests.worlds.policy_manifests import Manifest, manifest

CRD = Path(__file__).parents[2] / "deploy/helm/mcagent/files/crds/labelidentities.yaml"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WEB = normalised("shop", {}, {"app": "web"})


def pod(space: str, name: str, ip: str, app: str) -> Manifest:
    """Return a running Pod."""
    status = {"phase": "Running", "podIPs": [{"ip": ip}]}
    return manifest("v1", "Pod", name, space, labels={"app": app}, spec={"nodeName": "node-1"}, status=status)


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[Path]:
    """The kubeconfig of two clusters: a web Pod in east, a database in west, whose policy lets it in."""
    label = manifest("multicluster.crd.antrea.io/v1alpha1", "LabelIdentity", label_hash(WEB))
    label["metadata"]["annotations"] = {"mcagent.io/exporters": "east"}
    peer = {"podSelector": {"matchLabels": {"app": "web"}}, "namespaceSelector": {}}
    spec = {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{"from": [peer]}]}
    policy = manifest("networking.k8s.io/v1", "NetworkPolicy", "web", "data", spec=spec)
    policy["metadata"]["annotations"] = {"mcagent.io/scope": "ClusterSet"}
    objects = {
        "east": [
            (Kind.NAMESPACE, manifest("v1", "Namespace", "shop")),
            (Kind.POD, pod("shop", "web-0", "10.1.0.2", "web")),
        ],
        "west": [
            (Kind.NAMESPACE, manifest("v1", "Namespace", "data")),
            (Kind.POD, pod("data", "db-0", "10.2.0.2", "db")),
            (Kind.LABEL_IDENTITY, label | {"spec": {"label": WEB, "id": 9}}),
            (Kind.NETWORK_POLICY, policy),
        ],
    }
    whole: Manifest = {"apiVersion": "v1", "kind": "Config", "clusters": [], "contexts": [], "users": []}
    with ExitStack() as stack:
        for cluster, those in objects.items():
            server = stack.enter_context(ApiServer())
            file = tmp_path / cluster
            server.write_kubeconfig(file)
            client = Client(str(file))
            if cluster == "west":
                client.request("POST", CRDS, body=yaml.safe_load(CRD.read_text()))
            for kind, body in those:
                path = object_path(kind, body["metadata"].get("namespace", ""))
                client.request("POST", path, body=body)
                if kind is Kind.POD:
                    change = {"status": body["status"]}
                    where = f"{path}/{body['metadata']['name']}/status"
                    client.request("PATCH", where, body=change, content_type="application/merge-patch+json")
            client.close()
            own = json.loads(file.read_text())
            for part, holder in (("clusters", "cluster"), ("users", "user")):
                whole[part] += [{"name": cluster, holder: obj[holder]} for obj in own[part]]
            whole["contexts"].append({"name": cluster, "context": {"cluster": cluster, "user": cluster}})
        (tmp_path / "both").write_text(json.dumps(whole))
        yield tmp_path / "both"


def test_explain_asks_both_clusters(kubeconfig: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each end on its own Node; clusters without Antrea, and one without LabelIdentities, do."""
    ends = ("--from", "shop/web-0", "--to", "data/db-0", "--context", "east", "--to-context", "west")
    assert main(["policy", "explain", *ends, "--kubeconfig", str(kubeconfig), "-o", "json"]) == 0
    out, sent = json.loads(capsys.readouterr().out)["decisions"]
    assert (out["context"], out["direction"], out["policy"]) == ("east", "egress", "")
    assert (sent["context"], sent["direction"], sent["peerIdentity"]) == ("west", "ingress", 9)
    assert (sent["policy"], sent["rule"], sent["peerCluster"]) == ("NetworkPolicy data/web", "ingress[0]", "east")


def test_list_adds_what_is_not_applied(
    kubeconfig: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cluster's rules with those of a file."""
    spec = {"podSelector": {}, "policyTypes": ["Egress"], "egress": [{}]}
    policy = manifest("networking.k8s.io/v1", "NetworkPolicy", "more", "data", spec=spec)
    (tmp_path / "more.json").write_text(json.dumps(policy))
    arguments = ("policy", "list", "--context", "west", "--kubeconfig", str(kubeconfig), "-o", "json")
    assert main([*arguments, "-f", str(tmp_path / "more.json")]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [(rule["policy"], rule["pods"]) for rule in document["rules"]] == [
        ("NetworkPolicy data/more", ["data/db-0"]),
        ("NetworkPolicy data/web", ["data/db-0"]),
    ]
    assert [rule["direction"] for rule in document["isolated"]] == ["egress", "ingress"]
