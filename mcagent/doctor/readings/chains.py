"""Netfilter chains of other programs, as nft(8) lists them; nft does not list those of iptables-legacy."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

from mcagent.dataplane.nft.observe import ForeignChain, nft_errors, parse_ruleset, run_nft
from mcagent.doctor.examined import ExaminedNode
from mcagent.model.errors import BackendError

_LEGACY_TABLES = Path("/proc/thread-self/net/ip_tables_names")
_HOOKS = {"INPUT": "input", "FORWARD": "forward", "POSTROUTING": "postrouting", "PREROUTING": "prerouting"}


def chains(node: ExaminedNode) -> tuple[ForeignChain, ...]:
    """Return all chains but those of our table. Raises BackendError."""
    node.progress("netfilter")
    try:
        code, text, stderr = run_nft(["-t", "-y", "-p", "list", "ruleset"])
    except OSError as error:
        raise BackendError("nft", "list", "ruleset", str(error)) from None
    if code:
        raise BackendError("nft", "list", "ruleset", nft_errors(stderr))
    our_tables = {("ip", node.config.nft_table), ("ip6", node.config.nft_table)}
    foreign = (chain for chain in parse_ruleset(text) if (chain.family, chain.table) not in our_tables)
    return (*foreign, *_legacy())


def _legacy() -> Iterator[ForeignChain]:
    """Yield the chains of iptables-legacy, if it is in use and its command is installed."""
    try:
        if not _LEGACY_TABLES.read_text().strip():
            return
        done = subprocess.run(["iptables-legacy-save"], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return
    yield from parse_save(done.stdout)


def parse_save(text: str) -> Iterator[ForeignChain]:
    """Read the output of iptables-save(8)."""
    table, policies, rules = "", dict[str, str](), dict[str, list[str]]()
    for line in (*text.splitlines(), "*"):
        if line.startswith("*"):
            for name, policy in policies.items():
                hook = _HOOKS.get(name, "")
                yield ForeignChain(
                    family="ip",
                    table=f"{table}(legacy)",
                    name=name,
                    type="nat" if table == "nat" else "filter",
                    hook=hook,
                    priority=100 if hook == "postrouting" else 0,
                    policy="drop" if policy == "DROP" else "accept",
                    rules=tuple(rules.get(name, ())),
                )
            table, policies, rules = line[1:].strip(), {}, {}
        elif line.startswith(":"):
            name, policy, *_ = line[1:].split()
            policies[name] = policy
        elif line.startswith("-A "):
            name, _, rule = line[3:].partition(" ")
            rules.setdefault(name, []).append(rule.replace("--dport", "dport"))
