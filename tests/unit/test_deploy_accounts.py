"""What each account may do: docs/deploy.md says it in a table, and the table is what the manifests grant."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import yaml

from mcagent.kube.sources.manifests import FastLoader

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/deploy.md"
START = "<!-- accounts: compared by tests/unit/test_deploy_accounts.py -->"
END = "<!-- end of accounts -->"
FILES = (
    "agent.yaml",
    "leader.yaml",
    "member.yaml",
    "member-policies.yaml",
    "examples/member-east-clusterset.yaml",
)
ACCOUNTS = {
    "agent.yaml": "agent",
    "leader.yaml": "leader's controller",
    "member.yaml": "member's controller",
    "member-policies.yaml": "member's controller, with `replicatedPolicies`",
    "examples/member-east-clusterset.yaml": "member's controller",
}
MEMBER_ROLE = "antrea-mc-member-cluster-role"
COREDNS_ROLE = "mcagent-coredns"
Json = dict[str, Any]


def table() -> str:
    """Return the table, from the manifests."""
    rows: dict[tuple[str, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for file in FILES:
        for manifest in yaml.load_all((ROOT / "deploy" / file).read_text(), FastLoader):
            if manifest["kind"] not in ("Role", "ClusterRole"):
                continue
            of_member = manifest["metadata"]["name"] == MEMBER_ROLE
            account = "a member's token, on the leader" if of_member else ACCOUNTS[file]
            account = "CoreDNS" if manifest["metadata"]["name"] == COREDNS_ROLE else account
            where = manifest["metadata"].get("namespace", "all namespaces")
            for rule in manifest["rules"]:
                rows[account, where][", ".join(rule["verbs"])] += words(rule)
    lines = ["| account | where | may |", "| --- | --- | --- |"]
    for (account, where), granted in rows.items():
        rights = "; ".join(f"{verbs}: {', '.join(dict.fromkeys(what))}" for verbs, what in granted.items())
        lines.append(f"| {account} | {where} | {rights} |")
    return "\n".join(lines)


def words(rule: Json) -> list[str]:
    """Return what a rule is about: resources, of certain names if it says so."""
    names = rule.get("resourceNames")
    return [
        f"{resource} {' '.join(f'`{name}`' for name in names)}" if names else resource
        for resource in rule["resources"]
    ]


def test_the_page_says_what_the_manifests_grant() -> None:
    """No more and no less."""
    text = PAGE.read_text(encoding="utf-8")
    between = text.partition(START)[2].partition(END)[0]
    assert between.strip() == table(), f"docs/deploy.md must have:\n{table()}"


def test_secrets_are_read_by_name_only() -> None:
    """Every rule about Secrets or Leases names them, and nobody creates one."""
    count = 0
    for file in FILES:
        for manifest in yaml.load_all((ROOT / "deploy" / file).read_text(), FastLoader):
            for rule in manifest.get("rules", ()):
                if {"secrets", "leases"} & set(rule["resources"]):
                    count += 1
                    assert rule["resourceNames"], (file, rule)
                    assert not {"create", "delete", "patch"} & set(rule["verbs"]), (file, rule)
                assert "serviceaccounts/token" not in rule["resources"]
                assert not {"escalate", "bind", "impersonate"} & set(rule["verbs"])
    assert count == 5
