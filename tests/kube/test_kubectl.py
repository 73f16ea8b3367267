"""kubectl against the API servers: get, apply, patch, watch, delete, as people do it in the lab."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from mcagent.http.certificates import current
from tests.worlds.apiservers import Cluster

KUBECTL = os.environ.get("KUBECTL") or shutil.which("kubectl")
ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")

Kubectl = Callable[..., str]

GATEWAY = """
apiVersion: multicluster.crd.antrea.io/v1alpha1
kind: Gateway
metadata: {name: n1}
gatewayIP: 10.0.0.1
"""


@pytest.fixture
def kubectl(cluster: Cluster, tmp_path: Path) -> Kubectl:
    """Give a function that runs kubectl in the test's namespace and returns what it prints."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "KUBECONFIG": str(cluster.server.kubeconfig)}

    def run(*arguments: str, stdin: str = "", fails: bool = False) -> str:
        assert KUBECTL is not None
        done = subprocess.run(
            [KUBECTL, "-n", cluster.namespace, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            env=environment,
            check=False,
        )
        assert (done.returncode != 0) == fails, done.stderr
        return done.stderr if fails else done.stdout

    return run


def test_apply_get_patch_delete(kubectl: Kubectl) -> None:
    """An object goes through its life, also with server-side apply."""
    assert "created" in kubectl("apply", "-f", "-", stdin=GATEWAY)
    assert "unchanged" in kubectl("apply", "-f", "-", stdin=GATEWAY)
    assert "configured" in kubectl("apply", "-f", "-", stdin=GATEWAY.replace("10.0.0.1", "10.0.0.2"))
    kubectl("patch", "gateway", "n1", "--type=merge", "-p", '{"internalIP": "10.0.0.3"}')
    kubectl("label", "gateway", "n1", "app=web")
    kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=GATEWAY)
    items = json.loads(kubectl("get", "gateways", "-l", "app=web", "-o", "json"))["items"]
    assert [(obj["gatewayIP"], obj["internalIP"]) for obj in items] == [("10.0.0.1", "10.0.0.3")]
    kubectl("delete", "gateway", "n1", "--wait")
    assert "NotFound" in kubectl("get", "gateway", "n1", fails=True)


def test_a_wait_is_a_watch(kubectl: Kubectl) -> None:
    """`kubectl wait` sees a condition that is there, and the deletion of an object that is not."""
    kubectl("apply", "-f", str(ROOT / "deploy/helm/mcagent/files/crds"), "--server-side", "--force-conflicts")
    crd = "crd/gateways.multicluster.crd.antrea.io"
    assert "condition met" in kubectl("wait", "--for=condition=Established", crd, "--timeout=10s")
    kubectl("create", "configmap", "a", "--from-literal=k=v")
    kubectl("delete", "configmap", "--all")
    assert kubectl("get", "configmap", "-o", "name") == ""


def test_everything_to_deploy_is_taken(kubectl: Kubectl, cluster: Cluster, tmp_path: Path) -> None:
    """The manifests of deploy/ apply, and apply again without a change."""
    text = (
        (ROOT / "deploy/agent.yaml")
        .read_text()
        .replace("namespace: kube-system", f"namespace: {cluster.namespace}")
    )
    (tmp_path / "agent.yaml").write_text(text)
    files = ["-f", str(tmp_path / "agent.yaml")]
    assert kubectl("apply", *files).count("created") == 5
    assert kubectl("apply", *files).count("unchanged") == 5
    kubectl("delete", *files)


@pytest.mark.real_only
def test_webhooks_must_be_answered_once_they_are(kubectl: Kubectl) -> None:
    """As docs/antrea.md has it: applied again, a leader's webhooks keep the caBundle, and fail closed."""
    parts = (ROOT / "deploy/leader.yaml").read_text().split("\n---\n")
    hooks = next(part for part in parts if "kind: ValidatingWebhookConfiguration" in part)
    kubectl("apply", "-f", "-", stdin=hooks.replace("failurePolicy: Fail", "failurePolicy: Ignore"))
    name, field = "validatingwebhookconfiguration/mcagent-leader", "{.webhooks[0].clientConfig.caBundle}"
    try:
        wait = ("wait", name, f"--for=jsonpath={field}")
        assert "timed out" in kubectl(*wait, "--timeout=1s", fails=True)
        authority = current(None, ["mcagent-leader"], datetime.now(UTC)).authorities
        path, bundle = "/webhooks/{}/clientConfig/caBundle", base64.b64encode(authority).decode()
        written = [{"op": "add", "path": path.format(number), "value": bundle} for number in range(3)]
        kubectl("patch", name, "--type=json", "-p", json.dumps(written))
        assert "condition met" in kubectl(*wait, "--timeout=10s")
        kubectl("apply", "-f", "-", stdin=hooks)
        webhooks = json.loads(kubectl("get", name, "-o", "json"))["webhooks"]
        assert [hook["clientConfig"]["caBundle"] for hook in webhooks] == [bundle] * 3
        assert [hook["failurePolicy"] for hook in webhooks] == ["Fail", "Fail", "Ignore"]
    finally:
        kubectl("delete", name)
