"""What pages promise has tests: a page names tests that exist, and its commands are those that work."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mcagent.model.kinds import KINDS
from mcagent.model.objects import Kind

ROOT = Path(__file__).parents[2]
INVENTORY = {line.split()[0] for line in (ROOT / "tests/inventory/names.txt").read_text().splitlines()}
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
STATUS = ROOT / "docs/notes/faults-2026-11-status.md"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tests_that_a_page_names_exist(page: Path) -> None:
    """A test function, or a file of tests, that is evidence for a page."""
    text = page.read_text()
    assert set(re.findall(r"`(test_\w+)`", text)) <= INVENTORY
    files = re.findall(r"\btests/[\w/]+\.py\b", text)
    assert [file for file in files if not (ROOT / file).exists()] == []


def test_each_fixed_fault_names_its_test() -> None:
    """Rows that are fixed have a test, rows that are declined a reason."""
    rows = [
        line.strip("|").split(" | ") for line in STATUS.read_text().splitlines() if re.match(r"\| [A-Zpmo]", line)
    ]
    assert len(rows) > 60
    without = [row[0] for row in rows if "fixed" in row[2] and "test_" not in row[3] and "docs/" not in row[2]]
    assert without == []
    assert [row[0] for row in rows if row[2].startswith("declined") and len(row[2]) < 20] == []


def test_no_page_upgrades_with_reuse_values() -> None:
    """With `helm upgrade --reuse-values` a chart with a new value does not render."""
    commands = [line for page in PAGES for line in page.read_text().splitlines() if "helm upgrade " in line]
    assert len(commands) > 3
    assert [line for line in commands if " --reuse-values" in line] == []


def test_the_page_lists_every_kind_with_a_finalizer() -> None:
    """docs/uninstall.md, "A deletion that hangs": a kind that is missing keeps its namespace in deletion."""
    (listed,) = re.findall(r"kubectl get ([\w,]+) -A", (ROOT / "docs/uninstall.md").read_text())
    kinds = (Kind.CLUSTER_SET, Kind.MEMBER_CLUSTER_ANNOUNCE, Kind.RESOURCE_EXPORT)
    assert {KINDS[kind].plural for kind in kinds} <= set(listed.split(","))


# The bold words of each feature in README.md, with the tests that fail if it is no longer so.
PROMISES = {
    "The CNI stays unchanged": {"test_cleanup_leaves_nothing_of_ours_and_everything_else"},
    "Several active gateways.": {
        "test_connections_outlive_a_fault",
        "test_drain_and_undrain_lose_nothing",
        "test_drain_counts_the_connections_that_it_ends",
    },
    "Standard APIs.": {"test_the_conformance_suite_passes"},
    "Source addresses stay": {"test_every_way_of_the_matrix", "test_services_work_where_a_pod_cidr_is_refused"},
    "Only exported Services are reachable.": {"test_beside_an_exported_service", "test_a_node_port"},
    "Restarts drop no traffic.": {
        "test_agents_killed_again_and_again_lose_no_packet",
        "test_without_the_api_server_the_dataplane_stays_and_agents_catch_up",
    },
    "Encryption": {"test_without_agent_and_device_nothing_leaves", "test_rotation"},
    "Policies between clusters": {"test_default_deny_and_allow_by_labels_of_the_other_cluster"},
    "Members do not trust each other.": {"test_an_older_member_takes_a_cidr", "test_clear_geneve_from_the_uplink"},
    "Its own control plane": {"test_a_leader_that_is_away_changes_nothing"},
    "Diagnosis": {
        "test_trace_agrees_with_packets",
        "test_what_is_told_is_what_applying_it_does",
        "test_commands_of_the_doctor_and_of_problems_exist",
    },
}


def test_each_feature_of_the_readme_names_its_tests() -> None:
    """A new or changed promise needs its tests here."""
    features = re.findall(r"^- \*\*(.+?)\*\*", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    assert set(features) == PROMISES.keys()
    assert {test for tests in PROMISES.values() for test in tests} <= INVENTORY
