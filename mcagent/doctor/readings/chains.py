"""Netfilter chains of other programs: nft(8) lists them, except those of iptables-legacy."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from mcagent.dataplane.nft.observe import ForeignChain, nft_errors, parse_ruleset, run_nft
from mcagent.doctor.examined import ExaminedNode
from mcagent.model.errors import BackendError

# Names of the tables in use, by family; the files exist while the kernel's module is loaded.
_LEGACY = {"ip": ("ip_tables_names", "iptables-legacy-save"), "ip6": ("ip6_tables_names", "ip6tables-legacy-save")}
_NET = Path("/proc/thread-self/net")
_HOOKS = {"INPUT": "input", "FORWARD": "forward", "POSTROUTING": "postrouting", "PREROUTING": "prerouting"}


def chains(node: ExaminedNode) -> tuple[ForeignChain, ...]:
    """Return all chains but those of our table. Raises BackendError.

    Without those of iptables-legacy if they cannot be read: a check that finds nothing wrong in these chains reads
    `legacy_chains` before it passes, and is skipped then.
    """
    node.progress("netfilter")
    try:
        code, text, stderr = run_nft(["-t", "-y", "-p", "list", "ruleset"])
    except OSError as error:
        raise BackendError("nft", "list", "ruleset", str(error)) from None
    if code:
        raise BackendError("nft", "list", "ruleset", nft_errors(stderr))
    our_tables = {("ip", node.config.nft_table), ("ip6", node.config.nft_table)}
    foreign = [chain for chain in parse_ruleset(text) if (chain.family, chain.table) not in our_tables]
    with suppress(BackendError):
        foreign += node.read(legacy_chains)
    return tuple(foreign)


def legacy_chains(_: ExaminedNode) -> tuple[ForeignChain, ...]:
    """Return the chains of iptables-legacy, if it is in use. Raises BackendError."""
    return tuple(chain for family in _LEGACY for chain in _legacy(family))


def _legacy(family: str) -> Iterator[ForeignChain]:
    file, program = _LEGACY[family]
    try:
        tables = (_NET / file).read_text().split()
    except FileNotFoundError:
        return
    except OSError as error:
        raise BackendError(program, "read", file, error.strerror or str(error)) from None
    if not tables:
        return
    try:
        done = subprocess.run([program], capture_output=True, text=True, errors="replace", timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = f"{error}; run mcagent doctor where {program} is installed, in the namespaces of this Node"
        raise BackendError(program, "list", f"tables {', '.join(tables)}", reason) from None
    if done.returncode:
        raise BackendError(program, "list", f"tables {', '.join(tables)}", done.stderr.strip())
    yield from parse_save(done.stdout, family)


def parse_save(text: str, family: str = "ip") -> Iterator[ForeignChain]:
    """Read the output of iptables-save(8) or ip6tables-save(8)."""
    table, policies, rules = "", dict[str, str](), dict[str, list[str]]()
    for line in (*text.splitlines(), "*"):
        if line.startswith("*"):
            for name, policy in policies.items():
                hook = _HOOKS.get(name, "")
                yield ForeignChain(
                    family=family,
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
