"""Tokens of members that expire: what a token says, and when a new one is due."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from mcagent.controller.admin.listing import rows
from mcagent.controller.contract.conditions import time_text
from mcagent.controller.contract.member_tokens import (
    ALPHABET,
    RANDOM,
    TokenClaims,
    anchor_name,
    claims_of,
    longest_life,
    token_request,
)
from mcagent.controller.machinery.connection.renewal import is_due
from mcagent.controller.member import member_reconcilers
from mcagent.controller.member.leader_token import token_state
from mcagent.kube.sources.manifests import FastLoader
from mcagent.model.objects import Kind
from tests.worlds.control_view import Controller
from tests.worlds.member_tokens import ANCHOR, a_token
from tests.worlds.member_world import HOME, SET, conditions_of, leader, member, settings

POLICIES = Path(__file__).parents[2] / "deploy/admission-policies.yaml"


def test_a_token_tells_account_anchor_and_life() -> None:
    """A new one is due after two thirds of the life, and its lack is reported after five sixths."""
    claims = claims_of(a_token())
    assert claims is not None
    assert (claims.namespace, claims.account, claims.anchor) == ("mcs", "east", ANCHOR)
    assert (claims.issued, claims.renewal, claims.late, claims.expires) == (9000.0, 11400.0, 12000.0, 12600.0)


@pytest.mark.parametrize(
    "token",
    [
        "",
        "secret",
        "a.b.c",
        "mcs/east/uid",
        "e30.e30.c2ln",
        "e30.W10.c2ln",
        f"{a_token()}.more",
        a_token(exp=None),
        a_token(exp=True),
        a_token(exp="12600"),
        a_token(exp=8999),
        a_token(exp=1e300),
        a_token(iat=-1),
        a_token(**{"kubernetes.io": []}),
        a_token(**{"kubernetes.io": {"namespace": 1, "serviceaccount": {"name": "east"}}}),
        a_token(**{"kubernetes.io": {"namespace": "mcs", "serviceaccount": {"name": 7}}}),
        # as kube-controller-manager writes them into Secrets
        a_token(exp=None, **{"kubernetes.io": None, "kubernetes.io/serviceaccount/secret.name": "east"}),
        a_token(note="x" * 70_000),
    ],
)
def test_other_tokens_have_no_end(token: str) -> None:
    """They are used as they are, and never replaced."""
    assert claims_of(token) is None


@pytest.mark.parametrize(
    "secret",
    [
        "",
        "east",
        "east.3600",
        "east.03600.aaaaaaaaaaaaaaaaaaaa",
        "west.3600.aaaaaaaaaaaaaaaaaaaa",
        f"{ANCHOR}a",
        f"x{ANCHOR}",
    ],
)
def test_a_token_that_is_bound_to_something_else_is_not_renewed(secret: str) -> None:
    """Its end is known; it has no anchor."""
    bound = {"namespace": "mcs", "serviceaccount": {"name": "east"}, "secret": {"name": secret}}
    claims = claims_of(a_token(**{"kubernetes.io": bound}))
    assert claims is not None
    assert (claims.expires, claims.anchor) == (12600.0, "")


@pytest.mark.parametrize("account", ["east", "member-east", "a.b", "east.5"])
def test_an_anchor_is_of_one_account(account: str) -> None:
    """Also if the name of one account begins with that of the other."""
    anchor = anchor_name(account, 86400, ALPHABET[:RANDOM])
    accounts = ["east", "member-east", "a", "a.b", "east.5", f"{account}.86400"]
    assert [member_account for member_account in accounts if longest_life(member_account, anchor) is not None] == [
        account
    ]
    assert longest_life(account, anchor) == 86400


def test_the_admission_policy_has_the_same_rule() -> None:
    """The pattern in CEL is that of `longest_life`."""
    (policy,) = (
        obj
        for obj in yaml.load_all(POLICIES.read_text(), FastLoader)
        if obj["metadata"]["name"] == "membertokens.mcagent.io" and obj["kind"] == "ValidatingAdmissionPolicy"
    )
    variables = {variable["name"]: variable["expression"] for variable in policy["spec"]["variables"]}
    match = re.search(r"matches\('\^(.*)\$'\)", variables["isAnchor"])
    assert match is not None
    (pattern,) = match.groups()
    for token in ("3600." + "a" * 20, "99999999999." + "a" * 20, "0600." + "a" * 20, "3600." + "A" * 20, "3600.a"):
        assert bool(re.fullmatch(pattern, token)) == (longest_life("east", f"east.{token}") is not None)


def test_a_request_names_the_secret_and_the_life() -> None:
    """In the form of authentication.k8s.io/v1."""
    body = token_request(ANCHOR, 3600)
    reference = {"apiVersion": "v1", "kind": "Secret", "name": ANCHOR}
    assert body["spec"] == {"expirationSeconds": 3600, "boundObjectRef": reference}
    assert body["kind"] == "TokenRequest"


CLAIMS = TokenClaims(issued=9000.0, expires=12600.0, namespace="mcs", account="east", anchor=ANCHOR)
NEXT = "mcagent membertoken rotate east -n mcs -o token.yaml; here, mcagent clusterset join -n kube-system"


@pytest.mark.parametrize(
    ("now", "anchor", "due"),
    [
        (9000.0, ANCHOR, False),
        (11399.0, ANCHOR, False),
        (11400.0, ANCHOR, True),
        (12599.0, ANCHOR, True),
        (12600.0, ANCHOR, False),  # the leader refuses the request
        (11400.0, "", False),
    ],
)
def test_when_a_token_is_renewed(now: float, anchor: str, due: bool) -> None:
    """From two thirds of its life to its end, if it has an anchor."""
    assert is_due(replace(CLAIMS, anchor=anchor), now) is due
    assert not is_due(None, now)


@pytest.mark.parametrize(
    ("now", "anchor", "error", "expected", "words"),
    [
        (11300.0, ANCHOR, "", ("True", "TokenValid"), ("expires at ", "is renewed from ")),
        (11500.0, ANCHOR, "", ("True", "TokenValid"), ()),
        (11500.0, ANCHOR, "POST /x: no", ("False", "TokenNotRenewed"), ("POST /x: no", NEXT)),
        (12000.0, ANCHOR, "", ("False", "TokenNotRenewed"), ("the leader was away", NEXT)),
        (11900.0, "", "", ("True", "TokenValid"), ("is not renewed",)),
        (12000.0, "", "", ("False", "TokenNotRenewed"), ("bound to no Secret", NEXT)),
        (12600.0, ANCHOR, "", ("False", "TokenExpired"), (time_text(12600.0), NEXT)),
        (99999.0, "", "x", ("False", "TokenExpired"), (NEXT,)),
    ],
)
def test_what_the_condition_says(
    now: float, anchor: str, error: str, expected: tuple[str, str], words: tuple[str, ...]
) -> None:
    """A failure at once, its lack after five sixths of the life, with the end and the next commands."""
    value = leader(token=replace(CLAIMS, anchor=anchor), token_error=error)
    state = token_state(value, HOME, now)
    assert state is not None
    assert state[:2] == expected
    assert all(word in state[2] for word in words), state[2]
    assert token_state(leader(), HOME, now) is None


def test_names_of_a_token_are_no_part_of_a_command_unless_they_are_names() -> None:
    """An administrator may paste the command."""
    value = leader(token=replace(CLAIMS, account="$(reboot)", namespace="a;b"))
    state = token_state(value, HOME, CLAIMS.expires)
    assert state is not None
    assert "reboot" not in state[2]
    assert "a;b" not in state[2]


def test_the_cluster_set_shows_the_end_of_its_token() -> None:
    """As a condition, with an Event when it is not renewed; a token without an end has neither."""
    view = member()
    controller = Controller(view, member_reconcilers(settings()))
    end = view.local.clock() + 600.0
    claims = replace(CLAIMS, issued=end - 3600.0, expires=end)
    for value, status, reasons in (
        (leader(token=claims), "False", ["TokenNotRenewed"]),
        (leader(token=replace(claims, issued=end - 900.0)), "True", []),
        (leader(), "", []),
    ):
        view.leader = value
        controller.settle()
        raw = view.local.get(Kind.CLUSTER_SET, HOME, SET)
        assert raw is not None
        assert conditions_of(raw).get("LeaderToken", ("", ""))[0] == status
        (row,) = [row for row in rows("clusterset", [raw], end) if row[1] == SET]
        assert (NEXT in row[-1]) is (status == "False")
        event_reasons = [event.reason for event in controller.all_events() if event.reason.startswith("Token")]
        assert event_reasons == reasons
