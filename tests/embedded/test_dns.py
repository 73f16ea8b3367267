"""`mcagent dns` on an API server: the Corefile is changed and changed back, or left alone, with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from devtools.apiserver import ApiServer
from devtools.lab import certificates
from mcagent.api.doctor import CheckFinding
from mcagent.cli.main import main
from mcagent.doctor.checks.cluster import dns
from mcagent.doctor.examined import ExaminedCluster
from mcagent.kube.client import Client
from mcagent.kube.source import RawObject
from mcagent.model.config import Config

CONFIG_MAPS = "/api/v1/namespaces/kube-system/configmaps"
DEPLOYMENTS = "/apis/apps/v1/namespaces/kube-system/deployments"
COREFILE = """\
.:53 {
    errors
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        fallthrough in-addr.arpa ip6.arpa
    }
    reload
}
"""


@dataclass
class Site:
    """An API server with CoreDNS, and `mcagent dns` run against it."""

    kubeconfig: Path
    client: Client
    capsys: pytest.CaptureFixture[str]

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Run `mcagent dns`; return exit code, stdout and stderr."""
        self.capsys.readouterr()
        code = main(["dns", *arguments, "--kubeconfig", str(self.kubeconfig)])
        out, err = self.capsys.readouterr()
        return code, out, err

    @property
    def corefile(self) -> str:
        """What CoreDNS is told."""
        return str(self.client.request("GET", f"{CONFIG_MAPS}/coredns")["data"]["Corefile"])

    def change(self, patch: RawObject) -> None:
        """Change the ConfigMap of CoreDNS, as its owner does."""
        kind = "application/merge-patch+json"
        self.client.request("PATCH", f"{CONFIG_MAPS}/coredns", body=patch, content_type=kind)

    def findings(self) -> list[CheckFinding]:
        """Return what the doctor says of the names."""
        return list(dns.examine(ExaminedCluster(self.client, Config(node_name="n"))))

    def image(self, name: str) -> None:
        """Run another image."""
        containers = [{"name": "coredns", "image": name}]
        change = {"spec": {"template": {"spec": {"containers": containers}}}}
        kind = "application/merge-patch+json"
        self.client.request("PATCH", f"{DEPLOYMENTS}/coredns", body=change, content_type=kind)


@pytest.fixture
def site(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Site]:
    """Give an API server with a CoreDNS that is new enough."""
    identity = certificates.server_identity(tmp_path / "pki", ["127.0.0.1", "localhost"])
    with ApiServer(tls=identity, tokens=frozenset({"admin-token"})) as server:
        server.write_kubeconfig(tmp_path / "kubeconfig")
        client = Client(str(tmp_path / "kubeconfig"))
        have = {item["metadata"]["name"] for item in client.request("GET", "/api/v1/namespaces")["items"]}
        if "kube-system" not in have:
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system"}}
            client.request("POST", "/api/v1/namespaces", body=body)
        meta = {"name": "coredns", "namespace": "kube-system"}
        config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"Corefile": COREFILE}}
        client.request("POST", CONFIG_MAPS, body=config_map)
        labels = {"k8s-app": "kube-dns"}
        containers = [{"name": "coredns", "image": "registry.k8s.io/coredns/coredns:v1.12.2"}]
        template = {"metadata": {"labels": labels}, "spec": {"containers": containers}}
        deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta}
        deployment["spec"] = {"selector": {"matchLabels": labels}, "template": template}
        client.request("POST", DEPLOYMENTS, body=deployment)
        yield Site(tmp_path / "kubeconfig", client, capsys)
        client.close()


def test_names_are_put_in_and_taken_out_again(site: Site) -> None:
    """Each action can be repeated, and `show` changes nothing."""
    code, shown, _ = site.run("show")
    assert (code, site.corefile) == (0, COREFILE)
    code, _, output = site.run("apply")
    assert code == 0
    assert "ConfigMap kube-system/coredns: clusterset.local added; CoreDNS loads it within" in output
    assert site.corefile == shown != COREFILE
    assert "is there already" in site.run("apply")[2]
    code, _, output = site.run("remove")
    assert (code, site.corefile) == (0, COREFILE)
    assert "clusterset.local removed" in output
    code, _, output = site.run("remove")
    assert (code, site.corefile) == (0, COREFILE)
    assert "mcagent dns has added nothing" in output


@pytest.mark.parametrize(
    ("image", "message"),
    [
        ("registry.k8s.io/coredns/coredns:v1.12.1", "CoreDNS is 1.12.1 and would not start again"),
        (
            "coredns:latest",
            'image "coredns:latest" of Deployment kube-system/coredns: CoreDNS must be 1.12.2 or newer',
        ),
    ],
)
def test_a_corefile_that_coredns_would_not_take_is_not_written(site: Site, image: str, message: str) -> None:
    """An older CoreDNS ends at a word that it does not know, and with it all names of the cluster."""
    site.image(image)
    code, _, error = site.run("apply")
    assert code != 0
    assert message in error
    assert site.corefile == COREFILE


def test_a_version_that_the_image_does_not_tell_is_named(site: Site) -> None:
    """By a flag."""
    site.image("coredns:latest")
    assert site.run("apply", "--coredns-version", "1.12.2")[0] == 0
    assert "multicluster" in site.corefile


def test_without_coredns_it_says_what_is_missing(site: Site) -> None:
    """`apply` fails; `remove` has nothing to do."""
    code, _, output = site.run("apply", "--configmap", "other")
    assert code != 0
    assert "ConfigMap kube-system/other is not there" in output
    assert site.run("remove", "--configmap", "other")[0] == 0


@pytest.mark.parametrize(
    ("mark", "owner"),
    [
        ({"labels": {"objectset.rio.cattle.io/hash": "bce283298811743a0386ab510f2f67ef74240c57"}}, "k3s or RKE2"),
        ({"labels": {"addonmanager.kubernetes.io/mode": "EnsureExists"}}, "an add-on manager, as of AKS"),
        ({"labels": {"eks.amazonaws.com/component": "coredns"}}, "EKS"),
        ({"annotations": {"meta.helm.sh/release-name": "rke2-coredns"}}, "a Helm release"),
    ],
)
def test_an_owner_that_may_write_its_corefile_back_is_named(site: Site, mark: RawObject, owner: str) -> None:
    """`apply` warns, also if it is repeated; when the owner has written, the doctor says so, and only then."""
    site.change({"metadata": mark})
    for _ in range(2):
        code, _, messages = site.run("apply")
        assert code == 0
        assert f"warning: ConfigMap kube-system/coredns belongs to {owner}, which may write" in messages
    assert [finding.level for finding in site.findings()] == ["ok"]
    site.change({"data": {"Corefile": COREFILE}})
    (finding,) = site.findings()
    assert (finding.level, finding.reason, finding.subject) == ("failed", "ZoneLost", "kube-system/coredns")
    assert owner in finding.why
    assert "--configmap coredns" in finding.do
    assert site.run("apply")[0] == 0
    assert [finding.level for finding in site.findings()] == ["ok"]
    site.change({"data": {"Corefile": COREFILE}})
    assert site.run("remove")[0] == 0
    assert [finding.seen for finding in site.findings()] == ["mcagent dns apply has configured nothing"]


def test_a_zone_of_an_earlier_version_is_checked_after_apply(site: Site) -> None:
    """`apply` of 0.1.0 set no label; without an owner nothing is warned of."""
    site.run("apply")
    site.change({"metadata": {"labels": {"mcagent.io/dns": None}}})
    assert [finding.seen for finding in site.findings()] == ["mcagent dns apply has configured nothing"]
    messages = site.run("apply")[2]
    assert "is there already" in messages
    assert "warning" not in messages
    assert [finding.seen for finding in site.findings()] == ["names are answered"]


def test_uninstall_takes_the_names_out(site: Site) -> None:
    """--dry-run says so and changes nothing; a leader alone leaves them; repeated, nothing is left to do."""
    kubeconfig = ("--kubeconfig", str(site.kubeconfig))
    assert site.run("apply")[0] == 0
    applied = site.corefile
    assert main(["uninstall", "--dry-run", *kubeconfig]) == 0
    assert "what mcagent dns added would be removed" in site.capsys.readouterr().err
    assert main(["uninstall", "--role", "leader", *kubeconfig]) == 0
    assert site.corefile == applied != COREFILE
    assert main(["uninstall", "--yes", *kubeconfig]) == 0
    assert "clusterset.local removed" in site.capsys.readouterr().err
    assert site.corefile == COREFILE
    assert main(["uninstall", "--yes", *kubeconfig]) == 0
    assert "nothing of role member is here" in site.capsys.readouterr().err


def test_names_stay_while_the_cluster_set_cannot_be_left(site: Site) -> None:
    """Imported Services are there until then."""
    group = "multicluster.crd.antrea.io"
    cluster_set = {
        "apiVersion": f"{group}/v1alpha2",
        "kind": "ClusterSet",
        "metadata": {"name": "global", "finalizers": ["mcagent.io/member"]},
        "spec": {"clusterID": "east", "leaders": [{"clusterID": "north", "server": "https://n", "secret": "s"}]},
    }
    site.client.request("POST", f"/apis/{group}/v1alpha2/namespaces/kube-system/clustersets", body=cluster_set)
    assert site.run("apply")[0] == 0
    applied = site.corefile
    assert main(["uninstall", "--yes", "--timeout", "0.1", "--kubeconfig", str(site.kubeconfig)]) == 1
    assert "ClusterSet kube-system/global is still held" in site.capsys.readouterr().err
    assert site.corefile == applied != COREFILE
