"""Credentials of an API server: what surrounds a token is removed, and no error repeats what it is."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from mcagent.kube.client import Client
from mcagent.kube.credentials import Credentials, token_kubeconfig
from mcagent.kube.errors import words_of
from mcagent.kube.source import RawObject
from mcagent.model.errors import SourceError

CANARY = "c4n4ry-s3cret"
NOWHERE = "127.0.0.1:1"  # where nobody listens


def kubeconfig(server: str = f"http://{NOWHERE}", **user: Any) -> RawObject:
    """Return a kubeconfig with the fields of a user."""
    return {**token_kubeconfig(server, b"", ""), "users": [{"name": "u", "user": user}]}


def with_cluster(**fields: Any) -> RawObject:
    """Return a kubeconfig with fields of the cluster, and a token."""
    made = kubeconfig(token=CANARY)
    made["clusters"][0]["cluster"].update(fields)
    return made


@pytest.mark.parametrize("token", ["t0ken", "t0ken\n", "t0ken\r\n", " t0ken ", "\tt0ken\n\n"])
def test_what_surrounds_a_token_is_removed(tmp_path: Path, token: str) -> None:
    """As client-go does it: a token of a file that `echo` wrote, or of a block of YAML, ends with a line end."""
    (tmp_path / "token").write_bytes(token.encode())
    for user in ({"token": token}, {"tokenFile": str(tmp_path / "token")}):
        credentials = Credentials(kubeconfig(**user), "")
        assert credentials.header() == {"authorization": "Bearer t0ken"}
        assert credentials.token() == "t0ken"


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


@pytest.mark.parametrize("plug_in", [f"echo {CANARY}", f'echo \'{{"token": "{CANARY}"}}\''])
def test_no_error_holds_what_a_plug_in_prints(caplog: pytest.LogCaptureFixture, plug_in: str) -> None:
    """Its output is the credential, also if it has another form."""
    command = {"apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": ["-c", plug_in]}
    with pytest.raises(SourceError) as caught:
        Client(kubeconfig(exec=command)).request("GET", "/version", timeout=5)
    assert CANARY not in "".join(traceback.format_exception(caught.value)) + caplog.text


@pytest.mark.parametrize("error", [ValueError, TypeError, AttributeError, UnicodeError])
def test_words_for_an_error_that_may_hold_a_header(error: Callable[[str], Exception]) -> None:
    """Only errors of urllib3 and http.client are repeated: the others may quote what was to be sent."""
    assert CANARY not in words_of(error(f"Invalid header value b'Bearer {CANARY}'"))
