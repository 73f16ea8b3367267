"""A real kube-apiserver as a client of the webhook: its certificate, and what it does when the webhook is busy."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from devtools.realapi import RealApiServer, find
from devtools.realapi.binaries import HINT
from mcagent.controller.admission.decision import AdmissionDecision
from mcagent.controller.webhook.clients import ClientCertificates
from mcagent.controller.webhook.server import WebhookServer
from mcagent.controller.webhook.work import LEAST_WORK, WorkLimit
from mcagent.http import certificates
from mcagent.http.certificates import context_of
from mcagent.kube.client import Client
from tests.waiting import until
from tests.worlds.apiservers import leave_out, refusal
from tests.worlds.client_certificates import Authority

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
HOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"


def admission_configuration(directory: Path, client: Path) -> Path:
    """Write the files that docs/deploy.md describes; return the one for --admission-control-config-file."""
    user = {"client-certificate": str(client), "client-key": str(client)}
    config = {"apiVersion": "v1", "kind": "Config", "users": [{"name": "*", "user": user}]}
    kubeconfig = directory / "webhooks.kubeconfig"
    kubeconfig.write_text(json.dumps(config))
    webhooks = {
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "WebhookAdmissionConfiguration",
        "kubeConfigFile": str(kubeconfig),
    }
    names = ("ValidatingAdmissionWebhook", "MutatingAdmissionWebhook")
    plugins = [{"name": name, "configuration": webhooks} for name in names]
    file = directory / "admission.json"
    content = {"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration", "plugins": plugins}
    file.write_text(json.dumps(content))
    return file


@pytest.fixture(scope="module")
def authority() -> Authority:
    """Give the authority of the API server's client certificate."""
    return Authority()


@pytest.fixture(scope="module")
def api(
    request: pytest.FixtureRequest, authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Client]:
    """Run an API server with a client certificate for webhooks; give an administrator's client."""
    if find() is None:
        leave_out(request, f"no kube-apiserver and etcd on this machine: {HINT}")
    directory = tmp_path_factory.mktemp("api")
    own = authority.client(directory / "apiserver.pem", "kube-apiserver-webhooks")
    flag = f"--admission-control-config-file={admission_configuration(directory, own)}"
    with RealApiServer(directory / "real", flags=[flag]) as server:
        server.write_kubeconfig(directory / "kubeconfig")
        client = Client(str(directory / "kubeconfig"), user_agent="admin")
        yield client
        client.close()


class Hook:
    """A webhook of ConfigMaps with the label `reviewed`. `decide` may wait."""

    def __init__(self, api: Client, **options: Any) -> None:
        self.api, self.released, self.asked = api, threading.Event(), 0
        self.server = WebhookServer(("127.0.0.1", 0), {"/validate": self._review}, **options)
        self.material = certificates.current(None, ("localhost",), datetime.now(UTC))
        self.server.use(context_of(self.material.certificate, self.material.key))
        url = f"https://localhost:{self.server.port}/validate"
        bundle = base64.b64encode(self.material.authorities).decode()
        webhook = {
            "name": "configmaps.mcagent.test",
            "clientConfig": {"url": url, "caBundle": bundle},
            "rules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["*"]}
            ],
            "objectSelector": {"matchLabels": {"reviewed": "yes"}},
            "sideEffects": "None",
            "failurePolicy": "Fail",
            "admissionReviewVersions": ["v1"],
            "timeoutSeconds": 30,
        }
        head = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration"}
        api.request("POST", HOOKS, body={**head, "metadata": {"name": "test"}, "webhooks": [webhook]})
        until(lambda: self.write("probe", dryRun="All") or self.server.counts())  # it is in force

    def _review(self, request: Mapping[str, Any]) -> AdmissionDecision:
        if request["name"] == "slow":
            self.asked += 1
            self.released.wait(60)
        return AdmissionDecision(allowed=True)

    def write(self, name: str, **query: str) -> str:
        """Create a ConfigMap that is reviewed; return "" or why it was refused."""
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"reviewed": "yes"}}}
        refused = refusal(self.api, "POST", CONFIG_MAPS, body, **query)
        return "" if refused is None else str(refused)

    def close(self) -> None:
        """Remove it."""
        self.api.request("DELETE", f"{HOOKS}/test")
        self.server.close()


def test_an_api_server_presents_its_certificate(api: Client, authority: Authority) -> None:
    """With webhook.clientCA and clientNames its reviews are answered."""
    clients = ClientCertificates(authorities=authority.pem, names=("kube-apiserver-webhooks",))
    hook = Hook(api, clients=clients)
    assert hook.write("certified") == ""
    assert hook.server.counts()["other", "allowed"] >= 1
    hook.close()


@pytest.mark.parametrize("names", [("kube-apiserver-kubelet-client",), ()])
def test_an_api_server_with_another_certificate_is_refused(
    api: Client, authority: Authority, names: tuple[str, ...]
) -> None:
    """Another name, and another authority: the write fails with a message of the webhook or of TLS."""
    trusted = authority if names else Authority()
    hook = Hook(api, clients=ClientCertificates(authorities=trusted.pem, names=names))
    assert ("another common name" if names else "tls:") in hook.write("refused")
    assert ("other", "allowed") not in hook.server.counts()
    hook.close()


def test_an_api_server_repeats_a_review_that_comes_too_soon(api: Client) -> None:
    """A review that gets 429 is sent again by kube-apiserver itself: the write waits, and succeeds."""
    hook = Hook(api, work=WorkLimit(2 * LEAST_WORK))  # one at a time
    refusals: list[str] = []
    writers = [
        threading.Thread(target=lambda name=name: refusals.append(hook.write(name))) for name in ("slow", "next")
    ]
    writers[0].start()
    until(lambda: hook.asked == 1)
    writers[1].start()
    until(lambda: hook.server.counts().get(("unknown", "busy"), 0) > 0)
    hook.released.set()
    for writer in writers:
        writer.join()
    assert refusals == ["", ""]
    hook.close()
