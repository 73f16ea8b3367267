"""Log lines of rules with enableLogging."""

from __future__ import annotations

from typing import Any

import pytest

from mcagent.agent.reports.policy_log import PolicyLog
from mcagent.core.compile import compile_desired
from mcagent.model.dataplane.facts import Facts
from mcagent.model.node_state import PolicyRuleName
from mcagent.model.objects import Kind
from tests.worlds.core_inputs import HOME, config, namespace, pod, policy, snapshot


def rule(name: str, label: str | None) -> PolicyRuleName:
    """Return a rule in force."""
    return PolicyRuleName(
        policy=f"P/{name}", rule="ingress[0]", direction="ingress", verdict="drop", log_label=label
    )


def test_what_rules_decided_since_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Once each time, by those that ask for it; flows that were made anew count from zero."""
    caplog.set_level("INFO")
    rules = {1: rule("a", "audit"), 2: rule("b", ""), 3: rule("c", None)}
    counts = {1: 5, 2: 0, 3: 9}
    log = PolicyLog(lambda: rules, lambda: counts)
    log.log_decisions()
    assert caplog.messages == []  # what was before nobody knows
    counts |= {1: 7, 2: 4, 3: 30}
    log.log_decisions()
    assert caplog.messages == [
        'P/a ingress[0] logLabel "audit": drop, 2 packets',
        "P/b ingress[0]: drop, 4 packets",
    ]
    caplog.clear()
    log.log_decisions()
    assert caplog.messages == []
    counts[1] = 3
    log.log_decisions()
    assert caplog.messages == ['P/a ingress[0] logLabel "audit": drop, 3 packets']


def test_counters_that_could_not_be_read_are_not_zero(caplog: pytest.LogCaptureFixture) -> None:
    """The next line has the packets since the last successful reading, not all since the flows were added."""
    caplog.set_level("INFO")
    readings: list[dict[int, int] | None] = [{1: 1000}, None, {1: 1002}]
    log = PolicyLog(lambda: {1: rule("a", "")}, lambda: readings.pop(0))
    for _ in range(3):
        log.log_decisions()
    assert caplog.messages == ["P/a ingress[0]: drop, 2 packets"]


def test_without_a_rule_to_log_open_vswitch_is_not_asked() -> None:
    """Counters are read for those that ask for a log only."""
    requests: list[int] = []

    def counts() -> dict[int, int]:
        requests.append(1)
        return {}

    PolicyLog(lambda: {3: rule("c", None)}, counts).log_decisions()
    assert requests == []


@pytest.mark.parametrize(
    ("more", "label"),
    [({}, None), ({"enableLogging": True}, ""), ({"enableLogging": True, "logLabel": "audit"}, "audit")],
)
def test_a_policy_says_what_is_logged(more: dict[str, Any], label: str | None) -> None:
    """A label without enableLogging is none."""
    spec = {
        "priority": 1,
        "appliedTo": [{"podSelector": {}}],
        "ingress": [{"action": "Drop", **more}, {"action": "Drop", "logLabel": "x"}],
    }
    objects = (*HOME, namespace("default"), pod("p", "g1", "10.10.1.5"))
    source = snapshot(*objects, policy(Kind.CLUSTER_NETWORK_POLICY, "x", spec))
    compiled = compile_desired(source, Facts(), config("g1", stretched_network_policy=True))
    named = compiled.state.policy_rules.values()
    assert {rule.rule: rule.log_label for rule in named} == {"ingress[0]": label, "ingress[1]": None}
