"""Who may ask the webhook, and how much at once: client certificates, work in progress, sizes; over real TLS."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mcagent.config.reader import ConfigError
from mcagent.controller.admission.decision import AdmissionDecision
from mcagent.controller.config import ControllerRole, load
from mcagent.controller.webhook.clients import ClientCertificates
from mcagent.controller.webhook.server import MAX_BODY, WebhookServer, body_limit
from mcagent.controller.webhook.work import LEAST_WORK, WorkLimit
from mcagent.http import certificates
from mcagent.http.certificates import context_of
from tests.waiting import until
from tests.worlds.client_certificates import Authority

NAME = "mcagent-leader.mc.svc"
OTHER = "127.0.0.66"  # a client with another address than 127.0.0.1


def review(**request: Any) -> bytes:
    """Return the body of an AdmissionReview."""
    full = {"uid": "123", "operation": "UPDATE", "kind": {"kind": "ResourceExport"}, "name": "x", **request}
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": full}).encode()


def allow(_request: Mapping[str, Any]) -> AdmissionDecision:
    """Allow every request."""
    return AdmissionDecision(allowed=True)


class Hook:
    """A webhook that serves, and clients that trust its certificate."""

    def __init__(self, decide: Callable[[Mapping[str, Any]], AdmissionDecision], **options: Any) -> None:
        self.server = WebhookServer(("127.0.0.1", 0), {"/validate": decide}, **options)
        self.material = certificates.current(None, (NAME,), datetime.now(UTC))
        self.server.use(context_of(self.material.certificate, self.material.key))

    def post(
        self, body: bytes, *, client: Path | None = None, source: str = "127.0.0.1", length: int = 0
    ) -> http.client.HTTPResponse:
        """Return the answer, read. Raises OSError where TLS or the connection fails."""
        context = ssl.create_default_context(cadata=self.material.authorities.decode())
        if client is not None:
            context.load_cert_chain(client)
        with (
            socket.create_connection(("127.0.0.1", self.server.port), 10, (source, 0)) as raw,
            context.wrap_socket(raw, server_hostname=NAME) as secured,
        ):
            connection = http.client.HTTPConnection("127.0.0.1", self.server.port)
            connection.sock = secured
            connection.request("POST", "/validate", body, {"Content-Length": str(length or len(body))})
            answer = connection.getresponse()
            answer.read()
        return answer


@contextmanager
def hook(decide: Callable[[Mapping[str, Any]], AdmissionDecision] = allow, **options: Any) -> Iterator[Hook]:
    """Run a webhook."""
    webhook = Hook(decide, **options)
    try:
        yield webhook
    finally:
        webhook.server.close()


# --- client certificates ------------------------------------------------------------------------------------


def test_only_clients_with_a_certificate_are_served(tmp_path: Path) -> None:
    """With webhook.clientCA TLS needs a certificate of that authority: none, and another authority's, fail."""
    authority, stranger = Authority(), Authority()
    with hook(clients=ClientCertificates(authorities=authority.pem)) as served:
        assert (
            served.post(review(), client=authority.client(tmp_path / "good.pem", "kube-apiserver")).status == 200
        )
        for client in (None, stranger.client(tmp_path / "other.pem", "kube-apiserver")):
            with pytest.raises(OSError, match=r"alert|reset|closed|EOF"):
                served.post(review(), client=client)
        assert served.server.counts() == {("ResourceExport", "allowed"): 1}


def test_a_certificate_needs_one_of_the_names(tmp_path: Path) -> None:
    """With webhook.clientNames another common name of the same authority gets 403, before its body is read."""
    authority = Authority()
    clients = ClientCertificates(authorities=authority.pem, names=("system:apiserver", "kube-apiserver"))
    with hook(clients=clients) as served:
        assert (
            served.post(review(), client=authority.client(tmp_path / "good.pem", "kube-apiserver")).status == 200
        )
        kubelet = authority.client(tmp_path / "kubelet.pem", "system:node:n1")
        assert served.post(review(), client=kubelet).status == 403


def test_several_authorities_are_trusted(tmp_path: Path) -> None:
    """While an authority is replaced, certificates of both are accepted."""
    old, new = Authority(), Authority()
    with hook(clients=ClientCertificates(authorities=old.pem + new.pem)) as served:
        for name, authority in (("old", old), ("new", new)):
            assert served.post(review(), client=authority.client(tmp_path / name, "x")).status == 200


def test_the_keys_of_the_configuration(tmp_path: Path) -> None:
    """PEM is read as YAML has it; errors name the key, and do not repeat the text, which may be a key."""
    file = tmp_path / "controller.yaml"
    pem = Authority().pem

    def configured(**webhook: Any) -> Any:
        file.write_text(json.dumps({"webhook": webhook}))
        return load(ControllerRole.LEADER, file, {}, {})

    settings = configured(clientCA=pem + "\n" + pem, clientNames=["kube-apiserver"])
    assert settings.webhook_client_ca == pem + "\n" + pem
    assert settings.webhook_client_names == ("kube-apiserver",)
    assert load(ControllerRole.LEADER, None, {"MCAGENT_CONTROLLER_WEBHOOK_CLIENT_CA": pem}, {}).webhook_client_ca
    broken = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
    for webhook, error in (
        ({"clientCA": broken}, "webhook.clientCA: cannot be used as certificates of authorities"),
        ({"clientCA": "-----BEGIN PRIVATE KEY-----\nMIIB"}, "webhook.clientCA: must be PEM certificates"),
        ({"clientNames": ["kube-apiserver"]}, "webhook.clientNames: needs webhook.clientCA"),
        ({"clientCA": pem, "clientNames": ["a b"]}, r"webhook.clientNames\[0\]: not a common name"),
    ):
        with pytest.raises(ConfigError, match=error) as caught:
            configured(**webhook)
        assert "MIIB" not in str(caught.value)


# --- work in progress ---------------------------------------------------------------------------------------


def test_a_client_has_as_much_work_as_it_leaves_to_others() -> None:
    """One client gets half, the next one half of the rest."""
    limit = WorkLimit(16 * LEAST_WORK)
    with ExitStack() as work:

        def admitted(source: str) -> int:
            return sum(work.enter_context(limit.work(source, 1)) for _ in range(16))

        assert [admitted(source) for source in ("a", "b", "c", "a")] == [8, 4, 2, 0]


def test_ended_work_counts_no_more() -> None:
    """Work is counted by its bytes until its end, also if it fails."""
    limit = WorkLimit(4 * LEAST_WORK)

    def fail() -> None:
        with limit.work("a", 2 * LEAST_WORK) as admitted, limit.work("a", 1) as second:
            assert (admitted, second) == (True, False)
            raise KeyError

    for _ in range(3):
        with pytest.raises(KeyError):
            fail()
    with limit.work("a", 2 * LEAST_WORK + 1) as admitted:
        assert not admitted  # more than half


def test_a_client_with_too_much_work_is_refused_at_once() -> None:
    """Its reviews beyond the limit get 429 with Retry-After; other clients are answered, and later it is, too."""
    release, waiting = threading.Event(), threading.Semaphore(0)

    def decide(request: Mapping[str, Any]) -> AdmissionDecision:
        if request["name"] == "slow":
            waiting.release()
            release.wait(60)
        return AdmissionDecision(allowed=True)

    with hook(decide, work=WorkLimit(8 * LEAST_WORK)) as served:
        threads = [
            threading.Thread(target=served.post, args=(review(name="slow"),), kwargs={"source": OTHER})
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for _ in threads:
            assert waiting.acquire(timeout=60)
        refused = served.post(review(), source=OTHER)
        assert (refused.status, refused.headers["Retry-After"]) == (429, "1")
        assert served.post(review()).status == 200
        assert served.server.counts()["unknown", "busy"] == 1
        release.set()
        for thread in threads:
            thread.join()
        until(lambda: served.post(review(), source=OTHER).status == 200)


# --- sizes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [256 * 1024, 1_000_000])
def test_the_largest_export_can_be_changed(most: int) -> None:
    """A review has the new and the old object: of the largest that members.maxExportBytes allows both fit."""
    large = {"spec": {"data": "x" * most}}
    with hook(max_body=body_limit(most)) as served:
        assert served.post(review(object=large, oldObject=large)).status == 200
        assert served.post(b"", length=body_limit(most) + 1).status == 413


def test_the_default_is_that_of_the_default_size() -> None:
    """Without settings a review may have 1.5 MiB."""
    assert body_limit(load(ControllerRole.LEADER, None, {}, {}).leader.limits.max_export_bytes) == MAX_BODY
    assert MAX_BODY == 3 * 1024 * 1024 // 2
