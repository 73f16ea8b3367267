"""Admission rules of the webhook: cases of tests/worlds/admission_cases.py; accounts of its configuration."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from mcagent.config.reader import ConfigError
from mcagent.controller.admission import AdmissionDecision, accounts_of, mutate, review
from mcagent.controller.admission.identity import ambiguous_with
from mcagent.controller.config import ControllerRole, load
from mcagent.controller.contract import names
from mcagent.kube.source import RawObject
from mcagent.kube.sources.manifests import FastLoader
from tests.worlds.admission_cases import CASES, EAST, OURS, Case, Why
from tests.worlds.admission_objects import AREA, OWN, WORLD, a_policy, a_service, an_info, ask, put, sa
from tests.worlds.antrea_objects import VERSIONS, written_by

POLICIES = Path(__file__).parents[2] / "deploy/admission-policies.yaml"


def check(decision: AdmissionDecision, code: int, message: str = "") -> None:
    """Compare a decision with what the contract has: 200 is allowed."""
    assert (decision.allowed, decision.code) == (code == 200, code), decision
    assert message in decision.message
    assert decision.allowed or decision.message


@pytest.mark.parametrize("case", [pytest.param(c, id=c.title) for c in CASES if c.asks_webhook])
def test_the_webhook_decides(case: Case) -> None:
    """The webhook refuses what breaks one of its rules, and allows what only policies refuse."""
    decision = ask(case.operation, case.new, case.old, case.user, world=case.world, accounts=case.accounts)
    check(decision, case.code, case.message)


def test_each_rule_has_one_place() -> None:
    """Only requests that break two rules are refused by webhook and policies; no two cases have one name."""
    for case in CASES:
        by_both = case.code != 200 and bool(case.policy)
        assert by_both == (case.why in (Why.TWO_RULES, Why.API_SERVER)), case.title
    assert len({case.title for case in CASES}) == len(CASES)
    assert [len(written_by(version)) for version in VERSIONS] == [4] * 4


def test_policies_are_not_asked_about_deletions() -> None:
    """So the table has no answer of theirs."""
    for policy in yaml.load_all(POLICIES.read_text(), FastLoader):
        rules = policy["spec"].get("matchConstraints", {}).get("resourceRules", ())
        assert all({*rule["operations"]} <= {"CREATE", "UPDATE"} for rule in rules)


def test_own_accounts_can_be_configured() -> None:
    """A controller of another name or namespace than the default removes finalizers."""
    accounts = accounts_of(AREA, controllers=["elsewhere/my-controller"])
    info, mine = an_info(), sa("my-controller", "elsewhere")
    check(ask("DELETE", None, info, mine), 403, "not in namespace")
    check(ask("DELETE", None, info, mine, accounts=accounts), 200)
    check(ask("DELETE", None, info, OURS, accounts=accounts), 412, "not found")


def test_accounts_of_the_configuration(tmp_path: Path) -> None:
    """Lists of namespace/name are read, in the controller's own namespace by default; anything else is refused."""
    file = tmp_path / "controller.yaml"
    file.write_text("admission:\n  trustedServiceAccounts: [argocd/argocd-application-controller]\n")
    accounts = load(ControllerRole.LEADER, file, {}, {}).accounts("mcs")
    assert {str(caller) for caller in accounts.trusted} == {"ServiceAccount argocd/argocd-application-controller"}
    assert {caller.namespace for caller in accounts.controllers} == {"mcs"}
    for wrong in (
        "[argocd]",
        "[a/b/c]",
        "['*/x']",
        "[a/*]",
        "argocd/x",
        "[[a/b]]",
        "['system:serviceaccount:a:b']",
    ):
        file.write_text(f"admission:\n  trustedServiceAccounts: {wrong}\n")
        with pytest.raises(ConfigError, match="namespace/name"):
            load(ControllerRole.LEADER, file, {}, {})


def test_dash_pairs() -> None:
    """Only whole dash-separated beginnings make a pair."""
    assert ambiguous_with("east", ["east", "west", "eastern", "east1"]) == ""
    assert ambiguous_with("east", ["east-1"]) == "east-1"
    assert ambiguous_with("east-1-a", ["east-1"]) == "east-1"


# --- the mutating review, and anything at all ---------------------------------------------------------------


def patched(raw: RawObject) -> RawObject:
    """Return an export as the mutating review leaves it."""
    decision = mutate({"operation": "CREATE", "object": raw, "userInfo": {"username": "alice"}})
    assert decision.allowed
    patched_account = copy.deepcopy(raw)
    for step in decision.patch:
        assert step["op"] == "add"
        _, meta, name = str(step["path"]).split("/")
        patched_account[meta][name] = step["value"]
    return patched_account


def test_a_policy_is_completed() -> None:
    """A person's export of a policy gets its labels and the finalizer, and keeps what it has."""
    raw = put(put(a_policy(), "metadata.labels", {"mine": "1"}), "metadata.finalizers", ["a/b"])
    account = patched(raw)
    assert account["metadata"]["finalizers"] == ["a/b", names.EXPORT_FINALIZER]
    assert account["metadata"]["labels"] == {
        "mine": "1",
        "sourceName": "acnp",
        "sourceNamespace": "",
        "sourceKind": "AntreaClusterNetworkPolicy",
    }
    assert patched(account) == account
    bare = put(put(a_policy(), "metadata.labels", None), "metadata.finalizers", None)
    assert patched(bare)["metadata"]["finalizers"] == [names.EXPORT_FINALIZER]


def test_other_exports_are_not_completed() -> None:
    """What controllers write is theirs to write right."""
    assert patched(put(a_service(), "metadata.labels", None)) == put(a_service(), "metadata.labels", None)


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)


@pytest.mark.costly
@given(
    operation=st.sampled_from(["CREATE", "UPDATE", "DELETE", "CONNECT", None, 3]),
    kind=st.sampled_from(["ClusterSet", "Gateway", "MemberClusterAnnounce", "ResourceExport", "Pod"]),
    new=JSON,
    old=JSON,
    user=st.sampled_from([EAST, "alice", "system:serviceaccount::", OURS]),
)
def test_anything_gets_an_answer(operation: Any, kind: str, new: Any, old: Any, user: str) -> None:
    """No request makes a review raise."""
    request: Mapping[str, Any] = {
        "operation": operation,
        "kind": {"kind": kind},
        "namespace": AREA,
        "object": new,
        "oldObject": old,
        "userInfo": {"username": user},
    }
    assert review(request, WORLD, OWN).code in (200, 400, 403, 412)
    assert mutate(request).allowed


@given(value=JSON, operation=st.sampled_from(["CREATE", "UPDATE"]))
def test_no_member_gets_through_with_junk(value: Any, operation: str) -> None:
    """An export whose spec is junk is not the member's own, and is refused."""
    assert not ask(operation, put(a_service(), "spec", value), a_service(), EAST).allowed
