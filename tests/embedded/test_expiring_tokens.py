"""Tokens of members that expire: the commands on the leader, and their replacement in a member."""

from __future__ import annotations

import base64
import json
import stat
from pathlib import Path

import pytest
import yaml

from mcagent.controller.admin import expiring_tokens
from mcagent.controller.contract.conditions import time_of
from mcagent.controller.contract.member_tokens import TokenClaims, claims_of, longest_life
from mcagent.kube.client import Client
from mcagent.kube.credentials import token_kubeconfig
from mcagent.kube.errors import ApiRefusalError
from mcagent.kube.source import RawObject
from mcagent.model.kinds import object_path
from mcagent.model.objects import Kind
from tests.worlds.admin_site import AREA, CONFIG, SECRET, Site, config_file, controller, server, site

__all__ = ["server", "site"]
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
BINDINGS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
CREATE = ("membertoken", "create", "east", "-n", AREA, "--cluster-id", "east")


@pytest.fixture
def leader(site: Site) -> Site:
    """Give a leader with the admission policy and the ConfigMap of its authority."""
    site.put(Kind.CONFIG_MAP, "kube-root-ca.crt", {"data": {"ca.crt": "authority"}})
    have = {item["metadata"]["name"] for item in site.client.request("GET", POLICIES)["items"]}
    if expiring_tokens.POLICY not in have:
        meta = {"metadata": {"name": expiring_tokens.POLICY}}
        site.client.request("POST", POLICIES, body={**meta, "spec": {}})
        site.client.request("POST", BINDINGS, body={**meta, "spec": {"validationActions": ["Deny"]}})
    return site


def written(file: Path) -> tuple[str, TokenClaims]:
    """Return the token in a file, and its claims."""
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    secret = yaml.safe_load(file.read_text())
    token = base64.b64decode(secret["data"]["token"]).decode()
    claims = claims_of(token)
    assert claims is not None
    return token, claims


def refused(site: Site, token: str) -> bool:
    """Tell whether the API server refuses a token."""
    client = Client(token_kubeconfig(site.client.server, _authority(site), token))
    try:
        client.request("GET", object_path(Kind.RESOURCE_IMPORT, AREA))
    except ApiRefusalError as error:
        return error.code == 401
    finally:
        client.close()
    return False


def _authority(site: Site) -> bytes:
    cluster = yaml.safe_load(site.kubeconfig.read_text())["clusters"][0]["cluster"]
    return Path(cluster["certificate-authority"]).read_bytes()


def rules_of(site: Site, name: str) -> list[RawObject]:
    """Return the rules of a Role."""
    role = site.get(Kind.ROLE, name)
    assert role is not None
    rules: list[RawObject] = role["rules"]
    return rules


def test_a_token_expires_and_is_bound_to_a_secret_without_data(leader: Site, tmp_path: Path) -> None:
    """The account may request tokens of itself only; neither output nor the leader's objects hold the token."""
    file = tmp_path / "east.yaml"
    code, out, err = leader.run(*CREATE, "-o", str(file), "--expires", "36h")
    assert code == 0, err
    token, claims = written(file)
    code, out, _ = leader.run("membertoken", "get", "east", "-n", AREA, "-o", "json")
    life = json.loads(out)["token"]
    assert (life["state"], life["lifeSeconds"], life["estimated"]) == ("Valid", 36 * 3600, False)
    assert abs((time_of(life["expires"]) or 0.0) - claims.expires) <= 5.0
    assert abs((time_of(life["renewal"]) or 0.0) - claims.renewal) <= 5.0
    assert (claims.account, claims.namespace) == ("east", AREA)
    assert claims.expires - claims.issued == longest_life("east", claims.anchor) == 36 * 3600
    assert "data" not in (leader.get(Kind.SECRET, claims.anchor) or {"data": ""})
    assert leader.get(Kind.SECRET, "east") is None
    assert "the token expires at " in err
    assert token not in out + err
    assert rules_of(leader, "east.token") == [
        {
            "apiGroups": [""],
            "resources": ["serviceaccounts/token"],
            "resourceNames": ["east"],
            "verbs": ["create"],
        },
        {"apiGroups": [""], "resources": ["serviceaccounts"], "resourceNames": ["east"], "verbs": ["renew-token"]},
    ]
    again = tmp_path / "again.yaml"
    assert leader.run("membertoken", "get", "east", "-n", AREA, "--secret-file", str(again))[0] == 0
    assert written(again)[1].anchor == claims.anchor
    assert not refused(leader, token)
    assert leader.run("membertoken", "delete", "east", "-n", AREA)[0] == 0
    assert refused(leader, token)
    assert leader.names(Kind.SECRET) == []
    assert leader.names(Kind.ROLE_BINDING) == []
    assert leader.get(Kind.ROLE, "east.token") is None


def test_without_the_admission_policy_no_account_may_renew(leader: Site) -> None:
    """A token that expires is refused, with what to do, and nothing is created. By default it does not expire."""
    leader.client.request("DELETE", f"{BINDINGS}/{expiring_tokens.POLICY}")
    code, _, err = leader.run(*CREATE, "--expires", "90d")
    assert code == 1
    assert "kubectl apply -f deploy/admission-policies.yaml" in err
    assert "--expires never" in err
    assert leader.names(Kind.SERVICE_ACCOUNT) == []
    code, out, err = leader.run(*CREATE)
    leader.client.request("DELETE", f"{POLICIES}/{expiring_tokens.POLICY}")
    assert code == 0, err
    assert "the token does not expire" in out + err
    assert leader.names(Kind.SECRET) == ["east"]
    assert leader.get(Kind.ROLE, "east.token") is None


@pytest.mark.parametrize("text", ["", "90", "0d", "59m", "367d", "1w", "-1d", "forever"])
def test_a_life_that_cannot_be_is_refused(leader: Site, text: str) -> None:
    """With the flag and valid values; nothing is created."""
    code, _, err = leader.run(*CREATE, f"--expires={text}")
    assert code == 2
    assert "--expires" in err
    assert "90d" in err
    assert leader.names(Kind.SERVICE_ACCOUNT) == []


def test_a_failed_creation_leaves_no_right_to_renew(leader: Site, tmp_path: Path) -> None:
    """A file that exists is not written over, and everything is taken back."""
    file = tmp_path / "east.yaml"
    file.write_text("mine")
    assert leader.run(*CREATE, "-o", str(file))[0] == 1
    assert leader.names(Kind.SECRET) == leader.names(Kind.ROLE_BINDING) == leader.names(Kind.SERVICE_ACCOUNT) == []
    assert leader.get(Kind.ROLE, "east.token") is None


@pytest.mark.parametrize("first", ["90d", "never"])
@pytest.mark.parametrize("then", ["30d", "never"])
def test_rotation_revokes_the_earlier_tokens_and_keeps_the_limits(
    leader: Site, tmp_path: Path, first: str, then: str
) -> None:
    """Whatever form either has; only a token that expires leaves a right to renew."""
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    assert leader.run(*CREATE, "-o", str(old), "--expires", first, "--max-exports", "7")[0] == 0
    before = leader.get(Kind.SERVICE_ACCOUNT, "east")
    earlier = base64.b64decode(yaml.safe_load(old.read_text())["data"]["token"]).decode()
    code, _, err = leader.run("membertoken", "rotate", "east", "-n", AREA, "-o", str(new), "--expires", then)
    assert code == 0, err
    token = base64.b64decode(yaml.safe_load(new.read_text())["data"]["token"]).decode()
    # Static tokens of the embedded API server are good while their account exists.
    assert refused(leader, earlier) is (first != "never")
    assert not refused(leader, token)
    after = leader.get(Kind.SERVICE_ACCOUNT, "east")
    assert before
    assert after
    assert after["metadata"]["annotations"] == before["metadata"]["annotations"]
    assert len(leader.names(Kind.SECRET)) == 1
    assert (leader.get(Kind.ROLE, "east.token") is None) is (then == "never")
    leader.run("membertoken", "delete", "east", "-n", AREA)


def test_rotation_needs_a_member(leader: Site, tmp_path: Path) -> None:
    """The message says how to list them."""
    code, _, err = leader.run("membertoken", "rotate", "nobody", "-n", AREA, "-o", str(tmp_path / "new"))
    assert code == 1
    assert f"mcagent membertoken get -n {AREA}" in err


# --- in a member --------------------------------------------------------------------------------------------


def file_of(path: Path, token: str, name: str = "east-token") -> Path:
    """Write the file of a token, as `membertoken` does."""
    data = {"ca.crt": "Y2E=", "token": base64.b64encode(token.encode()).decode()}
    path.write_text(yaml.safe_dump({**SECRET, "metadata": {"name": name}, "data": data}))
    return path


def in_secret(site: Site) -> str:
    """Return the token in the member's Secret."""
    secret = site.get(Kind.SECRET, "east-token", "kube-system")
    assert secret is not None
    return base64.b64decode(secret["data"]["token"]).decode()


@pytest.fixture
def joined(site: Site, tmp_path: Path) -> Site:
    """Give a member of ClusterSet blue, whose controller says that it is Ready."""
    end = controller(site, "True", "")
    code, _, err = site.run("clusterset", "join", "-f", str(config_file(tmp_path / "join", CONFIG, SECRET)))
    end()
    assert code == 0, err
    return site


@pytest.mark.parametrize("form", ["the token alone", "the join config", "flags"])
def test_a_member_gets_a_new_token(joined: Site, tmp_path: Path, form: str) -> None:
    """Its ClusterSet stays, the Secret that it names has the new token, and nothing shows it."""
    before = joined.get(Kind.CLUSTER_SET, "blue", "kube-system")
    new = ("--token-secret-file", str(file_of(tmp_path / "new", "fresh-token", "of-another-name")))
    arguments = {
        "the token alone": (),
        "the join config": ("-f", str(config_file(tmp_path / "again", CONFIG))),
        "flags": ("--clusterset", "blue", "--clusterid", "east"),
    }
    code, out, err = joined.run("clusterset", "join", *new, *arguments[form], "--timeout", "3")
    assert code == 0, err
    assert "its token is replaced" in err
    assert "this cluster is a member of blue" in err
    assert in_secret(joined) == "fresh-token"
    after = joined.get(Kind.CLUSTER_SET, "blue", "kube-system")
    assert before
    assert after
    assert (after["metadata"]["uid"], after["spec"]) == (before["metadata"]["uid"], before["spec"])
    assert joined.get(Kind.SECRET, "of-another-name", "kube-system") is None
    assert "fresh-token" not in out + err
    assert "secret-token" not in out + err


def test_a_role_of_an_earlier_version_gets_the_right_to_renew(joined: Site, tmp_path: Path) -> None:
    """For the one Secret."""
    path = object_path(Kind.ROLE, "kube-system", "mcagent-leader-token")
    rule = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["east-token"]}
    change = {"rules": [rule | {"verbs": ["get", "list", "watch"]}]}
    joined.client.request("PATCH", path, body=change, content_type="application/merge-patch+json")
    file = str(file_of(tmp_path / "new", "fresh-token"))
    assert joined.run("clusterset", "join", "--token-secret-file", file, "--no-wait")[0] == 0
    assert joined.client.request("GET", path)["rules"] == [rule | {"verbs": ["get", "list", "watch", "update"]}]


@pytest.mark.parametrize(
    "other", [("--clusterset", "red"), ("--clusterid", "west"), ("--leader-apiserver", "https://192.0.2.9:6443")]
)
def test_a_token_for_something_else_replaces_nothing(joined: Site, tmp_path: Path, other: tuple[str, str]) -> None:
    """Another ClusterSet, cluster or leader is another membership: the command for a token is in the message."""
    flags = {
        "--clusterset": "blue",
        "--clusterid": "east",
        "--leader-clusterid": "north",
        "--leader-namespace": AREA,
        "--leader-apiserver": "https://10.0.0.1:6443",
    } | dict([other])
    words = [word for pair in flags.items() for word in pair]
    file = str(file_of(tmp_path / "new", "fresh-token"))
    code, _, err = joined.run("clusterset", "join", *words, "--token-secret-file", file)
    assert code == 1
    assert "has a ClusterSet already: blue" in err
    assert "mcagent clusterset join --token-secret-file FILE" in err
    assert in_secret(joined) == "secret-token"


def test_a_token_that_the_leader_refuses_is_taken_back(joined: Site, tmp_path: Path) -> None:
    """The reason is the ClusterSet's, and the Secret has the earlier token."""
    path = object_path(Kind.CLUSTER_SET, "kube-system", "blue") + "/status"
    bad = {"type": "Ready", "status": "False", "reason": "Disconnected", "message": "Unauthorized"}
    body = {"status": {"conditions": [bad]}}
    joined.client.request("PATCH", path, body=body, content_type="application/merge-patch+json")
    file = str(file_of(tmp_path / "new", "fresh-token"))
    code, _, err = joined.run("clusterset", "join", "--token-secret-file", file, "--timeout", "1")
    assert code == 1
    assert "Unauthorized" in err
    assert "data of Secret kube-system/east-token taken back" in err
    assert in_secret(joined) == "secret-token"


def test_a_token_alone_joins_nothing(site: Site, tmp_path: Path) -> None:
    """Without a ClusterSet the message says what is missing."""
    code, _, err = site.run("clusterset", "join", "--token-secret-file", str(file_of(tmp_path / "new", "x")))
    assert code == 2
    assert "clusterSetID" in err
