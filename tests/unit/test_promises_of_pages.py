"""What pages promise of packets, connections and times names its tests, or what measured it.

README's features are in `test_promises`; docs/security.md is generated from the attacks that show it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcagent.controller.leader import leader_reconcilers
from mcagent.controller.machinery.reconciler import Side
from mcagent.controller.settings import LeaderSettings

ROOT = Path(__file__).parents[2]
INVENTORY = {line.split()[0] for line in (ROOT / "tests/inventory/names.txt").read_text().splitlines()}
GENERATED = ("security", "doctor", "configuration", "pipeline")  # from the code, or from the tests themselves
MEASURED = ("performance",)  # names the command of each measurement
PAGES = [
    page
    for page in sorted((ROOT / "docs").rglob("*.md"))
    if page.stem not in (*GENERATED, *MEASURED) and page.parent.name not in ("notes", "reference")
]
PROMISE = re.compile(
    r"\b(?:los(?:es?|t|ing)|drops?|dropped|breaks?|broke|ends) (?:no|none|nothing|neither|not one)\b"
    r"|(?<!sees )(?<!takes )\bno (?:\w+ )?(?:packets?|connections?|traffic|loss)\b"
    r"|\bnot one packet\b|\b0 packets\b|\bwithout (?:packet )?loss\b"
    r"|\b(?:within|at most|after) (?:about |at most )?[\d.]+ (?:ms|s|seconds|minutes|min)\b",
    re.IGNORECASE,
)

# By page: words of the sentence that promises, and the tests that fail if it is not so, or files that measure.
FAULTS = {"test_connections_outlive_a_fault", "test_traffic_leaves_a_gateway_that_fails"}
PLANNED = {"test_what_is_planned_or_only_the_agent_s_loses_nothing", "test_drain_and_undrain_lose_nothing"}
KILLED = {"test_agents_killed_again_and_again_lose_no_packet"}
SETTLED = {"test_packets_pass_again_soon_after_the_end_of_what_stopped_them"}
BLANK = {"test_a_bridge_that_lost_its_flows_says_so_by_every_tunnel"}
NO_LEADER = {"test_a_leader_that_is_away_changes_nothing"}
MIXED = {"test_a_cluster_that_does_not_encrypt_is_not_reached_unless_it_is_allowed"}
ROTATION = {"test_rotation"}
TUTORIALS = {"test_the_page_is_true"}
ANTREA = {"tests/bench/antrea.py"}
ROUNDS = {"tests/bench/failover.py"}
PROMISES: dict[str, dict[str, set[str]]] = {
    "antrea.md": {
        "After 30 s, members are shown as not Ready": {"test_a_silent_member_is_not_ready_after_the_timeout"},
        "Kubernetes reports a dead Node after 40 s": {"test_a_dead_first_gateway_is_replaced_by_bfd"},
        "datagrams are silent for": ANTREA,
        "The new order is published after": ANTREA,
        "restart of mcagent's agents (SIGKILL)": {"test_a_restarted_agent_drops_nothing"},
        "mcagent's first gateway is drained": {"test_another_first_gateway"},
        "mcagent gets a second gateway": {"test_a_second_gateway_comes"},
    },
    "architecture.md": {
        "a new one is used so only after 3 s": {"test_a_new_gateway_is_used_when_it_answers_or_after_a_grace"},
        "a returning Node gets no packets": BLANK,
        "used, but no packet leaves": {"tests/unit/test_compile_failover.py"},
        "no packet passes through it": NO_LEADER,
        "a gateway signals it to get no traffic": {"test_drain_tells_other_clusters_first_and_then_all"},
    },
    "encryption.md": {
        "**no packets pass between them**": MIXED,
        "an error, and no packets to other clusters": {"test_no_implementation_is_a_clear_error"},
        "no packets pass until the next agent restarts it": {"test_without_agent_and_device_nothing_leaves"},
        "with two or more live gateways none": ROTATION,
        "no packet could be sent": {"test_encryption_without_a_handshake_names_its_cause"},
        "restarts of agents lost no message": {
            *("test_a_killed_agent_changes_nothing", "test_a_device_that_somebody_removes_comes_back"),
            *ROTATION,
        },
        "a key change loses no packet, and the loss of a gateway": {"test_a_lost_gateway_is_left", *ROTATION},
        "if `datapath: auto` finds no kernel module": {"tests/unit/test_encryption.py"},
    },
    "failover.md": {
        "A gateway that dies breaks no connection": FAULTS,
        "Planned work (drain, restart or upgrade of the agent) loses no packet": {*PLANNED, *KILLED},
        "2, 4 or 8 times as much and at most 3 s": {
            "test_the_time_is_never_below_the_configured_one_and_never_above_its_bound"
        },
        "open in one direction only": {"test_a_gateway_that_receives_none_of_our_packets_is_avoided"},
        "both agents send 20 probes": {"test_a_tunnel_that_bfd_loses_is_examined"},
        "The alarm was false if": {
            "test_a_real_failure_is_no_false_alarm",
            "test_a_session_that_comes_back_late_was_lost",
        },
        "TCP is silent for at most 0.6 s": FAULTS,
        "drain, agent killed, restarted or upgraded": {*PLANNED, *KILLED},
        "a worker's vswitchd restarts": SETTLED,
        "two faults at once": {"test_two_faults_at_once_settle"},
        "in 340 rounds": ROUNDS,
        "no connection broke in 2 rounds each of": ROUNDS,
        "the same faults broke none in 2 rounds": ROUNDS,
        "in 10 rounds of each of the 15 faults": ROUNDS,
        "in 182 rounds": ROUNDS,
        "TCP retransmits after 200 ms": ROUNDS,
        "**False alarms drop nothing.**": {"test_a_false_alarm_loses_nothing"},
        "A returning Node gets no packets": BLANK,
        "new connections to imported Services use other clusters after": {"tests/bench/dead_cluster.py"},
        "Flapping tunnels are damped": {"test_damping_is_bounded_and_grows_only_by_losses_that_are_close"},
        "The loss of a serving-side gateway ends none": {"test_a_snated_connection_goes_on_or_is_reset"},
        "No connection broke.": ROUNDS,
    },
    "lab.md": {"two clusters are ready after 7 s": {"tests/lab/test_real_api.py"}},
    "members.md": {"After 30 s without a change": {"test_a_silent_member_is_not_ready_after_the_timeout"}},
    "multicluster.md": {
        "No packet passes through the leader": NO_LEADER,
        "The leader opens no connections": {"test_a_leader_opens_no_connections_to_members"},
    },
    "network-requirements.md": {
        "The leader opens no connections": {"test_a_leader_opens_no_connections_to_members"}
    },
    "operations.md": {
        "It sends no packet:": {"test_a_traced_packet_is_not_sent"},
        "no other traffic counts": {"test_probes_have_flows_of_their_own_on_every_node"},
        "If it crashes, the other takes over": {"test_a_dead_replica_is_replaced_when_its_lease_runs_out"},
        "after 30 s they are not Ready": {"test_a_silent_member_is_not_ready_after_the_timeout"},
        "it needs no traffic and appears": {"test_who_is_sent_packets_and_never_heard_of_is_silent"},
        "the first table appears after 10 seconds": {"test_a_rate_spans_two_updates_of_the_counters"},
        "waits until they send no more packets": {"test_drain_tells_other_clusters_first_and_then_all"},
    },
    "peers.md": {"p99 0.52 s without packets of a TCP connection": FAULTS},
    "policies.md": {
        "the loss of a gateway loses no decision": {"test_flows_decide_as_the_rules_say"},
        "lost none of 9,905 datagrams": {"tests/bench/policy_churn.py"},
        "New labels of a Pod took effect": {"tests/bench/policy_churn.py"},
        "it asks no agent and sends no packet": {"test_explain_asks_both_clusters"},
        "10,000 Pods with 50 sets of labels": {"tests/embedded/test_label_identities.py"},
    },
    "traffic.md": {
        "its endpoints get no new connections": {
            "test_a_cluster_that_no_gateway_reaches_is_left_in_the_time_of_bfd_and_returns"
        }
    },
    "troubleshooting.md": {"a start drops no traffic": KILLED},
    "tutorials/encryption.md": {
        "no packets pass between them": MIXED,
        "With two or more gateways no packet is lost": ROTATION,
    },
    "tutorials/gateways.md": {
        "No connection breaks: TCP retransmits": {*TUTORIALS, *FAULTS},
        "the gateway receives no more packets": TUTORIALS,
    },
    "tutorials/policies.md": {"It reads objects only, and sends no packet": {"test_explain_asks_both_clusters"}},
    "upgrade.md": {
        "none: no packet passes them": NO_LEADER,
        "no connection broken": {"test_an_upgrade_of_open_vswitch_breaks_no_connection"},
    },
}


def sentences(page: Path) -> Iterator[str]:
    """Yield sentences, and rows of tables, without code."""
    text = re.sub(r"^(?:```.*?^```| {4}.*?)$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for block in re.split(r"\n\s*\n|\n(?=[-|*]|\d+\. )", text):
        yield from re.split(r"(?<=[a-z)`*]\.) (?=[A-Z*`])", " ".join(block.split()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_promises_names_its_tests(page: Path) -> None:
    """A new promise needs its test here; words that are no longer on the page have to go."""
    promises = PROMISES.get(str(page.relative_to(ROOT / "docs")), {})
    promising = [sentence for sentence in sentences(page) if PROMISE.search(sentence)]
    assert [sentence for sentence in promising if not any(words in sentence for words in promises)] == []
    assert [words for words in promises if not any(words in sentence for sentence in promising)] == []


def test_the_tests_of_promises_exist() -> None:
    """Tests are in the inventory; other evidence is a file."""
    evidence = {name for promises in PROMISES.values() for names in promises.values() for name in names}
    assert {name for name in evidence if name.startswith("test_")} <= INVENTORY
    assert [name for name in evidence if not name.startswith("test_") and not (ROOT / name).exists()] == []
    assert all(names for promises in PROMISES.values() for names in promises.values())
    assert {page for page in PROMISES if not (ROOT / "docs" / page).exists()} == set()


def test_a_leader_opens_no_connections_to_members() -> None:
    """docs/network-requirements.md: whatever a leader reads and writes is at its own API server."""
    for reconciler in leader_reconcilers(LeaderSettings()):
        assert not reconciler.reads.leader
        assert not reconciler.writes.leader
        assert {index.side for index in reconciler.indexes} <= {Side.LOCAL}
