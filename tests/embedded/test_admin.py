"""The admin commands against an API server: success, refusal, and everything taken back on failure."""

from __future__ import annotations

import base64
import errno
import json
import os
import re
import signal
import stat
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml

from mcagent.cli.common import exit_codes
from mcagent.cli.main import main
from mcagent.controller.admin import join_config, tokens
from mcagent.controller.admin.cluster import Cluster
from mcagent.controller.admin.join_config import JoinConfig
from mcagent.controller.admin.listing import since
from mcagent.controller.contract import names
from mcagent.controller.contract.commands import TOKEN_ROLE
from mcagent.kube.source import RawObject
from mcagent.model.errors import InputError
from mcagent.model.kinds import object_path
from mcagent.model.objects import Kind
from tests.worlds.admin_site import (
    AREA,
    CONFIG,
    INIT,
    SECRET,
    Site,
    config_file,
    controller,
    make_token,
    server,
    site,
)
from tests.worlds.leader_world import Leader, cluster_info, endpoints, service

__all__ = ["server", "site"]  # fixtures


CREATED = {names.CREATED_BY_COMMAND_ANNOTATION: "true"}


# --- init ---------------------------------------------------------------------------------------------------


def test_init_makes_the_leaders_cluster_set_and_the_join_config(site: Site, tmp_path: Path) -> None:
    """The ClusterSet has the contract's form, and the file is what `join` and antctl read."""
    file = tmp_path / "join.yaml"
    code, _, err = site.run(*INIT, "blue", "-j", str(file))
    assert code == 0, err
    cluster_set = site.get(Kind.CLUSTER_SET, "blue")
    assert cluster_set is not None
    assert cluster_set["spec"] == {"clusterID": "north", "leaders": [{"clusterID": "north"}]}
    assert "members may claim CIDRs in 10.0.0.0/8, the private ranges of this cluster's CIDRs" in err
    assert cluster_set["metadata"]["annotations"] == CREATED | {names.ALLOWED_CIDRS_ANNOTATION: "10.0.0.0/8"}
    assert "edit it: members do not reach the leader's API server at http" in err  # it is on the loopback
    config = yaml.safe_load(file.read_text())
    assert config == {
        "apiVersion": "multicluster.antrea.io/v1alpha1",
        "kind": "ClusterSetJoinConfig",
        "clusterSetID": "blue",
        "leaderClusterID": "north",
        "leaderNamespace": AREA,
        "leaderAPIServer": site.client.server,
    }
    assert join_config.read(file)[0].missing() == ["clusterID"]
    code, out, _ = site.run("get", "joinconfig", "-n", AREA)
    assert (code, out) == (0, file.read_text())


def test_init_takes_back_what_it_made(site: Site, tmp_path: Path) -> None:
    """A file that is there already is not written over, and no ClusterSet stays."""
    file = tmp_path / "join.yaml"
    file.write_text("mine")
    code, _, err = site.run(*INIT, "blue", "-j", str(file))
    assert code == 1
    assert "ClusterSet mcs/blue taken back" in err
    assert site.names(Kind.CLUSTER_SET) == []
    assert file.read_text() == "mine"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("command", ["init", "create", "join"])
def test_a_command_that_is_ended_takes_back_what_it_made(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str, number: signal.Signals
) -> None:
    """By `timeout`, or with its terminal; half of it would refuse the next attempt."""
    config = str(config_file(tmp_path / "join", CONFIG, SECRET))
    create = Cluster.create

    def ended(self: Cluster, *arguments: Any) -> RawObject:
        created = create(self, *arguments)
        os.kill(os.getpid(), number)
        return created

    monkeypatch.setattr(Cluster, "create", ended)
    before = signal.signal(number, lambda *_: None)
    try:
        code, _, err = {
            "init": lambda: site.run(*INIT, "blue"),
            "create": lambda: make_token(site, "east"),
            "join": lambda: site.run("clusterset", "join", "-f", config, "--no-wait", "-n", AREA),
        }[command]()
    finally:
        signal.signal(number, before)
    assert code == exit_codes.INTERRUPTED, err
    kinds = (Kind.CLUSTER_SET, Kind.SERVICE_ACCOUNT, Kind.ROLE, Kind.ROLE_BINDING, Kind.SECRET)
    assert not [name for kind in kinds for name in site.names(kind) if "east" in name or name == "blue"]
    assert "taken back" in err


def test_a_command_without_its_terminal_takes_back_everything(site: Site) -> None:
    """No line of progress can be written then, also none of what is taken back."""
    lines: list[str] = []

    def report(line: str) -> None:
        lines.append(line)
        if len(lines) > 1:
            raise OSError(errno.EIO, "the terminal has gone")

    cluster = Cluster(site.client, report)

    def create() -> None:
        with cluster.undoing():
            for name in ("east", "west"):
                cluster.create(Kind.SERVICE_ACCOUNT, AREA, name, {})

    with pytest.raises(OSError, match="the terminal has gone"):
        create()
    assert site.names(Kind.SERVICE_ACCOUNT) == []


@pytest.mark.parametrize(
    ("cluster_set", "cluster_id"), [("Blue", "north"), ("blue", "No_rth"), ("blue", "n" * 64), ("", "north")]
)
def test_init_refuses_names_that_are_none(site: Site, cluster_set: str, cluster_id: str) -> None:
    """An ID that could be no part of a name is bad input, and nothing is made."""
    code, _, err = site.run(
        "clusterset", "init", "-n", AREA, "--clusterset", cluster_set, "--clusterid", cluster_id
    )
    assert code == 2, err
    assert site.names(Kind.CLUSTER_SET) == []


def test_init_refuses_a_second_cluster_set(site: Site) -> None:
    """A namespace has one ClusterSet."""
    assert site.run(*INIT, "blue")[0] == 0
    code, _, err = site.run(*INIT, "red")
    assert code == 1
    assert "has a ClusterSet already: blue" in err


# --- membertoken --------------------------------------------------------------------------------------------


def test_a_token_is_an_account_a_binding_and_a_secret(site: Site, tmp_path: Path) -> None:
    """All three are marked, the account stands for the cluster, and the file is for its owner only."""
    file = tmp_path / "east.yaml"
    code, out, err = make_token(site, "east", "-o", str(file))
    assert code == 0, err
    account = site.get(Kind.SERVICE_ACCOUNT, "east")
    binding = site.get(Kind.ROLE_BINDING, "east")
    secret = site.get(Kind.SECRET, "east")
    assert account
    assert binding
    assert secret
    assert account["metadata"]["annotations"] == CREATED | {names.CLUSTER_ID_ANNOTATION: "east"}
    assert binding["roleRef"]["name"] == "antrea-mc-member-cluster-role"
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "east", "namespace": AREA}]
    assert secret["type"] == "kubernetes.io/service-account-token"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    manifest = yaml.safe_load(file.read_text())
    assert (manifest["type"], manifest["metadata"]) == ("Opaque", {"name": "east"})
    assert manifest["data"]["token"] == secret["data"]["token"]
    assert base64.b64decode(manifest["data"]["ca.crt"]).startswith(b"-----BEGIN CERTIFICATE")
    token = base64.b64decode(manifest["data"]["token"]).decode()
    assert token not in out + err
    assert manifest["data"]["token"] not in out + err
    again = tmp_path / "again.yaml"
    assert site.run("membertoken", "get", "east", "-n", AREA, "--secret-file", str(again))[0] == 0
    assert again.read_text() == file.read_text()
    assert stat.S_IMODE(again.stat().st_mode) == 0o600


def test_a_token_can_bound_its_member(site: Site) -> None:
    """What it may claim becomes annotations of its account, and `get` shows them."""
    cidrs = ("--allow-cidr", "10.97.0.0/16", "--allow-cidr", "10.20.0.0/14", "--allow-gateway", "192.0.2.0/28")
    bounds = (*cidrs, "--allow-namespace", "shop")
    code, _, err = make_token(site, "east", *bounds, "--allow-namespace", "pay", "--max-exports", "50")
    assert code == 0, err
    account = site.get(Kind.SERVICE_ACCOUNT, "east")
    assert account is not None
    assert account["metadata"]["annotations"] == CREATED | {
        names.CLUSTER_ID_ANNOTATION: "east",
        names.ALLOWED_CIDRS_ANNOTATION: "10.97.0.0/16,10.20.0.0/14",
        names.ALLOWED_GATEWAYS_ANNOTATION: "192.0.2.0/28",
        names.ALLOWED_NAMESPACES_ANNOTATION: "shop,pay",
        names.MAX_EXPORTS_ANNOTATION: "50",
    }
    _, out, _ = site.run("membertoken", "get", "-n", AREA)
    row = out.splitlines()[1].split()
    assert row[2:4] == ["east", "NeverExpires"]
    assert row[7:11] == ["10.97.0.0/16,10.20.0.0/14", "192.0.2.0/28", "shop,pay", "50"]


@pytest.mark.parametrize(
    ("flags", "own", "allowed"),
    [
        ((), (), "10.0.0.0/8"),
        (("--allow-cidr", "10.1.0.0/16", "--allow-cidr", "10.2.0.0/16"), (), "10.1.0.0/16,10.2.0.0/16"),
        ((), ("--allow-cidr", "10.3.0.0/16"), "10.3.0.0/16"),
        (("--allow-cidr", "*"), (), "*"),
    ],
)
def test_members_of_a_new_cluster_set_have_a_list(
    site: Site, flags: tuple[str, ...], own: tuple[str, ...], allowed: str
) -> None:
    """That of the ClusterSet, by default the private ranges of this cluster's CIDRs, unless the token has one."""
    assert site.run(*INIT, "blue", *flags)[0] == 0
    code, _, err = make_token(site, "east", *own)
    assert code == 0, err
    account = site.get(Kind.SERVICE_ACCOUNT, "east")
    assert account is not None
    assert account["metadata"]["annotations"][names.ALLOWED_CIDRS_ANNOTATION] == allowed
    assert (f"may claim CIDRs in {allowed}, as the ClusterSet says" in err) is not bool(own)


def test_a_list_that_cannot_be_is_refused(site: Site) -> None:
    """Nothing is made, and the message has a valid value."""
    code, _, err = site.run(*INIT, "blue", "--allow-cidr", "10.1.0.1/16")
    assert (code, site.get(Kind.CLUSTER_SET, "blue")) == (2, None)
    assert "--allow-cidr" in err
    assert "did you mean 10.1.0.0/16?" in err


def test_an_account_keeps_its_own_list(site: Site) -> None:
    """A token for an account that kubectl made and annotated."""
    notes = {names.ALLOWED_CIDRS_ANNOTATION: "10.9.0.0/16"}
    site.put(Kind.SERVICE_ACCOUNT, "east", {"metadata": {"annotations": notes}})
    assert site.run(*INIT, "blue")[0] == 0
    assert make_token(site, "east")[0] == 0
    account = site.get(Kind.SERVICE_ACCOUNT, "east")
    assert account is not None
    assert account["metadata"]["annotations"][names.ALLOWED_CIDRS_ANNOTATION] == "10.9.0.0/16"


@pytest.mark.parametrize(
    ("bound", "message"),
    [
        (("--allow-cidr", "10.97.0.1/16"), "host bits"),
        (("--allow-cidr", "10.97.0.0"), "no CIDR"),
        (("--allow-namespace", "Shop"), "no namespace"),
        (("--max-exports", "-1"), "whole number"),
    ],
)
def test_bounds_that_cannot_be_are_refused(site: Site, bound: tuple[str, ...], message: str) -> None:
    """Nothing is made when a bound cannot be read."""
    code, _, err = make_token(site, "east", *bound)
    assert code == 2
    assert message in err
    assert site.get(Kind.SERVICE_ACCOUNT, "east") is None


def test_an_account_that_is_there_is_bound(site: Site) -> None:
    """A ServiceAccount of that name is taken, and is not deleted with the token."""
    site.put(Kind.SERVICE_ACCOUNT, "east", {})
    code, _, err = make_token(site)
    assert code == 0, err
    account = site.get(Kind.SERVICE_ACCOUNT, "east")
    assert account is not None
    assert account["metadata"]["annotations"] == {names.CLUSTER_ID_ANNOTATION: "east"}
    code, _, err = site.run("membertoken", "delete", "east", "-n", AREA)
    assert code == 0
    assert "ServiceAccount mcs/east was not made by a command, and stays" in err
    assert "east" in site.names(Kind.SERVICE_ACCOUNT)
    assert "east" not in site.names(Kind.SECRET) + site.names(Kind.ROLE_BINDING)


def test_access_that_stays_is_told(site: Site) -> None:
    """Who bound the account by hand is told that deleting the token did not end its access."""
    make_token(site)
    binding = site.get(Kind.ROLE_BINDING, "east")
    assert binding is not None
    site.client.request("DELETE", object_path(Kind.ROLE_BINDING, AREA, "east"))
    site.put(Kind.ROLE_BINDING, "east", {key: binding[key] for key in ("roleRef", "subjects")})
    code, _, err = site.run("membertoken", "delete", "east", "-n", AREA)
    assert code == 1
    assert "the token still has its rights: kubectl delete rolebinding east -n mcs" in err
    assert "east" not in site.names(Kind.SECRET) + site.names(Kind.SERVICE_ACCOUNT)


@pytest.mark.parametrize(
    ("name", "cluster_id", "code", "message"),
    [
        ("second", "east", 1, "stands for cluster east already"),
        ("second", "east-1", 1, "cannot be distinguished"),
        ("second", "Ea_st", 2, "lower-case"),
        ("Second", "west", 2, "not a name"),
    ],
)
def test_tokens_that_cannot_be(site: Site, name: str, cluster_id: str, code: int, message: str) -> None:
    """Duplicates, dash-prefix pairs and bad names are refused before anything is made."""
    make_token(site)
    got, _, err = make_token(site, name, cluster_id=cluster_id)
    assert (got, message in err) == (code, True), err
    assert site.names(Kind.ROLE_BINDING) == ["east"]


def test_without_a_leader_there_is_no_role_to_bind(site: Site) -> None:
    """In a namespace without the members' Role the message says what is missing."""
    code, _, err = site.run(
        "membertoken", "create", "east", "-n", "kube-system", "--cluster-id", "east", "--expires", "never"
    )
    assert code == 1
    assert "no Role kube-system/antrea-mc-member-cluster-role" in err


def test_a_token_that_fails_is_taken_back(site: Site, tmp_path: Path) -> None:
    """Whatever fails in the end, nothing stays, and a re-bound account has its old annotation."""
    site.put(Kind.SERVICE_ACCOUNT, "east", {"metadata": {"annotations": {names.CLUSTER_ID_ANNOTATION: "old"}}})
    file = tmp_path / "east.yaml"
    file.write_text("mine")
    code, _, err = make_token(site, "east", "-o", str(file))
    assert code == 1, err
    account = site.get(Kind.SERVICE_ACCOUNT, "east")
    assert account is not None
    assert account["metadata"]["annotations"] == {names.CLUSTER_ID_ANNOTATION: "old"}
    assert site.names(Kind.SECRET) + site.names(Kind.ROLE_BINDING) == []
    assert file.read_text() == "mine"


def test_a_secret_that_is_there_is_not_taken(site: Site) -> None:
    """A Secret of that name is somebody's: it stays as it is, and the account and binding go again."""
    site.put(Kind.SECRET, "east", {"type": "Opaque", "data": {"a": "YQ=="}})
    code, _, err = make_token(site)
    assert code == 1
    assert "Secret mcs/east exists already" in err
    secret = site.get(Kind.SECRET, "east")
    assert secret is not None
    assert secret["data"] == {"a": "YQ=="}
    assert "east" not in site.names(Kind.SERVICE_ACCOUNT) + site.names(Kind.ROLE_BINDING)


def test_where_nothing_fills_secrets_a_token_is_requested(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the token controller the TokenRequest API gives one, and it is said when that expires."""
    monkeypatch.setattr(tokens, "TOKEN_TYPE", "example.com/unfilled")  # what no controller looks at
    monkeypatch.setattr(tokens, "TOKEN_TIMEOUT", 0.3)
    code, _, err = make_token(site)
    assert code == 1
    assert "kube-root-ca.crt" in err
    assert site.names(Kind.SECRET) == []
    site.put(Kind.CONFIG_MAP, "kube-root-ca.crt", {"data": {"ca.crt": "authority"}})
    code, _, err = make_token(site, "east", "-o", str(tmp_path / "east.yaml"))
    assert code == 0, err
    assert "EXPIRES at 20" in err
    data = yaml.safe_load((tmp_path / "east.yaml").read_text())["data"]
    assert base64.b64decode(data["ca.crt"]) == b"authority"
    user = site.server.accounts.authenticate(base64.b64decode(data["token"]).decode())
    assert user is not None
    assert user.name == f"system:serviceaccount:{AREA}:east"


def test_a_token_that_is_not_there_cannot_be_deleted(site: Site) -> None:
    """The message says so."""
    code, _, err = site.run("membertoken", "delete", "nobody", "-n", AREA)
    assert code == 1
    assert "there is no member token mcs/nobody" in err


# --- join ---------------------------------------------------------------------------------------------------


def test_join_with_a_secret_in_the_file(site: Site, tmp_path: Path) -> None:
    """Secret and ClusterSet are made, and the command ends when the leader has this cluster."""
    end = controller(site, "True", "")
    code, out, err = site.run("clusterset", "join", "-f", str(config_file(tmp_path / "j", CONFIG, SECRET)))
    end()
    assert code == 0, err
    assert "this cluster is a member of blue" in err
    cluster_set = site.get(Kind.CLUSTER_SET, "blue", "kube-system")
    secret = site.get(Kind.SECRET, "east-token", "kube-system")
    assert cluster_set
    assert secret
    assert cluster_set["spec"] == {
        "clusterID": "east",
        "namespace": AREA,
        "leaders": [{"clusterID": "north", "server": "https://10.0.0.1:6443", "secret": "east-token"}],
    }
    assert secret["data"] == SECRET["data"]
    assert secret["metadata"]["annotations"] == CREATED
    assert "c2VjcmV0LXRva2Vu" not in out + err


def test_join_lets_the_controller_read_the_token_and_no_other_secret(site: Site, tmp_path: Path) -> None:
    """A Role for the one name, bound to the member's controller; another Secret is another Role; none stays."""
    file = str(config_file(tmp_path / "j", CONFIG, SECRET))

    def readable() -> tuple[object, object]:
        role = site.get(Kind.ROLE, TOKEN_ROLE, "kube-system")
        binding = site.get(Kind.ROLE_BINDING, TOKEN_ROLE, "kube-system")
        assert role
        assert binding
        assert binding["roleRef"]["name"] == TOKEN_ROLE
        (rule,), (subject,) = role["rules"], binding["subjects"]
        assert (rule["resources"], rule["verbs"]) == (["secrets"], ["get", "list", "watch", "update"])
        return rule["resourceNames"], (subject["kind"], subject["namespace"], subject["name"])

    account = ("ServiceAccount", "kube-system", "mcagent-controller")
    assert site.run("clusterset", "join", "-f", file, "--no-wait")[0] == 0
    assert readable() == (["east-token"], account)
    assert site.run("clusterset", "leave", "--clusterset", "blue")[0] == 0
    assert site.names(Kind.ROLE, "kube-system") + site.names(Kind.ROLE_BINDING, "kube-system") == []
    site.put(Kind.SECRET, "there", {"type": "Opaque", "data": SECRET["data"]}, "kube-system")
    assert site.run("clusterset", "join", "-f", file, "--token-secret-name", "there", "--no-wait")[0] == 0
    assert readable() == (["there"], account)


def test_join_with_flags_alone(site: Site, tmp_path: Path) -> None:
    """Every key is a flag."""
    file = config_file(tmp_path / "secret", SECRET)
    flags: tuple[str, ...] = ("--clusterset", "blue", "--clusterid", "east", "--leader-clusterid", "north")
    flags += (
        "-n",
        AREA,
        "--leader-namespace",
        "mcs",
        "--leader-apiserver",
        "https://l:1",
        "--token-secret-file",
        str(file),
    )
    code, _, err = site.run("clusterset", "join", *flags, "--no-wait")
    assert code == 0, err
    assert site.names(Kind.CLUSTER_SET) == ["blue"]
    assert site.names(Kind.SECRET) == ["east-token"]


def test_the_file_comes_before_the_flags(site: Site, tmp_path: Path) -> None:
    """What the join config says wins; what it leaves out comes from the flags."""
    leaving_out = {key: value for key, value in CONFIG.items() if key != "clusterID"}
    file = config_file(tmp_path / "j", leaving_out, SECRET)
    flags = ("--clusterset", "red", "--clusterid", "west", "--no-wait")
    assert site.run("clusterset", "join", "-f", str(file), *flags)[0] == 0
    cluster_set = site.get(Kind.CLUSTER_SET, "blue", "kube-system")
    assert cluster_set is not None
    assert cluster_set["spec"]["clusterID"] == "west"


def test_a_secrets_name_comes_before_a_file_and_that_before_one_in_the_config(site: Site, tmp_path: Path) -> None:
    """Of three tokens the most explicit is taken, and only that one is made."""
    other = SECRET | {"metadata": {"name": "from-file"}}
    secret_file = str(config_file(tmp_path / "s", other))
    file = str(config_file(tmp_path / "j", CONFIG, SECRET))
    assert site.run("clusterset", "join", "-f", file, "--token-secret-file", secret_file, "--no-wait")[0] == 0
    assert site.names(Kind.SECRET, "kube-system") == ["from-file"]
    assert site.run("clusterset", "leave", "--clusterset", "blue")[0] == 0
    flags = ("--token-secret-file", secret_file, "--token-secret-name", "there", "--no-wait")
    code, _, err = site.run("clusterset", "join", "-f", file, *flags)
    assert code == 1
    assert "no Secret kube-system/there" in err
    site.put(Kind.SECRET, "there", {"type": "Opaque", "data": SECRET["data"]}, "kube-system")
    assert site.run("clusterset", "join", "-f", file, *flags)[0] == 0
    assert site.names(Kind.SECRET, "kube-system") == ["there"]


def test_a_join_that_fails_is_taken_back(site: Site, tmp_path: Path) -> None:
    """When the leader does not take this cluster in time, neither ClusterSet nor Secret stays, and why is told."""
    file = str(config_file(tmp_path / "j", CONFIG, SECRET))
    end = controller(site, "False", "the leader refuses the token")
    code, _, err = site.run("clusterset", "join", "-f", file, "--timeout", "1.5")
    end()
    assert code == 1
    assert "waiting, 0 s: the leader refuses the token" in err or "waiting, 1 s: the leader refuses" in err
    assert "is not Ready: the leader refuses the token" in err
    assert site.names(Kind.CLUSTER_SET, "kube-system") + site.names(Kind.SECRET, "kube-system") == []


def test_a_join_that_the_leader_refuses_says_what_to_do(site: Site, tmp_path: Path) -> None:
    """The reason of the condition leads to what to look at; `get clusterset` shows the cause, which comes last."""
    file = str(config_file(tmp_path / "j", CONFIG, SECRET))
    why = f"this cluster cannot announce itself to the leader: {'x' * 300}: connection refused"
    end = controller(site, "False", why, reason="AnnounceFailed")
    code, _, err = site.run("clusterset", "join", "-f", file, "--timeout", "1")
    end()
    assert code == 1
    assert "Next: check that the leader's controller runs" in err
    assert site.run("clusterset", "join", "-f", file, "--no-wait")[0] == 0
    controller(site, "False", why, reason="AnnounceFailed")()
    out = site.run("get", "clusterset")[1]
    assert "cannot announce itself to the leader" in out
    assert ": connection refused" in out


def test_a_join_without_a_controller_says_so(site: Site, tmp_path: Path) -> None:
    """A ClusterSet that nobody looks at has no status."""
    file = str(config_file(tmp_path / "j", CONFIG, SECRET))
    code, _, err = site.run("clusterset", "join", "-f", file, "--timeout", "0.3")
    assert code == 1
    assert "does the member controller run in namespace kube-system?" in err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"leaderNamespace": None}, "leaderNamespace: is in neither"),
        ({"leaderAPIServer": "http://10.0.0.1"}, "must begin with https://"),
        ({"clusterID": "E"}, "lower-case"),
        ({"surprise": "x"}, "unknown key"),
        ({"clusterID": 5}, "must be a string"),
        ({"apiVersion": "v2"}, "apiVersion: must be"),
        ({"kind": "Pod"}, "must be ClusterSetJoinConfig or Secret"),
    ],
)
def test_a_bad_join_config_is_bad_input(site: Site, tmp_path: Path, change: RawObject, message: str) -> None:
    """The message names the file's key, and nothing is made."""
    file = str(config_file(tmp_path / "j", CONFIG | change, SECRET))
    code, _, err = site.run("clusterset", "join", "-f", file)
    assert (code, message in err) == (2, True), err
    assert site.names(Kind.SECRET, "kube-system") == []


@pytest.mark.parametrize(
    "secret",
    [
        SECRET | {"data": {"token": "c2VjcmV0LXRva2Vu"}},
        SECRET | {"data": ["c2VjcmV0LXRva2Vu"]},
        SECRET | {"metadata": {"token": "c2VjcmV0LXRva2Vu"}},
        SECRET | {"metadata": {"name": "Bad"}},
    ],
)
def test_a_bad_secret_is_refused_and_never_shown(site: Site, tmp_path: Path, secret: RawObject) -> None:
    """No message holds what is in the Secret."""
    code, out, err = site.run("clusterset", "join", "-f", str(config_file(tmp_path / "j", CONFIG, secret)))
    assert code == 2
    assert "c2VjcmV0" not in out + err


def test_yaml_that_is_none_is_refused_without_showing_it(tmp_path: Path) -> None:
    """A broken file can hold a token: only the line's number is told."""
    file = tmp_path / "j"
    file.write_text("kind: Secret\ndata: {token: c2VjcmV0\n")
    with pytest.raises(InputError) as caught:
        join_config.read(file)
    assert "c2VjcmV0" not in str(caught.value)
    assert "line" in str(caught.value)


# --- leave, destroy -----------------------------------------------------------------------------------------


def test_leave_deletes_the_cluster_set_before_what_gives_access(site: Site, tmp_path: Path) -> None:
    """The controller can still say good-bye; what no command made stays."""
    site.run("clusterset", "join", "-f", str(config_file(tmp_path / "j", CONFIG, SECRET)), "--no-wait")
    site.put(Kind.SECRET, "mine", {"type": "Opaque"}, "kube-system")
    code, _, err = site.run("clusterset", "leave", "--clusterset", "blue")
    assert code == 0, err
    assert err.index("ClusterSet kube-system/blue deleted") < err.index("Secret kube-system/east-token deleted")
    assert site.names(Kind.SECRET, "kube-system") == ["mine"]
    code, _, err = site.run("clusterset", "leave", "--clusterset", "blue")
    assert (code, "is not there" in err) == (0, True)


def test_leave_waits_for_the_controller_and_keeps_the_token_until_then(site: Site, tmp_path: Path) -> None:
    """While a finalizer holds the ClusterSet the Secret stays; repeated later, all goes."""
    site.run("clusterset", "join", "-f", str(config_file(tmp_path / "j", CONFIG, SECRET)), "--no-wait")
    path = object_path(Kind.CLUSTER_SET, "kube-system", "blue")
    patch = "application/merge-patch+json"
    site.client.request("PATCH", path, body={"metadata": {"finalizers": ["x.io/y"]}}, content_type=patch)
    code, _, err = site.run("clusterset", "leave", "--clusterset", "blue", "--timeout", "0.3")
    assert code == 1
    assert "still held after 0.3 s, by x.io/y" in err
    assert site.names(Kind.SECRET, "kube-system") == ["east-token"]
    site.client.request("PATCH", path, body={"metadata": {"finalizers": None}}, content_type=patch)
    assert site.run("clusterset", "leave", "--clusterset", "blue")[0] == 0
    assert site.names(Kind.SECRET, "kube-system") == []


def test_a_join_waits_for_the_deletion_of_an_earlier_one(site: Site, tmp_path: Path) -> None:
    """A join that failed leaves its ClusterSet to the controller, which waits for a leader that is away."""
    config = str(config_file(tmp_path / "j", CONFIG, SECRET))
    site.run("clusterset", "join", "-f", config, "--no-wait")
    path = object_path(Kind.CLUSTER_SET, "kube-system", "blue")
    finalizers: Callable[[object], object] = lambda value: site.client.request(  # noqa: E731
        "PATCH", path, body={"metadata": {"finalizers": value}}, content_type="application/merge-patch+json"
    )
    finalizers(["x.io/y"])
    site.client.request("DELETE", path)
    site.client.request("DELETE", object_path(Kind.SECRET, "kube-system", "east-token"))
    ends = threading.Timer(0.5, finalizers, [None])
    ends.start()
    code, _, err = site.run("clusterset", "join", "-f", config, "--no-wait")
    ends.join()
    assert code == 0, err
    assert "for the deletion of ClusterSet blue" in err
    cluster_set = site.get(Kind.CLUSTER_SET, "blue", "kube-system")
    assert cluster_set is not None
    assert "deletionTimestamp" not in cluster_set["metadata"]


def test_leaving_another_cluster_set_than_there_is(site: Site, tmp_path: Path) -> None:
    """A name that is wrong deletes nothing."""
    site.run("clusterset", "join", "-f", str(config_file(tmp_path / "j", CONFIG, SECRET)), "--no-wait")
    code, _, err = site.run("clusterset", "leave", "--clusterset", "red")
    assert code == 1
    assert "has no ClusterSet red; it has blue" in err
    assert site.names(Kind.SECRET, "kube-system") == ["east-token"]


def test_destroy_deletes_tokens_too(site: Site) -> None:
    """On the leader the ClusterSet goes, and every account, binding and Secret that commands made."""
    site.run(*INIT, "blue")
    make_token(site)
    code, _, err = site.run("clusterset", "destroy", "-n", AREA, "--clusterset", "blue")
    assert code == 0, err
    remaining = [site.names(kind) for kind in (Kind.CLUSTER_SET, Kind.SECRET, Kind.ROLE_BINDING)]
    assert remaining == [[], [], []]
    assert "east" not in site.names(Kind.SERVICE_ACCOUNT)


def connected(site: Site) -> None:
    """Announce a member of the ClusterSet "blue"."""
    announce = {"clusterID": "east", "clusterSetID": "blue", "leaderClusterID": "north"}
    site.put(Kind.MEMBER_CLUSTER_ANNOUNCE, "member-announce-from-east", announce)


@pytest.mark.parametrize("answer", [None, "n", "", "yes"])
def test_destroy_asks_while_there_are_members(
    site: Site, answer: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None: no terminal, so it refuses and names --yes. Without consent nothing is deleted, tokens included."""
    site.run(*INIT, "blue")
    make_token(site)
    connected(site)
    monkeypatch.setattr("sys.stdin", Terminal(f"{answer}\n") if answer is not None else StringIO())
    code, out, err = site.run("clusterset", "destroy", "-n", AREA, "--clusterset", "blue")
    assert "ClusterSet blue has members: east" in out + err
    assert code == (0 if answer == "yes" else 1)
    assert ("--yes" in err) == (answer is None)
    assert site.names(Kind.CLUSTER_SET) == ([] if answer == "yes" else ["blue"])
    assert ("east" in site.names(Kind.SERVICE_ACCOUNT)) == (answer != "yes")


def test_destroy_with_yes_asks_nothing(site: Site) -> None:
    """For scripts."""
    site.run(*INIT, "blue")
    connected(site)
    code, _, err = site.run("clusterset", "destroy", "-n", AREA, "--clusterset", "blue", "--yes")
    assert code == 0, err
    assert site.names(Kind.CLUSTER_SET) == []


@pytest.mark.parametrize("answer", [None, "n", "yes"])
def test_leave_asks_while_services_are_shared(
    site: Site, tmp_path: Path, answer: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts what is lost here and elsewhere. Without consent, and without a terminal, nothing is deleted."""
    site.run("clusterset", "join", "-f", str(config_file(tmp_path / "j", CONFIG, SECRET)), "--no-wait")
    site.put(Kind.SERVICE_EXPORT, "web", {}, "kube-system")
    monkeypatch.setattr("sys.stdin", Terminal(f"{answer}\n") if answer is not None else StringIO())
    code, _, err = site.run("clusterset", "leave", "--clusterset", "blu")
    assert (code, err) == (1, "mcagent clusterset: namespace kube-system has no ClusterSet blu; it has blue\n")
    code, out, err = site.run("clusterset", "leave", "--clusterset", "blue")
    assert "lose 1 Service of this cluster, and it loses 0 Services of others" in out + err
    assert code == (0 if answer == "yes" else 1)
    assert ("--yes" in err) == (answer is None)
    assert site.names(Kind.CLUSTER_SET, "kube-system") == ([] if answer == "yes" else ["blue"])
    if answer is None:
        assert site.run("clusterset", "leave", "--clusterset", "blue", "--yes")[0] == 0
    site.client.request("DELETE", object_path(Kind.SERVICE_EXPORT, "kube-system", "web"))


def test_the_token_of_a_member_is_deleted_with_consent_only(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token that no member uses goes at once; that of a member has to be asked for, or --yes given."""
    monkeypatch.setattr("sys.stdin", StringIO())
    make_token(site)
    make_token(site, "west")
    connected(site)
    assert site.run("membertoken", "delete", "west", "-n", AREA)[0] == 0
    code, _, err = site.run("membertoken", "delete", "east", "-n", AREA)
    assert code == 1
    assert "Cluster east, a member with 0 Services exported, has no access without this token. Give --yes" in err
    assert "east" in site.names(Kind.SERVICE_ACCOUNT)
    assert site.run("membertoken", "delete", "east", "-n", AREA, "--yes")[0] == 0
    assert "east" not in site.names(Kind.SERVICE_ACCOUNT)


class Terminal(StringIO):
    """Input from a terminal."""

    def isatty(self) -> bool:
        """Tell that it is one."""
        return True


# --- drain --------------------------------------------------------------------------------------------------


def test_a_node_that_does_not_exist_is_named_with_those_that_do(site: Site) -> None:
    """Not the request that failed; `undrain` of a Node that was never asked to drain changes nothing."""
    site.put(Kind.NODE, "n1", {}, "")
    try:
        for command in ("drain", "undrain"):
            code, _, err = site.run(command, "n2")
            assert (code, err) == (2, f'mcagent {command}: there is no Node "n2"; the Nodes are n1\n')
        code, out, _ = site.run("undrain", "n1")
        assert code == 0
        assert out.startswith("Node n1: nothing asked it to drain")
        assert "annotations" not in (site.get(Kind.NODE, "n1", "") or {})["metadata"]
    finally:
        site.client.request("DELETE", object_path(Kind.NODE, "", "n1"))


def test_a_node_that_is_no_gateway_is_not_asked_to_drain(site: Site) -> None:
    """It could not become a gateway later. One that may become a gateway is asked, until `mcagent undrain`."""
    for name, notes in (("n1", {}), ("n2", {"multicluster.antrea.io/gateway": "true"})):
        site.put(Kind.NODE, name, {"metadata": {"annotations": notes}}, "")
    try:
        code, out, _ = site.run("drain", "n1", "--timeout", "0.1")
        assert (code, out) == (0, "Node n1: this Node is not a gateway\n")
        code, _, err = site.run("drain", "n2", "--timeout", "0.1")
        assert (code, "the request stays until mcagent undrain" in err) == (1, True)
        nodes = {item["metadata"]["name"]: item for item in site.client.request("GET", "/api/v1/nodes")["items"]}
        assert "mcagent.io/drain" not in nodes["n1"]["metadata"].get("annotations", {})
        assert nodes["n2"]["metadata"]["annotations"]["mcagent.io/drain"] == "true"
        code, _, err = site.run("drain", "n9")
        assert (code, err) == (2, 'mcagent drain: there is no Node "n9"; the Nodes are n1, n2\n')
    finally:
        for name in ("n1", "n2"):
            site.client.request("DELETE", object_path(Kind.NODE, "", name))


# --- get ----------------------------------------------------------------------------------------------------


def test_get_shows_what_a_leader_says(site: Site) -> None:
    """ClusterSets with their members, exports with their faults, imports; as tables and as JSON."""
    leader = Leader("east", "west")
    leader.put(service("east"), endpoints("east", ["10.1.0.1"]), cluster_info("east", "10.1.0.0/16"))
    leader.clock.forward(1)
    leader.put(service("west", ports=81))
    leader.forward(60, "east")
    for kind in (Kind.CLUSTER_SET, Kind.RESOURCE_EXPORT, Kind.RESOURCE_IMPORT):
        for obj in leader.api.list(kind):
            meta = {key: obj["metadata"].get(key) for key in ("name", "namespace")}
            site.client.request("POST", object_path(kind, AREA), body={**obj, "metadata": meta})
            path = object_path(kind, AREA, meta["name"]) + "/status"
            body = {"status": obj["status"]}
            site.client.request("PATCH", path, body=body, content_type="application/merge-patch+json")
    code, out, _ = site.run("get", "clusterset")
    assert code == 0
    head, whole, east, west = (line.split() for line in out.splitlines())
    assert head[:6] == ["NAMESPACE", "NAME", "CLUSTER", "ROLE", "READY", "STATUS"]
    assert whole[:6] == [AREA, "clusterset1", "north", "leader", "1/2", "False"]
    assert (east[:2], west[:2]) == (["east", "True"], ["west", "False"])
    code, out, _ = site.run("get", "re", "-n", AREA, "--clusterid", "west")
    assert [line.split()[1] for line in out.splitlines()[1:]] == ["west-default-nginx-service"]
    assert "Conflict" in out
    assert "[http 80/TCP] in cluster east, which was first" in out
    code, out, _ = site.run("get", "resourceimports", "default-nginx-service", "-o", "json")
    assert json.loads(out)["spec"]["kind"] == "ServiceImport"
    code, out, _ = site.run("get", "ri", "-o", "yaml")
    assert len(yaml.safe_load(out)["items"]) == 3
    assert site.run("get", "gateway")[1] == "no resources found\n"
    code, out, _ = site.run("get", "ri,gateway")
    assert (code, "default-nginx-service" in out, out.endswith("\n\nno resources found\n")) == (0, True, True)
    assert site.run("get", "ri,gateway", "-o", "name")[1].startswith("resourceimport/default-")
    assert 'there is no kind "gatewy" (did you mean "gateway"?)' in site.run("get", "gatewy")[2]
    assert site.run("get", "ri,gateway", "-o", "json")[0] == 2
    code, out, _ = site.run("get", "ResourceImports.multicluster.crd.antrea.io", "-o", "name")
    assert "resourceimport/default-nginx-service" in out.splitlines()
    code, out, _ = site.run("get", "resourceexport/west-default-nginx-service", "east-clusterinfo", "-o", "name")
    assert out.splitlines() == ["resourceexport/east-clusterinfo", "resourceexport/west-default-nginx-service"]
    code, _, err = site.run("get", "re", "east-clusterinfo", "east-clusterinf")
    assert code == 1
    assert err.endswith('there is no resourceexport east-clusterinf (did you mean "east-clusterinfo"?)\n')
    assert "; there are east-clusterinfo, " in site.run("get", "re", "none")[2]


def test_get_clusterset_names_unreachable_clusters(site: Site, tmp_path: Path) -> None:
    """A member reads its gateways, a leader the announcements; a link with a live tunnel is left out."""
    lost_link = {
        "clusterID": "west",
        "live": 0,
        "tunnels": 2,
        "since": "2026-11-25T21:00:00Z",
        "why": "BFD is down",
    }
    partial = {"clusterID": "south", "live": 1, "tunnels": 2}
    message = "east has no live tunnel to west since 2026-11-25T21:00:00Z: BFD is down"
    member = {"clusterID": "east", "leaders": [{"clusterID": "north", "server": "https://leader", "secret": "t"}]}
    leader = {"clusterID": "north", "leaders": [{"clusterID": "north"}]}
    announce = {"clusterID": "east", "clusterSetID": "blue", "leaderClusterID": "north"}
    notes = {"mcagent.io/links": json.dumps([lost_link, partial])}
    for kind, namespace, name, content in (
        (Kind.CLUSTER_SET, "kube-system", "blue", {"spec": member}),
        (Kind.GATEWAY, "kube-system", "gw", {"gatewayIP": "192.168.7.1"}),
        (Kind.CLUSTER_SET, AREA, "blue", {"spec": leader}),
        (Kind.MEMBER_CLUSTER_ANNOUNCE, AREA, "member-announce-from-east", announce),
    ):
        annotations = notes if kind is Kind.MEMBER_CLUSTER_ANNOUNCE else {}
        body = {**content, "metadata": {"name": name, "namespace": namespace, "annotations": annotations}}
        site.client.request("POST", object_path(kind, namespace), body=body)
    path = object_path(Kind.GATEWAY, "kube-system", "gw") + "/status"
    patch = {"status": {"links": [lost_link, partial]}}
    site.client.request("PATCH", path, body=patch, content_type="application/merge-patch+json")
    for namespace in ("kube-system", AREA):
        code, out, _ = site.run("get", "clusterset", "-n", namespace)
        assert code == 0
        assert [line for line in out.splitlines() if "WARNING" in line and message in line], out
        assert "south" not in out
    assert "WARNING" not in site.run("get", "clusterset", "-o", "json")[1]


def test_get_clusterset_lists_virtual_pod_cidrs_that_members_configure(site: Site) -> None:
    """A leader does not assign them, so only the members' exports name them; the short table leaves them out."""
    leader = {"clusterID": "north", "leaders": [{"clusterID": "north"}]}
    info = {"clusterID": "east", "serviceCIDR": "10.96.0.0/16", "podCIDRs": ["172.20.0.0/16"], "gatewayInfos": []}
    export = {"clusterID": "east", "kind": "ClusterInfo", "clusterInfo": info}
    notes = {"mcagent.io/pod-cidrs": "10.244.0.0/16"}
    for kind, name, spec, notes_or_none in (
        (Kind.CLUSTER_SET, "blue", leader, None),
        (Kind.RESOURCE_EXPORT, "east-clusterinfo", export, notes),
    ):
        body = {"spec": spec, "metadata": {"name": name, "namespace": AREA, "annotations": notes_or_none}}
        site.client.request("POST", object_path(kind, AREA), body=body)
    shown = "ClusterSet blue: virtual Pod CIDR 172.20.0.0/16 for 10.244.0.0/16 of east, configured by that cluster"
    assert shown in site.run("get", "clusterset", "-n", AREA, "-o", "wide")[1].splitlines()
    assert shown not in site.run("get", "clusterset", "-n", AREA)[1]


def test_get_shows_tokens_without_secrets(site: Site) -> None:
    """Who has access is shown, the token never."""
    make_token(site)
    secret = site.get(Kind.SECRET, "east")
    assert secret is not None
    for form in ("table", "json", "yaml"):
        code, out, _ = site.run("membertoken", "get", "-n", AREA, "-o", form)
        assert code == 0
        assert "east" in out
        assert secret["data"]["token"] not in out
    code, out, _ = site.run("get", "membertoken")
    assert out.splitlines()[1].split()[:4] == [AREA, "east", "east", "NeverExpires"]


def test_get_of_what_is_not_there(site: Site) -> None:
    """A name that is not there, and a kind that is none, are said in words and by the exit code."""
    assert site.run("get", "clusterset", "nobody", "-n", AREA)[0] == 1
    code, _, err = site.run("get", "pods")
    assert code == 2
    assert "known are clusterset" in err
    assert site.run("get", "joinconfig")[0] == 1


class _Bare(BaseHTTPRequestHandler):
    """What an API server answers for a group that it does not have."""

    def do_GET(self) -> None:
        self.send_error(404, "page not found")

    def log_message(self, *args: object) -> None:
        """Say nothing."""


def test_an_api_server_that_does_not_know_the_kinds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the CRDs the message points at them."""
    with HTTPServer(("127.0.0.1", 0), _Bare) as bare:
        thread = threading.Thread(target=bare.serve_forever)
        thread.start()
        cluster = {"name": "x", "cluster": {"server": f"http://127.0.0.1:{bare.server_port}"}}
        context = {"name": "x", "context": {"cluster": "x", "user": "x"}}
        config = {"clusters": [cluster], "contexts": [context], "current-context": "x"}
        config |= {"users": [{"name": "x", "user": {}}]}
        (tmp_path / "kubeconfig").write_text(json.dumps(config))
        arguments = ["clusterset", "leave", "--clusterset", "blue", "--kubeconfig", str(tmp_path / "kubeconfig")]
        code = main(arguments)
        bare.shutdown()
        thread.join()
    assert code == 1
    assert "are the CRDs installed?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "0s"), (119, "119s"), (120, "2m"), (7200, "2h"), (172_800, "2d"), (-5, "0s")]
)
def test_ages(seconds: int, shown: str) -> None:
    """Ages are told as kubectl does."""
    assert since("1970-01-01T00:00:00Z", seconds) == shown
    assert since("", seconds) == "-"


def test_join_config_round_trip(tmp_path: Path) -> None:
    """What is written can be read again."""
    config = JoinConfig(cluster_set="blue", leader_id="north", leader_namespace="m", leader_server="https://l")
    join_config.write(tmp_path / "j", join_config.text(config), secret=False)
    assert join_config.read(tmp_path / "j") == (config, None)


# --- status of a cluster ------------------------------------------------------------------------------------


def test_status_shows_a_whole_cluster_with_its_problems_first(site: Site) -> None:
    """From objects of the API alone: ClusterSet, gateways, links, exports, controllers; as text and as JSON."""
    lost_link = {
        "clusterID": "west",
        "live": 0,
        "tunnels": 2,
        "since": "2026-11-25T21:00:00Z",
        "why": "BFD is down",
    }
    fine = {"clusterID": "south", "live": 2, "tunnels": 2, "bytesPerSecond": 125000}
    spec = {"clusterID": "east", "leaders": [{"clusterID": "north", "server": "https://leader", "secret": "t"}]}
    ready = {
        "type": "Ready",
        "status": "True",
        "lastTransitionTime": "2026-11-25T21:00:00Z",
        "message": "",
        "reason": "x",
    }
    site.client.request("POST", object_path(Kind.NODE, ""), body={"metadata": {"name": "gw"}})
    try:
        for kind, name, content, status in (
            (Kind.NODE, "gw", None, {"conditions": [ready]}),
            (
                Kind.CLUSTER_SET,
                "blue",
                {"spec": spec},
                {"clusterStatuses": [{"clusterID": "east", "conditions": [ready]}]},
            ),
            (Kind.GATEWAY, "gw", {"gatewayIP": "192.168.7.1"}, {"links": [fine]}),
        ):
            namespace = "" if kind is Kind.NODE else "kube-system"
            if content is not None:
                body = {**content, "metadata": {"name": name, "namespace": namespace}}
                site.client.request("POST", object_path(kind, namespace), body=body)
            path = object_path(kind, namespace, name) + "/status"
            site.client.request(
                "PATCH", path, body={"status": status}, content_type="application/merge-patch+json"
            )
        note = {"metadata": {"name": "second", "annotations": {"multicluster.antrea.io/gateway": "true"}}}
        site.client.request("POST", object_path(Kind.NODE, ""), body=note)
        try:
            assert "annotated and waiting: second." in site.run("get", "gateway", "-A")[1]
        finally:
            site.client.request("DELETE", object_path(Kind.NODE, "", "second"))
        assert "waiting" not in site.run("get", "gateway", "-A")[1]
        code, out, err = site.run("status")
        assert code == 0, err
        assert out.splitlines()[0].endswith("0 problems, 1 warnings")  # no controller runs here as a Deployment
        assert re.search(r"^east +south +up +2/2 +- +1000 kbit/s", out, re.M), out
        path = object_path(Kind.GATEWAY, "kube-system", "gw") + "/status"
        body = {"status": {"links": [lost_link, fine]}}
        site.client.request("PATCH", path, body=body, content_type="application/merge-patch+json")
        code, out, _ = site.run("status")
        assert code == 1
        expected = "ClusterUnreachable: east has no live tunnel to west: BFD is down"
        assert out.splitlines()[1] == f"  ✗ east to west: {expected}"
        assert re.search(r"^gw +192.168.7.1 +- +yes +2/4", out, re.M), out
        report = json.loads(site.run("status", "-o", "json")[1])
        assert report["problems"][0] == {
            "subject": "east to west",
            "message": expected,
            "do": "mcagent doctor --all",
            "error": True,
        }
        assert [cluster["ready"] for cluster in report["clusterSets"][0]["clusters"]] == [True]
    finally:
        site.client.request("DELETE", object_path(Kind.NODE, "", "gw"))


def test_an_account_that_reads_the_page_is_one_command(site: Site) -> None:
    """Bound to the role that reads pages and to nothing else; a second call makes another token alone."""
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    assert "ClusterRole mcagent-metrics-reader" in site.run("page", "--account", "viewer")[2]
    site.client.request("POST", f"{rbac}/clusterroles", body={"metadata": {"name": "mcagent-metrics-reader"}})
    code, out, err = site.run("page", "--account", "viewer")
    assert (code, len(out.split())) == (0, 1), err
    binding = site.client.request("GET", f"{rbac}/clusterrolebindings/mcagent-metrics-reader-kube-system-viewer")
    assert binding["roleRef"]["name"] == "mcagent-metrics-reader"
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "viewer", "namespace": "kube-system"}]
    code, _, err = site.run("page", "--account", "viewer")
    assert (code, "created" in err) == (0, False)
