"""Credentials of an API server: what surrounds a token is removed, and no error repeats what it is."""

from __future__ import annotations

import base64
import sys
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from mcagent.controller.admin import join_config
from mcagent.controller.machinery.connection import membership
from mcagent.http.certificates import self_signed
from mcagent.kube import bearer
from mcagent.kube.bearer import bearer_access
from mcagent.kube.client import Client
from mcagent.kube.credentials import Credentials, token_kubeconfig
from mcagent.kube.errors import ApiUnreachableError, words_of
from mcagent.kube.source import RawObject
from mcagent.model.api.kubernetes import SecretData
from mcagent.model.errors import InputError, McagentError, SourceError

pytestmark = pytest.mark.filterwarnings("ignore:SOCKS support")  # urllib3's, before its ImportError

CANARY = "c4n4ry-s3cret"
NOWHERE = "127.0.0.1:1"  # where nobody listens
EXEC = '"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"'
PAIR = f'{{"clientKeyData": "{CANARY}", "clientCertificateData": "{CANARY}"}}'


def kubeconfig(server: str = f"http://{NOWHERE}", **user: Any) -> RawObject:
    """Return a kubeconfig with the fields of a user."""
    return {**token_kubeconfig(server, b"", ""), "users": [{"name": "u", "user": user}]}


def with_cluster(**fields: Any) -> RawObject:
    """Return a kubeconfig with fields of the cluster, and a token."""
    document = kubeconfig(token=CANARY)
    document["clusters"][0]["cluster"].update(fields)
    return document


def with_provider(name: str, key: str) -> RawObject:
    """Return a kubeconfig with a token of an authentication provider."""
    user: Any = {"auth-provider": {"name": name, "config": {key: f"{CANARY}.a.b"}}}
    return kubeconfig(**user)


def with_server(**user: Any) -> RawObject:
    """Return a kubeconfig for a server with TLS with the fields of a user: only this reads certificates."""
    return kubeconfig(f"https://{NOWHERE}", **user)


@pytest.mark.parametrize("token", ["t0ken", "t0ken\n", "t0ken\r\n", " t0ken ", "\tt0ken\n\n"])
def test_what_surrounds_a_token_is_removed(tmp_path: Path, token: str) -> None:
    """As client-go does it: a token of a file that `echo` wrote, or of a block of YAML, ends with a line end."""
    (tmp_path / "token").write_bytes(token.encode())
    for user in ({"token": token}, {"tokenFile": str(tmp_path / "token")}):
        credentials = Credentials(kubeconfig(**user), "")
        assert credentials.header() == {"authorization": "Bearer t0ken"}
        assert credentials.token() == "t0ken"


def test_a_bearer_token_needs_no_official_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in a Pod nor with a kubeconfig: it would take 16 MiB of memory in each agent and controller."""
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    monkeypatch.setattr(bearer, "SERVICE_ACCOUNT", tmp_path)
    for name, value in (("HOST", "fd00::1"), ("PORT", "443")):
        monkeypatch.setenv(f"KUBERNETES_SERVICE_{name}", value)
    for name in ("token", "ca.crt"):
        (tmp_path / name).write_text("t0ken")
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(kubeconfig(tokenFile=str(tmp_path / "token"))))
    in_pod = Credentials("", "")
    assert in_pod.server == "https://[fd00::1]:443"
    assert in_pod.pool.connection_pool_kw["ca_certs"] == str(tmp_path / "ca.crt")
    for credentials in (in_pod, Credentials(str(file), "x"), Credentials(kubeconfig(token="t0ken"), "")):
        assert credentials.token() == "t0ken"
        assert credentials.pool.connection_pool_kw["cert_reqs"] == "CERT_REQUIRED"
    (tmp_path / "token").write_text("renewed")
    monkeypatch.setattr("mcagent.kube.credentials._REREAD", 0.0)  # a second has passed
    assert in_pod.token() == "renewed"


@pytest.mark.parametrize("missing", ["HOST", "PORT", "token", "ca.crt"])
def test_a_service_account_that_is_incomplete(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is left to the official client, which says what is wrong with it."""
    monkeypatch.setattr(bearer, "SERVICE_ACCOUNT", tmp_path)
    for name in ("HOST", "PORT"):
        monkeypatch.setenv(f"KUBERNETES_SERVICE_{name}", "" if name == missing else "1")
    for name in ("token", "ca.crt"):
        (tmp_path / name).write_text("" if name == missing else "x")
    assert bearer_access("", "") is None


OTHER_ACCESS: dict[str, RawObject] = {
    "no authority": kubeconfig(f"https://{NOWHERE}", token="t"),
    "a relative file": with_cluster(**{"certificate-authority": "ca.crt"}),
    "an authority that is no base64": with_cluster(**{"certificate-authority-data": "!"}),
    "no verification": with_cluster(**{"insecure-skip-tls-verify": True}),
    "another name": with_cluster(**{"tls-server-name": "a"}),
    "a proxy": with_cluster(**{"proxy-url": f"http://{NOWHERE}"}),
    "a path": kubeconfig(f"http://{NOWHERE}/k8s/clusters/a", token="t"),
    "a password of the server": kubeconfig(f"http://a:b@{NOWHERE}", token="t"),
    "another protocol": kubeconfig(f"ftp://{NOWHERE}", token="t"),
    "a certificate": kubeconfig(**{"client-certificate": "/a", "client-key": "/a"}),
    "somebody else's name": kubeconfig(**{"token": "t", "as": "a"}),
    "a token and its file": kubeconfig(token="t", tokenFile="/a"),
    "a token that is a number": kubeconfig(token=1),
    "a relative file of a token": kubeconfig(tokenFile="a"),
    "two users of one name": {**kubeconfig(), "users": 2 * kubeconfig(token="t")["users"]},
}


@pytest.mark.parametrize("kind", OTHER_ACCESS)
def test_every_other_access_is_left_to_the_official_client(kind: str) -> None:
    """Its rules are many; what is not known here is not guessed."""
    assert bearer_access(kubeconfig(token="t"), "") is not None
    assert bearer_access(OTHER_ACCESS[kind], "") is None


def test_an_access_through_a_proxy_is_left_to_the_official_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows which servers the environment excludes."""
    for name in ("https_proxy", "all_proxy"):
        with monkeypatch.context() as patched:
            patched.setenv(name, f"http://{NOWHERE}")
            assert bearer_access(kubeconfig(token="t"), "") is None


FAULTS: dict[str, RawObject | str | bytes] = {
    "a line end inside": kubeconfig(token=f"{CANARY}\n{CANARY}"),
    "another header": kubeconfig(token=f"{CANARY}\r\nX-Other: {CANARY}"),
    "a control character": kubeconfig(token=f"{CANARY}\x01"),
    "not ASCII": kubeconfig(token=f"{CANARY}\u20ac"),
    "a space": kubeconfig(token=f"{CANARY} {CANARY}"),
    "nothing wrong but the server": kubeconfig(token=CANARY),
    "a password": kubeconfig(username="a", password=f"{CANARY}\n"),
    "no key": kubeconfig(**{"client-key-data": CANARY, "client-certificate-data": CANARY}),
    "a user that is a text": {**kubeconfig(), "users": [{"name": "u", "user": CANARY}]},
    "a token in place of its file": kubeconfig(tokenFile=CANARY),
    "a key in place of its file": with_server(**{"client-key": CANARY, "client-certificate": CANARY}),
    "a long token in place of its file": kubeconfig(tokenFile=CANARY * 99),
    "a key that is no base64": with_server(**{"client-key-data": f"{CANARY}!", "client-certificate-data": "YQ=="}),
    "a key that is a number": with_server(**{"client-key-data": 1, "client-certificate-data": CANARY}),
    "a token that is a list": kubeconfig(token=[CANARY]),
    "a user that is a list": {**kubeconfig(), "users": [{"name": "u", "user": [CANARY]}]},
    "an OIDC token": with_provider("oidc", "id-token"),
    "a token of Azure": with_provider("azure", "access-token"),
    "a SOCKS proxy": with_cluster(**{"proxy-url": f"socks5://a:{CANARY}@{NOWHERE}"}),
    "a password of the server": kubeconfig(f"http://a:{CANARY}@{NOWHERE}", token=CANARY),
    "a password of a server that is none": kubeconfig(f"http://a:{CANARY}@[{NOWHERE}", token=CANARY),
    "a password of the proxy": with_cluster(**{"proxy-url": f"http://a:{CANARY}@{NOWHERE}"}),
    "a password of a proxy of another kind": with_cluster(**{"proxy-url": f"foo://a:{CANARY}@{NOWHERE}"}),
    "a password of a proxy that is none": with_cluster(**{"proxy-url": f"http://a:{CANARY}@[{NOWHERE}"}),
    "YAML that does not end": f"users:\n- name: u\n  user: {{token: {CANARY}: x\n",
    "an alias": f"users: *{CANARY}\n",
    "a tag": f"users: !{CANARY} x\n",
    "a tab": f"users:\n\t- {CANARY}\n",
    "not UTF-8": b"users: [{name: u, user: {token: " + CANARY.encode() + b"\xff}}]\n",
}


@pytest.mark.parametrize("context", ["", "x"])
@pytest.mark.parametrize("fault", FAULTS)
def test_no_error_holds_a_credential(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: str, context: str
) -> None:
    """Whatever is wrong with them: not in the error, its traceback, or the log."""
    file = tmp_path / "kubeconfig"
    match FAULTS[fault]:
        case bytes(text):
            file.write_bytes(text)
        case str(text):
            file.write_text(text)
        case config:
            file.write_text(yaml.safe_dump(config))
    with pytest.raises(SourceError) as caught:
        Client(str(file), context).request("GET", "/version", timeout=5)
    shown = "".join(traceback.format_exception(caught.value)) + caplog.text
    assert str(caught.value)
    assert CANARY not in shown


@pytest.mark.parametrize("fault", [name for name, config in FAULTS.items() if isinstance(config, dict)])
def test_no_error_of_a_renewed_credential_holds_it(caplog: pytest.LogCaptureFixture, fault: str) -> None:
    """A client that is given other credentials, as when the token of the leader is replaced."""
    config = FAULTS[fault]
    assert isinstance(config, dict)
    client = Client(kubeconfig(token="valid"))

    def request() -> None:
        client.use(config)
        client.request("GET", "/version", timeout=5)

    with pytest.raises(SourceError) as caught:
        request()
    assert CANARY not in "".join(traceback.format_exception(caught.value)) + caplog.text


PLUG_INS = {
    "another form": f"echo {CANARY}",
    "no status": f'echo \'{{"token": "{CANARY}"}}\'',
    "another version": f'echo \'{{"apiVersion": "{CANARY}", "kind": "ExecCredential", "status": {{}}}}\'',
    "a failure": f"echo {CANARY} >&2; exit 3",
    "a token that cannot be sent": f'echo \'{{{EXEC}, "status": {{"token": "{CANARY} {CANARY}"}}}}\'',
    "a key without its certificate": f'echo \'{{{EXEC}, "status": {{"clientKeyData": "{CANARY}"}}}}\'',
    "a key that is none": f"echo '{{{EXEC}, \"status\": {PAIR}}}'",
    "an end that is no time": f'echo \'{{{EXEC}, "status": {{"token": "{CANARY}", "expirationTimestamp": 1}}}}\'',
}


@pytest.mark.parametrize("fault", PLUG_INS)
def test_no_error_holds_what_a_plug_in_prints(caplog: pytest.LogCaptureFixture, fault: str) -> None:
    """Its output is the credential, also if it has another form, and also if the plug-in fails."""
    command = {"apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": ["-c", PLUG_INS[fault]]}
    with pytest.raises(SourceError) as caught:
        Client(with_server(exec=command)).request("GET", "/version", timeout=5)
    shown = "".join(traceback.format_exception(caught.value)) + caplog.text
    assert CANARY not in shown
    if fault == "a failure":
        assert "process returned 3: run its command" in caplog.text


@pytest.mark.parametrize("proxy", ["socks5", "socks4a"])
def test_a_missing_module_is_named(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    """A SOCKS proxy, of the environment too, needs a module that mcagent does not install."""
    monkeypatch.setitem(sys.modules, "socks", None)
    monkeypatch.delitem(sys.modules, "urllib3.contrib.socks", raising=False)
    monkeypatch.setenv("all_proxy", f"{proxy}://a:{CANARY}@{NOWHERE}")
    monkeypatch.setenv("no_proxy", "")
    with pytest.raises(SourceError, match="needs the Python module socks, which is not installed") as caught:
        Client(with_server(token="t0ken"))
    assert CANARY not in str(caught.value)


SECRETS = {
    "a line end inside": f"{CANARY}\n{CANARY}",
    "not ASCII": f"{CANARY}\u20ac",
    "a control character": f"{CANARY}\x01",
    "a space": f"{CANARY} {CANARY}",
}


@pytest.mark.parametrize("fault", SECRETS)
def test_no_error_holds_a_members_token(fault: str) -> None:
    """The Secret of a member, whose error is the condition of its ClusterSet."""
    encoded = base64.b64encode(SECRETS[fault].encode()).decode()
    ca = base64.b64encode(b"-----BEGIN CERTIFICATE-----").decode()
    for data in (
        {"ca.crt": ca, "token": encoded},
        {"ca.crt": encoded, "token": ca},
        {"ca.crt": ca, "token": CANARY},
    ):
        with pytest.raises(InputError) as caught:
            membership.credentials("Secret a/b", SecretData(data=data))
        shown = "".join(traceback.format_exception(caught.value))
        assert CANARY not in shown
        assert encoded not in shown


def test_no_error_holds_a_token_of_a_manifest(tmp_path: Path) -> None:
    """The file of `mcagent clusterset join --token-secret-file`, with what is no YAML."""
    file = tmp_path / "secret.yaml"
    for text in (
        f"data: {{token: {CANARY}: x",
        f"data: *{CANARY}",
        f"data: !{CANARY} x",
        f"\t{CANARY}",
        CANARY,
        f"data: 2026-13-45 # {CANARY}",
    ):
        file.write_text(text)
        with pytest.raises(McagentError) as caught:
            join_config.read_secret(file)
        assert CANARY not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("error", [ValueError, TypeError, AttributeError, UnicodeError])
def test_words_for_an_error_that_may_hold_a_header(error: Callable[[str], Exception]) -> None:
    """Only errors of urllib3 and http.client are repeated: the others may quote what was to be sent."""
    assert CANARY not in words_of(error(f"Invalid header value b'Bearer {CANARY}'"))


def test_certificates_are_written_again_after_others_deleted_them(tmp_path: Path) -> None:
    """systemd-tmpfiles deletes files in /tmp that were not read for ten days: no connection was opened."""
    certificate, key = map(base64.b64encode, self_signed("client", datetime.now(UTC)))
    pair = {"client-certificate-data": certificate.decode(), "client-key-data": key.decode()}
    document = with_cluster(server=f"https://{NOWHERE}")
    document["users"] = [{"name": "u", "user": pair}]
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    client = Client(str(path))
    first = client.credentials

    def fail() -> Path:
        with pytest.raises(ApiUnreachableError, match="connection refused"):
            client.request("GET", "/version")
        return Path(client.credentials._configuration.cert_file)

    file = fail()
    assert client.credentials is first
    content = file.read_bytes()
    file.unlink()
    assert fail().read_bytes() == content
    renewed = client.credentials
    fail()
    assert first is not renewed is client.credentials
