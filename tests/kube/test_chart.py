"""The Helm chart by Helm: linted, rendered for every role; installed, upgraded, removed on a real API server."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from mcagent.cli.main import main
from mcagent.kube.errors import ApiRefusalError
from tests.apiservers import Cluster, Server, collection, leave_out

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/helm/mcagent"
ALL = {
    "everything": (
        "leader.enabled=true",
        "leader.allNamespaces=true",
        "leader.hostNetwork=true",
        "member.hostNetwork=true",
        "admissionPolicies.enabled=true",
        "imagePullSecrets[0].name=registry",
        "member.networkPolicy.webhookFrom={10.0.0.0/8,192.168.0.0/16}",
        "dns.configureCoreDNS=true",
        "dns.coreDNS.version=1.15.0",
        "agent.config.clusterID=east",
        "agent.config.wireGuard.port=51900",
        "agent.addedCapabilities={DAC_OVERRIDE}",
        "metricsReader.subjects[0].kind=ServiceAccount",
        "metricsReader.subjects[0].name=prometheus",
        "metricsReader.subjects[0].namespace=monitoring",
    ),
    "own-certificate": (
        "member.webhook.certSecret=cert",
        "member.webhook.annotations.cert-manager\\.io/inject-ca-from=x/y",
    ),
    "agent-alone": ("member.enabled=false",),
    "openvswitch-of-antrea": (
        "openvswitch.deploy=never",
        "openvswitch.directory=/var/run/antrea/openvswitch",
    ),
    "leader-alone": ("agent.enabled=false", "member.enabled=false", "leader.enabled=true"),
}
Helm = Callable[..., str]


@pytest.fixture
def helm(request: pytest.FixtureRequest, tmp_path: Path) -> Helm:
    """Give a function that runs Helm and returns what it prints; the test is left out where there is none."""
    found = subprocess.run([ROOT / "tests/helm/find-helm"], capture_output=True, text=True, check=False)
    if found.returncode:
        leave_out(request, f"{found.stderr.strip()} (make chart does)")

    def run(*arguments: str, fails: bool = False, kubeconfig: str = "/dev/null") -> str:
        done = subprocess.run(
            [found.stdout.strip(), *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "KUBECONFIG": kubeconfig},
            check=False,
        )
        assert (done.returncode != 0) == fails, done.stderr
        return done.stderr if fails else done.stdout

    return run


def sets(values: tuple[str, ...]) -> list[str]:
    """Return the flags that set values."""
    return [word for value in values for word in ("--set", value)]


def test_lint_has_no_finding(helm: Helm) -> None:
    """`helm lint --strict` is content."""
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("agent.config.clusterId=x", "additional properties 'clusterId' not allowed"),
        ("leader.enabled=true,leader.namespace=mc", "choose another leader.namespace"),
        ("agent.enabled=false,member.enabled=false", "nothing to install"),
    ],
)
def test_what_is_wrong_is_said(helm: Helm, value: str, said: str) -> None:
    """Helm's error names the value."""
    assert said in helm("template", "mcagent", str(CHART), "-n", "mc", "--set", value, fails=True)


def test_every_crd_stays_when_the_release_goes(helm: Helm) -> None:
    """And so does what users have stored under it; `crds.keep=false` gives that up."""
    for keep in (True, False):
        made = helm(
            "template", "mcagent", str(CHART), *sets(("leader.enabled=true", f"crds.keep={str(keep).lower()}"))
        )
        crds = [obj for obj in yaml.safe_load_all(made) if obj and obj["kind"] == "CustomResourceDefinition"]
        assert len(crds) == len([*(CHART / "files/crds").glob("*.yaml")])
        kept = [obj["metadata"].get("annotations", {}).get("helm.sh/resource-policy") == "keep" for obj in crds]
        assert kept == [keep] * len(crds)


@pytest.mark.parametrize(("replicas", "host_network", "away"), [(2, False, 1), (1, False, 0), (1, True, 1)])
def test_one_replica_answers_until_the_next_does(helm: Helm, replicas: int, host_network: bool, away: int) -> None:
    """A roll-out ends the only replica once another is ready, unless both want the ports of one Node."""
    values = (f"member.replicas={replicas}", f"member.hostNetwork={str(host_network).lower()}")
    made = by_name(helm("template", "mcagent", str(CHART), *sets(values)))
    (controller,) = (obj for name, obj in made.items() if name.startswith("Deployment"))
    assert controller["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": away, "maxSurge": 1}


def test_webhooks_of_a_leader_may_be_missed_for_a_takeover(helm: Helm) -> None:
    """With failurePolicy Ignore nothing of a leader is refused while its controller does not answer."""
    values = ("agent.enabled=false", "member.enabled=false", "leader.enabled=true", "leader.allNamespaces=true")
    for policy, found in (("Fail", {"Fail", "Ignore"}), ("Ignore", {"Ignore"})):
        flags = sets((*values, f"leader.webhook.failurePolicy={policy}"))
        made = by_name(helm("template", "mcagent", str(CHART), *flags))
        hooks = [hook["failurePolicy"] for obj in made.values() for hook in obj.get("webhooks", ())]
        assert set(hooks) == found


def test_the_command_deploys_what_the_chart_makes(helm: Helm, capsys: pytest.CaptureFixture[str]) -> None:
    """`mcagent deploy` with the same values gives the same objects, in other namespaces than the defaults, too."""
    made = helm("template", "mcagent", str(CHART), "-n", "mc", *sets(("leader.namespace=area", *DEPLOYED)))
    assert main(["deploy", "-n", "mc", "--leader-namespace", "area", *DEPLOY]) == 0
    ours = by_name(capsys.readouterr().out)
    assert ours.pop("Namespace mc")["metadata"]["labels"] == {"app.kubernetes.io/name": "mcagent"}
    assert ours == by_name(made)


DEPLOYED = (
    *("leader.enabled=true", "leader.allNamespaces=true", "admissionPolicies.enabled=true"),
    *("image.repository=reg/mcagent", "image.tag=v7", "openvswitch.image.repository=reg/mcagent-openvswitch"),
    *("openvswitch.deploy=always", "agent.config.clusterID=east", "agent.config.podCIDRs={10.2.0.0/16}"),
    *("agent.config.wireGuard.port=51900", "member.config.maxActiveGateways=3", "leader.config.staleAfter=1h"),
    "member.config.enableStretchedNetworkPolicy=true",
)
DEPLOY = (
    *("--role", "all", "--with", "leader-all-namespaces", "--with", "admission-policies", "--clusterid", "east"),
    *("--image", "reg/mcagent:v7", "--openvswitch", "always", "--set", "agent.config.podCIDRs=[10.2.0.0/16]"),
    *("--set", "agent.config.wireGuard.port=51900", "--set", "member.config.maxActiveGateways=3"),
    *("--set", "leader.config.staleAfter=1h", "--set", "member.config.enableStretchedNetworkPolicy=true"),
)


def by_name(text: str) -> dict[str, dict[str, Any]]:
    """Return manifests by what they are called, without Helm's annotation; namespaces and configurations read."""
    found = {}
    for manifest in filter(None, yaml.safe_load_all(text)):
        kind, meta = manifest["kind"], manifest["metadata"]
        meta.get("annotations", {}).pop("helm.sh/resource-policy", None)
        if not meta.get("annotations", True):
            del meta["annotations"]
        if kind in ("ServiceAccount", "ConfigMap", "DaemonSet"):
            meta.setdefault("namespace", "mc")
        if kind == "ConfigMap":
            manifest["data"] = {file: yaml.safe_load(content) for file, content in manifest["data"].items()}
        found[" ".join(filter(None, (kind, meta.get("namespace"), meta["name"])))] = manifest
    return found


@pytest.mark.real_only
@pytest.mark.parametrize("name", ALL)
def test_a_real_api_server_takes_what_is_rendered(helm: Helm, cluster: Cluster, name: str) -> None:
    """Strict validation of every field of every object, in another namespace than the default."""
    here = cluster.namespace
    made = helm("template", "mcagent", str(CHART), "-n", here, *sets(("leader.namespace=default", *ALL[name])))
    for manifest in yaml.safe_load_all(made):
        if manifest is not None and manifest["kind"] not in ("CustomResourceDefinition", "Namespace"):
            manifest["metadata"].setdefault("namespace", here)
            dry_run(cluster.server, manifest)


def dry_run(server: Server, manifest: dict[str, Any]) -> None:
    """Have the API server judge an object without storing it; one that is there already is right, too."""
    if manifest["kind"].startswith("Cluster") or "admissionregistration" in manifest["apiVersion"]:
        manifest["metadata"].pop("namespace")
    try:
        query = {"dryRun": "All", "fieldValidation": "Strict"}
        server.client.request("POST", collection(server.client, manifest), query, body=manifest)
    except ApiRefusalError as error:
        if error.code != 409:
            raise


@pytest.mark.real_only
def test_install_upgrade_roll_back_and_remove(helm: Helm, cluster: Cluster) -> None:
    """What controllers filled in stays over an upgrade and a roll-back; CRDs stay after the release's end."""
    kubeconfig = str(cluster.server.kubeconfig)
    here = ("-n", cluster.namespace)
    flags = sets(("crds.install=false", "agent.config.clusterID=east"))

    def run(*arguments: str) -> str:
        return helm(*arguments, *here, kubeconfig=kubeconfig)

    def get(path: str) -> Any:
        return cluster.server.client.request("GET", path)

    secret = f"/api/v1/namespaces/{cluster.namespace}/secrets/mcagent-member-webhook"
    daemons = f"/apis/apps/v1/namespaces/{cluster.namespace}/daemonsets/mcagent-agent"
    notes = run("install", "mcagent", str(CHART), "--take-ownership", *flags)
    assert "mcagent clusterset join" in notes
    filled = {"data": {"tls.crt": "eA=="}}
    cluster.server.client.request("PATCH", secret, body=filled, content_type="application/merge-patch+json")
    run("upgrade", "mcagent", str(CHART), *flags, *sets(("image.tag=9.9.9",)))
    assert get(secret)["data"] == {"tls.crt": "eA=="}
    assert get(daemons)["spec"]["template"]["spec"]["containers"][0]["image"] == "mcagent:9.9.9"
    run("rollback", "mcagent", "1")
    assert get(daemons)["spec"]["template"]["spec"]["containers"][0]["image"].endswith(":0.1.0")
    run("uninstall", "mcagent")
    with pytest.raises(ApiRefusalError, match=r"not found|404"):
        get(daemons)
    assert get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")["items"]
