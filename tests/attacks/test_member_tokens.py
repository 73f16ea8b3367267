"""Tokens of members that expire, on a real kube-apiserver: what the right to renew them does not permit.

Accounts, roles and policies are those of `tests.attacks.test_access`; the token is that of
`mcagent membertoken create`.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from devtools.waiting import wait_until
from mcagent.cli.main import main
from mcagent.controller.contract.member_tokens import TokenClaims, anchor_name, claims_of, token_request
from mcagent.controller.machinery.connection.renewal import RenewalTiming, TokenRenewal
from mcagent.kube.client import Client
from mcagent.kube.errors import ApiRefusalError
from mcagent.model.kinds import object_path
from mcagent.model.objects import Kind
from tests.attacks.catalogue import Attacker, Group, attack
from tests.kube.access import MERGE, token_of
from tests.worlds.apiservers import refusal
from tests.worlds.shipped_access import JOIN_SECRET, Stage, _stages, decoded, stage, stopped

pytestmark = pytest.mark.real_only  # the embedded server has no CEL
__all__ = ["_stages", "stage"]

by_member = partial(attack, Group.ACCESS, Attacker.MEMBER)
LIFE = 3600


@dataclass(frozen=True, slots=True)
class Member:
    """A member with a token that expires."""

    stage: Stage
    name: str
    token: str
    client: Client
    claims: TokenClaims

    def path(self, account: str = "") -> str:
        """Return where tokens of an account are requested."""
        return object_path(Kind.SERVICE_ACCOUNT, self.stage.area.namespace, account or self.name) + "/token"

    def refused(self, body: Any, account: str = "", client: Client | None = None) -> ApiRefusalError | None:
        """Request a token; return how it was refused."""
        return refusal(client or self.client, "POST", self.path(account), body)

    def run(self, action: str, *more: str) -> int:
        """Run `mcagent membertoken` for this member."""
        where = ("-n", self.stage.area.namespace, "--kubeconfig", str(self.stage.server.kubeconfig))
        return main(["membertoken", action, self.name, *more, *where])


def token_in(file: Path) -> str:
    """Return the token in a file of `mcagent membertoken`."""
    return decoded(yaml.safe_load(file.read_text()), "token")


@pytest.fixture
def member(stage: Stage, tmp_path: Path) -> Iterator[Member]:
    """Give a member whose right to renew is known to the API server."""
    published = object_path(Kind.CONFIG_MAP, stage.area.namespace, "kube-root-ca.crt")
    if refusal(stage.admin, "GET", published) is not None:
        body = {"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": "authority"}}
        refusal(stage.admin, "POST", object_path(Kind.CONFIG_MAP, stage.area.namespace), body)
    name, file = f"m{uuid.uuid4().hex[:8]}", tmp_path / "token.yaml"
    new = partial(Member, stage, name)
    create = ("--cluster-id", name, "-o", str(file), "--expires", "1h")
    admin = new("", stage.admin, TokenClaims(issued=0, expires=0, namespace="", account=""))
    assert admin.run("create", *create) == 0
    token = token_in(file)
    claims = claims_of(token)
    assert claims is not None
    created = new(token, stage.client(token), claims)
    request = token_request(claims.anchor, LIFE)
    wait_until(lambda: created.refused(request) is None, "the right to renew to be known", timeout=20)
    yield created
    if refusal(stage.admin, "GET", stage.area.path("serviceaccounts", name)) is None:
        assert created.run("delete") == 0


def renew(member: Member) -> None:
    """Check renewal itself: the new token is bound to the same Secret, lives as long, and opens the same."""
    answer = member.client.request("POST", member.path(), body=token_request(member.claims.anchor, LIFE))
    claims = claims_of(answer["status"]["token"])
    assert claims is not None
    assert (claims.account, claims.anchor) == (member.name, member.claims.anchor)
    assert claims.expires - claims.issued == LIFE
    renewed = member.stage.client(answer["status"]["token"])
    assert refusal(renewed, "GET", member.stage.path(Kind.RESOURCE_EXPORT)) is None


def request_as_no_member(stage: Stage) -> None:
    """Check that the policy is about accounts with the members' Role, and not about one that may do everything."""
    path = object_path(Kind.SERVICE_ACCOUNT, stage.area.namespace, "issuer") + "/token"
    stage.account(stage.area, "issuer")
    stage.bind(stage.area, "issuer", stage.area, "cluster-admin", "ClusterRole")
    client = stage.client(token_of(stage.area, "issuer"))
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    wait_until(lambda: refusal(client, "POST", path, body) is None, "the token to be issued", timeout=20)


@attack(
    Group.ACCESS,
    Attacker.USER,
    wants="let the member's controller write a token into a Secret of another name",
    stopped_by="RBAC: the Role of `clusterset join` names the one Secret",
)
def test_renewal_into_another_secret(member: Member) -> None:
    """By the Role of `clusterset join`, for the one Secret; for another the error has the command."""
    stage, home = member.stage, member.stage.home.namespace
    data = {"token": base64.b64encode(member.token.encode()).decode()}
    path = object_path(Kind.SECRET, home, JOIN_SECRET)
    stage.admin.request("PATCH", path, body={"data": data}, content_type=MERGE)
    for secret, error in ((JOIN_SECRET, ""), ("other", f"kubectl -n {home} patch role mcagent-leader-token")):
        renewal = TokenRenewal(
            stage.controller, home, lambda: 60.0, lambda: member.claims.renewal + 1.0, RenewalTiming()
        )
        renewal.use(member.token)
        renewal.step(member.client, secret)
        assert error in renewal.error
        assert bool(error) is bool(renewal.error), renewal.error
    stored = decoded(stage.admin.request("GET", path), "token")
    claims = claims_of(stored)
    assert stored != member.token
    assert claims is not None
    assert claims.anchor == member.claims.anchor


@by_member(
    wants="make a stolen token last for years by renewing it for longer than the administrator has allowed",
    stopped_by="an admission policy: expirationSeconds is at most what the name of the bound Secret says",
)
@pytest.mark.parametrize("seconds", [LIFE + 1, 86400 * 365, 2**32 - 1])
def test_a_longer_life(member: Member, seconds: int) -> None:
    """Not for a second more, nor by the name of a Secret that does not exist. Renewal itself works."""
    renew(member)
    stopped(member.refused(token_request(member.claims.anchor, seconds)), f"at most {LIFE}")
    forged = anchor_name(member.name, 999_999_999, "a" * 20)
    stopped(member.refused(token_request(forged, seconds)), "not found", "at most 999999999")


@by_member(
    wants="keep access after the revocation by a token that is bound to nothing, or to what stays",
    stopped_by="an admission policy: boundObjectRef is the Secret that `membertoken create` made for this member",
)
def test_a_token_that_is_not_bound(member: Member) -> None:
    """No reference, another Secret, that of another member, a Pod, a Node, and other names of the same Secret."""
    whole: Any = token_request(member.claims.anchor, 600)
    reference = whole["spec"].pop("boundObjectRef")
    owner_references: tuple[Any, ...] = (
        {},
        reference | {"name": "mcagent-leader-webhook"},
        reference | {"name": anchor_name("west", LIFE, "a" * 20)},
        reference | {"kind": "Pod"},
        reference | {"kind": "Node"},
        reference | {"name": f"{member.claims.anchor}.x"},
        reference | {"name": member.claims.anchor.replace(".", "-")},
        reference | {"apiVersion": ""},
    )
    stopped(member.refused(whole), "spec.boundObjectRef must be the Secret")
    for other in owner_references:
        body = whole | {"spec": whole["spec"] | {"boundObjectRef": other}}
        stopped(member.refused(body), "spec.boundObjectRef must be the Secret", "Unsupported value")


@by_member(
    wants="get the token of another member, of the controller, or of an account whose name begins like its own",
    stopped_by="RBAC: the Role names the member's own account",
)
def test_a_token_of_another_account_by_the_right_to_renew(member: Member) -> None:
    """With the reference that is right for its own account. Accounts that are no members are not concerned."""
    request_as_no_member(member.stage)
    member.stage.account(member.stage.area, f"{member.name}.token")
    for account in ("west", "mcagent-controller", "default", f"{member.name}.token"):
        stopped(member.refused(token_request(member.claims.anchor, 600), account), "cannot create")
        stopped(member.refused(token_request(anchor_name(account, LIFE, "a" * 20), 600), account), "cannot create")


@by_member(
    wants="renew a token that was revoked, within the seconds for which the API server still believes it",
    stopped_by="the bound Secret, which is gone; the name of the next one cannot be guessed or read",
)
@pytest.mark.parametrize("action", ["rotate", "delete", "kubectl"])
def test_a_revoked_token_has_no_successor(member: Member, tmp_path: Path, action: str) -> None:
    """Account, Role and a new Secret exist; an API server accepts the earlier token for ten more seconds."""
    new = tmp_path / "new.yaml"
    if action == "kubectl":
        path = object_path(Kind.SECRET, member.stage.area.namespace, member.claims.anchor)
        member.stage.admin.request("DELETE", path)
    else:
        assert member.run(action, *(("-o", str(new), "--expires", "1h") if action == "rotate" else ())) == 0
    gone = ("not found", "Unauthorized", "cannot create")
    stopped(member.refused(token_request(member.claims.anchor, 600)), *gone)
    stopped(member.refused(token_request("", 600)), "boundObjectRef", *gone)
    stopped(refusal(member.client, "GET", member.stage.area.path("secrets")), "cannot list", "Unauthorized")

    def is_nobodys() -> bool:
        refused = refusal(member.client, "GET", member.stage.path(Kind.RESOURCE_EXPORT))
        return refused is not None and refused.code == 401

    wait_until(is_nobodys, "the token to be nobody's", timeout=30)
    if action == "rotate":
        renewed = member.stage.client(token_in(new))
        assert refusal(renewed, "GET", member.stage.path(Kind.RESOURCE_EXPORT)) is None
