"""The admission webhook over real TLS: reviews, limits, and a certificate that is shared and renewed."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from devtools.apiserver import ApiServer
from mcagent.controller.admission.decision import AdmissionDecision
from mcagent.controller.webhook.keeper import DirectoryKeeper, SecretKeeper
from mcagent.controller.webhook.server import LIMITS, MAX_BODY, WebhookServer
from mcagent.http import certificates
from mcagent.http.certificates import context_of
from mcagent.model.errors import SourceError
from mcagent.model.objects import Kind
from mcagent.supervised import restarts
from tests.embedded.controlworld import NAMESPACE, Objects, client_of
from tests.embedded.hook import NAMES, Hook, connection
from tests.waiting import until

START = datetime(2026, 1, 1, tzinfo=UTC)


def review(**request: Any) -> bytes:
    """Return the body of an AdmissionReview."""
    full = {"uid": "123", "operation": "CREATE", "kind": {"kind": "ClusterSet"}, "name": "x", **request}
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": full}).encode()


def decide(request: Mapping[str, Any]) -> AdmissionDecision:
    """Decide by the name of the object."""
    match request.get("name"):
        case "bad":
            return AdmissionDecision(allowed=False, code=412, message="there is one already")
        case "away":
            raise SourceError("the API server is away")
        case "bug":
            raise KeyError("spec")
        case "patched":
            return AdmissionDecision(allowed=True, patch=[{"op": "add", "path": "/x", "value": 1}])
    return AdmissionDecision(allowed=True)


@pytest.fixture
def hook() -> Iterator[Hook]:
    """Give a webhook that serves."""
    hook = Hook({"/validate": decide})
    hook.use()
    yield hook
    hook.server.close()


def test_decisions_become_answers(hook: Hook) -> None:
    """Allowed, denied with code and reason, patched: each names the uid of the request."""
    status, answer = hook.post(review())
    assert (status, answer["response"]) == (200, {"uid": "123", "allowed": True})
    assert (answer["kind"], answer["apiVersion"]) == ("AdmissionReview", "admission.k8s.io/v1")
    denied = hook.post(review(name="bad"))[1]["response"]
    assert denied == {
        "uid": "123",
        "allowed": False,
        "status": {"code": 412, "message": "there is one already"},
    }
    patched = hook.post(review(name="patched"))[1]["response"]
    assert patched["patchType"] == "JSONPatch"
    assert json.loads(base64.b64decode(patched["patch"])) == [{"op": "add", "path": "/x", "value": 1}]


def test_what_cannot_be_decided_is_refused(hook: Hook) -> None:
    """A look-up that fails, and a bug, allow nothing; the server goes on."""
    away = hook.post(review(name="away"))[1]["response"]
    assert (away["allowed"], away["status"]["code"]) == (False, 503)
    bug = hook.post(review(name="bug"))[1]["response"]
    assert (bug["allowed"], bug["status"]["code"]) == (False, 500)
    assert hook.post(review())[1]["response"]["allowed"]
    assert hook.server.counts() == {("ClusterSet", "error"): 2, ("ClusterSet", "allowed"): 1}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[" * 100_000,
        b'{"kind": "AdmissionReview"}',
        b'{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": {}}',
        b'{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1beta1", "request": {"uid": "1"}}',
        b"\xff\xfe",
    ],
)
def test_what_is_no_review_is_an_error(hook: Hook, body: bytes) -> None:
    """Garbage gets 400, never an answer that allows something."""
    assert hook.post(body)[0] == 400


def test_limits_hold(hook: Hook) -> None:
    """A body that is too large is not read; another path and another method are refused."""
    connection = hook.connect()
    connection.putrequest("POST", "/validate")
    connection.putheader("Content-Length", str(MAX_BODY + 1))
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()
    assert hook.post(review(), "/other")[0] == 404
    connection = hook.connect()
    connection.request("GET", "/validate")
    assert connection.getresponse().status == 501
    connection.close()


def test_a_client_that_says_nothing_holds_up_nobody(hook: Hook) -> None:
    """Connections without a handshake do not keep others from being served."""
    silent = [socket.create_connection(("127.0.0.1", hook.server.port)) for _ in range(20)]
    assert hook.post(review())[0] == 200
    for sock in silent:
        sock.close()


def test_an_api_server_keeps_its_connection() -> None:
    """A connection by which nothing is asked is closed soon; one that was used is left to the API server."""
    hook = Hook({"/validate": decide}, replace(LIMITS, ask=1.0))
    hook.use()
    connection, silent = hook.connect(), hook.connect()
    statuses = []
    for _ in range(2):
        connection.request("POST", "/validate", review())
        answer = connection.getresponse()
        statuses.append((answer.status, bool(answer.read())))
        assert silent.sock.recv(1) == b""
    assert statuses == [(200, True)] * 2
    connection.close()
    silent.close()
    hook.server.close()


def test_without_a_certificate_nothing_is_served() -> None:
    """Until there is one, connections are closed."""
    hook = Hook({"/validate": decide})
    assert not hook.server.has_certificate
    with pytest.raises(OSError, match=r".*"):
        hook.connect()
    hook.use()
    assert hook.post(review())[0] == 200
    hook.server.close()


# --- the certificate ----------------------------------------------------------------------------------------


def subject(pem: bytes) -> x509.Certificate:
    """Return the first certificate of a PEM text."""
    return x509.load_pem_x509_certificates(pem)[0]


def test_nothing_is_renewed_before_its_time() -> None:
    """Two thirds of a year later the certificate is made anew by the same authority; before that all stays."""
    first = certificates.current(None, NAMES, START)
    assert certificates.current(first, NAMES, START + timedelta(days=200)) is first
    later = certificates.current(first, NAMES, START + timedelta(days=250))
    assert later.certificate != first.certificate
    assert (later.authorities, later.authority_key) == (first.authorities, first.authority_key)
    assert certificates.expiry(later.certificate) > certificates.expiry(first.certificate)


def test_another_name_needs_another_certificate() -> None:
    """A Service that was renamed is served under its new name."""
    first = certificates.current(None, NAMES, START)
    later = certificates.current(first, ("other.mc.svc",), START)
    assert later.certificate != first.certificate
    assert later.authorities == first.authorities


def test_a_new_authority_is_trusted_before_it_is_used() -> None:
    """At every moment of twenty years the certificate verifies against the authorities of a look before."""
    material = certificates.current(None, NAMES, START)
    now, rotated = START, 0
    while now < START + timedelta(days=7300):
        now += timedelta(days=37)
        for pause in (timedelta(0), timedelta(minutes=1), timedelta(minutes=30)):
            renewed = certificates.current(material, NAMES, now + pause)
            known = x509.load_pem_x509_certificates(material.authorities)
            renewed_subject = subject(renewed.certificate)
            assert any(renewed_subject.issuer == authority.subject for authority in known)
            assert renewed_subject.not_valid_after_utc > now
            rotated += renewed.authority_key != material.authority_key
            material = renewed
    assert rotated >= 2


@pytest.mark.parametrize("part", ["authorities", "authority_key", "certificate", "key"])
def test_a_broken_secret_is_made_anew(part: str) -> None:
    """Whatever is missing or does not fit together, the outcome is whole again."""
    first = certificates.current(None, NAMES, START)
    other = certificates.current(None, NAMES, START)
    for value in (b"", b"garbage", getattr(other, part)):
        broken = certificates.Material(
            **{name: getattr(first, name) for name in certificates.Material.__slots__} | {part: value}
        )
        mended = certificates.current(broken, NAMES, START)
        context_of(mended.certificate, mended.key)
        subject(mended.certificate).verify_directly_issued_by(subject(mended.authorities))


def test_keys_are_not_shown() -> None:
    """What holds private keys tells nothing of them when it is printed."""
    assert "BEGIN" not in repr(certificates.current(None, NAMES, START))


@pytest.fixture
def api() -> Iterator[ApiServer]:
    """Give a running server."""
    with ApiServer() as server:
        yield server


def test_replicas_share_one_certificate_and_the_leader_makes_it_trusted(api: ApiServer, tmp_path: Path) -> None:
    """Two replicas come to the same certificate; caBundle is written by the one that leads."""
    objects = Objects(api)
    kind = Kind.VALIDATING_WEBHOOK_CONFIGURATION
    service = {"name": "mcagent-leader", "namespace": NAMESPACE, "path": "/validate", "port": 443}
    hook = {"name": "a.b.c", "clientConfig": {"service": service}, "sideEffects": "None"}
    objects.put(kind, "mcagent-leader", webhooks=[hook | {"admissionReviewVersions": ["v1"]}])
    servers = [WebhookServer(("127.0.0.1", 0), {"/validate": decide}) for _ in range(2)]
    keepers = [
        SecretKeeper(
            client_of(api, tmp_path),
            server,
            namespace=NAMESPACE,
            service="mcagent-leader",
            leading=lambda leads=leads: leads,  # type: ignore[misc]
            configurations=[kind],
            look=0.1,
            retry=0.1,
        )
        for server, leads in zip(servers, (False, True), strict=True)
    ]
    for keeper in keepers:
        keeper.start()
    until(lambda: all(server.has_certificate for server in servers))
    until(lambda: "caBundle" in objects.get(kind, "mcagent-leader")["webhooks"][0]["clientConfig"])
    hook = objects.get(kind, "mcagent-leader")["webhooks"][0]
    assert hook["clientConfig"]["service"] == service
    trusted = base64.b64decode(hook["clientConfig"]["caBundle"])
    for server in servers:
        context = ssl.create_default_context(cadata=trusted.decode())
        raw = socket.create_connection(("127.0.0.1", server.port), timeout=5)
        with context.wrap_socket(raw, server_hostname=f"mcagent-leader.{NAMESPACE}.svc") as secured:
            assert secured.version() == "TLSv1.3"
    secret = objects.get(Kind.SECRET, "mcagent-leader-webhook")
    assert sorted(secret["data"]) == ["ca.crt", "ca.key", "tls.crt", "tls.key"]
    assert not [name for name in objects.names(Kind.CONFIG_MAP) if "webhook" in name]
    settled = len(api.requests)
    until(lambda: len(api.requests) > settled + 12)
    assert len(objects.writes("webhook")) == 1  # the caBundle, once
    assert {write.split()[0] for write in objects.writes("secrets")} == {"create"}
    for keeper in keepers:
        keeper.stop()
        assert keeper.error == ""
    for server in servers:
        server.close()


def test_who_comes_to_lead_writes_the_authorities_at_once(api: ApiServer, tmp_path: Path) -> None:
    """The Lease may come after the first look: then the next one is not half a minute away."""
    objects, kind = Objects(api), Kind.VALIDATING_WEBHOOK_CONFIGURATION
    service = {"name": "mcagent-leader", "namespace": NAMESPACE, "path": "/validate", "port": 443}
    hook = {"name": "a.b.c", "clientConfig": {"service": service}, "sideEffects": "None"}
    objects.put(kind, "mcagent-leader", webhooks=[hook | {"admissionReviewVersions": ["v1"]}])
    server = WebhookServer(("127.0.0.1", 0), {"/validate": decide})
    leads = threading.Event()
    keeper = SecretKeeper(
        client_of(api, tmp_path),
        server,
        namespace=NAMESPACE,
        service="mcagent-leader",
        leading=leads.is_set,
        configurations=[kind],
        look=3600.0,
        retry=3600.0,
    )
    keeper.start()
    until(lambda: server.has_certificate)
    assert "caBundle" not in objects.get(kind, "mcagent-leader")["webhooks"][0]["clientConfig"]
    leads.set()
    keeper.wake()
    until(lambda: "caBundle" in objects.get(kind, "mcagent-leader")["webhooks"][0]["clientConfig"])
    keeper.stop()
    assert not keeper.alive
    server.close()


def test_a_configuration_that_is_missing_leaves_no_other_without_authorities(
    api: ApiServer, tmp_path: Path
) -> None:
    """As an administrator deleted it; API servers would refuse the certificate of the other one."""
    objects, kind = Objects(api), Kind.MUTATING_WEBHOOK_CONFIGURATION
    service = {"name": "mcagent-leader", "namespace": NAMESPACE, "path": "/mutate", "port": 443}
    hook = {"name": "a.b.c", "clientConfig": {"service": service}, "sideEffects": "None"}
    objects.put(kind, "mcagent-leader", webhooks=[hook | {"admissionReviewVersions": ["v1"]}])
    server = WebhookServer(("127.0.0.1", 0), {"/mutate": decide})
    keeper = SecretKeeper(
        client_of(api, tmp_path),
        server,
        namespace=NAMESPACE,
        service="mcagent-leader",
        leading=lambda: True,
        configurations=[Kind.VALIDATING_WEBHOOK_CONFIGURATION, kind],
        look=0.05,
        retry=0.05,
    )
    keeper.start()
    until(lambda: keeper.error)
    assert "validatingwebhookconfigurations" in keeper.error
    until(lambda: "caBundle" in objects.get(kind, "mcagent-leader")["webhooks"][0]["clientConfig"])
    keeper.stop()
    server.close()


def test_a_stored_certificate_without_a_readable_date_is_reported(api: ApiServer, tmp_path: Path) -> None:
    """A replica that does not lead serves with it, and reports the error; its thread continues."""
    stored = certificates.current(None, NAMES, datetime.now(UTC))
    trusted = stored.certificate.replace(b" CERTIFICATE-", b" TRUSTED CERTIFICATE-")  # only OpenSSL reads this
    values = {
        "ca.crt": stored.authorities,
        "ca.key": stored.authority_key,
        "tls.crt": trusted,
        "tls.key": stored.key,
    }
    data = {name: base64.b64encode(value).decode() for name, value in values.items()}
    Objects(api).put(Kind.SECRET, "mcagent-leader-webhook", type="kubernetes.io/tls", data=data)
    server = WebhookServer(("127.0.0.1", 0), {"/validate": decide})
    keeper = SecretKeeper(
        client_of(api, tmp_path),
        server,
        namespace=NAMESPACE,
        service="mcagent-leader",
        leading=lambda: False,
        configurations=[],
        look=0.05,
        retry=0.05,
    )
    restarts_before = restarts().get("certificate", 0)
    keeper.start()
    until(lambda: "tls.crt" in keeper.error)
    assert server.has_certificate
    assert restarts().get("certificate", 0) == restarts_before
    keeper.stop()
    server.close()


def test_a_certificate_of_somebody_else_is_taken_up_when_it_changes(tmp_path: Path) -> None:
    """With certDir the files are used, and looked at again."""
    server = WebhookServer(("127.0.0.1", 0), {"/validate": decide})
    keeper = DirectoryKeeper(tmp_path, server, look=0.05, retry=0.05)
    keeper.start()
    until(lambda: keeper.error)
    for _ in range(2):
        material = certificates.current(None, NAMES, datetime.now(UTC))
        (tmp_path / "tls.crt").write_bytes(material.certificate)
        (tmp_path / "tls.key").write_bytes(material.key)

        def served(certificate: bytes = material.authorities) -> bool:
            try:
                connection(server.port, certificate).close()
            except OSError:
                return False
            return True

        until(served)
    assert keeper.expires > 0
    keeper.stop()
    server.close()
